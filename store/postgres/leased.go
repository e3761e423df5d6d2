package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
)

// claim is a claim on the committed record with its fence and token.
type claim struct {
	store    *Store
	identity semel.Identity
	number   uint64
	fence    uint64
	token    semel.Token
	lease    time.Duration
}

func (s *Store) beginLeased(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	args := append(s.attemptArgs(a, s.digest(a.Identity)), a.Lease)
	// Each round finds the record or, where another attempt came between the
	// look and the write, looks again.
	for {
		granted := false
		rec, err := again(ctx, s, func() (stored, error) {
			return s.scanRecord(s.pool.QueryRow(ctx, s.sql.begin, args...), &granted)
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue
		case err != nil:
			return nil, err
		case rec.expired:
			if err := s.removeExpired(ctx, a.Identity); err != nil {
				return nil, err
			}
			continue
		}
		if err := rec.own(a.Identity); err != nil {
			return nil, fmt.Errorf("postgres: begin: %w", err)
		}
		c := &claim{store: s, identity: a.Identity, number: rec.number, fence: rec.Fence, token: a.Token, lease: a.Lease}
		switch {
		case granted:
			return c, nil
		case rec.sameClaim(a.Token):
			err = c.Renew(ctx)
		case a.Takeover == rec.Fence && rec.unsettled():
			c.fence, err = s.takeOver(ctx, a, rec.number)
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

// attemptArgs are the values of insertColumns.
func (s *Store) attemptArgs(a semel.Attempt, digest pgtype.UUID) []any {
	id, o := a.Identity, a.Origin
	args := make([]any, 0, 24) // room for those that statements add
	return append(args, digest, uuid(a.Token), id.Tenant, id.Actor, id.Operation, id.Key, a.Fingerprint.Scheme, a.Fingerprint.Sum[:],
		orNull(o.RequestID), orNull(o.EventID), orNull(o.TraceID), a.Retention)
}

// removeExpired makes room where an expired record is in the way.
func (s *Store) removeExpired(ctx context.Context, id semel.Identity) error {
	_, err := again(ctx, s, func() (struct{}, error) {
		_, err := s.pool.Exec(ctx, s.sql.removeExpired, s.digest(id))
		return struct{}{}, err
	})
	return err
}

func (s *Store) takeOver(ctx context.Context, a semel.Attempt, number uint64) (uint64, error) {
	fence, err := s.write(ctx, s.sql.takeover, int64(number), int64(a.Takeover), uuid(a.Token), a.Lease, a.Retention,
		orNull(a.Origin.RequestID), orNull(a.Origin.EventID), orNull(a.Origin.TraceID))
	return uint64(fence), err
}

// write runs a statement that answers with a number where it wrote; where it did
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
		args := append(c.args(), args...)
		err = c.store.told(ctx, c.store.pool, c.identity, sql, args, func(row pgx.Row) error { return row.Scan(&fence) })
		if errors.Is(err, pgx.ErrNoRows) {
			err = semel.ErrLostClaim
		}
		return fence, err
	})
	return err
}

func (c *claim) Context(ctx context.Context) context.Context { return ctx }
func (c *claim) RecordID() string                            { return c.store.names.ID(c.number) }
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
	return append(c.args(), resultArgs(r, b)...)
}

// args are those that find a claim's record.
func (c *claim) args() []any { return claimArgs(c.number, c.fence, c.token) }

func claimArgs(number, fence uint64, token semel.Token) []any {
	return append(make([]any, 0, 12), int64(number), int64(fence), uuid(token)) // room for a result
}

// completed is the answer of a claim that has completed its record before, or
// lost it.
func (c *claim) completed(ctx context.Context) (time.Time, error) {
	state, expires, err := c.store.claimState(ctx, c.store.pool, c.args())
	if err == nil && state != semel.StateCompleted {
		err = semel.ErrLostClaim
	}
	return expires, err
}

// claimState says how the record of a claim stands. The error is ErrLostClaim
// where it is another claim's now, or expired, or gone.
func (s *Store) claimState(ctx context.Context, q querier, args []any) (semel.State, time.Time, error) {
	var (
		state   int16
		expires *time.Time
		over    bool
	)
	err := q.QueryRow(ctx, s.sql.claim, args...).Scan(&state, &expires, &over)
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
	return c.settle(ctx, c.store.sql.release)
}

// Hold implements semel.Claim.
func (c *claim) Hold(ctx context.Context, cause string) error {
	err := c.settle(ctx, c.store.sql.hold, orNull(text(cause)))
	if !errors.Is(err, semel.ErrLostClaim) {
		return err
	}
	state, _, err := c.store.claimState(ctx, c.store.pool, c.args())
	if err == nil && state != semel.StateUnknown {
		err = semel.ErrLostClaim
	}
	return err // held before
}

// Renew implements semel.Claim.
func (c *claim) Renew(ctx context.Context) error {
	_, err := c.store.write(ctx, c.store.sql.renew, append(c.args(), c.lease)...)
	return err
}
