package semelcaddy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/quic-go/quic-go/http3"

	"github.com/semelhq/semel/internal/testenv"
)

// unknown is the problem of an outcome that is not known.
const unknown = "outcome-unknown"

// TestReload reloads Caddy again and again while requests are in flight, with
// settings that change: none that was taken fails, and none is forgotten.
func TestReload(t *testing.T) {
	s := newService(t)
	store := newSQLite(t)
	site := func(n int) string {
		return s.protect(store, "credentials Authorization", fmt.Sprintf("retention %dh", 24+n))
	}
	caddy := startCaddy(t, site(0))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]answer{}
	var resets atomic.Int64
	for worker := range 4 {
		load.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("load-%d-%d", worker, i)
				a := postOnce(t, caddy.url, key, key, "Authorization: a")
				for ; a.err != nil && t.Context().Err() == nil; resets.Add(1) {
					a = postOnce(t, caddy.url, key, key, "Authorization: a")
				}
				if a.status != http.StatusCreated {
					t.Errorf("%s: %v", key, a)
					return
				}
				mu.Lock()
				answers[key] = a
				mu.Unlock()
			}
		})
	}
	slow := func(key string, during func()) answer {
		release := s.holds(key)
		got := make(chan answer, 1)
		go func() {
			a := answer{err: io.EOF}
			for a.err != nil && s.effectsOf(key) == 0 { // it was not taken
				a = postOnce(t, caddy.url, key, key, "Authorization: a")
			}
			got <- a
		}()
		select {
		case <-s.arrived:
		case a := <-got: // it never got there
			return a
		}
		during()
		release()
		return <-got
	}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(answers) >= 300 || t.Failed()
	}
	reloads := 4
	for n := 0; n < 20 || !enough(); n++ {
		reloads++
		key := fmt.Sprintf("slow-%d", n)
		a := slow(key, func() { caddy.reload(t, site(n+1)) })
		want(t, key, a.status, http.StatusCreated)
		mu.Lock()
		answers[key] = a
		mu.Unlock()
	}
	stop()
	load.Wait()

	// The last handler of the store goes while it executes.
	other := s.protect(newSQLite(t), "credentials Authorization")
	for key, without := range map[string]string{"removed": "respond no", "moved": other} {
		a := slow(key, func() { caddy.reload(t, without) })
		want(t, key, a.status, http.StatusCreated)
		answers[key] = a
		caddy.reload(t, site(0))
	}
	for key, first := range answers {
		wantReplay(t, key, first, post(t, caddy.url, key, key, "Authorization: a"))
		want(t, key+": effects", s.effectsOf(key), 1)
	}
	t.Logf("%d requests over %d reloads, %d connections reset", len(answers), reloads, resets.Load())

	// A request whose body is still coming when its handler goes, with the store.
	var conn net.Conn
	var in *bufio.Reader
	for line := ""; line != "HTTP/1.1 100 Continue\r\n"; { // which is when the handler reads
		var err error
		conn, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(caddy.url, "http://"))
		noError(t, err)
		defer func() { _ = conn.Close() }()
		noError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\nAuthorization: a\r\nIdempotency-Key: coming\r\n\r\n")
		in = bufio.NewReader(conn)
		line, _ = in.ReadString('\n')
	}
	caddy.reload(t, "respond no")
	_, err := io.WriteString(conn, "body")
	noError(t, err)
	_, err = in.ReadString('\n')
	noError(t, err)
	res, err := http.ReadResponse(in, nil)
	noError(t, err)
	_ = res.Body.Close()
	want(t, "what was coming", res.StatusCode, http.StatusCreated)

	// One that is still being authenticated then, and finds the store closed.
	auth := newService(t)
	caddy.reload(t, "forward_auth "+strings.TrimPrefix(auth.URL, "http://")+" {\nuri /auth\n}\n"+site(0))
	release := auth.holds("")
	got := make(chan answer, 1)
	go func() { got <- post(t, caddy.url, "late", "late", "Authorization: a") }()
	<-auth.arrived
	caddy.reload(t, "respond no")
	release()
	late := <-got
	want(t, "what was late", late.status, http.StatusCreated)
	caddy.reload(t, site(0))
	wantReplay(t, "what was coming", answer{status: http.StatusCreated, body: "effect 1 of body"}, post(t, caddy.url, "coming", "body", "Authorization: a"))
	wantReplay(t, "what was late", late, post(t, caddy.url, "late", "late", "Authorization: a"))

	// One that cannot be is refused, and changes nothing.
	status, said := caddy.tryReload(t, s.protect("store sqlite:/no/such/directory/semel.db", "shared"))
	if status == http.StatusOK || !strings.Contains(said, "the store cannot be used") {
		t.Errorf("a reload with a store that cannot be is answered with %d: %s", status, said)
	}
	wantReplay(t, "after that", answers["removed"], post(t, caddy.url, "removed", "removed", "Authorization: a"))
}

// TestKilled kills Caddy while it executes. Whoever comes later is told that the
// outcome is not known, and nothing executes.
func TestKilled(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, s.protect(newSQLite(t), "credentials Authorization", "lease 1s"))
	done := post(t, caddy.url, "done", "done", "Authorization: a")
	release := s.holds("cut")
	go post(t, caddy.url, "cut", "cut", "Authorization: a")
	<-s.arrived
	caddy.kill()
	release()
	caddy.run(t)
	wantReplay(t, "what was completed", done, post(t, caddy.url, "done", "done", "Authorization: a"))
	a := post(t, caddy.url, "cut", "cut", "Authorization: a", "Prefer: wait=20")
	want(t, "status", a.status, http.StatusConflict)
	want(t, "problem", a.problem(), unknown)
	want(t, "effects", s.effectsOf("cut"), 1)
}

// TestStopped ends Caddy as a service manager does: what executes comes to its
// end, also for a client that does not wait for it.
func TestStopped(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, s.protect(newSQLite(t), "credentials Authorization"))
	releases := []func(){s.holds("waited for"), s.holds("not waited for")}
	got := make(chan answer, 1)
	go func() { got <- post(t, caddy.url, "1", "waited for", "Authorization: a") }()
	a := post(t, caddy.url, "2", "not waited for", "Authorization: a", "Prefer: respond-async")
	want(t, "without waiting", a.status, http.StatusAccepted)
	<-s.arrived
	<-s.arrived
	noError(t, caddy.cmd.Process.Signal(os.Interrupt))
	caddy.await("servers shutting down")
	releases[0]()
	want(t, "the one in flight", (<-got).status, http.StatusCreated)
	caddy.await("executions still running")
	releases[1]()
	<-caddy.done
	caddy.run(t)
	for key, body := range map[string]string{"1": "waited for", "2": "not waited for"} {
		wantReplay(t, body, answer{status: http.StatusCreated, body: "effect 1 of " + body}, post(t, caddy.url, key, body, "Authorization: a"))
	}
}

// TestClientGone: an execution comes to its end without the client.
func TestClientGone(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, s.protect(newSQLite(t), "credentials Authorization"))
	release := s.holds("x")
	ctx, leave := context.WithCancel(t.Context())
	got := make(chan answer, 1)
	go func() {
		got <- send(ctx, http.MethodPost, caddy.url, "x", "Idempotency-Key: k", "Authorization: a")
	}()
	<-s.arrived
	leave()
	if a := <-got; a.err == nil {
		t.Fatalf("the client that left got %v", a)
	}
	a := post(t, caddy.url, "k", "x", "Authorization: a")
	want(t, "a duplicate meanwhile", a.problem(), "in-progress")
	release()
	wantReplay(t, "a duplicate afterwards", answer{status: http.StatusCreated, body: "effect 1 of x"},
		post(t, caddy.url, "k", "x", "Authorization: a", "Prefer: wait=20"))
	want(t, "effects", s.effectsOf("x"), 1)
}

// breaker is an upstream that answers the first request of each connection, and
// closes it when it has read the second.
type breaker struct {
	net.Listener
	broken atomic.Int64
}

func newBreaker(t *testing.T) *breaker {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	noError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	b := &breaker{Listener: l}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go b.serve(c)
		}
	}()
	return b
}

func (b *breaker) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for first := true; ; first = false {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, err = io.Copy(io.Discard, r.Body)
		if err == nil && r.Header.Get("Idempotency-Key") != "" {
			b.broken.Add(1)
		}
		if !first || err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

// TestOneSend: however a connection to the upstream breaks, one execution is one
// request.
func TestOneSend(t *testing.T) {
	tests := []struct{ name, body, header, proxy string }{
		{name: "empty body"},
		{name: "body", body: "x"},
		{name: "empty body, other header", header: "X-Idempotency-Key: k"},
		{name: "load balancing", proxy: "lb_try_duration 5s\nlb_retries 3"},
		{name: "load balancing, buffered body", body: "x", proxy: "request_buffers 4KiB\nlb_try_duration 5s\nlb_retries 3"},
		{name: "retry_match, body", body: "x", proxy: "lb_try_duration 5s\nlb_retries 3\nlb_retry_match {\nmethod POST\n}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBreaker(t)
			caddy := startCaddy(t, "semel {\n"+newSQLite(t)+"\nshared\n}\nreverse_proxy "+b.Addr().String()+" {\n"+tt.proxy+"\n}")
			fields := []string{"Idempotency-Key: k"}
			if tt.header != "" {
				fields = append(fields, tt.header)
			}
			want(t, "a connection to reuse", send(t.Context(), http.MethodPost, caddy.url, "x").status, http.StatusOK)
			a := send(t.Context(), http.MethodPost, caddy.url, tt.body, fields...)
			want(t, "requests", b.broken.Load(), 1)
			want(t, "status", a.status, http.StatusBadGateway)
			want(t, "problem", a.problem(), unknown)
			a = send(t.Context(), http.MethodPost, caddy.url, tt.body, fields...)
			want(t, "a duplicate's status", a.status, http.StatusConflict)
			want(t, "requests after it", b.broken.Load(), 1)
		})
	}
}

// cutting is an upstream that takes requests and cuts them off.
func cutting(t *testing.T) (addr string, taken *atomic.Int64) {
	taken = &atomic.Int64{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		taken.Add(1)
		panic(http.ErrAbortHandler)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), taken
}

// TestErrors: what the handlers behind return makes the outcome unknown, and routes
// for errors do not send the request elsewhere.
func TestErrors(t *testing.T) {
	fallback := newService(t)
	addr, taken := cutting(t)
	caddy := startCaddy(t, "semel {\n"+newSQLite(t)+"\nshared\nunreached release\n}\nreverse_proxy "+addr+
		"\nhandle_errors {\nreverse_proxy "+strings.TrimPrefix(fallback.URL, "http://")+"\n}")
	for n, body := range []string{"x", ""} {
		key := "key-of-" + body
		a := post(t, caddy.url, key, body)
		want(t, key+": status", a.status, http.StatusBadGateway)
		want(t, key+": problem", a.problem(), unknown)
		a = post(t, caddy.url, key, body)
		want(t, key+": a duplicate's status", a.status, http.StatusConflict)
		want(t, key+": a duplicate's problem", a.problem(), unknown)
		want(t, key+": requests", taken.Load(), int64(n+1))
	}
	want(t, "requests elsewhere", fallback.last().Method, "")

	// That the second upstream was not reached says nothing of the first.
	first := newService(t)
	after := startCaddy(t, "semel {\n"+newSQLite(t)+"\nshared\nunreached release\n}\nreverse_proxy "+strings.TrimPrefix(first.URL, "http://")+
		" {\n@created status 201\nhandle_response @created {\nreverse_proxy "+freePort(t)+"\n}\n}")
	want(t, "behind an answer", post(t, after.url, "k", "x").problem(), unknown)
	want(t, "behind an answer, again", post(t, after.url, "k", "x").problem(), unknown)
	want(t, "effects", first.effectsOf("x"), 1)

	// Nor does it that no connection was made by a handler that is no proxy.
	after.reload(t, "route {\nsemel {\n"+newSQLite(t)+"\nshared\nunreached release\n}\nerror 503\n}")
	want(t, "an error of another handler", post(t, after.url, "k", "x").problem(), unknown)

	// Without a key it is Caddy's to handle.
	want(t, "unprotected", send(t.Context(), http.MethodPost, caddy.url, "").status, http.StatusCreated)
	want(t, "unprotected requests", taken.Load(), 3)
}

// TestCancelled: 499 is no answer, whether reverse_proxy makes it up when the
// deadline has passed, or an upstream that is itself a proxy.
func TestCancelled(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, s.protect(newSQLite(t), "shared", "deadline 300ms"))
	s.holds("late")
	a := post(t, caddy.url, "late", "late")
	want(t, "status at the deadline", a.status, http.StatusGatewayTimeout)
	want(t, "problem at the deadline", a.problem(), unknown)
	want(t, "a duplicate", post(t, caddy.url, "late", "late").problem(), unknown)
	for _, status := range []string{"499", "502", "503", "504"} {
		a = post(t, caddy.url, status, status, "X-Answer: "+status)
		want(t, status+": problem", a.problem(), unknown)
		want(t, status+": duplicate", post(t, caddy.url, status, status, "X-Answer: "+status).status, http.StatusConflict)
		want(t, status+": effects", s.effectsOf(status), 1)
	}
}

// TestUnreached: where nobody was reached the outcome is unknown, unless the
// settings say that nothing else can have happened.
func TestUnreached(t *testing.T) {
	for _, setting := range []string{"hold", "release"} {
		t.Run(setting, func(t *testing.T) {
			addr := freePort(t)
			caddy := startCaddy(t, "semel {\n"+newSQLite(t)+"\nshared\nunreached "+setting+"\n}\nreverse_proxy "+addr+" {\nfail_duration 1s\n}")
			problem, status := unknown, http.StatusBadGateway
			if setting == "release" {
				problem, status = "upstream-unreachable", http.StatusServiceUnavailable
			}
			// The first finds nobody; for the second there is no upstream to try.
			for _, key := range []string{"a", "b"} {
				a := post(t, caddy.url, key, key)
				want(t, key+": status", a.status, status)
				want(t, key+": problem", a.problem(), problem)
			}
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
			noError(t, err)
			server := &httptest.Server{Listener: l, Config: &http.Server{Handler: &service{effects: map[string]int{}}, ReadHeaderTimeout: time.Minute}}
			server.Start()
			t.Cleanup(server.Close)
			for send(t.Context(), http.MethodGet, caddy.url, "").status != http.StatusCreated { // until Caddy has forgotten the failure
				if t.Context().Err() != nil {
					t.Fatal("the upstream is not tried again")
				}
			}
			a := post(t, caddy.url, "a", "a")
			if setting == "release" {
				want(t, "when it is back", a.status, http.StatusCreated)
			} else {
				want(t, "when it is back", a.problem(), unknown)
			}
		})
	}
}

// The passwords are a and b.
const accounts = `basic_auth {
	alice $2a$04$bhGcNJ1V9DYBnFda1qjUnO2gP5Wa0lNfd4jjz318TjrqYa6ClkjAm
	bob $2a$04$hTMosS22Z8114hIL6STEN.BVihdrjnCnzy7ufNVZNP2imq9Qq2LcO
}
`

const (
	alice = "Authorization: Basic YWxpY2U6YQ=="
	bob   = "Authorization: Basic Ym9iOmI="
)

// TestScope: a key is the caller's own, and one without a name has none.
func TestScope(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, accounts+s.protect(newSQLite(t), "actor {http.auth.user.id}", "tenant {http.request.host}"))
	first := post(t, caddy.url, "k", "x", alice)
	want(t, "alice", first.body, "effect 1 of x")
	want(t, "bob", post(t, caddy.url, "k", "x", bob).body, "effect 2 of x")
	wantReplay(t, "alice again", first, post(t, caddy.url, "k", "x", alice))
	want(t, "who is not known", post(t, caddy.url, "k", "x").status, http.StatusUnauthorized)
	want(t, "who does not know the password", post(t, caddy.url, "k", "x", "Authorization: Basic YWxpY2U6Yg==").status, http.StatusUnauthorized)

	status := first.header.Get("Idempotency-Expires")
	if status == "" {
		t.Error("the answer does not say when it expires")
	}
	// Nobody authenticates: it is refused, for else all would share a scope.
	caddy.reload(t, s.protect(newSQLite(t), "actor {http.auth.user.id} {http.request.header.X-Unit}"))
	for _, fields := range [][]string{nil, {alice}, {"X-Unit: u"}} {
		a := post(t, caddy.url, "k2", "y", fields...)
		want(t, fmt.Sprint(fields), a.status, http.StatusUnauthorized)
	}
	want(t, "effects", s.effectsOf("y"), 0)

	caddy.reload(t, s.protect(newSQLite(t), "actor {http.request.header.X-A} {http.request.header.X-B}"))
	want(t, "a/b, c", post(t, caddy.url, "k3", "z", "X-A: a/b", "X-B: c").body, "effect 1 of z")
	want(t, "a, b/c", post(t, caddy.url, "k3", "z", "X-A: a", "X-B: b/c").body, "effect 2 of z")
	want(t, "a name that cannot be", post(t, caddy.url, "k3", "z", "X-A: a", "X-B: "+strings.Repeat("b", 300)).status, http.StatusForbidden)
}

// TestDetached: next has a state of its own where the client does not wait, with
// what the handlers in front have made of the request.
func TestDetached(t *testing.T) {
	s := newService(t)
	proxy := "reverse_proxy " + strings.TrimPrefix(s.URL, "http://") + ` {
	header_up X-User {http.auth.user.id}
	header_up X-Var {vars.who}
	header_up X-Original {http.request.orig_uri}
	header_up X-Now {http.request.uri}
	header_up X-Body {vars.body}
}`
	site := accounts + `
vars who somebody
log
log_append who {vars.who}
log_append uuid {http.request.uuid}
handle_path /api/* {
	route {
		semel {
			` + newSQLite(t) + `
			actor {http.auth.user.id}
			prefix /api/operations
		}
		vars who {http.request.uuid}
		vars body {http.request.body}
		` + proxy + `
	}
}`
	caddy := startCaddy(t, site)
	for _, prefer := range []string{"respond-async", "wait=10", ""} {
		t.Run(prefer, func(t *testing.T) {
			body := "body of " + prefer + "."
			fields := []string{alice}
			if prefer != "" {
				fields = append(fields, "Prefer: "+prefer)
			}
			a := post(t, caddy.url+"/api/orders?x=1", "k"+prefer, body, fields...)
			if prefer == "respond-async" {
				want(t, "status", a.status, http.StatusAccepted)
				at := a.header.Get("Location")
				if !strings.HasPrefix(at, "/api/operations/") {
					t.Fatalf("Location is %q", at)
				}
				a = send(t.Context(), http.MethodGet, caddy.url+at, "", alice, "Prefer: wait=20")
				var shown struct{ State, Operation string }
				noError(t, json.Unmarshal([]byte(a.body), &shown))
				want(t, "state", shown.State, "completed")
				want(t, "operation", shown.Operation, "POST /api/orders")
				want(t, "to another caller", send(t.Context(), http.MethodGet, caddy.url+at, "", bob).status, http.StatusNotFound)
			} else {
				want(t, "status", a.status, http.StatusCreated)
			}
			r := s.last()
			want(t, "path at the service", r.URL.RequestURI(), "/orders?x=1")
			for name, value := range map[string]string{
				"X-User": "alice", "X-Original": "/api/orders?x=1", "X-Now": "/orders?x=1", "X-Body": body,
				"Idempotency-Key": "k" + prefer, "Semel-Fence": r.Header.Get("Semel-Fence"),
			} {
				want(t, name, r.Header.Get(name), value)
			}
			if r.Header.Get("Semel-Fence") == "" || r.Header.Get("X-Var") == "" || r.Header.Get("X-Var") == "somebody" {
				t.Errorf("Semel-Fence is %q, X-Var %q", r.Header.Get("Semel-Fence"), r.Header.Get("X-Var"))
			}
		})
	}
}

// TestEncode: what is recorded is not encoded for the first client.
func TestEncode(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, "encode gzip\n"+s.protect(newSQLite(t), "shared"))
	body := strings.Repeat("x", 4096)
	first := post(t, caddy.url, "k", body, "Accept-Encoding: gzip")
	want(t, "the first answer's encoding", first.header.Get("Content-Encoding"), "gzip")
	again := post(t, caddy.url, "k", body, "Accept-Encoding: identity")
	want(t, "the second answer's encoding", again.header.Get("Content-Encoding"), "")
	want(t, "the second answer", again.body, "effect 1 of "+body)
	third := post(t, caddy.url, "k", body, "Accept-Encoding: gzip")
	want(t, "the third answer", third.body, first.body)
	want(t, "is a replay", third.header.Get("Idempotency-Replayed"), "true")
}

// TestForwarded: a client can neither strip the key nor name the fence.
func TestForwarded(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, s.protect(newSQLite(t), "shared"))
	a := post(t, caddy.url, "k", "x", "Connection: close, Idempotency-Key, Semel-Fence, X-Drop", "X-Drop: 1", "Semel-Fence: 7777", "Upgrade: other", "Accept: y")
	want(t, "status", a.status, http.StatusCreated)
	r := s.last()
	want(t, "the key", r.Header.Get("Idempotency-Key"), "k")
	want(t, "what is dropped", r.Header.Get("X-Drop")+r.Header.Get("Upgrade"), "")
	want(t, "what is not", r.Header.Get("Accept"), "y")
	if fence := r.Header.Get("Semel-Fence"); fence == "" || fence == "7777" || len(r.Header["Semel-Fence"]) != 1 {
		t.Errorf("Semel-Fence is %q", r.Header["Semel-Fence"])
	}
}

// TestNested: a request on its way through two of the handlers is protected once,
// and not in its own way.
func TestNested(t *testing.T) {
	s := newService(t)
	store := newSQLite(t)
	caddy := startCaddy(t, "route {\nsemel {\n"+store+"\nshared\n}\n"+s.protect(store, "shared", "key required", "methods POST PUT")+"\n}")
	first := post(t, caddy.url, "k", "x")
	want(t, "status", first.status, http.StatusCreated)
	wantReplay(t, "again", first, post(t, caddy.url, "k", "x"))
	put := send(t.Context(), http.MethodPut, caddy.url, "y", "Idempotency-Key: p")
	want(t, "only by the inner one", put.status, http.StatusCreated)
	wantReplay(t, "again", put, send(t.Context(), http.MethodPut, caddy.url, "y", "Idempotency-Key: p"))
}

// again is a handler that calls those behind it twice.
type again struct{}

func (again) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.again", New: func() caddy.Module { return again{} }}
}

func (again) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	_ = next.ServeHTTP(httptest.NewRecorder(), r)
	return next.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
}

func init() {
	caddy.RegisterModule(again{})
	httpcaddyfile.RegisterHandlerDirective("again", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return again{}, nil
	})
}

// TestAgain: a handler in front that tries twice has one effect.
func TestAgain(t *testing.T) {
	s := newService(t)
	caddy := startCaddy(t, "route {\nagain\n"+s.protect(newSQLite(t), "shared")+"\n}")
	post(t, caddy.url, "k", "")
	want(t, "effects", s.effectsOf(""), 1)
	wantReplay(t, "the first answer", answer{status: http.StatusCreated, body: "effect 1 of "}, post(t, caddy.url, "k", ""))
}

// TestHTTP3 speaks HTTP/3 with Caddy.
func TestHTTP3(t *testing.T) {
	s := newService(t)
	caddy, config := startTLS(t, s.protect(newSQLite(t), "shared"))
	transport := &http3.Transport{TLSClientConfig: config}
	defer func() { _ = transport.Close() }()
	c := &http.Client{Transport: transport}
	first := sendBy(t.Context(), c, http.MethodPost, caddy.url, "x", "Idempotency-Key: k")
	want(t, "status", first.status, http.StatusCreated)
	wantReplay(t, "again", first, sendBy(t.Context(), c, http.MethodPost, caddy.url, "x", "Idempotency-Key: k"))

	// A client that resets its stream is one that has gone.
	release := s.holds("y")
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan answer, 1)
	go func() { gone <- sendBy(ctx, c, http.MethodPost, caddy.url, "y", "Idempotency-Key: l") }()
	<-s.arrived
	leave()
	<-gone
	release()
	again := sendBy(t.Context(), c, http.MethodPost, caddy.url, "y", "Idempotency-Key: l", "Prefer: wait=20")
	wantReplay(t, "after the reset", answer{status: http.StatusCreated, body: "effect 1 of y"}, again)
}

// TestOutage: without its store Caddy starts, and nothing executes unprotected;
// when the store is there, service goes on by itself.
func TestOutage(t *testing.T) {
	s := newService(t)
	url := testenv.Postgres(t)
	server := strings.SplitN(strings.SplitN(url, "@", 2)[1], "/", 2)[0]
	proxy := testenv.NewProxy(t, server)
	proxy.Refuse(true)
	caddy := startCaddy(t, s.protect("store "+strings.Replace(url, server, proxy.Addr(), 1), "shared"))
	outage := func() {
		t.Helper()
		a := post(t, caddy.url, "k", "x")
		want(t, "status", a.status, http.StatusServiceUnavailable)
		want(t, "problem", a.problem(), "store-unavailable")
		want(t, "effects", s.effectsOf("x"), 0)
		want(t, "without a key", send(t.Context(), http.MethodPost, caddy.url, "", "Accept: y").status, http.StatusCreated)
		want(t, "status resources", send(t.Context(), http.MethodGet, caddy.url+"/.well-known/idempotency/operations/x", "").status, http.StatusServiceUnavailable)
	}
	outage()
	caddy.reload(t, s.protect("store "+strings.Replace(url, server, proxy.Addr(), 1), "shared", "retention 1h"))
	outage()
	proxy.Refuse(false)
	back := func(key string) answer {
		for {
			if a := post(t, caddy.url, key, key); a.status != http.StatusServiceUnavailable || t.Context().Err() != nil {
				return a
			}
		}
	}
	first := back("x")
	want(t, "when it is back", first.body, "effect 1 of x")
	proxy.Refuse(true)
	proxy.Cut()
	want(t, "lost again", post(t, caddy.url, "x", "x").status, http.StatusServiceUnavailable)
	proxy.Refuse(false)
	wantReplay(t, "back again", first, back("x"))
	want(t, "effects", s.effectsOf("x"), 1)
}
