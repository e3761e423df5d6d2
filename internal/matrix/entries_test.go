package matrix

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/webhook"
)

// order is what the one operation returns, whoever asks for it.
type order struct{ Number, By string }

// An order with a number of its own is placed by a request, a webhook and a job, each
// with an id of its own, one after the other and all at once. Whichever comes first has
// the effect; the others are told its result. Each is repeated.
func TestOneOperationByAllEntries(t *testing.T) {
	t.Parallel()
	for _, kind := range thingStores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e := newEntries(t, kind)
			for _, sequence := range [][]string{
				{"http", "webhook", "job"},
				{"webhook", "job", "http"},
				{"job", "http", "webhook"},
				{"http", "job", "webhook"},
				{"webhook", "http", "job"},
				{"job", "webhook", "http"},
			} {
				number := strings.Join(sequence, "-")
				want := fmt.Sprintf("%s by %s", number, sequence[0])
				for _, entry := range append(sequence, sequence...) {
					if got := e.place(entry, number); got != want {
						t.Errorf("by %s: %q; want %q", entry, got, want)
					}
				}
				e.wantPlaced(number)
			}
			for round := range 4 {
				number := fmt.Sprint("at-once-", round)
				answers := make(chan string, 6)
				for range 2 {
					for entry := range e.entries {
						go func() { answers <- e.place(entry, number) }()
					}
				}
				first := <-answers
				for range 5 {
					if got := <-answers; got != first {
						t.Errorf("one is told %q, and another %q", first, got)
					}
				}
				e.wantPlaced(number)
			}
		})
	}
}

// entries are the ways to place an order.
type entries struct {
	*things
	t       *testing.T
	entries map[string]func(number string) string

	mu   sync.Mutex
	told map[string]chan string // to jobs, by number
}

func newEntries(t *testing.T, kind string) *entries {
	e := &entries{things: newThings(t, kind), t: t, told: map[string]chan string{}}
	if _, err := e.exec(t.Context(), "CREATE TABLE IF NOT EXISTS placed (number TEXT)"); err != nil {
		t.Fatal(err)
	}
	// What each entry knows repetitions by is a claim around that of the operation.
	outer, err := semel.New(semel.Config{Store: e.leased, Policy: semel.Policy{Lease: time.Minute, StoreTimeout: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	serve := func(by string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			number, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(w, e.order(r.Context(), string(number), by))
		})
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: outer, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice"}, nil },
		InFlight: semelhttp.InFlightWait,
	})
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	if err != nil {
		t.Fatal(err)
	}
	receive, err := webhook.New(webhook.Config{Guard: outer, Scheme: scheme, Name: "shop.events", Sender: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	api, hook := protect(serve("http")), receive(serve("webhook"))
	e.entries = map[string]func(number string) string{
		"http": func(number string) string {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader(number))
			r.Header.Set("Idempotency-Key", "key-"+number)
			w := httptest.NewRecorder()
			api.ServeHTTP(w, r)
			return w.Body.String()
		},
		"webhook": func(number string) string {
			for {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/events", strings.NewReader(number))
				header, err := scheme.Sign("event-"+number, []byte(number))
				if err != nil {
					t.Error(err)
				}
				for name, values := range header {
					r.Header[name] = values
				}
				w := httptest.NewRecorder()
				if hook.ServeHTTP(w, r); w.Code == http.StatusOK {
					return w.Body.String()
				}
				time.Sleep(10 * time.Millisecond) // as its sender does while another delivery is under way
			}
		},
		"job": e.byJob,
	}
	w, err := jobs.New(jobs.Config{
		Store: e.outbox, Inbox: e.inbox, Authorize: jobs.Trusted, Queues: []jobs.QueueConfig{{Name: "orders", Backoff: time.Millisecond}},
		Handlers: map[string]jobs.Handler{"place": {Prepare: func(ctx context.Context, j jobs.Job) (any, error) {
			e.mu.Lock()
			told := e.told[j.ID]
			e.mu.Unlock()
			told <- e.order(ctx, string(j.Args), "job")
			return nil, nil
		}}},
		Relay: outbox.Config{PollMax: 20 * time.Millisecond, PollMin: time.Millisecond, StoreTimeout: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e
}

// byJob enqueues a job of its own each time, as a service does that does not know
// what it has enqueued before.
func (e *entries) byJob(number string) string {
	m, err := jobs.Job{Queue: "orders", Kind: "place", Args: []byte(number)}.Message()
	if err != nil {
		e.t.Error(err)
	}
	told := make(chan string, 100)
	e.mu.Lock()
	e.told[m.ID] = told
	e.mu.Unlock()
	if err := e.enqueue(e.t.Context(), m); err != nil {
		e.t.Error(err)
		return err.Error()
	}
	return <-told
}

func (e *entries) place(entry, number string) string { return e.entries[entry](number) }

// order is the operation: its key is the number of the order.
func (e *entries) order(ctx context.Context, number, by string) string {
	got, _, err := semel.Call(ctx, e.guard, semel.Submit{
		Identity: semel.Identity{Scope: semel.Scope{Actor: "shop", Operation: "orders.place"}, Key: number}, Wait: time.Minute,
	}, func(ctx context.Context) (order, error) {
		_, err := e.exec(ctx, "INSERT INTO placed (number) VALUES ($1)", number)
		return order{number, by}, err
	})
	if err != nil {
		e.t.Errorf("order %s by %s: %v", number, by, err)
	}
	return fmt.Sprintf("%s by %s", got.Number, got.By)
}

func (e *entries) wantPlaced(number string) {
	e.t.Helper()
	var n int
	if _, err := e.row(e.t.Context(), "SELECT count(*) FROM placed WHERE number = $1", []any{number}, &n); err != nil || n != 1 {
		e.t.Errorf("order %s was placed %d times: %v", number, n, err)
	}
}
