package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nobody is the user and group that the image runs as: no user of a host's.
const nobody = 65532

// writeImage writes one image for both Linux platforms, as a tar file of an OCI
// image layout. It has the program, the certificates of public authorities, a place
// for databases, and nothing else: no shell, no root.
func (b *builder) writeImage(name string, programs []program, licences []entry) error {
	platforms := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		if p.system != "linux" {
			continue
		}
		image, err := b.image(p, licences)
		if err != nil {
			return err
		}
		platforms = mutate.AppendManifests(platforms, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.system, Architecture: p.arch}},
		})
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add:        platforms,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": b.version}},
	})
	dir, err := os.MkdirTemp(b.temporary, "image-")
	if err != nil {
		return err
	}
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	var entries []entry
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := entry{name: filepath.ToSlash(rel), mode: 0o644}
		if d.IsDir() {
			e.mode = fs.ModeDir | 0o755
		} else if e.text, err = os.ReadFile(path); err != nil {
			return err
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return err
	}
	text, err := tarOf(entries, b.created)
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

func (b *builder) image(p program, licences []entry) (v1.Image, error) {
	text, err := os.ReadFile(p.file)
	if err != nil {
		return nil, err
	}
	entries := []entry{
		{name: "etc", mode: fs.ModeDir | 0o755},
		{name: "etc/passwd", mode: 0o644, text: []byte("root:x:0:0:root:/:/\nsemel:x:65532:65532:semel:/var/lib/semel:/\n")},
		{name: "etc/group", mode: 0o644, text: []byte("root:x:0:\nsemel:x:65532:\n")},
		{name: "etc/ssl", mode: fs.ModeDir | 0o755},
		{name: "etc/ssl/certs", mode: fs.ModeDir | 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: certificates()},
		{name: "licenses", mode: fs.ModeDir | 0o755},
		{name: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{name: "usr", mode: fs.ModeDir | 0o755},
		{name: "usr/bin", mode: fs.ModeDir | 0o755},
		{name: "usr/bin/semel", mode: 0o755, text: text},
		{name: "var", mode: fs.ModeDir | 0o755},
		{name: "var/lib", mode: fs.ModeDir | 0o755},
		{name: "var/lib/semel", mode: fs.ModeDir | 0o700, owner: nobody},
	}
	for _, l := range licences {
		l.name = "licenses/" + l.name
		entries = append(entries, l)
	}
	archive, err := tarOf(entries, b.created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: b.created}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "semel's cmd/release"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.system, p.arch, created
	config.Config = v1.Config{
		User:       "65532:65532",
		WorkingDir: "/var/lib/semel",
		Entrypoint: []string{"/usr/bin/semel"},
		Cmd:        []string{"--help"},
		Env:        []string{"PATH=/usr/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "semel",
			"org.opencontainers.image.description": "Requests that are retried, raced or repeated take effect once",
			"org.opencontainers.image.source":      "https://" + rootPath,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     b.version,
			"org.opencontainers.image.created":     b.created.Format("2006-01-02T15:04:05Z"),
			"org.opencontainers.image.revision":    setting(p, "vcs.revision"),
		},
	}
	return mutate.ConfigFile(image, config)
}

func setting(p program, key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// certificates returns those of the authorities that Go's own list of roots has
// without a condition, for a file of them cannot say one.
func certificates() []byte {
	var all [][]byte
	for r := range bundle.Roots() {
		if r.Constraint == nil {
			all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}))
		}
	}
	slices.SortFunc(all, bytes.Compare)
	return bytes.Join(all, nil)
}
