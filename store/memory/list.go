package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// List implements semel.Lister.
func (s *Store) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	limit := storekit.PageSize(f.Limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var out []semel.Record
	for _, r := range s.records {
		if r.expired(now) || r.Fence <= f.After ||
			f.ID != "" && r.ID != f.ID ||
			f.State != 0 && r.State != f.State ||
			f.Tenant != "" && r.Identity.Tenant != f.Tenant ||
			f.Actor != "" && r.Identity.Actor != f.Actor ||
			f.Operation != "" && r.Identity.Operation != f.Operation ||
			f.Key != "" && r.Identity.Key != f.Key ||
			f.Cause != "" && !hasCause(r, f.Cause) ||
			!f.BegunSince.IsZero() && r.BegunAt.Before(f.BegunSince) ||
			!f.BegunUntil.IsZero() && !r.BegunAt.Before(f.BegunUntil) {
			continue
		}
		rec := r.read(now)
		if f.Lapsed && !rec.Lapsed() {
			continue
		}
		rec.Result = semel.Result{}
		out = append(out, rec)
	}
	slices.SortFunc(out, func(a, b semel.Record) int { return cmp.Compare(a.Fence, b.Fence) })
	return out[:min(limit, len(out))], nil
}

func hasCause(r *record, cause string) bool {
	if r.State != semel.StateUnknown {
		return false
	}
	if prefix, ok := strings.CutSuffix(cause, "*"); ok {
		return strings.HasPrefix(r.Cause, prefix)
	}
	return r.Cause == cause
}
