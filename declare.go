package semel

import "errors"

type class uint8

const (
	classNoEffect class = iota + 1
	classFinal
	classIndeterminate
)

type classified struct {
	class class
	cause string
	err   error
}

func (c *classified) Error() string {
	if c.err != nil {
		return c.err.Error()
	}
	return c.cause
}

func (c *classified) Unwrap() error { return c.err }

// NoEffect wraps the error of a handler that certainly had no effect. The claim
// is released and the key can be used again.
func NoEffect(err error) error {
	return &classified{class: classNoEffect, cause: "no effect", err: err}
}

// Final wraps the error of a handler that failed for good. The text of the error
// is recorded, and every retry returns it in a *RecordedError. Keep secrets out
// of it.
func Final(err error) error {
	return &classified{class: classFinal, cause: "final failure", err: err}
}

// Indeterminate wraps the error of a handler that may or may not have had an
// effect, as does any error that is not wrapped. The cause is kept in the record
// for whoever resolves it: a few words, without payload or secrets. The text of
// err is not stored.
func Indeterminate(cause string, err error) error {
	return &classified{class: classIndeterminate, cause: cause, err: err}
}

// classify reads the class of a handler's error; the outermost wrapper wins.
// A handler cannot turn "maybe" into "none" by accident: an *Error from a
// nested submit is only as certain as that submit was.
func classify(err error) (class, string) {
	if c, ok := errors.AsType[*classified](err); ok {
		return c.class, c.cause
	}
	return classIndeterminate, "the handler returned an error that does not say whether it had an effect"
}

// Declared returns the answer that a handler's error declares: AnswerReleased if
// it is wrapped with NoEffect, AnswerExecuted if with Final, and AnswerUnknown if
// with Indeterminate. The outermost wrapper counts. It reports false for other
// errors, which Do treats as AnswerUnknown.
//
// It is for packages that put a protocol on top of Do and record failures in
// that protocol's own form.
func Declared(err error) (Answer, bool) {
	c, ok := errors.AsType[*classified](err)
	if !ok {
		return 0, false
	}
	switch c.class {
	case classNoEffect:
		return AnswerReleased, true
	case classFinal:
		return AnswerExecuted, true
	}
	return AnswerUnknown, true
}
