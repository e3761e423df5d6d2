package conditional

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Transition is what an event leads to.
type Transition struct {
	Event string
	From  []string // the states in which it is allowed
	To    string
}

// A Table contains the allowed transitions. It is safe for concurrent use.
type Table struct {
	to    map[[2]string]string       // by event and state
	by    map[string]map[string]bool // the events that lead to a state
	leads map[string]map[string]bool // the states that an event leads to
}

// NewTable returns a table, or an error that lists everything wrong with the
// transitions. A transition from a state to itself is not allowed, because its
// repetition could not be recognised.
func NewTable(transitions ...Transition) (*Table, error) {
	t := &Table{to: map[[2]string]string{}, by: map[string]map[string]bool{}, leads: map[string]map[string]bool{}}
	var errs []error
	for i, tr := range transitions {
		if tr.Event == "" || tr.To == "" || len(tr.From) == 0 || slices.Contains(tr.From, "") {
			errs = append(errs, fmt.Errorf("transition %d: event, states to come from and state to go to must be named", i))
			continue
		}
		for _, from := range tr.From {
			at := [2]string{tr.Event, from}
			switch {
			case from == tr.To:
				errs = append(errs, fmt.Errorf("transition %d: %s leads from %s to itself", i, tr.Event, from))
			case t.to[at] != "":
				errs = append(errs, fmt.Errorf("transition %d: %s from %s is defined twice", i, tr.Event, from))
			default:
				t.to[at] = tr.To
			}
		}
		add(t.by, tr.To, tr.Event)
		add(t.leads, tr.Event, tr.To)
	}
	if len(transitions) == 0 {
		errs = append(errs, errors.New("there are no transitions"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("conditional: table: %w", err)
	}
	return t, nil
}

func add(m map[string]map[string]bool, key, value string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][value] = true
}

// Position is the position of a subject in a table.
type Position struct {
	State string // "" if there is no such thing
	// Event is the event that led to State. It may be empty if no state can be
	// reached by more than one event.
	Event string
	// Version is like State.Version, or 0 if the subject has none; a request
	// with a precondition then fails.
	Version int64
	// Modified is like State.Modified.
	Modified time.Time
}

// Move is a transition of a subject.
type Move struct {
	Event, From, To string
	// Found and Next are versions, or 0 if the subject has none.
	Found, Next int64
}

// Subject is the subject of a transition. Its functions are called one after the
// other, in the caller's transaction if there is one, and may be called again.
type Subject struct {
	// Current reads the position. Required.
	Current func(ctx context.Context) (Position, error)
	// Move executes one statement that makes the transition, and returns the number
	// of rows it wrote. The statement requires the position that was found:
	//
	//	UPDATE orders SET state = <To>, event = <Event>, version = <Next>
	//	WHERE id = <id> AND state = <From> AND version = <Found>
	//
	// It may have more conditions. If one of them does not hold, Table.Apply
	// returns ErrNotWritten. Required.
	Move func(ctx context.Context, m Move) (rows int64, err error)
}

// Moved is the result of an event.
type Moved struct {
	State   string // in which the subject is now
	Version int64
	// Repeated reports whether the same event had already led the subject to this
	// state. Everything that goes with the transition was done in its transaction.
	// Respond as to the first event.
	Repeated bool
}

// A TransitionError reports that the table does not allow an event. There was
// no effect.
type TransitionError struct {
	Event string
	State string // the current one
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("conditional: %s is not allowed in state %s", e.Event, e.State)
}

// Apply applies an event to a subject, if the table allows the event in the
// subject's state and the precondition in ctx holds. Of any number of concurrent
// calls, in any number of processes, one makes the transition, and the others find
// it made. If the same event has already led the subject to its state, nothing is
// changed, and the result is Repeated, whatever the precondition, because the
// request has succeeded before (RFC 9110 13.1.1). Once the subject has left that
// state, a repetition cannot be distinguished from a new event; use an idempotency
// key if it must be.
//
// The errors are *TransitionError and those of Apply. As there, the
// precondition applies only if the event is allowed.
func (t *Table) Apply(ctx context.Context, event string, s Subject) (Moved, error) {
	p := of(ctx)
	if t.leads[event] == nil {
		return Moved{}, fmt.Errorf("conditional: no transition has the event %q", event)
	}
	var last Position
	for range maxTries {
		at, err := s.Current(ctx)
		switch {
		case err != nil:
			return Moved{}, err
		case at.State == "":
			return Moved{}, ErrNotFound
		case at.State == last.State && at.Event == last.Event && at.Version == last.Version:
			return Moved{}, ErrNotWritten
		}
		last = at
		repeated, err := t.repeated(event, at)
		if err != nil {
			return Moved{}, err
		}
		if repeated {
			p.applied.Store(true)
			return Moved{State: at.State, Version: at.Version, Repeated: true}, nil
		}
		m := Move{Event: event, From: at.State, To: t.to[[2]string{event, at.State}]}
		if m.To == "" {
			return Moved{}, &TransitionError{Event: event, State: at.State}
		}
		if at.Version == 0 && !p.empty() {
			return Moved{}, errors.New("conditional: the request has a precondition, but the Position has no version")
		}
		if at.Version != 0 {
			m.Found, m.Next = at.Version, at.Version+1
		}
		if err := p.check(State{Version: at.Version, Modified: at.Modified}); err != nil {
			return Moved{}, err
		}
		rows, err := s.Move(ctx, m)
		if err != nil {
			return Moved{}, err
		}
		if ok, err := wrote(rows); err != nil {
			return Moved{}, err
		} else if ok {
			p.applied.Store(true)
			return Moved{State: m.To, Version: m.Next}, nil
		}
	}
	return Moved{}, ErrContended
}

// repeated reports whether it was the event that led to where the subject is.
func (t *Table) repeated(event string, at Position) (bool, error) {
	switch {
	case !t.leads[event][at.State]:
		return false, nil
	case at.Event != "":
		return at.Event == event, nil
	case len(t.by[at.State]) > 1:
		return false, fmt.Errorf("conditional: several events lead to state %s, and the Position does not say which did", at.State)
	}
	return true, nil
}
