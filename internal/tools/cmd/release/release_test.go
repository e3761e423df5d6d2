package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/semelhttp"
)

const version = "v0.7.0"

// scratch returns a repository with one commit, which has the files of this tree
// as they are now, and without a remote.
func scratch(t *testing.T) repository {
	t.Helper()
	root, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	r := repository{dir: t.TempDir()}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		switch to := filepath.Join(r.dir, rel); {
		case rel == ".git" || rel == "bin" || rel == "dist" || d.Name() == "node_modules":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		case !d.Type().IsRegular():
			return nil
		default:
			text, err := os.ReadFile(name)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // another test's, gone by now
			}
			if err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o644)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, r)
	return r
}

// small returns a repository of a few modules.
func small(t *testing.T) repository {
	t.Helper()
	const requires = "\n\nrequire " + rootPath + " v0.0.0\n\nreplace " + rootPath + " => ../..\n"
	r := repository{dir: t.TempDir()}
	for name, text := range map[string]string{
		"LICENSE":             "Do what you like.\n",
		"doc.go":              "package semel\n",
		"go.mod":              "module " + rootPath + "\n",
		table:                 "| `.` | yes | |\n| `store/sqlite` | yes | |\n| `cmd/semel` | yes | |\n| `bench` | no | |\n",
		"store/sqlite/doc.go": "package sqlite\n",
		"store/sqlite/go.mod": "module " + rootPath + "/store/sqlite" + requires,
		"cmd/semel/main.go":   "package main\n",
		"cmd/semel/go.mod":    "module " + rootPath + "/cmd/semel" + requires + "\nrequire " + rootPath + "/store/sqlite v0.0.0\n\nreplace " + rootPath + "/store/sqlite => ../../store/sqlite\n",
		"bench/go.mod":        "module " + rootPath + "/bench\n\nrequire " + rootPath + " v0.0.0\n\nreplace " + rootPath + " => ../\n",
	} {
		name = filepath.Join(r.dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, r)
	return r
}

// begin makes a repository of a folder, with what is in it.
func begin(t *testing.T, r repository) {
	t.Helper()
	git(t, r, "init", "--quiet")
	git(t, r, "config", "user.name", "A Tester")
	git(t, r, "config", "user.email", "tester@example.com")
	commit(t, r)
}

func git(t *testing.T, r repository, args ...string) string {
	t.Helper()
	out, err := r.git(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func commit(t *testing.T, r repository) {
	t.Helper()
	git(t, r, "add", "--all")
	git(t, r, "commit", "--quiet", "--message", "x")
}

// edit changes a file of r; a change that changes nothing fails the test.
func edit(t *testing.T, r repository, name, from, to string) {
	t.Helper()
	name = filepath.Join(r.dir, name)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(text, []byte(from), []byte(to), 1)
	if bytes.Equal(changed, text) {
		t.Fatalf("%s does not have %q", name, from)
	}
	if err := os.WriteFile(name, changed, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRelease cuts a release of this tree and then is a user of it: outside of the
// workspace, with the tags' modules from a module proxy made of files. By default
// the go command only resolves, loads and plans the builds; with
// SEMEL_TEST_RELEASE=whole it builds them, and what it has built is run.
func TestRelease(t *testing.T) {
	r := scratch(t)
	head := git(t, r, "rev-parse", "HEAD")
	if err := r.cut(t.Context(), version, t.Output()); err != nil {
		t.Fatal(err)
	}
	if now := git(t, r, "rev-parse", "HEAD"); now != head || git(t, r, "status", "--porcelain") != "" {
		t.Error("cutting a release moved the branch, or changed the work tree")
	}
	for _, m := range strings.Fields(git(t, r, "tag")) {
		name := strings.TrimPrefix(strings.TrimSuffix(m, version)+"go.mod", "/")
		file, err := modfile.Parse(name, []byte(git(t, r, "show", m+":"+name)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(file.Replace) > 0 {
			t.Errorf("%s has a replace directive", name)
		}
		for _, q := range file.Require {
			if ours(q.Mod.Path) && q.Mod.Version != version {
				t.Errorf("%s requires %s", name, q.Mod)
			}
			if strings.Contains(q.Mod.Path, "testenv") {
				t.Errorf("%s requires %s: users would need a module that is for tests", name, q.Mod)
			}
		}
	}
	if text := git(t, r, "show", version+":clients/js/package.json"); !strings.Contains(text, `"version": "0.7.0"`) {
		t.Errorf("the npm package has another version:\n%s", text)
	}
	for what, refused := range map[string]string{"again": version, "below": "v0.6.9"} {
		if err := r.cut(t.Context(), refused, io.Discard); err == nil || !strings.Contains(err.Error(), "is not above") {
			t.Errorf("cutting %s: %v", what, err)
		}
	}

	temporary := t.TempDir()
	proxy := filepath.Join(temporary, "proxy")
	t.Chdir(r.dir)
	if err := run(t.Context(), []string{"proxy", version, proxy}, t.Output()); err != nil {
		t.Fatal(err)
	}
	env, err := goEnv(proxy, temporary)
	if err != nil {
		t.Fatal(err)
	}
	u := user{dir: filepath.Join(temporary, "service"), env: append(env, "GOBIN="+filepath.Join(temporary, "bin"), "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off", "CGO_ENABLED=0")}
	if err := os.Mkdir(u.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	whole := os.Getenv("SEMEL_TEST_RELEASE") == "whole"

	t.Run("program", func(t *testing.T) {
		if !whole {
			if plan := u.run(t, "go", "install", "-n", rootPath+"/cmd/semel@latest"); !strings.Contains(plan, "semel@"+version) {
				t.Errorf("go install does not take %s:\n%s", version, plan)
			}
			return
		}
		u.run(t, "go", "install", rootPath+"/cmd/semel@latest")
		if said := u.run(t, filepath.Join(temporary, "bin", "semel"), "--version"); !strings.Contains(said, version) {
			t.Errorf("the installed program says that it is %s", said)
		}
	})

	t.Run("every module", func(t *testing.T) {
		modules, err := readTree(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range modules.released {
			if strings.Contains(m.path, "/internal/") {
				continue
			}
			// Each alone: what one requires must not depend on what another does.
			u := u
			u.dir = t.TempDir()
			u.run(t, "go", "mod", "init", "example.com/one")
			u.run(t, "go", "get", m.path+"/...@"+version)
			if whole {
				u.run(t, "go", "build", "-o", os.DevNull, m.path+"/...")
			} else {
				u.run(t, "go", "list", "-deps", m.path+"/...")
			}
		}
	})

	t.Run("service", func(t *testing.T) {
		if err := os.CopyFS(u.dir, os.DirFS(filepath.Join(r.dir, "internal/tools/cmd/release/testdata/service"))); err != nil {
			t.Fatal(err)
		}
		u.run(t, "go", "mod", "init", "example.com/service")
		u.run(t, "go", "get", rootPath+"@"+version, rootPath+"/store/sqlite@"+version, rootPath+"/store/postgres@"+version, rootPath+"/adapter/gin@"+version)
		u.run(t, "go", "mod", "tidy")
		if !whole {
			u.run(t, "go", "build", "-n", "-mod=readonly", ".")
			return
		}
		u.run(t, "go", "build", "-mod=readonly", "-o", "service", ".")
		for name, where := range map[string]string{"sqlite": filepath.Join(u.dir, "semel.db"), "postgres": testenv.Postgres(t)} {
			t.Run(name, func(t *testing.T) { servesOnce(t, filepath.Join(u.dir, "service"), where) })
		}
	})
}

// user is who has nothing but the go command and a folder.
type user struct {
	dir string
	env []string
}

func (u user) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = u.dir, u.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// servesOnce has the service at a path accept an order twice under one key.
func servesOnce(t *testing.T, service, where string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), service, where)
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	for attempt, replayed := range []string{"", "true"} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+strings.TrimSpace(address)+"/orders", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set(semelhttp.HeaderKey, `"a-key-of-its-own"`)
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if got := answer.Header.Get(semelhttp.HeaderReplayed); answer.StatusCode != http.StatusCreated || string(body) != `{"order":1}` || got != replayed {
			t.Errorf("attempt %d: %d %s, replayed: %q; want order 1 with 201, replayed: %q", attempt, answer.StatusCode, body, got, replayed)
		}
	}
}

// TestCutRefuses has trees of which no release can be made, and releases that are
// none: nothing is tagged, and the error says why.
func TestCutRefuses(t *testing.T) {
	r := small(t)
	start := git(t, r, "rev-parse", "HEAD")
	tests := []struct {
		name, file, from, to string
		want                 string
	}{
		{"a released module needs one that is not", table, "| `store/sqlite` | yes |", "| `store/sqlite` | no |", "requires github.com/semelhq/semel/store/sqlite, which is not"},
		{"a module without a row", table, "| `bench` | no | |\n", "", "no row says whether bench is released"},
		{"a row without a module", table, "| `bench` |", "| `benches` | no | |\n| `bench` |", "benches has a row, but no go.mod"},
		{"a replace of others", "store/sqlite/go.mod", "replace ", "replace example.com/x => example.com/x v1.0.0\n\nreplace ", "go.mod replaces example.com/x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			edit(t, r, tt.file, tt.from, tt.to)
			if err := r.cut(t.Context(), version, io.Discard); err == nil || !strings.Contains(err.Error(), "the work tree has changes") {
				t.Errorf("a release of a changed work tree: %v", err)
			}
			commit(t, r)
			if err := r.cut(t.Context(), version, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
			if tags := git(t, r, "tag"); tags != "" {
				t.Errorf("tags were made: %s", tags)
			}
			git(t, r, "reset", "--quiet", "--hard", start)
		})
	}
	for _, v := range []string{"1.0.0", "v1.0", "v2.0.0", "v1.0.0+x", "latest"} {
		if err := checkVersion(v); err == nil {
			t.Errorf("%s passes for a version", v)
		}
	}
}

// TestCheckFinds changes a release after it was cut.
func TestCheckFinds(t *testing.T) {
	r := small(t)
	if err := r.cut(t.Context(), version, t.Output()); err != nil {
		t.Fatal(err)
	}
	cut := git(t, r, "rev-parse", version)
	check := func() error {
		clone, err := r.clone(t.Context(), "refs/tags/"+version)
		if err != nil {
			t.Fatal(err)
		}
		defer clone.remove()
		_, err = clone.check(t.Context(), version, t.TempDir())
		return err
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	retag := func() {
		for _, tag := range strings.Fields(git(t, r, "tag")) {
			git(t, r, "tag", "--force", tag, "HEAD")
		}
	}
	tests := []struct {
		name   string
		change func()
		want   string
	}{
		{"a tag is missing", func() { git(t, r, "tag", "--delete", "cmd/semel/"+version) }, "the tag cmd/semel/" + version},
		{"a tag is elsewhere", func() { git(t, r, "tag", "--force", "store/sqlite/"+version, cut+"^") }, "the tag store/sqlite/" + version},
		{"a file has changed", func() {
			git(t, r, "checkout", "--quiet", cut)
			edit(t, r, "doc.go", "package semel", "package semel // later")
			commit(t, r)
			retag()
		}, "store/sqlite: go.sum lacks \"" + rootPath + " " + version + " h1:"},
		{"another version is required", func() {
			git(t, r, "checkout", "--quiet", cut)
			edit(t, r, "cmd/semel/go.mod", version, "v0.6.0")
			commit(t, r)
			retag()
		}, "cmd/semel: go.mod requires " + rootPath + " at v0.6.0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.change()
			if err := check(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
			git(t, r, "checkout", "--quiet", cut)
			retag()
			git(t, r, "tag", "--force", "cmd/semel/"+version)
		})
	}
}
