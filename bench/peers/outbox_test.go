package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
)

// riverArgs is a job with the same payload as a message.
type riverArgs struct {
	Payload string `json:"payload"`
}

func (riverArgs) Kind() string { return "message" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	done func()
}

func (w *riverWorker) Work(context.Context, *river.Job[riverArgs]) error {
	w.done()
	return nil
}

const outboxPayload = 256

// outboxWay is a way to have something done later, on one database.
type outboxWay struct {
	name string
	// enqueue adds one in a transaction of the caller's.
	enqueue func(ctx context.Context, tx pgx.Tx) error
	// fill adds n.
	fill func(b *testing.B, n int)
	// work does them all; done is called for each.
	work func(b *testing.B, n int)
}

// BenchmarkOutbox measures, on one PostgreSQL that is as safe as a new
// installation: a business transaction of one insert alone, and with one message
// or job (enqueue, 16 callers); and doing nothing with each of those that wait
// (work).
//
// River has the settings of its own benchmark: 2,000 workers, which fetch again
// after 2 ms. semel's relay and the plain loop have 512 under way.
func BenchmarkOutbox(b *testing.B) {
	pool, exec := outboxServer(b)
	exec(b, "CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount bigint)")
	ways := []outboxWay{
		{name: "none", enqueue: func(context.Context, pgx.Tx) error { return nil }},
		plainOutbox(b, pool, exec), riverOutbox(b, pool), semelOutbox(b, pool),
	}
	for _, way := range ways {
		b.Run("enqueue/"+way.name, func(b *testing.B) {
			each := func() error {
				return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(b.Context(), "INSERT INTO payment (amount) VALUES (1)"); err != nil {
						return err
					}
					return way.enqueue(b.Context(), tx)
				})
			}
			const callers = 16
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if err := each(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
		})
		if way.work == nil {
			continue
		}
		b.Run("work/"+way.name, func(b *testing.B) {
			way.fill(b, b.N)
			exec(b, "VACUUM ANALYZE")
			b.ResetTimer()
			way.work(b, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// count calls cancel once n are done.
func count(n int, cancel context.CancelFunc) func() {
	var done atomic.Int64
	return func() {
		if done.Add(1) == int64(n) {
			cancel()
		}
	}
}

// plainOutbox is a table and the usual loop: claim 512 with FOR UPDATE SKIP LOCKED,
// call a function for each, update the 512; a statement and a commit for each of the
// two. No fence, no order, no retries.
func plainOutbox(b *testing.B, pool *pgxpool.Pool, exec func(*testing.B, string, ...any)) outboxWay {
	exec(b, `CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload bytea NOT NULL, state int NOT NULL DEFAULT 0)`)
	exec(b, `CREATE INDEX plain_pending ON plain (id) WHERE state = 0`)
	payload := messagePayload(b)
	const insert = "INSERT INTO plain (topic, payload) SELECT 't', $1 FROM generate_series(1, $2)"
	return outboxWay{
		name: "loop",
		enqueue: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO plain (topic, payload) VALUES ('t', $1)", payload)
			return err
		},
		fill: func(b *testing.B, n int) {
			exec(b, "TRUNCATE plain")
			exec(b, insert, payload, n)
		},
		work: func(b *testing.B, n int) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			one := count(n, cancel)
			for ctx.Err() == nil {
				rows, _ := pool.Query(b.Context(), `UPDATE plain SET state = 1 WHERE id IN (
					SELECT id FROM plain WHERE state = 0 ORDER BY id LIMIT 512 FOR UPDATE SKIP LOCKED) RETURNING id, topic, payload`)
				ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (id int64, err error) {
					var topic string
					var payload []byte
					return id, row.Scan(&id, &topic, &payload)
				})
				if err != nil {
					b.Fatal(err)
				}
				for range ids {
					one()
				}
				exec(b, "UPDATE plain SET state = 2 WHERE id = ANY ($1)", ids)
			}
		},
	}
}

// messagePayload is what a message carries: the same as River's jobs.
func messagePayload(b *testing.B) []byte {
	payload, err := json.Marshal(riverArgs{fmt.Sprintf("%0*d", outboxPayload*3/4, 1)})
	if err != nil {
		b.Fatal(err)
	}
	return payload
}

func riverOutbox(b *testing.B, pool *pgxpool.Pool) outboxWay {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil); err != nil {
		b.Fatal(err)
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	inserter, err := river.NewClient(driver, &river.Config{Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	payload := string(make([]byte, outboxPayload*3/4)) // JSON
	payload = fmt.Sprintf("%0*d", len(payload), 1)
	return outboxWay{
		name: "river",
		enqueue: func(ctx context.Context, tx pgx.Tx) error {
			_, err := inserter.InsertTx(ctx, tx, riverArgs{payload}, nil)
			return err
		},
		fill: func(b *testing.B, n int) {
			if _, err := pool.Exec(b.Context(), "TRUNCATE river_job"); err != nil {
				b.Fatal(err)
			}
			for n > 0 {
				some := make([]river.InsertManyParams, min(n, 5000))
				for i := range some {
					some[i].Args = riverArgs{payload}
				}
				if _, err := inserter.InsertManyFast(b.Context(), some); err != nil {
					b.Fatal(err)
				}
				n -= len(some)
			}
		},
		work: func(b *testing.B, n int) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			workers := river.NewWorkers()
			river.AddWorker(workers, &riverWorker{done: count(n, cancel)})
			client, err := river.NewClient(driver, &river.Config{
				Logger: quiet, Workers: workers, FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
				Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
			})
			if err != nil {
				b.Fatal(err)
			}
			if err := client.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			<-ctx.Done()
			if err := client.Stop(b.Context()); err != nil { // which writes down what is done
				b.Fatal(err)
			}
		},
	}
}

func semelOutbox(b *testing.B, pool *pgxpool.Pool) outboxWay {
	store, err := postgres.New(b.Context(), pool, postgres.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close(context.Background()) })
	box := store.Outbox()
	payload := messagePayload(b)
	m := outbox.Message{Topic: "enqueued", Payload: payload}
	return outboxWay{
		name:    "semel",
		enqueue: func(ctx context.Context, tx pgx.Tx) error { return box.EnqueueTx(ctx, tx, m) },
		fill: func(b *testing.B, n int) {
			if _, err := pool.Exec(b.Context(), "TRUNCATE semel.outbox"); err != nil {
				b.Fatal(err)
			}
			some := make([]outbox.Message, 1000)
			for i := range some {
				some[i] = outbox.Message{Topic: "waiting", Payload: payload}
			}
			for n > 0 {
				k := min(n, len(some))
				if err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return box.EnqueueTx(b.Context(), tx, some[:k]...) }); err != nil {
					b.Fatal(err)
				}
				n -= k
			}
		},
		work: func(b *testing.B, n int) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			done := count(n, cancel)
			relay, err := outbox.New(outbox.Config{Store: box, Routes: []outbox.Route{{
				Topic: "waiting", MaxInFlight: 512,
				Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) error { done(); return nil }),
			}}})
			if err != nil {
				b.Fatal(err)
			}
			if err := relay.Run(ctx); err != nil { // ends when all is written down
				b.Fatal(err)
			}
		},
	}
}
