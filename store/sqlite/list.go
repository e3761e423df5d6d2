package sqlite

import (
	"context"
	"database/sql/driver"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// List implements semel.Lister.
func (s *Store) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if f.After > math.MaxInt64 {
		return nil, nil
	}
	var out []semel.Record
	err := s.read(ctx, func(c *conn) error {
		now := time.Now().UnixMicro()
		out = nil
		query, args := s.listQuery(f, now)
		if query == "" {
			return nil
		}
		return c.queryOnce(ctx, query, func(r *row) {
			r.int() // what the listing is ordered by
			out = append(out, *r.record(s.names, now, &semel.Identity{}).Record)
		}, args...)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// listQuery returns the query of a listing, or "" where nothing can be found.
func (s *Store) listQuery(f semel.Filter, now int64) (query string, args []driver.Value) {
	var w where
	w.add("(state <> 2 OR expires_at > ?)", now)
	w.equal("tenant", f.Tenant)
	w.equal("actor", f.Actor)
	w.equal("operation", f.Operation)
	w.equal("key", f.Key)
	if f.State != 0 {
		w.add("state = ?", int64(f.State))
	}
	if f.Lapsed {
		w.add("state = 1 AND lease_until <= ?", now)
	}
	if f.Cause != "" {
		w.add("state = 3")
	}
	if prefix, ok := strings.CutSuffix(storekit.Cut(f.Cause), "*"); !ok {
		w.equal("cause", storekit.Cut(f.Cause))
	} else if prefix != "" {
		// Of bytes, because LIKE knows more signs than the one.
		w.add("substr(CAST(cause AS BLOB), 1, ?) = CAST(? AS BLOB)", int64(len(prefix)), prefix)
	}
	if !f.BegunSince.IsZero() {
		w.add("begun_at >= ?", ceilMicro(f.BegunSince))
	}
	if !f.BegunUntil.IsZero() {
		w.add("begun_at < ?", ceilMicro(f.BegunUntil))
	}
	if f.Lapsed || f.State == semel.StateInProgress || f.State == semel.StateUnknown || f.Cause != "" {
		w.add("expires_at IS NULL") // in the words of the index record_open, which else is not used
	}
	if f.ID != "" {
		number, ok := s.names.Number(f.ID)
		if !ok || number > math.MaxInt64 {
			return "", nil
		}
		w = w.with("number = ?", int64(number))
	}
	const (
		fence = "coalesce(fence, number)"
		list  = ", " + recordColumns + " FROM record WHERE "
	)
	after, limit := int64(f.After), storekit.PageSize(f.Limit)
	anywhere := w.with(fence+" > ?", after)
	switch {
	case f.ID != "":
		return "SELECT " + fence + list + anywhere.String(), anywhere.args
	case f.Key != "" && f.Tenant != "" && f.Actor != "" && f.Operation != "":
		digest := s.digest(semel.Identity{
			Scope: semel.Scope{Tenant: f.Tenant, Actor: f.Actor, Operation: f.Operation}, Key: f.Key,
		})
		one := anywhere.with("digest = ?", digest[:])
		return "SELECT " + fence + list + one.String(), one.args
	case f.Key != "":
		return "SELECT " + fence + list + anywhere.String() + " ORDER BY 1 LIMIT " + strconv.Itoa(limit), anywhere.args
	}
	// Both halves are read in their order, each by its index, and merged.
	numbers, fences := w.with("fence IS NULL AND number > ?", after), w.with("fence > ?", after)
	return "SELECT number" + list + numbers.String() + " UNION ALL SELECT fence" + list + fences.String() +
		" ORDER BY 1 LIMIT " + strconv.Itoa(limit), append(numbers.args, fences.args...)
}
