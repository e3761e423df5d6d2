package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/puddle/v2"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

const (
	// noteDelay is how long a note waits for others to go with: half of what
	// semel.Trail allows, the rest being for the commit.
	noteDelay = 50 * time.Millisecond
	// noteRest is how long notes wait after they could not be written.
	noteRest = time.Second
	// noteTimeout bounds one attempt to write notes.
	noteTimeout = 5 * time.Second
)

// notes is the queue behind Note, and the goroutine that writes it out.
type notes struct {
	storekit.Notes
	store  *Store
	stop   chan struct{} // closed when Close begins
	done   chan struct{} // closed when the goroutine has ended
	cancel context.CancelFunc

	// Of the goroutine, and of close after it.
	pending  []storekit.Note // taken from the queue, not known to be written
	unsure   bool            // pending may have been written
	seq      uint64          // of the last entry written
	position int64           // at or before it
}

func (q *notes) start(s *Store) {
	q.store = s
	q.stop, q.done = make(chan struct{}), make(chan struct{})
	q.Init(s.config.MaxNotes)
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel = cancel
	go q.run(ctx)
}

// run writes notes until the store is closed.
func (q *notes) run(ctx context.Context) {
	defer close(q.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-q.Arrived():
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
			q.pending = q.Take(0)
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
		e := n.Entry
		if seq++; e.Kind == semel.TrailLost {
			seq += e.Count // the lost ones had numbers too
		}
		seqs, ages = append(seqs, int64(seq)), append(ages, now.Sub(n.At).Microseconds())
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
	q.Close()
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
		return fmt.Errorf("postgres: close: %d audit entries were not written: %w", len(q.pending)+q.Len(), err)
	}
	return nil
}

// Note implements semel.Trail. The entry's time is that of the call, by the
// server's clock. Texts are truncated to 1,024 bytes. After Close, Note does
// nothing.
func (s *Store) Note(e semel.TrailEntry) {
	s.notes.Add(storekit.Texts(e, text))
}
