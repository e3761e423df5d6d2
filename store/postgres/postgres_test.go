package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/storetest"
)

func connect(t testing.TB, url string, tune func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 20
	if tune != nil {
		tune(c)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func open(t testing.TB, pool *pgxpool.Pool, c postgres.Config) *postgres.Store {
	t.Helper()
	s, err := postgres.New(t.Context(), pool, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// advance moves the records of a schema into the past.
func advance(t testing.TB, pool *pgxpool.Pool, schema string, d time.Duration) {
	t.Helper()
	exec(t, pool, `UPDATE `+schema+`.record SET begun_at = begun_at - $1::interval, lease_until = lease_until - $1::interval,
		settled_at = settled_at - $1::interval, expires_at = expires_at - $1::interval`, d)
}

var schemas atomic.Int64

// harness gives each rule a schema of its own in one database. The store runs
// on pool, through the proxy, and what the harness does runs on direct.
func harness(direct, pool *pgxpool.Pool, proxy *testenv.Proxy, config postgres.Config) func(t testing.TB) storetest.Harness {
	return func(t testing.TB) storetest.Harness {
		c := config
		c.Schema = fmt.Sprintf("rule%d", schemas.Add(1))
		store := func() semel.Store { return open(t, pool, c) }
		h := storetest.Harness{
			Store:   store(),
			Open:    store,
			Skewed:  func(time.Duration) semel.Store { return store() },
			Advance: func(d time.Duration) { advance(t, direct, c.Schema, d) },
			Break: func() (mend func()) {
				proxy.Silence(true)
				proxy.Mute()
				return func() {
					proxy.Silence(false)
					proxy.Cut()
				}
			},
			Backup: func() (restore func()) {
				for _, table := range []string{"record", "piece", "trail"} {
					exec(t, direct, "CREATE TABLE "+c.Schema+".backup_"+table+" AS TABLE "+c.Schema+"."+table)
				}
				exec(t, direct, "CREATE TABLE "+c.Schema+".backup_counter AS SELECT last_value FROM "+c.Schema+".counter")
				return func() {
					for _, table := range []string{"record", "piece", "trail"} {
						exec(t, direct, "TRUNCATE "+c.Schema+"."+table)
						exec(t, direct, "INSERT INTO "+c.Schema+"."+table+" TABLE "+c.Schema+".backup_"+table)
					}
					exec(t, direct, "SELECT setval('"+c.Schema+".counter', last_value) FROM "+c.Schema+".backup_counter")
				}
			},
		}
		if c.Mode == postgres.ModeTransactional {
			withTransactions(t, &h, direct, proxy, c.Schema)
		}
		return h
	}
}

// through returns the URL of a database with the proxy in its server's place.
func through(t testing.TB, server string) (proxied string, p *testenv.Proxy) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p = testenv.NewProxy(t, u.Host)
	u.Host = p.Addr()
	return u.String(), p
}

const skips = "../../storetest/skips.txt"

func TestLeased(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	proxied, proxy := through(t, server)
	storetest.Run(t, storetest.Config{
		Name: "postgres-leased", SkipTable: skips,
		New: harness(connect(t, server, nil), connect(t, proxied, nil), proxy, postgres.Config{}),
	})
}

func unprepared(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }

func TestLeasedThroughPgBouncer(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	proxied, proxy := through(t, testenv.PgBouncer(t, server))
	storetest.Run(t, storetest.Config{
		Name: "postgres-leased", SkipTable: skips,
		New: harness(connect(t, server, nil), connect(t, proxied, unprepared), proxy, postgres.Config{}),
	})
}

func TestConfig(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	for _, c := range []postgres.Config{
		{Mode: 7},
		{Schema: "a\x00"},
		{Schema: strings.Repeat("x", 64)},
		{Isolation: pgx.Serializable},
		{Mode: postgres.ModeTransactional, Isolation: "read uncommitted"},
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
