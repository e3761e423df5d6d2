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

// side is where a connection is: before the gateways, behind them, or to their
// database.
type side string

const (
	front    side = "front"
	back     side = "back"
	database side = "database"
)

// cut is where a connection is cut, as seen from one request.
type cut string

const (
	cutNot    cut = ""
	cutBefore cut = "before the request"
	cutWithin cut = "within the request"
	cutAfter  cut = "after the request"
	cutAnswer cut = "within the answer"
	cutAll    cut = "all connections" // of a gateway to its database
)

var cuts = []cut{cutBefore, cutWithin, cutAfter, cutAnswer}

// proxy passes HTTP/1.1 over TCP on to a server, byte by byte as it is, and cuts
// some of the connections. The server may change its address.
type proxy struct {
	name     string
	side     side
	listener net.Listener
	history  *history

	mu     sync.Mutex
	rng    *rand.Rand
	odds   float64 // of a cut, per request
	next   []cut   // the points at which the next cuts are
	target string
	pairs  map[*pair]bool
	closed bool
	done   sync.WaitGroup
	gate   gate
}

type pair struct {
	client, server net.Conn
	fates          chan cut // of the request that is under way
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

// lead has new connections go to addr.
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
	var answers sync.WaitGroup
	answers.Go(func() { p.answers(c) })
	p.requests(c)
	answers.Wait()
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
}

// fate decides about a request, and how long a cut after it waits. An answer that
// is not small is passed on once, so that it has to be cut more often than others
// to be cut at all.
func (p *proxy) fate(key string) (c cut, wait time.Duration, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng.Float64() >= p.odds {
		if formOf(key) != formSmall && p.rng.Float64() < p.odds {
			return cutAnswer, 0, 0
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
		default: // the client sent two requests at once; ours do not
			return
		}
		p.gate.pass()
		if _, err := c.server.Write(raw); err != nil {
			return
		}
		if fate == cutAfter {
			p.noteCut(key, fate)
			// What matters is that the server is at it. If it answers sooner,
			// the answer ends the connection.
			_ = c.client.SetReadDeadline(time.Now().Add(wait))
			_, _ = in.Peek(1)
			return
		}
		if fate == cutAnswer {
			p.noteCut(key, fate) // before the answer, or its client would know first
		}
	}
}

// answers passes on what the server sends, as it comes.
func (p *proxy) answers(c *pair) {
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
		default: // not asked for, such as the end of a server's patience
			return
		}
		if fate == cutAfter {
			return
		}
		left := p.cutAt(head)
		body := &bodyParts{in: in, length: head.length, chunked: head.chunked}
		for part, last := head.raw, body.over(); ; {
			if fate == cutAnswer && (last || left < int64(len(part))) {
				// At the latest within the last part.
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

// cutAt returns how many bytes of an answer pass if it is to be cut off.
func (p *proxy) cutAt(h head) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	length := int64(len(h.raw)) + h.length
	if h.chunked {
		// Not known, and it may be anything.
		length += 2 << p.rng.IntN(19)
	}
	return 1 + p.rng.Int64N(length-1)
}

func (p *proxy) noteCut(key string, c cut) {
	p.history.add(event{kind: kindCut, who: p.name, side: p.side, key: key, text: string(c)})
}

// head is that of a message, as it is.
type head struct {
	raw     []byte
	length  int64 // of the body, unless it is chunked
	chunked bool
}

// readHead reads the head of a request or response, and the key if it has one.
func readHead(in *bufio.Reader) (h head, key string, err error) {
	order := "" // between shops, where keys are those of other things
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

// readRequest reads one request as it is, and its key.
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

// bodyParts reads a body as it comes, in its transfer coding.
type bodyParts struct {
	in      *bufio.Reader
	length  int64 // what is left of the body, or of the chunk
	chunked bool
}

// over reports whether there is nothing to come.
func (b *bodyParts) over() bool { return !b.chunked && b.length == 0 }

// next returns what is there, and whether that is the last. With an error it
// returns what came before it.
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
