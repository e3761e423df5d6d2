package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
)

var (
	errNested = errors.New("sqlite: a handler that works in a transaction of this store cannot begin another: it would wait for itself")
	errEnded  = errors.New("the handler's transaction is over: a statement failed with it, or ended it")
)

// Querier executes statements in the transaction of a handler's claim. The store
// commits the transaction together with the record. If a handler executes COMMIT
// or ROLLBACK itself, the transaction is rolled back and the submit reports that.
// Once the claim is settled, the methods fail with sql.ErrTxDone, and open rows
// are closed.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx returns the transaction in ctx, which is that of the handler's claim or of
// the message that it handles (see Inbox). The handler should use it for
// everything that it reads and changes. Foreign keys are enforced in it.
//
// SQLite itself rolls a transaction back after some errors, such as a write
// that was interrupted because its context ended. All later statements then
// fail, and the submit reports that the transaction was rolled back.
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
	store    *transactions
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
