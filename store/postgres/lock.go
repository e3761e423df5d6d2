package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
)

// ErrLocked reports that another transaction held a row for longer than LockRow was
// to wait, or that the two transactions deadlocked. Nothing took effect, and it is
// safe to retry.
var ErrLocked = errors.New("postgres: the row is locked by another transaction")

// LockRow executes a statement that locks one row, such as SELECT ... FOR UPDATE, in the
// transaction in ctx, and scans the row into dest. Nobody else can change the row until
// that transaction ends, so a handler may read, compute and write where a single
// statement is not enough. LockRow waits for the locks of other transactions, including
// those on tables, for at most wait, but no less than a millisecond.
//
// It fails with an error that matches pgx.ErrNoRows if there is no row, and with
// ErrLocked, wrapped by semel.NoEffect, if the row is locked. After ErrLocked the
// transaction has ended: return the error, which leaves the key free for a retry. If ctx
// carries no transaction, LockRow fails with ErrNoTransaction.
//
// If several rows have to be locked, always lock them in the same order. At repeatable
// read and above, the row must not have been changed since the transaction began, or
// the statement fails with SQLSTATE 40001.
func LockRow(ctx context.Context, wait time.Duration, dest []any, sql string, args ...any) error {
	tx, ok := Tx(ctx)
	if !ok {
		return ErrNoTransaction
	}
	var before string
	err := tx.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&before)
	if err == nil {
		_, err = tx.Exec(ctx, setLockWait, milliseconds(max(wait, time.Millisecond)))
	}
	if err == nil {
		err = tx.QueryRow(ctx, sql, args...).Scan(dest...)
	}
	if none := errors.Is(err, pgx.ErrNoRows); err == nil || none {
		_, rerr := tx.Exec(ctx, setLockWait, before)
		err = errors.Join(err, rerr)
	}
	if state := sqlState(err); state == codeLockWait || state == "40P01" {
		return semel.NoEffect(fmt.Errorf("%w and was not freed within %v: nothing took effect, and a retry is safe: %w", ErrLocked, wait, err))
	}
	return err
}

const setLockWait = "SELECT set_config('lock_timeout', $1, true)"

// hash is a 64-bit number for parts that frame themselves by their lengths.
// It is the key of advisory locks: those of other applications in the database
// are as unlikely to have it as another identity is. Where two do share one,
// they are never in flight together, and nothing else.
func hash(parts ...string) int64 {
	h := sha256.New()
	h.Write([]byte("semel/1"))
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// lockKey is the advisory lock of an identity: that part of its digest which is
// of the whole of it.
func lockKey(digest pgtype.UUID) int64 { return int64(binary.BigEndian.Uint64(digest.Bytes[8:])) }
