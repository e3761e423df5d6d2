package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/storetest"
)

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
		s := open(t, pool, postgres.Config{Mode: postgres.ModeTransactional, Schema: tt.schema, NoAdvisoryLocks: true, LockTimeout: tt.most})
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

// withTransactions adds to a harness what the rules for transactions need.
func withTransactions(t testing.TB, h *storetest.Harness, direct *pgxpool.Pool, proxy *testenv.Proxy, schema string) {
	t.Helper()
	exec(t, direct, "CREATE TABLE "+schema+".effect (id bigint GENERATED ALWAYS AS IDENTITY)")
	h.Transactional = true
	h.Effect = func(ctx context.Context) error {
		tx, ok := postgres.Tx(ctx)
		if !ok {
			return errors.New("there is no transaction")
		}
		_, err := tx.Exec(ctx, "INSERT INTO "+schema+".effect DEFAULT VALUES")
		return err
	}
	h.Effects = func() (n int) {
		t.Helper()
		if err := direct.QueryRow(context.Background(), "SELECT count(*) FROM "+schema+".effect").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	h.LoseCommit = func(taken bool) {
		if taken {
			cutCommit(proxy, testenv.CutAfter)
		} else {
			cutCommit(proxy, testenv.CutBefore)
		}
	}
}

func TestTransactional(t *testing.T) { testTransactional(t, postgres.Config{}) }

// Without advisory locks the record is written first, and duplicates wait for
// it or fail.
func TestTransactionalWithoutAdvisoryLocks(t *testing.T) {
	testTransactional(t, postgres.Config{NoAdvisoryLocks: true, Isolation: pgx.Serializable})
}

func testTransactional(t *testing.T, c postgres.Config) {
	t.Parallel()
	c.Mode = postgres.ModeTransactional
	server := testenv.Postgres(t)
	proxied, proxy := through(t, server)
	storetest.Run(t, storetest.Config{
		Name: "postgres-transactional", SkipTable: skips,
		// Not prepared, so that the proxy can tell a commit.
		New: harness(connect(t, server, nil), connect(t, proxied, unprepared), proxy, c),
	})
}
