package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/postgres"
)

// A success cannot be recorded for a transaction that failed.
func TestSwallowedErrorIsNoSuccess(t *testing.T) {
	shop := newShop(t)
	g := guard(t, open(t, connect(t, shop.url, nil), transactional()), semel.Policy{})
	tests := map[string]func(context.Context, pgx.Tx) error{
		"a failed statement": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "SELECT no_such_column")
			return nil
		},
		"a deferred constraint": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO payment (key, account) VALUES ('x', 'nobody')")
			return err
		},
		"rows left open": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
			return err
		},
		"a panic": func(context.Context, pgx.Tx) error { panic("handler") },
		"an error": func(context.Context, pgx.Tx) error {
			return errors.New("an error that does not say whether there was an effect")
		},
		"a closed connection": func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) },
	}
	for name, step := range tests {
		t.Run(name, func(t *testing.T) {
			first := submit(name)
			first.Detached = true // a panic is an answer then
			_, err := g.Do(t.Context(), first, func(ctx context.Context) (semel.Result, error) {
				if err := pay(ctx, name); err != nil {
					return semel.Result{}, err
				}
				tx, _ := postgres.Tx(ctx)
				return result("paid"), step(ctx, tx)
			})
			if !errors.Is(err, semel.ErrNoEffect) {
				t.Fatalf("Do: %v; want certainly no effect", err)
			}
			shop.want(t, name, 0)
			// Where the connection was given up, the server's session may hold
			// the lock for a moment longer.
			var out semel.Outcome
			for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
				out, err = g.Do(t.Context(), submit(name), func(ctx context.Context) (semel.Result, error) {
					return result("paid"), pay(ctx, name)
				})
				if !errors.Is(err, semel.ErrInProgress) {
					break
				}
			}
			if err != nil || out.Answer != semel.AnswerExecuted {
				t.Fatalf("the retry: %v, %v; want it executed", out.Answer, err)
			}
			shop.want(t, name, 1)
		})
	}
}

func TestHandlerCannotEndTheTransaction(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, nil), transactional())
	claim := begin(t, s, "k")
	ctx := claim.Context(t.Context())
	if err := pay(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	tx, _ := postgres.Tx(ctx)
	for name, end := range map[string]func() error{
		"Commit":   func() error { return tx.Commit(ctx) },
		"Rollback": func() error { return tx.Rollback(ctx) },
		"COMMIT":   func() error { _, err := tx.Exec(ctx, " commit; begin"); return err },
		"remarks":  func() error { _, err := tx.Exec(ctx, "/* a /* nested */ one */ -- and another\n COMMIT"); return err },
		"a tag":    func() error { _, err := tx.Exec(ctx, "COMMIT/* trace: 1 */"); return err },
		"END":      func() error { _, err := tx.Query(ctx, "END;"); return err },
		"ABORT":    func() error { return tx.QueryRow(ctx, "Abort").Scan() },
		"ROLLBACK": func() error {
			b := &pgx.Batch{}
			b.Queue("rollback work")
			return tx.SendBatch(ctx, b).Close()
		},
	} {
		if err := end(); !errors.Is(err, postgres.ErrNotYours) {
			t.Errorf("%s: %v; want ErrNotYours", name, err)
		}
	}
	// Nested transactions are the handler's.
	nested, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nested.Exec(ctx, "INSERT INTO payment (key) VALUES ('nested')"); err != nil {
		t.Fatal(err)
	}
	if err := nested.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := claim.Complete(ctx, result("paid")); err != nil {
		t.Fatal(err)
	}
	shop.want(t, "k", 1)
	shop.want(t, "nested", 0)
}

func TestJoinsTheCallersTransaction(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	for name, level := range levels {
		for _, iso := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			t.Run(name+" in "+string(iso), func(t *testing.T) {
				c := transactional()
				level(&c)
				s := open(t, pool, c)
				g := guard(t, s, semel.Policy{})
				key := name + string(iso)
				for _, commit := range []bool{false, true} {
					tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: iso})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := tx.Exec(t.Context(), "INSERT INTO payment (key) VALUES ($1)", "before "+key); err != nil {
						t.Fatal(err)
					}
					// A failed claim leaves the transaction usable.
					_, err = g.Do(postgres.WithTx(t.Context(), tx), submit(key), func(ctx context.Context) (semel.Result, error) {
						if err := pay(ctx, key); err != nil {
							return semel.Result{}, err
						}
						inner, _ := postgres.Tx(ctx)
						_, err := inner.Exec(ctx, "SELECT no_such_column")
						return semel.Result{}, err
					})
					if !errors.Is(err, semel.ErrNoEffect) {
						t.Fatalf("Do with a failing handler: %v; want certainly no effect", err)
					}
					out, err := g.Do(postgres.WithTx(t.Context(), tx), submit(key), func(ctx context.Context) (semel.Result, error) {
						return result("paid"), pay(ctx, key)
					})
					if err != nil || out.Answer != semel.AnswerExecuted {
						t.Fatalf("Do: %v, %v", out.Answer, err)
					}
					var wait string
					if err := tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&wait); err != nil || wait != "0" {
						t.Fatalf("the caller's lock_timeout is %s afterwards, %v", wait, err)
					}
					_, err = s.Begin(t.Context(), attempt(key))
					conflict(t, err, semel.StateInProgress)
					if !commit {
						if err := tx.Rollback(t.Context()); err != nil {
							t.Fatal(err)
						}
						shop.want(t, key, 0)
						continue
					}
					if err := tx.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				shop.want(t, key, 1)
				shop.want(t, "before "+key, 1)
				_, err := s.Begin(t.Context(), attempt(key))
				conflict(t, err, semel.StateCompleted)
			})
		}
	}
	leased := open(t, pool, postgres.Config{})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := leased.Begin(postgres.WithTx(t.Context(), tx), attempt("leased")); err == nil {
		t.Fatal("a leased store joined a transaction")
	}
}

// A transaction that began before the record was committed cannot see it, and
// must not execute.
func TestCallersOldSnapshotExecutesNothing(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	for name, level := range levels {
		t.Run(name, func(t *testing.T) {
			c := transactional()
			level(&c)
			s := open(t, pool, c)
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			var n int
			if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM payment").Scan(&n); err != nil {
				t.Fatal(err)
			}
			if _, err := begin(t, s, name).Complete(t.Context(), result("paid")); err != nil {
				t.Fatal(err)
			}
			claim, err := s.Begin(postgres.WithTx(t.Context(), tx), attempt(name))
			if err == nil {
				t.Fatalf("a transaction too old to see the record was granted fence %d", claim.Fence())
			}
			if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM payment").Scan(&n); err != nil {
				t.Fatalf("the caller's transaction is not usable after a refused claim: %v", err)
			}
		})
	}
}

// A handler that outlives its deadline, in the middle of a statement, is cut off.
func TestStuckHandlerIsCutOff(t *testing.T) {
	shop := newShop(t)
	s := open(t, connect(t, shop.url, nil), transactional())
	claim := begin(t, s, "k")
	ctx := claim.Context(t.Context())
	if err := pay(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		tx, _ := postgres.Tx(ctx)
		_, err := tx.Exec(ctx, "SELECT pg_sleep(3600)")
		ended <- err
	}()
	await(t, func() bool {
		var n int
		err := shop.direct.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'").Scan(&n)
		return err == nil && n == 1
	})
	if err := claim.Renew(t.Context()); err != nil {
		t.Fatalf("Renew beside a statement: %v", err)
	}
	if err := claim.Hold(t.Context(), "deadline"); !errors.Is(err, semel.ErrRolledBack) {
		t.Fatalf("Hold: %v; want ErrRolledBack", err)
	}
	if err := <-ended; err == nil {
		t.Fatal("the statement succeeded")
	}
	shop.want(t, "k", 0)
}
