package report

import (
	"bytes"
	"slices"
	"testing"

	"github.com/semelhq/semel/probe/evidence"
)

func TestChanged(t *testing.T) {
	for what, c := range map[string]struct {
		change         func(*evidence.Run)
		changed, worse bool
	}{
		"nothing":           {func(*evidence.Run) {}, false, false},
		"another run of it": {func(r *evidence.Run) { r.ID, r.Started, r.Sent = "y", began.AddDate(0, 0, 1), 7 }, false, false},
		"only confidence":   {func(r *evidence.Run) { r.Operations[0].Verdict.Confidence = 0.1 }, false, false},
		"texts":             {func(r *evidence.Run) { r.Operations[0].Findings[0].Title = "x" }, false, false},
		"order":             {func(r *evidence.Run) { slices.Reverse(r.Operations[0].Findings) }, false, false},
		"field":             {func(r *evidence.Run) { r.Operations[0].Verdict.RaceBehavior = "unknown" }, true, false},
		"outcome":           {func(r *evidence.Run) { r.Operations[0].Experiments[1].Outcome = evidence.Inconclusive }, true, false},
		"experiment gone":   {func(r *evidence.Run) { r.Operations[0].Experiments = r.Operations[0].Experiments[1:] }, true, false},
		"finding gone":      {func(r *evidence.Run) { r.Operations[0].Findings = r.Operations[0].Findings[:2] }, true, false},
		"finding new": {func(r *evidence.Run) {
			r.Operations[0].Findings = append(r.Operations[0].Findings, find("replay-unmarked", "duplicate"))
		}, true, true},
		"finding elsewhere":   {func(r *evidence.Run) { r.Operations[0].Findings[0].Experiment = "duplicate" }, true, true},
		"higher priority":     {func(r *evidence.Run) { r.Operations[0].Findings[2].Priority = evidence.P0 }, true, true},
		"lower priority":      {func(r *evidence.Run) { r.Operations[0].Findings[1].Priority = evidence.P2 }, true, false},
		"operation gone":      {func(r *evidence.Run) { r.Operations = nil }, true, false},
		"operation new":       {func(r *evidence.Run) { o := newOperation(); o.Name = "x"; r.Operations = append(r.Operations, o) }, true, false},
		"operation renamed":   {func(r *evidence.Run) { r.Operations[0].Name = "x" }, true, true},
		"second of its names": {func(r *evidence.Run) { r.Operations[0].Experiments[1].Name = "specification" }, true, false},
	} {
		old, now := raceRun(), raceRun()
		c.change(now)
		var b bytes.Buffer
		d := Compare(old, now)
		if err := d.Text(&b); err != nil {
			t.Fatal(err)
		}
		if d.Changed() != c.changed || d.Worse() != c.worse {
			t.Errorf("%s: changed %t, worse %t; want %t, %t:\n%s", what, d.Changed(), d.Worse(), c.changed, c.worse, b.String())
		}
	}
}

// A finding that is gone is fixed only if its experiment showed something this
// time.
func TestGoneIsNotFixed(t *testing.T) {
	for outcome, fixed := range map[evidence.Outcome]bool{
		evidence.Held: true, evidence.Broken: true, evidence.Inconclusive: false, evidence.NotRun: false, evidence.NotApplicable: false, "": false,
	} {
		now := cleanRun()
		for i := range now.Operations[0].Experiments {
			if e := &now.Operations[0].Experiments[i]; e.Name == "race" {
				e.Outcome = outcome
			}
		}
		d := Compare(raceRun(), now).Operations[0]
		if got := slices.ContainsFunc(d.Fixed, func(f FindingRef) bool { return f.ID == "double-effect-race" }); got != fixed {
			t.Errorf("%q: fixed %t; want %t", outcome, got, fixed)
		}
		if len(d.Fixed)+len(d.Unproven) != 3 {
			t.Errorf("%q: findings got lost: %+v", outcome, d)
		}
	}
}
