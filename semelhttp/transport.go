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
)

// ErrTryTimeout is why a try ended that took longer than TransportConfig.TryTimeout.
var ErrTryTimeout error = timeoutError("semelhttp: the server did not answer within the try's timeout")

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
	// MaxElapsed bounds when the last try of a call can begin. If a Retry-After
	// goes beyond it, the answer is returned at once. Default DefaultMaxElapsed.
	MaxElapsed time.Duration
	// TryTimeout bounds the time from the begin of a try to the header of its
	// answer. A try that it ends may have taken effect. Zero: no bound but the
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
	// ReasonElapsed: the next try would be later than MaxElapsed, or than the
	// deadline of the request's context.
	ReasonElapsed Reason = "elapsed"
	// ReasonContext: the request's context has ended.
	ReasonContext Reason = "context"
	// ReasonRefused: the request was not sent because something is wrong with
	// it, or with the server's certificate.
	ReasonRefused Reason = "refused"
)

// TransportError is every error of a Transport's RoundTrip: the last try got no
// answer. It matches semel.ErrNoEffect or semel.ErrMaybeEffect, and Err.
//
// Certainly no effect is said of the call and, where the operation is in the
// request's context, of the calls before it with that context. What became of
// the key before, in another process or under the hands of who set the header,
// the transport cannot know.
type TransportError struct {
	Tries  int
	Reason Reason
	// Err is what became of the last try, or what is wrong with the request.
	Err error

	effect semel.Effect
	op     Operation
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
	start      time.Time
	tries      int
	doubt      bool // a try may have had the effect
}

// RoundTrip implements http.RoundTripper. It does not change the request and
// closes its body. The response's request has the key, in its header and as the
// operation in its context. The error is a *TransportError. When the request's
// context ends, so does RoundTrip.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x, _ := semel.CurrentExecution(r.Context())
	c := &call{request: r, start: time.Now(), op: &operation{execution: x}}
	if err := t.prepare(c); err != nil {
		return nil, t.giveUp(c, 0, err, ReasonRefused)
	}
	ctx := r.Context()
	body := c.body.first
	for {
		c.tries++
		began := time.Now()
		a := t.try(c, body)
		took := time.Since(began)
		again := a.err != nil || wantsRetry(a.resp, c.keyed, t.config.RetryStatus)
		if a.timedOut() {
			again = true
		}
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

		a.discard()
		timer := time.NewTimer(wait)
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
	}
}

// prepare finds the key and takes the body over.
func (t *Transport) prepare(c *call) error {
	r := c.request
	err := t.setKey(c)
	if err == nil {
		c.repeatable = c.repeatable || c.keyed || isIdempotent(r.Method)
		c.body, err = newPayload(r, c.repeatable, t.config.MaxReplayBody)
		return err
	}
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return err
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
	resp   *http.Response
	err    error
	unsent bool // certainly nothing was sent
	cancel context.CancelCauseFunc
	timer  *time.Timer // nil without a timeout
}

// try sends the request once.
func (t *Transport) try(c *call, body io.ReadCloser) *attempt {
	r := c.request
	ctx, cancel := context.WithCancelCause(r.Context())
	a := &attempt{cancel: cancel}
	// The transport asks for a connection before it sends. That it did and got
	// none is certain; an error alone says nothing, it could be another's.
	var asked, got atomic.Bool
	out := r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	}))
	out.Header = c.header.Clone()
	out.Response = nil
	if out.Body, out.ContentLength = body, c.body.length; body == nil || body == http.NoBody {
		out.Body, out.ContentLength = nil, 0
	}
	once(out, c.repeatable)
	if t.config.TryTimeout > 0 {
		a.timer = time.AfterFunc(t.config.TryTimeout, func() { cancel(ErrTryTimeout) })
	}
	a.resp, a.err = t.config.Base.RoundTrip(out)
	if a.err == nil && a.resp == nil {
		a.err = errors.New("the base transport returned neither a response nor an error")
	}
	if a.err != nil {
		a.unsent = asked.Load() && !got.Load()
		if r.Context().Err() == nil && context.Cause(ctx) == ErrTryTimeout && !errors.Is(a.err, ErrTryTimeout) {
			a.err = fmt.Errorf("%w: %w", ErrTryTimeout, a.err)
		}
		a.end()
	}
	return a
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

// timedOut ends the try's timeout. It reports whether that was too late for an
// answer, whose body is then cut off.
func (a *attempt) timedOut() bool {
	if a.timer == nil || a.timer.Stop() || a.err != nil {
		return false
	}
	if a.resp.Body != nil {
		_ = a.resp.Body.Close()
	}
	a.resp, a.err = nil, ErrTryTimeout
	a.end()
	return true
}

// end frees what the try holds, once its answer was read.
func (a *attempt) end() { a.cancel(nil) }

// discard ends a try whose answer nobody will read.
func (a *attempt) discard() {
	if a.resp == nil || a.resp.Body == nil {
		a.end()
		return
	}
	timer := time.AfterFunc(drainTime, a.end)
	_, _ = io.CopyN(io.Discard, a.resp.Body, drainBytes)
	timer.Stop()
	_ = a.resp.Body.Close()
	a.end()
}

// next decides about another try, after one that asks for it: how long to wait,
// and its body, or why there will be none.
func (t *Transport) next(ctx context.Context, c *call, a *attempt) (wait time.Duration, body io.ReadCloser, reason Reason) {
	switch {
	case ctx.Err() != nil:
		return 0, nil, ReasonContext
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
	now := time.Now()
	if a.resp != nil {
		if asked, ok := retryAfter(a.resp.Header, now); ok {
			wait = asked + jitter(t.config.MinBackoff)
		}
	}
	deadline, ok := ctx.Deadline()
	if wait > t.config.MaxElapsed-now.Sub(c.start) || ok && wait > deadline.Sub(now) {
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
	return &TransportError{Tries: c.tries, Reason: reason, Err: err, effect: c.effect(), op: c.op.Operation()}
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
