package gateway

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
)

// The types of HTTP/2 frames (RFC 9113 6) and two flags.
const (
	frameHeaders  = 0x1
	frameReset    = 0x3
	frameSettings = 0x4
	framePing     = 0x6
	frameGoAway   = 0x7

	flagAck        = 0x1
	flagEndStream  = 0x1
	flagEndHeaders = 0x4
)

// frame is an HTTP/2 frame as on the wire.
func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(head, stream), payload...)
}

func code(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// rawHTTP2 is an upstream that says something to each request, as it likes, and
// counts them. then reports whether to go on with the connection.
func rawHTTP2(t *testing.T, then func(c net.Conn, stream uint32) bool) (address string, requests *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	requests = new(atomic.Int64)
	serve := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		r := bufio.NewReader(c)
		if _, err := io.ReadFull(r, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
			return
		}
		_, _ = c.Write(frame(frameSettings, 0, 0))
		for {
			var head [9]byte
			if _, err := io.ReadFull(r, head[:]); err != nil {
				return
			}
			payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
			if _, err := io.ReadFull(r, payload); err != nil {
				return
			}
			switch kind, flags := head[3], head[4]; {
			case kind == frameSettings && flags&flagAck == 0:
				_, _ = c.Write(frame(frameSettings, flagAck, 0))
			case kind == framePing && flags&flagAck == 0:
				_, _ = c.Write(frame(framePing, flagAck, 0, payload...))
			case kind == frameHeaders:
				if requests.Add(1) > 1 { // or it would come again for a minute
					_, _ = c.Write(frame(frameHeaders, flagEndHeaders|flagEndStream, binary.BigEndian.Uint32(head[5:]), 0x88))
				} else if !then(c, binary.BigEndian.Uint32(head[5:])) {
					return
				}
			}
		}
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + listener.Addr().String(), requests
}

// by is a change of a bundle's configuration: its upstream is reached so.
func by(t *testing.T, how UpstreamConfig) func(*Config) {
	return func(c *Config) {
		how.URL = c.Upstream
		via, err := NewUpstream(how)
		noError(t, err)
		c.Upstream, c.Via = nil, via
	}
}

// However an HTTP/2 upstream breaks off, it has seen a protected or unsafe request
// once, and the outcome of a protected one is unknown.
func TestOneDecisionOneSendByHTTP2(t *testing.T) {
	reset := func(code_ uint32) func(net.Conn, uint32) bool {
		return func(c net.Conn, stream uint32) bool {
			_, _ = c.Write(frame(frameReset, 0, stream, code(code_)...))
			return true
		}
	}
	goAway := func(last, code_ uint32) func(net.Conn, uint32) bool {
		return func(c net.Conn, _ uint32) bool {
			_, _ = c.Write(frame(frameGoAway, 0, 0, append(code(last), code(code_)...)...))
			return false
		}
	}
	for breaks, then := range map[string]func(net.Conn, uint32) bool{
		"refused stream":    reset(7),
		"protocol error":    reset(1),
		"internal error":    reset(2),
		"enhance your calm": reset(11),
		"no error":          reset(0),
		"go away, none":     goAway(0, 0),
		"go away, this":     goAway(1, 0),
		"go away, all":      goAway(1<<31-1, 0),
		"go away, protocol": goAway(0, 1),
		"closed":            func(net.Conn, uint32) bool { return false },
		"closed with header": func(c net.Conn, s uint32) bool {
			_, _ = c.Write(frame(frameHeaders, flagEndHeaders, s, 0x88))
			return false
		},
	} {
		for size, body := range map[string]string{"empty": "", "small": "{}", "large": strings.Repeat("x", 200<<10)} {
			for _, key := range []string{"", "k"} {
				t.Run(fmt.Sprintf("%s/%s/key %q", breaks, size, key), func(t *testing.T) {
					t.Parallel()
					upstream, requests := rawHTTP2(t, then)
					b := newBundle(t, upstream, semel.Policy{}, by(t, UpstreamConfig{HTTP2: true}))
					req := b.request(http.MethodPost, "/pay", key, body)
					if res, err := b.client.Do(req); err == nil { // or the connection was cut off, as it has to be
						_, _ = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
						if res.StatusCode < 400 && breaks != "closed with header" {
							t.Errorf("status %d", res.StatusCode)
						}
					}
					want(t, "the number of requests that the upstream saw", requests.Load(), 1)
					if key != "" {
						want(t, "the record's state", b.record().State, semel.StateUnknown)
					}
				})
			}
		}
	}
}

// What an HTTP/2 upstream answers is recorded and replayed as HTTP/1.1's, with
// trailers, over TLS, in clear, and over a Unix socket.
func TestHTTP2Upstream(t *testing.T) {
	var effects atomic.Int64
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "Digest")
		w.Header().Set("X-Saw", fmt.Sprint(r.Proto, " ", r.Method, " ", r.Header.Get("Idempotency-Key"), " ", r.Header.Get("Upgrade"), " ", len(body)))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid")
		w.Header().Set("Digest", "d")
	})
	for _, way := range []string{"tls", "clear", "socket", "http/1.1 on a socket"} {
		t.Run(way, func(t *testing.T) {
			effects.Store(0)
			server := httptest.NewUnstartedServer(serve)
			proto := "HTTP/2.0"
			how := UpstreamConfig{HTTP2: true}
			server.Config.Protocols = new(http.Protocols)
			switch way {
			case "tls":
				server.EnableHTTP2 = true
				server.Config.Protocols.SetHTTP2(true)
				server.StartTLS()
				roots := x509.NewCertPool()
				roots.AddCert(server.Certificate())
				how.TLS = &tls.Config{RootCAs: roots}
			case "clear":
				server.Config.Protocols.SetUnencryptedHTTP2(true)
				server.Start()
			default:
				path := filepath.Join(t.TempDir(), "s")
				listener, err := net.Listen("unix", path)
				noError(t, err)
				_ = server.Listener.Close()
				server.Listener = listener
				server.Config.Protocols.SetUnencryptedHTTP2(true)
				server.Config.Protocols.SetHTTP1(true)
				server.Start()
				server.URL = "http://orders"
				how.Socket = path
				if way != "socket" {
					proto = "HTTP/1.1"
					how.HTTP2 = false
				}
			}
			t.Cleanup(server.Close)
			b := newBundle(t, server.URL, semel.Policy{}, by(t, how))
			for i, body := range []string{"", "{}", strings.Repeat("x", 200<<10)} {
				key := fmt.Sprint("k", i)
				first := b.post("/pay", key, body, "Connection: Upgrade", "Upgrade: h2c")
				again := b.post("/pay", key, body)
				want(t, "the first status", first.status, http.StatusCreated)
				want(t, "what the upstream saw", first.header.Get("X-Saw"), fmt.Sprint(proto, " POST ", key, "  ", len(body)))
				want(t, "the first body", first.body, "paid")
				want(t, "replayed", again.replayed(), true)
				want(t, "the replay's X-Saw", again.header.Get("X-Saw"), first.header.Get("X-Saw"))
				want(t, "effects", effects.Load(), int64(i+1))
			}
			// Unprotected, and asking for another protocol, which is not to be had.
			got := b.send(b.request(http.MethodGet, "/", "", "", "Connection: Upgrade", "Upgrade: websocket"))
			want(t, "an upgrade's status", got.status, http.StatusCreated)
		})
	}
}

// An upstream that does not speak HTTP/2 gets no request.
func TestNoHTTP2Upstream(t *testing.T) {
	var requests atomic.Int64
	count := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != "PRI" { // the preface, made to be taken for this
			requests.Add(1)
		}
	})
	clear := httptest.NewServer(count)
	t.Cleanup(clear.Close)
	encrypted := httptest.NewTLSServer(count)
	t.Cleanup(encrypted.Close)
	for _, server := range []*httptest.Server{clear, encrypted} {
		u, err := url.Parse(server.URL)
		noError(t, err)
		t.Run(u.Scheme, func(t *testing.T) {
			roots := x509.NewCertPool()
			if server.Certificate() != nil {
				roots.AddCert(server.Certificate())
			}
			b := newBundle(t, server.URL, semel.Policy{}, by(t, UpstreamConfig{HTTP2: true, TLS: &tls.Config{RootCAs: roots}}))
			if got := b.post("/pay", "k", "{}"); got.status < 400 {
				t.Errorf("status %d", got.status)
			}
			want(t, "requests", requests.Load(), 0)
		})
	}
}
