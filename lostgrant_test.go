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

type transactionKey struct{}

// deafStore grants, but nobody hears of its first three grants. It notes what
// the calls that come once Do has answered carry.
type deafStore struct {
	*memory.Store
	begun    int
	answered bool
	carried  []any
}

func (s *deafStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if s.answered {
		s.carried = append(s.carried, ctx.Value(transactionKey{}))
	}
	c, err := s.Store.Begin(ctx, a)
	if s.begun == 2 {
		s.answered = true // Do gives up with this call
	}
	if s.begun++; s.begun <= 3 {
		return nil, errors.New("the answer was lost")
	}
	return c, err
}

// Whoever began a transaction for a store to join has it back with the answer. A
// guard that went on to look for a lost grant in it would use it at the same time
// as its owner, who may be committing.
func TestLostGrantIsNotPursuedInTheCallersTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s := &deafStore{Store: m}
		g, err := semel.New(semel.Config{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		id := semel.Identity{Scope: semel.Scope{Operation: "pay"}, Key: "k"}
		ctx := context.WithValue(t.Context(), transactionKey{}, "the caller's")
		out, err := g.Do(ctx, semel.Submit{Identity: id}, func(context.Context) (semel.Result, error) {
			t.Error("executed without a claim")
			return semel.Result{}, nil
		})
		if out.Answer != semel.AnswerUnavailable {
			t.Fatalf("answered %v, %v", out.Answer, err)
		}
		synctest.Wait()
		if len(s.carried) == 0 {
			t.Error("the lost grant is not pursued")
		}
		for _, v := range s.carried {
			if v != nil {
				t.Errorf("after the answer the store is called with %v transaction", v)
			}
		}
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
