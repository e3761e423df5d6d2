package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/webhook"
)

// HeaderFence is the request header with the claim's fence, for the upstream.
const HeaderFence = "Semel-Fence"

// The cases in which the gateway itself responds in place of the upstream.
// They are documented with those of semelhttp.
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
	resources *semelhttp.Resources // that it serves itself; nil for none
	upstream  *Upstream
	lookUps   *lookUps // nil for none
	inFlight  atomic.Int64
}

// New returns a gateway, or one error that names everything wrong with c.
func New(c Config) (*Gateway, error) {
	c = c.withDefaults()
	g := &Gateway{config: c, upstream: c.Via}
	errs := []error{c.validate()}
	if g.upstream == nil {
		var err error
		g.upstream, err = NewUpstream(UpstreamConfig{URL: c.Upstream, DialTimeout: c.DialTimeout, IdleTimeout: c.IdleTimeout, MaxConns: c.MaxConns, TLS: c.TLS})
		if err != nil {
			errs = append(errs, errors.Unwrap(err))
		}
	}
	if c.Reconcile != nil && c.Guard != nil && !c.DryRun {
		policy := c.Guard.Policy()
		var err error
		if g.lookUps, err = newLookUps(g, *c.Reconcile, &policy); err == nil {
			c.Guard, err = c.Guard.With(policy)
			g.config.Guard = c.Guard
		}
		errs = append(errs, err)
	}
	scope := c.Scope
	if scope == nil {
		actor, _ := semelhttp.CredentialActor(c.Credentials...) // validate tells what is wrong with them
		scope = (&scopes{actor: actor, host: c.PreserveHost}).scope
	}
	resources := c.Resources
	if resources == nil && !c.NoResources && c.Guard != nil {
		var err error
		resources, err = semelhttp.NewResources(semelhttp.ResourcesConfig{
			Guard: c.Guard, Scope: scope, Prefix: c.Prefix, Keys: c.Keys, Contract: c.Contract, MaxWait: max(c.MaxWait, 0), Pace: c.Pace,
		})
		if err != nil {
			return nil, fmt.Errorf("gateway: config: %w", errors.Join(append(errs, err)...))
		}
		g.resources = resources
	}
	if c.Spools == nil {
		var err error
		c.Spools, err = semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: c.SpoolDir, MaxBytes: c.MaxSpool, Failed: c.Observer.SpoolFailed})
		errs = append(errs, err)
	}
	protect, err := c.protection(scope, resources)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("gateway: config: %w", err)
	}
	g.protected = protect(http.HandlerFunc(g.forward))
	return g, nil
}

// protection returns what stands between the client and the forwarding.
func (c Config) protection(scope func(*http.Request) (semel.Scope, error), resources *semelhttp.Resources) (func(http.Handler) http.Handler, error) {
	if c.Pass {
		return func(next http.Handler) http.Handler { return next }, nil
	}
	if w := c.Webhook; w != nil {
		return webhook.New(webhook.Config{
			Guard: c.Guard, Scheme: w.Scheme, Name: c.Operation, Sender: w.Sender, RetrySpan: w.RetrySpan,
			MaxBody: c.MaxRequestBody, Spools: c.Spools, Pace: c.Pace, Forwards: true, Refused: w.Refused,
		})
	}
	named := scope
	if c.Operation != "" {
		named = func(r *http.Request) (semel.Scope, error) {
			s, err := scope(r)
			s.Operation = c.Operation
			return s, err
		}
	}
	c.Specification.Name = c.Operation
	return semelhttp.New(semelhttp.Config{
		Contract: c.Contract, InFlight: c.InFlight, Wait: c.Wait, MaxWait: c.MaxWait,
		Resources: resources, IssuedOnly: c.IssuedOnly,
		Guard: c.Guard, Scope: named, OperationOf: c.OperationOf, KeyOf: c.KeyOf, Protects: c.Protects, Operation: c.Specification,
		RequireKey: c.RequireKey, StrictKey: c.StrictKey, KeyRules: c.KeyRules, Fingerprint: c.Fingerprint,
		MaxRequestBody: c.MaxRequestBody, MaxInline: c.MaxInline, MaxResult: c.MaxResult, FailOpen: c.FailOpen,
		Spools: c.Spools, Pace: c.Pace, Refused: c.Observer.Refused, DryRun: c.DryRun,
		NoEffectStatus: c.NoEffectStatus, IndeterminateStatus: c.IndeterminateStatus, Forwards: true,
	})
}

// ServeHTTP implements http.Handler. Like httputil.ReverseProxy it panics with
// http.ErrAbortHandler if a response cannot be completed after it has begun, so
// that the client sees that it was cut off.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.inFlight.Add(1)
	defer g.inFlight.Add(-1)
	if refuseTarget(w, r, g.config.Contract) {
		return
	}
	if g.resources != nil && g.resources.Serves(r) {
		g.resources.ServeHTTP(w, r)
		return
	}
	if g.lookUps != nil {
		r = remember(r)
	}
	g.protected.ServeHTTP(w, r)
}

// refuseTarget answers requests whose target is none for a reverse proxy, and
// reports whether it did.
func refuseTarget(w http.ResponseWriter, r *http.Request, contract semelhttp.Contract) bool {
	switch {
	case r.Method == http.MethodConnect:
		contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusNotImplemented, Title: http.StatusText(http.StatusNotImplemented), Retry: semel.RetryNo,
			Detail: "The gateway is a reverse proxy and opens no tunnels.",
		})
	case r.Method == "PRI":
		// How HTTP/2 begins (RFC 9113 3.4), and no request.
		contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusHTTPVersionNotSupported, Title: http.StatusText(http.StatusHTTPVersionNotSupported), Retry: semel.RetryNo,
			Detail: "The gateway was not set up for HTTP/2 here. Nothing was executed.",
		})
	case r.URL.Opaque != "":
		// It would go to the upstream as it is, past the path that Upstream has.
		contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusBadRequest, Title: http.StatusText(http.StatusBadRequest), Retry: semel.RetryNo,
			Detail: "The request's target has no path.",
		})
	case !oneHost(r):
		// Whoever goes by the one and whoever goes by the other, as a proxy in front
		// and the service, would take it for different requests.
		contract.WriteProblem(w, semelhttp.Problem{
			Status: http.StatusBadRequest, Title: http.StatusText(http.StatusBadRequest), Retry: semel.RetryNo,
			Detail: "The request names no host, something else than a host, or two of them. Nothing was executed.",
		})
	default:
		return false
	}
	return true
}

// oneHost reports whether the request is for one host. HTTP/1.1 needs a Host, and
// package http refuses two. HTTP/2 has :authority beside it, which counts then
// (RFC 9113 8.3.1).
func oneHost(r *http.Request) bool {
	if strings.ContainsAny(r.Host, `/\?#@`) {
		return false
	}
	return r.ProtoMajor < 2 || r.Host != "" && !slices.ContainsFunc(r.Header["Host"], func(h string) bool { return !strings.EqualFold(h, r.Host) })
}

// InFlight returns the number of requests that are being handled, even if their
// client has gone. It does not count executions that no client waits for.
func (g *Gateway) InFlight() int { return int(g.inFlight.Load()) }

// Drain stops the guard from accepting new protected requests, which then get
// 503, and waits until all executions are settled, even those whose clients
// have gone. If ctx ends first, the error says how many are left. Shut the
// server down first, so that it accepts no new connections.
func (g *Gateway) Drain(ctx context.Context) error {
	err := g.config.Guard.Drain(ctx)
	g.upstream.transport.CloseIdleConnections()
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
