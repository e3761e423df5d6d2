package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
)

const (
	maxNameBytes = 255  // of a record's id, a fingerprint's scheme, a codec
	maxTextBytes = 1024 // of texts for people, which are cut there
)

// stored is a record with what only the store knows of it.
type stored struct {
	semel.Record
	token []byte
}

// record returns where recordColumns are scanned to, and what completes the
// record afterwards.
func (s *stored) columns() (dest []any, done func()) {
	var (
		fence              int64
		state              int16
		settledAt, expires *time.Time
		sum                []byte
	)
	dest = []any{
		&fence, &s.token, &s.ID, &s.Identity.Tenant, &s.Identity.Actor, &s.Identity.Operation, &s.Identity.Key,
		&state, &s.Reopened, &s.BegunAt, &s.Lease, &s.Retention, &settledAt, &expires,
		&s.Fingerprint.Scheme, &sum, &s.Origin.RequestID, &s.Origin.EventID, &s.Origin.TraceID, &s.Cause,
	}
	return dest, func() {
		s.Fence, s.State = uint64(fence), semel.State(state)
		copy(s.Fingerprint.Sum[:], sum)
		if settledAt != nil {
			s.SettledAt = *settledAt
		}
		if expires != nil {
			s.ExpiresAt = *expires
		}
	}
}

// scanRecord reads recordColumns and resultColumns, after what first names.
func (s *Store) scanRecord(row pgx.Row, first ...any) (rec stored, err error) {
	dest, done := rec.columns()
	var (
		reference []byte
		b         body
		res       = &rec.Result
	)
	dest = append(append(first, dest...), &res.Codec, &res.Label, &reference, &res.Tombstone, &res.Head, &res.Body, &b.number, &b.size)
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

func (s *stored) unsettled() bool {
	return s.State == semel.StateUnknown || s.Lapsed()
}

func (s *stored) sameClaim(t semel.Token) bool {
	return s.State == semel.StateInProgress && string(s.token) == string(t[:])
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

func identityArgs(id semel.Identity) []any {
	args := make([]any, 0, 24) // room for those that most statements add
	return append(args, id.Key, id.Operation, id.Actor, id.Tenant)
}

// Find implements semel.Store.
func (s *Store) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	return again(ctx, s, func() (semel.Record, error) {
		rec, err := s.scanRecord(s.pool.QueryRow(ctx, s.sql.find, identityArgs(id)...))
		if errors.Is(err, pgx.ErrNoRows) {
			err = semel.ErrNotFound
		}
		return rec.Record, err
	})
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
	args := append(identityArgs(d.Identity), int64(d.Fence), s.instance)
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
	args = append(args, o.RequestID, o.EventID, o.TraceID, label, text(d.Cause))
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
	return []any{r.Codec, text(r.Label), []byte(r.Reference), r.Tombstone, r.Head, r.Body, b.number, b.size}
}

// List implements semel.Lister.
func (s *Store) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if f.After > math.MaxInt64 {
		return nil, nil
	}
	var w where
	w.add("fence > ?", int64(f.After))
	w.add("NOT (" + expired + ")")
	w.equal("id", f.ID)
	w.equal("tenant", f.Tenant)
	w.equal("actor", f.Actor)
	w.equal("operation", f.Operation)
	w.equal("key", f.Key)
	switch f.State {
	case 0:
	case semel.StateCompleted:
		w.add("state = 2")
	default:
		w.add("state = ? AND state <> 2", int16(f.State)) // in these words, for the index record_open
	}
	if f.Lapsed {
		w.add("state = 1 AND state <> 2 AND lease_until <= clock_timestamp()")
	}
	if prefix, ok := strings.CutSuffix(f.Cause, "*"); ok {
		w.add("state = 3 AND state <> 2 AND starts_with(cause, ?)", text(prefix))
	} else if f.Cause != "" {
		w.add("state = 3 AND state <> 2 AND cause = ?", text(f.Cause))
	}
	if !f.BegunSince.IsZero() {
		w.add("begun_at >= ?", ceilMicro(f.BegunSince))
	}
	if !f.BegunUntil.IsZero() {
		w.add("begun_at < ?", ceilMicro(f.BegunUntil))
	}
	sql := s.sql.list + w.String() + " ORDER BY fence LIMIT " + pageSize(f.Limit)
	return again(ctx, s, func() ([]semel.Record, error) {
		rows, err := s.pool.Query(ctx, sql, w.args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (semel.Record, error) {
			var rec stored
			dest, done := rec.columns()
			if err := row.Scan(dest...); err != nil {
				return semel.Record{}, err
			}
			done()
			return rec.Record, nil
		})
	})
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
		w.args = append(w.args, a)
		condition = strings.Replace(condition, "?", "$"+strconv.Itoa(len(w.args)), 1)
	}
	w.conditions = append(w.conditions, condition)
}

func (w *where) equal(column, value string) {
	if value != "" {
		// A value that no column can hold equals none.
		w.add(column+" = ?", text(value))
	}
}

func (w *where) String() string { return strings.Join(w.conditions, " AND ") }
