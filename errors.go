package semel

import (
	"errors"
	"fmt"
	"time"
)

// Errors to be matched with errors.Is. The first three say whether there was an
// effect; the others name the case.
var (
	// ErrNoEffect means that the effect certainly did not happen.
	ErrNoEffect = errors.New("semel: certainly no effect")
	// ErrMaybeEffect means that the effect may have happened. Do not retry under
	// another key.
	ErrMaybeEffect = errors.New("semel: maybe an effect")
	// ErrRecorded means that the operation failed for good and that the failure
	// is recorded. A retry returns the same failure.
	ErrRecorded = errors.New("semel: recorded failure")

	// ErrResultNotRetained means that the operation completed once but its
	// result was not kept. Read the resource instead.
	ErrResultNotRetained = errors.New("semel: completed, result not retained")

	ErrInProgress  = errors.New("semel: in progress")
	ErrMismatch    = errors.New("semel: key belongs to another request")
	ErrUnknown     = errors.New("semel: outcome unknown")
	ErrRejected    = errors.New("semel: submit rejected")
	ErrUnavailable = errors.New("semel: store unavailable")
)

// Error is the error of Guard.Do for every answer other than AnswerExecuted and
// AnswerReplayed. It matches the error variable of its answer, ErrNoEffect or
// ErrMaybeEffect, and Err.
type Error struct {
	Answer Answer
	// RetryAfter is how long to wait before a retry. Zero means unknown.
	RetryAfter time.Duration
	// Record is the conflicting record, without its result. It is nil if none
	// was found.
	Record *Record
	// Claimed reports whether the identity was granted to this submit, as in
	// Outcome. If so, the failure is that of this submit and not of an earlier
	// one.
	Claimed bool
	// Err is the cause: the error of the handler, the store or the context.
	Err error

	// advice replaces the answer's, where the policy knows better.
	advice RetryAdvice
}

// Effect returns whether the effect may have happened.
func (e *Error) Effect() Effect { return e.Answer.Effect() }

// Retry returns whether and how to retry.
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
		switch {
		case errors.Is(e.Err, ErrUnreadable):
			what = "the operation has completed, but its recorded result cannot be read; retry with the same key once that is settled"
		case e.Claimed:
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

// Is reports whether target is the error variable of e's answer, or the one of
// ErrNoEffect and ErrMaybeEffect that applies.
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

// RecordedError is a failure that is on record, either of this submit or
// replayed. It matches ErrRecorded.
type RecordedError struct {
	// Message is the text of the error that the handler wrapped with Final.
	Message string
	// Err is that error. It is nil in a replay.
	Err error
}

func (e *RecordedError) Error() string { return e.Message }

func (e *RecordedError) Unwrap() error { return e.Err }

// Is reports whether target is ErrRecorded.
func (e *RecordedError) Is(target error) bool { return target == ErrRecorded }

// unreadable is the answer about a completed record whose result cannot be decrypted
// until an operator has seen to it.
func unreadable(err error) *Error {
	return &Error{Answer: AnswerUnavailable, RetryAfter: 30 * time.Second, Err: err}
}

// ErrDraining means that the guard accepts no new submits because Drain was
// called.
var ErrDraining = errors.New("semel: draining")

// BusyError is the cause of AnswerUnavailable when a limit of the guard's Config
// is reached. The store was not asked.
type BusyError struct {
	Bound string // the name of the field of Config
	Limit int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("semel: %d executions at the same time are as many as %s allows", e.Limit, e.Bound)
}

// PanicError is the cause of an unknown outcome when the handler panicked or
// called runtime.Goexit.
type PanicError struct {
	// Value is the value passed to panic. It is nil for runtime.Goexit.
	Value any
	// Stack is the handler's stack, as formatted by runtime/debug.Stack.
	Stack []byte
}

// Error returns the type of Value but not Value itself, which may hold payload.
func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked with a %T", e.Value) }
