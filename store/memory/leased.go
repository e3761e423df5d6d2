package memory

import (
	"container/heap"
	"context"
	"time"

	"github.com/semelhq/semel"
)

// Begin implements semel.Store.
func (s *Store) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.records[a.Identity]
	if r != nil && r.expired(now) {
		s.remove(r)
		r = nil
	}
	takeover := r != nil
	switch {
	case r == nil:
		if len(s.records) >= s.config.MaxRecords && s.sweep(now, 1) == 0 {
			return nil, ErrFull
		}
		r = &record{conflict: semel.ConflictError{Record: semel.Record{
			ID: s.names.ID(s.fence + 1), Identity: a.Identity, Fingerprint: a.Fingerprint, State: semel.StateInProgress,
		}}}
		r.Record = &r.conflict.Record
		s.records[a.Identity] = r
	case r.State == semel.StateInProgress && r.token == a.Token && a.Token != (semel.Token{}):
		r.leaseEnd = now.Add(a.Lease)
		return &claim{store: s, record: r, fence: r.Fence, token: r.token, lease: a.Lease}, nil
	case a.Takeover == r.Fence && r.unsettled(now):
		r.State = semel.StateInProgress
		r.Reopened, r.Cause, r.SettledAt = false, "", time.Time{}
	case r.State == semel.StateCompleted: // which it stays, as it is
		return nil, &r.conflict
	default:
		return nil, &semel.ConflictError{Record: r.read(now)}
	}
	s.fence++
	r.Fence, r.token = s.fence, a.Token
	r.BegunAt, r.leaseEnd = now, now.Add(a.Lease)
	r.Retention, r.Origin = a.Retention, a.Origin
	if takeover {
		s.enter(now, semel.TrailTakeover, r, a.Origin, "", "")
	}
	return &claim{store: s, record: r, fence: r.Fence, token: r.token, lease: a.Lease}, nil
}

// complete records a result. Called with mu held.
func (s *Store) complete(r *record, res semel.Result, now time.Time) {
	r.State, r.Result, r.Cause, r.Reopened = semel.StateCompleted, res, "", false
	r.SettledAt, r.ExpiresAt = now, now.Add(r.Retention)
	heap.Push(&s.expiry, r)
}

// claim is a claim on one record.
type claim struct {
	store  *Store
	record *record
	fence  uint64
	token  semel.Token
	lease  time.Duration
}

func (c *claim) Context(ctx context.Context) context.Context { return ctx }
func (c *claim) RecordID() string                            { return c.record.ID }
func (c *claim) Fence() uint64                               { return c.fence }
func (c *claim) Transactional() bool                         { return false }

// own runs change on the claim's record if the claim still holds it.
func (c *claim) own(ctx context.Context, change func(r *record, now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	now := time.Now()
	r := c.record
	if r.gone || r.expired(now) || r.Fence != c.fence || r.token != c.token {
		return semel.ErrLostClaim
	}
	return change(r, now)
}

func (c *claim) Complete(ctx context.Context, res semel.Result) (expires time.Time, err error) {
	if res.Pieces != nil {
		if res, err = whole(ctx, res); err != nil {
			return expires, err
		}
	}
	err = c.own(ctx, func(r *record, now time.Time) error {
		if r.State != semel.StateCompleted {
			c.store.complete(r, res, now)
			c.store.enter(now, semel.TrailExecuted, r, r.Origin, res.Label, "")
		}
		expires = r.ExpiresAt
		return nil
	})
	return expires, err
}

func (c *claim) Release(ctx context.Context) error {
	return c.own(ctx, func(r *record, now time.Time) error {
		if r.State == semel.StateCompleted {
			return semel.ErrLostClaim
		}
		c.store.remove(r)
		c.store.enter(now, semel.TrailReleased, r, r.Origin, "", "")
		return nil
	})
}

func (c *claim) Hold(ctx context.Context, cause string) error {
	return c.own(ctx, func(r *record, now time.Time) error {
		switch r.State {
		case semel.StateCompleted:
			return semel.ErrLostClaim
		case semel.StateUnknown:
			return nil
		}
		r.State, r.SettledAt, r.Cause = semel.StateUnknown, now, cause
		r.leaseEnd = minTime(r.leaseEnd, now)
		c.store.enter(now, semel.TrailHeld, r, r.Origin, "", cause)
		return nil
	})
}

func (c *claim) Renew(ctx context.Context) error {
	return c.own(ctx, func(r *record, now time.Time) error {
		if r.State != semel.StateInProgress {
			return semel.ErrLostClaim
		}
		r.leaseEnd = now.Add(c.lease)
		return nil
	})
}
