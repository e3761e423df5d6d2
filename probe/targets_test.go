package probe_test

import (
	"context"
	"flag"
	"fmt"
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
func judged(t *testing.T, target targets.Target, listen func() net.Listener, dial func(ctx context.Context, network, addr string) (net.Conn, error), change func(*plan.Plan)) *evidence.Run {
	t.Helper()
	service := target.New()
	sink := listen()
	defer func() { _ = sink.Close() }()
	mails := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	service.SendMailsTo("http://"+sink.Addr().String(), &http.Client{Transport: mails})
	server := service.Serve(listen())
	defer server.Close()
	p := target.Plan(server, sink.Addr().String())
	change(p)
	o := probe.Options{
		Send:   true,
		Source: plan.Source{Env: targets.Env},
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

// Every wrong target is found for the right reason, and no right one is
// accused. Time is virtual, so that a busy machine does not change what a
// target does.
func TestTargets(t *testing.T) {
	for _, target := range targets.All() {
		if *only != "" && target.Name != *only {
			continue
		}
		t.Run(target.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := targets.NewNetwork()
				run := judged(t, target, n.Listen, n.Dial, func(*plan.Plan) {})
				for _, why := range misjudged(target.Expect, run) {
					t.Error(why)
				}
				if t.Failed() || *only != "" {
					t.Log(target.About + "\n" + describe(run.Operations[0]))
				}
			})
		})
	}
}

// misjudged compares a run with what it has to come to.
func misjudged(want targets.Expectation, run *evidence.Run) (wrong []string) {
	op := run.Operations[0]
	found := op.All()
	for _, id := range want.Must {
		if !slices.Contains(found, id) {
			wrong = append(wrong, "not found: "+id)
		}
	}
	for _, id := range want.MustNot() {
		if slices.Contains(found, id) {
			wrong = append(wrong, "falsely accused of "+id)
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
	if err := op.Verdict.Validate(); err != nil {
		wrong = append(wrong, err.Error())
	}
	if run.Interrupted != "" {
		wrong = append(wrong, "interrupted: "+run.Interrupted)
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
	}
	fmt.Fprintln(&b, op.Verdict.Key())
	return b.String()
}
