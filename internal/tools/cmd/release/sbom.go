package main

import (
	"encoding/base64"
	"encoding/hex"
	"os"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes which modules are in a program, by what its own build
// information says, as CycloneDX.
func (b *builder) writeSBOM(name string, p program, text []byte) error {
	component := func(path, version, sum string) cdx.Component {
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: "pkg:golang/" + path + "@" + version}
		c.BOMRef = c.PackageURL
		// The checksum of go.sum, which is not that of one file.
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(sum) == 32 {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
		return c
	}
	main := component(p.info.Main.Path, b.version, "")
	main.Type = cdx.ComponentTypeApplication
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest(text)}}
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	main.Properties = &[]cdx.Property{{Name: "os", Value: p.system}, {Name: "arch", Value: p.arch}}

	components := []cdx.Component{component("std", strings.TrimPrefix(p.info.GoVersion, "go"), "")}
	for _, d := range p.info.Deps {
		components = append(components, component(d.Path, d.Version, d.Sum))
	}
	refs := make([]string, 0, len(components))
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: b.created.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
