//go:build tools

// Package tools names the programs that the bed builds from this module.
package tools

import (
	_ "github.com/envoyproxy/gateway/cmd/envoy-gateway"
)
