package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// Resolve implements semel.Resolver.
func (s *Store) Resolve(ctx context.Context, d semel.Resolution) (semel.Record, error) {
	id := d.Identity
	args := append(make([]any, 0, 20), s.digest(id), id.Key, id.Operation, id.Actor, id.Tenant, int64(d.Fence))
	label := d.Decision.String()
	var sql string
	switch d.Decision {
	case semel.DecideUnknown:
		sql, label = s.sql.resolveUnknown, ""
	case semel.DecideResult:
		if err := s.checkResult(d.Result); err != nil {
			return semel.Record{}, err
		}
		sql = s.sql.resolveResult
	case semel.DecideNoEffect:
		sql = s.sql.resolveNoEffect
	case semel.DecideExecuteAgain:
		sql = s.sql.resolveAgain
	default:
		return semel.Record{}, fmt.Errorf("postgres: resolve: no such decision: %v", d.Decision)
	}
	o := storekit.Origin(d.Origin, text)
	args = append(args, orNull(o.RequestID), orNull(o.EventID), orNull(o.TraceID), orNull(label), orNull(text(d.Cause)))
	var rec stored
	settle := func(q batcher, args []any) error {
		return s.told(ctx, q, d.Identity, sql, args, func(row pgx.Row) (err error) {
			rec, err = s.scanRecord(row)
			return err
		})
	}
	_, err := again(ctx, s, func() (struct{}, error) {
		var none struct{}
		switch {
		case d.Decision != semel.DecideResult:
			return none, settle(s.pool, args)
		case d.Result.Pieces == nil:
			return none, settle(s.pool, append(args, resultArgs(d.Result, body{})...))
		}
		// If there is nothing to settle, nothing needs to be read.
		found, err := s.Find(ctx, d.Identity)
		if err == nil && (found.Fence != d.Fence || found.State != semel.StateUnknown) {
			err = semel.ErrStaleFence
		}
		if err != nil {
			return none, err
		}
		return none, s.withPieces(ctx, d.Result.Pieces, func(tx pgx.Tx, b body) error {
			return settle(tx, append(args, resultArgs(d.Result, b)...))
		})
	})
	if err != nil {
		rec = stored{}
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return rec.Record, err
	}
	// Nothing was written. Say why.
	found, err := s.Find(ctx, d.Identity)
	switch {
	case err != nil:
		return semel.Record{}, err
	case d.Decision == semel.DecideUnknown && found.Fence == d.Fence && found.State == semel.StateUnknown:
		return found, nil
	}
	return semel.Record{}, semel.ErrStaleFence
}

// resultArgs are the values of resultColumns.
func resultArgs(r semel.Result, b body) []any {
	var reference []byte
	if r.Reference != "" {
		reference = []byte(r.Reference)
	}
	return []any{orNull(r.Codec), orNull(text(r.Label)), reference, r.Tombstone, r.Head, r.Body, b.number, b.size}
}
