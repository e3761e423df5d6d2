package send_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// receiver is an endpoint that answers over TLS. What it is asked goes to got.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []request
}

type request struct {
	*http.Request
	body string
}

func newReceiver(t *testing.T, h http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		q.Body = io.NopCloser(bytes.NewReader(b))
		r.mu.Lock()
		r.got = append(r.got, request{q, string(b)})
		r.mu.Unlock()
		h(w, q)
	}))
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	r.EnableHTTP2 = true
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// trust is a configuration by which the test's receivers can be reached.
func trust(receivers ...*receiver) *tls.Config {
	if len(receivers) == 0 {
		return nil
	}
	return receivers[0].Client().Transport.(*http.Transport).TLSClientConfig // they all have one certificate
}

// bench is endpoints, an outbox, a sink and what was told.
type bench struct {
	*testing.T
	send.Memory
	*memory.Outbox
	sink  *send.Sink
	route outbox.Route

	mu      sync.Mutex
	changes []string
	failed  int
	all     []any // whatever observers were given
}

func (b *bench) told(what ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, what...)
}

func newBench(t *testing.T, c send.Config, receivers ...*receiver) *bench {
	t.Helper()
	b := &bench{T: t, Outbox: memory.NewOutbox()}
	if c.Endpoints == nil {
		c.Endpoints = &b.Memory
	}
	c.TLS, c.AllowPrivate = trust(receivers...), len(receivers) > 0
	c.Observer = &send.Observer{
		Changed: func(_ context.Context, e send.Endpoint, was send.State) {
			b.told(e, was)
			b.mu.Lock()
			defer b.mu.Unlock()
			b.changes = append(b.changes, fmt.Sprint(e.ID, " ", was.Cause, ">", e.Cause, " ", e.Disabled()))
		},
		EndpointsFailed: func(_ context.Context, id, call string, err error) {
			b.told(id, call, err)
			b.mu.Lock()
			defer b.mu.Unlock()
			b.failed++
		},
	}
	b.sink = must(send.New(c))
	t.Cleanup(b.sink.Close)
	b.route = b.sink.Route("hooks")
	return b
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v; want %v", what, got, want)
	}
}

// enqueue enqueues an event for endpoints.
func (b *bench) enqueue(e send.Event, ids ...string) {
	b.Helper()
	if e.Payload == nil {
		e.Payload = []byte("{}")
	}
	var to []send.Endpoint
	for _, id := range ids {
		to = append(to, send.Endpoint{ID: id})
	}
	if err := b.Enqueue(b.Context(), must(e.Messages("hooks", to...))...); err != nil {
		b.Fatal(err)
	}
}

// run runs a relay until done returns true, which is asked after each attempt.
func (b *bench) run(done func() bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	on := func(_ context.Context, a outbox.Attempted) {
		b.told(a)
		if done() {
			cancel()
		}
	}
	r := must(outbox.New(outbox.Config{
		Store: b.Outbox, Routes: []outbox.Route{b.route}, Drain: time.Nanosecond, PollMin: time.Millisecond,
		Observer: &outbox.Observer{Delivered: on, Retried: on, Dead: on, Unknown: on},
	}))
	if err := r.Run(ctx); err != nil {
		b.Fatal(err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		b.Fatal("it did not come to its end in a minute")
	}
}

// attempts runs a relay for n attempts.
func (b *bench) attempts(n int64) {
	b.Helper()
	var left atomic.Int64
	left.Store(n)
	b.run(func() bool { return left.Add(-1) <= 0 })
}

func (b *bench) find(id string) outbox.Entry {
	b.Helper()
	e, err := b.Find(b.Context(), id)
	if err != nil {
		b.Fatal(id, err)
	}
	return e
}

func (b *bench) endpoint(id string) send.Endpoint {
	b.Helper()
	return must(b.Endpoint(b.Context(), id))
}

// again makes a message due that waits for its next attempt, which no test waits for.
func (b *bench) again(id string) {
	b.Helper()
	claimed := b.find(id)
	if claimed.State != outbox.StatePending || claimed.DueAt.IsZero() {
		b.Fatalf("%s waits for no attempt: %+v", id, claimed)
	}
	if _, err := b.Purge(b.Context(), outbox.Filter{ID: id}); err != nil {
		b.Fatal(err)
	}
	m := claimed.Message
	if err := b.Enqueue(b.Context(), m); err != nil {
		b.Fatal(err)
	}
}

// processing is a receiving endpoint of ours that counts what it processes.
func processing(t *testing.T, counts *sync.Map, secrets ...string) http.HandlerFunc {
	t.Helper()
	guard := must(semel.New(semel.Config{Store: must(memory.New(memory.Config{}))}))
	scheme := must(webhook.NewStandard(webhook.StandardConfig{Secrets: secrets}))
	receive := must(webhook.New(webhook.Config{Guard: guard, Scheme: scheme, Name: "hooks", Sender: "shop"}))
	return receive(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ev, _ := webhook.EventOf(r.Context())
		n, _ := counts.LoadOrStore(ev.ID, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		w.WriteHeader(http.StatusNoContent)
	})).ServeHTTP
}

func count(counts *sync.Map, id string) int64 {
	n, ok := counts.Load(id)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// TestEventReachesItsEndpoints: over TLS, at receivers of ours, under one id.
func TestEventReachesItsEndpoints(t *testing.T) {
	secrets := []string{webhook.NewSecret(), webhook.NewSecret()}
	var counts [2]sync.Map
	one, two := newReceiver(t, processing(t, &counts[0], secrets[0])), newReceiver(t, processing(t, &counts[1], secrets[1]))
	b := newBench(t, send.Config{}, one, two)
	endpoints := []send.Endpoint{
		{ID: "one", URL: one.URL + "/hook?x=1", Secrets: secrets[:1], Types: []string{"order.paid", "invoice.*"}},
		{ID: "two", URL: two.URL, Secrets: secrets[1:]},
	}
	b.Put(endpoints...)
	for _, e := range endpoints {
		if err := b.sink.Check(e); err != nil {
			t.Error(err)
		}
	}
	for _, e := range []send.Event{
		{ID: "evt_1", Type: "order.paid", Payload: []byte(`{"a": 1}`)},
		{ID: "evt_2", Type: "order.made", Payload: []byte(" \x00\xff"), ContentType: "application/x"},
		{ID: "evt_3", Type: "invoice.made"},
	} {
		messages := must(e.Messages("hooks", endpoints...))
		if err := b.Enqueue(t.Context(), messages...); err != nil {
			t.Fatal(err)
		}
		if err := b.Enqueue(t.Context(), messages...); !errors.Is(err, outbox.ErrDuplicate) {
			t.Errorf("the same event twice: %v", err)
		}
	}
	b.attempts(5)
	for i, wanted := range []map[string]int64{{"evt_1": 1, "evt_2": 0, "evt_3": 1}, {"evt_1": 1, "evt_2": 1, "evt_3": 1}} {
		for id, n := range wanted {
			want(t, fmt.Sprint("how often ", i, " has processed ", id), count(&counts[i], id), n)
		}
	}
	for _, r := range slices.Concat(one.requests(), two.requests()) {
		kind, body := "application/json", ""
		switch r.Header.Get("Webhook-Id") {
		case "evt_1":
			body = `{"a": 1}`
		case "evt_2":
			kind, body = "application/x", " \x00\xff"
		}
		want(t, "content type", r.Header.Get("Content-Type"), kind)
		want(t, "body", r.body, body)
		want(t, "method", r.Method, "POST")
		for name := range r.Header {
			if !slices.Contains([]string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Content-Type", "Content-Length", "User-Agent"}, name) {
				t.Errorf("it has the header %s", name)
			}
		}
	}
	want(t, "path", one.requests()[0].URL.String(), "/hook?x=1")
}

// TestStatuses: 2xx is a delivery, 410 the end, and anything else comes again.
func TestStatuses(t *testing.T) {
	for _, tt := range []struct {
		status int
		after  string
		state  outbox.State
		delay  time.Duration
	}{
		{200, "", outbox.StateDelivered, 0},
		{204, "60", outbox.StateDelivered, 0},
		{299, "", outbox.StateDelivered, 0},
		{301, "", outbox.StatePending, 4 * time.Second},
		{307, "", outbox.StatePending, 4 * time.Second},
		{400, "", outbox.StatePending, 4 * time.Second},
		{401, "", outbox.StatePending, 4 * time.Second},
		{404, "", outbox.StatePending, 4 * time.Second},
		{409, "7", outbox.StatePending, 7 * time.Second},
		{410, "60", outbox.StateDead, 0},
		{422, "", outbox.StatePending, 4 * time.Second},
		{429, "120", outbox.StatePending, 2 * time.Minute},
		{429, "99999999999999999999", outbox.StatePending, 4 * time.Second},
		{500, "", outbox.StatePending, 4 * time.Second},
		{503, time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), outbox.StatePending, 59 * time.Minute},
		{503, "999999999", outbox.StatePending, 24 * time.Hour},
	} {
		t.Run(fmt.Sprint(tt.status, " ", tt.after), func(t *testing.T) {
			elsewhere := newReceiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirection was followed") })
			r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", elsewhere.URL)
				if tt.after != "" {
					w.Header().Set("Retry-After", tt.after)
				}
				w.WriteHeader(tt.status)
			})
			b := newBench(t, send.Config{}, r)
			b.Put(send.Endpoint{ID: "ep", URL: r.URL, Secrets: []string{webhook.NewSecret()}})
			b.enqueue(send.Event{ID: "evt"}, "ep")
			b.attempts(1)
			e := b.find("evt:ep")
			if e.State != tt.state || len(r.requests()) != 1 {
				t.Errorf("it is %s after %d requests: %s", e.State, len(r.requests()), e.Cause)
			}
			if e.State != outbox.StateDelivered && !strings.HasPrefix(e.Cause, fmt.Sprintf("webhook: endpoint ep: answered %d", tt.status)) {
				t.Errorf("its cause is %q", e.Cause)
			}
			if left := time.Until(e.DueAt); e.State == outbox.StatePending && (left < tt.delay-time.Second || left > (tt.delay+time.Minute)*11/10) {
				t.Errorf("it is tried again in %v; want %v", left, tt.delay)
			}
			is := b.endpoint("ep")
			want(t, "whether it is disabled", is.Disabled(), tt.status == 410)
			want(t, "whether it fails", !is.FailingSince.IsZero(), tt.state == outbox.StatePending)
		})
	}
}

// TestAnswersWithoutEnd: of a body or a head.
func TestAnswersWithoutEnd(t *testing.T) {
	ended := make(chan struct{})
	body := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	})
	drip := make(chan struct{})
	head := newReceiver(t, func(w http.ResponseWriter, r *http.Request) { // 1xx after 1xx
		w.Header().Set("Link", strings.Repeat("x", 1<<10))
		for r.Context().Err() == nil {
			w.WriteHeader(http.StatusEarlyHints)
			select {
			case <-drip:
				return
			default:
			}
		}
	})
	defer close(drip)
	b := newBench(t, send.Config{}, body, head)
	b.Put(
		send.Endpoint{ID: "body", URL: body.URL, Secrets: []string{webhook.NewSecret()}},
		send.Endpoint{ID: "head", URL: head.URL, Secrets: []string{webhook.NewSecret()}},
	)
	b.enqueue(send.Event{ID: "evt"}, "body", "head")
	b.attempts(2)
	<-ended
	want(t, "state", b.find("evt:body").State, outbox.StateDelivered)
	want(t, "state", b.find("evt:head").State, outbox.StatePending)
}

// TestNothingLeaks: neither secrets nor what a URL holds are in any error, cause or
// value that an observer is given, whatever an endpoint answers.
func TestNothingLeaks(t *testing.T) {
	secret := webhook.NewSecret()
	raw := strings.TrimPrefix(secret, "whsec_")
	// What a receiver can do is to send back what it got, where it hurts.
	echo := func(where string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer c.Close()
			what := r.URL.String() + " " + r.Header.Get("Webhook-Signature") + " " + secret
			_, _ = io.WriteString(c, strings.ReplaceAll(where, "$", what))
		}
	}
	leaks := []string{raw, secret, "t0ken-in-path", "t0ken-in-query", "t0ken-in-user", "v1,"}
	for _, answer := range []string{
		"HTTP/1.1 $\r\n\r\n", "$\r\n\r\n", "HTTP/1.1 500 $\r\n\r\n", "HTTP/1.1 302 x\r\nLocation: $\r\n\r\n", "HTTP/1.1 410 $\r\n\r\n",
		"HTTP/1.1 200 x\r\nTransfer-Encoding: $\r\n\r\n", "HTTP/1.1 200 x\r\nContent-Length: $\r\n\r\n", "HTTP/1.1 200 x\r\n$\r\n\r\n", "HTTP/1.1 429 x\r\nRetry-After: $\r\n\r\n",
	} {
		t.Run(answer, func(t *testing.T) {
			r := httptest.NewTLSServer(echo(answer)) // by HTTP/1.1, whose answers can be anything
			defer r.Close()
			log := &bytes.Buffer{}
			b := newBench(t, send.Config{})
			sink := must(send.New(send.Config{
				Endpoints: &b.Memory, TLS: r.Client().Transport.(*http.Transport).TLSClientConfig, AllowPrivate: true, AllowHTTP: true,
				Observer: &send.Observer{Changed: func(_ context.Context, e send.Endpoint, was send.State) { b.told(e, &e, was) }},
			}))
			defer sink.Close()
			b.route = sink.Route("hooks")
			good := send.Endpoint{ID: "ep", URL: r.URL + "/t0ken-in-path?k=t0ken-in-query", Secrets: []string{secret}}
			all := []send.Endpoint{good}
			for i, change := range []func(*send.Endpoint){
				func(e *send.Endpoint) { e.URL = "https://%zz/t0ken-in-path?k=t0ken-in-query" },
				func(e *send.Endpoint) { e.URL = "ftp://x/t0ken-in-path" },
				func(e *send.Endpoint) { e.URL = "https://u:t0ken-in-user@x/" },
				func(e *send.Endpoint) { e.URL = "http://127.0.0.1:1/t0ken-in-path?k=t0ken-in-query" },
				func(e *send.Endpoint) { e.URL = strings.Replace(e.URL, "https", "http", 1) },
				func(e *send.Endpoint) { e.Secrets = []string{secret, secret + "-"} },
				func(e *send.Endpoint) { e.Secrets = []string{"whpk_" + raw} },
				func(e *send.Endpoint) { e.Secrets = []string{"whsk_" + raw + " "} },
				func(e *send.Endpoint) { e.State = send.State{DisabledAt: time.Now(), Cause: "x"} },
			} {
				e := good
				e.ID = fmt.Sprint("ep", i)
				change(&e)
				all = append(all, e)
			}
			b.Put(all...)
			for _, e := range all {
				b.enqueue(send.Event{ID: "evt"}, e.ID)
				if err := sink.Check(e); err != nil {
					b.told(err)
				}
			}
			b.attempts(int64(len(all)))
			for _, e := range all {
				entry := b.find("evt:" + e.ID)
				if entry.State != outbox.StateDelivered && !strings.HasPrefix(entry.Cause, "webhook: endpoint "+e.ID+": ") {
					t.Errorf("%s is %s by %q", entry.ID, entry.State, entry.Cause)
				}
				b.told(entry.Cause)
			}
			for _, v := range b.all {
				slog.New(slog.NewJSONHandler(log, nil)).Info("", "v", v)
				slog.New(slog.NewTextHandler(log, nil)).Info("", "v", v)
				if a, ok := v.(outbox.Attempted); ok {
					v = a.Err
					fmt.Fprint(log, v)
				}
				fmt.Fprintf(log, "%v %+v %#v %s", v, v, fmt.Sprint(v), v)
				if e, ok := v.(send.Endpoint); ok {
					fmt.Fprintf(log, "%#v", e)
				}
			}
			if log.Len() == 0 {
				t.Error("nothing was told")
			}
			for _, leak := range leaks {
				if i := strings.Index(log.String(), leak); i >= 0 {
					t.Errorf("%q is told: %s", leak, log.String()[max(i-200, 0):i+len(leak)])
				}
			}
		})
	}
}

// names answers questions for addresses over UDP, as a server of names does.
func names(t *testing.T, records map[string]net.IP) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for q := make([]byte, 1500); ; {
			_, from, err := server.ReadFrom(q)
			if err != nil {
				return
			}
			end, name := 12, ""
			for ; q[end] != 0; end += int(q[end]) + 1 {
				name += string(q[end+1:end+1+int(q[end])]) + "."
			}
			end += 5 // the end of the name, kind and class
			kind := int(q[end-4])<<8 | int(q[end-3])
			ip, count := records[name], byte(0)
			data := ip.To16()
			if ip != nil && len(ip) == net.IPv4len {
				data = ip
			}
			if len(data) == net.IPv4len && kind == 1 || len(data) == net.IPv6len && kind == 28 {
				count = 1
			}
			a := slices.Concat(q[:2], []byte{0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0}, q[12:end])
			if count == 1 {
				a = slices.Concat(a, []byte{0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(data))}, data)
			}
			_, _ = server.WriteTo(a, from)
		}
	}()
	was := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = was })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// TestNamesThatLeadToPrivateAddresses: what counts is the address that is connected
// to.
func TestNamesThatLeadToPrivateAddresses(t *testing.T) {
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	_, port, err := net.SplitHostPort(r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]net.IP{
		"loopback.test.": net.IPv4(127, 0, 0, 1).To4(),
		"metadata.test.": net.IPv4(169, 254, 169, 254).To4(),
		"private.test.":  net.IPv4(10, 0, 0, 1).To4(),
		"zero.test.":     net.IPv4(0, 0, 0, 0).To4(),
		"mapped.test.":   net.ParseIP("::ffff:127.0.0.1"), // as AAAA
		"six.test.":      net.ParseIP("::1"),
		"nat64.test.":    net.ParseIP("64:ff9b::7f00:1"),
		"6to4.test.":     net.ParseIP("2002:7f00:1::"),
		"local.test.":    net.ParseIP("fd00::1"),
	}
	names(t, hosts)
	// The name does resolve, or nothing would be shown.
	if got, err := net.DefaultResolver.LookupHost(t.Context(), "loopback.test."); err != nil || len(got) != 1 || got[0] != "127.0.0.1" {
		t.Fatal(got, err)
	}
	b := newBench(t, send.Config{})
	for name := range hosts {
		b.Put(send.Endpoint{ID: "ep", URL: "https://" + name + ":" + port, Secrets: []string{webhook.NewSecret()}})
		err := b.sink.Deliver(t.Context(), outbox.Delivery{Message: outbox.Message{ID: "evt:ep"}})
		if err == nil || err.Error() != "webhook: endpoint ep: its address is not public" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(b.changes) == 0 {
		t.Error("that counts as no failure")
	}
	b.Put(send.Endpoint{ID: "ep", URL: "https://nobody.test.:" + port, Secrets: []string{webhook.NewSecret()}})
	if err := b.sink.Deliver(t.Context(), outbox.Delivery{Message: outbox.Message{ID: "evt:ep"}}); err == nil || err.Error() != "webhook: endpoint ep: its name cannot be resolved" {
		t.Error(err)
	}
}

func TestMessages(t *testing.T) {
	at := time.Now()
	e := send.Event{ID: "evt_1", Type: "a.b", Payload: []byte("x"), Ordered: true, NotBefore: at}
	m := must(e.Messages("hooks", send.Endpoint{ID: "one", Types: []string{"a.*"}}, send.Endpoint{ID: "two", Types: []string{"a", "b.*", "a.b.c"}}, send.Endpoint{ID: "3-_"}))
	if len(m) != 2 || m[0].ID != "evt_1:one" || m[0].Key != "one" || m[1].ID != "evt_1:3-_" || m[1].Topic != "hooks" || m[1].Type != "a.b" || !m[0].NotBefore.Equal(at) {
		t.Errorf("got %+v", m)
	}
	m = must(send.Event{}.Messages("hooks", send.Endpoint{ID: "one"}, send.Endpoint{ID: "two"}))
	id, _, _ := strings.Cut(m[0].ID, ":")
	if id == "" || m[1].ID != id+":two" || m[0].Key != "" {
		t.Errorf("got %+v", m)
	}
	if none := must(e.Messages("hooks")); len(none) != 0 {
		t.Errorf("got %+v", none)
	}
	long := strings.Repeat("x", 300)
	for wrong, try := range map[string]func() ([]outbox.Message, error){
		"id of the event":                 func() ([]outbox.Message, error) { return send.Event{ID: "a:b"}.Messages("hooks") },
		"id of the event must":            func() ([]outbox.Message, error) { return send.Event{ID: "a.b"}.Messages("hooks") },
		"of the event must be 1 to 190 l": func() ([]outbox.Message, error) { return send.Event{ID: long[:191]}.Messages("hooks") },
		"of the endpoint must be 1 to 64": func() ([]outbox.Message, error) { return e.Messages("hooks", send.Endpoint{ID: long[:65]}) },
		"id of the endpoint":              func() ([]outbox.Message, error) { return e.Messages("hooks", send.Endpoint{}) },
		"Topic":                           func() ([]outbox.Message, error) { return e.Messages("", send.Endpoint{ID: "x"}) },
		"Payload": func() ([]outbox.Message, error) {
			return send.Event{Payload: make([]byte, outbox.MaxPayload+1)}.Messages("hooks", send.Endpoint{ID: "x"})
		},
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	longest := must(send.Event{ID: long[:send.MaxEventID]}.Messages("hooks", send.Endpoint{ID: long[:send.MaxEndpointID]}))
	if err := longest[0].Validate(); err != nil {
		t.Error(err)
	}
}

// TestRowsOfOthers: rows that were inserted in other ways.
func TestRowsOfOthers(t *testing.T) {
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {})
	b := newBench(t, send.Config{}, r)
	b.Put(send.Endpoint{URL: r.URL, Secrets: []string{webhook.NewSecret()}}) // of messages that name none
	for id, state := range map[string]outbox.State{
		"evt": outbox.StateDelivered, "evt:none": outbox.StateDead, "a.b": outbox.StateDead, ":ep": outbox.StateDead, "evt:": outbox.StateDead, "evt:a:b": outbox.StateDead,
	} {
		if err := b.Enqueue(t.Context(), outbox.Message{ID: id, Topic: "hooks", Headers: map[string]string{"webhook-id": "forged", "X-A": "b"}}); err != nil {
			t.Fatal(err)
		}
		b.attempts(1)
		if e := b.find(id); e.State != state || state == outbox.StateDead && !strings.HasPrefix(e.Cause, "webhook: ") {
			t.Errorf("%s is %s: %s", id, e.State, e.Cause)
		}
	}
	got := r.requests()
	if len(got) != 1 || got[0].Header.Get("Webhook-Id") != "evt" || got[0].Header.Get("X-A") != "b" || len(got[0].Header["Webhook-Id"]) != 1 {
		t.Errorf("got %v", got)
	}
	if err := b.Enqueue(t.Context(), outbox.Message{ID: "bad", Topic: "hooks", Headers: map[string]string{"Host": "x"}}); err != nil {
		t.Fatal(err)
	}
	b.attempts(1)
	want(t, "state", b.find("bad").State, outbox.StateDead)
}

// TestSpan: receivers keep ids for longer than the schedule takes.
func TestSpan(t *testing.T) {
	scheme := must(webhook.NewStandard(webhook.StandardConfig{Secrets: []string{webhook.NewSecret()}}))
	total := time.Duration(0)
	for _, d := range send.Schedule() {
		total += d
	}
	want(t, "span", total, scheme.RetrySpan())
	b := newBench(t, send.Config{})
	if span := b.route.RetrySpan(0); span < total || span > total+time.Hour {
		t.Errorf("the route's is %v", span)
	}
	policy := semel.RetryPlan{Window: scheme.RetrySpan(), Timeout: 30 * time.Second}
	if keep := must(policy.Retention()); keep < b.route.RetrySpan(0) {
		t.Errorf("receivers of ours keep ids for %v; attempts take %v", keep, b.route.RetrySpan(0))
	}
}

func TestConfig(t *testing.T) {
	_, err := send.New(send.Config{MaxPerEndpoint: -1, DialTimeout: -1})
	for _, wanted := range []string{"Endpoints is nil", "MaxPerEndpoint", "DialTimeout"} {
		if err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%s: %v", wanted, err)
		}
	}
	b := newBench(t, send.Config{})
	if err := b.sink.Check(send.Endpoint{ID: "a b", URL: "http://x"}); err == nil || !strings.Contains(err.Error(), "id of the endpoint") ||
		!strings.Contains(err.Error(), "https") || !strings.Contains(err.Error(), "secrets") {
		t.Error(err)
	}
	if text, err := json.Marshal(b.endpointText()); err != nil || strings.Contains(string(text), "whsec") {
		t.Errorf("%s, %v", text, err)
	}
}

func (b *bench) endpointText() string {
	return fmt.Sprint(send.Endpoint{ID: "ep", URL: "https://x", Secrets: []string{"whsec_x"}, State: send.State{DisabledAt: time.Now(), Cause: "gone"}})
}
