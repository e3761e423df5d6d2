package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
)

// actor is a session that does one step at a time. A step may have to wait for a
// lock that another has.
type actor struct {
	name  string
	conn  *pgx.Conn
	steps []func(*pgx.Conn) error
	ended chan error // of the step under way
	busy  bool
}

// settled waits until the actor's step has ended, or waits for a lock.
func (a *actor) settled(t *testing.T, direct *pgxpool.Pool) {
	for a.busy {
		select {
		case err := <-a.ended:
			a.busy = false
			if err != nil {
				t.Errorf("%s: %v", a.name, err)
			}
		case <-time.After(2 * time.Millisecond):
			var waits bool
			if err := direct.QueryRow(t.Context(), "SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_activity WHERE pid = $1", a.conn.PgConn().PID()).Scan(&waits); err != nil {
				t.Error(err)
				return
			}
			if waits {
				return
			}
		}
	}
}

// orders returns every order in which actors can make so many steps each.
func orders(counts ...int) (all [][]int) {
	if slices.Max(counts) == 0 {
		return [][]int{nil}
	}
	for i, n := range counts {
		if n > 0 {
			rest := slices.Clone(counts)
			rest[i]--
			for _, o := range orders(rest...) {
				all = append(all, append([]int{i}, o...))
			}
		}
	}
	return all
}

// Writers, claimers, settlers and people who remove messages meet in one lane, each
// in a session of its own, in every order of their steps. Whatever the order, the
// lane goes on when they are done, is delivered in order, and is never claimed twice
// at the same time.
func TestLaneInEveryOrder(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	direct := connect(t, server, func(c *pgxpool.Config) { c.MaxConns = 50 })
	o := open(t, direct, postgres.Config{}).Outbox()
	begin := func(level string) func(*pgx.Conn) error {
		return func(c *pgx.Conn) error {
			// The snapshot is taken here, where it is the transaction's.
			_, err := c.Exec(t.Context(), "BEGIN ISOLATION LEVEL "+level+"; SELECT count(*) FROM semel.outbox_queue")
			return err
		}
	}
	commit := func(c *pgx.Conn) error { _, err := c.Exec(t.Context(), "COMMIT"); return err }

	// A lane has messages; the first, a, is claimed, and what waits behind it is known
	// to wait or not. Then all at once: a is delivered or skipped, z is inserted, b is removed,
	// relays look.
	scene := func(t *testing.T, conns []*pgx.Conn, topic, lane, level string, parked bool, ends outbox.Outcome, cast string, order []int) {
		ctx := t.Context()
		put := func(c *pgx.Conn, name string) error {
			_, err := c.Exec(ctx, "INSERT INTO semel.outbox (id, topic, key) VALUES ($1, $2, 'k')", topic+"."+name, topic)
			return err
		}
		for _, name := range lane {
			if err := put(conns[0], string(name)); err != nil {
				t.Fatal(err)
			}
		}
		got, _, err := o.Exchange(ctx, nil, outbox.Claim{Topic: topic, Max: map[bool]int{true: 10, false: 1}[parked], Lease: time.Hour})
		if err != nil || len(got) != 1 || got[0].ID != topic+".a" {
			t.Fatal(got, err)
		}
		if !parked {
			exec(t, direct, "UPDATE semel.outbox_queue SET due = 'epoch', head = false WHERE topic = $1 AND NOT leased", topic)
		}
		sql, args := postgres.SettleStatement(o, outbox.Settlement{Ref: got[0].Ref, Outcome: ends})
		claim, claimArgs := postgres.ClaimStatement(o, topic, 10)
		var mu sync.Mutex
		delivered := false
		var claimed []string
		look := func(c *pgx.Conn) error {
			mu.Lock()
			before := delivered
			mu.Unlock()
			rows, err := c.Query(ctx, claim, claimArgs...)
			if err != nil {
				return err
			}
			for rows.Next() {
				if v, err := rows.Values(); err != nil {
					return err
				} else if id, ok := v[12].(string); ok {
					mu.Lock()
					claimed = append(claimed, id)
					mu.Unlock()
					if !before {
						t.Errorf("%s was claimed beside the first of its lane", id)
					}
				}
			}
			return rows.Err()
		}
		readCommitted := begin("READ COMMITTED")
		roles := map[rune][]func(*pgx.Conn) error{
			'S': {readCommitted, func(c *pgx.Conn) error { _, err := c.Exec(ctx, sql, args...); return err }, func(c *pgx.Conn) error {
				mu.Lock()
				delivered = true // from now on it may be seen
				mu.Unlock()
				return commit(c)
			}},
			'C': {readCommitted, look, commit},
			'W': {begin(level), func(c *pgx.Conn) error { return put(c, "z") }, commit},
			'P': {readCommitted, func(c *pgx.Conn) error {
				_, err := c.Exec(ctx, "DELETE FROM semel.outbox WHERE id = $1", topic+".b")
				return err
			}, commit},
		}
		var actors []*actor
		for i, role := range cast {
			actors = append(actors, &actor{name: fmt.Sprintf("%c, of %s in the order %v", role, cast, order), conn: conns[i], steps: roles[role], ended: make(chan error, 1)})
		}
		for todo := slices.Clone(order); len(todo) > 0; {
			for _, a := range actors {
				a.settled(t, direct)
			}
			if t.Failed() {
				return
			}
			i := slices.IndexFunc(todo, func(n int) bool { return !actors[n].busy })
			if i < 0 {
				continue // for a lock that the server takes for a moment
			}
			a := actors[todo[i]]
			todo = slices.Delete(todo, i, i+1)
			step := a.steps[0]
			a.steps = a.steps[1:]
			if len(a.steps) == 2 {
				if err := step(a.conn); err != nil { // begins
					t.Fatal(err)
				}
				continue
			}
			a.busy = true
			go func() { a.ended <- step(a.conn) }()
		}
		for _, a := range actors {
			for a.busy {
				a.settled(t, direct)
			}
		}
		// What a claimer has, it gives back.
		exec(t, direct, "UPDATE semel.outbox_queue SET until = '1980-01-01', due = least(due, '1980-01-01') WHERE topic = $1 AND leased", topic)
		var want []string
		for _, name := range lane[1:] {
			if name != 'b' || !strings.Contains(cast, "P") {
				want = append(want, topic+"."+string(name))
			}
		}
		if strings.Contains(cast, "W") {
			want = append(want, topic+".z")
		}
		var arrived []string
		for range len(want) + 1 {
			got, _, err := o.Exchange(ctx, nil, outbox.Claim{Topic: topic, Max: 10, Lease: time.Hour})
			if err != nil || len(got) > 1 {
				t.Fatalf("%s in the order %v: claimed %+v, %v", cast, order, got, err)
			}
			for _, m := range got {
				arrived = append(arrived, m.ID)
				if _, _, err := o.Exchange(ctx, []outbox.Settlement{{Ref: m.Ref, Outcome: outbox.OutcomeDelivered}}, outbox.Claim{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !slices.Equal(arrived, want) || len(claimed) > 1 {
			t.Errorf("%s in lane %s at %s in the order %v: %q arrived, %q had been claimed; want %q", cast, lane, level, order, arrived, claimed, want)
		}
	}

	type play struct {
		lane   string
		level  string
		parked bool
		cast   string
		order  []int
	}
	var plays []play
	// That a transaction begins matters for its snapshot only, so of those at read
	// committed that is the first step of all.
	add := func(lane, level, cast string) {
		for _, parked := range []bool{true, false} {
			for _, o := range orders(slices.Repeat([]int{2}, len(cast))...) {
				if level == "READ COMMITTED" {
					first := make([]int, len(cast))
					for i := range first {
						first[i] = i
					}
					plays = append(plays, play{lane, level, parked, cast, append(first, o...)})
					continue
				}
				w := strings.Index(cast, "W")
				for at := range slices.Index(o, w) + 1 {
					var first []int
					for i := range cast {
						if i != w {
							first = append(first, i)
						}
					}
					plays = append(plays, play{lane, level, parked, cast, append(first, slices.Insert(slices.Clone(o), at, w)...)})
				}
			}
		}
	}
	add("a", "READ COMMITTED", "SCW")
	add("a", "REPEATABLE READ", "SCW")
	add("ab", "READ COMMITTED", "SCW")
	add("ab", "READ COMMITTED", "SPW")
	add("abc", "READ COMMITTED", "SPC")
	add("abc", "READ COMMITTED", "SCC")
	if len(plays) < 1000 {
		t.Fatalf("only %d orders", len(plays))
	}
	if testing.Short() {
		plays = plays[:100]
	}
	work := make(chan int)
	var wg sync.WaitGroup
	for range 4 {
		var conns []*pgx.Conn
		for range 3 {
			c, err := pgx.Connect(t.Context(), server)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close(context.Background()) }()
			conns = append(conns, c)
		}
		wg.Go(func() {
			for i := range work {
				p := plays[i]
				ends := outbox.OutcomeDelivered
				if i%2 == 1 {
					ends = outbox.OutcomeDead // and skipped; which has a statement of its own
				}
				scene(t, conns, fmt.Sprint("t", i), p.lane, p.level, p.parked, ends, p.cast, p.order)
			}
		})
	}
	for i := range plays {
		if t.Failed() {
			break
		}
		work <- i
	}
	close(work)
	wg.Wait()
	t.Logf("%d orders", len(plays))
}
