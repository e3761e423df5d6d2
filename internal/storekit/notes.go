package storekit

import (
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// NotesAtOnce bounds what Notes.Take returns.
const NotesAtOnce = 1000

// Note is an audit entry that waits to be written.
type Note struct {
	At    time.Time // by this process's clock
	Entry semel.TrailEntry
}

// Notes is the queue of entries behind Note, of which it holds a limited number.
type Notes struct {
	arrived chan struct{}

	mu      sync.Mutex
	limit   int
	entries []Note
	closed  bool
}

// Init sets the queue up.
func (q *Notes) Init(limit int) { q.limit, q.arrived = limit, make(chan struct{}, 1) }

// Arrived signals that the queue is no longer empty.
func (q *Notes) Arrived() <-chan struct{} { return q.arrived }

// Add adds an entry whose time is now. An entry beyond the limit is dropped, and
// counted in the place where it would have been.
func (q *Notes) Add(e semel.TrailEntry) {
	n := Note{At: time.Now(), Entry: e}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if len(q.entries) >= q.limit {
		last := &q.entries[len(q.entries)-1]
		if last.Entry.Kind == semel.TrailLost {
			last.Entry.Count++
			return
		}
		n.Entry = semel.TrailEntry{Kind: semel.TrailLost, Count: 1}
	}
	if q.entries = append(q.entries, n); len(q.entries) == 1 {
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	}
}

// Take removes and returns the oldest entries, if the first has waited for at least d.
func (q *Notes) Take(d time.Duration) []Note {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) == 0 || time.Since(q.entries[0].At) < d {
		return nil
	}
	n := min(len(q.entries), NotesAtOnce)
	taken := q.entries[:n:n]
	if q.entries = q.entries[n:]; len(q.entries) == 0 {
		q.entries = nil
	}
	return taken
}

// Len is how many entries wait.
func (q *Notes) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

// Close has later calls of Add do nothing.
func (q *Notes) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
