//go:build race

package semelhttp_test

// The race detector looks at each byte of large bodies in each buffer that they
// pass through.
const raceEnabled = true
