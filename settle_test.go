package semel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
)

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

// A rollback takes back what this attempt did, not what one before it did.
func TestRolledBackAfterTakeoverIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := newStore(t)
		stranded(t, mem, submit("k"), time.Second)
		time.Sleep(2 * time.Second)
		s := &faulty{Store: mem, before: func(call string) error {
			if call == "complete" {
				return semel.ErrRolledBack
			}
			return nil
		}}
		var e effects
		out, err := newGuard(t, s, semel.Policy{OnCrash: semel.CrashRetry}).Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnknown)
	})
}

// A claim lost to another owner is not "no effect", whatever this one did.
func TestReleaseOfALostClaimIsToldFromTheRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := newStore(t)
		s := &faulty{Store: mem, before: failFor(time.Hour, "renew")}
		g := newGuard(t, s, semel.Policy{})
		out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			time.Sleep(16 * time.Second)
			x, _ := semel.CurrentExecution(ctx)
			a := semel.NewAttempt(submit("k").Identity, submit("k").Fingerprint, time.Minute, time.Hour)
			a.Takeover = x.Fence()
			c, err := mem.Begin(t.Context(), a)
			if err != nil {
				t.Error(err)
				return semel.Result{}, err
			}
			if _, err := c.Complete(t.Context(), semel.Result{Body: []byte("another's")}); err != nil {
				t.Error(err)
			}
			return semel.Result{}, semel.NoEffect(errors.New("not by me"))
		})
		wantAnswer(t, out, err, semel.AnswerReplayed)
		if string(out.Result.Body) != "another's" {
			t.Fatalf("answered %q", out.Result.Body)
		}
	})
}

// While the record cannot be written, the owner keeps renewing
// and retrying.
func TestRecordWrittenWhenTheStoreReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), before: failFor(12*time.Second, "complete")}
		g := newGuard(t, s, semel.Policy{Lease: 15 * time.Second})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerReplayed)
		e.want(t, 1)
	})
}

// Unknown is only told when it is on record: here the record may still turn out
// completed, with nobody's help.
func TestRecordThatCannotBeWrittenIsNotToldAsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), before: failFor(time.Minute, "complete", "hold", "renew", "find")}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if ee, _ := errors.AsType[*semel.Error](err); ee.Retry() != semel.RetrySameKey || !ee.Claimed || !out.Claimed ||
			!errors.Is(err, errDown) || !errors.Is(err, semel.ErrMaybeEffect) {
			t.Fatalf("told %v", err)
		}
		out, err = g.Do(t.Context(), submit("h"), func(context.Context) (semel.Result, error) { return semel.Result{}, errors.New("cut off") })
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		time.Sleep(time.Minute)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnknown)
		e.want(t, 1)
	})
}

func TestLostAnswersOfCompleteAndRelease(t *testing.T) {
	for _, call := range []string{"complete", "release", "hold"} {
		bubble(t, func(t *testing.T) {
			lost := false
			s := &faulty{Store: newStore(t), after: func(c string) error {
				if c == call && !lost {
					lost = true
					return errDown
				}
				return nil
			}}
			g := newGuard(t, s, semel.Policy{})
			var e effects
			out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
				switch call {
				case "release":
					return semel.Result{}, semel.NoEffect(nil)
				case "hold":
					return semel.Result{}, errDown
				}
				return e.do(ctx)
			})
			want := map[string]semel.Answer{"complete": semel.AnswerExecuted, "release": semel.AnswerReleased, "hold": semel.AnswerUnknown}[call]
			wantAnswer(t, out, err, want)
			if !lost {
				t.Fatalf("%s was never called", call)
			}
		})
	}
}

// A result that the store cannot take is no reason to lose the outcome.
func TestResultTooLargeForTheStoreLeavesATombstone(t *testing.T) {
	mem := newStore(t)
	calls := 0
	s := &faulty{Store: mem, before: func(call string) error {
		if call == "complete" {
			if calls++; calls == 1 {
				return semel.ErrTooLarge
			}
		}
		return nil
	}}
	g := newGuard(t, s, semel.Policy{})
	for _, want := range []semel.Answer{semel.AnswerExecuted, semel.AnswerReplayed} {
		out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
			return semel.Result{Codec: "test/1", Body: []byte("large"), Label: "201", Reference: "/orders/1"}, nil
		})
		wantAnswer(t, out, err, want)
		if r := out.Result; !r.Tombstone || len(r.Body) > 0 || r.Reference != "/orders/1" || r.Label != "201" {
			t.Fatalf("%v with %+v", out.Answer, r)
		}
	}
}

// A claim that lives in a transaction: what a rollback makes certain is told as
// no effect, whatever the handler said.
func TestRolledBackIsNoEffect(t *testing.T) {
	for _, c := range []struct {
		call string
		fn   func(context.Context) (semel.Result, error)
	}{
		{"complete", func(context.Context) (semel.Result, error) { return semel.Result{}, nil }},
		{"complete", func(context.Context) (semel.Result, error) {
			return semel.Result{}, semel.Final(errors.New("declined"))
		}},
		{"hold", func(context.Context) (semel.Result, error) { return semel.Result{}, errors.New("deadlock") }},
		{"hold", func(context.Context) (semel.Result, error) { panic("gone") }},
		{"hold", func(context.Context) (semel.Result, error) { time.Sleep(time.Hour); return semel.Result{}, nil }},
	} {
		bubble(t, func(t *testing.T) {
			lost := false
			s := &faulty{Store: newStore(t)}
			s.before = func(call string) error {
				switch {
				case call != c.call:
					return nil
				case !lost: // the answer of the first try is lost
					lost = true
					return errDown
				}
				return semel.ErrRolledBack
			}
			g := newGuard(t, s, semel.Policy{})
			out, err := g.Do(t.Context(), detached("k"), c.fn)
			wantAnswer(t, out, err, semel.AnswerReleased)
			if !errors.Is(err, semel.ErrRolledBack) || !errors.Is(err, semel.ErrNoEffect) {
				t.Fatalf("told %v", err)
			}
			if err := g.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// transactional is a store whose claims live in transactions, as far as the guard
// can see.
type transactional struct{ *faulty }

func (s transactional) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.faulty.Begin(ctx, a)
	return transactionalClaim{c}, err
}

type transactionalClaim struct{ semel.Claim }

func (transactionalClaim) Transactional() bool { return true }

// A transaction whose result cannot be recorded is not left alone with its locks:
// what the store makes of it then is what is told.
func TestTransactionThatCannotBeCompletedIsRolledBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		hold   error
		answer semel.Answer
	}{
		{"rolled back", semel.ErrRolledBack, semel.AnswerReleased},
		{"committed after all", semel.ErrLostClaim, semel.AnswerReplayed},
		{"ended by its handler", nil, semel.AnswerUnknown},
		{"the store is silent", errDown, semel.AnswerUnavailable},
	} {
		bubble(t, func(t *testing.T) {
			s := &faulty{Store: newStore(t)}
			held := 0
			s.before = func(call string) error {
				switch {
				case call == "hold":
					held++
					return c.hold
				case call == "complete" && c.answer != semel.AnswerReplayed:
					return errDown
				}
				return nil
			}
			s.after = func(call string) error {
				if call == "complete" { // the answer is lost
					return errDown
				}
				return nil
			}
			start := time.Now()
			out, err := newGuard(t, transactional{s}, semel.Policy{}).Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
				return semel.Result{}, nil
			})
			if out.Answer != c.answer || !out.Claimed || held != 1 || time.Since(start) > 15*time.Second {
				t.Errorf("%s: %v, %v, after %d holds and %v", c.name, out.Answer, err, held, time.Since(start))
			}
			if c.answer == semel.AnswerReleased && (!errors.Is(err, semel.ErrNoEffect) || !errors.Is(err, errDown)) {
				t.Errorf("%s: told %v", c.name, err)
			}
		})
	}
}

// A key that could not be freed is not said to be free: its record becomes unknown.
func TestReleaseThatFailsIsNotToldAsReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), before: failFor(time.Minute, "release", "renew")}
		g := newGuard(t, s, semel.Policy{})
		declined := errors.New("declined")
		decline := func(context.Context) (semel.Result, error) { return semel.Result{}, semel.NoEffect(declined) }
		out, err := g.Do(t.Context(), submit("k"), decline)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if !out.Claimed || !errors.Is(err, declined) || !errors.Is(err, errDown) || errors.Is(err, semel.ErrNoEffect) {
			t.Errorf("told %v", err)
		}
		time.Sleep(time.Minute)
		out, err = g.Do(t.Context(), submit("k"), decline)
		wantAnswer(t, out, err, semel.AnswerUnknown)

		// A transaction has no record before its end, and nothing was committed.
		s.before = failFor(time.Minute, "release", "renew")
		out, err = newGuard(t, transactional{s}, semel.Policy{}).Do(t.Context(), submit("t"), decline)
		wantAnswer(t, out, err, semel.AnswerReleased)
		if !errors.Is(err, errDown) {
			t.Errorf("told %v", err)
		}
	})
}

// An owner that lost its claim can neither overwrite the new owner's
// result nor free its claim, and its caller is told what is on record.
func TestZombieIsToldWhatIsOnRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := newStore(t)
		cutOff := &faulty{Store: mem, before: failFor(30*time.Second, "renew")}
		g1 := newGuard(t, cutOff, semel.Policy{OnCrash: semel.CrashRetry})
		g2 := newGuard(t, mem, semel.Policy{OnCrash: semel.CrashRetry})
		type answer struct {
			out semel.Outcome
			err error
		}
		zombie := make(chan answer, 1)
		go func() {
			out, err := g1.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
				time.Sleep(25 * time.Second) // ignores that its lease has lapsed
				return semel.Result{Body: []byte("zombie")}, nil
			})
			zombie <- answer{out, err}
		}()
		synctest.Wait()
		time.Sleep(16 * time.Second)
		out, err := g2.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
			return semel.Result{Body: []byte("owner")}, nil
		})
		wantAnswer(t, out, err, semel.AnswerExecuted)
		z := <-zombie
		wantAnswer(t, z.out, z.err, semel.AnswerReplayed)
		if string(z.out.Result.Body) != "owner" {
			t.Fatalf("the zombie's caller got %q", z.out.Result.Body)
		}
	})
}

// A zombie whose record was resolved as "no effect" must not be answered from
// what another request has put in its place.
func TestZombieIsNotAnsweredFromAnotherRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := newStore(t)
		s := &faulty{Store: mem, before: failFor(time.Hour, "renew")}
		g := newGuard(t, s, semel.Policy{})
		out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			x, _ := semel.CurrentExecution(ctx)
			time.Sleep(time.Minute)
			for _, d := range []semel.Decision{semel.DecideUnknown, semel.DecideNoEffect} {
				if _, err := mem.Resolve(t.Context(), semel.Resolution{Identity: x.Identity(), Fence: x.Fence(), Decision: d}); err != nil {
					t.Error(err)
				}
			}
			other := submit("k")
			other.Fingerprint = semel.FingerprintOf([]byte("another"))
			if _, err := newGuard(t, mem, semel.Policy{}).Do(t.Context(), other, func(context.Context) (semel.Result, error) {
				return semel.Result{Body: []byte("another's")}, nil
			}); err != nil {
				t.Error(err)
			}
			return semel.Result{Body: []byte("zombie")}, nil
		})
		wantAnswer(t, out, err, semel.AnswerUnknown)
		if len(out.Result.Body) != 0 || !errors.Is(err, semel.ErrLostClaim) {
			t.Fatalf("told %q, %v", out.Result.Body, err)
		}
	})
}
