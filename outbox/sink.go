package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sink delivers messages. Deliver returns nil if the message has certainly
// arrived. Any other answer is a failure:
//
//   - Permanent: it will never arrive; the message is dead at once.
//   - RetryAfter: it has not arrived, and is tried again no sooner than that.
//   - Postpone: nothing was tried. It does not count as an attempt.
//   - Uncertain: it may have arrived. The route's policy decides.
//   - Any other error: it is tried again, later each time; after
//     [Delivery.BeforeEffect] it is Uncertain.
//
// A panic is a failure like any other error.
//
// Deliver is called by many goroutines at once, never for two messages of one
// lane. ctx ends with the route's Timeout, when the relay is stopped, and
// when the claim is lost; Deliver then returns soon.
type Sink interface {
	Deliver(ctx context.Context, d Delivery) error
}

// SinkFunc is a function that is a Sink.
type SinkFunc func(ctx context.Context, d Delivery) error

// Deliver implements Sink.
func (f SinkFunc) Deliver(ctx context.Context, d Delivery) error { return f(ctx, d) }

// Delivery is an attempt to deliver a message.
type Delivery struct {
	Message
	// Attempt counts the attempts at this message, from 1. It does not count
	// those of before a redrive.
	Attempt int
	// EnqueuedAt is when the message was enqueued, by the store's clock. It
	// stays the same over all attempts.
	EnqueuedAt time.Time
	// Unsure says that an earlier attempt may have arrived.
	Unsure bool

	parcel *parcel // nil if made by a test of a sink
}

// Settle settles the message as delivered in the transaction that ctx carries: the
// last thing before its commit. Then the message is delivered if that commits, and
// its effects in the transaction are once: a relay that lost the claim cannot commit.
// It fails with ErrLeaseLost if the claim is lost, and with errors.ErrUnsupported if
// the store is no Settler. Roll back after any error. Deliver returns nil if the
// transaction is committed, and an error otherwise, or if nobody knows.
func (d Delivery) Settle(ctx context.Context) error {
	if d.parcel == nil {
		return nil
	}
	return d.parcel.settle(ctx)
}

// BeforeEffect records that what comes next may have its effect. Sinks call it
// right before an effect that a receiver cannot recognise as a repetition, and
// do nothing if it fails: then the claim may have been lost. If the process dies
// between BeforeEffect and the record of the outcome, the message is treated
// like one whose sink answered Uncertain: under [UnknownHold] nobody delivers it again
// before somebody has decided.
func (d Delivery) BeforeEffect(ctx context.Context) error {
	if d.parcel == nil {
		return nil
	}
	return d.parcel.mark(ctx)
}

// Permanent says of a delivery that it failed and always will.
func Permanent(err error) error { return &outcomeError{kind: outcomePermanent, err: err} }

// RetryAfter says of a delivery that it had no effect, and that it is to be
// tried again no sooner than after d, which relays bound to 24 h.
func RetryAfter(d time.Duration, err error) error {
	return &outcomeError{kind: outcomeRetry, after: d, err: err}
}

// Postpone says of a delivery that nothing was tried, for a reason that is not the
// message's, and that it is to be tried no sooner than after d, which relays bound
// to 24 h. It counts as no attempt, and nobody is told.
func Postpone(d time.Duration, err error) error {
	return &outcomeError{kind: outcomePostponed, after: d, err: err}
}

// Uncertain says of a delivery that nobody can know whether it had its effect.
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

// PanicError is a panic of a sink.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the sink panicked: %v", e.Value) }
