package semel

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"
)

// Errors that every store returns, possibly wrapped, in the following cases. Any
// other error means that the store cannot say what happened.
var (
	// ErrNotFound means that the identity has no record, or only an expired one.
	ErrNotFound = errors.New("semel: no such record")
	// ErrNotOpen means that the store is closed or could not be opened. The call
	// certainly had no effect, and another call would have none either.
	ErrNotOpen = errors.New("semel: the store is not open")
	// ErrLostClaim means that the fence or the token of the claim is stale: the
	// record was taken over, resolved or released. Nothing was written.
	ErrLostClaim = errors.New("semel: claim lost")
	// ErrRolledBack means that the transaction of the claim has certainly been
	// rolled back, together with everything that the handler did in it. There was
	// no effect, and the identity is free again.
	ErrRolledBack = errors.New("semel: transaction rolled back")
	// ErrTooLarge means that the result is larger than the store accepts, or could
	// not be read to its end. Nothing was written. A tombstone can be recorded
	// instead.
	ErrTooLarge = errors.New("semel: result too large for the store")
	// ErrStaleFence means that the record no longer has the fence of the
	// resolution, or cannot be resolved: it is completed, or being executed under
	// a lease. Nothing was written.
	ErrStaleFence = errors.New("semel: the record has moved on")
)

// ConflictError is the error of Store.Begin if the identity is taken.
type ConflictError struct {
	// Record is the conflicting record. It may be shared and must not be changed.
	// A store that knows that the identity is claimed but cannot read the record,
	// because another transaction has locked it, sets Identity, StateInProgress
	// and a Lease only.
	Record Record
}

func (e *ConflictError) Error() string {
	return "semel: identity is taken: record " + e.Record.ID + " is " + e.Record.State.String()
}

// Store holds one record for each identity. It has no policy: it reports what is
// so, by its own clock, and the Guard decides.
//
// All methods are safe for concurrent use by many goroutines and, if the store is
// shared, by many processes. If ctx ends, a method returns promptly with an error,
// and may or may not have had its effect.
//
// Package storetest tests whether a store keeps this contract.
type Store interface {
	// Begin grants the identity of a to the caller, or returns a *ConflictError
	// with the conflicting record. Of any number of concurrent attempts, at most
	// one is granted.
	//
	// An attempt is granted if there is no record, if the record is completed and
	// its retention is over, if the record is in progress under a.Token (the claim
	// is then the same, with its lease renewed), and if a.Takeover allows it. The
	// record gets a new fence, unless the claim is the same. A takeover keeps the
	// ID and the fingerprint of the record and clears Reopened. An attempt that
	// replaces an expired record starts a new one.
	Begin(ctx context.Context, a Attempt) (Claim, error)

	// Find returns the record of id, or ErrNotFound.
	Find(ctx context.Context, id Identity) (Record, error)
}

// Token is a random value that proves the ownership of a claim. A fence alone
// could be guessed, and could repeat after a store was restored from a backup.
type Token [16]byte

// Attempt is the argument of Store.Begin. NewAttempt makes one.
type Attempt struct {
	Identity    Identity
	Fingerprint Fingerprint
	Origin      Origin

	// Token makes Begin repeatable: if the response of a call was lost, a call
	// with the same token is granted the same claim. Two owners must never share
	// a token.
	Token Token

	// Lease is how long the claim is valid without renewal.
	Lease time.Duration
	// Retention is how long the result is replayed after completion.
	Retention time.Duration

	// Takeover, if not zero, is the fence of a record that may be taken over. The
	// store grants this if the record has that fence and is unknown, or in
	// progress with a lease that has lapsed by the store's clock. It is ignored if
	// there is no record.
	Takeover uint64
}

// NewAttempt returns an Attempt for id with a fresh token.
func NewAttempt(id Identity, fp Fingerprint, lease, retention time.Duration) Attempt {
	a := Attempt{Identity: id, Fingerprint: fp, Lease: lease, Retention: retention}
	_, _ = rand.Read(a.Token[:]) // never fails: crypto/rand aborts the process instead
	return a
}

// NewRecordID returns a random record ID: 128 bits in 26 letters and digits.
func NewRecordID() string { return strings.ToLower(rand.Text()) }

// Claim is the right to execute an identity. Its methods return ErrLostClaim once
// the record has another fence or token, or is gone.
//
// A lapsed lease does not end a claim. Until the record is taken over or resolved,
// the claim can be renewed, completed, released and held, and if the record is
// unknown, completed and released. Once the claim has completed the record,
// Release, Hold and Renew return ErrLostClaim and write nothing.
//
// A claim may live in a database transaction, which its Context carries. Complete
// then commits, and Release and Hold roll back. Complete and Hold return
// ErrRolledBack if the transaction was certainly rolled back. If it is not known
// whether it was committed, Complete returns another error and can be called again
// to find out.
type Claim interface {
	// Context returns a context for the handler. It carries the transaction of
	// the claim, if any.
	Context(ctx context.Context) context.Context
	// RecordID returns the ID of the record.
	RecordID() string
	// Fence returns the fence of the claim.
	Fence() uint64
	// Transactional reports whether the claim lives in a database transaction.
	Transactional() bool
	// Complete records the result. The retention starts now, by the store's clock,
	// and expires is its end. If the error is nil, the record is durable. Calling
	// Complete again changes nothing and returns the same, so that a lost response
	// can be asked for again.
	//
	// ErrTooLarge leaves the claim as it is. It is also returned for Pieces, by a
	// store that does not keep results piece by piece, and if a piece could not be
	// read. Pieces are read under ctx and become durable with the record, in one
	// commit.
	Complete(ctx context.Context, r Result) (expires time.Time, err error)
	// Release removes the record because there was certainly no effect.
	Release(ctx context.Context) error
	// Hold marks the record as unknown and says why. Holding it again returns nil.
	Hold(ctx context.Context, cause string) error
	// Renew starts the lease again from now, by the store's clock. It returns
	// ErrLostClaim if the record has been marked as unknown.
	Renew(ctx context.Context) error
}

// Joiner is implemented by claims that may live in a transaction of the caller of
// Guard.Do. The caller uses the transaction again when Do returns. So if Joined
// reports true, Do does not return before the handler has, even if the submit is
// Detached.
type Joiner interface {
	Joined() bool
}

// Resolver is implemented by stores that can settle unknown outcomes. All stores
// of this project implement it.
type Resolver interface {
	// Resolve applies r. It returns the record as it is afterwards or, with
	// DecideNoEffect, as it was before.
	Resolve(ctx context.Context, r Resolution) (Record, error)
}

// Sweeper is implemented by stores whose expired records have to be removed.
type Sweeper interface {
	// Sweep removes up to limit completed records whose retention is over, by the
	// store's clock, and returns how many it removed. It never removes a record
	// that is in progress or unknown.
	Sweep(ctx context.Context, limit int) (int, error)
}

// Lister is implemented by stores that can list their records.
type Lister interface {
	// List returns records in the order of their fences, without their results.
	// It does not return expired records.
	List(ctx context.Context, f Filter) ([]Record, error)
}

// Trail is implemented by stores with an audit trail. The store adds entries for
// executions, releases, holds, takeovers and resolutions by itself, in the commit
// of the change; Note adds the others. The entry of an execution says nothing
// that the completed record does not. A store may therefore derive it from the
// record, and write it in the commit that removes the record.
type Trail interface {
	// Note queues an entry and returns at once. The store writes it in a batch
	// within 100 ms, or drops it and counts the loss. It sets Position, Instance,
	// Seq and At, and the Count of TrailLost entries, and keeps the rest.
	Note(e TrailEntry)
	// Trail returns entries in the order of their positions.
	Trail(ctx context.Context, f TrailFilter) ([]TrailEntry, error)
}

// Watcher is implemented by stores that are notified when records change, even if
// another process changes them. It lets submits that wait poll less often; they
// do not rely on it.
type Watcher interface {
	// Watch returns a channel that receives a value soon after the record of id
	// has been completed, released, held or resolved by any process. Values may be
	// missed, and may arrive without a change. Watch does not block. The caller
	// must call stop to end the watch.
	Watch(id Identity) (changed <-chan struct{}, stop func())
}
