package semelhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/semelhq/semel"
)

var (
	errFinished   = errors.New("semelhttp: write after the handler has returned")
	errClientGone = errors.New("semelhttp: the client of the event stream is gone")
)

// recorderMode says what becomes of what the handler writes.
type recorderMode uint8

const (
	keeping    recorderMode = iota // kept, to be recorded
	passing                        // on record as a tombstone; handed over as it comes
	discarding                     // nobody is to see it
)

// recorder is the ResponseWriter of a detached execution. It behaves like that
// of net/http but sends nothing by itself, and is on purpose neither a Hijacker
// nor something to unwrap.
type recorder struct {
	exchange *exchange
	x        *semel.Execution
	cancel   context.CancelCauseFunc // of the handler's context

	header http.Header // the handler's, as long as it runs

	mu          sync.Mutex
	mode        recorderMode
	finished    bool
	wroteHeader bool
	typed       bool // the Content-Type of sent is final
	events      bool // sent is the head of an event stream
	full        bool // the body would have outgrown its Content-Length
	lost        bool // the body was discarded, and nothing else stands for it
	status      int
	sent        http.Header // header as of WriteHeader
	length      int64       // the Content-Length of sent, or -1
	written     int64
	kept        spool
	trailer     http.Header
	relay       *relay

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
		if w.exchange.Contract.own(name) {
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
		if kept = w.keep(p); kept == len(p) {
			return kept, nil
		}
	}
	if w.mode == passing {
		n, err := w.pass(chunk{data: p[kept:]})
		return kept + n, err
	}
	return len(p), nil
}

// keep keeps p, or as much of it as can be kept; then the mode has changed.
func (w *recorder) keep(p []byte) (n int) {
	// What was announced is believed, so that nothing is spooled in vain.
	fits := max(w.kept.size()+int64(len(p)), w.length) <= w.exchange.MaxResult
	if fits && (!w.events || w.verdict() != nil) {
		if w.kept.overflows(len(p)) {
			w.sniff(p)
		}
		var err error
		if n, err = w.kept.write(p); err == nil {
			return n
		}
		w.exchange.SpoolFailed(w.exchange.ctx.Context, err)
	}
	if w.verdict() == nil {
		w.stream(p[n:])
	} else {
		// The answer will not be recorded, and without a record it cannot
		// leave before the handler has ended.
		w.mode, w.lost = discarding, true
	}
	return n
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
		if w.events && w.verdict() == nil {
			w.stream(nil)
		} else {
			w.sniff(nil)
		}
	}
	if w.mode == passing {
		_, err := w.pass(chunk{flush: true})
		return err
	}
	return nil
}

// stream puts a tombstone on record and lets the answer pass, next being the
// first bytes that have not been kept. If there can be no tombstone the client is
// told so by others, and the answer is discarded.
func (w *recorder) stream(next []byte) {
	w.sniff(next)
	// Before the tombstone: the server's goroutine comes right after it.
	w.relay = w.exchange.openRelay()
	if err := w.x.Complete(w.tombstone()); err != nil {
		w.mode = discarding
		return
	}
	w.mode = passing
}

// pass hands c over to the goroutine that writes to the client and waits until
// it has been written.
func (w *recorder) pass(c chunk) (int, error) {
	select {
	case w.relay.chunks <- c:
		select {
		case err := <-w.relay.taken:
			if err != nil {
				return 0, err
			}
			return len(c.data), nil
		case <-w.relay.gone:
		}
	case <-w.relay.gone:
	}
	if w.events {
		w.cancel(errClientGone)
		return 0, errClientGone
	}
	w.mode = discarding
	return len(c.data), nil
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
	if w.relay != nil {
		return semel.Result{}, nil // on record already, or beyond recording
	}
	if w.kept.size() > 0 {
		w.sniff(nil)
	}
	if err := w.verdict(); err != nil {
		return semel.Result{}, err
	}
	if w.lost { // by a verdict that has changed since
		return semel.Result{}, semel.Indeterminate("the answer was not kept", nil)
	}
	if w.short() {
		return semel.Result{}, errShort
	}
	if w.status == http.StatusSwitchingProtocols {
		return w.tombstone(), nil
	}
	res, hasBody, err := encodeResult(w.exchange.method, w.status, w.replayable(), w.trailer, w.kept.size())
	if err != nil {
		return semel.Result{}, semel.Indeterminate("the answer cannot be recorded", err)
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

var errShort = semel.Indeterminate("the answer broke off before its Content-Length", nil)

// verdict returns the classified error that the answer stands for, or nil if it
// is a final one. What the handler declared goes before what the status means,
// and doubt before certainty.
func (w *recorder) verdict() error {
	switch {
	case w.indeterminate != "":
		return semel.Indeterminate(w.indeterminate, nil)
	case w.noEffect != nil:
		return semel.NoEffect(w.noEffect)
	case w.exchange.IndeterminateStatus(w.status, w.sent):
		return semel.Indeterminate("the handler answered "+strconv.Itoa(w.status), nil)
	case w.exchange.NoEffectStatus(w.status, w.sent):
		return semel.NoEffect(fmt.Errorf("the handler answered %d", w.status))
	}
	return nil
}

// short reports whether the body is shorter than the handler said.
func (w *recorder) short() bool {
	return w.length >= 0 && w.written != w.length && bodyAllowed(w.status)
}

// tombstone is the result of an answer that cannot be kept whole.
func (w *recorder) tombstone() semel.Result {
	res := semel.Result{
		Codec: CodecHTTP, Label: strconv.Itoa(w.status), Tombstone: true,
		Failed: !w.exchange.CommitStatus(w.status),
	}
	// In these answers Location names what came of the request.
	if w.status/100 == 2 || w.status == http.StatusSeeOther {
		res.Reference = w.sent.Get("Location")
	}
	return res
}

// replayable is the part of the header that is the handler's: it leaves out what
// was there before it and has not been changed. A field that the handler removed
// has no values.
func (w *recorder) replayable() http.Header {
	outer := w.exchange.outer
	if len(outer) == 0 {
		return w.sent
	}
	h := make(http.Header, len(w.sent))
	for name, values := range w.sent {
		if before, ok := outer[name]; !ok || !slices.Equal(before, values) {
			h[name] = values
		}
	}
	for name := range outer {
		if _, ok := w.sent[name]; !ok {
			h[name] = nil
		}
	}
	return h
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
	if w.finished || w.relay != nil {
		return false
	}
	f()
	return true
}

type recorderKey struct{}

// DeclareNoEffect is for handlers and proxies that are certain that the request
// in whose context they are had no effect: refused before anything was done, or
// before a byte was sent to where it would have been done. The answer they give
// is passed on, nothing is recorded and the key is free again. The cause is
// reported as the error of Guard.Do's answer; it is not stored.
//
// It goes before what the status of the answer means, but not before
// DeclareIndeterminate. It changes nothing once the handler has returned or its
// answer has begun to pass as a stream, or where ctx is not that of a protected
// request.
func DeclareNoEffect(ctx context.Context, cause error) {
	if w, ok := ctx.Value(recorderKey{}).(*recorder); ok {
		if cause == nil {
			cause = errors.New("the handler declared that there was no effect")
		}
		w.declare(func() { w.noEffect = cause })
	}
}

// DeclareIndeterminate is for handlers and proxies that cannot know whether the
// request in whose context they are had an effect: cut off after a byte was
// sent. The outcome is then unknown, whatever they answer. The cause is kept in
// the record for whoever resolves it: a few words without payload or secrets.
//
// It cannot be taken back. It reports false where it changes nothing, which is as
// for DeclareNoEffect: then only an answer that is cut off, as by a panic with
// http.ErrAbortHandler, can still tell the client.
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

// bodyAllowed reports whether an answer of this status can have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func isEventStream(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream")
}

// relay is the way from a recorder to the goroutine that writes to the client.
// Every chunk waits until the one before has been written, so no more than one
// is in memory and the client's pace is the handler's.
type relay struct {
	chunks chan chunk    // closed when the handler has ended
	taken  chan error    // what became of the chunk; has room for one
	gone   chan struct{} // closed when the server's goroutine has left
}

type chunk struct {
	data  []byte // valid until taken
	flush bool
}
