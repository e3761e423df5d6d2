package sqlite

import (
	"fmt"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

const (
	// noteDelay is how long a note waits for others, and for a group to go
	// with. A group that comes just before makes it twice as long, which is
	// still within the 100 ms of semel.Trail.
	noteDelay = 40 * time.Millisecond
	// noteRest is how long notes wait after they could not be written.
	noteRest = time.Second
	// notesAtOnce bounds what notes add to a group.
	notesAtOnce = 1000
)

// note is an audit entry that waits to be written.
type note struct {
	at    time.Time
	entry semel.TrailEntry
}

// notes is the queue behind Note.
type notes struct {
	arrived chan struct{} // signals that the queue is no longer empty

	mu      sync.Mutex
	limit   int
	entries []note
	closed  bool
}

func (q *notes) init(limit int) {
	q.limit = limit
	q.arrived = make(chan struct{}, 1)
}

func (q *notes) add(n note) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if len(q.entries) >= q.limit {
		// What is dropped is counted in the place where it would have been.
		last := &q.entries[len(q.entries)-1]
		if last.entry.Kind == semel.TrailLost {
			last.entry.Count++
			return
		}
		n.entry = semel.TrailEntry{Kind: semel.TrailLost, Count: 1}
	}
	if q.entries = append(q.entries, n); len(q.entries) == 1 {
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	}
}

// take returns the oldest entries, if the first has waited for at least d.
func (q *notes) take(d time.Duration) []note {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) == 0 || time.Since(q.entries[0].at) < d {
		return nil
	}
	n := min(len(q.entries), notesAtOnce)
	taken := q.entries[:n:n]
	if q.entries = q.entries[n:]; len(q.entries) == 0 {
		q.entries = nil
	}
	return taken
}

func (q *notes) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) > 0
}

func (q *notes) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// Note implements semel.Trail. The entry's time is that of the call. Texts are
// cut at 1,024 bytes. After Close, Note does nothing.
func (s *Store) Note(e semel.TrailEntry) {
	if e.Kind == semel.TrailLost {
		e.Count = 0
	}
	e.Origin, e.Label, e.Cause = cutOrigin(e.Origin), cut(e.Label), cut(e.Cause)
	e.RecordID, e.Tenant, e.Actor, e.Operation, e.Key = cut(e.RecordID), cut(e.Tenant), cut(e.Actor), cut(e.Operation), cut(e.Key)
	s.notes.add(note{at: time.Now(), entry: e})
}

// dueNotes returns the notes to write with the next group.
func (w *writer) dueNotes(age time.Duration) []note {
	if time.Now().Before(w.noteRest) {
		return nil
	}
	if len(w.pending) == 0 {
		w.pending = w.store.notes.take(age)
	}
	return w.pending
}

func (w *writer) hasNotes() bool { return len(w.pending) > 0 || w.store.notes.waiting() }

// awaitNotes sets the timer to when notes are to be written, if no group takes
// them along before.
func (w *writer) awaitNotes() { w.noteTime.Reset(max(noteDelay, time.Until(w.noteRest))) }

// writeNotes writes the pending notes in a transaction of their own.
func (w *writer) writeNotes() error {
	if err := w.lock(); err != nil {
		return err
	}
	_, err := w.commit(nil, w.pending)
	return err
}

// lastNotes writes all notes there are.
func (w *writer) lastNotes() error {
	w.store.notes.close()
	for failures := 0; ; {
		w.noteRest = time.Time{}
		if len(w.dueNotes(0)) == 0 {
			return nil
		}
		err := w.writeNotes()
		if err == nil {
			continue
		}
		if failures++; failures < 3 && !isBusy(err) {
			continue // a new connection may help, or find that they are written
		}
		n := len(w.pending)
		for more := w.store.notes.take(0); len(more) > 0; more = w.store.notes.take(0) {
			n += len(more)
		}
		return fmt.Errorf("%d audit entries were not written: %w", n, err)
	}
}
