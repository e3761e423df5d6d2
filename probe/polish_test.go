package probe_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// In production, experiments that nobody named are not run, whatever else is
// asked for.
func TestProductionRunsWhatIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		named []plan.Experiment
		o     probe.Options
		want  []plan.Experiment
	}{
		"full":           {nil, probe.Options{Full: true}, []plan.Experiment{plan.Duplicate}},
		"full and named": {[]plan.Experiment{plan.Altered}, probe.Options{Full: true}, []plan.Experiment{plan.Altered}},
		"only":           {nil, probe.Options{Full: true, Only: []plan.Experiment{plan.FreshKey}}, []plan.Experiment{plan.FreshKey}},
	} {
		s := (&counter{}).serve(t)
		p := simple(s.URL, c.named...)
		p.Target.Production = new(true)
		c.o.Send, c.o.Production = true, true
		op := mustRun(t, p, c.o).Run.Operations[0]
		var ran []plan.Experiment
		for _, e := range op.Experiments {
			if e.Outcome == evidence.Held || e.Outcome == evidence.Broken {
				ran = append(ran, plan.Experiment(e.Name))
			} else if e.Why == "" {
				t.Errorf("%s: %s does not say why it was not run", name, e.Name)
			}
		}
		if !slices.Equal(ran, c.want) {
			t.Errorf("%s: %v were run, want %v", name, ran, c.want)
		}
	}
}

// The budget of the options replaces the plan's, and what is planned can be
// compared with it.
func TestMaxSends(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate, plan.FreshKey)
	p.Race.Width = 2
	dry := mustRun(t, p, probe.Options{MaxSends: 3})
	if dry.MaxSends != 3 || dry.PlannedSends() != 4 {
		t.Errorf("%d planned, the budget is %d", dry.PlannedSends(), dry.MaxSends)
	}
	res := mustRun(t, p, probe.Options{Send: true, MaxSends: 3})
	if n := c.effects.Load(); n != 3 || res.Run.Interrupted == "" {
		t.Errorf("%d sent with a budget of 3: %q", n, res.Run.Interrupted)
	}
}

// Of a target that knows no duplicates at all, no more is said than that.
func TestBareTargetIsToldPlainly(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate, plan.FreshKey, plan.MissingKey, plan.LostBegun)
	trail := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(trail, []byte("nothing of use\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Operations[0].Audit = []plan.Audit{{Name: "trail", Log: trail, Find: plan.Pairs{{Name: "key", Value: "{{.key}}"}}}}
	op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]

	if e := outcome(t, op, plan.FreshKey); !strings.Contains(e.Why, "shows nothing") || strings.Contains(e.Why, "counts") {
		t.Errorf("fresh_key: %s", e.Why)
	}
	for _, h := range op.Hypotheses {
		if h.Name == "tied-to-client" {
			t.Errorf("lost answers make no difference here, but: %s", h.For)
		}
	}
	if f := finding(op, "double-effect-lost-response"); f == nil || strings.Contains(f.Explanation, "depends on the client") {
		t.Errorf("%+v", f)
	}
	numbers := func(e plan.Experiment) (ns []int) {
		for _, s := range outcome(t, op, e).Sends {
			if s.Role != "read" {
				ns = append(ns, s.N)
			}
		}
		return ns
	}
	for id, want := range map[string][]int{
		"audit-missing": numbers(plan.Duplicate),
		"key-ignored":   append(numbers(plan.Duplicate), numbers(plan.MissingKey)[0]),
	} {
		if f := finding(op, id); f == nil || !slices.Equal(f.Sends, want) {
			t.Errorf("%s rests on %+v, want %v", id, f, want)
		}
	}
}

// Where a duplicate was not tried, it is not known that the key counts.
func TestFreshKeyAlone(t *testing.T) {
	s := (&counter{}).serve(t)
	op := mustRun(t, simple(s.URL, plan.FreshKey), probe.Options{Send: true}).Run.Operations[0]
	if e := outcome(t, op, plan.FreshKey); !strings.Contains(e.Why, "was not shown") {
		t.Error(e.Why)
	}
}

// Without a reader, that a refused request had no effect is inferred.
func TestRefusalsWithoutReader(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if len(key) < 3 || !strings.HasSuffix(key, `"`) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"id":%s}`, key)
	}))
	t.Cleanup(target.Close)
	p := simple(target.URL, plan.MissingKey, plan.MalformedKey)
	p.Operations[0].Readers = nil
	op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
	for _, name := range []plan.Experiment{plan.MissingKey, plan.MalformedKey} {
		if e := outcome(t, op, name); !strings.Contains(e.Why, "refused with 400; that it had no effect is inferred") {
			t.Errorf("%s is %s: %s", name, e.Outcome, e.Why)
		}
	}
}

// What is kept of answers has a limit. Beyond it the run ends, and what was found
// before is there, whole.
func TestKeptAnswersAreBounded(t *testing.T) {
	const large = 32 << 10
	c := &counter{before: func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Large", strings.Repeat("x", large))
		return false
	}}
	s := c.serve(t)
	const limit = 4 * large
	res := mustRun(t, simple(s.URL, plan.Duplicate, plan.LateRetry, plan.FreshKey, plan.MissingKey), probe.Options{Send: true, MaxKept: limit})
	op := res.Run.Operations[0]
	if !strings.Contains(res.Run.Interrupted, "no more answers are kept as evidence") || !strings.Contains(res.Run.Interrupted, "Have readers ask for less") {
		t.Errorf("the run ended with %q", res.Run.Interrupted)
	}
	if e := outcome(t, op, plan.Duplicate); e.Outcome != evidence.Broken || finding(op, "double-effect-sequential") == nil {
		t.Errorf("%s: %s", e.Outcome, e.Why)
	}
	if e := outcome(t, op, plan.MissingKey); e.Outcome != evidence.NotRun {
		t.Errorf("%s: %s", e.Outcome, e.Why)
	}
	kept := 0
	for _, e := range res.HAR.Log.Entries {
		kept += len(e.Semel.Received)
	}
	if kept < limit || kept > limit+2*large {
		t.Errorf("%d bytes are kept", kept)
	}
}
