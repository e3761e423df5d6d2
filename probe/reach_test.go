package probe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/targets"
	"github.com/semelhq/semel/probe/plan"
)

// What it takes to reach a target changes nothing in what is found out about it.
func TestReach(t *testing.T) { wantTruth(t, targets.Reach(), onNetwork) }

// finer runs a target of Finer, with another instance.
func finer(t *testing.T, target targets.Target, o probe.Options) *probe.Result {
	t.Helper()
	n := targets.NewNetwork()
	server := target.New().Serve(n.Listen())
	defer server.Close()
	p := target.Plan(server, "")
	p.Target.Instance = server.Also(n.Listen())
	p.Target.Allow = append(p.Target.Allow, p.Target.Instance)
	o.Source.Env, o.Operations = targets.Env, []string{p.Operations[0].Name}
	o.DialWith(n.Dial)
	return mustRun(t, p, o)
}

// Each of the finer experiments finds the wrong target, and accuses no right
// one.
func TestFiner(t *testing.T) {
	wantTruth(t, targets.Finer(), func(t *testing.T, target targets.Target, seed int) *evidence.Run {
		return finer(t, target, probe.Options{Send: true, Source: plan.Source{Random: rand.NewChaCha8([32]byte{byte(seed)})}}).Run
	})
}

func reach(t *testing.T, name string) targets.Target {
	t.Helper()
	for _, target := range targets.Reach() {
		if target.Name == name {
			return target
		}
	}
	t.Fatalf("there is no target %s", name)
	return targets.Target{}
}

// reachRun runs a target of Reach with some options, in a bubble.
func reachRun(t *testing.T, name string, o probe.Options, change func(*plan.Plan)) (*probe.Result, error) {
	t.Helper()
	n := targets.NewNetwork()
	server := reach(t, name).New().Serve(n.Listen())
	defer server.Close()
	p := reach(t, name).Plan(server, "")
	p.Experiments = []plan.Experiment{plan.Duplicate}
	change(p)
	o.Source.Env = targets.Env
	o.DialWith(n.Dial)
	return probe.Run(t.Context(), p, o)
}

func roles(e evidence.Experiment) (list []string) {
	for _, s := range e.Sends {
		if s.Role != "read" {
			list = append(list, string(s.Role))
		}
	}
	return list
}

// A principal signs in once, and anew when what it got has expired: by the time
// that the response told, or by the response to a request. The duplicate is
// sent with the new token, and otherwise as it was. No token is in the
// evidence.
func TestSessions(t *testing.T) {
	for name, want := range map[string]string{
		"told":     "step step first step duplicate",
		"answered": "step step first expired step duplicate",
		"lasting":  "step step first duplicate",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				res, err := reachRun(t, "signs-in", probe.Options{Send: true}, func(p *plan.Plan) {
					p.Experiments, p.Timing.LateAfter = []plan.Experiment{plan.LateRetry}, 3*time.Second
					switch name {
					case "answered":
						p.Steps[0].ExpiresIn = nil
					case "lasting":
						p.Timing.LateAfter = 100 * time.Millisecond
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				e := outcome(t, res.Run.Operations[0], plan.LateRetry)
				got := roles(e)
				// Readers meet the expired token first: they sign in for all.
				if strings.Join(slices.DeleteFunc(slices.Clone(got), func(r string) bool { return r == "expired" }), " ") != strings.ReplaceAll(want, "expired ", "") {
					t.Errorf("sent %v, want %s", got, want)
				}
				if slices.Contains(got, "expired") != (name == "answered") {
					t.Errorf("sent %v", got)
				}
				if e.Outcome != evidence.Held {
					t.Errorf("%s: %s", e.Outcome, e.Why)
				}
				all, err := json.Marshal([]any{res.Run, res.HAR()})
				if err != nil {
					t.Fatal(err)
				}
				for _, secret := range []string{"access token", "refresh token", "access+token", "a seat", "refresh+token", "the password", "the%20password", "access%20token"} {
					if bytes.Contains(all, []byte(secret)) {
						t.Errorf("%q is in the evidence", secret)
					}
				}
			})
		})
	}
}

// A step that comes to nothing leaves the experiment inconclusive, and accuses
// nobody.
func TestStepsThatFail(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*plan.Plan)
		why    string
	}{
		"refused": {func(p *plan.Plan) { p.Steps[0].Request.Body.Text = new("user=alice&password=wrong") }, "the step sign-in of actor_a came to nothing: it was answered with 401"},
		"lacking": {func(p *plan.Plan) { p.Steps[0].Take[0].Pointer = new(plan.Pointer("/nothing")) }, "the step sign-in of actor_a came to nothing: its response, 200, lacks token"},
		"short": {func(p *plan.Plan) {
			p.Steps[0].Take[0] = plan.Taking{Name: "token", Pointer: new(plan.Pointer("/expires_in"))}
		}, "token is shorter than 6 bytes"},
		"of the request": {func(p *plan.Plan) {
			p.Operations[0].Steps[0].Request.Method = "DELETE"
			p.Operations[0].Steps[0].Take[0].Header = "X"
		}, "the step cart of actor_a came to nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				res, err := reachRun(t, "signs-in", probe.Options{Send: true}, test.change)
				if err != nil {
					t.Fatal(err)
				}
				op := res.Run.Operations[0]
				e := outcome(t, op, plan.Duplicate)
				if e.Outcome != evidence.Inconclusive || !strings.Contains(e.Why, test.why) || len(op.Findings) > 0 {
					t.Errorf("%s: %s, findings %v", e.Outcome, e.Why, op.Findings)
				}
			})
		})
	}
}

// A dry run lists the steps, and counts those of each trial.
func TestStepsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res, err := reachRun(t, "signs-in", probe.Options{}, func(p *plan.Plan) {
			p.Experiments, p.Race.Trials = []plan.Experiment{plan.Duplicate, plan.RaceSame}, 3
		})
		if err != nil {
			t.Fatal(err)
		}
		// A token; a cart and two orders; three carts and three races of five.
		if n := res.PlannedSends(); n != 1+1+2+3+15 {
			t.Errorf("%d sends are planned", n)
		}
		for _, q := range res.Planned {
			if q.Role == "first" && !bytes.Contains(q.Bytes, []byte(`{"cart":"taken-cart"`)) {
				t.Errorf("the first request is %s", q.Bytes)
			}
		}
	})
}

// The address of a step must be allowed as well, before anything is sent.
func TestStepsAreAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := reachRun(t, "signs-in", probe.Options{Send: true}, func(p *plan.Plan) {
			p.Steps[0].Refresh.URL = "http://elsewhere.example/token"
		})
		if !errors.Is(err, probe.ErrNotAllowed) || !strings.Contains(err.Error(), "step sign-in is sent to elsewhere.example") {
			t.Errorf("got %v", err)
		}
	})
}

// Pages are read to the end or not at all.
func TestPages(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*plan.HTTPReader)
		why    string
	}{
		"too many":     {func(h *plan.HTTPReader) { h.Pages.Max = 1 }, "there are more than 1 pages (pages.max)"},
		"round":        {func(h *plan.HTTPReader) { h.Pages = &plan.Pages{Next: new(plan.Pointer("/same"))} }, "the next page is one that was read already"},
		"another host": {func(h *plan.HTTPReader) { h.Pages = &plan.Pages{Next: new(plan.Pointer("/away"))} }, "the next page is on another host, and is not read"},
		"cursor":       {func(h *plan.HTTPReader) { h.Pages = &plan.Pages{Next: new(plan.Pointer("/cursor")), Parameter: "from"} }, ""},
		"link":         {func(*plan.HTTPReader) {}, ""},
		"number":       {func(h *plan.HTTPReader) { h.Pages = &plan.Pages{Number: "from"} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var refs []string
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					if r.Method == http.MethodPost {
						var q struct{ Ref string }
						_ = json.NewDecoder(r.Body).Decode(&q)
						refs = append(refs, q.Ref)
						w.WriteHeader(http.StatusCreated)
						return
					}
					// Three of others before each of ours, one on a page.
					all := []string{"a", "b", "c"}
					all = append(all, refs...)
					from := 0
					if v, err := strconv.Atoi(r.FormValue("from")); err == nil {
						from = min(v, len(all))
					}
					answer := map[string]any{"items": []any{}, "same": "?", "away": "//elsewhere.example/", "cursor": nil}
					if from < len(all) {
						answer["items"] = []any{map[string]string{"ref": all[from]}}
					}
					if from+1 < len(all) {
						answer["cursor"] = from + 1
						w.Header().Set("Link", fmt.Sprintf(`<?from=%d>; rel=next`, from+1))
					}
					_ = json.NewEncoder(w).Encode(answer)
				})
				o := probe.Options{Send: true}
				base := serveVirtually(t, h, &o)
				p := simple(base, plan.Duplicate)
				p.Budget.MaxReads = 10_000
				p.Operations[0].Readers[0].HTTP = &plan.HTTPReader{
					URL: base + "/?", Count: new(plan.Pointer("/items")), Where: plan.Pairs{{Name: "/ref", Value: "{{.ref}}"}}, Pages: &plan.Pages{Header: "Link"},
				}
				test.change(p.Operations[0].Readers[0].HTTP)
				op := mustRun(t, p, o).Run.Operations[0]
				e := outcome(t, op, plan.Duplicate)
				switch {
				case test.why == "" && e.Outcome != evidence.Broken:
					t.Errorf("the second order was not seen: %s: %s", e.Outcome, e.Why)
				case test.why != "" && (e.Outcome != evidence.Inconclusive || !strings.Contains(e.Why, test.why)):
					t.Errorf("%s: %s", e.Outcome, e.Why)
				}
			})
		})
	}
}

// What is asked what became of a request has to be allowed as well, before
// anything is sent; what a response alone tells is left out where it is not.
func TestPollIsAllowed(t *testing.T) {
	for name, address := range map[string]string{"by the plan": "http://elsewhere.example/{{.ticket}}", "by the response": "{{.ticket}}"} {
		synctest.Test(t, func(t *testing.T) {
			res, err := reachRun(t, "tickets", probe.Options{Send: true}, func(p *plan.Plan) {
				p.Operations[0].Poll.URL = address
			})
			switch {
			case name == "by the plan" && (!errors.Is(err, probe.ErrNotAllowed) || !strings.Contains(err.Error(), "where poll asks about operation orders.create, is sent to elsewhere.example")):
				t.Errorf("%s: %v", name, err)
			case name == "by the response" && err != nil:
				t.Errorf("%s: %v", name, err)
			case name == "by the response":
				// w1 is no address: the reader alone tells.
				if e := outcome(t, res.Run.Operations[0], plan.Duplicate); e.Outcome != evidence.Held {
					t.Errorf("%s: %s", e.Outcome, e.Why)
				}
			}
		})
	}
}

// A preview that has an effect by a reader is not sent again; one that has none
// is, with keys that cannot be used. Where the plan has one and names no
// experiments, it comes before anything that has effects.
func TestPreviewIsTriedFirst(t *testing.T) {
	for name, want := range map[string]string{
		"preview":      "preview preview preview-without-key preview-malformed-key previewed",
		"preview-lies": "preview",
	} {
		synctest.Test(t, func(t *testing.T) {
			all := targets.Finer()
			target := all[slices.IndexFunc(all, func(x targets.Target) bool { return x.Name == name })]
			target.Experiments = nil
			run := finer(t, target, probe.Options{Send: true}).Run
			op := run.Operations[0]
			if got := strings.Join(roles(outcome(t, op, plan.PreviewFirst)), " "); got != want {
				t.Errorf("%s: sent %s", name, got)
			}
			if i := slices.IndexFunc(op.Experiments, func(e evidence.Experiment) bool { return e.Name == string(plan.PreviewFirst) }); i != 1 || len(op.Experiments) != 3 {
				t.Errorf("%s: the experiments are %+v", name, op.Experiments)
			}
		})
	}
}

// The operation is sent under the key of its preview only where experiments with
// effects follow; and where everything but previews is refused, the key is not to
// blame.
func TestPreviewLeavesItsKey(t *testing.T) {
	for name, c := range map[string]struct {
		o     probe.Options
		roles string
		why   string
	}{
		"nothing follows": {probe.Options{Send: true, Only: []plan.Experiment{plan.Specification, plan.PreviewFirst}}, "preview preview preview-without-key preview-malformed-key", ""},
		"dry run":         {probe.Options{}, "preview preview preview-without-key preview-malformed-key previewed", ""},
		"all is refused":  {probe.Options{Send: true}, "preview preview preview-without-key preview-malformed-key previewed control", "was answered with 422 and had no effect that a reader sees; nor had a fresh request"},
	} {
		c1 := &counter{before: func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.RawQuery != "dry" {
				w.WriteHeader(http.StatusUnprocessableEntity)
			}
			return true
		}}
		p := simple(c1.serve(t).URL)
		preview := p.Operations[0].Request
		preview.URL += "?dry"
		p.Operations[0].Preview = &preview
		op := mustRun(t, p, c.o).Run.Operations[0]
		e := outcome(t, op, plan.PreviewFirst)
		if got := strings.Join(roles(e), " "); got != c.roles || !strings.Contains(e.Why, c.why) || c.why != "" && e.Outcome != evidence.Inconclusive || len(op.Findings) > 0 {
			t.Errorf("%s: sent %s: %s: %s", name, got, e.Outcome, e.Why)
		}
	}
}

// Without a reader nothing tells whether a preview has effects: it is sent once.
func TestPreviewWithoutReaders(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.PreviewFirst)
	p.Operations[0].Readers, p.Operations[0].Preview = nil, &p.Operations[0].Request
	op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
	if e := outcome(t, op, plan.PreviewFirst); e.Outcome != evidence.Inconclusive || c.hits.Load() != 1 {
		t.Errorf("%s: %s; %d requests", e.Outcome, e.Why, c.hits.Load())
	}
}

// A request and its alteration that both take effect at once are no finding of
// their own where the same request does as well; they are where it does not.
func TestRaceAlteredIsASymptom(t *testing.T) {
	for name, alone := range map[string]bool{"races-unclaimed": false, "races-altered-both": true} {
		synctest.Test(t, func(t *testing.T) {
			all := targets.Finer()
			op := finer(t, all[slices.IndexFunc(all, func(x targets.Target) bool { return x.Name == name })], probe.Options{Send: true}).Run.Operations[0]
			if own := slices.ContainsFunc(op.Findings, func(f evidence.Finding) bool { return f.ID == "mismatch-executed" }); own != alone || finding(op, "mismatch-executed") == nil {
				t.Errorf("%s: %s", name, describe(op))
			}
		})
	}
}
