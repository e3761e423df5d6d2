package postgres

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// List implements semel.Lister. Filters by id, key, cause and state use an index,
// except for completed records. Other filters read all records.
func (s *Store) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if f.After > math.MaxInt64 {
		return nil, nil
	}
	var w where
	w.add("NOT (" + expired + ")")
	if f.ID != "" {
		number, ok := s.names.Number(f.ID)
		if !ok {
			return nil, nil
		}
		w.add("number = ?", int64(number))
	}
	s.byKey(&w, f.Key)
	w.equal("tenant", f.Tenant)
	w.equal("actor", f.Actor)
	w.equal("operation", f.Operation)
	open := f.Lapsed || f.Cause != "" || f.State != 0 && f.State != semel.StateCompleted
	if open {
		w.add("retention IS NOT NULL")
	}
	if f.State != 0 {
		w.add("state = ?", int16(f.State))
	}
	if f.Lapsed {
		w.add("state = 1 AND lease_until <= clock_timestamp()")
	}
	if prefix, ok := strings.CutSuffix(f.Cause, "*"); ok {
		w.add("state = 3 AND starts_with(coalesce(cause, ''), ?)", text(prefix))
	} else if f.Cause != "" {
		w.add("state = 3 AND cause = ?", text(f.Cause))
	}
	w.between("begun_at", f.BegunSince, f.BegunUntil)
	// In the order of their fences: of those whose fence is their number, and of
	// those that have another one.
	after, limit := w.arg(int64(f.After)), " LIMIT "+strconv.Itoa(storekit.PageSize(f.Limit))
	page := func(condition, order string) string {
		return "(" + s.sql.list + w.and(condition) + " AND " + order + " > " + after + " ORDER BY " + order + limit + ")"
	}
	sql := page("fence IS NULL", "number") + " UNION ALL " + page("fence IS NOT NULL", "fence") + " ORDER BY 2" + limit
	return again(ctx, s, func() ([]semel.Record, error) {
		rows, err := s.pool.Query(ctx, sql, w.args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (semel.Record, error) {
			var rec stored
			dest, done := s.columns(&rec)
			if err := row.Scan(dest...); err != nil {
				return semel.Record{}, err
			}
			done()
			return rec.Record, nil
		})
	})
}

// byKey adds the condition that the record is of a key. The digests of a key are
// beside each other in their index.
func (s *Store) byKey(w *where, key string) {
	if key == "" {
		return
	}
	first, last := pgtype.UUID{Valid: true}, pgtype.UUID{Valid: true}
	prefix := s.keyDigest(text(key))
	for i := range last.Bytes {
		last.Bytes[i] = 0xff
	}
	copy(first.Bytes[:], prefix[:])
	copy(last.Bytes[:], prefix[:])
	w.add("digest BETWEEN ? AND ?", first, last)
	w.equal("key", key)
}
