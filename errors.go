package semel

import (
	"errors"
	"fmt"
	"time"
)

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
