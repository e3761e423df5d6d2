package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
)

// effect inserts a row in the transaction of ctx.
func effect(ctx context.Context, schema, name string) error {
	tx, ok := postgres.Tx(ctx)
	if !ok {
		return errors.New("there is no transaction")
	}
	_, err := tx.Exec(ctx, "INSERT INTO "+schema+".effect (name) VALUES ($1)", name)
	return err
}

func effects(t testing.TB, pool *pgxpool.Pool, schema string) map[string]int {
	t.Helper()
	rows, _ := pool.Query(context.Background(), "SELECT name, count(*) FROM "+schema+".effect GROUP BY name")
	all := map[string]int{}
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		all[name] = n
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func inboxHarness(direct, pool *pgxpool.Pool, config postgres.Config) func(t testing.TB) inboxtest.Harness {
	return func(t testing.TB) inboxtest.Harness {
		c := config
		c.Schema = fmt.Sprintf("rule%d", schemas.Add(1))
		store := func() inbox.Store { return open(t, pool, c).Inbox() }
		h := inboxtest.Harness{
			Store: store(), Open: store,
			Effect:  func(ctx context.Context, name string) error { return effect(ctx, c.Schema, name) },
			Effects: func() map[string]int { return effects(t, direct, c.Schema) },
			Advance: func(d time.Duration) { exec(t, direct, "UPDATE "+c.Schema+".inbox SET at = at - $1::interval", d) },
		}
		exec(t, direct, "CREATE TABLE "+c.Schema+".effect (name text COLLATE \"C\" NOT NULL)")
		return h
	}
}

func TestInbox(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	pool := connect(t, server, nil)
	for name, c := range map[string]postgres.Config{
		"read committed":  {},
		"repeatable read": {Mode: postgres.ModeTransactional, Isolation: pgx.RepeatableRead},
		"serializable":    {Mode: postgres.ModeTransactional, Isolation: pgx.Serializable},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.Run(t, inboxtest.Config{New: inboxHarness(pool, pool, c)})
		})
	}
	t.Run("PgBouncer", func(t *testing.T) {
		inboxtest.Run(t, inboxtest.Config{New: inboxHarness(pool, connect(t, testenv.PgBouncer(t, server), unprepared), postgres.Config{})})
	})
}

const consumerVariable = "SEMEL_POSTGRES_TEST_CONSUMER" // the URL to consume at

// Four processes handle messages that come several times, and are killed at random.
func TestInboxProcessesKilled(t *testing.T) {
	const schema = "semel"
	own := func(ctx context.Context, name string) error { return effect(ctx, schema, name) }
	if url := os.Getenv(consumerVariable); url != "" { // one of them
		s := open(t, connect(t, url, nil), postgres.Config{})
		if err := inboxtest.Consume(s.Inbox(), own, os.Stdin, os.Stdout); err != nil {
			t.Fatal(err)
		}
		os.Exit(0) // and say nothing more
	}
	t.Parallel()
	server := testenv.Postgres(t)
	pool := connect(t, server, nil)
	s := open(t, pool, postgres.Config{})
	exec(t, pool, "CREATE TABLE effect (name text NOT NULL)")
	exec(t, pool, "ALTER TABLE effect SET SCHEMA "+schema)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inboxtest.Killed(t, inboxtest.Harness{
		Store: s.Inbox(), Effect: own, Effects: func() map[string]int { return effects(t, pool, schema) },
	}, 30, func() *osexec.Cmd {
		c := osexec.CommandContext(t.Context(), self, "-test.run=^TestInboxProcessesKilled$")
		c.Env = append(os.Environ(), consumerVariable+"="+server)
		return c
	})
}

func newInbox(t testing.TB, s *postgres.Store) *inbox.Inbox {
	t.Helper()
	b, err := inbox.New(inbox.Config{Store: s.Inbox(), Consumer: "billing", RetrySpan: time.Hour, Timeout: time.Minute})
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

// The second of two with one message waits for the end of the first, and is a
// duplicate or takes its place; or has waited long enough, and is to come again.
func TestInboxSecondWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	patient := newInbox(t, open(t, shop.direct, postgres.Config{LockTimeout: time.Minute}))
	hasty := newInbox(t, open(t, shop.direct, postgres.Config{LockTimeout: time.Millisecond}))
	for i, fails := range []error{nil, errors.New("failed")} {
		id := fmt.Sprint("m", i)
		type told struct {
			outcome inbox.Outcome
			err     error
		}
		second := make(chan told, 1)
		got, err := patient.Process(t.Context(), id, func(ctx context.Context) error {
			go func() {
				o, err := patient.Process(t.Context(), id, func(ctx context.Context) error { return pay(ctx, id) })
				second <- told{o, err}
			}()
			await(t, func() bool {
				var waits bool
				err := shop.direct.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted)").Scan(&waits)
				return err == nil && waits
			})
			if _, err := hasty.Process(t.Context(), id, nil); !errors.Is(err, inbox.ErrInProgress) {
				t.Errorf("who does not wait: %v", err)
			}
			r := hasty.ProcessBatch(t.Context(), []inbox.Message{{ID: "x" + id}, {ID: id}, {ID: "y" + id}}, func(context.Context, int) error { return nil })
			if r[0].Err != nil || !errors.Is(r[1].Err, inbox.ErrInProgress) || r[2].Err != nil {
				t.Errorf("a batch with it: %v", r)
			}
			return errors.Join(pay(ctx, id), fails)
		})
		if !errors.Is(err, fails) || fails == nil && got != inbox.OutcomeDone {
			t.Errorf("the first: %v, %v", got, err)
		}
		want := inbox.OutcomeDuplicate
		if fails != nil {
			want = inbox.OutcomeDone
		}
		if s := <-second; s.outcome != want || s.err != nil {
			t.Errorf("the second: %v, %v; want %v", s.outcome, s.err, want)
		}
		shop.want(t, id, 1)
	}
}

// An answer to COMMIT is lost: the redelivery settles what it came to. A connection
// that is lost before leaves nothing.
func TestInboxCommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	for verdict, there := range map[testenv.Verdict]int{testenv.CutBefore: 0, testenv.CutAfter: 1} {
		proxied, proxy := through(t, shop.url)
		b := newInbox(t, open(t, connect(t, proxied, unprepared), postgres.Config{}))
		id := fmt.Sprint("verdict ", verdict)
		handle := func(ctx context.Context) error { return pay(ctx, id) }
		if _, err := b.Process(t.Context(), id, func(ctx context.Context) error {
			defer proxy.Cut()
			return handle(ctx)
		}); !errors.Is(err, inbox.ErrRolledBack) && !errors.Is(err, inbox.ErrUnknown) {
			t.Errorf("%s: cut before the commit: %v", id, err)
		}
		shop.want(t, id, 0)
		cutCommit(proxy, verdict)
		if _, err := b.Process(t.Context(), id, handle); !errors.Is(err, inbox.ErrUnknown) {
			t.Errorf("%s: %v; want it told as unknown", id, err)
		}
		await(t, func() bool { return shop.payments(t, id) == there })
		want := inbox.OutcomeDone
		if there == 1 {
			want = inbox.OutcomeDuplicate
		}
		wantDone(t, b, id, want, handle)
		shop.want(t, id, 1)
	}
}

// A handler cannot end its transaction unnoticed, nor have it committed where a
// statement has failed, and is not bound by the store's wait for locks.
func TestInboxHandlerMisbehaves(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	s := open(t, shop.direct, postgres.Config{})
	b := newInbox(t, s)
	for name, c := range map[string]struct {
		do   func(ctx context.Context, tx pgx.Tx) error
		want error
		left int // effects of the first delivery
	}{
		"commits":                    {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, postgres.ErrNotYours, 0},
		"commits by SQL":             {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "COMMIT"); return err }, postgres.ErrNotYours, 0},
		"commits behind our back":    {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "COMMIT"); return err }, inbox.ErrUnknown, 1},
		"and begins another":         {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "COMMIT; BEGIN"); return err }, inbox.ErrUnknown, 1},
		"and fails":                  {func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Conn().Exec(ctx, "COMMIT"); return io.EOF }, inbox.ErrUnknown, 1},
		"rolls back behind our back": {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "ROLLBACK"); return err }, inbox.ErrUnknown, 0},
		"hides a failure":            {func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil }, inbox.ErrRolledBack, 0},
		"leaves rows open": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
			return err
		}, inbox.ErrRolledBack, 0},
		"breaks what the commit checks": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO payment (account) VALUES ('nobody')")
			return err
		}, inbox.ErrRolledBack, 0},
		"loses its connection": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return nil
		}, inbox.ErrRolledBack, 0},
	} {
		_, err := b.Process(t.Context(), name, func(ctx context.Context) error {
			tx, _ := postgres.Tx(ctx)
			return errors.Join(pay(ctx, name), c.do(ctx, tx))
		})
		if !errors.Is(err, c.want) || errors.Is(err, inbox.ErrUnknown) && errors.Is(err, inbox.ErrRolledBack) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
		shop.want(t, name, c.left)
		want := inbox.OutcomeDone
		if c.left == 1 { // the id is committed with the effect
			want = inbox.OutcomeDuplicate
		}
		wantDone(t, b, name, want, func(ctx context.Context) error { return pay(ctx, name) })
		shop.want(t, name, 1)
	}
	var stray pgx.Tx
	wantDone(t, b, "good", inbox.OutcomeDone, func(ctx context.Context) error {
		stray, _ = postgres.Tx(ctx)
		var wait string
		err := stray.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&wait)
		if err == nil && wait != "0" {
			err = fmt.Errorf("its statements wait for locks for %s", wait)
		}
		return err
	})
	if _, err := stray.Exec(t.Context(), "SELECT 1"); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a statement behind the end: %v", err)
	}
	if n := shop.direct.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// Who has a transaction: pgx's, that of database/sql, or that of a handler.
func TestReceiveInTheCallersTransaction(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	s := open(t, shop.direct, postgres.Config{Mode: postgres.ModeTransactional})
	in := s.Inbox()
	db := stdlib.OpenDBFromPool(shop.direct)
	defer db.Close()
	ways := map[string]func(ids []string, end error) ([]bool, error){
		"pgx": func(ids []string, end error) (first []bool, err error) {
			err = pgx.BeginFunc(t.Context(), shop.direct, func(tx pgx.Tx) error {
				first, err = in.ReceiveTx(t.Context(), tx, "billing", ids...)
				return errors.Join(err, end)
			})
			return first, err
		},
		"database/sql": func(ids []string, end error) ([]bool, error) {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return nil, err
			}
			first, err := in.ReceiveSQL(t.Context(), tx, "billing", ids...)
			if err != nil || end != nil {
				return first, errors.Join(err, end, tx.Rollback())
			}
			return first, tx.Commit()
		},
		"handler": func(ids []string, end error) (first []bool, err error) {
			err = in.Transact(t.Context(), "outer", []string{fmt.Sprint(schemas.Add(1))}, func(ctx context.Context, _ []bool) error {
				first, err = in.Receive(ctx, "billing", ids...)
				return errors.Join(err, end)
			})
			return first, err
		},
		"handler, as *sql.Tx": func(ids []string, end error) (first []bool, err error) {
			err = in.Transact(t.Context(), "outer", []string{fmt.Sprint(schemas.Add(1))}, func(ctx context.Context, _ []bool) error {
				tx, _ := postgres.SQLTx(ctx)
				first, err = in.ReceiveSQL(ctx, tx, "billing", ids...)
				return errors.Join(err, end)
			})
			return first, err
		},
	}
	for name, way := range ways {
		ids := func(ids ...string) []string {
			for i := range ids {
				ids[i] = name + ids[i]
			}
			return ids
		}
		for i, c := range []struct {
			ids  []string
			end  error
			want []bool
		}{
			{ids("b", "a"), io.EOF, []bool{true, true}},
			{ids("b", "a", "b"), nil, []bool{true, true, false}},
			{ids("c'\"\\,{", "a", "c'\"\\,{"), nil, []bool{true, false, false}},
			{ids("c'\"\\,{"), nil, []bool{false}},
			{nil, nil, []bool{}},
		} {
			if got, err := way(c.ids, c.end); !errors.Is(err, c.end) || !slices.Equal(got, c.want) {
				t.Errorf("%s %d: %q: %v, %v; want %v", name, i, c.ids, got, err, c.want)
			}
		}
		wantDone(t, newInbox(t, s), name+"a", inbox.OutcomeDuplicate, nil)
	}
	if _, err := in.Receive(t.Context(), "billing", "x"); !errors.Is(err, postgres.ErrNoTransaction) {
		t.Errorf("without a transaction: %v", err)
	}
}

// What a handler enqueues is there with its effect, or is not; and relays of this
// process are woken.
func TestInboxHandlerEnqueues(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	s := open(t, shop.direct, postgres.Config{})
	b := newInbox(t, s)
	hints, stop := s.Outbox().Watch()
	defer stop()
	handle := func(ctx context.Context) error {
		return errors.Join(pay(ctx, "m"), postgres.Enqueue(ctx, outbox.Message{ID: "receipt", Topic: "mail", Key: "k"}))
	}
	want := func(effects int) {
		t.Helper()
		shop.want(t, "m", effects)
		var n int
		if err := shop.direct.QueryRow(t.Context(), "SELECT count(*) FROM semel.outbox").Scan(&n); err != nil || n != effects {
			t.Errorf("%d messages, %v; want %d", n, err, effects)
		}
		select {
		case <-hints:
			if effects == 0 {
				t.Error("relays are woken for nothing")
			}
		default:
			if effects == 1 {
				t.Error("relays are not woken")
			}
		}
	}
	if _, err := b.Process(t.Context(), "m", func(ctx context.Context) error { return errors.Join(handle(ctx), io.EOF) }); !errors.Is(err, io.EOF) {
		t.Errorf("Process: %v", err)
	}
	want(0)
	wantDone(t, b, "m", inbox.OutcomeDone, handle)
	want(1)
	wantDone(t, b, "m", inbox.OutcomeDuplicate, nil)
}

// newApp is a consumer of a store's, whose handler puts the id into a table.
func newApp(t *testing.T, pool *pgxpool.Pool, schema string) (process func(id string) inbox.Outcome) {
	t.Helper()
	b, err := inbox.New(inbox.Config{Store: open(t, pool, postgres.Config{Schema: schema}).Inbox(), Consumer: "c", RetrySpan: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return func(id string) inbox.Outcome {
		t.Helper()
		outcome, err := b.Process(t.Context(), id, func(ctx context.Context) error {
			tx, _ := postgres.Tx(ctx)
			_, err := tx.Exec(ctx, "INSERT INTO public.effect VALUES ($1)", schema+" "+id)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return outcome
	}
}

// MassTransit 5125: two applications mixed up their rows in one database.
func TestInboxOfTwoApplicationsInOneDatabase(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	exec(t, pool, "CREATE TABLE effect (id text UNIQUE)")
	apps := []func(string) inbox.Outcome{newApp(t, pool, "one"), newApp(t, pool, "other")}
	for _, want := range []inbox.Outcome{inbox.OutcomeDone, inbox.OutcomeDuplicate} {
		for i, process := range apps {
			for _, id := range []string{"1", "2"} {
				if got := process(id); got != want {
					t.Errorf("%s of application %d is %v; want %v", id, i, got, want)
				}
			}
		}
	}
	// What one sweeps is its own.
	if n, err := open(t, pool, postgres.Config{Schema: "one"}).Inbox().Sweep(t.Context(), "c", 0, 10); n != 2 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if got := apps[1]("1"); got != inbox.OutcomeDuplicate {
		t.Errorf("after the other's sweep: %v", got)
	}
}

// Watermill 576: after a restore, what came since the backup is handled again, with
// its effect, and nothing else is.
func TestInboxRestored(t *testing.T) {
	dump, psql := testenv.Program(t, "pg_dump"), testenv.Program(t, "psql")
	from, to := testenv.Postgres(t), testenv.Postgres(t)
	pool := connect(t, from, nil)
	exec(t, pool, "CREATE TABLE effect (id text UNIQUE)")
	process := newApp(t, pool, "app")
	process("before")
	text, err := osexec.Command(dump, "--dbname="+from).Output()
	if err != nil {
		t.Fatal(err)
	}
	process("since")
	restore := osexec.Command(psql, "--dbname="+to, "-v", "ON_ERROR_STOP=1", "-q")
	restore.Stdin = bytes.NewReader(text)
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	restored := newApp(t, connect(t, to, nil), "app")
	for id, want := range map[string]inbox.Outcome{"before": inbox.OutcomeDuplicate, "since": inbox.OutcomeDone} {
		if got := restored(id); got != want {
			t.Errorf("%s is %v; want %v", id, got, want)
		}
	}
}
