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
	// ErrStale reports that an execution with a higher fence has continued the
	// operation, or that the step is settled. Nothing was written.
	ErrStale = errors.New("steps: another execution has gone on with the operation")
	// ErrNotFound reports that the operation is not in the journal.
	ErrNotFound = errors.New("steps: no such operation")
	// ErrRolledBack reports that the transaction of a local step was not
	// committed. Nothing took effect.
	ErrRolledBack = errors.New("steps: the transaction was rolled back")
	// ErrInDoubt reports that it is open whether the transaction of a local step
	// was committed. The next execution finds out.
	ErrInDoubt = errors.New("steps: it is open whether the transaction was committed")
)

// State is the state of a step.
type State string

// The states of a step.
const (
	// StateStarted means that the call is about to be made, or was. After that
	// execution has ended, its outcome is unknown.
	StateStarted State = "started"
	// StateUnknown means that a person must decide what the outcome of the call
	// was.
	StateUnknown State = "unknown"
	// StateFree means that the call certainly had no effect and will be made
	// again.
	StateFree State = "free"
	// StateDone means that the step is done. Step.Result is its result.
	StateDone State = "done"
	// StateFailed means that the step has failed for good. Step.Result is the
	// text of the error.
	StateFailed State = "failed"
)

// settled reports whether a step is never executed again.
func (s State) settled() bool { return s == StateDone || s == StateFailed }

// Step is a step in an operation's journal.
type Step struct {
	Position int    `json:"position"` // from 0, without gaps
	Name     string `json:"name"`
	// Input and Result are JSON, except for the Result of a failed step.
	Input  []byte `json:"-"`
	State  State  `json:"state"`
	Result []byte `json:"-"`
	Cause  string `json:"cause,omitempty"` // of Unknown and Free, for people
	// At is when the step was first recorded. Age is how long ago it was last
	// started or, if it never was, recorded. Both are by the store's clock.
	At  time.Time     `json:"at"`
	Age time.Duration `json:"age"`

	stored []byte // Input as the store has it
}

// Phase says what a completer has to do with an operation.
type Phase string

// The phases of an operation.
const (
	PhaseOpen     Phase = "open"     // look after it when it is due
	PhaseHeld     Phase = "held"     // a person has to
	PhaseFinished Phase = "finished" // nothing
)

// Operation is an operation in the journal.
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
	// Steps are ordered by position. List omits them.
	Steps []Step `json:"steps,omitempty"`
	// Decisions are the decisions of people on the operation, in order, as long as
	// the trail keeps them. Only Find returns them.
	Decisions []semel.TrailEntry `json:"decisions,omitempty"`
}

// Opening is an execution that begins or continues an operation.
type Opening struct {
	Identity    semel.Identity
	Fingerprint semel.Fingerprint
	Input       []byte
	Fence       uint64
	// Due is the time after which the operation is due for a completer.
	Due time.Duration
}

// Mark changes an operation if its fence is still the same.
type Mark struct {
	Number   uint64
	Fence    uint64
	Phase    Phase
	Attempts int
	Cause    string
	Due      time.Duration // from now, for Open
}

// Decision is a person's decision on an operation.
type Decision struct {
	Number, Fence uint64
	// Step is the resolved step with its new state. If its name is empty, the
	// operation only becomes open again.
	Step Step
	// Entry goes into the trail.
	Entry semel.TrailEntry
}

// DecisionsIn returns the decisions on an operation that are recorded in a
// store's trail.
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

// Filter selects operations. Empty fields match all operations.
type Filter struct {
	Phases []Phase
	Key    string
	// Operations selects by Identity.Operation.
	Operations []string
	// Due selects operations that are due.
	Due bool
	// After selects operations with a higher number.
	After uint64
	// Limit is the page size: default 100, at most 1,000.
	Limit int
}

// Page returns Limit with its default and maximum applied.
func (f Filter) Page() int {
	if f.Limit <= 0 {
		return 100
	}
	return min(f.Limit, 1000)
}

// Store stores journals, in the database in which local steps have their
// effects. It implements no policy. Package stepstest tests this contract.
//
// All methods are safe for concurrent use, by many goroutines and processes. If
// one fails with an error that is not of this package, it is open whether it took
// effect.
type Store interface {
	// Open raises the fence of an operation, so that executions with a lower fence can
	// no longer write to it, sets its phase to PhaseOpen and its due time, and returns
	// it with its steps. A recorded input and fingerprint are kept; for a new operation
	// those of o are recorded. Open fails with ErrStale if the recorded fence is
	// higher.
	Open(ctx context.Context, o Opening) (Operation, error)
	// Put writes a new step, or the state of one that is not settled, whose name
	// and input stay the same. It fails with ErrStale if the operation has another
	// fence or the step is settled.
	Put(ctx context.Context, number, fence uint64, s Step) error
	// Transact calls work in a transaction, with a context that carries it as
	// documented by the store's package, puts s with the result and StateDone in the
	// same transaction, and commits. It rolls back if work panics or fails, in which
	// case it returns work's error, or if Put would fail. Other errors match
	// ErrInDoubt unless it is certain that nothing took effect.
	Transact(ctx context.Context, number, fence uint64, s Step, work func(ctx context.Context) (result []byte, err error)) error
	// Find returns an operation with its steps and decisions, or ErrNotFound.
	Find(ctx context.Context, id semel.Identity) (Operation, error)
	// List returns operations in the order of their numbers, without their steps.
	List(ctx context.Context, f Filter) ([]Operation, error)
	// Mark writes the outcome of a completer's attempt. It fails with ErrStale
	// if the operation has another fence.
	Mark(ctx context.Context, m Mark) error
	// Decide sets an operation's phase to PhaseOpen, makes it due and resets its
	// attempts. In the same commit it gives d.Step, which must be in StateUnknown, its
	// new State, Result and Cause, and adds d.Entry to the store's trail. It fails with
	// ErrStale and changes nothing if the operation has another fence, if the step is
	// not in StateUnknown, or, if d has no step, if the operation is not in PhaseHeld.
	// Of concurrent calls only one takes effect.
	Decide(ctx context.Context, d Decision) error
	// Sweep removes at most limit operations that were marked as PhaseFinished
	// longer than retention ago, by the store's clock.
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
