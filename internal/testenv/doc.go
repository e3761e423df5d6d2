// Package testenv starts the servers that tests need: private, on free loopback
// ports, run as an unprivileged user, and ended with the test binary, however that
// ends.
//
// A server is started from the programs found on the machine. On Debian, where
// they are missing and the user is root, their package is installed first,
// without a service being enabled or started. Where a server can be had neither
// way the test is skipped with a message that starts with "testenv: "; with
// CI=true in the environment it fails instead.
package testenv

import (
	"os"
	"testing"
)

// EnvChromium names the environment variable with the path of the Chromium, or
// a browser made of it, to start for Chromium instead of one that is found.
const EnvChromium = "SEMEL_TEST_CHROMIUM"

// missing ends the test, because err keeps the environment from being had.
func missing(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("testenv: %v", err)
	}
	t.Skipf("testenv: %v", err)
}

// long skips a test with -short, in which no servers are started.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("testenv: too long for -short")
	}
}
