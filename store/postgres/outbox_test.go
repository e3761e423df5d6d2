package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	osexec "os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/postgres"
)

func TestOutbox(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	testOutbox(t, connect(t, server, nil), connect(t, server, nil))
}

func TestOutboxThroughPgBouncer(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	testOutbox(t, connect(t, server, nil), connect(t, testenv.PgBouncer(t, server), unprepared))
}

func testOutbox(t *testing.T, direct, pool *pgxpool.Pool) {
	outboxtest.Run(t, outboxtest.Config{New: func(t *testing.T) outboxtest.Harness {
		c := postgres.Config{Schema: fmt.Sprintf("rule%d", schemas.Add(1))}
		o := open(t, pool, c).Outbox()
		all := []*postgres.Outbox{o}
		return outboxtest.Harness{
			Store:   o,
			Enqueue: func(ctx context.Context, messages ...outbox.Message) error { return enqueue(ctx, pool, o, messages...) },
			Advance: func(d time.Duration) {
				age(t, direct, c.Schema, d)
				for _, o := range all {
					o.ForgetFloors() // or it would be times that have passed unseen
				}
			},
			Open: func() outboxtest.Store {
				all = append(all, open(t, pool, c).Outbox())
				return all[len(all)-1]
			},
		}
	}})
}

// enqueue adds messages in a transaction of their own.
func enqueue(ctx context.Context, pool *pgxpool.Pool, o *postgres.Outbox, messages ...outbox.Message) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return o.EnqueueTx(ctx, tx, messages...) })
}

// age moves what is recorded into the past.
func age(t testing.TB, pool *pgxpool.Pool, schema string, d time.Duration) {
	t.Helper()
	exec(t, pool, `UPDATE `+schema+`.outbox SET created_at = created_at - $1::interval, not_before = not_before - $1::interval`, d)
	exec(t, pool, `UPDATE `+schema+`.outbox_queue SET since = since - $1::interval, not_before = not_before - $1::interval,
		due = CASE WHEN due > 'epoch' THEN due - $1::interval ELSE due END, until = until - $1::interval, settled_at = settled_at - $1::interval`, d)
	exec(t, pool, `UPDATE `+schema+`.outbox_settled SET settled_at = settled_at - $1::interval`, d)
}

// lanes makes a message for each key.
func lanes(topic string, keys []string) (all []outbox.Message) {
	for _, key := range keys {
		all = append(all, outbox.Message{Topic: topic, Key: key, Payload: []byte(`{"paid": true}`)})
	}
	return all
}

// claimed claims messages of a topic and returns their ids.
func claimed(t *testing.T, o *postgres.Outbox, topic string) (ids []string, all []outbox.Claimed) {
	t.Helper()
	all, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Topic: topic, Max: 100, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return ids, all
}

// deliver settles what was claimed as delivered.
func deliver(t *testing.T, o *postgres.Outbox, all []outbox.Claimed) {
	t.Helper()
	var s []outbox.Settlement
	for _, m := range all {
		s = append(s, outbox.Settlement{Ref: m.Ref, Outcome: outbox.OutcomeDelivered})
	}
	if _, lost, err := o.Exchange(t.Context(), s, outbox.Claim{}); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
}

// A message is there exactly if the record and the rows of its handler are. The
// commit wakes relays that would not look for an hour: in this process and, by a
// notification, in another.
func TestEnqueueInTheHandlersTransaction(t *testing.T) {
	shop := newShop(t)
	c := transactional()
	c.Notify = true
	s := open(t, shop.direct, c)
	g := guard(t, s, semel.Policy{})
	got, looked := make(outboxtest.Arrivals, 10), make(chan struct{}, 100)
	run := func(o *postgres.Outbox, topic string) (stop func()) {
		stop = outboxtest.Relay(t, o, outbox.Config{
			PollMin: time.Hour, PollMax: time.Hour, Routes: []outbox.Route{{Topic: topic, Sink: got}},
			Observer: &outbox.Observer{Claimed: func(context.Context, outbox.Fetched) { looked <- struct{}{} }},
		})
		<-looked // what it finds later it was woken for
		return stop
	}
	stop := run(s.Outbox(), "paid")
	run(open(t, connect(t, shop.url, nil), postgres.Config{Notify: true}).Outbox(), "elsewhere")
	do := func(key string, end func() (semel.Result, error)) {
		t.Helper()
		defer func() { _ = recover() }()
		_, _ = g.Do(t.Context(), submit(key), func(ctx context.Context) (semel.Result, error) {
			if err := pay(ctx, key); err != nil {
				t.Error(err)
			}
			if err := postgres.Enqueue(ctx, outbox.Message{ID: key, Topic: "paid"}); err != nil {
				t.Error(err)
			}
			if err := postgres.Enqueue(ctx, outbox.Message{ID: key, Topic: "paid"}); !errors.Is(err, outbox.ErrDuplicate) {
				t.Errorf("one id twice: %v", err)
			}
			tx, _ := postgres.SQLTx(ctx)
			if err := s.Outbox().EnqueueSQL(ctx, tx, outbox.Message{ID: key + ".sql", Topic: "elsewhere", Key: "k", Headers: map[string]string{"a": "b"}}); err != nil {
				t.Error(err)
			}
			if err := s.Outbox().EnqueueSQL(ctx, tx, outbox.Message{ID: key, Topic: "paid"}); !errors.Is(err, outbox.ErrDuplicate) {
				t.Errorf("one id twice by database/sql: %v", err)
			}
			return end()
		})
	}
	do("fails", func() (semel.Result, error) { return semel.Result{}, errors.New("no") })
	do("panics", func() (semel.Result, error) { panic("no") })
	do("recorded-as-failed", func() (semel.Result, error) { return semel.Result{Failed: true}, nil })
	for range 2 { // the second is a replay
		do("succeeds", func() (semel.Result, error) { return semel.Result{}, nil })
	}
	ids := got.Hear(t, 2)
	if slices.Sort(ids); !slices.Equal(ids, []string{"succeeds", "succeeds.sql"}) {
		t.Errorf("%q arrived", ids)
	}
	stop()
	if left, _ := s.Outbox().List(t.Context(), outbox.Filter{}); len(got) != 0 || len(left) != 2 {
		t.Errorf("%d more messages arrived, %d are there", len(got), len(left))
	}
	shop.want(t, "succeeds", 1)
	for _, id := range []string{"succeeds", "succeeds.sql"} {
		e, err := s.Outbox().Find(t.Context(), id)
		if records, _ := s.List(t.Context(), semel.Filter{Key: "succeeds"}); err != nil || len(records) != 1 || e.Origin != records[0].ID {
			t.Errorf("the origin of %s is %q of %+v, %v", id, e.Origin, records, err)
		}
	}
	if err := postgres.Enqueue(t.Context(), outbox.Message{Topic: "t"}); !errors.Is(err, postgres.ErrNoTransaction) {
		t.Errorf("outside of a transaction: %v", err)
	}
}

// A transaction that inserts into so many lanes that others would find no room for
// their locks is ended, and told what to do; messages of few lanes may be as many as
// one likes.
func TestOutboxOfTooManyLanes(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	o := open(t, pool, postgres.Config{}).Outbox()
	insert := func(n, lanes int) error {
		_, err := pool.Exec(t.Context(), "INSERT INTO semel.outbox (topic, key) SELECT 't', 'lane ' || i % $2 FROM generate_series(1, $1::integer) AS i", n, lanes)
		return err
	}
	e, ok := errors.AsType[*pgconn.PgError](insert(100_000, 50_000))
	if !ok || e.Code != "54000" || !strings.Contains(e.Hint, "max_locks_per_transaction") {
		t.Errorf("50,000 lanes in a statement: %+v", e)
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		for call := 0; call < 20 && err == nil; call++ {
			m := make([]outbox.Message, 1000)
			for i := range m {
				m[i] = outbox.Message{Topic: "t", Key: fmt.Sprint(call, "/", i)}
			}
			if err := o.EnqueueTx(t.Context(), tx, append(m, outbox.Message{Topic: "t", Key: "one more"})...); err == nil || !strings.Contains(err.Error(), "1001 lanes") {
				t.Errorf("%d lanes in a call: %v", len(m)+1, err)
			}
			err = o.EnqueueTx(t.Context(), tx, m...)
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "fewer lanes") {
		t.Errorf("twenty thousand lanes in a transaction: %v", err)
	}
	if left, err := o.List(t.Context(), outbox.Filter{}); err != nil || len(left) > 0 {
		t.Errorf("%d are there: %v", len(left), err)
	}
	for range 2 {
		if err := insert(5000, 2000); err != nil {
			t.Error(err)
		}
	}
}

// Beyond the bound nothing is enqueued, though all connections are in use; the
// transaction can go on, and rows by SQL count.
func TestOutboxThatIsFull(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := open(t, pool, postgres.Config{MaxPending: 3})
	o := s.Outbox()
	exec(t, pool, "INSERT INTO semel.outbox (topic) VALUES ('by SQL')")
	s.ForgetPending()
	put := func(want error) {
		t.Helper()
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if err := o.EnqueueTx(t.Context(), tx, lanes("t", []string{"a"})...); !errors.Is(err, want) {
				t.Errorf("enqueue: %v; want %v", err, want)
			}
			_, err := tx.Exec(t.Context(), "SELECT 1")
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	put(nil)
	put(nil)
	put(outbox.ErrFull)
	_, all := claimed(t, o, "by SQL")
	deliver(t, o, all)
	s.ForgetPending()
	put(nil)
	put(outbox.ErrFull)
}

// The table is an interface: a row needs a topic and no more. Rows that break its
// bounds are refused, and one whose headers are none holds up nobody.
func TestOutboxRowsByPlainSQL(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	o := open(t, pool, postgres.Config{}).Outbox()
	for _, bad := range []string{
		"(id, topic) VALUES ('a b', 't')", "(id, topic) VALUES ('', 't')", "(id, topic) VALUES (repeat('x', 256), 't')", "(id, topic) VALUES (E'a\n', 't')",
		"(topic) VALUES ('')", "(topic) VALUES (NULL)", "(topic, key) VALUES ('t', '')", "(topic, key) VALUES ('t', repeat('ü', 128))", "(topic, type) VALUES ('t', repeat('x', 256))",
		"(topic, headers) VALUES ('t', '[]')", "(topic, headers) VALUES ('t', '7')", "(topic, payload) VALUES ('t', NULL)",
		"(topic, payload) VALUES ('t', convert_to(repeat('x', 1048577), 'UTF8'))", "(topic, not_before) VALUES ('t', 'infinity')", "(topic, created_at) VALUES ('t', '-infinity')",
	} {
		if _, err := pool.Exec(t.Context(), "INSERT INTO semel.outbox "+bad); err == nil {
			t.Errorf("there is a row %s", bad)
		}
	}
	var id string
	var first, second int64
	if err := pool.QueryRow(t.Context(), `INSERT INTO semel.outbox (position, topic, key, headers) VALUES (7000, 't', 'k', '{"a": 1}') RETURNING id, position`).Scan(&id, &first); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id) || first > 100 {
		t.Errorf("the id is %s, the position %d", id, first)
	}
	if err := pool.QueryRow(t.Context(), `INSERT INTO semel.outbox (id, topic, key, type, headers, payload, not_before) VALUES
		('second', 't', 'k', '', NULL, '', NULL), ('third', 't', 'l', 'paid', '{"a": "1"}', convert_to('text', 'UTF8'), now() - interval '1 s') RETURNING position`).Scan(&second); err != nil || second <= first {
		t.Fatal(first, second, err)
	}
	if n, err := pool.CopyFrom(t.Context(), pgx.Identifier{"semel", "outbox"}, []string{"id", "topic", "key"}, pgx.CopyFromRows([][]any{{"c1", "t", "k"}, {"c2", "t", "c"}, {"c3", "t", nil}})); err != nil || n != 3 {
		t.Fatal(n, err)
	}
	exec(t, pool, "INSERT INTO semel.outbox (id, topic) VALUES ('second', 't') ON CONFLICT DO NOTHING")
	got := make(chan outbox.Delivery, 10)
	stop := outboxtest.Relay(t, o, outbox.Config{Routes: []outbox.Route{{OnDead: outbox.DeadSkip, Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) error {
		got <- d
		return nil
	})}}})
	var arrived []string
	for range 5 {
		d := <-got
		arrived = append(arrived, d.ID)
		if d.Key == "l" && (string(d.Payload) != "text" || d.Headers["a"] != "1" || d.Type != "paid") {
			t.Errorf("%+v", d)
		}
	}
	stop()
	if slices.Index(arrived, "second") > slices.Index(arrived, "c1") {
		t.Errorf("%q arrived", arrived)
	}
	page, err := o.List(t.Context(), outbox.Filter{State: outbox.StateDead})
	if err != nil || len(page) != 1 || !strings.Contains(page[0].Cause, "headers are not") {
		t.Errorf("dead are %+v, %v", page, err)
	}
	// Debezium's columns, in its words.
	var aggregate, event string
	if err := pool.QueryRow(t.Context(), "SELECT id, aggregateid, type FROM semel.outbox_event WHERE aggregatetype = 't' AND aggregateid = 'l' AND payload = 'text'").Scan(&id, &aggregate, &event); err != nil || id != "third" || event != "paid" {
		t.Errorf("the view says %q, %q, %v", id, event, err)
	}
	// What people delete is not delivered, and holds up nobody.
	exec(t, pool, "INSERT INTO semel.outbox (id, topic, key) VALUES ('d1', 'd', 'k'), ('d2', 'd', 'k')")
	if ids, _ := claimed(t, o, "d"); !slices.Equal(ids, []string{"d1"}) {
		t.Errorf("claimed %q", ids)
	}
	err = pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "DELETE FROM semel.outbox WHERE id = 'd1'")
		return err
	})
	if err == nil {
		t.Error("the first of a lane was removed with a snapshot that may be old")
	}
	exec(t, pool, "DELETE FROM semel.outbox WHERE id = 'd1'")
	if ids, _ := claimed(t, o, "d"); !slices.Equal(ids, []string{"d2"}) {
		t.Errorf("behind what was deleted %q are due", ids)
	}
	exec(t, pool, "TRUNCATE semel.outbox")
	if all, err := o.Status(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("of nothing the status is %+v, %v", all, err)
	}
}

// Two transactions lock two lanes in opposite orders. The server ends one, which had
// no effect; the other's messages are delivered, and the lanes go on. In one call
// they would have kept to one order.
func TestEnqueueInOppositeOrders(t *testing.T) {
	server := testenv.Postgres(t)
	pool := connect(t, server, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["deadlock_timeout"] = "20ms" })
	o := open(t, pool, postgres.Config{}).Outbox()
	ctx := t.Context()
	both := [2][]string{{"a", "b"}, {"b", "a"}}
	var txs [2]pgx.Tx
	for i := range txs {
		var err error
		if txs[i], err = pool.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		if err := o.EnqueueTx(ctx, txs[i], outbox.Message{ID: fmt.Sprint("one", i), Topic: "t", Key: both[i][0]}); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 2)
	for i := range txs {
		go func() {
			err := o.EnqueueTx(ctx, txs[i], outbox.Message{ID: fmt.Sprint("two", i), Topic: "t", Key: both[i][1]})
			if err == nil {
				err = txs[i].Commit(ctx)
			} else if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "40P01" {
				err = errors.Join(errRolledBack, txs[i].Rollback(ctx))
			}
			errs <- err
		}()
	}
	if a, b := <-errs, <-errs; errors.Is(a, errRolledBack) == errors.Is(b, errRolledBack) || a != nil && b != nil {
		t.Fatalf("they ended with %v and %v", a, b)
	}
	if ids, all := claimed(t, o, ""); len(ids) != 2 || ids[0][3] != ids[1][3] {
		t.Errorf("claimed %q", ids)
	} else {
		deliver(t, o, all)
	}
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for range 50 {
				if err := enqueue(ctx, pool, o, lanes("t", both[i])...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

var errRolledBack = errors.New("rolled back")

// Two applications share a database: each has a schema, and a relay takes messages
// of its own only. A lane of one does not wait for the other's of the same name.
func TestTwoApplicationsInOneDatabase(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	boxes := map[string]*postgres.Outbox{}
	sinks := map[string]outboxtest.Arrivals{}
	for _, app := range []string{"one", "the other"} {
		boxes[app], sinks[app] = open(t, pool, postgres.Config{Schema: app}).Outbox(), make(outboxtest.Arrivals, 50)
		outboxtest.Relay(t, boxes[app], outbox.Config{Routes: []outbox.Route{{Sink: sinks[app]}}})
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for app, o := range boxes { // in one transaction, and beside an open one
		if err := enqueue(t.Context(), pool, o, outbox.Message{ID: "before " + app[:3] + "x", Topic: "t", Key: "k"}); err == nil {
			t.Error("an id with a space was taken")
		}
		if err := o.EnqueueTx(t.Context(), tx, outbox.Message{ID: app[:3], Topic: "t", Key: app}); err != nil {
			t.Fatal(err)
		}
	}
	if err := enqueue(t.Context(), pool, boxes["one"], outbox.Message{ID: "free", Topic: "t", Key: "the other"}); err != nil {
		t.Fatal(err)
	}
	if ids := sinks["one"].Hear(t, 1); ids[0] != "free" {
		t.Errorf("%q arrived", ids)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for app, got := range sinks {
		if ids := got.Hear(t, 1); ids[0] != app[:3] || len(got) > 0 {
			t.Errorf("at %s %q arrived", app, ids)
		}
	}
}

// A dump that is restored goes on where it was made: what was delivered since is
// delivered again, under the same id and in order, and a claim from before it settles
// nothing.
func TestRestoredOutbox(t *testing.T) {
	dump, psql := testenv.Program(t, "pg_dump"), testenv.Program(t, "psql")
	from, to := testenv.Postgres(t), testenv.Postgres(t)
	pool := connect(t, from, nil)
	o := open(t, pool, postgres.Config{}).Outbox()
	if err := enqueue(t.Context(), pool, o, outbox.Message{ID: "done", Topic: "t", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	_, all := claimed(t, o, "t")
	deliver(t, o, all)
	for i := range 3 {
		if err := enqueue(t.Context(), pool, o, outbox.Message{ID: fmt.Sprint("m", i), Topic: "t", Key: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := osexec.Command(dump, "--dbname="+from).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, before := claimed(t, o, "t")
	restore := osexec.Command(psql, "--dbname="+to, "-v", "ON_ERROR_STOP=1", "-q")
	restore.Stdin = bytes.NewReader(text)
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	copied := connect(t, to, nil)
	restored := open(t, copied, postgres.Config{NoMigrate: true}).Outbox()
	if err := enqueue(t.Context(), copied, restored, outbox.Message{ID: "new", Topic: "t", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, lost, err := restored.Exchange(t.Context(), []outbox.Settlement{{Ref: before[0].Ref, Outcome: outbox.OutcomeDelivered}}, outbox.Claim{}); err != nil || len(lost) != 1 {
		t.Errorf("a claim of before the dump settled: %v, %v", lost, err)
	}
	got := make(outboxtest.Arrivals, 10)
	outboxtest.Relay(t, restored, outbox.Config{Routes: []outbox.Route{{Sink: got}}})
	if ids := got.Hear(t, 4); !slices.Equal(ids, []string{"m0", "m1", "m2", "new"}) {
		t.Errorf("%q arrived", ids)
	}
}

// Relays work at every default isolation level of the database, and so do writers.
func TestOutboxUnderAnyDefaultIsolation(t *testing.T) {
	server := testenv.Postgres(t)
	for i, level := range []string{"repeatable read", "serializable"} {
		pool := connect(t, server, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level })
		o := open(t, pool, postgres.Config{Schema: fmt.Sprint("level", i)}).Outbox()
		got := make(outboxtest.Arrivals, 1000)
		stop := outboxtest.Relay(t, o, outbox.Config{PollMin: time.Millisecond, PollMax: 5 * time.Millisecond, Routes: []outbox.Route{{Sink: got}}})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20 {
					for {
						err := enqueue(t.Context(), pool, o, lanes("t", []string{"a", "", "b"})...)
						if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "40001" {
							continue // no effect
						} else if err != nil {
							t.Error(err)
						}
						break
					}
				}
			})
		}
		wg.Wait()
		got.Hear(t, 4*20*3)
		stop()
	}
}
