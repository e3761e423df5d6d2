package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
)

var benchPayload = make([]byte, 300)

// benchOutbox is an outbox on a server as a new installation has it, but for the
// memory.
func benchOutbox(b *testing.B) (*postgres.Outbox, *pgxpool.Pool) {
	server := testenv.StartPostgres(b, testenv.PostgresOptions{Parameters: map[string]string{
		"autovacuum": "on", "shared_buffers": "512MB", "max_wal_size": "4GB",
	}})
	pool := connect(b, server.NewDatabase(b), nil)
	o := open(b, pool, postgres.Config{}).Outbox()
	exec(b, pool, "CREATE TABLE business (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
	return o, pool
}

// BenchmarkEnqueue is a business transaction of one row, by 8 callers: bare, with a
// message without a key, with one in a lane that no other caller has, with one in one
// lane of all, and bare with a notification, for what that costs. The ways take
// turns; the ratios are to bare in the same turn.
func BenchmarkEnqueue(b *testing.B) {
	o, pool := benchOutbox(b)
	ways := []string{"bare", "unkeyed", "origin", "keyed", "one-lane", "notify"}
	run := func(way string, span time.Duration) float64 {
		var n atomic.Int64
		failed := make(chan error, 8)
		start := time.Now()
		for caller := range 8 {
			go func() {
				var err error
				for time.Since(start) < span && err == nil {
					err = pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
						if _, err := tx.Exec(b.Context(), "INSERT INTO business (note) VALUES ('a business row of some length')"); err != nil {
							return err
						}
						m := outbox.Message{Topic: "t", Payload: benchPayload}
						switch way {
						case "bare":
							return nil
						case "origin":
							m.Origin = "o4sew2hyifxwyyuhbwdo4mwknq"
						case "notify":
							_, err := tx.Exec(b.Context(), "SELECT pg_notify('x', '')")
							return err
						case "keyed":
							m.Key = fmt.Sprint(caller, "/", n.Load()%1000)
						case "one-lane":
							m.Key = "k"
						}
						return o.EnqueueTx(b.Context(), tx, m)
					})
					n.Add(1)
				}
				failed <- err
			}()
		}
		for range 8 {
			if err := <-failed; err != nil {
				b.Fatal(err)
			}
		}
		return float64(n.Load()) / time.Since(start).Seconds()
	}
	for _, w := range ways {
		run(w, 200*time.Millisecond)
	}
	rates, ratios := map[string][]float64{}, map[string][]float64{}
	for range b.N {
		for _, w := range ways {
			rates[w] = append(rates[w], run(w, 500*time.Millisecond))
			ratios[w] = append(ratios[w], rates[w][len(rates[w])-1]/rates["bare"][len(rates["bare"])-1])
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, w := range ways {
		b.ReportMetric(median(rates[w]), w+"/s")
		b.ReportMetric(median(ratios[w]), w+":bare")
	}
}

// fillMessages inserts messages, in so many lanes or without keys.
func fillMessages(b *testing.B, pool *pgxpool.Pool, n, lanes int) {
	together := n
	if lanes > 1000 {
		together = 1000 // a transaction holds the lock of each lane
	}
	for from := 0; from < n; from += together {
		exec(b, pool, `INSERT INTO semel.outbox (topic, key, payload)
			SELECT 't', CASE WHEN $3 > 0 THEN 'lane ' || (i % $3) END, $4 FROM generate_series($1::integer, $2::integer) AS i`,
			from+1, min(from+together, n), lanes, benchPayload)
	}
}

// BenchmarkRelay delivers what waits to a sink that does nothing, in turns with a
// plain loop that claims a batch, calls the sink and marks the batch as sent, on a
// table with one index. One op is a turn of 20,000 messages each.
func BenchmarkRelay(b *testing.B) {
	const batch, n = 64, 20_000
	o, pool := benchOutbox(b)
	exec(b, pool, "CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload bytea NOT NULL, state integer NOT NULL DEFAULT 0)")
	exec(b, pool, "CREATE INDEX plain_pending ON plain (id) WHERE state = 0")
	relay := func(inFlight int) float64 {
		var done atomic.Int64
		ctx, cancel := context.WithCancel(b.Context())
		r, err := outbox.New(outbox.Config{Store: o, SweepEvery: -1, Routes: []outbox.Route{{MaxInFlight: inFlight, Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) error {
			if done.Add(1) == n {
				cancel()
			}
			return nil
		})}}})
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if err := r.Run(ctx); err != nil {
			b.Fatal(err)
		}
		return n / time.Since(start).Seconds()
	}
	plain := func() float64 {
		start := time.Now()
		for done := 0; done < n; {
			rows, _ := pool.Query(b.Context(), `UPDATE plain SET state = 1 WHERE id IN (
				SELECT id FROM plain WHERE state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING id, topic, payload`, batch)
			var ids []int64
			var id int64
			var topic string
			var payload []byte
			if _, err := pgx.ForEachRow(rows, []any{&id, &topic, &payload}, func() error { ids = append(ids, id); return nil }); err != nil {
				b.Fatal(err)
			}
			exec(b, pool, "UPDATE plain SET state = 2 WHERE id = ANY($1)", ids)
			done += len(ids)
		}
		return n / time.Since(start).Seconds()
	}
	calls := func() float64 { // the store's calls alone, as the plain loop makes them
		start := time.Now()
		var delivered []outbox.Settlement
		for done := 0; done < n; done += len(delivered) {
			got, lost, err := o.Exchange(b.Context(), delivered, outbox.Claim{Max: batch, Lease: time.Minute})
			if err != nil || len(lost) > 0 {
				b.Fatal(lost, err)
			}
			delivered = make([]outbox.Settlement, len(got))
			for i, m := range got {
				delivered[i] = outbox.Settlement{Ref: m.Ref, Outcome: outbox.OutcomeDelivered}
			}
		}
		if _, _, err := o.Exchange(b.Context(), delivered, outbox.Claim{}); err != nil {
			b.Fatal(err)
		}
		return n / time.Since(start).Seconds()
	}
	rates, ratios := map[string][]float64{}, map[string][]float64{}
	for range b.N {
		exec(b, pool, "INSERT INTO plain (topic, payload) SELECT 't', $2 FROM generate_series(1, $1::integer)", n, benchPayload)
		base := plain()
		rates["plain"] = append(rates["plain"], base)
		fillMessages(b, pool, n, 0)
		rate := calls()
		rates["calls"], ratios["calls"] = append(rates["calls"], rate), append(ratios["calls"], rate/base)
		for name, way := range map[string]struct{ lanes, inFlight int }{
			"relay": {0, batch}, "relay-256": {0, 256}, "lanes": {1000, batch},
		} {
			fillMessages(b, pool, n, way.lanes)
			rate := relay(way.inFlight)
			rates[name], ratios[name] = append(rates[name], rate), append(ratios[name], rate/base)
		}
	}
	b.ReportMetric(0, "ns/op")
	for name := range rates {
		b.ReportMetric(median(rates[name]), name+"/s")
		if name != "plain" {
			b.ReportMetric(median(ratios[name]), name+":plain")
		}
	}
}

// BenchmarkClaim claims and releases 64 messages where many wait: due, leased, for
// later, and in one lane behind its first. One op is a claim with its release.
func BenchmarkClaim(b *testing.B) {
	for _, kind := range []string{"due", "leased", "delayed", "lane", "lanes"} {
		for _, n := range []int{10_000, 1_000_000} {
			b.Run(fmt.Sprint(kind, "/", n), func(b *testing.B) {
				o, pool := benchOutbox(b)
				exec(b, pool, "ALTER SYSTEM SET synchronous_commit = off")
				exec(b, pool, "SELECT pg_reload_conf()")
				fillMessages(b, pool, n, map[string]int{"lane": 1, "lanes": n / 2}[kind])
				switch kind {
				case "leased":
					exec(b, pool, "UPDATE semel.outbox_queue SET leased = true, fence = 7, due = clock_timestamp() + '1 h', until = clock_timestamp() + '1 h'")
				case "delayed":
					exec(b, pool, "UPDATE semel.outbox_queue SET not_before = clock_timestamp() + '1 h', due = clock_timestamp() + '1 h'")
				}
				if kind != "due" && kind != "lanes" {
					fillMessages(b, pool, 64, 0)
				}
				exec(b, pool, "VACUUM ANALYZE")
				b.ResetTimer()
				for b.Loop() {
					got, _, err := o.Exchange(b.Context(), nil, outbox.Claim{Max: 64, Lease: time.Hour})
					if err != nil || len(got) < 64 {
						b.Fatal(len(got), err)
					}
					release := make([]outbox.Settlement, len(got))
					for i, m := range got {
						release[i] = outbox.Settlement{Ref: m.Ref, Outcome: outbox.OutcomeReleased}
					}
					if _, lost, err := o.Exchange(b.Context(), release, outbox.Claim{}); err != nil || len(lost) > 0 {
						b.Fatal(lost, err)
					}
				}
			})
		}
	}
}
