package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
)

// claim is a claim on the committed record with its fence and token.
type claim struct {
	store    *Store
	identity semel.Identity
	record   string
	fence    uint64
	token    semel.Token
	lease    time.Duration
}

func (s *Store) beginLeased(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	// Each round finds the record or, where another attempt came between the
	// look and the write, looks again.
	for {
		granted := false
		rec, err := again(ctx, s, func() (stored, error) {
			return s.scanRecord(s.pool.QueryRow(ctx, s.sql.begin, append(identityArgs(a.Identity),
				a.Token[:], semel.NewRecordID(), a.Lease, a.Retention, a.Fingerprint.Scheme, a.Fingerprint.Sum[:],
				a.Origin.RequestID, a.Origin.EventID, a.Origin.TraceID)...), &granted)
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue
		case err != nil:
			return nil, err
		}
		c := &claim{store: s, identity: a.Identity, record: rec.ID, fence: rec.Fence, token: a.Token, lease: a.Lease}
		switch {
		case granted:
			return c, nil
		case rec.sameClaim(a.Token):
			err = c.Renew(ctx)
		case a.Takeover == rec.Fence && rec.unsettled():
			c.fence, err = s.takeOver(ctx, a)
		default:
			return nil, &semel.ConflictError{Record: rec.Record}
		}
		if !errors.Is(err, semel.ErrLostClaim) {
			if err != nil {
				return nil, err
			}
			return c, nil
		}
	}
}

func (s *Store) takeOver(ctx context.Context, a semel.Attempt) (uint64, error) {
	fence, err := s.write(ctx, s.sql.takeover, int64(a.Takeover), a.Token[:], a.Lease, a.Retention,
		a.Origin.RequestID, a.Origin.EventID, a.Origin.TraceID, s.instance)
	return uint64(fence), err
}

// write runs a statement that answers with a fence where it wrote; where it did
// not, the error is ErrLostClaim.
func (s *Store) write(ctx context.Context, sql string, args ...any) (fence int64, err error) {
	return again(ctx, s, func() (fence int64, err error) {
		err = s.pool.QueryRow(ctx, sql, args...).Scan(&fence)
		if errors.Is(err, pgx.ErrNoRows) {
			err = semel.ErrLostClaim
		}
		return fence, err
	})
}

// settle is write for what ends a claim.
func (c *claim) settle(ctx context.Context, sql string, args ...any) error {
	_, err := again(ctx, c.store, func() (fence int64, err error) {
		args := append([]any{int64(c.fence), c.token[:]}, args...)
		err = c.store.told(ctx, c.store.pool, c.identity, sql, args, func(row pgx.Row) error { return row.Scan(&fence) })
		if errors.Is(err, pgx.ErrNoRows) {
			err = semel.ErrLostClaim
		}
		return fence, err
	})
	return err
}

func (c *claim) Context(ctx context.Context) context.Context { return ctx }
func (c *claim) RecordID() string                            { return c.record }
func (c *claim) Fence() uint64                               { return c.fence }
func (c *claim) Transactional() bool                         { return false }

// Complete implements semel.Claim.
func (c *claim) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	if err := c.store.checkResult(r); err != nil {
		return time.Time{}, err
	}
	if r.Pieces != nil {
		return c.completePieces(ctx, r)
	}
	args := c.completeArgs(r, body{})
	expires, err := again(ctx, c.store, func() (t time.Time, err error) {
		err = c.store.told(ctx, c.store.pool, c.identity, c.store.sql.complete, args, func(row pgx.Row) error { return row.Scan(&t) })
		return t, err
	})
	if !errors.Is(err, pgx.ErrNoRows) {
		return expires, err
	}
	return c.completed(ctx)
}

func (c *claim) completeArgs(r semel.Result, b body) []any {
	return append(append([]any{int64(c.fence), c.token[:]}, resultArgs(r, b)...), c.store.instance)
}

// completed is the answer of a claim that has completed its record before, or
// lost it.
func (c *claim) completed(ctx context.Context) (time.Time, error) {
	state, expires, err := c.store.claimState(ctx, c.store.pool, c.fence, c.token)
	if err == nil && state != semel.StateCompleted {
		err = semel.ErrLostClaim
	}
	return expires, err
}

// claimState says how the record of a claim stands. The error is ErrLostClaim
// where it is another claim's now, or expired, or gone.
func (s *Store) claimState(ctx context.Context, q querier, fence uint64, token semel.Token) (semel.State, time.Time, error) {
	var (
		state   int16
		expires *time.Time
		over    bool
	)
	err := q.QueryRow(ctx, s.sql.claim, int64(fence), token[:]).Scan(&state, &expires, &over)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && over:
		return 0, time.Time{}, semel.ErrLostClaim
	case err != nil:
		return 0, time.Time{}, err
	case expires == nil:
		return semel.State(state), time.Time{}, nil
	}
	return semel.State(state), *expires, nil
}

// Release implements semel.Claim.
func (c *claim) Release(ctx context.Context) error {
	return c.settle(ctx, c.store.sql.release, c.store.instance)
}

// Hold implements semel.Claim.
func (c *claim) Hold(ctx context.Context, cause string) error {
	err := c.settle(ctx, c.store.sql.hold, text(cause), c.store.instance)
	if !errors.Is(err, semel.ErrLostClaim) {
		return err
	}
	state, _, err := c.store.claimState(ctx, c.store.pool, c.fence, c.token)
	if err == nil && state != semel.StateUnknown {
		err = semel.ErrLostClaim
	}
	return err // held before
}

// Renew implements semel.Claim.
func (c *claim) Renew(ctx context.Context) error {
	_, err := c.store.write(ctx, c.store.sql.renew, int64(c.fence), c.token[:], c.lease)
	return err
}
