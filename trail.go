package semel

import (
	"context"
	"sync"
	"time"
)

// TrailKind is the kind of an entry of the audit trail.
type TrailKind string

// The kinds of entries of the audit trail. Those of the first group are written in
// the commit of the record, those of the second after the answer.
const (
	TrailExecuted TrailKind = "executed" // result recorded
	TrailReleased TrailKind = "released" // certainly no effect
	TrailHeld     TrailKind = "held"     // outcome unknown, by Hold or DecideUnknown
	TrailTakeover TrailKind = "taken_over"
	TrailResolved TrailKind = "resolved"
	TrailErased   TrailKind = "erased" // result removed, by Eraser
	// Decisions on a message of an outbox, whose id is the EventID.
	TrailRedriven  TrailKind = "redriven"
	TrailCancelled TrailKind = "cancelled"
	// Decisions on a step in the journal of the entry's identity. Label has the
	// states before and after.
	TrailStepResolved TrailKind = "step_resolved"
	TrailRetried      TrailKind = "retried"

	TrailReplayed   TrailKind = "replayed"
	TrailInProgress TrailKind = "in_progress"
	TrailMismatch   TrailKind = "mismatch"
	TrailUnknown    TrailKind = "unknown"
	// TrailUnavailable: completed, with a result that could not be read.
	TrailUnavailable TrailKind = "unavailable"
	TrailFailedOpen  TrailKind = "failed_open"
	// TrailLost says how many entries were dropped before it.
	TrailLost TrailKind = "lost"
)

// TrailEntry is an entry of the audit trail. It holds no payload.
type TrailEntry struct {
	// Position orders the trail of a store. The store assigns it.
	Position uint64 `json:"position"`
	// Instance identifies the process that wrote the entry. Within an instance,
	// Seq has no gaps except those that a TrailLost entry counts.
	Instance string    `json:"instance"`
	Seq      uint64    `json:"seq"`
	At       time.Time `json:"at"`

	Kind      TrailKind `json:"kind"`
	RecordID  string    `json:"record_id,omitempty"`
	Tenant    string    `json:"tenant,omitempty"`
	Actor     string    `json:"actor,omitempty"`
	Operation string    `json:"operation,omitempty"`
	Key       string    `json:"key,omitempty"`
	Fence     uint64    `json:"fence,omitempty"`
	Origin
	// Label is the result's label, or the decision of a resolution.
	Label string `json:"label,omitempty"`
	Cause string `json:"cause,omitempty"`
	// Count is the number of answers that the entry stands for, if more than one.
	// In a TrailLost entry it is the number of entries that were dropped.
	Count uint64 `json:"count,omitempty"`
}

// TrailFilter selects entries of the audit trail. Zero fields select all.
type TrailFilter struct {
	RecordID, Tenant, Actor, Operation, Key string
	RequestID, EventID, TraceID             string
	Kind                                    TrailKind
	Since, Until                            time.Time // by the store's clock; Until is exclusive
	After                                   uint64    // continue after this position
	Limit                                   int       // at most 1,000; default 100
}

// maxTallies bounds how many records have a tally. Answers about others have an
// entry of the trail each.
const maxTallies = 4096

// notes writes to the trail what submits were told, without letting a client
// that repeats a request fill it: what is told again about a record within an
// interval is counted, and is one entry at its end.
type notes struct {
	trail    Trail
	interval time.Duration

	mu      sync.Mutex
	tallies map[tallied]*tally
	ended   bool
}

// tallied is what entries have in common that are counted together.
type tallied struct {
	kind   TrailKind
	record string
	fence  uint64
}

type tally struct {
	count uint64 // of answers since the last entry
	last  TrailEntry
	timer *time.Timer
}

// write has the counted answers' entry written.
func (n *notes) write(t *tally) {
	if t.count > 1 {
		t.last.Count = t.count
	}
	n.trail.Note(t.last)
	t.count = 0
}

func newNotes(t Trail, interval time.Duration) *notes {
	return &notes{trail: t, interval: interval, tallies: map[tallied]*tally{}}
}

func (n *notes) add(e TrailEntry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	on := tallied{e.Kind, e.RecordID, e.Fence}
	if t := n.tallies[on]; t != nil {
		t.last = e
		t.count++
		return
	}
	n.trail.Note(e)
	if n.interval > 0 && !n.ended && e.RecordID != "" && len(n.tallies) < maxTallies {
		n.tallies[on] = &tally{timer: time.AfterFunc(n.interval, func() { n.turn(on) })}
	}
}

// turn ends an interval, and begins another if there was anything in it.
func (n *notes) turn(on tallied) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.tallies[on]
	if t == nil {
		return
	}
	if t.count == 0 {
		delete(n.tallies, on)
		return
	}
	n.write(t)
	t.timer.Reset(n.interval)
}

// end writes what has been counted. From then on every answer has its entry.
func (n *notes) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	for on, t := range n.tallies {
		t.timer.Stop()
		if t.count > 0 {
			n.write(t)
		}
		delete(n.tallies, on)
	}
}

// note has an audit entry written for an answer that met a record and changed
// none.
func (g *Guard) note(s *Submit, out *Outcome) {
	if g.notes == nil || out.Record.State == 0 {
		return
	}
	g.notes.add(entry(s, TrailEntry{
		Kind: TrailKind(out.Answer.String()), RecordID: out.Record.ID, Fence: out.Record.Fence, Label: out.Result.Label,
	}))
}

// entry fills in whose entry it is.
func entry(s *Submit, e TrailEntry) TrailEntry {
	e.Tenant, e.Actor, e.Operation, e.Key = s.Identity.Tenant, s.Identity.Actor, s.Identity.Operation, s.Identity.Key
	e.Origin = s.Origin
	return e
}

// NoteFailedOpen adds an entry to the audit trail for a submit that was let
// through without protection, if the store implements Trail, and calls
// Observer.FailedOpen. It is for callers that are configured to fail open.
func (g *Guard) NoteFailedOpen(ctx context.Context, s Submit, cause error) {
	if g.notes != nil {
		g.notes.trail.Note(entry(&s, TrailEntry{Kind: TrailFailedOpen, Cause: "store unavailable"}))
	}
	if g.observe.FailedOpen != nil {
		g.observe.FailedOpen(ctx, s.Identity.Scope, cause)
	}
}
