package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/storekit"
)

// Inbox is the inbox in a store's schema. It implements inbox.Store. A handler's
// transaction is the one that Tx and SQLTx return and that Enqueue uses. In both modes
// it has the store's Isolation, LockTimeout, IdleTimeout and PeerTimeout, so a handler
// must send a statement at least once per IdleTimeout.
//
// If another open transaction has recorded an id, Transact waits up to
// LockTimeout and then fails with inbox.ErrInProgress. The clock is the server's.
//
// The store's Close does not end running transactions. The pool's Close waits
// for them.
type Inbox struct {
	store *Store
	sql   inboxStatements
}

var _ inbox.Store = (*Inbox)(nil)

type inboxStatements struct{ receive, receiveJSON, seen, sweep, count string }

// Inbox returns the inbox in the store's schema.
func (s *Store) Inbox() *Inbox {
	q := func(sql string) string { return in(s.config.Schema, sql) }
	return &Inbox{s, inboxStatements{
		receive:     q(fmt.Sprintf(sqlReceive, "unnest($2::text[])")),
		receiveJSON: q(fmt.Sprintf(sqlReceive, "json_array_elements_text($2::json)")),
		seen:        q(sqlSeen), sweep: q(sqlSweepInbox), count: q(sqlCountInbox),
	}}
}

const (
	// sqlReceive inserts in one order, whoever calls: so no two wait for each other.
	sqlReceive = `
		INSERT INTO {s}.inbox (consumer, id) SELECT $1, id FROM %s AS id ORDER BY id COLLATE "C"
		ON CONFLICT (consumer, id) DO NOTHING RETURNING id`
	sqlSeen       = `SELECT id FROM {s}.inbox WHERE consumer = $1 AND id = ANY ($2)`
	sqlSweepInbox = `
		DELETE FROM {s}.inbox WHERE consumer = $2 AND id = ANY (ARRAY(
			SELECT id FROM {s}.inbox WHERE consumer = $2 AND at < (SELECT clock_timestamp()) - $3::interval
			ORDER BY at LIMIT $1 FOR UPDATE SKIP LOCKED))`
	sqlCountInbox = `SELECT count(*) FROM (SELECT FROM {s}.inbox WHERE consumer = $1 LIMIT $2) AS found`
)

// commitTimeout bounds the commit of what a handler has done, whatever has become
// of its context.
const commitTimeout = 10 * time.Second

// Transact implements inbox.Store.
func (b *Inbox) Transact(ctx context.Context, consumer string, ids []string, work func(context.Context, []bool) error) error {
	c, first, err := again2(ctx, b.store, func() (*txClaim, []bool, error) { return b.begin(ctx, consumer, ids) })
	if c == nil {
		return err
	}
	return c.transact(ctx, func(ctx context.Context) error { return work(ctx, first) }).As(inbox.ErrRolledBack, inbox.ErrUnknown)
}

// begin begins a transaction and records ids in it. Where none is first it returns
// no transaction.
func (b *Inbox) begin(ctx context.Context, consumer string, ids []string) (_ *txClaim, first []bool, err error) {
	c, recorded, err := b.store.beginWork(ctx, b.sql.receive, consumer, ids)
	switch {
	case errors.Is(err, errWaited):
		return nil, nil, fmt.Errorf("%w: %w", inbox.ErrInProgress, err)
	case err != nil:
		return nil, nil, fmt.Errorf("postgres: inbox: %w", err)
	case len(recorded) == 0:
		c.unused(ctx)
		return nil, nil, nil
	}
	return c, inbox.First(ids, recorded), nil
}

// errWaited: another transaction holds what the first statement of a handler's wants.
var errWaited = errors.New("waited for another transaction for as long as the LockTimeout")

// beginWork begins a transaction for a handler, whose first statement returns texts.
func (s *Store) beginWork(ctx context.Context, first string, args ...any) (_ *txClaim, texts []string, err error) {
	c := &txClaim{store: s}
	if c.conn, err = s.pool.Acquire(ctx); err != nil {
		return nil, nil, err
	}
	c.socket = c.conn.Conn().PgConn().Conn()
	defer func() {
		if err != nil {
			c.unused(ctx)
		}
	}()
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: s.config.Isolation, AccessMode: pgx.ReadWrite})
	batch.Queue(s.sql.beginInbox)
	batch.Queue(first, args...)
	batch.Queue(restoreWait)
	batch.Queue(saveWork)
	waited := startWait()
	br := c.conn.SendBatch(ctx, batch)
	c.tx = br.Tx()
	texts, err = func() ([]string, error) {
		for range 2 {
			if _, err := br.Exec(); err != nil {
				return nil, err
			}
		}
		rows, _ := br.Query() // its error is told by CollectRows
		return pgx.CollectRows(rows, pgx.RowTo[string])
	}()
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	if waited.gaveUp(err, s.config.LockTimeout) {
		err = fmt.Errorf("%w: %w", errWaited, err)
	}
	return c, texts, err
}

// unused ends a transaction that no handler was called in.
func (c *txClaim) unused(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	c.giveBack(ctx)
}

// transact calls work in the transaction that beginWork has begun, and commits it.
func (c *txClaim) transact(ctx context.Context, work func(context.Context) error) (err *storekit.TxError) {
	ended := false
	defer func() {
		if ended {
			return
		}
		if rerr := c.rollBack(context.WithoutCancel(ctx)); rerr != nil { // also where work panics
			cause := rerr
			if err != nil {
				cause = errors.Join(rerr, err.Err)
			}
			err = &storekit.TxError{Class: storekit.TxInDoubt, Err: cause}
		}
	}()
	if err := work(c.Context(ctx)); err != nil {
		return &storekit.TxError{Class: storekit.TxFailed, Err: err}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := c.shut(ctx, nil); err != nil {
		return &storekit.TxError{Class: storekit.TxRefused, Err: fmt.Errorf("the handler has left a statement under way: %w", err)}
	}
	refused := func(why string) *storekit.TxError {
		return &storekit.TxError{Class: storekit.TxRefused, Err: errors.New(why)}
	}
	pg := c.tx.Conn().PgConn()
	switch {
	case pg.IsClosed():
		return refused("the connection is gone")
	case pg.IsBusy():
		return refused("the handler left rows or a batch open")
	case pg.TxStatus() == 'E':
		return refused("a statement of the handler failed, and with it the transaction")
	}
	batch := &pgx.Batch{}
	batch.Queue(releaseWork) // fails if this is no longer the transaction we began
	batch.Queue("COMMIT")
	br := c.tx.SendBatch(ctx, batch)
	var tag pgconn.CommandTag
	_, cerr := br.Exec()
	if cerr == nil {
		tag, cerr = br.Exec()
	}
	if err := br.Close(); cerr == nil {
		cerr = err
	}
	if escaped(cerr) {
		return &storekit.TxError{Class: storekit.TxInDoubt, Err: errHandlerEnded}
	}
	// The savepoint was there, so the transaction was ours, and it is over or about
	// to be.
	ended = true
	defer c.giveBack(ctx)
	switch {
	case cerr == nil && tag.String() == "ROLLBACK":
		return refused("COMMIT was answered with ROLLBACK")
	case cerr == nil:
		if c.enqueued.Load() {
			c.store.hints.Send()
		}
		return nil
	case certain(cerr, pg):
		return &storekit.TxError{Class: storekit.TxRefused, Err: cerr}
	}
	return &storekit.TxError{Class: storekit.TxInDoubt, Err: cerr}
}

// again2 is again for what returns two values.
func again2[A, B any](ctx context.Context, s *Store, fn func() (A, B, error)) (a A, b B, err error) {
	type both struct {
		a A
		b B
	}
	v, err := again(ctx, s, func() (both, error) {
		a, b, err := fn()
		return both{a, b}, err
	})
	return v.a, v.b, err
}

// rollBack takes back what the handler of a message did. It returns an error if the
// handler may have ended the transaction, and committed its work.
func (c *txClaim) rollBack(ctx context.Context) error {
	// A handler that is still running loses the connection, and so returns.
	_ = c.shut(ctx, func() { _ = c.socket.Close() }) // fails only with ctx, which does not end
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	defer c.giveBack(ctx)
	pg := c.tx.Conn().PgConn()
	suspect := c.gate.mayHaveEnded()
	if !pg.IsClosed() && !pg.IsBusy() {
		batch := &pgx.Batch{}
		batch.Queue(undoWork)
		batch.Queue("ROLLBACK")
		err := c.tx.Conn().SendBatch(ctx, batch).Close()
		suspect = escaped(err) || suspect && err != nil
	}
	if suspect {
		return errHandlerEnded
	}
	return nil
}

// Receive records ids for a consumer in the transaction in ctx, which is that of
// the handler's claim or of another message. For each id it reports whether it was
// not on record; the caller must handle those messages in the same transaction. It
// waits for other transactions with the same id. It fails with ErrNoTransaction if
// ctx carries no transaction.
func (b *Inbox) Receive(ctx context.Context, consumer string, ids ...string) (first []bool, err error) {
	tx, ok := Tx(ctx)
	if !ok {
		return nil, ErrNoTransaction
	}
	return b.ReceiveTx(ctx, tx, consumer, ids...)
}

// ReceiveTx is like Receive in a transaction of the caller in the store's database.
// At repeatable read and above it fails with SQLSTATE 40001 if an id was recorded
// since the transaction began. If it fails, roll the transaction back.
func (b *Inbox) ReceiveTx(ctx context.Context, tx pgx.Tx, consumer string, ids ...string) (first []bool, err error) {
	if err := inbox.Check(consumer, ids...); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return []bool{}, nil
	}
	rows, _ := tx.Query(ctx, b.sql.receive, consumer, ids) // its error is told by CollectRows
	recorded, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("postgres: inbox: %w", err)
	}
	return inbox.First(ids, recorded), nil
}

// ReceiveSQL is like ReceiveTx for a transaction of database/sql, with any
// driver.
func (b *Inbox) ReceiveSQL(ctx context.Context, tx *sql.Tx, consumer string, ids ...string) (first []bool, err error) {
	if err := inbox.Check(consumer, ids...); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return []bool{}, nil
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, b.sql.receiveJSON, consumer, string(list))
	if err != nil {
		return nil, fmt.Errorf("postgres: inbox: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var recorded []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		recorded = append(recorded, id)
	}
	return inbox.First(ids, recorded), rows.Err()
}

// Seen implements inbox.Store.
func (b *Inbox) Seen(ctx context.Context, consumer string, ids []string) ([]bool, error) {
	found, err := again(ctx, b.store, func() ([]string, error) {
		rows, _ := b.store.pool.Query(ctx, b.sql.seen, consumer, ids) // its error is told by CollectRows
		return pgx.CollectRows(rows, pgx.RowTo[string])
	})
	if err != nil {
		return nil, fmt.Errorf("postgres: inbox: %w", err)
	}
	return inbox.First(ids, found), nil
}

// Sweep implements inbox.Store. If it fails halfway, it returns the number
// removed so far along with the error.
func (b *Inbox) Sweep(ctx context.Context, consumer string, retention time.Duration, limit int) (removed int, err error) {
	for more := true; more && removed < limit; {
		rows := min(sweepRows, limit-removed)
		n, err := again(ctx, b.store, func() (int, error) {
			tag, err := b.store.pool.Exec(ctx, b.sql.sweep, rows, consumer, whole(retention))
			return int(tag.RowsAffected()), err
		})
		if err != nil {
			return removed, fmt.Errorf("postgres: inbox: %w", err)
		}
		removed += n
		more = n > 0
	}
	return removed, nil
}

// Count implements inbox.Store.
func (b *Inbox) Count(ctx context.Context, consumer string, limit int) (int, error) {
	return again(ctx, b.store, func() (n int, err error) {
		err = b.store.pool.QueryRow(ctx, b.sql.count, consumer, limit).Scan(&n)
		return n, err
	})
}
