package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// rawUpstream reads requests off TCP connections. It answers each request on
// /warm, and hands the others, read whole, to serve, which says whether the
// connection goes on.
type rawUpstream struct {
	url   string
	conns atomic.Int64
	asked atomic.Int64 // requests other than those on /warm
}

func newRawUpstream(t *testing.T, serve func(c net.Conn, r *http.Request, body string) bool) *rawUpstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	u := &rawUpstream{url: "http://" + l.Addr().String()}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u.conns.Add(1)
			go u.serve(c, serve)
		}
	}()
	return u
}

func (u *rawUpstream) serve(c net.Conn, serve func(net.Conn, *http.Request, string) bool) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if r.URL.Path == "/warm" {
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			continue
		}
		u.asked.Add(1)
		if !serve(c, r, string(body)) {
			return
		}
	}
}

// TestOneDecisionOneSend: the upstream reads a whole request on a reused
// connection, which is an effect, and closes without an answer. Go's transport
// would send the request again.
func TestOneDecisionOneSend(t *testing.T) {
	tests := []struct {
		name, method, body, header string
		protected                  bool
	}{
		{"with body", "POST", "{}", "Idempotency-Key: k", true},
		{"without body", "POST", "", "Idempotency-Key: k", true},
		{"PATCH without body", "PATCH", "", "Idempotency-Key: k", true},
		{"other header, without body", "POST", "", "X-Idempotency-Key: k", false},
		{"both headers, without body", "POST", "", "Idempotency-Key: k\nX-Idempotency-Key: k", true},
		{"unprotected method, without body", "DELETE", "", "Idempotency-Key: k", false},
		{"unprotected method, with body", "PUT", "{}", "Idempotency-Key: k", false},
		{"no key", "POST", "", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			upstream := newRawUpstream(t, func(net.Conn, *http.Request, string) bool { return false })
			b := newBundle(t, upstream.url, semel.Policy{}, nil)
			want(t, "status of the first request on the connection", b.send(b.request("GET", "/warm", "", "")).status, 204)

			var headers []string
			if tt.header != "" {
				headers = strings.Split(tt.header, "\n")
			}
			a := b.send(b.request(tt.method, "/effect", "", tt.body, headers...))
			// The transport has given up, so nothing can be sent any more.
			want(t, "effects", upstream.asked.Load(), 1)
			want(t, "connections", upstream.conns.Load(), 1)
			if !tt.protected {
				want(t, "status", a.status, 502)
				want(t, "problem", a.problem(t), "upstream-failed")
				return
			}
			want(t, "status", a.status, 502)
			want(t, "problem", a.problem(t), "outcome-unknown")
			r := b.record()
			want(t, "state", r.State, semel.StateUnknown)
			want(t, "cause", r.Cause, "the connection to the upstream broke before it answered")

			a = b.send(b.request(tt.method, "/effect", "", tt.body, headers...))
			want(t, "status of the retry", a.status, 409)
			want(t, "problem of the retry", a.problem(t), "outcome-unknown")
			want(t, "effects after the retry", upstream.asked.Load(), 1)
		})
	}
}

// TestEmptyBodyOnTheWire: hiding the key from the transport changes nothing for
// the upstream.
func TestEmptyBodyOnTheWire(t *testing.T) {
	var head string
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer func() { _ = l.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			head += line
		}
		_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
	}()
	b := newBundle(t, "http://"+l.Addr().String(), semel.Policy{}, nil)
	want(t, "status", b.post("/x", `"k"`, "").status, 201)
	<-done
	lower := strings.ToLower(head)
	for _, line := range []string{"post /x http/1.1\r\n", "\r\nidempotency-key: \"k\"\r\n", "\r\ncontent-length: 0\r\n"} {
		want(t, "occurrences of "+line, strings.Count(lower, line), 1)
	}
	want(t, "occurrences of transfer-encoding", strings.Count(lower, "transfer-encoding"), 0)
}

// TestRefused: nobody listens. Nothing was sent, and the key stays free.
func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	noError(t, l.Close())
	b := newBundle(t, "http://"+l.Addr().String(), semel.Policy{}, nil)
	a := b.post("/x", "k", "{}")
	want(t, "status", a.status, 503)
	want(t, "Retry-After", a.header.Get("Retry-After"), "1")
	want(t, "problem", a.problem(t), "upstream-unreachable")
	want(t, "advice", strings.Contains(a.body, `"retry":"same-key"`), true)
	want(t, "records", len(b.records()), 0)
	f := b.failures()
	if len(f) != 1 || f[0].Sent || f[0].Answered || f[0].RecordID == "" || f[0].Err == nil {
		t.Errorf("the observer was told %+v", f)
	}

	a = b.post("/x", "", "{}")
	want(t, "unprotected: status", a.status, 503)
	want(t, "unprotected: advice on keys", strings.Contains(a.body, `"retry"`), false)
}

// TestHandshakeFails: the bytes of a handshake are none of the request.
func TestHandshakeFails(t *testing.T) {
	var refuse atomic.Bool
	refuse.Store(true)
	var effects atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		w.WriteHeader(201)
	}))
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if refuse.Load() {
			return nil, errors.New("not now")
		}
		return nil, nil
	}}
	server.Config.ErrorLog = discard
	server.StartTLS()
	defer server.Close()
	b := newBundle(t, server.URL, semel.Policy{}, func(c *Config) {
		c.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
	})
	a := b.post("/x", "k", "{}")
	want(t, "status", a.status, 503)
	want(t, "problem", a.problem(t), "upstream-unreachable")
	want(t, "records", len(b.records()), 0)

	refuse.Store(false)
	a = b.post("/x", "k", "{}")
	want(t, "status with the same key", a.status, 201)
	want(t, "replayed", a.replayed(), false)
	want(t, "effects", effects.Load(), 1)
}

// TestNoConnectionInTime: the deadline passes while the request waits for a
// connection.
func TestNoConnectionInTime(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var effects atomic.Int64
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			close(entered)
			<-leave
			return
		}
		effects.Add(1)
	})
	b := newBundle(t, upstream, semel.Policy{Deadline: 50 * time.Millisecond}, func(c *Config) { c.MaxConns = 1 })
	done := make(chan answer)
	go func() { done <- b.send(b.request("GET", "/hold", "", "")) }()
	<-entered
	a := b.post("/x", "k", "{}")
	want(t, "status", a.status, 503)
	want(t, "problem", a.problem(t), "upstream-unreachable")
	want(t, "records", len(b.records()), 0)
	close(leave)
	want(t, "status of the other", (<-done).status, 200)
	want(t, "effects", effects.Load(), 0)
}

// TestDeadline: the upstream has the request and does not answer.
func TestDeadline(t *testing.T) {
	var effects atomic.Int64
	upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		_, _ = io.ReadAll(r.Body)
		<-r.Context().Done()
	})
	b := newBundle(t, upstream, semel.Policy{Deadline: 50 * time.Millisecond}, nil)
	a := b.post("/x", "k", "{}")
	want(t, "status", a.status, 504)
	want(t, "problem", a.problem(t), "outcome-unknown")
	want(t, "effects", effects.Load(), 1)
	want(t, "state", b.record().State, semel.StateUnknown)
	told := b.failures()
	want(t, "failures", len(told), 1)
	want(t, "gave up, as the observer is told", told[0].GaveUp && errors.Is(told[0].Err, semel.ErrDeadline), true)
	want(t, "cause", b.record().Cause, "the gateway gave up waiting for the upstream at the operation's deadline")
	want(t, "status of the retry", b.post("/x", "k", "{}").status, 409)
}

// brokenConn lets a number of writes through and then writes n more bytes.
type brokenConn struct {
	net.Conn
	allowed *atomic.Int64
	n       int
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.allowed.Add(-1) >= 0 {
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:c.n])
	return n, errors.Join(err, errors.New("broken pipe"))
}

// TestDeadConnection: a reused connection fails while the request is written.
func TestDeadConnection(t *testing.T) {
	tests := []struct {
		name    string
		body    string
		n       int // bytes that were written
		status  int
		effects int64
	}{
		{"nothing written", "{}", 0, 503, 0},
		// The transport may take another connection then: that is no second send.
		{"nothing written, empty body", "", 0, 201, 1},
		{"one byte written", "{}", 1, 502, 0},
		{"one byte written, empty body", "", 1, 502, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			upstream := newRawUpstream(t, func(c net.Conn, r *http.Request, body string) bool {
				_, err := io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
				return err == nil
			})
			b := newBundle(t, upstream.url, semel.Policy{}, nil)
			dial := b.gateway.upstream.transport.DialContext
			dials := 0
			b.gateway.upstream.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				if dials++; err == nil && dials == 1 {
					allowed := new(atomic.Int64)
					allowed.Store(1)
					ours := c.(*conn)
					ours.Conn = &brokenConn{ours.Conn, allowed, tt.n}
				}
				return c, err
			}
			want(t, "status of the first", b.send(b.request("GET", "/warm", "", "")).status, 204)
			a := b.post("/x", "k", tt.body)
			want(t, "status", a.status, tt.status)
			want(t, "effects", upstream.asked.Load(), tt.effects)
			switch tt.status {
			case 503:
				want(t, "records", len(b.records()), 0)
			case 502:
				want(t, "problem", a.problem(t), "outcome-unknown")
			}
		})
	}
}

// TestSeal: what is sealed can no longer be written, and what is being written
// cannot be sealed.
func TestSeal(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	c := &conn{Conn: near}
	written := make(chan error)
	go func() {
		_, err := c.Write([]byte("xy"))
		written <- err
	}()
	one := make([]byte, 1)
	_, err := io.ReadFull(far, one)
	noError(t, err)
	want(t, "sealed while writing", c.seal(0), false)
	_, err = io.ReadFull(far, one)
	noError(t, err)
	noError(t, <-written)
	want(t, "sealed after a write", c.seal(0), false)
	want(t, "sealed when all was written before", c.seal(c.mark()), true)
	if n, err := c.Write([]byte("z")); n != 0 || err == nil {
		t.Errorf("a sealed connection wrote %d bytes, error %v", n, err)
	}
}

// TestUpstreamOverTLS: HTTP/1.1 is spoken also to an upstream that offers more.
func TestUpstreamOverTLS(t *testing.T) {
	proto := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto <- r.Proto
		w.WriteHeader(201)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	b := newBundle(t, server.URL, semel.Policy{}, func(c *Config) {
		c.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
	})
	want(t, "status", b.post("/x", "k", "{}").status, 201)
	want(t, "protocol", <-proto, "HTTP/1.1")
	want(t, "replayed", b.post("/x", "k", "{}").replayed(), true)
}

// TestTruncatedTLS: a body that ends with the connection is whole only if the
// TLS connection was closed in order (RFC 9112 8).
func TestTruncatedTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	config := server.TLS.Clone()
	roots := server.Client().Transport.(*http.Transport).TLSClientConfig
	server.Close()
	config.NextProtos = nil
	for _, inOrder := range []bool{true, false} {
		t.Run(map[bool]string{true: "closed in order", false: "cut off"}[inOrder], func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			noError(t, err)
			defer func() { _ = l.Close() }()
			go func() {
				raw, err := l.Accept()
				if err != nil {
					return
				}
				defer func() { _ = raw.Close() }()
				c := tls.Server(raw, config)
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = io.ReadAll(r.Body)
				_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhalf or whole")
				if inOrder {
					_ = c.CloseWrite()
				}
				_ = raw.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, raw)
			}()
			b := newBundle(t, "https://"+l.Addr().String(), semel.Policy{}, func(c *Config) {
				c.TLS = roots
			})
			a := b.post("/x", "k", "{}")
			if inOrder {
				want(t, "status", a.status, 200)
				want(t, "body", a.body, "half or whole")
				return
			}
			want(t, "status", a.status, 502)
			want(t, "problem", a.problem(t), "outcome-unknown")
		})
	}
}
