package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/puddle/v2"

	"github.com/semelhq/semel"
)

const (
	// noteDelay is how long a note waits for others to go with: half of what
	// semel.Trail allows, the rest being for the commit.
	noteDelay = 50 * time.Millisecond
	// noteRest is how long notes wait after they could not be written.
	noteRest = time.Second
	// noteTimeout bounds one attempt to write notes.
	noteTimeout = 5 * time.Second
	// notesAtOnce is how many notes go in one statement.
	notesAtOnce = 1000
)

// note is an audit entry that waits to be written.
type note struct {
	at    time.Time // by this process's monotonic clock, for its age alone
	entry semel.TrailEntry
}

// notes is the queue behind Note, and the goroutine that writes it out.
type notes struct {
	store   *Store
	arrived chan struct{} // signals that the queue is no longer empty
	stop    chan struct{} // closed when Close begins
	done    chan struct{} // closed when the goroutine has ended
	cancel  context.CancelFunc

	mu      sync.Mutex
	entries []note
	closed  bool

	// Of the goroutine, and of close after it.
	pending  []note // taken from the queue, not known to be written
	unsure   bool   // pending may have been written
	seq      uint64 // of the last entry written
	position int64  // at or before it
}

func (q *notes) start(s *Store) {
	q.store = s
	q.arrived, q.stop, q.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel = cancel
	go q.run(ctx)
}

func (q *notes) add(n note) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if len(q.entries) >= q.store.config.MaxNotes {
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

func (q *notes) take() []note {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.entries), notesAtOnce)
	taken := q.entries[:n:n]
	if q.entries = q.entries[n:]; len(q.entries) == 0 {
		q.entries = nil
	}
	return taken
}

// run writes notes until the store is closed.
func (q *notes) run(ctx context.Context) {
	defer close(q.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-q.arrived:
			timer.Reset(noteDelay)
		case <-timer.C:
			if q.flush(ctx) != nil {
				timer.Reset(noteRest)
			}
		case <-q.stop:
			return
		}
	}
}

// flush writes all notes there are.
func (q *notes) flush(ctx context.Context) error {
	for {
		if len(q.pending) == 0 {
			q.pending = q.take()
		}
		if len(q.pending) == 0 {
			return nil
		}
		wctx, cancel := context.WithTimeout(ctx, noteTimeout)
		err := q.write(wctx)
		cancel()
		if err != nil {
			q.unsure = true
			return err
		}
		q.pending, q.unsure = nil, false
	}
}

// write writes the pending notes once, even if an earlier attempt turns out to
// have written them: of two attempts the later waits for the earlier to end.
func (q *notes) write(ctx context.Context) error {
	s := q.store
	var (
		seqs, ages, fences, counts                        []int64
		numbers                                           []int64
		kinds, records, tenants, actors, operations, keys []string
		requests, events, traces, labels, causes          []string
		now                                               = time.Now()
		seq                                               = q.seq
	)
	for _, n := range q.pending {
		e := n.entry
		if seq++; e.Kind == semel.TrailLost {
			seq += e.Count // the lost ones had numbers too
		}
		seqs, ages = append(seqs, int64(seq)), append(ages, now.Sub(n.at).Microseconds())
		number, ours := s.names.Number(e.RecordID)
		if ours {
			e.RecordID = ""
		} else {
			number = 0
		}
		numbers = append(numbers, int64(number))
		kinds, records, tenants = append(kinds, string(e.Kind)), append(records, e.RecordID), append(tenants, e.Tenant)
		actors, operations, keys = append(actors, e.Actor), append(operations, e.Operation), append(keys, e.Key)
		fences, requests, events = append(fences, int64(e.Fence)), append(requests, e.RequestID), append(events, e.EventID)
		traces, labels, causes = append(traces, e.TraceID), append(labels, e.Label), append(causes, e.Cause)
		counts = append(counts, int64(e.Count))
	}
	insert := func(written uint64) (string, []any) {
		return s.sql.writeNotes, []any{
			s.instance, int64(written), seqs, ages, kinds, numbers, records, tenants, actors, operations, keys,
			fences, requests, events, traces, labels, causes, counts,
		}
	}
	const lock = "SELECT pg_advisory_xact_lock($1)"
	key := hash("notes", s.instance)

	var position int64
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if !s.config.NoAdvisoryLocks {
			if _, err := tx.Exec(ctx, lock, key); err != nil {
				return err
			}
		}
		written := q.seq
		if q.unsure {
			var last int64
			if err := tx.QueryRow(ctx, s.sql.lastNote, q.position, s.instance).Scan(&last, &position); err != nil {
				return err
			}
			written = max(written, uint64(last))
		}
		sql, args := insert(written)
		var at int64
		if err := tx.QueryRow(ctx, sql, args...).Scan(&at); err != nil {
			return err
		}
		position = max(position, at)
		return nil
	})
	if err == nil {
		q.seq, q.position = seq, max(q.position, position)
	}
	return err
}

// close writes what is left.
func (q *notes) close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	close(q.stop)
	select {
	case <-q.done:
	case <-ctx.Done():
	}
	q.cancel()
	<-q.done
	err := q.flush(ctx)
	for err != nil && ctx.Err() == nil && !errors.Is(err, puddle.ErrClosedPool) { // a pool may hold many connections that are gone
		t := time.NewTimer(noteDelay)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		err = q.flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("postgres: close: %d audit entries were not written: %w", len(q.pending)+len(q.entries), err)
	}
	return nil
}

// Note implements semel.Trail. The entry's time is that of the call, by the
// server's clock. Texts are cut at 1,024 bytes. After Close, Note does nothing.
func (s *Store) Note(e semel.TrailEntry) {
	if e.Kind = semel.TrailKind(text(string(e.Kind))); e.Kind == semel.TrailLost {
		e.Count = 0
	}
	e.Origin, e.Label, e.Cause = textOrigin(e.Origin), text(e.Label), text(e.Cause)
	e.RecordID, e.Tenant, e.Actor, e.Operation, e.Key = text(e.RecordID), text(e.Tenant), text(e.Actor), text(e.Operation), text(e.Key)
	s.notes.add(note{at: time.Now(), entry: e})
}
