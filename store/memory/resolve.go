package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/semelhq/semel"
)

// Resolve implements semel.Resolver.
func (s *Store) Resolve(ctx context.Context, d semel.Resolution) (_ semel.Record, err error) {
	if err := ctx.Err(); err != nil {
		return semel.Record{}, err
	}
	if d.Decision == semel.DecideResult && d.Result.Pieces != nil {
		if d.Result, err = whole(ctx, d.Result); err != nil {
			return semel.Record{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.find(d.Identity, now)
	if r == nil {
		return semel.Record{}, semel.ErrNotFound
	}
	if r.Fence != d.Fence || !r.unsettled(now) || r.State != semel.StateUnknown && d.Decision != semel.DecideUnknown {
		return semel.Record{}, semel.ErrStaleFence
	}
	switch d.Decision {
	case semel.DecideUnknown:
		if r.State == semel.StateUnknown {
			return r.read(now), nil
		}
		r.State, r.Reopened, r.SettledAt, r.Cause = semel.StateUnknown, false, now, d.Cause
		s.enter(now, semel.TrailHeld, r, d.Origin, "", d.Cause)
		return r.read(now), nil
	case semel.DecideResult:
		s.fence++ // the owner, should it live, has lost its claim
		r.Fence = s.fence
		s.complete(r, d.Result, now)
	case semel.DecideNoEffect:
		s.remove(r)
	case semel.DecideExecuteAgain:
		s.fence++
		r.Fence, r.token = s.fence, semel.Token{}
		r.State, r.Reopened, r.SettledAt, r.Cause = semel.StateInProgress, true, time.Time{}, ""
		r.leaseEnd = minTime(r.leaseEnd, now)
	default:
		return semel.Record{}, fmt.Errorf("memory: no such decision: %v", d.Decision)
	}
	s.enter(now, semel.TrailResolved, r, d.Origin, d.Decision.String(), d.Cause)
	return r.read(now), nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
