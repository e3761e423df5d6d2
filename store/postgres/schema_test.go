package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

func TestNewerSchemaIsRefused(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	if _, err := postgres.New(t.Context(), pool, postgres.Config{NoMigrate: true}); !errors.Is(err, postgres.ErrOlderSchema) {
		t.Fatalf("New without tables: %v; want ErrOlderSchema", err)
	}
	open(t, pool, postgres.Config{})
	open(t, pool, postgres.Config{NoMigrate: true})
	exec(t, pool, "UPDATE semel.version SET version = version + 1")
	if _, err := postgres.New(t.Context(), pool, postgres.Config{}); !errors.Is(err, postgres.ErrNewerSchema) {
		t.Fatalf("New over newer tables: %v; want ErrNewerSchema", err)
	}
	if err := postgres.Migrate(t.Context(), pool, "semel"); !errors.Is(err, postgres.ErrNewerSchema) {
		t.Fatalf("Migrate of newer tables: %v; want ErrNewerSchema", err)
	}
}

func TestSchemaIsWhatMigrateMakes(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	const name = `odd "name's`
	exec(t, pool, postgres.Schema(name))
	s := open(t, pool, postgres.Config{Schema: name, NoMigrate: true})
	if _, err := begin(t, s, "k").Complete(t.Context(), result("done")); err != nil {
		t.Fatal(err)
	}
}

// Of stores that all saw that there are no tables, one makes them, and the others
// do not even try.
func TestManyStoresMigrateOnce(t *testing.T) {
	server := testenv.Postgres(t)
	direct := connect(t, server, nil)
	// A sequence counts also what is rolled back.
	exec(t, direct, "CREATE SEQUENCE made")
	exec(t, direct, `CREATE FUNCTION made() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN PERFORM nextval('public.made'); END$$`)
	exec(t, direct, "CREATE EVENT TRIGGER made ON ddl_command_start WHEN TAG IN ('CREATE SCHEMA', 'CREATE TABLE') EXECUTE FUNCTION made()")
	made := func() (n int) {
		t.Helper()
		if err := direct.QueryRow(t.Context(), "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM made").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := postgres.Migrate(t.Context(), direct, "alone"); err != nil {
		t.Fatal(err)
	}
	once := made()
	if once < 2 {
		t.Fatalf("a migration is seen to make %d things; want the schema and its tables", once)
	}

	gate, err := direct.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback(context.Background()) }()
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", postgres.MigrationLock("together")); err != nil {
		t.Fatal(err)
	}
	const stores = 8
	var wg sync.WaitGroup
	for range stores {
		pool := connect(t, server, nil)
		wg.Go(func() { open(t, pool, postgres.Config{Schema: "together"}) })
	}
	await(t, func() bool {
		var waiting int
		err := direct.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
			WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted`).Scan(&waiting)
		return err == nil && waiting == stores
	})
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := made() - once; n != once {
		t.Errorf("%d stores made %d things; want the %d of one migration", stores, n, once)
	}
}

// A migration waited for locks for as long as others had them, and everybody
// waited behind it.
func TestMigrationDoesNotWaitForEver(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	exec(t, pool, postgres.Schema("semel"))
	const (
		short, long = 20 * time.Millisecond, time.Hour
		further     = "ALTER TABLE {s}.record ADD COLUMN further text"
	)
	for name, c := range map[string]struct {
		lock          string
		args          []any
		others, table time.Duration
		told          string
	}{
		"another migration": {"SELECT pg_advisory_xact_lock($1)", []any{postgres.MigrationLock("semel")}, short, long, "another process migrates it"},
		"a long report":     {"SELECT count(*) FROM semel.record", nil, long, short, "uses its tables"},
	} {
		other, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Exec(t.Context(), c.lock, c.args...); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err = postgres.MigrateWithin(ctx, pool, "semel", c.others, c.table, further)
		cancel()
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "55P03" || !strings.Contains(err.Error(), c.told) || !strings.Contains(err.Error(), "a retry is safe") {
			t.Errorf("%s: %v", name, err)
		}
		if err := other.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := postgres.MigrateWithin(t.Context(), pool, "semel", long, long, further); err != nil {
		t.Error(err)
	}
	var wait string
	if err := pool.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&wait); err != nil || wait != "0" {
		t.Errorf("lock_timeout is %s afterwards, %v", wait, err)
	}
}

// Tables of an earlier version are brought up to date, with what they hold, or not
// touched.
func TestUpgrade(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{})
	claim := begin(t, s, "old")
	if _, err := claim.Complete(t.Context(), result("done")); err != nil {
		t.Fatal(err)
	}
	version := func() (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "SELECT version FROM semel.version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	known := version()
	const first, second = "CREATE TABLE {s}.first (n int)", "CREATE TABLE {s}.second (n int)"
	if err := postgres.MigrateWithin(t.Context(), pool, "semel", time.Minute, time.Minute, first, "no statement"); err == nil || version() != known {
		t.Fatalf("a migration that fails half way: %v, version %d", err, version())
	}
	for _, further := range [][]string{{first}, {first, second}, {first, second}} {
		if err := postgres.MigrateWithin(t.Context(), pool, "semel", time.Minute, time.Minute, further...); err != nil || version() != known+len(further) {
			t.Fatalf("%v, version %d", err, version())
		}
	}
	if _, err := postgres.New(t.Context(), pool, postgres.Config{}); !errors.Is(err, postgres.ErrNewerSchema) {
		t.Fatalf("New over what a newer program made: %v", err)
	}
	exec(t, pool, "UPDATE semel.version SET version = $1", known)
	after := open(t, pool, postgres.Config{})
	if r, err := after.Find(t.Context(), attempt("old").Identity); err != nil || r.ID != claim.RecordID() {
		t.Fatalf("the old record reads %+v, %v", r, err)
	}
}

// What Grants prints suffices for all that a store does, sweeping included, and
// lets the role do no more.
func TestGrants(t *testing.T) {
	server := testenv.Postgres(t)
	owner := connect(t, server, nil)
	schema, role := `odd "name's`, fmt.Sprintf(`odd "role's %d`, schemas.Add(1))
	quoted := pgx.Identifier{role}.Sanitize()
	exec(t, owner, "CREATE ROLE "+quoted+" LOGIN")
	t.Cleanup(func() {
		exec(t, owner, "DROP OWNED BY "+quoted)
		exec(t, owner, "DROP ROLE "+quoted)
	})
	exec(t, owner, postgres.Schema(schema)+postgres.Grants(schema, role))
	pool := connect(t, server, func(c *pgxpool.Config) { c.ConnConfig.User = role })
	for _, c := range []postgres.Config{{}, {Mode: postgres.ModeTransactional}} {
		c.Schema, c.NoMigrate = schema, true
		s := open(t, pool, c)
		if _, err := begin(t, s, c.Mode.String()).Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
		if _, err := begin(t, s, c.Mode.String()+" in pieces").Complete(t.Context(), inPieces('x', nil)); err != nil {
			t.Fatal(err)
		}
		advance(t, owner, pgx.Identifier{schema}.Sanitize(), 48*time.Hour)
		if n, err := s.Sweep(t.Context(), 10); n != 2 || err != nil {
			t.Fatalf("Sweep removed %d records, %v; want 2", n, err)
		}
		in := s.Inbox()
		if err := in.Transact(t.Context(), c.Mode.String(), []string{"m"}, func(context.Context, []bool) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if n, err := in.Sweep(t.Context(), c.Mode.String(), -time.Hour, 10); n != 1 || err != nil {
			t.Fatalf("Sweep removed %d messages, %v; want 1", n, err)
		}
	}
	for _, sql := range []string{"DROP TABLE {s}.record", "TRUNCATE {s}.trail", "UPDATE {s}.version SET version = 9", "CREATE TABLE {s}.mine (n int)"} {
		_, err := pool.Exec(t.Context(), strings.ReplaceAll(sql, "{s}", pgx.Identifier{schema}.Sanitize()))
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "42501" {
			t.Errorf("%s: %v; want it refused", sql, err)
		}
	}
}

// Without the right to sweep the trail the rest works.
func TestLeastPrivilege(t *testing.T) {
	shop := newShop(t)
	open(t, shop.direct, postgres.Config{})
	role := fmt.Sprintf("app%d", schemas.Add(1))
	exec(t, shop.direct, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() {
		exec(t, shop.direct, "DROP OWNED BY "+role)
		exec(t, shop.direct, "DROP ROLE "+role)
	})
	exec(t, shop.direct, postgres.Grants("semel", role))
	exec(t, shop.direct, "REVOKE UPDATE, DELETE ON semel.trail FROM "+role)
	exec(t, shop.direct, "GRANT INSERT ON payment TO "+role)
	u, err := url.Parse(shop.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	pool := connect(t, u.String(), nil)
	leased := open(t, pool, postgres.Config{NoMigrate: true, TrailRetention: -1})
	claim := begin(t, leased, "leased")
	if err := errors.Join(claim.Renew(t.Context()), claim.Hold(t.Context(), "lost contact"), claim.Release(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := leased.Sweep(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	for name, level := range levels {
		c := transactional()
		c.NoMigrate = true
		level(&c)
		claim := begin(t, open(t, pool, c), name)
		if err := pay(claim.Context(t.Context()), name); err != nil {
			t.Fatal(err)
		}
		if _, err := claim.Complete(t.Context(), result("paid")); err != nil {
			t.Fatal(err)
		}
	}
	leased.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "noted"})
	await(t, func() bool {
		entries, err := leased.Trail(t.Context(), semel.TrailFilter{Key: "noted"})
		return err == nil && len(entries) == 1
	})
}
