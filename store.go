package semel

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"
)

// Errors every store returns for these cases, possibly wrapped. Any other
// error means that the store cannot say what happened.
var (
	// ErrNotFound: the identity has no record, or only an expired one.
	ErrNotFound = errors.New("semel: no such record")
	// ErrNotOpen: the store is closed, or could not be opened. The call certainly
	// took no effect, and another would not either.
	ErrNotOpen = errors.New("semel: the store is not open")
	// ErrLostClaim: the claim's fence or token is stale. Someone took the
	// record over, resolved it, or it was released; nothing was written.
	ErrLostClaim = errors.New("semel: claim lost")
	// ErrRolledBack: the claim lived in a transaction, and that has certainly
	// been rolled back, with everything the handler did in it: no effect, and
	// the identity is free again.
	ErrRolledBack = errors.New("semel: transaction rolled back")
	// ErrTooLarge: the result is larger than the store takes, or could not be
	// read whole. Nothing was written; a tombstone can be recorded instead.
	ErrTooLarge = errors.New("semel: result too large for the store")
	// ErrStaleFence: a resolution named a fence that is no longer the
	// record's, or a record that cannot be resolved (completed, or still
	// executing under a lease). Nothing was written.
	ErrStaleFence = errors.New("semel: the record has moved on")
)

// ConflictError is Begin's answer when the identity is taken. Record is what
// is in the way; nobody changes it, for others may be told of the same. A store that can see that the identity is claimed but not
// the record itself (another transaction holds it) returns a Record with only
// Identity, StateInProgress and some Lease set.
type ConflictError struct {
	Record Record
}

func (e *ConflictError) Error() string {
	return "semel: identity is taken: record " + e.Record.ID + " is " + e.Record.State.String()
}

// Store holds one record for each identity. It keeps no policy: it says what
// is so, by its own clock, and the Guard decides.
//
// All methods are safe for concurrent use, by many goroutines and, where the
// store is shared, by many processes. When ctx ends before an answer the
// method returns promptly with an error; whether it took effect is then open.
//
// Package storetest is the contract in executable form.
type Store interface {
	// Begin grants the attempt's identity to the caller, or returns a
	// *ConflictError with the record in the way. At most one of any number
	// of concurrent attempts is granted.
	//
	// It grants when there is no record, when the record is completed and
	// its retention is over, when the record is in progress under a.Token
	// (the same claim again, with its lease renewed), and when a.Takeover
	// allows it. A grant gives the record a new fence, except where it
	// repeats the same claim. A takeover keeps the record's ID and
	// fingerprint and clears Reopened; an attempt that replaces an expired
	// record starts a new one.
	Begin(ctx context.Context, a Attempt) (Claim, error)

	// Find returns the record of id, or ErrNotFound.
	Find(ctx context.Context, id Identity) (Record, error)
}

// Claim is the right to execute an identity now. Its methods fail with
// ErrLostClaim once the record carries another fence or token or is gone.
//
// A lapsed lease alone loses nothing: until the record is taken over or
// resolved, the claim can still be renewed, completed, released or held, and
// while the record is unknown it can still be completed or released. Once the
// claim itself has completed the record, Release, Hold and Renew are
// ErrLostClaim and write nothing.
//
// A claim may live in a database transaction, which its Context carries. Then
// Complete commits and Release and Hold roll back. Where a rollback is certain
// Complete and Hold fail with ErrRolledBack; a commit whose answer was lost is
// any other error, and Complete may be called again to learn what became of it.
type Claim interface {
	// Context returns ctx, carrying the store's transaction where the claim
	// lives in one.
	Context(ctx context.Context) context.Context
	// RecordID is the opaque id of the record.
	RecordID() string
	Fence() uint64
	// Transactional reports whether the claim lives in a database transaction,
	// so that Complete commits and Release and Hold roll back.
	Transactional() bool
	// Complete records the result; retention starts now, by the store's
	// clock, and expires is its end. When the error is nil the record is
	// durable. Completing again with the same claim changes nothing and
	// answers as before, so an answer that was lost may be asked for again.
	// ErrTooLarge leaves the claim as it is; it is also the answer to Pieces by
	// a store that does not keep results piece by piece, and where a piece
	// could not be read. The pieces become durable with the record, in one
	// commit, and are read under ctx.
	Complete(ctx context.Context, r Result) (expires time.Time, err error)
	// Release removes the record: there was certainly no effect.
	Release(ctx context.Context) error
	// Hold marks the record unknown and says why. Holding again returns nil.
	Hold(ctx context.Context, cause string) error
	// Renew starts the lease again from now, by the store's clock. A record
	// that has been marked unknown is not renewed: ErrLostClaim.
	Renew(ctx context.Context) error
}

// Joiner is a claim that may live in a transaction of whoever called Guard.Do,
// who has it back with the answer. So Do answers no sooner than the work has
// ended where Joined reports true, also to a submit that is Detached.
type Joiner interface {
	Joined() bool
}

// Resolver is a store that can settle unknown outcomes. All of ours are.
type Resolver interface {
	// Resolve applies r and returns the record as it is now, or, after
	// DecideNoEffect, as it was.
	Resolve(ctx context.Context, r Resolution) (Record, error)
}

// Sweeper is a store whose expired records need removing.
type Sweeper interface {
	// Sweep removes at most limit completed records whose retention is over
	// by the store's clock, and reports how many. It never removes a record
	// in progress or unknown.
	Sweep(ctx context.Context, limit int) (int, error)
}

// Lister is a store that can be looked through.
type Lister interface {
	// List returns records in the order of their fences, without their
	// results. Expired records do not exist.
	List(ctx context.Context, f Filter) ([]Record, error)
}

// Trail is a store with an audit trail. Entries for executions, releases,
// holds, takeovers and resolutions are the store's own doing, in the commit of
// the change they tell of; Note adds the others. The entry of an execution says
// nothing that the completed record does not, so a store may make it from the
// record for as long as that is there, and write it down in the commit that
// takes the record away.
type Trail interface {
	// Note queues an entry and returns at once. The store writes it in a
	// batch within 100 ms, or drops it and counts the loss. It fills in
	// Position, Instance, Seq and At, and keeps the rest, but the Count of a
	// TrailLost entry, which only the store knows.
	Note(e TrailEntry)
	// Trail returns entries in the order of their positions.
	Trail(ctx context.Context, f TrailFilter) ([]TrailEntry, error)
}

// Watcher is a store that hears when records change, also through other
// processes. It spares waiting submits part of their polling; they never rely
// on it.
type Watcher interface {
	// Watch returns a channel on which a value arrives soon after the record
	// of id was completed, released, held or resolved, by whatever process.
	// Values may be missed and may come without a change. It does not block.
	// stop ends the watch and must be called.
	Watch(id Identity) (changed <-chan struct{}, stop func())
}

// Token is the random half of a claim. It proves ownership where a fence
// alone could be guessed or, after a store was restored from a backup, repeat.
type Token [16]byte

// Attempt is what a store needs to grant a claim. Make one with NewAttempt,
// which fills in Token.
type Attempt struct {
	Identity    Identity
	Fingerprint Fingerprint
	Origin      Origin

	// Token makes Begin repeatable: a Begin whose answer was lost may be
	// called again with the same token and is granted the same claim. Two
	// owners must never share a token.
	Token Token

	// Lease is how long the claim holds without renewal.
	Lease time.Duration
	// Retention is how long the result answers replays, from completion on.
	Retention time.Duration

	// Takeover is zero, or the fence of a record that the caller has seen
	// and may take over. Of a record the store grants that only while it still
	// has that fence and is unknown, or in progress with a lapsed lease, by
	// the store's clock. If there is no record any more it does not matter.
	Takeover uint64
}

// NewAttempt returns an attempt on id with a fresh token.
func NewAttempt(id Identity, fp Fingerprint, lease, retention time.Duration) Attempt {
	a := Attempt{Identity: id, Fingerprint: fp, Lease: lease, Retention: retention}
	_, _ = rand.Read(a.Token[:]) // never fails: crypto/rand aborts the process instead
	return a
}

// NewRecordID returns an unguessable record id: 128 random bits in 26 letters
// and digits.
func NewRecordID() string { return strings.ToLower(rand.Text()) }
