package principal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel/gateway/internal/credential"
	"github.com/semelhq/semel/gateway/internal/spelling"
	"github.com/semelhq/semel/semelhttp"
)

// Defaults of an EndpointConfig.
const (
	DefaultEndpointTimeout = 2 * time.Second
	DefaultCacheFor        = 5 * time.Second
	DefaultMaxCalls        = 64
)

// maxVerdicts is how many responses of a kind are remembered, or up to twice as
// many.
const maxVerdicts = 8192

// EndpointConfig configures an Endpoint.
type EndpointConfig struct {
	// URL is the service's address. Required. It must be https or an
	// address of this machine, unless AllowHTTP is set: anyone who can
	// respond in its place can say who callers are.
	URL       string
	AllowHTTP bool
	// Credentials names the headers of a request that are sent to it, for
	// example Authorization and Cookie. No others are. Required.
	Credentials []string
	// Subject is the response header that names the caller. Required.
	Subject string
	// Tenant is the header that names the caller's tenant, which is then
	// required. Default: there is none.
	Tenant string
	// Proxies are trusted for a client's address, host and scheme, which
	// are sent to the endpoint. Default: none.
	Proxies Proxies
	// Timeout bounds how long a request waits for the endpoint. Default
	// DefaultEndpointTimeout, from 10 ms up to 30 s.
	Timeout time.Duration
	// CacheFor is how long a response is reused for requests about which the
	// endpoint would be sent exactly the same, and so the longest time until a
	// revocation is noticed. Default DefaultCacheFor, up to a minute; negative
	// for not at all.
	CacheFor time.Duration
	// MaxCalls is the most concurrent requests to the endpoint. Others wait.
	// Default DefaultMaxCalls.
	MaxCalls int
	// Transport is for the endpoint. Default: one that goes by the environment's
	// proxy. It must limit the response's header itself.
	Transport http.RoundTripper
	// Failed is called when the endpoint could not be reached or its response
	// was unusable. It must not block. May be nil.
	Failed func(context.Context, error)
}

// Endpoint is the Source that asks a service about each request, like Caddy's
// forward_auth, Traefik's ForwardAuth and nginx's auth_request. Use it with
// Clean.
//
// The service gets a GET without body, with the credentials and, of the request,
// X-Forwarded-Method, -Uri, -Proto, -Host and -For. Its response is
//
//   - 2xx with the Subject header, once: that is the caller. Without it the
//     caller has no name and is refused with 403.
//   - 401 or 403: the request is refused likewise, with the response's
//     WWW-Authenticate.
//   - Anything else, redirects included, or none in time: the request is
//     answered with 503. Nothing of this is remembered.
//
// It is also asked about requests for the gateway's own resources, below
// gateway.Config.Prefix.
type Endpoint struct {
	config  EndpointConfig
	url     *url.URL
	calls   room
	waiting room

	mu      sync.Mutex
	flights map[told]*flight
	// Apart, so that strangers do not make it forget callers.
	allowed, refused generations[told, verdict]
}

// told is the digest of all that the endpoint is told.
type told [sha256.Size]byte

// verdict is what the endpoint says of a caller: a principal, or an error.
type verdict struct {
	principal Principal
	err       error
	expires   time.Time
}

// flight is a question under way.
type flight struct {
	done    chan struct{}
	expires time.Time // until then, others may take its answer
	verdict verdict   // set when done is closed
}

// NewEndpoint returns a source, or one error that names everything wrong with c.
// The endpoint is not asked before the first request.
func NewEndpoint(c EndpointConfig) (*Endpoint, error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	bounded := generations[told, verdict]{most: maxVerdicts}
	e := &Endpoint{flights: make(map[told]*flight), waiting: make(room, maxWaiting), allowed: bounded, refused: bounded}
	e.url = endpointURL(&errs, "URL", c.URL, c.AllowHTTP)
	c.Subject = headerName(&errs, "Subject", c.Subject, true)
	c.Tenant = headerName(&errs, "Tenant", c.Tenant, false)
	if c.Subject != "" && c.Subject == c.Tenant {
		wrong("fields Subject and Tenant are the same header")
	}
	if len(c.Credentials) == 0 {
		wrong("field Credentials is empty; name the headers that the endpoint judges by, as in Authorization")
	}
	for _, name := range c.Credentials {
		switch why := credential.WhyNot(name); {
		case why != "":
			wrong("field Credentials names %q, which %s", name, why)
		case strings.HasPrefix(strings.ToLower(name), "x-forwarded-"):
			wrong("field Credentials names %q, which the gateway sets itself", name)
		case spelling.OneOf(name, []string{c.Subject, c.Tenant}):
			wrong("field Credentials names %q, which the endpoint says in its answer", name)
		}
	}
	c.Credentials = credential.Names(c.Credentials)
	c.Proxies = c.Proxies.checked(&errs)
	c.Timeout = within(&errs, "Timeout", c.Timeout, DefaultEndpointTimeout, 10*time.Millisecond, 30*time.Second, false)
	c.CacheFor = within(&errs, "CacheFor", c.CacheFor, DefaultCacheFor, 0, time.Minute, true)
	switch {
	case c.MaxCalls < 0:
		wrong("field MaxCalls is %d; it must not be negative", c.MaxCalls)
	case c.MaxCalls == 0:
		c.MaxCalls = DefaultMaxCalls
	}
	e.calls = make(room, max(c.MaxCalls, 0))
	if c.Transport == nil {
		c.Transport = newTransport(c.MaxCalls)
	}
	e.config = c
	return made("Endpoint", e, errs)
}

// Close closes idle connections to the endpoint. Otherwise they are kept for
// half a minute.
func (e *Endpoint) Close() error {
	if t, ok := e.config.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// Identify implements Source.
func (e *Endpoint) Identify(r *http.Request) (Principal, error) {
	header := e.tell(r)
	of := e.digest(header)
	e.mu.Lock()
	now := time.Now()
	if v, ok := e.remembered(of, now); ok {
		e.mu.Unlock()
		return v.principal, v.err
	}
	if !e.waiting.enter() {
		e.mu.Unlock()
		return Principal{}, unavailable("Too many requests wait to be identified.", time.Second, errBusy)
	}
	defer e.waiting.leave()
	f := e.flights[of]
	if f != nil && now.Before(f.expires) {
		e.mu.Unlock()
		select {
		case <-f.done:
			return f.verdict.principal, f.verdict.err
		case <-r.Context().Done(): // it is the client that has gone
			return Principal{}, unavailable("The client has gone.", time.Second, context.Cause(r.Context()))
		}
	}
	// Counted from before the endpoint is asked: what it says holds from
	// somewhen after.
	f = &flight{done: make(chan struct{}), expires: now.Add(e.config.CacheFor)}
	e.flights[of] = f
	e.mu.Unlock()
	e.fly(r.Context(), of, f, header)
	return f.verdict.principal, f.verdict.err
}

func (e *Endpoint) remembered(of told, now time.Time) (verdict, bool) {
	yes, knowsYes := e.allowed.get(of)
	no, knowsNo := e.refused.get(of)
	if knowsNo && (!knowsYes || no.expires.After(yes.expires)) {
		return no, now.Before(no.expires)
	}
	return yes, knowsYes && now.Before(yes.expires)
}

// fly asks the endpoint on behalf of f and of those who wait for it.
func (e *Endpoint) fly(ctx context.Context, of told, f *flight, header http.Header) {
	f.verdict.err = unavailable("The caller could not be identified.", time.Second, errors.New("principal: asking the endpoint panicked"))
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		f.verdict.expires = f.expires
		switch refusal, ok := errors.AsType[*semelhttp.ScopeError](f.verdict.err); {
		case f.verdict.err == nil:
			e.allowed.put(of, f.verdict)
		case ok && refusal.Status < 500:
			e.refused.put(of, f.verdict)
		}
		if e.flights[of] == f {
			delete(e.flights, of)
		}
		close(f.done)
	}()
	// Others wait for it too, whose clients are still there.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.config.Timeout)
	defer cancel()
	select {
	case e.calls <- struct{}{}:
		defer e.calls.leave()
	case <-ctx.Done():
		f.verdict.err = unavailable("The service that identifies callers is busy.", time.Second, errBusy)
		return
	}
	p, err := e.ask(ctx, header)
	f.verdict.principal, f.verdict.err = p, err
}

// tell is the header of the request to the endpoint.
func (e *Endpoint) tell(r *http.Request) http.Header {
	proto, host := "http", r.Host
	if r.TLS != nil {
		proto = "https"
	}
	if e.config.Proxies.Trusts(r) {
		if v, _ := only(r.Header, "X-Forwarded-Proto"); v == "http" || v == "https" {
			proto = v
		}
		if v, _ := only(r.Header, "X-Forwarded-Host"); v != "" {
			host = v
		}
	}
	uri := r.RequestURI
	if !strings.HasPrefix(uri, "/") {
		uri = r.URL.RequestURI()
	}
	h := http.Header{
		"User-Agent":         {userAgent},
		"X-Forwarded-Method": {r.Method},
		"X-Forwarded-Uri":    {uri},
		"X-Forwarded-Proto":  {proto},
		"X-Forwarded-Host":   {host},
	}
	if client := e.config.Proxies.Client(r); client.IsValid() {
		h["X-Forwarded-For"] = []string{client.WithZone("").String()}
	}
	for _, name := range e.config.Credentials {
		if values := r.Header[name]; len(values) > 0 {
			h[name] = values
		}
	}
	return h
}

// digest covers all of the header.
func (e *Endpoint) digest(h http.Header) told {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	b := make([]byte, 0, 512)
	add := func(s string) {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, name := range names {
		add(name)
		b = binary.BigEndian.AppendUint64(b, uint64(len(h[name])))
		for _, v := range h[name] {
			add(v)
		}
	}
	return sha256.Sum256(b)
}

// maxDrained is how much of a response's body is read so that the connection
// can be used again.
const maxDrained = 64 << 10

func (e *Endpoint) ask(ctx context.Context, header http.Header) (Principal, error) {
	r := &http.Request{Method: http.MethodGet, URL: e.url, Host: e.url.Host, Header: header}
	res, err := e.config.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return e.fail(ctx, fmt.Errorf("principal: %s cannot be asked who a caller is: %w", e.url.Host, err))
	}
	defer func() {
		_, _ = io.CopyN(io.Discard, res.Body, maxDrained)
		_ = res.Body.Close()
	}()
	switch status := res.StatusCode; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		detail := "The caller may not do this."
		if status == http.StatusUnauthorized {
			detail = "The caller is not known. Authenticate and send the request again with the same key."
		}
		refusal := refuse(status, detail, nil)
		if challenges := res.Header["Www-Authenticate"]; len(challenges) > 0 {
			refusal.Header = http.Header{"Www-Authenticate": slices.Clip(challenges)}
		}
		return Principal{}, refusal
	case status < 200 || status > 299:
		return e.fail(ctx, fmt.Errorf("principal: asked who a caller is, %s answered with the status %d; it must be 2xx, 401 or 403", e.url.Host, status))
	}
	subject, err := e.said(ctx, res.Header, e.config.Subject)
	if err != nil {
		return Principal{}, err
	}
	return named("auth", subject, func() (string, error) { return e.said(ctx, res.Header, e.config.Tenant) }, e.config.Tenant != "")
}

// said returns the value of a header of the response; empty if there is none.
func (e *Endpoint) said(ctx context.Context, h http.Header, name string) (string, error) {
	v, lines := only(h, name)
	if lines > 1 {
		_, err := e.fail(ctx, fmt.Errorf("principal: the answer of %s has %d lines of %s; it must have one", e.url.Host, lines, name))
		return "", err
	}
	return v, nil
}

func (e *Endpoint) fail(ctx context.Context, err error) (Principal, error) {
	if e.config.Failed != nil {
		e.config.Failed(ctx, err)
	}
	return Principal{}, unavailable("The service that identifies callers does not answer as it should.", time.Second, err)
}

func (e *Endpoint) identityHeaders() ([]string, Proxies) {
	names := []string{e.config.Subject}
	if e.config.Tenant != "" {
		names = append(names, e.config.Tenant)
	}
	return names, Proxies{}
}
