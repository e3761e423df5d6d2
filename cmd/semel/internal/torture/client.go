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

// class is what a response means to a client.
type class string

const (
	acknowledged class = "acknowledged" // by the whole response
	notRetained  class = "not-retained" // it completed, but the response was not kept
	inProgress   class = "in-progress"
	unknown      class = "unknown"
	noEffect     class = "no-effect"   // certain for this attempt and the earlier ones
	turnedAway   class = "turned-away" // certain for this attempt only; the record was not read
	unavailable  class = "unavailable" // nothing is known; this attempt may have executed
	torn         class = "torn"        // complete as a transfer, but not the whole response
	unexpected   class = "unexpected"
)

type response struct {
	class      class
	status     int
	problem    string
	effect     string
	digest     string
	came       int // bytes of the body, of a response that broke off
	replayed   bool
	retry      semel.RetryAdvice
	retryAfter time.Duration
}

func (r *response) String() string {
	if r == nil {
		return "no response"
	}
	s := fmt.Sprintf("%d %s", r.status, r.class)
	switch {
	case r.class == acknowledged, r.class == torn:
		s += fmt.Sprintf(" effect %s digest %s", r.effect, r.digest)
		if r.replayed {
			s += " replayed"
		}
	case r.problem != "":
		s += " " + r.problem
	}
	return s
}

// read classifies a whole response to the request for key.
func (r *run) read(res *http.Response, body []byte, key string) *response {
	got := &response{class: unexpected, status: res.StatusCode, replayed: res.Header.Get(semelhttp.HeaderReplayed) == "true"}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		got.retryAfter = time.Duration(s) * time.Second
	}
	if res.ContentLength < 0 && len(res.TransferEncoding) == 0 {
		return got // its end looks like a broken connection
	}
	f := formOf(key)
	if res.StatusCode == http.StatusCreated {
		d := newDigest(res.StatusCode, res.Header["Content-Type"], res.Header[headerEffect])
		_, _ = d.Write(body)
		got.digest = d.String()
		effect, ok, err := r.effectOf(res, body, key)
		switch {
		case err != nil:
			got.class = torn
		case ok && (f.retained() || !got.replayed):
			got.class, got.effect = acknowledged, effect
		}
		return got
	}
	if res.Header.Get(headerRefused) != "" {
		if res.StatusCode == http.StatusServiceUnavailable && !got.replayed {
			got.class, got.retry = noEffect, semel.RetrySameKey
		}
		return got
	}
	p, err := semelhttp.ParseProblem(bytes.NewReader(body), res.Header.Get("Content-Type"))
	if err != nil {
		return got
	}
	_, got.problem, _ = strings.Cut(p.Type, "#")
	got.retry = p.Retry
	switch is := func(status int, problem string) bool { return got.status == status && got.problem == problem }; {
	case is(http.StatusConflict, "in-progress"):
		got.class = inProgress
	case is(http.StatusConflict, "result-not-retained") && !f.retained():
		got.class = notRetained
	case (got.status == http.StatusConflict || got.status >= 500) && got.problem == "outcome-unknown":
		got.class = unknown
	case is(http.StatusServiceUnavailable, "upstream-unreachable"),
		r.config.Payments != "" && orderRefused(got.status, got.problem):
		got.class = noEffect
	case is(http.StatusServiceUnavailable, "busy"), is(http.StatusServiceUnavailable, "spool-unavailable"),
		is(http.StatusRequestTimeout, "body-too-slow"), is(http.StatusBadRequest, "body-unreadable"),
		is(http.StatusServiceUnavailable, ""): // a gateway that stops
		got.class = turnedAway
	case is(http.StatusServiceUnavailable, "store-unavailable"):
		got.class = unavailable
	}
	return got
}

// effectOf returns the effect that a 201 names. The error is errTorn if the
// response is not whole.
func (r *run) effectOf(res *http.Response, body []byte, key string) (effect string, ok bool, err error) {
	if r.isOrder(key) {
		return orderOf(body, key)
	}
	told, err := parseReply(formOf(key), body)
	return told.Effect, told.Key == key && told.Effect != "" && told.Effect == res.Header.Get(headerEffect), err
}

// request returns what is sent for key: the same bytes each time.
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
// itself, because a transport may decide to send a request twice.
type client struct {
	run   *run
	name  string
	rng   *rand.Rand
	conns map[string]*clientConn // by address
	// unhurried: wait for each response as long as a busy machine may take.
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

// patience returns how long to wait for a response.
func (c *client) patience(low, high time.Duration) time.Duration {
	d := randomDuration(c.rng, low, high)
	if c.unhurried {
		d = max(d, 20*time.Second)
	}
	return d
}

// send sends the request for key once, and adds the attempt and its result to
// the history.
func (c *client) send(ctx context.Context, key string, timeout time.Duration) *response {
	gateways := c.run.gatewaysFor(key)
	gw := gateways[c.rng.IntN(len(gateways))]
	return c.sendTo(ctx, gw, key, "", c.run.request(key), timeout, func(res *http.Response, body []byte) *response {
		return c.run.read(res, body, key)
	})
}

// sendTo sends a request about key to a gateway once. read classifies the response.
func (c *client) sendTo(ctx context.Context, gw *gatewayChild, key string, by entry, request []byte, timeout time.Duration, read func(*http.Response, []byte) *response) *response {
	id := c.run.attempts.Add(1)
	text := gw.process.name
	if by != "" {
		text += " by " + string(by)
	}
	c.run.history.add(event{kind: kindAttempt, who: c.name, key: key, attempt: id, text: text, entry: by})
	got, err := c.exchange(ctx, gw.front.addr(), request, timeout, read)
	if err != nil {
		text, left := err.Error(), false
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			text = "connection ended"
		} else if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
			left, text = true, fmt.Sprintf("no response within %v", timeout.Round(time.Millisecond))
		}
		broken := event{kind: kindBroken, who: c.name, key: key, attempt: id, text: text, left: left, entry: by}
		if got != nil {
			broken.text = fmt.Sprintf("%s, %d bytes into a %d response", text, got.came, got.status)
			broken.begun, broken.effect = got.status == http.StatusCreated, got.effect
		}
		c.run.history.add(broken)
		return nil
	}
	c.run.history.add(event{kind: kindResponse, who: c.name, key: key, attempt: id, text: got.String(), response: got, entry: by})
	return got
}

// exchange returns the whole response. With an error it returns nil, or what is
// known of a response that broke off.
func (c *client) exchange(ctx context.Context, addr string, request []byte, timeout time.Duration, read func(*http.Response, []byte) *response) (got *response, err error) {
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
		return &response{status: res.StatusCode, came: len(body), effect: res.Header.Get(headerEffect)}, err
	}
	if keep = !res.Close; keep {
		c.conns[addr] = conn
	}
	return read(res, body), nil
}

// How a client's work on a key ends.
const (
	endAcknowledged = "acknowledged"
	endUnknown      = "unknown"
	endRefused      = "accepted a refusal"
	endGaveUp       = "gave up"
	endStopped      = "was stopped"
	endOdd          = "unexpected response"
)

// settle sends the request for key until it is acknowledged or, by the responses'
// advice, another attempt cannot help. It gives up after the given number of attempts,
// and stops when ctx ends. With mayBePutOff, the client accepts some refusals as final.
func (c *client) settle(ctx context.Context, key string, attempts int, mayBePutOff bool) string {
	end := endGaveUp
	for n := 0; n < attempts && ctx.Err() == nil; n++ {
		lease := c.run.config.Lease
		got := c.send(ctx, key, c.patience(lease/2, 3*lease))
		wait := randomDuration(c.rng, 5*time.Millisecond, 100*time.Millisecond)
		if got != nil {
			wait += got.retryAfter
			switch got.class {
			case acknowledged, notRetained:
				end = endAcknowledged
			case unexpected, torn:
				end = endOdd
			case unknown:
				if got.retry == semel.RetryAfterResolution {
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

// work settles keys until ctx ends: mostly new ones, some together with a second
// client, and some that are already acknowledged.
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

// keys are the keys of a run.
type keys struct {
	most int
	name func(number int) string

	mu    sync.Mutex
	all   []string
	acked []string
	left  map[string]bool // their clients accepted a refusal
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

// acknowledged returns an acknowledged key, preferably a recent one, or "" if
// there is none.
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

// unsettled returns the keys to send again at the end: all but those left.
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
