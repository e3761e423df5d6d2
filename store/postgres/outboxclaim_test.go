package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/postgres"
)

// A relay whose listening session ends goes on by polling, and hears again later.
func TestRelayWithoutItsListener(t *testing.T) {
	server := testenv.Postgres(t)
	pool := connect(t, server, nil)
	o := open(t, pool, postgres.Config{Notify: true}).Outbox()
	got := make(outboxtest.Arrivals, 10)
	outboxtest.Relay(t, o, outbox.Config{PollMin: 10 * time.Millisecond, PollMax: 50 * time.Millisecond, Routes: []outbox.Route{{Sink: got}}})
	for range 3 {
		exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()")
		exec(t, pool, "INSERT INTO semel.outbox (topic) VALUES ('t')")
		got.Hear(t, 1)
	}
}

// A long transaction elsewhere holds up nobody: neither one that has an old snapshot,
// nor one that has enqueued in a lane and stays open, whose lane's first message is
// settled meanwhile. And though the server keeps what was claimed since it began, a
// claim reads over none of it.
func TestLongTransactionDoesNotStallTheRelay(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	o := open(t, pool, postgres.Config{}).Outbox()
	ctx := t.Context()
	put := func(id, key string) {
		t.Helper()
		if err := enqueue(ctx, pool, o, outbox.Message{ID: id, Topic: "t", Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	put("first", "k")
	old, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(context.Background()) }()
	if err := o.EnqueueTx(ctx, old, outbox.Message{ID: "late", Topic: "t", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	got := make(outboxtest.Arrivals, 5000)
	stop := outboxtest.Relay(t, o, outbox.Config{PollMin: 5 * time.Millisecond, PollMax: 20 * time.Millisecond, Routes: []outbox.Route{{Sink: got}}})
	put("beside", "l")
	ids := got.Hear(t, 2)
	if slices.Sort(ids); !slices.Equal(ids, []string{"beside", "first"}) {
		t.Errorf("%q arrived", ids)
	}
	const n = 3000
	exec(t, pool, "INSERT INTO semel.outbox (topic) SELECT 't' FROM generate_series(1, $1::integer)", n)
	got.Hear(t, n)
	stop()
	// The relay had an Outbox of its own to remember in; this one takes a few.
	exec(t, pool, "INSERT INTO semel.outbox (topic) SELECT 't' FROM generate_series(1, 20)")
	_, all := claimed(t, o, "t")
	deliver(t, o, all)
	sql, args := postgres.ClaimStatement(o, "t", 64)
	whole := buffers(t, pool, sql, args)
	sql, args = postgres.ClaimStatementBehind(o, "t", 64)
	behind := buffers(t, pool, sql, args)
	t.Logf("a look at the whole reads %d pages, one behind what was taken %d", whole, behind)
	if behind > 100 || whole < 5*behind {
		t.Errorf("a look at the whole reads %d pages, one behind what was taken %d", whole, behind)
	}
	if err := old.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	// It began long before, and its number is the lowest.
	if ids, _ := claimed(t, o, "t"); !slices.Equal(ids, []string{"late"}) {
		t.Errorf("behind the long transaction %q are due", ids)
	}
}

var pages = regexp.MustCompile(`Buffers: shared( hit=(\d+))?( read=(\d+))?`)

// explain returns the plan of a statement of relays, which is carried out and rolled
// back.
func explain(t *testing.T, pool *pgxpool.Pool, how, sql string, args []any) (plan string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), postgres.Planning); err != nil {
			return err
		}
		rows, _ := tx.Query(t.Context(), "EXPLAIN "+how+sql, args...)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return errors.Join(err, errRolledBack)
	})
	if plan == "" {
		t.Fatalf("%s: %v", sql, err)
	}
	return plan
}

// buffers returns how many pages a statement reads.
func buffers(t *testing.T, pool *pgxpool.Pool, sql string, args []any) (n int) {
	t.Helper()
	plan := explain(t, pool, "(ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ", sql, args)
	m := pages.FindStringSubmatch(plan)
	if m == nil {
		t.Fatal(plan)
	}
	for _, s := range []string{m[2], m[4]} {
		var more int
		_, _ = fmt.Sscan(s, &more)
		n += more
	}
	return n
}

// No statement of a relay reads through a table, on tables that are empty, as when
// the server first plans it, as on full ones; and what a claim reads does not grow
// with what waits, or is under way for long.
func TestOutboxStatementsUseTheirIndexes(t *testing.T) {
	// Every plan is worth compiling to this server, as those over a million rows are.
	server := testenv.Postgres(t)
	pool := connect(t, server, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["jit_above_cost"] = "0" })
	direct := connect(t, server, nil) // which does not compile what fills the tables
	o := open(t, direct, postgres.Config{}).Outbox()
	check := func(when string) {
		t.Helper()
		for _, s := range postgres.OutboxStatements(o) {
			plan := explain(t, pool, "", s.SQL, s.Args)
			if strings.Contains(plan, "Seq Scan on outbox") || strings.Contains(plan, "JIT:") {
				t.Errorf("%s: %s\n%s", when, s.SQL, plan)
			}
			for _, index := range s.Indexes {
				if !strings.Contains(plan, index) {
					t.Errorf("%s: %s\ndoes not use %s:\n%s", when, s.SQL, index, plan)
				}
			}
		}
	}
	check("empty")
	claim := func(when string) {
		t.Helper()
		sql, args := postgres.ClaimStatement(o, "t", 64)
		plan := explain(t, pool, "(ANALYZE, COSTS OFF, TIMING OFF) ", sql, args)
		for _, m := range regexp.MustCompile(`(?:actual rows=|Rows Removed by Filter: )(\d+)`).FindAllStringSubmatch(plan, -1) {
			if n, _ := strconv.Atoi(m[1]); n > 200 {
				t.Errorf("%s a step of a claim reads %d rows:\n%s", when, n, plan)
			}
		}
	}
	fill := func(n int, key string) {
		exec(t, direct, "INSERT INTO semel.outbox (topic, key) SELECT 't', nullif($2, '') FROM generate_series(1, $1::integer)", n, key)
	}
	claim("empty")
	fill(64, "")
	fill(20_000, "behind one")
	if ids, _ := claimed(t, o, "t"); len(ids) != 65 {
		t.Fatalf("%d were claimed", len(ids))
	}
	fill(20_000, "")
	exec(t, direct, "UPDATE semel.outbox_queue SET leased = true, due = clock_timestamp() + '1 h', until = clock_timestamp() + '1 h' WHERE key IS NULL AND position % 2 = 0")
	exec(t, direct, "UPDATE semel.outbox_queue SET due = clock_timestamp() + '1 h' WHERE key IS NULL AND position % 2 = 1")
	// What has been under way for longer than it takes to renew its lease.
	fill(1000, "")
	long, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Topic: "t", Max: 1000, Lease: time.Hour})
	if err != nil || len(long) != 1000 {
		t.Fatal(len(long), err)
	}
	refs := make([]outbox.Ref, len(long))
	for i, m := range long {
		refs[i] = m.Ref
	}
	if lost, err := o.Renew(t.Context(), time.Hour, refs); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	fill(20_000, "")
	exec(t, direct, "VACUUM ANALYZE semel.outbox_queue")
	check("full")
	claim("full")
}
