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

// Errors of all stores, possibly wrapped.
var (
	// ErrLeaseLost reports that the message has another claim, is settled, or
	// is gone. Nothing was written.
	ErrLeaseLost = errors.New("outbox: the claim on the message is lost")
	// ErrNotFound reports that the store holds no such message.
	ErrNotFound = errors.New("outbox: no such message")
	// ErrDuplicate reports that the store holds a message with the same ID.
	ErrDuplicate = errors.New("outbox: there is a message with this id")
	// ErrFull reports that the store's limit of pending messages has been
	// reached. Nothing was enqueued. Roll the transaction back; the caller may
	// try again later.
	ErrFull = errors.New("outbox: as many messages wait as may: roll back, and try again later")
	// ErrPurgeAll reports that a purge named neither an id nor a state. Nothing
	// was removed.
	ErrPurgeAll = errors.New("outbox: a purge needs an id or a state")
)

// Store stores messages. It implements no policy: it reports facts, by its own
// clock, and the Relay decides. How messages are enqueued depends on the store,
// because it happens in its native transactions.
//
// All methods are safe for concurrent use, by many goroutines and processes.
// None holds a lock after it has returned. If ctx ends first, it is open
// whether the call took effect. Package outboxtest tests this contract.
type Store interface {
	// Exchange settles claims and then leases due messages to the caller, each
	// with a fence that no earlier claim has had. Either both take effect or, if
	// it returns an error, neither; if the answer is lost, it is open which.
	// Without settlements it only claims. If c.Max is 0, it only settles.
	//
	// It returns the claims that had been lost, whose settlements changed
	// nothing. Repeating a settlement changes nothing either and is not reported
	// as lost, so a call whose answer was lost may be repeated.
	//
	// A message is due if it is pending, first in its lane or without a key, past
	// its NotBefore and any delay of a settlement, and not leased. A lease that
	// has ended does not count. If a settlement lets a lane go on, the same call
	// may claim its next message. A claim for all topics takes messages of each
	// topic in turn. The cost must not depend on how many messages wait.
	Exchange(ctx context.Context, s []Settlement, c Claim) (claimed []Claimed, lost []Ref, err error)
	// Mark records that the claimed message's effect may happen from now on.
	// The next claim finds it Unsure. Mark fails with ErrLeaseLost if the claim
	// is lost.
	Mark(ctx context.Context, ref Ref) error
	// Renew restarts the leases from now and returns the claims that are lost.
	// A lease that has ended is renewed unless somebody else has claimed the
	// message.
	Renew(ctx context.Context, lease time.Duration, refs []Ref) (lost []Ref, err error)
	// Status returns the status of each topic, ordered by topic.
	Status(ctx context.Context) ([]TopicStatus, error)
	// Sweep removes at most limit settled messages that r does not keep. It
	// never removes a message that is pending, or unknown, or dead and blocking
	// its lane.
	Sweep(ctx context.Context, r Retention, limit int) (int, error)
}

// Watcher is implemented by stores that can signal, sooner than polling would,
// that messages may have become due.
type Watcher interface {
	// Watch returns a channel that receives a value when messages may have
	// become due. Values are dropped if nobody is ready to receive them. Call
	// stop when done.
	Watch() (hints <-chan struct{}, stop func())
}

// Settler is implemented by stores that can settle a claim in a transaction of the
// database that holds the messages.
type Settler interface {
	// SettleTx settles a claim as delivered in the transaction in ctx, as
	// documented by the store's package. The settlement takes effect when the
	// transaction commits. Until then nobody else can claim the message. SettleTx
	// fails with ErrLeaseLost if the claim is lost. Nothing was written then, and
	// the transaction must be rolled back.
	SettleTx(ctx context.Context, ref Ref) error
}

// Admin is implemented by stores that let people inspect messages and decide on
// them.
type Admin interface {
	Status(ctx context.Context) ([]TopicStatus, error)
	// Find returns the message with this id, or ErrNotFound.
	Find(ctx context.Context, id string) (Entry, error)
	// List returns a page of messages, ordered by Position, without payloads.
	List(ctx context.Context, f Filter) ([]Entry, error)
	// Redrive makes dead and unknown messages pending again and resets their
	// attempts. A message that still blocks its lane is first in it. A message
	// whose lane has gone on is delivered out of order, which Redriven reports.
	// Of concurrent calls only one redrives a message.
	//
	// If f names an ID and StateDelivered, that message is delivered once more
	// with the same id. This is the only way to repeat a delivered message.
	Redrive(ctx context.Context, f Filter) ([]Redriven, error)
	// Purge removes messages for good, and unblocks their lanes. A message
	// under a lease is left alone. f must name an ID or a State.
	Purge(ctx context.Context, f Filter) ([]Entry, error)
	// Decide carries out the decision of a person. VerdictAgain redrives messages,
	// as Redrive does. VerdictCancel makes pending messages dead, even if they are
	// under a lease, whose claim is then lost; their lanes go on. The decision is
	// recorded in the same commit as the change, and Find returns it.
	Decide(ctx context.Context, f Filter, d Decision) ([]Redriven, error)
}

// Verdict is the result of a Decision.
type Verdict string

const (
	VerdictAgain  Verdict = "redriven"
	VerdictCancel Verdict = "cancelled"
)

// Decision is a person's decision on a message.
type Decision struct {
	Verdict Verdict
	// By says who decided, and Because why: each in 1 to 500 bytes.
	By, Because string
	// At is the time of the decision. The store sets it by its clock.
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

// Cause returns the text that is recorded as the cause of the changes that d
// makes.
func (d Decision) Cause() string {
	return fmt.Sprintf("%s by %s: %s", d.Verdict, d.By, d.Because)
}

// Claim asks for messages.
type Claim struct {
	// Topic is the topic to claim messages of. Empty means all topics.
	Topic string
	// Max is the maximum number of messages.
	Max int
	// MaxBytes is the maximum number of bytes of payload. The first message is
	// claimed even if it is larger. 0 means no limit.
	MaxBytes int
	Lease    time.Duration
	// Suspect allows one of the claimed messages to be a suspect: a message
	// whose last SuspectLapses claims have lapsed, which may be the cause of
	// its relays' deaths.
	Suspect bool
}

// SuspectLapses is the number of consecutive lapsed claims that makes a message
// a suspect.
const SuspectLapses = 2

// Ref identifies a claim on a message.
type Ref struct {
	Position uint64
	Fence    uint64
}

// Claimed is a claimed message.
type Claimed struct {
	Ref
	Message
	EnqueuedAt time.Time
	// Attempts counts the claims on the message, including this one, but not
	// those that were released.
	Attempts int
	// Lapses counts the consecutive claims before this one that have lapsed.
	Lapses int
	// Unsure says that an earlier claim was marked and not settled, or was
	// settled as Unsure.
	Unsure bool
	// Malformed, if not nil, says why the row is not a valid message, without
	// its contents. Such a row was not enqueued by this library.
	Malformed error
}

// Outcome is the outcome of a claim.
type Outcome uint8

const (
	// OutcomeDelivered means that the message has arrived. Its lane goes on.
	OutcomeDelivered Outcome = iota + 1
	// OutcomeRetry means that the message is due again after Delay. Its lane
	// waits.
	OutcomeRetry
	// OutcomeDead means that the message is not tried again unless it is
	// redriven.
	OutcomeDead
	// OutcomeUnknown means that it cannot be known whether the message has
	// arrived.
	OutcomeUnknown
	// OutcomeReleased means that nothing was tried. The message is due at once
	// or after Delay, and the claim does not count as an attempt.
	OutcomeReleased
)

// Settlement ends a claim.
type Settlement struct {
	Ref
	Outcome Outcome
	// Delay is for OutcomeRetry and OutcomeReleased.
	Delay time.Duration
	// Unsure says that a message that is not delivered may have arrived.
	Unsure bool
	// Blocks is for OutcomeDead and OutcomeUnknown. The lane waits until the
	// message is redriven or purged.
	Blocks bool
	// Cause is the reason, in at most 1,024 bytes.
	Cause string
}

// Validate reports an unknown outcome.
func (s Settlement) Validate() error {
	if s.Outcome < OutcomeDelivered || s.Outcome > OutcomeReleased {
		return fmt.Errorf("outbox: there is no outcome %d", s.Outcome)
	}
	return nil
}

// State is the state of a message.
type State string

const (
	StatePending   State = "pending"
	StateDelivered State = "delivered"
	StateDead      State = "dead"
	StateUnknown   State = "unknown"
)

// ParseState returns the State whose text is s.
func ParseState(s string) (State, error) {
	switch State(s) {
	case StatePending, StateDelivered, StateDead, StateUnknown:
		return State(s), nil
	}
	return "", fmt.Errorf("outbox: there is no state %q; there are pending, delivered, dead and unknown", s)
}

// CountLimit is the largest count that is reported, so that looking at a full
// outbox is cheap. It means that many or more.
const CountLimit = 100_000

// TopicStatus is the status of a topic.
type TopicStatus struct {
	Topic string
	// OldestAge is the age of the oldest pending message, since it was enqueued
	// or, if later, since its NotBefore. It is 0 if none waits. It is the most
	// important value to monitor.
	OldestAge time.Duration
	// Each count stops at CountLimit. Blocked counts the dead or unknown
	// messages that block their lanes.
	Pending, Dead, Unknown, Blocked int
}

// Retention says how long settled messages are kept. The limit that is reached
// first applies. Zero fields mean the defaults; negative fields mean no limit.
type Retention struct {
	// Delivered is how long delivered messages are kept, by the store's clock.
	// Default 24 h.
	Delivered time.Duration
	// MaxDelivered is how many delivered messages are kept. Default 100,000.
	MaxDelivered int
	// Dead is how long dead messages that block no lane are kept. Default:
	// forever.
	Dead time.Duration
	// MaxDead is how many dead messages are kept; the oldest are removed first.
	// Default: all.
	MaxDead int
}

// WithDefaults returns r with the defaults filled in and -1 for no limit.
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

// Entry returns the trail entry of d for the message with this id.
func (d Decision) Entry(id, topic string) semel.TrailEntry {
	return semel.TrailEntry{
		Kind: semel.TrailKind(d.Verdict), Operation: topic, Cause: d.Because,
		Origin: semel.Origin{RequestID: operator + d.By, EventID: id},
	}
}

const operator = "operator:"

// DecisionsIn returns the decisions on a message that are recorded in a store's
// trail.
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

// Filter selects messages. Empty fields match all messages.
type Filter struct {
	ID    string
	State State
	Topic string
	// TopicPrefix selects topics that begin with it.
	TopicPrefix string
	Key         string
	// Origin selects messages that were enqueued under the record or message
	// with this id.
	Origin string
	// Cause selects by the text of the cause. If it ends with *, it selects
	// causes that begin with the rest.
	Cause string
	// After selects messages with a higher Position.
	After uint64
	// Limit is the page size: default 100, at most 1,000.
	Limit int
}

// Entry is a stored message and its state.
type Entry struct {
	Message
	Position   uint64
	State      State
	EnqueuedAt time.Time
	// DueAt is when a pending message is due. It is zero if the message is due
	// now or waits for others of its lane.
	DueAt time.Time
	// Waiting reports whether other messages of its lane come first.
	Waiting bool
	// LeaseLeft is the remaining time of a claim's lease, or 0 if there is no
	// claim.
	LeaseLeft time.Duration
	SettledAt time.Time
	Attempts  int
	Lapses    int
	Redriven  int
	// Blocks reports whether a dead or unknown message blocks its lane.
	Blocks bool
	// Unsure reports whether a message that is not delivered may have arrived.
	Unsure bool
	Cause  string
	// Size is the size of the payload, even in a list, which omits the payload.
	Size int
	// Decisions are the decisions of people on the message, in order, as long as
	// the trail keeps them. Lists omit them.
	Decisions []Decision
}

// Redriven is a message that was redriven, or cancelled.
type Redriven struct {
	ID       string
	Position uint64
	// OutOfOrder reports whether its lane has gone on without it, so that it is
	// delivered after messages that were enqueued later.
	OutOfOrder bool
}
