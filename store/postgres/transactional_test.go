package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// shop is a service with a database of its own.
type shop struct {
	url    string
	direct *pgxpool.Pool
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{url: testenv.Postgres(t)}
	s.direct = connect(t, s.url, nil)
	exec(t, s.direct, "CREATE TABLE account (name text PRIMARY KEY)")
	exec(t, s.direct, "INSERT INTO account VALUES ('alice')")
	exec(t, s.direct, `CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY, key text,
		account text NOT NULL DEFAULT 'alice' REFERENCES account DEFERRABLE INITIALLY DEFERRED)`)
	return s
}

// payments counts the effects under a key.
func (s *shop) payments(t testing.TB, key string) (n int) {
	t.Helper()
	if err := s.direct.QueryRow(context.Background(), "SELECT count(*) FROM payment WHERE key = $1", key).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *shop) want(t testing.TB, key string, want int) {
	t.Helper()
	if n := s.payments(t, key); n != want {
		t.Fatalf("%d payments under %q; want %d", n, key, want)
	}
}

func pay(ctx context.Context, key string) error {
	tx, ok := postgres.Tx(ctx)
	if !ok {
		return errors.New("no transaction")
	}
	_, err := tx.Exec(ctx, "INSERT INTO payment (key) VALUES ($1)", key)
	return err
}

func attempt(key string) semel.Attempt {
	id := semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "payments.create"}, Key: key}
	return semel.NewAttempt(id, semel.FingerprintOf([]byte("request")), 15*time.Second, 24*time.Hour)
}

func result(body string) semel.Result {
	return semel.Result{Codec: "test/1", Body: []byte(body), Label: "201"}
}

func begin(t testing.TB, s *postgres.Store, key string) semel.Claim {
	t.Helper()
	c, err := s.Begin(t.Context(), attempt(key))
	if err != nil {
		t.Fatalf("Begin: %v; want a claim", err)
	}
	return c
}

func conflict(t testing.TB, err error, want semel.State) semel.Record {
	t.Helper()
	e, ok := errors.AsType[*semel.ConflictError](err)
	if !ok || e.Record.State != want {
		t.Fatalf("%v; want a conflict with a record %v", err, want)
	}
	return e.Record
}

func submit(key string) semel.Submit {
	a := attempt(key)
	return semel.Submit{Identity: a.Identity, Fingerprint: a.Fingerprint}
}

func guard(t testing.TB, s semel.Store, p semel.Policy) *semel.Guard {
	t.Helper()
	g, err := semel.New(semel.Config{Store: s, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func transactional() postgres.Config { return postgres.Config{Mode: postgres.Transactional} }

// levels are the ways in which a transaction can be begun.
var levels = map[string]func(*postgres.Config){
	"read committed":    func(*postgres.Config) {},
	"repeatable read":   func(c *postgres.Config) { c.Isolation = pgx.RepeatableRead },
	"serializable":      func(c *postgres.Config) { c.Isolation = pgx.Serializable },
	"no advisory locks": func(c *postgres.Config) { c.NoAdvisoryLocks = true },
	"no locks, repeatable read": func(c *postgres.Config) {
		c.NoAdvisoryLocks, c.Isolation = true, pgx.RepeatableRead
	},
}

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

// await polls until ready.
func await(t testing.TB, ready func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("waited for 30 s in vain")
		}
	}
}

func TestVanishedHostLosesItsLock(t *testing.T) {
	shop := newShop(t)
	for name, level := range levels {
		t.Run(name, func(t *testing.T) {
			proxied, proxy := through(t, shop.url)
			c := transactional()
			c.IdleTimeout = 500 * time.Millisecond
			level(&c)
			s := open(t, connect(t, proxied, nil), c)
			t.Cleanup(proxy.Cut)
			claim := begin(t, s, name)
			if err := pay(claim.Context(t.Context()), name); err != nil {
				t.Fatal(err)
			}
			proxy.Mute()
			same := open(t, connect(t, shop.url, nil), c)
			await(t, func() bool {
				next, err := same.Begin(t.Context(), attempt(name))
				if err != nil {
					conflict(t, err, semel.StateInProgress)
					return false
				}
				return next.Release(t.Context()) == nil
			})
			shop.want(t, name, 0)
		})
	}
}

func TestExpiredUnsweptRecordIsReplaced(t *testing.T) {
	shop := newShop(t)
	for name, level := range levels {
		t.Run(name, func(t *testing.T) {
			c := transactional()
			level(&c)
			s := open(t, connect(t, shop.url, nil), c)
			old := begin(t, s, name)
			if _, err := old.Complete(t.Context(), result("old")); err != nil {
				t.Fatal(err)
			}
			advance(t, shop.direct, "semel", 25*time.Hour)
			if _, err := s.Find(t.Context(), attempt(name).Identity); !errors.Is(err, semel.ErrNotFound) {
				t.Fatalf("Find: %v; want ErrNotFound", err)
			}
			claim := begin(t, s, name)
			if claim.Fence() <= old.Fence() || claim.RecordID() == old.RecordID() {
				t.Fatalf("the successor has fence %d and record %s; the expired one had %d and %s", claim.Fence(), claim.RecordID(), old.Fence(), old.RecordID())
			}
			if _, err := s.Begin(t.Context(), attempt(name)); err == nil {
				t.Fatal("two claims on an expired record")
			}
			if _, err := claim.Complete(t.Context(), result("new")); err != nil {
				t.Fatal(err)
			}
			if _, err := old.Complete(t.Context(), result("late")); !errors.Is(err, semel.ErrLostClaim) {
				t.Fatalf("Complete by the expired claim: %v; want ErrLostClaim", err)
			}
			_, err := s.Begin(t.Context(), attempt(name))
			if r := conflict(t, err, semel.StateCompleted); string(r.Result.Body) != "new" || r.ID != claim.RecordID() {
				t.Fatalf("the record reads %+v", r)
			}
		})
	}
}

// What someone wrote without taking the lock still arbitrates, at the end.
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

// A record that was to be taken over is settled by its owner, or by a resolution,
// while the handler runs: nothing of that is committed.
func TestTakeoverThatCameTooLate(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	s, leased := open(t, pool, transactional()), open(t, pool, postgres.Config{})
	for name, settle := range map[string]func(old semel.Claim) error{
		"completed": func(old semel.Claim) error { _, err := old.Complete(t.Context(), result("old")); return err },
		"released":  func(old semel.Claim) error { return old.Release(t.Context()) },
		"resolved": func(old semel.Claim) error {
			_, err := leased.Resolve(t.Context(), semel.Resolution{Identity: attempt("resolved").Identity, Fence: old.Fence(), Decision: semel.DecideExecuteAgain})
			return err
		},
	} {
		old := begin(t, leased, name)
		if err := old.Hold(t.Context(), "lost contact"); err != nil {
			t.Fatal(err)
		}
		a := attempt(name)
		a.Takeover = old.Fence()
		claim, err := s.Begin(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if err := pay(claim.Context(t.Context()), name); err != nil {
			t.Fatal(err)
		}
		if err := settle(old); err != nil {
			t.Fatal(err)
		}
		if _, err := claim.Complete(t.Context(), result("paid")); !errors.Is(err, semel.ErrRolledBack) {
			t.Errorf("%s: Complete: %v; want ErrRolledBack", name, err)
		}
		shop.want(t, name, 0)
		if r, err := s.Find(t.Context(), a.Identity); err == nil && r.Fence == claim.Fence() {
			t.Errorf("%s: the record reads %+v", name, r)
		}
	}
}

func TestTakesOverWhatALeaseLeft(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	leased := open(t, pool, postgres.Config{})
	for name, level := range levels {
		t.Run(name, func(t *testing.T) {
			c := transactional()
			level(&c)
			s := open(t, pool, c)
			old := begin(t, leased, name)
			if err := old.Hold(t.Context(), "lost contact"); err != nil {
				t.Fatal(err)
			}
			a := attempt(name)
			_, err := s.Begin(t.Context(), a)
			conflict(t, err, semel.StateUnknown)
			a.Takeover = old.Fence()
			claim, err := s.Begin(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			if claim.RecordID() != old.RecordID() || claim.Fence() <= old.Fence() {
				t.Fatalf("a takeover of record %s fence %d got %s and %d", old.RecordID(), old.Fence(), claim.RecordID(), claim.Fence())
			}
			if _, err := claim.Complete(t.Context(), result("paid")); err != nil {
				t.Fatal(err)
			}
			if _, err := old.Complete(t.Context(), result("zombie")); !errors.Is(err, semel.ErrLostClaim) {
				t.Fatalf("Complete by the old claim: %v; want ErrLostClaim", err)
			}
			entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: name})
			if err != nil {
				t.Fatal(err)
			}
			var kinds []string
			for _, e := range entries {
				kinds = append(kinds, string(e.Kind))
			}
			if got := strings.Join(kinds, " "); got != "held taken_over executed" && got != "held executed taken_over" {
				t.Fatalf("the trail reads %q", got)
			}
		})
	}
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

func TestCloseEndsOpenClaims(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, shop.url, nil)
	s := open(t, pool, transactional())
	claim := begin(t, s, "k")
	if err := pay(claim.Context(t.Context()), "k"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := claim.Complete(t.Context(), result("late")); !errors.Is(err, semel.ErrRolledBack) {
		t.Fatalf("Complete after Close: %v; want ErrRolledBack", err)
	}
	if _, err := s.Begin(t.Context(), attempt("k")); !errors.Is(err, postgres.ErrClosed) {
		t.Fatalf("Begin after Close: %v; want ErrClosed", err)
	}
	shop.want(t, "k", 0)
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Fatalf("%d connections were not given back", n)
	}
}

const childVariable = "SEMEL_TEST_CHILD_OF"

// untilSettled submits a payment again and again until it has a result.
func untilSettled(ctx context.Context, g *semel.Guard, key string) (semel.Answer, error) {
	for {
		out, err := g.Do(ctx, submit(key), func(ctx context.Context) (semel.Result, error) { return result("paid"), pay(ctx, key) })
		if err == nil {
			return out.Answer, nil
		}
		if e, ok := errors.AsType[*semel.Error](err); !ok || e.Retry() != semel.RetrySameKey || ctx.Err() != nil {
			return out.Answer, err
		}
	}
}

// TestManyProcessesPayOnce runs itself in 8 processes with 25 callers each.
func TestManyProcessesPayOnce(t *testing.T) {
	const callers, processes = 25, 8
	if url := os.Getenv(childVariable); url != "" {
		g := guard(t, open(t, connect(t, url, nil), transactional()), semel.Policy{})
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				answer, err := untilSettled(t.Context(), g, "k")
				if err != nil {
					t.Error(err)
				}
				fmt.Printf("answer %v\n", answer)
			})
		}
		wg.Wait()
		return
	}
	shop := newShop(t)
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		all string
	)
	for range processes {
		wg.Go(func() {
			child := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestManyProcessesPayOnce$", "-test.v")
			child.Env = append(os.Environ(), childVariable+"="+shop.url)
			out, err := child.CombinedOutput()
			if err != nil {
				t.Errorf("a process failed: %v\n%s", err, out)
			}
			mu.Lock()
			all += string(out)
			mu.Unlock()
		})
	}
	wg.Wait()
	executed, replayed := strings.Count(all, "answer executed"), strings.Count(all, "answer replayed")
	if executed != 1 || replayed != callers*processes-1 {
		t.Errorf("%d executed and %d replayed; want 1 and %d", executed, replayed, callers*processes-1)
	}
	shop.want(t, "k", 1)
}

// Waiting duplicates do not use up the connections: the owner finishes, and so
// does everybody else.
func TestDuplicatesDoNotStarveTheOwner(t *testing.T) {
	shop := newShop(t)
	g := guard(t, open(t, connect(t, shop.url, func(c *pgxpool.Config) { c.MaxConns = 8 }), transactional()), semel.Policy{})
	const duplicates, others = 500, 64
	var (
		wg    sync.WaitGroup
		tried sync.WaitGroup
		owned = make(chan struct{})
	)
	tried.Add(duplicates)
	wg.Go(func() {
		out, err := g.Do(t.Context(), submit("hot"), func(ctx context.Context) (semel.Result, error) {
			close(owned)
			tried.Wait() // until each duplicate has been refused once
			return result("paid"), pay(ctx, "hot")
		})
		if err != nil || out.Answer != semel.AnswerExecuted {
			t.Errorf("the owner: %v, %v", out.Answer, err)
		}
	})
	<-owned
	for range duplicates {
		wg.Go(func() {
			_, err := g.Do(t.Context(), submit("hot"), nil)
			if !errors.Is(err, semel.ErrInProgress) && !errors.Is(err, semel.ErrUnavailable) {
				t.Errorf("a duplicate was told %v; want in progress", err)
			}
			tried.Done()
			if answer, err := untilSettled(t.Context(), g, "hot"); answer != semel.AnswerReplayed || err != nil {
				t.Errorf("a duplicate: %v, %v; want the replay", answer, err)
			}
		})
	}
	for i := range others {
		wg.Go(func() {
			key := fmt.Sprint("other", i)
			if answer, err := untilSettled(t.Context(), g, key); answer != semel.AnswerExecuted || err != nil {
				t.Errorf("%s: %v, %v", key, answer, err)
			}
		})
	}
	wg.Wait()
	shop.want(t, "hot", 1)
}

func TestTransactionalThroughPgBouncer(t *testing.T) {
	shop := newShop(t)
	pool := connect(t, testenv.PgBouncer(t, shop.url), func(c *pgxpool.Config) { unprepared(c); c.MaxConns = 40 })
	pooled := open(t, pool, transactional())
	g := guard(t, pooled, semel.Policy{})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if _, err := untilSettled(t.Context(), g, fmt.Sprint("k", i%4)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range 4 {
		shop.want(t, fmt.Sprint("k", i), 1)
	}
	// Nothing that a claim sets outlives it on a connection that others use. Direct
	// ones keep their TCP timeout.
	direct := open(t, shop.direct, transactional())
	var claims []semel.Claim
	for i := range 10 { // each in a session of its own
		claims = append(claims, begin(t, pooled, fmt.Sprint("pooled", i)), begin(t, direct, fmt.Sprint("direct", i)))
	}
	for _, c := range claims {
		if _, err := c.Complete(t.Context(), result("done")); err != nil {
			t.Fatal(err)
		}
	}
	for setting, own := range map[string]string{"idle_in_transaction_session_timeout": "0", "lock_timeout": "0", "tcp_user_timeout": "0"} {
		var all []pgx.Tx
		for range 20 {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, tx)
			var v string
			if err := tx.QueryRow(t.Context(), "SHOW "+setting).Scan(&v); err != nil || v != own {
				t.Errorf("%s is %s, %v; want the server's own, %s", setting, v, err, own)
			}
		}
		for _, tx := range all {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		set := 0
		for _, conn := range shop.direct.AcquireAllIdle(t.Context()) {
			var v string
			if err := conn.QueryRow(t.Context(), "SHOW "+setting).Scan(&v); err != nil {
				t.Error(err)
			}
			if v != own {
				set++
			}
			conn.Release()
		}
		if want := setting == "tcp_user_timeout"; (set > 0) != want {
			t.Errorf("%d of the direct sessions have kept %s", set, setting)
		}
	}
}

// The server may say of a wait that was over at a bad moment that the user has
// cancelled it. It is a wait all the same; but not where nobody can have waited so long.
func TestWaitThatTheServerCallsCancelled(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	for _, tt := range []struct {
		schema string
		most   time.Duration
		waited bool
	}{{"waited", time.Millisecond, true}, {"cancelled", time.Hour, false}} {
		s := open(t, pool, postgres.Config{Mode: postgres.Transactional, Schema: tt.schema, NoAdvisoryLocks: true, LockTimeout: tt.most})
		exec(t, pool, "CREATE FUNCTION "+tt.schema+`.cancel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_sleep(0.002);
			RAISE 'canceling statement due to user request' USING ERRCODE = 'query_canceled';
		END $$`)
		for _, table := range []string{"record", "inbox"} {
			exec(t, pool, "CREATE TRIGGER cancel BEFORE INSERT ON "+tt.schema+"."+table+" FOR EACH ROW EXECUTE FUNCTION "+tt.schema+".cancel()")
		}
		_, err := s.Begin(t.Context(), attempt("k"))
		if _, conflict := errors.AsType[*semel.ConflictError](err); conflict != tt.waited || err == nil {
			t.Errorf("%s: Begin: %v", tt.schema, err)
		}
		err = s.Inbox().Transact(t.Context(), "c", []string{"id"}, func(context.Context, []bool) error { return nil })
		if errors.Is(err, inbox.ErrInProgress) != tt.waited || err == nil {
			t.Errorf("%s: Transact: %v", tt.schema, err)
		}
	}
}
