package semelotel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/semelhq/semel"
	semelotel "github.com/semelhq/semel/adapter/otel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// bench is a gateway in front of an upstream, with everything measured.
type bench struct {
	t         testing.TB
	reader    *sdkmetric.ManualReader
	spans     *tracetest.SpanRecorder
	telemetry *semelotel.Telemetry
	guard     *semel.Guard
	server    *httptest.Server
	done      chan semelotel.Exchange
}

type setup struct {
	policy   semel.Policy
	store    semel.Store
	upstream http.HandlerFunc
	config   func(*semelotel.Config)
	gateway  func(*gateway.Config)
}

func start(t testing.TB, s setup) *bench {
	t.Helper()
	b := &bench{t: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder(), done: make(chan semelotel.Exchange, 1000)}
	c := semelotel.Config{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.reader)),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans)),
		Completed:      func(_ context.Context, x semelotel.Exchange) { b.done <- x },
	}
	if s.config != nil {
		s.config(&c)
	}
	var err error
	b.telemetry, err = semelotel.New(c)
	noError(t, err)
	if s.store == nil {
		s.store, err = memory.New(memory.Config{})
		noError(t, err)
	}
	b.guard, err = semel.New(semel.Config{Store: s.store, Policy: s.policy, Observer: b.telemetry.Guard(nil)})
	noError(t, err)
	noError(t, b.telemetry.WatchGuard(b.guard))
	upstream := httptest.NewServer(s.upstream)
	t.Cleanup(upstream.Close)
	u, err := url.Parse(upstream.URL)
	noError(t, err)
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{})
	noError(t, err)
	noError(t, b.telemetry.WatchSpools(spools))
	gc := gateway.Config{Upstream: u, Guard: b.guard, Spools: spools, Observer: b.telemetry.Gateway(nil)}
	if s.gateway != nil {
		s.gateway(&gc)
	}
	gw, err := gateway.New(gc)
	noError(t, err)
	b.server = httptest.NewServer(b.telemetry.Handler(gw))
	t.Cleanup(b.server.Close)
	return b
}

func created(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(201)
	_, _ = io.WriteString(w, `{"id":1}`)
}

// send sends a request and returns the status, the header and what was noted of it.
func (b *bench) send(method, path, key, body string, header ...string) (*http.Response, semelotel.Exchange) {
	b.t.Helper()
	req, err := http.NewRequest(method, b.server.URL+path, strings.NewReader(body))
	noError(b.t, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	noError(b.t, err)
	_, err = io.Copy(io.Discard, res.Body)
	noError(b.t, err)
	noError(b.t, res.Body.Close())
	return res, <-b.done
}

// metrics returns all series as name{attributes} and their value, or count.
func (b *bench) metrics() map[string]float64 {
	b.t.Helper()
	var all metricdata.ResourceMetrics
	noError(b.t, b.reader.Collect(context.Background(), &all))
	series := map[string]float64{}
	put := func(name string, set attribute.Set, v float64) {
		series[name+"{"+set.Encoded(attribute.DefaultEncoder())+"}"] = v
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				b.t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return series
}

func (b *bench) want(series map[string]float64, name string, want float64) {
	b.t.Helper()
	if got, ok := series[name]; !ok || got != want {
		b.t.Errorf("%s is %v, want %v; there are\n%s", name, got, want, strings.Join(slices.Sorted(maps.Keys(series)), "\n"))
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// TestMeasured: each outcome has its series, by the semantic conventions.
func TestMeasured(t *testing.T) {
	b := start(t, setup{
		upstream: func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/lost":
				w.WriteHeader(502)
			case "/busy":
				w.WriteHeader(429)
			case "/cut":
				panic(http.ErrAbortHandler)
			default:
				created(w, r)
			}
		},
		gateway: func(c *gateway.Config) { c.RequireKey, c.MaxRequestBody = true, 100 },
	})
	for _, s := range []struct {
		path, key, body string
		status          int
		outcome         string
	}{
		{"/orders", "a", "{}", 201, "executed"},
		{"/orders", "a", "{}", 201, "replayed"},
		{"/orders", "a", "[]", 422, "mismatch"},
		{"/busy", "b", "{}", 429, "released"},
		{"/lost", "c", "{}", 502, "unknown"},
		{"/lost", "c", "{}", 409, "unknown"},
		{"/cut", "d", "{}", 502, "unknown"},
		{"/orders", "", "{}", 400, "rejected"},
		{"/orders", "e", strings.Repeat("x", 101), 413, "rejected"},
	} {
		res, x := b.send("POST", s.path, s.key, s.body)
		want(t, s.path+" "+s.key+": status", res.StatusCode, s.status)
		want(t, s.path+" "+s.key+": outcome", x.Outcome, s.outcome)
		want(t, s.path+" "+s.key+": noted status", x.Status, s.status)
		if s.outcome != "rejected" && (x.RecordID == "" && s.outcome != "released" || x.KeyDigest != semel.Digest(s.key)) {
			t.Errorf("%s: it was noted as %+v", s.path, x)
		}
	}
	b.send("BREW", "/orders", "", "")
	m := b.metrics()
	for name, n := range map[string]float64{
		"semel.decisions{semel.outcome=executed}": 1, "semel.decisions{semel.outcome=replayed}": 1,
		"semel.decisions{semel.outcome=mismatch}": 1, "semel.decisions{semel.outcome=released}": 1,
		"semel.decisions{semel.outcome=unknown}": 3, "semel.decisions{semel.outcome=rejected}": 2,
		"semel.refusals{semel.problem=key-missing}": 1, "semel.refusals{semel.problem=body-too-large}": 1,
		"semel.upstream.failures{error.type=cut_off}": 1,
		"http.server.request.duration{http.request.method=POST,http.response.status_code=201,semel.outcome=executed,url.scheme=http}":               1,
		"http.server.request.duration{error.type=502,http.request.method=POST,http.response.status_code=502,semel.outcome=unknown,url.scheme=http}": 2,
		"http.server.request.duration{http.request.method=_OTHER,http.response.status_code=201,url.scheme=http}":                                    1,
		"http.server.active_requests{http.request.method=POST,url.scheme=http}":                                                                     0,
		"semel.executions{}": 0, "semel.executions.limit{}": 4096, "semel.waiters{}": 0, "semel.waiters.limit{}": 1000, "semel.spool.usage{}": 0,
	} {
		b.want(m, name, n)
	}
	clients := 0
	for name := range m {
		if strings.HasPrefix(name, "http.client.request.duration{") && strings.Contains(name, "server.address=127.0.0.1,server.port=") {
			clients++
		}
	}
	want(t, "series of requests to the upstream", clients, 5) // 201 by POST and another, 429, 502, none
}

// TestNothingOfTheClients: what a client chooses is in no metric, span or note,
// wherever in the request it is.
func TestNothingOfTheClients(t *testing.T) {
	const secret = "s3cr3t-token"
	b := start(t, setup{upstream: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Answer", secret)
		created(w, r)
	}})
	for _, method := range []string{"POST", "PATCH", "GET", "X" + secret} {
		for range 2 {
			_, x := b.send(method, "/a/"+secret+"?q="+secret, secret, `{"x":"`+secret+`"}`,
				"Authorization", "Bearer "+secret, "Cookie", "c="+secret, "User-Agent", secret, "X-Request-Id", secret, "Referer", secret,
				"X-Forwarded-For", secret, "Forwarded", "for="+secret, "Baggage", "a="+secret, "X-Http-Method-Override", secret,
				"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate", "x="+secret, "B3", secret)
			if text := fmt.Sprintf("%+v", x); strings.Contains(text, secret) {
				t.Errorf("the note of %s: %s", method, text)
			}
			want(t, "trace id", x.TraceID, "0af7651916cd43dd8448eb211c80319c")
		}
	}
	for name := range b.metrics() {
		if strings.Contains(strings.ToLower(name), secret) {
			t.Errorf("a metric: %s", name)
		}
	}
	for _, span := range b.spans.Ended() {
		text := span.Name() + span.SpanContext().TraceState().String() + span.Parent().TraceState().String() + span.Status().Description
		for _, a := range span.Attributes() {
			text += " " + string(a.Key) + "=" + a.Value.String()
		}
		if strings.Contains(strings.ToLower(text), secret) {
			t.Errorf("a span: %s", text)
		}
	}
}

// TestTraced: the trace goes on from the client through the gateway to the
// upstream, and the record's trail has it.
func TestTraced(t *testing.T) {
	seen := make(chan http.Header, 1)
	b := start(t, setup{upstream: func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		created(w, r)
	}})
	const id = "0af7651916cd43dd8448eb211c80319c"
	_, x := b.send("POST", "/orders", "k", "{}", "Traceparent", "00-"+id+"-b7ad6b7169203331-01", "Tracestate", "vendor=1")
	want(t, "noted trace", x.TraceID, id)
	h := <-seen
	ended := map[trace.SpanKind]sdktrace.ReadOnlySpan{}
	for _, s := range b.spans.Ended() {
		ended[s.SpanKind()] = s
	}
	server, client := ended[trace.SpanKindServer], ended[trace.SpanKindClient]
	want(t, "the server span's parent", server.Parent().SpanID().String(), "b7ad6b7169203331")
	want(t, "the client span's parent", client.Parent().SpanID(), server.SpanContext().SpanID())
	want(t, "what the upstream is told", h.Get("Traceparent"), "00-"+id+"-"+client.SpanContext().SpanID().String()+"-01")
	want(t, "its tracestate", h.Get("Tracestate"), "vendor=1")
	if !slices.Contains(server.Attributes(), attribute.String("semel.record_id", x.RecordID)) || x.RecordID == "" {
		t.Errorf("the span has the attributes %v; the record is %q", server.Attributes(), x.RecordID)
	}
	_, x = b.send("POST", "/orders", "k2", "{}")
	want(t, "length of a trace of its own", len(x.TraceID), 32)
	if h := <-seen; !strings.Contains(h.Get("Traceparent"), x.TraceID) {
		t.Errorf("the upstream was told %q; the trace is %s", h.Get("Traceparent"), x.TraceID)
	}
}

// TestOthersSpan: without a TracerProvider the span that another instrumentation
// has in the context is told what was decided, and stays that one's to end.
func TestOthersSpan(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("others")
	var noted semelotel.Exchange
	telemetry, err := semelotel.New(semelotel.Config{Completed: func(_ context.Context, x semelotel.Exchange) { noted = x }})
	noError(t, err)
	observer := telemetry.Guard(nil)
	h := telemetry.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		observer.Answered(r.Context(), semel.Answered{Answer: semel.AnswerReplayed, RecordID: "r"})
	}))
	ctx, span := tracer.Start(t.Context(), "theirs")
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/", nil))
	want(t, "spans that have ended", len(recorder.Ended()), 0)
	span.End()
	ended := recorder.Ended()[0]
	want(t, "its name", ended.Name(), "theirs")
	want(t, "noted trace", noted.TraceID, ended.SpanContext().TraceID().String())
	if !slices.Contains(ended.Attributes(), attribute.String("semel.outcome", "replayed")) {
		t.Errorf("it has the attributes %v", ended.Attributes())
	}
}

// TestRoute: a router's pattern is the route, whatever path was asked for.
func TestRoute(t *testing.T) {
	var noted semelotel.Exchange
	telemetry, err := semelotel.New(semelotel.Config{Completed: func(_ context.Context, x semelotel.Exchange) { noted = x }})
	noError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /users/{id}/orders", created)
	telemetry.Handler(mux).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/users/42/orders", nil))
	want(t, "route", noted.Route, "/users/{id}/orders")
	telemetry.Handler(mux).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/elsewhere/42", nil))
	want(t, "route where none matched", noted.Route, "")
}

// TestOperation: the names that Config.Operation gives are attributes; by default
// there is none.
func TestOperation(t *testing.T) {
	b := start(t, setup{upstream: created, config: func(c *semelotel.Config) {
		c.Operation = func(semel.Scope) string { return "orders.create" }
	}})
	b.send("POST", "/orders/42", "a", "{}")
	b.want(b.metrics(), "semel.decisions{semel.operation=orders.create,semel.outcome=executed}", 1)
}

// brokenStore is a store that is down.
type brokenStore struct{ semel.Store }

func (brokenStore) Begin(context.Context, semel.Attempt) (semel.Claim, error) {
	return nil, semel.ErrNotOpen
}

// TestStoreDown: failures of the store and what was let through are counted.
func TestStoreDown(t *testing.T) {
	b := start(t, setup{upstream: created, store: brokenStore{}, gateway: func(c *gateway.Config) { c.FailOpen = true }})
	_, x := b.send("POST", "/orders", "a", "{}")
	want(t, "outcome", x.Outcome, "unavailable")
	want(t, "failed open", x.FailedOpen, true)
	m := b.metrics()
	b.want(m, "semel.store.failures{semel.store.call=begin}", 1)
	b.want(m, "semel.unprotected{}", 1)
	b.want(m, "semel.decisions{semel.outcome=unavailable}", 1)
}

// TestCountRecords: unknown records are counted, and the count falls again.
func TestCountRecords(t *testing.T) {
	store, err := memory.New(memory.Config{})
	noError(t, err)
	b := start(t, setup{store: store, upstream: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }})
	for i := range 1003 {
		b.send("POST", "/orders", fmt.Sprint("k", i), "{}")
	}
	noError(t, b.telemetry.CountRecords(t.Context(), store))
	m := b.metrics()
	b.want(m, "semel.records{semel.state=unknown}", 1003)
	b.want(m, "semel.records{semel.state=lapsed}", 0)
	unknown, err := store.List(t.Context(), semel.Filter{State: semel.StateUnknown, Limit: 1000})
	noError(t, err)
	for _, r := range unknown {
		_, err := store.Resolve(t.Context(), semel.Resolution{Identity: r.Identity, Fence: r.Fence, Decision: semel.DecideNoEffect})
		noError(t, err)
	}
	noError(t, b.telemetry.CountRecords(t.Context(), store))
	b.want(b.metrics(), "semel.records{semel.state=unknown}", 3)
	if err := b.telemetry.CountRecords(t.Context(), failingLister{}); err == nil {
		t.Error("a count that failed is no error")
	}
	b.want(b.metrics(), "semel.records{semel.state=unknown}", 3)
	b.telemetry.Swept(t.Context(), 5, errors.New("full"))
	m = b.metrics()
	b.want(m, "semel.sweep.records{}", 5)
	b.want(m, "semel.sweep.failures{}", 1)
}

type failingLister struct{}

func (failingLister) List(context.Context, semel.Filter) ([]semel.Record, error) {
	return nil, errors.New("down")
}

// TestOutbox: a topic that has been emptied has no age any more, and topics
// beyond the bound are taken together.
func TestOutbox(t *testing.T) {
	b := start(t, setup{upstream: created})
	told := 0
	o := b.telemetry.Outbox(&outbox.Observer{Status: func(context.Context, []outbox.TopicStatus) { told++ }})
	o.Status(t.Context(), []outbox.TopicStatus{{Topic: "mail", OldestAge: time.Minute, Pending: 7, Dead: 1}})
	o.Delivered(t.Context(), outbox.Attempted{Topic: "mail", Took: time.Second})
	o.Dead(t.Context(), outbox.Attempted{Topic: "mail"})
	m := b.metrics()
	b.want(m, "semel.outbox.oldest.age{semel.topic=mail}", 60)
	b.want(m, "semel.outbox.messages{semel.state=pending,semel.topic=mail}", 7)
	b.want(m, "semel.outbox.attempts{semel.outcome=delivered,semel.topic=mail}", 1)
	b.want(m, "semel.outbox.attempts{semel.outcome=dead,semel.topic=mail}", 1)
	o.Status(t.Context(), nil)
	want(t, "calls of the next observer", told, 2)
	b.want(b.metrics(), "semel.outbox.oldest.age{semel.topic=mail}", 0)
	var many []outbox.TopicStatus
	for i := range 200 {
		many = append(many, outbox.TopicStatus{Topic: fmt.Sprint("t", i), OldestAge: time.Duration(i) * time.Second, Pending: 1})
	}
	o.Status(t.Context(), many)
	m = b.metrics()
	b.want(m, "semel.outbox.oldest.age{semel.topic=_OTHER}", 199)
	b.want(m, "semel.outbox.messages{semel.state=pending,semel.topic=_OTHER}", 101) // mail has had a name
	want(t, "spans of attempts", len(b.spans.Ended()), 2)
}

// TestWithoutProviders: what nobody wants measured costs no error.
func TestWithoutProviders(t *testing.T) {
	telemetry, err := semelotel.New(semelotel.Config{})
	noError(t, err)
	telemetry.Refused(t.Context(), semelhttp.ProblemKeyMissing.Problem())
	telemetry.Guard(nil).Answered(t.Context(), semel.Answered{})
}

// TestSwitchedProtocols: what the handler does to the writer still works.
func TestSwitchedProtocols(t *testing.T) {
	b := start(t, setup{upstream: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(101)
	}})
	req, err := http.NewRequest("GET", b.server.URL, nil)
	noError(t, err)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	res, err := http.DefaultTransport.RoundTrip(req)
	noError(t, err)
	want(t, "status", res.StatusCode, 101)
	noError(t, res.Body.Close())
	x := <-b.done
	want(t, "noted status", x.Status, 101)
}

// BenchmarkHandler is a protected request through the middleware in this process, by
// itself and measured, each with a store of its own. Requests of the two take turns.
func BenchmarkHandler(b *testing.B) {
	var handlers [2]http.Handler
	for i := range handlers {
		store, err := memory.New(memory.Config{})
		noError(b, err)
		config := semel.Config{Store: store}
		telemetry, err := semelotel.New(semelotel.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))})
		noError(b, err)
		if i == 1 {
			config.Observer = telemetry.Guard(nil)
		}
		guard, err := semel.New(config)
		noError(b, err)
		protect, err := semelhttp.New(semelhttp.Config{Guard: guard, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "a"}, nil }})
		noError(b, err)
		handlers[i] = protect(http.HandlerFunc(created))
		if i == 1 {
			handlers[i] = telemetry.Handler(handlers[i])
		}
	}
	var took [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		for _, i := range [2]int{n % 2, 1 - n%2} {
			r := httptest.NewRequest("POST", "/orders", strings.NewReader(`{"item":"book"}`))
			r.Header.Set("Idempotency-Key", fmt.Sprint("k", n))
			w := httptest.NewRecorder()
			begin := time.Now()
			handlers[i].ServeHTTP(w, r)
			took[i] = append(took[i], time.Since(begin))
		}
	}
	report(b, took)
}

// report tells the medians of what is plain and what is measured.
func report(b *testing.B, took [2][]time.Duration) {
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2])
	}
	b.ReportMetric(median(took[0]), "plain-ns")
	b.ReportMetric(median(took[1]), "measured-ns")
	b.ReportMetric(100*(median(took[1])/median(took[0])-1), "%overhead")
}

// BenchmarkGateway is a protected request over connections, through a gateway by
// itself and through one that is measured, each with an upstream and a store of
// its own. Requests of the two take turns, so that what else the machine does
// strikes both alike.
func BenchmarkGateway(b *testing.B) {
	store, err := memory.New(memory.Config{})
	noError(b, err)
	guard, err := semel.New(semel.Config{Store: store})
	noError(b, err)
	upstream := httptest.NewServer(http.HandlerFunc(created))
	b.Cleanup(upstream.Close)
	u, err := url.Parse(upstream.URL)
	noError(b, err)
	gw, err := gateway.New(gateway.Config{Upstream: u, Guard: guard})
	noError(b, err)
	plain := httptest.NewServer(gw)
	b.Cleanup(plain.Close)
	measured := start(b, setup{upstream: created, config: func(c *semelotel.Config) { c.TracerProvider, c.Completed = nil, nil }})
	urls := [2]string{plain.URL, measured.server.URL}
	var took [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		for _, i := range [2]int{n % 2, 1 - n%2} {
			req, err := http.NewRequest("POST", urls[i]+"/orders", strings.NewReader(`{"item":"book"}`))
			noError(b, err)
			req.Header.Set("Idempotency-Key", fmt.Sprint("k", n))
			begin := time.Now()
			res, err := http.DefaultTransport.RoundTrip(req)
			noError(b, err)
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			took[i] = append(took[i], time.Since(begin))
		}
	}
	report(b, took)
}

// TestDryRunMeasured: what a dry run would not have known is told as unknown,
// though its record is completed, and all of it is marked.
func TestDryRunMeasured(t *testing.T) {
	b := start(t, setup{
		upstream: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) },
		config:   func(c *semelotel.Config) { c.DryRun = true },
		gateway:  func(c *gateway.Config) { c.DryRun, c.RequireKey = true, true },
	})
	for range 2 {
		_, x := b.send("POST", "/orders", "k", "{}")
		want(t, "noted outcome", x.Outcome, "unknown")
	}
	b.send("POST", "/orders", "", "{}")
	m := b.metrics()
	b.want(m, "semel.decisions{semel.dry_run=true,semel.outcome=unknown}", 2)
	b.want(m, "semel.decisions{semel.dry_run=true,semel.outcome=rejected}", 1)
}
