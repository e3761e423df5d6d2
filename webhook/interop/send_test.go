package interop_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripewebhook "github.com/stripe/stripe-go/v83/webhook"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// table is send.Endpoints as a service has them: in its own table, here in the file
// that the outbox is in too.
type table struct{ *sql.DB }

const createEndpoints = `
	CREATE TABLE IF NOT EXISTS endpoints (
		id            TEXT PRIMARY KEY,
		customer      TEXT NOT NULL,
		url           TEXT NOT NULL,
		secrets       TEXT NOT NULL, -- JSON; encrypt it if the file's readers are not to sign
		types         TEXT NOT NULL, -- JSON
		failing_since INTEGER,       -- microseconds
		disabled_at   INTEGER,
		cause         TEXT NOT NULL DEFAULT ''
	) STRICT`

func micros(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UnixMicro()
}

// Endpoint implements send.Endpoints.
func (t table) Endpoint(ctx context.Context, id string) (send.Endpoint, error) {
	e := send.Endpoint{ID: id}
	var secrets, types string
	var failing, disabled sql.NullInt64
	err := t.QueryRowContext(ctx, "SELECT url, secrets, types, failing_since, disabled_at, cause FROM endpoints WHERE id = ?", id).
		Scan(&e.URL, &secrets, &types, &failing, &disabled, &e.Cause)
	if errors.Is(err, sql.ErrNoRows) {
		return e, send.ErrNoEndpoint
	}
	if failing.Valid {
		e.FailingSince = time.UnixMicro(failing.Int64)
	}
	if disabled.Valid {
		e.DisabledAt = time.UnixMicro(disabled.Int64)
	}
	return e, errors.Join(err, json.Unmarshal([]byte(secrets), &e.Secrets), json.Unmarshal([]byte(types), &e.Types))
}

// Update implements send.Endpoints.
func (t table) Update(ctx context.Context, was send.Endpoint, to send.State) (bool, error) {
	r, err := t.ExecContext(ctx, `UPDATE endpoints SET failing_since = ?, disabled_at = ?, cause = ?
		WHERE id = ? AND url = ? AND failing_since IS ? AND disabled_at IS ?`,
		micros(to.FailingSince), micros(to.DisabledAt), to.Cause, was.ID, was.URL, micros(was.FailingSince), micros(was.DisabledAt))
	if err != nil {
		return false, err
	}
	n, err := r.RowsAffected()
	return n == 1, err
}

// wanting are the endpoints of a customer, for events of tx.
func (t table) wanting(ctx context.Context, tx *sql.Tx, customer string) (all []send.Endpoint, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT id, types FROM endpoints WHERE customer = ? AND disabled_at IS NULL", customer)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var e send.Endpoint
		var types string
		if err := errors.Join(rows.Scan(&e.ID, &types), json.Unmarshal([]byte(types), &e.Types)); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

func (t table) insert(ctx context.Context, e send.Endpoint, customer string) error {
	secrets, err := json.Marshal(e.Secrets)
	types, err2 := json.Marshal(e.Types)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	_, err = t.ExecContext(ctx, "INSERT INTO endpoints (id, customer, url, secrets, types) VALUES (?, ?, ?, ?, ?)", e.ID, customer, e.URL, string(secrets), string(types))
	return err
}

func openTable(path string) (table, error) {
	db, err := openEffects(path)
	if err == nil {
		_, err = db.Exec(createEndpoints)
	}
	return table{db}, err
}

// sender is a service that sends: what it sells and its endpoints are in one file
// with its outbox.
type sender struct {
	table
	store *sqlite.Store
	path  string
}

func newSender(t *testing.T) *sender {
	t.Helper()
	s := &sender{path: newDatabase(t)}
	var err error
	if s.table, err = openTable(s.path); err == nil {
		s.store, err = sqlite.Open(t.Context(), sqlite.Config{Path: s.path, BusyTimeout: time.Minute})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.store.Close(context.Background())
		_ = s.table.Close()
	})
	return s
}

// sell makes a sale, and tells the customer's endpoints of it, unless it fails.
func (s *sender) sell(ctx context.Context, id, customer string, payload []byte, fail error) error {
	tx, err := s.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(ctx, "INSERT INTO effects (event) VALUES (?)", id)
	endpoints, err2 := s.wanting(ctx, tx, customer)
	messages, err3 := send.Event{ID: id, Type: "order.paid", Payload: payload}.Messages("hooks", endpoints...)
	if err := errors.Join(err, err2, err3, fail); err != nil {
		return err
	}
	if err := sqlite.EnqueueTx(ctx, tx, messages...); err != nil {
		return err
	}
	return tx.Commit()
}

// relay delivers until ctx ends.
func relay(ctx context.Context, o outbox.Store, sink *send.Sink, lease time.Duration, told func()) error {
	route := sink.Route("hooks")
	route.Schedule, route.MaxAttempts = []time.Duration{50 * time.Millisecond}, 50
	on := func(context.Context, outbox.Attempted) {
		if told != nil {
			told()
		}
	}
	r, err := outbox.New(outbox.Config{
		Store: o, Routes: []outbox.Route{route}, Lease: lease, PollMax: 50 * time.Millisecond,
		Observer: &outbox.Observer{Delivered: on, Retried: on, Dead: on},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// TestTheirsAcceptWhatIsSent: others' verifiers, of what comes over TLS.
func TestTheirsAcceptWhatIsSent(t *testing.T) {
	type verify func(header http.Header, body []byte, secret string) error
	for name, tt := range map[string]struct {
		secret string
		scheme func([]string) (webhook.Signer, error)
		verify verify
	}{
		"standard webhooks": {secret: webhook.NewSecret(), verify: func(h http.Header, body []byte, secret string) error {
			theirs, err := standardwebhooks.NewWebhook(secret)
			if err != nil {
				return err
			}
			return theirs.Verify(body, h)
		}},
		"stripe": {
			secret: "whsec_test_secret",
			scheme: func(s []string) (webhook.Signer, error) { return webhook.NewStripe(webhook.StripeConfig{Secrets: s}) },
			verify: func(h http.Header, body []byte, secret string) error {
				return stripewebhook.ValidatePayload(body, h.Get("Stripe-Signature"), secret)
			},
		},
		"github": { // as its documentation says
			secret: "It's a Secret to Everybody",
			scheme: func(s []string) (webhook.Signer, error) { return webhook.NewGitHub(webhook.GitHubConfig{Secrets: s}) },
			verify: func(h http.Header, body []byte, secret string) error {
				m := hmac.New(sha256.New, []byte(secret))
				m.Write(body)
				if want := "sha256=" + hex.EncodeToString(m.Sum(nil)); h.Get("X-Hub-Signature-256") != want || h.Get("X-GitHub-Delivery") == "" {
					return fmt.Errorf("got %q, %q; want %q", h.Get("X-GitHub-Delivery"), h.Get("X-Hub-Signature-256"), want)
				}
				return nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSender(t)
			var verified atomic.Int64
			receiver := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err == nil {
					err = tt.verify(r.Header, body, tt.secret)
				}
				if err != nil {
					t.Errorf("theirs refuses ours: %v", err)
					w.WriteHeader(400)
					return
				}
				if tt.verify(r.Header, append(body, ' '), tt.secret) == nil {
					t.Error("theirs takes anything")
				}
				verified.Add(1)
			}))
			defer receiver.Close()
			secrets := []string{tt.secret, webhook.NewSecret()} // while it is rotated
			if name == "standard webhooks" {
				secrets = []string{webhook.NewSecret(), tt.secret}
			}
			if err := s.insert(t.Context(), send.Endpoint{ID: "ep", URL: receiver.URL + "?x=1", Secrets: secrets}, "c"); err != nil {
				t.Fatal(err)
			}
			sink, err := send.New(send.Config{Endpoints: s.table, Scheme: tt.scheme, AllowPrivate: true, TLS: receiver.Client().Transport.(*http.Transport).TLSClientConfig})
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close()
			var all [][]byte
			for _, body := range bodies() {
				if name == "stripe" {
					text, err := json.Marshal(map[string]string{"id": fmt.Sprint("evt_", len(all)), "data": body})
					if err != nil {
						t.Fatal(err)
					}
					body = string(text)
				}
				all = append(all, []byte(body))
			}
			for i, body := range all {
				if err := s.sell(t.Context(), fmt.Sprint("evt_", i), "c", body, nil); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			left := int64(len(all))
			if err := relay(ctx, s.store.Outbox(), sink, time.Minute, func() {
				if atomic.AddInt64(&left, -1) == 0 {
					cancel()
				}
			}); err != nil {
				t.Fatal(err)
			}
			if verified.Load() != int64(len(all)) {
				t.Errorf("%d of %d were verified", verified.Load(), len(all))
			}
		})
	}
}

// TestTableOfEndpoints: a service's own table keeps what Endpoints promises: of many
// that disable an endpoint one does, and none after it was mended.
func TestTableOfEndpoints(t *testing.T) {
	s := newSender(t)
	ctx := t.Context()
	if err := s.insert(ctx, send.Endpoint{ID: "ep", URL: "https://a.example", Secrets: []string{secret}, Types: []string{"order.*"}}, "c"); err != nil {
		t.Fatal(err)
	}
	was, err := s.Endpoint(ctx, "ep")
	if err != nil || !was.Wants("order.paid") || was.Wants("x") || was.Disabled() || !was.FailingSince.IsZero() {
		t.Fatal(was, err)
	}
	at := time.Now().UTC().Truncate(time.Microsecond)
	gone := send.State{FailingSince: at, DisabledAt: at, Cause: send.CauseGone}
	var did atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ok, err := s.Update(ctx, was, gone)
			if err != nil {
				t.Error(err)
			}
			if ok {
				did.Add(1)
			}
		})
	}
	wg.Wait()
	is, err := s.Endpoint(ctx, "ep")
	if err != nil || did.Load() != 1 || !is.DisabledAt.Equal(at) || !is.FailingSince.Equal(at) || is.Cause != send.CauseGone {
		t.Errorf("%d disabled it, and it is %v, %v", did.Load(), is, err)
	}
	if _, err := s.Exec("UPDATE endpoints SET url = 'https://b.example', failing_since = NULL, disabled_at = NULL, cause = ''"); err != nil {
		t.Fatal(err)
	}
	for _, old := range []send.Endpoint{was, is} {
		if ok, err := s.Update(ctx, old, gone); ok || err != nil {
			t.Errorf("a late answer disabled it: %v", err)
		}
	}
	if _, err := s.Endpoint(ctx, "nobody"); !errors.Is(err, send.ErrNoEndpoint) {
		t.Error(err)
	}
}

const relayVariable = "SEMEL_WEBHOOK_TEST_RELAY"

// serveRelay is the sender's relay as a process of its own.
func serveRelay(path string) error {
	t, err := openTable(path)
	if err != nil {
		return err
	}
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, BusyTimeout: time.Minute})
	if err != nil {
		return err
	}
	sink, err := send.New(send.Config{Endpoints: t, AllowPrivate: true, TLS: &tls.Config{InsecureSkipVerify: true}})
	if err != nil {
		return err
	}
	return relay(context.Background(), store.Outbox(), sink, time.Second, nil) // short, since the next waits for it
}

// TestRelayKilledBetweenDeliveryAndRecord: with a receiver of ours, each event is
// processed once, though its relay dies of each delivery the first time. A change
// that is rolled back is told nobody.
func TestRelayKilledBetweenDeliveryAndRecord(t *testing.T) {
	quick.LeaveOut(t)
	s := newSender(t)
	received := newDatabase(t) // the customer's
	customer, err := newService(t.Context(), received, func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = customer.store.Close(context.Background()) }()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu         sync.Mutex
		kill       func() // the relay that runs
		deliveries = map[string]int{}
		processed  = map[string]bool{}
	)
	receiver := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		customer.ServeHTTP(answer, r)
		id := r.Header.Get("Webhook-Id")
		mu.Lock()
		deliveries[id]++
		first, kill := answer.Code == http.StatusNoContent && !processed[id], kill
		processed[id] = processed[id] || first
		mu.Unlock()
		if first { // and nobody hears of it
			kill()
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(answer.Code)
	}))
	defer receiver.Close()
	if err := s.insert(t.Context(), send.Endpoint{ID: "ep", URL: receiver.URL, Secrets: []string{secret}}, "c"); err != nil {
		t.Fatal(err)
	}
	const events = 4
	for i := range events {
		if err := s.sell(t.Context(), fmt.Sprint("evt_", i), "c", []byte(`{}`), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.sell(t.Context(), "undone", "c", []byte(`{}`), errors.New("no money")); err == nil {
		t.Fatal("it was not rolled back")
	}

	pending := func() bool {
		left, err := s.store.Outbox().List(t.Context(), outbox.Filter{State: outbox.StatePending})
		if err != nil {
			t.Error(err)
		}
		return len(left) > 0
	}
	deaths := 0
	for pending() && t.Context().Err() == nil && !t.Failed() {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), relayVariable+"="+s.path)
		cmd.Stderr = os.Stderr
		ended := make(chan struct{})
		mu.Lock()
		kill = func() {
			_ = cmd.Process.Kill()
			<-ended
		}
		err := cmd.Start()
		mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = cmd.Wait()
			close(ended)
		}()
		for alive := true; alive && pending(); {
			select {
			case <-ended:
				alive = false
				deaths++
			case <-time.After(10 * time.Millisecond):
			}
		}
		kill()
	}
	got := effects(t, received)
	mu.Lock()
	defer mu.Unlock()
	for i := range events {
		id := fmt.Sprint("evt_", i)
		if got[id] != 1 || deliveries[id] < 2 {
			t.Errorf("%s: %d deliveries, %d effects", id, deliveries[id], got[id])
		}
		if e, err := s.store.Outbox().Find(t.Context(), id+":ep"); err != nil || e.State != outbox.StateDelivered {
			t.Errorf("%s is %s by %q, %v", id, e.State, e.Cause, err)
		}
	}
	if len(got) != events || len(deliveries) != events {
		t.Errorf("processed were %v, delivered %v", got, deliveries)
	}
	t.Logf("%d relays died, deliveries %v", deaths, deliveries)
}
