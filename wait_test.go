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
	"github.com/semelhq/semel/store/memory"
)

func waiting(key string, wait time.Duration) semel.Submit {
	s := submit(key)
	s.Wait = wait
	return s
}

// slow is an effect that takes a time.
func (e *effects) slow(d time.Duration) func(context.Context) (semel.Result, error) {
	return func(ctx context.Context) (semel.Result, error) {
		time.Sleep(d)
		return e.do(ctx)
	}
}

func TestWaitingDuplicatesAreAnsweredAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{})
		var e effects
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() {
			out, err := g.Do(t.Context(), submit("k"), e.slow(7*time.Second))
			wantAnswer(t, out, err, semel.AnswerExecuted)
		})
		synctest.Wait()
		for range 16 {
			wg.Go(func() {
				out, err := g.Do(t.Context(), waiting("k", 30*time.Second), e.do)
				wantAnswer(t, out, err, semel.AnswerReplayed)
				if string(out.Result.Body) != "effect 1" {
					t.Errorf("replayed %q", out.Result.Body)
				}
				if took := time.Since(start); took != 7*time.Second {
					t.Errorf("answered after %v; the owner was done after 7 s", took)
				}
			})
		}
		wg.Wait()
		e.want(t, 1)
	})
}

// blind hides what happens through one guard from the others, as processes do.
type blind struct{ *memory.Store }

// Two guards share no memory, so the second finds out by looking.
func TestWaitAcrossProcesses(t *testing.T) {
	// Each time the owner is done at another point of a pause.
	for done := 7 * time.Second; done < 8*time.Second; done += 7 * time.Millisecond {
		bubble(t, func(t *testing.T) {
			s := newStore(t)
			g1, g2 := newGuard(t, s, semel.Policy{}), newGuard(t, blind{s}, semel.Policy{})
			var e effects
			go func() { _, _ = g1.Do(t.Context(), submit("k"), e.slow(done)) }()
			synctest.Wait()
			start := time.Now()
			out, err := g2.Do(t.Context(), waiting("k", 30*time.Second), e.do)
			wantAnswer(t, out, err, semel.AnswerReplayed)
			if took := time.Since(start); took < done || took > done+500*time.Millisecond {
				t.Fatalf("answered after %v; the owner was done after %v", took, done)
			}
			e.want(t, 1)
		})
	}
}

func TestWaitEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{})
		var e effects
		go func() { _, _ = g.Do(t.Context(), submit("k"), e.slow(time.Minute)) }()
		synctest.Wait()
		start := time.Now()
		out, err := g.Do(t.Context(), waiting("k", 3*time.Second), e.do)
		wantAnswer(t, out, err, semel.AnswerInProgress)
		if took := time.Since(start); took != 3*time.Second {
			t.Fatalf("answered after %v; the wait was 3 s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		out, err = g.Do(ctx, waiting("k", 30*time.Second), e.do)
		wantAnswer(t, out, err, semel.AnswerInProgress)
		if took := time.Since(start); took != 4*time.Second {
			t.Fatalf("answered %v after the caller had gone", took-4*time.Second)
		}
		// A mismatch is no reason to wait.
		other := waiting("k", time.Hour)
		other.Fingerprint = semel.FingerprintOf([]byte("another request"))
		out, err = g.Do(t.Context(), other, e.do)
		wantAnswer(t, out, err, semel.AnswerMismatch)
		if time.Since(start) != 4*time.Second {
			t.Fatal("a mismatch waited")
		}
		time.Sleep(time.Minute)
		e.want(t, 1)
	})
}

// The one that waited longest executes when the owner had no effect; the rest
// wait for that.
func TestWaitersTakeOverFromARelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{})
		var e effects
		var executed, replayed atomic.Int64
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() {
			out, err := g.Do(t.Context(), submit("k"), func(context.Context) (semel.Result, error) {
				time.Sleep(time.Second)
				return semel.Result{}, semel.NoEffect(errors.New("refused"))
			})
			wantAnswer(t, out, err, semel.AnswerReleased)
		})
		synctest.Wait()
		for range 10 {
			wg.Go(func() {
				out, err := g.Do(t.Context(), waiting("k", 30*time.Second), func(ctx context.Context) (semel.Result, error) {
					if at := time.Since(start); at < time.Second || at > 2*time.Second {
						t.Errorf("a waiter executes after %v; the first was released after 1 s", at)
					}
					return e.slow(time.Second)(ctx)
				})
				if at := time.Since(start); at < 2*time.Second || at > 3*time.Second {
					t.Errorf("a waiter is answered %v after %v; the second execution ended a second after its begin", out.Answer, at)
				}
				switch {
				case err == nil && out.Answer == semel.AnswerExecuted:
					executed.Add(1)
				case err == nil && out.Answer == semel.AnswerReplayed:
					replayed.Add(1)
				default:
					t.Errorf("answer %v: %v", out.Answer, err)
				}
			})
		}
		wg.Wait()
		if executed.Load() != 1 || replayed.Load() != 9 {
			t.Fatalf("%d executed, %d replayed", executed.Load(), replayed.Load())
		}
		e.want(t, 1)
	})
}

// A waiter whose owner dies is answered right within the lease and a second.
func TestOwnerDiesWhileOthersWait(t *testing.T) {
	for _, c := range []struct {
		policy semel.Policy
		want   semel.Answer
	}{
		{semel.Policy{}, semel.AnswerUnknown},
		{semel.Policy{OnCrash: semel.CrashRetry}, semel.AnswerExecuted},
	} {
		t.Run(c.policy.OnCrash.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore(t)
				g := newGuard(t, s, c.policy)
				stranded(t, s, submit("k"), 10*time.Second)
				var e effects
				start := time.Now()
				out, err := g.Do(t.Context(), waiting("k", time.Minute), e.do)
				wantAnswer(t, out, err, c.want)
				if took := time.Since(start); took < 10*time.Second || took > 11*time.Second {
					t.Fatalf("answered after %v; the lease was 10 s", took)
				}
			})
		})
	}
}

func TestWaitersAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g, err := semel.New(semel.Config{Store: newStore(t), Policy: semel.Policy{MaxWaiters: 3}, MaxWaiters: 5, MaxTenantWaiters: 5})
		if err != nil {
			t.Fatal(err)
		}
		var e effects
		for _, key := range []string{"a", "b"} {
			go func() { _, _ = g.Do(t.Context(), submit(key), e.slow(time.Minute)) }()
		}
		synctest.Wait()
		start := time.Now()
		var waited, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range 10 {
			key := "a" // five come first, for three seats
			if i >= 5 {
				key = "b"
			}
			if i == 5 {
				synctest.Wait()
				if n := refused.Load(); n != 2 {
					t.Errorf("%d of 5 for one key were refused; it has 3 seats", n)
				}
			}
			wg.Go(func() {
				out, err := g.Do(t.Context(), waiting(key, time.Hour), e.do)
				switch {
				case errors.Is(err, semel.ErrInProgress) && time.Since(start) == 0:
					refused.Add(1)
				case out.Answer == semel.AnswerReplayed && time.Since(start) == time.Minute:
					waited.Add(1)
				default:
					t.Errorf("answer %v after %v: %v", out.Answer, time.Since(start), err)
				}
			})
		}
		wg.Wait()
		if waited.Load() != 5 || refused.Load() != 5 {
			t.Fatalf("%d waited and %d were refused; 5 seats", waited.Load(), refused.Load())
		}
		// The seats are free again.
		go func() { _, _ = g.Do(t.Context(), submit("c"), e.slow(time.Second)) }()
		synctest.Wait()
		out, err := g.Do(t.Context(), waiting("c", time.Hour), e.do)
		wantAnswer(t, out, err, semel.AnswerReplayed)
	})
}

func TestDrainAnswersWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), semel.Policy{})
		var e effects
		go func() { _, _ = g.Do(t.Context(), submit("k"), e.slow(time.Minute)) }()
		synctest.Wait()
		answered := make(chan error, 1)
		start := time.Now()
		go func() {
			_, err := g.Do(t.Context(), waiting("k", time.Hour), e.do)
			if time.Since(start) > time.Second {
				err = fmt.Errorf("answered after %v: %w", time.Since(start), err)
			}
			answered <- err
		}()
		synctest.Wait()
		if err := g.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != time.Minute {
			t.Fatalf("drained after %v; the owner needed a minute", took)
		}
		if err := <-answered; !errors.Is(err, semel.ErrInProgress) {
			t.Fatal(err)
		}
		e.want(t, 1)
	})
}

// tardy completes the record in the way just after a submit has met it.
type tardy struct {
	*memory.Store
	owner semel.Claim
}

func (s *tardy) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if err != nil && s.owner != nil {
		if _, e := s.owner.Complete(ctx, semel.Result{Codec: "test/1"}); e != nil {
			return nil, e
		}
		s.owner = nil
	}
	return c, err
}

// What changed before anybody listened is seen at the first look.
func TestNoWakeIsMissed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &tardy{Store: newStore(t)}
		s.owner = stranded(t, s.Store, submit("k"), time.Hour)
		start := time.Now()
		out, err := newGuard(t, s, semel.Policy{}).Do(t.Context(), waiting("k", time.Minute), nil)
		wantAnswer(t, out, err, semel.AnswerReplayed)
		if took := time.Since(start); took != 0 {
			t.Fatalf("answered after %v", took)
		}
	})
}

// hidden is a store whose records in progress cannot be seen, like those of an
// uncommitted transaction.
type hidden struct {
	*memory.Store
	begun atomic.Int64
}

func (h *hidden) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	h.begun.Add(1)
	c, err := h.Store.Begin(ctx, a)
	if conflict, ok := errors.AsType[*semel.ConflictError](err); ok && conflict.Record.State == semel.StateInProgress {
		return nil, &semel.ConflictError{Record: semel.Record{Identity: a.Identity, State: semel.StateInProgress, Lease: time.Second}}
	}
	return c, err
}

func (h *hidden) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	r, err := h.Store.Find(ctx, id)
	if r.State == semel.StateInProgress {
		return semel.Record{}, semel.ErrNotFound
	}
	return r, err
}

func TestWaitForARecordThatCannotBeSeen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &hidden{Store: newStore(t)}
		g, g2 := newGuard(t, s, semel.Policy{}), newGuard(t, s, semel.Policy{})
		var e effects
		go func() { _, _ = g.Do(t.Context(), submit("k"), e.slow(10*time.Second)) }()
		synctest.Wait()
		out, err := g2.Do(t.Context(), waiting("k", time.Minute), e.do)
		wantAnswer(t, out, err, semel.AnswerReplayed)
		if n := s.begun.Load(); n > 50 {
			t.Fatalf("the store was asked %d times in 10 s", n)
		}
		e.want(t, 1)
	})
}

// outage is a store whose look-ups fail while down.
type outage struct {
	*memory.Store
	down atomic.Bool
}

func (o *outage) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	if o.down.Load() {
		return semel.Record{}, errors.New("down")
	}
	return o.Store.Find(ctx, id)
}

func TestWaitOutlastsAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &outage{Store: newStore(t)}
		g, g2 := newGuard(t, s, semel.Policy{}), newGuard(t, s, semel.Policy{})
		var e effects
		go func() { _, _ = g.Do(t.Context(), submit("k"), e.slow(4*time.Second)) }()
		synctest.Wait()
		time.AfterFunc(time.Second, func() { s.down.Store(true) })
		time.AfterFunc(6*time.Second, func() { s.down.Store(false) })
		out, err := g2.Do(t.Context(), waiting("k", time.Minute), e.do)
		wantAnswer(t, out, err, semel.AnswerReplayed)
	})
}

// watched tells of changes, so that nobody has to look.
type watched struct {
	*outage
	changes chan struct{}
	stopped atomic.Int64
}

func (w *watched) Watch(semel.Identity) (<-chan struct{}, func()) {
	return w.changes, func() { w.stopped.Add(1) }
}

func TestWatchedStoreWakesWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &watched{outage: &outage{Store: newStore(t)}, changes: make(chan struct{}, 1)}
		g := newGuard(t, s, semel.Policy{})
		claim := stranded(t, s, submit("k"), time.Hour)
		time.AfterFunc(10*time.Second+time.Millisecond, func() {
			if _, err := claim.Complete(context.Background(), semel.Result{Codec: "test/1"}); err != nil {
				t.Error(err)
			}
			s.changes <- struct{}{}
		})
		start := time.Now()
		out, err := g.Do(t.Context(), waiting("k", time.Minute), nil)
		wantAnswer(t, out, err, semel.AnswerReplayed)
		if took := time.Since(start); took != 10*time.Second+time.Millisecond {
			t.Fatalf("answered after %v; the change was told at once", took)
		}
		if s.stopped.Load() != 1 {
			t.Fatal("the watch was not stopped")
		}
	})
}

// A wait leaves one audit entry, not one for each look.
func TestWaitIsNotedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &hidden{Store: newStore(t)}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		go func() { _, _ = g.Do(t.Context(), submit("k"), e.slow(time.Minute)) }()
		synctest.Wait()
		out, err := g.Do(t.Context(), waiting("k", 10*time.Second), e.do)
		wantAnswer(t, out, err, semel.AnswerInProgress)
		time.Sleep(time.Second)
		trail, err := s.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailInProgress})
		if err != nil || len(trail) != 1 {
			t.Fatalf("%d entries, error %v", len(trail), err)
		}
		time.Sleep(time.Minute)
	})
}

func TestWaitersOfATenantAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore(t)
		g, err := semel.New(semel.Config{Store: s, MaxTenantWaiters: 2})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wait := func(tenant string) time.Duration {
			sub := submit("k")
			sub.Identity.Tenant, sub.Wait = tenant, 10*time.Second
			start := time.Now()
			var e effects
			out, err := g.Do(t.Context(), sub, e.do)
			wantAnswer(t, out, err, semel.AnswerInProgress)
			return time.Since(start)
		}
		for _, tenant := range []string{"t", "other", ""} {
			sub := submit("k")
			sub.Identity.Tenant = tenant
			stranded(t, s, sub, time.Hour)
			for range 2 {
				wg.Go(func() {
					if took := wait(tenant); took < 9*time.Second {
						t.Errorf("a waiter of tenant %q was turned away after %v", tenant, took)
					}
				})
			}
			synctest.Wait()
		}
		if took := wait("t"); took != 0 {
			t.Errorf("one waiter too many of a tenant waited %v", took)
		}
		if took := wait(""); took < 9*time.Second {
			t.Errorf("without tenants a waiter was turned away after %v", took)
		}
		wg.Wait()
	})
}
