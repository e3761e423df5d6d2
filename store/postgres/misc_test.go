package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"path/filepath"
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

// Both modes work in every way that pgx can send statements.
func TestEveryExecMode(t *testing.T) {
	shop := newShop(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			pool := connect(t, shop.url, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			leased := open(t, pool, postgres.Config{})
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			want := semel.Result{Codec: "test/1", Head: all, Body: all, Reference: string(all), Tombstone: true, Label: "a\x00b\xff"}
			stores := map[string]*postgres.Store{"leased": leased}
			for name, level := range levels {
				c := transactional()
				level(&c)
				stores[name] = open(t, pool, c)
			}
			for name, s := range stores {
				key := fmt.Sprint(mode, " ", name)
				claim := begin(t, s, key)
				if err := claim.Renew(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := claim.Complete(t.Context(), want); err != nil {
					t.Fatalf("%s: Complete: %v", name, err)
				}
				_, err := s.Begin(t.Context(), attempt(key))
				got := conflict(t, err, semel.StateCompleted).Result
				if string(got.Head) != string(all) || string(got.Body) != string(all) || got.Reference != string(all) || !got.Tombstone || got.Label != "a\uFFFDb\uFFFD" {
					t.Fatalf("%s: the result reads back as %+v", name, got)
				}
			}
			for name, s := range stores {
				key := fmt.Sprint(mode, " in pieces ", name)
				pieces := semel.Result{Codec: "test/1", Pieces: &semel.Pieces{Size: int64(len(all)), Read: func(context.Context, int) ([]byte, error) { return all, nil }}}
				if _, err := begin(t, s, key).Complete(t.Context(), pieces); err != nil {
					t.Fatalf("%s: Complete in pieces: %v", name, err)
				}
				r, err := s.Find(t.Context(), attempt(key).Identity)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := r.Result.Pieces.ReadPiece(t.Context(), 0); err != nil || string(got) != string(all) {
					t.Fatalf("%s: the piece reads back as %q, %v", name, got, err)
				}
			}
			held := begin(t, leased, fmt.Sprint(mode, " held"))
			if err := held.Hold(t.Context(), "lost \x00 contact"); err != nil {
				t.Fatal(err)
			}
			if _, err := leased.Resolve(t.Context(), semel.Resolution{
				Identity: attempt(fmt.Sprint(mode, " held")).Identity, Fence: held.Fence(), Decision: semel.DecideResult, Result: want,
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := leased.List(t.Context(), semel.Filter{Tenant: "t", Lapsed: true}); err != nil {
				t.Fatal(err)
			}
			leased.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: mode.String(), Cause: "\x00"})
			await(t, func() bool {
				entries, err := leased.Trail(t.Context(), semel.TrailFilter{Key: mode.String()})
				return err == nil && len(entries) == 1
			})
			if _, err := leased.Sweep(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
		})
	}
}

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

// A sweep waits for nobody: what another session has locked, as a second sweep or
// a backup does, is left to the next one, and the rest goes.
func TestSweepSkipsWhatOthersHaveLocked(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{TrailRetention: time.Hour})
	for i := range 5 {
		if err := begin(t, s, fmt.Sprint(i)).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, "UPDATE semel.trail SET at = at - interval '2 hours'")
	for i := range 5 {
		if _, err := begin(t, s, fmt.Sprint(i)).Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
	}
	// Their executions are not old enough to be forgotten at once.
	exec(t, pool, "UPDATE semel.record SET expires_at = settled_at")
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	for _, sql := range []string{
		"SELECT FROM semel.record WHERE key IN ('0', '3') FOR UPDATE",
		"SELECT FROM semel.trail WHERE key IN ('0', '3') FOR UPDATE",
	} {
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	left := func(table string) (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM semel."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if n, err := s.Sweep(ctx, 100); n != 3 || err != nil {
		t.Fatalf("a sweep beside two locked records removed %d, %v; want 3", n, err)
	}
	if r, e := left("record"), left("trail"); r != 2 || e != 2+3 {
		t.Fatalf("it left %d records and %d audit entries; want 2 of each, and the entries of those it removed", r, e)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Sweep(ctx, 100); n != 2 || err != nil {
		t.Fatalf("the next sweep removed %d, %v; want 2", n, err)
	}
	if r, e := left("record"), left("trail"); r != 0 || e != 5 {
		t.Fatalf("it left %d records and %d audit entries; want the entries of 5 records", r, e)
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
	for _, c := range []postgres.Config{{}, {Mode: postgres.Transactional}} {
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

// Two hosts whose clocks are an hour apart agree, because the package asks no
// clock but the server's: time.Now measures ages and durations only.
func TestNoClockOfItsOwn(t *testing.T) {
	allowed := map[string]bool{"trail.go": true, "sweep.go": true, "outboxlook.go": true, "wait.go": true}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || allowed[name] {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && (s.Sel.Name == "Now" || s.Sel.Name == "Since" || s.Sel.Name == "Until") {
					t.Errorf("%s asks this host's clock: time.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// A transaction that was begun long ago does not carry its old time along.
func TestTimesAreOfTheMomentNotTheTransaction(t *testing.T) {
	shop := newShop(t)
	s := open(t, shop.direct, transactional())
	tx, err := shop.direct.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "SELECT pg_sleep(0.2)"); err != nil {
		t.Fatal(err)
	}
	claim, err := s.Begin(postgres.WithTx(t.Context(), tx), attempt("k"))
	if err != nil {
		t.Fatal(err)
	}
	expires, err := claim.Complete(t.Context(), result("done"))
	if err != nil {
		t.Fatal(err)
	}
	var age time.Duration
	if err := tx.QueryRow(t.Context(), "SELECT $1::timestamptz - interval '24 hours' - now()", expires).Scan(&age); err != nil {
		t.Fatal(err)
	}
	if age < 200*time.Millisecond {
		t.Fatalf("completed %v after the transaction began, which slept for 200 ms", age)
	}
}

func TestNotesBeyondTheLimitAreCounted(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{MaxNotes: 3})
	for i := range 10 {
		s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: fmt.Sprint(i)})
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := open(t, pool, postgres.Config{}).Trail(t.Context(), semel.TrailFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var seq, lost uint64
	for _, e := range entries {
		seq += 1 + e.Count
		lost += e.Count
		if e.Seq != seq && e.Kind != semel.TrailLost {
			t.Fatalf("entry %+v; want seq %d", e, seq)
		}
	}
	if lost == 0 || int(lost)+len(entries) < 10 {
		t.Fatalf("%d entries, %d lost; 10 were noted", len(entries), lost)
	}
}

func TestConfig(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	for _, c := range []postgres.Config{
		{Mode: 7},
		{Schema: "a\x00"},
		{Schema: strings.Repeat("x", 64)},
		{Isolation: pgx.Serializable},
		{Mode: postgres.Transactional, Isolation: "read uncommitted"},
		{LockTimeout: -1},
		{IdleTimeout: -1},
		{PeerTimeout: 25 * time.Hour},
		{MaxResultBytes: 1 << 30},
		{MaxNotes: -1},
		{SweepEvery: -1},
		{Listen: &pgx.ConnConfig{}},
	} {
		if s, err := postgres.New(t.Context(), pool, c); err == nil {
			_ = s.Close(t.Context())
			t.Errorf("%+v was accepted", c)
		}
	}
	if _, err := postgres.New(t.Context(), nil, postgres.Config{}); err == nil {
		t.Error("a nil pool was accepted")
	}
	off := connect(t, testenv.Postgres(t), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	if _, err := postgres.New(t.Context(), off, postgres.Config{}); !errors.Is(err, postgres.ErrUnfit) || !strings.Contains(err.Error(), "synchronous_commit") {
		t.Errorf("New with synchronous_commit=off: %v", err)
	}
}

// Leased claims hold at every default isolation level of the database.
func TestLeasedUnderAnyDefaultIsolation(t *testing.T) {
	server := testenv.Postgres(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		pool := connect(t, server, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level })
		s := open(t, pool, postgres.Config{})
		for round := range 20 {
			key := fmt.Sprint(level, round)
			var (
				wg      sync.WaitGroup
				mu      sync.Mutex
				granted int
			)
			for range 8 {
				wg.Go(func() {
					_, err := s.Begin(t.Context(), attempt(key))
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						granted++
					} else if _, ok := errors.AsType[*semel.ConflictError](err); !ok {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if granted != 1 {
				t.Fatalf("%s: %d claims were granted; want 1", level, granted)
			}
		}
	}
}

func TestRunSweepsUntilTheEnd(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	swept := make(chan postgres.Swept, 100)
	s := open(t, pool, postgres.Config{SweepEvery: 10 * time.Millisecond, TrailRetention: time.Nanosecond, OnSweep: func(d postgres.Swept) { swept <- d }})
	if _, err := begin(t, s, "k").Complete(t.Context(), result("old")); err != nil {
		t.Fatal(err)
	}
	begin(t, s, "running")
	advance(t, pool, "semel", 25*time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	records, entries := 0, 0
	for records < 1 || entries < 1 {
		d := <-swept
		if d.Err != nil {
			t.Fatal(d.Err)
		}
		records, entries = records+d.Records, entries+d.Entries
	}
	cancel()
	if err := <-ended; err != nil || records != 1 || entries != 1 {
		t.Fatalf("Run removed %d records and %d entries and returned %v; want 1, 1, nil", records, entries, err)
	}
}
