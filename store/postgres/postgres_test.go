package postgres_test

import (
	"context"
	"fmt"
	"net/url"
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
		if c.Mode == postgres.Transactional {
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
