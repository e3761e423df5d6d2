package semeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// subject is a service under test and the process that serves it now.
type subject struct {
	Service
	virtual  bool
	patience time.Duration

	process *process
	handler http.Handler
	kill    func()
}

// start starts a process.
func (s *subject) start() (err error) {
	s.process = newProcess()
	s.handler, s.kill, err = s.Start(s.process.wrap)
	switch {
	case err != nil:
		return fmt.Errorf("semeltest: start: %w", err)
	case s.handler == nil:
		return errors.New("semeltest: start: no handler")
	case s.process.store == nil:
		return inconclusive("Start did not wrap its store")
	}
	return nil
}

// stop ends the process.
func (s *subject) stop() {
	if s.process == nil {
		return
	}
	s.process.set(func() { s.process.dead = true })
	if s.kill != nil {
		s.kill()
	}
	s.process, s.handler, s.kill = nil, nil, nil
}

func (s *subject) effects() (int, error) {
	n, err := s.Effects()
	if err != nil {
		return 0, inconclusive("effects: %w", err)
	}
	return n, nil
}

// expect compares the effects there are.
func (s *subject) expect(want int, what string) error {
	got, err := s.effects()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s: %d effects in all; want %d", what, got, want)
	}
	return nil
}

// control shows that a new operation has one effect, and that it can be seen.
func (s *subject) control(ctx context.Context) error {
	before, err := s.effects()
	if err != nil {
		return err
	}
	m, err := s.message()
	if err != nil {
		return err
	}
	a, err := s.settled(ctx, m)
	if err != nil {
		return inconclusive("control: %w", err)
	}
	after, err := s.effects()
	switch {
	case err != nil:
		return err
	case after != before+1:
		return inconclusive("control: a new operation, answered with %s, took the effects from %d to %d; want one more", a, before, after)
	}
	return nil
}

// message is a request rendered once.
type message struct {
	method, host string
	url          *url.URL
	header       http.Header
	body         []byte
	key          string
}

// message renders a request for a new operation.
func (s *subject) message() (*message, error) {
	key := semel.NewKey()
	r, err := s.Request(key)
	return render(key, r, err)
}

func render(key string, r *http.Request, err error) (*message, error) {
	if err != nil {
		return nil, inconclusive("request: %w", err)
	}
	if r == nil || r.URL == nil {
		return nil, inconclusive("request: there is none")
	}
	m := &message{method: r.Method, host: r.Host, url: r.URL, header: r.Header.Clone(), key: key}
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
		if m.body, err = io.ReadAll(r.Body); err != nil {
			return nil, inconclusive("request: %w", err)
		}
	}
	if m.method == "" {
		m.method = http.MethodGet
	}
	return m, nil
}

// altered returns the message with something else in it.
func (m *message) altered() *message {
	out := *m
	u := *m.url
	out.url = &u
	trimmed := bytes.TrimSpace(m.body)
	switch {
	case len(m.body) == 0 && u.RawQuery == "":
		u.RawQuery = "semeltest=altered"
	case len(m.body) == 0:
		u.RawQuery += "&semeltest=altered"
	case len(trimmed) > 1 && trimmed[0] == '{' && trimmed[len(trimmed)-1] == '}':
		rest := bytes.TrimSpace(trimmed[1:])
		comma := ","
		if rest[0] == '}' {
			comma = ""
		}
		out.body = slices.Concat([]byte(`{"semeltest":"altered"`+comma), rest)
	default:
		out.body = append(slices.Clone(m.body), 'x')
	}
	return &out
}

// request returns the message as a server gets it.
func (m *message) request(ctx context.Context) *http.Request {
	r := (&http.Request{
		Method: m.method, Host: m.host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: m.header.Clone(), ContentLength: int64(len(m.body)), RemoteAddr: "192.0.2.1:1234",
		Body: io.NopCloser(bytes.NewReader(m.body)),
	}).WithContext(ctx)
	u := *m.url
	r.URL = &u
	r.RequestURI = u.RequestURI()
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	if len(m.body) == 0 {
		r.Body = http.NoBody
	}
	return r
}

// answer is what came of sending a message.
type answer struct {
	status  int // 0 if there was none
	header  http.Header
	body    []byte
	problem semelhttp.Problem
}

func (a *answer) String() string {
	if a.status == 0 {
		return "nothing"
	}
	if a.problem.Title != "" {
		return fmt.Sprintf("%d (%s)", a.status, a.problem.Title)
	}
	return strconv.Itoa(a.status)
}

func (a *answer) is(c semelhttp.ProblemCase) bool { return a.problem.Type == c.Type() }

// again reports whether the answer says to send the same request again.
func (a *answer) again() bool {
	return a.is(semelhttp.ProblemInProgress) || a.is(semelhttp.ProblemStoreUnavailable) || a.is(semelhttp.ProblemRolledBack) ||
		a.is(semelhttp.ProblemOutcomeUnknown) && a.problem.Retry == semel.RetrySameKey ||
		a.problem.Type == "" && a.problem.Retry == semel.RetrySameKey
}

// differs says where a replay is not the answer it replays.
func (a *answer) differs(from *answer) string {
	if a.status != from.status {
		return fmt.Sprintf("the status is %d, and was %d", a.status, from.status)
	}
	if !bytes.Equal(a.body, from.body) {
		return "the body is another"
	}
	own := func(h http.Header) http.Header {
		h = h.Clone()
		for _, name := range []string{"Date", semelhttp.HeaderReplayed} {
			h.Del(name)
		}
		return h
	}
	was, is := own(from.header), own(a.header)
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if !slices.Equal(was[name], is[name]) {
			return fmt.Sprintf("the header %s is another", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if _, ok := was[name]; !ok {
			return fmt.Sprintf("the header %s is new", name)
		}
	}
	return ""
}

// send sends the message in a goroutine of its own, and returns its answer. gone,
// if not nil, is called at the first byte of an answer, none of which arrives.
// It returns no answer when ctx ends or the process dies.
func (s *subject) send(ctx context.Context, m *message, gone func()) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	w := &writer{header: make(http.Header), gone: gone}
	p, h := s.process, s.handler
	done := make(chan any, 1)
	go func() {
		var panicked any
		defer func() { done <- panicked }() // also if the process dies
		defer func() {
			if panicked = recover(); panicked == http.ErrAbortHandler {
				panicked = nil
			}
		}()
		h.ServeHTTP(w, m.request(ctx))
		w.finish()
	}()
	var panicked any
	select {
	case panicked = <-done:
	case <-p.end(ctx):
		return &answer{}, nil // nobody answers any more; cancel releases who waits for it
	}
	if panicked != nil && !w.wrote {
		return nil, fmt.Errorf("the handler panicked: %v", panicked)
	}
	if gone != nil || p.isDead() {
		return &answer{}, nil
	}
	if err := ctx.Err(); err != nil && !w.finished {
		return nil, fmt.Errorf("no answer within %v", s.patience)
	}
	return w.answer(), nil
}

// end returns a channel that is closed when p dies.
func (p *process) end(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		if p.await(ctx, func() bool { return p.dead }) == nil {
			close(ended)
		}
	}()
	return ended
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// settled sends the message until the answer does not ask for it again.
func (s *subject) settled(ctx context.Context, m *message) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if s.process == nil {
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		a, err := s.send(ctx, m, nil)
		if err != nil || a.status == 0 || !a.again() {
			return a, err
		}
		wait := time.Second
		if n, err := strconv.Atoi(a.header.Get("Retry-After")); err == nil && n >= 0 {
			wait = time.Duration(n) * time.Second
		}
		if err := s.Advance(wait); err != nil {
			return nil, inconclusive("advance: %w", err)
		}
		// Advance may take no time, which a real store needs to notice that a
		// connection is gone.
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("still answered with %s after %v", a, s.patience)
		}
	}
}

// writer is a response writer that keeps what it is given.
type writer struct {
	mu       sync.Mutex
	header   http.Header
	sent     http.Header
	status   int
	body     bytes.Buffer
	wrote    bool
	finished bool
	gone     func() // the client's end, before it has read anything
}

var errGone = errors.New("semeltest: the client is gone")

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

func (w *writer) writeHeader(status int) {
	if w.wrote || status < 200 {
		return
	}
	w.wrote, w.status, w.sent = true, status, w.header.Clone()
	if w.gone != nil {
		w.gone()
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	if w.gone != nil {
		return 0, errGone
	}
	return w.body.Write(b)
}

// Flush implements http.Flusher.
func (w *writer) Flush() { w.WriteHeader(http.StatusOK) }

func (w *writer) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	for name, values := range w.header { // trailers
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			w.sent["Trailer:"+name] = values
		}
	}
	for _, name := range w.sent["Trailer"] {
		w.sent["Trailer:"+name] = w.header[http.CanonicalHeaderKey(name)]
	}
	w.finished = true
}

func (w *writer) answer() *answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := &answer{status: w.status, header: w.sent, body: bytes.Clone(w.body.Bytes())}
	// What is no problem has the zero value.
	a.problem, _ = semelhttp.ParseProblem(bytes.NewReader(a.body), a.header.Get("Content-Type"))
	return a
}
