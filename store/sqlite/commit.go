package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// commit writes t's counters and commits it.
func (s *transactions) commit(t *tx) error {
	_ = t.flush() // kept in t.err
	if t.err == nil {
		_, _ = t.exec("UPDATE counter SET fence = ?, position = ?", int64(t.fence), int64(t.position))
	}
	if t.err != nil {
		return t.err
	}
	s.session.committing = true
	_, err := t.conn.exec("COMMIT")
	s.session.committing = false
	if err != nil {
		return &commitError{err}
	}
	s.seq, s.position, s.fence = t.seq, t.position, t.fence
	return nil
}

// commitError is a failure of COMMIT itself.
type commitError struct{ err error }

func (e *commitError) Error() string { return "sqlite: commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// Complete implements semel.Claim.
func (c *txClaim) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	if err := c.store.checkResult(r); err != nil {
		return time.Time{}, err
	}
	if err := c.lock(ctx); err != nil {
		return time.Time{}, err
	}
	defer func() { <-c.settling }()
	if c.state == txLive {
		return c.commit(ctx, r)
	}
	if err := c.learn(ctx); err != nil {
		return time.Time{}, err
	}
	if c.state == txCommitted {
		return c.expiry(ctx)
	}
	return time.Time{}, c.over()
}

// expiry looks when the completed record ends.
func (c *txClaim) expiry(ctx context.Context) (time.Time, error) {
	var at int64
	err := c.store.read(ctx, func(conn *conn) error {
		return conn.query("SELECT expires_at FROM record"+owned+" AND state = 2",
			func(r *row) { at = r.int() }, int64(c.record.number), c.record.token, c.record.lastFence())
	})
	switch {
	case err != nil:
		return time.Time{}, err
	case at <= time.Now().UnixMicro():
		return time.Time{}, semel.ErrLostClaim
	}
	return time.UnixMicro(at), nil
}

// commit writes the result and commits.
func (c *txClaim) commit(ctx context.Context, r semel.Result) (expires time.Time, err error) {
	if err := c.drain(ctx); err != nil {
		return time.Time{}, err
	}
	s, t := c.store, c.tx
	if err := c.returnTo("semel_work", r.Failed); err != nil {
		return time.Time{}, c.lost(ctx, err)
	}
	var body *staging
	if r.Pieces != nil {
		body = newStaging(r.Pieces)
		switch unread, err := c.insert(ctx, body); {
		case err != nil:
			s.rollback()
			c.end(txRolledBack)
			return time.Time{}, rolledBack(err)
		case unread != nil:
			return time.Time{}, unread
		}
	}
	t.time = time.Now()
	t.now = t.time.UnixMicro()
	r.Label = storekit.Cut(r.Label)
	expires, err = c.record.complete(t, r, body)
	if err == nil {
		err = s.commit(t)
	}
	if err == nil {
		c.end(txCommitted)
		s.known.add(s.digest(c.attempt.Identity))
		if c.handler.enqueued.Load() {
			s.hints.Send()
		}
		return expires, nil
	}
	if failed, ok := errors.AsType[*commitError](err); ok && code(failed)&0xff != sqlite3.SQLITE_CONSTRAINT {
		// It may be in the log all the same, for a recovery to find.
		s.drop()
		c.end(txDoubtful)
		return time.Time{}, fmt.Errorf("whether the operation took effect is open: %w", err)
	}
	s.rollback()
	c.end(txRolledBack)
	return time.Time{}, rolledBack(err)
}

// insert puts a body into the claim's own transaction, where nothing waits that
// does not wait for the handler already. Where a piece cannot be read the claim
// is left as it was, and the first error says so; after the second the
// transaction is lost.
func (c *txClaim) insert(ctx context.Context, g *staging) (unread, lost error) {
	t := c.tx
	if _, err := t.exec("SAVEPOINT semel_work"); err != nil { // which commit has ended
		return nil, err
	}
	for n := range g.from.Count() {
		piece, err := g.from.ReadPiece(ctx, n)
		if err != nil {
			_, lost = t.exec("ROLLBACK TO semel_work")
			return fmt.Errorf("sqlite: %w", storekit.Unreadable(ctx, err)), lost
		}
		if _, err := t.exec(insertPiece, g.body, int64(n), piece); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// returnTo ends a savepoint, and if undo is set takes back what was done since.
// It fails if the savepoint is not there: then the transaction is not the
// claim's, or there is none.
func (c *txClaim) returnTo(savepoint string, undo bool) error {
	in, err := c.tx.conn.inTransaction()
	if err == nil && !in {
		err = errEnded
	}
	if err != nil {
		return err
	}
	if undo {
		if _, err := c.tx.conn.exec("ROLLBACK TO " + savepoint); err != nil {
			return err
		}
	}
	_, err = c.tx.conn.exec("RELEASE " + savepoint)
	return err
}

// lost finds out what became of a transaction that ended under the handler.
func (c *txClaim) lost(ctx context.Context, cause error) error {
	c.store.drop()
	c.end(txDoubtful)
	if err := c.learn(ctx); err != nil {
		return err
	}
	return errors.Join(c.over(), cause)
}

// learn finds out what became of a transaction in doubt: by a look under the
// lock. If it was not committed, a commit of its own takes its place in the log,
// so that no recovery finds it later.
func (c *txClaim) learn(ctx context.Context) error {
	if c.state != txDoubtful {
		return nil
	}
	s := c.store
	if err := s.take(ctx); err != nil {
		return err
	}
	as := txDoubtful
	defer func() { c.end(as) }()
	t, err := s.lock(ctx)
	if err != nil {
		return err
	}
	state, _, err := c.record.state(t)
	switch {
	case err != nil:
		s.drop()
		return err
	case state == semel.StateCompleted:
		s.rollback()
		as = txCommitted
		return nil
	case state != 0:
		s.rollback()
		return errors.New("sqlite: the claim was committed without its result")
	}
	if err := c.forget(t, "rolled back"); err != nil {
		return err
	}
	as = txRolledBack
	return nil
}

// forget commits that the claim had no effect: its fence is used up, and the
// trail has an entry for it.
func (c *txClaim) forget(t *tx, cause string) error {
	id := c.attempt.Identity
	t.fence = max(t.fence, c.record.fence)
	err := t.append(time.Now(), semel.TrailEntry{
		Kind: semel.TrailReleased, RecordID: c.record.RecordID(), Fence: c.record.fence,
		Tenant: id.Tenant, Actor: id.Actor, Operation: id.Operation, Key: id.Key,
		Origin: c.attempt.Origin, Cause: cause,
	})
	if err == nil {
		err = c.store.commit(t)
	}
	if err != nil {
		c.store.drop()
	}
	return err
}

// over is the answer of a claim that is settled otherwise.
func (c *txClaim) over() error {
	if c.state == txRolledBack {
		return semel.ErrRolledBack
	}
	return semel.ErrLostClaim
}

func rolledBack(cause error) error { return fmt.Errorf("%w: %w", semel.ErrRolledBack, cause) }

// Release implements semel.Claim. It rolls back.
func (c *txClaim) Release(ctx context.Context) error {
	err := c.leave(ctx, txReleased, "released")
	if errors.Is(err, semel.ErrRolledBack) {
		return nil // before; which is what is asked for
	}
	return err
}

// Hold implements semel.Claim. It rolls back, so nothing is unknown.
func (c *txClaim) Hold(ctx context.Context, cause string) error {
	return c.leave(ctx, txRolledBack, storekit.Cut(cause))
}

// leave rolls back a live claim.
func (c *txClaim) leave(ctx context.Context, as txState, cause string) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer func() { <-c.settling }()
	if c.state == txLive {
		if err := c.drain(ctx); err != nil {
			return err
		}
		if err := c.returnTo("semel_claim", true); err != nil {
			return c.lost(ctx, err)
		}
		// Only the trail and the fence are at stake now.
		c.tx.position, c.tx.seq, c.tx.run, c.tx.err = c.before.position, c.store.seq, nil, nil
		_ = c.forget(c.tx, cause)
		c.end(as)
		if as == txReleased {
			return nil
		}
		return rolledBack(errors.New(cause))
	}
	if err := c.learn(ctx); err != nil {
		return err
	}
	return c.over()
}

// Renew implements semel.Claim. A transaction has no lease.
func (c *txClaim) Renew(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.settling <- struct{}{}:
	default:
		return nil // being settled
	}
	defer func() { <-c.settling }()
	if c.state != txLive {
		return semel.ErrLostClaim
	}
	return nil
}
