package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

const rootPath = "github.com/semelhq/semel"

// table is the page whose table says which modules are released.
const table = "docs/RELEASING.md"

// checkVersion returns an error unless version can be a release's: semantic, in
// full, and below v2, from which on import paths would have to say it.
func checkVersion(version string) error {
	if semver.Canonical(version) != version || semver.Compare(version, "v2.0.0-0") >= 0 {
		return fmt.Errorf("%q is no version of a release: it is to be like v1.2.3 or v1.2.3-rc.1, and below v2", version)
	}
	return nil
}

// tree is a folder's modules.
type tree struct {
	dir string
	// released are in the order of their requirements: each comes after those
	// it needs.
	released, others []*mod
}

// mod is a module of the tree.
type mod struct {
	path string
	sub  string // its folder, from the root, with slashes; "" for the root
	file *modfile.File
	dir  string
}

// tag is the name of the module's tag.
func (m *mod) tag(version string) string { return path.Join(m.sub, version) }

// ours reports whether path is that of a module of the tree.
func ours(path string) bool { return path == rootPath || strings.HasPrefix(path, rootPath+"/") }

// requires returns the modules of the tree that m requires, in order.
func (m *mod) requires() (paths []string) {
	for _, r := range m.file.Require {
		if ours(r.Mod.Path) {
			paths = append(paths, r.Mod.Path)
		}
	}
	slices.Sort(paths)
	return paths
}

// readTree reads the modules in dir and which of them the table has released.
func readTree(dir string) (*tree, error) {
	page, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(table)))
	if err != nil {
		return nil, err
	}
	rows := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (yes|no) \\|").FindAllStringSubmatch(string(page), -1) {
		if _, twice := rows[row[1]]; twice {
			return nil, fmt.Errorf("%s: %s has two rows", table, row[1])
		}
		rows[row[1]] = row[2] == "yes"
	}

	t := &tree{dir: dir}
	released := map[string]*mod{}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != dir && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || d.Name() != "go.mod":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return err
		}
		m := &mod{path: file.Module.Mod.Path, file: file, dir: filepath.Dir(name)}
		m.sub = strings.TrimPrefix(strings.TrimPrefix(m.path, rootPath), "/")
		row := m.sub
		if row == "" {
			row = "."
		}
		yes, ok := rows[row]
		if !ok {
			return fmt.Errorf("%s: no row says whether %s is released", table, row)
		}
		delete(rows, row)
		if yes {
			released[m.path] = m
		} else {
			t.others = append(t.others, m)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for row := range rows {
		return nil, fmt.Errorf("%s: %s has a row, but no go.mod", table, row)
	}
	t.released, err = order(released)
	return t, err
}

// order returns modules such that each comes after those it requires.
func order(modules map[string]*mod) (sorted []*mod, err error) {
	var left []string
	for p := range modules {
		left = append(left, p)
	}
	slices.Sort(left)
	done := map[string]bool{}
	for len(left) > 0 {
		ready := slices.IndexFunc(left, func(p string) bool {
			return !slices.ContainsFunc(modules[p].requires(), func(r string) bool {
				if modules[r] == nil {
					err = fmt.Errorf("%s is released and requires %s, which is not: move what needs it, or release that, too (%s)", p, r, table)
				}
				return !done[r]
			})
		})
		switch {
		case err != nil:
			return nil, err
		case ready < 0:
			return nil, fmt.Errorf("these modules require each other in a circle, so none can be released first: %s", strings.Join(left, ", "))
		}
		sorted, done[left[ready]] = append(sorted, modules[left[ready]]), true
		left = slices.Delete(left, ready, ready+1)
	}
	return sorted, nil
}

// setVersion has m require the modules of the tree at version; with drop, its
// replacements by folders of the tree go.
func (m *mod) setVersion(version string, drop bool) error {
	for _, p := range m.requires() {
		if err := m.file.AddRequire(p, version); err != nil {
			return err
		}
	}
	for _, r := range slices.Clone(m.file.Replace) {
		if drop && ours(r.Old.Path) {
			if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
				return err
			}
		}
	}
	m.file.Cleanup()
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.dir, "go.mod"), text, 0o644)
}
