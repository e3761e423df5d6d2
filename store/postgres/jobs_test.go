package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/jobs"
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
		Advance: func(d time.Duration) {
			age(t, pool, c.Schema, d)
			o.ForgetFloors()
		},
		Effect:  func(ctx context.Context, name string) error { return effect(ctx, c.Schema, name) },
		Effects: func() map[string]int { return effects(t, pool, c.Schema) },
	}
}

func TestJobs(t *testing.T) {
	t.Parallel()
	pool := connect(t, testenv.Postgres(t), nil)
	for name, isolation := range map[string]pgx.TxIsoLevel{"read committed": "", "repeatable read": pgx.RepeatableRead, "serializable": pgx.Serializable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jobstest.Run(t, jobstest.Config{New: func(t testing.TB) jobstest.Harness {
				c := postgres.Config{Schema: fmt.Sprintf("rule%d", schemas.Add(1))}
				if isolation != "" {
					c.Mode, c.Isolation = postgres.ModeTransactional, isolation
				}
				h := jobsHarness(t, pool, c)
				h.Snapshot = isolation != ""
				return h
			}})
		})
	}
}

// Jobs that read and write one row, at the isolation levels that refuse all but one of
// those at the same time: each is refused without a trace until it is done, once.
func TestJobsThatConflict(t *testing.T) {
	t.Parallel()
	pool := connect(t, testenv.Postgres(t), nil)
	for _, isolation := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(isolation), func(t *testing.T) {
			c := postgres.Config{Schema: fmt.Sprintf("rule%d", schemas.Add(1)), Mode: postgres.ModeTransactional, Isolation: isolation}
			h := jobsHarness(t, pool, c)
			exec(t, pool, "CREATE TABLE "+c.Schema+".tally (n int NOT NULL)")
			exec(t, pool, "INSERT INTO "+c.Schema+".tally VALUES (0)")
			const n = 12
			for i := range n {
				m, err := jobs.Job{ID: fmt.Sprint("j", i), Queue: "q", Kind: "count"}.Message()
				if err == nil {
					err = h.Enqueue(t.Context(), m)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			done, refused := make(chan string, n), atomic.Int64{}
			var together sync.WaitGroup // the first two read before either writes
			together.Add(2)
			var first atomic.Int64
			w, err := jobs.New(jobs.Config{
				Store: h.Store, Inbox: h.Inbox, Authorize: jobs.Trusted,
				Queues: []jobs.QueueConfig{{Name: "q", Workers: 4, MaxAttempts: 1000, Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond}},
				Handlers: map[string]jobs.Handler{"count": {Handle: func(ctx context.Context, j jobs.Job) error {
					tx, _ := postgres.Tx(ctx)
					var seen int
					if err := tx.QueryRow(ctx, "SELECT n FROM "+c.Schema+".tally").Scan(&seen); err != nil {
						return err
					}
					if first.Add(1) <= 2 {
						together.Done()
						together.Wait()
					}
					if err := h.Effect(ctx, j.ID); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "UPDATE "+c.Schema+".tally SET n = $1", seen+1)
					return err
				}}},
				Relay: outbox.Config{PollMin: time.Millisecond, PollMax: 20 * time.Millisecond, Observer: &outbox.Observer{
					Delivered: func(_ context.Context, a outbox.Attempted) { done <- a.ID },
					Retried: func(_ context.Context, a outbox.Attempted) {
						if e, ok := errors.AsType[*pgconn.PgError](a.Err); !ok || e.Code != "40001" {
							t.Errorf("%s: %v", a.ID, a.Err)
						}
						refused.Add(1)
					},
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.Run(ctx) }()
			for range n {
				select {
				case <-done:
				case <-time.After(time.Minute):
					t.Fatal("waited in vain for a job")
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			var counted int
			if err := pool.QueryRow(t.Context(), "SELECT n FROM "+c.Schema+".tally").Scan(&counted); err != nil || counted != n {
				t.Errorf("counted %d, %v; want %d", counted, err, n)
			}
			for i := range n {
				if got := h.Effects()[fmt.Sprint("j", i)]; got != 1 {
					t.Errorf("j%d had %d effects", i, got)
				}
			}
			if refused.Load() == 0 {
				t.Error("none was ever refused")
			}
			t.Logf("%d attempts were refused", refused.Load())

			// A job with a key cannot be settled there, and says so.
			m, err := jobs.Job{ID: "keyed", Queue: "other", Kind: "count", Key: "k"}.Message()
			if err == nil {
				err = h.Enqueue(t.Context(), m)
			}
			claimed, _, cerr := h.Store.Exchange(t.Context(), nil, outbox.Claim{Max: 1, Lease: time.Minute})
			if err = errors.Join(err, cerr); err != nil || len(claimed) != 1 {
				t.Fatal(claimed, err)
			}
			err = h.Inbox.Transact(t.Context(), "c", []string{"keyed"}, func(ctx context.Context, _ []bool) error {
				return errors.Join(h.Effect(ctx, "keyed"), h.Store.SettleTx(ctx, claimed[0].Ref))
			})
			if err == nil || !strings.Contains(err.Error(), "at read committed only") || !strings.Contains(err.Error(), "nothing took effect") {
				t.Errorf("settled with a key: %v", err)
			}
			if n := h.Effects()["keyed"]; n != 0 {
				t.Errorf("%d effects of what was refused", n)
			}
		})
	}
}
