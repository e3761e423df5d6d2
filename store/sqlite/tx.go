package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel"
)

var (
	errNested = errors.New("sqlite: a handler that works in a transaction of this store cannot begin another: it would wait for itself")
	errEnded  = errors.New("the handler's transaction is over: a statement failed with it, or ended it")
)

// Querier is what a handler does in the transaction of its claim. It cannot commit
// it: the store does, with the record. A COMMIT among a handler's statements fails
// and rolls back, as ROLLBACK does, and the submit is answered so. Once
// the claim is settled its methods fail with sql.ErrTxDone, and rows left open
// are closed.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx returns the transaction of the claim that a handler works under, or of the
// message that it handles (Inbox), for all that the handler reads and changes.
// Foreign keys are enforced in it.
//
// SQLite itself rolls a transaction back after some errors, among them a write
// that was interrupted because its context ended. Then every later statement
// fails, and the submit is answered as rolled back.
func Tx(ctx context.Context) (Querier, bool) {
	h, ok := ctx.Value(handlerKey{}).(*handler)
	if !ok {
		return nil, false
	}
	return querier{h.work}, true
}

type handlerKey struct{}

// handler is what a handler's context carries.
type handler struct {
	store    *TxStore
	work     *sql.Tx     // ends with the handler, and the transaction goes on: see handlerConn
	enqueued atomic.Bool // messages, to the outbox
}

// querier keeps Commit and Rollback from handlers.
type querier struct{ tx *sql.Tx }

func (q querier) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return q.tx.ExecContext(ctx, query, args...)
}

func (q querier) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return q.tx.PrepareContext(ctx, query)
}

func (q querier) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return q.tx.QueryContext(ctx, query, args...)
}

func (q querier) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return q.tx.QueryRowContext(ctx, query, args...)
}

// TxStore is a Store whose claims are transactions: the record, the audit
// entry, and all that the handler changes through Tx are committed together. A
// process that dies before that commit has changed nothing, so no outcome is
// ever unknown. Handlers must have no effects elsewhere.
//
// A claim holds the write lock of the whole file, from Begin to the end of the
// handler. So one handler is at work at a time, whatever the number of
// processes, and the others wait: at most for Config.BusyTimeout, then Begin
// fails with ErrBusy. Leased claims, sweeps and the audit trail's other entries
// wait as well. Keep handlers short. Replays and other reads do not wait.
//
// While a claim is open, a submit of the same identity through the same TxStore
// is told that it is in progress. Other processes cannot see it: they wait for
// the lock like everyone else, and find the record once it is committed.
type TxStore struct {
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

// Transactional returns a view on s whose claims are transactions. Call it once
// for a store, and close the view instead of the store.
func (s *Store) Transactional() *TxStore {
	return &TxStore{
		Store: s, instance: newInstance(),
		turn: make(chan struct{}, 1), open: make(map[semel.Identity]*txClaim),
	}
}

// Close rolls back claims that are open, once a statement under way has ended,
// and closes the store.
func (s *TxStore) Close() error {
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
	return errors.Join(append(errs, s.Store.Close())...)
}

// session is the connection that claims use, one after the other. Its sql part
// is for handlers, and idle while the store's own statements run.
type session struct {
	db   *sql.DB
	sql  *sql.Conn
	conn *conn
	// committing is set while the store commits. What is committed otherwise,
	// the handler's own COMMIT or a statement behind it, becomes a rollback.
	committing bool
}

func (s *session) close() error {
	s.conn.driver.RegisterCommitHook(nil)
	return errors.Join(s.sql.Close(), s.db.Close())
}

// handlerConn is the session's connection as database/sql knows it.
type handlerConn struct {
	connection
	conn *conn
}

// Connect and Driver implement driver.Connector.
func (h *handlerConn) Connect(context.Context) (driver.Conn, error) { return h, nil }
func (h *handlerConn) Driver() driver.Driver                        { return nil }

func (h *handlerConn) Close() error { return h.conn.close() }

// inside fails where the claim's transaction is over: what a handler did then
// would be committed by itself.
func (h *handlerConn) inside() error {
	in, err := h.conn.inTransaction()
	if err == nil && !in {
		err = errEnded
	}
	return err
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

// BeginTx is called once for each claim, whose transaction has begun.
func (h *handlerConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return h, nil
}

// Commit and Rollback are called when database/sql is done with the handler's
// statements and rows. The transaction goes on.
func (h *handlerConn) Commit() error   { return nil }
func (h *handlerConn) Rollback() error { return nil }

func (h *handlerConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := h.inside(); err != nil {
		return nil, err
	}
	return h.connection.ExecContext(ctx, query, args)
}

func (h *handlerConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := h.inside(); err != nil {
		return nil, err
	}
	return h.connection.QueryContext(ctx, query, args)
}

func (h *handlerConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s, err := h.connection.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	st, ok := s.(statement)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the driver's statement is an unexpected %T", s), s.Close())
	}
	return &handlerStmt{st, h}, nil
}

// handlerStmt is a statement that a handler has prepared.
type handlerStmt struct {
	statement
	h *handlerConn
}

func (s *handlerStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.h.inside(); err != nil {
		return nil, err
	}
	return s.statement.ExecContext(ctx, args)
}

func (s *handlerStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.h.inside(); err != nil {
		return nil, err
	}
	return s.statement.QueryContext(ctx, args)
}

// take waits for the turn, at most for BusyTimeout.
func (s *TxStore) take(ctx context.Context) error {
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
func (s *TxStore) lock(ctx context.Context) (*tx, error) {
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

func (s *TxStore) connect(ctx context.Context) error {
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
func (s *TxStore) drop() {
	if s.session != nil {
		_ = s.session.close() // the errors of a broken connection are known
		s.session = nil
	}
}

// rollback takes back what the session's transaction has done, for certain.
func (s *TxStore) rollback() {
	// After some errors SQLite has rolled back already, and says so.
	_, _ = s.session.conn.exec("ROLLBACK")
	if in, err := s.session.conn.inTransaction(); in || err != nil {
		s.drop()
	}
}

// commit writes t's counters and commits it.
func (s *TxStore) commit(t *tx) error {
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

// Begin implements semel.Store.
func (s *TxStore) Begin(ctx context.Context, a semel.Attempt) (_ semel.Claim, err error) {
	if err := errors.Join(
		a.Identity.Validate(),
		checkName("fingerprint scheme", a.Fingerprint.Scheme, true),
	); err != nil {
		return nil, fmt.Errorf("sqlite: begin: %w", err)
	}
	if outer, ok := ctx.Value(handlerKey{}).(*handler); ok && outer.store == s {
		return nil, errNested
	}
	a.Origin = cutOrigin(a.Origin)
	// Who only wants to know the result does not wait for the lock.
	rec, found, err := s.find(ctx, a.Identity, s.digest(a.Identity))
	if err != nil {
		return nil, err
	}
	if found && (a.Takeover == 0 || a.Takeover != rec.Fence) {
		return nil, &semel.ConflictError{Record: rec.Record}
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

// unseenLease is what is told to be left of a claim that has no lease.
const unseenLease = time.Second

// enter registers c as the one who is at its identity.
func (s *TxStore) enter(c *txClaim) error {
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

func (s *TxStore) leave(c *txClaim) {
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
	store    *TxStore
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

// end gives the turn back, and the identity with it: the record tells others
// what became of a claim in doubt.
func (c *txClaim) end(as txState) {
	c.state = as
	c.store.leave(c)
	<-c.store.turn
}

func rolledBack(cause error) error { return fmt.Errorf("%w: %w", semel.ErrRolledBack, cause) }

// over is the answer of a claim that is settled otherwise.
func (c *txClaim) over() error {
	if c.state == txRolledBack {
		return semel.ErrRolledBack
	}
	return semel.ErrLostClaim
}

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
	r.Label = cut(r.Label)
	expires, err = c.record.complete(t, r, body)
	if err == nil {
		err = s.commit(t)
	}
	if err == nil {
		c.end(txCommitted)
		s.known.add(s.digest(c.attempt.Identity))
		if c.handler.enqueued.Load() {
			s.hints.send()
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
			return unreadable(ctx, err), lost
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

// forget commits that the claim came to nothing: its fence is used up, and the
// trail tells of it.
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
	return c.leave(ctx, txRolledBack, cut(cause))
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
