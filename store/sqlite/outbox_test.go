package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/sqlite"
)

func TestOutbox(t *testing.T) {
	outboxtest.Run(t, outboxtest.Config{New: newOutboxHarness})
}

func newOutboxHarness(t *testing.T) outboxtest.Harness {
	path := filepath.Join(t.TempDir(), "semel.db")
	o := open(t, sqlite.Config{Path: path}).Outbox()
	db := raw(t, path)
	return outboxtest.Harness{
		Store: o,
		Enqueue: func(ctx context.Context, messages ...outbox.Message) error {
			return enqueue(ctx, db, messages...)
		},
		Advance: func(d time.Duration) { shiftOutbox(t, db, -d) },
		Open:    func() outboxtest.Store { return open(t, sqlite.Config{Path: path}).Outbox() },
	}
}

// enqueue adds messages in a transaction of their own.
func enqueue(ctx context.Context, db *sql.DB, messages ...outbox.Message) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := sqlite.EnqueueTx(ctx, tx, messages...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// shiftOutbox moves what is recorded by d, as if the host's clock had gone the
// other way.
func shiftOutbox(t testing.TB, db *sql.DB, d time.Duration) {
	t.Helper()
	mustExec(t, db, `UPDATE outbox SET created_at = created_at + ?1, not_before = not_before + ?1,
		due = CASE WHEN due > 0 THEN due + ?1 ELSE due END, settled_at = settled_at + ?1`, d.Microseconds())
	mustExec(t, db, `UPDATE outbox_clock SET at = at + ?1 WHERE at > 0`, d.Microseconds())
}
