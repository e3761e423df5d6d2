package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
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

// Trail implements semel.Trail.
//
// The Seq of an entry that tells of a loss counts the lost entries as well. An
// entry that was written in the commit of its change cannot get lost, and is an
// instance of its own with Seq 1.
//
// Positions are given out within 100 ms before the commit, so an entry can turn up
// behind one with a higher position. Who follows the trail asks again from a
// little before its end.
//
// Entries are found at once by record, key, request, event and trace; other filters
// are applied to all there are.
func (s *Store) Trail(ctx context.Context, f semel.TrailFilter) ([]semel.TrailEntry, error) {
	if f.After > math.MaxInt64 {
		return nil, nil
	}
	sql, args := s.trailQuery(f)
	return again(ctx, s, func() ([]semel.TrailEntry, error) {
		rows, err := s.pool.Query(ctx, sql, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, s.scanEntry)
	})
}

// trailQuery selects a page of entries: from the trail's own, and from the records
// that are the entries of their executions. A record without a position is where
// its number is. Numbers and positions come from one counter, so no more numbers
// are looked at than lie between the ends of a full page.
func (s *Store) trailQuery(f semel.TrailFilter) (sql string, args []any) {
	var w where
	after, limit := w.arg(int64(f.After)), pageSize(f.Limit)
	w.equal("tenant", f.Tenant)
	w.equal("actor", f.Actor)
	w.equal("operation", f.Operation)
	w.equal("request_id", f.RequestID)
	w.equal("event_id", f.EventID)
	w.equal("trace_id", f.TraceID)
	number, ofOurs := s.names.Number(f.RecordID)
	if ofOurs {
		w.add("number = ?", int64(number))
	}

	executions := where{args: w.args, conditions: slices.Clone(w.conditions)}
	if f.RecordID != "" && !ofOurs || f.Kind != "" && f.Kind != semel.TrailExecuted {
		executions.add("false")
	}
	s.byKey(&executions, f.Key)
	executions.between("settled_at", f.Since, f.Until)

	entries := where{args: executions.args, conditions: w.conditions}
	if !ofOurs {
		entries.equal("record_id", f.RecordID)
	}
	entries.equal("kind", string(f.Kind))
	entries.equal("key", f.Key)
	entries.between("at", f.Since, f.Until)

	page := func(columns string, of where, order string) string {
		return columns + of.and(order+" > "+after) + " ORDER BY " + order + " LIMIT " + limit
	}
	return `
		WITH most AS MATERIALIZED (
			(` + page(s.sql.entries, entries, "trail.position") + `)
			UNION ALL
			(` + page(s.sql.executions, executions, "record.position") + `)
			ORDER BY position LIMIT ` + limit + `
		)
		TABLE most
		UNION ALL
		(` + page(s.sql.executions+`position IS NULL AND number <= (SELECT CASE WHEN count(*) < `+limit+` THEN 9223372036854775807 ELSE max(position) END FROM most) AND `,
		executions, "number") + `)
		ORDER BY position LIMIT ` + limit, entries.args
}

func (s *Store) scanEntry(row pgx.CollectableRow) (e semel.TrailEntry, err error) {
	var position, seq, number, fence, count int64
	err = row.Scan(&position, &e.Instance, &seq, &e.At, (*string)(&e.Kind), &number, &e.RecordID, &e.Tenant, &e.Actor, &e.Operation,
		&e.Key, &fence, &e.RequestID, &e.EventID, &e.TraceID, &e.Label, &e.Cause, &count)
	e.Position, e.Seq, e.Fence, e.Count = uint64(position), uint64(seq), uint64(fence), uint64(count)
	if number != 0 {
		e.RecordID = s.names.ID(uint64(number))
	}
	if e.Instance == "" {
		e.Instance, e.Seq = e.RecordID+"/"+strconv.FormatInt(position, 10), 1
	}
	return e, err
}

// ceilMicro rounds a bound up: times are stored rounded down.
func ceilMicro(t time.Time) time.Time {
	if down := t.Truncate(time.Microsecond); down.Before(t) {
		return down.Add(time.Microsecond)
	}
	return t
}
