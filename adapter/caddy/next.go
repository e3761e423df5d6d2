package semelcaddy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// headerFence is the header that carries the claim's fence to the upstream, as
// the gateway's does.
const headerFence = "Semel-Fence"

type callKey struct{}

// call is one request on its way through the handler.
type call struct {
	next      caddyhttp.Handler
	writer    http.ResponseWriter
	request   *http.Request // Caddy's, which its placeholders refer to
	original  http.Request  // as the client sent it
	protected bool
	err       error // of next, where the request is not protected

	// For a request whose client may not wait for its end, and that then must
	// share nothing with the handlers in front.
	vars     map[string]any
	url      url.URL
	replacer *caddy.Replacer
}

// snapshot has next run with a state of its own.
func (c *call) snapshot() {
	ctx := c.request.Context()
	vars, _ := ctx.Value(caddyhttp.VarsCtxKey).(map[string]any)
	if id, ok := vars["uuid"].(fmt.Stringer); ok {
		_ = id.String() // which it makes when it is first asked for
	}
	c.vars, c.url = maps.Clone(vars), *c.request.URL
	c.replacer, _ = ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}

// run is the protected handler: the rest of the chain.
func (h *Handler) run(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(callKey{}).(*call)
	if !ok {
		panic("semelcaddy: the middleware does not pass on the request's context")
	}
	if w == c.writer { // it is not protected
		c.err = c.next.ServeHTTP(w, c.request)
		return
	}
	c.protected = true
	ctx := r.Context()
	execution, _ := semel.CurrentExecution(ctx)
	var connected atomic.Bool
	if h.Unreached == "release" {
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
		r = r.WithContext(httptrace.WithClientTrace(ctx, trace))
	}
	r.Header = forwarded(r.Header, execution.Fence())
	request := c.request
	if c.replacer != nil {
		request = c.detached(w, r)
	} else {
		// Placeholders refer to Caddy's request, so that is the one to pass on.
		// It stays so: a transport may still look at it when it has returned. But
		// for the header, by which a handler in front that came here again would
		// be known; the rest is over, and nothing executes under it.
		header, r := request.Header, *r
		r.URL, r.RequestURI = request.URL, request.RequestURI
		*request = r
		defer func() { request.Header, c.protected = header, false }()
	}
	if err := c.next.ServeHTTP(w, request); err != nil {
		h.failed(ctx, w, request, execution.RecordID(), connected.Load(), err)
	}
}

// detached returns r with a state of its own, made of what is in front.
func (c *call) detached(w http.ResponseWriter, r *http.Request) *http.Request {
	own := *r
	own.URL, own.RequestURI = &c.url, c.request.RequestURI
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	replacer := caddy.NewReplacer()
	request := caddyhttp.PrepareRequest(&own, replacer, w, server)
	ctx := request.Context()
	maps.Copy(ctx.Value(caddyhttp.VarsCtxKey).(map[string]any), c.vars)
	replacer.Map(c.replacer.Get) // such as who was authenticated
	*request = *request.WithContext(context.WithValue(ctx, caddyhttp.OriginalRequestCtxKey, c.original))
	return request
}

// forwarded returns the header that the handlers behind get.
func forwarded(h http.Header, fence uint64) http.Header {
	h = h.Clone()
	// net/http's transport repeats a request with one of these if the connection
	// breaks and the body is empty. It looks for their canonical names.
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
	// What the client calls hop-by-hop goes now, and not along with what is ours.
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	h.Del("Connection")
	h.Del("Upgrade") // there is no result in what comes after a switch of protocols
	h.Set(headerFence, strconv.FormatUint(fence, 10))
	return h
}

// indeterminateStatus reports whether a response leaves open whether the request
// had an effect: with 499 reverse_proxy reports that it was cancelled, and a proxy
// that responds with one of the others does not know.
func indeterminateStatus(status int, h http.Header) bool {
	switch status {
	case 499, http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	case http.StatusServiceUnavailable:
		return h.Get("Retry-After") == ""
	}
	return false
}

// failed answers for handlers that have returned an error. It is not returned to
// Caddy, whose error routes may well send the request elsewhere.
func (h *Handler) failed(ctx context.Context, w http.ResponseWriter, r *http.Request, record string, connected bool, err error) {
	status := http.StatusInternalServerError
	if e, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		status = e.StatusCode
	}
	if h.Unreached == "release" && !connected && unreached(r, err) {
		h.log.Warn("no upstream was reached: nothing was sent, and the key is free", zap.String("record", record), zap.Int("status", status), zap.Error(err))
		semelhttp.DeclareNoEffect(ctx, err)
		h.config.Contract.WriteProblem(w, semelhttp.Problem{
			Type: semelhttp.ProblemCase("upstream-unreachable").Type(), Title: "The upstream cannot be reached", Status: http.StatusServiceUnavailable,
			Detail: "No byte of the request was sent, so it had no effect. It is safe to send it again.",
			Retry:  semel.RetrySameKey, RetryAfter: time.Second,
		})
		return
	}
	h.log.Warn("the outcome is unknown: a handler returned an error", zap.String("record", record), zap.Int("status", status), zap.Error(err))
	cause := fmt.Sprintf("a handler behind semel returned an error (%d)", status)
	if why := context.Cause(ctx); errors.Is(why, semel.ErrDeadline) || errors.Is(why, semel.ErrLeaseLapsed) || errors.Is(why, semel.ErrLostClaim) {
		cause = "it was given up: " + why.Error()
	}
	semelhttp.DeclareIndeterminate(ctx, cause)
}

// unreached reports whether err is that of a reverse_proxy which has tried once
// and found nobody to send to.
func unreached(r *http.Request, err error) bool {
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if retries, ok := repl.Get("http.reverse_proxy.retries"); !ok || retries != 0 {
		return false
	}
	if _, ok := errors.AsType[reverseproxy.DialError](err); ok {
		return true
	}
	e, ok := errors.AsType[caddyhttp.HandlerError](err)
	return ok && e.StatusCode == http.StatusServiceUnavailable && e.Err != nil && e.Err.Error() == "no upstreams available"
}
