package postgres

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// Trail implements semel.Trail.
//
// The Seq of an entry that records a loss counts the lost entries as well. An
// entry that was written in the commit of its change cannot be lost; it has an
// instance of its own and Seq 1.
//
// Positions are assigned within 100 ms before the commit, so an entry can appear
// after one with a higher position. A reader that follows the trail should read
// again from a little before its end.
//
// Filters by record, key, request, event and trace use an index. Other filters read
// all entries.
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
	after, limit := w.arg(int64(f.After)), strconv.Itoa(storekit.PageSize(f.Limit))
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
