package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

var discard = log.New(io.Discard, "", 0)

func TestTwentyInParallel(t *testing.T) {
	var effects atomic.Int64
	leave := make(chan struct{})
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		n := effects.Add(1)
		<-leave
		w.WriteHeader(201)
		_, _ = fmt.Fprintf(w, "order %d", n)
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	answers := make(chan answer)
	for range 20 {
		go func() { answers <- b.post("/orders", "k", `{"item":"book"}`) }()
	}
	for range 19 {
		a := <-answers
		want(t, "status", a.status, 409)
		want(t, "problem", a.problem(t), "in-progress")
	}
	close(leave)
	a := <-answers
	want(t, "status of the winner", a.status, 201)
	want(t, "body of the winner", a.body, "order 1")
	a = b.post("/orders", `"k"`, `{"item":"book"}`)
	want(t, "replayed", a.replayed(), true)
	want(t, "status of the replay", a.status, 201)
	want(t, "body of the replay", a.body, "order 1")
	a = b.post("/orders", "k", `{"item":"pen"}`)
	want(t, "status of another request", a.status, 422)
	want(t, "effects", effects.Load(), 1)
}

// TestAnswers: what an upstream's status means.
func TestAnswers(t *testing.T) {
	tests := []struct {
		status     int
		retryAfter string
		want       string // recorded, free or unknown
	}{
		{200, "", "recorded"},
		{302, "", "recorded"},
		{400, "", "recorded"},
		{404, "", "recorded"},
		{500, "", "recorded"},
		{401, "", "free"},
		{407, "", "free"},
		{425, "", "free"},
		{429, "", "free"},
		{503, "7", "free"},
		{503, "", "unknown"},
		{502, "", "unknown"},
		{502, "7", "unknown"},
		{504, "", "unknown"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d %s", tt.status, tt.retryAfter), func(t *testing.T) {
			var asked atomic.Int64
			upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				if tt.retryAfter != "" {
					w.Header().Set("Retry-After", tt.retryAfter)
				}
				if tt.status == 302 {
					w.Header().Set("Location", "/elsewhere")
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, "said so")
			})
			b := newBundle(t, upstream, semel.Policy{}, nil)
			first, second := b.post("/x", "k", "{}"), b.post("/x", "k", "{}")
			if tt.want == "unknown" {
				want(t, "first status", first.status, 502)
				want(t, "second status", second.status, 409)
				want(t, "first problem", first.problem(t), "outcome-unknown")
				want(t, "second problem", second.problem(t), "outcome-unknown")
				want(t, "requests", asked.Load(), 1)
				return
			}
			for _, a := range []answer{first, second} {
				want(t, "status", a.status, tt.status)
				want(t, "body", a.body, "said so")
				want(t, "Retry-After", a.header.Get("Retry-After"), tt.retryAfter)
			}
			if tt.want == "recorded" {
				want(t, "replayed", second.replayed(), true)
				want(t, "requests", asked.Load(), 1)
			} else {
				want(t, "replayed", second.replayed(), false)
				want(t, "requests", asked.Load(), 2)
			}
		})
	}
}

// TestTruncated: an answer that breaks off is never recorded or sent as whole.
func TestTruncated(t *testing.T) {
	const limit = 1000
	big := strings.Repeat("x", 10*limit) // more than the server holds back
	tests := []struct {
		name, answer string
		streamed     bool // the answer has begun to pass by then
	}{
		{"shorter than its Content-Length", "Content-Length: 10\r\n\r\nhalf", false},
		{"chunks without an end", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", false},
		{"within a chunk", "Transfer-Encoding: chunked\r\n\r\n8\r\nhalf", false},
		{"a chunk that is none", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nworse\r\n", false},
		{"on disk, shorter than its Content-Length", "Content-Length: 900\r\n\r\n" + big[:800], false},
		{"on disk, chunks without an end", "Transfer-Encoding: chunked\r\n\r\n320\r\n" + big[:800] + "\r\n", false},
		{"large, shorter than its Content-Length", "Content-Length: 20000\r\n\r\n" + big, true},
		{"large, chunks without an end", "Transfer-Encoding: chunked\r\n\r\n2710\r\n" + big + "\r\n", true},
		{"events without an end", "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+tt.answer)
				return false
			})
			dir := t.TempDir()
			b := newBundle(t, upstream.url, semel.Policy{}, func(c *Config) { c.MaxResult, c.MaxInline, c.SpoolDir = limit, limit/10, dir })

			if res, err := b.client.Do(b.request("POST", "/x", "", "{}")); err == nil {
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err == nil {
					t.Errorf("without a key, the client took the answer for whole: %.20q", body)
				}
			}
			a := b.post("/x", "k", "{}")
			again := b.post("/x", "k", "{}")
			r := b.record()
			if tt.streamed {
				want(t, "status", a.status, 200)
				if a.err == nil {
					t.Errorf("the client took the answer for whole: %d bytes", len(a.body))
				}
			} else {
				want(t, "status", a.status, 502)
				want(t, "problem", a.problem(t), "outcome-unknown")
			}
			want(t, "state", r.State, semel.StateUnknown)
			want(t, "cause", r.Cause, "the upstream's answer was cut off")
			want(t, "status of the retry", again.status, 409)
			want(t, "problem of the retry", again.problem(t), "outcome-unknown")
			want(t, "requests", upstream.asked.Load(), 2)
			nothingSpooled(t, b, dir)
			for _, f := range b.failures() {
				want(t, "answered, as the observer is told", f.Answered, true)
			}
		})
	}
}

// TestTruncatedWithoutServer: a broken answer does not pass for whole either
// where no http.Server is around, under which httputil.ReverseProxy lets it.
func TestTruncatedWithoutServer(t *testing.T) {
	upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
		return false
	})
	b := newBundle(t, upstream.url, semel.Policy{}, nil)
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/x", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", "k")
	b.gateway.ServeHTTP(w, r)
	want(t, "status", w.Code, 502)

	defer func() {
		if v := recover(); v != http.ErrAbortHandler {
			t.Errorf("without a key: recovered %v, want http.ErrAbortHandler", v)
		}
	}()
	b.gateway.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/x", strings.NewReader("{}")))
	t.Error("without a key, the answer passed for whole")
}

// TestEventStream: events pass as they come, while the record is in progress.
func TestEventStream(t *testing.T) {
	arrived := make(chan struct{})
	var asked atomic.Int64
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-arrived
		_, _ = io.WriteString(w, "data: 2\n\n")
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	res, err := b.client.Do(b.request("POST", "/x", "k", "{}"))
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	first := make([]byte, 9)
	_, err = io.ReadFull(res.Body, first)
	noError(t, err)
	want(t, "first event", string(first), "data: 1\n\n")
	want(t, "state at the first event", b.record().State, semel.StateInProgress)
	close(arrived)
	rest, err := io.ReadAll(res.Body)
	noError(t, err)
	want(t, "rest", string(rest), "data: 2\n\n")
	want(t, "state at the end", b.record().State, semel.StateCompleted)

	a := b.post("/x", "k", "{}")
	want(t, "status of the retry", a.status, 409)
	want(t, "problem of the retry", a.problem(t), "result-not-retained")
	want(t, "requests", asked.Load(), 1)
}

// TestLargeAnswer: one over the limit passes as it comes, while the record is in
// progress, and leaves a tombstone.
func TestLargeAnswer(t *testing.T) {
	const limit = 1000
	arrived := make(chan struct{})
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/things/1")
		w.WriteHeader(201)
		_, _ = io.WriteString(w, strings.Repeat("a", limit+1))
		_ = http.NewResponseController(w).Flush()
		<-arrived
		_, _ = io.WriteString(w, "end")
	})
	b := newBundle(t, upstream, semel.Policy{}, func(c *Config) { c.MaxResult = limit })
	res, err := b.client.Do(b.request("POST", "/x", "k", "{}"))
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	first := make([]byte, limit)
	_, err = io.ReadFull(res.Body, first)
	noError(t, err)
	want(t, "state at the first bytes", b.record().State, semel.StateInProgress)
	close(arrived)
	rest, err := io.ReadAll(res.Body)
	noError(t, err)
	want(t, "rest", string(rest), "aend")
	r := b.record()
	want(t, "state at the end", r.State, semel.StateCompleted)
	want(t, "tombstone", r.Result.Tombstone, true)
	want(t, "reference", r.Result.Reference, "/things/1")
	a := b.post("/x", "k", "{}")
	want(t, "problem of the retry", a.problem(t), "result-not-retained")
	want(t, "reference in it", strings.Contains(a.body, "/things/1"), true)
}

// TestClientGone: the client leaves, the call of the upstream goes on and its
// answer is recorded.
func TestClientGone(t *testing.T) {
	var effects atomic.Int64
	entered, leave, cancelled := make(chan struct{}), make(chan struct{}), make(chan bool, 1)
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		close(entered)
		<-leave
		cancelled <- r.Context().Err() != nil
		w.WriteHeader(201)
		_, _ = io.WriteString(w, "done")
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	b.breakOff(t, b.request("POST", "/x", "k", "{}"), entered)
	want(t, "problem meanwhile", b.post("/x", "k", "{}").problem(t), "in-progress")
	close(leave)
	noError(t, b.guard.Drain(context.Background()))
	want(t, "call of the upstream was cancelled", <-cancelled, false)
	r := b.record()
	want(t, "state", r.State, semel.StateCompleted)
	want(t, "label", r.Result.Label, "201")
	want(t, "body", string(r.Result.Body), "done")
	want(t, "effects", effects.Load(), 1)
}

func TestDrain(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(entered)
			<-leave
		}
		w.WriteHeader(201)
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	done := make(chan answer)
	go func() { done <- b.post("/slow", "k", "{}") }()
	<-entered
	want(t, "requests in flight", b.gateway.InFlight(), 1)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.gateway.Drain(ended); err == nil || !strings.Contains(err.Error(), "1 executions still running") {
		t.Errorf("Drain says %v", err)
	}
	a := b.post("/x", "other", "{}")
	want(t, "status of a new request", a.status, 503)
	want(t, "advice", strings.Contains(a.body, `"retry":"same-key"`), true)
	close(leave)
	want(t, "status of the one in flight", (<-done).status, 201)
	noError(t, b.gateway.Drain(context.Background()))
	want(t, "state", b.record().State, semel.StateCompleted)
}

// echoUpgrade switches to a protocol that echoes lines, if it is asked to.
func echoUpgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "echo" {
		w.WriteHeader(200)
		_, _ = io.WriteString(w, "connection: "+r.Header.Get("Connection"))
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	line, _ := rw.ReadString('\n')
	_, _ = io.WriteString(c, line)
}

func TestUpgrade(t *testing.T) {
	b := newBundle(t, handler(t, echoUpgrade), semel.Policy{}, nil)

	a := b.post("/x", "k", "{}", "Connection: Upgrade", "Upgrade: echo")
	want(t, "protected: status", a.status, 200)
	want(t, "protected: what the upstream saw", a.body, "connection: ")

	res, err := b.client.Do(b.request("GET", "/x", "", "", "Connection: Upgrade", "Upgrade: echo"))
	noError(t, err)
	want(t, "unprotected: status", res.StatusCode, 101)
	c := res.Body.(io.ReadWriteCloser)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, "hello\n")
	noError(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	noError(t, err)
	want(t, "unprotected: echo", line, "hello\n")
}

// TestUnwantedUpgrade: an upstream that switches protocols unasked.
func TestUnwantedUpgrade(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\n\r\n",
	} {
		upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
			_, _ = io.WriteString(c, answer)
			return false
		})
		b := newBundle(t, upstream.url, semel.Policy{}, nil)
		a := b.post("/x", "k", "{}")
		want(t, "status", a.status, 502)
		want(t, "problem", a.problem(t), "outcome-unknown")
	}
}

// TestWhatTheUpstreamSees: the request, but for what the package comment names.
func TestWhatTheUpstreamSees(t *testing.T) {
	seen := make(chan *http.Request, 1)
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		seen <- r
		w.Header().Set("Content-Encoding", "br")
		_, _ = io.WriteString(w, "not really br")
	})
	host := strings.TrimPrefix(upstream, "http://")
	forged := []string{
		"X-Forwarded-For: 192.0.2.1", "X-Forwarded-Host: forged.example", "X-Forwarded-Proto: gopher", "Forwarded: for=192.0.2.1",
		"Semel-Fence: 999", "Connection: X-Hop", "X-Hop: 1", "X-Idempotency-Key: other", "X-Own: kept",
	}
	tests := []struct {
		name   string
		change func(*Config)
		want   map[string]string
		host   string
	}{
		{"by default", nil, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "api.example", "X-Forwarded-Proto": "http", "Forwarded": "",
		}, host},
		{"trusting", func(c *Config) { c.TrustForwarded, c.PreserveHost = true, true }, map[string]string{
			"X-Forwarded-For": "192.0.2.1, 127.0.0.1", "X-Forwarded-Host": "forged.example", "X-Forwarded-Proto": "gopher", "Forwarded": "for=192.0.2.1",
		}, "api.example"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBundle(t, upstream+"/base", semel.Policy{}, tt.change)
			req := b.request("POST", "/a%2Fb/c?x=1;y=%zz&x=2", `"k"`, "payload", forged...)
			req.Host = "api.example"
			a := b.send(req)
			want(t, "status", a.status, 200)
			want(t, "body", a.body, "not really br")
			r := <-seen
			want(t, "URI", r.RequestURI, "/base/a%2Fb/c?x=1;y=%zz&x=2")
			want(t, "host", r.Host, tt.host)
			for name, value := range tt.want {
				want(t, name, strings.Join(r.Header.Values(name), ", "), value)
			}
			for name, value := range map[string]string{
				"Idempotency-Key": `"k"`, "X-Idempotency-Key": "other", "Semel-Fence": "1", "X-Hop": "", "X-Own": "kept",
				"Accept-Encoding": "", "Content-Length": "7",
			} {
				want(t, name, strings.Join(r.Header.Values(name), ", "), value)
			}
			body, _ := io.ReadAll(r.Body)
			want(t, "body at the upstream", string(body), "payload")

			// Unprotected: no claim, so no fence.
			want(t, "status", b.post("/plain", "", "payload", forged...).status, 200)
			want(t, "fence of an unprotected request", (<-seen).Header.Get("Semel-Fence"), "")
		})
	}
}

// TestActors: who shares a key with whom.
func TestActors(t *testing.T) {
	var effects atomic.Int64
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, effects.Add(1))
	})
	tests := []struct {
		name   string
		change func(*Config)
		a, b   []string
		same   bool
	}{
		{"one token", nil, []string{"Authorization: Bearer a"}, []string{"Authorization: Bearer a"}, true},
		{"two tokens", nil, []string{"Authorization: Bearer a"}, []string{"Authorization: Bearer b"}, false},
		{"token and nobody", nil, []string{"Authorization: Bearer a"}, nil, false},
		{"two anonymous", nil, []string{"X-Api-Key: a"}, []string{"X-Api-Key: b"}, true},
		{"empty is anonymous", nil, []string{"Authorization: "}, nil, true},
		{"other header", func(c *Config) { c.Credentials = []string{"x-api-key"} }, []string{"X-Api-Key: a"}, []string{"X-Api-Key: b"}, false},
		{"no header of ours", func(c *Config) { c.Credentials = []string{"X-Api-Key"} }, []string{"Authorization: a"}, []string{"Authorization: b"}, true},
		{"both count", func(c *Config) { c.Credentials = []string{"X-Api-Key", "Authorization"} }, []string{"X-Api-Key: a", "Authorization: a"}, []string{"X-Api-Key: a", "Authorization: b"}, false},
		{"which header counts", func(c *Config) { c.Credentials = []string{"X-Api-Key", "Authorization"} }, []string{"X-Api-Key: a"}, []string{"Authorization: a"}, false},
		{"two lines are not one", nil, []string{"Authorization: a", "Authorization: b"}, []string{"Authorization: ab"}, false},
		{"names for one gateway", nil, []string{"Host: a.example"}, []string{"Host: b.example"}, true},
		{"hosts kept", func(c *Config) { c.PreserveHost = true }, []string{"Host: a.example"}, []string{"Host: b.example"}, false},
		{"one host kept", func(c *Config) { c.PreserveHost = true }, []string{"Host: A.example:80"}, []string{"Host: a.example."}, true},
		{"own scope", func(c *Config) {
			c.Scope = func(r *http.Request) (semel.Scope, error) { return semel.Scope{Actor: r.Header.Get("X-User")}, nil }
		}, []string{"X-User: a"}, []string{"X-User: b"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBundle(t, upstream, semel.Policy{}, tt.change)
			do := func(headers []string) answer {
				req := b.request("POST", "/x", "k", "{}", headers...)
				if host := req.Header.Get("Host"); host != "" {
					req.Host = host
				}
				a := b.send(req)
				want(t, "status", a.status, 200)
				return a
			}
			first, second := do(tt.a), do(tt.b)
			want(t, "one effect", first.body == second.body, tt.same)
			want(t, "replayed", second.replayed(), tt.same)
			for _, r := range b.records() {
				if strings.Contains(r.Identity.Actor, "Bearer") {
					t.Errorf("the actor holds the credential: %q", r.Identity.Actor)
				}
				want(t, "operation", r.Identity.Operation, "POST /x")
			}
		})
	}

	t.Run("host that fits no scope", func(t *testing.T) {
		b := newBundle(t, upstream, semel.Policy{}, func(c *Config) { c.PreserveHost = true })
		req := b.request("POST", "/x", "k", "{}")
		req.Host = strings.Repeat("a", 256)
		want(t, "status", b.send(req).status, 400)
	})
}

func TestUnprotected(t *testing.T) {
	var asked atomic.Int64
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %d %s", r.Method, asked.Add(1), body)
	})
	b := newBundle(t, upstream, semel.Policy{}, nil)
	want(t, "no key", b.post("/x", "", "a").body, "POST 1 a")
	want(t, "no key, again", b.post("/x", "", "a").body, "POST 2 a")
	want(t, "safe method with key", b.send(b.request("GET", "/x", "k", "")).body, "GET 3 ")
	want(t, "PUT with key", b.send(b.request("PUT", "/x", "k", "b")).body, "PUT 4 b")
	want(t, "malformed key", b.post("/x", "a,b", "a").status, 400)
	want(t, "records", len(b.records()), 0)

	req := b.request("PUT", "/x", "", "")
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader("of unknown length")), -1
	want(t, "chunked", b.send(req).body, "PUT 5 of unknown length")

	b = newBundle(t, upstream, semel.Policy{}, func(c *Config) {
		c.RequireKey = true
		c.Protects = func(r *http.Request) bool { return r.Method == "PUT" }
	})
	a := b.send(b.request("PUT", "/x", "", "a"))
	want(t, "key required: status", a.status, 400)
	want(t, "key required: problem", a.problem(t), "key-missing")
	want(t, "configured method", b.send(b.request("PUT", "/x", "k", "a")).body, "PUT 6 a")
	want(t, "configured method, again", b.send(b.request("PUT", "/x", "k", "a")).replayed(), true)
	want(t, "method that is not configured", b.post("/x", "", "a").body, "POST 7 a")
}

// TestNothingAdded: the answer has no header that the upstream did not send.
func TestNothingAdded(t *testing.T) {
	upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-One: 1\r\nContent-Length: 6\r\n\r\n<html>")
		return true
	})
	b := newBundle(t, upstream.url, semel.Policy{}, nil)
	for _, key := range []string{"", "k", "k"} {
		a := b.post("/x", key, "{}")
		want(t, "body", a.body, "<html>")
		var names []string
		for name := range a.header {
			if !strings.HasPrefix(name, "Idempotency-") {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		if w := []string{"Content-Length", "Date", "X-One"}; !slices.Equal(names, w) {
			t.Errorf("key %q: the headers are %q, want %q", key, names, w)
		}
	}
}

func TestConnectIsRefused(t *testing.T) {
	b := newBundle(t, handler(t, func(http.ResponseWriter, *http.Request) { t.Error("the upstream was asked") }), semel.Policy{}, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	noError(t, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, "CONNECT example.com:80 HTTP/1.1\r\nHost: example.com:80\r\n\r\n")
	noError(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	noError(t, err)
	want(t, "status line", line, "HTTP/1.1 501 Not Implemented\r\n")
}

// TestRetryTakesOver: under the policy retry the key and the fence travel with
// the call, and the fence rises.
func TestRetryTakesOver(t *testing.T) {
	var fences []string
	var mu sync.Mutex
	upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
		mu.Lock()
		defer mu.Unlock()
		fences = append(fences, r.Header.Get("Idempotency-Key")+" "+r.Header.Get("Semel-Fence"))
		_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
		return true
	})
	b := newBundle(t, upstream.url, semel.Policy{OnCrash: semel.CrashRetry}, nil)
	// Somebody claimed it and died.
	lapsed := semel.NewAttempt(semel.Identity{Scope: semel.Scope{Operation: "POST /x"}, Key: "k"}, semel.Fingerprint{}, time.Nanosecond, time.Hour)
	_, err := b.store.Begin(context.Background(), lapsed)
	noError(t, err)
	want(t, "status", b.post("/x", "k", "{}").status, 201)
	if w := []string{"k 2"}; !slices.Equal(fences, w) {
		t.Errorf("the upstream saw %q, want %q", fences, w)
	}
}

// TestRetryIsRefused: that this attempt sent nothing says nothing of the one it
// took over.
func TestRetryIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	noError(t, l.Close())
	b := newBundle(t, "http://"+l.Addr().String(), semel.Policy{OnCrash: semel.CrashRetry}, nil)
	lapsed := semel.NewAttempt(semel.Identity{Scope: semel.Scope{Operation: "POST /x"}, Key: "k"}, semel.Fingerprint{}, time.Nanosecond, time.Hour)
	_, err = b.store.Begin(context.Background(), lapsed)
	noError(t, err)
	a := b.post("/x", "k", "{}")
	want(t, "status", a.status, 502)
	want(t, "problem", a.problem(t), "outcome-unknown")
	want(t, "state", b.record().State, semel.StateUnknown)
}

func TestConfig(t *testing.T) {
	_, err := New(Config{
		Credentials: []string{"Idempotency-Key", "no header", "Connection", "Host"}, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{}, nil },
		DialTimeout: -1, IdleTimeout: -1, MaxConns: -1, MaxResult: -1, MaxInline: -1, SpoolDir: "not/there",
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{
		"Upstream is nil", "Guard is nil", "Credentials is set, but so is Scope", `"Idempotency-Key", which is the key itself`,
		`"no header", which is not a header name`, `"Connection", which belongs`, `"Host", which`, "DialTimeout", "IdleTimeout", "MaxConns", "MaxResult", "MaxInline", "spools: field Dir",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %q:\n%v", part, err)
		}
	}
	for _, u := range []string{"ftp://x", "http://", "http://u:p@x", "http://x/?q=1", "http://x/#f", "x:9000"} {
		upstream, err := url.Parse(u)
		noError(t, err)
		if checkUpstream(upstream) == nil {
			t.Errorf("%s is taken for an upstream", u)
		}
	}
}

// TestStoreUnavailable: closed by default, open if so configured.
func TestStoreUnavailable(t *testing.T) {
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint(open), func(t *testing.T) {
			var asked atomic.Int64
			upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				want(t, "fence", r.Header.Get("Semel-Fence"), "")
			})
			u, err := url.Parse(upstream)
			noError(t, err)
			guard, err := semel.New(semel.Config{Store: deadStore{}, Policy: semel.Policy{Lease: 20 * time.Millisecond}})
			noError(t, err)
			g, err := New(Config{Upstream: u, Guard: guard, FailOpen: open})
			noError(t, err)
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/x", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", "k")
			g.ServeHTTP(w, r)
			if open {
				want(t, "status", w.Code, 200)
				want(t, "requests", asked.Load(), 1)
			} else {
				want(t, "status", w.Code, 503)
				want(t, "requests", asked.Load(), 0)
				var p semelhttp.Problem
				p, err = semelhttp.ParseProblem(w.Body, w.Header().Get("Content-Type"))
				noError(t, err)
				want(t, "retry", p.Retry, semel.RetrySameKey)
			}
			noError(t, g.Drain(context.Background()))
		})
	}
}

type deadStore struct{}

func (deadStore) Begin(context.Context, semel.Attempt) (semel.Claim, error) {
	return nil, errors.New("down")
}

func (deadStore) Find(context.Context, semel.Identity) (semel.Record, error) {
	return semel.Record{}, errors.New("down")
}
