package semel

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Between two looks at the record in the way a waiting submit pauses for
// firstLook at first, growing by half to lastLook. Each pause is shortened by up
// to a third, so that waiters do not look in step.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 500 * time.Millisecond
)

// waiters are the submits and look-ups that wait for an execution of somebody
// else, in all guards that share them.
type waiters struct {
	limit, tenantLimit int

	mu      sync.Mutex
	total   int
	tenants map[string]int
	of      map[Identity]*waiting
}

func newWaiters(c Config) *waiters {
	return &waiters{
		limit: c.MaxWaiters, tenantLimit: c.MaxTenantWaiters,
		tenants: map[string]int{}, of: map[Identity]*waiting{},
	}
}

// waiting are those that wait for one identity.
type waiting struct {
	count   int
	changed chan struct{} // closed at the next change
}

// take seats a waiter. It fails where there are too many already.
func (w *waiters) take(id Identity, limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	on := w.of[id]
	if w.total >= w.limit || on != nil && on.count >= limit || id.Tenant != "" && w.tenants[id.Tenant] >= w.tenantLimit {
		return false
	}
	if id.Tenant != "" {
		w.tenants[id.Tenant]++
	}
	if on == nil {
		on = &waiting{changed: make(chan struct{})}
		w.of[id] = on
	}
	on.count++
	w.total++
	return true
}

func (w *waiters) leave(id Identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total--
	if id.Tenant != "" {
		if w.tenants[id.Tenant]--; w.tenants[id.Tenant] == 0 {
			delete(w.tenants, id.Tenant)
		}
	}
	on := w.of[id]
	if on.count--; on.count == 0 {
		delete(w.of, id)
	}
}

// change returns what is closed at the next wake of a seated waiter's identity.
func (w *waiters) change(id Identity) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[id].changed
}

// wake has all who wait for id look again.
func (w *waiters) wake(id Identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if on := w.of[id]; on != nil {
		close(on.changed)
		on.changed = make(chan struct{})
	}
}

// waiter waits while a record is in the way.
type waiter struct {
	guard *Guard
	id    Identity
	end   time.Time

	seated bool
	pause  time.Duration
	hint   <-chan struct{}
	unhint func()
}

func (g *Guard) newWaiter(id Identity, wait time.Duration) *waiter {
	return &waiter{guard: g, id: id, end: time.Now().Add(wait), pause: firstLook}
}

func (w *waiter) sit() bool {
	if !w.guard.waiters.take(w.id, w.guard.policy.MaxWaiters) {
		return false
	}
	w.seated = true
	if watcher, ok := w.guard.store.(Watcher); ok {
		w.hint, w.unhint = watcher.Watch(w.id)
	}
	return true
}

// leave ends the waiting.
func (w *waiter) leave() {
	if w.unhint != nil {
		w.unhint()
	}
	if w.seated {
		w.guard.waiters.leave(w.id)
	}
}

// next waits until seen, the record in the way, may have moved on. It reports
// false when the wait is over: its time, ctx or the guard's work has ended, or
// there is no seat.
func (w *waiter) next(ctx context.Context, seen Record) bool {
	first := !w.seated
	if first && !w.sit() {
		return false
	}
	for time.Now().Before(w.end) {
		changed := w.guard.waiters.change(w.id)
		// What happened before there was a seat woke nobody, so the first
		// look comes at once.
		if !first && !w.sleep(ctx, changed, seen) {
			return false
		}
		first = false
		if seen.ID == "" {
			// The store cannot show it, as long as it is not committed.
			return true
		}
		fctx, cancel := context.WithTimeout(ctx, w.guard.policy.StoreTimeout)
		r, err := w.guard.store.Find(fctx, w.id)
		cancel()
		switch {
		case errors.Is(err, ErrNotFound):
			return true
		case err != nil:
			// It is still in the way as far as anybody knows. A store that
			// comes back in time is worth more than an error now.
		case r.State != StateInProgress, r.Lapsed(), r.Fence != seen.Fence:
			return true
		default:
			seen = r
		}
	}
	return false
}

// sleep pauses before the next look, the last one being at the end of the
// wait. It reports false when there is to be none.
func (w *waiter) sleep(ctx context.Context, changed <-chan struct{}, seen Record) bool {
	pause := time.Duration(float64(w.pause) * (1 - rand.Float64()/3))
	w.pause = min(w.pause+w.pause/2, lastLook)
	if seen.Lease > 0 {
		// A lapse changes what the record means, and wakes nobody.
		pause = min(pause, seen.Lease+time.Millisecond)
	}
	timer := time.NewTimer(min(pause, time.Until(w.end)))
	defer timer.Stop()
	select {
	case <-changed:
	case <-w.hint:
	case <-timer.C:
	case <-w.guard.work.stopping.Done():
		return false
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
