package semelclient

import (
	"errors"
	"fmt"

	"github.com/semelhq/semel"
)

// Why an attempt was ended.
var (
	// ErrTryTimeout means that the attempt took longer than TryTimeout.
	ErrTryTimeout error = timeoutError("semelclient: no answer within the try's timeout")
	// ErrElapsed means that the call took longer than MaxElapsed.
	ErrElapsed error = timeoutError("semelclient: no answer within the time of the call")
)

type timeoutError string

func (e timeoutError) Error() string { return string(e) }

func (e timeoutError) Timeout() bool { return true }

// Reason says why a request was not retried.
type Reason string

const (
	// ReasonUnsafe means that the request may have been sent, has no key, and its
	// method is not idempotent.
	ReasonUnsafe Reason = "unsafe"
	// ReasonBody means that the body cannot be sent again.
	ReasonBody Reason = "body"
	// ReasonTries means that MaxTries was reached.
	ReasonTries Reason = "tries"
	// ReasonElapsed means that MaxElapsed has passed, or that the next attempt would
	// be after it or after the deadline of the request's context.
	ReasonElapsed Reason = "elapsed"
	// ReasonContext means that the context of the request has ended.
	ReasonContext Reason = "context"
	// ReasonRefused means that the request was not sent because something is wrong
	// with it, such as a body that did not arrive in time, or with the certificate
	// of the server.
	ReasonRefused Reason = "refused"
)

// Error is the error of Transport.RoundTrip: the last attempt got no response. It
// matches semel.ErrNoEffect or semel.ErrMaybeEffect, and Err.
//
// ErrNoEffect holds for this call and all earlier ones under the key. The
// transport knows these only for a key that it made for the call, for the key of
// NewOperation if all calls were made with its context, and for the key of WithStep
// unless the execution is in doubt. Under a key that somebody else has made or
// kept, an error always matches ErrMaybeEffect.
type Error struct {
	Tries  int
	Reason Reason
	// Err is the error of the last attempt, or says what is wrong with the request.
	Err error

	effect  semel.Effect
	earlier bool // only calls before this one may have had an effect
	op      Operation
}

// Effect returns semel.EffectNone or semel.EffectMaybe.
func (e *Error) Effect() semel.Effect { return e.effect }

// Operation returns the operation to retry with. Under another key, a request that
// has taken effect could do so twice. Its Key is empty if the request had none.
func (e *Error) Operation() Operation { return e.op }

// Error returns a message that does not contain the key.
func (e *Error) Error() string {
	s := "semelclient: no answer after " + plural(e.Tries, "try", "tries") + "; the request "
	switch {
	case e.effect == semel.EffectNone:
		s += "had no effect"
	case e.earlier:
		s += "had no effect, but one before it under its key may have had; retry it under the same key only"
	case e.op.Key != "":
		s += "may have taken effect, retry it under the same key only"
	default:
		s += "may have taken effect"
	}
	return s + ": " + e.Err.Error()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the last attempt timed out, also to url.Error.Timeout.
func (e *Error) Timeout() bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.Err)
	return ok && t.Timeout()
}

// Is reports whether target is the one of semel.ErrNoEffect and
// semel.ErrMaybeEffect that applies.
func (e *Error) Is(target error) bool {
	switch target {
	case semel.ErrNoEffect:
		return e.effect == semel.EffectNone
	case semel.ErrMaybeEffect:
		return e.effect == semel.EffectMaybe
	}
	return false
}
