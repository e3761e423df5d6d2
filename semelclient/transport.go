package semelclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

const (
	// What is left of the body of an answer that nobody will read is read up to
	// these bounds, so that its connection can be used again.
	drainBytes = 64 << 10
	drainTime  = time.Second

	// How long an answer is asked whether it is a problem with advice. Its
	// status is known then, and will do.
	problemTime = 5 * time.Second
)

// Transport is an http.RoundTripper that sends a request under one key, and retries
// it while that is safe. Give it to an http.Client, or to an SDK that takes one. It
// is safe for concurrent use.
//
// # Keys
//
// The key of a request is, in this order: the one in its header; that of the
// operation in its context (see NewOperation, WithKey and WithStep); that of the
// request it was redirected from; a fresh one for this call. In an execution there
// is no fresh one, and a request that needs it is refused with ErrNoStep. All
// attempts of a call have the same key. Only requests for which Config.NeedsKey
// reports true are given a key.
//
// A program that retries calls of the transport must put the operation into the
// context, or the key into the header. Otherwise each call is another operation.
//
// # Retries
//
// A request may be retried if it has a key, if its method is idempotent (GET, HEAD,
// OPTIONS, TRACE, PUT, DELETE), if its header has the field for the key without any
// value, to which net/http gives the same meaning, or if it was certainly not sent
// because there was no connection. It is retried after an error, and after a
// response as follows:
//
//   - A status below 400 is not retried, nor are 401 and 407, which need other
//     credentials.
//   - If a problem (RFC 9457) has a member "retry" other than "same-key", or
//     Stripe-Should-Retry is false, it is not retried.
//   - Otherwise, if the member is "same-key" and the request has a key, or
//     Stripe-Should-Retry is true, it is retried.
//   - Otherwise, if the response says that it is recorded, by Idempotency-Expires,
//     Idempotency-Replayed or Idempotent-Replayed, it is not retried.
//   - Otherwise it is retried if Config.RetryStatus reports true. A 409 is not
//     retried without a key.
//
// To find out whether a response is a problem, up to semelhttp.MaxProblemBytes of
// its body are read, for up to 5 seconds. After that the header decides. The body
// that is returned is complete even so.
//
// The response of the last attempt is returned, whatever its status. A response that
// breaks off while its body is read is not retried. Call again with the operation in
// the context.
//
// # Requests on the wire
//
// http.Transport resends a request that has an Idempotency-Key by itself if a reused
// connection breaks. A Transport prevents this, so that each attempt is one request
// on the wire: the base gets a request without GetBody and, if the request has no
// body, with the field name for the key in lower case, which is the same to a server
// but not to a round tripper that looks for the canonical name. There are two
// harmless exceptions: requests with a safe method, and requests without a body that
// a server refuses over HTTP/2.
//
// http.Client follows redirects by itself. With 307 and 308 it sends the request,
// with its body and key, to the location that the server names. To prevent this, set
// CheckRedirect to return http.ErrUseLastResponse.
//
// # Bodies
//
// A body can be sent again if the request has a GetBody. It can also be sent again if
// the request may be retried, its ContentLength is not -1 and it is no larger than
// Config.MaxReplayBody; it is then read to its end before the first attempt. Any other
// body is sent once.
//
// A body other than a bytes.Reader, bytes.Buffer or strings.Reader is read in its own
// goroutine, because a Read cannot be interrupted. When the attempt ends, by a limit
// or by the context of the request, the body is closed even while a Read is running,
// as net/http does over HTTP/2, which ends the Read of a pipe, a file or a connection.
// RoundTrip does not wait for that Read. A GetBody that does not return does block
// RoundTrip.
type Transport struct {
	config Config
}

// New returns a transport for c. The error names everything that is wrong with c.
func New(c Config) (*Transport, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("semelclient: transport config: %w", err)
	}
	c.Header = http.CanonicalHeaderKey(c.Header)
	return &Transport{config: c}, nil
}

// CloseIdleConnections calls CloseIdleConnections of the base, if it has that.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.config.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// call is one RoundTrip.
type call struct {
	request    *http.Request
	header     http.Header
	op         *operation // with an empty key if the request has none
	keyed      bool
	repeatable bool // trying again after it was sent is safe
	body       payload
	until      time.Time // the end of MaxElapsed
	tries      int
	doubt      bool // a try may have had the effect
}

// RoundTrip implements http.RoundTripper. It does not change the request, and
// closes its body. The Request of the response has the key, in its header and as
// the operation in its context. The error is an *Error. RoundTrip returns when the
// context of the request ends.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x, _ := semel.CurrentExecution(r.Context())
	c := &call{request: r, until: time.Now().Add(t.config.MaxElapsed), op: &operation{execution: x}}
	ctx := r.Context()
	a := t.begin(c)
	if err := t.prepare(a.ctx, c); err != nil {
		return nil, t.refuse(c, a, err)
	}
	body := c.body.first
	for {
		c.tries++
		began := time.Now()
		t.send(c, a, body)
		took := time.Since(began)
		again := a.err != nil || wantsRetry(a, c.keyed, t.config.RetryStatus, min(problemTime, time.Until(c.until)))
		if a.mayHaveEffect() {
			c.doubt = true
			c.op.setDoubt()
		}
		var reason Reason
		var wait time.Duration
		if again {
			wait, body, reason = t.next(ctx, c, a)
		}
		if f := t.config.Observer.Tried; f != nil {
			f(ctx, Tried{
				Method: r.Method, Try: c.tries, Keyed: c.keyed, Status: a.status(), Err: a.err,
				Retry: again && reason == "", Wait: wait, Took: took,
			})
		}
		switch {
		case a.err != nil && reason != "":
			return nil, t.giveUp(c, 0, a.err, reason)
		case !again || reason != "":
			if reason != "" {
				t.gaveUp(c, a.status(), nil, reason)
			}
			endWith(a.resp, a.end)
			a.resp.Request = c.shown()
			return a.resp, nil
		}

		timer := time.NewTimer(wait)
		a.discard(min(drainTime, time.Until(c.until)/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		if ctx.Err() != nil { // also if both are ready
			if body != nil {
				_ = body.Close()
			}
			return nil, t.giveUp(c, a.status(), context.Cause(ctx), ReasonContext)
		}
		a = t.begin(c)
		body = interruptible(a.ctx, body)
	}
}

// prepare finds the key and takes the body over, reading it before ctx ends.
func (t *Transport) prepare(ctx context.Context, c *call) error {
	r := c.request
	err := t.setKey(c)
	if err == nil {
		c.repeatable = c.repeatable || c.keyed || isIdempotent(r.Method)
		c.body, err = newPayload(ctx, r, c.repeatable, t.config.MaxReplayBody)
		return err
	}
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return err
}

// refuse returns the error of a call that sent nothing.
func (t *Transport) refuse(c *call, a *attempt, err error) error {
	inTime := a.timer.Stop()
	a.end()
	reason := ReasonRefused
	switch {
	case c.request.Context().Err() != nil:
		reason = ReasonContext
	case !inTime && a.bound == ErrElapsed:
		reason = ReasonElapsed
	}
	return t.giveUp(c, 0, err, reason)
}

// setKey has c.header carry the key.
func (t *Transport) setKey(c *call) error {
	r, name := c.request, t.config.Header
	c.header = r.Header.Clone()
	if c.header == nil {
		c.header = make(http.Header)
	}
	if values, ok := field(c.header, name); ok {
		if len(values) == 0 { // net/http: idempotent, without a key
			c.repeatable = true
			return nil
		}
		c.op.doubt = true // whoever made it may have used it
		key, err := semelhttp.ParseKey(values, false)
		if err != nil {
			return nil // the server's to refuse
		}
		c.op.key, c.keyed = key, true
		if op := currentOperation(r.Context()); op != nil && op.key == key {
			c.op = op
		}
	} else if t.config.NeedsKey(r) {
		op, err := operationOf(r)
		if err != nil {
			return err
		}
		value, err := t.format(op.key)
		if err != nil {
			return err
		}
		c.op, c.keyed = op, true
		c.header[name] = []string{value}
	}
	if c.keyed && t.config.Repeatability {
		if _, ok := field(c.header, headerRepeatabilityFirstSent); !ok {
			c.header[headerRepeatabilityFirstSent] = []string{c.op.sent().UTC().Format(http.TimeFormat)}
		}
	}
	return nil
}

// field returns the values of a header field, in whatever case its name is.
func field(h http.Header, name string) (values []string, ok bool) {
	for n, v := range h {
		if strings.EqualFold(n, name) {
			values, ok = append(values, v...), true
		}
	}
	return values, ok
}

func (t *Transport) format(key string) (string, error) {
	value, err := semelhttp.FormatKey(key)
	if err != nil {
		return "", err
	}
	if !t.config.BareKeys && !t.config.Repeatability {
		return value, nil
	}
	if bare, err := semelhttp.ParseKey([]string{key}, false); err != nil || bare != key {
		return "", &semelhttp.KeyError{Reason: semelhttp.KeyBareCharacter}
	}
	return key, nil
}

// attempt is a try and what became of it.
type attempt struct {
	ctx    context.Context // until its answer was read
	cancel context.CancelCauseFunc
	timer  *time.Timer // cancels until the answer's header is there
	bound  error       // the cause then

	resp   *http.Response
	err    error
	unsent bool // certainly nothing was sent
}

// begin begins a try: its time is running.
func (t *Transport) begin(c *call) *attempt {
	a := &attempt{bound: ErrElapsed}
	left := time.Until(c.until)
	if d := t.config.TryTimeout; d > 0 && d < left {
		a.bound, left = ErrTryTimeout, d
	}
	ctx, cancel := context.WithCancelCause(c.request.Context())
	a.ctx, a.cancel = ctx, cancel
	a.timer = time.AfterFunc(left, func() { cancel(a.bound) })
	return a
}

// send sends the request once.
func (t *Transport) send(c *call, a *attempt, body io.ReadCloser) {
	r := c.request
	// The transport asks for a connection before it sends. That it did and got
	// none is certain; an error alone says nothing, it could be another's.
	var asked, got atomic.Bool
	out := r.WithContext(httptrace.WithClientTrace(a.ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	}))
	out.Header = c.header.Clone()
	out.Response = nil
	if out.Body, out.ContentLength = body, c.body.length; body == nil || body == http.NoBody {
		out.Body, out.ContentLength = nil, 0
	}
	once(out, c.repeatable)
	if reopen := out.GetBody; reopen != nil {
		out.GetBody = func() (io.ReadCloser, error) {
			again, err := reopen()
			return interruptible(a.ctx, again), err
		}
	}
	a.resp, a.err = t.config.Base.RoundTrip(out)
	inTime := a.timer.Stop() // what comes after the header takes its own time
	switch {
	case a.err != nil:
		a.unsent = asked.Load() && !got.Load()
		why := context.Cause(r.Context()) // HTTP/2 does not tell
		if why == nil && !inTime {
			why = a.bound
		}
		if why != nil && !errors.Is(a.err, why) {
			a.err = fmt.Errorf("%w: %w", why, a.err)
		}
	case a.resp == nil:
		a.err = errors.New("the base transport returned neither a response nor an error")
	case !inTime: // its body is cut off
		if a.resp.Body != nil {
			_ = a.resp.Body.Close()
		}
		a.err = a.bound
	}
	if a.err != nil {
		a.resp = nil
		a.end()
	}
}

// once has net/http's transport send the request once. It repeats one whose
// connection broke after it was sent if the method is safe, or if it has one of
// two header fields and a body that is empty or can be had again (its
// Request.isReplayable). It looks for their canonical names.
func once(out *http.Request, repeatable bool) {
	if isSafe(out.Method) {
		out.GetBody = nil
		return
	}
	for _, name := range []string{semelhttp.HeaderKey, "X-Idempotency-Key"} {
		values, ok := out.Header[name]
		if !ok {
			continue
		}
		repeatable = true
		if out.Body == nil {
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = values
		}
	}
	if repeatable {
		out.GetBody = nil
	}
	// Otherwise it is of use only where nothing was written to a connection that
	// had been closed.
}

func (a *attempt) status() int {
	if a.resp == nil {
		return 0
	}
	return a.resp.StatusCode
}

// mayHaveEffect reports whether the try is not certain to have had none.
func (a *attempt) mayHaveEffect() bool {
	if a.err != nil {
		return !a.unsent
	}
	return !semelhttp.DefaultNoEffectStatus(a.resp.StatusCode, a.resp.Header)
}

// end frees what the try holds, once its answer was read.
func (a *attempt) end() { a.cancel(nil) }

// discard ends a try whose answer nobody will read, within limit.
func (a *attempt) discard(limit time.Duration) {
	if a.resp == nil || a.resp.Body == nil {
		a.end()
		return
	}
	timer := time.AfterFunc(limit, a.end)
	_, _ = io.CopyN(io.Discard, a.resp.Body, drainBytes)
	timer.Stop()
	_ = a.resp.Body.Close()
	a.end()
}

// next decides about another try, after one that asks for it: how long to wait,
// and its body, or why there will be none.
func (t *Transport) next(ctx context.Context, c *call, a *attempt) (wait time.Duration, body io.ReadCloser, reason Reason) {
	now := time.Now()
	left := c.until.Sub(now)
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, deadline.Sub(now))
	}
	switch {
	case ctx.Err() != nil:
		return 0, nil, ReasonContext
	case left <= 0:
		return 0, nil, ReasonElapsed
	case !c.repeatable && !a.unsent:
		return 0, nil, ReasonUnsafe
	case a.unsent && isUntrusted(a.err):
		return 0, nil, ReasonRefused
	case c.tries >= t.config.MaxTries:
		return 0, nil, ReasonTries
	case c.body.reopen == nil:
		return 0, nil, ReasonBody
	}
	wait = t.backoff(c.tries)
	if a.resp != nil {
		if asked, ok := retryAfter(a.resp.Header, now); ok {
			wait = asked + jitter(t.config.MinBackoff)
		}
	}
	if wait >= left {
		return 0, nil, ReasonElapsed
	}
	body, err := c.body.reopen()
	if err != nil {
		return 0, nil, ReasonBody
	}
	return wait, body, ""
}

// isUntrusted reports whether the server's certificate was refused, which the
// next try would find out again.
func isUntrusted(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

// shown is the request as the response tells it.
func (c *call) shown() *http.Request {
	r := c.request
	if c.op.key != "" {
		r = r.WithContext(withOperation(r.Context(), c.op))
	} else {
		r = r.WithContext(r.Context())
	}
	r.Header, r.Body = c.header, nil
	return r
}

// giveUp returns the error of a call.
func (t *Transport) giveUp(c *call, status int, err error, reason Reason) error {
	t.gaveUp(c, status, err, reason)
	return &Error{
		Tries: c.tries, Reason: reason, Err: err, effect: c.effect(), earlier: !c.doubt && c.op.inDoubt(), op: c.op.Operation(),
	}
}

func (t *Transport) gaveUp(c *call, status int, err error, reason Reason) {
	if f := t.config.Observer.GaveUp; f != nil {
		f(c.request.Context(), GaveUp{
			Method: c.request.Method, Tries: c.tries, Status: status, Err: err, Reason: reason, Effect: c.effect(),
		})
	}
}

func (c *call) effect() semel.Effect {
	if c.doubt || c.op.inDoubt() {
		return semel.EffectMaybe
	}
	return semel.EffectNone
}
