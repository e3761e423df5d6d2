package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// Errors of every store, possibly wrapped.
var (
	// ErrLeaseLost: another claim has the message, or it is settled or gone.
	// Nothing was written.
	ErrLeaseLost = errors.New("outbox: the claim on the message is lost")
	// ErrNotFound: the store holds no such message.
	ErrNotFound = errors.New("outbox: no such message")
	// ErrDuplicate: the store holds a message with this ID.
	ErrDuplicate = errors.New("outbox: there is a message with this id")
	// ErrFull: as many messages are pending as the store was told to hold.
	// Nothing was enqueued. Roll the transaction back, and have the caller try
	// again later.
	ErrFull = errors.New("outbox: as many messages wait as may: roll back, and try again later")
	// ErrPurgeAll: a purge named neither an id nor a state. Nothing was removed.
	ErrPurgeAll = errors.New("outbox: a purge needs an id or a state")
)

// Store holds messages. It keeps no policy: it says what is so, by its own
// clock, and the Relay decides. How messages are enqueued is each store's own
// matter, since it is done in its native transactions.
//
// All methods are safe for concurrent use, by many goroutines and processes.
// None holds a lock after it has returned. When ctx ends first, whether the
// call took effect is open. Package outboxtest is the contract in executable
// form.
type Store interface {
	// Exchange ends claims with what became of them, and then leases due
	// messages to the caller, each under a fence that no claim before has had.
	// Both take effect together or, where it returns an error, neither; an
	// answer that was lost leaves that open. Without settlements it only claims,
	// and where c.Max is 0 it only settles.
	//
	// It returns the claims that were lost already: their settlements changed
	// nothing. Settling again changes nothing either and is not told as lost, so
	// an answer that was lost may be asked for again.
	//
	// A message is due if it is pending, first in its lane or without a key, not
	// before its NotBefore and the end of a delay that a settlement gave it, and
	// not leased to anybody. A lease that is over counts as none. A lane that a
	// settlement lets go on is claimed of in the same call. A claim for all topics
	// takes of each in turn. The cost does not depend on how many messages wait.
	Exchange(ctx context.Context, s []Settlement, c Claim) (claimed []Claimed, lost []Ref, err error)
	// Mark records that the claimed message's effect may happen from now on;
	// who claims it next finds it Unsure. ErrLeaseLost if the claim is.
	Mark(ctx context.Context, ref Ref) error
	// Renew starts the leases again from now, and returns those that are lost.
	// A lease that is over but has not been claimed by another is renewed.
	Renew(ctx context.Context, lease time.Duration, refs []Ref) (lost []Ref, err error)
	// Status returns what waits, topic by topic in their order.
	Status(ctx context.Context) ([]TopicStatus, error)
	// Sweep removes at most limit messages that are settled and past what r
	// wants kept. It never removes a message that is pending or unknown, or
	// dead and blocking its lane.
	Sweep(ctx context.Context, r Retention, limit int) (int, error)
}

// Watcher is a store that can tell sooner than polling finds out that messages
// may have become due.
type Watcher interface {
	// Watch returns a channel that gets a value when messages may have become
	// due; values that nobody takes are dropped. Call stop when done.
	Watch() (hints <-chan struct{}, stop func())
}

// Settler is a store that can settle a claim in a transaction of the database that
// the messages are in.
type Settler interface {
	// SettleTx settles a claim as delivered in the transaction that ctx carries, as
	// the store's package documents: it is if and when that commits. Until then
	// nobody else claims the message. ErrLeaseLost if the claim is lost: then
	// nothing was written, and the transaction is to be rolled back.
	SettleTx(ctx context.Context, ref Ref) error
}

// Admin is a store whose messages can be looked at and decided on by people.
type Admin interface {
	Status(ctx context.Context) ([]TopicStatus, error)
	// Find returns the message with this id, or ErrNotFound.
	Find(ctx context.Context, id string) (Entry, error)
	// List returns a page of messages, ordered by Position, without payloads.
	List(ctx context.Context, f Filter) ([]Entry, error)
	// Redrive makes dead and unknown messages pending again, their attempts
	// counted anew. A message that still blocks its lane is first in it. One
	// whose lane has gone on is delivered out of order, which Redriven tells.
	// Of concurrent calls one redrives a message.
	//
	// Where f names an ID and StateDelivered, that message is delivered once
	// more, with the same id: a repetition, which is asked for by name only.
	Redrive(ctx context.Context, f Filter) ([]Redriven, error)
	// Purge removes messages for good, and unblocks their lanes. A message
	// under a lease is left alone. f must name an ID or a State.
	Purge(ctx context.Context, f Filter) ([]Entry, error)
	// Decide is what a person decides of messages: Redrive for Again, and for
	// Cancel to have pending messages dead, those under a lease too, whose claim is
	// lost by it; their lanes go on. Who decided, and why, is on record with the
	// change, in one commit: Find tells.
	Decide(ctx context.Context, f Filter, d Decision) ([]Redriven, error)
}

// Verdict is what a Decision comes to.
type Verdict string

const (
	VerdictAgain  Verdict = "redriven"
	VerdictCancel Verdict = "cancelled"
)

// Decision is what somebody decided of a message.
type Decision struct {
	Verdict Verdict
	// By says who decided, and Because why: each in 1 to 500 bytes.
	By, Because string
	// At is when, by the store's clock, which sets it.
	At time.Time
}

// Validate reports what is wrong with d.
func (d Decision) Validate() error {
	var errs []error
	if d.Verdict != VerdictAgain && d.Verdict != VerdictCancel {
		errs = append(errs, fmt.Errorf("outbox: decision: there is no verdict %q", d.Verdict))
	}
	for name, text := range map[string]string{"By": d.By, "Because": d.Because} {
		if text == "" || len(text) > 500 || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			errs = append(errs, fmt.Errorf("outbox: decision: field %s must be 1 to 500 bytes of UTF-8 without zero bytes", name))
		}
	}
	return errors.Join(errs...)
}

// Cause is what is on record of d as the reason of what it changed.
func (d Decision) Cause() string {
	return fmt.Sprintf("%s by %s: %s", d.Verdict, d.By, d.Because)
}

// Claim asks for messages.
type Claim struct {
	// Topic is the one to take messages of; empty for all.
	Topic string
	// Max is how many to take at most.
	Max int
	// MaxBytes is how many bytes of payload to take at most; the first message
	// is taken whatever its size. 0 is no limit.
	MaxBytes int
	Lease    time.Duration
	// Suspect allows one message among the claimed whose last two claims
	// lapsed or more: it may be what kills its relays.
	Suspect bool
}

// SuspectLapses is after how many claims in a row that lapsed a message is a
// suspect.
const SuspectLapses = 2

// Ref names a claim on a message.
type Ref struct {
	Position uint64
	Fence    uint64
}

// Claimed is a message under a claim.
type Claimed struct {
	Ref
	Message
	EnqueuedAt time.Time
	// Attempts counts the claims on the message, this one among them, without
	// those that were released.
	Attempts int
	// Lapses counts how many claims in a row before this one have lapsed.
	Lapses int
	// Unsure says that an earlier claim was marked and not settled, or settled
	// so.
	Unsure bool
	// Malformed says why the row holds no message that Validate allows, without
	// telling its contents: it was not enqueued by this library.
	Malformed error
}

// Outcome says what became of a claim.
type Outcome uint8

const (
	// OutcomeDelivered: the message has arrived. Its lane goes on.
	OutcomeDelivered Outcome = iota + 1
	// OutcomeRetry: it is due again after Delay. Its lane waits.
	OutcomeRetry
	// OutcomeDead: it is not tried again unless it is redriven.
	OutcomeDead
	// OutcomeUnknown: nobody can know whether it has arrived.
	OutcomeUnknown
	// OutcomeReleased: nothing was tried. It is due at once, or after Delay, and
	// the claim does not count as an attempt.
	OutcomeReleased
)

// Settlement ends a claim.
type Settlement struct {
	Ref
	Outcome Outcome
	// Delay goes with OutcomeRetry and OutcomeReleased.
	Delay time.Duration
	// Unsure says, of a message that is not delivered, that it may have arrived.
	Unsure bool
	// Blocks goes with OutcomeDead and OutcomeUnknown: the lane waits until
	// the message is redriven or purged.
	Blocks bool
	// Cause says why, in at most 1,024 bytes.
	Cause string
}

// Validate reports an outcome that there is not.
func (s Settlement) Validate() error {
	if s.Outcome < OutcomeDelivered || s.Outcome > OutcomeReleased {
		return fmt.Errorf("outbox: there is no outcome %d", s.Outcome)
	}
	return nil
}

// State is where a message is in its life.
type State string

const (
	StatePending   State = "pending"
	StateDelivered State = "delivered"
	StateDead      State = "dead"
	StateUnknown   State = "unknown"
)

// ParseState is the inverse of a State's text.
func ParseState(s string) (State, error) {
	switch State(s) {
	case StatePending, StateDelivered, StateDead, StateUnknown:
		return State(s), nil
	}
	return "", fmt.Errorf("outbox: there is no state %q; there are pending, delivered, dead and unknown", s)
}

// CountLimit is where counting stops, so that a look at a full outbox costs
// little: a count of as much says "this many or more".
const CountLimit = 100_000

// TopicStatus is what a topic's messages are at.
type TopicStatus struct {
	Topic string
	// OldestAge is for how long the oldest pending message could have been
	// delivered by now: since it was enqueued or, where that is later, since
	// its NotBefore. 0 where none waits. It is the first figure to watch.
	OldestAge time.Duration
	// Each of the counts stops at CountLimit. Blocked are dead or unknown
	// messages that hold up their lane.
	Pending, Dead, Unknown, Blocked int
}

// Retention says how long settled messages are kept. Whichever bound is reached
// first counts. Zero fields mean the defaults; negative ones mean no bound.
type Retention struct {
	// Delivered is how long delivered messages are kept, by the store's clock.
	// Default 24 h.
	Delivered time.Duration
	// MaxDelivered is how many are. Default 100,000.
	MaxDelivered int
	// Dead is how long dead messages are kept that block no lane. Default: for
	// ever.
	Dead time.Duration
	// MaxDead is how many are, the latest. Default: all.
	MaxDead int
}

// WithDefaults returns r with the defaults in place, and -1 for no bound.
func (r Retention) WithDefaults() Retention {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
		*v = max(*v, -1)
	}
	count := func(v *int, n int) {
		if *v == 0 {
			*v = n
		}
		*v = max(*v, -1)
	}
	def(&r.Delivered, 24*time.Hour)
	count(&r.MaxDelivered, 100_000)
	def(&r.Dead, -1)
	count(&r.MaxDead, -1)
	return r
}

// Entry is what is in the trail of d, of the message with this id.
func (d Decision) Entry(id, topic string) semel.TrailEntry {
	return semel.TrailEntry{
		Kind: semel.TrailKind(d.Verdict), Operation: topic, Cause: d.Because,
		Origin: semel.Origin{RequestID: operator + d.By, EventID: id},
	}
}

const operator = "operator:"

// DecisionsIn are the decisions on a message that a store's trail tells of.
func DecisionsIn(ctx context.Context, t semel.Trail, id string) (all []Decision, err error) {
	for _, v := range []Verdict{VerdictAgain, VerdictCancel} {
		entries, err := t.Trail(ctx, semel.TrailFilter{Kind: semel.TrailKind(v), EventID: id, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, Decision{Verdict: v, By: strings.TrimPrefix(e.RequestID, operator), Because: e.Cause, At: e.At})
		}
	}
	slices.SortStableFunc(all, func(a, b Decision) int { return a.At.Compare(b.At) })
	return all, nil
}

// Filter selects messages. Empty fields select all.
type Filter struct {
	ID    string
	State State
	Topic string
	// TopicPrefix selects by how the topic begins.
	TopicPrefix string
	Key         string
	// Origin selects what was enqueued under the record or message of this id.
	Origin string
	// Cause selects by why a message is where it is: the whole text or, with a
	// * at its end, how the text begins.
	Cause string
	// After selects messages behind the one with this Position.
	After uint64
	// Limit is the length of a page: default 100, at most 1,000.
	Limit int
}

// Entry is a message and where it is.
type Entry struct {
	Message
	Position   uint64
	State      State
	EnqueuedAt time.Time
	// DueAt is when a pending message is due: again, if it was tried. Zero if
	// it is due now, or waits for others of its lane.
	DueAt time.Time
	// Waiting says that others of its lane come before it.
	Waiting bool
	// LeaseLeft is what is left of a claim's lease; 0 if nobody has one.
	LeaseLeft time.Duration
	SettledAt time.Time
	Attempts  int
	Lapses    int
	Redriven  int
	// Blocks says that a dead or unknown message holds up its lane.
	Blocks bool
	// Unsure says that a message that is not delivered may have arrived.
	Unsure bool
	Cause  string
	// Size is the payload's, also where a list leaves the payload out.
	Size int
	// Decisions are what people decided of it, in their order, as far as the trail
	// is kept. Lists leave them out.
	Decisions []Decision
}

// Redriven is a message that was redriven, or cancelled.
type Redriven struct {
	ID       string
	Position uint64
	// OutOfOrder says that its lane has gone on without it: messages that were
	// enqueued later have been delivered before it, or will be.
	OutOfOrder bool
}
