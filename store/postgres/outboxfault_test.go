package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
)

// faulty is a store whose connections are cut at one of the messages that they send,
// those that open and prepare among them, and the database as it is seen beside it.
type faulty struct {
	*postgres.Store
	pool, direct *pgxpool.Pool
	proxy        *testenv.Proxy
}

func newFaulty(t *testing.T) faulty {
	server := testenv.Postgres(t)
	proxied, proxy := through(t, server)
	pool, direct := connect(t, proxied, nil), connect(t, server, nil)
	exec(t, direct, "CREATE TABLE effect (id text)")
	return faulty{open(t, pool, postgres.Config{}), pool, direct, proxy}
}

// arm has the nth message be the last of its connection: the server does not see it,
// or nobody sees its answer. disarm says whether there was one, and returns when the
// server has noticed.
func (f faulty) arm(t *testing.T, n int, lost bool) (disarm func() (hit bool)) {
	f.pool.Reset()
	verdict := testenv.CutBefore
	if lost {
		verdict = testenv.CutAfter
	}
	sent, hits := make(chan int, 1), make(chan struct{}, 1)
	sent <- 0
	f.proxy.OnWrite(func([]byte) testenv.Verdict {
		at := 1 + <-sent
		sent <- at
		if at == n {
			hits <- struct{}{}
			return verdict
		}
		return testenv.Pass
	})
	return func() bool {
		f.proxy.OnWrite(nil)
		await(t, func() (idle bool) {
			if err := f.direct.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle')`).Scan(&idle); err != nil {
				t.Fatal(err)
			}
			return idle
		})
		return len(hits) > 0
	}
}

// rows is all that is committed, but for numbers and times.
func (f faulty) rows(t *testing.T) (all string) {
	t.Helper()
	if err := f.direct.QueryRow(t.Context(), `SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
		SELECT concat_ws(' ', id, state, CASE WHEN due > now() + '30 min' THEN 'later' WHEN due IS NOT NULL THEN 'soon' END,
			CASE WHEN leased THEN 'leased' END, attempts, lapses, unsure, redriven, in_lane, cause) AS line FROM semel.outbox_message
		UNION ALL SELECT 'effect ' || id FROM effect
		UNION ALL SELECT 'received ' || id FROM semel.inbox) AS lines`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

// Each call's connection is cut at each of the messages that it sends, once before
// the server sees it, and once before its answer is seen. What the call does is done
// or not, never in part; what is told as done is; and who asks again gets there.
func TestOutboxEveryFault(t *testing.T) {
	t.Parallel()
	const k1, s1 = "k1", "s1"
	type refs map[string]outbox.Ref
	exchange := func(o *postgres.Outbox, c outbox.Claim, s ...outbox.Settlement) (ids []string, err error) {
		claimed, lost, err := o.Exchange(t.Context(), s, c)
		if len(lost) > 0 {
			t.Errorf("lost: %v", lost)
		}
		for _, m := range claimed {
			ids = append(ids, m.ID)
		}
		slices.Sort(ids)
		return ids, err
	}
	delivered := func(r refs) []outbox.Settlement {
		return []outbox.Settlement{{Ref: r[s1], Outcome: outbox.OutcomeDelivered}, {Ref: r[k1], Outcome: outbox.OutcomeDelivered}}
	}
	some := outbox.Claim{Topic: "t", Max: 10, Lease: time.Hour}
	for _, tt := range []struct {
		name  string
		first outbox.Outcome // of what was claimed
		call  func(f faulty, o *postgres.Outbox, r refs) ([]string, error)
	}{
		{"deliver", 0, func(_ faulty, o *postgres.Outbox, r refs) ([]string, error) {
			return exchange(o, outbox.Claim{}, delivered(r)...)
		}},
		{"settle", 0, func(_ faulty, o *postgres.Outbox, r refs) ([]string, error) {
			return exchange(o, outbox.Claim{}, outbox.Settlement{Ref: r[s1], Outcome: outbox.OutcomeRetry, Delay: time.Hour, Cause: "busy"},
				outbox.Settlement{Ref: r[k1], Outcome: outbox.OutcomeDead, Cause: "refused"})
		}},
		{"claim", 0, func(_ faulty, o *postgres.Outbox, _ refs) ([]string, error) { return exchange(o, some) }},
		{"deliver and claim", 0, func(_ faulty, o *postgres.Outbox, r refs) ([]string, error) {
			return exchange(o, some, delivered(r)...)
		}},
		{"claim of any topic", 0, func(_ faulty, o *postgres.Outbox, _ refs) ([]string, error) {
			return exchange(o, outbox.Claim{Max: 10, Lease: time.Hour})
		}},
		{"mark", 0, func(_ faulty, o *postgres.Outbox, r refs) ([]string, error) { return nil, o.Mark(t.Context(), r[k1]) }},
		{"renew", 0, func(_ faulty, o *postgres.Outbox, r refs) ([]string, error) {
			lost, err := o.Renew(t.Context(), time.Hour, []outbox.Ref{r[s1], r[k1]})
			if len(lost) > 0 {
				t.Errorf("lost: %v", lost)
			}
			return nil, err
		}},
		{"redrive", outbox.OutcomeDead, func(_ faulty, o *postgres.Outbox, _ refs) ([]string, error) {
			_, err := o.Redrive(t.Context(), outbox.Filter{State: outbox.StateDead})
			return nil, err
		}},
		{"purge", outbox.OutcomeDead, func(_ faulty, o *postgres.Outbox, _ refs) ([]string, error) {
			_, err := o.Purge(t.Context(), outbox.Filter{State: outbox.StateDead})
			return nil, err
		}},
		{"sweep", outbox.OutcomeDelivered, func(_ faulty, o *postgres.Outbox, _ refs) ([]string, error) {
			_, err := o.Sweep(t.Context(), outbox.Retention{Delivered: time.Nanosecond}, 10)
			return nil, err
		}},
		{"enqueue", 0, func(f faulty, o *postgres.Outbox, _ refs) ([]string, error) {
			err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "INSERT INTO effect VALUES ('paid')"); err != nil {
					return err
				}
				return o.EnqueueTx(t.Context(), tx, outbox.Message{ID: "n1", Topic: "t", Key: "k"}, outbox.Message{ID: "n2", Topic: "t", Key: "l"})
			})
			if errors.Is(err, outbox.ErrDuplicate) { // so says who asks again
				return nil, nil
			}
			return nil, err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			aside := open(t, f.direct, postgres.Config{}).Outbox()
			put := func(messages ...outbox.Message) {
				t.Helper()
				if err := enqueue(t.Context(), f.direct, aside, messages...); err != nil {
					t.Fatal(err)
				}
			}
			var done string
			var want []string
			points := 0
			run := func(n int, lost bool) (hit bool) {
				exec(t, f.direct, "TRUNCATE semel.outbox, effect")
				put(outbox.Message{ID: k1, Topic: "t", Key: "k"}, outbox.Message{ID: "k2", Topic: "t", Key: "k"}, outbox.Message{ID: s1, Topic: "t"})
				_, all := claimed(t, aside, "t")
				r := refs{}
				for _, m := range all {
					r[m.ID] = m.Ref
					if tt.first != 0 {
						if _, err := exchange(aside, outbox.Claim{}, outbox.Settlement{Ref: m.Ref, Outcome: tt.first, Blocks: true}); err != nil {
							t.Fatal(err)
						}
					}
				}
				put(outbox.Message{ID: "s2", Topic: "t"}, outbox.Message{ID: "s3", Topic: "t"})
				if len(r) != 2 {
					t.Fatal(r)
				}
				before := f.rows(t)
				disarm := f.arm(t, n, lost)
				got, err := tt.call(f, f.Outbox(), r)
				hit = disarm()
				after := f.rows(t)
				at := fmt.Sprintf("at message %d, answer lost %v: %v", n, lost, err)
				if n == 0 {
					if err != nil || after == before {
						t.Fatalf("without a fault: %v\n%s", err, after)
					}
					done, want = after, got
					return hit
				}
				switch {
				case after != before && after != done:
					t.Errorf("%s: half of it is done:\n%s\nbefore:\n%s\nall:\n%s", at, after, before, done)
				case err == nil && (after != done || !slices.Equal(got, want)):
					t.Errorf("%s: told as done, with %q:\n%s", at, got, after)
				case errors.Is(err, outbox.ErrLeaseLost):
					t.Errorf("%s: the lease is not lost", at)
				}
				if err == nil {
					return hit
				}
				for try := 0; try < 3 && (err != nil || !slices.Equal(got, want)); try++ {
					// A claim that nobody knows of waits for its lease.
					exec(t, f.direct, "UPDATE semel.outbox_queue SET until = '1980-01-01', due = least(due, '1980-01-01') WHERE leased AND until > now() + '30 min' AND $1", len(want) > 0 && err == nil)
					got, err = tt.call(f, f.Outbox(), r)
				}
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: asked again: %q, %v; want %q", at, got, err, want)
				}
				if after := f.rows(t); len(want) == 0 && after != done {
					t.Errorf("%s: asked again, and this is there:\n%s\ninstead of\n%s", at, after, done)
				}
				return hit
			}
			run(0, false)
			for _, lost := range []bool{false, true} {
				for n := 1; run(n, lost) && !t.Failed(); n++ {
					points++
				}
			}
			if points < 4 {
				t.Errorf("only %d points", points)
			}
			t.Logf("%d points", points)
		})
	}
}

// The same for messages that come in, one and several together: each error but
// ErrUnknown means that there is no effect, and who delivers again until there is
// none has each effect once, its id and a message with it.
func TestInboxEveryFault(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][]string{"one": {"a"}, "a batch": {"a", "b", "a", "c"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			points, unknown := 0, 0
			run := func(n int, lost bool) (hit bool) {
				exec(t, f.direct, "TRUNCATE semel.outbox, semel.inbox, effect")
				b, err := inbox.New(inbox.Config{Store: f.Inbox(), Consumer: "c", RetrySpan: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				var todo []inbox.Message
				for _, id := range ids {
					todo = append(todo, inbox.Message{ID: id})
				}
				disarm := f.arm(t, n, lost)
				for try := 0; len(todo) > 0; try++ {
					if try == 5 {
						t.Fatalf("at message %d, answer lost %v: %v are left", n, lost, todo)
					}
					results := b.ProcessBatch(t.Context(), todo, func(ctx context.Context, i int) error {
						tx, _ := postgres.Tx(ctx)
						if _, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1)", todo[i].ID); err != nil {
							return err
						}
						return postgres.Enqueue(ctx, outbox.Message{ID: todo[i].ID, Topic: "t"})
					})
					if try == 0 {
						hit = disarm()
					}
					rows := strings.Split(f.rows(t), "\n")
					var again []inbox.Message
					for i, r := range results {
						there := slices.Contains(rows, "effect "+todo[i].ID)
						switch {
						case errors.Is(r.Err, inbox.ErrUnknown):
							unknown++
						case r.Err == nil != there:
							t.Errorf("at message %d, answer lost %v: of %s is told %v, %v; its effect is there: %v", n, lost, todo[i].ID, r.Outcome, r.Err, there)
						}
						if r.Err != nil {
							again = append(again, todo[i])
						}
					}
					todo = again
				}
				var want []string
				for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
					want = append(want, "effect "+id, "received "+id, id+" 1 soon 0 0 f 0 f")
				}
				if slices.Sort(want); f.rows(t) != strings.Join(want, "\n") {
					t.Errorf("at message %d, answer lost %v there are\n%s\nwant\n%s", n, lost, f.rows(t), strings.Join(want, "\n"))
				}
				return hit
			}
			for _, lost := range []bool{false, true} {
				for n := 1; run(n, lost) && !t.Failed(); n++ {
					points++
				}
			}
			if points < 10 || unknown == 0 {
				t.Errorf("%d points, %d told as unknown", points, unknown)
			}
			t.Logf("%d points, %d told as unknown", points, unknown)
		})
	}
}
