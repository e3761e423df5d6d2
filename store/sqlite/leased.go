package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// beginLeased claims an identity with a record under a lease.
func (s *Store) beginLeased(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	// A repeated request is better answered by a look than by a turn of the
	// writer, for which it may have to wait and whose lock it does not need. For a
	// first one the look would be wasted, and it costs half as much as claiming;
	// so known says which it is likely to be. Being wrong costs time only: the
	// writer is the arbiter, and a look is taken as well if its turn is long in
	// coming.
	digest := s.digest(a.Identity)
	known := s.known.has(digest)
	var c *claim
	var err error
	if a.Takeover == 0 && (known || s.known.often()) {
		err = s.look(ctx, &a, digest)
	}
	if err == nil {
		c, err = s.claim(ctx, a, digest)
	}
	if repeated := isConflict(err); !known && (err == nil || repeated) {
		s.known.learn(digest, repeated)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// look returns a ConflictError if a's identity is seen to have a record in its way.
func (s *Store) look(ctx context.Context, a *semel.Attempt, digest digest) error {
	rec, found, err := s.find(ctx, &a.Identity, digest)
	if err == nil && found && !rec.sameClaim(a.Token) && (a.Takeover == 0 || a.Takeover != rec.Fence) {
		return &rec.conflict
	}
	return nil
}

// claim has the writer claim the identity. It has a of its own, which outlives it.
func (s *Store) claim(ctx context.Context, a semel.Attempt, digest digest) (*claim, error) {
	return writeOrLook(ctx, s, 0, func(t *tx) (*claim, error) { return t.begin(&a, digest) }, func() error { return s.look(ctx, &a, digest) })
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
		// A record that replaces this one has another number, and so another id.
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
	return nil, &rec.conflict
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
	res.Label = storekit.Cut(res.Label)
	if res.Pieces != nil {
		return c.completePieces(ctx, res)
	}
	expires, err := write(ctx, c.store, resultBytes(res), func(t *tx) (time.Time, error) { return c.complete(t, res, nil) })
	if err == nil {
		c.store.discard(ctx, c.stagingOf(nil)) // of a result that this one stands for
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
	cause = storekit.Cut(cause)
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
