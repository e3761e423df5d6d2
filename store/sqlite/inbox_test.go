package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

const effectTable = "CREATE TABLE IF NOT EXISTS effect (n INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT"

// effect inserts a row in the transaction of ctx.
func effect(ctx context.Context, name string) error {
	tx, ok := sqlite.Tx(ctx)
	if !ok {
		return errors.New("there is no transaction")
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (name) VALUES (?)", name)
	return err
}

func effects(t testing.TB, db *sql.DB) map[string]int {
	t.Helper()
	rows, err := db.Query("SELECT name, count(*) FROM effect GROUP BY name")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		all[name] = n
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestInbox(t *testing.T) {
	quick.LeaveOut(t)
	inboxtest.Run(t, inboxtest.Config{New: func(t testing.TB) inboxtest.Harness {
		return inboxHarness(t, filepath.Join(t.TempDir(), "semel.db"))
	}})
}

func inboxHarness(t testing.TB, path string) inboxtest.Harness {
	store := func() inbox.Store { return openTx(t, sqlite.Config{Path: path, BusyTimeout: time.Minute}).Inbox() }
	h := inboxtest.Harness{Store: store(), Open: store, Effect: effect}
	db := raw(t, path)
	mustExec(t, db, effectTable)
	h.Effects = func() map[string]int { return effects(t, db) }
	h.Advance = func(d time.Duration) { mustExec(t, db, "UPDATE inbox SET at = at - ?", d.Microseconds()) }
	return h
}

// playConsume handles messages until its input ends.
func playConsume(path string, _ *bufio.Scanner) error {
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	return errors.Join(inboxtest.Consume(s.Inbox(), effect, os.Stdin, os.Stdout), s.Close(context.Background()))
}

// Four processes handle messages that come several times, and are killed at random.
func TestInboxProcessesKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "semel.db")
	h := inboxHarness(t, path)
	inboxtest.Killed(t, h, 20, func() *exec.Cmd { return command(t, "consume", path) })
	var check string
	if err := raw(t, path).QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("the file is damaged: %s (%v)", check, err)
	}
}

func newInbox(t testing.TB, s inbox.Store, consumer string) *inbox.Inbox {
	t.Helper()
	b, err := inbox.New(inbox.Config{Store: s, Consumer: consumer, RetrySpan: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantDone(t testing.TB, b *inbox.Inbox, id string, want inbox.Outcome, handle func(ctx context.Context) error) {
	t.Helper()
	if got, err := b.Process(t.Context(), id, handle); got != want || err != nil {
		t.Errorf("%s: %v, %v; want %v", id, got, err, want)
	}
}

// What a handler enqueues is there with its effect, or is not; and relays of this
// process are woken.
func TestInboxHandlerEnqueues(t *testing.T) {
	k := newBank(t, sqlite.Config{})
	b := newInbox(t, k.Inbox(), "billing")
	hints, stop := k.Outbox().Watch()
	defer stop()
	pay := func(ctx context.Context) error {
		tx, _ := sqlite.Tx(ctx)
		_, err := tx.ExecContext(ctx, "INSERT INTO payment (note) VALUES ('paid')")
		return errors.Join(err, sqlite.Enqueue(ctx, outbox.Message{ID: "receipt", Topic: "mail"}))
	}
	want := func(payments, messages int) {
		t.Helper()
		var n int
		if err := k.db.QueryRow("SELECT count(*) FROM outbox").Scan(&n); err != nil || n != messages || k.payments() != payments {
			t.Errorf("%d payments, %d messages, %v; want %d and %d", k.payments(), n, err, payments, messages)
		}
	}
	if _, err := b.Process(t.Context(), "m", func(ctx context.Context) error { return errors.Join(pay(ctx), io.EOF) }); !errors.Is(err, io.EOF) {
		t.Errorf("Process: %v", err)
	}
	want(0, 0)
	select {
	case <-hints:
		t.Error("relays are woken for nothing")
	default:
	}
	wantDone(t, b, "m", inbox.OutcomeDone, pay)
	want(1, 1)
	select {
	case <-hints:
	default:
		t.Error("relays are not woken")
	}
	wantDone(t, b, "m", inbox.OutcomeDuplicate, pay)
	want(1, 1)
}

// Who has a transaction: their own, or that of a protected handler.
func TestReceiveInTheCallersTransaction(t *testing.T) {
	k := newBank(t, sqlite.Config{})
	in := k.Inbox()
	receive := func(commit bool, want []bool, ids ...string) {
		t.Helper()
		tx, err := k.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		first, err := in.ReceiveTx(t.Context(), tx, "billing", ids...)
		if err != nil || !slices.Equal(first, want) {
			t.Errorf("%q: %v, %v; want %v", ids, first, err, want)
		}
		err = sqlite.EnqueueTx(t.Context(), tx, outbox.Message{Topic: "t"})
		if commit {
			err = errors.Join(err, tx.Commit())
		} else {
			err = errors.Join(err, tx.Rollback())
		}
		if err != nil {
			t.Error(err)
		}
	}
	receive(false, []bool{true, true}, "a", "b")
	receive(true, []bool{true, true, false}, "a", "b", "a")
	receive(true, []bool{false, true, false, false}, "b", "c", "c", "a")
	receive(true, []bool{}) // of none
	many, want := make([]string, 1000), make([]bool, 1000)
	for i := range many {
		many[i], want[i] = fmt.Sprint(i), true
	}
	receive(true, want, many...)
	wantDone(t, newInbox(t, in, "billing"), "c", inbox.OutcomeDuplicate, nil)
	if _, err := in.Receive(t.Context(), "billing", "x"); !errors.Is(err, sqlite.ErrNoTransaction) {
		t.Errorf("without a transaction: %v", err)
	}
	tx, err := k.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReceiveTx(t.Context(), tx, "billing", "ok", ""); err == nil {
		t.Error("an empty id is received")
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}

	// A webhook's handler, under a claim, drops what a queue has brought already.
	g, err := guard(k.Store)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"one", "two", "one"} {
		_, err := g.Do(t.Context(), semel.Submit{Identity: identity(key)}, func(ctx context.Context) (semel.Result, error) {
			first, err := in.Receive(ctx, "billing", "event", "c")
			if err == nil && (first[0] != (i == 0) || first[1]) {
				t.Errorf("submit %d: first is %v", i, first)
			}
			return semel.Result{}, err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A handler cannot end its transaction, nor commit what it must not; and nothing of
// it is left for the next.
func TestInboxHandlerMisbehaves(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(ctx context.Context, tx sqlite.Querier) error
		want error
	}{
		"commits": {func(ctx context.Context, tx sqlite.Querier) error {
			_, err := tx.ExecContext(ctx, "COMMIT")
			return err
		}, nil},
		"hides that it commits": {func(ctx context.Context, tx sqlite.Querier) error { _, _ = tx.ExecContext(ctx, "COMMIT"); return nil }, inbox.ErrRolledBack},
		"rolls back": {func(ctx context.Context, tx sqlite.Querier) error {
			_, err := tx.ExecContext(ctx, "ROLLBACK")
			return err
		}, inbox.ErrRolledBack},
		"rolls back and begins": {func(ctx context.Context, tx sqlite.Querier) error {
			_, err := tx.ExecContext(ctx, "ROLLBACK; BEGIN; INSERT INTO payment (note) VALUES ('stray')")
			return err
		}, inbox.ErrRolledBack},
		"releases our savepoint": {func(ctx context.Context, tx sqlite.Querier) error {
			_, err := tx.ExecContext(ctx, "RELEASE semel_work")
			return err
		}, inbox.ErrRolledBack},
		"breaks a constraint that the commit checks": {func(ctx context.Context, tx sqlite.Querier) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO payment (note, account) VALUES ('no account', 99)")
			return err
		}, inbox.ErrRolledBack},
		"begins another": {func(ctx context.Context, tx sqlite.Querier) error { return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			k := newBank(t, sqlite.Config{})
			b := newInbox(t, k.Inbox(), "billing")
			_, err := b.Process(t.Context(), "m", func(ctx context.Context) error {
				tx, _ := sqlite.Tx(ctx)
				if _, err := tx.ExecContext(ctx, "INSERT INTO payment (note) VALUES ('paid')"); err != nil {
					return err
				}
				if name == "begins another" {
					if _, err := b.Process(ctx, "inner", func(context.Context) error { return nil }); err != nil {
						return err
					}
				}
				return c.do(ctx, tx)
			})
			if err == nil || c.want != nil && !errors.Is(err, c.want) || errors.Is(err, sqlite.ErrBusy) { // it would wait for itself
				t.Errorf("Process: %v; want %v", err, c.want)
			}
			if n := k.payments(); n != 0 {
				t.Errorf("%d payments are left", n)
			}
			wantDone(t, b, "m", inbox.OutcomeDone, func(ctx context.Context) error {
				tx, _ := sqlite.Tx(ctx)
				_, err := tx.ExecContext(ctx, "INSERT INTO payment (note) VALUES ('paid')")
				return err
			})
			if n := k.payments(); n != 1 {
				t.Errorf("%d payments; want 1", n)
			}
		})
	}
	k := newBank(t, sqlite.Config{})
	b := newInbox(t, k.Inbox(), "billing")
	var stray sqlite.Querier
	wantDone(t, b, "m", inbox.OutcomeDone, func(ctx context.Context) error {
		stray, _ = sqlite.Tx(ctx)
		_, err := stray.QueryContext(ctx, "SELECT id FROM account") // and leaves the rows open
		return err
	})
	if _, err := stray.ExecContext(t.Context(), "INSERT INTO payment (note) VALUES ('late')"); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("a statement behind the end: %v", err)
	}
}

// A long handler keeps others out for BusyTimeout; then they are to come again.
func TestInboxBusyAndClosed(t *testing.T) {
	k := newBank(t, sqlite.Config{BusyTimeout: 20 * time.Millisecond})
	b := newInbox(t, k.Inbox(), "billing")
	wantDone(t, b, "slow", inbox.OutcomeDone, func(ctx context.Context) error {
		for _, id := range []string{"slow", "other"} {
			if _, err := b.Process(t.Context(), id, nil); !errors.Is(err, sqlite.ErrBusy) {
				t.Errorf("%s meanwhile: %v", id, err)
			}
		}
		return nil
	})
	wantDone(t, b, "slow", inbox.OutcomeDuplicate, nil)
	if err := k.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Process(t.Context(), "x", nil); !errors.Is(err, sqlite.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// MassTransit 5125: two applications mixed up their rows in one database.
func TestInboxOfTwoApplicationsInOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	h := inboxHarness(t, path)
	db := raw(t, path)
	apps := map[string]*inbox.Inbox{"a": newInbox(t, h.Store, "a"), "b": newInbox(t, h.Open(), "b")}
	for range 2 {
		for name, b := range apps {
			for _, id := range []string{"1", "2"} {
				if _, err := b.Process(t.Context(), id, func(ctx context.Context) error { return effect(ctx, name+id) }); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if got := fmt.Sprint(effects(t, db)); got != "map[a1:1 a2:1 b1:1 b2:1]" {
		t.Errorf("effects %s", got)
	}
	// What one sweeps is its own.
	h.Advance(3 * time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	a, err := inbox.New(inbox.Config{Store: h.Store, Consumer: "a", RetrySpan: time.Hour, OnSweep: func(s inbox.Swept) {
		if s.Removed != 2 || s.Rows != 0 || s.Err != nil {
			t.Errorf("swept %+v", s)
		}
		cancel()
	}})
	if err != nil {
		t.Fatal(err)
	}
	a.Run(ctx)
	wantDone(t, apps["b"], "1", inbox.OutcomeDuplicate, nil)
}

// A program in another language inserts the row itself.
func TestInboxRowsByPlainSQL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	h := inboxHarness(t, path)
	db := raw(t, path)
	const insert = "INSERT INTO inbox (consumer, id) VALUES (?, ?) ON CONFLICT DO NOTHING"
	for want := int64(1); want >= 0; want-- {
		r, err := db.Exec(insert, "billing", "m")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := r.RowsAffected(); n != want || err != nil {
			t.Errorf("inserted %d, %v; want %d", n, err, want)
		}
	}
	wantDone(t, newInbox(t, h.Store, "billing"), "m", inbox.OutcomeDuplicate, nil)
	h.Advance(30 * time.Minute)
	for want, retention := range []time.Duration{40 * time.Minute, 20 * time.Minute} {
		if n, err := h.Store.Sweep(t.Context(), "billing", retention, 10); n != want || err != nil {
			t.Errorf("sweeping after %v removes %d, %v; want %d", retention, n, err, want)
		}
	}
	for _, c := range []string{"", strings.Repeat("x", 256)} {
		if _, err := db.Exec(insert, "billing", c); err == nil {
			t.Errorf("an id of %d bytes is inserted", len(c))
		}
	}
}

// Watermill 576: after a restore, what came since the backup is handled again, with
// its effects, which were lost with it; and nothing else is.
func TestInboxRestored(t *testing.T) {
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "semel.db"), filepath.Join(dir, "copy.db")
	h := inboxHarness(t, path)
	deliver := func(s inbox.Store, ids ...string) {
		t.Helper()
		b := newInbox(t, s, "billing")
		for _, id := range ids {
			if _, err := b.Process(t.Context(), id, func(ctx context.Context) error { return effect(ctx, id) }); err != nil {
				t.Error(err)
			}
		}
	}
	deliver(h.Store, "a", "b")
	mustExec(t, raw(t, path), "VACUUM INTO ?", copied)
	deliver(h.Store, "c")
	restored := openTx(t, sqlite.Config{Path: copied})
	deliver(restored.Inbox(), "a", "b", "c", "c")
	if got := fmt.Sprint(effects(t, raw(t, copied))); got != "map[a:1 b:1 c:1]" {
		t.Errorf("effects %s", got)
	}
}
