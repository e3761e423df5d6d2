package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// packed packs a program for two platforms into a new folder. It is the smallest
// that there is with another module in it: what is packed is not looked at, and
// ours takes minutes to build.
func packed(t *testing.T) string {
	t.Helper()
	r := repository{dir: t.TempDir(), temporary: t.TempDir()}
	sub := filepath.Join(r.dir, "cmd", "semel")
	for name, text := range map[string]string{
		filepath.Join(r.dir, "LICENSE"):   "Do what you like.\n",
		filepath.Join(r.dir, "README.md"): "Read me.\n",
		filepath.Join(sub, "go.mod"):      "module " + rootPath + "/cmd/semel\n\ngo 1.26.0\n",
		filepath.Join(sub, "main.go"):     "package main\n\nimport (\n\t\"fmt\"\n\n\t\"golang.org/x/mod/semver\"\n)\n\nfunc main() { fmt.Println(semver.Canonical(\"v1\")) }\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	// Of the version that this test is built with, so that it is there.
	own, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(own), "golang.org/x/mod ")
	xmod, _, _ := strings.Cut(rest, "\n")
	env, err := goEnv(t.TempDir(), r.temporary)
	if err != nil {
		t.Fatal(err)
	}
	u := user{dir: sub, env: append(env, "GOSUMDB=off")}
	u.run(t, "go", "get", "golang.org/x/mod@"+xmod)
	b := &builder{repository: r, version: version, env: append(u.env, "CGO_ENABLED=0"), created: time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC)}
	var programs []program
	for _, platform := range []string{"linux/" + runtime.GOARCH, "windows/amd64"} {
		p := program{}
		p.system, p.arch, _ = strings.Cut(platform, "/")
		p.file = filepath.Join(r.temporary, p.system, p.base())
		build := user{dir: sub, env: append(b.env, "GOOS="+p.system, "GOARCH="+p.arch)}
		build.run(t, "go", "build", "-trimpath", "-o", p.file, ".")
		if p.info, err = buildinfo.ReadFile(p.file); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
	}
	dir := t.TempDir()
	if err := b.pack(programs, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPack reads back what is published, and packs it again elsewhere: all is the
// same to the last byte.
func TestPack(t *testing.T) {
	dir, again := packed(t), packed(t)
	sums := string(read(t, filepath.Join(dir, "SHA256SUMS")))
	if other := string(read(t, filepath.Join(again, "SHA256SUMS"))); sums != other {
		t.Errorf("packed twice it differs:\n%s\n%s", sums, other)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(read(t, filepath.Join(dir, f.Name()))), f.Name()); f.Name() != "SHA256SUMS" && !strings.Contains(sums, line) {
			t.Errorf("SHA256SUMS lacks %s", line)
		}
	}
	base := filepath.Join(dir, "semel_"+version+"_linux_"+runtime.GOARCH)

	t.Run("tar", func(t *testing.T) {
		unzipped, err := gzip.NewReader(bytes.NewReader(read(t, base+".tar.gz")))
		if err != nil {
			t.Fatal(err)
		}
		found := untar(t, unzipped)
		if e := found["semel"]; e.header == nil || e.header.Mode != 0o755 {
			t.Errorf("the program is %+v", e.header)
		}
		for name, want := range map[string]string{"LICENSE": "Do what you like.", "README.md": "Read me.", "THIRD_PARTY_LICENSES": "golang.org/x/mod v"} {
			if !strings.Contains(string(found[name].text), want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	})

	t.Run("zip", func(t *testing.T) {
		z, err := zip.OpenReader(filepath.Join(dir, "semel_"+version+"_windows_amd64.zip"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = z.Close() }()
		if f, err := z.Open("semel.exe"); err != nil {
			t.Error(err)
		} else {
			_ = f.Close()
		}
	})

	t.Run("SBOM", func(t *testing.T) {
		var bom cdx.BOM
		if err := json.Unmarshal(read(t, base+".cdx.json"), &bom); err != nil {
			t.Fatal(err)
		}
		if bom.Metadata.Component.Version != version || len(*bom.Components) != 2 {
			t.Fatalf("of %s it has %+v", bom.Metadata.Component.Version, *bom.Components)
		}
		xmod := (*bom.Components)[1]
		if (*bom.Components)[0].Name != "std" || xmod.Name != "golang.org/x/mod" || !strings.HasPrefix(xmod.PackageURL, "pkg:golang/golang.org/x/mod@v") || len(*xmod.Hashes) != 1 {
			t.Errorf("components %+v", *bom.Components)
		}
	})

	t.Run("image", func(t *testing.T) {
		image := readImage(t, filepath.Join(dir, "semel_"+version+"_image.tar"))
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c := config.Config; c.User != "65532:65532" || strings.Join(c.Entrypoint, " ") != "/usr/bin/semel" || c.Labels["org.opencontainers.image.version"] != version {
			t.Errorf("config %+v", c)
		}
		if config.OS != "linux" || config.Architecture != runtime.GOARCH || config.Created.Year() != 2026 {
			t.Errorf("image for %s/%s of %v", config.OS, config.Architecture, config.Created)
		}
		found := untar(t, mutate.Extract(image))
		if roots := x509.NewCertPool(); !roots.AppendCertsFromPEM(found["etc/ssl/certs/ca-certificates.crt"].text) {
			t.Error("there are no certificates")
		}
		if d := found["var/lib/semel"]; d.header == nil || d.header.Uid != nobody || d.header.Mode != 0o700 {
			t.Errorf("the place for databases is %+v", d.header)
		}
		if d := found["tmp"]; d.header == nil || d.header.Mode != 0o1777 {
			t.Errorf("the place for temporary files is %+v", d.header)
		}
		for name, e := range found {
			if e.header.Mode&0o6000 != 0 || e.header.Uid == 0 && e.header.Mode&0o002 != 0 && name != "tmp" {
				t.Errorf("%s has mode %o", name, e.header.Mode)
			}
		}
		if runtime.GOOS != "linux" {
			return // the program in it does not run here
		}
		program := filepath.Join(t.TempDir(), "semel")
		if err := os.WriteFile(program, found["usr/bin/semel"].text, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), program).Output(); err != nil || string(out) != "v1.0.0\n" {
			t.Errorf("the program out of the image says %q, %v", out, err)
		}
	})
}

type found struct {
	header *tar.Header
	text   []byte
}

func untar(t *testing.T, r io.Reader) map[string]found {
	t.Helper()
	all := map[string]found{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(h.Name, "/")] = found{h, text}
	}
}

// readImage unpacks an image layout, follows its indices to the one image that
// TestPack has it hold, and checks every digest on the way.
func readImage(t *testing.T, name string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	for name, e := range untar(t, bytes.NewReader(read(t, name))) {
		to := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(to), 0o755)
		if e.header.Typeflag == tar.TypeReg {
			err = errors.Join(err, os.WriteFile(to, e.text, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	for {
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(manifest.Manifests) != 1 {
			t.Fatalf("%d manifests", len(manifest.Manifests))
		}
		d := manifest.Manifests[0]
		if d.MediaType.IsImage() {
			image, err := index.Image(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			return image
		}
		if index, err = index.ImageIndex(d.Digest); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificates: authorities that are trusted under a condition are left out, and
// those alone.
func TestCertificates(t *testing.T) {
	if n := bytes.Count(certificates(), []byte("BEGIN CERTIFICATE")); n < 50 {
		t.Errorf("there are %d authorities; a public server's is likely missing", n)
	}
}
