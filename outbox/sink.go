package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sink delivers messages. Deliver returns nil if the message has certainly
// arrived. Otherwise it returns an error:
//
//   - Permanent: the message will never arrive. It is dead at once.
//   - RetryAfter: the message has not arrived. It is tried again no sooner than
//     after that delay.
//   - Postpone: nothing was tried. It does not count as an attempt.
//   - Uncertain: the message may have arrived. The route's policy decides.
//   - Any other error: the message is tried again, after growing delays. After
//     [Delivery.BeforeEffect] the error counts as Uncertain.
//
// A panic counts as such an error.
//
// Deliver is called by many goroutines at once, never for two messages of one
// lane. ctx ends after the route's Timeout, when the relay is stopped, and when
// the claim is lost. Deliver should then return soon.
type Sink interface {
	Deliver(ctx context.Context, d Delivery) error
}

// SinkFunc is an adapter that makes a function a Sink.
type SinkFunc func(ctx context.Context, d Delivery) error

// Deliver implements Sink.
func (f SinkFunc) Deliver(ctx context.Context, d Delivery) error { return f(ctx, d) }

// Delivery is an attempt to deliver a message.
type Delivery struct {
	Message
	// Attempt counts the attempts at this message, from 1. Attempts before a
	// redrive do not count.
	Attempt int
	// EnqueuedAt is when the message was enqueued, by the store's clock. It is
	// the same in all attempts.
	EnqueuedAt time.Time
	// Unsure says that an earlier attempt may have arrived.
	Unsure bool

	parcel *parcel // nil if made by a test of a sink
}

// Settle settles the message as delivered in the transaction in ctx. It must be the
// last call before the commit. The message is delivered if the transaction commits,
// and its effects in the transaction happen once, because a relay that has lost the
// claim cannot commit. Settle fails with ErrLeaseLost if the claim is lost, and with
// errors.ErrUnsupported if the store is not a Settler. Roll back after any error.
// Deliver must return nil if the transaction was committed, and an error if it was
// not or if that is unknown.
func (d Delivery) Settle(ctx context.Context) error {
	if d.parcel == nil {
		return nil
	}
	return d.parcel.settle(ctx)
}

// BeforeEffect records that the delivery may have its effect from now on. A sink calls
// it immediately before an effect that the receiver cannot recognise as a repetition.
// If it fails, the claim may have been lost, and the sink must not cause the effect.
// If the process dies between BeforeEffect and the record of the outcome, the message
// is treated as if the sink had returned [Uncertain]. Under [UnknownHold] it is then
// not delivered again until somebody decides.
func (d Delivery) BeforeEffect(ctx context.Context) error {
	if d.parcel == nil {
		return nil
	}
	return d.parcel.mark(ctx)
}

// Permanent wraps err to report that the delivery failed and would fail again.
func Permanent(err error) error { return &outcomeError{kind: outcomePermanent, err: err} }

// RetryAfter wraps err to report that the delivery had no effect and should be
// tried again no sooner than after d, at most 24 h.
func RetryAfter(d time.Duration, err error) error {
	return &outcomeError{kind: outcomeRetry, after: d, err: err}
}

// Postpone wraps err to report that nothing was tried, for a reason that has
// nothing to do with the message, and that the delivery should be tried after d,
// at most 24 h. It does not count as an attempt and is not reported to the
// Observer.
func Postpone(d time.Duration, err error) error {
	return &outcomeError{kind: outcomePostponed, after: d, err: err}
}

// Uncertain wraps err to report that it cannot be known whether the delivery
// had its effect.
func Uncertain(err error) error { return &outcomeError{kind: outcomeUncertain, err: err} }

type outcomeKind uint8

const (
	outcomePlain outcomeKind = iota
	outcomePermanent
	outcomeRetry
	outcomeUncertain
	outcomePostponed
)

type outcomeError struct {
	kind  outcomeKind
	after time.Duration
	err   error
}

func (e *outcomeError) Error() string {
	if e.kind == outcomeUncertain {
		return fmt.Sprintf("it may have arrived: %v", e.err)
	}
	return e.err.Error() // so that a cause begins as the sink's errors do
}

func (e *outcomeError) Unwrap() error { return e.err }

func outcomeOf(err error) (kind outcomeKind, after time.Duration) {
	if e, ok := errors.AsType[*outcomeError](err); ok {
		return e.kind, e.after
	}
	return outcomePlain, 0
}

// PanicError is the error for a sink that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the sink panicked: %v", e.Value) }
