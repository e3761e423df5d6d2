package semel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// Observer is told what a guard does, for metrics, logs and traces. Every
// field may be nil. Functions are called in the goroutine at work and must not
// block; they may be called at the same time from many. What they are given
// holds neither keys nor payload, unless the handler puts them into its errors.
type Observer struct {
	// Answered: a submit was answered. Called once for each Do, in its goroutine.
	Answered func(context.Context, Answered)
	// StoreFailed: a call of the store failed and may be tried again.
	StoreFailed func(context.Context, StoreFailed)
	// LeaseLost: an execution was cancelled because its claim was lost or
	// could not be renewed.
	LeaseLost func(context.Context, LeaseLost)
	// Panicked: a handler panicked or ended its goroutine. Its outcome is
	// unknown, or it was rolled back. The panic goes on up.
	Panicked func(context.Context, Panicked)
	// FailedOpen: a submit was let through without protection.
	FailedOpen func(ctx context.Context, s Scope, cause error)
}

// Answered is an answer to a submit.
type Answered struct {
	Scope    Scope
	Answer   Answer
	Claimed  bool   // as in Outcome
	RecordID string // "" if none was seen
	// KeyDigest tells the key from others without telling it; see Digest.
	KeyDigest string
	Label     string // of the result
	// Err is why the answer is neither Executed nor Replayed: the cause in the
	// *Error, as the store, the context or the handler put it. Of a recorded
	// failure it is ErrRecorded.
	Err  error
	Took time.Duration
}

// Digest is what logs say instead of a key or an actor: the first 16 hexadecimal
// digits of the SHA-256 of s, "" if s is empty. Who has the key can find it in a
// log, and who can guess it from the digest has guessed it before: keys that are
// easy to guess are not hidden by it.
func Digest(s string) string {
	if s == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// StoreFailed is a call of the store that failed.
type StoreFailed struct {
	Scope    Scope
	RecordID string
	Call     string // begin, renew, complete, release, hold or resolve
	Err      error
}

// LeaseLost is an execution that lost its claim.
type LeaseLost struct {
	Scope    Scope
	RecordID string
	Fence    uint64
	Cause    error // ErrLostClaim or ErrLeaseLapsed
}

// Panicked is a handler that panicked.
type Panicked struct {
	Scope    Scope
	RecordID string
	Err      *PanicError
}
