package send_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// TestGone: nothing is sent to an endpoint that said it is gone, and once it is
// enabled again, what it has missed is redriven by its cause, under its old ids.
func TestGone(t *testing.T) {
	var status atomic.Int64
	status.Store(http.StatusGone)
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })
	b := newBench(t, send.Config{}, r)
	e := send.Endpoint{ID: "ep", URL: r.URL, Secrets: []string{webhook.NewSecret()}}
	other := e
	other.ID = "ep2" // of the same name, to look at
	b.Put(e, other)
	b.enqueue(send.Event{ID: "evt_0"}, "ep")
	b.attempts(1)
	for i := range 20 {
		b.enqueue(send.Event{ID: fmt.Sprint("evt_", i+1)}, "ep")
	}
	b.attempts(20)
	want(t, "requests", len(r.requests()), 1)
	want(t, "changes", strings.Join(b.changes, ", "), "ep >gone true")
	want(t, "cause of the first", b.find("evt_0:ep").Cause, "webhook: endpoint ep: answered 410, so it is disabled: gone")
	want(t, "cause of another", b.find("evt_9:ep").Cause, "webhook: endpoint ep: is disabled: gone")
	want(t, "state of another", b.find("evt_9:ep").State, outbox.StateDead)

	status.Store(http.StatusOK)
	b.Put(e) // its owner enables it
	b.enqueue(send.Event{ID: "evt_other"}, "ep2")
	b.attempts(1)
	done := must(b.Redrive(t.Context(), outbox.Filter{State: outbox.StateDead, Cause: "webhook: endpoint ep: *"}))
	want(t, "redriven", len(done), 21)
	b.attempts(21)
	want(t, "state of the first", b.find("evt_0:ep").State, outbox.StateDelivered)
	got := map[string]int{}
	for _, q := range r.requests() {
		got[q.Header.Get("Webhook-Id")]++
	}
	want(t, "requests of the first", got["evt_0"], 2)
	want(t, "requests of another", got["evt_20"], 1)

	// A delivered one that the customer has lost, under its old id.
	if done := must(b.Redrive(t.Context(), outbox.Filter{ID: "evt_20:ep", State: outbox.StateDelivered})); len(done) != 1 {
		t.Fatal("it was not redriven")
	}
	b.attempts(1)
	all := r.requests()
	want(t, "webhook-id of the last", all[len(all)-1].Header.Get("Webhook-Id"), "evt_20")
}

// TestLateAnswerDoesNotDisableWhatWasMended: the owner has changed the URL while
// the old one answered that it is gone.
func TestLateAnswerDoesNotDisableWhatWasMended(t *testing.T) {
	for name, days := range map[string]int{"gone": 0, "failing": 6} {
		t.Run(name, func(t *testing.T) {
			mended := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
			var b *bench
			e := send.Endpoint{ID: "ep", Secrets: []string{webhook.NewSecret()}}
			old := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
				e := e
				e.URL = mended.URL
				b.Put(e)
				w.WriteHeader(http.StatusGone - days*10)
			})
			e.URL = old.URL
			was := e
			if days > 0 {
				was.FailingSince = time.Now().UTC().AddDate(0, 0, -days).Truncate(time.Microsecond)
			}
			b = newBench(t, send.Config{}, old, mended)
			b.Put(was)
			b.enqueue(send.Event{ID: "evt"}, "ep")
			b.attempts(1)
			want(t, "whether it is disabled", b.endpoint("ep").Disabled(), false)
			want(t, "state", b.find("evt:ep").State, outbox.StatePending)
			b.again("evt:ep")
			b.attempts(1)
			want(t, "requests", len(mended.requests()), 1)
			want(t, "changes", len(b.changes), 0)
		})
	}
}

// TestDisabledInFlight: an attempt under way is not called back; there is none after
// it.
func TestDisabledInFlight(t *testing.T) {
	for status, state := range map[int]outbox.State{200: outbox.StateDelivered, 500: outbox.StateDead, 410: outbox.StateDead} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			var b *bench
			r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
				e := b.endpoint("ep")
				e.DisabledAt, e.Cause = time.Now(), "by its owner"
				b.Put(e)
				w.WriteHeader(status)
			})
			b = newBench(t, send.Config{}, r)
			b.Put(send.Endpoint{ID: "ep", URL: r.URL, Secrets: []string{webhook.NewSecret()}})
			b.enqueue(send.Event{ID: "evt"}, "ep")
			b.attempts(1)
			if status != 200 {
				b.again("evt:ep")
				b.attempts(1)
				want(t, "cause", b.find("evt:ep").Cause, "webhook: endpoint ep: is disabled: by its owner")
			}
			want(t, "state", b.find("evt:ep").State, state)
			want(t, "requests", len(r.requests()), 1)
			want(t, "cause of the endpoint", b.endpoint("ep").Cause, "by its owner")
		})
	}
}

// TestFailingForDays: an endpoint that fails for long, without a delivery between,
// is disabled, and of many relays one is told.
func TestFailingForDays(t *testing.T) {
	var status atomic.Int64
	status.Store(500)
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })
	start := time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.FixedZone("", 3600))
	var now atomic.Int64
	b := newBench(t, send.Config{Now: func() time.Time { return start.Add(time.Duration(now.Load())) }}, r)
	b.Put(send.Endpoint{ID: "ep", URL: r.URL, Secrets: []string{webhook.NewSecret()}})
	deliver := func() error {
		return b.sink.Deliver(t.Context(), outbox.Delivery{Message: outbox.Message{ID: "evt:ep", Payload: []byte("{}")}, Attempt: 1})
	}
	at := func(days float64, answer int64) {
		now.Store(int64(days * 24 * float64(time.Hour)))
		status.Store(answer)
		if err := deliver(); (err == nil) != (answer == 200) {
			t.Errorf("at day %v: %v", days, err)
		}
	}
	at(0, 500)
	want(t, "failing since", b.endpoint("ep").FailingSince, start.UTC().Truncate(time.Microsecond))
	at(-0.1, 500) // the clock went back
	at(4.9, 500)
	want(t, "whether it is disabled", b.endpoint("ep").Disabled(), false)
	at(4.95, 200)
	want(t, "whether it fails", b.endpoint("ep").FailingSince.IsZero(), true)
	at(5, 500)
	at(9.9, 503)
	want(t, "whether it is disabled", b.endpoint("ep").Disabled(), false)

	now.Store(int64(11 * 24 * time.Hour))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _ = deliver() })
	}
	wg.Wait()
	want(t, "changes", strings.Join(b.changes, ", "), "ep > false, ep > false, ep > false, ep >failing true")
	if err := deliver(); err == nil || !strings.Contains(err.Error(), "is disabled: failing") {
		t.Errorf("it ended by %v", err)
	}
}

// TestRotationBetweenAttempts: each attempt is signed with the secrets and the time
// of that attempt, and its id stays.
func TestRotationBetweenAttempts(t *testing.T) {
	before, after := webhook.NewSecret(), webhook.NewSecret()
	var counts sync.Map
	r := newReceiver(t, processing(t, &counts, after)) // the customer knows the new one alone
	var now atomic.Int64
	now.Store(time.Now().Unix() - 60)
	b := newBench(t, send.Config{Scheme: func(secrets []string) (webhook.Signer, error) {
		return webhook.NewStandard(webhook.StandardConfig{Secrets: secrets, Now: func() time.Time { return time.Unix(now.Add(30), 0) }})
	}}, r)
	e := send.Endpoint{ID: "ep", URL: r.URL, Secrets: []string{before}}
	b.Put(e)
	b.enqueue(send.Event{ID: "evt"}, "ep")
	b.attempts(1)
	want(t, "cause", b.find("evt:ep").Cause, "webhook: endpoint ep: answered 403")
	e.Secrets = []string{after, before}
	e.State = b.endpoint("ep").State
	b.Put(e)
	b.again("evt:ep")
	b.attempts(1)
	want(t, "state", b.find("evt:ep").State, outbox.StateDelivered)
	want(t, "processed", count(&counts, "evt"), 1)
	got := r.requests()
	for i, signatures := range []int{1, 2} {
		h := got[i].Header
		want(t, "id", h.Get("Webhook-Id"), "evt")
		want(t, "number of signatures", len(strings.Fields(h.Get("Webhook-Signature"))), signatures)
	}
	if got[0].Header.Get("Webhook-Timestamp") == got[1].Header.Get("Webhook-Timestamp") {
		t.Error("an attempt has the time of another")
	}
}

// TestSlowEndpointHoldsUpNobody: a thousand messages for an endpoint that never
// answers wait in front of those for others, in a relay with few places.
func TestSlowEndpointHoldsUpNobody(t *testing.T) {
	release := make(chan struct{})
	var under, most atomic.Int64
	slow := newReceiver(t, func(http.ResponseWriter, *http.Request) {
		n := under.Add(1)
		defer under.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
	})
	defer close(release)
	quick := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
	b := newBench(t, send.Config{}, slow, quick)
	b.Put(send.Endpoint{ID: "slow", URL: slow.URL, Secrets: []string{webhook.NewSecret()}})
	for i := range 1000 {
		b.enqueue(send.Event{ID: fmt.Sprint("evt_", i)}, "slow")
	}
	const others = 100
	for i := range others {
		id := fmt.Sprint("quick", i)
		b.Put(send.Endpoint{ID: id, URL: quick.URL, Secrets: []string{webhook.NewSecret()}})
		b.enqueue(send.Event{ID: "evt"}, id)
	}
	b.route.MaxInFlight, b.route.Timeout = 64, time.Hour
	b.attempts(others)
	want(t, "requests at the others", len(quick.requests()), others)
	if n := most.Load(); n == 0 || n > 4 {
		t.Errorf("the slow endpoint had %d at once", n)
	}
	if e := b.find("evt_999:slow"); e.Attempts != 0 || e.State != outbox.StatePending {
		t.Errorf("what was put off is %+v", e)
	}
}

// unreachable are endpoints that cannot be looked up for an hour.
type unreachable struct {
	*send.Memory
	until time.Time
	calls int
}

func (u *unreachable) Endpoint(ctx context.Context, id string) (send.Endpoint, error) {
	u.calls++
	if time.Now().Before(u.until) {
		return send.Endpoint{}, errors.New("the database is down")
	}
	return u.Memory.Endpoint(ctx, id)
}

// TestEndpointsThatCannotBeLookedUp: that is no failure of the endpoint's, and costs
// its messages no attempt.
func TestEndpointsThatCannotBeLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unreachable{Memory: &send.Memory{}, until: time.Now().Add(time.Hour)}
		b := newBench(t, send.Config{Endpoints: u})
		b.enqueue(send.Event{ID: "evt"}, "ep")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		r := must(outbox.New(outbox.Config{Store: b.Outbox, Routes: []outbox.Route{b.route}}))
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		e := b.find("evt:ep")
		want(t, "cause", e.Cause, "webhook: endpoint ep: is not there")
		want(t, "attempts", e.Attempts, 1)
		want(t, "state", e.State, outbox.StateDead)
		if b.failed < 100 || b.failed != u.calls-1 {
			t.Errorf("%d failures were told of %d calls", b.failed, u.calls)
		}
	})
}

// failingUpdates are endpoints whose state cannot be written.
type failingUpdates struct{ *send.Memory }

func (failingUpdates) Update(context.Context, send.Endpoint, send.State) (bool, error) {
	return false, errors.New("the disk is full")
}

// TestStateThatCannotBeWritten: a message is not dead before its endpoint is
// disabled, and a delivery is one all the same.
func TestStateThatCannotBeWritten(t *testing.T) {
	var status atomic.Int64
	status.Store(410)
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })
	m := &send.Memory{}
	b := newBench(t, send.Config{Endpoints: failingUpdates{m}}, r)
	m.Put(send.Endpoint{ID: "ep", URL: r.URL, Secrets: []string{webhook.NewSecret()}, State: send.State{FailingSince: time.Now()}})
	b.enqueue(send.Event{ID: "evt"}, "ep")
	b.attempts(1)
	want(t, "state", b.find("evt:ep").State, outbox.StatePending)
	status.Store(200)
	b.again("evt:ep")
	b.attempts(1)
	want(t, "state", b.find("evt:ep").State, outbox.StateDelivered)
	want(t, "failures told", b.failed, 2)
}

// TestBrokenOffIsNotTheEndpointsFault: a relay that stops says nothing of endpoints.
func TestBrokenOffIsNotTheEndpointsFault(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {
		cancel()
		<-release
	})
	defer close(release)
	b := newBench(t, send.Config{}, r)
	b.Put(send.Endpoint{ID: "ep", URL: r.URL, Secrets: []string{webhook.NewSecret()}})
	if err := b.sink.Deliver(ctx, outbox.Delivery{Message: outbox.Message{ID: "evt:ep"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended by %v", err)
	}
	want(t, "changes", len(b.changes), 0)
}
