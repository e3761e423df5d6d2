package probe_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/targets"
	"github.com/semelhq/semel/probe/plan"
)

// judged runs all experiments of a target.
func judged(ctx context.Context, target targets.Target) (*probe.Result, error) {
	service := target.New()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	service.SendMailsTo("http://" + l.Addr().String())
	server, err := service.Listen()
	if err != nil {
		return nil, err
	}
	defer server.Close()
	p := target.Plan(server, l.Addr().String())
	p.Timing.SettleLimit = 5 * time.Second // also where much else is running
	return probe.Run(ctx, p, probe.Options{
		Send:   true,
		Source: plan.Source{Env: targets.Env},
		Listen: func(string, string) (net.Listener, error) { return l, nil },
		FailFirst: func(_ context.Context, fail bool) error {
			service.Fail(fail)
			return nil
		},
	})
}

var only = flag.String("target", "", "run this target only, and say what came of it")

// Every wrong target is found for the right reason, and no right one is
// accused. The targets run side by side: they mostly wait.
func TestTargets(t *testing.T) {
	list := targets.All()
	if *only != "" {
		list = slices.DeleteFunc(list, func(target targets.Target) bool { return target.Name != *only })
	}
	results := make([]*probe.Result, len(list))
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 12)
	for i, target := range list {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i], errs[i] = judged(t.Context(), target)
		})
	}
	wg.Wait()
	for i, target := range list {
		t.Run(target.Name, func(t *testing.T) {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			op := results[i].Run.Operations[0]
			for _, why := range misjudged(target.Expect, results[i].Run) {
				t.Error(why)
			}
			if t.Failed() || *only != "" {
				t.Log(target.About + "\n" + describe(op))
			}
		})
	}
}

// misjudged compares a run with what it has to come to.
func misjudged(want targets.Expectation, run *evidence.Run) (wrong []string) {
	op := run.Operations[0]
	var found []string
	for _, f := range op.Findings {
		found = append(found, f.ID)
	}
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
