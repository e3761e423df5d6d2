package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/storekit"
)

// Inbox is the inbox in a store's file. It implements inbox.Store. A handler's
// transaction is the one that Tx returns and that Enqueue uses. The inbox ends with
// the store, whose Close waits for running handlers.
//
// Transact holds the write lock of the whole file, as a transactional claim does, so
// only one handler runs at a time. The messages of a batch share one sync of the disk.
// If the lock cannot be acquired, Transact fails with ErrBusy: another handler holds it,
// for the same message or another. Reads do not wait. The clock is the host's. If it is
// set back, ids recorded before are kept longer by that time.
type Inbox struct{ store *Store }

var _ inbox.Store = (*Inbox)(nil)

// Inbox returns the inbox in the store's file.
func (s *Store) Inbox() *Inbox { return &Inbox{s} }

const (
	insertReceived = "INSERT INTO inbox (consumer, id, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
	// Without WHERE the parser takes ON for that of a join.
	insertAllReceived = `
		INSERT INTO inbox (consumer, id, at) SELECT ?, value, ? FROM json_each(?) WHERE true
		ON CONFLICT DO NOTHING RETURNING id`
	insertReceipts = "INSERT INTO inbox (consumer, id) VALUES "
	receivedAtOnce = 100 // ids in a statement
	selectReceived = "SELECT 1 FROM inbox WHERE consumer = ? AND id = ?"
	deleteReceived = `
		DELETE FROM inbox WHERE consumer = ?1 AND id IN (
			SELECT id FROM inbox WHERE consumer = ?1 AND at < ?2 ORDER BY at LIMIT 0 + ?3)`
	countReceived = "SELECT count(*) FROM (SELECT 1 FROM inbox WHERE consumer = ? LIMIT 0 + ?)"
)

// Transact implements inbox.Store.
func (b *Inbox) Transact(ctx context.Context, consumer string, ids []string, work func(context.Context, []bool) error) error {
	var first []bool
	return b.store.txs.transact(ctx, func(t *tx) (more bool, err error) {
		first, err = t.receive(consumer, ids)
		return slices.Contains(first, true), err
	}, func(ctx context.Context, _ *handler) error { return work(ctx, first) }).As(inbox.ErrRolledBack, inbox.ErrUnknown)
}

// transact calls first and work in a transaction, and commits it. If first says that
// there is nothing to do, work is not called and nothing is written.
func (s *transactions) transact(ctx context.Context, first func(*tx) (more bool, err error), work func(context.Context, *handler) error) *storekit.TxError {
	failed := func(err error) *storekit.TxError { return &storekit.TxError{Class: storekit.TxFailed, Err: err} }
	if outer, ok := ctx.Value(handlerKey{}).(*handler); ok && outer.store == s {
		return failed(errNested)
	}
	if err := s.take(ctx); err != nil {
		return failed(err)
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return failed(ErrClosed)
	}
	t, err := s.lock(ctx)
	if err != nil {
		return failed(err)
	}
	ended := false
	defer func() {
		if !ended { // also where work panics
			s.rollback()
		}
	}()
	more, err := first(t)
	if err != nil {
		return failed(fmt.Errorf("sqlite: begin: %w", err))
	}
	if !more {
		return nil
	}
	if _, err := t.exec("SAVEPOINT semel_work"); err != nil {
		return failed(fmt.Errorf("sqlite: begin: %w", err))
	}
	h := &handler{store: s}
	// Not with ctx: the transaction does not end with it.
	if h.work, err = s.session.sql.BeginTx(context.Background(), nil); err != nil {
		return failed(fmt.Errorf("sqlite: begin: %w", err))
	}
	err = func() error {
		// Waits for a statement that work has left under way; it ends with its context.
		defer func() { _ = h.work.Rollback() }() // which rolls nothing back: see handlerConn
		return work(context.WithValue(ctx, handlerKey{}, h), h)
	}()
	if err != nil {
		return failed(err)
	}
	in, err := t.conn.inTransaction()
	if err == nil && in {
		_, err = t.conn.exec("RELEASE semel_work")
	}
	if err == nil && !in {
		err = errEnded
	}
	if err != nil {
		return &storekit.TxError{Class: storekit.TxRefused, Err: err}
	}
	s.session.committing = true
	_, err = t.conn.exec("COMMIT")
	s.session.committing = false
	switch {
	case err == nil:
		ended = true
		if h.enqueued.Load() {
			s.hints.Send()
		}
		return nil
	case code(err)&0xff == sqlite3.SQLITE_CONSTRAINT:
		return &storekit.TxError{Class: storekit.TxRefused, Err: err}
	}
	// It may be in the log all the same, for a recovery to find.
	ended = true
	s.drop()
	return &storekit.TxError{Class: storekit.TxInDoubt, Err: err}
}

// receive records ids, all in one statement, and reports which were not on record.
func (t *tx) receive(consumer string, ids []string) ([]bool, error) {
	if len(ids) == 1 {
		n, err := t.exec(insertReceived, consumer, ids[0], t.now)
		return []bool{n == 1}, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	recorded := make([]string, 0, len(ids))
	err = t.query(insertAllReceived, func(r *row) { recorded = append(recorded, r.text()) }, consumer, t.now, string(list))
	return inbox.First(ids, recorded), err
}

// Receive records ids for a consumer in the transaction in ctx, which is that of
// the handler's claim or of another message. For each id it reports whether it was
// not on record; the caller must handle those messages in the same transaction. It
// fails with ErrNoTransaction if ctx carries no transaction.
func (b *Inbox) Receive(ctx context.Context, consumer string, ids ...string) (first []bool, err error) {
	h, ok := ctx.Value(handlerKey{}).(*handler)
	if !ok {
		return nil, ErrNoTransaction
	}
	return b.ReceiveTx(ctx, h.work, consumer, ids...)
}

// ReceiveTx is like Receive in a transaction of the caller on the store's file,
// which should begin with BEGIN IMMEDIATE. If it fails, roll the transaction back.
func (b *Inbox) ReceiveTx(ctx context.Context, tx *sql.Tx, consumer string, ids ...string) (first []bool, err error) {
	if err := inbox.Check(consumer, ids...); err != nil {
		return nil, err
	}
	var args []any
	recorded := make([]string, 0, len(ids))
	for left := ids; len(left) > 0; {
		some := left[:min(len(left), receivedAtOnce)]
		left = left[len(some):]
		args = args[:0]
		for _, id := range some {
			args = append(args, consumer, id)
		}
		query := insertReceipts + "(?, ?)" + strings.Repeat(", (?, ?)", len(some)-1) + " ON CONFLICT DO NOTHING RETURNING id"
		if recorded, err = collectIDs(ctx, tx, recorded, query, args); err != nil {
			return nil, fmt.Errorf("sqlite: inbox: %w", err)
		}
	}
	return inbox.First(ids, recorded), nil
}

func collectIDs(ctx context.Context, tx *sql.Tx, to []string, query string, args []any) (_ []string, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		to = append(to, id)
	}
	return to, rows.Err()
}

// Seen implements inbox.Store.
func (b *Inbox) Seen(ctx context.Context, consumer string, ids []string) (seen []bool, err error) {
	err = b.store.read(ctx, func(c *conn) error {
		seen = make([]bool, len(ids))
		for i, id := range ids {
			if err := c.query(selectReceived, func(*row) { seen[i] = true }, consumer, id); err != nil {
				return err
			}
		}
		return nil
	})
	return seen, err
}

// Sweep implements inbox.Store. If it fails halfway, it returns the number
// removed so far along with the error.
func (b *Inbox) Sweep(ctx context.Context, consumer string, retention time.Duration, limit int) (removed int, err error) {
	for more := true; more && removed < limit; {
		rows := min(sweepRows, limit-removed)
		n, err := write(ctx, b.store, 0, func(t *tx) (int64, error) {
			return t.exec(deleteReceived, consumer, t.now-micros(retention), int64(rows))
		})
		if err != nil {
			return removed, err
		}
		removed += int(n)
		more = n > 0
	}
	return removed, nil
}

// Count implements inbox.Store.
func (b *Inbox) Count(ctx context.Context, consumer string, limit int) (n int, err error) {
	err = b.store.read(ctx, func(c *conn) error {
		return c.queryOnce(ctx, countReceived, func(r *row) { n = int(r.int()) }, consumer, int64(limit))
	})
	return n, err
}
