package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/httpfield"
	"github.com/semelhq/semel/semelhttp"
)

// RouterConfig configures a Router.
type RouterConfig struct {
	// Routes are the gateways, each with its patterns. Required.
	Routes []Route
	// Resources are those that the gateways share. The router serves them before
	// any route; nil for none.
	Resources *semelhttp.Resources
	// Contract is the form of the router's own refusals. Default: semelhttp.IETF.
	Contract semelhttp.Contract
}

// Route is a gateway for a part of the requests.
type Route struct {
	// Patterns are those of http.ServeMux: [METHOD ][HOST]/[PATH], where the
	// most specific one wins. Write them without escapes, and the host in
	// lower case.
	Patterns []string
	// Gateway handles the requests. It should have Resources, or none, and its
	// own Operation if OperationOfPattern has no name for it.
	Gateway *Gateway
}

// Router is several gateways in one. Safe for concurrent use.
//
// The method, host and path of a request, as they were sent, select its route. A
// request that matches no route gets 404, and nothing is sent. There are no
// redirects. In a dry run, if the routes' gateways have Config.DryRun, what the router
// would refuse is reported and forwarded: to the upstream that another spelling
// selects, or the only one. A request that has neither is refused.
//
// Servers treat different spellings as the same: they fold case, decode escapes
// twice, drop what follows a semicolon, merge slashes, or treat a POST as the
// DELETE that a header asks for. A request that is not safe is refused with 400
// if in another spelling it would match another route, or if only another
// spelling matches any: the server behind might execute what that route protects,
// without its protection. Safe requests are not refused; if only another spelling
// matches a route, they take that route, and are forwarded unchanged.
type Router struct {
	config   RouterConfig
	exact    *http.ServeMux
	folded   *http.ServeMux
	hosts    bool // patterns name hosts
	inFlight atomic.Int64
}

// NewRouter returns a router, or one error that names everything wrong with c.
func NewRouter(c RouterConfig) (*Router, error) {
	t := &Router{config: c, exact: http.NewServeMux(), folded: http.NewServeMux()}
	errs := []error{t.register()}
	if len(c.Routes) == 0 {
		errs = append(errs, errors.New("there are no routes"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("gateway: router: %w", err)
	}
	return t, nil
}

// RouteError is what is wrong with one of the routes.
type RouteError struct {
	Route int // from 0
	Err   error
}

func (e *RouteError) Error() string { return fmt.Sprintf("route %d: %v", e.Route, e.Err) }

func (e *RouteError) Unwrap() error { return e.Err }

// target is what a mux is asked for: the number of a route.
type target int

func (target) ServeHTTP(http.ResponseWriter, *http.Request) {}

const noRoute target = -1

// patternTaken is a pattern that is in a mux.
type patternTaken struct {
	pattern pattern
	route   int
}

func (t *Router) register() error {
	var errs []error
	wrong := func(route int, text, format string, args ...any) {
		errs = append(errs, &RouteError{route, fmt.Errorf("the pattern %q %s", text, fmt.Sprintf(format, args...))})
	}
	var exact, folded, shorter []patternTaken
	for i, r := range t.config.Routes {
		if r.Gateway == nil {
			errs = append(errs, &RouteError{i, errors.New("field Gateway is nil")})
		}
		if len(r.Patterns) == 0 {
			errs = append(errs, &RouteError{i, errors.New("field Patterns is empty")})
		}
		for _, text := range r.Patterns {
			p, err := parsePattern(text)
			if err != nil {
				wrong(i, text, "%v", err)
				continue
			}
			t.hosts = t.hosts || p.host != ""
			if other := add(t.exact, p, i); other != nil {
				wrong(i, text, "and %s do not go together: %v", other.name(exact), other.err)
				continue
			}
			exact = append(exact, patternTaken{p, i})
			f := p.fold()
			if slices.Contains(folded, patternTaken{f, i}) {
				continue
			}
			if other := add(t.folded, f, i); other != nil {
				wrong(i, text, "and %s differ in a way that many servers overlook, as case or a slash at the end: make them patterns of one route", other.name(folded))
				continue
			}
			folded = append(folded, patternTaken{f, i})
			if s, ok := f.shorter(); ok {
				shorter = append(shorter, patternTaken{s, i})
			}
		}
	}
	for _, s := range shorter {
		// Where another pattern says whose it is, it is that one's.
		_ = add(t.folded, s.pattern, s.route)
	}
	return errors.Join(errs...)
}

// conflict is why a pattern cannot be added.
type conflict struct {
	with pattern
	err  error
}

// name says which pattern is in the way.
func (c *conflict) name(taken []patternTaken) string {
	for _, other := range taken {
		mux := http.NewServeMux()
		if add(mux, other.pattern, 0) == nil && add(mux, c.with, 0) != nil {
			return fmt.Sprintf("%q of route %d", other.pattern, other.route)
		}
	}
	return "others"
}

// add adds a pattern to a mux; nil if it could.
func add(mux *http.ServeMux, p pattern, route int) (c *conflict) {
	defer func() {
		if recover() != nil { // its text is about the places of these calls
			c = &conflict{p, errors.New("each is for requests that the other is not for, and both for some; write one for those")}
		}
	}()
	mux.Handle(p.String(), target(route))
	return nil
}

// ServeHTTP implements http.Handler, as Gateway does.
func (t *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.inFlight.Add(1)
	defer t.inFlight.Add(-1)
	if p, possible := checkTarget(r); p.Status != 0 {
		t.refuse(w, r, p, possible)
		return
	}
	if t.config.Resources != nil && t.config.Resources.Serves(r) {
		t.config.Resources.ServeHTTP(w, r)
		return
	}
	route, certain := t.route(r)
	switch {
	case !certain:
		t.refuse(w, r, semelhttp.Problem{
			Title: "The request could be taken for another", Status: http.StatusBadRequest, Retry: semel.RetryNo,
			Detail: "A server could read the request's path, host or method in a way that has other rules here. Nothing was sent. Spell them as the service documents them: no escapes that are not needed, the same case, no double or final slashes, no method override.",
		}, true)
	case route == noRoute:
		t.refuse(w, r, semelhttp.Problem{
			Title: "There is no such route", Status: http.StatusNotFound, Retry: semel.RetryNo,
			Detail: "The gateway is not configured for this method and path. Nothing was sent.",
		}, true)
	default:
		r.Pattern = t.config.Routes[route].Patterns[0] // for whoever measures
		t.config.Routes[route].Gateway.ServeHTTP(w, r)
	}
}

// refuse answers with a problem, or as Gateway.refuse in a dry run.
func (t *Router) refuse(w http.ResponseWriter, r *http.Request, p semelhttp.Problem, possible bool) {
	route := t.guess(r)
	t.config.Routes[max(route, 0)].Gateway.refuse(w, r, p, t.config.Contract, possible && route != noRoute)
}

// guess returns the route whose upstream a request that is refused would go to: that
// of the request as it is, or else in another spelling, or any if all have one
// upstream.
func (t *Router) guess(r *http.Request) target {
	host := ""
	if t.hosts {
		host = hostOf(r.Host)
	}
	if route := t.match(t.exact, r.Method, host, url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath}); route != noRoute {
		return route
	}
	for _, p := range foldPath(r.URL.EscapedPath()) {
		if route := t.match(t.folded, r.Method, host, url.URL{Path: p}); route != noRoute {
			return route
		}
	}
	for _, other := range t.config.Routes {
		if other.Gateway.upstream != t.config.Routes[0].Gateway.upstream {
			return noRoute
		}
	}
	return 0
}

// InFlight returns the number of requests that are being handled, as for Gateway.
func (t *Router) InFlight() int { return int(t.inFlight.Load()) }

// route returns the route of a request. It is not certain if the request is not
// safe and could be taken for one of another route.
func (t *Router) route(r *http.Request) (route target, certain bool) {
	host := ""
	if t.hosts {
		host = hostOf(r.Host)
	}
	methods := semelhttp.MethodsAsked(r)
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	if !t.hosts && r.URL.Path != "" {
		route = matched(t.exact, r)
	} else {
		route = t.match(t.exact, r.Method, host, url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath})
	}
	safe := len(methods) == 1 && isSafe(methods[0])
	if route != noRoute && (safe || len(methods) == 1 && r.Method == methods[0] && isPlain(path)) {
		return route, true
	}
	if safe {
		for _, p := range foldPath(path) {
			if other := t.match(t.folded, methods[0], host, url.URL{Path: p}); other != noRoute {
				return other, true
			}
		}
		return noRoute, true
	}
	if path[0] != '/' || hasControl(r.URL.Path) || len(methods) > maxMethods {
		return noRoute, false
	}
	for _, p := range foldPath(path) {
		for _, m := range methods {
			if t.match(t.folded, m, host, url.URL{Path: p}) != route {
				return noRoute, false
			}
		}
	}
	return route, true
}

// match returns the route of what is asked.
func (t *Router) match(mux *http.ServeMux, method, host string, u url.URL) target {
	if u.Path == "" || u.Path[0] != '/' {
		u = url.URL{Path: "/" + u.Path}
	}
	return matched(mux, &http.Request{Method: method, Host: host, URL: &u})
}

// matched is noRoute even where a mux would redirect.
func matched(mux *http.ServeMux, r *http.Request) target {
	h, _ := mux.Handler(r)
	if route, ok := h.(target); ok {
		return route
	}
	return noRoute
}

// hostOf is a host without what does not matter: case, port, the dot of the root.
func hostOf(host string) string {
	host = strings.ToLower(host)
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return strings.TrimSuffix(host, ".")
}

// isPlain reports of a path that folding leaves it as it is, and so does reading it
// in any other way.
func isPlain(path string) bool {
	for i := range len(path) {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', c == '~':
		case c == '/' || c == '.':
			if i+1 < len(path) && (path[i+1] == '/' || path[i+1] == '.') || c == '/' && i > 0 && i+1 == len(path) || c == '.' && i+1 == len(path) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// maxMethods is how many methods a request may ask to be of: each is looked up.
const maxMethods = 8

// inSegment stands for an escaped slash that is read as a part of its segment.
const inSegment = "\ufffc"

// foldPath returns what servers may read an escaped path as: in lower case, without
// escapes, dots and empty segments, and without a slash at the end; with escaped
// slashes being slashes or not, and what is behind a semicolon being there or not.
func foldPath(path string) []string {
	ways := []string{fold(path, false, false)}
	slashes, semicolons := mayHold(path, `2f5c`, `\`), mayHold(path, "3b", ";")
	for _, way := range []struct{ slashes, semicolons, asked bool }{
		{true, false, slashes},
		{false, true, semicolons},
		{true, true, slashes && semicolons},
	} {
		if !way.asked {
			continue
		}
		if p := fold(path, way.slashes, way.semicolons); !slices.Contains(ways, p) {
			ways = append(ways, p)
		}
	}
	return ways
}

// mayHold reports whether path may hold, escaped however often, one of the
// characters, whose codes are given in hexadecimal.
func mayHold(path, codes, characters string) bool {
	if strings.ContainsAny(path, characters) {
		return true
	}
	for i := 0; i+2 < len(path); i++ {
		if path[i] != '%' {
			continue
		}
		code := strings.ToLower(path[i+1 : i+3])
		if code == "25" || slices.Contains([]string{codes[:2], codes[len(codes)-2:]}, code) {
			return true
		}
	}
	return false
}

// maxUnescape is how often a path is decoded: a server decodes once, and what is
// behind it perhaps again.
const maxUnescape = 4

// Escaped slashes as what they are read as.
var (
	asSlash   = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/")
	asSegment = strings.NewReplacer("%2f", inSegment, "%2F", inSegment, "%5c", inSegment, "%5C", inSegment)
)

func fold(path string, slashes, semicolons bool) string {
	slash, escaped := inSegment, asSegment
	if slashes {
		slash, escaped = "/", asSlash
	}
	for range maxUnescape {
		if strings.IndexByte(path, '%') < 0 {
			break
		}
		path = unescape(escaped.Replace(path))
	}
	path = strings.ReplaceAll(path, `\`, slash)
	var kept []string
	for segment := range strings.SplitSeq(path, "/") {
		if semicolons {
			segment, _, _ = strings.Cut(segment, ";")
		}
		switch segment {
		case ".", "":
			continue
		case "..":
			kept = kept[:max(len(kept)-1, 0)]
			continue
		}
		if s := strings.TrimRight(segment, ". "); s != "" {
			kept = append(kept, strings.ToLower(s))
		}
	}
	return "/" + strings.Join(kept, "/")
}

// unescape decodes what is an escape, and leaves what is none.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			b.WriteByte(hexDigit(s[i+1])<<4 | hexDigit(s[i+2]))
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }

func hexDigit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// pattern is a parsed pattern of http.ServeMux.
type pattern struct{ method, host, path string }

func (p pattern) String() string {
	if p.method == "" {
		return p.host + p.path
	}
	return p.method + " " + p.host + p.path
}

func parsePattern(text string) (p pattern, err error) {
	rest := text
	if method, after, ok := strings.Cut(text, " "); ok {
		p.method, rest = method, after
		if p.method != strings.ToUpper(p.method) || !httpfield.IsToken(p.method) {
			return p, errors.New("has no method in front of the space; write it as POST /orders/{id}")
		}
	}
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return p, errors.New("has no path; write it as POST /orders/{id}")
	}
	p.host, p.path = rest[:i], rest[i:]
	if p.host != hostOf(p.host) || strings.ContainsAny(p.host, "{}%? ") {
		return p, fmt.Errorf("has the host %q; write it in lower case, without a port", p.host)
	}
	segments := strings.Split(p.path[1:], "/")
	for i, s := range segments {
		last := i == len(segments)-1
		switch {
		case s == "" && last, strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}"):
		case s == "":
			return p, errors.New("has an empty segment")
		case strings.ContainsAny(s, `%\;{}?#`) || hasControl(s) || strings.Contains(s, inSegment):
			return p, fmt.Errorf("has the segment %q; a segment is a {wildcard}, or plain text without escapes and without \\ ; ? # { }", s)
		case strings.TrimRight(s, ". ") != s:
			return p, fmt.Errorf("has the segment %q, which ends in a dot or a space: many servers would not see it", s)
		}
	}
	if add(http.NewServeMux(), p, 0) != nil {
		return p, errors.New("is not one of http.ServeMux: [METHOD ][HOST]/[PATH], with wildcards {name}, {name...} at the end, or {$}")
	}
	return p, nil
}

// fold is the pattern for folded paths.
func (p pattern) fold() pattern {
	segments := strings.Split(p.path, "/")
	for i, s := range segments {
		if !strings.HasPrefix(s, "{") {
			segments[i] = strings.ToLower(s)
		}
	}
	p.path = strings.Join(segments, "/")
	if p.path != "/{$}" {
		p.path = strings.TrimSuffix(p.path, "/{$}")
	}
	return p
}

// shorter is for the folded path of a tree's own top.
func (p pattern) shorter() (pattern, bool) {
	top, ok := strings.CutSuffix(p.path, "/")
	if !ok {
		i := strings.LastIndexByte(p.path, '/')
		if ok = strings.HasSuffix(p.path, "...}"); ok {
			top = p.path[:i]
		}
	}
	p.path = top
	return p, ok && top != ""
}

// OperationOfPattern returns the name of the operation of a pattern's requests:
// the pattern itself if it has a method and does not match a whole tree, such as
// POST /users/{id}/orders. Otherwise it returns the empty string; the operation is
// then each request's method and path.
func OperationOfPattern(text string) string {
	p, err := parsePattern(text)
	if err != nil || p.method == "" || strings.HasSuffix(p.path, "/") || strings.HasSuffix(p.path, "...}") || len(text) > semel.MaxScopePartBytes {
		return ""
	}
	return text
}
