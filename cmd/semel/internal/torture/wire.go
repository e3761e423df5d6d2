package torture

import (
	"context"
	"net"
	"sync"
	"time"
)

// wire passes TCP connections on to a database, and can cut all of them at once.
type wire struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
	done   sync.WaitGroup
	gate   gate
}

func newWire(target string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{listener: l, target: target, conns: map[net.Conn]bool{}}
	w.done.Go(w.accept)
	return w, nil
}

func (w *wire) addr() string { return w.listener.Addr().String() }

// cut cuts the open connections, and returns how many they were.
func (w *wire) cut() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
	return len(w.conns) / 2
}

func (w *wire) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cut()
	w.done.Wait()
}

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.done.Go(func() { w.serve(client) })
	}
}

func (w *wire) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.DialTimeout("tcp", w.target, time.Second)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.conns[client], w.conns[server] = true, true
	w.mu.Unlock()
	var upward sync.WaitGroup
	upward.Go(func() {
		w.copy(server, client)
		_ = server.Close()
		_ = client.Close()
	})
	w.copy(client, server)
	_ = client.Close()
	_ = server.Close()
	upward.Wait()
	w.mu.Lock()
	delete(w.conns, client)
	delete(w.conns, server)
	w.mu.Unlock()
}

// copy passes on what arrives, as long as the gate is open.
func (w *wire) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		w.gate.pass()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// gate can hold up what passes it.
type gate struct{ mu sync.RWMutex }

func (g *gate) pass() {
	g.mu.RLock()
	defer g.mu.RUnlock()
}

func (g *gate) hold(ctx context.Context, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pause(ctx, d)
}
