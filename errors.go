package semel

import (
	"errors"
	"fmt"
	"time"
)

// Answer is what a submit came to.
type Answer uint8

const (
	// AnswerExecuted: this submit executed and the record of it is durable.
	AnswerExecuted Answer = iota + 1
	// AnswerReplayed: the identity had completed before; the result is from the record.
	AnswerReplayed
	// AnswerReleased: this submit executed, reported that it certainly had no
	// effect, and the identity is free again.
	AnswerReleased
	// AnswerInProgress: another submit of this identity is executing, or this
	// one still is and its caller stopped waiting.
	AnswerInProgress
	// AnswerMismatch: the identity belongs to another request.
	AnswerMismatch
	// AnswerUnknown: whether the effect happened is not known.
	AnswerUnknown
	// AnswerRejected: the submit is malformed; nothing was looked up.
	AnswerRejected
	// AnswerUnavailable: the store could not be asked, a bound is reached, or the
	// guard is draining. This submit executed nothing, but an earlier one of
	// the identity may have. Where Error.Claimed is set it did execute, and the
	// store could not be told what became of it.
	AnswerUnavailable
)

var answerNames = [...]string{
	AnswerExecuted: "executed", AnswerReplayed: "replayed", AnswerReleased: "released", AnswerInProgress: "in_progress",
	AnswerMismatch: "mismatch", AnswerUnknown: "unknown", AnswerRejected: "rejected", AnswerUnavailable: "unavailable",
}

func (a Answer) String() string {
	if int(a) < len(answerNames) && a > 0 {
		return answerNames[a]
	}
	return fmt.Sprintf("Answer(%d)", uint8(a))
}

// Effect says whether the effect that a submit asked for has happened.
type Effect uint8

const (
	// EffectMaybe: it may have happened, or be about to.
	EffectMaybe Effect = iota
	// EffectNone: it certainly did not happen, neither through this submit
	// nor through an earlier one of the same request.
	EffectNone
	// EffectDone: it happened, once, and the result is at hand.
	EffectDone
)

func (e Effect) String() string {
	switch e {
	case EffectNone:
		return "none"
	case EffectDone:
		return "done"
	}
	return "maybe"
}

// Effect tells what the answer says about the effect.
func (a Answer) Effect() Effect {
	switch a {
	case AnswerExecuted, AnswerReplayed:
		return EffectDone
	case AnswerReleased, AnswerMismatch, AnswerRejected:
		return EffectNone
	}
	return EffectMaybe
}

// RetryAdvice is the advice that goes with an answer.
type RetryAdvice string

const (
	// RetrySameKey: the same request under the same key is safe, and is how
	// to learn the result.
	RetrySameKey RetryAdvice = "same-key"
	// RetryNewKey: correct the request and send it under a new key.
	RetryNewKey RetryAdvice = "new-key"
	// RetryAfterResolution: the same key, after someone resolved the record.
	// A new key might repeat the effect.
	RetryAfterResolution RetryAdvice = "after-resolution"
	// RetryNo: retrying cannot help.
	RetryNo RetryAdvice = "no"
)

// Retry is the advice for the answer.
func (a Answer) Retry() RetryAdvice {
	switch a {
	case AnswerReleased, AnswerInProgress, AnswerUnavailable:
		return RetrySameKey
	case AnswerRejected:
		return RetryNewKey
	case AnswerUnknown:
		return RetryAfterResolution
	}
	return RetryNo
}

// Sentinels for errors.Is. The first three answer the caller's first
// question; the others name the case.
var (
	// ErrNoEffect: the effect certainly did not happen.
	ErrNoEffect = errors.New("semel: certainly no effect")
	// ErrMaybeEffect: the effect may have happened. Never retry under
	// another key.
	ErrMaybeEffect = errors.New("semel: maybe an effect")
	// ErrRecorded: the operation failed for good, and that is on record: a
	// retry is told the same.
	ErrRecorded = errors.New("semel: recorded failure")

	// ErrResultNotRetained: the operation completed, once, but its result
	// was not kept. Read the resource instead.
	ErrResultNotRetained = errors.New("semel: completed, result not retained")

	ErrInProgress  = errors.New("semel: in progress")
	ErrMismatch    = errors.New("semel: key belongs to another request")
	ErrUnknown     = errors.New("semel: outcome unknown")
	ErrRejected    = errors.New("semel: submit rejected")
	ErrUnavailable = errors.New("semel: store unavailable")
)

// Error is how Guard.Do reports every answer but Executed and Replayed.
// errors.Is matches it against the sentinel of its answer, against ErrNoEffect
// or ErrMaybeEffect, and against the cause in Err.
type Error struct {
	Answer Answer
	// RetryAfter is when a retry may find something new; zero if unknown.
	RetryAfter time.Duration
	// Record is the record in the way, without its result; nil if none was seen.
	Record *Record
	// Claimed says that the identity was granted to this submit, as in Outcome:
	// the failure is its own, and not that of an earlier one.
	Claimed bool
	// Err is the cause: the handler's error, the store's, or the context's.
	Err error

	// advice replaces the answer's, where the policy knows better.
	advice RetryAdvice
}

// Effect says whether the effect may have happened.
func (e *Error) Effect() Effect { return e.Answer.Effect() }

// Retry says whether and how to try again.
func (e *Error) Retry() RetryAdvice {
	if e.advice != "" {
		return e.advice
	}
	return e.Answer.Retry()
}

func (e *Error) Error() string {
	var what string
	switch e.Answer {
	case AnswerReleased:
		what = "the operation had no effect; the same key may be used again"
	case AnswerInProgress:
		what = "the operation is in progress; ask again with the same key"
	case AnswerMismatch:
		what = "the key was used for another request; this one was not executed"
	case AnswerUnknown:
		what = "the outcome is unknown; do not retry under another key before it is resolved"
	case AnswerRejected:
		what = "the submit was rejected; nothing was executed"
	case AnswerUnavailable:
		what = "the record could not be consulted, so this submit executed nothing; retry with the same key"
		if e.Claimed {
			what = "the operation was executed, but what came of it could not be recorded; ask again with the same key, and with no other"
		}
	default:
		what = e.Answer.String()
	}
	if e.Err != nil {
		return "semel: " + what + ": " + e.Err.Error()
	}
	return "semel: " + what
}

func (e *Error) Unwrap() error { return e.Err }

// Is matches the sentinels that fit the answer.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNoEffect:
		return e.Effect() == EffectNone
	case ErrMaybeEffect:
		return e.Effect() == EffectMaybe
	case ErrInProgress:
		return e.Answer == AnswerInProgress
	case ErrMismatch:
		return e.Answer == AnswerMismatch
	case ErrUnknown:
		return e.Answer == AnswerUnknown
	case ErrRejected:
		return e.Answer == AnswerRejected
	case ErrUnavailable:
		return e.Answer == AnswerUnavailable
	}
	return false
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

// RecordedError is a final failure, fresh or replayed. It matches ErrRecorded.
type RecordedError struct {
	// Message is the text of the error the handler wrapped in Final.
	Message string
	// Err is that error itself, in the submit that executed; nil in a replay.
	Err error
}

func (e *RecordedError) Error() string { return e.Message }

func (e *RecordedError) Unwrap() error { return e.Err }

// Is matches ErrRecorded.
func (e *RecordedError) Is(target error) bool { return target == ErrRecorded }

// ErrDraining: the guard takes no new work because the process is stopping.
var ErrDraining = errors.New("semel: draining")

// BusyError is the cause of an Unavailable answer where a bound of the guard's
// Config is reached. Nothing was looked up and nothing was stored.
type BusyError struct {
	Bound string // the name of the Config's field
	Limit int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("semel: %d executions at the same time are as many as %s allows", e.Limit, e.Bound)
}

// PanicError is the cause of an unknown outcome when the handler panicked or
// called runtime.Goexit.
type PanicError struct {
	// Value is what was passed to panic; nil for runtime.Goexit.
	Value any
	// Stack is the handler's stack, as runtime/debug.Stack prints it.
	Stack []byte
}

// Error does not print Value, which may hold payload.
func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked with a %T", e.Value) }
