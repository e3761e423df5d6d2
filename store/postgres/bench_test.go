package postgres_test

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// farConn is a connection to a server that is a round trip away: the first read
// after a write waits that long.
type farConn struct {
	net.Conn
	away    time.Duration
	written atomic.Bool
	trips   *atomic.Int64
}

func (c *farConn) Write(p []byte) (int, error) {
	c.written.Store(true)
	return c.Conn.Write(p)
}

func (c *farConn) Read(p []byte) (int, error) {
	if c.written.Swap(false) {
		c.trips.Add(1)
		if c.away > 0 {
			time.Sleep(c.away)
		}
	}
	return c.Conn.Read(p)
}

// BenchmarkPayment compares a payment that is inserted in a transaction of its
// own, with nothing to protect it, with payments that are protected: by hand, in
// the usual five round trips (begin, insert key, insert, update key, commit),
// and by this package.
//
// Each iteration runs every way for half a second, in turn, and the figures are
// the medians of all iterations: of operations a second, and of the ratios of
// ways in the same iteration. Use -benchtime=7x or so.
func BenchmarkPayment(b *testing.B) {
	// As a new installation has it, but for the memory.
	server := testenv.StartPostgres(b, testenv.PostgresOptions{Parameters: map[string]string{
		"autovacuum": "on", "shared_buffers": "256MB",
	}})
	for _, away := range []time.Duration{0, time.Millisecond} {
		b.Run("away="+away.String(), func(b *testing.B) { benchmarkPayment(b, server.NewDatabase(b), away) })
	}
}

func benchmarkPayment(b *testing.B, url string, away time.Duration) {
	direct := connect(b, url, nil)
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes", "autovacuum"} {
		var v string
		if err := direct.QueryRow(b.Context(), "SHOW "+setting).Scan(&v); err != nil || v != "on" {
			b.Fatalf("%s is %s, %v; want on", setting, v, err)
		}
	}
	exec(b, direct, "CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text)")
	exec(b, direct, "CREATE TABLE usual (key text PRIMARY KEY, state text NOT NULL, body bytea, at timestamptz DEFAULT now())")
	var trips atomic.Int64
	pool := connect(b, url, func(c *pgxpool.Config) {
		c.MaxConns, c.MinConns = 70, 64
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &farConn{Conn: conn, away: away, trips: &trips}, err
		}
	})
	store := open(b, pool, transactional())
	g := guard(b, store, semel.Policy{})
	leased := open(b, pool, postgres.Config{})
	body := make([]byte, 512)
	done := semel.Result{Codec: "b", Body: body, Label: "201"}

	byHand := func(first, last string, args func(key string) (first, last []any)) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			one, two := args(key)
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, first, one...); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", key); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, last, two...)
				return err
			})
		}
	}
	ways := []struct {
		name string
		pay  func(ctx context.Context, key string) error
	}{
		{"bare", func(ctx context.Context, key string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", key)
				return err
			})
		}},
		{"bare-1", func(ctx context.Context, key string) error { // in one message
			_, err := pool.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", key)
			return err
		}},
		// A key, a state and the answer.
		{"five", byHand(
			"INSERT INTO usual (key, state) VALUES ($1, 'started')",
			"UPDATE usual SET state = 'finished', body = $2 WHERE key = $1",
			func(key string) (first, last []any) { return []any{key}, []any{key, body} },
		)},
		// The same facts as the store, in its table.
		{"five-same", byHand(
			`INSERT INTO semel.record (number, digest, token, tenant, actor, operation, key, state, begun_at, lease_until, retention,
				fingerprint_scheme, fingerprint_sum)
			VALUES (nextval('semel.counter'), $1::uuid, $2::uuid, 't', 'a', 'payments.create', $3, 1, clock_timestamp(),
				clock_timestamp() + interval '15 s', interval '1 day', $4, $5)`,
			`UPDATE semel.record SET state = 2, settled_at = clock_timestamp(), expires_at = clock_timestamp() + retention,
				lease_until = NULL, retention = NULL, codec = 'b', label = '201', body = $2
			WHERE digest = $1::uuid AND state = 1`,
			func(key string) (first, last []any) {
				a := attempt(key)
				digest := pgtype.UUID{Bytes: md5.Sum([]byte(key)), Valid: true}
				token := pgtype.UUID{Bytes: a.Token, Valid: true}
				return []any{digest, token, key, a.Fingerprint.Scheme, a.Fingerprint.Sum[:]}, []any{digest, body}
			},
		)},
		{"store", func(ctx context.Context, key string) error {
			c, err := store.Begin(ctx, attempt(key))
			if err != nil {
				return err
			}
			if err := pay(c.Context(ctx), key); err != nil {
				return err
			}
			_, err = c.Complete(ctx, done)
			return err
		}},
		{"guard", func(ctx context.Context, key string) error {
			_, err := g.Do(ctx, submit(key), func(ctx context.Context) (semel.Result, error) { return done, pay(ctx, key) })
			return err
		}},
		{"leased", func(ctx context.Context, key string) error {
			c, err := leased.Begin(ctx, attempt(key))
			if err != nil {
				return err
			}
			_, err = c.Complete(ctx, done)
			return err
		}},
	}
	run := func(callers int, span time.Duration, pay func(context.Context, string) error) (perSecond, perTrip float64, err error) {
		ctx, cancel := context.WithTimeout(b.Context(), span)
		defer cancel()
		var n atomic.Int64
		failed := make(chan error, callers)
		start, before := time.Now(), trips.Load()
		for range callers {
			go func() {
				// Keys of clients are random, and so is where they go in an index.
				for ctx.Err() == nil {
					if err := pay(b.Context(), rand.Text()); err != nil {
						failed <- err
						return
					}
					n.Add(1)
				}
				failed <- nil
			}()
		}
		for range callers {
			if e := <-failed; e != nil {
				err = e
			}
		}
		ops := float64(n.Load())
		return ops / time.Since(start).Seconds(), float64(trips.Load()-before) / ops, err
	}
	for _, w := range ways { // connects, prepares
		if _, _, err := run(64, 300*time.Millisecond, w.pay); err != nil {
			b.Fatalf("%s: %v", w.name, err)
		}
	}
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			rates, roundTrips := map[string][]float64{}, map[string]float64{}
			for range b.N {
				for i := range ways {
					w := ways[(i+len(rates))%len(ways)]
					rate, perTrip, err := run(callers, 500*time.Millisecond, w.pay)
					if err != nil {
						b.Fatalf("%s: %v", w.name, err)
					}
					rates[w.name] = append(rates[w.name], rate)
					roundTrips[w.name] = perTrip
				}
			}
			b.ReportMetric(0, "ns/op")
			for _, w := range ways {
				b.ReportMetric(median(rates[w.name]), w.name+"/s")
				b.ReportMetric(roundTrips[w.name], w.name+"-trips/op")
			}
			for _, to := range []string{"bare", "bare-1", "five", "five-same"} {
				var ratios []float64
				for i, r := range rates["store"] {
					ratios = append(ratios, r/rates[to][i])
				}
				b.ReportMetric(median(ratios), "store:"+to)
			}
		})
	}
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
