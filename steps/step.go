package steps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semelhq/semel"
)

// Policy says what to do about a call whose outcome is unknown, because its
// process died or its error leaves the outcome open.
type Policy struct {
	// OnCrash is CrashHold, the default, which leaves the step to a person;
	// CrashRetry, which calls again with the same child key, for services that
	// honour it; or CrashReconcile.
	OnCrash semel.CrashPolicy
	// Reconcile determines the outcome of the call. It must not cause effects.
	Reconcile func(ctx context.Context, c Call) (Finding, error)
	// SettleAfter is the longest time until a call's effect can be seen. Zero
	// means that there is no limit, so an absent effect stays unknown.
	SettleAfter time.Duration
}

// Call is a call whose outcome is unknown.
type Call struct {
	Identity semel.Identity
	Step     string
	Key      string // its child key
	Input    []byte // JSON
}

// Finding is the result of a reconciliation.
type Finding struct {
	known, present bool
	result         any
}

// Present reports that the call took effect and has this result.
func Present(result any) Finding { return Finding{true, true, result} }

// Absent reports that the call's effect cannot be seen. The call is made again,
// with the same child key, after Policy.SettleAfter.
func Absent() Finding { return Finding{known: true} }

// Undecided reports that the outcome cannot be determined yet. The completer
// asks again later.
func Undecided() Finding { return Finding{} }

// final is the recorded failure of a step.
func final(s *Step, err error) error {
	return semel.Final(&semel.RecordedError{Message: string(s.Result), Err: err})
}

// step executes a step by do, unless it is settled.
func step[Out any](ctx context.Context, name string, in any, do func(r *run, s *Step) (Out, error)) (out Out, err error) {
	r, s, err := enter(ctx, name, in)
	if err != nil {
		return out, err
	}
	err = errPanicked // unless do returns
	defer func() { r.leave(err) }()
	if s.State.settled() {
		out, err = recorded[Out](s)
	} else {
		out, err = do(r, s)
	}
	return out, err
}

var errPanicked = semel.Indeterminate("a step panicked", errors.New("steps: the step panicked, or ended its goroutine"))

// Local executes a step in a transaction of the journal's store, which also records
// its result, so that it takes effect once. fn finds the transaction in its
// context, as documented by the store's package, and must have no effects
// elsewhere. A step that is done is not executed again; Local returns its result.
//
// If fn's error is final (semel.Final), the transaction is rolled back and the
// failure is the step's result, with which the operation may continue. Any other
// error ends the execution, and the next execution executes the step again.
func Local[In, Out any](ctx context.Context, name string, in In, fn func(ctx context.Context, in In) (Out, error)) (Out, error) {
	return step(ctx, name, in, func(r *run, s *Step) (out Out, err error) {
		var zero Out
		if s.State != StateFree {
			return zero, changed(s.Position, name+" (remote)", name+" (local)")
		}
		var failed error // fn's
		err = r.config.Store.Transact(ctx, r.op.Number, r.op.Fence, r.sealed(r.op.Identity, *s), func(ctx context.Context) (b []byte, err error) {
			if out, failed = fn(ctx, in); failed == nil {
				b, failed = encode(out, r.config.MaxResult)
			}
			return r.seal(r.op.Identity, "result of "+name, b), failed
		})
		answer, _ := semel.Declared(failed)
		switch {
		case err == nil:
			s.State = StateDone
			return out, nil
		case failed == nil, errors.Is(err, ErrInDoubt):
			return zero, semel.Indeterminate("the transaction of a step failed", err)
		case answer == semel.AnswerExecuted:
			return zero, r.fail(ctx, s, failed)
		}
		return zero, semel.NoEffect(failed)
	})
}

// recorded is what a settled step has come to.
func recorded[Out any](s *Step) (out Out, err error) {
	if s.State == StateFailed {
		return out, final(s, nil)
	}
	if out, err = decode[Out](s.Result); err != nil {
		err = semel.Indeterminate("the journal's result does not fit", err)
	}
	return out, err
}

// fail records a failure for good, and returns it.
func (r *run) fail(ctx context.Context, s *Step, err error) error {
	s.State, s.Result, s.Cause = StateFailed, []byte(err.Error()), ""
	s.Result = s.Result[:min(len(s.Result), r.config.MaxResult)]
	return r.untold(r.put(ctx, s), final(s, err))
}

// hold marks a step Unknown, and returns the error that goes with it.
func (r *run) hold(ctx context.Context, s *Step, cause string, err error) error {
	s.State, s.Cause = StateUnknown, cause
	return semel.Indeterminate("a step's outcome is unknown", errors.Join(fmt.Errorf("%w: %q: %s", ErrUnknown, s.Name, cause), err, r.put(ctx, s)))
}

// Remote executes a step that calls another service. It records the input, calls fn,
// and records the result. If fn's requests are sent with its context by a client of
// this module (see semelclient), they carry the step's child key; other clients get it
// from semel.CurrentStep. A step that is done is not called again; Remote returns its
// result.
//
// fn's error is treated like that of a handler. After semel.NoEffect the next
// execution calls the step again. A semel.Final error is the step's result, with which
// the operation may continue. After any other error, and if the process dies during
// the call, p decides.
func Remote[In, Out any](ctx context.Context, name string, p Policy, in In, fn func(ctx context.Context, in In) (Out, error)) (Out, error) {
	return step(ctx, name, in, func(r *run, s *Step) (zero Out, err error) {
		if p.OnCrash > semel.CrashReconcile || (p.OnCrash == semel.CrashReconcile) != (p.Reconcile != nil) {
			return zero, semel.NoEffect(errors.New("steps: Policy.Reconcile goes with OnCrash Reconcile, and with nothing else"))
		}
		key, err := r.x.ChildKey(name)
		if err != nil { // the handler has given it to a call of its own
			return zero, semel.NoEffect(err)
		}
		doubt := s.State != StateFree
		if doubt {
			if settled, err := r.settle(ctx, s, key, p); err != nil {
				return zero, err
			} else if settled {
				return recorded[Out](s)
			}
		}
		s.State, s.Cause = StateStarted, ""
		if s.At.IsZero() {
			s.At = time.Now()
		}
		if err := r.put(ctx, s); err != nil {
			return zero, semel.Indeterminate("a step could not be recorded, and was not called", err)
		}
		if err := context.Cause(ctx); err != nil { // the claim may be another's by now
			if !doubt {
				s.State = StateFree
				err = errors.Join(err, r.put(ctx, s))
			}
			return zero, semel.Indeterminate("the execution was ended before a call", err)
		}
		out, err := fn(semel.WithStep(ctx, semel.Step{Key: key, At: s.At, InDoubt: doubt}), in)
		answer, _ := semel.Declared(err)
		switch {
		case err == nil:
			if s.Result, err = encode(out, r.config.MaxResult); err != nil {
				return zero, r.hold(ctx, s, "it was done, and its result could not be recorded", err)
			}
			s.State = StateDone
			return out, r.untold(r.put(ctx, s), nil)
		case answer == semel.AnswerExecuted:
			return zero, r.fail(ctx, s, err)
		case answer == semel.AnswerReleased && !doubt:
			s.State, s.Cause = StateFree, "the call had no effect"
			return zero, r.untold(r.put(ctx, s), err)
		case p.OnCrash == semel.CrashHold:
			return zero, r.hold(ctx, s, "the call failed, and does not say whether it had an effect", err)
		}
		return zero, semel.Indeterminate("a step's outcome is unknown", err)
	})
}

// untold is err, unless the store could not be told.
func (r *run) untold(told, err error) error {
	if told != nil {
		return semel.Indeterminate("what a step came to could not be recorded", errors.Join(told, err))
	}
	return err
}

// settle decides about a call of an execution before. It reports whether s is settled
// now; otherwise it is to be called again.
func (r *run) settle(ctx context.Context, s *Step, key string, p Policy) (settled bool, err error) {
	switch p.OnCrash {
	case semel.CrashRetry:
		return false, nil
	case semel.CrashHold:
		return false, r.hold(ctx, s, "the execution that made the call has ended", nil)
	}
	found, err := p.Reconcile(ctx, Call{r.x.Identity(), s.Name, key, s.Input})
	switch {
	case err != nil:
	case found.present:
		b, err := encode(found.result, r.config.MaxResult)
		if err != nil {
			return false, semel.Indeterminate("a reconciled result cannot be recorded", err)
		}
		s.State, s.Result, s.Cause = StateDone, b, "reconciled"
		return true, r.untold(r.put(ctx, s), nil)
	case found.known && p.SettleAfter > 0 && s.Age >= p.SettleAfter:
		return false, nil
	}
	return false, semel.Indeterminate("a step's outcome is unknown", errors.Join(fmt.Errorf("steps: the outcome of %q is not known yet", s.Name), err))
}
