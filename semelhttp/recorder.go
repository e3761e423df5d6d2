package semelhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"

	"github.com/semelhq/semel"
)

var errFinished = errors.New("semelhttp: write after the handler has returned")

// recorderMode says what becomes of what the handler writes.
type recorderMode uint8

const (
	keeping    recorderMode = iota // kept, to be recorded or to be sent afterwards
	passing                        // sent to the client as it comes
	discarding                     // nobody is to see it
)

// recorder is the ResponseWriter of an execution. It behaves like that of
// net/http but sends nothing before the record is durable, apart from responses that
// cannot be recorded whole. It is on purpose neither a Hijacker nor something to
// unwrap.
type recorder struct {
	exchange      *exchange
	direct        bool // the response may pass while the handler runs
	transactional bool // what the handler does is undone if it is not recorded

	outer  http.Header // what was in the header before the handler; nil if nothing was
	header http.Header // the handler's, as long as it runs

	mu          sync.Mutex // for what the handler may have left running
	mode        recorderMode
	begun       bool // it has begun to pass
	finished    bool
	wroteHeader bool
	typed       bool // the Content-Type of sent is final
	events      bool // sent is the head of an event stream
	full        bool // the body would have outgrown its Content-Length
	lost        bool // not all of the body was kept
	status      int
	sent        http.Header // header as of WriteHeader
	length      int64       // the Content-Length of sent, or -1
	written     int64
	kept        spool
	trailer     http.Header
	client      *pacedWriter // once the response passes
	last        []byte       // the end of a passing body whose length the client knows

	noEffect      error // of DeclareNoEffect
	indeterminate string
}

// Header implements http.ResponseWriter.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Like that of net/http it panics
// for what is no status.
func (w *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("semelhttp: invalid WriteHeader code %d", status))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	informational := status < 200 && status != http.StatusSwitchingProtocols
	if w.finished || w.wroteHeader || informational {
		return
	}
	w.writeHeader(status)
}

func (w *recorder) writeHeader(status int) {
	w.wroteHeader = true
	w.status = status
	w.sent = w.header.Clone()
	for name := range w.sent {
		if w.exchange.Contract.own(textproto.CanonicalMIMEHeaderKey(name)) {
			delete(w.sent, name) // ours to say
		}
	}
	w.events = isEventStream(w.sent)
	w.length = -1
	if v := w.sent.Get("Content-Length"); v != "" {
		// net/http goes by the first line and drops what is not a length.
		if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 {
			w.length = n
			w.sent["Content-Length"] = w.sent["Content-Length"][:1]
		} else {
			w.sent.Del("Content-Length")
		}
	}
}

// fixType settles the Content-Type the way net/http does with the first bytes
// that it sends.
func (w *recorder) fixType(first []byte) {
	if w.typed {
		return
	}
	w.typed = true
	if _, ok := w.sent["Content-Type"]; ok || !bodyAllowed(w.status) || w.sent.Get("Content-Encoding") != "" || w.sent.Get("Transfer-Encoding") != "" {
		return
	}
	if len(first) > 0 {
		w.sent["Content-Type"] = []string{http.DetectContentType(first)}
	} else {
		w.sent["Content-Type"] = nil // and net/http must not guess later
	}
}

// sniff calls fixType with what has been kept and comes next. It is called before
// anything leaves memory.
func (w *recorder) sniff(next []byte) {
	if w.typed {
		return
	}
	first := w.kept.mem
	if len(first) < 512 && len(next) > 0 { // what DetectContentType looks at
		first = append(first[:len(first):len(first)], next[:min(len(next), 512)]...)
	}
	w.fixType(first)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return 0, errFinished
	}
	if !w.wroteHeader {
		w.writeHeader(http.StatusOK)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if w.full || w.length >= 0 && w.written+int64(len(p)) > w.length {
		w.full = true // or a shorter write could close the gap
		return 0, http.ErrContentLength
	}
	w.written += int64(len(p))

	kept := 0
	if w.mode == keeping {
		kept = w.keep(p)
	}
	if w.mode == passing {
		w.pass(p[kept:])
	}
	return len(p), nil
}

// keep keeps p, or as much of it as is kept; if that is not all, the mode has
// changed.
func (w *recorder) keep(p []byte) (n int) {
	if !w.direct || w.recordable(len(p)) {
		if w.kept.overflows(len(p)) {
			w.sniff(p)
		}
		var err error
		if n, err = w.kept.write(p); err == nil {
			return n
		}
		w.exchange.Spools.config.Failed(w.exchange.ctx.Context, err)
	}
	if _, doubt := w.verdict(); w.direct && !doubt {
		w.sniff(p[n:])
		w.begin()
	} else {
		w.mode, w.lost = discarding, true
	}
	return n
}

// recordable reports whether the body can be recorded whole, with n more bytes.
// What was announced is believed, so that nothing is spooled in vain.
func (w *recorder) recordable(n int) bool {
	return !w.events && max(w.kept.size()+int64(n), w.length) <= w.exchange.MaxResult
}

// Flush implements http.Flusher.
func (w *recorder) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController calls.
func (w *recorder) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return errFinished
	}
	if !w.wroteHeader {
		w.writeHeader(http.StatusOK)
	}
	if w.mode == keeping {
		w.sniff(nil)
		if _, doubt := w.verdict(); w.events && w.direct && !doubt {
			w.begin()
		}
	}
	if w.mode == passing {
		w.gone(w.client.flush())
	}
	return nil
}

// begin has the response pass from now on.
func (w *recorder) begin() {
	e := w.exchange
	h := e.w.Header()
	w.prepare(h)
	if e.Contract.ResultHeader != "" {
		h[e.Contract.ResultHeader] = []string{"accepted"}
	}
	if announced, ok := w.sent["Trailer"]; ok {
		h["Trailer"] = announced
	}
	w.mode, w.begun = passing, true
	e.w.WriteHeader(w.status)
	w.client = newPacedWriter(e.w, e.Pace)
	body := w.kept.content()
	w.gone(body.write(w.client))
	w.kept.close() // the rest may take its time
}

// pass sends p. The last byte of a body whose length the client knows waits for
// the record: until then the client must not take the response for complete.
func (w *recorder) pass(p []byte) {
	if w.length >= 0 && w.written == w.length && len(p) > 0 {
		w.last = bytes.Clone(p[len(p)-1:])
		p = p[:len(p)-1]
	}
	if len(p) > 0 {
		_, err := w.client.Write(p)
		w.gone(err)
	}
}

// gone notes that the client cannot be written to any more. That is nothing to
// the handler: what it is at goes on.
func (w *recorder) gone(err error) {
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		w.mode = discarding
	}
}

// passing reports whether the response has begun to pass.
func (w *recorder) passing() bool { return w.begun }

// end brings a response that has passed to its end, once it is on record.
func (w *recorder) end() {
	if w.mode == passing && len(w.last) > 0 {
		_, err := w.client.Write(w.last)
		w.gone(err)
	}
	if w.mode == discarding {
		panic(http.ErrAbortHandler)
	}
	h := w.exchange.w.Header()
	for name, values := range w.header { // what counts now is the trailers
		h[name] = values
	}
}

// finish is called when the handler has returned, and says what to record.
func (w *recorder) finish() (semel.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.wroteHeader {
		w.writeHeader(http.StatusOK)
	}
	w.finished = true
	w.trailer = StoredTrailer(w.sent, w.header)
	if w.kept.size() > 0 {
		w.sniff(nil)
	}
	if err, _ := w.verdict(); err != nil {
		return semel.Result{}, err
	}
	if w.short() {
		return semel.Result{}, errShort
	}
	if w.begun || w.lost || w.status == http.StatusSwitchingProtocols || !w.recordable(0) {
		return w.tombstone(), nil
	}
	res, hasBody, err := encodeResult(w.exchange.r.Method, w.status, w.outer, w.sent, w.trailer, w.kept.size())
	if err != nil {
		return semel.Result{}, semel.Indeterminate("the response cannot be recorded", err)
	}
	if len(res.Head) > maxHead {
		return w.tombstone(), nil
	}
	switch {
	case hasBody && w.kept.file != nil:
		res.Pieces = w.kept.pieces()
	case hasBody:
		res.Body = w.kept.mem
	}
	res.Failed = !w.exchange.CommitStatus(w.status)
	return res, nil
}

var errShort = semel.Indeterminate("the response broke off before its Content-Length", nil)

// verdict returns the classified error that the response stands for, or nil if it
// is a final one, and whether it leaves the outcome in doubt. What the handler
// declared goes before what the status means, and doubt before certainty.
func (w *recorder) verdict() (err error, doubt bool) {
	e := w.exchange
	switch {
	case w.indeterminate != "":
		return semel.Indeterminate(w.indeterminate, nil), true
	case w.noEffect != nil:
		return semel.NoEffect(w.noEffect), false
	case e.IndeterminateStatus(w.status, w.sent):
		return semel.Indeterminate("the handler answered "+strconv.Itoa(w.status), nil), true
	case e.NoEffectStatus(w.status, w.sent),
		w.transactional && !e.CommitStatus(w.status) && e.ReleaseStatus(w.status):
		return semel.NoEffect(fmt.Errorf("the handler answered %d", w.status)), false
	}
	return nil, false
}

// short reports whether the body is shorter than the handler said.
func (w *recorder) short() bool {
	return w.length >= 0 && w.written != w.length && bodyAllowed(w.status)
}

// tombstone is the result of a response that cannot be kept whole.
func (w *recorder) tombstone() semel.Result {
	res := semel.Result{
		Codec: CodecHTTP, Label: strconv.Itoa(w.status), Tombstone: true,
		Failed: !w.exchange.CommitStatus(w.status),
	}
	// In these responses Location names what came of the request.
	if w.status/100 == 2 || w.status == http.StatusSeeOther {
		res.Reference = w.sent.Get("Location")
	}
	return res
}

// prepare makes h, in which there is what was there before the handler, what the
// handler sent.
func (w *recorder) prepare(h http.Header) {
	for name := range w.outer {
		if _, ok := w.sent[name]; !ok {
			delete(h, name)
		}
	}
	for name, values := range w.sent {
		if name == "Transfer-Encoding" || name == "Trailer" {
			continue // ours to say
		}
		if !strings.HasPrefix(name, http.TrailerPrefix) {
			h[name] = values
		}
	}
}

// close makes the recorder refuse all further writes, however the handler ended.
func (w *recorder) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = true
}

// declare reports whether f was called: not if what it changes can have no
// effect any more.
func (w *recorder) declare(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return false
	}
	f()
	return true
}

type recorderKey struct{}

// DeclareNoEffect declares that the request with the given context certainly had no
// effect. It is for handlers that refuse a request before they do anything, and for
// proxies that have not sent a byte. Their response is sent, nothing is recorded, and
// the key is free again. The cause is the error that Guard.Do returns. It is not
// stored.
//
// DeclareNoEffect takes precedence over the status of the response, and
// DeclareIndeterminate over both. It does nothing after the handler has returned, or if
// ctx is not that of a protected request.
func DeclareNoEffect(ctx context.Context, cause error) {
	if w, ok := ctx.Value(recorderKey{}).(*recorder); ok {
		if cause == nil {
			cause = errors.New("the handler declared that there was no effect")
		}
		w.declare(func() { w.noEffect = cause })
	}
}

// DeclareIndeterminate declares that it is not known whether the request with the given
// context had an effect. It is for handlers and proxies whose own request was cut off
// after a byte was sent. The outcome is unknown, whatever they respond. The cause is
// kept in the record for whoever resolves it: a few words, without payload or secrets.
//
// It cannot be undone. It reports false if it does nothing, which is after the handler
// has returned, or if ctx is not that of a protected request. A stream that has begun is
// cut off when the handler returns, so that the client can see that it is incomplete.
func DeclareIndeterminate(ctx context.Context, cause string) bool {
	w, ok := ctx.Value(recorderKey{}).(*recorder)
	if !ok {
		return false
	}
	if cause == "" {
		cause = "the handler declared that the outcome is unknown"
	}
	return w.declare(func() { w.indeterminate = cause })
}

// bodyAllowed reports whether a response of this status can have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func isEventStream(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream")
}
