package semel

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// work counts what guards that share it are at, and keeps it within bounds.
type work struct {
	config Config

	mu        sync.Mutex
	running   int // submits that claim or execute
	detached  int // of those
	tenants   map[string]int
	beats     map[time.Duration]*beats // by heartbeat
	behind    int                      // what goes on besides: renewals, and lost grants that are pursued
	abandoned int                      // of those
	draining  bool
	idle      chan struct{}

	stopping context.Context // ends with drain
	stop     context.CancelFunc
}

func newWork(c Config) *work {
	w := &work{config: c, tenants: map[string]int{}, beats: map[time.Duration]*beats{}, idle: make(chan struct{})}
	w.stopping, w.stop = context.WithCancel(context.Background())
	return w
}

// beatsOf returns what executions with that heartbeat share.
func (w *work) beatsOf(heartbeat time.Duration) *beats {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.beats[heartbeat]
	if b == nil {
		b = &beats{heartbeat: heartbeat, draining: w.draining}
		w.beats[heartbeat] = b
	}
	return b
}

// maxAbandoned bounds how many lost grants are pursued at once, so that an
// outage under load piles up neither goroutines nor calls of a store that is
// struggling back. Beyond it a lost grant is left to lapse.
const maxAbandoned = 256

// enter counts a submit. It fails with ErrDraining or a *BusyError.
func (w *work) enter(s *Submit) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, tenant := &w.config, s.Identity.Tenant
	switch {
	case w.draining:
		return ErrDraining
	case w.running >= c.MaxExecutions:
		return &BusyError{"MaxExecutions", c.MaxExecutions}
	case tenant != "" && w.tenants[tenant] >= c.MaxTenantExecutions:
		return &BusyError{"MaxTenantExecutions", c.MaxTenantExecutions}
	case s.Detached && w.detached >= c.MaxDetached:
		return &BusyError{"MaxDetached", c.MaxDetached}
	}
	w.running++
	if s.Detached {
		w.detached++
	}
	if tenant != "" {
		w.tenants[tenant]++
	}
	return nil
}

func (w *work) leave(s *Submit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	if s.Detached {
		w.detached--
	}
	if tenant := s.Identity.Tenant; tenant != "" {
		if w.tenants[tenant]--; w.tenants[tenant] == 0 {
			delete(w.tenants, tenant)
		}
	}
	w.ended()
}

// enterBackground is called from work that has entered, so it may follow a drain.
func (w *work) enterBackground() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.behind++
}

func (w *work) leaveBackground() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.behind--
	w.ended()
}

// enterAbandon is enterBackground for the pursuit of a lost grant.
func (w *work) enterAbandon() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned == maxAbandoned {
		return false
	}
	w.abandoned++
	w.behind++
	return true
}

func (w *work) leaveAbandon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.abandoned--
	w.behind--
	w.ended()
}

// ended is called with mu held when something has ended.
func (w *work) ended() {
	if w.draining && w.running+w.behind == 0 {
		close(w.idle)
	}
}

func (w *work) drain() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.draining {
		w.draining = true
		w.stop()
		for _, b := range w.beats {
			b.drain()
		}
		w.ended()
	}
	return w.idle
}

func (w *work) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running + w.behind
}

// Load is how much of their limits the guards that With has made from one another
// use together.
type Load struct {
	Executions, MaxExecutions int // submits that claim or execute
	Detached, MaxDetached     int // the detached among them
	Waiters, MaxWaiters       int
}

// Load returns the current load.
func (g *Guard) Load() Load {
	w, c := g.work, &g.work.config
	w.mu.Lock()
	l := Load{
		Executions: w.running, MaxExecutions: c.MaxExecutions,
		Detached: w.detached, MaxDetached: c.MaxDetached, MaxWaiters: c.MaxWaiters,
	}
	w.mu.Unlock()
	g.waiters.mu.Lock()
	defer g.waiters.mu.Unlock()
	l.Waiters = g.waiters.total
	return l
}

// Drain stops g, and the guards made from it or that it was made from, from
// accepting submits, and waits until all executions have ended. If ctx ends first,
// the error says how many are left. They go on; if the process exits before they
// end, their leases lapse, and the CrashPolicy applies. Claims in a transaction are
// rolled back.
//
// Call Drain after Shutdown of an http.Server, which does not wait for the
// handlers of HTTP/2 requests that were reset by their clients.
func (g *Guard) Drain(ctx context.Context) error {
	idle := g.work.drain()
	if g.notes != nil {
		g.notes.end()
	}
	select {
	case <-idle:
		return nil
	default:
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("semel: drain: %d executions still running: %w", g.work.count(), context.Cause(ctx))
	}
}

// OnDrain arranges to call f in its own goroutine when Drain is called. It is for
// programs that hold requests before they submit them. Calling stop undoes this,
// and reports whether it did, as that of context.AfterFunc.
func (g *Guard) OnDrain(f func()) (stop func() bool) { return context.AfterFunc(g.work.stopping, f) }
