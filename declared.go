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
