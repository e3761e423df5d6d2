package semel

import (
	"context"
	"fmt"
	"time"
)

// State is where a record stands in its life. An identity without a record is
// free; that is not a state.
type State uint8

const (
	// StateInProgress: a claim was granted and has neither been completed,
	// released nor held. Its lease may have lapsed.
	StateInProgress State = iota + 1
	// StateCompleted: the result is recorded and answers replays until the
	// retention is over.
	StateCompleted
	// StateUnknown: nobody knows whether the effect happened. Only a
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

// MarshalText gives the state's name as this package names it.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (s *State) UnmarshalText(b []byte) error {
	for i, n := range stateNames {
		if n != "" && n == string(b) {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("semel: no state is named %q; use in_progress, completed or unknown", b)
}

// Origin names the request that an entry in the audit trail came from. Every
// part is optional; none takes part in identity or fingerprint.
type Origin struct {
	RequestID string `json:"request_id,omitempty"`
	EventID   string `json:"event_id,omitempty"`
	TraceID   string `json:"trace_id,omitempty"`
}

// Result is what an execution left to answer replays with. The engine does
// not look into it; Codec names who can. Head and Body are shared: once handed
// over, nobody changes their bytes, neither who gave them nor who is given them.
type Result struct {
	// Codec names the encoding of Head and Body, for example "http/1".
	Codec string
	// Head holds what goes with the body: for HTTP the status, headers and
	// trailers.
	Head []byte
	// Body is the body as it was, in its content coding.
	Body []byte
	// Pieces stands for Body where that is too large to be held in memory.
	// At most one of the two is set.
	Pieces *Pieces
	// Label is a short name of the result for people, such as "201". It goes
	// into the audit trail and must hold no payload.
	Label string
	// Tombstone says that the operation completed but its result could not
	// be kept whole: it is never replayed and never executed again.
	Tombstone bool
	// Failed says that the operation failed for good. The failure is recorded
	// and replayed like any result; where the claim lives in a transaction,
	// what the handler changed in it is rolled back first. Stores act on it
	// and do not keep it.
	Failed bool
	// Reference names the created resource, such as a Location, where the
	// operation told it. It is the part of a tombstone worth having.
	Reference string
}

// PieceBytes is the size of a large body's pieces. The last may be shorter.
const PieceBytes = 256 << 10

// Pieces is a body that is handed over piece by piece. In a result that is
// about to be recorded it reads from where the operation left it; in a record,
// from the store.
type Pieces struct {
	// Size is the length of the whole body, more than zero.
	Size int64
	// Read returns piece n, counted from 0; nobody changes its bytes. It may be
	// called more than once for a piece, and from any goroutine, but not from
	// several at a time. In a record the error is ErrNotFound once the record is
	// gone or has been replaced.
	Read func(ctx context.Context, n int) ([]byte, error)
}

// Count is how many pieces there are.
func (p *Pieces) Count() int { return int((p.Size-1)/PieceBytes) + 1 }

// Length is the length of piece n.
func (p *Pieces) Length(n int) int {
	return int(min(PieceBytes, p.Size-int64(n)*PieceBytes))
}

// ReadPiece returns piece n and makes sure of its length.
func (p *Pieces) ReadPiece(ctx context.Context, n int) ([]byte, error) {
	piece, err := p.Read(ctx, n)
	if err == nil && len(piece) != p.Length(n) {
		err = fmt.Errorf("semel: piece %d of a result has %d bytes; it must have %d", n, len(piece), p.Length(n))
	}
	return piece, err
}

// Size is the length of the result's body.
func (r Result) Size() int64 {
	if r.Pieces != nil {
		return r.Pieces.Size
	}
	return int64(len(r.Body))
}

// Record is what the store holds for an identity. All times are the store's.
type Record struct {
	ID          string
	Identity    Identity
	Fingerprint Fingerprint
	State       State
	// Fence is the number of the record's latest claim. Fences come from one
	// counter for the whole store, which never restarts.
	Fence uint64
	// Lease is what was left of the claim's lease when the record was read;
	// zero or less means it has lapsed, that long ago. Owners renew, so it
	// tells how long to wait at least, not at most.
	Lease time.Duration
	// Reopened says that a resolution allows one more execution: the next
	// submit of the same request takes the record over, whatever its policy.
	Reopened bool

	BegunAt time.Time // of the latest claim
	// SettledAt is when the record was completed or became unknown; zero
	// while it is in progress.
	SettledAt time.Time
	// ExpiresAt is when a completed record stops answering; zero otherwise.
	ExpiresAt time.Time
	Retention time.Duration

	// Origin is the request that made the latest claim.
	Origin Origin
	// Cause says in a few words why the record is unknown. It holds no
	// payload and no secret.
	Cause string
	// Result is set in a completed record, except in listings.
	Result Result
}

// Lapsed reports whether the record is in progress under a lease that was
// over when it was read: the owner is dead, paused or cut off.
func (r Record) Lapsed() bool { return r.State == StateInProgress && r.Lease <= 0 }

// Filter selects records. Empty fields select all.
type Filter struct {
	ID        string
	State     State
	Tenant    string
	Actor     string
	Operation string
	Key       string
	// Lapsed selects records in progress whose lease is over.
	Lapsed bool
	// Cause selects unknown records by their cause: the whole text or, with a
	// * at its end, how the text begins.
	Cause string
	// BegunSince and BegunUntil select by Record.BegunAt, which is by the
	// store's clock. BegunUntil is exclusive.
	BegunSince, BegunUntil time.Time
	// After continues a listing behind the record with this fence.
	After uint64
	// Limit is the page size: 100 if zero, at most 1,000.
	Limit int
}
