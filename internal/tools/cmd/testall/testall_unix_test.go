//go:build unix

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A go command that ends badly after tests that passed: the run is no success.
func TestGoCommandFails(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
echo '{"Action":"start","Package":"p"}'
echo '{"Action":"run","Package":"p","Test":"TestA"}'
echo '{"Action":"pass","Package":"p","Test":"TestA"}'
echo '{"Action":"pass","Package":"p"}'
exit 3
`
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	var out, log bytes.Buffer
	if code := run(t.Context(), []string{"-race=off"}, &out, &log); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if got, want := lastLine(out.String()), "1 passed, 1 failed, 0 skipped (without -race: switched off)"; got != want {
		t.Errorf("last line %q, want %q", got, want)
	}
}
