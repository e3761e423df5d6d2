package semelhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

const (
	// inlineBody is the largest request body that is held in memory.
	inlineBody = 256 << 10
	// readAhead is how much memory a Content-Length is trusted with before as
	// much has arrived.
	readAhead = 64 << 10
)

// read reads the whole request body and makes the fingerprint. It returns a
// problem with a status if it cannot; then nothing has been executed.
func (e *exchange) read() Problem {
	r := e.r
	if r.ContentLength > e.MaxRequestBody {
		return e.tooLarge()
	}
	if r.Body != nil && r.Body != http.NoBody {
		if problem := e.readBody(); problem.Status != 0 {
			return problem
		}
	}
	if e.body.size() == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil) {
		// Somebody has read it before. Without it any two requests look the
		// same, so going on would answer one with the result of another.
		return Problem{
			Status: http.StatusInternalServerError, Title: http.StatusText(http.StatusInternalServerError), Retry: semel.RetryNo,
			Detail: "The server read the request body before it could be protected. Nothing was executed.",
		}
	}
	if e.body.file == nil {
		e.submit.Fingerprint = e.fingerprinter.Fingerprint(r.Method, asSent(r), r.Header, e.body.mem)
	}
	return Problem{}
}

func (e *exchange) readBody() Problem {
	r := e.r
	size := int64(512)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength+1, readAhead) // one more, to see the end without growing
	}
	// A body that does not come holds nothing up: it is cut off when it is too
	// slow, and when the server stops.
	from := e.uploads.begin(e.w, r.Body, e.Pace)
	defer e.uploads.end(from)
	rest := io.Reader(from)
	if r.ContentLength < 0 {
		// It also tells the server not to wait for what is too much.
		rest = http.MaxBytesReader(e.w, from, e.MaxRequestBody)
	}
	body := e.room(int(size))
	for {
		n, err := rest.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		e.body.mem = body
		if err == io.EOF {
			return Problem{}
		}
		if err != nil {
			return e.unreadable(err, from)
		}
		if len(body) == cap(body) {
			if rest == io.Reader(from) {
				// There is no end where the declared length, which is within
				// the limit, says so, or it is further away.
				left := e.MaxRequestBody - int64(len(body))
				if left < 0 {
					return e.tooLarge()
				}
				rest = http.MaxBytesReader(e.w, from, left)
			}
			if max(int64(len(body)), r.ContentLength) > inlineBody {
				return e.readLarge(rest, from)
			}
			more := min(int64(cap(body)), inlineBody+1-int64(cap(body)))
			if declared := r.ContentLength + 1 - more; declared > 0 {
				more = min(more, declared)
			}
			body = append(make([]byte, 0, int64(cap(body))+more), body...) // and no more than that
		}
	}
}

// room returns an empty buffer of that size for the request body, which is the
// exchange's until release.
func (e *exchange) room(size int) []byte {
	e.buffer, _ = e.spare.buffers.Get().(*[]byte)
	if e.buffer == nil {
		e.buffer = new([]byte)
	}
	if cap(*e.buffer) < size {
		*e.buffer = make([]byte, 0, max(size, 2<<10))
	}
	return (*e.buffer)[:0:size]
}

// readLarge goes on with a body whose beginning has been read.
func (e *exchange) readLarge(rest io.Reader, from *pacedReader) Problem {
	r, target := e.r, asSent(e.r)
	d := e.fingerprinter.stream(r.Method, target, r.Header)
	_, _ = d.Write(e.body.mem)
	err, failed := e.body.fill(rest, d)
	if err != nil {
		e.fingerprinter.put(d)
		return e.unreadable(err, from)
	}
	if failed == nil {
		e.submit.Fingerprint, failed = e.fingerprinter.endStream(d, r.Method, target, r.Header, &e.body)
	} else {
		e.fingerprinter.put(d)
	}
	if failed != nil {
		return e.notHeld(failed)
	}
	return Problem{}
}

// notHeld is the response where the spools failed.
func (e *exchange) notHeld(err error) Problem {
	e.Spools.config.Failed(e.r.Context(), err)
	p := ProblemSpoolUnavailable.Problem()
	p.RetryAfter = time.Second
	return p
}

// ask has Config.KeyOf and Config.OperationOf name what the request, whose body
// has been read, is about.
func (e *exchange) ask(operation bool) Problem {
	returned := false
	defer func() {
		if !returned { // a panic: nobody else gives it up
			e.body.close()
		}
	}()
	body := e.body.mem
	if e.body.file != nil {
		select { // or as many as there are connections would be in memory
		case e.large <- struct{}{}:
			defer func() { <-e.large }()
		case <-e.r.Context().Done():
			returned = true
			return ProblemBodyUnreadable.Problem() // to nobody
		}
		body = make([]byte, e.body.size())
		if _, err := e.body.ReadAt(body, 0); err != nil {
			returned = true
			return e.notHeld(err)
		}
	}
	id := &e.submit.Identity
	var f semel.Fingerprint
	var err error
	if operation {
		id.Operation, err = e.OperationOf(e.r, body)
	}
	if err == nil && e.KeyOf != nil {
		id.Key, f, err = e.KeyOf(e.r, body)
	}
	returned = true
	if err != nil {
		return scopeProblem(e.w, err, refusedBeforeLookUp)
	}
	if !f.IsZero() {
		e.submit.Fingerprint = f
	}
	return Problem{}
}

func (e *exchange) unreadable(err error, from *pacedReader) Problem {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return e.tooLarge()
	}
	switch {
	case e.uploads.wasStopped(from):
		return stopping()
	case from.wasSlow():
		return ProblemBodyTooSlow.Problem()
	}
	return ProblemBodyUnreadable.Problem()
}

func (e *exchange) tooLarge() Problem {
	p := ProblemBodyTooLarge.Problem()
	p.Detail = fmt.Sprintf("The request body is larger than the %d bytes that this operation accepts. Nothing was executed.", e.MaxRequestBody)
	return p
}

// stopping is the response while the guard drains.
func stopping() Problem {
	return Problem{
		Status: http.StatusServiceUnavailable, Title: http.StatusText(http.StatusServiceUnavailable), Retry: semel.RetrySameKey,
		Detail: "The server is stopping and takes no new work. Nothing was executed.", RetryAfter: time.Second,
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

func (*spoolReader) Close() error { return nil }

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

// overrides are the header fields by which a request asks to be taken for one of
// another method, where the server behind heeds them.
var overrides = [...]string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// MethodsAsked returns the methods, in upper case, that a server may handle the request
// as: its own, and those in X-HTTP-Method-Override and similar fields.
func MethodsAsked(r *http.Request) []string {
	methods := []string{strings.ToUpper(r.Method)}
	for _, name := range overrides {
		for _, method := range r.Header[name] {
			methods = append(methods, strings.ToUpper(strings.Trim(method, " \t")))
		}
	}
	return methods
}

// passes reports whether the request is of a safe method (RFC 9110 9.2.1) and
// does not ask to be taken for one of another. Case does not matter: servers that mind
// it refuse the request, and of others nobody knows.
func passes(r *http.Request) bool {
	switch strings.ToUpper(r.Method) {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
	default:
		return false
	}
	for _, name := range overrides {
		if len(r.Header[name]) > 0 {
			return false
		}
	}
	return true
}

// ProtectMethods returns a Config.Protects for requests with the given methods, without
// regard to case, even if only X-HTTP-Method-Override or a similar field names them.
func ProtectMethods(methods ...string) func(*http.Request) bool {
	protects := func(method string) bool {
		return slices.ContainsFunc(methods, func(m string) bool { return strings.EqualFold(m, method) })
	}
	return func(r *http.Request) bool {
		return protects(r.Method) || slices.ContainsFunc(MethodsAsked(r), protects)
	}
}

// asSent returns the request's target as the client sent it. Routers and
// http.StripPrefix change r.URL, and what they take away may be all that tells
// two operations apart.
func asSent(r *http.Request) *url.URL {
	uri := r.RequestURI
	if uri == "" { // not from a server
		return r.URL
	}
	if path, query, _ := strings.Cut(uri, "?"); path == r.URL.Path && query == r.URL.RawQuery && r.URL.RawPath == "" {
		return r.URL // spares the usual request the parser
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return r.URL
	}
	return u
}
