package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	switch {
	case r.Method == http.MethodConnect:
		g.config.Contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusNotImplemented, Title: http.StatusText(http.StatusNotImplemented), Retry: semel.RetryNo,
			Detail: "The gateway is a reverse proxy and opens no tunnels.",
		})
		return
	case r.Method == "PRI":
		// How HTTP/2 begins (RFC 9113 3.4), and no request.
		g.config.Contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusHTTPVersionNotSupported, Title: http.StatusText(http.StatusHTTPVersionNotSupported), Retry: semel.RetryNo,
			Detail: "The gateway was not set up for HTTP/2 here. Nothing was executed.",
		})
		return
	case r.URL.Opaque != "":
		// It would go to the upstream as it is, past the path that Upstream has.
		g.config.Contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusBadRequest, Title: http.StatusText(http.StatusBadRequest), Retry: semel.RetryNo,
			Detail: "The request's target has no path.",
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

// fail answers a request that got no answer from the upstream.
func (g *Gateway) fail(ctx context.Context, w http.ResponseWriter, method string, e *exchange, err error) {
	sent := !e.nothingSent()
	g.failed(ctx, e, method, sent, false, err)
	if sent {
		semelhttp.DeclareIndeterminate(ctx, whyCut(ctx, "the connection to the upstream broke before it answered"))
		// Of a protected request this is not what the client is told.
		detail := "The request was sent, but the connection broke before the answer. "
		if isSafe(method) {
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
