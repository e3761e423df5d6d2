package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/sqlite"
)

func TestOutbox(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel()
	outboxtest.Run(t, outboxtest.Config{New: newOutboxHarness})
}

func newOutboxHarness(t *testing.T) outboxtest.Harness {
	path := filepath.Join(t.TempDir(), "semel.db")
	o := open(t, sqlite.Config{Path: path}).Outbox()
	db := raw(t, path)
	return outboxtest.Harness{
		Store: o,
		Enqueue: func(ctx context.Context, messages ...outbox.Message) error {
			return enqueue(ctx, db, messages...)
		},
		Advance: func(d time.Duration) { shiftOutbox(t, db, -d) },
		Open:    func() outboxtest.Store { return open(t, sqlite.Config{Path: path}).Outbox() },
	}
}

// enqueue adds messages in a transaction of their own.
func enqueue(ctx context.Context, db *sql.DB, messages ...outbox.Message) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := sqlite.EnqueueTx(ctx, tx, messages...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// shiftOutbox moves what is recorded by d, as if the host's clock had gone the
// other way.
func shiftOutbox(t testing.TB, db *sql.DB, d time.Duration) {
	t.Helper()
	mustExec(t, db, `UPDATE outbox SET created_at = created_at + ?1, not_before = not_before + ?1,
		due = CASE WHEN due > 0 THEN due + ?1 ELSE due END, settled_at = settled_at + ?1`, d.Microseconds())
	mustExec(t, db, `UPDATE outbox_clock SET at = at + ?1 WHERE at > 0`, d.Microseconds())
}

func pendingMessages(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM outbox WHERE state = 'pending'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A message is there exactly if the record and the rows of its handler are. The
// commit wakes a relay that would not look for an hour.
func TestEnqueueInTheHandlersTransaction(t *testing.T) {
	b := newBank(t, sqlite.Config{})
	g, err := semel.New(semel.Config{Store: b.Store})
	if err != nil {
		t.Fatal(err)
	}
	got := make(outboxtest.Arrivals, 10)
	looked := make(chan struct{}, 100)
	stop := outboxtest.Relay(t, b.Outbox(), outbox.Config{
		PollMin: time.Hour, PollMax: time.Hour, Routes: []outbox.Route{{Sink: got}},
		Observer: &outbox.Observer{Claimed: func(context.Context, outbox.Fetched) { looked <- struct{}{} }},
	})
	<-looked // what it finds later it was woken for
	do := func(key string, end func() (semel.Result, error)) {
		t.Helper()
		defer func() { _ = recover() }()
		_, _ = g.Do(t.Context(), semel.Submit{Identity: identity(key)}, func(ctx context.Context) (semel.Result, error) {
			if err := pay(ctx, key); err != nil {
				t.Error(err)
			}
			if err := sqlite.Enqueue(ctx, outbox.Message{ID: key, Topic: "paid"}); err != nil {
				t.Error(err)
			}
			if err := sqlite.Enqueue(ctx, outbox.Message{ID: key, Topic: "paid"}); !errors.Is(err, outbox.ErrDuplicate) {
				t.Errorf("one id twice: %v", err)
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
	if ids := got.Hear(t, 1); ids[0] != "succeeds" {
		t.Errorf("%q arrived", ids)
	}
	stop()
	if len(got) != 0 || pendingMessages(t, b.db) != 0 || b.payments() != 1 {
		t.Errorf("%d more messages arrived, %d are pending, %d payments", len(got), pendingMessages(t, b.db), b.payments())
	}
	e, err := b.Outbox().Find(t.Context(), "succeeds")
	if records, _ := b.List(t.Context(), semel.Filter{Key: "succeeds"}); err != nil || len(records) != 1 || e.Origin != records[0].ID {
		t.Errorf("the origin is %q of %+v, %v", e.Origin, records, err)
	}
	if err := sqlite.Enqueue(t.Context(), outbox.Message{Topic: "t"}); !errors.Is(err, sqlite.ErrNoTransaction) {
		t.Errorf("outside of a transaction: %v", err)
	}
}

// Beyond the bound nothing is enqueued, in a handler's transaction or another, and
// what is rolled back with it is told to come again. Rows by SQL count.
func TestOutboxThatIsFull(t *testing.T) {
	b := newBank(t, sqlite.Config{MaxPending: 3})
	g, err := semel.New(semel.Config{Store: b.Store})
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, b.db, "INSERT INTO outbox (topic) VALUES ('by SQL')")
	do := func(key string) (failed error) {
		t.Helper()
		_, _ = g.Do(t.Context(), semel.Submit{Identity: identity(key)}, func(ctx context.Context) (semel.Result, error) {
			if err := pay(ctx, key); err != nil {
				t.Error(err)
			}
			failed = sqlite.Enqueue(ctx, outbox.Message{Topic: "paid"})
			return semel.Result{}, failed
		})
		return failed
	}
	for i, want := range []error{nil, nil, outbox.ErrFull} {
		if err := do(fmt.Sprint("k", i)); !errors.Is(err, want) {
			t.Errorf("message %d: %v; want %v", i, err, want)
		}
	}
	tx, err := b.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Outbox().EnqueueTx(t.Context(), tx, outbox.Message{Topic: "paid"}); !errors.Is(err, outbox.ErrFull) {
		t.Errorf("in another transaction: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n, m := pendingMessages(t, b.db), b.payments(); n != 3 || m != 2 {
		t.Errorf("%d messages are pending, with %d payments", n, m)
	}
	// What has been delivered makes room, once it is counted.
	mustExec(t, b.db, "UPDATE outbox SET state = 'delivered', due = NULL, settled_at = 1")
	b.ForgetPending()
	if err := do("k2"); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// The table is an interface: a row needs a topic and no more. Rows that break its
// bounds are refused, and one whose headers are none holds up nobody.
func TestOutboxRowsByPlainSQL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	o := open(t, sqlite.Config{Path: path}).Outbox()
	db := raw(t, path)
	for _, bad := range []string{
		"(id, topic) VALUES ('a b', 't')", "(id, topic) VALUES ('', 't')", "(id, topic) VALUES (printf('%0256d', 1), 't')",
		"(topic) VALUES ('')", "(topic) VALUES (NULL)", "(topic, key) VALUES ('t', '')", "(topic, key) VALUES ('t', printf('%0256d', 1))",
		"(topic, headers) VALUES ('t', 'x')", "(topic, headers) VALUES ('t', '[]')", "(topic, payload) VALUES ('t', 7)", "(topic, payload) VALUES ('t', NULL)",
		"(topic, payload) VALUES ('t', zeroblob(1048577))", "(topic, not_before) VALUES ('t', 0)", "(topic, state) VALUES ('t', 'new')", "(topic, state) VALUES ('t', 'dead')",
	} {
		if _, err := db.Exec("INSERT INTO outbox " + bad); err == nil {
			t.Errorf("there is a row %s", bad)
		}
	}
	mustExec(t, db, `INSERT INTO outbox (topic, key, headers) VALUES ('t', 'k', '{"a": 1}'), ('t', 'k', NULL)`)
	mustExec(t, db, `INSERT INTO outbox (topic, type) VALUES ('t', CAST(x'ff' AS TEXT)), ('t', 'zero' || char(0)), (CAST(x'74ff' AS TEXT), '')`)
	mustExec(t, db, `INSERT INTO outbox (topic) VALUES ('t')`)
	mustExec(t, db, `INSERT INTO outbox (topic, key, type, headers, payload, not_before)
		VALUES ('t', 'l', 'paid', '{"a": "1"}', 'text', CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 1)`)
	got := make(chan outbox.Delivery, 10)
	stop := outboxtest.Relay(t, o, outbox.Config{Routes: []outbox.Route{{OnDead: outbox.DeadSkip, Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) error {
		got <- d
		return nil
	})}}})
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 3 {
		d := <-got
		if !uuid.MatchString(d.ID) || seen[d.ID] {
			t.Errorf("the id %q is no UUID of version 7, or not the first", d.ID)
		}
		seen[d.ID] = true
		if age := time.Since(d.EnqueuedAt); age < 0 || age > time.Minute {
			t.Errorf("enqueued %v ago", age)
		}
		if d.Key == "l" && (string(d.Payload) != "text" || d.Headers["a"] != "1" || d.Type != "paid") {
			t.Errorf("%+v", d)
		}
	}
	stop()
	page, err := o.List(t.Context(), outbox.Filter{State: outbox.StateDead})
	if err != nil || len(page) != 4 || !strings.Contains(page[0].Cause, "headers are not") {
		t.Fatalf("dead are %+v, %v", page, err)
	}
	for i, e := range page[1:] {
		if !strings.Contains(e.Cause, []string{"Type", "Type", "Topic"}[i]+" must be UTF-8") {
			t.Errorf("the cause of a row that is no message is %q", e.Cause)
		}
	}
	// Debezium's columns, in its words.
	var id, aggregate, event string
	if err := db.QueryRow("SELECT id, aggregateid, type FROM outbox_event WHERE aggregatetype = 't' AND aggregateid = 'l' AND payload = 'text'").Scan(&id, &aggregate, &event); err != nil || !seen[id] || event != "paid" {
		t.Errorf("the view says %q, %q, %v", id, event, err)
	}
}

// A long transaction elsewhere: one that reads holds up nobody. One that writes
// has the only write lock, and when it ends everything goes on, once.
func TestLongTransactionDoesNotStallTheRelay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	o := open(t, sqlite.Config{Path: path, BusyTimeout: 100 * time.Millisecond}).Outbox()
	db, other := raw(t, path), raw(t, path)
	got := make(outboxtest.Arrivals, 100)
	release := make(chan struct{})
	sink := outbox.SinkFunc(func(ctx context.Context, d outbox.Delivery) error {
		err := got.Deliver(ctx, d)
		if d.ID == "slow" {
			<-release
		}
		return err
	})
	failed := make(chan error, 100)
	outboxtest.Relay(t, o, outbox.Config{Routes: []outbox.Route{{Sink: sink}}, Observer: &outbox.Observer{
		StoreFailed: func(_ context.Context, _ string, err error) {
			select {
			case failed <- err:
			default:
			}
		},
	}})
	tx, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRow("SELECT count(*) FROM outbox").Scan(&n); err != nil {
		t.Fatal(err)
	}
	enqueueAll(t, db, 5)
	got.Hear(t, 5)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}

	if err := enqueue(t.Context(), db, outbox.Message{ID: "slow", Topic: "t"}); err != nil {
		t.Fatal(err)
	}
	got.Hear(t, 1)
	if tx, err = other.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.EnqueueTx(t.Context(), tx, outbox.Message{Topic: "t"}); err != nil {
		t.Fatal(err)
	}
	close(release)
	for range 3 { // tries to settle what has arrived
		if err := <-failed; !errors.Is(err, sqlite.ErrBusy) {
			t.Errorf("a call of the store failed with %v", err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	enqueueAll(t, db, 5)
	got.Hear(t, 6)
	allDelivered(t, path)
	if len(got) != 0 {
		t.Errorf("%d messages came twice", len(got))
	}
}

func enqueueAll(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	for range n {
		if err := enqueue(t.Context(), db, outbox.Message{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
	}
}

// The host's clock goes back by a day. What was enqueued, delayed, leased and
// tried before does not wait for a day; what is for a time of the calendar does.
func TestClockSetBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	o := open(t, sqlite.Config{Path: path}).Outbox()
	db := raw(t, path)
	claim := func() (ids []string, claimed []outbox.Claimed) {
		t.Helper()
		claimed, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Max: 10, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range claimed {
			ids = append(ids, m.ID)
		}
		slices.Sort(ids)
		return ids, claimed
	}
	for _, id := range []string{"leased", "retried"} {
		if err := enqueue(t.Context(), db, outbox.Message{ID: id, Topic: "t"}); err != nil {
			t.Fatal(err)
		}
	}
	_, claimed := claim()
	for _, m := range claimed {
		if m.ID == "retried" {
			if _, _, err := o.Exchange(t.Context(), []outbox.Settlement{{Ref: m.Ref, Outcome: outbox.OutcomeRetry, Delay: 30 * time.Second}}, outbox.Claim{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, at := range map[string]time.Time{"fresh": {}, "later": time.Now().Add(time.Second)} {
		if err := enqueue(t.Context(), db, outbox.Message{ID: id, Topic: "t", NotBefore: at}); err != nil {
			t.Fatal(err)
		}
	}
	shiftOutbox(t, db, 24*time.Hour) // to the recorded times the clock has gone back
	if ids, _ := claim(); !slices.Equal(ids, []string{"fresh"}) {
		t.Errorf("right after the step %q are due", ids)
	}
	if ids, _ := claim(); len(ids) != 0 {
		t.Errorf("leases and delays were cut: %q are due", ids)
	}
	shiftOutbox(t, db, -time.Minute-2*time.Second) // a minute passes
	if ids, _ := claim(); !slices.Equal(ids, []string{"fresh", "leased", "retried"}) {
		t.Errorf("a minute after the step %q are due", ids)
	}
	shiftOutbox(t, db, -24*time.Hour)
	if ids, _ := claim(); !slices.Contains(ids, "later") {
		t.Errorf("at its time %q are due", ids)
	}
}

// Two applications share a file: a relay takes messages of its own topics only.
func TestTwoApplicationsInOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	db := raw(t, path)
	open(t, sqlite.Config{Path: path})
	sinks := map[string]outboxtest.Arrivals{}
	for _, topic := range []string{"mail", "hooks"} {
		sinks[topic] = make(outboxtest.Arrivals, 50)
		outboxtest.Relay(t, open(t, sqlite.Config{Path: path}).Outbox(), outbox.Config{Routes: []outbox.Route{{Topic: topic, Sink: sinks[topic]}}})
	}
	for i := range 30 {
		for topic := range sinks {
			if err := enqueue(t.Context(), db, outbox.Message{ID: fmt.Sprint(topic, i), Topic: topic, Key: "k"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for topic, got := range sinks {
		for i, id := range got.Hear(t, 30) {
			if id != fmt.Sprint(topic, i) {
				t.Errorf("message %d of %s is %s", i, topic, id)
			}
		}
	}
}

// A restored backup goes on where it was made: what was delivered since is
// delivered again, under the same id, and a claim from before it settles nothing.
func TestRestoredOutbox(t *testing.T) {
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "semel.db"), filepath.Join(dir, "copy.db")
	o := open(t, sqlite.Config{Path: path}).Outbox()
	db := raw(t, path)
	for i := range 3 {
		if err := enqueue(t.Context(), db, outbox.Message{ID: fmt.Sprint("m", i), Topic: "t", Key: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec("VACUUM INTO ?", copied); err != nil {
		t.Fatal(err)
	}
	before, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Max: 1, Lease: time.Minute})
	if err != nil || len(before) != 1 {
		t.Fatal(before, err)
	}
	restored := open(t, sqlite.Config{Path: copied}).Outbox()
	if err := enqueue(t.Context(), raw(t, copied), outbox.Message{ID: "new", Topic: "t", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, lost, err := restored.Exchange(t.Context(), []outbox.Settlement{{Ref: before[0].Ref, Outcome: outbox.OutcomeDelivered}}, outbox.Claim{}); err != nil || len(lost) != 1 {
		t.Errorf("a claim of before the restore settled: %v, %v", lost, err)
	}
	got := make(outboxtest.Arrivals, 10)
	outboxtest.Relay(t, restored, outbox.Config{Routes: []outbox.Route{{Sink: got}}})
	if ids := got.Hear(t, 4); !slices.Equal(ids, []string{"m0", "m1", "m2", "new"}) {
		t.Errorf("%q arrived", ids)
	}
}

// Positions never repeat, though the file is emptied in between: a stale claim on
// what is gone means nothing that comes later.
func TestPositionsDoNotRepeat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	o := open(t, sqlite.Config{Path: path}).Outbox()
	db := raw(t, path)
	last := uint64(0)
	for range 3 {
		enqueueAll(t, db, 2)
		claimed, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Max: 2, Lease: time.Minute})
		if err != nil || len(claimed) != 2 || claimed[0].Position <= last {
			t.Fatal(claimed, last, err)
		}
		last = max(claimed[0].Position, claimed[1].Position)
		mustExec(t, db, "DELETE FROM outbox")
	}
}

// playPay commits business rows with their messages for ever.
func playPay(path string, _ *bufio.Scanner) error {
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for round := 0; ; round++ {
		if _, err := writeOne(context.Background(), db, 1, round%9); err != nil {
			return err
		}
	}
}

// No event is appended after the commit: whenever a writer is killed, there are
// exactly as many messages as business rows.
func TestKilledWritersLeaveNoHalf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	open(t, sqlite.Config{Path: path})
	db := raw(t, path)
	mustExec(t, db, "CREATE TABLE business (n INTEGER PRIMARY KEY AUTOINCREMENT, writer INTEGER) STRICT")
	for round := range 4 {
		c := spawn(t, "pay", path)
		c.hear(t)
		for {
			var n int
			if err := db.QueryRow("SELECT count(*) FROM business").Scan(&n); err != nil {
				t.Fatal(err)
			}
			if n > 100*(round+1) {
				break
			}
		}
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		var rows, messages, alone int
		if err := db.QueryRow(`SELECT (SELECT count(*) FROM business), (SELECT count(*) FROM outbox),
			(SELECT count(*) FROM outbox o WHERE NOT EXISTS (SELECT 1 FROM business WHERE n = CAST(o.headers ->> 'X-Number' AS INTEGER)))`).
			Scan(&rows, &messages, &alone); err != nil {
			t.Fatal(err)
		}
		if rows != messages || alone != 0 {
			t.Errorf("%d business rows, %d messages, %d of them without their row", rows, messages, alone)
		}
	}
}
