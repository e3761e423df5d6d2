package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel"
)

// transactions are those in which handlers work, one at a time: of claims where
// the store's mode is ModeTransactional, and of the inbox and of steps in either.
type transactions struct {
	*Store
	instance instance
	turn     chan struct{} // a lock that can be waited for with a context

	// Under turn.
	session  *session
	seq      uint64 // of the last committed audit entry, and
	position uint64 // its position
	fence    uint64 // the highest given out

	mu     sync.Mutex
	closed bool
	open   map[semel.Identity]*txClaim // also those that wait for the lock
}

func (s *transactions) init(store *Store) {
	s.Store, s.instance = store, newInstance()
	s.turn, s.open = make(chan struct{}, 1), make(map[semel.Identity]*txClaim)
}

// close rolls back claims that are open, once a statement under way has ended.
func (s *transactions) close() error {
	s.mu.Lock()
	s.closed = true
	var claims []*txClaim
	for _, c := range s.open {
		claims = append(claims, c)
	}
	s.mu.Unlock()
	var errs []error
	for _, c := range claims {
		if err := c.leave(context.Background(), txRolledBack, "the store was closed"); err != nil && !errors.Is(err, semel.ErrRolledBack) && !errors.Is(err, semel.ErrLostClaim) {
			errs = append(errs, err)
		}
	}
	s.turn <- struct{}{}
	if s.session != nil {
		errs = append(errs, s.session.close())
		s.session = nil
	}
	<-s.turn
	return errors.Join(errs...)
}

// session is the connection that claims use, one after the other. Its sql part
// is for handlers, and idle while the store's own statements run.
type session struct {
	db   *sql.DB
	sql  *sql.Conn
	conn *conn
	// committing is set while the store commits. Any other commit, by the
	// handler's own COMMIT or a statement after it, becomes a rollback.
	committing bool
}

func (s *session) close() error {
	s.conn.driver.RegisterCommitHook(nil)
	return errors.Join(s.sql.Close(), s.db.Close())
}

// inTransaction reports whether a transaction is open: none can be begun in it.
func (c *conn) inTransaction() (bool, error) {
	_, err := c.exec("BEGIN")
	if err == nil {
		_, err = c.exec("ROLLBACK") // of nothing
		return false, err
	}
	if code(err) == sqlite3.SQLITE_ERROR {
		return true, nil
	}
	return false, err
}

// take waits for the turn, at most for BusyTimeout.
func (s *transactions) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := time.NewTimer(s.config.BusyTimeout)
	defer t.Stop()
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-t.C:
		return fmt.Errorf("%w for %v", ErrBusy, s.config.BusyTimeout)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	case <-s.stop:
		return ErrClosed
	}
}

// lock begins a transaction in the session, which it opens if there is none.
// It is called with the turn taken.
func (s *transactions) lock(ctx context.Context) (*tx, error) {
	if err := s.files.check(); err != nil {
		return nil, err
	}
	fresh := false
	err := patient(ctx, s.config.BusyTimeout, func() error {
		if s.session == nil {
			fresh = true
			if err := s.connect(ctx); err != nil {
				return err
			}
		}
		return s.session.conn.begin()
	})
	if err != nil {
		switch {
		case errors.Is(err, ErrBusy):
			return nil, err
		case isBusy(err) || ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ErrBusy, err)
		}
		s.drop()
		return nil, err
	}
	now := time.Now()
	t := &tx{store: s.Store, conn: s.session.conn, instance: s.instance, time: now, now: now.UnixMicro()}
	t.counters, err = t.conn.counters()
	if err == nil && fresh { // the last commit of the session before may have failed, or not
		err = t.query(selectLastSeq,
			func(r *row) { s.seq = max(s.seq, uint64(r.int())) }, int64(s.position), int64(s.instance))
	}
	if err != nil {
		s.drop()
		return nil, err
	}
	t.seq = s.seq
	t.fence = max(t.fence, s.fence)
	return t, nil
}

func (s *transactions) connect(ctx context.Context) error {
	c, err := s.dial(ctx, s.files.path, "PRAGMA foreign_keys = 1;", true)
	if err != nil {
		return err
	}
	db := sql.OpenDB(&handlerConn{connection: c.driver, conn: c})
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return errors.Join(err, c.close(), db.Close())
	}
	session := &session{db: db, sql: conn, conn: c}
	c.driver.RegisterCommitHook(func() int32 {
		if session.committing {
			return 0
		}
		return 1
	})
	s.session = session
	return nil
}

// drop gives up a session that is in doubt; its transaction ends with it.
func (s *transactions) drop() {
	if s.session != nil {
		_ = s.session.close() // the errors of a broken connection are known
		s.session = nil
	}
}

// rollback takes back what the session's transaction has done, for certain.
func (s *transactions) rollback() {
	// After some errors SQLite has rolled back already, and says so.
	_, _ = s.session.conn.exec("ROLLBACK")
	if in, err := s.session.conn.inTransaction(); in || err != nil {
		s.drop()
	}
}

// begin claims an identity with a transaction.
func (s *transactions) begin(ctx context.Context, a semel.Attempt) (_ semel.Claim, err error) {
	if outer, ok := ctx.Value(handlerKey{}).(*handler); ok && outer.store == s {
		return nil, errNested
	}
	// Who only wants to know the result does not wait for the lock.
	rec, found, err := s.find(ctx, &a.Identity, s.digest(a.Identity))
	if err != nil {
		return nil, err
	}
	if found && (a.Takeover == 0 || a.Takeover != rec.Fence) {
		return nil, &rec.conflict
	}

	c := &txClaim{store: s, attempt: a, settling: make(chan struct{}, 1)}
	c.settling <- struct{}{} // so that Close waits for what becomes of it
	if err := s.enter(c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.state = txReleased
			s.leave(c)
		}
		<-c.settling
	}()
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	if err := c.begin(ctx); err != nil {
		<-s.turn
		return nil, err
	}
	return c, nil
}

// unseenLease is the reported remaining lease of a claim that has no lease.
const unseenLease = time.Second

// enter registers c as the owner of its identity.
func (s *transactions) enter(c *txClaim) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if other := s.open[c.attempt.Identity]; other != nil {
		r := semel.Record{Identity: c.attempt.Identity, State: semel.StateInProgress, Lease: unseenLease}
		if other.granted {
			r.Fingerprint = other.attempt.Fingerprint
		}
		return &semel.ConflictError{Record: r}
	}
	s.open[c.attempt.Identity] = c
	return nil
}

func (s *transactions) leave(c *txClaim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[c.attempt.Identity] == c {
		delete(s.open, c.attempt.Identity)
	}
}

type txState uint8

const (
	txLive       txState = iota
	txCommitted          // the record is durable
	txReleased           // rolled back because the claim was released, or never granted
	txRolledBack         // rolled back for another reason
	txDoubtful           // it is not known whether the transaction was committed
)

// txClaim is a claim that is a transaction. It has the store's turn while it is
// live.
type txClaim struct {
	store    *transactions
	attempt  semel.Attempt
	settling chan struct{} // a lock that can be waited for with a context
	granted  bool          // under store.mu
	handler  handler       // set before the claim is granted

	// Under settling.
	state    txState
	record   *claim
	tx       *tx
	before   counters // of tx, before the claim
	draining chan struct{}
}

// begin claims the identity in a transaction.
func (c *txClaim) begin(ctx context.Context) error {
	s := c.store
	t, err := s.lock(ctx)
	if err != nil {
		return err
	}
	c.tx, c.before = t, t.counters
	if _, err = t.exec("SAVEPOINT semel_claim"); err == nil {
		c.record, err = t.begin(&c.attempt, s.digest(c.attempt.Identity))
	}
	if err == nil {
		_, err = t.exec("SAVEPOINT semel_work")
	}
	if err == nil {
		// Not with ctx: the transaction does not end with Begin's caller.
		c.handler.store = s
		c.handler.work, err = s.session.sql.BeginTx(context.Background(), nil)
	}
	if err != nil {
		s.rollback()
		if !isConflict(err) {
			s.drop()
		}
		return err
	}
	s.fence = max(s.fence, c.record.fence)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.granted = true
	return nil
}

// Context implements semel.Claim. See Tx.
func (c *txClaim) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, handlerKey{}, &c.handler)
}

func (c *txClaim) RecordID() string    { return c.record.RecordID() }
func (c *txClaim) Fence() uint64       { return c.record.fence }
func (c *txClaim) Transactional() bool { return true }

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

// drain keeps the handler from the transaction, for good, and waits until a
// statement under way has ended.
func (c *txClaim) drain(ctx context.Context) error {
	if c.draining == nil {
		c.draining = make(chan struct{})
		go func() {
			defer close(c.draining)
			_ = c.handler.work.Rollback() // which rolls nothing back: see handlerConn
		}()
	}
	select {
	case <-c.draining:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sqlite: a statement of the handler is still under way: %w", ctx.Err())
	}
}

// end gives back the turn and the identity. Others learn from the record what
// became of a claim in doubt.
func (c *txClaim) end(as txState) {
	c.state = as
	c.store.leave(c)
	<-c.store.turn
}
