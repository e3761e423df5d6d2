package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// Of claims that are asked for while the owner commits, none is granted: a look
// with a snapshot older than the commit would find the identity free.
func TestNoGrantBehindTheCommit(t *testing.T) {
	shop := newShop(t)
	for name, level := range levels {
		t.Run(name, func(t *testing.T) {
			c := transactional()
			level(&c)
			s := open(t, connect(t, shop.url, nil), c)
			for round := range 40 {
				key := fmt.Sprint(name, round)
				var (
					granted atomic.Int32
					wg      sync.WaitGroup
				)
				for range 6 {
					wg.Go(func() {
						for {
							claim, err := s.Begin(t.Context(), attempt(key))
							if err == nil {
								granted.Add(1)
								if err := pay(claim.Context(t.Context()), key); err != nil {
									t.Error(err)
								}
								if _, err := claim.Complete(t.Context(), result("done")); err != nil {
									t.Error(err)
								}
								return
							}
							e, ok := errors.AsType[*semel.ConflictError](err)
							switch {
							case !ok:
								t.Error(err)
								return
							case e.Record.State == semel.StateCompleted:
								return
							case e.Record.Lapsed():
								t.Errorf("a claim in a transaction reads as lapsed: %+v", e.Record)
							}
						}
					})
				}
				wg.Wait()
				if n := granted.Load(); n != 1 {
					t.Fatalf("%d claims were granted; want 1", n)
				}
				shop.want(t, key, 1)
			}
		})
	}
}

func TestRollbackLeavesNothing(t *testing.T) {
	shop := newShop(t)
	for name, level := range levels {
		t.Run(name, func(t *testing.T) {
			c := transactional()
			level(&c)
			s := open(t, connect(t, shop.url, nil), c)
			claim := begin(t, s, name)
			if err := pay(claim.Context(t.Context()), name); err != nil {
				t.Fatal(err)
			}
			_, err := s.Begin(t.Context(), attempt(name))
			if r := conflict(t, err, semel.StateInProgress); r.Lapsed() {
				t.Fatalf("a claim in a transaction reads as lapsed: %+v", r)
			}
			if err := claim.Hold(t.Context(), "lost contact"); !errors.Is(err, semel.ErrRolledBack) {
				t.Fatalf("Hold: %v; want ErrRolledBack", err)
			}
			if _, err := claim.Complete(t.Context(), result("late")); !errors.Is(err, semel.ErrRolledBack) {
				t.Fatalf("Complete after Hold: %v; want ErrRolledBack", err)
			}
			if err := pay(claim.Context(t.Context()), name); !errors.Is(err, pgx.ErrTxClosed) {
				t.Fatalf("the handler's transaction after Hold: %v; want ErrTxClosed", err)
			}
			claim = begin(t, s, name)
			if err := pay(claim.Context(t.Context()), name); err != nil {
				t.Fatal(err)
			}
			if err := claim.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			shop.want(t, name, 0)
			if _, err := s.Find(t.Context(), attempt(name).Identity); !errors.Is(err, semel.ErrNotFound) {
				t.Fatalf("Find: %v; want ErrNotFound", err)
			}
		})
	}
}

// A failure on record has no half effect, whatever state the handler left the
// transaction in.
func TestRecordedFailureHasNoHalfEffect(t *testing.T) {
	shop := newShop(t)
	for name, level := range levels {
		for _, broken := range []bool{false, true} {
			key := fmt.Sprint(name, " broken: ", broken)
			t.Run(key, func(t *testing.T) {
				c := transactional()
				level(&c)
				g := guard(t, open(t, connect(t, shop.url, nil), c), semel.Policy{})
				_, err := g.Do(t.Context(), submit(key), func(ctx context.Context) (semel.Result, error) {
					if err := pay(ctx, key); err != nil {
						return semel.Result{}, err
					}
					if broken {
						tx, _ := postgres.Tx(ctx)
						if _, err := tx.Exec(ctx, "SELECT no_such_column"); err == nil {
							t.Error("a wrong statement succeeded")
						}
					}
					return semel.Result{}, semel.Final(errors.New("card declined"))
				})
				if !errors.Is(err, semel.ErrRecorded) {
					t.Fatalf("Do: %v; want a recorded failure", err)
				}
				shop.want(t, key, 0)
				out, err := g.Do(t.Context(), submit(key), nil)
				if out.Answer != semel.AnswerReplayed || !errors.Is(err, semel.ErrRecorded) {
					t.Fatalf("the retry: %v, %v; want the failure replayed", out.Answer, err)
				}
			})
		}
	}
}

// cutCommit makes a proxy do v to the first COMMIT that passes. The commit goes
// in one message with the record, in plain text where nothing is prepared.
func cutCommit(p *testenv.Proxy, v testenv.Verdict) {
	var done atomic.Bool
	p.OnWrite(func(b []byte) testenv.Verdict {
		if bytes.Contains(b, []byte("COMMIT")) && done.CompareAndSwap(false, true) {
			return v
		}
		return testenv.Pass
	})
}

func TestCommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	for name, level := range levels {
		for verdict, want := range map[testenv.Verdict]int{testenv.CutBefore: 0, testenv.CutAfter: 1, testenv.Mute: 1} {
			key := fmt.Sprint(name, " verdict ", verdict)
			t.Run(key, func(t *testing.T) {
				t.Parallel()
				proxied, proxy := through(t, shop.url)
				c := transactional()
				level(&c)
				s := open(t, connect(t, proxied, unprepared), c)
				t.Cleanup(proxy.Cut) // before the pool waits for what is muted
				g := guard(t, s, semel.Policy{StoreTimeout: time.Second})
				cutCommit(proxy, verdict)
				out, err := g.Do(t.Context(), submit(key), func(ctx context.Context) (semel.Result, error) {
					return result("paid"), pay(ctx, key)
				})
				if want == 1 && (err != nil || out.Answer != semel.AnswerExecuted) {
					t.Fatalf("committed: %v, %v; want it executed", out.Answer, err)
				}
				if want == 0 && !errors.Is(err, semel.ErrNoEffect) {
					t.Fatalf("not committed: %v; want certainly no effect", err)
				}
				shop.want(t, key, want)
				out, err = g.Do(t.Context(), submit(key), func(ctx context.Context) (semel.Result, error) {
					return result("paid"), pay(ctx, key)
				})
				if err != nil || (out.Answer == semel.AnswerReplayed) != (want == 1) {
					t.Fatalf("the retry: %v, %v", out.Answer, err)
				}
				shop.want(t, key, 1)
			})
		}
	}
}

// While the server may still be committing, nobody says how it ended.
func TestCommitStillUnderWay(t *testing.T) {
	shop := newShop(t)
	exec(t, shop.direct, "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END'")
	exec(t, shop.direct, "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON payment DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()")
	for name, level := range levels {
		t.Run(name, func(t *testing.T) {
			barrier, err := shop.direct.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = barrier.Rollback(context.Background()) }()
			if _, err := barrier.Exec(t.Context(), "SELECT pg_advisory_xact_lock(42)"); err != nil {
				t.Fatal(err)
			}
			proxied, proxy := through(t, shop.url)
			c := transactional()
			level(&c)
			s := open(t, connect(t, proxied, unprepared), c)
			t.Cleanup(proxy.Cut)
			claim := begin(t, s, name)
			if err := pay(claim.Context(t.Context()), name); err != nil {
				t.Fatal(err)
			}
			// The driver asks the server to cancel what it gives up; where
			// the network is gone, so is that.
			var muted atomic.Bool
			proxy.OnWrite(func(b []byte) testenv.Verdict {
				switch {
				case bytes.Contains(b, []byte("\x04\xd2\x16\x2e")): // CancelRequest
					return testenv.CutBefore
				case bytes.Contains(b, []byte("COMMIT")) && muted.CompareAndSwap(false, true):
					return testenv.Mute
				}
				return testenv.Pass
			})
			answered := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _, err := claim.Complete(ctx, result("paid")); answered <- err }()
			await(t, func() bool { // until the commit waits
				var n int
				err := shop.direct.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted").Scan(&n)
				return err == nil && n == 1
			})
			cancel()
			if err := <-answered; err == nil || errors.Is(err, semel.ErrRolledBack) {
				t.Fatalf("Complete: %v; want an error that leaves it open", err)
			}
			for range 2 {
				if _, err := claim.Complete(t.Context(), result("paid")); err == nil || errors.Is(err, semel.ErrRolledBack) || errors.Is(err, semel.ErrLostClaim) {
					t.Fatalf("Complete while the first is under way: %v; want an error that leaves it open", err)
				}
			}
			_, err = s.Begin(t.Context(), attempt(name))
			conflict(t, err, semel.StateInProgress)
			if err := barrier.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			await(t, func() bool { _, err = claim.Complete(t.Context(), result("paid")); return err == nil })
			shop.want(t, name, 1)
		})
	}
}

// A record written without taking the lock is still found by the constraint at
// the end.
func TestConstraintIsTheFinalArbiter(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	s := open(t, pool, transactional())
	leased := open(t, pool, postgres.Config{})
	claim := begin(t, s, "k")
	if err := pay(claim.Context(t.Context()), "k"); err != nil {
		t.Fatal(err)
	}
	begin(t, leased, "k")
	if _, err := claim.Complete(t.Context(), result("paid")); !errors.Is(err, semel.ErrRolledBack) || !strings.Contains(err.Error(), "does not take its lock") {
		t.Fatalf("Complete beside another record: %v; want ErrRolledBack, and why", err)
	}
	shop.want(t, "k", 0)
}
