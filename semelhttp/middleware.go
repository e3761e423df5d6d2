package semelhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
)

// New returns a middleware that protects handlers as c says, or one error that
// names everything wrong with c. The middleware panics when it is given a nil
// handler.
func New(c Config) (func(http.Handler) http.Handler, error) {
	c = c.withDefaults()
	fingerprinter, err := NewFingerprinter(c.Fingerprint)
	if err := errors.Join(c.validate(), err); err != nil {
		return nil, fmt.Errorf("semelhttp: config: %w", err)
	}
	if c.Resources != nil {
		c.Resources.add(c)
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("semelhttp: nil handler")
		}
		return &protector{Config: c, fingerprinter: fingerprinter, next: next}
	}, nil
}

// protector is a protected handler.
type protector struct {
	Config
	fingerprinter *Fingerprinter
	next          http.Handler
}

func (p *protector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		p.next.ServeHTTP(w, r)
		return
	}
	if !p.Protects(r) {
		if p.Contract.RefuseUnprotected && len(r.Header[p.Contract.KeyHeader]) > 0 {
			p.refuse(w, ProblemNotProtected.Problem())
			return
		}
		p.next.ServeHTTP(w, r)
		return
	}
	key, problem := p.key(r)
	switch {
	case problem.Status != 0:
		p.refuse(w, problem)
		return
	case key == "":
		p.next.ServeHTTP(w, r)
		return
	}
	scope, err := p.Scope(r)
	if err != nil {
		problem, header := scopeProblem(err)
		for name, values := range header {
			w.Header()[name] = values
		}
		p.refuse(w, problem)
		return
	}
	if scope.Operation == "" {
		scope.Operation = defaultOperation(r)
	}
	expired, ok := p.verifyIssued(w, key, scope)
	if !ok {
		return
	}
	e := &exchange{
		protector: p,
		r:         r,
		method:    r.Method,
		expired:   expired,
		submit: semel.Submit{
			Identity: semel.Identity{Scope: scope, Key: key},
			Origin:   p.Origin(r),
		},
	}
	e.body = spool{dir: p.SpoolDir, max: inlineBody}
	e.rec.kept = spool{dir: p.SpoolDir, max: p.MaxInline}
	if problem := e.read(w); problem.Status != 0 {
		e.body.close()
		p.refuse(w, problem)
		return
	}
	if len(w.Header()) > 0 {
		e.outer = w.Header().Clone()
	}
	e.prefer(w)
	e.serve(w)
}

// refuse answers with a problem, as the contract tells it.
func (p *protector) refuse(w http.ResponseWriter, problem Problem) {
	p.Contract.WriteProblem(w, problem)
}

// key returns the request's key; neither key nor problem if it has none and
// needs none.
func (p *protector) key(r *http.Request) (string, Problem) {
	c := &p.Contract
	lines := r.Header[c.KeyHeader]
	key, err := ParseKey(lines, p.StrictKey)
	if c.FirstSentHeader != "" {
		first := r.Header[c.FirstSentHeader]
		if len(lines) == 0 && len(first) > 0 {
			problem := ProblemKeyMissing.Problem()
			problem.Detail = fmt.Sprintf("The request has a %s header but no %s header. Nothing was executed.", c.FirstSentHeader, c.KeyHeader)
			return "", problem
		}
		if err == nil {
			if problem := p.firstSent(first); problem.Status != 0 {
				return "", problem
			}
		}
	}
	switch {
	case errors.Is(err, ErrKeyMissing) && !p.RequireKey:
		return "", Problem{}
	case errors.Is(err, ErrKeyMissing):
		problem := ProblemKeyMissing.Problem()
		problem.Detail = p.inContract(problem.Detail)
		return "", problem
	case err == nil:
		err = p.KeyRules.Check(key)
	}
	if err != nil {
		problem := ProblemKeyMalformed.Problem()
		reasons := strings.ReplaceAll(err.Error(), "\n", "; ") // it never holds the key
		problem.Detail = p.inContract(strings.ToUpper(reasons[:1]) + reasons[1:] + ". Nothing was executed.")
		return "", problem
	}
	if c.FirstSentHeader != "" && len(key) == 36 {
		// Whoever makes ids of its own sends them as it likes, but UUIDs are
		// to be compared without regard to case.
		key = strings.ToLower(key)
	}
	if c.ClientIDHeader != "" {
		switch ids := r.Header[c.ClientIDHeader]; {
		case len(ids) == 1 && ids[0] != "":
			key, _ = semel.EventKey(ids[0], key) // neither is empty
		case len(ids) > 0:
			problem := ProblemKeyMalformed.Problem()
			problem.Detail = fmt.Sprintf("The %s header is empty or there is more than one. Nothing was executed.", c.ClientIDHeader)
			return "", problem
		}
	}
	return key, Problem{}
}

// inContract names the key header as the contract does.
func (p *protector) inContract(s string) string {
	return strings.ReplaceAll(s, HeaderKey, p.Contract.KeyHeader)
}

// firstSent checks the lines of the contract's FirstSentHeader.
func (p *protector) firstSent(lines []string) Problem {
	if len(lines) != 1 {
		return ProblemFirstSentInvalid.Problem()
	}
	at, err := time.Parse(http.TimeFormat, lines[0])
	if err != nil {
		return ProblemFirstSentInvalid.Problem()
	}
	if age := time.Since(at); age >= p.Guard.Policy().Retention || age < -MaxAhead {
		return ProblemFirstSentOutOfRange.Problem()
	}
	return Problem{}
}

// verifyIssued checks the key against the issuer, if there is one. An expired
// key may still lead to the result of an earlier use.
func (p *protector) verifyIssued(w http.ResponseWriter, key string, scope semel.Scope) (expired, ok bool) {
	if p.Resources == nil || p.Resources.Keys == nil || !p.IssuedOnly && !strings.HasPrefix(key, issuedPrefix) {
		return false, true
	}
	switch err := p.Resources.Keys.Verify(key, scope); {
	case err == nil:
		return false, true
	case errors.Is(err, ErrKeyExpired):
		return true, true
	}
	p.refuse(w, ProblemKeyNotIssued.Problem())
	return false, false
}

const (
	// inlineBody is the largest request body that is held in memory.
	inlineBody = 256 << 10
	// readAhead is how much memory a Content-Length is trusted with before as
	// much has arrived.
	readAhead = 64 << 10
)

// read reads the whole request body and makes the fingerprint. It returns a
// problem with a status if it cannot; then nothing has been executed.
func (e *exchange) read(w http.ResponseWriter) Problem {
	r := e.r
	if r.ContentLength > e.MaxRequestBody {
		return e.tooLarge()
	}
	if r.Body != nil && r.Body != http.NoBody {
		size := int64(512)
		if r.ContentLength >= 0 {
			size = min(r.ContentLength+1, readAhead) // one more, to see the end without growing
		}
		// It also tells the server not to wait for the rest.
		limited := http.MaxBytesReader(w, r.Body, e.MaxRequestBody)
		body := make([]byte, 0, size)
		for {
			n, err := limited.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if err == io.EOF {
				break
			}
			if err != nil {
				return e.unreadable(err)
			}
			if len(body) == cap(body) {
				if max(int64(len(body)), r.ContentLength) > inlineBody {
					e.body.mem = body
					return e.readLarge(w)
				}
				more := int64(cap(body))
				if rest := r.ContentLength + 1 - more; rest > 0 {
					more = min(more, rest)
				}
				body = slices.Grow(body, int(more))
			}
		}
		e.body.mem = body
	}
	if e.body.size() == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil) {
		// Somebody has read it before. Without it any two requests look the
		// same, so going on would answer one with the result of another.
		return Problem{
			Status: http.StatusInternalServerError, Title: http.StatusText(http.StatusInternalServerError), Retry: semel.RetryNo,
			Detail: "The server read the request body before it could be protected. Nothing was executed.",
		}
	}
	e.submit.Fingerprint = e.fingerprinter.Fingerprint(r.Method, r.URL, r.Header, e.body.mem)
	return Problem{}
}

// readLarge goes on with a body whose beginning has been read.
func (e *exchange) readLarge(w http.ResponseWriter) Problem {
	r := e.r
	rest := http.MaxBytesReader(w, r.Body, e.MaxRequestBody-e.body.size())
	d := e.fingerprinter.stream(r.Method, r.URL, r.Header)
	_, _ = d.Write(e.body.mem)
	err, failed := e.body.fill(rest, d)
	if err != nil {
		e.fingerprinter.put(d)
		return e.unreadable(err)
	}
	if failed == nil {
		e.submit.Fingerprint, failed = e.fingerprinter.endStream(d, r.Method, r.URL, r.Header, &e.body)
	} else {
		e.fingerprinter.put(d)
	}
	if failed != nil {
		e.SpoolFailed(r.Context(), failed)
		p := ProblemSpoolUnavailable.Problem()
		p.RetryAfter = time.Second
		return p
	}
	return Problem{}
}

func (e *exchange) unreadable(err error) Problem {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return e.tooLarge()
	}
	return ProblemBodyUnreadable.Problem()
}

func (e *exchange) tooLarge() Problem {
	p := ProblemBodyTooLarge.Problem()
	p.Detail = fmt.Sprintf("The request body is larger than the %d bytes that this operation accepts. Nothing was executed.", e.MaxRequestBody)
	return p
}

// exchange is one protected request. Two goroutines share it: the server's runs
// serve, and it alone touches the client's ResponseWriter; the execution's runs
// execute, possibly longer than the former.
type exchange struct {
	*protector
	method string
	body   spool // until the execution has ended, or has turned out not to be
	submit semel.Submit
	outer  http.Header // what was in the header before the handler; nil if nothing was
	rec    recorder

	expired bool // the key is one that must not execute any more
	async   bool // the client wants to be answered before the end
	patient time.Duration
	respond context.CancelCauseFunc // has an async request answered, from within execute

	cloned sync.Once
	r      *http.Request // the server's, until cloned
	reader bodyReader    // of the clone, if the body is in memory
	ctx    handlerContext

	began    atomic.Bool // execute has been called
	ended    atomic.Bool // execute has ended, and rec and what follows do not change any more
	returned bool        // the handler has returned, rather than panicked or exited
	result   semel.Result
	panicked any // what it panicked with

	mu    sync.Mutex
	left  bool // serve has ended
	done  bool // the execution has
	relay *relay
}

// bodyReader is a request body in memory. It cannot be rewound, or a transport
// might send it again by itself.
type bodyReader struct{ r bytes.Reader }

func (b *bodyReader) Read(p []byte) (int, error)         { return b.r.Read(p) }
func (b *bodyReader) WriteTo(w io.Writer) (int64, error) { return b.r.WriteTo(w) }
func (*bodyReader) Close() error                         { return nil }

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

// prefer reads what the client wants to happen if it has to wait.
func (e *exchange) prefer(w http.ResponseWriter) {
	if e.InFlight == InFlightWait {
		e.submit.Wait = e.Wait
	}
	prefs := parsePrefer(e.r.Header[headerPrefer])
	if prefs.hasWait && e.MaxWait > 0 {
		e.patient = min(prefs.wait, e.MaxWait)
		e.submit.Wait = e.patient
		w.Header().Set(headerPreferenceApplied, waitApplied(e.patient))
	}
	e.async = prefs.async && e.Resources != nil
	if e.async && !prefs.hasWait {
		e.submit.Wait = 0
	}
}

// errRespondAsync is why an async request is answered while it executes.
var errRespondAsync = errors.New("semelhttp: the client prefers not to wait")

// serve has the request take effect once and answers the client.
func (e *exchange) serve(w http.ResponseWriter) {
	defer e.leave()
	ctx := e.r.Context()
	waits := ctx // ends earlier for a client that would rather not wait
	if e.async {
		var cancel context.CancelCauseFunc
		waits, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		e.respond = cancel
	}
	out, err := e.Guard.Do(waits, e.submit, e.execute)
	if !out.Claimed {
		defer e.body.close() // or it is the execution's
	}
	if out.Answer == semel.Unknown || waits.Err() != nil {
		// The execution may not even have started.
		e.clone(context.WithoutCancel(ctx))
	}
	panicked := e.ended.Load() && e.panicked != nil
	if panicked && e.r.ProtoMajor == 1 {
		// The server will close the connection; the client must not send
		// its next request on it.
		w.Header().Set("Connection", "close")
	}
	e.answer(ctx, w, out, err)
	if panicked {
		_ = http.NewResponseController(w).Flush()
		panic(e.panicked)
	}
}

// clone makes the copy of the request that the handler gets, once: in the
// execution's goroutine, or before the server's takes the original away. The
// copy is the handler's to change.
func (e *exchange) clone(ctx context.Context) {
	e.cloned.Do(func() {
		r := e.r.Clone(ctx)
		r.Body = http.NoBody
		switch {
		case e.body.file != nil:
			r.Body = &spoolReader{e.body.reader()}
		case len(e.body.mem) > 0:
			e.reader.r.Reset(e.body.mem)
			r.Body = &e.reader
		}
		r.GetBody = nil
		r.TransferEncoding = nil
		r.ContentLength = e.body.size()
		if len(r.Trailer) > 0 {
			r.ContentLength = -1 // trailers come behind a body of unknown length
		}
		r.Header.Del("Expect") // has been met
		if e.MaxWait > 0 || e.async {
			withoutWaiting(r.Header)
		}
		e.r = r
	})
}

// request returns the handler's copy of the request, with ctx.
func (e *exchange) request(ctx context.Context) *http.Request {
	e.clone(ctx)
	if e.r.Context() != ctx {
		return e.r.WithContext(ctx)
	}
	return e.r
}

// handle calls the handler with the copy of the request.
func (e *exchange) handle(ctx context.Context, w http.ResponseWriter) {
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

// execute runs the handler, detached from the client.
func (e *exchange) execute(ctx context.Context) (semel.Result, error) {
	e.began.Store(true)
	defer e.executed()
	if e.expired {
		// There is no record of an earlier use.
		return semel.Result{}, semel.NoEffect(ErrKeyExpired)
	}
	if e.respond != nil {
		timer := time.AfterFunc(e.patient, func() { e.respond(errRespondAsync) })
		defer timer.Stop()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	rec := &e.rec
	rec.exchange = e
	rec.x, _ = semel.CurrentExecution(ctx)
	rec.cancel = cancel
	if e.outer != nil {
		rec.header = e.outer.Clone()
	} else {
		rec.header = make(http.Header)
	}
	defer func() {
		v := recover()
		if !e.ended.Load() {
			rec.close()
			e.panicked = v
			e.ended.Store(true)
		}
		if rec.relay != nil {
			close(rec.relay.chunks)
		}
		if v != nil {
			panic(v) // the engine has the last word on what it means
		}
	}()
	e.ctx = handlerContext{ctx, rec}
	e.handle(&e.ctx, rec)
	var err error
	e.result, err = rec.finish()
	e.returned = true
	if err == nil && e.result.Pieces != nil {
		// Not by returning it: the pieces are only there to be read until this
		// function ends.
		e.ended.Store(true)
		_ = rec.x.Complete(e.result) // whatever comes of it, Do answers
	}
	return e.result, err
}

// openRelay is called by the execution.
func (e *exchange) openRelay() *relay {
	rl := &relay{chunks: make(chan chunk), taken: make(chan error, 1), gone: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.relay = rl
	if e.left {
		close(rl.gone)
	}
	return rl
}

// leave tells the execution that nobody writes to the client any more.
func (e *exchange) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left = true
	if e.relay != nil {
		close(e.relay.gone)
	}
	e.release()
}

// executed is called when the execution has ended.
func (e *exchange) executed() {
	e.body.close()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = true
	e.release()
}

// release closes what the handler wrote when neither side needs it any more: the
// execution, which writes and records it, nor the server's goroutine, which sends
// it. Called with mu held.
func (e *exchange) release() {
	if e.left && e.done {
		e.rec.kept.close()
	}
}

func (e *exchange) answer(ctx context.Context, w http.ResponseWriter, out semel.Outcome, err error) {
	failure, ok := errors.AsType[*semel.Error](err)
	if !ok {
		failure = &semel.Error{}
	}
	switch out.Answer {
	case semel.Executed:
		e.mu.Lock()
		rl := e.relay
		e.mu.Unlock()
		switch {
		case rl != nil && e.pass(ctx, w, rl, out.Record.ExpiresAt):
		case rl == nil && e.ended.Load() && e.isOwn(out.Result):
			e.own(w, out.Record.ExpiresAt)
		default: // the handler called Complete itself
			e.recorded(ctx, w, out, err)
		}
	case semel.Replayed:
		e.recorded(ctx, w, out, err)
	case semel.Released:
		if errors.Is(err, semel.ErrRolledBack) {
			// Whatever the handler answered, it did not come true.
			p := ProblemRolledBack.Problem()
			p.RetryAfter = max(failure.RetryAfter, time.Second)
			e.refuse(w, p)
			return
		}
		if e.expired {
			e.refuse(w, ProblemKeyExpired.Problem())
			return
		}
		e.own(w, time.Time{})
	case semel.InProgress:
		e.inProgress(ctx, w, out.Record, failure)
	case semel.Mismatch:
		e.refuse(w, ProblemKeyMismatch.Problem())
	case semel.Unknown:
		p := ProblemOutcomeUnknown.Problem()
		p.StatusURL = e.Resources.StatusURL(out.Record.ID)
		p.Retry, p.RetryAfter = failure.Retry(), failure.RetryAfter
		if e.began.Load() {
			p.Detail = "It is not known whether this request took effect. It is not executed again until that is settled. Keep the key: another key could cause the effect twice."
		}
		e.refuse(w, p)
	case semel.Unavailable:
		e.unavailable(ctx, w, failure)
	default:
		// The key is well-formed, so it is the scope that makes no identity.
		e.refuse(w, Problem{
			Status: http.StatusInternalServerError, Title: http.StatusText(http.StatusInternalServerError), Retry: semel.RetryNo,
			Detail: "The server could not name the operation. Nothing was executed.",
		})
	}
}

// inProgress answers while the identity is being executed, be it for this
// request or for another.
func (e *exchange) inProgress(ctx context.Context, w http.ResponseWriter, rec semel.Record, failure *semel.Error) {
	ctx = context.WithoutCancel(ctx)
	if e.async || e.InFlight == InFlightAccept {
		if found, ok := e.Resources.visible(ctx, rec); ok {
			h := w.Header()
			if e.async {
				h.Set(headerPreferenceApplied, strings.TrimPrefix(h.Get(headerPreferenceApplied)+", respond-async", ", "))
			}
			if e.Contract.ResultHeader != "" {
				h.Set(e.Contract.ResultHeader, "accepted")
			}
			h.Set("Location", e.Resources.StatusURL(rec.ID))
			e.Resources.writeStatus(w, http.StatusAccepted, found)
			return
		}
	}
	p := ProblemInProgress.Problem()
	p.RetryAfter = max(failure.RetryAfter, time.Second)
	p.StatusURL = e.Resources.StatusURL(rec.ID)
	e.refuse(w, p)
}

// isOwn reports whether r is what the handler's answer was recorded as.
func (e *exchange) isOwn(r semel.Result) bool {
	own := &e.result
	if !e.returned || r.Label != own.Label {
		return false
	}
	if r.Tombstone && !own.Tombstone {
		// The store could not take it, and the guard has put this in its place.
		return r.Codec == own.Codec && r.Reference == own.Reference && r.Failed == own.Failed && len(r.Head) == 0
	}
	return r.Tombstone == own.Tombstone && r.Pieces == own.Pieces &&
		bytes.Equal(r.Head, own.Head) && bytes.Equal(r.Body, own.Body)
}

func (e *exchange) unavailable(ctx context.Context, w http.ResponseWriter, failure *semel.Error) {
	draining := errors.Is(failure, semel.ErrDraining)
	if e.FailOpen && !draining && ctx.Err() == nil {
		e.Guard.NoteFailedOpen(ctx, e.submit, failure)
		e.handle(ctx, w)
		return
	}
	p := ProblemStoreUnavailable.Problem()
	if draining {
		p = Problem{
			Status: http.StatusServiceUnavailable, Title: http.StatusText(http.StatusServiceUnavailable), Retry: semel.RetrySameKey,
			Detail: "The server is stopping and takes no new work. Nothing was executed.",
		}
	}
	p.RetryAfter = max(failure.RetryAfter, time.Second)
	e.refuse(w, p)
}

// recorded answers from a record.
func (e *exchange) recorded(ctx context.Context, w http.ResponseWriter, out semel.Outcome, err error) {
	r := replay{
		contract: &e.Contract, status: e.Resources.StatusURL(out.Record.ID), shared: e.submit.Identity.Actor == "",
		timeout: e.Guard.Policy().StoreTimeout,
	}
	r.write(ctx, w, out, err)
}

// replay answers from records.
type replay struct {
	contract *Contract
	status   string        // where the operation is shown, or ""
	shared   bool          // callers are not told apart
	head     bool          // the request was a HEAD
	timeout  time.Duration // of reading one piece
}

// write answers from a record. Like send, it panics with http.ErrAbortHandler
// where the answer cannot be brought to its end.
func (r replay) write(ctx context.Context, w http.ResponseWriter, out semel.Outcome, err error) {
	status, header, trailer, bad := DecodeHead(out.Result.Head)
	if out.Result.Tombstone || out.Result.Codec != CodecHTTP || err != nil || bad != nil {
		// It completed, but there is nothing here that could be replayed.
		r.notRetained(w, out.Result.Reference, out.Record.ExpiresAt)
		return
	}
	body := content{bytes: out.Result.Body, head: r.head}
	if p := out.Result.Pieces; p != nil {
		body.size = p.Size
		// The first before the header, as long as there is another answer.
		read := func(n int) ([]byte, error) {
			ctx, cancel := context.WithTimeout(ctx, r.timeout)
			defer cancel()
			return p.ReadPiece(ctx, n)
		}
		first, err := read(0)
		if errors.Is(err, semel.ErrNotFound) {
			r.notRetained(w, out.Result.Reference, time.Time{})
			return
		}
		if err != nil {
			problem := ProblemStoreUnavailable.Problem()
			problem.Detail = "The operation completed, but its recorded answer could not be read now. Nothing was executed again."
			problem.RetryAfter, problem.StatusURL = time.Second, r.status
			r.contract.WriteProblem(w, problem)
			return
		}
		body.rest = func(w io.Writer) error { return writePieces(w, p.Count(), first, read) }
	}
	h := w.Header()
	for name, values := range header {
		h[name] = values
	}
	if out.Answer == semel.Replayed {
		if r.shared { // it could be another's
			delete(h, "Set-Cookie")
			delete(trailer, "Set-Cookie")
		}
		if r.contract.ReplayedHeader != "" {
			h[r.contract.ReplayedHeader] = []string{"true"}
		}
	}
	send(w, r.contract, status, trailer, body, out.Record.ExpiresAt)
}

// writePieces writes a body piece by piece, the first of which has been read.
func writePieces(w io.Writer, count int, piece []byte, read func(n int) ([]byte, error)) error {
	for n := 0; ; {
		if _, err := w.Write(piece); err != nil {
			return err
		}
		if n++; n == count {
			return nil
		}
		var err error
		if piece, err = read(n); err != nil {
			return err
		}
	}
}

func (r replay) notRetained(w http.ResponseWriter, reference string, expires time.Time) {
	r.contract.setExpires(w.Header(), expires)
	p := ProblemResultNotRetained.Problem()
	p.Reference, p.StatusURL = reference, r.status
	r.contract.WriteProblem(w, p)
}

// own answers with what the handler wrote.
func (e *exchange) own(w http.ResponseWriter, expires time.Time) {
	rec := &e.rec
	if rec.status == http.StatusSwitchingProtocols {
		replay{contract: &e.Contract}.notRetained(w, rec.tombstone().Reference, expires)
		return
	}
	e.ownHeader(w)
	if rec.lost {
		e.refuse(w, Problem{
			Status: rec.status, Title: http.StatusText(rec.status), Retry: semel.RetrySameKey,
			Detail: "The operation had no effect. Its answer was too large to be passed on.",
		})
		return
	}
	send(w, &e.Contract, rec.status, rec.trailer, rec.kept.content(), expires)
}

// ownHeader makes the header what the handler sent.
func (e *exchange) ownHeader(w http.ResponseWriter) {
	h, sent := w.Header(), e.rec.sent
	for name := range e.outer {
		if _, ok := sent[name]; !ok {
			delete(h, name)
		}
	}
	for name, values := range sent {
		if name == "Transfer-Encoding" || name == "Trailer" {
			continue // ours to say
		}
		if !strings.HasPrefix(name, http.TrailerPrefix) {
			h[name] = values
		}
	}
}

// content is the body of an answer.
type content struct {
	bytes []byte
	// rest writes a body that is not in memory, of the given size.
	rest func(w io.Writer) error
	size int64
	head bool // it is not to be sent
}

// content returns the whole.
func (s *spool) content() content {
	if s.file == nil {
		return content{bytes: s.mem}
	}
	return content{size: s.size(), rest: func(w io.Writer) error {
		_, err := io.Copy(w, s.reader())
		return err
	}}
}

// send writes a whole answer whose header is in place. If a body that is not in
// memory cannot be written to its end, it panics with http.ErrAbortHandler, so
// that the client sees that there is more.
func send(w http.ResponseWriter, c *Contract, status int, trailer http.Header, body content, expires time.Time) {
	h := w.Header()
	c.setExpires(h, expires)
	if c.ResultHeader != "" {
		h[c.ResultHeader] = []string{"accepted"}
		if expires.IsZero() { // released: there was no effect
			h[c.ResultHeader] = []string{"rejected"}
		}
	}
	switch {
	case !bodyAllowed(status):
		body = content{}
	case len(trailer) > 0:
		h.Del("Content-Length") // over HTTP/1.1, trailers need the chunked coding
		h["Trailer"] = []string{strings.Join(sortedNames(trailer), ", ")}
	default:
		if _, ok := h["Content-Length"]; !ok {
			h["Content-Length"] = []string{strconv.FormatInt(max(body.size, int64(len(body.bytes))), 10)}
		}
	}
	w.WriteHeader(status)
	switch {
	case body.head:
	case body.rest != nil:
		if body.rest(w) != nil {
			panic(http.ErrAbortHandler)
		}
	case len(body.bytes) > 0:
		if _, err := w.Write(body.bytes); err != nil {
			return
		}
	}
	for name, values := range trailer {
		h[name] = values
	}
}

func (c *Contract) setExpires(h http.Header, expires time.Time) {
	if !expires.IsZero() && c.ExpiresHeader != "" {
		h[c.ExpiresHeader] = []string{expires.UTC().Format(http.TimeFormat)}
	}
}

// pass writes an answer to the client as it comes, its tombstone being on
// record. It reports false, having written nothing, if there is none: the
// recorder could not get its tombstone recorded. An answer that it cannot bring
// to its end is cut off such that the client sees it: by a panic.
func (e *exchange) pass(ctx context.Context, w http.ResponseWriter, rl *relay, expires time.Time) bool {
	c, ok := <-rl.chunks
	if !ok {
		return false
	}
	rec := &e.rec
	e.ownHeader(w)
	e.Contract.setExpires(w.Header(), expires)
	if e.Contract.ResultHeader != "" {
		w.Header()[e.Contract.ResultHeader] = []string{"accepted"}
	}
	if announced, ok := rec.sent["Trailer"]; ok {
		w.Header()["Trailer"] = announced
	}
	w.WriteHeader(rec.status)
	flusher := http.NewResponseController(w)
	var err error
	switch kept := rec.kept.content(); {
	case kept.rest != nil:
		err = kept.rest(w)
		rec.kept.close() // the rest may take its time
	case len(kept.bytes) > 0:
		_, err = w.Write(kept.bytes)
	}
	var gone <-chan struct{}
	if rec.events {
		gone = ctx.Done()
	}
	for ok {
		switch {
		case err != nil:
		case c.flush:
			err = flusher.Flush()
		default:
			_, err = w.Write(c.data)
		}
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			// leave tells the recorder.
			panic(http.ErrAbortHandler)
		}
		rl.taken <- err
		select {
		case c, ok = <-rl.chunks:
		case <-gone:
			rec.cancel(errClientGone)
			panic(http.ErrAbortHandler)
		}
	}
	switch {
	case e.panicked != nil:
		panic(e.panicked)
	case !e.returned, rec.short():
		panic(http.ErrAbortHandler)
	}
	for name, values := range rec.header { // what counts now is the trailers
		w.Header()[name] = values
	}
	return true
}
