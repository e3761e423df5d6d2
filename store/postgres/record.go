package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// ErrCollision reports that an identity has the same digest as another one that
// has a record. By accident that happens once in 2^80 pairs of identities with the
// same key, and once in 2^128 other pairs. Otherwise somebody has modified the
// tables.
var ErrCollision = errors.New("postgres: the identity has the digest of another one, and cannot be protected beside it")

const (
	// keyBytes is how much of a digest is of the key alone.
	keyBytes = 6
)

// stored is a record with what only the store knows of it.
type stored struct {
	semel.Record
	number  uint64
	token   pgtype.UUID
	expired bool
}

// columns returns where recordColumns are scanned to, and what completes the
// record afterwards.
func (s *Store) columns(r *stored) (dest []any, done func()) {
	var (
		number, fence      int64
		state              int16
		settledAt, expires *time.Time
		sum                []byte
	)
	dest = make([]any, 0, 30) // room for the result
	dest = append(dest,
		&number, &fence, &r.token, &r.Identity.Tenant, &r.Identity.Actor, &r.Identity.Operation, &r.Identity.Key,
		&state, &r.Reopened, &r.BegunAt, &r.Lease, &r.Retention, &settledAt, &expires,
		&r.Fingerprint.Scheme, &sum, &r.Origin.RequestID, &r.Origin.EventID, &r.Origin.TraceID, &r.Cause,
	)
	return dest, func() {
		r.number, r.ID = uint64(number), s.names.ID(uint64(number))
		r.Fence, r.State = uint64(fence), semel.State(state)
		copy(r.Fingerprint.Sum[:], sum)
		if settledAt != nil {
			r.SettledAt = *settledAt
		}
		if expires != nil {
			r.ExpiresAt = *expires
		}
	}
}

// scanRecord reads whether the record has expired, recordColumns and
// resultColumns, after what first names.
func (s *Store) scanRecord(row pgx.Row, first ...any) (rec stored, err error) {
	dest, done := s.columns(&rec)
	var (
		reference []byte
		b         body
		res       = &rec.Result
	)
	dest = append(append(append(first, &rec.expired), dest...),
		&res.Codec, &res.Label, &reference, &res.Tombstone, &res.Head, &res.Body, &b.number, &b.size)
	if err := row.Scan(dest...); err != nil {
		return stored{}, err
	}
	done()
	res.Reference = string(reference)
	if b.number != nil && b.size != nil {
		res.Pieces = s.pieces(b)
	}
	return rec, nil
}

// digest finds the record of an identity, and its first keyBytes that of its key.
func (s *Store) digest(id semel.Identity) pgtype.UUID {
	d := s.names.Digest(id)
	key := s.keyDigest(id.Key)
	copy(d[:keyBytes], key[:])
	return pgtype.UUID{Bytes: d, Valid: true}
}

// keyDigest is what all digests of a key begin with.
func (s *Store) keyDigest(key string) (d [keyBytes]byte) {
	whole := s.names.Digest(semel.Identity{Key: key}) // of no operation, so it is no identity's
	copy(d[:], whole[:])
	return d
}

// own makes sure that a record which was found by the digest of id is its own.
func (r *stored) own(id semel.Identity) error {
	if r.Identity != id {
		return fmt.Errorf("%w: record %s", ErrCollision, r.ID)
	}
	return nil
}

func (s *stored) unsettled() bool {
	return s.State == semel.StateUnknown || s.Lapsed()
}

func (s *stored) sameClaim(t semel.Token) bool {
	return s.State == semel.StateInProgress && s.token == uuid(t)
}

// whole rounds up to a microsecond, so that nothing ends before its time.
func whole(d time.Duration) time.Duration {
	if r := d % time.Microsecond; r > 0 {
		d += time.Microsecond - r
	}
	return d
}

// text makes of a text for people what a column of texts can hold: valid UTF-8
// without the byte 0, cut where it is too long.
func text(s string) string {
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	}
	return storekit.Cut(s)
}

// orNull is NULL for an empty text.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func uuid(t semel.Token) pgtype.UUID { return pgtype.UUID{Bytes: t, Valid: true} }

func checkName(what, s string, mayBeEmpty bool) error {
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("%s is not valid UTF-8, or holds the byte 0", what)
	}
	return storekit.CheckName(what, s, mayBeEmpty)
}

func (s *Store) checkResult(r semel.Result) error {
	if err := checkName("codec", r.Codec, true); err != nil {
		return fmt.Errorf("postgres: result: %w", err)
	}
	if err := storekit.CheckSize(r, s.config.MaxResultBytes); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

func checkAttempt(a semel.Attempt) error {
	if err := errors.Join(
		a.Identity.Validate(),
		checkName("fingerprint scheme", a.Fingerprint.Scheme, true),
	); err != nil {
		return fmt.Errorf("postgres: begin: %w", err)
	}
	return nil
}

// querier is a pool, a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// again calls fn until it no longer fails because of a concurrent transaction,
// which a single statement does where the database's default isolation level
// is above read committed. It had no effect then. That transaction may stay open
// for long, so there are growing pauses, and after some 3 s the failure is
// returned.
func again[T any](ctx context.Context, s *Store, fn func() (T, error)) (T, error) {
	if err := s.ready(ctx); err != nil {
		var zero T
		return zero, err
	}
	for try := 0; ; try++ {
		v, err := fn()
		if !isSerialization(err) || ctx.Err() != nil || try == 60 {
			return v, err
		}
		t := time.NewTimer(rand.N(min(time.Millisecond<<min(try, 10), 100*time.Millisecond)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return v, err
		}
	}
}

func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// isSerialization reports whether the statement failed for nothing but its
// timing: a serialization failure or a deadlock.
func isSerialization(err error) bool {
	code := sqlState(err)
	return code == "40001" || code == "40P01"
}

// Find implements semel.Store.
func (s *Store) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	return again(ctx, s, func() (semel.Record, error) {
		rec, err := s.find(ctx, s.pool, id)
		return rec.Record, err
	})
}

// find returns the record of id, or ErrNotFound.
func (s *Store) find(ctx context.Context, q querier, id semel.Identity) (stored, error) {
	rec, err := s.scanRecord(q.QueryRow(ctx, s.sql.find, s.digest(id)))
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && rec.expired:
		return stored{}, semel.ErrNotFound
	case err != nil:
		return stored{}, err
	}
	return rec, rec.own(id)
}

// Begin implements semel.Store.
func (s *Store) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	if err := checkAttempt(a); err != nil {
		return nil, err
	}
	a.Origin, a.Lease, a.Retention = storekit.Origin(a.Origin, text), whole(a.Lease), whole(a.Retention)
	callers, joined := joinedTx(ctx)
	switch {
	case s.config.Mode == ModeTransactional && joined:
		return s.beginJoined(ctx, a, callers)
	case s.config.Mode == ModeTransactional:
		return s.beginTx(ctx, a)
	case joined:
		return nil, errors.New("postgres: begin: a leased store cannot join a transaction: its claims are committed at once")
	}
	return s.beginLeased(ctx, a)
}

// namer makes the ids of records and finds identities. It is a recordid.Namer.
type namer interface {
	ID(number uint64) string
	Number(id string) (number uint64, ok bool)
	Digest(id semel.Identity) [16]byte
}
