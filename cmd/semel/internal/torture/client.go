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
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// class is what an answer means to a client.
type class string

const (
	acknowledged class = "acknowledged" // by the whole answer
	notRetained  class = "not-retained" // it completed, and the answer has passed
	inProgress   class = "in-progress"
	unknown      class = "unknown"
	noEffect     class = "no-effect"   // certainly, through this ask or one before
	turnedAway   class = "turned-away" // certainly, through this ask; it was not looked what is on record
	unavailable  class = "unavailable" // nothing is known, be it that this ask was executed
	torn         class = "torn"        // whole by its transfer, but not all of the answer
	unexpected   class = "unexpected"
)

type answer struct {
	class      class
	status     int
	problem    string
	effect     string
	digest     string
	came       int // bytes of the body, of an answer that broke off
	replayed   bool
	retry      semel.RetryAdvice
	retryAfter time.Duration
}

func (a *answer) String() string {
	s := fmt.Sprintf("%d %s", a.status, a.class)
	switch {
	case a.class == acknowledged, a.class == torn:
		s += fmt.Sprintf(" effect %s digest %s", a.effect, a.digest)
		if a.replayed {
			s += " replayed"
		}
	case a.problem != "":
		s += " " + a.problem
	}
	return s
}

// read makes an answer of a whole response to an ask for key.
func (r *run) read(res *http.Response, body []byte, key string) *answer {
	a := &answer{class: unexpected, status: res.StatusCode, replayed: res.Header.Get(semelhttp.HeaderReplayed) == "true"}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		a.retryAfter = time.Duration(s) * time.Second
	}
	if res.ContentLength < 0 && len(res.TransferEncoding) == 0 {
		return a // nobody can tell its end from a broken connection
	}
	f := formOf(key)
	if res.StatusCode == http.StatusCreated {
		d := newDigest(res.StatusCode, res.Header["Content-Type"], res.Header[headerEffect])
		_, _ = d.Write(body)
		a.digest = d.String()
		effect, ok, err := r.effectOf(res, body, key)
		switch {
		case err != nil:
			a.class = torn
		case ok && (f.retained() || !a.replayed):
			a.class, a.effect = acknowledged, effect
		}
		return a
	}
	if res.Header.Get(headerRefused) != "" {
		if res.StatusCode == http.StatusServiceUnavailable && !a.replayed {
			a.class, a.retry = noEffect, semel.RetrySameKey
		}
		return a
	}
	p, err := semelhttp.ParseProblem(bytes.NewReader(body), res.Header.Get("Content-Type"))
	if err != nil {
		return a
	}
	_, a.problem, _ = strings.Cut(p.Type, "#")
	a.retry = p.Retry
	switch is := func(status int, problem string) bool { return a.status == status && a.problem == problem }; {
	case is(http.StatusConflict, "in-progress"):
		a.class = inProgress
	case is(http.StatusConflict, "result-not-retained") && !f.retained():
		a.class = notRetained
	case (a.status == http.StatusConflict || a.status >= 500) && a.problem == "outcome-unknown":
		a.class = unknown
	case is(http.StatusServiceUnavailable, "upstream-unreachable"),
		r.config.Payments != "" && orderRefused(a.status, a.problem):
		a.class = noEffect
	case is(http.StatusServiceUnavailable, "busy"), is(http.StatusServiceUnavailable, "spool-unavailable"),
		is(http.StatusRequestTimeout, "body-too-slow"), is(http.StatusBadRequest, "body-unreadable"),
		is(http.StatusServiceUnavailable, ""): // a gateway that stops
		a.class = turnedAway
	case is(http.StatusServiceUnavailable, "store-unavailable"):
		a.class = unavailable
	}
	return a
}

// effectOf returns the effect that a 201 tells of. The error is errTorn where it
// is not all there.
func (r *run) effectOf(res *http.Response, body []byte, key string) (effect string, ok bool, err error) {
	if r.isOrder(key) {
		return orderOf(body, key)
	}
	told, err := parseReply(formOf(key), body)
	return told.Effect, told.Key == key && told.Effect != "" && told.Effect == res.Header.Get(headerEffect), err
}

// request is what is sent for key, every time the same bytes.
func request(key string) []byte {
	body := `{"operation":"` + key + `"}`
	return fmt.Appendf(nil, "POST /effects HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer torture\r\n"+
		"Idempotency-Key: %q\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
}

func (r *run) request(key string) []byte {
	if r.isOrder(key) {
		return orderRequest(key)
	}
	return request(key)
}

// client sends one request after the other. It writes to its connections
// itself: a transport might send a request twice by its own decision.
type client struct {
	run   *run
	name  string
	rng   *rand.Rand
	conns map[string]*clientConn // by address
	// unhurried waits for each answer as long as a busy machine may take.
	unhurried bool
}

type clientConn struct {
	net.Conn
	in *bufio.Reader
}

func (r *run) newClient(name string) *client {
	return &client{run: r, name: name, rng: r.newRand(), conns: map[string]*clientConn{}}
}

func (c *client) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// patience returns how long to wait for an answer.
func (c *client) patience(low, high time.Duration) time.Duration {
	d := randomDuration(c.rng, low, high)
	if c.unhurried {
		d = max(d, 20*time.Second)
	}
	return d
}

// ask sends the request for key once, and puts that and what came of it into
// the history.
func (c *client) ask(ctx context.Context, key string, timeout time.Duration) *answer {
	gateways := c.run.gatewaysFor(key)
	gw := gateways[c.rng.IntN(len(gateways))]
	return c.askFor(ctx, gw, key, "", c.run.request(key), timeout, func(res *http.Response, body []byte) *answer {
		return c.run.read(res, body, key)
	})
}

// askFor sends a request about key to a gateway once, and has read say what the answer
// means.
func (c *client) askFor(ctx context.Context, gw *gatewayChild, key string, by entry, request []byte, timeout time.Duration, read func(*http.Response, []byte) *answer) *answer {
	id := c.run.asks.Add(1)
	text := gw.process.name
	if by != "" {
		text += " by " + string(by)
	}
	c.run.history.add(event{kind: kindAsk, who: c.name, key: key, ask: id, text: text, entry: by})
	a, err := c.exchange(ctx, gw.front.addr(), request, timeout, read)
	if err != nil {
		text, left := err.Error(), false
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			text = "connection ended"
		} else if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
			left, text = true, fmt.Sprintf("no answer within %v", timeout.Round(time.Millisecond))
		}
		broken := event{kind: kindBroken, who: c.name, key: key, ask: id, text: text, left: left, entry: by}
		if a != nil {
			broken.text = fmt.Sprintf("%s, %d bytes into an answer of %d", text, a.came, a.status)
			broken.begun, broken.effect = a.status == http.StatusCreated, a.effect
		}
		c.run.history.add(broken)
		return nil
	}
	c.run.history.add(event{kind: kindAnswer, who: c.name, key: key, ask: id, text: a.String(), answer: a, entry: by})
	return a
}

// exchange returns the whole answer. With an error it returns no answer, or what
// is known of one that broke off.
func (c *client) exchange(ctx context.Context, addr string, request []byte, timeout time.Duration, read func(*http.Response, []byte) *answer) (a *answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn := c.conns[addr]
	delete(c.conns, addr)
	if conn == nil {
		raw, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		conn = &clientConn{raw, bufio.NewReader(raw)}
	}
	keep := false
	defer func() {
		if !keep {
			_ = conn.Close()
		}
	}()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(conn.in, &http.Request{Method: http.MethodPost})
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return &answer{status: res.StatusCode, came: len(body), effect: res.Header.Get(headerEffect)}, err
	}
	if keep = !res.Close; keep {
		c.conns[addr] = conn
	}
	return read(res, body), nil
}

// ends of a client's work on a key.
const (
	endAcknowledged = "acknowledged"
	endUnknown      = "unknown"
	endRefused      = "took no for an answer"
	endGaveUp       = "gave up"
	endStopped      = "was stopped"
	endOdd          = "unexpected answer"
)

// settle asks for key until it is acknowledged or asking cannot help, as the
// answers advise. It gives up after so many asks, and stops when ctx ends. A client
// that may be put off takes some refusals for final.
func (c *client) settle(ctx context.Context, key string, asks int, mayBePutOff bool) string {
	end := endGaveUp
	for try := 0; try < asks && ctx.Err() == nil; try++ {
		lease := c.run.config.Lease
		a := c.ask(ctx, key, c.patience(lease/2, 3*lease))
		wait := randomDuration(c.rng, 5*time.Millisecond, 100*time.Millisecond)
		if a != nil {
			wait += a.retryAfter
			switch a.class {
			case acknowledged, notRetained:
				end = endAcknowledged
			case unexpected, torn:
				end = endOdd
			case unknown:
				if a.retry == semel.RetryAfterResolution {
					end = endUnknown
				}
			case noEffect, turnedAway:
				if mayBePutOff && c.rng.IntN(3) == 0 {
					end = endRefused
				}
			}
		}
		if end != endGaveUp {
			break
		}
		pause(ctx, wait)
	}
	if end == endGaveUp && ctx.Err() != nil {
		end = endStopped
	}
	c.run.history.add(event{kind: kindEnd, who: c.name, key: key, text: end})
	return end
}

// work settles keys until ctx ends: new ones mostly, some of them together
// with a second client, and some that have been acknowledged before.
func (c *client) work(ctx, patience context.Context) {
	twin := c.run.newClient(c.name + "b")
	defer twin.close()
	for ctx.Err() == nil {
		if key := c.run.keys.acknowledged(c.rng); key != "" && c.rng.IntN(4) == 0 {
			c.settle(patience, key, 12, false)
		} else if key = c.run.keys.make(); key != "" {
			mayBePutOff := c.rng.IntN(2) == 0
			var second sync.WaitGroup
			if !mayBePutOff && c.rng.IntN(3) == 0 {
				second.Go(func() { twin.settle(patience, key, 12, false) })
			}
			c.run.keys.settled(key, c.settle(patience, key, 12, mayBePutOff))
			second.Wait()
		}
		pause(ctx, randomDuration(c.rng, 0, c.run.config.Think))
	}
}

// keys are those of a run.
type keys struct {
	most int
	name func(number int) string

	mu    sync.Mutex
	all   []string
	acked []string
	left  map[string]bool // their clients took a refusal for final
}

// make returns a new key, or "" if there are enough.
func (k *keys) make() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.all) == k.most {
		return ""
	}
	key := k.name(len(k.all) + 1)
	k.all = append(k.all, key)
	return key
}

func (k *keys) settled(key, end string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch end {
	case endAcknowledged:
		k.acked = append(k.acked, key)
	case endRefused:
		k.left[key] = true
	}
}

// acknowledged returns a key that has been acknowledged, rather a late one; ""
// if there is none.
func (k *keys) acknowledged(rng *rand.Rand) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.acked) == 0 {
		return ""
	}
	recent := k.acked
	if rng.IntN(2) == 0 {
		recent = recent[max(0, len(recent)-20):]
	}
	return recent[rng.IntN(len(recent))]
}

// unsettled returns the keys to be asked for at the end: all but those left.
func (k *keys) unsettled() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var some []string
	for _, key := range k.all {
		if !k.left[key] {
			some = append(some, key)
		}
	}
	return some
}
