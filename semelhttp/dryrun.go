package semelhttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// HeaderDryRun is a response header field with Config.DryRun. Its value is the answer
// that the request would have had: executed, replayed, in_progress, mismatch, unknown,
// unavailable, or rejected with the problem, as in rejected;problem=key-missing. It is
// missing if the request would not have been protected.
const HeaderDryRun = "Semel-Dry-Run"

// LabelDryRunUnknown is the label of the result that Config.DryRun records for a
// request whose outcome would be unknown. Its record is completed, so that nobody has
// to resolve it. Observers find the label in semel.Answered.
const LabelDryRunUnknown = "dry-run: unknown"

// What Config.DryRun records is under operations of its own, and is no result of
// a request. A method has no space in it, so no default operation begins like this.
const (
	dryRunOperation = "semel dry-run: "
	codecDryRun     = "semel-dry-run/1"
)

// dryRunPatience is how long a response's end waits for its record.
const dryRunPatience = time.Second

// dryRunner decides on requests without any of them feeling it.
type dryRunner struct {
	trial *protector // decides, in its own goroutine, with nobody to answer
	next  http.Handler
}

func newDryRunner(p *protector) http.Handler {
	d := &dryRunner{trial: p, next: p.next}
	p.next = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}) // it would have passed
	p.InFlight, p.MaxWait, p.FailOpen = InFlightReject, -1, false
	refused := p.Refused
	p.Refused = func(ctx context.Context, problem Problem) {
		if refused != nil {
			refused(ctx, problem) // it is told before the request goes on
		}
		rehearsalOf(ctx).refused(problem)
	}
	return d
}

// rehearsal is a request that is decided on.
type rehearsal struct {
	verdict chan string     // at most one
	outcome chan dryOutcome // at most one
}

// dryOutcome is what the handler answered.
type dryOutcome struct {
	status int
	header http.Header
	cut    bool
}

type rehearsalKey struct{}

func rehearsalOf(ctx context.Context) *rehearsal {
	x, _ := ctx.Value(rehearsalKey{}).(*rehearsal)
	return x
}

func (x *rehearsal) decide(verdict string) {
	select {
	case x.verdict <- verdict:
	default: // it has been decided
	}
}

func (x *rehearsal) refused(p Problem) {
	verdict := semel.AnswerRejected.String()
	if p.Status >= 500 {
		verdict = semel.AnswerUnavailable.String()
	}
	if known, ok := p.Case(); ok {
		verdict += ";problem=" + string(known)
	}
	x.decide(verdict)
}

// execute is the handler of a trial: it waits for what the request itself comes to.
func (x *rehearsal) execute(ctx context.Context, p *protector) (semel.Result, error) {
	x.decide(semel.AnswerExecuted.String())
	r := semel.Result{Codec: codecDryRun, Tombstone: true, Label: LabelDryRunUnknown}
	select {
	case out := <-x.outcome:
		switch {
		case out.cut, p.IndeterminateStatus(out.status, out.header):
		case p.NoEffectStatus(out.status, out.header):
			return semel.Result{}, semel.NoEffect(errors.New("semelhttp: a dry run: the response means that nothing was processed"))
		default:
			r.Label = "dry-run"
		}
	case <-ctx.Done(): // it would have been cut off
	}
	return r, nil
}

// answered is told what the guard has answered.
func (x *rehearsal) answered(out semel.Outcome, expired bool) {
	switch {
	case out.Answer == semel.AnswerReleased && expired:
		x.refused(ProblemKeyExpired.Problem())
	case out.Answer == semel.AnswerReplayed && out.Result.Label == LabelDryRunUnknown:
		x.decide(semel.AnswerUnknown.String())
	default:
		x.decide(out.Answer.String())
	}
}

func (d *dryRunner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if passes(r) {
		d.next.ServeHTTP(w, r)
		return
	}
	x := &rehearsal{verdict: make(chan string, 1), outcome: make(chan dryOutcome, 1)}
	trial := r.Clone(Attached(context.WithValue(r.Context(), rehearsalKey{}, x)))
	var body *heldBody
	if r.Body != nil && r.Body != http.NoBody {
		body = &heldBody{ReadCloser: r.Body, held: spool{spools: d.trial.Spools, max: inlineBody}}
		defer body.held.close()
		trial.Body = body
	}
	over := make(chan struct{})
	// The guard waits for it in a drain once it has claimed, and before that this
	// request does.
	go func() {
		defer close(over)
		defer func() {
			if recover() != nil { // what the configuration brought along has panicked
				x.decide("failed")
			}
		}()
		d.trial.ServeHTTP(nobody{}, trial)
	}()
	select {
	case verdict := <-x.verdict:
		w.Header().Set(HeaderDryRun, verdict)
	case <-over:
		select {
		case verdict := <-x.verdict:
			w.Header().Set(HeaderDryRun, verdict)
		default:
		}
	}
	if body != nil {
		r = r.WithContext(r.Context())
		r.Body = body.whole()
	}
	watch := &statusWriter{ResponseWriter: w, out: dryOutcome{status: http.StatusOK, cut: true}}
	func() {
		defer func() { x.outcome <- watch.out }() // also when it panics
		d.next.ServeHTTP(watch, r)
		watch.out.cut = false
	}()
	_ = http.NewResponseController(w).Flush()
	timer := time.NewTimer(dryRunPatience)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// nobody is who a trial answers.
type nobody struct{}

func (nobody) Header() http.Header         { return http.Header{} }
func (nobody) Write(p []byte) (int, error) { return len(p), nil }
func (nobody) WriteHeader(int)             {}

// statusWriter notes what decides what a response means.
type statusWriter struct {
	http.ResponseWriter
	began bool
	out   dryOutcome
}

func (w *statusWriter) WriteHeader(status int) {
	if !w.began && status >= 200 {
		w.began = true
		w.out.status, w.out.header = status, w.Header().Clone()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Flush implements http.Flusher, for handlers that do not use
// http.ResponseController.
func (w *statusWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// heldBody is a request's body that the trial reads first. Nothing that it has read
// is lost, wherever it stops.
type heldBody struct {
	io.ReadCloser
	mu     sync.Mutex
	held   spool
	beyond []byte // what was read and could not be held
	failed error
}

func (b *heldBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil {
		return 0, b.failed
	}
	n, err := b.ReadCloser.Read(p)
	if held, failed := b.held.write(p[:n]); failed != nil {
		b.beyond, b.failed = append(b.beyond, p[held:n]...), failed
		return held, failed
	}
	if err != nil {
		b.failed = err
	}
	return n, err
}

// whole returns the body from its beginning. The trial reads no more of it.
func (b *heldBody) whole() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed == nil {
		b.failed = errSpoolClosed
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(b.held.reader(), bytes.NewReader(b.beyond), b.ReadCloser), b.ReadCloser}
}
