package probe

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

var update = flag.Bool("update", false, "write the table of findings into docs/probe.md")

var docsFile = filepath.Join("..", "docs", "probe.md")

func docs(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// docsTable returns the rows below a line that begins the head of a table.
func docsTable(t *testing.T, text, head string) (rows [][]string) {
	t.Helper()
	_, below, ok := strings.Cut(text, "\n"+head)
	if !ok {
		t.Fatalf("docs/probe.md has no table that begins with %q", head)
	}
	for i, line := range strings.Split(below, "\n") {
		switch {
		case i < 2: // the rest of the head, and the rule
		case !strings.HasPrefix(line, "| "):
			return rows
		default:
			cells := strings.Split(strings.Trim(line, "| "), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

// The guide's table of findings agrees with the catalogue.
func TestDocsFindings(t *testing.T) {
	const head = "| finding | priority | in a line |\n|---|---|---|\n"
	var want strings.Builder
	for _, e := range evidence.Catalogue() {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", e.ID, e.Priority, e.Title)
	}
	text := docs(t)
	before, below, ok := strings.Cut(text, head)
	if !ok {
		t.Fatal("docs/probe.md has no table of findings")
	}
	got, after := "", below
	for strings.HasPrefix(after, "| ") {
		line, rest, _ := strings.Cut(after, "\n")
		got, after = got+line+"\n", rest
	}
	if got == want.String() {
		return
	}
	if *update {
		if err := os.WriteFile(docsFile, []byte(before+head+want.String()+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("the table of findings in docs/probe.md is not the catalogue: run this test with -update. It has\n%s\nand should have\n%s", got, &want)
}

// The guide tells of every experiment, with its step.
func TestDocsExperiments(t *testing.T) {
	name := regexp.MustCompile("`([a-z_]+)`")
	told := map[plan.Experiment]bool{}
	for _, row := range docsTable(t, docs(t), "| experiment | step |") {
		if len(row) != 6 {
			t.Errorf("the row of %s has %d cells", row[0], len(row))
			continue
		}
		for _, m := range name.FindAllStringSubmatch(row[0], -1) {
			e := plan.Experiment(m[1])
			if k, ok := kinds[e]; !ok || k.step != row[1] || told[e] {
				t.Errorf("%s is no experiment, is told of twice, or its step is not %s", e, row[1])
			}
			told[e] = true
		}
	}
	for _, e := range plan.Experiments() {
		if !told[e] {
			t.Errorf("docs/probe.md does not tell of %s", e)
		}
	}
}

// The terms of the confidence in the guide are those that the code adds.
func TestDocsConfidence(t *testing.T) {
	head := []string{"control"}
	row := []string{fmt.Sprintf("%.2f", float64(controlWeight)/100)}
	sum := controlWeight
	for _, w := range weights {
		head = append(head, "`"+string(w.of)+"`")
		row = append(row, fmt.Sprintf("%.2f", float64(w.weight)/100))
		sum += w.weight
	}
	if sum != 100 {
		t.Errorf("the weights are %d hundredths in all", sum)
	}
	if rows := docsTable(t, docs(t), "| "+strings.Join(head, " | ")+" |"); len(rows) != 1 || !slices.Equal(rows[0], row) {
		t.Errorf("the weights are %v, docs/probe.md has %v", row, rows)
	}
}

// The rates in the guide are those of the formula, rounded up.
func TestDocsBounds(t *testing.T) {
	_, below, ok := strings.Cut(docs(t), "\n| overlapping trials |")
	if !ok {
		t.Fatal("docs/probe.md has no table of bounds")
	}
	lines := strings.SplitN(below, "\n", 4)
	cells := func(line string) []string { return strings.Split(strings.Trim(line, "| "), "|") }
	trials, rates := cells(lines[0]), cells(lines[2])[1:]
	if len(trials) < 5 || len(trials) != len(rates) {
		t.Fatalf("%q and %q", trials, rates)
	}
	for i := range trials {
		n, err := strconv.Atoi(strings.ReplaceAll(strings.TrimSpace(trials[i]), ",", ""))
		if err != nil {
			t.Fatal(err)
		}
		rate := strings.TrimSpace(strings.ReplaceAll(rates[i], "%", ""))
		told, err := strconv.ParseFloat(rate, 64)
		if err != nil {
			t.Fatal(err)
		}
		_, decimals, _ := strings.Cut(rate, ".")
		unit := math.Pow(10, -float64(len(decimals)))
		if bound := 100 * evidence.RateBound(0, n); told < bound-1e-9 || told-bound >= unit {
			t.Errorf("%d trials leave open %.3f %%, docs/probe.md says %s", n, bound, rate)
		}
	}
}

// The plans in the guide are valid.
func TestDocsPlans(t *testing.T) {
	n := 0
	for part := range strings.SplitSeq(docs(t), "\n```yaml\n") {
		text, _, ok := strings.Cut(part, "\n```")
		if !ok || !strings.HasPrefix(text, "version: 1\n") {
			continue
		}
		n++
		p, err := plan.Parse("probe.md", []byte(text))
		if err == nil {
			err = p.Validate()
		}
		if err != nil {
			t.Error(err)
		}
	}
	if n == 0 {
		t.Error("docs/probe.md has no plan")
	}
}
