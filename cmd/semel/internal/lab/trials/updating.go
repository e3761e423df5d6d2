package trials

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/semelhq/semel/conditional"
)

// sellByHand takes a book off the shelf. It calls looked when it knows how many
// there are.
func sellByHand(ctx context.Context, db *sql.DB, looked func()) error {
	var stock int64
	err := db.QueryRowContext(ctx, "SELECT stock FROM shelf WHERE item = 'book'").Scan(&stock)
	if err != nil {
		return err
	}
	looked()
	// DEFECT(lost update): what was read may not be there any more. Lesson: a change says
	// what it is a change of.
	_, err = db.ExecContext(ctx, "UPDATE shelf SET stock = ? WHERE item = 'book'", stock-1)
	return err
}

// sell is the same, but writes over nothing that it has not seen.
func sell(ctx context.Context, db *sql.DB, looked func()) error {
	var stock int64
	_, err := conditional.Apply(ctx, conditional.Change{
		Current: func(ctx context.Context) (s conditional.State, err error) {
			err = db.QueryRowContext(ctx, "SELECT stock, version FROM shelf WHERE item = 'book'").Scan(&stock, &s.Version)
			looked()
			return s, err
		},
		Write: func(ctx context.Context, found, next int64) (int64, error) {
			return conditional.Rows(db.ExecContext(ctx,
				"UPDATE shelf SET stock = ?, version = ? WHERE item = 'book' AND version = ?", stock-1, next, found))
		},
	})
	return err
}

func updateByHand(ctx context.Context) (Outcome, error)    { return sellTwo(ctx, sellByHand) }
func updateWithSemel(ctx context.Context) (Outcome, error) { return sellTwo(ctx, sell) }

// sellTwo has two customers buy one of ten books each, and both look before either
// takes. It says how many are left.
func sellTwo(ctx context.Context, sell func(context.Context, *sql.DB, func()) error) (_ Outcome, err error) {
	dir, err := os.MkdirTemp("", "semel-lesson-")
	if err != nil {
		return Outcome{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := openFile(filepath.Join(dir, "shelf.db"))
	if err != nil {
		return Outcome{}, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, `CREATE TABLE shelf (item TEXT PRIMARY KEY, stock INTEGER NOT NULL, version INTEGER NOT NULL) STRICT;
		INSERT INTO shelf VALUES ('book', 10, 1)`); err != nil {
		return Outcome{}, err
	}
	var both sync.WaitGroup
	both.Add(2)
	failed := make(chan error, 2)
	for range 2 {
		go func() {
			here := sync.OnceFunc(func() { both.Done(); both.Wait() }) // who looks again need not wait
			err := sell(ctx, db, here)
			here() // if it failed before it looked
			failed <- err
		}()
	}
	if err := errors.Join(<-failed, <-failed); err != nil {
		return Outcome{}, err
	}
	var left int64
	err = db.QueryRowContext(ctx, "SELECT stock FROM shelf").Scan(&left)
	return Outcome{Count: strconv.FormatInt(left, 10)}, err
}
