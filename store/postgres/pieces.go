package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// piecesAtOnce is how many pieces are held in memory and sent in one message.
const piecesAtOnce = 4

const (
	sqlInsertPiece = `INSERT INTO {s}.piece (body, n, bytes) VALUES ($1, $2, $3)`
	sqlPiece       = `SELECT bytes FROM {s}.piece WHERE body = $1 AND n = $2`
)

// body is a body in pieces as its record names it. The zero value is none.
type body struct {
	number, size *int64
}

type batchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// insertPieces writes a body in a transaction that will also write the record.
// Where a piece cannot be read the first error says so; the second is the
// database's.
func (s *Store) insertPieces(ctx context.Context, tx batchSender, p *semel.Pieces) (_ body, unread, err error) {
	number := rand.Int64()
	for n := 0; n < p.Count(); {
		b := &pgx.Batch{}
		for ; n < p.Count() && b.Len() < piecesAtOnce; n++ {
			piece, err := p.ReadPiece(ctx, n)
			if err != nil {
				return body{}, fmt.Errorf("postgres: %w", storekit.Unreadable(ctx, err)), nil
			}
			b.Queue(s.sql.insertPiece, number, int32(n), piece)
		}
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return body{}, nil, err
		}
	}
	return body{&number, &p.Size}, nil, nil
}

// withPieces runs fn in a transaction with the body that it records.
func (s *Store) withPieces(ctx context.Context, p *semel.Pieces, fn func(tx pgx.Tx, b body) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		// The record last: as long as pieces are read, its claim can be renewed.
		b, unread, err := s.insertPieces(ctx, tx, p)
		if err = errors.Join(unread, err); err != nil {
			return err
		}
		return fn(tx, b)
	})
}

// pieces returns the body that a record names, which is read from the database.
func (s *Store) pieces(b body) *semel.Pieces {
	p := &semel.Pieces{Size: *b.size}
	p.Read = func(ctx context.Context, n int) ([]byte, error) {
		if n < 0 || n >= p.Count() {
			return nil, semel.ErrNotFound
		}
		return again(ctx, s, func() (piece []byte, err error) {
			err = s.pool.QueryRow(ctx, s.sql.piece, *b.number, int32(n)).Scan(&piece)
			if errors.Is(err, pgx.ErrNoRows) {
				err = semel.ErrNotFound
			}
			return piece, err
		})
	}
	return p
}

// completePieces is Complete for a result in pieces.
func (c *claim) completePieces(ctx context.Context, r semel.Result) (time.Time, error) {
	s := c.store
	return again(ctx, s, func() (time.Time, error) {
		// If it is completed or lost already, nothing needs to be read.
		state, expires, err := s.claimState(ctx, s.pool, c.args())
		if err != nil || state == semel.StateCompleted {
			return expires, err
		}
		err = s.withPieces(ctx, r.Pieces, func(tx pgx.Tx, b body) error {
			return s.told(ctx, tx, c.identity, s.sql.complete, c.completeArgs(r, b), func(row pgx.Row) error { return row.Scan(&expires) })
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return c.completed(ctx)
		}
		return expires, err
	})
}
