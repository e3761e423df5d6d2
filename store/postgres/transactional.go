package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
)

const (
	// Savepoints. Before the claim's first statement, in a transaction that
	// the caller began; and before the handler's first statement.
	saveClaim      = "SAVEPOINT semel_claim"
	undoClaim      = "ROLLBACK TO SAVEPOINT semel_claim"
	releaseClaim   = "RELEASE SAVEPOINT semel_claim"
	saveWork       = "SAVEPOINT semel_work"
	undoWork       = "ROLLBACK TO SAVEPOINT semel_work"
	releaseWork    = "RELEASE SAVEPOINT semel_work"
	codeNoSave     = "3B001" // the savepoint is gone, so the transaction is another
	codeNoTx       = "25P01" // and here there is none
	codeLockWait   = "55P03"
	codeCancelled  = "57014"
	codeIdle       = "25P03" // ended while idle: not in the middle of a COMMIT
	codeNoDivision = "22012" // our own: the record was not written
	codeUnique     = "23505"

	constraintIdentity = "record_identity"

	// limitWait bounds the wait for a lock and keeps the setting it replaces,
	// restoreWait puts that back.
	limitWait = `SELECT set_config('semel.lock_timeout', current_setting('lock_timeout'), true),
		set_config('lock_timeout', $1, true)`
	restoreWait = `SELECT set_config('lock_timeout', current_setting('semel.lock_timeout'), true)`

	// unseenLease is the reported remaining lease of a claim that cannot be seen:
	// it is held for as long as its transaction, and its owner is alive.
	unseenLease = time.Second

	// undoTimeout bounds what is done after the caller's time.
	undoTimeout = time.Second
)

// errRace reports that another transaction came between two statements; begin
// again.
var errRace = errors.New("postgres: raced")

// errCommitOpen reports that the commit whose answer was lost may still be
// under way.
var errCommitOpen = errors.New("postgres: a commit whose answer was lost may still be under way")

type txState uint8

const (
	txLive       txState = iota
	txCommitted          // the record is durable, or in the joined transaction
	txReleased           // rolled back because the claim was released
	txRolledBack         // rolled back for another reason
	txDoubtful           // COMMIT was sent, its answer was lost
	txEscaped            // the handler ended the transaction itself, or may have
	txHeld               // and that is on record
)

// txClaim is a claim that lives in a transaction.
type txClaim struct {
	store    *Store
	attempt  semel.Attempt // its fingerprint is the record's
	digest   pgtype.UUID   // of its identity
	number   uint64        // of the record
	fence    uint64
	begunAt  time.Time
	takeover uint64 // the fence of the record that is taken over, or 0
	replaces bool   // an expired record is in the way
	first    bool   // the record was written first, in progress
	joined   bool   // the transaction is the caller's

	enqueued atomic.Bool // something, into the outbox
	gate     gate
	sqlTxs   sqlTxs
	settling chan struct{} // a lock that can be waited for with a context

	// Under settling.
	state   txState
	expires time.Time
	tx      pgx.Tx
	conn    *pgxpool.Conn // nil when joined, and once given back
	socket  net.Conn      // to cut off a handler that does not come out
}

func (s *Store) newTxClaim(a semel.Attempt) *txClaim {
	return &txClaim{store: s, attempt: a, digest: s.digest(a.Identity), settling: make(chan struct{}, 1)}
}

// writesFirst reports whether a look in the transaction is older than the lock, so
// that the record has to be written first.
func (s *Store) writesFirst() bool {
	return s.config.Isolation != pgx.ReadCommitted || s.config.NoAdvisoryLocks
}

func (s *Store) beginTx(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	for {
		c, err := s.beginOwn(ctx, a)
		switch {
		case (errors.Is(err, errRace) || isSerialization(err)) && ctx.Err() == nil:
			continue // nothing happened, and a new snapshot sees more
		case err != nil:
			return nil, err
		}
		return c, nil
	}
}

// beginOwn begins a transaction and claims the identity in it.
func (s *Store) beginOwn(ctx context.Context, a semel.Attempt) (_ *txClaim, err error) {
	c := s.newTxClaim(a)
	c.first = s.writesFirst()
	if c.conn, err = s.pool.Acquire(ctx); err != nil {
		return nil, err
	}
	c.socket = c.conn.Conn().PgConn().Conn()
	defer func() {
		if err != nil {
			c.giveBack(ctx)
		}
	}()

	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: s.config.Isolation, AccessMode: pgx.ReadWrite})
	s.queueLock(b, s.sql.lock, c.digest)
	b.Queue(s.sql.look, c.digest)
	if !c.first {
		b.Queue(saveWork)
	}
	br := c.conn.SendBatch(ctx, b)
	c.tx = br.Tx()
	if _, err := br.Exec(); err != nil {
		return nil, errors.Join(err, closed(br))
	}
	if err := c.look(ctx, br); err != nil {
		return nil, err
	}
	if c.first {
		if err := c.writeFirst(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.open[c] = struct{}{}
	return c, nil
}

// beginJoined claims the identity in a transaction that the caller began.
func (s *Store) beginJoined(ctx context.Context, a semel.Attempt, tx pgx.Tx) (_ *txClaim, err error) {
	c := s.newTxClaim(a)
	c.first, c.joined, c.tx = true, true, tx
	c.socket = tx.Conn().PgConn().Conn()
	b := &pgx.Batch{}
	b.Queue(saveClaim)
	s.queueLock(b, s.sql.lockJoined, c.digest)
	b.Queue(s.sql.look, c.digest)
	br := tx.SendBatch(ctx, b)
	if _, err := br.Exec(); err != nil {
		return nil, errors.Join(err, closed(br))
	}
	defer func() {
		if err != nil {
			_ = c.undoJoined(ctx) // err tells more, and nothing was changed
		}
	}()
	err = c.look(ctx, br)
	if err == nil {
		err = c.writeFirst(ctx)
	}
	if errors.Is(err, errRace) {
		// The record that was in the way is gone again, or is one that this
		// transaction cannot see.
		err = c.unseen()
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (s *Store) queueLock(b *pgx.Batch, sql string, digest pgtype.UUID) {
	if s.config.NoAdvisoryLocks {
		b.Queue(sql)
		return
	}
	b.Queue(sql, lockKey(digest))
}

// look reads the answers about the lock and the record, closes the batch, and
// returns nil when the identity can be had.
func (c *txClaim) look(ctx context.Context, br pgx.BatchResults) error {
	var (
		fence   *int64
		expired bool
	)
	if err := br.QueryRow().Scan(&fence, &c.begunAt, nil); err != nil {
		return errors.Join(err, closed(br))
	}
	found := true
	err := br.QueryRow().Scan(&expired)
	if errors.Is(err, pgx.ErrNoRows) {
		found, err = false, nil
	}
	if err != nil {
		return errors.Join(err, closed(br))
	}
	if err := br.Close(); err != nil {
		return err
	}
	if fence != nil {
		c.fence = uint64(*fence)
		c.number = c.fence
	}
	switch {
	case found && !expired:
		return c.meet(ctx, fence != nil)
	case fence == nil:
		return c.unseen()
	}
	c.replaces = found
	return nil
}

// meet looks at the record that is there. What is committed is so, whoever has the
// lock, and only who has it may take the record over.
func (c *txClaim) meet(ctx context.Context, locked bool) error {
	b := &pgx.Batch{}
	b.Queue(c.store.sql.find, c.digest)
	over := !c.joined && (!locked || c.attempt.Takeover == 0)
	if over {
		b.Queue("ROLLBACK")
	}
	br := c.tx.SendBatch(ctx, b)
	rec, err := c.store.scanRecord(br.QueryRow())
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && rec.expired:
		return errRace // it went, or ended, between the two looks
	case err != nil:
		return err
	}
	if err := rec.own(c.attempt.Identity); err != nil {
		return fmt.Errorf("postgres: begin: %w", err)
	}
	if over || !locked || c.attempt.Takeover != rec.Fence || !rec.unsettled() {
		return &semel.ConflictError{Record: rec.Record}
	}
	c.number, c.takeover = rec.number, rec.Fence
	c.attempt.Fingerprint = rec.Fingerprint
	return nil
}

// unseen is the answer when another transaction has the identity. It cannot be
// seen what for, so a mismatch is not told.
func (c *txClaim) unseen() error {
	return &semel.ConflictError{Record: semel.Record{
		Identity: c.attempt.Identity, State: semel.StateInProgress, Lease: unseenLease,
	}}
}

// closed closes a batch that has failed and whose error is known.
func closed(br pgx.BatchResults) error {
	_ = br.Close()
	return nil
}

// insertArgs are the values that both ways to insert have in common.
func (c *txClaim) insertArgs() []any {
	return append(c.store.attemptArgs(c.attempt, c.digest), int64(c.number), c.begunAt)
}

// takeoverArgs are those that both ways to take over have in common.
func (c *txClaim) takeoverArgs() []any {
	a := c.attempt
	return append(make([]any, 0, 20), int64(c.number), int64(c.takeover), uuid(a.Token), int64(c.fence), c.begunAt, a.Retention,
		orNull(a.Origin.RequestID), orNull(a.Origin.EventID), orNull(a.Origin.TraceID))
}

func (c *txClaim) args() []any { return claimArgs(c.number, c.fence, c.attempt.Token) }

// writeFirst inserts the record in progress, which makes others wait or fail.
func (c *txClaim) writeFirst(ctx context.Context) error {
	b := &pgx.Batch{}
	b.Queue(limitWait, milliseconds(c.store.config.LockTimeout))
	if c.replaces {
		b.Queue(c.store.sql.removeExpired, c.digest)
	}
	if c.takeover != 0 {
		b.Queue(c.store.sql.takeoverOpen, c.takeoverArgs()...)
	} else {
		b.Queue(c.store.sql.insertOpen, c.insertArgs()...)
	}
	b.Queue(restoreWait)
	b.Queue(saveWork)
	waited := startWait()
	br := c.tx.SendBatch(ctx, b)
	if _, err := br.Exec(); err != nil {
		return errors.Join(err, closed(br))
	}
	var insertErr error
	if c.replaces {
		_, insertErr = br.Exec()
	}
	if insertErr == nil {
		insertErr = br.QueryRow().Scan(new(int64))
	}
	err := br.Close()
	switch {
	case errors.Is(insertErr, pgx.ErrNoRows) && err == nil:
		return errRace
	case waited.gaveUp(insertErr, c.store.config.LockTimeout):
		return c.unseen()
	case insertErr != nil:
		return insertErr
	}
	return err
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt((int64(d)+int64(time.Millisecond)-1)/int64(time.Millisecond), 10)
}

// probeSeconds is the time between two of the four TCP probes that decide
// whether a silent host is dead.
func probeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64(d/(4*time.Second))), 10)
}

// giveBack gives the connection back to its pool, outside of a transaction or
// not at all: a connection that is still in one is closed, which ends it.
func (c *txClaim) giveBack(ctx context.Context) {
	if c.conn == nil {
		return
	}
	if conn := c.conn.Conn(); !conn.IsClosed() && !conn.PgConn().IsBusy() && conn.PgConn().TxStatus() != outside {
		_, _ = conn.Exec(ctx, "ROLLBACK") // or the pool closes it
	}
	c.conn.Release()
	c.conn = nil
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	delete(c.store.open, c)
}

// Context implements semel.Claim. See Tx.
func (c *txClaim) Context(ctx context.Context) context.Context {
	// A claim begun below joins only what WithTx names anew.
	ctx = context.WithValue(ctx, joinedTxKey{}, nil)
	return context.WithValue(ctx, claimTxKey{}, &handlerTx{Tx: c.tx, claim: c, gate: &c.gate, sql: &c.sqlTxs})
}

func (c *txClaim) RecordID() string    { return c.store.names.ID(c.number) }
func (c *txClaim) Fence() uint64       { return c.fence }
func (c *txClaim) Transactional() bool { return true }

// Joined implements semel.Joiner.
func (c *txClaim) Joined() bool { return c.joined }

func (c *txClaim) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.settling <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *txClaim) unlock() { <-c.settling }
