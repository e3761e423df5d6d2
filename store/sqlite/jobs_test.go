package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/jobs/jobstest"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

func jobsHarness(t testing.TB, path string) jobstest.Harness {
	s := openTx(t, sqlite.Config{Path: path, BusyTimeout: time.Minute})
	db := raw(t, path)
	mustExec(t, db, effectTable)
	return jobstest.Harness{
		Store: s.Outbox(), Inbox: s.Inbox(), Exclusive: true, Effect: effect, EnqueueInside: sqlite.Enqueue,
		Enqueue: func(ctx context.Context, m ...outbox.Message) error { return enqueue(ctx, db, m...) },
		Advance: func(d time.Duration) { shiftOutbox(t, db, -d) },
		Effects: func() map[string]int { return effects(t, db) },
	}
}

func TestJobs(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	jobstest.Run(t, jobstest.Config{New: func(t testing.TB) jobstest.Harness {
		return jobsHarness(t, filepath.Join(t.TempDir(), "semel.db"))
	}})
}

// playJobs runs jobs until its input ends.
func playJobs(path string, _ *bufio.Scanner) error {
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	return errors.Join(jobstest.Work(s.Outbox(), s.Inbox(), effect, os.Stdin, os.Stdout), s.Close(context.Background()))
}
