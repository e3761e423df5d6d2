package semel

import (
	"context"
	"fmt"
	"time"
)

// State is the state of a record. An identity without a record is free, which is
// not a state.
type State uint8

const (
	// StateInProgress means that a claim was granted and has not been completed,
	// released or held. Its lease may have lapsed.
	StateInProgress State = iota + 1
	// StateCompleted means that the result is recorded. It is replayed until the
	// retention is over.
	StateCompleted
	// StateUnknown means that it is not known whether the effect happened. Only a
	// resolution, or the claim that was in progress, can end this state.
	StateUnknown
)

var stateNames = [...]string{StateInProgress: "in_progress", StateCompleted: "completed", StateUnknown: "unknown"}

func (s State) String() string {
	if int(s) < len(stateNames) && s > 0 {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// MarshalText returns the name of the state, as String does.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets s to the state with the given name.
func (s *State) UnmarshalText(b []byte) error {
	for i, n := range stateNames {
		if n != "" && n == string(b) {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("semel: no state is named %q; use in_progress, completed or unknown", b)
}

// Origin identifies the request that an entry of the audit trail came from. Every
// field is optional. None is part of the identity or the fingerprint.
type Origin struct {
	RequestID string `json:"request_id,omitempty"`
	EventID   string `json:"event_id,omitempty"`
	TraceID   string `json:"trace_id,omitempty"`
}

// Result is the result of an execution, as it is recorded and replayed. The guard
// does not interpret it. Head and Body are shared: their bytes must not be changed
// once they are in a Result.
type Result struct {
	// Codec names the encoding of Head and Body, for example "http/1". Names that
	// begin with "encrypted/" are those of results that a Cipher has encrypted.
	Codec string
	// Head describes the body. For HTTP it holds the status, the header and the
	// trailer.
	Head []byte
	// Body is the body, in its content coding.
	Body []byte
	// Pieces replaces Body if it is too large to be held in memory. At most one of
	// the two is set.
	Pieces *Pieces
	// Label is a short name of the result for people, such as "201". It is written
	// to the audit trail and must hold no payload.
	Label string
	// Tombstone means that the operation completed but its result was not kept.
	// The operation is neither replayed nor executed again.
	Tombstone bool
	// Failed means that the operation failed for good. The failure is recorded and
	// replayed like any other result. If the claim lives in a transaction, what
	// the handler changed in it is rolled back first. Stores act on Failed and do
	// not keep it.
	Failed bool
	// Reference identifies the resource that the operation created, such as its
	// Location. It may be set in a tombstone.
	Reference string
}

// PieceBytes is the size of the pieces of a large body. The last may be shorter.
const PieceBytes = 256 << 10

// Pieces is a body that is read piece by piece: before it is recorded, from where
// the operation has left it, and in a record, from the store.
type Pieces struct {
	// Size is the length of the body. It is more than zero.
	Size int64
	// Read returns piece n, counted from 0. Its bytes must not be changed. Read may
	// be called more than once for a piece and from any goroutine, but not
	// concurrently. In a record, the error is ErrNotFound if the record is gone or
	// has been replaced.
	Read func(ctx context.Context, n int) ([]byte, error)
}

// Count returns the number of pieces.
func (p *Pieces) Count() int { return int((p.Size-1)/PieceBytes) + 1 }

// Length returns the length of piece n.
func (p *Pieces) Length(n int) int {
	return int(min(PieceBytes, p.Size-int64(n)*PieceBytes))
}

// ReadPiece returns piece n, or an error if it does not have the right length.
func (p *Pieces) ReadPiece(ctx context.Context, n int) ([]byte, error) {
	piece, err := p.Read(ctx, n)
	if err == nil && len(piece) != p.Length(n) {
		err = fmt.Errorf("semel: piece %d of a result has %d bytes; it must have %d", n, len(piece), p.Length(n))
	}
	return piece, err
}

// Size returns the length of the body.
func (r Result) Size() int64 {
	if r.Pieces != nil {
		return r.Pieces.Size
	}
	return int64(len(r.Body))
}

// Record is what a store holds for an identity. All times are by the clock of the
// store.
type Record struct {
	ID          string
	Identity    Identity
	Fingerprint Fingerprint
	State       State
	// Fence is the number of the latest claim of the record. A store takes fences
	// from a single counter that never restarts.
	Fence uint64
	// Lease is the time that was left of the lease when the record was read. If it
	// is zero or less, the lease lapsed that long ago. Because owners renew, the
	// record may stay in progress for longer.
	Lease time.Duration
	// Reopened means that a resolution allows one more execution. The next submit
	// of the same request takes the record over, whatever its policy.
	Reopened bool

	BegunAt time.Time // of the latest claim
	// SettledAt is when the record was completed or became unknown. It is zero
	// while the record is in progress.
	SettledAt time.Time
	// ExpiresAt is the end of the retention of a completed record. It is zero
	// otherwise.
	ExpiresAt time.Time
	Retention time.Duration

	// Origin is the request that made the latest claim.
	Origin Origin
	// Cause says in a few words why the record is unknown. It holds no payload and
	// no secrets.
	Cause string
	// Result is set if the record is completed, except in listings.
	Result Result
}

// Lapsed reports whether the record is in progress and its lease had lapsed when
// it was read. Its owner is dead, paused or cut off from the store.
func (r Record) Lapsed() bool { return r.State == StateInProgress && r.Lease <= 0 }

// Filter selects records. Zero fields select all.
type Filter struct {
	ID        string
	State     State
	Tenant    string
	Actor     string
	Operation string
	Key       string
	// Lapsed selects records in progress whose lease is over.
	Lapsed bool
	// Cause selects unknown records by their cause: by the whole text or, if it
	// ends with a *, by its beginning.
	Cause string
	// BegunSince and BegunUntil select by Record.BegunAt. BegunUntil is exclusive.
	BegunSince, BegunUntil time.Time
	// After continues a listing after the record with this fence.
	After uint64
	// Limit is the page size, at most 1,000. Default 100.
	Limit int
}
