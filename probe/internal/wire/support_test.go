package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// server is a TCP server made of a function for a connection. It knows all
// that it was sent.
type server struct {
	addr string

	mu    sync.Mutex
	conns []*serverConn
	wg    sync.WaitGroup
	first chan struct{} // closed when a connection has come
}

type serverConn struct {
	*net.TCPConn
	r *bufio.Reader // over read

	mu   sync.Mutex
	read bytes.Buffer // all that has come

	end  error         // why reading ended, once over is closed
	over chan struct{} // closed when drain has ended
}

func (c *serverConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.mu.Lock()
	c.read.Write(p[:n])
	c.mu.Unlock()
	return n, err
}

func (c *serverConn) got() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read.String()
}

// drain reads until the client ends the connection.
func (c *serverConn) drain() {
	_, c.end = io.Copy(io.Discard, c.r)
}

// request reads a request with its body.
func (c *serverConn) request(t testing.TB) *http.Request {
	req, err := http.ReadRequest(c.r)
	if err != nil {
		t.Errorf("server: %v", err)
		return nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		t.Errorf("server: %v", err)
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	return req
}

// reset closes with a RST.
func (c *serverConn) reset() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func (c *serverConn) say(text string) { _, _ = io.WriteString(c.TCPConn, text) }

func serve(t testing.TB, handle func(c *serverConn)) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String(), first: make(chan struct{})}
	s.wg.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			c := &serverConn{TCPConn: raw.(*net.TCPConn), over: make(chan struct{})}
			c.r = bufio.NewReader(struct{ io.Reader }{c}) // not around Read by WriteTo
			s.mu.Lock()
			if s.conns = append(s.conns, c); len(s.conns) == 1 {
				close(s.first)
			}
			s.mu.Unlock()
			s.wg.Go(func() {
				defer close(c.over)
				defer func() { _ = c.Close() }()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

// all returns the connections so far.
func (s *server) all() []*serverConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*serverConn(nil), s.conns...)
}

// only returns the one connection there was, after its end.
func (s *server) only(t *testing.T) *serverConn {
	t.Helper()
	<-s.first
	conns := s.all()
	if len(conns) != 1 {
		t.Fatalf("the server saw %d connections, want 1", len(conns))
	}
	<-conns[0].over
	return conns[0]
}

// h2 is a server's end of HTTP/2 in a raw connection.
type h2 struct {
	c   *serverConn
	fr  *http2.Framer
	wmu sync.Mutex
	enc *hpack.Encoder
	buf bytes.Buffer
}

// serve2 is a server of HTTP/2 with prior knowledge, made of a function that is
// called after the settings were exchanged.
func serve2(t testing.TB, handle func(h *h2), settings ...http2.Setting) *server {
	return serve(t, func(c *serverConn) {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(c.r, preface); err != nil || string(preface) != http2.ClientPreface {
			return
		}
		h := &h2{c: c, fr: http2.NewFramer(c.TCPConn, c.r)}
		h.fr.SetReuseFrames()
		h.enc = hpack.NewEncoder(&h.buf)
		if err := h.fr.WriteSettings(settings...); err != nil {
			return
		}
		handle(h)
	})
}

// next returns the next frame, having answered those of the connection; nil at
// its end.
func (h *h2) next() http2.Frame {
	for {
		f, err := h.fr.ReadFrame()
		if err != nil {
			h.failed(err)
			return nil
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				h.wmu.Lock()
				_ = h.fr.WriteSettingsAck()
				h.wmu.Unlock()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				h.wmu.Lock()
				_ = h.fr.WritePing(true, f.Data)
				h.wmu.Unlock()
			}
		case *http2.WindowUpdateFrame, *http2.GoAwayFrame:
		default:
			return f
		}
	}
}

// failed keeps the first error: the system tells of a reset only once, be it to
// a read or to a write.
func (h *h2) failed(err error) {
	if h.c.end == nil {
		h.c.end = err
	}
}

// request reads frames up to the end of a stream and returns its id.
func (h *h2) request() uint32 {
	for {
		switch f := h.next().(type) {
		case nil:
			return 0
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				return f.StreamID
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				return f.StreamID
			}
		}
	}
}

func (h *h2) drain() {
	for h.next() != nil {
	}
}

func (h *h2) headers(id uint32, end bool, fields ...string) {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	h.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	err := h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.buf.Bytes(), EndHeaders: true, EndStream: end})
	if err != nil {
		h.failed(err)
	}
}

func (h *h2) data(id uint32, end bool, text string) {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	if err := h.fr.WriteData(id, end, []byte(text)); err != nil {
		h.failed(err)
	}
}

// webServer is net/http's server with HTTP/1.1 and HTTP/2, with TLS or without.
func webServer(t testing.TB, secure bool, handle http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(handle)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		s.StartTLS()
	} else {
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// sender returns a Sender for one target, with a large budget.
func sender(t testing.TB, addr string, change ...func(*Config)) *Sender {
	t.Helper()
	c := Config{Allow: []string{addr}, MaxSends: 1 << 20, Timeout: time.Minute}
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func post(addr string, p Protocol) Request {
	return Request{
		Method: "POST", URL: "http://" + addr + "/orders?x=%2f", Protocol: p, Body: []byte(`{"n":1}`),
		Header: []Field{{"Content-Type", "application/json"}, {"IDEMPOTENCY-key", `"k-1"`}},
	}
}

// send sends, and fails the test if that was refused.
func send(t testing.TB, s *Sender, r Request) Exchange {
	t.Helper()
	x, err := s.Send(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func trimScheme(url string) string {
	_, addr, _ := strings.Cut(url, "://")
	return addr
}

// webServerMutual wants a certificate of its clients: its own will do.
func webServerMutual(t testing.TB, handle http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(handle)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

type counting struct {
	*httptest.Server
	hits atomic.Int64
}

// webServerOnly1 speaks HTTP/1.1 over TLS and no HTTP/2.
func webServerOnly1(t testing.TB) *counting {
	c := &counting{}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { c.hits.Add(1) }))
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

// huge is a body that the buffers of two sockets do not hold.
const huge = 40 << 20
