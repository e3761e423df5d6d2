package semel_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// leaveUnknown leaves n unknown records, u0 and so on, with a cause each.
func leaveUnknown(t testing.TB, s semel.Store, n int, cause string) {
	t.Helper()
	for i := range n {
		if err := stranded(t, s, submit(fmt.Sprint("u", i)), time.Minute).Hold(t.Context(), cause); err != nil {
			t.Fatal(err)
		}
	}
}

func list(t testing.TB, s semel.Store, f semel.Filter) []semel.Record {
	t.Helper()
	records, err := s.(semel.Lister).List(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// resolutions counts the audit entries of resolutions by key.
func resolutions(t testing.TB, s semel.Trail) map[string]int {
	t.Helper()
	of := map[string]int{}
	for after := uint64(0); ; {
		entries, err := s.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailResolved, After: after, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			of[e.Key]++
			after = e.Position
		}
		if len(entries) < 1000 {
			return of
		}
	}
}

func noEffect(context.Context, semel.Record) (semel.Resolution, error) {
	return semel.Resolution{Decision: semel.DecideNoEffect, Cause: "not in the ledger"}, nil
}

// dryRun fills in what a dry run tells.
func dryRun(t testing.TB, g *semel.Guard, b *semel.BulkResolution) semel.BulkReport {
	t.Helper()
	dry := *b
	dry.Decide = nil
	report, err := g.ResolveWhere(t.Context(), dry)
	if err != nil {
		t.Fatal(err)
	}
	b.AsOf = report.AsOf
	return report
}

func wantReport(t testing.TB, got, want semel.BulkReport) {
	t.Helper()
	got.AsOf, got.Next = want.AsOf, want.Next
	if got != want {
		t.Fatalf("the report is\n%+v; want\n%+v", got, want)
	}
}

// The whole way: a dry run changes nothing, unknown records are settled with an
// entry each, lapsed ones are marked and left for a later run, and the living,
// the completed and the reopened are nobody's business.
func TestResolveWhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		var e effects
		_, err := g.Do(t.Context(), submit("completed"), e.do)
		if err != nil {
			t.Fatal(err)
		}
		leaveUnknown(t, s, 3, "the handler answered 502")
		if err := stranded(t, s, submit("other"), time.Minute).Hold(t.Context(), "cut off"); err != nil {
			t.Fatal(err)
		}
		c := stranded(t, s, submit("reopened"), time.Minute)
		if err := c.Hold(t.Context(), "the handler answered 502"); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Resolve(t.Context(), semel.Resolution{Identity: submit("reopened").Identity, Fence: c.Fence(), Decision: semel.DecideExecuteAgain}); err != nil {
			t.Fatal(err)
		}
		stranded(t, s, submit("lapsed"), time.Second)
		time.Sleep(2 * time.Second)
		live := stranded(t, s, submit("live"), time.Minute)

		before := list(t, s, semel.Filter{})
		b := semel.BulkResolution{Decide: noEffect, Origin: semel.Origin{RequestID: "operator:alice"}}
		seen := map[string]bool{}
		b.Seen = func(r semel.Record) { seen[r.Identity.Key] = true }
		wantReport(t, dryRun(t, g, &b), semel.BulkReport{Selected: 4, Lapsed: 1})
		if len(seen) != 5 || !seen["u0"] || !seen["other"] || !seen["lapsed"] {
			t.Fatalf("the dry run saw %v", seen)
		}
		if after := list(t, s, semel.Filter{}); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Fatalf("the dry run changed\n%v to\n%v", before, after)
		}

		report, err := g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Selected: 4, Settled: 4, Lapsed: 1, Marked: 1, Newer: 1})
		if got := resolutions(t, s); len(got) != 5 || got["u0"] != 1 || got["u1"] != 1 || got["u2"] != 1 || got["other"] != 1 {
			t.Fatalf("the trail tells of %v", got)
		}
		var states []string
		for _, r := range list(t, s, semel.Filter{}) {
			states = append(states, fmt.Sprint(r.Identity.Key, " ", r.State, " ", r.Reopened))
		}
		if got := strings.Join(states, ", "); got != "completed completed false, reopened in_progress true, lapsed unknown false, live in_progress false" {
			t.Fatalf("left are %s", got)
		}
		if err := live.Renew(t.Context()); err != nil {
			t.Fatalf("the living owner: %v", err)
		}

		// A second run with the same resolution has nothing to do; a new look
		// includes what was marked.
		report, err = g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Newer: 1})
		b.AsOf = time.Time{}
		wantReport(t, dryRun(t, g, &b), semel.BulkReport{Selected: 1})
		report, err = g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Selected: 1, Settled: 1})
		entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: "lapsed"})
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != 2 || entries[0].Kind != semel.TrailHeld || entries[1].Label != "no_effect" ||
			entries[1].Cause != "not in the ledger" || entries[0].RequestID != "operator:alice" || entries[1].RequestID != "operator:alice" {
			t.Fatalf("the trail of the lapsed record is %+v", entries)
		}
	})
}

func TestResolveWhereSelects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		leaveUnknown(t, s, 2, "the handler answered 502")
		time.Sleep(time.Second)
		since := time.Now()
		other := submit("v")
		other.Identity.Operation, other.Identity.Tenant = "refunds.create", "t2"
		if err := stranded(t, s, other, time.Minute).Hold(t.Context(), "the handler answered 504"); err != nil {
			t.Fatal(err)
		}
		stranded(t, s, submit("w"), time.Microsecond)
		time.Sleep(time.Second)
		for _, c := range []struct {
			where           semel.Filter
			unknown, lapsed int
		}{
			{semel.Filter{}, 3, 1},
			{semel.Filter{Operation: "refunds.create"}, 1, 0},
			{semel.Filter{Tenant: "t"}, 2, 1},
			{semel.Filter{Cause: "the handler answered 502"}, 2, 0},
			{semel.Filter{Cause: "the handler*", Tenant: "t2"}, 1, 0},
			{semel.Filter{BegunSince: since}, 1, 1},
			{semel.Filter{BegunUntil: since}, 2, 0},
			{semel.Filter{Actor: "nobody"}, 0, 0},
		} {
			report := dryRun(t, g, &semel.BulkResolution{Where: c.where})
			wantReport(t, report, semel.BulkReport{Selected: c.unknown, Lapsed: c.lapsed})
			if report.AsOf.IsZero() != (c.unknown+c.lapsed == 0) {
				t.Errorf("of %+v the dry run says as of %v", c.where, report.AsOf)
			}
		}
	})
}

// An operator looks, sees no effect, and settles. What became unknown after the
// look may have had its effect in between, and must not be freed.
func TestUnknownAfterTheLookIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		late := stranded(t, s, submit("late"), time.Hour) // its fence is lower than the others'
		leaveUnknown(t, s, 2, "the handler answered 502")
		b := semel.BulkResolution{Decide: noEffect}
		wantReport(t, dryRun(t, g, &b), semel.BulkReport{Selected: 2})
		time.Sleep(time.Millisecond)
		if err := late.Hold(t.Context(), "the handler answered 502"); err != nil {
			t.Fatal(err)
		}
		stranded(t, s, submit("later"), time.Microsecond)
		time.Sleep(time.Millisecond)
		report, err := g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Selected: 2, Settled: 2, Newer: 1})
		if r := list(t, s, semel.Filter{}); len(r) != 2 || r[0].State != semel.StateUnknown || r[1].State != semel.StateInProgress {
			t.Fatalf("left are %+v", r)
		}
	})
}

// A record that moves on between the listing and the decision is counted and
// left alone, whoever moved it.
func TestResolveWhereLeavesWhatMovedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{OnCrash: semel.CrashRetry})
		owner := stranded(t, s, submit("owner"), time.Minute)
		if err := owner.Hold(t.Context(), "the answer was cut off"); err != nil {
			t.Fatal(err)
		}
		leaveUnknown(t, s, 3, "the handler answered 502")
		var e effects
		b := semel.BulkResolution{Parallel: 1, Decide: func(ctx context.Context, r semel.Record) (semel.Resolution, error) {
			switch r.Identity.Key {
			case "owner": // comes to its end after all
				if _, err := owner.Complete(ctx, semel.Result{Label: "late"}); err != nil {
					return semel.Resolution{}, err
				}
			case "u0": // is taken over
				if _, err := g.Do(ctx, submit("u0"), e.do); err != nil {
					return semel.Resolution{}, err
				}
			case "u1": // is settled by another operator
				if _, err := g.Resolve(ctx, semel.Resolution{Identity: r.Identity, Fence: r.Fence, Decision: semel.DecideNoEffect}); err != nil {
					return semel.Resolution{}, err
				}
			}
			return noEffect(ctx, r)
		}}
		dryRun(t, g, &b)
		report, err := g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Selected: 4, Settled: 1, Moved: 3})
		for _, key := range []string{"owner", "u0"} {
			if r, err := g.Find(t.Context(), submit(key).Identity); err != nil || r.State != semel.StateCompleted {
				t.Errorf("%s: %v, %v", key, r.State, err)
			}
		}
		if got := resolutions(t, s); len(got) != 2 || got["u1"] != 1 || got["u2"] != 1 {
			t.Errorf("the trail tells of %v", got)
		}
	})
}

// A run that is interrupted, or whose store fails, leaves no record half done;
// the same resolution goes on with the rest; and each record has one entry.
func TestResolveWhereIsResumed(t *testing.T) {
	const n = 2500 // more than a page
	for name, interrupt := range map[string]func(stop context.CancelFunc, f *faulty){
		"the operator":    func(stop context.CancelFunc, _ *faulty) { stop() },
		"the store":       func(_ context.CancelFunc, f *faulty) { f.before = failFor(time.Nanosecond, "resolve") },
		"a lost answer":   func(_ context.CancelFunc, f *faulty) { f.after = failFor(time.Nanosecond, "resolve") },
		"the look-up":     nil,
		"a panic":         nil,
		"runtime.Goexit":  nil,
		"an odd decision": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore(t)
				leaveUnknown(t, s, n, "the handler answered 502")
				f := &listing{faulty{Store: s}}
				g := newGuard(t, f, semel.Policy{})
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var decided atomic.Int64
				b := semel.BulkResolution{Parallel: 1}
				dryRun(t, g, &b)
				b.Decide = func(ctx context.Context, r semel.Record) (semel.Resolution, error) {
					if decided.Add(1) == 1200 {
						switch name {
						case "the look-up":
							return semel.Resolution{}, errDown
						case "a panic":
							panic("secret")
						case "runtime.Goexit":
							runtime.Goexit()
						case "an odd decision":
							return semel.Resolution{Decision: semel.DecideUnknown}, nil
						default:
							interrupt(stop, &f.faulty)
						}
					}
					return noEffect(ctx, r)
				}
				first, err := g.ResolveWhere(ctx, b)
				if err == nil || !first.More || strings.Contains(err.Error(), "secret") {
					t.Fatalf("the interrupted run: %+v, %v", first, err)
				}
				if first.Selected != 1200 || first.Settled+first.Left+first.Moved+first.InDoubt != 1200 || first.Settled < 1199 {
					t.Fatalf("the interrupted run: %+v", first)
				}
				time.Sleep(time.Second)
				b.Decide = noEffect
				second, err := g.ResolveWhere(t.Context(), b)
				if err != nil {
					t.Fatal(err)
				}
				left := n - first.Settled
				if name == "a lost answer" {
					left--
				}
				wantReport(t, second, semel.BulkReport{Selected: left, Settled: left})
				got := resolutions(t, s)
				if len(got) != n {
					t.Fatalf("%d records were resolved; want %d", len(got), n)
				}
				for key, times := range got {
					if times != 1 {
						t.Fatalf("%s was resolved %d times", key, times)
					}
				}
			})
		})
	}
}

// listing is a faulty store that can be looked through.
type listing struct{ faulty }

func (l *listing) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	return l.Store.(semel.Lister).List(ctx, f)
}

// Operators who run the same command at once settle each record once.
func TestTwoRunsResolveOnce(t *testing.T) {
	s := newStore(t)
	g := newGuard(t, s, semel.Policy{})
	const n = 1500
	leaveUnknown(t, s, n, "the handler answered 502")
	b := semel.BulkResolution{Decide: noEffect}
	dryRun(t, g, &b)
	var runs sync.WaitGroup
	var settled, other atomic.Int64
	for range 4 {
		runs.Go(func() {
			report, err := g.ResolveWhere(t.Context(), b)
			if err != nil {
				t.Error(err)
			}
			settled.Add(int64(report.Settled))
			other.Add(int64(report.Selected - report.Settled - report.Moved))
		})
	}
	runs.Wait()
	if settled.Load() != n || other.Load() != 0 {
		t.Errorf("%d were settled, and %d are unaccounted for", settled.Load(), other.Load())
	}
	for key, times := range resolutions(t, s) {
		if times != 1 {
			t.Errorf("%s was resolved %d times", key, times)
		}
	}
}

// Limit bounds what one run decides and marks, even where it decides nothing;
// Next is past the records that were left.
func TestResolveWhereLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		for i := range 5 {
			stranded(t, s, submit(fmt.Sprint("l", i)), time.Microsecond)
		}
		leaveUnknown(t, s, 10, "the handler answered 502")
		time.Sleep(time.Second)
		b := semel.BulkResolution{Limit: 4}
		wantReport(t, dryRun(t, g, &b), semel.BulkReport{Selected: 10, Lapsed: 5})
		var keys []string
		undecided := func(_ context.Context, r semel.Record) (semel.Resolution, error) {
			keys = append(keys, r.Identity.Key)
			return semel.Resolution{}, nil
		}
		b.Decide, b.Parallel = undecided, 1
		report, err := g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Selected: 4, Left: 4, Newer: 4, Lapsed: 4, Marked: 4, More: true})
		for report.More {
			b.Where.After = report.Next
			if report, err = g.ResolveWhere(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(keys, " "); got != "u0 u1 u2 u3 u4 u5 u6 u7 u8 u9" {
			t.Fatalf("decided on %s", got)
		}
		if n := len(list(t, s, semel.Filter{State: semel.StateUnknown})); n != 15 {
			t.Fatalf("%d are unknown; want the 10 and the 5 that lapsed", n)
		}

		// Without Next a run takes up what it can settle.
		b.Where.After, b.Decide = 0, noEffect
		for range 3 {
			if report, err = g.ResolveWhere(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		wantReport(t, report, semel.BulkReport{Selected: 2, Settled: 2, Newer: 5})
	})
}

// Each of the three decisions is carried out, and Decide gets the right record.
func TestResolveWhereDecides(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{Lease: 10 * time.Second})
		leaveUnknown(t, s, 4, "the handler answered 502")
		var atOnce, most atomic.Int64
		b := semel.BulkResolution{Parallel: 2, Decide: func(ctx context.Context, r semel.Record) (semel.Resolution, error) {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > 10*time.Second {
				t.Errorf("the look-up has until %v", end)
			}
			if n := atOnce.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer atOnce.Add(-1)
			time.Sleep(time.Second)
			switch r.Identity.Key {
			case "u0":
				return semel.Resolution{Decision: semel.DecideResult, Result: semel.Result{Label: "found"}}, nil
			case "u1":
				return semel.Resolution{Decision: semel.DecideExecuteAgain, Origin: semel.Origin{RequestID: "mine"}}, nil
			case "u2":
				return semel.Resolution{}, nil
			}
			return noEffect(ctx, r)
		}}
		dryRun(t, g, &b)
		var told []int
		b.Progress = func(r semel.BulkReport) { told = append(told, r.Settled) }
		report, err := g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Selected: 4, Settled: 3, Left: 1})
		if most.Load() != 2 || !slices.Equal(told, []int{0, 3}) {
			t.Errorf("%d at once; progress %v", most.Load(), told)
		}
		var e effects
		out, err := g.Do(t.Context(), submit("u0"), e.do)
		wantAnswer(t, out, err, semel.AnswerReplayed)
		out, err = g.Do(t.Context(), submit("u1"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		out, err = g.Do(t.Context(), submit("u2"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnknown)
		if entries, err := s.Trail(t.Context(), semel.TrailFilter{RequestID: "mine"}); err != nil || len(entries) != 1 {
			t.Errorf("the trail of the decision's own origin: %v, %v", entries, err)
		}
		// What executes again and becomes unknown again is not of this run.
		if _, err := g.Do(t.Context(), submit("u1"), e.do); err != nil {
			t.Fatal(err)
		}
	})
}

// A run never chases its own tail: what it reopened, executed and became unknown
// again is newer than it.
func TestResolveWhereEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		leaveUnknown(t, s, 1000, "the handler answered 502")
		b := semel.BulkResolution{Parallel: 1}
		dryRun(t, g, &b)
		time.Sleep(time.Second)
		b.Decide = func(ctx context.Context, r semel.Record) (semel.Resolution, error) {
			if r.Identity.Key == "u999" { // meanwhile the first is executed again, and fails again
				_, err := g.Do(ctx, submit("u0"), func(context.Context) (semel.Result, error) { return semel.Result{}, errDown })
				if !errors.Is(err, semel.ErrUnknown) {
					t.Errorf("executed again: %v", err)
				}
			}
			return semel.Resolution{Decision: semel.DecideExecuteAgain}, nil
		}
		report, err := g.ResolveWhere(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		wantReport(t, report, semel.BulkReport{Selected: 1000, Settled: 1000, Newer: 1})
	})
}

func TestResolveWhereRefuses(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	for _, b := range []semel.BulkResolution{
		{Decide: noEffect},
		{Where: semel.Filter{State: semel.StateCompleted}},
		{Where: semel.Filter{Lapsed: true}},
		{Where: semel.Filter{Limit: 1}},
		{Limit: -1},
		{Parallel: -1},
	} {
		if _, err := g.ResolveWhere(t.Context(), b); err == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
	bare := newGuard(t, struct{ semel.Store }{newStore(t)}, semel.Policy{})
	if _, err := bare.ResolveWhere(t.Context(), semel.BulkResolution{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a store that is no lister: %v", err)
	}
}

// After an outage the ledger knows what became of the payments: settle those that
// are unknown by what it says.
func ExampleGuard_ResolveWhere() {
	ctx := context.Background()
	store, _ := memory.New(memory.Config{})
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		panic(err)
	}
	for _, key := range []string{"booked", "lost"} {
		_, _ = guard.Do(ctx, submit(key), func(context.Context) (semel.Result, error) {
			return semel.Result{}, semel.Indeterminate("the ledger did not answer", nil)
		})
	}

	b := semel.BulkResolution{Where: semel.Filter{Operation: "orders.create", Cause: "the ledger*"}}
	found, err := guard.ResolveWhere(ctx, b)
	if err != nil {
		panic(err)
	}
	fmt.Println(found.Selected, "unknown")

	b.AsOf = found.AsOf
	b.Origin = semel.Origin{RequestID: "reconciliation"}
	b.Decide = func(_ context.Context, r semel.Record) (semel.Resolution, error) {
		if r.Identity.Key == "booked" { // here the ledger is asked, and not before
			return semel.Resolution{Decision: semel.DecideResult, Result: semel.Result{Label: "booked"}, Cause: "in the ledger"}, nil
		}
		return semel.Resolution{Decision: semel.DecideNoEffect, Cause: "not in the ledger"}, nil
	}
	done, err := guard.ResolveWhere(ctx, b)
	if err != nil {
		panic(err) // what was settled is; the same call goes on with the rest
	}
	fmt.Println(done.Settled, "settled")
	// Output:
	// 2 unknown
	// 2 settled
}
