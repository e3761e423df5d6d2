package semelhttp

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
)

// exchange is one protected request. The server's goroutine runs all of it,
// unless the client prefers not to wait: then a goroutine of the guard runs
// execute, and whichever of the two is the last to leave gives up the spools.
type exchange struct {
	*protector
	w      http.ResponseWriter
	r      *http.Request
	body   spool
	submit semel.Submit
	rec    recorder

	expired bool // the key is one that must not execute any more
	async   bool // the client wants to be answered before the end
	patient time.Duration
	respond context.CancelCauseFunc // has an async request answered, from within execute

	reader bodyReader // of the handler's request, if the body is in memory
	ctx    handlerContext
	cause  error // why the handler's context had ended when it returned

	users  atomic.Int32 // goroutines that need body and rec
	buffer *[]byte      // what body has begun in; nil if there was none
	called bool         // the handler was, and may have kept what it was given

	run func(context.Context) (semel.Result, error) // execute, for Guard.Do
}

// newExchange returns an exchange without what the request asks for.
func (p *protector) newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	e, _ := p.spare.exchanges.Get().(*exchange)
	if e == nil {
		e = &exchange{}
		e.run = e.execute
	}
	e.protector, e.w, e.r = p, w, r
	e.body = spool{spools: p.Spools, max: inlineBody}
	e.rec.kept = spool{spools: p.Spools, max: p.MaxInline}
	return e
}

// release gives up what is held for the request. What a handler was given stays
// its own for good: a handler may go on to use its request, writer or context
// when it has returned, and then must not meet those of another request.
func (e *exchange) release() {
	p := e.protector
	e.body.close()
	e.rec.kept.close()
	if e.buffer != nil && e.reader.end() {
		p.spare.buffers.Put(e.buffer)
	}
	if !e.called {
		*e = exchange{run: e.run}
		p.spare.exchanges.Put(e)
	}
}

// handlerContext is a context that knows its recorder.
type handlerContext struct {
	context.Context
	rec *recorder
}

func (c *handlerContext) Value(key any) any {
	if key == (recorderKey{}) {
		return c.rec
	}
	return c.Context.Value(key)
}

type attachedKey struct{}

// Attached returns a context for a request whose handler must not outlive it, because
// a framework reuses what belongs to the request. The request is answered after its
// handler has returned, even if the client prefers not to wait (RFC 7240).
func Attached(ctx context.Context) context.Context {
	return context.WithValue(ctx, attachedKey{}, true)
}

// prefer reads what the client wants to happen if it has to wait.
func (e *exchange) prefer() {
	if e.InFlight == InFlightWait {
		e.submit.Wait = e.Wait
	}
	prefs := parsePrefer(e.r.Header[headerPrefer])
	if prefs.hasWait && e.MaxWait > 0 {
		e.patient = min(prefs.wait, e.MaxWait)
		e.submit.Wait = e.patient
		e.w.Header().Set(headerPreferenceApplied, waitApplied(e.patient))
	}
	e.async = prefs.async && e.Resources != nil && e.r.Context().Value(attachedKey{}) == nil
	if e.async && !prefs.hasWait {
		e.submit.Wait = 0
	}
}

// errRespondAsync is why an async request is answered while it executes.
var errRespondAsync = errors.New("semelhttp: the client prefers not to wait")

// serve has the request take effect once and answers the client.
func (e *exchange) serve() {
	e.users.Store(1)
	defer e.leave()
	if e.DryRun {
		e.submit.Identity.Operation = fittingOperation(dryRunOperation + e.submit.Identity.Operation)
	}
	whole := false
	defer func() {
		if !whole && e.rec.begun {
			cutOff(e.w)
		}
	}()
	ctx := e.r.Context()
	waits := ctx // ends earlier for a client that would rather not wait
	if e.async {
		// The handler may go on when the server has taken its request back.
		e.r = e.r.Clone(context.WithoutCancel(ctx))
		var cancel context.CancelCauseFunc
		waits, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		e.respond = cancel
		e.submit.Detached = true
		e.submit.Settled = func(semel.Outcome, error) { e.leave() }
		e.users.Store(2)
	}
	out, err := e.Guard.Do(waits, e.submit, e.run)
	if e.async && !out.Claimed {
		e.users.Store(1) // nobody has been called
	}
	e.answer(ctx, out, err)
	whole = true
}

// leave is called by each goroutine that needs the exchange no more.
func (e *exchange) leave() {
	if e.users.Add(-1) == 0 {
		e.release()
	}
}

// handle calls the handler.
func (e *exchange) handle(ctx context.Context, w http.ResponseWriter) {
	e.called = true
	r := e.request(ctx)
	if r.MultipartForm == nil {
		defer func() {
			// The server does this for the original only.
			if r.MultipartForm != nil {
				_ = r.MultipartForm.RemoveAll()
			}
		}()
	}
	e.next.ServeHTTP(w, r)
}

// execute runs the handler under the claim.
func (e *exchange) execute(ctx context.Context) (semel.Result, error) {
	if e.expired {
		// There is no record of an earlier use.
		return semel.Result{}, semel.NoEffect(ErrKeyExpired)
	}
	if e.DryRun {
		return rehearsalOf(ctx).execute(ctx, e.protector)
	}
	if e.async {
		timer := time.AfterFunc(e.patient, func() { e.respond(errRespondAsync) })
		defer timer.Stop()
	}
	x, _ := semel.CurrentExecution(ctx)
	rec := &e.rec
	rec.exchange = e
	rec.transactional = x.Transactional()
	// The response may pass while the handler runs only if its effect cannot be
	// undone afterwards, and if it is the server's goroutine that runs it.
	rec.direct = !rec.transactional && !e.async && !e.Withhold
	if rec.outer != nil {
		rec.header = rec.outer.Clone()
	} else {
		rec.header = make(http.Header)
	}
	defer rec.close()
	e.ctx = handlerContext{ctx, rec}
	e.handle(&e.ctx, rec)
	e.cause = context.Cause(ctx)
	return rec.finish()
}
