package probe_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// reads counts the GETs of a target.
type reads struct {
	http.Handler
	n atomic.Int64
}

func (r *reads) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodGet {
		r.n.Add(1)
	}
	r.Handler.ServeHTTP(w, req)
}

// Reading the state takes a small multiple of the requests, whatever the effect
// does; and where it shows at once the dry run has said how many.
func TestReadsAreFew(t *testing.T) {
	for name, c := range map[string]struct {
		late, settle time.Duration
		lost         bool
		experiments  []plan.Experiment
		most         int64
	}{
		"at once":       {experiments: []plan.Experiment{plan.Duplicate}, most: 8},
		"race":          {experiments: []plan.Experiment{plan.Duplicate, plan.RaceSame}, most: 13},
		"slow to trust": {settle: 20 * time.Second, experiments: []plan.Experiment{plan.Duplicate}, most: 16},
		"late":          {late: 3 * time.Second, experiments: []plan.Experiment{plan.Duplicate}, most: 30},
		"lost":          {lost: true, experiments: []plan.Experiment{plan.Duplicate}, most: 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var o probe.Options
				var late sync.WaitGroup
				target := &counter{}
				if c.late > 0 || c.lost {
					target.before = func(w http.ResponseWriter, _ *http.Request) bool {
						w.WriteHeader(http.StatusCreated)
						if !c.lost {
							late.Go(func() {
								time.Sleep(c.late)
								target.effects.Add(1)
							})
						}
						return true
					}
				}
				counted := &reads{Handler: target}
				p := simple(serveVirtually(t, counted, &o), c.experiments...)
				p.Timing = plan.Timing{Settle: c.settle}
				o.Send = false
				dry := mustRun(t, p, o)
				if counted.n.Load() != 0 {
					t.Error("a dry run reads")
				}
				o.Send = true
				mustRun(t, p, o)
				got := counted.n.Load()
				t.Logf("%d reads", got)
				if got > c.most {
					t.Errorf("%d reads; want at most %d", got, c.most)
				}
				if name == "at once" || name == "race" {
					if int64(dry.PlannedReads) != got {
						t.Errorf("the dry run has said %d reads, and it took %d", dry.PlannedReads, got)
					}
				}
				late.Wait()
			})
		})
	}
}

// The budget of reads follows that of the sends.
func TestBudgetOfReads(t *testing.T) {
	for name, c := range map[string]struct {
		plan, option, reads, want int
	}{
		"default": {0, 0, 0, 50 + 500}, "option": {0, 7, 0, 7 + 70}, "plan": {20, 0, 0, 20 + 200}, "both": {20, 10, 0, 10 + 100}, "said": {20, 10, 33, 10 + 33},
	} {
		p := simple("http://127.0.0.1:1")
		p.Budget = plan.Budget{MaxSends: c.plan, MaxReads: c.reads}
		filled := p.WithDefaults() // as a plan of a file is
		for _, p := range []*plan.Plan{p, &filled} {
			if got := mustRun(t, p, probe.Options{MaxSends: c.option}).Run.Budget; got != c.want {
				t.Errorf("%s: a budget of %d; want %d", name, got, c.want)
			}
		}
	}
}

// What reports and scripts need is in the evidence: where the plan has the
// operation, the readers, what was drawn, and where secrets come from.
func TestEvidenceForReports(t *testing.T) {
	target := &counter{}
	server := target.serve(t)
	file := filepath.Join(t.TempDir(), "counter.yaml")
	text := `version: 1
name: counter
target: {allow: ["` + strings.TrimPrefix(server.URL, "http://") + `"], production: false}
principals: {actor_a: {headers: {Authorization: 'Bearer {{env "EVIDENCE_TOKEN"}}'}}}
timing: {settle: 20ms, poll: 5ms}
operations:
  - name: other
    request: {method: POST, url: "` + server.URL + `/"}

  - name: count
    request: {method: POST, url: "` + server.URL + `/", body: {json: {n: "{{hex 16}}"}}}
    key: {header: Idempotency-Key}
    readers:
      - {name: n, http: {url: "` + server.URL + `/", value: /n}}
      - {name: mail, command: {argv: ["true"]}, outside: true}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := plan.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	run := mustRun(t, p, probe.Options{Send: true, Operations: []string{"count"}, Source: plan.Source{Env: func(string) (string, bool) { return "a-token-of-some-length", true }}}).Run
	op := run.Operations[0]
	if op.Source != file || op.SourceLine != 10 {
		t.Errorf("the operation is at %s:%d; want %s:10", op.Source, op.SourceLine, file)
	}
	if want := []evidence.Reader{{Name: "n", Seen: true}, {Name: "mail", Outside: true, Uncounted: true}}; !slices.Equal(op.Readers, want) {
		t.Errorf("readers %+v; want %+v", op.Readers, want)
	}
	if e := outcome(t, op, plan.Duplicate); len(e.Drawn) != 2 {
		t.Errorf("drawn %q; want a key and a number", e.Drawn)
	}
	if len(run.Secrets) != 1 || run.Secrets[0].From != "env EVIDENCE_TOKEN" || !strings.HasPrefix(run.Secrets[0].Placeholder, "redacted-") {
		t.Errorf("secrets %+v", run.Secrets)
	}
}
