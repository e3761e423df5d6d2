package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/webhook"
)

// letters is an outbox in one of the stores.
type letters struct {
	t             *testing.T
	url           string
	table         string
	payload       string // the format of a literal
	driver, under string // of database/sql
	enqueueIn     func(*sql.Tx, ...outbox.Message) error
}

// onEachStore runs a test on an empty outbox in each store. There are no tables yet.
func onEachStore(t *testing.T, test func(t *testing.T, l *letters)) {
	t.Run("sqlite", func(t *testing.T) {
		url := newStore(t)
		test(t, &letters{
			t: t, url: url, table: "outbox", payload: "'%s'", driver: "sqlite", under: strings.TrimPrefix(url, "sqlite:") + "?_pragma=busy_timeout(10000)",
			enqueueIn: func(tx *sql.Tx, messages ...outbox.Message) error {
				return sqlite.EnqueueTx(t.Context(), tx, messages...)
			},
		})
	})
	t.Run("postgres", func(t *testing.T) {
		url := testenv.Postgres(t)
		l := &letters{t: t, url: url, table: "semel.outbox", payload: "convert_to('%s', 'UTF8')", driver: "pgx", under: url}
		l.enqueueIn = func(tx *sql.Tx, messages ...outbox.Message) error {
			return l.open().(*postgres.Outbox).EnqueueSQL(t.Context(), tx, messages...)
		}
		test(t, l)
	})
}

// open makes the tables, if need be. What it opens ends with the test.
func (l *letters) open() outbox.Store {
	l.t.Helper()
	if path, ok := strings.CutPrefix(l.url, "sqlite:"); ok {
		s, err := sqlite.Open(l.t.Context(), sqlite.Config{Path: path})
		noError(l.t, err)
		l.t.Cleanup(func() { noError(l.t, s.Close(context.Background())) })
		return s.Outbox()
	}
	pool, err := pgxpool.New(l.t.Context(), l.url)
	noError(l.t, err)
	l.t.Cleanup(pool.Close)
	s, err := postgres.New(l.t.Context(), pool, postgres.Config{})
	noError(l.t, err)
	l.t.Cleanup(func() { noError(l.t, s.Close(context.Background())) })
	return s.Outbox()
}

// fill enqueues messages and brings them into every state.
func (l *letters) fill() {
	l.t.Helper()
	o := l.open()
	l.enqueue(
		outbox.Message{ID: "delivered", Topic: "t"}, outbox.Message{ID: "dead", Topic: "t", Key: "k"}, outbox.Message{ID: "behind", Topic: "t", Key: "k"},
		outbox.Message{ID: "skipped", Topic: "t", Key: "s"}, outbox.Message{ID: "unknown", Topic: "t"}, outbox.Message{ID: "claimed", Topic: "t"},
		outbox.Message{ID: "later", Topic: "u", NotBefore: time.Now().Add(time.Hour)},
	)
	claimed, _, err := o.Exchange(l.t.Context(), nil, outbox.Claim{Max: 10, Lease: time.Hour})
	noError(l.t, err)
	for _, m := range claimed {
		s := outbox.Settlement{Ref: m.Ref, Cause: "no " + m.ID}
		switch m.ID {
		case "delivered":
			s.Outcome = outbox.OutcomeDelivered
		case "dead":
			s.Outcome, s.Blocks = outbox.OutcomeDead, true
		case "skipped":
			s.Outcome = outbox.OutcomeDead
		case "unknown":
			s.Outcome, s.Unsure = outbox.OutcomeUnknown, true
		default:
			continue
		}
		_, _, err := o.Exchange(l.t.Context(), []outbox.Settlement{s}, outbox.Claim{})
		noError(l.t, err)
	}
	l.enqueue(outbox.Message{ID: "due", Topic: "t", Key: "\x1b[31mred", Type: "paid", Headers: map[string]string{"A": "b"}, Payload: []byte("the payload\n")})
}

func (l *letters) enqueue(messages ...outbox.Message) {
	l.t.Helper()
	l.in(func(db *sql.DB) {
		tx, err := db.Begin()
		noError(l.t, err)
		noError(l.t, l.enqueueIn(tx, messages...))
		noError(l.t, tx.Commit())
	})
}

// insert adds rows as a program does that knows no more than SQL.
func (l *letters) insert(columns string, rows ...string) {
	l.t.Helper()
	l.in(func(db *sql.DB) {
		_, err := db.Exec("INSERT INTO " + l.table + " (" + columns + ") VALUES (" + strings.Join(rows, "), (") + ")")
		noError(l.t, err)
	})
}

func (l *letters) in(do func(*sql.DB)) {
	l.t.Helper()
	db, err := sql.Open(l.driver, l.under)
	noError(l.t, err)
	defer db.Close()
	do(db)
}

func (l *letters) bytes(s string) string { return fmt.Sprintf(l.payload, s) }

func (l *letters) run(args ...string) output {
	return semelWith(nil, "", append(append([]string{"outbox"}, args...), "--store", l.url)...)
}

func (l *letters) ids(args ...string) string {
	l.t.Helper()
	out := l.run(append([]string{"list", "--json"}, args...)...)
	var doc struct{ Messages []struct{ ID string } }
	if err := json.Unmarshal([]byte(out.stdout), &doc); err != nil || out.code != exitOK {
		l.t.Fatalf("%v: %s%s", err, out.stdout, out.stderr)
	}
	var ids []string
	for _, m := range doc.Messages {
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

func TestOutboxLooks(t *testing.T) { onEachStore(t, testOutboxLooks) }

func testOutboxLooks(t *testing.T, l *letters) {
	l.fill()
	for args, ids := range map[string]string{
		"":                                 "delivered dead behind skipped unknown claimed later due",
		"--state dead":                     "dead skipped",
		"--state pending --topic t":        "behind claimed due",
		"--key k":                          "dead behind",
		"--cause no*":                      "dead skipped unknown",
		"--limit 2 --after 2":              "behind skipped",
		"--state unknown --cause no --all": "",
	} {
		want(t, "list "+args, l.ids(strings.Fields(args)...), ids)
	}
	out := l.run("list")
	for _, w := range []string{"blocks its lane", "behind others of its lane", "under way", "delayed", "no unknown", "\ufffd[31mred"} {
		if !strings.Contains(out.stdout, w) {
			t.Errorf("%q is not in\n%s", w, out.stdout)
		}
	}
	var status struct {
		OldestSeconds float64 `json:"oldest_seconds"`
		Topics        []topicJSON
	}
	noError(t, json.Unmarshal([]byte(l.run("status", "--json").stdout), &status))
	if len(status.Topics) != 2 || status.OldestSeconds <= 0 || status.OldestSeconds > 60 || status.Topics[1].OldestSeconds != 0 {
		t.Errorf("status: %+v", status)
	}
	status.Topics[0].OldestSeconds = 0
	want(t, "status", status.Topics[0], topicJSON{Topic: "t", Pending: 3, Blocked: 1, Dead: 2, Unknown: 1})
	if s := l.run("status").stdout; !strings.Contains(s, "TOPIC") || !strings.Contains(s, "u      0s") {
		t.Errorf("status:\n%s", s)
	}
	out = l.run("show", "due")
	for _, w := range []string{"paid", "A: b", "12 bytes", "pending, due"} {
		if !strings.Contains(out.stdout, w) {
			t.Errorf("%q is not in\n%s", w, out.stdout)
		}
	}
	if strings.Contains(out.stdout, "the payload") {
		t.Error("show prints the payload without being asked")
	}
	want(t, "payload", l.run("show", "due", "--payload").stdout, "the payload\n")
	if out := l.run("show", "unknown"); !strings.Contains(out.stdout, "it may have arrived") || !strings.Contains(out.stderr, "semel outbox purge") {
		t.Errorf("show: %+v", out)
	}
	want(t, "exit code", l.run("show", "nobody").code, exitNotFound)
}

func TestOutboxDecisions(t *testing.T) { onEachStore(t, testOutboxDecisions) }

func testOutboxDecisions(t *testing.T, l *letters) {
	l.fill()
	for _, id := range []string{"due", "delivered"} {
		want(t, "exit code of redriving what is "+id, l.run("redrive", id).code, exitRefused)
	}
	want(t, "exit code", l.run("redrive", "nobody").code, exitNotFound)
	out := l.run("redrive", "--state", "dead")
	if out.code != exitOK || !strings.Contains(out.stdout, "2 messages would be redriven") || l.ids("--state", "dead") != "dead skipped" {
		t.Errorf("a dry run: %+v", out)
	}
	out = l.run("redrive", "--state", "dead", "--apply")
	if out.code != exitOK || !strings.Contains(out.stdout, "2 messages redriven") || !strings.Contains(out.stderr, "1 of them are out of order") {
		t.Errorf("redrive: %+v", out)
	}
	want(t, "what is dead", l.ids("--state", "dead"), "")
	want(t, "redriven", l.run("redrive", "unknown", "--json").stdout, "{\n  \"dry_run\": false,\n  \"changed\": 1\n}\n")

	want(t, "exit code of purging what is under way", l.run("purge", "claimed").code, exitRefused)
	want(t, "exit code of purging", l.run("purge", "skipped").code, exitOK)
	out = l.run("purge", "--state", "pending", "--topic", "t", "--json")
	if !strings.Contains(out.stdout, `"selected": 5`) {
		t.Errorf("a dry run: %s", out.stdout)
	}
	out = l.run("purge", "--state", "pending", "--topic", "t", "--apply")
	if !strings.Contains(out.stdout, "4 messages removed") {
		t.Errorf("purge: %+v", out)
	}
	want(t, "what is left", l.ids(), "delivered claimed later")

	// What was delivered is sent again by name only, and when that is asked for.
	want(t, "exit code of redriving what waits", l.run("redrive", "--delivered", "later").code, exitRefused)
	want(t, "exit code of redriving all", l.run("redrive", "--delivered", "--state", "dead", "--apply").code, exitUsage)
	out = l.run("redrive", "--delivered", "delivered")
	if out.code != exitOK || !strings.Contains(out.stdout, "1 messages redriven") || l.ids("--state", "pending") != "delivered claimed later" {
		t.Errorf("redriving what was delivered: %+v", out)
	}
	missing := semelWith(nil, "", "outbox", "status", "--store", newStore(t))
	if missing.code != exitFailed || !strings.Contains(missing.stderr, "there is no store") {
		t.Errorf("without a store: %+v", missing)
	}
}

// startRelay returns once the relay says that it is at work. stop has it settle
// what is under way, and returns its log.
func startRelay(t *testing.T, args ...string) (stop func() string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t), append([]string{"relay"}, args...)...)
	stderr, err := cmd.StderrPipe()
	noError(t, err)
	noError(t, cmd.Start())
	log := bufio.NewReader(stderr)
	first, err := log.ReadString('\n')
	if err != nil || !strings.Contains(first, "relaying") {
		t.Fatalf("the relay begins with %q, %v", first, err)
	}
	rest := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(log)
		rest <- string(b)
	}()
	return func() string {
		t.Helper()
		noError(t, cmd.Process.Signal(syscall.SIGTERM))
		all := first + <-rest
		if err := cmd.Wait(); err != nil {
			t.Errorf("the relay ended by %v: %s", err, all)
		}
		return all
	}
}

// TestRelay: a program that knows no more than SQL inserts a row, and it arrives.
func TestRelay(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	onEachStore(t, testRelay)
}

func testRelay(t *testing.T, l *letters) {
	got := make(chan *http.Request, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		got <- r
		if r.Header.Get("Semel-Type") == "refused" {
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer receiver.Close()
	stop := startRelay(t, "--store", l.url, "--sink", receiver.URL, "--allow-private", "--header", "Authorization: Bearer secret", "--topic", "orders")
	l.insert("topic, type, payload", "'orders', 'paid', "+l.bytes(`{"order": 17}`))
	r := <-got
	body, _ := io.ReadAll(r.Body)
	if string(body) != `{"order": 17}` || r.Header.Get("Authorization") != "Bearer secret" || len(r.Header.Get("Idempotency-Key")) != 38 {
		t.Errorf("%s with %v", body, r.Header)
	}
	l.insert("topic, type", "'others', ''", "'orders', 'refused'")
	<-got
	log := stop()
	if s := ok(t, "outbox", "list", "--store", l.url); !strings.Contains(s, "dead") {
		t.Errorf("the refused message is not dead\n%s", s)
	}
	if !strings.Contains(log, "a message is dead") || !strings.Contains(log, "stopped") || strings.Contains(log, "secret") || strings.Contains(log, "17}") {
		t.Errorf("the log says\n%s", log)
	}
	if s := ok(t, "outbox", "list", "--store", l.url, "--state", "pending"); !strings.Contains(s, "others") {
		t.Errorf("what is of another topic:\n%s", s)
	}
}

// TestRelayWebhooks: the same as signed webhooks, until the receiver is gone.
func TestRelayWebhooks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	onEachStore(t, testRelayWebhooks)
}

func testRelayWebhooks(t *testing.T, l *letters) {
	secrets := []string{webhook.NewSecret(), webhook.NewSecret()}
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: secrets[1:]})
	noError(t, err)
	got := make(chan webhook.Event, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		ev, err := scheme.Verify(r.Header, body)
		if err != nil || r.URL.RawQuery != "k=t0ken" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s with %v: %v", r.URL, r.Header, err)
		}
		got <- ev
		if string(body) == "gone" {
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer receiver.Close()
	t.Setenv("SEMEL_WEBHOOK_SECRET", strings.Join(secrets, ","))
	stop := startRelay(t, "--store", l.url, "--sink", receiver.URL+"?k=t0ken", "--allow-private")
	l.insert("topic, payload", "'orders', "+l.bytes(`{"order": 17}`))
	first := <-got
	l.insert("id, topic, key, payload", "'evt_2', 'orders', 'k', "+l.bytes("gone"))
	want(t, "id", (<-got).ID, "evt_2")
	log := stop()
	list := ok(t, "outbox", "list", "--store", l.url)
	if !strings.Contains(list, first.ID) || !strings.Contains(list, "webhook: answered 410, so it is disabled: gone") {
		t.Errorf("the messages are\n%s", list)
	}
	if !strings.Contains(log, "nothing is sent any more") || !strings.Contains(log, "a message is dead") {
		t.Errorf("the log says\n%s", log)
	}
	for _, leak := range append(secrets, "t0ken") {
		if strings.Contains(log+list, strings.TrimPrefix(leak, "whsec_")) {
			t.Errorf("%q is told", leak)
		}
	}
	for _, args := range [][]string{
		{"--sink", "https://x", "--header", "A: b"}, {"--sink", "smtp://x"}, {"--sink", "https://x", "--webhook-secret", `whsec_"t0ken-`},
	} {
		out := semelWith(nil, "", append([]string{"relay", "--store", l.url, "--webhook-secret", secrets[0]}, args...)...)
		if out.code != exitUsage || strings.Contains(out.stderr, "t0ken") || !strings.Contains(out.stderr, "webhook") {
			t.Errorf("%v: %+v", args, out)
		}
	}
}

// TestRelayMail: the same by mail.
func TestRelayMail(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	onEachStore(t, testRelayMail)
}

func testRelayMail(t *testing.T, box *letters) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer l.Close()
	mails := make(chan outboxtest.Mail, 1)
	go (&outboxtest.MailServer{Accept: func(m outboxtest.Mail) error { mails <- m; return nil }}).Serve(l)
	box.open()
	box.enqueue(outbox.Message{ID: "m1", Topic: "mail", Headers: map[string]string{"To": "a@example.com", "Subject": "Paid"}, Payload: []byte("Thank you")})
	stop := startRelay(t, "--store", box.url, "--sink", fmt.Sprint("smtp://", l.Addr()), "--smtp-tls", "none", "--from", "shop@example.com")
	if m := <-mails; !strings.Contains(m.Data, "Message-ID: <m1@example.com>") || !strings.Contains(m.Data, "Subject: Paid") {
		t.Errorf("the mail is\n%s", m.Data)
	}
	stop()
	if ids := box.ids("--state", "delivered"); ids != "m1" {
		t.Errorf("delivered are %q", ids)
	}
}
