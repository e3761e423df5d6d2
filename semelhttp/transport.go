package semelhttp

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
)

// Header fields of OASIS Repeatable Requests 1.0.
const (
	headerRepeatabilityID        = "Repeatability-Request-Id" // on the wire, case does not matter
	headerRepeatabilityFirstSent = "Repeatability-First-Sent"
)

// Defaults of a TransportConfig that leaves them zero.
const (
	DefaultMaxTries      = 5
	DefaultMaxElapsed    = time.Minute
	DefaultMinBackoff    = 200 * time.Millisecond
	DefaultMaxBackoff    = 10 * time.Second
	DefaultMaxReplayBody = 1 << 20
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

// Why a try ended that a TransportConfig bounds.
var (
	// ErrTryTimeout: it took longer than TryTimeout.
	ErrTryTimeout error = timeoutError("semelhttp: no answer within the try's timeout")
	// ErrElapsed: with it, the call took longer than MaxElapsed.
	ErrElapsed error = timeoutError("semelhttp: no answer within the time of the call")
)

type timeoutError string

func (e timeoutError) Error() string { return string(e) }
func (e timeoutError) Timeout() bool { return true }

// TransportConfig says how a Transport sends. Functions must be safe for
// concurrent use. Durations are by the monotonic clock of this process.
type TransportConfig struct {
	// Base sends. Default: http.DefaultTransport. It must send a request at most
	// once for each call, as http.Transport does when it is asked the way a
	// Transport asks, and must not retry on its own.
	Base http.RoundTripper

	// NeedsKey says which requests get a key if they have none. Default: POST
	// and PATCH. A stream of a protocol of its own, gRPC's for one, should get none.
	NeedsKey func(*http.Request) bool
	// Header is the field that carries the key. Default HeaderKey.
	Header string
	// BareKeys sends keys as they are, as Stripe and most others expect it,
	// instead of as a Structured Field String.
	BareKeys bool
	// Repeatability sends the header fields of OASIS Repeatable Requests 1.0,
	// Repeatability-Request-ID and Repeatability-First-Sent, instead of Header.
	// The second is the same in each try of an operation.
	Repeatability bool

	// MaxTries bounds how often a request is sent in one call. Default
	// DefaultMaxTries; 1 never retries.
	MaxTries int
	// MaxElapsed bounds a call: all its tries, and the waits between them, to
	// the header of the answer that is returned. A try that it ends may have
	// taken effect. If a Retry-After goes beyond it, the answer is returned at
	// once. Default DefaultMaxElapsed, so where one answer takes longer than
	// that, it has to be set.
	MaxElapsed time.Duration
	// TryTimeout bounds the time from the begin of a try to the header of its
	// answer. The first try begins with the reading of the request's body. A try
	// that it ends may have taken effect. Zero: no bound but MaxElapsed and the
	// request's context. (http.Client.Timeout is for all tries together, and
	// may put an error of its own, without key and effect, in place of the
	// TransportError. Prefer this and a context with a deadline.)
	TryTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait between tries. It is chosen at
	// random between zero and a bound that begins with MinBackoff and doubles up
	// to MaxBackoff. After a Retry-After, the wait is that and up to MinBackoff
	// more. Default DefaultMinBackoff and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
	// RetryStatus says of an answer with a status of 400 or more whether it asks
	// for another try of a request that may be tried again. It is not asked
	// where the answer itself says so (see Transport). h must not be changed.
	// Default: DefaultRetryStatus.
	RetryStatus func(status int, h http.Header) bool
	// MaxReplayBody is the largest request body in bytes that is kept in memory
	// to be sent again, where the request has no GetBody. Default
	// DefaultMaxReplayBody.
	MaxReplayBody int64

	// Observer is told what the transport does.
	Observer TransportObserver
}

func (c TransportConfig) withDefaults() TransportConfig {
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	if c.NeedsKey == nil {
		c.NeedsKey = func(r *http.Request) bool {
			return r.Method == http.MethodPost || r.Method == http.MethodPatch
		}
	}
	switch {
	case c.Repeatability && c.Header == "":
		c.Header = headerRepeatabilityID
	case c.Header == "":
		c.Header = HeaderKey
	}
	if c.MaxTries == 0 {
		c.MaxTries = DefaultMaxTries
	}
	if c.MaxElapsed == 0 {
		c.MaxElapsed = DefaultMaxElapsed
	}
	if c.MinBackoff == 0 {
		c.MinBackoff = DefaultMinBackoff
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(DefaultMaxBackoff, c.MinBackoff)
	}
	if c.RetryStatus == nil {
		c.RetryStatus = DefaultRetryStatus
	}
	if c.MaxReplayBody == 0 {
		c.MaxReplayBody = DefaultMaxReplayBody
	}
	return c
}

func (c TransportConfig) validate() error {
	var errs []error
	if !isToken(c.Header) {
		errs = append(errs, fmt.Errorf("field Header is %q, which is no name of a header field", c.Header))
	}
	if c.Repeatability && c.Header != headerRepeatabilityID {
		errs = append(errs, errors.New("field Header is set, and so is Repeatability, which names the fields itself"))
	}
	if c.MaxTries < 0 {
		errs = append(errs, fmt.Errorf("field MaxTries is %d; it must be positive", c.MaxTries))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"MaxElapsed", c.MaxElapsed}, {"MinBackoff", c.MinBackoff}, {"MaxBackoff", c.MaxBackoff}} {
		if f.d <= 0 {
			errs = append(errs, fmt.Errorf("field %s is %v; it must be positive", f.name, f.d))
		}
	}
	if c.MaxBackoff < c.MinBackoff {
		errs = append(errs, fmt.Errorf("field MaxBackoff %v is less than MinBackoff %v", c.MaxBackoff, c.MinBackoff))
	}
	if c.TryTimeout < 0 {
		errs = append(errs, fmt.Errorf("field TryTimeout is %v; it must not be negative", c.TryTimeout))
	}
	if c.MaxReplayBody < 0 {
		errs = append(errs, fmt.Errorf("field MaxReplayBody is %d; it must not be negative", c.MaxReplayBody))
	}
	return errors.Join(errs...)
}

// TransportObserver is told what a Transport does, for metrics and logs. Every
// field may be nil. Functions are called in the goroutine at work and must not
// block. What they are given holds no key and no payload.
type TransportObserver struct {
	// Tried: a request was tried, and answered or not.
	Tried func(context.Context, Tried)
	// GaveUp: a call ended with an error, or with an answer that asks to come
	// back.
	GaveUp func(context.Context, GaveUp)
}

// Tried is one try of a request.
type Tried struct {
	Method string
	Try    int  // from 1
	Keyed  bool // the request carries a key
	Status int  // of the answer; zero if there was none
	Err    error
	// Retry is set if there will be another try, after Wait.
	Retry bool
	Wait  time.Duration
	Took  time.Duration // until the header of the answer
}

// GaveUp is a call without a final answer.
type GaveUp struct {
	Method string
	Tries  int
	Status int // of the last answer; zero if the last try got none
	Err    error
	Reason Reason
	Effect semel.Effect // EffectNone or EffectMaybe
}

// Reason is why a call was not tried again.
type Reason string

const (
	// ReasonUnsafe: the request has no key, its method is not idempotent, and it
	// may have been sent.
	ReasonUnsafe Reason = "unsafe"
	// ReasonBody: its body cannot be sent again.
	ReasonBody Reason = "body"
	// ReasonTries: MaxTries are over.
	ReasonTries Reason = "tries"
	// ReasonElapsed: MaxElapsed is over, or the next try would be later than
	// that, or than the deadline of the request's context.
	ReasonElapsed Reason = "elapsed"
	// ReasonContext: the request's context has ended.
	ReasonContext Reason = "context"
	// ReasonRefused: the request was not sent because something is wrong with
	// it, as a body that did not come in time, or with the server's certificate.
	ReasonRefused Reason = "refused"
)

// TransportError is every error of a Transport's RoundTrip: the last try got no
// answer. It matches semel.ErrNoEffect or semel.ErrMaybeEffect, and Err.
//
// Certainly no effect is said of the key: of this call and all before it. So it
// is said where the transport knows them all: of a key that it made for this
// call, of NewOperation's with the calls made with its context, and of WithStep's
// unless the execution is in doubt. What became of a key that somebody
// else made or kept, it cannot know: a call under such a key never ends with
// certainly no effect.
type TransportError struct {
	Tries  int
	Reason Reason
	// Err is what became of the last try, or what is wrong with the request.
	Err error

	effect  semel.Effect
	earlier bool // only calls before this one may have had an effect
	op      Operation
}

// Effect is semel.EffectNone or semel.EffectMaybe.
func (e *TransportError) Effect() semel.Effect { return e.effect }

// Operation has the key to come back with: with another key, what may have
// taken effect could do so twice. The key is empty if the request had none.
func (e *TransportError) Operation() Operation { return e.op }

// Error does not tell the key.
func (e *TransportError) Error() string {
	s := "semelhttp: no answer after " + plural(e.Tries, "try", "tries") + "; the request "
	switch {
	case e.effect == semel.EffectNone:
		s += "had no effect"
	case e.earlier:
		s += "had no effect, but one before it under its key may have had; retry it under the same key only"
	case e.op.Key != "":
		s += "may have taken effect, retry it under the same key only"
	default:
		s += "may have taken effect"
	}
	return s + ": " + e.Err.Error()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Unwrap returns Err.
func (e *TransportError) Unwrap() error { return e.Err }

// Timeout reports whether the last try timed out. It makes
// url.Error.Timeout work, which looks no deeper.
func (e *TransportError) Timeout() bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.Err)
	return ok && t.Timeout()
}

// Is matches semel.ErrNoEffect and semel.ErrMaybeEffect.
func (e *TransportError) Is(target error) bool {
	switch target {
	case semel.ErrNoEffect:
		return e.effect == semel.EffectNone
	case semel.ErrMaybeEffect:
		return e.effect == semel.EffectMaybe
	}
	return false
}

// Transport is an http.RoundTripper that sends a request as often as it takes
// and as is safe, under one key. Make it with NewTransport and give it to an
// http.Client, or to an SDK that takes one. It is safe for concurrent use.
//
// # Keys
//
// A request's key is, in this order: the one in its header; that of the
// operation in its context (NewOperation, WithKey, WithStep); that of the
// request that it was redirected from; a fresh one, for this call alone. In an
// execution there is no fresh one, and a request that needs it is refused with
// ErrNoStep. All tries of a call have the same key. Only requests that NeedsKey
// names are given one.
//
// Whoever retries above the transport must put the operation into the context,
// or the key into the header: else each of its calls is another operation.
//
// # Tries
//
// A request may be tried again if it carries a key, if its method is idempotent
// (GET, HEAD, OPTIONS, TRACE, PUT, DELETE), if its header has the key's field
// with no values at all, which package net/http takes to mean the same, or if
// certainly nothing was sent because there was no connection. It is tried again
// after an error, and after an answer that asks for it:
//
//   - never with a status below 400, and 401 and 407 need other credentials;
//   - never if a problem (RFC 9457) has a member "retry" other than "same-key",
//     or Stripe-Should-Retry is false;
//   - otherwise if the member is "same-key" and the request has a key, or
//     Stripe-Should-Retry is true;
//   - otherwise not if the answer is marked as recorded (Idempotency-Expires,
//     Idempotency-Replayed, Idempotent-Replayed);
//   - otherwise if RetryStatus says so. Of a request without a key, 409 does not
//     ask.
//
// Whether an answer is a problem is looked for in the first MaxProblemBytes of
// its body, and for 5 seconds: then what its header says goes. The body that is
// returned is whole.
//
// The answer of the last try is returned whatever its status. An answer that
// breaks off while its body is read is not tried again: call again with the
// operation in the context.
//
// # One send
//
// By itself, http.Transport sends a request that has an Idempotency-Key again,
// unseen, when a connection breaks that it had used before. Here, each try is
// sent once: the base is given no GetBody, and of a request without a body the
// key's field name in lower case, which to the server is the same, but not to a
// round tripper in between that looks for the canonical name. There are two
// exceptions, both harmless: requests with a safe method, and those without a
// body over HTTP/2 that the server resets as refused.
//
// http.Client follows redirects by itself: 307 and 308 send the request on, body
// and key, to wherever the server says. Set CheckRedirect to return
// http.ErrUseLastResponse where it should not.
//
// # Bodies
//
// A body is sent again if the request has a GetBody, or if it may be tried
// again, its ContentLength is not -1 and it is no longer than MaxReplayBody: then it is
// read whole before the first try. Any other is sent once.
//
// A body that is not in memory (bytes.Reader, bytes.Buffer, strings.Reader) is
// read in a goroutine of its own, because a Read cannot be interrupted: when the
// try ends, by a bound or by the request's context, nobody waits for it any
// longer. The body is then closed, while Read is still running, as net/http does
// over HTTP/2; that ends the Read of a pipe, a file or a connection. The
// goroutine ends when Read returns, and what Read then returns is dropped. A
// GetBody that does not return holds RoundTrip up.
type Transport struct {
	config TransportConfig
}

// NewTransport returns a transport, or one error that names everything wrong
// with c.
func NewTransport(c TransportConfig) (*Transport, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("semelhttp: transport config: %w", err)
	}
	c.Header = http.CanonicalHeaderKey(c.Header)
	return &Transport{config: c}, nil
}

// CloseIdleConnections closes those of the base, if it can.
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

// RoundTrip implements http.RoundTripper. It does not change the request and
// closes its body. The response's request has the key, in its header and as the
// operation in its context. The error is a *TransportError. When the request's
// context ends, so does RoundTrip.
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
		key, err := ParseKey(values, false)
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
	value, err := FormatKey(key)
	if err != nil {
		return "", err
	}
	if !t.config.BareKeys && !t.config.Repeatability {
		return value, nil
	}
	if bare, err := ParseKey([]string{key}, false); err != nil || bare != key {
		return "", &KeyError{KeyBareCharacter}
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
	for _, name := range []string{HeaderKey, "X-Idempotency-Key"} {
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
	return !DefaultNoEffectStatus(a.resp.StatusCode, a.resp.Header)
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
	return &TransportError{
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
