package targets

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Network is a network within this process, for bubbles of virtual time: what
// is written arrives latency later, and nothing is lost. It knows no resets: a
// connection that is closed ends for the other side after all that was written.
type Network struct {
	mu        sync.Mutex
	ports     int
	listeners map[string]*listener
}

// latency lets no response come in the moment of its request.
const latency = time.Millisecond

// NewNetwork returns a network without listeners.
func NewNetwork() *Network { return &Network{listeners: map[string]*listener{}} }

// Listen listens on a port that was never used.
func (n *Network) Listen() net.Listener {
	l := &listener{network: n, addr: n.port(), conns: make(chan net.Conn), over: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[l.addr.String()] = l
	return l
}

// Dial connects to a listener, as net.Dialer.DialContext does.
func (n *Network) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	up, down := newDirection(), newDirection()
	own := n.port()
	client := &end{in: down, out: up, local: own, remote: l.addr}
	select {
	case l.conns <- &end{in: up, out: down, local: l.addr, remote: own}:
		return client, nil
	case <-l.over:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *Network) port() *net.TCPAddr {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports++
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n.ports}
}

type listener struct {
	network *Network
	addr    *net.TCPAddr
	conns   chan net.Conn
	once    sync.Once
	over    chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.over)
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.listeners, l.addr.String())
	})
	return nil
}

// end is one end of a connection.
type end struct {
	in, out       *direction
	local, remote *net.TCPAddr
}

func (e *end) Read(p []byte) (int, error)        { return e.in.read(p) }
func (e *end) Write(p []byte) (int, error)       { return e.out.write(p) }
func (e *end) LocalAddr() net.Addr               { return e.local }
func (e *end) RemoteAddr() net.Addr              { return e.remote }
func (e *end) SetReadDeadline(t time.Time) error { return e.in.limit(&e.in.readBy, t) }

// SetWriteDeadline counts for what has not been written yet: writing never waits.
func (e *end) SetWriteDeadline(t time.Time) error { return e.out.limit(&e.out.writeBy, t) }

func (e *end) SetDeadline(t time.Time) error {
	_ = e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *end) Close() error {
	e.out.finish()
	e.in.abandon()
	return nil
}

// direction is what goes one way.
type direction struct {
	mu              sync.Mutex
	parts           []part
	finished        time.Time // when the end arrives; zero while it goes on
	abandoned       bool      // nobody reads any more
	readBy, writeBy time.Time
	changed         chan struct{} // closed and made anew with every change
}

type part struct {
	arrives time.Time
	bytes   []byte
}

func newDirection() *direction { return &direction{changed: make(chan struct{})} }

// tell wakes who reads. It needs mu.
func (d *direction) tell() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *direction) limit(by *time.Time, t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	*by = t
	d.tell()
	return nil
}

func (d *direction) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.finished.IsZero() {
		d.finished = time.Now().Add(latency)
		d.tell()
	}
}

func (d *direction) abandon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abandoned = true
	d.tell()
}

func (d *direction) write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch {
	case !d.finished.IsZero():
		return 0, net.ErrClosed
	case d.abandoned:
		return 0, syscall.EPIPE
	case past(d.writeBy, now):
		return 0, os.ErrDeadlineExceeded
	}
	d.parts = append(d.parts, part{now.Add(latency), bytes.Clone(p)})
	d.tell()
	return len(p), nil
}

func (d *direction) read(p []byte) (int, error) {
	for {
		n, wait, changed, err := d.take(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-changed:
		case <-timer:
		}
	}
}

// take takes what has arrived. Without anything it says how long to wait, zero
// if there is nothing under way, or until changed is closed.
func (d *direction) take(p []byte) (n int, wait time.Duration, changed <-chan struct{}, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	var next []time.Time
	switch {
	case d.abandoned:
		return 0, 0, nil, net.ErrClosed
	case past(d.readBy, now):
		return 0, 0, nil, os.ErrDeadlineExceeded
	case len(d.parts) > 0 && past(d.parts[0].arrives, now):
		n = copy(p, d.parts[0].bytes)
		if d.parts[0].bytes = d.parts[0].bytes[n:]; len(d.parts[0].bytes) == 0 {
			d.parts = d.parts[1:]
		}
		return n, 0, nil, nil
	case len(d.parts) > 0:
		next = append(next, d.parts[0].arrives)
	case past(d.finished, now):
		return 0, 0, nil, io.EOF
	default:
		next = append(next, d.finished)
	}
	for _, t := range append(next, d.readBy) {
		if left := t.Sub(now); !t.IsZero() && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return 0, wait, d.changed, nil
}

// past reports whether a time that is set has come.
func past(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }
