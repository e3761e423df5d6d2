package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/webhook"
)

// hooked is a store whose completions can be watched and refused.
type hooked struct {
	*memory.Store
	complete func() error
}

func (s *hooked) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	return &hookedClaim{c, s}, nil
}

type hookedClaim struct {
	semel.Claim
	store *hooked
}

func (c *hookedClaim) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	if c.store.complete != nil {
		if err := c.store.complete(); err != nil {
			return time.Time{}, err
		}
	}
	return c.Claim.Complete(ctx, r)
}

// receiver is an endpoint whose effects are counted.
type receiver struct {
	store   *hooked
	guard   *semel.Guard
	effects atomic.Int32
	// handle is called with the number of the effect, in place of answering 200.
	handle  func(n int32, w http.ResponseWriter, r *http.Request)
	refused []error
	http.Handler
}

func newReceiver(t testing.TB, s webhook.Scheme, edit ...func(*webhook.Config)) *receiver {
	t.Helper()
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	rec := &receiver{store: &hooked{Store: m}}
	if rec.guard, err = semel.New(semel.Config{Store: rec.store}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		_ = rec.guard.Drain(ended)
	})
	rec.Handler = rec.endpoint(t, s, edit...)
	return rec
}

// endpoint is another endpoint over the same guard.
func (rec *receiver) endpoint(t testing.TB, s webhook.Scheme, edit ...func(*webhook.Config)) http.Handler {
	t.Helper()
	c := webhook.Config{
		Guard: rec.guard, Scheme: s, Name: "shop.events", Sender: "bank",
		Refused: func(_ *http.Request, err error) { rec.refused = append(rec.refused, err) },
	}
	for _, f := range edit {
		f(&c)
	}
	m, err := webhook.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := rec.effects.Add(1)
		if rec.handle != nil {
			rec.handle(n, w, r)
			return
		}
		_, _ = fmt.Fprintf(w, "effect %d", n)
	}))
}

func (rec *receiver) want(t testing.TB, effects int32) {
	t.Helper()
	if got := rec.effects.Load(); got != effects {
		t.Fatalf("%d effects; want %d", got, effects)
	}
}

func deliver(h http.Handler, header http.Header, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func wantAnswer(t testing.TB, w *httptest.ResponseRecorder, status int, body string) {
	t.Helper()
	if w.Code != status || !strings.Contains(w.Body.String(), body) {
		t.Fatalf("got %d %s; want %d with %q", w.Code, w.Body, status, body)
	}
	if strings.Contains(w.Body.String(), "Idempotency-Key") {
		t.Errorf("a sender is told of keys: %s", w.Body)
	}
}

func TestEventIsProcessedOnce(t *testing.T) {
	for name, s := range schemes(t, noon) {
		t.Run(name, func(t *testing.T) {
			rec := newReceiver(t, s.both)
			h := sign(t, s.first, "evt_1", s.body)
			wantAnswer(t, deliver(rec, h, s.body), 200, "effect 1")
			again := deliver(rec, h, s.body)
			wantAnswer(t, again, 200, "effect 1")
			if again.Header().Get(semelhttp.HeaderReplayed) != "true" {
				t.Errorf("got %v", again.Header())
			}
			other := strings.Replace(s.body, "evt_1", "evt_2", 1)
			wantAnswer(t, deliver(rec, sign(t, s.first, "evt_2", other), other), 200, "effect 2")
			rec.want(t, 2)
		})
	}
}

// TestRedeliveryIsSignedAnew: with another time and another secret.
func TestRedeliveryIsSignedAnew(t *testing.T) {
	rec := newReceiver(t, standard(t, noon, sharedA, sharedB))
	wantAnswer(t, deliver(rec, sign(t, standard(t, noon.Add(-time.Minute), sharedA), "msg_1", "{}"), "{}"), 200, "effect 1")
	wantAnswer(t, deliver(rec, sign(t, standard(t, noon.Add(time.Minute), sharedB), "msg_1", "{}"), "{}"), 200, "effect 1")
	rec.want(t, 1)
}

func TestRedeliveryStorm(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s)
	release := make(chan struct{})
	rec.handle = func(_ int32, w http.ResponseWriter, _ *http.Request) {
		<-release
		_, _ = io.WriteString(w, "done")
	}
	h := sign(t, s, "msg_1", "{}")
	var wg sync.WaitGroup
	var done, asked atomic.Int32
	for range 50 {
		wg.Go(func() {
			switch w := deliver(rec, h, "{}"); {
			case w.Code == 200 && w.Body.String() == "done":
				done.Add(1)
			default:
				if w.Code != 503 || w.Header().Get("Retry-After") == "" {
					t.Errorf("got %d %s", w.Code, w.Body)
				}
				if asked.Add(1) == 49 {
					close(release)
				}
			}
		})
	}
	wg.Wait()
	if done.Load() != 1 || asked.Load() != 49 {
		t.Errorf("%d were told that it is done, %d to come again; want 1 and 49", done.Load(), asked.Load())
	}
	wantAnswer(t, deliver(rec, h, "{}"), 200, "done")
	rec.want(t, 1)
}

// TestFailedHandlerLeavesNothing: its redelivery runs.
func TestFailedHandlerLeavesNothing(t *testing.T) {
	for _, status := range []int{101, 302, 304, 400, 404, 409, 410, 422, 429, 500, 502, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := standard(t, noon, sharedA)
			rec := newReceiver(t, s)
			rec.handle = func(n int32, w http.ResponseWriter, _ *http.Request) {
				if n == 1 {
					w.WriteHeader(status)
				}
			}
			h := sign(t, s, "msg_1", "{}")
			want := status
			if status == 101 { // which is no answer to a delivery
				want = 500
			}
			if w := deliver(rec, h, "{}"); w.Code != want {
				t.Errorf("got %d", w.Code)
			}
			for range 2 {
				wantAnswer(t, deliver(rec, h, "{}"), 200, "")
			}
			rec.want(t, 2)
		})
	}
}

// TestUnknownOutcomeIsHeld: a handler that panics may have had an effect.
func TestUnknownOutcomeIsHeld(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s)
	rec.handle = func(n int32, _ http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			panic(http.ErrAbortHandler)
		}
	}
	h := sign(t, s, "msg_1", "{}")
	func() {
		defer func() { _ = recover() }()
		if w := deliver(rec, h, "{}"); w.Code/100 == 2 {
			t.Errorf("got %d", w.Code)
		}
	}()
	for range 2 {
		wantAnswer(t, deliver(rec, h, "{}"), 503, "outcome-unknown")
	}
	rec.want(t, 1)

	id := semel.Identity{Scope: semel.Scope{Actor: "bank", Operation: "shop.events"}, Key: "msg_1"}
	found, err := rec.store.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rec.store.Resolve(t.Context(), semel.Resolution{Identity: id, Fence: found.Fence, Decision: semel.DecideExecuteAgain, Cause: "test"}); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, deliver(rec, h, "{}"), 200, "")
	rec.want(t, 2)
}

// TestUnknownOutcomeIsUpToThePolicy: by retry, a redelivery runs.
func TestUnknownOutcomeIsUpToThePolicy(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s)
	rec.handle = func(n int32, _ http.ResponseWriter, r *http.Request) {
		if n == 1 {
			semelhttp.DeclareIndeterminate(r.Context(), "cut off")
		}
	}
	guard, err := rec.guard.With(semel.Policy{OnCrash: semel.CrashRetry})
	if err != nil {
		t.Fatal(err)
	}
	endpoint := rec.endpoint(t, s, func(c *webhook.Config) { c.Guard = guard })
	h := sign(t, s, "msg_1", "{}")
	wantAnswer(t, deliver(endpoint, h, "{}"), 500, "outcome-unknown")
	wantAnswer(t, deliver(endpoint, h, "{}"), 200, "")
	wantAnswer(t, deliver(endpoint, h, "{}"), 200, "")
	rec.want(t, 2)
}

// TestNothingIsToldBeforeTheRecord: not by large answers and streams either,
// which other handlers send as they come.
func TestNothingIsToldBeforeTheRecord(t *testing.T) {
	for name, write := range map[string]func(http.ResponseWriter){
		"empty": func(http.ResponseWriter) {},
		"small": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "done") },
		"large": func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, semelhttp.DefaultMaxResult+1)) },
		"stream": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := standard(t, noon, sharedA)
			rec := newReceiver(t, s)
			rec.handle = func(_ int32, w http.ResponseWriter, _ *http.Request) { write(w) }
			told := &firstByte{ResponseWriter: httptest.NewRecorder()}
			completed := false
			rec.store.complete = func() error {
				if told.begun.Load() {
					t.Error("the sender was told before the record was written")
				}
				completed = true
				return nil
			}
			h := sign(t, s, "msg_1", "{}")
			r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader("{}"))
			for n, v := range h {
				r.Header[n] = v
			}
			rec.ServeHTTP(told, r)
			if !completed || told.status != 200 {
				t.Errorf("completed %v, status %d", completed, told.status)
			}
			// Whatever became of the body, a duplicate hears that it is done.
			if w := deliver(rec, h, "{}"); w.Code != 200 {
				t.Errorf("a duplicate got %d %s", w.Code, w.Body)
			}
			rec.want(t, 1)
		})
	}
}

// firstByte notes that something has been sent.
type firstByte struct {
	http.ResponseWriter
	begun  atomic.Bool
	status int
}

func (w *firstByte) WriteHeader(status int) {
	w.begun.Store(true)
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *firstByte) Write(p []byte) (int, error) {
	w.begun.Store(true)
	return w.ResponseWriter.Write(p)
}

func TestRecordThatCannotBeWrittenIsNotToldAsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := standard(t, noon, sharedA)
		rec := newReceiver(t, s)
		down := true
		rec.store.complete = func() error {
			if down {
				return errors.New("down")
			}
			return nil
		}
		h := sign(t, s, "msg_1", "{}")
		w := deliver(rec, h, "{}")
		wantAnswer(t, w, 503, "store-unavailable")
		if w.Header().Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		down = false
		time.Sleep(time.Minute) // the lease lapses
		wantAnswer(t, deliver(rec, h, "{}"), 503, "outcome-unknown")
		rec.want(t, 1)
	})
}

func TestSameIDWithAnotherBodyIsRefused(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s)
	wantAnswer(t, deliver(rec, sign(t, s, "msg_1", `{"n":1}`), `{"n":1}`), 200, "effect 1")
	for _, body := range []string{`{"n":2}`, `{"n": 1}`} {
		wantAnswer(t, deliver(rec, sign(t, s, "msg_1", body), body), 422, "taken by another event")
	}
	wantAnswer(t, deliver(rec, sign(t, s, "msg_1", `{"n":1}`), `{"n":1}`), 200, "effect 1")
	rec.want(t, 1)
}

// TestStripeCountsOtherDeliveriesInTheBody: pending_webhooks is another with each
// delivery, and the event is not.
func TestStripeCountsOtherDeliveriesInTheBody(t *testing.T) {
	s := stripe(t, noon, "whsec_a")
	rec := newReceiver(t, s)
	event := func(pending int, amount string) string {
		return fmt.Sprintf(`{"id":"evt_1","object":"event","data":{"amount":%s},"pending_webhooks":%d,"type":"charge.succeeded"}`, amount, pending)
	}
	for pending := 3; pending >= 0; pending-- {
		body := event(pending, "9007199254740993")
		wantAnswer(t, deliver(rec, sign(t, s, "", body), body), 200, "effect 1")
	}
	body := event(3, "9007199254740992")
	wantAnswer(t, deliver(rec, sign(t, s, "", body), body), 422, "taken by another event")
	rec.want(t, 1)
}

func TestEventOf(t *testing.T) {
	s := stripe(t, noon, "whsec_a")
	rec := newReceiver(t, s)
	rec.handle = func(_ int32, _ http.ResponseWriter, r *http.Request) {
		ev, ok := webhook.EventOf(r.Context())
		if !ok || ev.ID != "evt_1" || !ev.SignedAt.Equal(noon) {
			t.Errorf("got %+v, %v", ev, ok)
		}
		if x, ok := semel.CurrentExecution(r.Context()); !ok || x.Identity().Key != "evt_1" {
			t.Error("the handler does not run under a claim of the event")
		}
	}
	wantAnswer(t, deliver(rec, sign(t, s, "", `{"id":"evt_1"}`), `{"id":"evt_1"}`), 200, "")
	if _, ok := webhook.EventOf(t.Context()); ok {
		t.Error("an event out of nowhere")
	}
}

// TestEventIsKnownForAsLongAsItMayCome: the last of the schedule's deliveries is
// still a duplicate.
func TestEventIsKnownForAsLongAsItMayCome(t *testing.T) {
	for name, s := range schemes(t, noon) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := newReceiver(t, s.both)
				h := sign(t, s.first, "evt_1", s.body)
				wantAnswer(t, deliver(rec, h, s.body), 200, "effect 1")
				time.Sleep(s.both.RetrySpan() + 30*time.Second)
				wantAnswer(t, deliver(rec, h, s.body), 200, "effect 1") // signed by a clock that stands
				time.Sleep(s.both.RetrySpan() + time.Hour)
				wantAnswer(t, deliver(rec, h, s.body), 200, "effect 2")
			})
		})
	}
}

func TestRetention(t *testing.T) {
	const day = 24 * time.Hour
	rec := newReceiver(t, standard(t, noon, sharedA))
	for _, tc := range []struct {
		name          string
		scheme        webhook.Scheme
		retention     time.Duration
		span          time.Duration
		guard         time.Duration // its policy's
		keeps, needed time.Duration
	}{
		{"standard", standard(t, noon, sharedA), 0, 0, 0, 151*time.Hour + 11*time.Minute + 10*time.Second, 0},
		{"stripe", stripe(t, noon, "a"), 0, 0, 0, 6*day + time.Minute, 0},
		{"github", github(t, "a"), 0, 0, 0, 6*day + time.Minute, 0},
		{"the guard's is longer", stripe(t, noon, "a"), 0, 0, 30 * day, 30 * day, 0},
		{"deliveries by hand", stripe(t, noon, "a"), 0, 30 * day, 0, 60*day + time.Minute, 0},
		{"just enough", stripe(t, noon, "a"), 3*day + 30*time.Second, 0, 0, 3*day + 30*time.Second, 0},
		{"shorter than the guard's", stripe(t, noon, "a"), 4 * day, 0, 30 * day, 4 * day, 0},
		{"too short", stripe(t, noon, "a"), 3*day + 29*time.Second, 0, 0, 0, 3*day + 30*time.Second},
		{"a day", standard(t, noon, sharedA), day, 0, 0, 0, 75*time.Hour + 35*time.Minute + 35*time.Second},
		{"a day suffices there", standard(t, noon, sharedA), day, time.Hour, 0, day, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, err := rec.guard.With(semel.Policy{Retention: tc.guard})
			if err != nil {
				t.Fatal(err)
			}
			c := webhook.Config{Guard: g, Scheme: tc.scheme, Name: tc.name, Sender: "bank", Retention: tc.retention, RetrySpan: tc.span}
			m, err := webhook.New(c)
			if tc.needed != 0 {
				e, ok := errors.AsType[*webhook.RetentionError](err)
				if !ok || e.Needed != tc.needed {
					t.Fatalf("got %v; want that it must be %v", err, tc.needed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var kept time.Duration
			h := m(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			body := `{"id":"evt_1"}`
			if w := deliver(h, sign(t, tc.scheme.(webhook.Signer), "evt_1", body), body); w.Code != 200 {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			list, err := rec.store.List(t.Context(), semel.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range list {
				if r.Identity.Operation == tc.name {
					kept = r.Retention
				}
			}
			if kept != tc.keeps {
				t.Errorf("kept for %v; want %v", kept, tc.keeps)
			}
		})
	}
}

// TestOverTheWire: field names arrive in lower case, as HTTP/2 has them.
func TestOverTheWire(t *testing.T) {
	for name, s := range schemes(t, noon) {
		t.Run(name, func(t *testing.T) {
			rec := newReceiver(t, s.both)
			srv := httptest.NewUnstartedServer(rec)
			srv.EnableHTTP2 = true
			srv.StartTLS()
			defer srv.Close()
			for range 2 {
				r, err := http.NewRequest(http.MethodPost, srv.URL, strings.NewReader(s.body))
				if err != nil {
					t.Fatal(err)
				}
				for n, v := range sign(t, s.both, "evt_1", s.body) {
					r.Header[strings.ToLower(n)] = v
				}
				resp, err := srv.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != 200 || string(body) != "effect 1" || resp.ProtoMajor != 2 {
					t.Errorf("got %d %s", resp.StatusCode, body)
				}
			}
		})
	}
}
