package conditional

import (
	"bufio"
	"errors"
	"maps"
	"net"
	"net/http"

	"github.com/semelhq/semel/semelhttp"
)

// Config configures the middleware. Functions must be safe for concurrent use.
type Config struct {
	// Require reports whether a request must have a precondition. Such requests
	// without one get the status 428. It is not called for GET and HEAD. Default:
	// semelhttp.ProtectMethods of PUT, PATCH and DELETE.
	Require func(*http.Request) bool
	// Dates says that resources have modification dates, in State.Modified. Then
	// If-Unmodified-Since applies if there is no If-Match. Otherwise it is
	// ignored, as RFC 9110 13.1.4 requires. Dates have a resolution of one second,
	// so they do not prevent lost updates within a second.
	Dates bool
	// AcceptWeak treats weak entity tags in If-Match as the strong ones that they
	// were made from, which RFC 9110 13.1.1 does not allow. It is for services
	// behind a proxy that weakens tags when it compresses, such as nginx, where
	// every If-Match would fail otherwise. Handlers must not make weak tags
	// themselves.
	AcceptWeak bool
	// Contract defines the format of refusals. Default: semelhttp.IETF. Set it to
	// that of the idempotency middleware, if there is one.
	Contract semelhttp.Contract
	// Unapplied, if not nil, is called for requests that got the status 500 because
	// their handler responded with success without having applied the precondition.
	// Either the handler has a bug, or the idempotency middleware is inside this one
	// and replayed a response. The request is the one passed to the handler.
	Unapplied func(r *http.Request)
}

// New returns a middleware for conditional requests. See the package's
// documentation for what it does. The middleware panics when it is given a nil
// handler.
//
// It goes inside an idempotency middleware, so that a retry gets the recorded
// response and is never refused because of a precondition that the first attempt
// has made false.
func New(c Config) func(http.Handler) http.Handler {
	if c.Require == nil {
		c.Require = semelhttp.ProtectMethods(http.MethodPut, http.MethodPatch, http.MethodDelete)
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("conditional: nil handler")
		}
		return &handler{c, next}
	}
}

type handler struct {
	Config
	next http.Handler
}

// overrides are the fields by which a request asks to be taken for one of another
// method.
var overrides = [...]string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

func overridden(r *http.Request) bool {
	for _, name := range overrides {
		if len(r.Header[name]) > 0 {
			return true
		}
	}
	return false
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !overridden(r) {
		switch r.Method {
		case http.MethodGet, http.MethodHead:
			for _, name := range [...]string{headerMatch, headerNoneMatch, headerUnmodified, headerModified} {
				if len(r.Header[name]) > 0 {
					h.serve(w, r, &precondition{contract: &h.Contract}, h.selected)
					return
				}
			}
			h.next.ServeHTTP(w, r)
			return
		case http.MethodOptions, http.MethodTrace, http.MethodConnect:
			h.next.ServeHTTP(w, r) // they select no representation (RFC 9110 13.2.1)
			return
		}
	}
	p, err := h.parse(r)
	if err != nil {
		problem := malformed
		problem.Detail = err.Error() + ". Nothing was changed."
		h.refuse(w, r, p, problem, err)
		return
	}
	if !p.protects() && h.Require(r) {
		h.refuse(w, r, p, required, errRequired)
		return
	}
	r = r.WithContext(p.in(r.Context()))
	if p.empty() {
		h.next.ServeHTTP(w, r)
		return
	}
	h.serve(w, r, p, h.applied)
}

var errRequired = errors.New("conditional: the request has no precondition")

// parse returns the precondition of a request that may change something.
func (h *handler) parse(r *http.Request) (*precondition, error) {
	p := &precondition{acceptWeak: h.AcceptWeak, contract: &h.Contract}
	var errs [2]error
	p.match, errs[0] = parseTags(r.Header[headerMatch])
	p.noneMatch, errs[1] = parseTags(r.Header[headerNoneMatch])
	for i, name := range []string{headerMatch, headerNoneMatch} {
		if errs[i] != nil {
			return p, errors.New("In " + name + " " + errs[i].Error())
		}
	}
	if h.Dates {
		p.unmodifiedSince, _ = date(r.Header, headerUnmodified)
	}
	return p, nil
}

// refuse answers without calling the handler.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, p *precondition, problem semelhttp.Problem, err error) {
	semelhttp.DeclareNoEffect(r.Context(), err)
	p.write(w, problem)
}

// serve calls the handler, with judge to decide about its answer.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, p *precondition, judge judge) {
	a := &answer{ResponseWriter: w, r: r, p: p, judge: judge, outer: w.Header().Clone()}
	h.next.ServeHTTP(a, r)
	a.WriteHeader(http.StatusOK)
}

// judge decides about an answer that is about to begin. It reports whether it has
// written another in its place.
type judge func(a *answer, status int) bool

// selected answers a read by its precondition.
func (h *handler) selected(a *answer, status int) bool {
	if status < 200 || status > 299 {
		return false // RFC 9110 13.2.1
	}
	switch checkRead(a.r, a.Header()) {
	case http.StatusNotModified:
		header := a.Header()
		for _, name := range []string{"Content-Type", "Content-Length", "Content-Encoding", "Content-Range", "Trailer"} {
			header.Del(name)
		}
		if header.Get("Etag") != "" {
			header.Del("Last-Modified")
		}
		a.ResponseWriter.WriteHeader(http.StatusNotModified)
		return true
	case http.StatusPreconditionFailed:
		a.clear()
		problem := failed
		problem.Detail = "The precondition does not hold for what is there now."
		a.p.write(a.ResponseWriter, problem)
		return true
	}
	return false
}

// applied has nothing answered with success that was asked for under a
// precondition which nobody has seen to.
func (h *handler) applied(a *answer, status int) bool {
	if status >= 400 || a.p.applied.Load() {
		return false
	}
	if h.Unapplied != nil {
		h.Unapplied(a.r)
	}
	a.clear()
	a.p.write(a.ResponseWriter, unapplied)
	return true
}

// answer is a ResponseWriter whose answer is judged before it begins.
type answer struct {
	http.ResponseWriter
	r        *http.Request
	p        *precondition
	judge    judge
	outer    http.Header // as it was before the handler
	begun    bool
	replaced bool // what the handler writes is not to be seen
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.begun {
		return
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		a.ResponseWriter.WriteHeader(status) // another will follow
		return
	}
	a.begun = true
	if a.replaced = a.judge(a, status); !a.replaced {
		a.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.replaced {
		return len(b), nil
	}
	return a.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is what http.ResponseController calls.
func (a *answer) FlushError() error {
	a.WriteHeader(http.StatusOK)
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker: what is written to a connection cannot be
// judged.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// clear takes away what the handler has put into the header.
func (a *answer) clear() {
	h := a.Header()
	clear(h)
	maps.Copy(h, a.outer)
}
