package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel"
)

// Complete implements semel.Claim.
func (c *txClaim) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	if err := c.store.checkResult(r); err != nil {
		return time.Time{}, err
	}
	if err := c.lock(ctx); err != nil {
		return time.Time{}, err
	}
	defer c.unlock()
	if c.state == txLive {
		err := c.commit(ctx, r)
		return c.expires, err
	}
	if err := c.learn(ctx); err != nil {
		return time.Time{}, err
	}
	switch {
	case c.state != txCommitted:
		return time.Time{}, c.over()
	case c.joined:
		return c.expires, nil
	}
	_, expires, err := c.store.claimState(ctx, c.store.pool, c.args())
	return expires, err
}

// over is the answer of a claim that is settled otherwise.
func (c *txClaim) over() error {
	switch c.state {
	case txHeld:
		return fmt.Errorf("%w: %w", semel.ErrLostClaim, errHandlerEnded)
	case txRolledBack:
		return semel.ErrRolledBack
	}
	return semel.ErrLostClaim
}

func rolledBack(cause error) error { return fmt.Errorf("%w: %w", semel.ErrRolledBack, cause) }

// shut ends the handler's part in the transaction.
func (c *txClaim) shut(ctx context.Context, impatient func()) error {
	if err := c.gate.close(ctx, impatient); err != nil {
		return err
	}
	c.sqlTxs.close()
	return nil
}

// commit writes the record and commits.
func (c *txClaim) commit(ctx context.Context, r semel.Result) error {
	if err := c.shut(ctx, nil); err != nil {
		return err
	}
	pg := c.tx.Conn().PgConn()
	switch {
	case pg.IsClosed():
		return c.fail(ctx, errors.New("the connection is gone"))
	case pg.IsBusy():
		return c.fail(ctx, errors.New("the handler left rows or a batch open"))
	case pg.TxStatus() == outside:
		return c.fail(ctx, errHandlerEnded)
	case pg.TxStatus() == 'E' && !r.Failed:
		return c.fail(ctx, errors.New("a statement of the handler failed, and with it the transaction"))
	}
	if r.Failed {
		// By itself: in a failed transaction no other statement could even
		// be prepared before this one.
		if _, err := c.tx.Exec(ctx, undoWork); err != nil {
			return c.fail(ctx, err)
		}
	}
	var inPieces body
	if r.Pieces != nil {
		var unread, err error
		if inPieces, unread, err = c.insertPieces(ctx, r); err != nil {
			return c.fail(ctx, err)
		}
		if unread != nil {
			return unread
		}
	}

	b := &pgx.Batch{}
	if !r.Failed {
		b.Queue(releaseWork) // fails if this is no longer the transaction we began
	}
	before := b.Len() // of the statements before the one that writes the record
	switch res := resultArgs(r, inPieces); {
	case c.first:
		b.Queue(c.store.sql.completeOpen, append(append(c.args(), res...), c.takeover != 0)...)
	case c.takeover != 0:
		b.Queue(c.store.sql.takeoverCompleted, append(c.takeoverArgs(), res...)...)
	default:
		if c.replaces {
			b.Queue(c.store.sql.removeExpired, c.digest)
			before++
		}
		b.Queue(c.store.sql.insertCompleted, append(c.insertArgs(), res...)...)
	}
	if c.store.config.Notify {
		c.store.queueNotify(b, c.attempt.Identity)
	}
	if c.joined {
		b.Queue(releaseClaim)
	} else {
		b.Queue("COMMIT")
	}
	br := c.tx.SendBatch(ctx, b)
	expires, tag, err := func() (t time.Time, tag pgconn.CommandTag, err error) {
		for range before {
			if _, err := br.Exec(); err != nil {
				return t, tag, err
			}
		}
		if err := br.QueryRow().Scan(&t); err != nil {
			return t, tag, err
		}
		if c.store.config.Notify {
			if _, err := br.Exec(); err != nil {
				return t, tag, err
			}
		}
		tag, err = br.Exec()
		return t, tag, err
	}()
	if cerr := br.Close(); err == nil {
		err = cerr
	}

	switch {
	case err == nil && tag.String() == "ROLLBACK":
		err = errors.New("COMMIT was answered with ROLLBACK")
	case err == nil:
		c.state, c.expires = txCommitted, expires
		c.giveBack(ctx)
		if c.enqueued.Load() && !c.joined {
			c.store.hints.Send()
		}
		return nil
	case escaped(err):
		return c.fail(ctx, err) // which finds the same
	case sqlState(err) == codeNoDivision, isTaken(err):
		err = errors.New("the identity was recorded by someone who does not take its lock")
	case c.joined:
		return c.fail(ctx, err)
	case !certain(err, pg):
		c.state = txDoubtful
		c.giveBack(ctx)
		return fmt.Errorf("%w: %w", errCommitOpen, err)
	}
	if c.joined {
		return c.fail(ctx, err)
	}
	// The savepoint was there, so the transaction was ours, and it is over or
	// about to be.
	c.state = txRolledBack
	c.giveBack(ctx)
	c.note(semel.TrailReleased, "rolled back")
	return rolledBack(err)
}

// insertPieces writes a body in the claim's transaction. Where a piece cannot be
// read, which the first error says, the claim is left as it was.
func (c *txClaim) insertPieces(ctx context.Context, r semel.Result) (_ body, unread, err error) {
	if !r.Failed { // else the savepoint has nothing behind it now
		b := &pgx.Batch{}
		b.Queue(releaseWork)
		b.Queue(saveWork) // anew, behind what the handler did
		if err := c.tx.SendBatch(ctx, b).Close(); err != nil {
			return body{}, nil, err
		}
	}
	inPieces, unread, err := c.store.insertPieces(ctx, c.tx, r.Pieces)
	if unread != nil {
		// Also if it was the caller's time that ran out.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		_, err = c.tx.Exec(undo, undoWork)
	}
	return inPieces, unread, err
}

// escaped reports whether a statement about our savepoint found out that it is
// no longer in our transaction.
func escaped(err error) bool {
	code := sqlState(err)
	return code == codeNoSave || code == codeNoTx
}

// isTaken reports whether a record was not inserted because its identity has one.
func isTaken(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == codeUnique && e.ConstraintName == constraintIdentity
}

// certain reports whether a batch that ends with COMMIT certainly failed with
// it. A living session shows it: it is still in the transaction, or has
// answered the commit with an error. The end of the session shows nothing, nor
// does an error that claims that nothing was sent: the driver reports a
// connection that broke later in the same way.
func certain(err error, pg *pgconn.PgConn) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if ok && e.Code == codeIdle {
		return true
	}
	if pg.IsClosed() || pg.IsBusy() {
		return false
	}
	return pg.TxStatus() != outside || ok && e.SeverityUnlocalized == "ERROR"
}

// fail rolls back because of cause, and returns what Complete answers.
func (c *txClaim) fail(ctx context.Context, cause error) error {
	c.undo(ctx, txRolledBack)
	if c.state == txEscaped {
		return c.settleEscape(ctx)
	}
	c.note(semel.TrailReleased, "rolled back")
	return rolledBack(cause)
}

// undo undoes all that the handler did, for certain: a transaction that cannot
// be rolled back loses its connection, and never commits. The savepoint shows
// whether the transaction is still ours; if the session cannot be asked, its
// answers to the handler do.
func (c *txClaim) undo(ctx context.Context, as txState) {
	c.state = as
	conn := c.tx.Conn()
	pg := conn.PgConn()
	suspect := pg.TxStatus() == outside || c.gate.mayHaveEnded()
	defer c.giveBack(ctx)
	var err error
	switch {
	case conn.IsClosed() || pg.IsBusy():
		err = errors.New("postgres: the session cannot be asked")
	case c.joined:
		err = c.undoJoined(ctx)
	case pg.TxStatus() == outside:
		c.state = txEscaped
		return
	default:
		// In one message, if the savepoint is there; if it is not, the handler
		// has ended our transaction and begun another.
		b := &pgx.Batch{}
		b.Queue(undoWork)
		b.Queue("ROLLBACK")
		if c.store.config.Notify {
			c.store.queueNotify(b, c.attempt.Identity) // a transaction of its own
		}
		err = conn.SendBatch(ctx, b).Close()
	}
	if err != nil && (suspect || escaped(err)) {
		c.state = txEscaped
	}
	if err != nil && c.joined {
		_ = c.socket.Close() // the caller's transaction ends with it
	}
}

func (c *txClaim) undoJoined(ctx context.Context) error {
	if _, err := c.tx.Exec(ctx, undoClaim); err != nil {
		return err
	}
	_, err := c.tx.Exec(ctx, releaseClaim)
	return err
}

// settleEscape records that nobody knows what became of the handler's work, and
// returns the error of the claim from then on. The handler has given up the lock,
// and none is needed: a submit that has begun to execute meanwhile finds the
// record when it writes its own, and is rolled back.
func (c *txClaim) settleEscape(ctx context.Context) error {
	const cause = "the handler ended its transaction itself; what it had done may have been committed"
	s := c.store
	var fence any
	if c.fence != c.number {
		fence = int64(c.fence)
	}
	args := append(s.attemptArgs(c.attempt, c.digest), int64(c.number), fence, c.begunAt, int64(c.takeover), cause)
	write := func() error {
		if c.replaces {
			if _, err := s.pool.Exec(ctx, s.sql.removeExpired, c.digest); err != nil {
				return err
			}
		}
		return s.told(ctx, s.pool, c.attempt.Identity, s.sql.escape, args, func(row pgx.Row) error { return row.Scan(new(int64)) })
	}
	err := write()
	for isSerialization(err) && ctx.Err() == nil {
		err = write()
	}
	if errors.Is(err, pgx.ErrNoRows) { // it was recorded before, or another is in its place
		_, _, err = s.claimState(ctx, s.pool, c.args())
	}
	switch {
	case err == nil:
		c.state = txHeld
	case errors.Is(err, semel.ErrLostClaim):
		c.state = txReleased
		c.note(semel.TrailUnknown, cause)
	default:
		return fmt.Errorf("%w; it could not be recorded yet that the outcome is unknown: %w", errHandlerEnded, err)
	}
	return c.over()
}

// note adds a trail entry, after the answer, for a transaction that left
// nothing.
func (c *txClaim) note(kind semel.TrailKind, cause string) {
	id := c.attempt.Identity
	c.store.Note(semel.TrailEntry{
		Kind: kind, RecordID: c.RecordID(), Fence: c.fence, Tenant: id.Tenant, Actor: id.Actor, Operation: id.Operation,
		Key: id.Key, Origin: c.attempt.Origin, Cause: cause,
	})
}

// learn settles what an earlier call left open.
func (c *txClaim) learn(ctx context.Context) error {
	if c.state == txDoubtful {
		if err := c.learnCommit(ctx); err != nil {
			return err
		}
	}
	if c.state == txEscaped {
		return c.settleEscape(ctx)
	}
	return nil
}

// learnCommit finds out what became of a commit whose answer was lost: by a look
// at the primary, under the lock, when nobody can still be committing.
func (c *txClaim) learnCommit(ctx context.Context) error {
	s := c.store
	verdict := txDoubtful
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if err := c.awaitEnd(ctx, tx); err != nil {
			return err
		}
		state, expires, err := s.claimState(ctx, tx, c.args())
		if err == nil {
			if verdict, c.expires = txCommitted, expires; state != semel.StateCompleted {
				verdict = txEscaped // it was written first, and committed by the handler
			}
			return pgx.ErrTxClosed // any error: nothing is to be committed
		}
		if !errors.Is(err, semel.ErrLostClaim) {
			return err
		}
		_, err = s.find(ctx, tx, c.attempt.Identity)
		switch {
		case errors.Is(err, semel.ErrNotFound) && c.gate.mayHaveEnded():
			verdict = txEscaped
		case errors.Is(err, semel.ErrNotFound):
			verdict = txRolledBack
		case err == nil:
			verdict = txReleased // and someone else has settled it: the record answers
		}
		return err
	})
	if verdict == txDoubtful {
		return fmt.Errorf("%w: %w", errCommitOpen, err)
	}
	c.state = verdict
	return nil
}

// awaitEnd returns nil when the claim's transaction has certainly ended.
func (c *txClaim) awaitEnd(ctx context.Context, tx pgx.Tx) error {
	s := c.store
	if !s.config.NoAdvisoryLocks {
		var free bool
		err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", lockKey(c.digest)).Scan(&free)
		if err == nil && !free {
			err = errCommitOpen
		}
		return err
	}
	// Without locks: an insert of the identity waits for the other's end, and
	// is taken back.
	nested, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := nested.Exec(ctx, limitWait, milliseconds(s.config.LockTimeout)); err != nil {
		return err
	}
	waited := startWait()
	err = nested.QueryRow(ctx, s.sql.insertOpen, c.insertArgs()...).Scan(new(int64))
	if waited.gaveUp(err, s.config.LockTimeout) {
		return errCommitOpen
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return nested.Rollback(ctx)
}

// Release implements semel.Claim. It rolls back.
func (c *txClaim) Release(ctx context.Context) error {
	err := c.leave(ctx, txReleased, "")
	if errors.Is(err, semel.ErrRolledBack) {
		return nil // before; which is what is asked for
	}
	return err
}

// Hold implements semel.Claim. It rolls back, so nothing is unknown, unless the
// handler has ended the transaction itself.
func (c *txClaim) Hold(ctx context.Context, cause string) error {
	err := c.leave(ctx, txRolledBack, cause)
	switch {
	case err == nil:
		return rolledBack(errors.New(cause))
	case errors.Is(err, errHandlerEnded) && errors.Is(err, semel.ErrLostClaim):
		return nil // it is on record as unknown
	}
	return err
}

// leave rolls back a live claim.
func (c *txClaim) leave(ctx context.Context, as txState, cause string) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if err := c.learn(ctx); err != nil {
		return err
	}
	if c.state != txLive {
		return c.over()
	}
	// A handler that is still running loses its connection, so that its statement
	// ends.
	if err := c.shut(ctx, func() { _ = c.socket.Close() }); err != nil {
		return err
	}
	c.undo(ctx, as)
	if c.state == txEscaped {
		return c.settleEscape(ctx)
	}
	c.note(semel.TrailReleased, cause)
	return nil
}

// abandon ends the claim because its store is closed. Its connection goes back
// to the pool even when ctx has ended, or nobody could close that.
func (c *txClaim) abandon(ctx context.Context) {
	const cause = "the store was closed"
	if c.leave(ctx, txRolledBack, cause) == nil {
		return
	}
	_ = c.socket.Close() // whoever is still at it finds that out, and comes out
	undo, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	// It fails where the claim was settled meanwhile, or where the handler is
	// stuck in code of its own, in the middle of a COPY. That gives the
	// connection back when it is done.
	_ = c.leave(undo, txRolledBack, cause)
	c.sqlTxs.close()
}

// Renew implements semel.Claim. There is no lease to renew; it finds out early
// that the connection is gone, and tells the server that the owner is alive
// (Config.IdleTimeout).
func (c *txClaim) Renew(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.settling <- struct{}{}:
	default:
		return nil // being settled
	}
	defer c.unlock()
	if c.state != txLive {
		return semel.ErrLostClaim
	}
	if !c.gate.try() {
		return nil // the handler is at it, and hears of it itself
	}
	defer c.gate.storeLeaves()
	conn := c.tx.Conn()
	switch {
	case conn.IsClosed():
		return semel.ErrLostClaim
	case conn.PgConn().IsBusy():
		return nil
	case conn.PgConn().TxStatus() == outside:
		return fmt.Errorf("%w: %w", semel.ErrLostClaim, errHandlerEnded)
	}
	if err := conn.Ping(ctx); err != nil {
		if conn.IsClosed() {
			return semel.ErrLostClaim
		}
		return err
	}
	return nil
}
