package lint

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// rootMayRequire are the dependency-free helpers of the root module.
var rootMayRequire = []string{"github.com/dunglas/httpsfv", "github.com/go-json-experiment/json"}

// alone are modules that go.work leaves out, so that what they require raises
// nobody else's versions. scripts/lint.sh and scripts/tidy.sh name them, too, and the
// Makefile those whose tests are run with the others.
var alone = []string{"adapter/caddy", "bench/peers", "internal/deploycheck", "internal/tools"}

// checkModules returns what is wrong with the way the modules fit together.
func checkModules(tree fs.FS) ([]string, error) {
	text, err := fs.ReadFile(tree, "go.work")
	if err != nil {
		return nil, err
	}
	work := parseMod(string(text))
	mods, err := files(tree, "go.mod")
	if err != nil {
		return nil, err
	}

	var wrong []string
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	dirs := map[string]bool{}
	for _, name := range mods {
		if path.Base(name) != "go.mod" {
			continue
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		dir, mod := path.Dir(name), parseMod(string(text))
		dirs[dir] = true
		switch used, out := slices.Contains(work.uses, dir), slices.Contains(alone, dir); {
		case used && out:
			report("go.work: uses %s, which is to stay out of it", dir)
		case !used && !out:
			report("%s: go.work does not use this module", name)
		}
		if want := path.Join(modulePath, dir); mod.module != want {
			report("%s: the module is named %s; its folder says %s", name, mod.module, want)
		}
		if mod.goVersion != work.goVersion {
			report("%s: go %s; go.work says %s", name, mod.goVersion, work.goVersion)
		}
		for _, r := range mod.requires {
			if dir == "." && !slices.Contains(rootMayRequire, r.module) {
				report("%s: the root module may not require %s", name, r.module)
			}
			if r.module != modulePath && !strings.HasPrefix(r.module, modulePath+"/") {
				continue
			}
			// Without these the module builds in the workspace alone.
			if r.version != "v0.0.0" {
				report("%s: %s is required at %s; in the tree it is v0.0.0", name, r.module, r.version)
			}
			to := mod.replaces[r.module]
			if want := strings.TrimPrefix(strings.TrimPrefix(r.module, modulePath), "/"); to == "" || path.Join(dir, to) != path.Clean(want) {
				report("%s: %s is not replaced by its folder in the tree", name, r.module)
			}
		}
	}
	for _, dir := range work.uses {
		if !dirs[dir] {
			report("go.work: uses %s, which has no go.mod", dir)
		}
	}
	return wrong, nil
}

func TestModules(t *testing.T) {
	wrong, err := checkModules(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

func TestModulesFinds(t *testing.T) {
	const root = "module " + modulePath + "\n\ngo 1.26.0\n\nrequire github.com/dunglas/httpsfv v1.1.2 // indirect\n"
	const sub = "module " + modulePath + "/store/sqlite\n\ngo 1.26.0\n\nrequire " + modulePath + " v0.0.0\n\nreplace " + modulePath + " => ../..\n"
	tests := []struct {
		name, file, text string
		want             string // "" if nothing is wrong
	}{
		{"a tree in order", "README.md", "", ""},
		{"module not in go.work", "bench/go.mod", "module " + modulePath + "/bench\n\ngo 1.26.0\n", "bench/go.mod: go.work does not use this module"},
		{"module that stays out", "bench/peers/go.mod", "module " + modulePath + "/bench/peers\n\ngo 1.26.0\n", ""},
		{"module that stays out has no replace", "bench/peers/go.mod", "module " + modulePath + "/bench/peers\n\ngo 1.26.0\n\nrequire " + modulePath + " v0.0.0\n", modulePath + " is not replaced by its folder in the tree"},
		{"hidden folders are not the tree", ".cache/x/go.mod", "module x\n", ""},
		{"go.work uses nothing", "go.work", "go 1.26.0\n\nuse (\n\t.\n\t./store/sqlite\n\t./gone\n)\n", "go.work: uses gone, which has no go.mod"},
		{"go version drifts", "store/sqlite/go.mod", strings.Replace(sub, "1.26.0", "1.25.0", 1), "store/sqlite/go.mod: go 1.25.0; go.work says 1.26.0"},
		{"name is not the folder", "store/sqlite/go.mod", strings.Replace(sub, "/sqlite", "/lite", 1), "store/sqlite/go.mod: the module is named " + modulePath + "/store/lite"},
		{"root requires a driver", "go.mod", root + "\nrequire (\n\tmodernc.org/sqlite v1.0.0\n)\n", "go.mod: the root module may not require modernc.org/sqlite"},
		{"replace is missing", "store/sqlite/go.mod", strings.Split(sub, "replace")[0], modulePath + " is not replaced by its folder in the tree"},
		{"replace points elsewhere", "store/sqlite/go.mod", strings.Replace(sub, "=> ../..", "=> ../../x", 1), modulePath + " is not replaced by its folder in the tree"},
		{"tree module at a version", "store/sqlite/go.mod", strings.Replace(sub, "v0.0.0", "v0.1.0", 1), "is required at v0.1.0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := fstest.MapFS{
				"go.work":             {Data: []byte("go 1.26.0\n\nuse (\n\t.\n\t./store/sqlite\n)\n")},
				"go.mod":              {Data: []byte(root)},
				"store/sqlite/go.mod": {Data: []byte(sub)},
			}
			tree[tt.file] = &fstest.MapFile{Data: []byte(tt.text)}
			wrong, err := checkModules(tree)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, wrong, tt.want)
		})
	}
}

// expect fails unless wrong is one finding that contains want, or is empty if
// want is.
func expect(t *testing.T, wrong []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(wrong) == 0:
	case want != "" && len(wrong) == 1 && strings.Contains(wrong[0], want):
	default:
		t.Errorf("found %q, want %q", wrong, want)
	}
}
