package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/jobs/jobstest"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
)

func jobsHarness(t testing.TB, pool *pgxpool.Pool, c postgres.Config) jobstest.Harness {
	s := open(t, pool, c)
	o := s.Outbox()
	exec(t, pool, "CREATE TABLE "+c.Schema+".effect (name text COLLATE \"C\" NOT NULL)")
	return jobstest.Harness{
		Store: o, Inbox: s.Inbox(), EnqueueInside: postgres.Enqueue,
		Enqueue: func(ctx context.Context, m ...outbox.Message) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return o.EnqueueTx(ctx, tx, m...) })
		},
		Effect:  func(ctx context.Context, name string) error { return effect(ctx, c.Schema, name) },
		Effects: func() map[string]int { return effects(t, pool, c.Schema) },
	}
}

func TestJobs(t *testing.T) {
	t.Parallel()
	pool := connect(t, testenv.Postgres(t), nil)
	jobstest.Run(t, jobstest.Config{New: func(t testing.TB) jobstest.Harness {
		return jobsHarness(t, pool, postgres.Config{Schema: fmt.Sprintf("rule%d", schemas.Add(1))})
	}})
}
