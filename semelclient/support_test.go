package semelclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func newGuard(t testing.TB, p semel.Policy) *semel.Guard {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := semel.New(semel.Config{Store: store, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// protect returns next behind the middleware, for one actor.
func protect(t testing.TB, next http.Handler, edit ...func(*semelhttp.Config)) http.Handler {
	t.Helper()
	c := semelhttp.Config{
		Guard: newGuard(t, semel.Policy{}),
		Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{}, nil },
	}
	for _, f := range edit {
		f(&c)
	}
	m, err := semelhttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m(next)
}

// serve starts a real server for h, whose log nobody reads.
func serve(t testing.TB, h http.Handler, http2 bool) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if http2 {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// orders is a handler with an effect that can be counted.
type orders struct {
	mu sync.Mutex
	n  int
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := o.add()
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", n))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"id":%d}`, n)
}

func (o *orders) add() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	return o.n
}

func (o *orders) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}

func (o *orders) want(t testing.TB, n int) {
	t.Helper()
	if got := o.count(); got != n {
		t.Fatalf("%d effects; want %d", got, n)
	}
}

// lossy has h handle a request without the client hearing of it, lost times.
func lossy(h http.Handler, lost int64) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) > lost {
			h.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
}

// inMemory serves h over net.Pipe.
func inMemory(h http.Handler) (dial func(context.Context, string, string) (net.Conn, error), stop func()) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: protocols}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case l.conns <- theirs:
			return ours, nil
		case <-l.closed:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return dial, func() {
		_ = s.Shutdown(context.Background()) // and so no connection is left
		wg.Wait()
	}
}

type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// sent is a request as a base transport got it.
type sent struct {
	header  http.Header
	key     string // the Idempotency-Key header, in whatever case
	body    string
	length  int64
	getBody bool
	at      time.Time
	trailer string
}

// script is a base transport that plays answers, the last of them for ever.
// It keeps RoundTripper's contract: it closes the body, and ends with the
// request's context.
type script struct {
	answers []play
	played  int
	sent    []sent
	bodies  []*trackedBody // of the responses
}

type play func(r *http.Request) (*http.Response, error)

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	got := sent{header: r.Header.Clone(), length: r.ContentLength, getBody: r.GetBody != nil, at: time.Now()}
	for name, values := range r.Header {
		if strings.EqualFold(name, semelhttp.HeaderKey) && len(values) > 0 {
			got.key += strings.Join(values, " AND ")
		}
	}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		got.body = string(body)
	}
	got.trailer = r.Trailer.Get("Sum")
	s.sent = append(s.sent, got)
	if err := r.Context().Err(); err != nil {
		return nil, context.Cause(r.Context())
	}
	s.played++
	resp, err := s.answers[min(s.played, len(s.answers))-1](r)
	if resp != nil {
		resp.Request = r
		if body, ok := resp.Body.(*trackedBody); ok {
			s.bodies = append(s.bodies, body)
		}
	}
	return resp, err
}

func (s *script) keys() []string {
	var keys []string
	for _, r := range s.sent {
		keys = append(keys, r.key)
	}
	return keys
}

// trackedBody is a body that tells how it was treated.
type trackedBody struct {
	io.Reader
	read   int
	closed int
}

func (b *trackedBody) Read(p []byte) (int, error) {
	if b.closed > 0 {
		return 0, errors.New("read after close")
	}
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *trackedBody) Close() error { b.closed++; return nil }

// reply plays an answer; headers are "Name: value".
func reply(status int, body string, headers ...string) play {
	return func(*http.Request) (*http.Response, error) {
		h := make(http.Header)
		for _, line := range headers {
			name, value, _ := strings.Cut(line, ": ")
			h.Add(name, value)
		}
		if strings.HasPrefix(body, "{") && h.Get("Content-Type") == "" {
			h.Set("Content-Type", semelhttp.ContentTypeProblem)
		}
		return &http.Response{StatusCode: status, Header: h, Body: &trackedBody{Reader: strings.NewReader(body)}, ContentLength: int64(len(body))}, nil
	}
}

var errCut = errors.New("connection reset by peer")

func cut(*http.Request) (*http.Response, error) { return nil, errCut }

// hang plays a server that does not answer.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// transport returns one with no waits worth mentioning.
func transport(t testing.TB, base http.RoundTripper, edit ...func(*semelclient.Config)) *semelclient.Transport {
	t.Helper()
	c := semelclient.Config{Base: base, MinBackoff: 1, MaxBackoff: 1}
	for _, f := range edit {
		f(&c)
	}
	tr, err := semelclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// request returns a request whose body is a type that net/http knows, if it is
// not empty.
func request(t testing.TB, ctx context.Context, method, body string, headers ...string) *http.Request {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://shop.example/orders", in)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// roundTrip returns the answer's status and body.
func roundTrip(t testing.TB, tr http.RoundTripper, r *http.Request) (int, string) {
	t.Helper()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode, string(body)
}

func failure(t testing.TB, err error) *semelclient.Error {
	t.Helper()
	e, ok := errors.AsType[*semelclient.Error](err)
	if !ok {
		t.Fatalf("error %v is not an *Error", err)
	}
	return e
}
