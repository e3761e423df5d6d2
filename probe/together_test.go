package probe_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// Of two requests that are released at once the one that was executed is called
// the first, whichever was sent first, and the other is not called a retry.
func TestTheExecutedOneOfTwoIsTheFirst(t *testing.T) {
	for range 5 { // whose request comes first is chance
		var posts atomic.Int64
		both := make(chan struct{})
		target := &counter{before: func(w http.ResponseWriter, _ *http.Request) bool {
			// The first is the control. Then they come in pairs: another one where the
			// machine was too slow to have both under way.
			switch n := posts.Add(1); {
			case n == 1:
			case n%2 == 0:
				<-both
				w.WriteHeader(http.StatusBadRequest)
				return true
			default:
				both <- struct{}{}
			}
			return false
		}}
		p := simple(target.serve(t).URL, plan.InFlight)
		p.Operations[0].Key, p.Operations[0].Altered = nil, nil
		e := outcome(t, mustRun(t, p, probe.Options{Send: true}).Run.Operations[0], plan.InFlight)
		if e.Outcome != evidence.Held || !strings.Contains(e.Why, "the second of two at once was refused with 400") {
			t.Errorf("%s: %s", e.Outcome, e.Why)
		}
		for role, status := range map[evidence.Role]int{"first": http.StatusCreated, "duplicate": http.StatusBadRequest} {
			i := slices.IndexFunc(e.Sends, func(s evidence.Send) bool { return s.Role == role })
			if i < 0 || e.Sends[i].Status != status {
				t.Errorf("%d is not the response to the %s: %+v", status, role, e.Sends)
			}
		}
	}
}

// An older request that is sent again is compared with the state after the newer
// one, and that reading is kept.
func TestWhatIsComparedIsKept(t *testing.T) {
	p := simple((&counter{}).serve(t).URL, plan.Reordered)
	e := outcome(t, mustRun(t, p, probe.Options{Send: true}).Run.Operations[0], plan.Reordered)
	last := e.Before[len(e.Before)-1]
	if len(e.Changes) != 1 || e.Changes[0].Before != "2" || last.Count == nil || *last.Count != 2 {
		t.Errorf("%+v is compared with %+v", e.Before, e.Changes)
	}
}

// A number that is lower than before the request is no number of its effects:
// by it neither is an effect lost nor is a duplicate known.
func TestANumberThatFallsTellsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		at, by int64 // at which request, the first being the control
	}{"with a first request": {2, 5}, "with a duplicate": {4, 5}} {
		t.Run(name, func(t *testing.T) {
			var posts atomic.Int64
			target := &counter{}
			target.effects.Store(10)
			target.after = func(*http.Request, []byte) {
				if posts.Add(1) == c.at {
					target.effects.Add(-c.by)
				}
			}
			p := simple(target.serve(t).URL, plan.FreshKey, plan.LateRetry)
			p.Timing.SettleLimit = 10 * time.Minute // it is not waited for
			op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
			e := op.Experiments[slices.IndexFunc(op.Experiments, func(e evidence.Experiment) bool {
				return slices.ContainsFunc(e.Changes, func(ch evidence.Change) bool { return ch.Effects < 0 })
			})]
			if e.Outcome != evidence.Inconclusive || !strings.Contains(e.Why, "the number of reader n fell from ") || e.Changes[0].Name != "effects: the number fell" || e.Changes[0].Expected != -1 {
				t.Errorf("%s: %s: %s %+v", e.Name, e.Outcome, e.Why, e.Changes)
			}
			if slices.ContainsFunc(op.Findings, func(f evidence.Finding) bool { return f.ID == "lost-effect" }) {
				t.Errorf("%+v", op.Findings)
			}
		})
	}
}

// What reads the state by means of the program's own may send what nobody counts.
func TestOwnReadersAreNotCounted(t *testing.T) {
	target := &counter{}
	p := simple(target.serve(t).URL, plan.Duplicate)
	own := probe.State{Name: "own", Read: func(context.Context, probe.StateRequest) (int64, error) { return target.effects.Load(), nil }}
	op := mustRun(t, p, probe.Options{Send: true, State: []probe.State{own}}).Run.Operations[0]
	for _, r := range op.Readers {
		if r.Uncounted != (r.Name == "own") {
			t.Errorf("%+v", r)
		}
	}
}
