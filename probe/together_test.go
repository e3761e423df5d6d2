package probe_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

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
			switch posts.Add(1) { // the first is the control
			case 2:
				<-both
				w.WriteHeader(http.StatusBadRequest)
				return true
			case 3:
				close(both)
			}
			return false
		}}
		p := simple(target.serve(t).URL, plan.InFlight)
		p.Operations[0].Key, p.Operations[0].Altered = nil, nil
		e := outcome(t, mustRun(t, p, probe.Options{Send: true}).Run.Operations[0], plan.InFlight)
		if e.Outcome != evidence.Held || !strings.Contains(e.Why, "the second of two at once was refused with 400") {
			t.Errorf("%s: %s", e.Outcome, e.Why)
		}
		for role, status := range map[string]int{"first": http.StatusCreated, "duplicate": http.StatusBadRequest} {
			i := slices.IndexFunc(e.Sends, func(s evidence.Send) bool { return s.Role == role })
			if i < 0 || e.Sends[i].Status != status {
				t.Errorf("%d is not the answer to the %s: %+v", status, role, e.Sends)
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
