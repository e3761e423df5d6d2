package trials

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// leases says of each key until when somebody works on it.
type leases struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (l *leases) take(key string, lease time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.until[key]) {
		return false
	}
	// DEFECT(lease): whoever is slower than the lease is taken for dead, and goes on all
	// the same. Lesson: renew it while the work goes on.
	l.until[key] = time.Now().Add(lease)
	return true
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The work takes three leases. A second worker comes after two of them.
const (
	shortLease = 300 * time.Millisecond
	longWork   = 3 * shortLease
)

// twoWorkers has work done by two, one a while after the other.
func twoWorkers(ctx context.Context, work func(context.Context) error) error {
	first := make(chan error, 1)
	go func() { first <- work(ctx) }()
	_ = wait(ctx, longWork-shortLease)
	return errors.Join(work(ctx), <-first, ctx.Err())
}

func slowByHand(ctx context.Context) (Outcome, error) {
	l := leases{until: map[string]time.Time{}}
	var charged atomic.Int64
	err := twoWorkers(ctx, func(ctx context.Context) error {
		if !l.take("order-17", shortLease) {
			return nil
		}
		charged.Add(1)
		return wait(ctx, longWork)
	})
	return Outcome{Count: strconv.FormatInt(charged.Load(), 10)}, err
}

func slowWithSemel(ctx context.Context) (Outcome, error) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		return Outcome{}, err
	}
	return leased(ctx, store, semel.ErrInProgress)
}

// leased has semel see to it that one of the two works. The other is told why not.
func leased(ctx context.Context, store semel.Store, why error) (Outcome, error) {
	guard, err := semel.New(semel.Config{Store: store, Policy: semel.Policy{
		Lease: shortLease, StoreTimeout: shortLease, OnCrash: semel.CrashHold,
	}})
	if err != nil {
		return Outcome{}, err
	}
	var charged atomic.Int64
	err = twoWorkers(ctx, func(ctx context.Context) error {
		_, err := guard.Do(ctx, semel.Submit{
			Identity: semel.Identity{Scope: semel.Scope{Actor: "alice", Operation: "charge"}, Key: "order-17"},
		}, func(ctx context.Context) (semel.Result, error) {
			charged.Add(1)
			return semel.Result{}, wait(ctx, longWork)
		})
		if errors.Is(err, why) {
			return nil
		}
		return err
	})
	return Outcome{Count: strconv.FormatInt(charged.Load(), 10)}, err
}

// A worker that is paused, with its whole machine say, does not renew either.
func pausedByHand(ctx context.Context) (Outcome, error) { return slowByHand(ctx) }

func pausedWithSemel(ctx context.Context) (Outcome, error) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		return Outcome{}, err
	}
	return leased(ctx, pausing{store}, semel.ErrUnknown)
}

// pausing is a store that no renewal reaches.
type pausing struct{ *memory.Store }

func (s pausing) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	return pausedClaim{c}, nil
}

type pausedClaim struct{ semel.Claim }

func (pausedClaim) Renew(context.Context) error { return errors.New("it does not arrive") }
