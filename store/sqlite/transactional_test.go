package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/storetest"
)

func TestTransactional(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	storetest.Run(t, storetest.Config{
		Name:      "sqlite-transactional",
		SkipTable: "../../storetest/skips.txt",
		New: func(t testing.TB) storetest.Harness {
			path := filepath.Join(t.TempDir(), "semel.db")
			s := openTx(t, sqlite.Config{Path: path})
			db := raw(t, path)
			mustExec(t, db, "CREATE TABLE effect (id INTEGER PRIMARY KEY) STRICT")
			return storetest.Harness{
				Transactional: true,
				Effect: func(ctx context.Context) error {
					tx, ok := sqlite.Tx(ctx)
					if !ok {
						return errors.New("there is no transaction")
					}
					_, err := tx.ExecContext(ctx, "INSERT INTO effect DEFAULT VALUES")
					return err
				},
				Effects: func() (n int) {
					t.Helper()
					if err := db.QueryRow("SELECT count(*) FROM effect").Scan(&n); err != nil {
						t.Fatal(err)
					}
					return n
				},
				Break: func() (mend func()) {
					t.Helper()
					if err := os.Rename(path, path+".away"); err != nil {
						t.Fatal(err)
					}
					return func() {
						if err := os.Rename(path+".away", path); err != nil {
							t.Error(err)
						}
					}
				},
				Exclusive: true,
				Open:      func() semel.Store { return openTx(t, sqlite.Config{Path: path}) },
				Store:     s,
				Advance: func(d time.Duration) {
					t.Helper()
					mustExec(t, db, `UPDATE record SET begun_at = begun_at - ?1, settled_at = settled_at - ?1, expires_at = expires_at - ?1`, d.Microseconds())
				},
			}
		},
	})
}

func openTx(t testing.TB, c sqlite.Config) *sqlite.Store {
	t.Helper()
	c.Mode = sqlite.ModeTransactional
	return open(t, c)
}

// bank is a transactional store and a business table in one file.
type bank struct {
	*sqlite.Store
	t    testing.TB
	path string
	db   *sql.DB // not the store's
}

func newBank(t testing.TB, c sqlite.Config) *bank {
	t.Helper()
	c.Path = filepath.Join(t.TempDir(), "bank.db")
	b := &bank{Store: openTx(t, c), t: t, path: c.Path, db: raw(t, c.Path)}
	mustExec(t, b.db, `CREATE TABLE account (id INTEGER PRIMARY KEY) STRICT;
		CREATE TABLE payment (id INTEGER PRIMARY KEY, note TEXT NOT NULL UNIQUE,
			account INTEGER NOT NULL DEFAULT 1 REFERENCES account DEFERRABLE INITIALLY DEFERRED) STRICT;
		INSERT INTO account VALUES (1)`)
	return b
}

func (b *bank) payments() (n int) {
	b.t.Helper()
	if err := b.db.QueryRow("SELECT count(*) FROM payment").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bank) want(payments int, state semel.State, key string) {
	b.t.Helper()
	if n := b.payments(); n != payments {
		b.t.Errorf("%d payments; want %d", n, payments)
	}
	r, err := b.Find(b.t.Context(), identity(key))
	if state == 0 && !errors.Is(err, semel.ErrNotFound) || state != 0 && (err != nil || r.State != state) {
		b.t.Errorf("the record of %q is %v, %v; want %v", key, r.State, err, state)
	}
}

func (b *bank) begin(key string) semel.Claim {
	b.t.Helper()
	c, err := b.Begin(b.t.Context(), attempt(key))
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func pay(ctx context.Context, note string) error {
	tx, ok := sqlite.Tx(ctx)
	if !ok {
		return errors.New("there is no transaction")
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO payment (note) VALUES (?)", note)
	return err
}

// Record, rows and audit entry are there together, or none of them.
func TestTxCommitsTogether(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	for i, settle := range []func(semel.Claim) error{
		func(c semel.Claim) error { _, err := c.Complete(t.Context(), semel.Result{Label: "201"}); return err },
		func(c semel.Claim) error { return c.Release(t.Context()) },
		func(c semel.Claim) error {
			if err := c.Hold(t.Context(), "lost contact"); !errors.Is(err, semel.ErrRolledBack) {
				return fmt.Errorf("held: %w", err)
			}
			return nil
		},
	} {
		key := fmt.Sprint("k", i)
		c := b.begin(key)
		ctx := c.Context(t.Context())
		if err := pay(ctx, key); err != nil {
			t.Fatal(err)
		}
		b.want(min(i, 1), 0, key) // nobody sees it yet
		if err := settle(c); err != nil {
			t.Fatal(err)
		}
		if err := pay(ctx, "late"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("a statement after the end: %v", err)
		}
		want, kind := semel.State(0), semel.TrailReleased
		if i == 0 {
			want, kind = semel.StateCompleted, semel.TrailExecuted
		}
		b.want(1, want, key)
		entries, err := b.Trail(t.Context(), semel.TrailFilter{Key: key})
		if err != nil || len(entries) != 1 || entries[0].Kind != kind || entries[0].Fence != c.Fence() || entries[0].Seq != uint64(i+1) {
			t.Errorf("the trail of %s: %+v, %v; want %s of fence %d", key, entries, err, kind, c.Fence())
		}
	}
}

// A recorded failure commits none of what was done before it failed.
func TestTxFailedResultIsRecordedWithoutItsEffect(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	c := b.begin("k")
	if err := pay(c.Context(t.Context()), "a"); err != nil {
		t.Fatal(err)
	}
	if err := pay(c.Context(t.Context()), "a"); err == nil {
		t.Fatal("a unique note was taken twice")
	}
	if _, err := c.Complete(t.Context(), semel.Result{Label: "422", Failed: true}); err != nil {
		t.Fatal(err)
	}
	b.want(0, semel.StateCompleted, "k")
}

// A constraint that is checked at COMMIT takes all of it back.
func TestTxDeferredConstraint(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	c := b.begin("k")
	tx, _ := sqlite.Tx(c.Context(t.Context()))
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO payment (note, account) VALUES ('a', 99)"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Complete(t.Context(), semel.Result{}); !errors.Is(err, semel.ErrRolledBack) {
		t.Fatalf("told %v", err)
	}
	if _, err := c.Complete(t.Context(), semel.Result{}); !errors.Is(err, semel.ErrRolledBack) {
		t.Fatalf("told %v the second time", err)
	}
	b.want(0, 0, "k")
	if err := b.begin("k").Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// SQLite rolls the whole transaction back when it interrupts a write. What the
// handler does after that must not be committed by itself.
func TestTxInterruptedWriteEndsTheTransaction(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	c := b.begin("k")
	ctx := c.Context(t.Context())
	if err := pay(ctx, "before"); err != nil {
		t.Fatal(err)
	}
	tx, _ := sqlite.Tx(ctx)
	stmt, err := tx.PrepareContext(ctx, "INSERT INTO payment (note) VALUES (?)")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := tx.ExecContext(short, `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
		INSERT INTO payment (note) SELECT 'n' || i FROM n`); err == nil {
		t.Fatal("an endless statement ended")
	}
	if err := pay(ctx, "after"); err == nil {
		t.Error("a statement was executed outside of the transaction")
	}
	if _, err := stmt.ExecContext(ctx, "prepared"); err == nil {
		t.Error("a prepared statement was executed outside of the transaction")
	}
	if err := tx.QueryRowContext(ctx, "INSERT INTO payment (note) VALUES ('returned') RETURNING id").Scan(new(int)); err == nil {
		t.Error("a query was executed outside of the transaction")
	}
	if _, err := c.Complete(t.Context(), semel.Result{}); !errors.Is(err, semel.ErrRolledBack) {
		t.Fatalf("told %v", err)
	}
	b.want(0, 0, "k")
	if _, err := b.begin("k").Complete(t.Context(), semel.Result{}); err != nil {
		t.Fatal(err)
	}
}

// A handler that commits by itself commits nothing, whatever it does then, and is
// told so; nor does what it does outside of the transaction happen.
func TestTxHandlerCannotCommit(t *testing.T) {
	for i, statement := range []string{
		"COMMIT", "/* sly */ END; BEGIN", "ROLLBACK", "ROLLBACK; BEGIN",
		"ROLLBACK; INSERT INTO payment (note) VALUES ('beside')",
		"ROLLBACK; BEGIN; INSERT INTO payment (note) VALUES ('beside'); COMMIT",
		"RELEASE semel_claim", "ROLLBACK TO semel_claim; RELEASE semel_claim",
	} {
		if quick.Skips(i, 3) {
			continue
		}
		for name, settle := range map[string]func(semel.Claim) error{
			"completed": func(c semel.Claim) error { _, err := c.Complete(t.Context(), semel.Result{}); return err },
			"failed":    func(c semel.Claim) error { _, err := c.Complete(t.Context(), semel.Result{Failed: true}); return err },
			"held":      func(c semel.Claim) error { return c.Hold(t.Context(), "lost contact") },
			"released": func(c semel.Claim) error {
				if err := c.Release(t.Context()); err != nil {
					return err
				}
				return semel.ErrRolledBack
			},
		} {
			b := newBank(t, sqlite.Config{})
			claim := b.begin("k")
			ctx := claim.Context(t.Context())
			if err := pay(ctx, "a"); err != nil {
				t.Fatal(err)
			}
			tx, _ := sqlite.Tx(ctx)
			_, err := tx.ExecContext(ctx, statement)
			if err == nil && strings.Contains(statement, "COMMIT") {
				t.Errorf("%s did not fail", statement)
			}
			_ = pay(ctx, "behind")
			for range 2 {
				if err := settle(claim); !errors.Is(err, semel.ErrRolledBack) {
					t.Errorf("%s after %s: %v; want it rolled back", name, statement, err)
				}
			}
			b.want(0, 0, "k")
			again := b.begin("k")
			if err := pay(again.Context(t.Context()), "again"); err != nil {
				t.Fatal(err)
			}
			if _, err := again.Complete(t.Context(), semel.Result{}); err != nil {
				t.Errorf("the retry, after %s: %v", statement, err)
			}
			b.want(1, semel.StateCompleted, "k")
		}
	}
}

// Rows that a handler forgets to close are closed with the claim.
func TestTxRowsLeftOpen(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	for _, key := range []string{"a", "b"} {
		c := b.begin(key)
		ctx := c.Context(t.Context())
		if err := pay(ctx, key); err != nil {
			t.Fatal(err)
		}
		tx, _ := sqlite.Tx(ctx)
		rows, err := tx.QueryContext(ctx, "SELECT id FROM payment, (VALUES (1), (2), (3))")
		if err != nil {
			t.Fatal(err)
		}
		if !rows.Next() {
			t.Fatal("no rows")
		}
		if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
			t.Fatal(err)
		}
		if rows.Next() {
			t.Error("rows outlive the claim")
		}
	}
	b.want(2, semel.StateCompleted, "b")
}

// The same identity is told that it is in progress, or another request, at
// once; another one waits for the lock; replays do not wait.
func TestTxWhileAHandlerIsAtWork(t *testing.T) {
	b := newBank(t, sqlite.Config{BusyTimeout: 50 * time.Millisecond})
	if _, err := b.begin("done").Complete(t.Context(), semel.Result{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	far := openTx(t, sqlite.Config{Path: b.path, BusyTimeout: 10 * time.Millisecond})
	c := b.begin("k")
	_, err := b.Begin(t.Context(), attempt("k"))
	if conflict, ok := errors.AsType[*semel.ConflictError](err); !ok || conflict.Record.Lapsed() || conflict.Record.State != semel.StateInProgress {
		t.Errorf("the same identity: %v", err)
	} else if other := semel.FingerprintOf([]byte("another")); !conflict.Record.Fingerprint.Differs(other) {
		t.Error("another request is not told from the same")
	}
	_, err = b.Begin(t.Context(), attempt("done"))
	if conflict, ok := errors.AsType[*semel.ConflictError](err); !ok || string(conflict.Record.Result.Body) != "x" {
		t.Errorf("a replay: %v", err)
	}
	if _, err := b.Begin(t.Context(), attempt("other")); !errors.Is(err, sqlite.ErrBusy) {
		t.Errorf("another identity: %v", err)
	}
	// Another process cannot see whose lock it is.
	for _, key := range []string{"k", "other"} {
		if _, err := far.Begin(t.Context(), attempt(key)); !errors.Is(err, sqlite.ErrBusy) {
			t.Errorf("%q in another process: %v", key, err)
		}
	}
	if _, err := b.Begin(c.Context(t.Context()), attempt("nested")); err == nil || errors.Is(err, sqlite.ErrBusy) {
		t.Errorf("a nested claim: %v", err)
	}
	if err := c.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.Complete(t.Context(), semel.Result{Body: []byte("y")}); err != nil {
		t.Fatal(err)
	}
	if err := c.Renew(t.Context()); !errors.Is(err, semel.ErrLostClaim) {
		t.Errorf("renewed after the end: %v", err)
	}
	_, err = far.Begin(t.Context(), attempt("k"))
	if conflict, ok := errors.AsType[*semel.ConflictError](err); !ok || string(conflict.Record.Result.Body) != "y" {
		t.Errorf("in another process, after the commit: %v", err)
	}
}

// A process that dies has changed nothing, and is in nobody's way.
func TestTxClosedStoreRollsBack(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	c := b.begin("k")
	if err := pay(c.Context(t.Context()), "a"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Complete(t.Context(), semel.Result{}); !errors.Is(err, semel.ErrRolledBack) {
		t.Errorf("completed after Close: %v", err)
	}
	if _, err := b.Begin(t.Context(), attempt("k")); !errors.Is(err, sqlite.ErrClosed) {
		t.Errorf("begun after Close: %v", err)
	}
	b.Store = openTx(t, sqlite.Config{Path: b.path})
	b.want(0, 0, "k")
	next := b.begin("k")
	if next.Fence() <= c.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), c.Fence())
	}
	if err := next.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Leased claims and the audit trail share the file with transactions.
func TestTxBesideLeasedClaims(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	leased, err := open(t, sqlite.Config{Path: b.path}).Begin(t.Context(), attempt("leased"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Begin(t.Context(), attempt("leased"))
	if conflict, ok := errors.AsType[*semel.ConflictError](err); !ok || conflict.Record.Fence != leased.Fence() {
		t.Errorf("a leased claim in the way: %v", err)
	}
	c := b.begin("k")
	if c.Fence() <= leased.Fence() {
		t.Errorf("fence %d after %d", c.Fence(), leased.Fence())
	}
	if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
		t.Fatal(err)
	}
	if err := leased.Hold(t.Context(), "lost contact"); err != nil {
		t.Fatal(err)
	}
	// Taken over in a transaction: rolled back, it is unknown as before.
	a := attempt("leased")
	a.Takeover = leased.Fence()
	over, err := b.Begin(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if err := over.Hold(t.Context(), "again"); !errors.Is(err, semel.ErrRolledBack) {
		t.Error(err)
	}
	b.want(0, semel.StateUnknown, "leased")
	if over, err = b.Begin(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if err := pay(over.Context(t.Context()), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := over.Complete(t.Context(), semel.Result{}); err != nil {
		t.Fatal(err)
	}
	b.want(1, semel.StateCompleted, "leased")
	if _, err := leased.Complete(t.Context(), semel.Result{}); !errors.Is(err, semel.ErrLostClaim) {
		t.Errorf("the old owner: %v", err)
	}
}

// Many callers of many identities, each several times, through a guard: each
// takes effect once.
func TestTxConcurrently(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	var executed atomic.Int64
	var wg sync.WaitGroup
	for _, s := range []semel.Store{b.Store, openTx(t, sqlite.Config{Path: b.path})} {
		g, err := semel.New(semel.Config{Store: s, Policy: semel.Policy{Lease: time.Minute, StoreTimeout: 30 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 40 {
			key := fmt.Sprint("k", i%10)
			wg.Go(func() {
				for tick := time.NewTicker(time.Millisecond); ; <-tick.C { // as long as it is in progress
					out, err := g.Do(t.Context(), semel.Submit{Identity: identity(key)}, func(ctx context.Context) (semel.Result, error) {
						return semel.Result{Body: []byte(key)}, pay(ctx, key)
					})
					switch {
					case errors.Is(err, semel.ErrInProgress):
						continue
					case err != nil || string(out.Result.Body) != key:
						t.Errorf("%s: %v, %v", key, out.Answer, err)
					case out.Answer == semel.AnswerExecuted:
						executed.Add(1)
					}
					return
				}
			})
		}
	}
	wg.Wait()
	if n := executed.Load(); n != 10 || b.payments() != 10 {
		t.Errorf("%d executions, %d payments; want 10", n, b.payments())
	}
}
