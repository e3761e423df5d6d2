package outbox

import (
	"context"
	"sync"
	"time"
)

// attempt is the context of a delivery: that of its claim, which it can end before the
// others of that. What can be waited for is made once somebody asks, which few sinks
// do that take no time.
type attempt struct {
	claim context.Context
	id    string // of the message

	mu     sync.Mutex
	made   context.Context // nil before somebody asked
	cancel context.CancelCauseFunc
	over   bool
	cause  error
}

// end ends it for good. The first call counts.
func (a *attempt) end(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.made == nil && a.claim.Err() != nil {
		a.make() // as it ended with its claim
	}
	if !a.over {
		a.over, a.cause = true, cause
	}
	if a.made != nil {
		a.cancel(cause)
	}
}

// make makes what can be waited for. The caller holds mu.
func (a *attempt) make() {
	claim := a.claim
	if a.over {
		claim = context.WithoutCancel(claim) // which may have ended since
	}
	a.made, a.cancel = context.WithCancelCause(claim)
	if a.over {
		a.cancel(a.cause)
	}
}

// whole is a context that has ended if this has and, if always is set, ends when this
// does.
func (a *attempt) whole(always bool) context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.made == nil {
		if !always && !a.over {
			return a.claim
		}
		a.make()
	}
	return a.made
}

func (a *attempt) Deadline() (time.Time, bool) { return a.claim.Deadline() }
func (a *attempt) Done() <-chan struct{}       { return a.whole(true).Done() }
func (a *attempt) Err() error                  { return a.whole(false).Err() }

func (a *attempt) Value(key any) any {
	if key == (originKey{}) {
		return a.id
	}
	return a.whole(false).Value(key)
}
