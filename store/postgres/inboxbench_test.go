package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

const benchEffect = "INSERT INTO effect (name) VALUES ('a business row of some length')"

func benchMessage(ctx context.Context) error {
	tx, _ := postgres.Tx(ctx)
	_, err := tx.Exec(ctx, benchEffect)
	return err
}

func benchInbox(b *testing.B) (*pgxpool.Pool, inbox.Store) {
	pool := connect(b, testenv.StartPostgres(b, testenv.PostgresOptions{}).URL(), nil)
	exec(b, pool, "CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL)")
	return pool, open(b, pool, postgres.Config{}).Inbox()
}

func BenchmarkInbox(b *testing.B) {
	pool, in := benchInbox(b)
	inboxtest.Benchmark(b, in, benchMessage, func(n int) error {
		return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			for range n {
				if _, err := tx.Exec(b.Context(), benchEffect); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func BenchmarkInboxLookUp(b *testing.B) {
	_, in := benchInbox(b)
	inboxtest.BenchmarkLookUp(b, in, benchMessage)
}
