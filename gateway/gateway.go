package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// HeaderFence is the request header that tells the upstream the claim's fence.
const HeaderFence = "Semel-Fence"

// The cases in which the gateway itself has to answer for the upstream. Their
// documentation is beside that of semelhttp's.
const (
	// ProblemUpstreamUnreachable: certainly nothing was sent.
	ProblemUpstreamUnreachable semelhttp.ProblemCase = "upstream-unreachable"
	// ProblemUpstreamFailed: an unprotected request was cut off.
	ProblemUpstreamFailed semelhttp.ProblemCase = "upstream-failed"
)

// Gateway is a reverse proxy that protects what it forwards. Safe for
// concurrent use.
type Gateway struct {
	config    Config
	protected http.Handler
	resources *semelhttp.Resources // nil for none
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	inFlight  atomic.Int64
}

// New returns a gateway, or one error that names everything wrong with c.
func New(c Config) (*Gateway, error) {
	c = c.withDefaults()
	g := &Gateway{config: c}
	scope := c.Scope
	if scope == nil {
		scope = (&scopes{credentials: credentialNames(c.Credentials), host: c.PreserveHost}).scope
	}
	if !c.NoResources && c.Guard != nil {
		var err error
		g.resources, err = semelhttp.NewResources(semelhttp.ResourcesConfig{
			Guard: c.Guard, Scope: scope, Prefix: c.Prefix, Keys: c.Keys, Contract: c.Contract, MaxWait: max(c.MaxWait, 0), Pace: c.Pace,
		})
		if err != nil {
			return nil, fmt.Errorf("gateway: config: %w", errors.Join(c.validate(), err))
		}
	}
	spools, spoolErr := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: c.SpoolDir, MaxBytes: c.MaxSpool, Failed: c.Observer.SpoolFailed})
	middleware, err := semelhttp.New(semelhttp.Config{
		Contract: c.Contract, InFlight: c.InFlight, Wait: c.Wait, MaxWait: c.MaxWait,
		Resources: g.resources, IssuedOnly: c.IssuedOnly,
		Guard: c.Guard, Scope: scope, Protects: c.Protects,
		RequireKey: c.RequireKey, StrictKey: c.StrictKey, KeyRules: c.KeyRules, Fingerprint: c.Fingerprint,
		MaxRequestBody: c.MaxRequestBody, MaxInline: c.MaxInline, MaxResult: c.MaxResult, FailOpen: c.FailOpen,
		Spools: spools, Pace: c.Pace,
		IndeterminateStatus: indeterminateStatus, Forwards: true,
	})
	if err := errors.Join(c.validate(), spoolErr, err); err != nil {
		return nil, fmt.Errorf("gateway: config: %w", err)
	}
	g.transport = newTransport(c)
	g.proxy = &httputil.ReverseProxy{
		Rewrite:        g.rewrite,
		Transport:      roundTripper{g.transport},
		ModifyResponse: watchBody,
		ErrorHandler:   g.fail,
		BufferPool:     &buffers{},
		// What it would say here, the observer is told.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	g.protected = middleware(http.HandlerFunc(g.forward))
	return g, nil
}

// indeterminateStatus says of an upstream's answer that the request may or may
// not have had an effect: the upstream is itself a proxy and does not know.
func indeterminateStatus(status int, h http.Header) bool {
	switch status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	case http.StatusServiceUnavailable:
		return h.Get("Retry-After") == ""
	}
	return false
}

// ServeHTTP implements http.Handler. Like httputil.ReverseProxy it panics with
// http.ErrAbortHandler when an answer cannot be brought to its end after it has
// begun, so that the client sees that it was cut off.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.inFlight.Add(1)
	defer g.inFlight.Add(-1)
	if r.Method == http.MethodConnect {
		g.config.Contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusNotImplemented, Title: http.StatusText(http.StatusNotImplemented), Retry: semel.RetryNo,
			Detail: "The gateway is a reverse proxy and opens no tunnels.",
		})
		return
	}
	if g.resources != nil && g.resources.Serves(r) {
		g.resources.ServeHTTP(w, r)
		return
	}
	g.protected.ServeHTTP(w, r)
}

// InFlight is the number of requests that are being answered, also those whose
// client has gone. Executions that a client does not wait for are not among them.
func (g *Gateway) InFlight() int { return int(g.inFlight.Load()) }

// Drain stops the guard from taking new protected requests, which are then
// answered with 503, and waits until all executions are settled, also those
// whose clients have gone. If ctx ends first the error says how many are left.
// Shut the server down before, so that it takes no new connections.
func (g *Gateway) Drain(ctx context.Context) error {
	err := g.config.Guard.Drain(ctx)
	g.transport.CloseIdleConnections()
	return err
}

// exchange is one request on its way through the gateway.
type exchange struct {
	send
	record  string // the record's id; empty if the request is unprotected
	fence   uint64
	bodyErr error // why the answer's body ended early
}

type exchangeKey struct{}

// forward sends a request on: in an execution if it is protected.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	e := &exchange{}
	e.init()
	if x, ok := semel.CurrentExecution(ctx); ok {
		e.record, e.fence = x.RecordID(), x.Fence()
	}
	ctx = httptrace.WithClientTrace(context.WithValue(ctx, exchangeKey{}, e), &e.trace)
	defer func() {
		if e.bodyErr == nil {
			return
		}
		_ = recover() // ReverseProxy panics, but not under every server
		g.failed(ctx, e, r.Method, true, true, e.bodyErr)
		if !semelhttp.DeclareIndeterminate(ctx, whyCut(ctx, "the upstream's answer was cut off")) {
			panic(http.ErrAbortHandler) // it is not protected
		}
	}()
	if h := w.Header(); h["Content-Type"] == nil {
		h["Content-Type"] = nil // or net/http would add one that the upstream did not send
	}
	g.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// rewrite makes the outbound request.
func (g *Gateway) rewrite(p *httputil.ProxyRequest) {
	p.Out.URL.RawQuery = p.In.URL.RawQuery // as it was; nothing here is decided by it
	p.SetURL(g.config.Upstream)
	h := p.Out.Header
	if g.config.PreserveHost {
		p.Out.Host = p.In.Host
	}
	if g.config.TrustForwarded {
		for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
			if values, ok := p.In.Header[name]; ok {
				h[name] = values
			}
		}
	}
	host, proto := h["X-Forwarded-Host"], h["X-Forwarded-Proto"]
	p.SetXForwarded()
	if host != nil {
		h["X-Forwarded-Host"] = host
	}
	if proto != nil {
		h["X-Forwarded-Proto"] = proto
	}
	h.Del(HeaderFence)
	if e := p.In.Context().Value(exchangeKey{}).(*exchange); e.record != "" {
		h[HeaderFence] = []string{strconv.FormatUint(e.fence, 10)}
		// There is no result in what comes after a switch of protocols.
		h.Del("Connection")
		h.Del("Upgrade")
	}
}

// roundTripper sends each request once, however the transport sees that.
type roundTripper struct{ transport *http.Transport }

// RoundTrip implements http.RoundTripper. It changes the request, which is
// ReverseProxy's own copy.
//
// The transport repeats a request whose connection broke after it was sent if
// the method is safe, or if it has one of two header fields and a body that is
// empty or can be had again (net/http, Request.isReplayable). It looks for
// their canonical names; on the wire, case does not matter. An alternative
// would be a body of unknown length that turns out empty, but then the upstream
// sees another request.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if !isSafe(r.Method) {
		r.GetBody = nil
		for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			if values, ok := r.Header[name]; ok {
				delete(r.Header, name)
				r.Header[strings.ToLower(name)] = values
			}
		}
	}
	return t.transport.RoundTrip(r)
}

func isSafe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// watchBody has the exchange know how the answer's body ended.
func watchBody(res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil // the body is the connection
	}
	e := res.Request.Context().Value(exchangeKey{}).(*exchange)
	res.Body = &answerBody{res.Body, e}
	return nil
}

type answerBody struct {
	io.ReadCloser
	exchange *exchange
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.exchange.bodyErr = err
	}
	return n, err
}

// fail answers a request that got no answer from the upstream.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	e := ctx.Value(exchangeKey{}).(*exchange)
	sent := !e.nothingSent()
	g.failed(ctx, e, r.Method, sent, false, err)
	if sent {
		semelhttp.DeclareIndeterminate(ctx, whyCut(ctx, "the connection to the upstream broke before it answered"))
		// Of a protected request this is not what the client is told.
		detail := "The request was sent, but the connection broke before the answer. "
		if isSafe(r.Method) {
			detail += "Its method is safe, so it can be sent again."
		} else {
			detail += "Whether it took effect is not known, and it was not protected: sending it again could repeat the effect."
		}
		g.config.Contract.WriteProblem(w, semelhttp.Problem{
			Type: ProblemUpstreamFailed.Type(), Title: "The upstream did not answer", Status: http.StatusBadGateway, Detail: detail,
		})
		return
	}
	semelhttp.DeclareNoEffect(ctx, fmt.Errorf("the upstream could not be reached: %w", err))
	p := semelhttp.Problem{
		Type: ProblemUpstreamUnreachable.Type(), Title: "The upstream cannot be reached", Status: http.StatusServiceUnavailable,
		Detail:     "No byte of the request was sent, so it had no effect. It is safe to send it again.",
		RetryAfter: time.Second,
	}
	if e.record != "" {
		p.Retry = semel.RetrySameKey
	}
	g.config.Contract.WriteProblem(w, p)
}

// whyCut says why the exchange with the upstream ended early: for the gateway's
// own reasons, or else as broke has it. Operators decide by it.
func whyCut(ctx context.Context, broke string) string {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, semel.ErrDeadline):
		return "the gateway gave up waiting for the upstream at the operation's deadline"
	case errors.Is(cause, semel.ErrLeaseLapsed), errors.Is(cause, semel.ErrLostClaim):
		return "the gateway gave up waiting for the upstream because it lost the claim"
	}
	return broke
}

func (g *Gateway) failed(ctx context.Context, e *exchange, method string, sent, answered bool, err error) {
	if ctx.Err() != nil && e.record == "" {
		return // it is the client that has gone
	}
	if f := g.config.Observer.Failed; f != nil {
		told := Failed{Method: method, RecordID: e.record, Sent: sent, Answered: answered, Err: err}
		if ctx.Err() != nil {
			told.GaveUp, told.Err = true, context.Cause(ctx)
		}
		f(ctx, told)
	}
}

// buffers implements httputil.BufferPool.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }
