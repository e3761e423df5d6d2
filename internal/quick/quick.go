// Package quick leaves tests out of make quick, which is for the minutes in which
// something is being changed.
package quick

import "testing"

// LeaveOut skips a test that starts servers, browsers or other programs, or that goes
// on for seconds, with -short.
func LeaveOut(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("too long for -short")
	}
}

// Skips reports whether the i-th case of an enumeration is left out: with -short,
// which takes one in n.
func Skips(i, n int) bool { return testing.Short() && i%n != 0 }
