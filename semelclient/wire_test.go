package semelclient_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
)

// rawServer reads requests off TCP connections. It answers each on /warm, and
// hands the others, read whole, to serve, which says whether the connection
// goes on.
type rawServer struct {
	url   string
	asked atomic.Int64 // requests other than those on /warm
	heads chan string  // their heads as they were on the wire
}

func newRawServer(t *testing.T, serve func(c net.Conn) bool) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{url: "http://" + l.Addr().String(), heads: make(chan string, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.serve(c, serve) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return s
}

func (s *rawServer) serve(c net.Conn, serve func(net.Conn) bool) {
	defer func() { _ = c.Close() }()
	var head strings.Builder
	in := bufio.NewReader(io.TeeReader(c, &head))
	for {
		head.Reset()
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			return
		}
		if r.URL.Path == "/warm" {
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			continue
		}
		s.asked.Add(1)
		s.heads <- head.String()
		if !serve(c) {
			return
		}
	}
}

// warm leaves an idle connection behind.
func (s *rawServer) warm(t *testing.T, tr http.RoundTripper) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/warm", nil)
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := roundTrip(t, tr, r); status != 204 {
		t.Fatalf("status %d", status)
	}
}

func closing(t *testing.T, base *http.Transport) *http.Transport {
	t.Helper()
	t.Cleanup(base.CloseIdleConnections)
	return base
}

// oneSend are requests that net/http may or may not send again by itself.
var oneSend = []struct {
	name, method, body string
	header             http.Header
	tries              int  // with MaxTries 3
	bySelf             bool // net/http sends it twice
}{
	{"POST", "POST", "{}", nil, 3, false},
	{"POST with key", "POST", "{}", http.Header{"Idempotency-Key": {"k"}}, 3, true},
	{"POST with key, empty", "POST", "", http.Header{"Idempotency-Key": {"k"}}, 3, true},
	{"POST empty", "POST", "", nil, 3, false},
	{"PATCH with key, empty", "PATCH", "", http.Header{"Idempotency-Key": {"k"}}, 3, true},
	{"POST with field without values", "POST", "{}", http.Header{"Idempotency-Key": nil}, 3, true},
	{"POST with field without values, empty", "POST", "", http.Header{"Idempotency-Key": nil}, 3, true},
	{"PUT", "PUT", "{}", nil, 3, false},
	{"PUT with key", "PUT", "{}", http.Header{"Idempotency-Key": {"k"}}, 3, true},
	{"DELETE", "DELETE", "", nil, 3, false},
	{"DELETE with key", "DELETE", "", http.Header{"Idempotency-Key": {"k"}}, 3, true},
	{"POST with both fields", "POST", "", http.Header{"X-Idempotency-Key": {"k"}, "Idempotency-Key": {"k"}}, 3, true},
	// Not ours to try again: this transport was told that LOCK needs no key.
	{"LOCK with the other field", "LOCK", "", http.Header{"X-Idempotency-Key": {"k"}}, 1, true},
	{"LOCK with the other field and body", "LOCK", "{}", http.Header{"X-Idempotency-Key": {"k"}}, 1, true},
	{"LOCK with the other field without values", "LOCK", "", http.Header{"X-Idempotency-Key": nil}, 1, true},
	{"LOCK", "LOCK", "{}", nil, 1, false},
}

// TestTransportOneSend: the server reads each request whole, which is an effect,
// and closes the connection, which was used before, without an answer. It must
// see as many requests as there were tries. The control shows that net/http
// alone sends some twice.
func TestTransportOneSend(t *testing.T) {
	for _, tt := range oneSend {
		t.Run(tt.name, func(t *testing.T) {
			send := func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) *rawServer {
				s := newRawServer(t, func(net.Conn) bool { return false })
				base := closing(t, &http.Transport{})
				s.warm(t, base)
				r := request(t, t.Context(), tt.method, tt.body)
				r.URL.Host = strings.TrimPrefix(s.url, "http://")
				r.Header = tt.header.Clone()
				if r.Header == nil {
					r.Header = http.Header{}
				}
				if resp, err := wrap(base).RoundTrip(r); err == nil {
					t.Fatalf("status %d", resp.StatusCode)
				}
				return s
			}
			var tried atomic.Int64
			s := send(t, func(base http.RoundTripper) http.RoundTripper {
				return transport(t, base, func(c *semelclient.Config) {
					c.MaxTries = 3
					c.Observer.Tried = func(context.Context, semelclient.Tried) { tried.Add(1) }
				})
			})
			if s.asked.Load() != int64(tt.tries) || tried.Load() != int64(tt.tries) {
				t.Errorf("the server saw %d requests, the observer %d tries; want %d", s.asked.Load(), tried.Load(), tt.tries)
			}
			wantBySelf := int64(1)
			if tt.bySelf {
				wantBySelf = 2
			}
			control := send(t, func(base http.RoundTripper) http.RoundTripper { return base })
			if control.asked.Load() != wantBySelf {
				t.Errorf("control: net/http alone sent %d requests; this test assumes %d", control.asked.Load(), wantBySelf)
			}
		})
	}
}

// TestTransportOneSendHTTP2: a stream that the server resets as refused was not
// processed (RFC 9113 8.7). With a body, the transport decides about another
// try; without one, net/http sends it again by itself. That is the exception
// that Transport documents, and when net/http ends it, so should the text.
func TestTransportOneSendHTTP2(t *testing.T) {
	for body, wantTries := range map[string]int64{"{}": 2, "": 1} {
		var asked, tried atomic.Int64
		conns := make(chan net.Conn, 1)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
			refuseFirst(c, &asked)
		})
		unencrypted := new(http.Protocols)
		unencrypted.SetUnencryptedHTTP2(true)
		base := &http.Transport{Protocols: unencrypted}
		tr := transport(t, base, func(c *semelclient.Config) {
			c.Observer.Tried = func(context.Context, semelclient.Tried) { tried.Add(1) }
		})
		r := request(t, t.Context(), "POST", body)
		r.URL.Host = l.Addr().String()
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || asked.Load() != 2 || tried.Load() != wantTries {
			t.Errorf("body %q: %d requests in %d tries; want 2 in %d", body, asked.Load(), tried.Load(), wantTries)
		}
		base.CloseIdleConnections()
		_ = (<-conns).Close()
		_ = l.Close()
		wg.Wait()
	}
}

// refuseFirst speaks just enough HTTP/2 (RFC 9113) to reset the first stream of
// a connection with REFUSED_STREAM and to answer the others with 200.
func refuseFirst(c net.Conn, asked *atomic.Int64) {
	const (
		headers, rstStream, settings, ping = 1, 3, 4, 6
		ack, endStreamAndHeaders           = 1, 5
	)
	write := func(kind, flags byte, stream []byte, payload ...byte) {
		_, _ = c.Write(slices.Concat([]byte{0, 0, byte(len(payload)), kind, flags}, stream, payload))
	}
	connection := make([]byte, 4)
	in := bufio.NewReader(c)
	if _, err := in.Discard(24); err != nil { // the preface
		return
	}
	write(settings, 0, connection)
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(in, payload); err != nil {
			return
		}
		switch kind, flags := head[3], head[4]; {
		case kind == settings && flags != ack:
			write(settings, ack, connection)
		case kind == ping && flags != ack:
			write(ping, ack, connection, payload...)
		case kind == headers && asked.Add(1) == 1:
			write(rstStream, 0, head[5:], 0, 0, 0, 7)
		case kind == headers:
			write(headers, endStreamAndHeaders, head[5:], 0x88) // :status 200 (RFC 7541 A)
		}
	}
}

// TestTransportEmptyBodyOnTheWire: what hides the key from net/http changes
// nothing for the server.
func TestTransportEmptyBodyOnTheWire(t *testing.T) {
	s := newRawServer(t, func(c net.Conn) bool {
		_, err := io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
		return err == nil
	})
	r := request(t, semelclient.WithKey(t.Context(), "k"), "POST", "")
	r.URL.Host = strings.TrimPrefix(s.url, "http://")
	resp, err := transport(t, closing(t, &http.Transport{})).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	head := strings.ToLower(<-s.heads)
	for _, line := range []string{"post /orders http/1.1\r\n", "\r\nidempotency-key: \"k\"\r\n", "\r\ncontent-length: 0\r\n"} {
		if strings.Count(head, line) != 1 {
			t.Errorf("%q is not once in %q", line, head)
		}
	}
	if strings.Contains(head, "transfer-encoding") {
		t.Errorf("the body has no length: %q", head)
	}
	if got := resp.Request.Header[semelhttp.HeaderKey]; !slices.Equal(got, []string{`"k"`}) {
		t.Errorf("the response's request has the key %q", got)
	}
}

// TestTransportLostAnswer: the server executes, its answer is lost, and the
// retry gets it replayed. One effect.
func TestTransportLostAnswer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, body := range []string{`{"item":"book"}`, ""} {
			t.Run(fmt.Sprintf("http2 %v, body %q", http2, body), func(t *testing.T) {
				var o orders
				s := serve(t, lossy(protect(t, &o, func(c *semelhttp.Config) { c.RequireKey, c.StrictKey = true, true }), 2), http2)
				client := s.Client()
				client.Transport = transport(t, client.Transport)
				resp, err := client.Post(s.URL+"/orders", "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.StatusCode != 201 || string(got) != `{"id":1}` || resp.Header.Get(semelhttp.HeaderReplayed) != "true" || resp.Proto != map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2] {
					t.Errorf("%s %d %q %v, %v", resp.Proto, resp.StatusCode, got, resp.Header, err)
				}
				o.want(t, 1)
			})
		}
	}
}

// TestTransportLostAnswerLater: the client gives up, and comes back with the key
// that the error has. One effect.
func TestTransportLostAnswerLater(t *testing.T) {
	var o orders
	s := serve(t, lossy(protect(t, &o), 2), false)
	client := &http.Client{Transport: transport(t, s.Client().Transport, func(c *semelclient.Config) { c.MaxTries = 2 })}
	post := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/orders", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		return client.Do(r)
	}
	_, err := post(t.Context())
	e := failure(t, err)
	if !errors.Is(err, semel.ErrMaybeEffect) || errors.Is(err, semel.ErrNoEffect) || e.Tries != 2 {
		t.Fatalf("error %v", err)
	}
	o.want(t, 1)
	resp, err := post(semelclient.WithOperation(t.Context(), e.Operation()))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 201 || resp.Header.Get(semelhttp.HeaderReplayed) != "true" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	o.want(t, 1)
}

// TestTransportWaitsForTheFirst: a try is cut off while the server still
// executes; the next ones are told so, and the last gets the result. In virtual
// time, over connections in memory.
func TestTransportWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o orders
		slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Second)
			o.ServeHTTP(w, r)
		})
		dial, stop := inMemory(protect(t, slow))
		defer stop()
		base := &http.Transport{DialContext: dial}
		defer base.CloseIdleConnections()
		var statuses []int
		tr := transport(t, base, func(c *semelclient.Config) {
			c.TryTimeout = time.Second
			c.Observer.Tried = func(_ context.Context, g semelclient.Tried) { statuses = append(statuses, g.Status) }
		})
		resp, err := tr.RoundTrip(request(t, t.Context(), "POST", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 201 || resp.Header.Get(semelhttp.HeaderReplayed) != "true" || !slices.Equal(statuses, []int{0, 409, 409, 201}) {
			t.Errorf("statuses %v, %v", statuses, resp.Header)
		}
		o.want(t, 1)
	})
}

// TestTransportRedirect: http.Client follows 307 with the key of the first
// request, and the response tells it.
func TestTransportRedirect(t *testing.T) {
	var keys []string
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		switch r.URL.Path {
		case "/orders":
			http.Redirect(w, r, "/v2/orders", http.StatusTemporaryRedirect)
		case "/v2/orders":
			http.Redirect(w, r, "/v3/orders", http.StatusPermanentRedirect)
		case "/v3/orders":
			http.Redirect(w, r, "/done", http.StatusSeeOther)
		}
	}), false)
	client := &http.Client{Transport: transport(t, s.Client().Transport)}
	resp, err := client.Post(s.URL+"/orders", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if len(keys) != 4 || keys[0] == "" || keys[1] != keys[0] || keys[2] != keys[0] || keys[3] != "" {
		t.Errorf("keys %q", keys)
	}
}

// TestTransportDeadlines: url.Error and net.Error know a timeout for one. An
// http.Client's own may hide what the transport said, a context's does not.
func TestTransportDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := transport(t, &script{answers: []play{hang}})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for name, do := range map[string]func() (*http.Response, error){
			"client": func() (*http.Response, error) {
				return (&http.Client{Transport: hangs, Timeout: 5 * time.Second}).Do(request(t, t.Context(), "POST", "{}"))
			},
			"context": func() (*http.Response, error) {
				return (&http.Client{Transport: hangs}).Do(request(t, ctx, "POST", "{}"))
			},
		} {
			_, err := do()
			timeout, ok := errors.AsType[net.Error](err)
			_, ours := errors.AsType[*semelclient.Error](err)
			if !ok || !timeout.Timeout() || !errors.Is(err, context.DeadlineExceeded) || name == "context" && !ours {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestTransportConnectionReuse: a try whose answer is thrown away, and one whose
// answer is read, leave their connection to the next.
func TestTransportConnectionReuse(t *testing.T) {
	var n atomic.Int64
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%2 == 1 {
			w.WriteHeader(503)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
	}), false)
	var dials int
	base := closing(t, &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}})
	tr := transport(t, base)
	for range 3 {
		r := request(t, t.Context(), "POST", "{}")
		r.URL.Host = strings.TrimPrefix(s.URL, "http://")
		roundTrip(t, tr, r)
	}
	if dials != 1 || n.Load() != 6 {
		t.Errorf("%d connections for %d requests", dials, n.Load())
	}
	tr.CloseIdleConnections()
	r := request(t, t.Context(), "POST", "{}")
	r.URL.Host = strings.TrimPrefix(s.URL, "http://")
	roundTrip(t, tr, r)
	if dials != 2 {
		t.Errorf("%d connections; the idle one was not closed", dials)
	}
}
