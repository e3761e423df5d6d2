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

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

var whole = flag.Bool("matrix", false, "probe every operation, and every way, under every setting, not one in turn")

// setting is what the probe is run on.
type setting struct {
	operation *Operation
	way       string
	switches  Switches
}

func (s setting) String() string {
	var on []string
	for _, t := range Toggles {
		if t.On(s.switches) {
			on = append(on, t.Name)
		}
	}
	return fmt.Sprintf("%s by %s, key %s, %s", s.operation.Name, s.way, s.switches.Key, strings.Join(on, " "))
}

// settings are those that the probe is run over. Each product has its turn with another
// operation and another way; the whole matrix has them all.
func settings() (all []setting) {
	base := Switches{Outbox: true, Transaction: true, Lease: true, Queue: true, Failures: true, Before: 100}
	turn := 0
	add := func(s Switches, ways ...string) {
		for i, way := range ways {
			for j, o := range Operations {
				if *whole && (way == "rest" || (turn+i)%len(Operations) == j) || !*whole && turn%len(ways) == i && turn/len(ways)%len(Operations) == j {
					all = append(all, setting{o, way, s})
				}
			}
		}
		turn++
	}
	for _, unique := range []bool{false, true} {
		s := base
		s.Key, s.Unique = KeyIgnored, unique
		add(s, Ways...)
		for _, key := range []Requirement{KeyRequired, KeyOptional} {
			for bits := range 16 {
				if odd := bits&1 > 0; !*whole && key == KeyOptional && odd != unique {
					continue // each with one of the two
				}
				s := s
				s.Key, s.Scope, s.InProgress, s.Replay, s.Fingerprint = key, bits&1 > 0, bits&2 > 0, bits&4 > 0, bits&8 > 0
				add(s, Ways...)
			}
		}
		// What is left away from all defences, and what goes wrong.
		full := base
		full.Key, full.Scope, full.InProgress, full.Replay, full.Fingerprint, full.Unique = KeyRequired, true, true, true, true, unique
		for _, change := range []func(*Switches){
			func(s *Switches) {},
			func(s *Switches) { s.Outbox = false },
			func(s *Switches) { s.Lease = false; s.ClockSkew = true },
			func(s *Switches) { s.ClockSkew = true },
			func(s *Switches) { s.Failures = false; s.ClockSkew = true },
			func(s *Switches) { s.Transaction = false },
		} {
			s := full
			change(&s)
			add(s, Ways...)
		}
		queue := full
		queue.Queue = false
		add(queue, "job")
	}
	return all
}

// TestProbeTellsTheTruth has the probe judge operations from outside, and compares
// its verdict with what the switches say.
func TestProbeTellsTheTruth(t *testing.T) {
	quick.LeaveOut(t)
	t.Setenv(EnvSecret, WebhookSecret)
	type row struct {
		field, way, want, got string
	}
	var mu sync.Mutex
	counts, unclear, unknowable, total := map[row]int{}, 0, 0, 0
	check := func(t *testing.T, s setting, field string, want []string, got string) {
		mu.Lock()
		defer mu.Unlock()
		counts[row{field, s.way, strings.Join(want, " or "), got}]++
		total++
		switch {
		case slices.Contains(want, got):
		case got == "unknown" && slices.ContainsFunc(Unknowables, func(u Unknowable) bool {
			return u.Field == field && u.Way == s.way && u.When(s.switches)
		}):
			unknowable++
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
	list := settings()
	t.Run("settings", func(t *testing.T) {
		defer all.Wait()
		for _, s := range list {
			places <- struct{}{}
			judge := func(t *testing.T) {
				l, url := start(t, "semel")
				if err := l.Set("", s.switches); err != nil {
					t.Fatal(err)
				}
				p, err := plan.Parse("lab.yaml", Plan(strings.TrimPrefix(url, "http://"), s.way, s.operation, s.switches))
				if err != nil {
					t.Fatal(err)
				}
				got, err := probe.Run(t.Context(), p, probe.Options{Send: true, Full: true, Skip: []plan.Experiment{plan.LateRetry, plan.RetentionEdge}})
				if err != nil {
					t.Fatal(err)
				}
				op := got.Run.Operations[0]
				v, want := op.Verdict, TruthOf(s.way, s.switches)
				check(t, s, "idempotency_support", want.Support, v.IdempotencySupport)
				check(t, s, "key_scope_binding", want.Scope, v.KeyScopeBinding)
				check(t, s, "result_replay", want.Replay, v.ResultReplay)
				check(t, s, "in_progress_handling", want.InProgress, v.InProgressHandling)
				check(t, s, "race_behavior", want.Race, v.RaceBehavior)
				check(t, s, "retry_behavior", want.Retry, v.RetryBehavior)
				if t.Failed() {
					for _, e := range op.Experiments {
						if e.Outcome == evidence.NotApplicable {
							continue
						}
						t.Logf("%s: %s: %s", e.Name, e.Outcome, e.Why)
					}
				}
				doubles := slices.ContainsFunc(op.Findings, func(f evidence.Finding) bool {
					return f.Priority == evidence.P0 && (strings.HasPrefix(string(f.ID), "double-effect") || f.ID == "webhook-redelivery-doubles")
				})
				if doubles != (want.Race[0] == "double_apply") {
					t.Errorf("a doubled effect was found: %v", doubles)
				}
			}
			all.Go(func() {
				defer func() { <-places }()
				t.Run(s.String(), judge)
			})
		}
	})
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "field\tway\ttruth\tthe probe\ttimes")
	for _, r := range slices.SortedFunc(maps.Keys(counts), func(a, b row) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", r.field, r.way, r.want, r.got, counts[r])
	}
	if testing.Verbose() || t.Failed() {
		w.Flush()
		fmt.Printf("%d settings, %d fields, %d of them unknown that could be known, %d that could not\n", len(list), total, unclear, unknowable)
	}
	if len(list) < 60 {
		t.Errorf("%d settings", len(list))
	}
	if unclear*50 > total {
		t.Errorf("%d of %d fields are unknown that could be known: more than 2 %%", unclear, total)
	}
}
