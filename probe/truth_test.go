package probe_test

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/targets"
	"github.com/semelhq/semel/probe/plan"
)

func target(t *testing.T, name string) targets.Target {
	t.Helper()
	all := targets.All()
	i := slices.IndexFunc(all, func(x targets.Target) bool { return x.Name == name })
	if i < 0 {
		t.Fatalf("there is no target %s", name)
	}
	return all[i]
}

// A default run of a target that is right ends well, and says what it did not
// try and what would.
func TestDefaultRunSaysWhatItDidNotTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := targets.NewNetwork()
		run := judged(t, target(t, "ietf-conflict"), 0, n.Listen, n.Dial, func(p *plan.Plan) { p.Experiments = nil })
		op := run.Operations[0]
		if !run.Conclusive() || len(op.Findings) > 0 {
			t.Fatal(describe(op))
		}
		for what, how := range map[string]string{
			"requests at the same time": "--only race,in_flight",
			"lost responses":            "--only lost_unread",
			"a first attempt that":      "--only failed_first",
			"requests without a key":    "--only missing_key",
			"malformed keys":            "--only malformed_key",
			"another actor":             "--only other_actor",
			"another tenant":            "--only other_tenant",
			"an older request again":    "--only reordered",
			"the same meaning":          "--only same_meaning",
			"how long a request":        "target.retention_search",
			"another instance":          "target.instance",
			"another operation":         "other_operation",
			"a crash of the target":     "",
		} {
			if !slices.ContainsFunc(op.Untried, func(u evidence.Untried) bool {
				return strings.HasPrefix(u.What, what) && strings.Contains(u.How, how)
			}) {
				t.Errorf("it does not say of %q that it was not tried, and %q: %+v", what, how, op.Untried)
			}
		}
		if slices.ContainsFunc(op.Untried, func(u evidence.Untried) bool { return strings.Contains(u.What, "session") }) {
			t.Errorf("nobody signs in: %+v", op.Untried)
		}
		if op.Verdict.RaceBehavior != "unknown" || op.Verdict.RetryBehavior != "unknown" {
			t.Error(op.Verdict.Key())
		}
	})
}

// Without a reader no sentence speaks of effects as if they had been seen.
func TestWithoutReadersNothingIsSeen(t *testing.T) {
	for _, name := range []string{"ietf-conflict", "ignores-key", "check-then-act", "no-key-doubles", "first-500-with-effect", "async"} {
		synctest.Test(t, func(t *testing.T) {
			n := targets.NewNetwork()
			run := judged(t, target(t, name), 0, n.Listen, n.Dial, func(p *plan.Plan) { p.Operations[0].Readers = nil })
			op := run.Operations[0]
			for _, f := range op.Findings {
				if f.Basis == evidence.Established && (strings.HasPrefix(string(f.ID), "double-effect") || f.ID == "lost-effect" || strings.Contains(f.Explanation, "readers saw")) {
					t.Errorf("%s: %s is established: %s", name, f.ID, f.Explanation)
				}
			}
			for _, s := range said(op) {
				for _, never := range []string{"1 effect", "readers saw", "reader saw", "no effect;", "the state shows"} {
					if strings.Contains(s, never) && !strings.Contains(s, "none has seen") {
						t.Errorf("%s: nothing was seen, and it says: %s", name, s)
					}
				}
			}
			if v := op.Verdict; v.RaceBehavior == "safe_converge" || v.Atomicity != "unknown" || v.Confidence != 0 {
				t.Errorf("%s: %s", name, v.Key())
			}
		})
	}
}

// A reader that looks, and has never seen an effect, is told apart from one
// that was not read.
func TestBlindAndUnread(t *testing.T) {
	for status, want := range map[int]string{http.StatusOK: "no effect", http.StatusForbidden: "the response is 403"} {
		synctest.Test(t, func(t *testing.T) {
			o := probe.Options{Send: true}
			c := &counter{}
			base := serveVirtually(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					w.WriteHeader(status)
					_, _ = w.Write([]byte(`{"n":7}`))
					return
				}
				c.ServeHTTP(w, r)
			}), &o)
			p := simple(base, plan.Duplicate)
			p.Timing.SettleLimit = time.Second
			op := mustRun(t, p, o).Run.Operations[0]
			if e := outcome(t, op, plan.Duplicate); e.Outcome != evidence.Inconclusive || !strings.Contains(e.Why, want) {
				t.Errorf("%d: %s: %s", status, e.Outcome, e.Why)
			}
		})
	}
}

// Of what a document says of keys, only that counts which it says of the
// operation.
func TestSpecificationOfTheOperation(t *testing.T) {
	const (
		with    = `{"description":"Idempotency-Key is required. Keys are kept for 24 hours."}`
		without = `{"description":"Makes an order."}`
	)
	for name, c := range map[string]struct {
		doc     string
		want    evidence.Outcome
		finding bool
	}{
		"at the operation":       {`{"openapi":"3.1.0","paths":{"/orders":{"post":` + with + `}}}`, evidence.Held, false},
		"at another operation":   {`{"openapi":"3.1.0","paths":{"/orders":{"post":` + without + `},"/refunds":{"post":` + with + `}}}`, evidence.Broken, true},
		"at another method":      {`{"openapi":"3.1.0","paths":{"/orders":{"post":` + without + `,"put":` + with + `}}}`, evidence.Broken, true},
		"by a reference":         {`{"openapi":"3.1.0","paths":{"/orders":{"post":{"parameters":[{"$ref":"#/components/parameters/key"}]}}},"components":{"parameters":{"key":` + with + `}}}`, evidence.Held, false},
		"references in a circle": {`{"openapi":"3.1.0","paths":{"/orders":{"post":{"a":{"$ref":"#/c/x"}}}},"c":{"x":{"y":{"$ref":"#/c/x"}}}}`, evidence.Broken, true},
		"at the head":            {`{"openapi":"3.1.0","info":` + with + `,"paths":{"/orders":{"post":` + without + `}}}`, evidence.Inconclusive, false},
		"of other operations":    {`{"openapi":"3.1.0","paths":{"/refunds":{"post":` + with + `}}}`, evidence.Inconclusive, false},
		"a page, of it":          {"# Orders\nPOST /orders takes an Idempotency-Key, kept for 24 hours.", evidence.Held, false},
		"a page, of something":   {"# Refunds\nRefunds take an Idempotency-Key, kept for 24 hours.", evidence.Inconclusive, false},
		"a page of nothing":      {"# Orders\nPOST /orders makes an order.", evidence.Broken, true},
		"in YAML":                {"openapi: 3.1.0\npaths:\n  /{shop}/x: {}\n  /orders:\n    post:\n      description: an Idempotency-Key is kept for 24 hours\n", evidence.Held, false},
	} {
		o := probe.Options{Send: true, Only: []plan.Experiment{plan.Specification}}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(c.doc)) })}
		go func() { _ = s.Serve(l) }()
		base := "http://" + l.Addr().String()
		p := simple(base)
		p.Operations[0].Request.URL = base + "/orders"
		p.Target.Specification = base + "/doc"
		op := mustRun(t, p, o).Run.Operations[0]
		_ = s.Close()
		e := outcome(t, op, plan.Specification)
		if e.Outcome != c.want || (finding(op, "no-specification") != nil) != c.finding {
			t.Errorf("%s: %s: %s, %+v", name, e.Outcome, e.Why, op.Findings)
		}
	}
}
