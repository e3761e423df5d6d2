package lint

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const modulePath = "github.com/semelhq/semel"

// tree returns the repository as a file system.
func tree(t *testing.T) fs.FS {
	t.Helper()
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.work")); err != nil {
		t.Fatalf("the root of the repository is not two folders up: %v", err)
	}
	return os.DirFS(root)
}

// files returns the files of the tree whose name ends in suffix, without
// those the go command does not see and without what make builds.
func files(tree fs.FS, suffix string) ([]string, error) {
	var found []string
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." {
			base := path.Base(name)
			if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "vendor" || name == "bin" {
				return fs.SkipDir
			}
		}
		if d.Type().IsRegular() && strings.HasSuffix(path.Base(name), suffix) {
			found = append(found, name)
		}
		return nil
	})
	return found, err
}

// requirement is a module that a go.mod requires.
type requirement struct{ module, version string }

// modFile is what these tests need to know of a go.mod or go.work.
type modFile struct {
	module, goVersion string
	requires          []requirement
	replaces          map[string]string // module to what stands in for it
	uses              []string          // go.work only
}

// parseMod reads the text of a go.mod or go.work. The go command has checked
// its syntax by the time a test runs.
func parseMod(text string) modFile {
	m := modFile{replaces: map[string]string{}}
	block := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case block != "" && words[0] == ")":
			block = ""
			continue
		case block != "":
			words = append([]string{block}, words...)
		case len(words) == 2 && words[1] == "(":
			block = words[0]
			continue
		}
		switch words[0] {
		case "module":
			m.module = strings.Trim(words[1], `"`)
		case "go":
			m.goVersion = words[1]
		case "require":
			m.requires = append(m.requires, requirement{words[1], words[2]})
		case "replace":
			m.replaces[words[1]] = words[len(words)-1]
		case "use":
			m.uses = append(m.uses, path.Clean(words[1]))
		}
	}
	return m
}
