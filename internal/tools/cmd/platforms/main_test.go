package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.com/a\n\ngo 1.26\n",
		"a.go":              "package a\n\nimport \"os\"\n\nfunc F() error { return os.Chdir(name) }\n",
		"name_linux.go":     "package a\n\nconst name = \"/\"\n",
		"name_windows.go":   "package a\n\nconst name = `C:\\`\n",
		"a_windows_test.go": "package a\n\nvar _ int = name\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for platform, want := range map[string]string{
		"linux/amd64":   "",
		"darwin/arm64":  "undefined: name",
		"windows/amd64": "a_windows_test.go:3:13: cannot use name",
		"plan10/amd64":  "plan10/amd64",
	} {
		var out strings.Builder
		ok := check(dir, "./...", []string{platform}, &out)
		_, said, _ := strings.Cut(out.String(), "\n")
		if ok != (want == "") || !strings.Contains(said, want) {
			t.Errorf("%s: %v, %s", platform, ok, said)
		}
	}
}
