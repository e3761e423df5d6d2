package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// poolIn is a pool that sends statements in one of pgx's ways.
func poolIn(t testing.TB, url string, mode pgx.QueryExecMode) *pgxpool.Pool {
	return connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// paySQL is a service's code that knows nothing of semel, nor of pgx.
func paySQL(ctx context.Context, tx *sql.Tx, keys ...string) (last int64, err error) {
	insert, err := tx.PrepareContext(ctx, "INSERT INTO payment (key) VALUES ($1)")
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		done, err := insert.ExecContext(ctx, key)
		if err != nil {
			return 0, err
		}
		if n, err := done.RowsAffected(); err != nil || n != 1 {
			return 0, fmt.Errorf("%d rows, %w", n, err)
		}
	}
	if err := insert.Close(); err != nil {
		return 0, err
	}
	rows, err := tx.QueryContext(ctx, "SELECT id, account FROM payment WHERE key = $1", keys[0])
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var account string
		if err := rows.Scan(&last, &account); err != nil {
			return 0, err
		}
		if account != "alice" {
			return 0, fmt.Errorf("the account is %q", account)
		}
	}
	return last, rows.Err()
}

func sqlTx(t testing.TB, ctx context.Context) *sql.Tx {
	t.Helper()
	tx, ok := postgres.SQLTx(ctx)
	if !ok {
		t.Fatal("SQLTx finds no transaction")
	}
	return tx
}

// Code for database/sql works on the claim's own transaction: what it writes
// commits with the record, or goes with it.
func TestSQLTxIsTheClaimsTransaction(t *testing.T) {
	shop := newShop(t)
	bouncer := testenv.PgBouncer(t, shop.url)
	pools := map[string]*pgxpool.Pool{
		"pgbouncer exec":   poolIn(t, bouncer, pgx.QueryExecModeExec),
		"pgbouncer simple": poolIn(t, bouncer, pgx.QueryExecModeSimpleProtocol),
	}
	for _, mode := range execModes {
		pools[mode.String()] = poolIn(t, shop.url, mode)
	}
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			s := open(t, pool, transactional())
			for how, settle := range map[string]func(semel.Claim) error{
				"completed": func(c semel.Claim) error { _, err := c.Complete(t.Context(), result("paid")); return err },
				"failed": func(c semel.Claim) error {
					r := result("declined")
					r.Failed = true
					_, err := c.Complete(t.Context(), r)
					return err
				},
				"released": func(c semel.Claim) error { return c.Release(t.Context()) },
			} {
				key := name + how
				claim := begin(t, s, key)
				ctx := claim.Context(t.Context())
				if id, err := paySQL(ctx, sqlTx(t, ctx), key, key); err != nil || id == 0 {
					t.Fatalf("payment %d, %v", id, err)
				}
				// Both forms see what the other has written.
				if err := pay(ctx, key); err != nil {
					t.Fatal(err)
				}
				var n int
				if err := sqlTx(t, ctx).QueryRowContext(ctx, "SELECT count(*) FROM payment WHERE key = $1", key).Scan(&n); err != nil || n != 3 {
					t.Fatalf("%d payments, %v; want 3", n, err)
				}
				shop.want(t, key, 0)
				if err := settle(claim); err != nil {
					t.Fatal(err)
				}
				if how == "completed" {
					shop.want(t, key, 3)
				} else {
					shop.want(t, key, 0)
				}
				if how != "released" {
					_, err := s.Begin(t.Context(), attempt(key))
					conflict(t, err, semel.StateCompleted)
				}
			}
		})
	}
}

// Neither the methods of a *sql.Tx nor statements end the claim's transaction,
// and a handler that wants a savepoint can have it.
func TestSQLTxCannotEndTheTransaction(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, nil), transactional())
	claim := begin(t, s, "k")
	ctx := claim.Context(t.Context())
	for name, end := range map[string]func(*sql.Tx) error{
		"Commit": (*sql.Tx).Commit, "Rollback": (*sql.Tx).Rollback,
	} {
		tx := sqlTx(t, ctx)
		if _, err := paySQL(ctx, tx, "k"); err != nil {
			t.Fatal(err)
		}
		if err := end(tx); !errors.Is(err, postgres.ErrNotYours) {
			t.Errorf("%s: %v; want ErrNotYours", name, err)
		}
		if _, err := tx.ExecContext(ctx, "SELECT 1"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("after %s: %v; want sql.ErrTxDone", name, err)
		}
	}
	tx := sqlTx(t, ctx)
	for _, q := range []string{"COMMIT", "rollback", "END; BEGIN"} {
		if _, err := tx.ExecContext(ctx, q); !errors.Is(err, postgres.ErrNotYours) {
			t.Errorf("%s: %v; want ErrNotYours", q, err)
		}
		if _, err := tx.QueryContext(ctx, q); !errors.Is(err, postgres.ErrNotYours) {
			t.Errorf("%s: %v; want ErrNotYours", q, err)
		}
	}
	for _, q := range []string{
		"SAVEPOINT mine", "INSERT INTO payment (key) VALUES ('taken back')", "ROLLBACK TO SAVEPOINT mine", "RELEASE SAVEPOINT mine",
	} {
		if _, err := tx.ExecContext(ctx, q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if _, err := claim.Complete(ctx, result("paid")); err != nil {
		t.Fatal(err)
	}
	shop.want(t, "k", 2)
	shop.want(t, "taken back", 0)
}

// What is left of a *sql.Tx when its claim has ended fails in words of
// database/sql, touches no connection, and keeps no goroutine.
func TestSQLTxEndsWithTheClaim(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, func(c *pgxpool.Config) { c.MaxConns = 1 }), transactional())
	if _, ok := postgres.SQLTx(t.Context()); ok {
		t.Error("there is a transaction without a claim")
	}
	for name, settle := range map[string]func(semel.Claim) error{
		"completed": func(c semel.Claim) error { _, err := c.Complete(t.Context(), result("paid")); return err },
		"released":  func(c semel.Claim) error { return c.Release(t.Context()) },
		"failed with rows open": func(c semel.Claim) error {
			tx := sqlTx(t, c.Context(t.Context()))
			rows, err := tx.QueryContext(t.Context(), "SELECT generate_series(1, 100000)")
			if err != nil || !rows.Next() {
				t.Fatalf("no rows: %v", err)
			}
			t.Cleanup(func() {
				for rows.Next() {
					t.Error("rows go on behind the claim")
				}
				_ = rows.Close()
			})
			if _, err = c.Complete(t.Context(), result("paid")); !errors.Is(err, semel.ErrRolledBack) {
				t.Errorf("Complete: %v; want ErrRolledBack", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := begin(t, s, name)
			ctx := claim.Context(t.Context())
			tx := sqlTx(t, ctx)
			stmt, err := tx.Prepare("SELECT 1")
			if err != nil {
				t.Fatal(err)
			}
			if err := settle(claim); err != nil {
				t.Fatal(err)
			}
			next := begin(t, s, name+" next") // has the connection now
			for what, err := range map[string]error{
				"Exec":     second(tx.Exec("INSERT INTO payment (key) VALUES ('late')")),
				"Query":    second(tx.Query("SELECT 1")),
				"QueryRow": tx.QueryRow("SELECT 1").Scan(new(int)),
				"Prepare":  second(tx.Prepare("SELECT 1")),
				"another":  second(sqlTx(t, ctx).Exec("INSERT INTO payment (key) VALUES ('late')")),
			} {
				if !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("%s: %v; want sql.ErrTxDone", what, err)
				}
			}
			if stmt, commit := second(stmt.Exec()), tx.Commit(); stmt == nil || commit == nil {
				t.Errorf("a statement: %v, Commit: %v; want errors", stmt, commit)
			}
			if _, err := next.Complete(t.Context(), result("paid")); err != nil {
				t.Fatal(err)
			}
			shop.want(t, "late", 0)
		})
	}
	await(t, func() bool {
		buf := make([]byte, 1<<20)
		return !strings.Contains(string(buf[:runtime.Stack(buf, true)]), "database/sql.(*")
	})
}

func second[T any](_ T, err error) error { return err }

// A cancelled context costs the claim its transaction, not the identity.
func TestSQLTxCancelled(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, nil), transactional())
	lock, err := shop.direct.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), "LOCK TABLE account"); err != nil {
		t.Fatal(err)
	}
	claim := begin(t, s, "k")
	ctx, cancel := context.WithCancel(claim.Context(t.Context()))
	tx := sqlTx(t, ctx)
	if _, err := paySQL(ctx, tx, "k"); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		_, err := tx.ExecContext(ctx, "DELETE FROM account")
		failed <- err
	}()
	await(t, func() bool {
		var n int
		err := shop.direct.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'DELETE FROM account%'`).Scan(&n)
		return err == nil && n == 1
	})
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want context.Canceled", err)
	}
	if _, err := claim.Complete(t.Context(), result("paid")); !errors.Is(err, semel.ErrRolledBack) {
		t.Errorf("Complete: %v; want ErrRolledBack", err)
	}
	shop.want(t, "k", 0)
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := untilFree(t, s, "k")
	if _, err := paySQL(again.Context(t.Context()), sqlTx(t, again.Context(t.Context())), "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Complete(t.Context(), result("paid")); err != nil {
		t.Fatal(err)
	}
	shop.want(t, "k", 1)
}

// untilFree begins a claim once the session of the one before has ended.
func untilFree(t testing.TB, s *postgres.Store, key string) (c semel.Claim) {
	t.Helper()
	await(t, func() bool {
		var err error
		c, err = s.Begin(t.Context(), attempt(key))
		if err != nil {
			conflict(t, err, semel.StateInProgress)
		}
		return err == nil
	})
	return c
}

// Values and errors are those that code written for pgx's own database/sql
// driver is used to.
func TestSQLTxReadsAsPgxDoes(t *testing.T) {
	shop := newShop(t)
	const query = `SELECT true, '\x00ff'::bytea, ''::bytea, 1::int2, -2::int4, 3000000000::int8, 1.5::float4, 2.25::float8, 'text', ''::text,
		'2026-01-02'::date, '2026-01-02 03:04:05.678901'::timestamp, '2026-01-02 03:04:05.678901+02'::timestamptz, 'infinity'::timestamptz,
		'infinity'::date, '{"a": 1}'::json, '{"a": 1}'::jsonb, 12.340::numeric, '00000000-0000-0000-0000-000000000001'::uuid,
		'{1,2}'::int4[], '1 day 2 hours'::interval, '10.0.0.1'::inet, 'k'::name, NULL::int4, NULL::text, $1::text, $2::int8, $3::timestamptz, $4::bytea`
	args := []any{sql.NullString{String: "argument", Valid: true}, 7, time.Unix(1, 2000).UTC(), []byte{1}}
	read := func(tx *sql.Tx) (values []any, kinds []string) {
		rows, err := tx.Query(query, args...)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		types, err := rows.ColumnTypes()
		if err != nil || !rows.Next() {
			t.Fatalf("no row: %v, %v", err, rows.Err())
		}
		dest := make([]any, len(types))
		for i, ct := range types {
			dest[i] = new(any)
			kinds = append(kinds, ct.DatabaseTypeName())
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		for _, d := range dest {
			v := *d.(*any)
			if at, ok := v.(time.Time); ok {
				v = at.UTC()
			}
			values = append(values, v)
		}
		if rows.Next() || rows.Err() != nil {
			t.Fatalf("more than a row, or %v", rows.Err())
		}
		return values, kinds
	}
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			pool := poolIn(t, shop.url, mode)
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			theirs, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = theirs.Rollback() }()
			claim := begin(t, open(t, pool, transactional()), "values "+mode.String())
			ours := sqlTx(t, claim.Context(t.Context()))

			wantValues, wantKinds := read(theirs)
			values, kinds := read(ours)
			if !reflect.DeepEqual(values, wantValues) {
				t.Errorf("values are\n%#v; pgx's driver reads\n%#v", values, wantValues)
			}
			if !reflect.DeepEqual(kinds, wantKinds) {
				t.Errorf("types are\n%v; pgx's driver says\n%v", kinds, wantKinds)
			}
			if err := ours.QueryRow("SELECT 1 WHERE false").Scan(new(int)); !errors.Is(err, sql.ErrNoRows) {
				t.Errorf("no row: %v; want sql.ErrNoRows", err)
			}
			if _, err := ours.Exec("SELECT $1", sql.Named("a", 1)); err == nil || !strings.Contains(err.Error(), `"a"`) {
				t.Errorf("an argument with a name: %v; want an error that names it", err)
			}
			_, err = ours.Query("SELECT 1 FROM nowhere")
			if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "42P01" {
				t.Errorf("%v; want the server's error", err)
			}
			if errors.Is(err, driver.ErrBadConn) {
				t.Error("the connection is taken for bad")
			}
			if err := claim.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A caller with a *sql.DB of pgx's driver protects an operation in a transaction
// of its own.
func TestJoinsATransactionOfASQLConnection(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, nil), transactional())
	g := guard(t, s, semel.Policy{})
	db, err := sql.Open("pgx", shop.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	run := func(key string, commit bool) (out semel.Outcome) {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		err = conn.Raw(func(c any) error {
			tx, err := c.(*stdlib.Conn).Conn().Begin(t.Context())
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			out, err = g.Do(postgres.WithTx(t.Context(), tx), submit(key), func(ctx context.Context) (semel.Result, error) {
				_, err := paySQL(ctx, sqlTx(t, ctx), key)
				return result("paid"), err
			})
			if err != nil || !commit {
				return err
			}
			return tx.Commit(t.Context())
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := run("rolled back", false); out.Answer != semel.AnswerExecuted {
		t.Fatalf("the outcome is %v", out.Answer)
	}
	shop.want(t, "rolled back", 0)
	for _, want := range []semel.Answer{semel.AnswerExecuted, semel.AnswerReplayed} {
		if out := run("k", true); out.Answer != want {
			t.Fatalf("the outcome is %v; want %v", out.Answer, want)
		}
		shop.want(t, "k", 1)
	}
}
