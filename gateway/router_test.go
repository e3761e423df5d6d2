package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/webhook"
)

// routes makes a router of gateways before one upstream. The first of a route's
// patterns is its name, and what change is given.
func routes(t testing.TB, upstream string, change func(name string, c *Config), patterns ...[]string) *Router {
	t.Helper()
	store, err := memory.New(memory.Config{})
	noErr(t, err)
	guard, err := semel.New(semel.Config{Store: store})
	noErr(t, err)
	u, err := url.Parse(upstream)
	noErr(t, err)
	via, err := NewUpstream(UpstreamConfig{URL: u})
	noErr(t, err)
	t.Cleanup(func() {
		noErr(t, guard.Drain(t.Context()))
		via.CloseIdle()
	})
	scope := func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "a"}, nil }
	resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{Guard: guard, Scope: scope})
	noErr(t, err)
	c := RouterConfig{Resources: resources}
	for _, list := range patterns {
		config := Config{Guard: guard, Via: via, Scope: scope, Resources: resources, Operation: OperationOfPattern(list[0])}
		if change != nil {
			change(list[0], &config)
		}
		g, err := New(config)
		noErr(t, err)
		c.Routes = append(c.Routes, Route{Patterns: list, Gateway: g})
	}
	router, err := NewRouter(c)
	noErr(t, err)
	return router
}

func noErr(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// raw sends text as it is and returns the answer's status and body.
func raw(t *testing.T, addr, text string) (status int, header http.Header, body string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	noError(t, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, text)
	noError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	noError(t, err)
	return res.StatusCode, res.Header, string(b)
}

// TestRequestLines: what is not matched never slips by a route that another
// spelling of it has. Each route but "/" wants a key, and no request has one.
func TestRequestLines(t *testing.T) {
	const (
		refused = "refused" // 400: could be another's
		none    = "none"    // 404
		keyed   = "keyed"   // 400: a route that wants a key has it
		passed  = "passed"  // the catch-all
	)
	for _, tt := range []struct{ line, catchAll, without string }{
		{"POST /orders", keyed, keyed},
		{"POST /orders?x=/../y", keyed, keyed},
		{"POST http://other/orders", keyed, keyed},
		{"POST /users/7/orders", keyed, keyed},
		{"POST /users/a.B%20c/orders", keyed, keyed},
		{"POST /users/%E6%97%A5/orders", keyed, keyed},
		{"POST /tree/a/b", keyed, keyed},
		{"POST /tree/", keyed, keyed},
		{"POST /other", passed, none},
		{"POST /Other/A", passed, none},
		{"POST /orders/1", passed, none},
		{"PUT /orders", passed, none},
		{"DELETE /orders/1", keyed, keyed},
		{"POST http://h", passed, none},
		// paths
		{"POST /tree", refused, refused},
		{"POST /orders/", refused, refused},
		{"POST //orders", refused, refused},
		{"POST /./orders", refused, refused},
		{"POST /x/../orders", refused, refused},
		{"POST /orders/.", refused, refused},
		{"POST /orders/x/..", refused, refused},
		{"POST /Orders", refused, refused},
		{"POST /ORDERS", refused, refused},
		{"POST /order%73", keyed, keyed}, // a mux decodes it as well
		{"POST /order%2573", refused, refused},
		{"POST /order%252573", refused, refused},
		{"POST /%6Frders", keyed, keyed},
		{"POST %2Forders", refused, refused},
		{"POST /%2Forders", refused, refused},
		{"POST /x%2F..%2Forders", refused, refused},
		{"POST /x%2f%2e%2e%2forders", refused, refused},
		{"POST /%2e/orders", refused, refused},
		{"POST /x/%2e%2e/orders", refused, refused},
		{`POST /x\..\orders`, refused, refused},
		{`POST \orders`, refused, refused},
		{"POST /%5Corders", refused, refused},
		{"POST /x%5C..%5Corders", refused, refused},
		{"POST /orders;v=1", refused, refused},
		{"POST /orders%3Bv=1", refused, refused},
		{"POST /x/..;/orders", refused, refused},
		{"POST /;a/orders", refused, refused},
		{"POST /orders.", refused, refused},
		{"POST /orders%20", refused, refused},
		{"POST /orders%00", refused, refused},
		{"POST /orders%0a", refused, refused},
		{"POST /other%00", refused, refused},
		{"POST /users/a%2Fb/orders", refused, refused},
		{"POST /users/a%252Fb/orders", refused, refused},
		{"POST /Users/a%2Fb/orders", refused, refused},
		{"POST /users//orders", refused, none},
		{"POST /users/../orders", refused, refused},
		{"POST *", refused, refused},
		// methods
		{"post /orders", refused, refused},
		{"PoSt /orders", refused, refused},
		{"post /other", passed, none},
		{"PUT /orders HTTP/1.1\r\nX-HTTP-Method-Override: POST", refused, refused},
		{"GET /orders HTTP/1.1\r\nX-HTTP-Method-Override: POST", refused, refused},
		{"POST /orders/1 HTTP/1.1\r\nX-Method-Override: delete", refused, refused},
		{"POST /orders HTTP/1.1\r\nX-HTTP-Method: PUT", refused, refused},
		{"POST /other HTTP/1.1\r\nX-HTTP-Method-Override: DELETE", passed, none},
		{"POST /orders HTTP/1.1" + strings.Repeat("\r\nX-HTTP-Method-Override: POST", 8), refused, refused},
		{"POST /orders HTTP/1.1" + strings.Repeat("\r\nX-HTTP-Method-Override: POST", 7), keyed, keyed},
		{"CONNECT h:1", "tunnel", "tunnel"},
		// safe requests are not refused
		{"GET /orders", passed, none},
		{"GET //orders", passed, none},
		{"OPTIONS /orders", passed, none},
		{"GET /a%2Fb", passed, none},
		{"HEAD /get", "got", "got"},
		{"GET /get", "got", "got"},
		{"GET /get/", passed, "got"}, // for the server to say what it is
		{"GET /Get", passed, "got"},
		{"GET http://h", passed, none},
	} {
		for _, catchAll := range []bool{true, false} {
			line, expected := tt.line, tt.without
			patterns := [][]string{{"POST /orders"}, {"POST /users/{id}/orders"}, {"/tree/"}, {"DELETE /orders/{id}"}, {"GET /get"}}
			if catchAll {
				patterns, expected = append(patterns, []string{"/"}), tt.catchAll
			}
			if !strings.Contains(line, " HTTP/1.1") {
				line += " HTTP/1.1"
			}
			var reached atomic.Int64
			target := ""
			upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
				reached.Add(1)
				target = r.Method + " " + r.RequestURI
				_, _ = io.WriteString(w, r.Header.Get("X-Route"))
			})
			router := routes(t, upstream, func(name string, c *Config) {
				c.RequireKey, c.Pass = name != "/", name == "/"
				c.Protects = semelhttp.ProtectMethods("POST", "DELETE")
			}, patterns...)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				router.ServeHTTP(w, r)
			}))
			status, _, body := raw(t, server.Listener.Addr().String(), line+"\r\nHost: h\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			server.Close()
			got := fmt.Sprint(status)
			switch {
			case status == 400 && strings.Contains(body, "could be taken for another"), status == 400 && strings.HasPrefix(body, "400 Bad Request"):
				got = refused
			case status == 400 && strings.Contains(body, "key-missing"):
				got = keyed
			case status == 404 && reached.Load() == 0:
				got = none
			case status == 501:
				got = "tunnel"
			case status == 200 && reached.Load() == 1 && strings.Contains(line, " /get "):
				got = "got"
			case status == 200 && reached.Load() == 1:
				got = passed
				if expected == "got" {
					got = "got"
				}
			}
			if got != expected {
				t.Errorf("%q, catch-all %v: %s, want %s (status %d, upstream saw %q, %s)", tt.line, catchAll, got, expected, status, target, body)
			}
			if (got == refused || got == none || got == keyed) && reached.Load() > 0 {
				t.Errorf("%q reached the upstream as %q", tt.line, target)
			}
		}
	}
}

// readings are what servers make of a path.
var readings = []func(string) string{
	func(p string) string { u, _ := url.PathUnescape(p); return u },
	func(p string) string {
		u, err := url.PathUnescape(p)
		if err != nil {
			return p
		}
		u, _ = url.PathUnescape(u)
		return u
	},
	func(p string) string { u, _ := url.PathUnescape(p); return path.Clean("/" + u) },
	func(p string) string { u, _ := url.PathUnescape(path.Clean("/" + p)); return u },
	func(p string) string { u, _ := url.PathUnescape(p); return strings.ToLower(u) },
	func(p string) string { u, _ := url.PathUnescape(p); return strings.TrimSuffix(u, "/") },
	func(p string) string {
		u, _ := url.PathUnescape(p)
		return path.Clean("/" + strings.ReplaceAll(u, `\`, "/"))
	},
	func(p string) string { // as Tomcat does
		var kept []string
		for s := range strings.SplitSeq(p, "/") {
			s, _, _ = strings.Cut(s, ";")
			s, _ = url.PathUnescape(s)
			kept = append(kept, s)
		}
		return path.Clean("/" + strings.Join(kept, "/"))
	},
	func(p string) string { // as IIS does
		u, _ := url.PathUnescape(p)
		u = path.Clean("/" + strings.ReplaceAll(u, `\`, "/"))
		return strings.ToLower(strings.TrimRight(u, ". "))
	},
}

// checkSpelling: a POST that reaches the catch-all is no protected one to any of
// those servers.
func checkSpelling(t *testing.T, router *Router, spelled string) {
	u, err := url.ParseRequestURI(spelled)
	if err != nil || u.Opaque != "" || u.Host != "" {
		return
	}
	route, certain := router.route(&http.Request{Method: "POST", URL: u, Header: http.Header{}})
	if !certain || route != 1 {
		return
	}
	raw := u.EscapedPath()
	for i, read := range readings {
		if got := read(raw); got == "/pay/order" || got == "/pay/order/" && i != 0 {
			t.Errorf("%q is sent on without protection, and reading %d takes it for %s", spelled, i, got)
		}
	}
}

func spellings(t testing.TB) *Router {
	return routes(t, "http://127.0.0.1:1", func(name string, c *Config) { c.Pass = name == "/" }, []string{"POST /pay/order"}, []string{"/"})
}

// TestSpellings tries random spellings of one path.
func TestSpellings(t *testing.T) {
	quick.LeaveOut(t)
	router := spellings(t)
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"/", "pay", "order", ".", "..", ";", ";x=1", "%2f", "%2F", "%5c", `\`, "%2e", "%25", "%252f", "%70", "P", "%4f", "rder", "//", "%", "a", "%20", "%00", "?"}
	for range 200_000 {
		s := "/"
		for range 1 + random.IntN(8) {
			s += pieces[random.IntN(len(pieces))]
		}
		checkSpelling(t, router, s)
		// One that is nearly right.
		s = "/pay/order"
		for range 1 + random.IntN(3) {
			i := random.IntN(len(s))
			switch random.IntN(4) {
			case 0:
				s = s[:i] + pieces[random.IntN(len(pieces))] + s[i:]
			case 1:
				s = s[:i] + fmt.Sprintf("%%%02x", s[i]) + s[i+1:]
			case 2:
				s = s[:i] + strings.ToUpper(s[i:])
			case 3:
				s = strings.Replace(s, "%", "%25", 1)
			}
		}
		checkSpelling(t, router, s)
	}
}

func FuzzSpellings(f *testing.F) {
	for _, s := range []string{"/pay/order", "/pay%2forder", "/x/..;/pay/order", "/PAY/%6frder/"} {
		f.Add(s)
	}
	router := spellings(f)
	f.Fuzz(func(t *testing.T, s string) { checkSpelling(t, router, s) })
}

// TestPatterns: what cannot be told apart at the upstream is no two routes.
func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		patterns []string
		want     string
	}{
		{[]string{"POST /orders", "/"}, ""},
		{[]string{"POST /orders", "/orders/"}, ""},
		{[]string{"POST /orders/{id}", "POST /orders/new"}, ""},
		{[]string{"POST /a/{b...}", "POST /a/{$}"}, ""},
		{[]string{"/{$}", "/"}, ""},
		{[]string{"POST a.example/x", "POST b.example/x"}, ""},
		{[]string{"POST /orders", "POST /orders"}, `"POST /orders" of route 0`},
		{[]string{"POST /orders", "POST /Orders"}, `"POST /orders" of route 0 differ in a way that many servers overlook`},
		{[]string{"POST /orders", "POST /orders/{$}"}, "differ in a way that many servers overlook"},
		{[]string{"/a/{x}/c", "/{y}/b/c"}, `"/a/{x}/c" of route 0`},
		{[]string{"/A/{x}/c", "/{y}/b/c"}, `"/A/{x}/c" of route 0`},
		{[]string{"post /x"}, "no method"},
		{[]string{"orders"}, "no path"},
		{[]string{"POST orders"}, "no path"},
		{[]string{"POST Example.com/x"}, "lower case"},
		{[]string{"POST example.com:80/x"}, "without a port"},
		{[]string{"POST /a//b"}, "empty segment"},
		{[]string{"POST /a%2Fb"}, "without escapes"},
		{[]string{"POST /a;b"}, "without escapes"},
		{[]string{"POST /a/.."}, "ends in a dot"},
		{[]string{"POST /{a}b"}, "plain text"},
		{[]string{"POST /{a...}/b"}, "http.ServeMux"},
		{[]string{""}, "no path"},
		{nil, "there are no routes"},
	} {
		var c RouterConfig
		for _, p := range tt.patterns {
			c.Routes = append(c.Routes, Route{Patterns: []string{p}, Gateway: &Gateway{}})
		}
		_, err := NewRouter(c)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.patterns, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), ".go:") {
			t.Errorf("%q: the error speaks of our code: %v", tt.patterns, err)
		}
	}
	for text, want := range map[string]string{
		"POST /users/{id}/orders": "POST /users/{id}/orders", "POST a.example/x": "POST a.example/x", "POST /x/{$}": "POST /x/{$}",
		"/orders": "", "POST /": "", "POST /x/{rest...}": "", "POST /x/": "", "nonsense": "",
	} {
		want2 := OperationOfPattern(text)
		if want2 != want {
			t.Errorf("the operation of %q is %q, want %q", text, want2, want)
		}
	}
}

// TestHosts: a host is one in whatever case, with or without its port.
func TestHosts(t *testing.T) {
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {})
	router := routes(t, upstream, func(name string, c *Config) { c.RequireKey, c.Pass = name != "/", name == "/" }, []string{"POST pay.example/x"}, []string{"/"})
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	for host, status := range map[string]int{
		"pay.example": 400, "PAY.example": 400, "pay.example:8080": 400, "pay.example.": 400, "Pay.Example.:1": 400,
		"other.example": 200, "pay.example.org": 200, "[::1]:80": 200,
	} {
		got, _, body := raw(t, server.Listener.Addr().String(), "POST /x HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		if got != status {
			t.Errorf("%s: %d, want %d: %s", host, got, status, body)
		}
	}
}

// TestRoutes: each route is an operation of its own, and all share what there is
// once.
func TestRoutes(t *testing.T) {
	var effects atomic.Int64
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		_, _ = fmt.Fprintf(w, "%s %d", r.URL.Path, effects.Add(1))
	})
	pointer, err := semelhttp.ParseJSONPointer("/operationName")
	noError(t, err)
	router := routes(t, upstream, func(name string, c *Config) {
		switch name {
		case "POST /graphql":
			c.Operation, c.OperationOf = "", pointer.Text
		case "POST /pass":
			c.Pass = true
		}
	}, []string{"POST /users/{id}/orders", "POST /v2/users/{id}/orders"}, []string{"POST /graphql"}, []string{"POST /pass"}, []string{"/"})
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	b := &bundle{t: t, url: server.URL, client: server.Client()}

	first := b.post("/users/1/orders", "k", "{}")
	want(t, "replayed", b.post("/users/1/orders", "k", "{}").replayed(), true)
	want(t, "the key for another user", b.post("/users/2/orders", "k", "{}").status, 422)
	want(t, "the key for another pattern of the route", b.post("/v2/users/1/orders", "k", "{}").status, 422)
	want(t, "effects", effects.Load(), 1)
	want(t, "the key for another route", b.post("/other", "k", "{}").status, 201)
	want(t, "the key for a path without a name", b.post("/another", "k", "{}").status, 201)
	want(t, "effects", effects.Load(), 3)
	for range 2 {
		want(t, "status", b.post("/pass", "k", "{}").status, 201)
	}
	want(t, "effects", effects.Load(), 5)
	want(t, "pay", b.post("/graphql", "k", `{"operationName":"pay"}`).status, 201)
	want(t, "refund", b.post("/graphql", "k", `{"operationName":"refund"}`).status, 201)
	want(t, "pay again", b.post("/graphql", "k", `{"operationName":"pay"}`).replayed(), true)
	want(t, "a query", b.post("/graphql", "k", `{}`).status, 400)
	want(t, "effects", effects.Load(), 7)

	// The operation has one status, whatever its route.
	records, err := router.config.Routes[0].Gateway.config.Guard.ResolveWhere(t.Context(), semel.BulkResolution{})
	noError(t, err)
	want(t, "unknown records", records.Selected, 0)
	spec := b.send(b.request("GET", "/.well-known/idempotency/specification", "", "", "Accept: application/json"))
	want(t, "status of the specification", spec.status, 200)
	if first.header.Get("Idempotency-Expires") == "" {
		t.Error("the first answer does not say when it expires")
	}
	want(t, "in flight", router.InFlight(), 0)
}

// TestWebhookRoute: an event's id is believed when its signature is verified.
func TestWebhookRoute(t *testing.T) {
	var effects atomic.Int64
	status := atomic.Int64{}
	status.Store(200)
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		w.WriteHeader(int(status.Load()))
	})
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{"whsec_" + strings.Repeat("c2VjcmV0", 4)}})
	noError(t, err)
	router := routes(t, upstream, func(name string, c *Config) {
		if name != "/" {
			c.Operation, c.Webhook = "bank.events", &Webhook{Scheme: scheme, Sender: "bank"}
		}
	}, []string{"POST /events"}, []string{"/"})
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	b := &bundle{t: t, url: server.URL, client: server.Client()}
	deliver := func(id, body string, forge bool) answer {
		h, err := scheme.Sign(id, []byte(body))
		noError(t, err)
		r := b.request("POST", "/events", "", body)
		for name, values := range h {
			r.Header[name] = values
		}
		if forge {
			r.Header.Set("Webhook-Id", id+"x")
		}
		return b.send(r)
	}
	want(t, "first", deliver("evt_1", "{}", false).status, 200)
	want(t, "again", deliver("evt_1", "{}", false).status, 200)
	want(t, "another body", deliver("evt_1", "[]", false).status, 422)
	want(t, "forged id", deliver("evt_2", "{}", true).status, 403)
	want(t, "without a signature", b.post("/events", "k", "{}").status, 400)
	want(t, "effects", effects.Load(), 1)
	// What the service did not take comes again; what was cut off is not known.
	status.Store(500)
	want(t, "refused by the service", deliver("evt_3", "{}", false).status, 500)
	want(t, "and again", deliver("evt_3", "{}", false).status, 500)
	want(t, "effects", effects.Load(), 3)
	status.Store(502)
	want(t, "cut off", deliver("evt_4", "{}", false).status, 502)
	status.Store(200)
	want(t, "after that", deliver("evt_4", "{}", false).status, 503)
	want(t, "effects", effects.Load(), 4)
}

// TestRoutesInADryRun: what the router would refuse is reported and reaches the service
// as it was sent, unless there is no telling which service that is.
func TestRoutesInADryRun(t *testing.T) {
	upstream := func(name string) string {
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s: %s %s %s", name, r.Method, r.RequestURI, body)
		})
	}
	one, other := upstream("one"), upstream("other")
	elsewhere, err := url.Parse(other)
	noError(t, err)
	via, err := NewUpstream(UpstreamConfig{URL: elsewhere})
	noError(t, err)
	defer via.CloseIdle()
	for _, tt := range []struct {
		line            string
		single, several string // what answers: with one upstream, and with two
		verdict         string
	}{
		{"POST /orders", "one: POST /orders x", "one: POST /orders x", "executed"},
		{"POST /Orders", "one: POST /Orders x", "one: POST /Orders x", "rejected"},
		{"POST /pay//ments", "one: POST /pay//ments x", "404", "rejected"},
		{"POST //payments/", "one: POST //payments/ x", "other: POST //payments/ x", "rejected"},
		{"POST /nowhere", "one: POST /nowhere x", "404", "rejected"},
		{"POST /%6frders;a", "one: POST /%6frders;a x", "one: POST /%6frders;a x", "rejected"},
		{"PRI /orders", "505", "505", "rejected"},
		{"CONNECT /orders", "501", "501", "rejected"},
	} {
		for several, wanted := range map[bool]string{false: tt.single, true: tt.several} {
			var refused atomic.Int32
			router := routes(t, one, func(name string, c *Config) {
				c.DryRun, c.Observer = true, &Observer{Refused: func(context.Context, semelhttp.Problem) { refused.Add(1) }}
				if several && name == "POST /payments" {
					c.Via = via
				}
			}, []string{"POST /orders"}, []string{"POST /payments"})
			server := httptest.NewServer(router)
			status, h, body := raw(t, server.Listener.Addr().String(), tt.line+" HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
			server.Close()
			got := body
			if status != http.StatusOK {
				got = fmt.Sprint(status)
			}
			what := fmt.Sprintf("%s, several upstreams: %v", tt.line, several)
			want(t, what+": the answer", got, wanted)
			want(t, what+": the verdict", h.Get(semelhttp.HeaderDryRun), tt.verdict)
			want(t, what+": it is reported", refused.Load() == 1, tt.verdict == "rejected")
		}
	}
	// A request for two hosts, which a service alone would take.
	router := routes(t, one, func(_ string, c *Config) { c.DryRun = true }, []string{"/"})
	for name, h := range map[string]http.Handler{"router": router, "gateway": router.config.Routes[0].Gateway} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("x"))
		r.ProtoMajor, r.ProtoMinor = 2, 0
		r.Header["Host"] = []string{"elsewhere"}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		want(t, name+": the answer to a request for two hosts", w.Body.String(), "one: POST /orders x")
		want(t, name+": the verdict", w.Header().Get(semelhttp.HeaderDryRun), "rejected")
	}
}
