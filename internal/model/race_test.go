//go:build race

package model

// See norace_test.go.
const faults = 1
