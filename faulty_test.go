package semel_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
)

// faulty is a store whose calls can fail before they take effect, or after it,
// as when the answer is lost.
type faulty struct {
	semel.Store
	before func(call string) error
	after  func(call string) error
}

func (f *faulty) around(call string, do func() error) error {
	if f.before != nil {
		if err := f.before(call); err != nil {
			return err
		}
	}
	err := do()
	if f.after != nil {
		if lost := f.after(call); lost != nil {
			return lost
		}
	}
	return err
}

func (f *faulty) Begin(ctx context.Context, a semel.Attempt) (c semel.Claim, err error) {
	err = f.around("begin", func() error { c, err = f.Store.Begin(ctx, a); return err })
	if err != nil {
		return nil, err
	}
	return &faultyClaim{Claim: c, f: f}, nil
}

func (f *faulty) Find(ctx context.Context, id semel.Identity) (r semel.Record, err error) {
	err = f.around("find", func() error { r, err = f.Store.Find(ctx, id); return err })
	return r, err
}

func (f *faulty) Resolve(ctx context.Context, d semel.Resolution) (r semel.Record, err error) {
	err = f.around("resolve", func() error { r, err = f.Store.(semel.Resolver).Resolve(ctx, d); return err })
	return r, err
}

type faultyClaim struct {
	semel.Claim
	f *faulty
}

func (c *faultyClaim) Complete(ctx context.Context, r semel.Result) (expires time.Time, err error) {
	err = c.f.around("complete", func() error { expires, err = c.Claim.Complete(ctx, r); return err })
	return expires, err
}

func (c *faultyClaim) Release(ctx context.Context) error {
	return c.f.around("release", func() error { return c.Claim.Release(ctx) })
}

func (c *faultyClaim) Hold(ctx context.Context, cause string) error {
	return c.f.around("hold", func() error { return c.Claim.Hold(ctx, cause) })
}

func (c *faultyClaim) Renew(ctx context.Context) error {
	return c.f.around("renew", func() error { return c.Claim.Renew(ctx) })
}

var errDown = errors.New("store down")

// failFor makes calls fail until the time is over.
func failFor(d time.Duration, which ...string) func(string) error {
	end := time.Now().Add(d)
	return func(call string) error {
		for _, w := range which {
			if w == call && time.Now().Before(end) {
				return errDown
			}
		}
		return nil
	}
}

func TestStoreDownFailsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), before: failFor(time.Hour, "begin")}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		// Not "no effect": an earlier submit may have had one, and nobody
		// could look.
		if !errors.Is(err, errDown) || errors.Is(err, semel.ErrNoEffect) || !errors.Is(err, semel.ErrUnavailable) {
			t.Fatalf("told %v", err)
		}
		e.want(t, 0)
		time.Sleep(time.Hour)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		e.want(t, 1)
	})
}

// A claim whose grant was never heard of must not become an unknown record:
// its caller was told that nothing happened.
func TestLostGrantIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), after: failFor(2*time.Second, "begin")}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if _, err := s.Store.Find(t.Context(), submit("k").Identity); err != nil {
			t.Fatalf("the claim was not granted: %v", err)
		}
		time.Sleep(4 * time.Second)
		if _, err := s.Store.Find(t.Context(), submit("k").Identity); !errors.Is(err, semel.ErrNotFound) {
			t.Fatalf("the claim was not released: %v", err)
		}
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		e.want(t, 1)
	})
}

// A takeover whose grant was never heard of must not be released: the attempt
// before it may have had the effect.
func TestLostTakeoverIsNotReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mem := newStore(t)
		stranded(t, mem, submit("k"), time.Second)
		time.Sleep(2 * time.Second)
		takeovers := 0
		s := &faulty{Store: mem, after: func(call string) error {
			if call == "begin" {
				if takeovers++; takeovers > 1 && takeovers < 5 { // the first meets the record
					return errDown
				}
			}
			return nil
		}}
		g := newGuard(t, s, semel.Policy{OnCrash: semel.CrashRetry})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		time.Sleep(10 * time.Second)
		if r, err := mem.Find(t.Context(), submit("k").Identity); err != nil || r.State != semel.StateInProgress {
			t.Fatalf("the record reads %+v, %v", r, err)
		}
		time.Sleep(10 * time.Second)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
	})
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

// Nor does one who does so where others would be settled by a look-up.
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

// The store's lease began when it granted or renewed the claim, which was before
// its answer came.
func TestLeaseIsCountedFromTheCall(t *testing.T) {
	for _, slow := range []string{"begin", "renew"} {
		bubble(t, func(t *testing.T) {
			const lease, takes = 15 * time.Second, 4 * time.Second
			var granted time.Time
			s := &faulty{Store: newStore(t)}
			s.after = func(call string) error {
				if call == slow {
					granted = time.Now()
					time.Sleep(takes)
				}
				return nil
			}
			renewals := 0
			s.before = func(call string) error {
				if call == "renew" {
					if renewals++; slow == "begin" || renewals > 1 {
						return errDown
					}
				}
				return nil
			}
			g := newGuard(t, s, semel.Policy{Lease: lease})
			_, _ = g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
				<-ctx.Done()
				if at := time.Since(granted); at > lease {
					t.Errorf("slow %s: cancelled %v after the store had granted %v", slow, at, lease)
				}
				return semel.Result{}, ctx.Err()
			})
			if err := g.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A drain does not wait a whole lease for a grant whose answer was lost.
func TestDrainGivesUpLostGrants(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), after: failFor(time.Hour, "begin")}
		g := newGuard(t, s, semel.Policy{Lease: time.Hour, StoreTimeout: time.Second})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		start := time.Now()
		if err := g.Drain(t.Context()); err != nil || time.Since(start) > 2*time.Second {
			t.Fatalf("drained after %v: %v", time.Since(start), err)
		}
	})
}

// The claim is settled while its renewal is on the way: what that finds is not a
// lost lease.
func TestSettledClaimIsNotALostLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lost := 0
		s := &faulty{Store: newStore(t)}
		s.before = func(call string) error {
			if call == "renew" {
				time.Sleep(3 * time.Second) // until the record is completed
			}
			return nil
		}
		g, err := semel.New(semel.Config{Store: s, Observer: &semel.Observer{
			LeaseLost: func(context.Context, semel.LeaseLost) { lost++ },
		}})
		if err != nil {
			t.Fatal(err)
		}
		var e effects
		out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			time.Sleep(6 * time.Second)
			return e.do(ctx)
		})
		wantAnswer(t, out, err, semel.AnswerExecuted)
		if err := g.Drain(t.Context()); err != nil || lost != 0 {
			t.Fatalf("%d leases lost, %v", lost, err)
		}
	})
}

// A look-up that found nothing, after the settling time, does.
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

func TestLostGrantIsAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lost := 0
		s := &faulty{Store: newStore(t), after: func(call string) error {
			if call == "begin" && lost < 2 {
				lost++
				return errDown
			}
			return nil
		}}
		var e effects
		out, err := newGuard(t, s, semel.Policy{}).Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		e.want(t, 1)
	})
}

// An outage under load must not pile up goroutines.
func TestLostGrantsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls atomic.Int64
		s := &faulty{Store: newStore(t), before: func(string) error {
			calls.Add(1)
			return errDown
		}}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if _, err := g.Do(t.Context(), submit(fmt.Sprint("k", i)), e.do); !errors.Is(err, semel.ErrUnavailable) {
					t.Errorf("told %v", err)
				}
			})
		}
		wg.Wait()
		calls.Store(0)
		time.Sleep(time.Hour)
		if n := calls.Load(); n == 0 || n > 256*25 {
			t.Fatalf("%d calls of a store that is down", n)
		}
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
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

// A store that is not open is asked once, and no grant of it is pursued.
func TestClosedStoreIsAskedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		calls := map[string]int{}
		closed := false
		s := &faulty{Store: newStore(t)}
		s.before = func(call string) error {
			if calls[call]++; closed {
				return fmt.Errorf("closed: %w", semel.ErrNotOpen)
			}
			return nil
		}
		g := newGuard(t, s, semel.Policy{})
		start := time.Now()
		out, err := g.Do(t.Context(), submit("during"), func(context.Context) (semel.Result, error) {
			closed = true
			return semel.Result{}, nil
		})
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if !out.Claimed || errors.Is(err, semel.ErrNoEffect) {
			t.Errorf("told %v", err)
		}
		out, err = g.Do(t.Context(), submit("after"), func(context.Context) (semel.Result, error) {
			t.Error("executed")
			return semel.Result{}, nil
		})
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if err := g.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if calls["begin"] != 2 || calls["complete"] != 1 || time.Since(start) > 0 {
			t.Errorf("called %v in %v", calls, time.Since(start))
		}
	})
}

// Bug 12: renewals that fail must not be swallowed. Losing the lease cancels
// the work.
func TestFailedRenewalsCancelTheWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), before: failFor(time.Hour, "renew")}
		g := newGuard(t, s, semel.Policy{Lease: 15 * time.Second})
		start := time.Now()
		_, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), semel.ErrLeaseLapsed) || time.Since(start) > 15*time.Second {
				t.Errorf("cancelled by %v after %v", context.Cause(ctx), time.Since(start))
			}
			return semel.Result{}, ctx.Err()
		})
		if !errors.Is(err, semel.ErrUnknown) {
			t.Fatalf("told %v", err)
		}
	})
}

func TestOneFailedRenewalIsSurvived(t *testing.T) {
	bubble(t, func(t *testing.T) {
		failures := 0
		s := &faulty{Store: newStore(t), before: func(call string) error {
			if call == "renew" && failures < 3 {
				failures++
				return errDown
			}
			return nil
		}}
		g := newGuard(t, s, semel.Policy{OnCrash: semel.CrashRetry})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), func(ctx context.Context) (semel.Result, error) {
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Errorf("cancelled by %v", context.Cause(ctx))
			}
			return e.do(ctx)
		})
		wantAnswer(t, out, err, semel.AnswerExecuted)
		if failures != 3 {
			t.Fatalf("%d renewals failed", failures)
		}
	})
}

// Bug 7: an owner that lost its claim can neither overwrite the new owner's
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

// Each call of the store in turn fails, before or after it took effect, until
// a run has none left to fail. Whatever fails: never two effects, an answer
// that says "executed" is on record, and one that says "no effect" had none.
func TestEveryFaultPoint(t *testing.T) {
	for _, work := range []string{"effect", "no effect", "final"} {
		for _, policy := range []semel.CrashPolicy{semel.CrashHold, semel.CrashRetry} {
			for _, applied := range []bool{false, true} {
				for _, long := range []bool{false, true} {
					for n := 1; ; n++ {
						hit := false
						bubble(t, func(t *testing.T) {
							hit = faultAt(t, n, work, policy, applied, long)
						})
						if !hit {
							if n < 3 {
								t.Fatalf("only %d fault points", n-1)
							}
							break
						}
					}
				}
			}
		}
	}
}

func faultAt(t *testing.T, n int, work string, policy semel.CrashPolicy, applied, long bool) (hit bool) {
	name := fmt.Sprintf("fault %d (%s, applied %v, long %v, %v)", n, work, applied, long, policy)
	calls := 0
	var end time.Time
	var mu sync.Mutex
	fail := func(call string) error {
		mu.Lock()
		defer mu.Unlock()
		if !end.IsZero() {
			if time.Now().Before(end) {
				return fmt.Errorf("%s: %w", call, errDown)
			}
			return nil
		}
		if calls++; calls == n {
			hit = true
			end = time.Now()
			if long {
				end = end.Add(40 * time.Second)
			}
			return fmt.Errorf("%s: %w", call, errDown)
		}
		return nil
	}
	mem := newStore(t)
	s := &faulty{Store: mem}
	if applied {
		s.after = fail
	} else {
		s.before = fail
	}
	g := newGuard(t, s, semel.Policy{OnCrash: policy})
	var e effects
	fn := func(ctx context.Context) (semel.Result, error) {
		time.Sleep(12 * time.Second)
		switch {
		case ctx.Err() != nil:
			return semel.Result{}, ctx.Err()
		case work == "no effect":
			return semel.Result{}, semel.NoEffect(errors.New("busy"))
		}
		r, _ := e.do(ctx)
		if work == "final" {
			return semel.Result{}, semel.Final(errors.New("declined"))
		}
		return r, nil
	}
	var acknowledged bool
	released := int64(-1) // effects when a submit was last told that there was none
	rounds := 60
	if work == "no effect" {
		rounds = 8 // each of which claims anew
	}
	for range rounds {
		out, err := g.Do(t.Context(), submit("k"), fn)
		now := e.n.Load()
		switch {
		case out.Answer == semel.AnswerExecuted:
			acknowledged = true
			if r, err := mem.Find(t.Context(), submit("k").Identity); err != nil || r.State != semel.StateCompleted {
				t.Fatalf("%s: executed, but the record reads %+v, %v", name, r, err)
			}
		case errors.Is(err, semel.ErrNoEffect):
			if now != 0 {
				t.Fatalf("%s: told %v after an effect", name, err)
			}
			released = now
		}
		if work == "no effect" && out.Answer == semel.AnswerReleased {
			// The key is free: the same request may have its effect now, once.
			if r, err := mem.Find(t.Context(), submit("k").Identity); err == nil && r.State == semel.StateCompleted {
				t.Fatalf("%s: released, but the record reads %+v", name, r)
			}
		}
		time.Sleep(3 * time.Second)
	}
	if work == "no effect" {
		mu.Lock()
		calls = n // no more faults
		mu.Unlock()
		time.Sleep(time.Minute) // the last may have been the one that failed
		_, _ = g.Do(t.Context(), submit("k"), fn)
	}
	// Whatever a submit that was told "no effect" set in motion has had the time
	// to come true.
	if now := e.n.Load(); released >= 0 && work == "no effect" && now != released {
		t.Fatalf("%s: %d effects after the answer that there was none", name, now-released)
	}
	if got := e.n.Load(); got > 1 && policy == semel.CrashHold {
		t.Fatalf("%s: %d effects under hold", name, got)
	}
	if err := g.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := mem.Find(t.Context(), submit("k").Identity)
	if work == "no effect" && errors.Is(err, semel.ErrNotFound) {
		return hit
	}
	if err != nil || r.Lapsed() || r.State == semel.StateInProgress {
		t.Fatalf("%s: stuck with %+v, %v", name, r, err)
	}
	if policy == semel.CrashRetry && work != "no effect" && r.State != semel.StateCompleted {
		t.Fatalf("%s: under retry the record ends as %v", name, r.State)
	}
	if acknowledged && r.State != semel.StateCompleted {
		t.Fatalf("%s: an acknowledged effect is gone", name)
	}
	return hit
}
