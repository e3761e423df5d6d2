package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// sqlErase answers with a row where there was something to erase. The pieces are
// named by what the record was.
var sqlErase = `
	WITH was AS MATERIALIZED (
		SELECT number, pieces FROM {s}.record
		WHERE ` + resolveFence + ` AND state = 2 AND NOT (` + expired + `) AND NOT ` + bare + ` FOR UPDATE
	),
	done AS (
		UPDATE {s}.record SET tombstone = true, head = NULL, body = NULL, reference = NULL, pieces = NULL, pieces_size = NULL,
			fingerprint_scheme = '', fingerprint_sum = decode(repeat('00', 32), 'hex')
		FROM was WHERE record.number = was.number
		RETURNING record.*
	),
	gone AS (DELETE FROM {s}.piece USING was WHERE piece.body = was.pieces),` + resolved("erased")

// bare selects records with nothing to erase.
const bare = `(tombstone AND reference IS NULL AND coalesce(octet_length(head), 0) + coalesce(octet_length(body), 0) = 0 AND pieces IS NULL
	AND fingerprint_scheme = '' AND fingerprint_sum = decode(repeat('00', 32), 'hex'))`

// Erase implements semel.Eraser. The server keeps what is erased until it has
// vacuumed the table, and in its log and its backups.
func (s *Store) Erase(ctx context.Context, e semel.Erasure) (erased bool, err error) {
	id, o := e.Identity, storekit.Origin(e.Origin, text)
	args := []any{
		s.digest(id), id.Key, id.Operation, id.Actor, id.Tenant, int64(e.Fence),
		orNull(o.RequestID), orNull(o.EventID), orNull(o.TraceID), nil, orNull(text(e.Cause)),
	}
	_, err = again(ctx, s, func() (none struct{}, err error) {
		_, err = s.scanRecord(s.pool.QueryRow(ctx, s.sql.erase, args...))
		return none, err
	})
	if !errors.Is(err, pgx.ErrNoRows) {
		return err == nil, err
	}
	// Nothing was written. Say why.
	found, err := s.Find(ctx, id)
	switch {
	case err != nil:
		return false, err
	case found.Fence == e.Fence && found.Erased():
		return false, nil
	}
	return false, semel.ErrStaleFence
}
