package semel

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"
)

// Causes of the cancellation of an execution's context, for context.Cause.
// ErrLostClaim is another.
var (
	// ErrDeadline means that the policy's Deadline has passed.
	ErrDeadline = errors.New("semel: operation deadline passed")
	// ErrLeaseLapsed means that the claim could not be renewed in time, so that
	// another submit may have taken it over.
	ErrLeaseLapsed = errors.New("semel: lease lapsed without renewal")
)

// Execution is an execution of an operation, under a claim. A handler gets its own
// by calling CurrentExecution.
type Execution struct {
	guard  *Guard
	submit Submit
	claim  Claim
	doubt  bool // an attempt before this one may have had the effect

	work workContext // the handler's; its parent is the caller's

	mu       sync.Mutex
	leaseEnd time.Time   // by this process's monotonic clock, never later than the store's
	settling bool        // fn has ended: what renewals learn means nothing to it any more
	stopped  bool        // no more ticks
	timer    *time.Timer // from the first tick on
	beat     beat        // until then

	steps takenSteps // that ChildKey has named

	// settled is held while the store is told how the execution ended, so that
	// an overdue handler's Hold and its result come one after the other. It
	// guards what follows.
	settled sync.Mutex
	ended   bool        // completed or released, or the claim was lost
	telling lazyContext // of the first call that tells the store
	answer  Answer
	result  Result
	expires time.Time // of the record, if answer is Executed
	found   *Record   // otherwise: what the answer is about
	err     error
}

type executionKey struct{}

// workContext is a lazyContext that knows its execution.
type workContext struct {
	lazyContext
	x *Execution
}

func (c *workContext) Value(key any) any {
	if key == (executionKey{}) {
		return c.x
	}
	return c.lazyContext.Value(key)
}

// CurrentExecution returns the execution that ctx belongs to, if any. Handlers pass
// its key and fence on to effects that are idempotent themselves.
func CurrentExecution(ctx context.Context) (*Execution, bool) {
	x, ok := ctx.Value(executionKey{}).(*Execution)
	return x, ok
}

// Identity returns the identity that is being executed.
func (x *Execution) Identity() Identity { return x.submit.Identity }

// Fingerprint returns the fingerprint of the submit that is being executed.
func (x *Execution) Fingerprint() Fingerprint { return x.submit.Fingerprint }

// RecordID returns the ID of the record.
func (x *Execution) RecordID() string { return x.claim.RecordID() }

// Fence returns the fence of the claim, which is higher than that of every earlier
// claim in the store. A service that remembers the highest fence it has seen can
// refuse a claim that was taken over.
func (x *Execution) Fence() uint64 { return x.claim.Fence() }

// Transactional reports whether the claim lives in a database transaction. If so,
// what the handler does in it takes effect when Do commits, after the handler has
// returned.
func (x *Execution) Transactional() bool { return x.claim.Transactional() }

// joined reports whether the claim lives in a transaction of Do's caller.
func (x *Execution) joined() bool {
	j, ok := x.claim.(Joiner)
	return ok && j.Joined()
}

// newExecution starts the lease's clock at asked, before the claim was asked
// for, so that it never runs behind the store's.
func newExecution(g *Guard, s *Submit, claim Claim, asked time.Time) *Execution {
	x := &Execution{guard: g, submit: *s, claim: claim, leaseEnd: asked.Add(g.policy.Lease)}
	x.work.x = x
	x.work.expired = ErrDeadline
	return x
}

// run executes fn in the calling goroutine and settles the claim, even when fn
// panics or ends the goroutine. Then it lets that go on.
func (x *Execution) run(ctx context.Context, fn func(context.Context) (Result, error)) {
	now := time.Now()
	x.work.parent = ctx
	x.work.deadline = now.Add(x.guard.policy.Deadline)
	defer x.work.end(nil)

	x.guard.beats.wait(x, now)
	defer x.stop()

	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover() // nil if it is runtime.Goexit
		x.finish(Result{}, &PanicError{Value: v, Stack: debug.Stack()})
		if v != nil {
			panic(v)
		}
	}()
	res, err := fn(x.claim.Context(&x.work))
	returned = true
	x.finish(res, err)
}

// detach runs fn in a goroutine of the guard, which leaves the work that the
// caller has entered, and answers when ctx ends, if not before.
func (x *Execution) detach(ctx context.Context, fn func(context.Context) (Result, error)) (Outcome, error) {
	ended := make(chan struct{})
	go func() {
		defer x.guard.work.leave(&x.submit)
		defer func() {
			_ = recover() // it is on record, and nobody above would take it
			close(ended)
			if x.submit.Settled != nil {
				x.submit.Settled(x.outcome(), x.err)
			}
		}()
		x.run(ctx, fn)
	}()
	impatient := ctx.Done()
	if x.joined() {
		impatient = nil
	}
	select {
	case <-ended:
		return x.outcome(), x.err
	case <-impatient:
	}
	select {
	case <-ended: // both were ready
		return x.outcome(), x.err
	default:
	}
	rec := x.record(StateInProgress)
	return Outcome{Answer: AnswerInProgress, Record: rec, Claimed: true},
		&Error{Answer: AnswerInProgress, Record: &rec, Claimed: true, RetryAfter: x.guard.policy.Heartbeat, Err: context.Cause(ctx)}
}
