package torture

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// side is the place of a connection: in front of the gateways, behind them, or to
// their database.
type side string

const (
	front    side = "front"
	back     side = "back"
	database side = "database"
)

// cut is the point of a request at which its connection is cut.
type cut string

const (
	cutNot      cut = ""
	cutBefore   cut = "before the request"
	cutWithin   cut = "within the request"
	cutAfter    cut = "after the request"
	cutResponse cut = "within the response"
	cutAll      cut = "all connections" // of a gateway to its database
)

var cuts = []cut{cutBefore, cutWithin, cutAfter, cutResponse}

// proxy passes HTTP/1.1 over TCP on to a server, byte for byte, and cuts some of the
// connections. The server may change its address.
type proxy struct {
	name     string
	side     side
	listener net.Listener
	history  *history

	mu     sync.Mutex
	rng    *rand.Rand
	odds   float64 // of a cut, per request
	next   []cut   // points of the next cuts
	target string
	pairs  map[*pair]bool
	closed bool
	done   sync.WaitGroup
	gate   gate
}

type pair struct {
	client, server net.Conn
	fates          chan cut // of the request in flight
}

func (p *pair) close() {
	_ = p.client.Close()
	_ = p.server.Close()
}

func newProxy(name string, s side, h *history, rng *rand.Rand, odds float64) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{name: name, side: s, listener: l, history: h, rng: rng, odds: odds, pairs: map[*pair]bool{}}
	p.done.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// lead makes new connections go to addr.
func (p *proxy) lead(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// behave ends the cutting.
func (p *proxy) behave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.odds = 0
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.pairs {
		c.close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { p.serve(client) })
	}
}

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	c := &pair{client: client, server: server, fates: make(chan cut, 1)}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.close()
		return
	}
	p.pairs[c] = true
	p.mu.Unlock()
	var responses sync.WaitGroup
	responses.Go(func() { p.responses(c) })
	p.requests(c)
	responses.Wait()
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
}

// fate decides whether and where a request is cut, and how long a cut after it waits.
// A response that is not small may be passed on only once, so it is cut more often
// than others, to be cut at all.
func (p *proxy) fate(key string) (c cut, wait time.Duration, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng.Float64() >= p.odds {
		if formOf(key) != formSmall && p.rng.Float64() < p.odds {
			return cutResponse, 0, 0
		}
		return cutNot, 0, 0
	}
	if len(p.next) == 0 {
		p.next = shuffled(p.rng, cuts)
	}
	c, p.next = p.next[0], p.next[1:]
	return c, randomDuration(p.rng, 0, 50*time.Millisecond), p.rng.Float64()
}

// requests passes on what the client sends, until one of the connections ends.
func (p *proxy) requests(c *pair) {
	defer c.close()
	in := bufio.NewReader(c.client)
	for {
		raw, key, err := readRequest(in)
		if err != nil {
			return
		}
		fate, wait, share := p.fate(key)
		switch fate {
		case cutBefore:
			p.noteCut(key, fate)
			return
		case cutWithin:
			p.noteCut(key, fate)
			_, _ = c.server.Write(raw[:1+int(share*float64(len(raw)-1))])
			return
		}
		select {
		case c.fates <- fate:
		default: // two requests at once, which our clients do not send
			return
		}
		p.gate.pass()
		if _, err := c.server.Write(raw); err != nil {
			return
		}
		if fate == cutAfter {
			p.noteCut(key, fate)
			// The server only has to be at work. If it responds sooner, the
			// response ends the connection.
			_ = c.client.SetReadDeadline(time.Now().Add(wait))
			_, _ = in.Peek(1)
			return
		}
		if fate == cutResponse {
			p.noteCut(key, fate) // before its client can notice
		}
	}
}

// responses passes on what the server sends, as it arrives.
func (p *proxy) responses(c *pair) {
	defer c.close()
	in := bufio.NewReaderSize(c.server, 16<<10)
	for {
		head, _, err := readHead(in)
		if err != nil {
			return
		}
		var fate cut
		select {
		case fate = <-c.fates:
		default: // without a request, such as a 408
			return
		}
		if fate == cutAfter {
			return
		}
		left := p.cutAt(head)
		body := &bodyParts{in: in, length: head.length, chunked: head.chunked}
		for part, last := head.raw, body.over(); ; {
			if fate == cutResponse && (last || left < int64(len(part))) {
				// In the last part at the latest.
				_, _ = c.client.Write(part[:min(left, int64(len(part)-1))])
				return
			}
			left -= int64(len(part))
			p.gate.pass()
			if _, err := c.client.Write(part); err != nil {
				return
			}
			if last {
				break
			}
			if part, last, err = body.next(); err != nil {
				_, _ = c.client.Write(part) // the server broke off
				return
			}
		}
	}
}

// cutAt returns how many bytes of a response pass if it is to be cut off.
func (p *proxy) cutAt(h head) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	length := int64(len(h.raw)) + h.length
	if h.chunked {
		// The length is not known.
		length += 2 << p.rng.IntN(19)
	}
	return 1 + p.rng.Int64N(length-1)
}

func (p *proxy) noteCut(key string, c cut) {
	p.history.add(event{kind: kindCut, who: p.name, side: p.side, key: key, text: string(c)})
}

// head is the head of a message.
type head struct {
	raw     []byte // as it was sent
	length  int64  // of the body, unless it is chunked
	chunked bool
}

// readHead reads the head of a request or response, and the key if it has one.
func readHead(in *bufio.Reader) (h head, key string, err error) {
	order := "" // between shops, where keys are not those of orders
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return head{}, "", err
		}
		h.raw = append(h.raw, line...)
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, key, nil
		}
		name, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "idempotency-key":
			if order == "" {
				key = strings.Trim(value, `"`)
			}
		case "torture-order":
			order, key = value, value
		case "content-length":
			if h.length, err = strconv.ParseInt(value, 10, 64); err != nil || h.length < 0 || h.length > 1<<20 {
				return head{}, "", fmt.Errorf("torture: content length %q", value)
			}
		case "transfer-encoding":
			h.chunked = true
		}
	}
}

var errChunkedRequest = errors.New("torture: a request without a length")

// readRequest reads one request, unchanged, and its key.
func readRequest(in *bufio.Reader) (raw []byte, key string, err error) {
	h, key, err := readHead(in)
	if err != nil {
		return nil, "", err
	}
	if h.chunked {
		return nil, "", errChunkedRequest
	}
	raw = append(h.raw, make([]byte, h.length)...)
	_, err = io.ReadFull(in, raw[len(h.raw):])
	return raw, key, err
}

// bodyParts reads a body as it arrives, in its transfer coding.
type bodyParts struct {
	in      *bufio.Reader
	length  int64 // what is left of the body, or of the chunk
	chunked bool
}

// over reports whether the body has been read.
func (b *bodyParts) over() bool { return !b.chunked && b.length == 0 }

// next returns the bytes that have arrived, and whether they are the last. With an
// error it returns the bytes before it.
func (b *bodyParts) next() (part []byte, last bool, err error) {
	if b.length == 0 { // between chunks
		line, err := b.in.ReadSlice('\n')
		part = bytes.Clone(line)
		if err != nil {
			return part, false, err
		}
		if b.length, err = strconv.ParseInt(strings.TrimSpace(string(line)), 16, 64); err != nil || b.length < 0 {
			return part, false, fmt.Errorf("torture: chunk of size %q", line)
		}
		if b.length > 0 {
			b.length += 2 // its end of line
			return part, false, nil
		}
		for { // trailers, and an empty line
			line, err := b.in.ReadSlice('\n')
			if part = append(part, line...); err != nil || len(line) <= 2 {
				return part, err == nil, err
			}
		}
	}
	if _, err := b.in.Peek(1); err != nil {
		return nil, false, err
	}
	part = make([]byte, min(b.length, int64(b.in.Buffered())))
	_, err = io.ReadFull(b.in, part)
	b.length -= int64(len(part))
	return part, b.over(), err
}

// shuffled returns all of some in random order, so that a few draws see each.
func shuffled[T any](rng *rand.Rand, some []T) []T {
	all := slices.Clone(some)
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// dialer connects to a proxy.
var dialer net.Dialer

func dial(ctx context.Context, addr string) (net.Conn, error) {
	return dialer.DialContext(ctx, "tcp", addr)
}
