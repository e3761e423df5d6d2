package probe_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
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

// A report on a target that recognises no duplicates says only that.
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
			t.Errorf("lost responses make no difference here, but: %s", h.For)
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
	for id, want := range map[evidence.FindingID][]int{
		"audit-missing": numbers(plan.Duplicate),
		"key-ignored":   append(numbers(plan.Duplicate), numbers(plan.MissingKey)[0]),
	} {
		if f := finding(op, id); f == nil || !slices.Equal(f.Sends, want) {
			t.Errorf("%s rests on %+v, want %v", id, f, want)
		}
	}
}

// If no duplicate was tried, the report does not say that the key counts.
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

// That keys are required is said to be a contract's word only where a contract
// was named that says so.
func TestContractThatNobodyNamed(t *testing.T) {
	orders := map[string]int{}
	var mu sync.Mutex
	n := 0
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = fmt.Fprintf(w, `{"n":%d}`, n)
			return
		}
		key := r.Header.Get("Idempotency-Key")
		id, known := orders[key]
		if !known || key == "" {
			n++
			id = n
			orders[key] = id
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"id":%d}`, id)
	}))
	t.Cleanup(target.Close)
	for named, want := range map[string]struct {
		basis    evidence.Basis
		priority evidence.Priority
		line     string
	}{
		"":                             {evidence.Inferred, evidence.P2, "contract ietf, which is assumed"},
		"contract: {replay: original}": {evidence.Inferred, evidence.P2, "contract ietf, which is assumed"},
		"contract: {profile: ietf}":    {evidence.Established, evidence.P1, "contract ietf\n"},
		"contract: {missing: [400], mismatch: [422]}": {evidence.Established, evidence.P1, "contract ietf\n"},
	} {
		host := strings.TrimPrefix(target.URL, "http://")
		p, err := plan.Parse("plan.yaml", fmt.Appendf(nil, `version: 1
name: nobody
target: {allow: [%q], production: false}
%s
operations:
  - name: orders.create
    request: {method: POST, url: %q, body: {json: {item: "tea {{hex 8}}"}}}
    key: {header: Idempotency-Key}
    readers: [{name: n, http: {url: %q, value: /n}}]
timing: {settle: 20ms, poll: 5ms, settle_limit: 500ms}
`, host, named, target.URL, target.URL))
		if err != nil {
			t.Fatal(err)
		}
		run := mustRun(t, p, probe.Options{Send: true, Only: []plan.Experiment{plan.MissingKey}}).Run
		f := finding(run.Operations[0], "missing-key-accepted")
		if f == nil || f.Basis != want.basis || f.Priority != want.priority || want.basis == evidence.Inferred && strings.Contains(f.Explanation, "The contract says") {
			t.Errorf("%q: %+v", named, f)
		}
		var page bytes.Buffer
		if err := report.Terminal(&page, run, report.TerminalOptions{Width: 400}); err != nil || !strings.Contains(page.String(), want.line) {
			t.Errorf("%q: the operation's line does not say %q:\n%s", named, want.line, page.String()[:600])
		}
		for _, why := range inconsistent(run) {
			t.Errorf("%q: %s", named, why)
		}
	}
}

// A response that was there before the connection could be cut was not lost,
// and nothing is said of lost responses.
func TestAnswerThatWasNotLost(t *testing.T) {
	for name, double := range map[string]bool{"known again": false, "made again": true} {
		synctest.Test(t, func(t *testing.T) {
			n, ids := 0, map[string]int{}
			var mu sync.Mutex
			o := probe.Options{Send: true}
			base := serveVirtually(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if r.Method == http.MethodGet {
					_, _ = fmt.Fprintf(w, `{"n":%d}`, n)
					return
				}
				key := r.Header.Get("Idempotency-Key")
				if ids[key] == 0 || double {
					n++
					ids[key] = n
				}
				_, _ = fmt.Fprintf(w, `{"id":%d}`, ids[key])
			}), &o)
			op := mustRun(t, simple(base, plan.LostUnread), o).Run.Operations[0]
			e := outcome(t, op, plan.LostUnread)
			if slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Cut != "" }) {
				t.Fatal("a response was lost: the target of this test answers before it can be")
			}
			if finding(op, "double-effect-lost-response") != nil || op.Verdict.RetryBehavior == "safe_stop" || op.Standings()[2].State == evidence.RuledOut {
				t.Errorf("%s: no response was lost: %s", name, describe(op))
			}
			if !slices.ContainsFunc(op.Untried, func(u evidence.Untried) bool { return u.What == "lost responses" }) {
				t.Errorf("%s: it is not said that lost responses were not tried: %+v", name, op.Untried)
			}
			if double != (finding(op, "double-effect-sequential") != nil) || !double && !strings.Contains(e.Why, "none was lost") {
				t.Errorf("%s: %s", name, describe(op))
			}
		})
	}
}

// What is kept of responses has a limit. Beyond it the run ends, and what was
// found before is there, whole.
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
	if !strings.Contains(res.Run.Interrupted, "no more responses are kept as evidence") || !strings.Contains(res.Run.Interrupted, "Have readers ask for less") {
		t.Errorf("the run ended with %q", res.Run.Interrupted)
	}
	if e := outcome(t, op, plan.Duplicate); e.Outcome != evidence.Broken || finding(op, "double-effect-sequential") == nil {
		t.Errorf("%s: %s", e.Outcome, e.Why)
	}
	if e := outcome(t, op, plan.MissingKey); e.Outcome != evidence.NotRun {
		t.Errorf("%s: %s", e.Outcome, e.Why)
	}
	kept := 0
	for _, e := range res.HAR().Log.Entries {
		kept += len(e.Semel.Received)
	}
	if kept < limit || kept > limit+2*large {
		t.Errorf("%d bytes are kept", kept)
	}
}
