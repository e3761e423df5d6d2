package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func readVersion() versionInfo {
	v := versionInfo{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// String says it in one line. A program that go install has made knows its version,
// but not the commit.
func (v versionInfo) String() string {
	revision := ""
	if v.Revision != "" {
		revision = ", revision " + v.Revision
		if v.Modified {
			revision += " with changes"
		}
	}
	if v.Time != "" {
		revision += " of " + v.Time
	}
	return fmt.Sprintf("semel %s%s, %s %s/%s", v.Version, revision, v.Go, v.OS, v.Arch)
}

func (p *program) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Prints the version, the revision and date that it was built from, if known, and the
version of Go. semel --version prints the same.`,
		Example: "  semel version\n  semel version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if asJSON {
				return p.printJSON(v)
			}
			_, err := fmt.Fprintln(p.stdout, v)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
