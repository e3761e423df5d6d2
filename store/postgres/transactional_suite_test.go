package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/storetest"
)

// withTransactions adds to a harness what the rules for transactions need.
func withTransactions(t testing.TB, h *storetest.Harness, direct *pgxpool.Pool, proxy *testenv.Proxy, schema string) {
	t.Helper()
	exec(t, direct, "CREATE TABLE "+schema+".effect (id bigint GENERATED ALWAYS AS IDENTITY)")
	h.Transactional = true
	h.Effect = func(ctx context.Context) error {
		tx, ok := postgres.Tx(ctx)
		if !ok {
			return errors.New("there is no transaction")
		}
		_, err := tx.Exec(ctx, "INSERT INTO "+schema+".effect DEFAULT VALUES")
		return err
	}
	h.Effects = func() (n int) {
		t.Helper()
		if err := direct.QueryRow(context.Background(), "SELECT count(*) FROM "+schema+".effect").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	h.LoseCommit = func(taken bool) {
		if taken {
			cutCommit(proxy, testenv.CutAfter)
		} else {
			cutCommit(proxy, testenv.CutBefore)
		}
	}
}

func TestTransactional(t *testing.T) { testTransactional(t, postgres.Config{}) }

// Here the record is written first, and duplicates wait for it or fail.
func TestTransactionalWithoutAdvisoryLocks(t *testing.T) {
	testTransactional(t, postgres.Config{NoAdvisoryLocks: true, Isolation: pgx.Serializable})
}

func testTransactional(t *testing.T, c postgres.Config) {
	t.Parallel()
	c.Mode = postgres.Transactional
	server := testenv.Postgres(t)
	proxied, proxy := through(t, server)
	storetest.Run(t, storetest.Config{
		Name: "postgres-transactional", SkipTable: skips,
		// Not prepared, so that the proxy can tell a commit.
		New: harness(connect(t, server, nil), connect(t, proxied, unprepared), proxy, c),
	})
}
