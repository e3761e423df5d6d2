package memory

import (
	"context"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// enter writes an audit entry about r. Called with mu held.
func (s *Store) enter(now time.Time, kind semel.TrailKind, r *record, o semel.Origin, label, cause string) {
	s.append(now, &semel.TrailEntry{
		Kind: kind, RecordID: r.ID, Fence: r.Fence, Tenant: r.Identity.Tenant, Actor: r.Identity.Actor,
		Operation: r.Identity.Operation, Key: r.Identity.Key, Origin: o, Label: label, Cause: cause,
	})
}

func (s *Store) append(now time.Time, e *semel.TrailEntry) {
	s.noted++
	e.Position, e.Seq, e.Instance, e.At = s.noted, s.noted, s.instance, now
	if len(s.trail) < s.config.MaxTrail {
		s.trail = append(s.trail, *e)
		return
	}
	s.trail[s.oldest] = *e
	s.oldest = (s.oldest + 1) % len(s.trail)
}

// Note implements semel.Trail. It writes at once and loses nothing.
func (s *Store) Note(e semel.TrailEntry) {
	if e.Kind == semel.TrailLost {
		e.Count = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.append(time.Now(), &e)
}

// Trail implements semel.Trail.
func (s *Store) Trail(ctx context.Context, f semel.TrailFilter) ([]semel.TrailEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	limit := storekit.PageSize(f.Limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []semel.TrailEntry
	for n := range s.trail {
		if len(out) == limit {
			break
		}
		e := &s.trail[(s.oldest+n)%len(s.trail)]
		if e.Position <= f.After ||
			f.RecordID != "" && e.RecordID != f.RecordID ||
			f.Tenant != "" && e.Tenant != f.Tenant ||
			f.Actor != "" && e.Actor != f.Actor ||
			f.Operation != "" && e.Operation != f.Operation ||
			f.Key != "" && e.Key != f.Key ||
			f.RequestID != "" && e.RequestID != f.RequestID ||
			f.EventID != "" && e.EventID != f.EventID ||
			f.TraceID != "" && e.TraceID != f.TraceID ||
			f.Kind != "" && e.Kind != f.Kind ||
			!f.Since.IsZero() && e.At.Before(f.Since) ||
			!f.Until.IsZero() && !e.At.Before(f.Until) {
			continue
		}
		out = append(out, *e)
	}
	return out, nil
}
