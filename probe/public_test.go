package probe_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/plan"
)

// The plans for public software can be run as they are: each parses, allows
// this machine alone, sends something for each of its operations, and is in the
// page that tells what was found.
func TestPublicPlans(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "probe-public.md"))
	if err != nil {
		t.Fatal(err)
	}
	const dir = "examples/probe-public/"
	files, err := filepath.Glob(filepath.Join("..", "docs", filepath.FromSlash(dir), "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range regexp.MustCompile(`\(`+dir+`([a-z-]+\.yaml)\)`).FindAllSubmatch(page, -1) {
		told = append(told, string(m[1]))
	}
	slices.Sort(told)
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(file))
		t.Run(filepath.Base(file), func(t *testing.T) {
			p, err := plan.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range p.Target.Allow {
				if !strings.HasPrefix(at, "127.0.0.1:") {
					t.Errorf("it allows %s", at)
				}
			}
			result, err := probe.Run(t.Context(), p, probe.Options{Full: true, Source: plan.Source{Env: func(string) (string, bool) { return "stand-in", true }}})
			if err != nil {
				t.Fatal(err)
			}
			if result.Run.Interrupted != "" {
				t.Error(result.Run.Interrupted)
			}
			for _, op := range p.Operations {
				n := 0
				for _, planned := range result.Planned {
					if planned.Operation == op.Name {
						n += planned.Times
					}
				}
				if n < 2 {
					t.Errorf("%s: %d requests are planned", op.Name, n)
				}
			}
		})
	}
	if len(names) < 6 || !slices.Equal(slices.Compact(told), names) {
		t.Errorf("the plans are %q, docs/probe-public.md tells of %q", names, told)
	}
}
