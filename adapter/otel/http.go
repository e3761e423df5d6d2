package semelotel

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Exchange is a request and its outcome, without anything in which a client
// could have put a secret.
type Exchange struct {
	Method   string // one of HTTP's, or _OTHER
	Route    string // the pattern of an http.ServeMux; "" where none matched
	Scheme   string
	Status   int // 0 where none was sent
	Start    time.Time
	Duration time.Duration
	// RequestBytes is the declared length of the request's body, or -1.
	// ResponseBytes is how many bytes of the response's body were written.
	RequestBytes, ResponseBytes int64
	// Client is the address of the socket's other side: a proxy's, if there is
	// one.
	Client string
	// Aborted reports whether the response was cut off.
	Aborted bool

	// Outcome is what was decided; "" for a request that is not protected. Problem
	// says why it was refused, where that was before any look in the store.
	Outcome, Problem string
	// FailedOpen: it was let through because the store was unavailable.
	FailedOpen bool
	RecordID   string
	Operation  string // as Config.Operation names it
	TraceID    string // of the span, or of the client's traceparent
	// See semel.Digest.
	KeyDigest, ActorDigest, TenantDigest string
}

type exchangeKey struct{}

// exchange is a request that is being answered, and the context of its handler, in one
// allocation. What the handler has the guard do may be told from other goroutines.
type exchange struct {
	context.Context
	mu sync.Mutex
	Exchange
	meter meter
}

// Value implements context.Context.
func (x *exchange) Value(key any) any {
	if key == (exchangeKey{}) {
		return x
	}
	return x.Context.Value(key)
}

// exchangeOf returns the exchange that ctx belongs to, or nil.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// Handler measures requests to next, and starts a span for each. The observer that
// Gateway returns propagates the span to a gateway's upstream; other handlers find
// it in the request's context.
func (t *Telemetry) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{Exchange: Exchange{Method: knownMethod(r.Method), Scheme: "http", Start: time.Now(), RequestBytes: r.ContentLength}}
		if r.TLS != nil {
			x.Scheme = "https"
		}
		ctx := t.remote(r)
		client := trace.SpanContextFromContext(ctx)
		var span trace.Span = noop.Span{} // and not one that somebody else has in ctx
		if t.traced {
			ctx, span = t.tracer.Start(ctx, x.Method, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(x.Start),
				trace.WithAttributes(attribute.String("http.request.method", x.Method), attribute.String("url.scheme", x.Scheme)))
		}
		x.Context = ctx
		r = r.WithContext(x)
		if own := trace.SpanContextFromContext(ctx); own.IsValid() {
			x.TraceID = own.TraceID().String()
			if own.SpanID() != client.SpanID() {
				// Where the trail gets its trace id from.
				r.Header = r.Header.Clone()
				inject(ctx, r.Header)
			}
		}
		x.meter.ResponseWriter = w
		secure := 0
		if r.TLS != nil {
			secure = 1
		}
		active := &t.inFlight[x.Method][secure]
		active.n.Add(1)
		if !active.seen.Load() {
			active.seen.Store(true)
		}
		returned := false
		defer func() {
			active.n.Add(-1)
			x.mu.Lock()
			done := x.Exchange // what comes later is not its any more
			x.mu.Unlock()
			done.Aborted = !returned
			t.completed(x, span, r, done)
		}()
		next.ServeHTTP(&x.meter, r)
		returned = true
	})
}

func (t *Telemetry) completed(ctx *exchange, span trace.Span, r *http.Request, x Exchange) {
	x.Duration, x.Status, x.ResponseBytes = time.Since(x.Start), ctx.meter.status, ctx.meter.bytes
	if x.Status == 0 && !x.Aborted {
		x.Status = http.StatusOK // net/http's
	}
	if _, path, ok := strings.Cut(r.Pattern, " "); ok {
		x.Route = path
	} else {
		x.Route = r.Pattern
	}
	s := series{
		method: x.Method, scheme: x.Scheme, route: x.Route, status: x.Status, outcome: x.Outcome, operation: x.Operation,
		dryRun: t.config.DryRun && x.Outcome != "",
	}
	switch {
	case x.Aborted:
		s.errType = "aborted"
	case x.Status >= 500:
		s.errType = strconv.Itoa(x.Status)
	}
	t.serverDuration.Record(ctx, x.Duration.Seconds(), t.of(s).record...)
	if span.IsRecording() {
		if x.Route != "" {
			span.SetName(x.Method + " " + x.Route)
		}
		if s.errType != "" {
			span.SetStatus(codes.Error, "")
		}
		span.SetAttributes(s.attributes()...)
	}
	span.End()
	if t.config.Completed != nil {
		x.Client, _, _ = net.SplitHostPort(r.RemoteAddr)
		t.config.Completed(ctx, x)
	}
}

var propagator propagation.TraceContext

// remote returns the request's context with the client's trace, without its
// tracestate: that is whatever the client likes, and would be exported.
func (t *Telemetry) remote(r *http.Request) context.Context {
	lines := r.Header["Traceparent"]
	if len(lines) != 1 {
		return r.Context()
	}
	return propagator.Extract(r.Context(), propagation.MapCarrier{"traceparent": lines[0]})
}

// inject writes the span of ctx into h, and leaves the client's tracestate there.
func inject(ctx context.Context, h http.Header) {
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	if parent := carrier["traceparent"]; parent != "" {
		h["Traceparent"] = []string{parent}
	}
}

// knownMethod is the method, if it is one of HTTP's (RFC 9110, RFC 5789).
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return otherMethod
}

const otherMethod = "_OTHER"

// meter notes what is answered.
type meter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (m *meter) WriteHeader(status int) {
	if m.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		m.status = status
	}
	m.ResponseWriter.WriteHeader(status)
}

func (m *meter) Write(p []byte) (int, error) {
	if m.status == 0 {
		m.status = http.StatusOK
	}
	n, err := m.ResponseWriter.Write(p)
	m.bytes += int64(n)
	return n, err
}

// Hijack implements http.Hijacker, for a switch of protocols.
func (m *meter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(m.ResponseWriter).Hijack()
	if err == nil {
		m.status = http.StatusSwitchingProtocols
	}
	return conn, buffered, err
}

// Flush implements http.Flusher, for those who do not use http.ResponseController.
func (m *meter) Flush() {
	if m.status == 0 {
		m.status = http.StatusOK
	}
	_ = http.NewResponseController(m.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (m *meter) Unwrap() http.ResponseWriter { return m.ResponseWriter }
