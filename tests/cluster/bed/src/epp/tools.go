//go:build tools

// Package tools names the program that the bed builds from this module.
package tools

import _ "sigs.k8s.io/gateway-api-inference-extension/cmd/epp/runner"
