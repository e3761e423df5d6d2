package lab

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

var whole = flag.Bool("matrix", false, "probe every operation under every setting, not one in turn")

// settings are those that the probe is run over.
func settings() (all []Switches) {
	for _, unique := range []bool{false, true} {
		all = append(all, Switches{Key: KeyIgnored, Unique: unique, Outbox: true, Transaction: true, Lease: true, Queue: true, Before: 100})
		for _, key := range []Requirement{KeyRequired, KeyOptional} {
			for bits := range 16 {
				all = append(all, Switches{
					Key: key, Unique: unique, Outbox: true, Failures: true, Transaction: true, Lease: true, Queue: true, Before: 100,
					Scope: bits&1 > 0, InProgress: bits&2 > 0, Replay: bits&4 > 0, Fingerprint: bits&8 > 0,
				})
			}
		}
	}
	return all
}

// TestProbeTellsTheTruth has the probe judge operations from outside, and compares
// its verdict with what the switches say.
func TestProbeTellsTheTruth(t *testing.T) {
	type row struct {
		field, want, got string
	}
	var mu sync.Mutex
	counts, unclear, total := map[row]int{}, 0, 0
	check := func(t *testing.T, field string, want []string, got string) {
		mu.Lock()
		defer mu.Unlock()
		counts[row{field, strings.Join(want, " or "), got}]++
		total++
		switch {
		case slices.Contains(want, got):
		case got == "unknown":
			unclear++
			t.Logf("%s is unknown, and could be known as %s", field, strings.Join(want, " or "))
		default:
			t.Errorf("%s: the probe says %s, the truth is %s", field, got, strings.Join(want, " or "))
		}
	}
	// A run mostly waits, so that many go on at a time.
	var all sync.WaitGroup
	places := make(chan struct{}, 12)
	t.Run("settings", func(t *testing.T) {
		defer all.Wait()
		for i, s := range settings() {
			for j, o := range Operations {
				if !*whole && i%len(Operations) != j {
					continue
				}
				places <- struct{}{}
				name := fmt.Sprintf("%s key %s scope %v in_progress %v replay %v fingerprint %v unique %v", o.Name, s.Key, s.Scope, s.InProgress, s.Replay, s.Fingerprint, s.Unique)
				judge := func(t *testing.T) {
					l, url := start(t, "semel")
					if err := l.Set("", s); err != nil {
						t.Fatal(err)
					}
					p, err := plan.Parse("lab.yaml", Plan(strings.TrimPrefix(url, "http://"), o, s))
					if err != nil {
						t.Fatal(err)
					}
					got, err := probe.Run(t.Context(), p, probe.Options{Send: true, Full: true, Skip: []plan.Experiment{plan.LateRetry, plan.RetentionEdge}})
					if err != nil {
						t.Fatal(err)
					}
					v, want := got.Run.Operations[0].Verdict, TruthOf(s)
					check(t, "idempotency_support", want.Support, string(v.IdempotencySupport))
					check(t, "key_scope_binding", want.Scope, string(v.KeyScopeBinding))
					check(t, "result_replay", want.Replay, string(v.ResultReplay))
					check(t, "in_progress_handling", want.InProgress, string(v.InProgressHandling))
					check(t, "race_behavior", want.Race, string(v.RaceBehavior))
					check(t, "retry_behavior", want.Retry, string(v.RetryBehavior))
					doubles := slices.ContainsFunc(got.Run.Operations[0].Findings, func(f evidence.Finding) bool {
						return f.Priority == evidence.P0 && strings.HasPrefix(f.ID, "double-effect")
					})
					if doubles != (want.Race[0] == "double_apply") {
						t.Errorf("a doubled effect was found: %v", doubles)
					}
				}
				all.Go(func() {
					defer func() { <-places }()
					t.Run(name, judge)
				})
			}
		}
	})
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "field\ttruth\tthe probe\ttimes")
	for _, r := range slices.SortedFunc(maps.Keys(counts), func(a, b row) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", r.field, r.want, r.got, counts[r])
	}
	if testing.Verbose() || t.Failed() {
		w.Flush()
	}
	if unclear*50 > total {
		t.Errorf("%d of %d fields are unknown that could be known: more than 2 %%", unclear, total)
	}
}
