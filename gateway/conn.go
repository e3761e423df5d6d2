package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

const (
	handshakeTimeout = 10 * time.Second
	pingAfter        = 15 * time.Second
	// A connection that sits idle costs the upstream a little; one that has to
	// be made anew costs each request a lot.
	maxIdleConns = 1024
)

// newTransport returns the transport to the upstream. With HTTP/1.1 its
// connections are all of type *conn.
func newTransport(c UpstreamConfig) *http.Transport {
	dialer := &net.Dialer{Timeout: c.DialTimeout, KeepAlive: 30 * time.Second}
	dial := dialer.DialContext
	if c.Socket != "" {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", c.Socket)
		}
	}
	config := c.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	t := &http.Transport{
		Protocols:              new(http.Protocols),
		MaxConnsPerHost:        c.MaxConns,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdleConns,
		IdleConnTimeout:        c.IdleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 1 << 20,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        4<<10 + smallBody,
		// Or it would ask for gzip by itself, and what is recorded would not
		// be what the upstream sent.
		DisableCompression: true,
	}
	if c.HTTP2 {
		t.Protocols.SetHTTP2(true)
		t.Protocols.SetUnencryptedHTTP2(true)
		t.DialContext, t.TLSClientConfig, t.TLSHandshakeTimeout = dial, config, handshakeTimeout
		// All requests share a connection, so one that is dead must be found out
		// though no request of its own waits for it.
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter, WriteByteTimeout: pingAfter}
		return t
	}
	t.Protocols.SetHTTP1(true)
	config.NextProtos = []string{"http/1.1"}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: raw}, nil
	}
	// The transport's own handshake would put the counting under the
	// encryption, where a handshake looks like a request.
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		end := &endWatcher{Conn: raw}
		config := config.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(addr)
		}
		encrypted := tls.Client(end, config)
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := encrypted.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return &conn{Conn: encrypted, end: end}, nil
	}
	return t
}

var errSealed = errors.New("gateway: the request was given up before it was sent")

// conn is a connection to the upstream that knows whether anything was written.
type conn struct {
	net.Conn
	end *endWatcher // of a TLS connection

	mu      sync.Mutex
	writing bool
	sealed  bool
	written int64
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, errSealed
	}
	c.writing = true
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	c.writing = false
	// With TLS, n counts whole records. Of a part of one the other side can make
	// nothing.
	c.written += int64(n)
	c.mu.Unlock()
	return n, err
}

// Read implements net.Conn. The end of a TLS connection without the
// close_notify alert is no end that a body may be measured by (RFC 9112 8);
// package tls lets it pass.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == io.EOF && c.end != nil && c.end.seen.Load() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom: for bodies larger than the transport's
// buffer, which it would copy through one that is made each time.
func (c *conn) ReadFrom(r io.Reader) (n int64, err error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c}, r, buf[:]) // which must not come back here
}

// CloseWrite ends one direction of a connection that has switched protocols.
func (c *conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// seal reports whether nothing was written since written was mark, and makes
// sure that it stays so: what has not begun to be written never will be.
func (c *conn) seal(mark int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing || c.written != mark {
		return false
	}
	c.sealed = true
	return true
}

func (c *conn) mark() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written
}

// endWatcher notices the end of the connection under a TLS connection.
type endWatcher struct {
	net.Conn
	seen atomic.Bool
}

// Read implements net.Conn.
func (w *endWatcher) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err == io.EOF {
		w.seen.Store(true)
	}
	return n, err
}

// send is one request on its way to the upstream.
type send struct {
	trace  httptrace.ClientTrace
	conn   *conn // the latest that the request was given; nil before
	doubt  bool  // it was given one that is not ours
	marked int64 // what had been written to conn by then
}

// gotConn is the trace's hook of that name.
func (s *send) gotConn(info httptrace.GotConnInfo) {
	var ok bool
	if s.conn, ok = info.Conn.(*conn); !ok {
		s.doubt = true
		return
	}
	// The transport gives a connection to one request at a time, and to the
	// next when all of the former has been written and answered.
	s.marked = s.conn.mark()
}

// nothingSent reports whether certainly no byte of the request was written, or
// will be. It is asked once, after the transport has given up. A transport that
// tried several connections has written nothing to any but the last.
func (s *send) nothingSent() bool {
	switch {
	case s.doubt:
		return false
	case s.conn == nil:
		return true
	case s.conn.seal(s.marked):
		_ = s.conn.Close()
		return true
	}
	return false
}
