package semel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// renewalStore notes when claims are renewed, by their fence.
type renewalStore struct {
	*memory.Store
	mu      sync.Mutex
	renewed map[uint64][]time.Time
}

type renewalClaim struct {
	semel.Claim
	store *renewalStore
}

func (s *renewalStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	return &renewalClaim{c, s}, err
}

func (c *renewalClaim) Renew(ctx context.Context) error {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	c.store.renewed[c.Fence()] = append(c.store.renewed[c.Fence()], time.Now())
	return c.Claim.Renew(ctx)
}

// Each of many executions, of several policies, is renewed at its own time,
// whoever else begins and ends meanwhile.
func TestEachIsRenewedAtItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &renewalStore{Store: newStore(t), renewed: map[uint64][]time.Time{}}
		g := newGuard(t, s, semel.Policy{})
		other, err := g.With(semel.Policy{Lease: 6 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 500 {
			g, heartbeat := g, 5*time.Second
			if i%3 == 0 {
				g, heartbeat = other, 2*time.Second
			}
			start, takes := rand.N(20*time.Second), rand.N(12*time.Second)
			wg.Go(func() {
				time.Sleep(start)
				_, err := g.Do(t.Context(), submit(fmt.Sprint(i)), func(ctx context.Context) (semel.Result, error) {
					x, _ := semel.CurrentExecution(ctx)
					var want []time.Time
					for at := heartbeat; at < takes; at += heartbeat {
						want = append(want, time.Now().Add(at))
					}
					time.Sleep(takes)
					s.mu.Lock()
					defer s.mu.Unlock()
					if got := s.renewed[x.Fence()]; !slices.EqualFunc(got, want, time.Time.Equal) {
						t.Errorf("an execution of %v with a heartbeat of %v was renewed at %v; want %v", takes, heartbeat, got, want)
					}
					return semel.Result{}, nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
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

// Renewals that fail must not be swallowed. Losing the lease cancels
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
