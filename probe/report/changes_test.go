package report

import (
	"slices"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
)

// The changes of a race that are the same in all trials are one line.
func TestChangeLines(t *testing.T) {
	one := evidence.Change{Reader: "orders", Name: "effects", Before: "0", After: "1", Effects: 1, Expected: 1}
	two := evidence.Change{Reader: "orders", Name: "effects", Before: "0", After: "2", Effects: 2, Expected: 1}
	const line, double = "orders effects: 0 -> 1 (1 effect, 1 due)", "orders effects: 0 -> 2 (2 effects, 1 due)"
	control := []evidence.Send{{N: 1, Role: "control"}}
	for name, c := range map[string]struct {
		e    evidence.Experiment
		want []string
	}{
		"no race":        {evidence.Experiment{Changes: []evidence.Change{one, one}}, []string{line, line}},
		"all the same":   {evidence.Experiment{Race: &evidence.Race{Trials: 3}, Changes: []evidence.Change{one, one, one}}, []string{line + " in each of 3 trials"}},
		"one differs":    {evidence.Experiment{Race: &evidence.Race{Trials: 3}, Changes: []evidence.Change{one, two, one}}, []string{line + " 2 times", double}},
		"with a control": {evidence.Experiment{Race: &evidence.Race{Trials: 2}, Sends: control, Changes: []evidence.Change{one, one, one}}, []string{line + " in the control and in each of 2 trials"}},
		"all but one":    {evidence.Experiment{Race: &evidence.Race{Trials: 2}, Sends: control, Changes: []evidence.Change{one, one, two}}, []string{line + " 2 times", double}},
	} {
		if got := changeLines(&evidence.Operation{}, &c.e); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
