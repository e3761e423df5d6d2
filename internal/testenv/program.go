package testenv

import "testing"

// Program returns the path of a program that the test runs. On Debian its
// package has the same name.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := findOrInstall(name, name)
	if err != nil {
		missing(t, err)
	}
	return path
}
