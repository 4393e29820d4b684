//go:build tools

// Package tools names the programs that the bed builds from this module.
package tools

import (
	_ "knative.dev/net-kourier/cmd/kourier"
)
