package semel

import (
	"context"
	"sync"
	"time"
)

// lazyContext is a context with the values of its parent, a deadline of its own,
// and nothing of the parent's cancellation. Most of those that a guard makes are
// never waited for: a store in memory answers, and a handler returns, without
// asking for Done. So what costs, the channel and the timer, is made when somebody
// asks.
type lazyContext struct {
	parent   context.Context
	deadline time.Time
	// expired is the cause at the deadline. It is nil for calls of the store, which
	// nobody ends for a reason.
	expired error

	mu    sync.Mutex
	made  *madeContext // by package context, once it is needed
	ended bool         // by end, before it was made
	cause error
}

type madeContext struct {
	context.Context
	cancel context.CancelCauseFunc // nil if there are no causes
	stop   context.CancelFunc
}

// Deadline implements context.Context.
func (c *lazyContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements context.Context.
func (c *lazyContext) Done() <-chan struct{} { return c.make().Done() }

// Err implements context.Context.
func (c *lazyContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.made != nil:
		return c.made.Err()
	case c.ended:
		return context.Canceled
	case !time.Now().Before(c.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context. A key of type *int is how package context
// itself finds what it has to cancel, and the cause: that is for what it made.
func (c *lazyContext) Value(key any) any {
	if _, ok := key.(*int); ok {
		return c.make().Value(key)
	}
	return c.parent.Value(key)
}

func (c *lazyContext) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		ctx := context.WithoutCancel(c.parent)
		c.made = &madeContext{}
		if c.expired != nil {
			ctx, c.made.cancel = context.WithCancelCause(ctx)
			if c.ended {
				c.made.cancel(c.cause)
			}
		}
		c.made.Context, c.made.stop = context.WithDeadlineCause(ctx, c.deadline, c.expired)
		if c.ended {
			c.made.stop()
		}
	}
	return c.made.Context
}

// end cancels the context and gives up what was made. The first cause counts; a
// nil cause is context.Canceled.
func (c *lazyContext) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil && (c.ended || !time.Now().Before(c.deadline)) {
		return
	}
	c.cancel(cause)
}

// over is end for the context of a call that has returned. Whether its deadline
// came before is nothing to anybody any more, so it does not ask for the time.
func (c *lazyContext) over() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel(nil)
}

func (c *lazyContext) cancel(cause error) {
	if c.made != nil {
		if c.made.cancel != nil {
			c.made.cancel(cause)
		}
		c.made.stop()
		return
	}
	c.ended, c.cause = true, cause
}

// storeContext bounds one call of the store, without the caller's cancellation.
// It must be ended.
func (g *Guard) storeContext(ctx context.Context) *lazyContext {
	return storeContext(ctx, g.policy.StoreTimeout)
}

func storeContext(ctx context.Context, d time.Duration) *lazyContext {
	return &lazyContext{parent: ctx, deadline: time.Now().Add(d)}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
