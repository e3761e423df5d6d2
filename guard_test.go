package semel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

var scope = semel.Scope{Tenant: "t", Actor: "a", Operation: "orders.create"}

func submit(key string) semel.Submit {
	return semel.Submit{Identity: semel.Identity{Scope: scope, Key: key}, Fingerprint: semel.FingerprintOf([]byte("request"))}
}

// detached is a submit whose panics are answers.
func detached(key string) semel.Submit {
	s := submit(key)
	s.Detached = true
	return s
}

func newStore(t testing.TB) *memory.Store {
	t.Helper()
	s, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newGuard(t testing.TB, s semel.Store, p semel.Policy) *semel.Guard {
	t.Helper()
	g, err := semel.New(semel.Config{Store: s, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// effects counts effects and makes each result tell which one it is of.
type effects struct{ n atomic.Int64 }

func (e *effects) do(context.Context) (semel.Result, error) {
	return semel.Result{Codec: "test/1", Body: fmt.Append(nil, "effect ", e.n.Add(1)), Label: "ok"}, nil
}

func (e *effects) want(t testing.TB, n int64) {
	t.Helper()
	if got := e.n.Load(); got != n {
		t.Fatalf("%d effects; want %d", got, n)
	}
}

func wantAnswer(t testing.TB, out semel.Outcome, err error, want semel.Answer) {
	t.Helper()
	if out.Answer != want {
		t.Fatalf("answer %v, error %v; want %v", out.Answer, err, want)
	}
	if (err == nil) != (want == semel.AnswerExecuted || want == semel.AnswerReplayed) {
		t.Fatalf("answer %v came with error %v", want, err)
	}
	if e, ok := errors.AsType[*semel.Error](err); ok && e.Answer != want {
		t.Fatalf("the outcome says %v, its error %v", want, e.Answer)
	}
}

// bubble runs test in virtual time.
func bubble(t *testing.T, test func(t *testing.T)) { synctest.Test(t, test) }

// stranded leaves a record in progress, as a process that died would.
func stranded(t testing.TB, s semel.Store, sub semel.Submit, lease time.Duration) semel.Claim {
	t.Helper()
	c, err := s.Begin(t.Context(), semel.NewAttempt(sub.Identity, sub.Fingerprint, lease, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestExecutesOnceAndReplays(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	var e effects
	first, err := g.Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, first, err, semel.AnswerExecuted)
	again, err := g.Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, again, err, semel.AnswerReplayed)
	if string(again.Result.Body) != "effect 1" || again.Result.Label != "ok" || again.Record.ID != first.Record.ID {
		t.Fatalf("replayed %q of record %s; want the first result of %s", again.Result.Body, again.Record.ID, first.Record.ID)
	}
	if !first.Record.ExpiresAt.Equal(again.Record.ExpiresAt) || first.Record.ExpiresAt.IsZero() {
		t.Fatalf("the record expires at %v by the first answer and at %v by the second", first.Record.ExpiresAt, again.Record.ExpiresAt)
	}
	e.want(t, 1)
}

func TestRacedSubmitsExecuteOnce(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	var e effects
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 200 {
		wg.Go(func() {
			<-start
			for {
				out, err := g.Do(t.Context(), submit("k"), e.do)
				switch {
				case err == nil && string(out.Result.Body) == "effect 1":
					return
				case errors.Is(err, semel.ErrInProgress) && errors.Is(err, semel.ErrMaybeEffect):
					runtime.Gosched()
				default:
					t.Errorf("answer %v, body %q, error %v", out.Answer, out.Result.Body, err)
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
	e.want(t, 1)
}

// A client that disconnects must not cancel the work or its record.
func TestCallerGoneWorkGoesOn(t *testing.T) {
	for _, detached := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			g := newGuard(t, newStore(t), semel.Policy{})
			type valueKey struct{}
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "kept"))
			var e effects
			sub := submit("k")
			sub.Detached = detached
			var settled semel.Outcome
			sub.Settled = func(out semel.Outcome, _ error) { settled = out }
			out, err := g.Do(ctx, sub, func(ctx context.Context) (semel.Result, error) {
				cancel()
				time.Sleep(time.Minute)
				if ctx.Err() != nil || ctx.Value(valueKey{}) != "kept" {
					t.Errorf("the work's context: %v, value %v", ctx.Err(), ctx.Value(valueKey{}))
				}
				return e.do(ctx)
			})
			if detached {
				wantAnswer(t, out, err, semel.AnswerInProgress)
				if !errors.Is(err, context.Canceled) || !errors.Is(err, semel.ErrMaybeEffect) || !out.Claimed {
					t.Fatalf("the caller that left was told %v", err)
				}
				if err := g.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				if settled.Answer != semel.AnswerExecuted || settled.Record.State != semel.StateCompleted {
					t.Fatalf("settled as %+v", settled)
				}
			} else {
				wantAnswer(t, out, err, semel.AnswerExecuted)
			}
			e.want(t, 1)
		})
	}
}

// What a handler does to its goroutine it does to the caller's, once the record
// tells of it; a detached one has nobody above.
func TestPanicAndGoexitGoOnUp(t *testing.T) {
	for _, detached := range []bool{false, true} {
		for _, goexit := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				s := newStore(t)
				var panicked atomic.Int64
				var answered []semel.Answer
				g, err := semel.New(semel.Config{Store: s, Observer: &semel.Observer{
					Panicked: func(context.Context, semel.Panicked) { panicked.Add(1) },
					Answered: func(_ context.Context, a semel.Answered) { answered = append(answered, a.Answer) },
				}})
				if err != nil {
					t.Fatal(err)
				}
				sub := submit("k")
				sub.Detached = detached
				var out semel.Outcome
				var value any
				returned := false
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { value = recover() }()
					out, err = g.Do(t.Context(), sub, func(context.Context) (semel.Result, error) {
						if goexit {
							runtime.Goexit()
						}
						panic("boom")
					})
					returned = true
				}()
				<-done
				if returned != detached {
					t.Fatalf("detached %v, goexit %v: Do returned: %v", detached, goexit, returned)
				}
				if detached {
					wantAnswer(t, out, err, semel.AnswerUnknown)
					if _, ok := errors.AsType[*semel.PanicError](err); !ok {
						t.Fatalf("told %v", err)
					}
				} else if !goexit && value != "boom" || goexit && value != nil {
					t.Fatalf("the caller recovered %v", value)
				}
				r, err := s.Find(t.Context(), sub.Identity)
				if err != nil || r.State != semel.StateUnknown || panicked.Load() != 1 || len(answered) != 1 || answered[0] != semel.AnswerUnknown {
					t.Fatalf("the record reads %v, %v; %d panics and answers %v observed", r.State, err, panicked.Load(), answered)
				}
				if err := g.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// The handler runs where the server's own limits hold.
func TestRunsOnTheCallersGoroutine(t *testing.T) {
	id := func() string {
		b := make([]byte, 64)
		return strings.Fields(string(b[:runtime.Stack(b, false)]))[1]
	}
	g := newGuard(t, newStore(t), semel.Policy{})
	var in string
	_, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
		in = id()
		return semel.Result{}, nil
	})
	if err != nil || in != id() {
		t.Fatalf("called from goroutine %s, ran in %s, %v", id(), in, err)
	}
}

// Each bound is answered before any look in the store, and is free again when
// an execution has ended.
func TestExecutionsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		config   semel.Config
		detached bool
	}{
		"MaxExecutions":       {config: semel.Config{MaxExecutions: 3, MaxTenantExecutions: 9}},
		"MaxTenantExecutions": {config: semel.Config{MaxTenantExecutions: 3}},
		"MaxDetached":         {config: semel.Config{MaxDetached: 3}, detached: true},
	} {
		bubble(t, func(t *testing.T) {
			var calls atomic.Int64
			c.config.Store = &faulty{Store: newStore(t), before: func(string) error { calls.Add(1); return nil }}
			g, err := semel.New(c.config)
			if err != nil {
				t.Fatal(err)
			}
			var e effects
			goOn := make(chan struct{})
			var wg sync.WaitGroup
			do := func(s semel.Submit) {
				s.Detached = c.detached
				out, err := g.Do(t.Context(), s, func(ctx context.Context) (semel.Result, error) {
					<-goOn
					return e.do(ctx)
				})
				wantAnswer(t, out, err, semel.AnswerExecuted)
			}
			for i := range 3 {
				wg.Go(func() { do(submit(fmt.Sprint("k", i))) })
			}
			synctest.Wait()
			before := calls.Load()
			over := submit("over")
			over.Detached = c.detached
			out, err := g.Do(t.Context(), over, e.do)
			wantAnswer(t, out, err, semel.AnswerUnavailable)
			busy, ok := errors.AsType[*semel.BusyError](err)
			if !ok || busy.Bound != name || busy.Limit != 3 || out.Claimed {
				t.Fatalf("%s: told %v", name, err)
			}
			if ee, _ := errors.AsType[*semel.Error](err); ee.Retry() != semel.RetrySameKey || ee.RetryAfter <= 0 {
				t.Fatalf("%s: advice %v after %v", name, ee.Retry(), ee.RetryAfter)
			}
			if calls.Load() != before {
				t.Fatalf("%s: the store was asked", name)
			}
			if name == "MaxTenantExecutions" {
				// One tenant's bound is not another's, nor that of who has none.
				for _, tenant := range []string{"other", ""} {
					s := submit("other")
					s.Identity.Tenant = tenant
					wg.Go(func() { do(s) })
				}
			}
			close(goOn)
			wg.Wait()
			out, err = g.Do(t.Context(), over, e.do)
			wantAnswer(t, out, err, semel.AnswerExecuted)
			if err := g.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestCallerGoneBeforeTheClaim(t *testing.T) {
	s := newStore(t)
	g := newGuard(t, s, semel.Policy{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var e effects
	_, err := g.Do(ctx, submit("k"), e.do)
	if !errors.Is(err, semel.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("told %v", err)
	}
	if _, err := s.Find(t.Context(), submit("k").Identity); !errors.Is(err, semel.ErrNotFound) {
		t.Fatalf("a record was left: %v", err)
	}
	e.want(t, 0)
}

// The result must be durable before anyone is told of it.
func TestNoAnswerBeforeTheRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		written := make(chan struct{})
		s := &faulty{Store: newStore(t), before: func(call string) error {
			if call == "complete" {
				<-written
			}
			return nil
		}}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		answered := make(chan semel.Outcome, 1)
		go func() {
			out, _ := g.Do(t.Context(), submit("k"), e.do)
			answered <- out
		}()
		synctest.Wait()
		select {
		case out := <-answered:
			t.Fatalf("answered %v before the record was written", out.Answer)
		default:
		}
		close(written)
		if out := <-answered; out.Answer != semel.AnswerExecuted {
			t.Fatalf("answered %v", out.Answer)
		}
	})
}

func TestLongWorkKeepsItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// Under Retry, a claim that lapsed even once would be taken over.
		g := newGuard(t, newStore(t), semel.Policy{OnCrash: semel.CrashRetry})
		var e effects
		done := make(chan error, 1)
		go func() {
			_, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
				time.Sleep(10 * 15 * time.Second)
				return e.do(ctx)
			})
			done <- err
		}()
		for range 140 {
			time.Sleep(time.Second)
			out, err := g.Do(t.Context(), submit("k"), e.do)
			wantAnswer(t, out, err, semel.AnswerInProgress)
			if ee, _ := errors.AsType[*semel.Error](err); ee.RetryAfter <= 0 || ee.RetryAfter > 15*time.Second {
				t.Fatalf("retry after %v", ee.RetryAfter)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		e.want(t, 1)
	})
}

func TestDeadlineCancelsTheWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{Deadline: time.Minute})
		start := time.Now()
		out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			<-ctx.Done()
			if context.Cause(ctx) != semel.ErrDeadline {
				t.Errorf("cancelled by %v", context.Cause(ctx))
			}
			return semel.Result{}, ctx.Err()
		})
		wantAnswer(t, out, err, semel.AnswerUnknown)
		if d := time.Since(start); d != time.Minute {
			t.Fatalf("cancelled after %v", d)
		}
		var e effects
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnknown)
		e.want(t, 0)
	})
}

// The record of a handler that ignores its deadline does not: it is held, and
// a late result still settles it.
func TestOverdueWorkIsHeldAndMaySettle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{Deadline: time.Minute})
		var e effects
		go func() {
			time.Sleep(time.Minute + 6*time.Second)
			out, err := g.Do(t.Context(), submit("k"), e.do)
			wantAnswer(t, out, err, semel.AnswerUnknown)
			if out.Record.State != semel.StateUnknown || !strings.Contains(out.Record.Cause, "deadline") {
				t.Errorf("the record reads %+v", out.Record)
			}
		}()
		out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			time.Sleep(5 * time.Minute)
			if context.Cause(ctx) != semel.ErrDeadline {
				t.Errorf("cancelled by %v", context.Cause(ctx))
			}
			return e.do(ctx)
		})
		wantAnswer(t, out, err, semel.AnswerExecuted)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerReplayed)
		e.want(t, 1)
	})
}

func TestCrashUnderHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		stranded(t, s, submit("k"), 15*time.Second)
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerInProgress)
		time.Sleep(15 * time.Second)
		for range 2 {
			out, err = g.Do(t.Context(), submit("k"), e.do)
			wantAnswer(t, out, err, semel.AnswerUnknown)
			if !errors.Is(err, semel.ErrMaybeEffect) || !errors.Is(err, semel.ErrUnknown) {
				t.Fatalf("told %v", err)
			}
		}
		if r, err := s.Find(t.Context(), submit("k").Identity); err != nil || r.State != semel.StateUnknown {
			t.Fatalf("the record reads %+v, %v", r, err)
		}
		time.Sleep(30 * 24 * time.Hour)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnknown)
		e.want(t, 0)
	})
}

func TestCrashUnderRetry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{OnCrash: semel.CrashRetry})
		dead := stranded(t, s, submit("k"), 15*time.Second)
		time.Sleep(15 * time.Second)
		out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			x, ok := semel.CurrentExecution(ctx)
			if !ok || x.Fence() <= dead.Fence() || x.Identity() != submit("k").Identity || x.RecordID() != dead.RecordID() {
				t.Errorf("the execution is told fence %d of record %s", x.Fence(), x.RecordID())
			}
			return semel.Result{Body: []byte("mine")}, nil
		})
		wantAnswer(t, out, err, semel.AnswerExecuted)
		if _, err := dead.Complete(t.Context(), semel.Result{Body: []byte("zombie")}); !errors.Is(err, semel.ErrLostClaim) {
			t.Fatalf("a zombie completed: %v", err)
		}
	})
}

// To an effect whose owner is idempotent, an outcome that was not learned is
// no worse than a crash.
func TestUnknownUnderRetry(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{OnCrash: semel.CrashRetry})
	out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
		return semel.Result{}, semel.Indeterminate("lost contact", nil)
	})
	wantAnswer(t, out, err, semel.AnswerUnknown)
	if ee, _ := errors.AsType[*semel.Error](err); ee.Retry() != semel.RetrySameKey || ee.RetryAfter <= 0 {
		t.Fatalf("advised %v after %v", ee.Retry(), ee.RetryAfter)
	}
	var e effects
	out, err = g.Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, out, err, semel.AnswerExecuted)
}

func TestReconcile(t *testing.T) {
	for _, c := range []struct {
		name    string
		finding semel.Finding
		err     error
		lapsed  time.Duration
		settle  time.Duration
		want    semel.Answer
		effects int64
	}{
		{"present", semel.FoundPresent(semel.Result{Body: []byte("found")}), nil, 0, 0, semel.AnswerReplayed, 0},
		{"undecided", semel.FoundUndecided(), nil, time.Hour, time.Minute, semel.AnswerUnknown, 0},
		{"failed", semel.FoundAbsent(), errors.New("no answer"), time.Hour, time.Minute, semel.AnswerUnknown, 0},
		{"absent before it could have settled", semel.FoundAbsent(), nil, 59 * time.Second, time.Minute, semel.AnswerUnknown, 0},
		{"absent after it must have settled", semel.FoundAbsent(), nil, time.Minute, time.Minute, semel.AnswerExecuted, 1},
		{"absent without a bound", semel.FoundAbsent(), nil, 1000 * time.Hour, 0, semel.AnswerUnknown, 0},
	} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/held=%v", c.name, held), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newStore(t)
					g := newGuard(t, s, semel.Policy{
						OnCrash: semel.CrashReconcile, SettleAfter: c.settle,
						Reconcile: func(_ context.Context, r semel.Record) (semel.Finding, error) {
							if r.Identity != submit("k").Identity {
								t.Errorf("asked about %+v", r.Identity)
							}
							return c.finding, c.err
						},
					})
					claim := stranded(t, s, submit("k"), 15*time.Second)
					if held {
						if err := claim.Hold(t.Context(), "lost contact"); err != nil {
							t.Fatal(err)
						}
					} else {
						time.Sleep(15 * time.Second)
					}
					time.Sleep(c.lapsed)
					var e effects
					out, err := g.Do(t.Context(), submit("k"), e.do)
					wantAnswer(t, out, err, c.want)
					e.want(t, c.effects)
				})
			})
		}
	}
}

func TestResolveThreeWays(t *testing.T) {
	for _, c := range []struct {
		decision semel.Decision
		want     semel.Answer
		body     string
	}{
		{semel.DecideResult, semel.AnswerReplayed, "learned"},
		{semel.DecideNoEffect, semel.AnswerExecuted, "effect 1"},
		{semel.DecideExecuteAgain, semel.AnswerExecuted, "effect 1"},
	} {
		t.Run(c.decision.String(), func(t *testing.T) {
			s := newStore(t)
			g := newGuard(t, s, semel.Policy{})
			owner := stranded(t, s, submit("k"), time.Minute)
			if err := owner.Hold(t.Context(), "lost contact"); err != nil {
				t.Fatal(err)
			}
			_, err := g.Resolve(t.Context(), semel.Resolution{
				Identity: submit("k").Identity, Fence: owner.Fence(), Decision: c.decision, Result: semel.Result{Body: []byte("learned")},
			})
			if err != nil {
				t.Fatal(err)
			}
			var e effects
			other := submit("k")
			other.Fingerprint = semel.FingerprintOf([]byte("another"))
			if c.decision != semel.DecideNoEffect { // which forgets the request
				out, err := g.Do(t.Context(), other, e.do)
				wantAnswer(t, out, err, semel.AnswerMismatch)
			}
			out, err := g.Do(t.Context(), submit("k"), e.do)
			wantAnswer(t, out, err, c.want)
			if string(out.Result.Body) != c.body {
				t.Fatalf("answered %q; want %q", out.Result.Body, c.body)
			}
		})
	}
}

// Bug 37: a mismatch must be told in every state, and must change nothing.
func TestMismatchInEveryState(t *testing.T) {
	other := submit("k")
	other.Fingerprint = semel.FingerprintOf([]byte("another request"))
	states := map[string]func(t *testing.T, s semel.Store){
		"in progress": func(t *testing.T, s semel.Store) { stranded(t, s, submit("k"), time.Hour) },
		"lapsed": func(t *testing.T, s semel.Store) {
			stranded(t, s, submit("k"), time.Second)
			time.Sleep(time.Minute)
		},
		"taken over": func(t *testing.T, s semel.Store) {
			c := stranded(t, s, submit("k"), time.Second)
			time.Sleep(time.Minute)
			a := semel.NewAttempt(submit("k").Identity, submit("k").Fingerprint, time.Hour, time.Hour)
			a.Takeover = c.Fence()
			if _, err := s.Begin(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		},
		"unknown": func(t *testing.T, s semel.Store) {
			if err := stranded(t, s, submit("k"), time.Hour).Hold(t.Context(), "lost contact"); err != nil {
				t.Fatal(err)
			}
		},
		"completed": func(t *testing.T, s semel.Store) {
			if _, err := stranded(t, s, submit("k"), time.Hour).Complete(t.Context(), semel.Result{Body: []byte("done")}); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, prepare := range states {
		for _, policy := range []semel.CrashPolicy{semel.CrashHold, semel.CrashRetry} {
			t.Run(name+"/"+policy.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newStore(t)
					g := newGuard(t, s, semel.Policy{OnCrash: policy})
					prepare(t, s)
					before, _ := s.Find(t.Context(), submit("k").Identity)
					var e effects
					out, err := g.Do(t.Context(), other, e.do)
					wantAnswer(t, out, err, semel.AnswerMismatch)
					if !errors.Is(err, semel.ErrNoEffect) || len(out.Record.Result.Body) > 0 {
						t.Fatalf("told %v with %+v", err, out.Record)
					}
					after, _ := s.Find(t.Context(), submit("k").Identity)
					if before.State != after.State || before.Fence != after.Fence || before.Fingerprint != after.Fingerprint {
						t.Fatalf("the mismatch changed %+v to %+v", before, after)
					}
					e.want(t, 0)

					// A fingerprint made by another version is a doubt, not a mismatch.
					unknown := submit("k")
					unknown.Fingerprint = semel.Fingerprint{Scheme: "parts/99"}
					if out, err := g.Do(t.Context(), unknown, e.do); out.Answer == semel.AnswerMismatch {
						t.Fatalf("an unknown scheme: %v", err)
					}
				})
			})
		}
	}
}

// A record that cannot be seen is in progress, never a mismatch.
func TestInvisibleRecordIsInProgress(t *testing.T) {
	s := &faulty{Store: newStore(t), before: func(call string) error {
		if call == "begin" {
			return &semel.ConflictError{Record: semel.Record{Identity: submit("k").Identity, State: semel.StateInProgress, Lease: time.Second}}
		}
		return nil
	}}
	var e effects
	out, err := newGuard(t, s, semel.Policy{}).Do(t.Context(), submit("k"), e.do)
	wantAnswer(t, out, err, semel.AnswerInProgress)
	e.want(t, 0)
}

func TestWhatTheHandlerSays(t *testing.T) {
	cause := errors.New("the reason")
	for _, c := range []struct {
		name   string
		fn     func(context.Context) (semel.Result, error)
		first  semel.Answer
		second semel.Answer
	}{
		{"no effect", func(context.Context) (semel.Result, error) { return semel.Result{}, semel.NoEffect(cause) }, semel.AnswerReleased, semel.AnswerExecuted},
		{"wrapped no effect", func(context.Context) (semel.Result, error) {
			return semel.Result{}, fmt.Errorf("on the way: %w", semel.NoEffect(cause))
		}, semel.AnswerReleased, semel.AnswerExecuted},
		{"indeterminate", func(context.Context) (semel.Result, error) {
			return semel.Result{}, semel.Indeterminate("lost contact", cause)
		}, semel.AnswerUnknown, semel.AnswerUnknown},
		{"unclassified", func(context.Context) (semel.Result, error) { return semel.Result{}, cause }, semel.AnswerUnknown, semel.AnswerUnknown},
		{"panic", func(context.Context) (semel.Result, error) { panic("secret payload") }, semel.AnswerUnknown, semel.AnswerUnknown},
		{"nil panic", func(context.Context) (semel.Result, error) { panic(nil) }, semel.AnswerUnknown, semel.AnswerUnknown},
		{"goexit", func(context.Context) (semel.Result, error) { runtime.Goexit(); return semel.Result{}, nil }, semel.AnswerUnknown, semel.AnswerUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuard(t, newStore(t), semel.Policy{})
			out, err := g.Do(t.Context(), detached("k"), c.fn)
			wantAnswer(t, out, err, c.first)
			if strings.Contains(err.Error(), "secret") {
				t.Fatalf("the error shows the panic's value: %v", err)
			}
			isPanic := strings.Contains(c.name, "panic") || c.name == "goexit"
			if _, ok := errors.AsType[*semel.PanicError](err); ok != isPanic {
				t.Fatalf("a PanicError: %v; want %v", ok, isPanic)
			}
			if !isPanic && !errors.Is(err, cause) {
				t.Fatalf("the cause is missing from %v", err)
			}
			if errors.Is(err, semel.ErrNoEffect) != (c.first == semel.AnswerReleased) {
				t.Fatalf("errors.Is(%v, ErrNoEffect)", err)
			}
			var e effects
			out, err = g.Do(t.Context(), submit("k"), e.do)
			wantAnswer(t, out, err, c.second)
			if c.second == semel.AnswerUnknown && (out.Record.Cause == "" || strings.Contains(out.Record.Cause, "reason")) {
				t.Fatalf("the record's cause is %q", out.Record.Cause)
			}
		})
	}
}

func TestFinalFailureIsReplayed(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	declined := errors.New("card declined")
	out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
		return semel.Result{}, semel.Final(declined)
	})
	if out.Answer != semel.AnswerExecuted || !errors.Is(err, semel.ErrRecorded) || !errors.Is(err, declined) {
		t.Fatalf("answer %v, error %v", out.Answer, err)
	}
	var e effects
	out, err = g.Do(t.Context(), submit("k"), e.do)
	if out.Answer != semel.AnswerReplayed || !errors.Is(err, semel.ErrRecorded) || err.Error() != "card declined" {
		t.Fatalf("answer %v, error %v", out.Answer, err)
	}
	e.want(t, 0)
}

func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		sibling, err := g.With(semel.Policy{Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		goOn := make(chan struct{})
		done := make(chan error, 1)
		var e effects
		go func() {
			_, err := sibling.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
				<-goOn
				return e.do(ctx)
			})
			done <- err
		}()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Drain(short); err == nil || !strings.Contains(err.Error(), "1 execution") {
			t.Fatalf("Drain with work under way: %v", err)
		}
		out, err := g.Do(t.Context(), submit("new"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if !errors.Is(err, semel.ErrDraining) || !errors.Is(err, semel.ErrUnavailable) {
			t.Fatalf("told %v", err)
		}
		close(goOn)
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		e.want(t, 1)
		ended, end := context.WithCancel(t.Context())
		end()
		for range 100 {
			if err := g.Drain(ended); err != nil {
				t.Fatalf("an idle guard: %v", err)
			}
		}
	})
}

func TestOnDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{})
		called := make(chan struct{})
		g.OnDrain(func() { close(called) })
		stop := g.OnDrain(func() { t.Error("called although it was taken back") })
		if !stop() {
			t.Error("taking it back came too late")
		}
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-called
	})
}

// What each answer says about the effect and about trying again is what clients
// act on.
func TestAnswersAdvise(t *testing.T) {
	for answer, want := range map[semel.Answer]struct {
		retry  semel.RetryAdvice
		effect semel.Effect
	}{
		semel.AnswerExecuted:    {semel.RetryNo, semel.EffectDone},
		semel.AnswerReplayed:    {semel.RetryNo, semel.EffectDone},
		semel.AnswerReleased:    {semel.RetrySameKey, semel.EffectNone},
		semel.AnswerInProgress:  {semel.RetrySameKey, semel.EffectMaybe},
		semel.AnswerMismatch:    {semel.RetryNo, semel.EffectNone},
		semel.AnswerUnknown:     {semel.RetryAfterResolution, semel.EffectMaybe},
		semel.AnswerRejected:    {semel.RetryNewKey, semel.EffectNone},
		semel.AnswerUnavailable: {semel.RetrySameKey, semel.EffectMaybe},
	} {
		if got := answer.Retry(); got != want.retry {
			t.Errorf("%v advises %s; want %s", answer, got, want.retry)
		}
		if got := answer.Effect(); got != want.effect {
			t.Errorf("%v says effect %v; want %v", answer, got, want.effect)
		}
	}
}

func TestRejectsBadIdentities(t *testing.T) {
	g := newGuard(t, newStore(t), semel.Policy{})
	for name, id := range map[string]semel.Identity{
		"empty key":      {Scope: scope},
		"no operation":   {Scope: semel.Scope{Tenant: "t", Actor: "a"}, Key: "k"},
		"long key":       {Scope: scope, Key: strings.Repeat("k", 256)},
		"control":        {Scope: scope, Key: "a\x00b"},
		"not UTF-8":      {Scope: scope, Key: "\xff"},
		"bad tenant":     {Scope: semel.Scope{Tenant: "a\nb", Operation: "op"}, Key: "k"},
		"long operation": {Scope: semel.Scope{Operation: strings.Repeat("o", 256)}, Key: "k"},
	} {
		var e effects
		out, err := g.Do(t.Context(), semel.Submit{Identity: id}, e.do)
		wantAnswer(t, out, err, semel.AnswerRejected)
		if id.Key != "" && len(id.Key) < 200 && id.Key != "k" && strings.Contains(err.Error(), id.Key) {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
		e.want(t, 0)
	}
}

func TestConfigErrorsComeTogether(t *testing.T) {
	_, err := semel.New(semel.Config{Policy: semel.Policy{
		Lease: time.Second, Heartbeat: time.Second, Deadline: -1, OnCrash: semel.CrashReconcile, SettleAfter: -1,
	}, MaxExecutions: -1, MaxTenantWaiters: -1})
	for _, want := range []string{"Store", "MaxExecutions", "MaxTenantWaiters", "Heartbeat", "Deadline", "Reconcile", "SettleAfter"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

// A request that waited for an execution must find its record.
func TestRetentionOutlastsTheDeadline(t *testing.T) {
	_, err := semel.New(semel.Config{Store: newStore(t), Policy: semel.Policy{Retention: time.Minute, Deadline: 2 * time.Minute}})
	if err == nil || !strings.Contains(err.Error(), "Retention 1m0s is shorter than the Deadline 2m0s") {
		t.Errorf("told %v", err)
	}
	g := newGuard(t, newStore(t), semel.Policy{Retention: time.Minute})
	if d := g.Policy().Deadline; d != time.Minute {
		t.Errorf("the deadline is %v", d)
	}
}

// A client that repeats a request in a loop must not fill the trail.
func TestRepeatedAnswersShareAnEntry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g := newGuard(t, s, semel.Policy{})
		var e effects
		entries := func(kind semel.TrailKind) (counts []uint64) {
			t.Helper()
			found, err := s.Trail(t.Context(), semel.TrailFilter{Kind: kind})
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range found {
				counts = append(counts, entry.Count)
			}
			return counts
		}
		want := func(kind semel.TrailKind, counts ...uint64) {
			t.Helper()
			if got := entries(kind); fmt.Sprint(got) != fmt.Sprint(counts) {
				t.Fatalf("entries of %s count %v; want %v", kind, got, counts)
			}
		}
		other := submit("k")
		other.Fingerprint = semel.FingerprintOf([]byte("another"))
		for range 1001 { // one executes
			_, _ = g.Do(t.Context(), submit("k"), e.do)
		}
		_, _ = g.Do(t.Context(), other, e.do)
		want(semel.TrailReplayed, 0)
		want(semel.TrailMismatch, 0)
		time.Sleep(10*time.Second + time.Millisecond)
		want(semel.TrailReplayed, 0, 999)
		want(semel.TrailMismatch, 0)
		last := submit("k")
		last.Origin.RequestID = "last"
		_, _ = g.Do(t.Context(), last, e.do)
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(semel.TrailReplayed, 0, 999, 0)
		if found, _ := s.Trail(t.Context(), semel.TrailFilter{RequestID: "last"}); len(found) != 1 {
			t.Fatalf("%d entries name the last request", len(found))
		}
	})
}

func TestTrailTellsReplaysAndRefusals(t *testing.T) {
	s := newStore(t)
	g := newGuard(t, s, semel.Policy{})
	var e effects
	first := submit("k")
	first.Origin = semel.Origin{RequestID: "r1"}
	other := submit("k")
	other.Fingerprint = semel.FingerprintOf([]byte("another"))
	other.Origin = semel.Origin{RequestID: "r3", EventID: "e3", TraceID: "x3"}
	_, _ = g.Do(t.Context(), first, e.do)
	_, _ = g.Do(t.Context(), submit("k"), e.do)
	_, _ = g.Do(t.Context(), other, e.do)
	entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: "k"})
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i, want := range []semel.TrailKind{semel.TrailExecuted, semel.TrailReplayed, semel.TrailMismatch} {
		if entries[i].Kind != want || entries[i].RecordID != entries[0].RecordID {
			t.Errorf("entry %d reads %+v; want %s", i, entries[i], want)
		}
	}
	if entries[0].RequestID != "r1" || entries[2].Origin != other.Origin {
		t.Errorf("origins %+v and %+v", entries[0].Origin, entries[2].Origin)
	}
}

func TestObserver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var answered []semel.Answer
		var failed, lost, panicked atomic.Int64
		s := &faulty{Store: newStore(t)}
		g, err := semel.New(semel.Config{Store: s, Observer: &semel.Observer{
			Answered:    func(_ context.Context, a semel.Answered) { answered = append(answered, a.Answer) },
			StoreFailed: func(context.Context, semel.StoreFailed) { failed.Add(1) },
			LeaseLost:   func(context.Context, semel.LeaseLost) { lost.Add(1) },
			Panicked:    func(context.Context, semel.Panicked) { panicked.Add(1) },
		}})
		if err != nil {
			t.Fatal(err)
		}
		var e effects
		_, _ = g.Do(t.Context(), submit("k"), e.do)
		_, _ = g.Do(t.Context(), submit("k"), e.do)
		func() {
			defer func() { _ = recover() }()
			_, _ = g.Do(t.Context(), submit("p"), func(context.Context) (semel.Result, error) { panic(1) })
		}()
		s.before = func(call string) error {
			if call == "renew" {
				return errors.New("store down")
			}
			return nil
		}
		_, _ = g.Do(t.Context(), submit("l"), func(ctx context.Context) (semel.Result, error) { <-ctx.Done(); return semel.Result{}, ctx.Err() })
		want := []semel.Answer{semel.AnswerExecuted, semel.AnswerReplayed, semel.AnswerUnknown, semel.AnswerUnknown}
		if fmt.Sprint(answered) != fmt.Sprint(want) || failed.Load() == 0 || lost.Load() != 1 || panicked.Load() != 1 {
			t.Fatalf("answered %v, %d store failures, %d leases lost, %d panics", answered, failed.Load(), lost.Load(), panicked.Load())
		}
	})
}

// A result of 32 MiB is not cut off because it takes longer than other calls.
func TestLargeResultsHaveMoreTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{})
		start := time.Now()
		out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
			piece := make([]byte, semel.PieceBytes)
			return semel.Result{Codec: "test/1", Pieces: &semel.Pieces{Size: 32 << 20, Read: func(ctx context.Context, _ int) ([]byte, error) {
				select {
				case <-time.After(100 * time.Millisecond):
					return piece, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}}}, nil
		})
		wantAnswer(t, out, err, semel.AnswerExecuted)
		if took := time.Since(start); out.Result.Tombstone || took != 12800*time.Millisecond {
			t.Fatalf("tombstone %v after %v", out.Result.Tombstone, took)
		}
	})
}

func TestPiecesAreCounted(t *testing.T) {
	for size, want := range map[int64]int{1: 1, semel.PieceBytes: 1, semel.PieceBytes + 1: 2, 32 << 20: 128, math.MaxInt64: math.MaxInt64/semel.PieceBytes + 1} {
		p := semel.Pieces{Size: size}
		if got := p.Count(); got != want {
			t.Errorf("%d bytes make %d pieces; want %d", size, got, want)
		}
	}
}
