//go:build !unix

package report

// syncDir: these systems have no way to sync a folder; they keep names in order
// themselves.
func syncDir(string) error { return nil }
