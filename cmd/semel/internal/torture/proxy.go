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

// fate decides about a request, and how long a cut after it waits.
func (p *proxy) fate() (c cut, wait time.Duration, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng.Float64() >= p.odds {
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
		raw, key, err := readMessage(in)
		if err != nil {
			return
		}
		fate, wait, share := p.fate()
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

// answers passes on what the server sends.
func (p *proxy) answers(c *pair) {
	defer c.close()
	in := bufio.NewReader(c.server)
	for {
		raw, _, err := readMessage(in)
		if err != nil {
			return
		}
		var fate cut
		select {
		case fate = <-c.fates:
		default: // not asked for, such as the end of a server's patience
			return
		}
		switch fate {
		case cutAfter:
			return
		case cutAnswer:
			p.mu.Lock()
			n := 1 + p.rng.IntN(len(raw)-1)
			p.mu.Unlock()
			_, _ = c.client.Write(raw[:n])
			return
		}
		if _, err := c.client.Write(raw); err != nil {
			return
		}
	}
}

func (p *proxy) noteCut(key string, c cut) {
	p.history.add(event{kind: kindCut, who: p.name, side: p.side, key: key, text: string(c)})
}

var errNoLength = errors.New("torture: a message without a length")

// readMessage reads one request or response as it is, and the key if it has one.
func readMessage(in *bufio.Reader) (raw []byte, key string, err error) {
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return nil, "", err
		}
		raw = append(raw, line...)
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "idempotency-key":
			key = strings.Trim(value, `"`)
		case "content-length":
			if length, err = strconv.Atoi(value); err != nil || length < 0 || length > 1<<20 {
				return nil, "", fmt.Errorf("torture: content length %q", value)
			}
		case "transfer-encoding":
			return nil, "", errNoLength
		}
	}
	head := len(raw)
	raw = append(raw, make([]byte, length)...)
	_, err = io.ReadFull(in, raw[head:])
	return raw, key, err
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
