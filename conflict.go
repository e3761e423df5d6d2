package semel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

func isConflict(err error) bool {
	_, ok := errors.AsType[*ConflictError](err)
	return ok
}

// meet decides what a record in the way means. again is true when Begin is
// worth another call, with what meet changed in a.
func (g *Guard) meet(ctx context.Context, a *Attempt, r *Record, out *Outcome) (again bool, err error) {
	answer := func(e *Error) (bool, error) {
		bare := *r
		bare.Result = Result{}
		e.Record = &bare
		return false, out.fail(e)
	}
	if r.Fingerprint.Differs(a.Fingerprint) {
		return answer(&Error{Answer: AnswerMismatch})
	}
	switch {
	case r.State == StateCompleted:
		whole, err := g.opened(ctx, a.Identity, *r)
		if err != nil {
			return answer(unreadable(err))
		}
		*out = Outcome{Answer: AnswerReplayed, Result: whole.Result, Record: whole}
		return false, recordedFailure(&whole)
	case r.State == StateInProgress && !r.Lapsed():
		// The lease is renewed while the owner lives, so what is left of it
		// says little about when the owner will be done.
		return answer(&Error{Answer: AnswerInProgress, RetryAfter: min(r.Lease, g.policy.Heartbeat)})
	case r.Reopened, g.policy.OnCrash == CrashRetry:
		a.Takeover = r.Fence
		return true, nil
	}

	// Unknown, or lapsed and therefore about to be. Marking it comes before
	// anyone looks what became of the effect: see Resolution.
	if r.State == StateInProgress && g.resolver != nil {
		marked, err := g.resolve(ctx, Resolution{
			Identity: r.Identity, Fence: r.Fence, Decision: DecideUnknown,
			Cause: "the lease lapsed before the operation was settled", Origin: a.Origin,
		})
		switch {
		case err == nil:
			r = &marked
		case errors.Is(err, ErrStaleFence), errors.Is(err, ErrNotFound):
			return true, nil
		default:
			// It is not on record that the outcome is unknown, so it need not
			// stay so: the owner may still be there.
			return answer(&Error{Answer: AnswerUnavailable, RetryAfter: time.Second, Err: err})
		}
	}
	if g.policy.OnCrash == CrashReconcile {
		switch decided, err := g.reconcile(ctx, a, r); {
		case err != nil:
			return answer(g.unknown(err))
		case decided:
			return true, nil
		}
	}
	return answer(g.unknown(nil))
}

// unknown is the error for an unknown outcome. Under Retry and Reconcile the
// next submit may settle it by itself.
func (g *Guard) unknown(cause error) *Error {
	e := &Error{Answer: AnswerUnknown, Err: cause}
	if g.policy.OnCrash != CrashHold {
		e.advice, e.RetryAfter = RetrySameKey, g.policy.Heartbeat
	}
	return e
}

// recordedFailure is the failure that a completed record tells of, if it does.
func recordedFailure(r *Record) error {
	if r.Result.Codec == codecError {
		return &RecordedError{Message: string(r.Result.Body)}
	}
	return nil
}

// reconcile asks the policy's look-up and acts on its finding. decided means
// that the record has changed, or may now be taken over.
func (g *Guard) reconcile(ctx context.Context, a *Attempt, r *Record) (decided bool, err error) {
	lctx, cancel := context.WithTimeout(ctx, g.policy.Lease)
	defer cancel()
	bare := *r
	bare.Result = Result{}
	finding, err := g.policy.Reconcile(lctx, bare)
	if err != nil {
		return false, fmt.Errorf("reconcile: %w", err)
	}
	switch finding.kind {
	case findingPresent:
		_, err := g.resolve(ctx, Resolution{
			Identity: r.Identity, Fence: r.Fence, Decision: DecideResult, Result: finding.result,
			Cause: "reconciled: the effect is there", Origin: a.Origin,
		})
		if err == nil || errors.Is(err, ErrStaleFence) || errors.Is(err, ErrNotFound) {
			return true, nil
		}
		return false, err
	case findingAbsent:
		// r.Lease was read before the look-up, so the look-up came later
		// than the settling time it vouches for.
		if g.policy.SettleAfter > 0 && -r.Lease >= g.policy.SettleAfter {
			a.Takeover = r.Fence
			return true, nil
		}
	}
	return false, nil
}

func (g *Guard) resolve(ctx context.Context, r Resolution) (Record, error) {
	call := g.storeContext(ctx)
	defer call.over()
	rec, err := g.resolved(call, r)
	if err != nil && g.observe.StoreFailed != nil && !errors.Is(err, ErrStaleFence) && !errors.Is(err, ErrNotFound) {
		g.observe.StoreFailed(ctx, StoreFailed{Scope: r.Identity.Scope, Call: "resolve", Err: err})
	}
	return rec, err
}
