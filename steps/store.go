package steps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/semelhq/semel"
)

// Errors of stores.
var (
	// ErrStale: an execution with a higher fence has gone on with the operation, or
	// the step is settled. Nothing was written.
	ErrStale = errors.New("steps: another execution has gone on with the operation")
	// ErrNotFound: the journal knows nothing of the operation.
	ErrNotFound = errors.New("steps: no such operation")
	// ErrRolledBack: the transaction of a local step was not committed. Nothing took effect.
	ErrRolledBack = errors.New("steps: the transaction was rolled back")
	// ErrInDoubt: it is open whether the transaction of a local step was committed.
	// The next execution finds out.
	ErrInDoubt = errors.New("steps: it is open whether the transaction was committed")
)

// State is how far a step has come.
type State string

// The states of a step.
const (
	// StateStarted: it is on record that the call is about to be made. Once that
	// execution has ended, nobody knows what became of it.
	StateStarted State = "started"
	// StateUnknown: what became of the call is to be decided by a person.
	StateUnknown State = "unknown"
	// StateFree: the call certainly had no effect, and will be made.
	StateFree State = "free"
	// StateDone: Step.Result is its result.
	StateDone State = "done"
	// StateFailed: it failed for good, and Step.Result is the text of the error.
	StateFailed State = "failed"
)

// settled reports whether a step is never executed again.
func (s State) settled() bool { return s == StateDone || s == StateFailed }

// Step is an entry of an operation's journal.
type Step struct {
	Position int    `json:"position"` // from 0, without gaps
	Name     string `json:"name"`
	// Input and Result are JSON, but for the Result of a step that Failed.
	Input  []byte `json:"-"`
	State  State  `json:"state"`
	Result []byte `json:"-"`
	Cause  string `json:"cause,omitempty"` // of Unknown and Free, for people
	// At is when the step was first recorded, and Age how long ago it was last
	// Started or, if it never was, recorded. Both are by the store's clock.
	At  time.Time     `json:"at"`
	Age time.Duration `json:"age"`
}

// Phase is what a completer has to do about an operation.
type Phase string

// The phases of an operation.
const (
	PhaseOpen     Phase = "open"     // look after it when it is due
	PhaseHeld     Phase = "held"     // a person has to
	PhaseFinished Phase = "finished" // nothing
)

// Operation is what the journal holds of an operation.
type Operation struct {
	Number      uint64            `json:"number"` // of the journal's
	Identity    semel.Identity    `json:"identity"`
	Fence       uint64            `json:"fence"` // of the execution that last opened it
	Fingerprint semel.Fingerprint `json:"-"`
	Input       []byte            `json:"-"`
	Phase       Phase             `json:"phase"`
	Attempts    int               `json:"attempts"` // of completers that failed
	Cause       string            `json:"cause,omitempty"`
	// Changed is when the phase was last written, by the store's clock.
	Changed time.Time `json:"changed"`
	// Steps are in the order of their positions. List leaves them out.
	Steps []Step `json:"steps,omitempty"`
	// Decisions are what people decided of it, in their order, as far as the trail is
	// kept. Only Find tells them.
	Decisions []semel.TrailEntry `json:"decisions,omitempty"`
}

// Opening is an execution that begins, or goes on with, an operation.
type Opening struct {
	Identity    semel.Identity
	Fingerprint semel.Fingerprint
	Input       []byte
	Fence       uint64
	// Due is when a completer is to look after it.
	Due time.Duration
}

// Mark says what is to become of an operation, provided that it has the fence
// still.
type Mark struct {
	Number   uint64
	Fence    uint64
	Phase    Phase
	Attempts int
	Cause    string
	Due      time.Duration // from now, for Open
}

// Decision is what a person has decided of an operation.
type Decision struct {
	Number, Fence uint64
	// Step is the step that is resolved, as it is from now on. Without a name, the
	// operation is only to go on.
	Step Step
	// Entry goes into the trail.
	Entry semel.TrailEntry
}

// DecisionsIn are the decisions on an operation that a store's trail tells of.
func DecisionsIn(ctx context.Context, t semel.Trail, id semel.Identity) (all []semel.TrailEntry, err error) {
	for _, kind := range []semel.TrailKind{semel.TrailStepResolved, semel.TrailRetried} {
		entries, err := t.Trail(ctx, semel.TrailFilter{Kind: kind, Tenant: id.Tenant, Actor: id.Actor, Operation: id.Operation, Key: id.Key, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Tenant == id.Tenant && e.Actor == id.Actor { // an empty filter selects all
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(x, y semel.TrailEntry) int { return cmp.Compare(x.Position, y.Position) })
	return all, nil
}

// Filter selects operations. Empty fields select all.
type Filter struct {
	Phases []Phase
	Key    string
	// Operations selects by Identity.Operation.
	Operations []string
	// Due selects those whose time has come.
	Due bool
	// After continues behind the operation with this number.
	After uint64
	// Limit is the page size: 100 if zero, at most 1,000.
	Limit int
}

// Page is Limit with its default and bound.
func (f Filter) Page() int {
	if f.Limit <= 0 {
		return 100
	}
	return min(f.Limit, 1000)
}

// Store keeps journals, in the database in which local steps have their effects.
// It keeps no policy. Package stepstest is the contract in executable form.
//
// All methods are safe for concurrent use, by many goroutines and processes. When
// one fails with another error than this package's, it is open whether it took
// effect.
type Store interface {
	// Open raises the fence of an operation, which from then on no execution with a
	// lower one can write to, sets it Open and due, and returns it with its steps. What
	// is on record of its input and fingerprint stays; where nothing is, that of o is
	// recorded. It fails with ErrStale where the fence on record is higher.
	Open(ctx context.Context, o Opening) (Operation, error)
	// Put writes a step: a new one, or another state of one that is not settled,
	// whose name and input stay. It fails with ErrStale if the operation's fence is
	// another, or the step is settled.
	Put(ctx context.Context, number, fence uint64, s Step) error
	// Transact calls work in a transaction, with a context that carries it as the
	// store's package documents, puts s with the result in the same transaction, as
	// Done, and commits. If work fails, whose error is returned, or panics, or Put
	// would fail, it is rolled back. Other errors match ErrInDoubt unless nothing took
	// effect for certain.
	Transact(ctx context.Context, number, fence uint64, s Step, work func(ctx context.Context) (result []byte, err error)) error
	// Find returns an operation with its steps and decisions, or ErrNotFound.
	Find(ctx context.Context, id semel.Identity) (Operation, error)
	// List returns operations in the order of their numbers, without their steps.
	List(ctx context.Context, f Filter) ([]Operation, error)
	// Mark writes what a completer has found. It fails with ErrStale if the
	// operation's fence is another.
	Mark(ctx context.Context, m Mark) error
	// Decide makes an operation Open and due, its attempts counted anew, and in the
	// same commit gives d.Step, which must be Unknown, its new State, Result and Cause,
	// and adds d.Entry to the store's trail. It fails with ErrStale, and changes
	// nothing, if the fence is another, or the step is not Unknown, or, where d has
	// none, the operation is not Held. Of concurrent calls one takes effect.
	Decide(ctx context.Context, d Decision) error
	// Sweep forgets at most limit operations that were marked Finished longer than
	// retention ago, by the store's clock.
	Sweep(ctx context.Context, retention time.Duration, limit int) (removed int, err error)
}

// check reports what cannot have been written by this package.
func (o *Operation) check() error {
	names := make(map[string]bool, len(o.Steps))
	for i, s := range o.Steps {
		switch s.State {
		case StateStarted, StateUnknown, StateFree, StateDone, StateFailed:
		default:
			return fmt.Errorf("%w: step %d, %q, is in the state %q", ErrCorrupt, s.Position, s.Name, s.State)
		}
		if s.Position != i || names[s.Name] {
			return fmt.Errorf("%w: step %d, %q, is in the place of step %d, or there twice", ErrCorrupt, s.Position, s.Name, i)
		}
		names[s.Name] = true
	}
	return nil
}
