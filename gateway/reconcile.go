package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// DefaultReconcileTimeout bounds a look-up, see Reconcile.Timeout.
const DefaultReconcileTimeout = 5 * time.Second

// Reconcile says how to ask the upstream what became of an operation whose outcome
// is unknown. The gateway asks with a GET when the client sends the request again,
// in the name of that client: with the header of the new request, as it would be
// forwarded, so that the upstream can apply its own permissions. It leaves out what
// is about a body, conditions, ranges, codings and other methods. It adds HeaderFence
// with the fence that the upstream got, and Cache-Control: no-cache. Redirects are
// not followed, and nothing is sent twice.
//
// A response counts only if it is complete and not from a cache. Everything that it
// does not clearly say leaves the outcome unknown: the client gets 409 and may come
// again. A gateway has one look-up at a time for a record, and none for a heartbeat
// after it. Requests that come meanwhile get 409 at once.
//
// Callers choose their keys, and two can choose the same. The upstream must only
// look among the operations of this kind and of this caller, or go by the fence,
// which no two executions share.
type Reconcile struct {
	// URL is a path, below that of the upstream's URL, and perhaps a query. Each
	// {key} stands for the key, {fence} for the fence of the claim whose outcome is
	// unknown, and {name} for a wildcard of Patterns. It must contain {key} or
	// {fence}. In the path, a value that servers could misread there, such as a
	// slash or two dots, is not asked for. Required.
	URL string
	// Patterns are those of the route, as in Route, for the wildcards in URL.
	Patterns []string
	// Present are the statuses that say that the effect is there. Default 200.
	Present []int
	// Absent are the statuses that say that it is not. The request then executes,
	// once SettleAfter is over. Default: none.
	Absent []int
	// Value, if set, has a response with one of the statuses in Present judged by
	// the string or number that it points to in its JSON body. The effect is there if
	// that is in PresentValues, and is not if it is in AbsentValues. With any other
	// value, or none, the outcome stays unknown.
	Value                       string
	PresentValues, AbsentValues []string
	// KeepResponse records the response of the look-up, with its status, as that of
	// the operation. By default, and if it is larger than Config.MaxInline, only
	// the fact that the operation completed is recorded, with the response's
	// Location: clients then get 409, result not retained.
	KeepResponse bool
	// SettleAfter is the longest time, after the lease has lapsed, in which an effect
	// can still appear. Required if there is a way to find it absent.
	SettleAfter time.Duration
	// Timeout bounds a look-up, at most the lease. Default 5 s, or the lease if that
	// is shorter.
	Timeout time.Duration
}

// saysNothing are statuses that are about the look-up, and not about the operation.
var saysNothing = []int{401, 403, 405, 406, 407, 408, 421, 425, 426, 429, 431}

// lookUps are the look-ups of one gateway.
type lookUps struct {
	Reconcile
	gateway *Gateway
	path    []string // of URL: text, placeholder, text, ...
	query   []string // likewise
	value   *semelhttp.JSONPointer
	limit   int64          // of a response's body
	mux     *http.ServeMux // nil without wildcards
	pause   time.Duration

	mu    sync.Mutex
	known map[lookedUp]time.Time // when to ask again; zero while asking
}

// lookedUp is what was asked about.
type lookedUp struct {
	record string
	fence  uint64
}

// maxLookedUp bounds what is remembered of look-ups. While there are as many, no
// others are made.
const maxLookedUp = 8192

// newLookUps checks r, and changes the policy so that it is asked.
func newLookUps(g *Gateway, r Reconcile, policy *semel.Policy) (*lookUps, error) {
	l := &lookUps{Reconcile: r, gateway: g, limit: g.config.MaxInline, pause: policy.Heartbeat, known: map[lookedUp]time.Time{}}
	if l.Present == nil {
		l.Present = []int{http.StatusOK}
	}
	if l.Timeout == 0 {
		l.Timeout = min(DefaultReconcileTimeout, policy.Lease)
	}
	if l.limit == 0 {
		l.limit = semelhttp.DefaultMaxInline
		if g.config.MaxResult > 0 {
			l.limit = min(l.limit, g.config.MaxResult)
		}
	}
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("field Reconcile.%s %s", field, fmt.Sprintf(format, args...)))
	}
	if policy.OnCrash != semel.CrashHold {
		errs = append(errs, fmt.Errorf("field Reconcile is set, but the guard's policy is %v; it must be hold", policy.OnCrash))
	}
	if err := l.parse(); err != nil {
		wrong("URL", "%v", err)
	}
	if g.config.Contract.ClientIDHeader != "" && slices.Contains(l.placeholders(), "key") {
		wrong("URL", "contains {key}, which the upstream does not know: under this contract it is made of two headers; use {fence}")
	}
	for _, of := range []struct {
		field    string
		statuses []int
	}{{"Present", l.Present}, {"Absent", l.Absent}} {
		for _, status := range of.statuses {
			if status < 200 || status > 499 || slices.Contains(saysNothing, status) {
				wrong(of.field, "contains %d, which says nothing about an operation", status)
			}
		}
	}
	for _, status := range l.Absent {
		if slices.Contains(l.Present, status) {
			wrong("Absent", "contains %d, and so does Present", status)
		}
	}
	for _, value := range l.AbsentValues {
		if slices.Contains(l.PresentValues, value) {
			wrong("AbsentValues", "contains %q, and so does PresentValues", value)
		}
	}
	switch values := len(l.PresentValues) + len(l.AbsentValues); {
	case l.Value == "" && values > 0:
		wrong("Value", "is empty, so nothing has PresentValues and AbsentValues")
	case l.Value != "" && len(l.PresentValues) == 0:
		wrong("PresentValues", "is empty: name the values that say that the effect is there")
	case l.Value != "":
		p, err := semelhttp.ParseJSONPointer(l.Value)
		if err != nil {
			wrong("Value", "%v", err)
		}
		l.value = &p
	}
	absence := len(l.Absent)+len(l.AbsentValues) > 0
	switch {
	case l.SettleAfter < 0 || !absence && l.SettleAfter > 0:
		wrong("SettleAfter", "is %v, but nothing says that an effect is absent", l.SettleAfter)
	case absence && l.SettleAfter == 0:
		wrong("SettleAfter", "is missing: how long after the lease an effect can still appear; before that, absent means nothing")
	}
	if l.Timeout < 0 || l.Timeout > policy.Lease {
		wrong("Timeout", "is %v; it must be positive, and at most the lease of %v", l.Timeout, policy.Lease)
	}
	policy.OnCrash, policy.Reconcile, policy.SettleAfter = semel.CrashReconcile, l.reconcile, l.SettleAfter
	return l, errors.Join(errs...)
}

// parse takes URL apart.
func (l *lookUps) parse() error {
	if !strings.HasPrefix(l.URL, "/") || strings.HasPrefix(l.URL, "//") {
		return fmt.Errorf("is %q; write it as /orders/by-key/{key}", l.URL)
	}
	path, query, _ := strings.Cut(l.URL, "?")
	plain := path + query
	for _, of := range []struct {
		text string
		into *[]string
	}{{path, &l.path}, {query, &l.query}} {
		for rest := of.text; ; {
			before, after, found := strings.Cut(rest, "{")
			*of.into = append(*of.into, before)
			if !found {
				break
			}
			name, behind, closed := strings.Cut(after, "}")
			if !closed || name == "" {
				return errors.New("has a { without a name and a }")
			}
			*of.into = append(*of.into, name)
			plain = strings.Replace(plain, "{"+name+"}", "x", 1)
			rest = behind
		}
	}
	if strings.ContainsAny(plain, "{}#\\ ") || hasControl(plain) || !isASCII(plain) {
		return errors.New("contains a character that a URL cannot have there, such as a space, # or }")
	}
	if _, err := url.ParseRequestURI(plain); err != nil {
		return errors.New("is no path with a query")
	}
	names := l.placeholders()
	if !slices.Contains(names, "key") && !slices.Contains(names, "fence") {
		return errors.New("contains neither {key} nor {fence}, so it would be the same for every operation")
	}
	for _, name := range names {
		if name == "key" || name == "fence" {
			continue
		}
		for _, p := range l.Patterns {
			if !strings.Contains(p, "{"+name+"}") {
				return fmt.Errorf("contains {%s}, which is neither key nor fence nor a wildcard of the pattern %q", name, p)
			}
		}
		if len(l.Patterns) == 0 {
			return fmt.Errorf("contains {%s}; without patterns only {key} and {fence} are known", name)
		}
		if l.mux == nil {
			l.mux = http.NewServeMux()
			for _, p := range l.Patterns {
				if parsed, err := parsePattern(p); err == nil { // the router tells
					add(l.mux, parsed, 0)
				}
			}
		}
	}
	return nil
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 0x7e })
}

// placeholders returns the names in URL.
func (l *lookUps) placeholders() (names []string) {
	for _, parts := range [][]string{l.path, l.query} {
		for i := 1; i < len(parts); i += 2 {
			names = append(names, parts[i])
		}
	}
	return names
}

// askerKey is where the context of a protected request has the request itself.
type askerKey struct{}

// remember returns r with itself in its context, for a look-up that its execution
// may need.
func remember(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), askerKey{}, r))
}

// reconcile is the Policy.Reconcile of the gateway's guard.
func (l *lookUps) reconcile(ctx context.Context, rec semel.Record) (semel.Finding, error) {
	asker, ok := ctx.Value(askerKey{}).(*http.Request)
	if !ok {
		return semel.FoundUndecided(), nil // there is nobody in whose name to ask
	}
	about := lookedUp{rec.ID, rec.Fence}
	if !l.begin(about) {
		return semel.FoundUndecided(), nil
	}
	told := Reconciled{RecordID: rec.ID}
	start := time.Now()
	defer l.end(about)
	result := l.lookUp(ctx, asker, &rec, &told)
	told.Took = time.Since(start)
	if f := l.gateway.config.Observer.Reconciled; f != nil {
		f(ctx, told)
	}
	switch told.Found {
	case "present":
		return semel.FoundPresent(result), nil
	case "absent":
		return semel.FoundAbsent(), nil
	}
	return semel.FoundUndecided(), told.Err
}

// begin reports whether the record may be asked about now.
func (l *lookUps) begin(about lookedUp) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if next, ok := l.known[about]; ok && (next.IsZero() || now.Before(next)) {
		return false
	}
	if len(l.known) >= maxLookedUp {
		for old, next := range l.known {
			if !next.IsZero() && !now.Before(next) {
				delete(l.known, old)
			}
		}
		if len(l.known) >= maxLookedUp {
			return false
		}
	}
	l.known[about] = time.Time{}
	return true
}

// end also holds off those who ask before the store has been told of the finding.
func (l *lookUps) end(about lookedUp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[about] = time.Now().Add(l.pause)
}

// lookUp asks the upstream, and tells what was found. The result is for what is
// present.
func (l *lookUps) lookUp(ctx context.Context, asker *http.Request, rec *semel.Record, told *Reconciled) semel.Result {
	told.Found = "undecided"
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	out, err := l.request(ctx, asker, rec)
	if err != nil {
		told.Err = err
		return semel.Result{}
	}
	var answered func(int, error)
	if f := l.gateway.config.Observer.Forwarding; f != nil {
		answered = f(ctx, Forwarding{Method: out.Method, Upstream: l.gateway.upstream.url, Header: out.Header, RecordID: rec.ID})
	}
	res, err := l.gateway.upstream.transport.RoundTrip(out)
	if answered != nil {
		status := 0
		if err == nil {
			status = res.StatusCode
		}
		answered(status, err)
	}
	if err != nil {
		told.Err = err
		return semel.Result{}
	}
	defer func() { _ = res.Body.Close() }()
	told.Status = res.StatusCode
	body, err := io.ReadAll(io.LimitReader(res.Body, l.limit+1))
	if err != nil {
		told.Err = fmt.Errorf("the response broke off: %w", err)
		return semel.Result{}
	}
	told.Found, told.Err = l.judge(res, body)
	if told.Found != "present" {
		return semel.Result{}
	}
	tombstone := semel.Result{Codec: semelhttp.CodecHTTP, Tombstone: true, Label: strconv.Itoa(res.StatusCode), Reference: res.Header.Get("Location")}
	if !l.KeepResponse || int64(len(body)) > l.limit {
		return tombstone
	}
	dropHopByHop(res.Header)
	result, err := semelhttp.EncodeResult(http.MethodGet, res.StatusCode, res.Header, nil, body)
	switch {
	case err != nil:
		told.Found, told.Err = "undecided", err
	case int64(len(result.Head)) > l.limit:
		return tombstone
	}
	return result
}

// judge says what a response means.
func (l *lookUps) judge(res *http.Response, body []byte) (found string, err error) {
	switch {
	case len(res.Header["Age"]) > 0:
		// It may be older than the effect.
		return "undecided", errors.New("the response came from a cache")
	case slices.Contains(l.Absent, res.StatusCode):
		return "absent", nil
	case !slices.Contains(l.Present, res.StatusCode):
		return "undecided", fmt.Errorf("the status %d decides nothing", res.StatusCode)
	case l.value == nil:
		return "present", nil
	case int64(len(body)) > l.limit:
		return "undecided", fmt.Errorf("the response has more than %d bytes", l.limit)
	}
	text, err := l.value.Text(&http.Request{Header: res.Header}, body)
	switch {
	case err != nil:
		return "undecided", fmt.Errorf("there is no string or number at %s in the response, or it is not JSON", l.value)
	case slices.Contains(l.PresentValues, text):
		return "present", nil
	case slices.Contains(l.AbsentValues, text):
		return "absent", nil
	}
	return "undecided", fmt.Errorf("the value at %s decides nothing", l.value)
}

// request is the look-up.
func (l *lookUps) request(ctx context.Context, asker *http.Request, rec *semel.Record) (*http.Request, error) {
	values := map[string]string{"key": rec.Identity.Key, "fence": strconv.FormatUint(rec.Fence, 10)}
	if l.mux != nil {
		// Its handlers do nothing; it leaves in the request what wildcards match.
		matched := &http.Request{Method: asker.Method, Host: hostOf(asker.Host), URL: asker.URL}
		l.mux.ServeHTTP(unread{}, matched)
		for _, name := range l.placeholders() {
			if _, ok := values[name]; !ok {
				if values[name] = matched.PathValue(name); values[name] == "" {
					return nil, fmt.Errorf("the request's path has nothing for {%s}", name)
				}
			}
		}
	}
	var path, query strings.Builder
	for i, part := range l.path {
		if i%2 == 0 {
			path.WriteString(part)
			continue
		}
		value := values[part]
		if value == "." || value == ".." || strings.ContainsAny(value, `/\%;`) || hasControl(value) {
			return nil, fmt.Errorf("the value of {%s} cannot be a part of a path; put it into the query", part)
		}
		path.WriteString(url.PathEscape(value))
	}
	for i, part := range l.query {
		if i%2 == 1 {
			part = url.QueryEscape(values[part])
		}
		query.WriteString(part)
	}
	unescaped, err := url.PathUnescape(path.String())
	if err != nil {
		return nil, err
	}
	e := &exchange{record: rec.ID, fence: rec.Fence}
	h := l.gateway.requestHeader(asker, e)
	maps.DeleteFunc(h, func(name string, _ []string) bool { return !asked(name) })
	h["Cache-Control"] = []string{"no-cache"}
	out := (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: unescaped, RawPath: path.String(), RawQuery: query.String()}, Header: h,
		// The transport finds out that it is empty, and does not send it, but does
		// not repeat the request either.
		Body: emptyBody{},
	}).WithContext(ctx)
	(&httputil.ProxyRequest{Out: out}).SetURL(l.gateway.upstream.url)
	if l.gateway.config.PreserveHost {
		out.Host = asker.Host
	}
	return out, nil
}

// asked reports whether a header field of a request belongs in a look-up about it.
// Names are compared as servers do that read _ as -.
func asked(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	switch name {
	case "accept-encoding", "expect", "prefer", "range", "te":
		return false
	}
	// With another method in it, the request could be taken for another than a GET.
	return !strings.HasPrefix(name, "content-") && !strings.HasPrefix(name, "if-") && !strings.Contains(name, "method")
}

// unread is a response that nobody reads.
type unread struct{}

func (unread) Header() http.Header         { return http.Header{} }
func (unread) Write(p []byte) (int, error) { return len(p), nil }
func (unread) WriteHeader(int)             {}
