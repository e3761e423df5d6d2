package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// An execution has no entry of its own in the trail while its record says the
// same. Its position is reserved in the commit that completes the record, in a
// row that stands for all the executions of that commit; the record remembers
// the position. Readers put the two together. Whoever removes the record writes
// the entry out at the position it always had, in the same commit, so that a
// reader who follows the trail sees it once, before or after.

// run is executions of one commit whose positions follow each other.
type run struct {
	first    uint64 // position
	seq      uint64 // of the first
	instance instance
	at       int64
	numbers  []uint64
}

const runColumns = "position, instance, seq, at, numbers"

var errRun = errors.New("sqlite: the numbers of executed records cannot be read")

// run reads runColumns.
func (r *row) run() (n run) {
	n.first, n.instance = uint64(r.int()), instance(r.int())
	last := uint64(r.int())
	n.at = r.int()
	number := uint64(0)
	for b := r.bytes(); len(b) > 0; {
		d, size := binary.Varint(b)
		if size <= 0 {
			r.err = errRun
			return n
		}
		number += uint64(d)
		n.numbers = append(n.numbers, number)
		b = b[size:]
	}
	n.seq = last + 1 - uint64(len(n.numbers))
	return n
}

// has reports whether the entry at position is the execution of that record.
func (n *run) has(position, number uint64) bool {
	return position >= n.first && position-n.first < uint64(len(n.numbers)) && n.numbers[position-n.first] == number
}

// executed adds the entry of the record with that number, which says so itself,
// at the next position.
func (t *tx) executed(number uint64) {
	t.position++
	t.seq++
	t.run = append(t.run, number)
}

// flush writes down which records were executed last. It comes before any other
// entry, and before the commit.
func (t *tx) flush() error {
	if len(t.run) == 0 || t.err != nil {
		return t.err
	}
	numbers := make([]byte, 0, binary.MaxVarintLen64+2*len(t.run))
	before := uint64(0)
	for _, number := range t.run {
		numbers = binary.AppendVarint(numbers, int64(number-before))
		before = number
	}
	_, err := t.exec("INSERT INTO executed (position, instance, seq, at, records, numbers) VALUES (?, ?, ?, ?, ?, ?)",
		int64(t.position)-int64(len(t.run))+1, int64(t.instance), int64(t.seq), t.now, int64(len(t.run)), numbers)
	t.run = t.run[:0]
	return err
}

// removal is a completed record that is to go.
type removal struct{ number, position uint64 }

const selectRun = "SELECT " + runColumns + " FROM executed WHERE position <= ? ORDER BY position DESC LIMIT 1"

// remove removes completed records whose retention is over: all, unless late, which
// may be nil, says that it takes too long. What they said in the
// trail becomes entries of their own, unless that is over as well.
func (t *tx) remove(records []removal, late func(removed int) bool) (removed int, err error) {
	if err := t.flush(); err != nil {
		return 0, err
	}
	t.store.cache.removing(t.now)
	keepFrom := int64(math.MinInt64)
	if keep := t.store.config.TrailRetention; keep >= 0 {
		keepFrom = t.now - micros(keep)
	}
	// In the order of their entries, which thus share pages.
	slices.SortFunc(records, func(a, b removal) int { return cmp.Compare(a.position, b.position) })
	var (
		n    run
		gone int64 // of n
	)
	leave := func() error {
		if gone == 0 {
			return nil
		}
		_, err := t.exec("UPDATE executed SET records = records - ? WHERE position = ?", gone, int64(n.first))
		if err == nil {
			_, err = t.exec("DELETE FROM executed WHERE position = ? AND records <= 0", int64(n.first))
		}
		gone = 0
		return err
	}
	for i, r := range records {
		if late != nil && late(i) {
			return i, leave()
		}
		if r.position != 0 && !n.has(r.position, r.number) {
			if err := leave(); err != nil {
				return i, err
			}
			n = run{}
			if err := t.query(selectRun, func(r *row) { n = r.run() }, int64(r.position)); err != nil {
				return i, err
			}
		}
		if n.has(r.position, r.number) {
			gone++
			if n.at >= keepFrom {
				if _, err := t.exec(`
					INSERT INTO trail (`+trailColumns+`)
					SELECT position, ?, ?, ?, ?, number, NULL, tenant, actor, operation, key, coalesce(fence, number), request_id, event_id, trace_id, label, NULL, NULL
					FROM record WHERE number = ?`,
					int64(n.instance), int64(n.seq+r.position-n.first), n.at, string(semel.TrailExecuted), int64(r.number)); err != nil {
					return i, err
				}
			}
		}
		if _, err := t.exec("DELETE FROM record WHERE number = ? AND state = 2 AND expires_at <= ?", int64(r.number), t.now); err != nil {
			return i, err
		}
	}
	return len(records), leave()
}

// executionColumns are what an entry has from its record.
const executionColumns = `position, number, coalesce(fence, number), tenant, actor, operation, key, request_id, event_id, trace_id, label`

// execution reads executionColumns. What it does not fill in is that of the run.
func (r *row) execution(names namer) (e semel.TrailEntry, number uint64) {
	e.Position, e.Kind = uint64(r.int()), semel.TrailExecuted
	number = uint64(r.int())
	e.RecordID, e.Fence = names.ID(number), uint64(r.int())
	e.Tenant, e.Actor, e.Operation, e.Key = r.text(), r.text(), r.text(), r.text()
	e.RequestID, e.EventID, e.TraceID = r.text(), r.text(), r.text()
	e.Label = r.text()
	return e, number
}

// complete fills in what an entry has from its run.
func (n *run) complete(e *semel.TrailEntry) {
	e.Instance, e.At, e.Seq = n.instance.String(), time.UnixMicro(n.at), n.seq+e.Position-n.first
}

// runsAtOnce is how many rows of executed a reader holds at a time.
const runsAtOnce = 32

// executions returns the entries up to position end that records are.
func (s *Store) executions(ctx context.Context, c *conn, f semel.TrailFilter, end uint64) (out []semel.TrailEntry, err error) {
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	var start driver.Value
	if !f.Since.IsZero() {
		since = ceilMicro(f.Since)
		if f.After == 0 { // later pages begin where one has ended
			start = since
		}
	}
	if !f.Until.IsZero() {
		until = ceilMicro(f.Until)
	}
	limit := storekit.PageSize(f.Limit)
	if f.RecordID != "" || f.Key != "" || f.RequestID != "" || f.EventID != "" || f.TraceID != "" {
		for after := f.After; len(out) < limit; {
			query, args := s.executionsQuery(f, after)
			var (
				page    []semel.TrailEntry
				numbers []uint64
			)
			if query == "" {
				return nil, nil
			}
			if err := c.queryOnce(ctx, query, func(r *row) {
				e, number := r.execution(s.names)
				page, numbers = append(page, e), append(numbers, number)
			}, args...); err != nil {
				return nil, err
			}
			for i, e := range page {
				var n run
				if err := c.query(selectRun, func(r *row) { n = r.run() }, int64(e.Position)); err != nil {
					return nil, err
				}
				if e.Position <= end && len(out) < limit && n.has(e.Position, numbers[i]) && n.at >= since && n.at < until {
					n.complete(&e)
					out = append(out, e)
				}
			}
			if len(page) < limit {
				break
			}
			after = page[limit-1].Position
		}
		return out, nil
	}

	var w where
	w.add("number = ? AND position = ?") // the first two parameters
	w.entry(f)
	query := "SELECT " + executionColumns + " FROM record WHERE " + w.String()
	// The run that After is in the middle of comes first.
	for from, more := int64(0), true; more && len(out) < limit; {
		var runs []run
		if err := c.query(selectRuns, func(r *row) { runs = append(runs, r.run()) },
			from, int64(f.After), start, int64(end), int64(runsAtOnce)); err != nil {
			return nil, err
		}
		more = len(runs) == runsAtOnce
		for _, n := range runs {
			from = int64(n.first) + 1
			for i := 0; i < len(n.numbers) && len(out) < limit && n.at >= since && n.at < until; i++ {
				position := n.first + uint64(i)
				if position <= f.After || position > end {
					continue
				}
				args := append([]driver.Value{int64(n.numbers[i]), int64(position)}, w.args...)
				if err := c.query(query, func(r *row) {
					e, _ := r.execution(s.names)
					n.complete(&e)
					out = append(out, e)
				}, args...); err != nil {
					return nil, err
				}
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// selectRuns finds the next runs, from that of a position on, and none before the
// first of a time.
const selectRuns = `
	SELECT ` + runColumns + ` FROM executed
	WHERE position >= max(?1, coalesce((SELECT max(position) FROM executed WHERE position <= ?2), 0),
			CASE WHEN ?3 IS NOT NULL THEN coalesce((SELECT min(position) FROM executed INDEXED BY executed_at WHERE at >= ?3), ?4 + 1) ELSE 0 END)
		AND position <= ?4
	ORDER BY position LIMIT 0 + ?5`

// executionsQuery returns the query of a page of records that are entries, for
// filters that an index of records serves, or "" where there can be none.
func (s *Store) executionsQuery(f semel.TrailFilter, after uint64) (query string, args []driver.Value) {
	var w where
	w.add("position > ?", int64(after))
	w.entry(f)
	w.equal("key", f.Key)
	if f.RecordID != "" {
		number, foreign := recordOf(s.names, f.RecordID)
		if foreign != nil {
			return "", nil
		}
		w.add("number = ?", number)
	}
	if f.RecordID != "" || f.Key != "" {
		return "SELECT " + executionColumns + " FROM record WHERE " + w.String() + " ORDER BY position LIMIT " + strconv.Itoa(storekit.PageSize(f.Limit)), w.args
	}
	return inBuckets("record", "number", executionColumns, -1, w, "position", storekit.PageSize(f.Limit))
}
