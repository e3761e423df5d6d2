package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// uninstrumented are the packages that stay without the race detector's calls,
// which take most of the processor's time and can find nothing there. SQLite is C
// translated to Go, and works on memory outside of the Go heap, which the detector
// passes over; the driver and the stores keep the calls. The model has one
// goroutine. The parser of YAML and the validator of JSON Schema, with which files are
// read, have a state for each document, and nobody else's goroutines in them.
var uninstrumented = []string{
	"modernc.org/sqlite/lib", "modernc.org/libc", "github.com/semelhq/semel/internal/model",
	"go.yaml.in/yaml/v4/internal/libyaml", "github.com/santhosh-tekuri/jsonschema/v6",
}

// raceDetector is what decideRace needs to know about the machine.
type raceDetector interface {
	try() error     // builds and runs a program under the race detector
	install() error // installs the C compiler it needs
}

// decideRace reports whether to run under the race detector. Where it cannot and
// need not, note says why; the closing line carries it, so that a weaker run
// is never taken for a full one.
func decideRace(mode string, ci bool, d raceDetector) (race bool, note string, err error) {
	switch mode {
	case "off":
		return false, "without -race: switched off", nil
	case "on", "auto":
	default:
		return false, "", fmt.Errorf("-race=%s: use on, off or auto", mode)
	}
	err = d.try()
	if err != nil {
		if installErr := d.install(); installErr != nil {
			err = errors.Join(err, installErr)
		} else {
			err = d.try()
		}
	}
	if err == nil {
		return true, "", nil
	}
	if mode == "on" || ci {
		return false, "", fmt.Errorf("the race detector does not work here: %w", err)
	}
	return false, "without -race: it does not work here, see above", nil
}

// detector is the machine's own race detector. It needs a C compiler with the
// C library's headers, and an address space the detector can map.
type detector struct {
	ctx context.Context
	log io.Writer
}

func (d detector) try() error {
	dir, err := os.MkdirTemp("", "semel-race-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(d.ctx, "go", "run", "-race", file)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		err = fmt.Errorf("go run -race: %w: %s", err, strings.TrimSpace(string(out)))
		fmt.Fprintln(d.log, "testall:", err)
		return err
	}
	return nil
}

func (d detector) install() error {
	if os.Geteuid() != 0 {
		return errors.New("a C compiler is needed; not root, so none is installed")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("a C compiler is needed; there is no apt-get to install one with")
	}
	for _, args := range [][]string{
		{"update", "-qq"},
		{"install", "-y", "-qq", "--no-install-recommends", "gcc", "libc6-dev"},
	} {
		fmt.Fprintln(d.log, "testall: apt-get", strings.Join(args, " "))
		cmd := exec.CommandContext(d.ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = d.log, d.log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", args[0], err)
		}
	}
	return nil
}
