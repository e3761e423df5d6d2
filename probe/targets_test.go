package probe_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/targets"
	"github.com/semelhq/semel/probe/plan"
)

// judged runs all experiments of a target's plan. The target and the sink for
// its mails each get a listener; dial connects to them.
func judged(t *testing.T, target targets.Target, seed int, listen func() net.Listener, dial func(ctx context.Context, network, addr string) (net.Conn, error), change func(*plan.Plan)) *evidence.Run {
	t.Helper()
	service := target.New()
	sink := listen()
	defer func() { _ = sink.Close() }()
	mails := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	if target.Delivers() {
		service.SendMailsTo("http://"+sink.Addr().String(), &http.Client{Transport: mails})
	}
	server := service.Serve(listen())
	defer server.Close()
	p := target.Plan(server, sink.Addr().String())
	change(p)
	o := probe.Options{
		Send:   true,
		Source: plan.Source{Env: targets.Env, Random: rand.NewChaCha8([32]byte{byte(seed)})},
		Listen: func(string, string) (net.Listener, error) { return sink, nil },
		FailFirst: func(_ context.Context, fail bool) error {
			service.Fail(fail)
			return nil
		},
	}
	o.DialWith(dial)
	return mustRun(t, p, o).Run
}

var only = flag.String("target", "", "run this target only, and say what came of it")

var seeds = flag.Int("seeds", 1, "how often each target is run, each time with other values")

// Every wrong target is found for the right reason, and no right one is accused.
func TestTargets(t *testing.T) { wantTruth(t, targets.All(), onNetwork) }

// wantTruth runs each target with several sets of values. Time is virtual, so
// that a busy machine does not change what a target does.
func wantTruth(t *testing.T, all []targets.Target, run func(t *testing.T, target targets.Target, seed int) *evidence.Run) {
	for _, target := range all {
		if *only != "" && target.Name != *only {
			continue
		}
		t.Run(target.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for seed := range *seeds {
					run := run(t, target, seed)
					for _, why := range misjudged(target.Expect, run) {
						t.Errorf("seed %d: %s", seed, why)
					}
					if t.Failed() || *only != "" {
						t.Log(target.About + "\n" + describe(run.Operations[0]))
					}
				}
			})
		})
	}
}

// onNetwork runs a target over a network in memory.
func onNetwork(t *testing.T, target targets.Target, seed int) *evidence.Run {
	n := targets.NewNetwork()
	return judged(t, target, seed, n.Listen, n.Dial, func(*plan.Plan) {})
}

// misjudged compares a run with what it has to come to.
func misjudged(want targets.Expectation, run *evidence.Run) (wrong []string) {
	op := run.Operations[0]
	found := op.All()
	for _, id := range want.Must {
		if !slices.Contains(found, id) {
			wrong = append(wrong, "not found: "+string(id))
		}
	}
	for _, id := range want.MustNot() {
		if slices.Contains(found, id) {
			wrong = append(wrong, "falsely accused of "+string(id))
		}
	}
	for name, outcome := range want.Outcomes {
		for _, e := range op.Experiments {
			if e.Name == string(name) && e.Outcome != outcome {
				wrong = append(wrong, fmt.Sprintf("%s is %s, want %s: %s", name, e.Outcome, outcome, e.Why))
			}
		}
	}
	for _, f := range op.Verdict.Fields() {
		if values, ok := want.Verdict[f.Name]; ok && !slices.Contains(values, f.Value) {
			wrong = append(wrong, fmt.Sprintf("%s(%s), want one of %v", f.Name, f.Value, values))
		}
	}
	for id, basis := range want.Basis {
		for _, f := range op.Findings {
			if f.ID == id && f.Basis != basis {
				wrong = append(wrong, fmt.Sprintf("%s is %s, want %s", id, f.Basis, basis))
			}
		}
	}
	for name, state := range want.Causes {
		got := evidence.CauseState("not supposed")
		for _, f := range op.Findings {
			for _, c := range f.Causes {
				if c.Name == name {
					got = c.State
				}
			}
		}
		if got != state {
			wrong = append(wrong, fmt.Sprintf("the cause %s is %s, want %s", name, got, state))
		}
	}
	sentences := said(op)
	for _, part := range want.Says {
		if !slices.ContainsFunc(sentences, func(s string) bool { return strings.Contains(s, part) }) {
			wrong = append(wrong, fmt.Sprintf("nothing says %q", part))
		}
	}
	for _, part := range want.SaysNot {
		for _, s := range sentences {
			if strings.Contains(s, part) {
				wrong = append(wrong, fmt.Sprintf("it says %q: %s", part, s))
			}
		}
	}
	wrong = append(wrong, contradictions(op)...)
	wrong = append(wrong, inconsistent(run)...)
	if err := op.Verdict.Validate(); err != nil {
		wrong = append(wrong, err.Error())
	}
	if run.Interrupted != "" {
		wrong = append(wrong, "interrupted: "+run.Interrupted)
	}
	return wrong
}

// said are the sentences of the evidence.
func said(op evidence.Operation) (list []string) {
	for _, e := range op.Experiments {
		if e.Outcome != evidence.NotRun && e.Outcome != evidence.NotApplicable {
			list = append(list, e.Title)
		}
		list = append(list, e.Why)
	}
	for _, f := range op.Findings {
		list = append(list, f.Title, f.Explanation, f.Remedy)
		for _, s := range f.Symptoms {
			list = append(list, s.Title)
		}
		for _, c := range f.Causes {
			list = append(list, c.Text, c.For, c.Check)
		}
	}
	for _, s := range op.Statements {
		list = append(list, s.Text)
	}
	for _, h := range op.Hypotheses {
		list = append(list, h.Text, h.For, h.Check)
	}
	return list
}

// contradictions are what no run may say, whatever the target is like.
func contradictions(op evidence.Operation) (wrong []string) {
	never := func(when bool, what string) {
		if when {
			wrong = append(wrong, what)
		}
	}
	outcome, shown := map[string]evidence.Experiment{}, false
	for _, e := range op.Experiments {
		outcome[e.Name] = e
		for _, c := range e.Changes {
			shown = shown || c.Effects > 0
		}
	}
	all, v := op.All(), op.Verdict
	has := func(ids ...evidence.FindingID) bool {
		return slices.ContainsFunc(ids, func(id evidence.FindingID) bool { return slices.Contains(all, id) })
	}
	doubled := has("double-effect-sequential", "double-effect-race", "double-effect-lost-response", "in-flight-executed", "webhook-redelivery-doubles", "effects-disagree")
	race := outcome[string(plan.RaceSame)]
	never(doubled && v.RetryBehavior == "safe_stop", "safe_stop beside an executed retry")
	never(race.Outcome == evidence.Inconclusive && v.RaceBehavior == "safe_converge", "safe_converge of an inconclusive race")
	never(has("double-effect-race") && v.RaceBehavior == "safe_converge", "safe_converge beside a race that doubled")
	never(v.IdempotencySupport == "none" && !doubled, "support none, and nothing doubled")
	never(race.Race != nil && race.Race.Overlapped == 0 && race.Race.Bound != 1, "a bound without a trial")
	for _, f := range op.Findings {
		never(len(f.Sends) == 0 && f.ID != "no-specification" && f.ID != "retention-not-published", string(f.ID)+" names no send")
		never(f.Basis == evidence.Established && strings.HasPrefix(string(f.ID), "double-effect") && !shown, string(f.ID)+" is established, and no reader saw an effect")
	}
	return wrong
}

func describe(op evidence.Operation) string {
	var b strings.Builder
	for _, e := range op.Experiments {
		fmt.Fprintf(&b, "%-15s %-14s %s\n", e.Name, e.Outcome, e.Why)
		if e.Race != nil {
			fmt.Fprintf(&b, "  %+v\n", *e.Race)
			for _, s := range e.Sends {
				if s.Role == "race" {
					fmt.Fprintf(&b, "  #%d %s %d: %d-%d µs\n", s.N, s.Delivery, s.Status, s.LastWriteUS, s.FirstByteUS)
				}
			}
		}
	}
	for _, f := range op.Findings {
		fmt.Fprintf(&b, "%s %s (%s) in %s, sends %v\n", f.Priority, f.ID, f.Basis, f.Experiment, f.Sends)
		for _, s := range f.Symptoms {
			fmt.Fprintf(&b, "   with %s (%s) in %s\n", s.ID, s.Basis, s.Experiment)
		}
		for _, c := range f.Causes {
			fmt.Fprintf(&b, "   %s cause %s: %s\n", c.State, c.Name, c.For)
		}
	}
	fmt.Fprintln(&b, op.Verdict.Key())
	return b.String()
}
