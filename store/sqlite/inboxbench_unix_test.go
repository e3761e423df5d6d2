//go:build linux || darwin

package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/jobs/jobstest"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/sqlite"
)

const benchEffect = "INSERT INTO effect (name) VALUES ('a business row of some length')"

func benchMessage(ctx context.Context) error {
	tx, _ := sqlite.Tx(ctx)
	_, err := tx.ExecContext(ctx, benchEffect)
	return err
}

func BenchmarkInbox(b *testing.B) {
	s, db := benchStore(b)
	mustExec(b, db, effectTable)
	inboxtest.Benchmark(b, s.Inbox(), benchMessage, func(n int) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		for range n {
			if _, err := tx.Exec(benchEffect); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}

// BenchmarkInboxLookUp is by itself, and beside a handler that is always at work, for
// 2 ms at a time.
func BenchmarkInboxLookUp(b *testing.B) {
	for _, name := range []string{"idle", "busy"} {
		b.Run(name, func(b *testing.B) {
			s, db := benchStore(b)
			mustExec(b, db, effectTable)
			store := s.Inbox()
			if name == "busy" {
				in := newInbox(b, store, "other")
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() {
					defer close(done)
					for ctx.Err() == nil {
						_, _ = in.Process(ctx, semel.NewKey(), func(context.Context) error { time.Sleep(2 * time.Millisecond); return nil })
					}
				}()
				defer func() { cancel(); <-done }()
			}
			inboxtest.BenchmarkLookUp(b, store, benchMessage)
		})
	}
}

func BenchmarkJobs(b *testing.B) {
	jobstest.Benchmark(b, jobsHarness(b, filepath.Join(b.TempDir(), "semel.db")))
}

func BenchmarkSteps(b *testing.B) {
	s, db := benchStore(b)
	mustExec(b, db, effectTable)
	h := stepstest.Harness{Store: s.Steps(), Effect: effect}
	stepstest.Benchmark(b, h, s, func() error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		if _, err := tx.Exec(benchEffect); err != nil {
			return err
		}
		return tx.Commit()
	})
}

func BenchmarkCompleter(b *testing.B) {
	s, _ := benchStore(b)
	stepstest.BenchmarkCompleter(b, stepstest.Harness{Store: s.Steps()}, s)
}
