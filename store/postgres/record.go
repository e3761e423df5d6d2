package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
)

// ErrCollision: an identity has the digest of another one, whose record is in its
// way. By accident that happens once in 2^80 pairs of identities with one key, and
// once in 2^128 of others; else somebody wrote to the tables.
var ErrCollision = errors.New("postgres: the identity has the digest of another one, and cannot be protected beside it")

const (
	// keyBytes is how much of a digest is of the key alone.
	keyBytes = 6

	maxNameBytes = 255  // of a record's id, a fingerprint's scheme, a codec
	maxTextBytes = 1024 // of texts for people, which are cut there
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
	if len(s) <= maxTextBytes {
		return s
	}
	end := maxTextBytes
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// orNull is NULL for an empty text.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func uuid(t semel.Token) pgtype.UUID { return pgtype.UUID{Bytes: t, Valid: true} }

func textOrigin(o semel.Origin) semel.Origin {
	return semel.Origin{RequestID: text(o.RequestID), EventID: text(o.EventID), TraceID: text(o.TraceID)}
}

func checkName(what, s string, mayBeEmpty bool) error {
	switch {
	case s == "" && !mayBeEmpty:
		return fmt.Errorf("%s is empty", what)
	case len(s) > maxNameBytes:
		return fmt.Errorf("%s is %d bytes long; at most %d are allowed", what, len(s), maxNameBytes)
	case !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%s is not valid UTF-8, or holds the byte 0", what)
	}
	return nil
}

func (s *Store) checkResult(r semel.Result) error {
	if err := checkName("codec", r.Codec, true); err != nil {
		return fmt.Errorf("postgres: result: %w", err)
	}
	if r.Pieces != nil {
		if err := checkPieces(r); err != nil {
			return err
		}
	}
	// Two comparisons, because a size that somebody made up may be any.
	rest, most := int64(len(r.Head)+len(r.Reference)), int64(s.config.MaxResultBytes)
	if n := r.Size(); n > most || n+rest > most {
		return fmt.Errorf("postgres: %w: a body of %d bytes, and %d with it; at most %d are allowed", semel.ErrTooLarge, n, rest, most)
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
	a.Origin, a.Lease, a.Retention = textOrigin(a.Origin), whole(a.Lease), whole(a.Retention)
	callers, joined := joinedTx(ctx)
	switch {
	case s.config.Mode == Transactional && joined:
		return s.beginJoined(ctx, a, callers)
	case s.config.Mode == Transactional:
		return s.beginTx(ctx, a)
	case joined:
		return nil, errors.New("postgres: begin: a leased store cannot join a transaction: its claims are committed at once")
	}
	return s.beginLeased(ctx, a)
}

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
	o := textOrigin(d.Origin)
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

// List implements semel.Lister. Records are found at once by id, by key, by cause
// and by state, but for completed ones; other filters are applied to all there are.
func (s *Store) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if f.After > math.MaxInt64 {
		return nil, nil
	}
	var w where
	w.add("NOT (" + expired + ")")
	if f.ID != "" {
		number, ok := s.names.Number(f.ID)
		if !ok {
			return nil, nil
		}
		w.add("number = ?", int64(number))
	}
	s.byKey(&w, f.Key)
	w.equal("tenant", f.Tenant)
	w.equal("actor", f.Actor)
	w.equal("operation", f.Operation)
	open := f.Lapsed || f.Cause != "" || f.State != 0 && f.State != semel.StateCompleted
	if open {
		w.add("retention IS NOT NULL")
	}
	if f.State != 0 {
		w.add("state = ?", int16(f.State))
	}
	if f.Lapsed {
		w.add("state = 1 AND lease_until <= clock_timestamp()")
	}
	if prefix, ok := strings.CutSuffix(f.Cause, "*"); ok {
		w.add("state = 3 AND starts_with(coalesce(cause, ''), ?)", text(prefix))
	} else if f.Cause != "" {
		w.add("state = 3 AND cause = ?", text(f.Cause))
	}
	w.between("begun_at", f.BegunSince, f.BegunUntil)
	// In the order of their fences: of those whose fence is their number, and of
	// those that have another one.
	after, limit := w.arg(int64(f.After)), " LIMIT "+pageSize(f.Limit)
	page := func(condition, order string) string {
		return "(" + s.sql.list + w.and(condition) + " AND " + order + " > " + after + " ORDER BY " + order + limit + ")"
	}
	sql := page("fence IS NULL", "number") + " UNION ALL " + page("fence IS NOT NULL", "fence") + " ORDER BY 2" + limit
	return again(ctx, s, func() ([]semel.Record, error) {
		rows, err := s.pool.Query(ctx, sql, w.args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (semel.Record, error) {
			var rec stored
			dest, done := s.columns(&rec)
			if err := row.Scan(dest...); err != nil {
				return semel.Record{}, err
			}
			done()
			return rec.Record, nil
		})
	})
}

// byKey adds the condition that the record is of a key. The digests of a key are
// beside each other in their index.
func (s *Store) byKey(w *where, key string) {
	if key == "" {
		return
	}
	first, last := pgtype.UUID{Valid: true}, pgtype.UUID{Valid: true}
	prefix := s.keyDigest(text(key))
	for i := range last.Bytes {
		last.Bytes[i] = 0xff
	}
	copy(first.Bytes[:], prefix[:])
	copy(last.Bytes[:], prefix[:])
	w.add("digest BETWEEN ? AND ?", first, last)
	w.equal("key", key)
}

func pageSize(limit int) string {
	switch {
	case limit <= 0:
		limit = 100
	case limit > 1000:
		limit = 1000
	}
	return strconv.Itoa(limit)
}

// where collects the conditions of a query.
type where struct {
	conditions []string
	args       []any
}

// add adds a condition, in which each "?" stands for the next argument.
func (w *where) add(condition string, args ...any) {
	for _, a := range args {
		condition = strings.Replace(condition, "?", w.arg(a), 1)
	}
	w.conditions = append(w.conditions, condition)
}

// arg adds an argument and returns what stands for it.
func (w *where) arg(a any) string {
	w.args = append(w.args, a)
	return "$" + strconv.Itoa(len(w.args))
}

func (w *where) equal(column, value string) {
	if value != "" {
		// A value that no column can hold equals none.
		w.add(column+" = ?", text(value))
	}
}

// between adds the condition that a time is not before since and before until.
func (w *where) between(column string, since, until time.Time) {
	if !since.IsZero() {
		w.add(column+" >= ?", ceilMicro(since))
	}
	if !until.IsZero() {
		w.add(column+" < ?", ceilMicro(until))
	}
}

// and returns the conditions and another one.
func (w *where) and(condition string) string {
	return strings.Join(append(slices.Clone(w.conditions), condition), " AND ")
}
