package wire

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"time"
)

// conn is one connection, TLS or not.
type conn struct {
	net.Conn
	pipe     *pipe
	tls      *tls.ConnectionState
	protocol Protocol
}

// close ends the connection in the usual way: with TLS's farewell and a FIN.
// (The kernel sends a RST instead if something unread is left.)
func (c *conn) close() { _ = c.Conn.Close() }

// reset ends it with a RST, and without any farewell.
func (c *conn) reset() {
	if t, ok := c.pipe.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.pipe.Conn.Close()
}

// breakOn makes reads and writes fail once the context is over. The result
// ends that.
func (c *conn) breakOn(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.pipe.SetDeadline(time.Unix(1, 0)) })
}

// ackPoll is how often the system is asked whether all is acknowledged;
// ackBlind how long is waited where it cannot be asked.
const (
	ackPoll  = 100 * time.Microsecond
	ackBlind = 50 * time.Millisecond
)

// awaitAcked waits until the other side has acknowledged all that was written,
// and reports whether it has. It gives up once over is closed: of a connection
// that is dead the system goes on to say that something is missing.
func (c *conn) awaitAcked(ctx context.Context, over <-chan struct{}) bool {
	for {
		n, ok := c.pipe.unacked()
		if ok && n == 0 {
			return true
		}
		wait := ackPoll
		if !ok {
			wait = ackBlind
		}
		select {
		case <-ctx.Done():
			return false
		case <-over:
			n, ok = c.pipe.unacked()
			return ok && n == 0
		case <-time.After(wait):
		}
		if !ok {
			return false
		}
	}
}

// pipe is the transport below TLS. It counts what the system took, and can hold
// writes back, to have them released all at once.
type pipe struct {
	net.Conn

	mu      sync.Mutex
	taken   int
	holding bool
	held    []byte
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.holding {
		p.held = append(p.held, b...)
		p.mu.Unlock()
		return len(b), nil
	}
	p.mu.Unlock()
	n, err := p.Conn.Write(b)
	p.add(n)
	return n, err
}

func (p *pipe) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken += n
}

// count is how many bytes the system took so far.
func (p *pipe) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

func (p *pipe) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = true
}

// unhold returns what was held back and lets writes pass again.
func (p *pipe) unhold() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.held
	p.holding, p.held = false, nil
	return b
}

// recorder keeps what is read through it, up to a limit, beyond which it fails.
type recorder struct {
	r     io.Reader
	limit int
	over  error // what to fail with

	kept  []byte
	first time.Time // when the first byte was read
}

func (r *recorder) Read(p []byte) (int, error) {
	room := r.limit - len(r.kept)
	if room <= 0 {
		return 0, r.over
	}
	n, err := r.r.Read(p[:min(len(p), room)])
	if n > 0 && r.first.IsZero() {
		r.first = time.Now()
	}
	r.kept = append(r.kept, p[:n]...)
	return n, err
}
