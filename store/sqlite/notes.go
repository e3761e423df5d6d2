package sqlite

import (
	"fmt"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

const (
	// noteDelay is how long a note waits for others, and for a group to go
	// with. A group that comes just before makes it twice as long, which is
	// still within the 100 ms of semel.Trail.
	noteDelay = 40 * time.Millisecond
	// noteRest is how long notes wait after they could not be written.
	noteRest = time.Second
)

// Note implements semel.Trail. The entry's time is that of the call. Texts are
// truncated to 1,024 bytes. After Close, Note does nothing.
func (s *Store) Note(e semel.TrailEntry) {
	s.notes.Add(storekit.Texts(e, storekit.Cut))
}

// dueNotes returns the notes to write with the next group.
func (w *writer) dueNotes(age time.Duration) []storekit.Note {
	if time.Now().Before(w.noteRest) {
		return nil
	}
	if len(w.pending) == 0 {
		w.pending = w.store.notes.Take(age)
	}
	return w.pending
}

func (w *writer) hasNotes() bool { return len(w.pending) > 0 || w.store.notes.Len() > 0 }

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
	w.store.notes.Close()
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
		for more := w.store.notes.Take(0); len(more) > 0; more = w.store.notes.Take(0) {
			n += len(more)
		}
		return fmt.Errorf("%d audit entries were not written: %w", n, err)
	}
}
