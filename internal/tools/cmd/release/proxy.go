package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// publish writes a module, as it is in a revision, to a folder that the go command
// can have as a module proxy, and returns its lines for a go.sum. The work tree is
// at that revision.
func (r repository) publish(m *mod, version, revision, proxy string) ([]string, error) {
	escaped, err := module.EscapePath(m.path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	gomod, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	info, err := json.Marshal(map[string]string{"Version": version})
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	if err := zip.CreateFromVCS(&archive, module.Version{Path: m.path, Version: version}, r.dir, revision, m.sub); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, version)
	for _, f := range []struct {
		name string
		text []byte
	}{
		{filepath.Join(dir, "list"), []byte(version + "\n")},
		{name + ".info", info},
		{name + ".mod", gomod},
		{name + ".zip", archive.Bytes()},
	} {
		if err := os.WriteFile(f.name, f.text, 0o644); err != nil {
			return nil, err
		}
	}
	whole, err := dirhash.HashZip(name+".zip", dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	requirements, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(gomod)), nil })
	if err != nil {
		return nil, err
	}
	return []string{m.path + " " + version + " " + whole, m.path + " " + version + "/go.mod " + requirements}, nil
}

// goEnv returns the environment in which the go command takes the modules of the
// tree from proxy, and all others from where it takes them otherwise. Its module
// cache, below temporary, is that of the machine but for the modules of the tree: a
// release that is given up must leave nothing behind under its version.
func goEnv(proxy, temporary string) ([]string, error) {
	out, err := exec.Command("go", "env", "-json", "GOMODCACHE", "GOPROXY", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var env struct{ GOMODCACHE, GOPROXY string }
	if err := json.Unmarshal(out, &env); err != nil {
		return nil, err
	}
	cache := filepath.Join(temporary, "modcache")
	if err := overlay(env.GOMODCACHE, cache); err != nil {
		return nil, err
	}
	return append(os.Environ(),
		"GOMODCACHE="+cache,
		"GOPROXY="+fileURL(proxy)+","+fileURL(filepath.Join(env.GOMODCACHE, "cache", "download"))+","+env.GOPROXY,
		"GONOSUMDB="+rootPath+","+rootPath+"/*", "GOPRIVATE=", "GONOPROXY=", "GOWORK=off", "GOFLAGS=-modcacherw", "GOTOOLCHAIN=local", "GOENV=off",
	), nil
}

func fileURL(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") { // a drive letter
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// overlay makes a module cache of links into another one; what belongs to the
// tree's organisation is its own.
func overlay(cache, dir string) error {
	own := []string{"cache", filepath.Join("cache", "download"), filepath.Join("cache", "download", "github.com"), "github.com"}
	organisation := strings.Split(rootPath, "/")[1]
	for _, folder := range append([]string{"."}, own...) {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(filepath.Join(cache, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			name := filepath.Join(folder, e.Name())
			if !e.IsDir() || e.Name() == organisation || name == own[0] || name == own[1] || name == own[2] || name == own[3] {
				continue
			}
			if err := os.Symlink(filepath.Join(cache, name), filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
