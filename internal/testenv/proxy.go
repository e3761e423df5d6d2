package testenv

import (
	"net"
	"sync"
	"testing"
)

// Proxy passes TCP connections on to a server and can get in their way. Its
// methods may be called at any time.
type Proxy struct {
	server   string
	listener net.Listener

	mu      sync.Mutex
	pairs   map[*pair]bool
	silent  bool // connections made now or later are blackholed
	refuse  bool
	onWrite func(client []byte) Verdict
	done    sync.WaitGroup
}

// Verdict is what a Proxy does about bytes that a client sends.
type Verdict int

const (
	// Pass passes the bytes on.
	Pass Verdict = iota
	// CutBefore cuts the connection; the server never sees the bytes.
	CutBefore
	// CutAfter passes the bytes on, and cuts the connection to the client
	// when the server has sent an answer, which the client never sees.
	CutAfter
	// Mute passes the bytes on and nothing from then on: neither side hears
	// of the other again, nor of an end of the connection.
	Mute
)

type pair struct {
	client, server net.Conn

	mu        sync.Mutex
	muted     bool // pass nothing on in either direction
	cutAnswer bool // cut instead of passing the next answer on
}

// NewProxy returns a proxy before the server at addr. It ends with the test.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("testenv: proxy: %v", err)
	}
	p := &Proxy{server: addr, listener: l, pairs: map[*pair]bool{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Refuse(true)
		p.Cut()
		p.done.Wait()
	})
	return p
}

// Addr is the address to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// OnWrite has f decide about each piece that a client sends. A piece is what
// one read returned: a short message that was sent at once is one piece. f is
// called from many goroutines; nil passes everything.
func (p *Proxy) OnWrite(f func(client []byte) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onWrite = f
}

// Cut cuts all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.close()
	}
}

// Mute blackholes the connections there are: bytes go nowhere, and neither side
// learns of it. A host that lost its power looks like that.
func (p *Proxy) Mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.mute()
	}
}

// Silence blackholes connections that are made from now on, until it is called
// with false.
func (p *Proxy) Silence(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = on
}

// Refuse closes connections that are made from now on at once, until it is
// called with false.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.serve(client)
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	refuse := p.refuse
	p.mu.Unlock()
	if refuse {
		_ = client.Close()
		return
	}
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	c := &pair{client: client, server: server}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		c.close()
		return
	}
	c.muted = p.silent
	p.pairs[c] = true
	var both sync.WaitGroup
	both.Go(func() { p.upward(c) })
	both.Go(func() { c.downward() })
	p.done.Go(func() {
		both.Wait()
		c.close()
		p.mu.Lock()
		delete(p.pairs, c)
		p.mu.Unlock()
	})
}

// upward passes on what the client sends.
func (p *Proxy) upward(c *pair) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.client.Read(buf)
		if n > 0 && !c.isMuted() {
			p.mu.Lock()
			f := p.onWrite
			p.mu.Unlock()
			verdict := Pass
			if f != nil {
				verdict = f(buf[:n])
			}
			switch verdict {
			case CutBefore:
				c.close()
				return
			case CutAfter:
				c.mu.Lock()
				c.cutAnswer = true
				c.mu.Unlock()
			}
			if _, err := c.server.Write(buf[:n]); err != nil {
				c.close()
				return
			}
			if verdict == Mute {
				c.mute()
			}
		}
		if err != nil {
			// The other side must not learn of an end in the dark.
			if !c.isMuted() {
				c.close()
			}
			return
		}
	}
}

// downward passes on what the server sends.
func (c *pair) downward() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(buf)
		c.mu.Lock()
		muted, cut := c.muted, c.cutAnswer && n > 0
		c.mu.Unlock()
		if cut {
			c.close()
			return
		}
		if n > 0 && !muted {
			_, err = c.client.Write(buf[:n])
		}
		if err != nil {
			if !c.isMuted() {
				c.close()
			}
			return
		}
	}
}

func (c *pair) isMuted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.muted
}

func (c *pair) mute() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.muted = true
}

func (c *pair) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}
