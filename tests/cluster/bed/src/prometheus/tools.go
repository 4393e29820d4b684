//go:build tools

// Package tools names the programs that the bed builds from this module.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
)
