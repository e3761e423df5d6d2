package semelclient

import (
	"errors"
	"fmt"

	"github.com/semelhq/semel"
)

// Why a try ended that a Config bounds.
var (
	// ErrTryTimeout: it took longer than TryTimeout.
	ErrTryTimeout error = timeoutError("semelclient: no answer within the try's timeout")
	// ErrElapsed: with it, the call took longer than MaxElapsed.
	ErrElapsed error = timeoutError("semelclient: no answer within the time of the call")
)

type timeoutError string

func (e timeoutError) Error() string { return string(e) }

func (e timeoutError) Timeout() bool { return true }

// Reason is why a call was not tried again.
type Reason string

const (
	// ReasonUnsafe: the request has no key, its method is not idempotent, and it
	// may have been sent.
	ReasonUnsafe Reason = "unsafe"
	// ReasonBody: its body cannot be sent again.
	ReasonBody Reason = "body"
	// ReasonTries: MaxTries are over.
	ReasonTries Reason = "tries"
	// ReasonElapsed: MaxElapsed is over, or the next try would be later than
	// that, or than the deadline of the request's context.
	ReasonElapsed Reason = "elapsed"
	// ReasonContext: the request's context has ended.
	ReasonContext Reason = "context"
	// ReasonRefused: the request was not sent because something is wrong with
	// it, as a body that did not come in time, or with the server's certificate.
	ReasonRefused Reason = "refused"
)

// Error is every error of a Transport's RoundTrip: the last try got no
// answer. It matches semel.ErrNoEffect or semel.ErrMaybeEffect, and Err.
//
// Certainly no effect is said of the key: of this call and all before it. So it
// is said where the transport knows them all: of a key that it made for this
// call, of NewOperation's with the calls made with its context, and of WithStep's
// unless the execution is in doubt. What became of a key that somebody
// else made or kept, it cannot know: a call under such a key never ends with
// certainly no effect.
type Error struct {
	Tries  int
	Reason Reason
	// Err is what became of the last try, or what is wrong with the request.
	Err error

	effect  semel.Effect
	earlier bool // only calls before this one may have had an effect
	op      Operation
}

// Effect is semel.EffectNone or semel.EffectMaybe.
func (e *Error) Effect() semel.Effect { return e.effect }

// Operation has the key to come back with: with another key, what may have
// taken effect could do so twice. The key is empty if the request had none.
func (e *Error) Operation() Operation { return e.op }

// Error does not tell the key.
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

// Timeout reports whether the last try timed out. It makes
// url.Error.Timeout work, which looks no deeper.
func (e *Error) Timeout() bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.Err)
	return ok && t.Timeout()
}

// Is matches semel.ErrNoEffect and semel.ErrMaybeEffect.
func (e *Error) Is(target error) bool {
	switch target {
	case semel.ErrNoEffect:
		return e.effect == semel.EffectNone
	case semel.ErrMaybeEffect:
		return e.effect == semel.EffectMaybe
	}
	return false
}
