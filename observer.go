package semel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// Observer has functions that a guard calls, for metrics, logs and traces. Each may
// be nil. They are called synchronously and concurrently, and must not block. Their
// arguments hold neither keys nor payload, unless the handler puts these into its
// errors.
type Observer struct {
	// Answered is called when a submit is answered: once for each Do, in its
	// goroutine.
	Answered func(context.Context, Answered)
	// StoreFailed is called when a call of the store fails, after which it may be
	// retried, and when a result cannot be decrypted.
	StoreFailed func(context.Context, StoreFailed)
	// LeaseLost is called when an execution is canceled because its claim was lost
	// or could not be renewed.
	LeaseLost func(context.Context, LeaseLost)
	// Panicked is called when a handler panics or calls runtime.Goexit, after
	// which its outcome is unknown or it was rolled back.
	Panicked func(context.Context, Panicked)
	// FailedOpen is called when a submit is let through without protection.
	FailedOpen func(ctx context.Context, s Scope, cause error)
}

// Answered describes the answer to a submit.
type Answered struct {
	Scope    Scope
	Answer   Answer
	Claimed  bool   // as in Outcome
	RecordID string // empty if no record was found
	// KeyDigest is the Digest of the key.
	KeyDigest string
	Label     string // of the result
	// Err is the Err field of the *Error if the answer is neither AnswerExecuted
	// nor AnswerReplayed. It is ErrRecorded for a recorded failure.
	Err  error
	Took time.Duration
}

// Digest returns what to log instead of a key or an actor: the first 16 hexadecimal
// digits of the SHA-256 of s, or "" if s is empty. Somebody who has the key can
// find it in a log. Keys that are easy to guess are not hidden by it.
func Digest(s string) string {
	if s == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// StoreFailed describes a call of the store that failed.
type StoreFailed struct {
	Scope    Scope
	RecordID string
	Call     string // begin, renew, complete, release, hold or resolve; decrypt for a result
	Err      error
}

// LeaseLost describes an execution that has lost its claim.
type LeaseLost struct {
	Scope    Scope
	RecordID string
	Fence    uint64
	Cause    error // ErrLostClaim or ErrLeaseLapsed
}

// Panicked describes a handler that panicked.
type Panicked struct {
	Scope    Scope
	RecordID string
	Err      *PanicError
}
