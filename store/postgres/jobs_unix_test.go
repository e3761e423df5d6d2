//go:build unix

package postgres_test

import (
	"context"
	"os"
	osexec "os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/jobs/jobstest"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/postgres"
)

const jobsVariable = "SEMEL_POSTGRES_TEST_JOBS" // the URL of the database to run jobs of

// A process is stopped in the middle of a job, which another takes over.
func TestJobsOfAPausedProcess(t *testing.T) {
	const schema = "semel"
	if url := os.Getenv(jobsVariable); url != "" { // that process
		s := open(t, connect(t, url, nil), postgres.Config{})
		err := jobstest.Work(s.Outbox(), s.Inbox(), func(ctx context.Context, name string) error { return effect(ctx, schema, name) }, os.Stdin, os.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		os.Exit(0) // and say nothing more
	}
	t.Parallel()
	server := testenv.Postgres(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	jobstest.Paused(t, jobsHarness(t, connect(t, server, nil), postgres.Config{Schema: schema}), func() *osexec.Cmd {
		c := osexec.CommandContext(t.Context(), self, "-test.run=^TestJobsOfAPausedProcess$")
		c.Env = append(os.Environ(), jobsVariable+"="+server)
		return c
	})
}

func BenchmarkJobs(b *testing.B) {
	_, pool := benchOutbox(b)
	jobstest.Benchmark(b, jobsHarness(b, pool, postgres.Config{Schema: "jobs"}))
}

func BenchmarkSteps(b *testing.B) {
	_, pool := benchOutbox(b)
	s := open(b, pool, postgres.Config{})
	h := stepstest.Harness{Store: s.Steps(), Effect: func(ctx context.Context, name string) error {
		tx, _ := postgres.Tx(ctx)
		_, err := tx.Exec(ctx, "INSERT INTO business (note) VALUES ($1)", name)
		return err
	}}
	stepstest.Benchmark(b, h, s, func() error {
		return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(b.Context(), "INSERT INTO business (note) VALUES ('a business row of some length')")
			return err
		})
	})
}

func BenchmarkCompleter(b *testing.B) {
	_, pool := benchOutbox(b)
	s := open(b, pool, postgres.Config{})
	stepstest.BenchmarkCompleter(b, stepstest.Harness{Store: s.Steps()}, s)
}
