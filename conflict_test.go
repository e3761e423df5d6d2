package semel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

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

// A mismatch must be reported in every state, and must change nothing.
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

// An attempt that took over and had no effect itself cannot speak for the one
// before it.
func TestNoEffectAfterTakeoverIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		stranded(t, s, submit("k"), time.Second)
		time.Sleep(2 * time.Second)
		g := newGuard(t, s, semel.Policy{OnCrash: semel.CrashRetry})
		out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
			return semel.Result{}, semel.NoEffect(errors.New("busy"))
		})
		wantAnswer(t, out, err, semel.AnswerUnknown)
		other := submit("k")
		other.Fingerprint = semel.FingerprintOf([]byte("another request"))
		var e effects
		out, err = g.Do(t.Context(), other, e.do)
		wantAnswer(t, out, err, semel.AnswerMismatch)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		e.want(t, 1)
	})
}

// An operator who decides "execute again" does not vouch for the attempt before.
func TestNoEffectAfterExecuteAgainIsUnknown(t *testing.T) {
	for _, policy := range []semel.CrashPolicy{semel.CrashHold, semel.CrashRetry} {
		s := newStore(t)
		c := stranded(t, s, submit("k"), time.Minute)
		if err := c.Hold(t.Context(), "lost contact"); err != nil {
			t.Fatal(err)
		}
		g := newGuard(t, s, semel.Policy{OnCrash: policy})
		if _, err := g.Resolve(t.Context(), semel.Resolution{
			Identity: submit("k").Identity, Fence: c.Fence(), Decision: semel.DecideExecuteAgain,
		}); err != nil {
			t.Fatal(err)
		}
		out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
			return semel.Result{}, semel.NoEffect(errors.New("busy"))
		})
		wantAnswer(t, out, err, semel.AnswerUnknown)
	}
}

// Nor does an execute-again attempt under the policy reconcile.
func TestNoEffectAfterExecuteAgainUnderReconcileIsUnknown(t *testing.T) {
	s := newStore(t)
	c := stranded(t, s, submit("k"), time.Minute)
	if err := c.Hold(t.Context(), "lost contact"); err != nil {
		t.Fatal(err)
	}
	g := newGuard(t, s, semel.Policy{
		OnCrash: semel.CrashReconcile, SettleAfter: time.Hour,
		Reconcile: func(context.Context, semel.Record) (semel.Finding, error) { return semel.FoundUndecided(), nil },
	})
	if _, err := g.Resolve(t.Context(), semel.Resolution{
		Identity: submit("k").Identity, Fence: c.Fence(), Decision: semel.DecideExecuteAgain,
	}); err != nil {
		t.Fatal(err)
	}
	out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
		return semel.Result{}, semel.NoEffect(errors.New("busy"))
	})
	wantAnswer(t, out, err, semel.AnswerUnknown)
}

func TestReconcileIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		stranded(t, s, submit("k"), time.Second)
		time.Sleep(time.Hour)
		g := newGuard(t, s, semel.Policy{
			Lease: 20 * time.Second, OnCrash: semel.CrashReconcile, SettleAfter: time.Minute,
			Reconcile: func(ctx context.Context, _ semel.Record) (semel.Finding, error) {
				<-ctx.Done()
				return semel.FoundAbsent(), ctx.Err()
			},
		})
		start := time.Now()
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnknown)
		if took := time.Since(start); took != 20*time.Second {
			t.Fatalf("a look-up that hangs took %v", took)
		}
		e.want(t, 0)
	})
}

// A record that cannot be marked unknown is still its owner's, who may complete
// it: nobody has to resolve it.
func TestLapsedRecordThatCannotBeMarkedIsUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := newStore(t)
		owner := stranded(t, mem, submit("k"), time.Second)
		time.Sleep(time.Minute)
		s := &faulty{Store: mem, before: failFor(time.Minute, "resolve")}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if ee, _ := errors.AsType[*semel.Error](err); ee.Retry() != semel.RetrySameKey || out.Claimed {
			t.Fatalf("told %v", err)
		}
		if _, err := owner.Complete(t.Context(), semel.Result{Codec: "test/1"}); err != nil {
			t.Fatal(err)
		}
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerReplayed)
	})
}

// A look-up that found nothing after the settling time does free the key.
func TestNoEffectAfterReconcileIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		stranded(t, s, submit("k"), time.Second)
		time.Sleep(time.Hour)
		g := newGuard(t, s, semel.Policy{
			OnCrash: semel.CrashReconcile, SettleAfter: time.Minute,
			Reconcile: func(context.Context, semel.Record) (semel.Finding, error) { return semel.FoundAbsent(), nil },
		})
		out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
			return semel.Result{}, semel.NoEffect(errors.New("busy"))
		})
		wantAnswer(t, out, err, semel.AnswerReleased)
	})
}

// Mark, then look: an owner that comes back while somebody looks finds that it
// cannot go on.
func TestReconcileMarksBeforeItLooks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		owner := stranded(t, s, submit("k"), time.Second)
		time.Sleep(time.Hour)
		g := newGuard(t, s, semel.Policy{
			OnCrash: semel.CrashReconcile, SettleAfter: time.Minute,
			Reconcile: func(context.Context, semel.Record) (semel.Finding, error) {
				if err := owner.Renew(t.Context()); !errors.Is(err, semel.ErrLostClaim) {
					t.Errorf("the owner renewed its claim while somebody looked: %v", err)
				}
				return semel.FoundAbsent(), nil
			},
		})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
	})
}
