package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/module"
)

var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}

// program is the built program of a platform.
type program struct {
	system, arch string
	file         string // its path
	info         *debug.BuildInfo
}

func (p program) base() string {
	if p.system == "windows" {
		return "semel.exe"
	}
	return "semel"
}

// builder builds the program from a checked out release.
type builder struct {
	repository
	version string
	env     []string
	created time.Time // of the commit
}

// newBuilder has the modules of the release in proxy. The folder temporary is used
// as long as the builder is.
func newBuilder(ctx context.Context, r repository, version, proxy, temporary string) (*builder, error) {
	b := &builder{repository: r, version: version}
	var err error
	if b.env, err = goEnv(proxy, temporary); err != nil {
		return nil, err
	}
	seconds, err := r.git(ctx, "show", "--no-patch", "--format=%ct", "HEAD")
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	b.created = time.Unix(n, 0).UTC()
	return b, err
}

// build builds the program for a platform into dir, and checks what it says of
// itself. With fresh, nothing that was compiled before is used.
func (b *builder) build(ctx context.Context, platform, dir string, fresh bool) (p program, err error) {
	p.system, p.arch, _ = strings.Cut(platform, "/")
	p.file = filepath.Join(dir, p.system+"_"+p.arch, p.base())
	// Without the workspace the versions are those that go install gives.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", p.file, ".")
	if fresh {
		cmd.Args = slices.Insert(cmd.Args, 2, "-a")
	}
	cmd.Dir = filepath.Join(b.dir, "cmd", "semel")
	cmd.Env = append(slices.Clone(b.env), "CGO_ENABLED=0", "GOOS="+p.system, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0")
	if _, err := output(cmd); err != nil {
		return p, err
	}
	if p.info, err = buildinfo.ReadFile(p.file); err != nil {
		return p, err
	}
	if p.info.Main.Version != b.version {
		return p, fmt.Errorf("the program says that it is %s, not %s: has the checkout changes?", p.info.Main.Version, b.version)
	}
	return p, nil
}

// dist builds what is published of a release into a folder that is to be new, or
// empty.
func (r repository) dist(ctx context.Context, version, proxy, dir string, out io.Writer) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: remove it first. Nothing was done", dir)
	}
	temporary := filepath.Join(r.temporary, "dist")
	b, err := newBuilder(ctx, r, version, proxy, temporary)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, "dist: "+format+"\n", args...) }
	var programs []program
	for i, platform := range platforms {
		say("building %s, %d of %d; each takes a minute or two the first time", platform, i+1, len(platforms))
		p, err := b.build(ctx, platform, temporary, false)
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	say("building %s again, from nothing, to compare", platforms[0])
	again, err := b.build(ctx, platforms[0], filepath.Join(temporary, "again"), true)
	if err != nil {
		return err
	}
	if err := same(programs[0].file, again.file); err != nil {
		return err
	}
	// What is there is whole: the folder has its name last.
	staged := dir + ".partial"
	if err := errors.Join(os.RemoveAll(staged), os.MkdirAll(staged, 0o755)); err != nil {
		return err
	}
	if err := b.pack(programs, staged); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(staged, dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			say("%6.1f MB  %s", float64(info.Size())/1e6, filepath.Join(dir, e.Name()))
		}
	}
	return nil
}

func same(a, b string) error {
	x, err := os.ReadFile(a)
	if err != nil {
		return err
	}
	y, err := os.ReadFile(b)
	if err == nil && !bytes.Equal(x, y) {
		err = errors.New("two builds of the program differ: something of this machine is in it. Nothing was published")
	}
	return err
}

// pack writes archives, SBOMs, the image and the checksums of them all to dir.
func (b *builder) pack(programs []program, dir string) error {
	notices, err := b.notices(programs)
	if err != nil {
		return err
	}
	files := []entry{{name: "THIRD_PARTY_LICENSES", mode: 0o644, text: notices}}
	for _, name := range []string{"LICENSE", "README.md"} {
		text, err := os.ReadFile(filepath.Join(b.dir, name))
		if err != nil {
			return err
		}
		files = append(files, entry{name: name, mode: 0o644, text: text})
	}
	for _, p := range programs {
		text, err := os.ReadFile(p.file)
		if err != nil {
			return err
		}
		name := filepath.Join(dir, fmt.Sprintf("semel_%s_%s_%s", b.version, p.system, p.arch))
		all := append(slices.Clone(files), entry{name: p.base(), mode: 0o755, text: text})
		if p.system == "windows" {
			err = b.writeZip(name+".zip", all)
		} else {
			err = b.writeTarGz(name+".tar.gz", all)
		}
		if err == nil {
			err = b.writeSBOM(name+".cdx.json", p, text)
		}
		if err != nil {
			return err
		}
	}
	if err := b.writeImage(filepath.Join(dir, "semel_"+b.version+"_image.tar"), programs, files); err != nil {
		return err
	}
	return checksums(dir)
}

// checksums writes the file that sha256sum --check reads.
func checksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// entry is a file, or with a mode of a folder a folder, of an archive.
type entry struct {
	name  string
	mode  fs.FileMode
	text  []byte
	owner int // its user and group
}

func (b *builder) writeTarGz(name string, entries []entry) error {
	text, err := tarOf(entries, b.created)
	if err != nil {
		return err
	}
	var zipped bytes.Buffer
	w, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, zipped.Bytes(), 0o644)
}

// tarOf returns a tar archive in which nothing is of this machine or of now.
func tarOf(entries []entry, at time.Time) ([]byte, error) {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: int64(e.mode.Perm()), Size: int64(len(e.text)), ModTime: at, Uid: e.owner, Gid: e.owner, Format: tar.FormatPAX}
		if e.mode.IsDir() {
			h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
		}
		if e.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return text.Bytes(), err
}

func (b *builder) writeZip(name string, entries []entry) error {
	var text bytes.Buffer
	w := zip.NewWriter(&text)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: b.created}
		h.SetMode(e.mode)
		f, err := w.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(e.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, text.Bytes(), 0o644)
}

var noticeName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// notices returns the licences of all modules in the programs, and Go's own, which
// the programs may only be passed on with.
func (b *builder) notices(programs []program) ([]byte, error) {
	folders := map[string]string{}
	for _, p := range programs {
		for _, d := range p.info.Deps {
			if ours(d.Path) {
				continue
			}
			escaped, err := module.EscapePath(d.Path)
			if err != nil {
				return nil, err
			}
			folders[d.Path+" "+d.Version] = filepath.Join(b.moduleCache(), filepath.FromSlash(escaped)+"@"+d.Version)
		}
	}
	cmd := exec.Command("go", "env", "GOROOT")
	cmd.Env = b.env
	root, err := output(cmd)
	if err != nil {
		return nil, err
	}
	folders["Go "+programs[0].info.GoVersion] = root

	var all bytes.Buffer
	for _, title := range slices.Sorted(maps.Keys(folders)) {
		entries, err := os.ReadDir(folders[title])
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range entries {
			if e.IsDir() || !noticeName.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folders[title], e.Name()))
			if err != nil {
				return nil, err
			}
			found = true
			fmt.Fprintf(&all, "==== %s: %s\n\n%s\n\n", title, e.Name(), bytes.TrimSpace(text))
		}
		if !found {
			return nil, fmt.Errorf("%s has no licence that the program could be passed on with", title)
		}
	}
	return all.Bytes(), nil
}

func (b *builder) moduleCache() string {
	for _, v := range slices.Backward(b.env) {
		if dir, ok := strings.CutPrefix(v, "GOMODCACHE="); ok {
			return dir
		}
	}
	return ""
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
