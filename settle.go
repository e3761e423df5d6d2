package semel

import (
	"context"
	"errors"
	"time"
)

const codecError = "error/1"

// giveUp holds the record of a handler that has outrun its deadline. Its result,
// should it come, still settles the record.
func (x *Execution) giveUp() {
	x.stop()
	x.settled.Lock()
	defer x.settled.Unlock()
	if x.ended {
		return
	}
	err := x.tell("hold", func(ctx context.Context) error {
		return x.claim.Hold(ctx, "the operation outran its deadline")
	})
	if errors.Is(err, ErrRolledBack) {
		x.rolledBack(errors.Join(ErrDeadline, err))
	}
	x.guard.waiters.wake(x.submit.Identity)
}

// finish settles the claim by what the handler returned.
func (x *Execution) finish(res Result, err error) {
	x.mu.Lock()
	x.settling = true
	x.mu.Unlock()
	x.settled.Lock()
	defer x.settled.Unlock()
	if panicked, ok := err.(*PanicError); ok && x.guard.observe.Panicked != nil {
		x.guard.observe.Panicked(x.work.parent, Panicked{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Err: panicked})
	}
	if !x.ended {
		x.settle(res, err)
		x.ended = true
	}
	x.guard.waiters.wake(x.submit.Identity)
}

// settle is called with settled held.
func (x *Execution) settle(res Result, err error) {
	if err == nil {
		x.complete(res, nil)
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
		x.complete(Result{Codec: codecError, Body: []byte(err.Error()), Label: "error", Failed: true},
			&RecordedError{Message: err.Error(), Err: err})
	case classNoEffect:
		switch told := x.tell("release", x.claim.Release); {
		case told == nil, errors.Is(told, ErrRolledBack):
			x.fail(StateInProgress, &Error{Answer: AnswerReleased, Err: err})
		case x.gone(): // the answer to an earlier call was lost
			x.fail(StateInProgress, &Error{Answer: AnswerReleased, Err: err})
		case errors.Is(told, ErrLostClaim):
			x.answerFromRecord() // someone else's: what it says, goes
		case x.Transactional(): // nothing of it was ever to be committed
			x.fail(StateInProgress, &Error{Answer: AnswerReleased, Err: errors.Join(err, told)})
		default: // the record stays, and becomes unknown
			x.untold(errors.Join(err, told))
		}
	default:
		x.held(err, x.tell("hold", func(ctx context.Context) error { return x.claim.Hold(ctx, cause) }))
	}
}

// held answers for an outcome that is unknown because of err, by what the store
// said when it was told to hold it.
func (x *Execution) held(err, told error) {
	switch {
	case told == nil:
		x.fail(StateUnknown, x.guard.unknown(err))
	case errors.Is(told, ErrLostClaim):
		x.answerFromRecord()
	case errors.Is(told, ErrRolledBack):
		x.rolledBack(errors.Join(err, told))
	default:
		x.untold(errors.Join(err, told))
	}
}

// complete records res and answers with it, and with failure if that is what
// res records.
func (x *Execution) complete(res Result, failure error) {
	var expires time.Time
	stored := x.guard.cipher.encrypt(x.submit.Identity, res)
	tell := func() error {
		// A large result takes its time on its way to a store over a slow link.
		timeout := x.guard.policy.StoreTimeout + time.Duration(res.Size()>>20)*time.Second
		return x.tellWithin(timeout, "complete", func(ctx context.Context) (err error) {
			expires, err = x.claim.Complete(ctx, stored)
			return err
		})
	}
	err := tell()
	if errors.Is(err, ErrTooLarge) && !res.Tombstone {
		// It has happened, so it must be on record, if only as a tombstone.
		res = Result{Codec: res.Codec, Label: res.Label, Reference: res.Reference, Failed: res.Failed, Tombstone: true}
		stored = x.guard.cipher.encrypt(x.submit.Identity, res)
		err = tell()
	}
	switch {
	case err == nil:
		x.answer, x.result, x.expires, x.err = AnswerExecuted, res, expires, failure
	case errors.Is(err, ErrLostClaim):
		x.answerFromRecord()
	case errors.Is(err, ErrRolledBack):
		x.rolledBack(errors.Join(failure, err))
	case x.Transactional() && !x.joined(): // otherwise it is the caller's to end
		// Left alone it would keep its locks. To hold it is to roll it back, or
		// to learn that it was committed after all.
		const cause = "the result could not be recorded"
		x.held(err, x.call("hold", x.guard.policy.StoreTimeout, func(ctx context.Context) error { return x.claim.Hold(ctx, cause) }))
	default:
		x.untold(err)
	}
}

// outcome is what the execution came to.
func (x *Execution) outcome() Outcome {
	out := Outcome{Answer: x.answer, Result: x.result, Claimed: true}
	switch {
	case x.found != nil:
		out.Record = *x.found
	case x.answer == AnswerExecuted:
		out.Record = x.record(StateCompleted)
		out.Record.ExpiresAt, out.Record.Retention, out.Record.Result = x.expires, x.guard.policy.Retention, x.result
	}
	return out
}

// fail answers with e, about the record in state s.
func (x *Execution) fail(s State, e *Error) {
	rec := x.record(s)
	x.failAbout(&rec, e)
}

// failAbout answers with e, about a record that was found.
func (x *Execution) failAbout(r *Record, e *Error) {
	e.Record, e.Claimed = r, true
	x.ended, x.answer, x.found, x.err = true, e.Answer, r, e
}

// rolledBack answers for a transaction that is certainly gone, whatever the
// handler said.
func (x *Execution) rolledBack(cause error) {
	if x.doubt { // that of an attempt before is not
		x.fail(StateUnknown, x.guard.unknown(cause))
		return
	}
	x.fail(StateInProgress, &Error{Answer: AnswerReleased, RetryAfter: time.Second, Err: cause})
}

// untold answers where the store could not be told what became of the operation.
// The record is still this claim's: it can turn out completed, and becomes
// unknown when its lease has lapsed.
func (x *Execution) untold(cause error) {
	x.fail(StateInProgress, &Error{Answer: AnswerUnavailable, RetryAfter: x.guard.policy.Heartbeat, Err: cause})
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
		err := x.call(what, timeout, call)
		if err == nil || isVerdict(err) || errors.Is(err, ErrNotOpen) {
			return err
		}
		if end.IsZero() {
			end = time.Now().Add(x.guard.policy.Lease)
		}
		if !time.Now().Add(wait).Before(end) {
			return err
		}
		pause(context.WithoutCancel(x.work.parent), wait)
	}
}

// call calls the store once.
func (x *Execution) call(what string, timeout time.Duration, call func(context.Context) error) error {
	ctx := x.callContext(timeout)
	err := call(ctx)
	ctx.over()
	if err != nil && !isVerdict(err) && x.guard.observe.StoreFailed != nil {
		x.guard.observe.StoreFailed(x.work.parent, StoreFailed{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Call: what, Err: err})
	}
	return err
}

// isVerdict reports whether err is what a store says of a claim, and not a
// failure to say it.
func isVerdict(err error) bool {
	return errors.Is(err, ErrLostClaim) || errors.Is(err, ErrRolledBack) || errors.Is(err, ErrTooLarge)
}

// callContext is storeContext for a call that tells the store what became of the
// execution. Usually there is one, so the first has its place in x.
func (x *Execution) callContext(timeout time.Duration) *lazyContext {
	if x.telling.parent != nil {
		return storeContext(x.work.parent, timeout)
	}
	x.telling.parent, x.telling.deadline = x.work.parent, time.Now().Add(timeout)
	return &x.telling
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
	ctx := x.guard.storeContext(x.work.parent)
	defer ctx.over()
	_, err := x.guard.store.Find(ctx, x.submit.Identity)
	return errors.Is(err, ErrNotFound)
}

// answerFromRecord answers an owner that lost its claim by what the record
// says now: someone else has settled it or is at it.
func (x *Execution) answerFromRecord() {
	ctx := x.guard.storeContext(x.work.parent)
	r, err := x.guard.store.Find(ctx, x.submit.Identity)
	ctx.over()
	if err != nil && !errors.Is(err, ErrNotFound) {
		x.untold(errors.Join(ErrLostClaim, err))
		return
	}
	if err != nil || r.Fingerprint.Differs(x.submit.Fingerprint) {
		// The record of this execution is gone, and it is another's now.
		x.fail(StateUnknown, x.guard.unknown(errors.Join(ErrLostClaim, err)))
		return
	}
	if r.State == StateCompleted {
		if r, err = x.guard.opened(x.work.parent, x.submit.Identity, r); err != nil {
			x.failAbout(&r, unreadable(err))
			return
		}
		x.answer, x.result, x.found, x.err = AnswerReplayed, r.Result, &r, recordedFailure(&r)
		return
	}
	r.Result = Result{}
	switch {
	case r.State == StateInProgress && !r.Lapsed():
		x.failAbout(&r, &Error{Answer: AnswerInProgress, RetryAfter: r.Lease, Err: ErrLostClaim})
	default:
		x.failAbout(&r, x.guard.unknown(ErrLostClaim))
	}
}
