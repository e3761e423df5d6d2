package postgres_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	osexec "os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/postgres"
)

func TestSteps(t *testing.T) {
	t.Parallel()
	pool := connect(t, testenv.Postgres(t), nil)
	for name, config := range map[string]postgres.Config{
		"read committed": {},
		"serializable":   {Mode: postgres.ModeTransactional, Isolation: pgx.Serializable},
	} {
		t.Run(name, func(t *testing.T) {
			stepstest.Run(t, stepstest.Config{New: func(t testing.TB) stepstest.Harness {
				c := config
				c.Schema = fmt.Sprintf("rule%d", schemas.Add(1))
				store := func() steps.Store { return open(t, pool, c).Steps() }
				h := stepstest.Harness{
					Store: store(), Open: store,
					Effect:  func(ctx context.Context, name string) error { return effect(ctx, c.Schema, name) },
					Effects: func() map[string]int { return effects(t, pool, c.Schema) },
					Advance: func(d time.Duration) {
						exec(t, pool, "UPDATE "+c.Schema+".journal SET due = due - $1::interval", d)
						exec(t, pool, "UPDATE "+c.Schema+".journal_step SET at = at - $1::interval, started = started - $1::interval", d)
					},
				}
				exec(t, pool, "CREATE TABLE "+c.Schema+".effect (name text COLLATE \"C\" NOT NULL)")
				return h
			}})
		})
	}
}

// Who raises an operation's fence waits for the end of a local step that is being
// committed, and sees it: else both would execute it.
func TestStepsOpenWaitsForACommit(t *testing.T) {
	t.Parallel()
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{}).Steps()
	// A commit of an effect takes until the lock is given back.
	exec(t, pool, "CREATE TABLE semel.effect (name text NOT NULL)")
	exec(t, pool, `CREATE FUNCTION semel.wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1717); RETURN NULL; END'`)
	exec(t, pool, "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON semel.effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION semel.wait()")
	holder, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(1717)"); err != nil {
		t.Fatal(err)
	}
	id := stepstest.OrderIdentity("o")
	o, err := s.Open(t.Context(), steps.Opening{Identity: id, Fence: 1})
	if err != nil {
		t.Fatal(err)
	}
	committed := make(chan error, 1)
	go func() {
		committed <- s.Transact(t.Context(), o.Number, 1, steps.Step{Name: "one"}, func(ctx context.Context) ([]byte, error) { return []byte("1"), effect(ctx, "semel", "one") })
	}()
	waiting := func(n int) func() bool {
		return func() (ok bool) {
			if err := pool.QueryRow(t.Context(), "SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'", n).Scan(&ok); err != nil {
				t.Fatal(err)
			}
			return ok
		}
	}
	for begun := waiting(1); !begun(); {
	}
	opened := make(chan steps.Operation, 1)
	go func() {
		o, err := s.Open(t.Context(), steps.Opening{Identity: id, Fence: 2})
		if err != nil {
			t.Error(err)
		}
		opened <- o
	}()
	for both := waiting(2); len(opened) == 0 && !both(); {
	}
	if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_unlock(1717)"); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
	if o := <-opened; len(o.Steps) != 1 || o.Steps[0].State != steps.StateDone {
		t.Errorf("who goes on does not see the step: %+v", o)
	}
}

// points tells of each statement before it is sent, and after it was answered.
type points func(name string)

func (p points) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	p("before " + d.SQL)
	return ctx
}
func (p points) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (p points) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	p("before a batch")
	return ctx
}

func (p points) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	p("after " + d.SQL)
}
func (p points) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

const stepsVariable = "SEMEL_POSTGRES_TEST_STEPS" // the URL to take an order at

// Processes that take an order are killed before every statement, and between and in
// the steps.
func TestStepsKilledAtEveryPoint(t *testing.T) {
	newShop := func(t *testing.T, pool *pgxpool.Pool) *stepstest.Shop {
		s := open(t, pool, postgres.Config{})
		return &stepstest.Shop{Records: s, Journal: s.Steps(), Reserve: func(ctx context.Context, order string) error { return effect(ctx, "semel", order) }}
	}
	if c := stepstest.CurrentChild(); c != nil {
		var shop *stepstest.Shop
		armed := false
		pool := connect(t, os.Getenv(stepsVariable), func(config *pgxpool.Config) {
			config.ConnConfig.Tracer = points(func(name string) {
				if armed {
					c.Point(name)
				}
			})
		})
		shop = newShop(t, pool)
		armed = true // nothing is sent meanwhile
		if err := c.Main(shop); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	}
	testenv.Postgres(t) // without a server all of it is skipped, and not each shop by itself
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := func(t *testing.T) stepstest.Victim {
		server := testenv.Postgres(t)
		pool := connect(t, server, nil)
		shop, world := newShop(t, pool), &stepstest.World{}
		exec(t, pool, "CREATE TABLE semel.effect (name text NOT NULL)")
		remote := httptest.NewServer(world)
		t.Cleanup(remote.Close)
		shop.URL = remote.URL
		return stepstest.Victim{
			Shop: shop, World: world,
			Reservations: func(order string) int { return effects(t, pool, "semel")[order] },
			Command: func() *osexec.Cmd {
				c := osexec.CommandContext(t.Context(), self, "-test.run=^TestStepsKilledAtEveryPoint$")
				c.Env = append(os.Environ(), stepsVariable+"="+server)
				return c
			},
		}
	}
	t.Run("deciding", func(t *testing.T) { stepstest.KilledDeciding(t, victim(t)) })
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprint("twice ", twice), func(t *testing.T) { stepstest.Killed(t, twice, victim) })
	}
}
