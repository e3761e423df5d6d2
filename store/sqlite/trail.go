package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

const (
	trailColumns = `position, instance, seq, at, kind, record, record_id, tenant, actor, operation, key, fence,
	request_id, event_id, trace_id, label, cause, count`

	// selectLastSeq finds what an instance wrote behind a position.
	selectLastSeq = `
		SELECT max((SELECT coalesce(max(seq), 0) FROM trail WHERE position > ?1 AND instance = ?2),
			(SELECT coalesce(max(seq), 0) FROM executed WHERE position > ?1 AND instance = ?2))`
)

// instance is a writer of entries: a random number, shown as a text.
type instance int64

func newInstance() instance { return instance(rand.Int64()) }

func (i instance) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// enter adds an entry about the record with that number to the trail.
func (t *tx) enter(kind semel.TrailKind, number uint64, label, cause string) error {
	if err := t.flush(); err != nil {
		return err
	}
	n, err := t.exec(`
		INSERT INTO trail (`+trailColumns+`)
		SELECT ?, ?, ?, ?, ?, number, NULL, tenant, actor, operation, key, coalesce(fence, number), request_id, event_id, trace_id, ?, ?, NULL
		FROM record WHERE number = ?`,
		int64(t.position+1), int64(t.instance), int64(t.seq+1), t.now, string(kind), orNull(label), orNull(cause), int64(number))
	if err == nil && n != 1 {
		err = errors.New("sqlite: the record is gone in the middle of its change")
		t.err = err
	}
	t.position++
	t.seq++
	return err
}

// append adds e to the trail.
func (t *tx) append(at time.Time, e semel.TrailEntry) error {
	if err := t.flush(); err != nil {
		return err
	}
	t.position++
	if t.seq++; e.Kind == semel.TrailLost {
		t.seq += e.Count // the lost ones had numbers too
	}
	var count driver.Value
	if e.Count > 0 {
		count = int64(e.Count)
	}
	number, foreign := recordOf(t.store.names, e.RecordID)
	_, err := t.exec(`INSERT INTO trail (`+trailColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		int64(t.position), int64(t.instance), int64(t.seq), at.UnixMicro(), string(e.Kind),
		number, foreign, e.Tenant, e.Actor, e.Operation, e.Key, int64(e.Fence),
		orNull(e.RequestID), orNull(e.EventID), orNull(e.TraceID), orNull(e.Label), orNull(e.Cause), count)
	return err
}

// recordOf returns the number in the id of a record, or the id itself if it is
// not one of this store's.
func recordOf(names namer, id string) (number, foreign driver.Value) {
	if n, ok := names.Number(id); ok && n <= math.MaxInt64 {
		return int64(n), nil
	}
	return nil, orNull(id)
}

// Trail implements semel.Trail. The Seq of an entry that records a loss counts
// the lost entries as well.
func (s *Store) Trail(ctx context.Context, f semel.TrailFilter) ([]semel.TrailEntry, error) {
	if f.After >= math.MaxInt64 {
		return nil, nil
	}
	var out []semel.TrailEntry
	err := s.read(ctx, func(c *conn) error {
		return c.snapshot(func() error {
			out = nil
			query, args := s.trailQuery(f)
			if err := c.queryOnce(ctx, query, func(r *row) { out = append(out, r.trailEntry(s.names)) }, args...); err != nil {
				return err
			}
			if f.Kind != "" && f.Kind != semel.TrailExecuted {
				return nil
			}
			end := uint64(math.MaxInt64 - 1)
			if limit := storekit.PageSize(f.Limit); len(out) == limit {
				end = out[limit-1].Position
			}
			executed, err := s.executions(ctx, c, f, end)
			out = merge(out, executed, storekit.PageSize(f.Limit))
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// merge returns the first limit entries of both, which are in order.
func merge(a, b []semel.TrailEntry, limit int) []semel.TrailEntry {
	if len(b) == 0 {
		return a
	}
	out := make([]semel.TrailEntry, 0, min(len(a)+len(b), limit))
	for len(out) < limit && len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].Position < b[0].Position {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}

// trailQuery returns the query for what is in the table trail.
func (s *Store) trailQuery(f semel.TrailFilter) (query string, args []driver.Value) {
	var w where
	after := int64(f.After)
	w.add("position > ?", after)
	number, foreign := recordOf(s.names, f.RecordID)
	switch {
	case number != nil:
		w.add("record = ?", number)
	case foreign != nil:
		w.add("record_id = ?", foreign)
	}
	w.entry(f)
	w.key(f.Key)
	w.equal("kind", string(f.Kind))
	if !f.Since.IsZero() {
		w.add("at >= ?", ceilMicro(f.Since))
	}
	if !f.Until.IsZero() {
		w.add("at < ?", ceilMicro(f.Until))
	}
	limit := storekit.PageSize(f.Limit)
	if number != nil || f.Key != "" || f.RequestID != "" || f.EventID != "" || f.TraceID != "" {
		return inBuckets("trail", "position", trailColumns, after, w, "position", limit)
	}
	return "SELECT " + trailColumns + " FROM trail WHERE " + w.String() + " ORDER BY position LIMIT " + strconv.Itoa(limit), w.args
}

// trailEntry reads trailColumns.
func (r *row) trailEntry(names namer) (e semel.TrailEntry) {
	e.Position, e.Instance, e.Seq = uint64(r.int()), instance(r.int()).String(), uint64(r.int())
	e.At, e.Kind = time.UnixMicro(r.int()), semel.TrailKind(r.text())
	if number, ok := r.number(); ok {
		e.RecordID = names.ID(uint64(number))
	}
	if foreign := r.text(); foreign != "" {
		e.RecordID = foreign
	}
	e.Tenant, e.Actor, e.Operation, e.Key = r.text(), r.text(), r.text(), r.text()
	e.Fence = uint64(r.int())
	e.RequestID, e.EventID, e.TraceID = r.text(), r.text(), r.text()
	e.Label, e.Cause, e.Count = r.text(), r.text(), uint64(r.int())
	return e
}

// ceilMicro rounds a bound up: times are stored rounded down.
func ceilMicro(t time.Time) int64 {
	us := t.UnixMicro()
	if t.After(time.UnixMicro(us)) {
		us++
	}
	return us
}
