package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

// chain is a shop on SQLite whose messages a mailer on PostgreSQL receives.
type chain struct {
	t            *testing.T
	shop, mailer string
	stores       map[string]store
	names        []string
}

func newChain(t *testing.T) *chain {
	c := &chain{t: t, shop: newStore(t), mailer: testenv.Postgres(t), stores: map[string]store{}}
	for _, url := range []string{c.shop, c.mailer} {
		s, err := openStore(t.Context(), nil, url, 0, func(int, error) {})
		noError(t, err)
		t.Cleanup(func() { noError(t, s.Close(context.Background())) })
		c.stores[url] = s
	}
	return c
}

// record executes a key once, and answers it again so often.
func (c *chain) record(url, name, key string, o semel.Origin, replays int) (id string) {
	c.t.Helper()
	g, err := semel.New(semel.Config{Store: c.stores[url]})
	noError(c.t, err)
	for range replays + 1 {
		_, err = g.Do(c.t.Context(), semel.Submit{
			Identity: semel.Identity{Scope: semel.Scope{Tenant: "acme", Operation: "POST /" + name}, Key: key}, Origin: o,
		}, func(ctx context.Context) (semel.Result, error) {
			x, _ := semel.CurrentExecution(ctx)
			id = x.RecordID()
			return semel.Result{Codec: "test/1", Label: "201", Body: []byte("card 4111")}, nil
		})
		noError(c.t, err)
	}
	c.names = append(c.names, id, strings.ToUpper(name))
	return id
}

func (c *chain) enqueue(messages ...outbox.Message) {
	c.t.Helper()
	for i := range messages {
		messages[i].Payload = []byte("card 4111")
	}
	db, err := sql.Open("sqlite", strings.TrimPrefix(c.shop, "sqlite:")+"?_pragma=busy_timeout(60000)")
	noError(c.t, err)
	defer db.Close()
	tx, err := db.Begin()
	noError(c.t, err)
	noError(c.t, sqlite.EnqueueTx(c.t.Context(), tx, messages...))
	noError(c.t, tx.Commit())
}

// trace returns what is printed, with names for the ids of records and without
// times.
func (c *chain) trace(args ...string) string {
	c.t.Helper()
	out := ok(c.t, append([]string{"audit", "trace", "--store", c.shop, "--also", c.mailer}, args...)...)
	if strings.Contains(out, "4111") {
		c.t.Errorf("a payload is in %s", out)
	}
	out = strings.NewReplacer(append(c.names, c.shop, "SHOPDB", withoutSecrets(c.mailer), "MAILDB")...).Replace(out)
	return regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`).ReplaceAllString(out, "AT")
}

const wantTree = `record ORDER  POST /order  tenant acme  key order-17  request req-1  trace 4bf92f3577b34da6a3ce929d0e0e4736
│  AT  completed: executed 1, replayed 2  in SHOPDB
├─ message m1  topic mail  type order.paid
│  │  AT  pending  due  in SHOPDB
│  └─ record HOOK  POST /hook  tenant acme  key m1
│        AT  completed: executed 1, replayed 1  in MAILDB
└─ message m2  topic stock
   │  AT  pending  due  in SHOPDB
   └─ message m3  topic later
         AT  pending  due  in SHOPDB
`

// TestAuditTrace: from whichever end, the whole chain is shown, over two stores.
func TestAuditTrace(t *testing.T) {
	c := newChain(t)
	origin := semel.Origin{RequestID: "req-1", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"}
	id := c.record(c.shop, "order", "order-17", origin, 2)
	c.enqueue(outbox.Message{ID: "m1", Topic: "mail", Type: "order.paid", Origin: id})
	c.enqueue(outbox.Message{ID: "m2", Topic: "stock", Origin: id})
	c.enqueue(outbox.Message{ID: "m3", Topic: "later", Origin: "m2"})
	c.enqueue(outbox.Message{ID: "else", Topic: "mail"})
	job, err := jobs.Job{ID: "m4", Queue: "q", Kind: "k"}.Message()
	noError(t, err)
	c.enqueue(job)
	hook := c.record(c.mailer, "hook", "m1", semel.Origin{}, 1)
	c.record(c.shop, "another", "order-18", semel.Origin{RequestID: "req-2"}, 0)
	awaitEntries(t, c.stores[c.shop], semel.TrailFilter{Kind: semel.TrailReplayed}, 2)
	awaitEntries(t, c.stores[c.mailer], semel.TrailFilter{Kind: semel.TrailReplayed}, 1)

	for _, from := range []string{"order-17", "req-1", origin.TraceID, id, "m1", "m2", "m3", hook} {
		if got := c.trace(from); got != wantTree {
			t.Errorf("from %s:\n%s\nwant\n%s", from, got, wantTree)
		}
	}
	if got := c.trace("else"); got != "message else  topic mail\n   AT  pending  due  in SHOPDB\n" {
		t.Errorf("of a message without an origin:\n%s", got)
	}

	var doc struct {
		Items []struct {
			Kind, ID, Cause, State, Store string
			Entries                       []semel.TrailEntry
		}
		More bool
	}
	noError(t, json.Unmarshal([]byte(ok(t, "audit", "trace", "--store", c.shop, "--also", c.mailer, "--json", "req-1")), &doc))
	causes := map[string]string{}
	for _, item := range doc.Items {
		causes[item.ID] = item.Cause
	}
	want(t, "causes", fmt.Sprint(causes), fmt.Sprint(map[string]string{id: "", "m1": id, "m2": id, "m3": "m2", hook: "m1"}))

	// What a person has decided is told.
	ok(t, "jobs", "cancel", "--store", c.shop, "m4", "--because", "sent by hand", "--by", "ops")
	if got := c.trace("m4"); !strings.Contains(got, "dead  cancelled by ops: sent by hand") {
		t.Errorf("of a cancelled job:\n%s", got)
	}

	// A sibling by its trace only, and one that was swept.
	c.record(c.mailer, "sibling", "s", semel.Origin{TraceID: origin.TraceID}, 0)
	if got := c.trace("m3"); !strings.Contains(got, "├─ record ORDER") || !strings.Contains(got, "└─ record SIBLING") {
		t.Errorf("with a sibling:\n%s", got)
	}
	out := semelWith(nil, "", "audit", "trace", "--store", c.shop, "nobody")
	want(t, "exit code of an unknown id", out.code, exitNotFound)
	want(t, "exit code of two forms", semelWith(nil, "", "audit", "trace", "--store", c.shop, "--json", "--mermaid", "x").code, exitUsage)
}

// TestAuditTraceOfGoneRecords: the trail knows for longer.
func TestAuditTraceOfGoneRecords(t *testing.T) {
	s := tamperers(t)
	for kind, s := range s {
		s.execute(t, "brief", "", time.Microsecond)
		if n, err := s.store.(semel.Sweeper).Sweep(t.Context(), 10); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		if out := ok(t, "audit", "trace", "--store", s.url, "brief"); !strings.Contains(out, "key brief") || !strings.Contains(out, "executed: executed 1") {
			t.Errorf("%s: %s", kind, out)
		}
	}
}

// TestAuditTraceHostile: circles, markup and what a terminal obeys.
func TestAuditTraceHostile(t *testing.T) {
	c := newChain(t)
	c.enqueue(outbox.Message{ID: "a", Topic: "t", Origin: "b", Type: "x\"]<script>\x1b[31m"})
	c.enqueue(outbox.Message{ID: "b", Topic: "t", Origin: "a"})
	c.enqueue(outbox.Message{ID: "self", Topic: "t", Origin: "self"})
	for _, form := range [][]string{{"a"}, {"self"}, {"--mermaid", "a"}, {"--json", "a"}} {
		out := c.trace(form...)
		if strings.Contains(out, "\x1b") || form[0] == "--mermaid" && (strings.Contains(out, "<script") || strings.Count(out, `"`) != 4) {
			t.Errorf("%v: %q", form, out)
		}
	}
	var many []outbox.Message
	for i := range maxTraced + 1 {
		many = append(many, outbox.Message{ID: fmt.Sprint("m", i), Topic: "t", Origin: "many"})
	}
	c.enqueue(many...)
	out := semelWith(nil, "", "audit", "trace", "--store", c.shop, "many")
	if strings.Count(out.stdout, "message") != maxTraced || !strings.Contains(out.stderr, "There is more") {
		t.Errorf("%d lines, %s", strings.Count(out.stdout, "\n"), out.stderr)
	}
}

// awaitEntries waits until the trail has so many entries; notes are written behind
// the response.
func awaitEntries(t *testing.T, s store, f semel.TrailFilter, n int) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := s.Trail(t.Context(), f)
		noError(t, err)
		count := uint64(0)
		for _, e := range list {
			count += max(e.Count, 1)
		}
		if count >= uint64(n) {
			return
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the entries do not come")
		}
	}
}
