package semel

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"
)

// Causes of the cancellation of an execution's context, for context.Cause.
var (
	// ErrDeadline: the policy's deadline for one execution has passed.
	ErrDeadline = errors.New("semel: operation deadline passed")
	// ErrLeaseLapsed: the claim could not be renewed in time, so another
	// submit may have taken it.
	ErrLeaseLapsed = errors.New("semel: lease lapsed without renewal")
)

const codecError = "error/1"

// Execution is a claim being executed. A handler gets its own from
// CurrentExecution.
type Execution struct {
	guard  *Guard
	submit Submit
	claim  Claim
	doubt  bool // an attempt before this one may have had the effect

	ctx      context.Context // of the work: detached, for calls of the store
	cancel   context.CancelCauseFunc
	deadline time.Time

	// settling is held while the store is told how the execution ended, so
	// that the deadline's Hold and the handler's result come one after the other.
	settling sync.Mutex
	ended    bool // under settling: completed or released, or the claim was lost

	mu       sync.Mutex
	leaseEnd time.Time // by this process's monotonic clock, never later than the store's
	stopped  bool      // no more ticks
	timer    *time.Timer
	ticks    sync.WaitGroup

	steps takenSteps // that ChildKey has named

	once     sync.Once
	answered chan struct{}
	outcome  Outcome
	err      error
}

type executionKey struct{}

// CurrentExecution returns the execution that ctx belongs to. Handlers pass
// its key and fence to effects that are idempotent themselves.
func CurrentExecution(ctx context.Context) (*Execution, bool) {
	x, ok := ctx.Value(executionKey{}).(*Execution)
	return x, ok
}

// Identity is what is being executed.
func (x *Execution) Identity() Identity { return x.submit.Identity }

// RecordID is the opaque id of the record.
func (x *Execution) RecordID() string { return x.claim.RecordID() }

// Fence is the claim's fence: higher than that of every earlier claim in the
// store. An effect's owner that remembers the highest fence it has seen can
// refuse a claim that was taken over.
func (x *Execution) Fence() uint64 { return x.claim.Fence() }

// newExecution starts the lease's clock at asked, before the claim was asked
// for, so that it never runs behind the store's.
func newExecution(g *Guard, s Submit, claim Claim, asked time.Time) *Execution {
	return &Execution{
		guard: g, submit: s, claim: claim,
		deadline: time.Now().Add(g.policy.Deadline),
		leaseEnd: asked.Add(g.policy.Lease),
		answered: make(chan struct{}),
	}
}

// run executes fn and settles its claim.
func (x *Execution) run(ctx context.Context, fn func(context.Context) (Result, error)) {
	detached := context.WithoutCancel(ctx)
	work, cancel := context.WithCancelCause(detached)
	x.ctx, x.cancel = detached, cancel
	work, stopDeadline := context.WithDeadlineCause(work, x.deadline, ErrDeadline)

	x.mu.Lock()
	x.timer = time.AfterFunc(x.guard.policy.Heartbeat, x.tick)
	x.mu.Unlock()

	var (
		res Result
		err error = &PanicError{} // what stands if fn ends the goroutine
	)
	// Deferred, because runtime.Goexit in fn runs nothing else.
	defer func() {
		x.finish(res, err)
		x.stop()
		stopDeadline()
		cancel(nil)
	}()
	res, err = call(x.claim.Context(context.WithValue(work, executionKey{}, x)), fn)
}

func call(ctx context.Context, fn func(context.Context) (Result, error)) (res Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn(ctx)
}

// tick renews the claim, and gives the handler up once it is overdue.
func (x *Execution) tick() {
	x.mu.Lock()
	if x.stopped {
		x.mu.Unlock()
		return
	}
	x.ticks.Add(1)
	leaseEnd := x.leaseEnd
	x.mu.Unlock()
	defer x.ticks.Done()

	p := x.guard.policy
	overdue := x.deadline.Add(p.Heartbeat)
	now := time.Now()
	if !now.Before(overdue) {
		x.giveUp()
		return
	}
	if !now.Before(leaseEnd) {
		x.cancel(ErrLeaseLapsed)
		if x.guard.observe.LeaseLost != nil {
			x.guard.observe.LeaseLost(x.ctx, x.lost(ErrLeaseLapsed))
		}
		leaseEnd = now.Add(p.Lease) // keep trying: until a takeover the claim can still be settled
	}

	next := p.Heartbeat
	ctx, cancel := context.WithTimeout(x.ctx, min(p.StoreTimeout, leaseEnd.Sub(now)))
	err := x.claim.Renew(ctx)
	cancel()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped {
		return
	}
	switch {
	case err == nil:
		leaseEnd = now.Add(p.Lease)
	case errors.Is(err, ErrLostClaim):
		x.cancel(ErrLostClaim)
		if x.guard.observe.LeaseLost != nil {
			x.guard.observe.LeaseLost(x.ctx, x.lost(ErrLostClaim))
		}
		x.stopped = true
		return
	default:
		if x.guard.observe.StoreFailed != nil {
			x.guard.observe.StoreFailed(x.ctx, StoreFailed{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Call: "renew", Err: err})
		}
		next = min(next, max(p.Heartbeat/4, time.Millisecond), max(time.Until(leaseEnd), time.Millisecond))
	}
	x.leaseEnd = leaseEnd
	x.timer.Reset(min(next, max(time.Until(overdue), time.Millisecond)))
}

func (x *Execution) lost(cause error) LeaseLost {
	return LeaseLost{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Fence: x.Fence(), Cause: cause}
}

// stop ends the ticks and waits for one under way.
func (x *Execution) stop() {
	x.mu.Lock()
	x.stopped = true
	x.timer.Stop()
	x.mu.Unlock()
	x.ticks.Wait()
}

// giveUp holds the record of a handler that outran its deadline and answers
// its caller. The handler's result, should it come, still settles the record.
func (x *Execution) giveUp() {
	x.mu.Lock()
	x.stopped = true
	x.mu.Unlock()
	x.settling.Lock()
	defer x.settling.Unlock()
	if x.ended {
		return
	}
	err := x.tell("hold", func(ctx context.Context) error {
		return x.claim.Hold(ctx, "the operation outran its deadline")
	})
	switch {
	case errors.Is(err, ErrLostClaim):
		x.answerFromRecord()
	case errors.Is(err, ErrRolledBack):
		x.answerRolledBack(errors.Join(ErrDeadline, err))
	default:
		x.answerUnknown(ErrDeadline)
	}
}

// finish settles the claim by what the handler returned.
func (x *Execution) finish(res Result, err error) {
	x.settling.Lock()
	defer x.settling.Unlock()
	if panicked, ok := err.(*PanicError); ok && x.guard.observe.Panicked != nil {
		x.guard.observe.Panicked(x.ctx, Panicked{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Err: panicked})
	}
	if x.ended {
		return
	}
	if err == nil {
		_ = x.complete(res, nil)
		return
	}
	class, cause := classify(err)
	if _, ok := err.(*PanicError); ok {
		class, cause = classIndeterminate, "the handler panicked"
	}
	if class == classNoEffect && x.doubt {
		// It speaks for this attempt only. A release would forget the other.
		class, cause = classIndeterminate, "this attempt had no effect, but one before it may have had"
	}
	switch class {
	case classFinal:
		_ = x.complete(Result{Codec: codecError, Body: []byte(err.Error()), Label: "error", Failed: true},
			&RecordedError{Message: err.Error(), Err: err})
	case classNoEffect:
		told := x.tell("release", x.claim.Release)
		x.ended = true
		if errors.Is(told, ErrLostClaim) && !x.gone() {
			x.answerFromRecord() // someone else's: what it says, goes
			return
		}
		if told != nil && !errors.Is(told, ErrLostClaim) {
			err = errors.Join(err, told)
		}
		x.deliver(Outcome{Answer: Released, Record: x.record(StateInProgress)}, &Error{Answer: Released, Err: err})
	default:
		told := x.tell("hold", func(ctx context.Context) error { return x.claim.Hold(ctx, cause) })
		switch {
		case errors.Is(told, ErrLostClaim):
			x.ended = true
			x.answerFromRecord()
			return
		case errors.Is(told, ErrRolledBack):
			x.answerRolledBack(errors.Join(err, told))
			return
		}
		// If the store could not be told, the lease will lapse and say it.
		x.answerUnknown(errors.Join(err, told))
	}
}

// Complete records the result before the handler returns: for a handler that
// must be on record before the first byte of its answer leaves. Do answers
// its caller now; what the handler returns afterwards is not recorded. An error
// means that the caller was told the outcome is unknown.
func (x *Execution) Complete(r Result) error {
	x.settling.Lock()
	defer x.settling.Unlock()
	if x.ended {
		return ErrLostClaim
	}
	return x.complete(r, nil)
}

// complete records res and answers with it, and with failure if that is what
// res records. Called with settling held.
func (x *Execution) complete(res Result, failure error) error {
	var expires time.Time
	tell := func() error {
		// A large result takes its time on its way to a store over a slow link.
		timeout := x.guard.policy.StoreTimeout + time.Duration(res.Size()>>20)*time.Second
		return x.tellWithin(timeout, "complete", func(ctx context.Context) (err error) {
			expires, err = x.claim.Complete(ctx, res)
			return err
		})
	}
	err := tell()
	if errors.Is(err, ErrTooLarge) && !res.Tombstone {
		// It has happened, so it must be on record, if only as a tombstone.
		res = Result{Codec: res.Codec, Label: res.Label, Reference: res.Reference, Failed: res.Failed, Tombstone: true}
		err = tell()
	}
	x.ended = true
	switch {
	case err == nil:
		x.mu.Lock()
		x.stopped = true // a completed record has no lease
		x.mu.Unlock()
		rec := x.record(StateCompleted)
		rec.ExpiresAt, rec.Retention, rec.Result = expires, x.guard.policy.Retention, res
		x.deliver(Outcome{Answer: Executed, Result: res, Record: rec}, failure)
	case errors.Is(err, ErrLostClaim):
		x.answerFromRecord()
	case errors.Is(err, ErrRolledBack):
		x.answerRolledBack(errors.Join(failure, err))
	default:
		x.answerUnknown(err)
	}
	return err
}

// answerRolledBack answers for a transaction that is certainly gone, whatever
// the handler said.
func (x *Execution) answerRolledBack(cause error) {
	x.ended = true
	if x.doubt { // that of an attempt before is not
		x.answerUnknown(cause)
		return
	}
	rec := x.record(StateInProgress)
	x.deliver(Outcome{Answer: Released, Record: rec}, &Error{Answer: Released, RetryAfter: time.Second, Err: cause})
}

// tell calls the store until it says yes or that the claim is over. While the
// store fails it tries for the length of a lease, renewals going on meanwhile;
// then the record is left to lapse.
func (x *Execution) tell(what string, call func(context.Context) error) error {
	return x.tellWithin(x.guard.policy.StoreTimeout, what, call)
}

// tellWithin is tell with another bound for each call.
func (x *Execution) tellWithin(timeout time.Duration, what string, call func(context.Context) error) error {
	var end time.Time
	for wait := 20 * time.Millisecond; ; wait = min(wait*2, time.Second) {
		ctx, cancel := context.WithTimeout(x.ctx, timeout)
		err := call(ctx)
		cancel()
		if err == nil || errors.Is(err, ErrLostClaim) || errors.Is(err, ErrRolledBack) || errors.Is(err, ErrTooLarge) {
			return err
		}
		if x.guard.observe.StoreFailed != nil {
			x.guard.observe.StoreFailed(x.ctx, StoreFailed{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Call: what, Err: err})
		}
		if end.IsZero() {
			end = time.Now().Add(x.guard.policy.Lease)
		}
		if !time.Now().Add(wait).Before(end) {
			return err
		}
		pause(x.ctx, wait)
	}
}

// record describes the claim without asking the store.
func (x *Execution) record(s State) Record {
	return Record{
		ID: x.RecordID(), Identity: x.submit.Identity, Fingerprint: x.submit.Fingerprint, State: s,
		Fence: x.Fence(), Origin: x.submit.Origin,
	}
}

// gone reports whether the record is certainly gone: a claim lost to its own
// release, whose answer was lost, or to a resolution as "no effect".
func (x *Execution) gone() bool {
	ctx, cancel := x.guard.storeContext(x.ctx)
	defer cancel()
	_, err := x.guard.store.Find(ctx, x.submit.Identity)
	return errors.Is(err, ErrNotFound)
}

// answerFromRecord answers an owner that lost its claim by what the record
// says now: someone else has settled it or is at it.
func (x *Execution) answerFromRecord() {
	ctx, cancel := x.guard.storeContext(x.ctx)
	r, err := x.guard.store.Find(ctx, x.submit.Identity)
	cancel()
	if err != nil || r.Fingerprint.Differs(x.submit.Fingerprint) {
		x.answerUnknown(errors.Join(ErrLostClaim, err))
		return
	}
	bare := r
	bare.Result = Result{}
	switch {
	case r.State == StateCompleted:
		x.deliver(replay(r))
	case r.State == StateInProgress && !r.Lapsed():
		x.deliver(failed(&Error{Answer: InProgress, Record: &bare, RetryAfter: r.Lease, Err: ErrLostClaim}))
	default:
		e := x.guard.unknown(ErrLostClaim)
		e.Record = &bare
		x.deliver(failed(e))
	}
}

func (x *Execution) answerUnknown(cause error) {
	rec := x.record(StateUnknown)
	e := x.guard.unknown(cause)
	e.Record = &rec
	x.deliver(failed(e))
}

// deliver answers Do, once.
func (x *Execution) deliver(out Outcome, err error) {
	x.once.Do(func() {
		out.Claimed = true
		x.outcome, x.err = out, err
		close(x.answered)
		x.guard.waiters.wake(x.submit.Identity)
	})
}
