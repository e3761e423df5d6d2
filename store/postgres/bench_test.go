package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/postgres"
)

// BenchmarkPayment compares a bare insert in a transaction of its own, the usual
// five round trips that protect it (begin, insert key, insert, update key,
// commit), and this package.
func BenchmarkPayment(b *testing.B) {
	shop := newShop(b)
	exec(b, shop.direct, "DROP TABLE payment")
	exec(b, shop.direct, "CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text)")
	exec(b, shop.direct, "CREATE TABLE usual (key text PRIMARY KEY, state text NOT NULL, body bytea, at timestamptz DEFAULT now())")
	pool := connect(b, shop.url, func(c *pgxpool.Config) { c.MaxConns = 70; c.MinConns = 64 })
	store := open(b, pool, transactional())
	g, err := semel.New(semel.Config{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	leased := open(b, pool, postgres.Config{})
	body := make([]byte, 512)
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
		{"bare one message", func(ctx context.Context, key string) error {
			_, err := pool.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", key)
			return err
		}},
		{"five round trips", func(ctx context.Context, key string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "INSERT INTO usual (key, state) VALUES ($1, 'started')", key); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", key); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "UPDATE usual SET state = 'finished', body = $2 WHERE key = $1", key, body)
				return err
			})
		}},
		{"semel store", func(ctx context.Context, key string) error {
			c, err := store.Begin(ctx, attempt(key))
			if err != nil {
				return err
			}
			if err := pay(c.Context(ctx), key); err != nil {
				return err
			}
			_, err = c.Complete(ctx, semel.Result{Codec: "b", Body: body, Label: "201"})
			return err
		}},
		{"semel guard", func(ctx context.Context, key string) error {
			_, err := g.Do(ctx, submit(key), func(ctx context.Context) (semel.Result, error) {
				return semel.Result{Codec: "b", Body: body, Label: "201"}, pay(ctx, key)
			})
			return err
		}},
		{"semel leased", func(ctx context.Context, key string) error {
			c, err := leased.Begin(ctx, attempt(key))
			if err != nil {
				return err
			}
			_, err = c.Complete(ctx, semel.Result{Codec: "b", Body: body, Label: "201"})
			return err
		}},
	}
	var n atomic.Int64
	run := time.Now().UnixNano()
	for _, callers := range []int{1, 16, 64} {
		for _, w := range ways {
			b.Run(fmt.Sprintf("%s/%d", w.name, callers), func(b *testing.B) {
				var left atomic.Int64
				left.Store(int64(b.N))
				done := make(chan error, callers)
				b.ResetTimer()
				for range callers {
					go func() {
						for left.Add(-1) >= 0 {
							if err := w.pay(b.Context(), fmt.Sprintf("%x-%d", run, n.Add(1))); err != nil {
								done <- err
								return
							}
						}
						done <- nil
					}()
				}
				for range callers {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
			})
		}
	}
}
