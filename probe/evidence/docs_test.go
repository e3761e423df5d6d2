package evidence

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The guide tells of every field of a verdict and of every value it can have.
func TestDocsVerdict(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "probe.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if name, rest, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` | "); ok {
			rows[name] = rest
		}
	}
	// The bounds of the guide are those of reports.
	bounds := "| rate left open, up to |"
	for _, n := range []int{1, 3, 10, 20, 60, 100, 300, 1000} {
		bounds += " " + Percent(RateBound(0, n)) + " |"
	}
	if !strings.Contains(string(text), bounds+"\n") {
		t.Errorf("docs/probe.md has other bounds than reports: %s", bounds)
	}
	for _, f := range UnknownVerdict().Fields() {
		if rows[f.Name] == "" {
			t.Errorf("docs/probe.md does not tell of %s", f.Name)
		}
	}
	for _, f := range verdictFields {
		for _, value := range f.values {
			if value != "unknown" && !strings.Contains(rows[f.name], "`"+value+"`") {
				t.Errorf("docs/probe.md does not tell of %s(%s)", f.name, value)
			}
		}
	}
}
