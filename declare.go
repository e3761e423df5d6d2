package semel

import "errors"

// Declared tells what err, as a handler's error, makes of its submit: Released
// if NoEffect wraps it, Executed if Final does, Unknown if Indeterminate does;
// the outermost wrapper wins. It is false for other errors: Do takes them for
// Unknown, and who calls Do may know better. It is for packages that put a
// protocol on top of Do and record failures in that protocol's own form.
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

// NoEffect wraps an error that a handler returns when it is certain that
// nothing happened: the claim is released and the key may be used again.
func NoEffect(err error) error {
	return &classified{class: classNoEffect, cause: "no effect", err: err}
}

// Final wraps an error that a handler returns when the operation failed for
// good and every retry shall be told so: the error's text is recorded and
// replayed as a *RecordedError. The text is stored: keep secrets out of it.
func Final(err error) error {
	return &classified{class: classFinal, cause: "final failure", err: err}
}

// Indeterminate wraps an error that a handler returns when the effect may or
// may not have happened. So is every error that is not wrapped at all. The
// cause is kept in the record for whoever resolves it: a few words without
// payload or secrets. The text of err is not stored.
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
