package semelhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
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

// bodyReader is a request body in memory. It cannot be rewound, or a transport
// might send it again by itself. Who reads on after the end has an error.
type bodyReader struct {
	mu   sync.Mutex
	rest []byte
	over bool
	lent int // calls of WriteTo under way
}

func (b *bodyReader) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over:
		return 0, http.ErrBodyReadAfterClose
	case len(b.rest) == 0:
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// WriteTo implements io.WriterTo. It has w at the bytes themselves, which are
// not used for another request as long as it is.
func (b *bodyReader) WriteTo(w io.Writer) (int64, error) {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	rest := b.rest
	b.rest = nil
	b.lent++
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.lent--
		b.mu.Unlock()
	}()
	if len(rest) == 0 {
		return 0, nil
	}
	n, err := w.Write(rest)
	if n < len(rest) && err == nil {
		err = io.ErrShortWrite
	}
	return int64(n), err
}

func (*bodyReader) Close() error { return nil }

// end lets nobody read any more. It reports whether nobody has the bytes.
func (b *bodyReader) end() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest, b.over = nil, true
	return b.lent == 0
}

// spoolReader is a request body in a spool. It cannot be rewound either.
type spoolReader struct{ r *io.SectionReader }

func (s *spoolReader) Read(p []byte) (int, error) { return s.r.Read(p) }
func (*spoolReader) Close() error                 { return nil }

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

// Attached returns a context for a request whose handler must not outlive it,
// because a framework uses what belongs to the request again. Such a request is
// not answered before its handler has returned, even if the client would rather
// not wait, which is no more than a preference (RFC 7240).
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

// request returns the handler's request, with ctx. It is the handler's to
// change.
func (e *exchange) request(ctx context.Context) *http.Request {
	r := e.r.WithContext(ctx)
	r.Body = http.NoBody
	switch {
	case e.body.file != nil:
		r.Body = &spoolReader{e.body.reader()}
	case len(e.body.mem) > 0:
		e.reader.rest = e.body.mem
		r.Body = &e.reader
	}
	r.GetBody = nil
	r.TransferEncoding = nil
	r.ContentLength = e.body.size()
	if len(r.Trailer) > 0 {
		r.ContentLength = -1 // trailers come behind a body of unknown length
	}
	waiting := (e.MaxWait > 0 || e.async) && len(r.Header[headerPrefer]) > 0
	if waiting || len(r.Header["Expect"]) > 0 {
		r.Header = r.Header.Clone()
		r.Header.Del("Expect") // has been met
		if waiting {
			withoutWaiting(r.Header)
		}
	}
	return r
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
	// The answer may pass while the handler runs only if its effect cannot be
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

func (e *exchange) answer(ctx context.Context, out semel.Outcome, err error) {
	if e.DryRun {
		rehearsalOf(ctx).answered(out, e.expired)
		return
	}
	failure, _ := errors.AsType[*semel.Error](err) // there is one wherever it is used
	if e.rec.passing() {
		if out.Answer != semel.AnswerExecuted && out.Answer != semel.AnswerReleased {
			// Nobody knows whether that was all, and the client must not take it
			// for the end.
			panic(http.ErrAbortHandler)
		}
		e.rec.end()
		return
	}
	switch out.Answer {
	case semel.AnswerExecuted:
		e.own(out.Record.ExpiresAt)
	case semel.AnswerReplayed:
		r := replay{
			contract: &e.Contract, status: e.Resources.StatusURL(out.Record.ID), shared: e.submit.Identity.Actor == "",
			timeout: e.Guard.Policy().StoreTimeout, pace: e.Pace,
		}
		r.write(ctx, e.w, out, err)
	case semel.AnswerReleased:
		switch {
		case errors.Is(err, semel.ErrRolledBack):
			// Whatever the handler answered, it did not come true.
			p := ProblemRolledBack.Problem()
			p.RetryAfter = max(failure.RetryAfter, time.Second)
			e.refuse(e.w, p)
		case e.expired:
			e.refuse(e.w, ProblemKeyExpired.Problem())
		default:
			e.own(time.Time{})
		}
	case semel.AnswerInProgress:
		e.inProgress(ctx, out.Record, failure)
	case semel.AnswerMismatch:
		e.refuse(e.w, ProblemKeyMismatch.Problem())
	case semel.AnswerUnknown:
		p := ProblemOutcomeUnknown.Problem()
		p.StatusURL = e.Resources.StatusURL(out.Record.ID)
		p.Retry, p.RetryAfter = failure.Retry(), failure.RetryAfter
		if out.Claimed {
			p.Status = e.ownFailure()
			p.Detail = "It is not known whether this request took effect. It is not executed again until that is settled. Keep the key: another key could cause the effect twice."
		}
		e.refuse(e.w, p)
	case semel.AnswerUnavailable:
		e.unavailable(ctx, out, failure)
	default:
		// The key is well-formed, so it is the scope that makes no identity.
		e.refuse(e.w, Problem{
			Status: http.StatusInternalServerError, Title: http.StatusText(http.StatusInternalServerError), Retry: semel.RetryNo,
			Detail: "The server could not name the operation. Nothing was executed.",
		})
	}
}

// ownFailure is the status for the request whose own execution was cut off: a
// failure of the server, where those who find the record meet a conflict.
func (e *exchange) ownFailure() int {
	switch {
	case !e.Forwards:
		return http.StatusInternalServerError
	case errors.Is(e.cause, semel.ErrDeadline):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// inProgress answers while the identity is being executed, be it for this
// request or for another.
func (e *exchange) inProgress(ctx context.Context, rec semel.Record, failure *semel.Error) {
	ctx = context.WithoutCancel(ctx)
	if e.async || e.InFlight == InFlightAccept {
		switch found, err := e.Resources.visible(ctx, rec); {
		case err == nil:
			h := e.w.Header()
			if e.async {
				h.Set(headerPreferenceApplied, strings.TrimPrefix(h.Get(headerPreferenceApplied)+", respond-async", ", "))
			}
			if e.Contract.ResultHeader != "" {
				h.Set(e.Contract.ResultHeader, "accepted")
			}
			h.Set("Location", e.Resources.StatusURL(rec.ID))
			e.Resources.writeStatus(e.w, http.StatusAccepted, found)
			return
		case failure.Claimed && !errors.Is(err, semel.ErrNotFound):
			// For others it is a conflict whatever the store says now.
			p := ProblemStoreUnavailable.Problem()
			p.Detail = "This request is being executed, but its record could not be looked up now. Keep the key: another key could cause the effect twice."
			p.RetryAfter, p.StatusURL = max(failure.RetryAfter, time.Second), e.Resources.StatusURL(rec.ID)
			e.refuse(e.w, p)
			return
		}
	}
	p := ProblemInProgress.Problem()
	p.RetryAfter = max(failure.RetryAfter, time.Second)
	p.StatusURL = e.Resources.StatusURL(rec.ID)
	e.refuse(e.w, p)
}

func (e *exchange) unavailable(ctx context.Context, out semel.Outcome, failure *semel.Error) {
	busy, isBusy := errors.AsType[*semel.BusyError](failure)
	p := ProblemStoreUnavailable.Problem()
	switch {
	case errors.Is(failure, semel.ErrDraining):
		p = stopping()
	case isBusy:
		p = ProblemBusy.Problem()
		p.Detail = fmt.Sprintf("The server executes as many operations at the same time as it may: %d, by its %s. Nothing was executed.", busy.Limit, busy.Bound)
	case out.Claimed:
		p.Detail = "This request was executed, but what came of it could not be recorded, so whether it took effect is not known yet. Keep the key: another key could cause the effect twice."
		p.StatusURL = e.Resources.StatusURL(out.Record.ID)
	case e.FailOpen && ctx.Err() == nil && out.Record.ID == "":
		if e.expired {
			// It may have been used, and there is no record to say so.
			e.refuse(e.w, ProblemKeyExpired.Problem())
			return
		}
		e.Guard.NoteFailedOpen(ctx, e.submit, failure)
		e.handle(ctx, e.w)
		return
	}
	p.RetryAfter = max(failure.RetryAfter, time.Second)
	e.refuse(e.w, p)
}

// refuse answers with a problem, as the contract tells it.
func (e *exchange) refuse(w http.ResponseWriter, problem Problem) {
	e.Contract.WriteProblem(w, problem)
}

// own answers with what the handler wrote.
func (e *exchange) own(expires time.Time) {
	rec := &e.rec
	switch {
	case (rec.status == http.StatusSwitchingProtocols || rec.lost) && !expires.IsZero():
		replay{contract: &e.Contract}.notRetained(e.w, rec.tombstone().Reference, expires)
		return
	case rec.status == http.StatusSwitchingProtocols:
		e.refuse(e.w, Problem{
			Status: http.StatusInternalServerError, Title: http.StatusText(http.StatusInternalServerError), Retry: semel.RetrySameKey,
			Detail: "The operation had no effect. It asked for another protocol, which it cannot have.",
		})
		return
	case rec.lost:
		e.refuse(e.w, Problem{
			Status: rec.status, Title: http.StatusText(rec.status), Retry: semel.RetrySameKey,
			Detail: "The operation had no effect. Its answer was too large to be passed on.",
		})
		return
	}
	body := rec.kept.content()
	body.coded = rec.outer.Get("Content-Encoding") != ""
	rec.prepare(e.w.Header())
	send(e.w, &e.Contract, e.Pace, rec.status, rec.trailer, body, expires, nil)
}
