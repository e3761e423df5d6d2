package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

const (
	maxNameBytes = 255  // of a record's id, a fingerprint's scheme, a codec
	maxTextBytes = 1024 // of texts for people, which are cut there
)

// The columns that tx.stored reads.
const (
	recordColumns = `number, coalesce(fence, number), token, state, expires_at, position, lease_until, settled_at,
		begun_at, retention, reopened, tenant, actor, operation, key,
		fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id, cause`
	resultColumns = `codec, label, reference, tombstone, pieces, pieces_size, head, body`

	selectRecord = `SELECT ` + recordColumns + `, ` + resultColumns + ` FROM record WHERE key = ? AND digest = ?`
)

// stored is a record with what only the store knows of it.
type stored struct {
	semel.Record
	number     uint64
	position   uint64 // of the entry that the record is, or 0
	token      []byte
	leaseUntil int64
	expiresAt  int64
}

func (s *stored) expired(now int64) bool {
	return s.State == semel.StateCompleted && s.expiresAt <= now
}

// unsettled: the record may be taken over or resolved.
func (s *stored) unsettled(now int64) bool {
	return s.State == semel.StateUnknown || s.State == semel.StateInProgress && s.leaseUntil <= now
}

// record reads recordColumns, as the record is at now. It is likely that of like.
func (r *row) record(names namer, now int64, like *semel.Identity) (s stored) {
	s.number, s.Fence = uint64(r.int()), uint64(r.int())
	s.ID = names.ID(s.number)
	s.token = r.blob()
	s.State = semel.State(r.int())
	s.ExpiresAt, s.expiresAt = r.time()
	s.position = uint64(r.int())
	if s.leaseUntil = r.int(); s.leaseUntil != 0 {
		s.Lease = duration(s.leaseUntil - now)
	}
	s.SettledAt, _ = r.time()
	s.BegunAt = time.UnixMicro(r.int())
	retention := r.int()
	s.Retention = duration(retention)
	if s.State == semel.StateCompleted {
		s.SettledAt = time.UnixMicro(s.expiresAt - retention)
	}
	s.Reopened = r.int() != 0
	s.Identity.Tenant, s.Identity.Actor = r.textLike(like.Tenant), r.textLike(like.Actor)
	s.Identity.Operation, s.Identity.Key = r.textLike(like.Operation), r.textLike(like.Key)
	s.Fingerprint.Scheme = r.text()
	copy(s.Fingerprint.Sum[:], r.bytes())
	s.Origin = semel.Origin{RequestID: r.text(), EventID: r.text(), TraceID: r.text()}
	s.Cause = r.text()
	return s
}

// result reads resultColumns.
func (r *row) result(s *Store) semel.Result {
	res := semel.Result{Codec: r.text(), Label: r.text(), Reference: r.text(), Tombstone: r.int() != 0}
	body, inPieces := r.number()
	size := r.int()
	res.Head, res.Body = r.blob(), r.blob()
	if inPieces {
		res.Pieces = s.pieces(body, size)
	}
	return res
}

// time reads a time that may be missing.
func (r *row) time() (time.Time, int64) {
	us, ok := r.number()
	if !ok {
		return time.Time{}, 0
	}
	return time.UnixMicro(us), us
}

// micros rounds up, so that nothing ends before its time.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}

func duration(us int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(max(min(us, most), -most)) * time.Microsecond
}

func orNull(s string) driver.Value {
	if s == "" {
		return nil
	}
	return s
}

func oneOrNull(b bool) driver.Value {
	if !b {
		return nil
	}
	return int64(1)
}

// namer is recordid.Namer, or a test's.
type namer interface {
	ID(number uint64) string
	Number(id string) (number uint64, ok bool)
	Digest(id semel.Identity) [16]byte
}

// digest tells the identities of one key apart: eight bytes are enough for that.
type digest [8]byte

func (s *Store) digest(id semel.Identity) digest {
	whole := s.names.Digest(id)
	return digest(whole[:len(digest{})])
}

// errCollision: two identities of one key have one digest, so that only one of
// them can have a record. That does not happen by chance, nor can anybody bring it about
// who does not know the store's secret.
var errCollision = errors.New("sqlite: the record of this identity's digest is another identity's; the file was tampered with, or its secret was")

// cut shortens a text to what is stored of it.
func cut(s string) string {
	if len(s) <= maxTextBytes {
		return s
	}
	end := maxTextBytes
	for end > maxTextBytes-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

func cutOrigin(o semel.Origin) semel.Origin {
	return semel.Origin{RequestID: cut(o.RequestID), EventID: cut(o.EventID), TraceID: cut(o.TraceID)}
}

func checkName(what, s string, mayBeEmpty bool) error {
	switch {
	case s == "" && !mayBeEmpty:
		return fmt.Errorf("%s is empty", what)
	case len(s) > maxNameBytes:
		return fmt.Errorf("%s is %d bytes long; at most %d are allowed", what, len(s), maxNameBytes)
	}
	return nil
}

func (s *Store) checkResult(r semel.Result) error {
	if err := checkName("codec", r.Codec, true); err != nil {
		return fmt.Errorf("sqlite: result: %w", err)
	}
	if r.Pieces != nil {
		if err := checkPieces(r); err != nil {
			return err
		}
	}
	// Two comparisons, because a size that somebody made up may be any.
	rest, most := int64(len(r.Head)+len(r.Reference)), int64(s.config.MaxResultBytes)
	if n := r.Size(); n > most || n+rest > most {
		return fmt.Errorf("sqlite: %w: a body of %d bytes, and %d with it; at most %d are allowed", semel.ErrTooLarge, n, rest, most)
	}
	return nil
}

// resultBytes is how much of a result goes into its record.
func resultBytes(r semel.Result) int { return len(r.Head) + len(r.Body) + len(r.Reference) }

// find returns the record of id in the transaction, expired or not.
func (t *tx) find(id semel.Identity) (s stored, found bool, err error) {
	digest := t.store.digest(id)
	err = t.query(selectRecord, func(r *row) {
		s, found = r.record(t.store.names, t.now, &id), true
		s.Result = r.result(t.store)
	}, id.Key, digest[:])
	if err == nil && found && s.Identity != id {
		return stored{}, false, errCollision
	}
	return s, found, err
}

// find returns the committed record of id, unless there is none or it has
// expired.
func (s *Store) find(ctx context.Context, id semel.Identity, digest digest) (rec stored, found bool, err error) {
	if rec, found = s.cache.get(&id, time.Now().UnixMicro()); found {
		if err = s.usable(ctx); err == nil {
			if err = s.files.check(); err != nil {
				err = fmt.Errorf("sqlite: %w", err)
			}
		}
		return rec, err == nil, err
	}
	before, stable := s.cache.state()
	err = s.read(ctx, func(c *conn) error {
		now := time.Now().UnixMicro()
		return c.query(selectRecord, func(r *row) {
			rec, found = r.record(s.names, now, &id), true
			rec.Result = r.result(s)
			found = !rec.expired(now)
		}, id.Key, digest[:])
	})
	if err == nil && rec.number != 0 && rec.Identity != id {
		return stored{}, false, errCollision
	}
	if stable && found && err == nil {
		s.cache.put(&rec, before)
	}
	return rec, found && err == nil, err
}

// Find implements semel.Store.
func (s *Store) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	rec, found, err := s.find(ctx, id, s.digest(id))
	switch {
	case err != nil:
		return semel.Record{}, err
	case !found:
		return semel.Record{}, semel.ErrNotFound
	}
	return rec.Record, nil
}

// Begin implements semel.Store.
func (s *Store) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if err := errors.Join(
		a.Identity.Validate(),
		checkName("fingerprint scheme", a.Fingerprint.Scheme, true),
	); err != nil {
		return nil, fmt.Errorf("sqlite: begin: %w", err)
	}
	a.Origin = cutOrigin(a.Origin)
	// A repeated request is better answered by a look than by a turn of the
	// writer, for which it may have to wait and whose lock it does not need.
	// For a first one the look would be wasted, and it costs half as much as
	// claiming; so known tells which it is likely to be. Being wrong costs
	// time only: the writer is the arbiter, and a look is taken as well if its
	// turn is long in coming.
	digest := s.digest(a.Identity)
	look := func() error {
		rec, found, err := s.find(ctx, a.Identity, digest)
		if err == nil && found && !rec.sameClaim(a.Token) && (a.Takeover == 0 || a.Takeover != rec.Fence) {
			return &semel.ConflictError{Record: rec.Record}
		}
		return nil
	}
	known := s.known.has(digest)
	var c *claim
	var err error
	if a.Takeover == 0 && (known || s.known.often()) {
		err = look()
	}
	if err == nil {
		c, err = writeOrLook(ctx, s, 0, func(t *tx) (*claim, error) { return t.begin(&a, digest) }, look)
	}
	if repeated := isConflict(err); !known && (err == nil || repeated) {
		s.known.learn(digest, repeated)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func isConflict(err error) bool {
	_, ok := errors.AsType[*semel.ConflictError](err)
	return ok
}

func (s *stored) sameClaim(t semel.Token) bool {
	return s.State == semel.StateInProgress && string(s.token) == string(t[:])
}

const insertRecord = `
	INSERT INTO record (number, digest, state, token, lease_until, begun_at, retention, tenant, actor, operation, key,
		fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id)
	VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (key, digest) DO NOTHING`

// insert adds the record of c, unless its digest has one.
func (t *tx) insert(c *claim, a *semel.Attempt, digest []byte) (ok bool, err error) {
	n, err := t.exec(insertRecord,
		int64(c.number), digest, c.token, t.now+c.lease, t.now, c.retention,
		a.Identity.Tenant, a.Identity.Actor, a.Identity.Operation, a.Identity.Key,
		orNull(a.Fingerprint.Scheme), a.Fingerprint.Sum[:],
		orNull(a.Origin.RequestID), orNull(a.Origin.EventID), orNull(a.Origin.TraceID))
	if n == 1 {
		t.fence++
	}
	return n == 1, err
}

func (t *tx) begin(a *semel.Attempt, digest digest) (*claim, error) {
	c := &claim{
		store: t.store, number: t.fence + 1, fence: t.fence + 1, token: a.Token[:],
		lease: micros(a.Lease), retention: micros(a.Retention),
	}
	if ok, err := t.insert(c, a, digest[:]); ok || err != nil {
		return c, err
	}
	rec, found, err := t.find(a.Identity)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, errors.New("sqlite: begin: the record in the way cannot be read")
	case rec.expired(t.now):
		// A record that is begun anew has another number, and so another id.
		if _, err := t.remove([]removal{{number: rec.number, position: rec.position}}, nil); err != nil {
			return nil, err
		}
		ok, err := t.insert(c, a, digest[:])
		if err == nil && !ok {
			err = errors.New("sqlite: begin: the expired record in the way cannot be removed")
		}
		return c, err
	}
	c.number = rec.number
	switch {
	case rec.sameClaim(a.Token):
		c.fence, c.retention = rec.Fence, micros(rec.Retention)
		_, err := t.exec("UPDATE record SET lease_until = ? WHERE number = ?", t.now+c.lease, int64(rec.number))
		return c, err
	case a.Takeover == rec.Fence && rec.unsettled(t.now):
		_, err := t.exec(`
			UPDATE record SET fence = ?, token = ?, state = 1, reopened = NULL,
				begun_at = ?, lease_until = ?, retention = ?, settled_at = NULL,
				request_id = ?, event_id = ?, trace_id = ?, cause = NULL
			WHERE number = ?`,
			int64(c.fence), c.token, t.now, t.now+c.lease, c.retention,
			orNull(a.Origin.RequestID), orNull(a.Origin.EventID), orNull(a.Origin.TraceID), int64(rec.number))
		if err != nil {
			return nil, err
		}
		t.fence++
		return c, t.enter(semel.TrailTakeover, c.number, "", "")
	}
	return nil, &semel.ConflictError{Record: rec.Record}
}

// claim is a claim on the record with its fence and token.
type claim struct {
	store            *Store
	number, fence    uint64
	token            []byte
	lease, retention int64 // microseconds

	mu     sync.Mutex
	staged *staging // by a Complete that did not come to its end
}

func (c *claim) Context(ctx context.Context) context.Context { return ctx }
func (c *claim) RecordID() string                            { return c.store.names.ID(c.number) }
func (c *claim) Fence() uint64                               { return c.fence }
func (c *claim) Transactional() bool                         { return false }

// owned is the condition that the record is the claim's.
const owned = " WHERE number = ? AND token = ? AND fence IS ?"

// lastFence is the parameter of owned for the fence, which the record has only
// if it is not its number.
func (c *claim) lastFence() driver.Value {
	if c.fence == c.number {
		return nil
	}
	return int64(c.fence)
}

// state returns the state of the claim's record, or 0 if the claim is lost.
func (c *claim) state(t *tx) (s semel.State, expires int64, err error) {
	err = t.query("SELECT state, expires_at FROM record"+owned, func(r *row) {
		s = semel.State(r.int())
		_, expires = r.time()
	}, int64(c.number), c.token, c.lastFence())
	return s, expires, err
}

// Complete implements semel.Claim.
func (c *claim) Complete(ctx context.Context, res semel.Result) (time.Time, error) {
	if err := c.store.checkResult(res); err != nil {
		return time.Time{}, err
	}
	res.Label = cut(res.Label)
	if res.Pieces != nil {
		return c.completePieces(ctx, res)
	}
	expires, err := write(ctx, c.store, resultBytes(res), func(t *tx) (time.Time, error) { return c.complete(t, res, nil) })
	if err == nil {
		c.store.discard(ctx, c.stagingOf(nil)) // of a result that this one stands for
	}
	return expires, err
}

// stagingOf takes the body that was left behind by an earlier Complete out of
// the claim, or for other pieces makes a new one.
func (c *claim) stagingOf(p *semel.Pieces) *staging {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.staged
	c.staged = nil
	if p != nil && (g == nil || g.from != p) {
		g = newStaging(p)
	}
	return g
}

func (c *claim) completePieces(ctx context.Context, res semel.Result) (expires time.Time, err error) {
	s, g := c.store, c.stagingOf(res.Pieces)
	err = s.stage(ctx, g, c.fence, func(t *tx) (bool, error) {
		state, _, err := c.state(t)
		return state == semel.StateInProgress || state == semel.StateUnknown, err
	})
	if err == nil {
		expires, err = write(ctx, s, resultBytes(res), func(t *tx) (time.Time, error) { return c.complete(t, res, g) })
	}
	switch {
	case errors.Is(err, errMoved):
		s.discard(ctx, g)
		return write(ctx, s, 0, c.completed)
	case errors.Is(err, semel.ErrTooLarge), errors.Is(err, semel.ErrLostClaim), errors.Is(err, errIncomplete):
		s.discard(ctx, g)
	case err != nil:
		// The caller will try again, and find there what is in the file.
		c.mu.Lock()
		defer c.mu.Unlock()
		c.staged = g
	}
	return expires, err
}

const completeRecord = `
	UPDATE record SET state = 2, expires_at = ?, position = ?, lease_until = NULL, settled_at = NULL, reopened = NULL, cause = NULL,
		codec = ?, label = ?, reference = ?, tombstone = ?, pieces = ?, pieces_size = ?, head = ?, body = ?` + owned + ` AND state <> 2`

// complete records a result, whose body is g if it is in pieces.
func (c *claim) complete(t *tx, res semel.Result, g *staging) (time.Time, error) {
	var body, size driver.Value
	if g != nil {
		if err := t.checkStaged(g); err != nil {
			return time.Time{}, err
		}
		body, size = g.body, g.from.Size
	}
	expires := t.now + c.retention
	n, err := t.exec(completeRecord,
		expires, int64(t.position+1), orNull(res.Codec), orNull(res.Label), orNull(res.Reference), oneOrNull(res.Tombstone),
		body, size, res.Head, res.Body, int64(c.number), c.token, c.lastFence())
	switch {
	case err != nil:
		return time.Time{}, err
	case n != 1:
		at, err := c.completed(t)
		if err == nil && g != nil {
			err = t.unstage(g.body) // unless it is what was recorded
		}
		return at, err
	case g != nil:
		if err := t.named(g); err != nil {
			return time.Time{}, err
		}
	}
	t.executed(c.number)
	return time.UnixMicro(expires), nil
}

// completed is the answer of a claim that has completed its record before, or
// lost it.
func (c *claim) completed(t *tx) (time.Time, error) {
	state, expires, err := c.state(t)
	switch {
	case err != nil:
		return time.Time{}, err
	case state == semel.StateCompleted && expires > t.now:
		return time.UnixMicro(expires), nil
	}
	return time.Time{}, semel.ErrLostClaim
}

type none = struct{}

// Release implements semel.Claim.
func (c *claim) Release(ctx context.Context) error {
	_, err := write(ctx, c.store, 0, func(t *tx) (none, error) {
		state, _, err := c.state(t)
		switch {
		case err != nil:
			return none{}, err
		case state != semel.StateInProgress && state != semel.StateUnknown:
			return none{}, semel.ErrLostClaim
		}
		if err := t.enter(semel.TrailReleased, c.number, "", ""); err != nil {
			return none{}, err
		}
		_, err = t.exec("DELETE FROM record WHERE number = ?", int64(c.number))
		return none{}, err
	})
	if err == nil {
		c.store.discard(ctx, c.stagingOf(nil))
	}
	return err
}

// Hold implements semel.Claim.
func (c *claim) Hold(ctx context.Context, cause string) error {
	cause = cut(cause)
	_, err := write(ctx, c.store, 0, func(t *tx) (none, error) {
		n, err := t.exec("UPDATE record SET state = 3, settled_at = ?, lease_until = min(lease_until, ?), cause = ?"+owned+" AND state = 1",
			t.now, t.now, orNull(cause), int64(c.number), c.token, c.lastFence())
		if err != nil {
			return none{}, err
		}
		if n == 1 {
			return none{}, t.enter(semel.TrailHeld, c.number, "", cause)
		}
		state, _, err := c.state(t)
		if err == nil && state != semel.StateUnknown {
			err = semel.ErrLostClaim
		}
		return none{}, err
	})
	return err
}

// Renew implements semel.Claim.
func (c *claim) Renew(ctx context.Context) error {
	_, err := write(ctx, c.store, 0, func(t *tx) (none, error) {
		n, err := t.exec("UPDATE record SET lease_until = ?"+owned+" AND state = 1",
			t.now+c.lease, int64(c.number), c.token, c.lastFence())
		if err == nil && n == 0 {
			err = semel.ErrLostClaim
		}
		return none{}, err
	})
	return err
}

// Resolve implements semel.Resolver.
func (s *Store) Resolve(ctx context.Context, d semel.Resolution) (semel.Record, error) {
	switch d.Decision {
	case semel.DecideUnknown, semel.DecideNoEffect, semel.DecideExecuteAgain:
	case semel.DecideResult:
		if err := s.checkResult(d.Result); err != nil {
			return semel.Record{}, err
		}
		d.Result.Label = cut(d.Result.Label)
	default:
		return semel.Record{}, fmt.Errorf("sqlite: resolve: no such decision: %v", d.Decision)
	}
	d.Cause, d.Origin = cut(d.Cause), cutOrigin(d.Origin)
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
		_, err = write(ctx, s, 0, func(t *tx) (stored, error) { return t.resolvable(d) })
		if err == nil {
			err = semel.ErrStaleFence
		}
	}
	return rec, err
}

// resolvable returns the record that d settles, or why it cannot.
func (t *tx) resolvable(d semel.Resolution) (stored, error) {
	rec, found, err := t.find(d.Identity)
	switch {
	case err != nil:
		return stored{}, err
	case !found || rec.expired(t.now):
		return stored{}, semel.ErrNotFound
	case rec.Fence != d.Fence, !rec.unsettled(t.now),
		rec.State != semel.StateUnknown && d.Decision != semel.DecideUnknown:
		return stored{}, semel.ErrStaleFence
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
			return rec.Record, nil
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
	return rec.Record, t.append(t.time, semel.TrailEntry{
		Kind: kind, RecordID: rec.ID, Fence: rec.Fence, Tenant: rec.Identity.Tenant, Actor: rec.Identity.Actor,
		Operation: rec.Identity.Operation, Key: rec.Identity.Key, Origin: d.Origin, Label: label, Cause: d.Cause,
	})
}

// List implements semel.Lister.
func (s *Store) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if f.After > math.MaxInt64 {
		return nil, nil
	}
	var out []semel.Record
	err := s.read(ctx, func(c *conn) error {
		now := time.Now().UnixMicro()
		out = nil
		query, args := s.listQuery(f, now)
		if query == "" {
			return nil
		}
		return c.queryOnce(ctx, query, func(r *row) {
			r.int() // what the listing is ordered by
			out = append(out, r.record(s.names, now, &semel.Identity{}).Record)
		}, args...)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// listQuery returns the query of a listing, or "" where nothing can be found.
func (s *Store) listQuery(f semel.Filter, now int64) (query string, args []driver.Value) {
	var w where
	w.add("(state <> 2 OR expires_at > ?)", now)
	w.equal("tenant", f.Tenant)
	w.equal("actor", f.Actor)
	w.equal("operation", f.Operation)
	w.equal("key", f.Key)
	if f.State != 0 {
		w.add("state = ?", int64(f.State))
	}
	if f.Lapsed {
		w.add("state = 1 AND lease_until <= ?", now)
	}
	if f.Cause != "" {
		w.add("state = 3")
	}
	if prefix, ok := strings.CutSuffix(cut(f.Cause), "*"); !ok {
		w.equal("cause", cut(f.Cause))
	} else if prefix != "" {
		// Of bytes, because LIKE knows more signs than the one.
		w.add("substr(CAST(cause AS BLOB), 1, ?) = CAST(? AS BLOB)", int64(len(prefix)), prefix)
	}
	if !f.BegunSince.IsZero() {
		w.add("begun_at >= ?", ceilMicro(f.BegunSince))
	}
	if !f.BegunUntil.IsZero() {
		w.add("begun_at < ?", ceilMicro(f.BegunUntil))
	}
	if f.Lapsed || f.State == semel.StateInProgress || f.State == semel.StateUnknown || f.Cause != "" {
		w.add("expires_at IS NULL") // in the words of the index record_open, which else is not used
	}
	if f.ID != "" {
		number, ok := s.names.Number(f.ID)
		if !ok || number > math.MaxInt64 {
			return "", nil
		}
		w = w.with("number = ?", int64(number))
	}
	const (
		fence = "coalesce(fence, number)"
		list  = ", " + recordColumns + " FROM record WHERE "
	)
	after, limit := int64(f.After), pageSize(f.Limit)
	anywhere := w.with(fence+" > ?", after)
	switch {
	case f.ID != "":
		return "SELECT " + fence + list + anywhere.String(), anywhere.args
	case f.Key != "" && f.Tenant != "" && f.Actor != "" && f.Operation != "":
		digest := s.digest(semel.Identity{
			Scope: semel.Scope{Tenant: f.Tenant, Actor: f.Actor, Operation: f.Operation}, Key: f.Key,
		})
		one := anywhere.with("digest = ?", digest[:])
		return "SELECT " + fence + list + one.String(), one.args
	case f.Key != "":
		return "SELECT " + fence + list + anywhere.String() + " ORDER BY 1 LIMIT " + strconv.Itoa(limit), anywhere.args
	}
	// Both halves are read in their order, each by its index, and merged.
	numbers, fences := w.with("fence IS NULL AND number > ?", after), w.with("fence > ?", after)
	return "SELECT number" + list + numbers.String() + " UNION ALL SELECT fence" + list + fences.String() +
		" ORDER BY 1 LIMIT " + strconv.Itoa(limit), append(numbers.args, fences.args...)
}
