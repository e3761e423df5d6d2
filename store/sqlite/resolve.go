package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// Resolve implements semel.Resolver.
func (s *Store) Resolve(ctx context.Context, d semel.Resolution) (semel.Record, error) {
	switch d.Decision {
	case semel.DecideUnknown, semel.DecideNoEffect, semel.DecideExecuteAgain:
	case semel.DecideResult:
		if err := s.checkResult(d.Result); err != nil {
			return semel.Record{}, err
		}
		d.Result.Label = storekit.Cut(d.Result.Label)
	default:
		return semel.Record{}, fmt.Errorf("sqlite: resolve: no such decision: %v", d.Decision)
	}
	d.Cause, d.Origin = storekit.Cut(d.Cause), storekit.Origin(d.Origin, storekit.Cut)
	if d.Decision != semel.DecideResult || d.Result.Pieces == nil {
		return write(ctx, s, resultBytes(d.Result), func(t *tx) (semel.Record, error) { return t.resolve(d, nil) })
	}
	g := newStaging(d.Result.Pieces)
	rec, err := semel.Record{}, s.stage(ctx, g, d.Fence, func(t *tx) (bool, error) {
		_, err := t.resolvable(d)
		if errors.Is(err, semel.ErrStaleFence) || errors.Is(err, semel.ErrNotFound) {
			return false, nil
		}
		return true, err
	})
	if err == nil {
		rec, err = write(ctx, s, resultBytes(d.Result), func(t *tx) (semel.Record, error) { return t.resolve(d, g) })
	}
	if err != nil {
		s.discard(ctx, g) // which spares a body that was recorded
	}
	if errors.Is(err, errMoved) {
		_, err = write(ctx, s, 0, func(t *tx) (*stored, error) { return t.resolvable(d) })
		if err == nil {
			err = semel.ErrStaleFence
		}
	}
	return rec, err
}

// resolvable returns the record that d settles, or why it cannot.
func (t *tx) resolvable(d semel.Resolution) (*stored, error) {
	rec, found, err := t.find(d.Identity)
	switch {
	case err != nil:
		return nil, err
	case !found || rec.expired(t.now):
		return nil, semel.ErrNotFound
	case rec.Fence != d.Fence, !rec.unsettled(t.now),
		rec.State != semel.StateUnknown && d.Decision != semel.DecideUnknown:
		return nil, semel.ErrStaleFence
	}
	return rec, nil
}

// resolve settles a record, with a result whose body is g if it is in pieces.
func (t *tx) resolve(d semel.Resolution, g *staging) (semel.Record, error) {
	rec, err := t.resolvable(d)
	if err != nil {
		return semel.Record{}, err
	}
	kind, label := semel.TrailResolved, d.Decision.String()
	number := int64(rec.number)
	switch d.Decision {
	case semel.DecideUnknown:
		if rec.State == semel.StateUnknown {
			return *rec.Record, nil
		}
		kind, label = semel.TrailHeld, ""
		rec.State, rec.Reopened, rec.SettledAt, rec.Cause = semel.StateUnknown, false, time.UnixMicro(t.now), d.Cause
		_, err = t.exec("UPDATE record SET state = 3, reopened = NULL, settled_at = ?, cause = ? WHERE number = ?", t.now, orNull(d.Cause), number)
	case semel.DecideResult:
		var body, size driver.Value
		if g != nil {
			if err := t.checkStaged(g); err != nil {
				return semel.Record{}, err
			}
			if err := t.named(g); err != nil {
				return semel.Record{}, err
			}
			body, size = g.body, g.from.Size
			d.Result.Pieces = t.store.pieces(g.body, g.from.Size)
		}
		t.fence++
		expires := t.now + micros(rec.Retention)
		rec.Fence, rec.State, rec.Result, rec.Cause, rec.Reopened = t.fence, semel.StateCompleted, d.Result, "", false
		rec.SettledAt, rec.ExpiresAt = time.UnixMicro(t.now), time.UnixMicro(expires)
		_, err = t.exec(`
			UPDATE record SET fence = ?, token = NULL, state = 2, expires_at = ?, lease_until = NULL, settled_at = NULL, reopened = NULL, cause = NULL,
				codec = ?, label = ?, reference = ?, tombstone = ?, pieces = ?, pieces_size = ?, head = ?, body = ?
			WHERE number = ?`,
			int64(t.fence), expires,
			orNull(d.Result.Codec), orNull(d.Result.Label), orNull(d.Result.Reference), oneOrNull(d.Result.Tombstone),
			body, size, d.Result.Head, d.Result.Body, number)
	case semel.DecideNoEffect:
		_, err = t.exec("DELETE FROM record WHERE number = ?", number)
	case semel.DecideExecuteAgain:
		t.fence++
		rec.Fence, rec.State, rec.Cause, rec.Reopened, rec.SettledAt = t.fence, semel.StateInProgress, "", true, time.Time{}
		rec.leaseUntil = min(rec.leaseUntil, t.now)
		rec.Lease = duration(rec.leaseUntil - t.now)
		_, err = t.exec(`
			UPDATE record SET fence = ?, token = NULL, state = 1, reopened = 1, settled_at = NULL, lease_until = ?, cause = NULL
			WHERE number = ?`, int64(t.fence), rec.leaseUntil, number)
	}
	if err != nil {
		return semel.Record{}, err
	}
	return *rec.Record, t.append(t.time, semel.TrailEntry{
		Kind: kind, RecordID: rec.ID, Fence: rec.Fence, Tenant: rec.Identity.Tenant, Actor: rec.Identity.Actor,
		Operation: rec.Identity.Operation, Key: rec.Identity.Key, Origin: d.Origin, Label: label, Cause: d.Cause,
	})
}
