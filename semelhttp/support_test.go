package semelhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// hooks are called around the calls of a store. Each may be nil.
type hooks struct {
	begin     func() error             // its error is Begin's
	context   func()                   // between claim and handler
	renew     func() error             // its error is Renew's
	complete  func(semel.Result) error // its error is Complete's
	completed func(semel.Result)       // the record is durable
}

type hookedStore struct {
	*memory.Store
	hooks *hooks
}

func (s *hookedStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if s.hooks.begin != nil {
		if err := s.hooks.begin(); err != nil {
			return nil, err
		}
	}
	c, err := s.Store.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	return &hookedClaim{Claim: c, hooks: s.hooks}, nil
}

type hookedClaim struct {
	semel.Claim
	hooks *hooks
}

func (c *hookedClaim) Context(ctx context.Context) context.Context {
	if c.hooks.context != nil {
		c.hooks.context()
	}
	return c.Claim.Context(ctx)
}

func (c *hookedClaim) Complete(ctx context.Context, r semel.Result) (e time.Time, err error) {
	if c.hooks.complete != nil {
		if err := c.hooks.complete(r); err != nil {
			return e, err
		}
	}
	e, err = c.Claim.Complete(ctx, r)
	if err == nil && c.hooks.completed != nil {
		c.hooks.completed(r)
	}
	return e, err
}

func (c *hookedClaim) Renew(ctx context.Context) error {
	if c.hooks.renew != nil {
		if err := c.hooks.renew(); err != nil {
			return err
		}
	}
	return c.Claim.Renew(ctx)
}

// fixture is what a test needs to protect a handler.
type fixture struct {
	store *hookedStore
	hooks hooks
	guard *semel.Guard
}

func newFixture(t testing.TB, edit ...func(*semel.Config)) *fixture {
	t.Helper()
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := &fixture{}
	b.store = &hookedStore{Store: m, hooks: &b.hooks}
	c := semel.Config{Store: b.store}
	for _, f := range edit {
		f(&c)
	}
	b.guard, err = semel.New(c)
	if err != nil {
		t.Fatal(err)
	}
	letGo(t, b.guard)
	return b
}

// letGo has the guard give up at the end of the test what it holds for later: a
// count of repeated answers keeps the store alive for a while, with all that is in
// it, and other tests measure memory.
func letGo(t testing.TB, g *semel.Guard) {
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		_ = g.Drain(ended)
	})
}

// tester is the scope of requests in tests: what the Tenant and Actor headers say.
func tester(r *http.Request) (semel.Scope, error) {
	return semel.Scope{Tenant: r.Header.Get("Tenant"), Actor: r.Header.Get("Actor")}, nil
}

func (b *fixture) protect(t testing.TB, next http.Handler, edit ...func(*semelhttp.Config)) http.Handler {
	t.Helper()
	c := semelhttp.Config{Guard: b.guard, Scope: tester}
	for _, f := range edit {
		f(&c)
	}
	m, err := semelhttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m(next)
}

// serve starts a real server for h. What it logs goes to the returned logBuffer.
func serve(t testing.TB, h http.Handler, http2 bool) (*httptest.Server, *logBuffer) {
	t.Helper()
	logged := &logBuffer{}
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(logged, "", 0)
	if http2 {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	s.Client().Transport.(*http.Transport).DisableCompression = true // show bodies as they are sent
	s.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(s.Close)
	return s, logged
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// answer is a response as its client saw it.
type answer struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	length  int64
	close   bool  // the connection is not to be used again
	err     error // of reading the body
}

func (a answer) replayed() bool { return a.header.Get(semelhttp.HeaderReplayed) == "true" }

func (a answer) problem(t testing.TB) semelhttp.Problem {
	t.Helper()
	p, err := semelhttp.ParseProblem(strings.NewReader(a.body), a.header.Get("Content-Type"))
	if err != nil {
		t.Fatalf("the answer %d %q is no problem: %v", a.status, a.body, err)
	}
	return p
}

// want fails the test unless the answer is the case of a problem.
func (a answer) want(t testing.TB, c semelhttp.ProblemCase) semelhttp.Problem {
	t.Helper()
	p := a.problem(t)
	want := c.Problem()
	if p.Type != want.Type || p.Status != want.Status || a.status != want.Status || p.Retry != want.Retry || p.Title != want.Title {
		t.Fatalf("got problem %q with status %d (member %d) and retry %q; want %q, %d, %q", p.Type, a.status, p.Status, p.Retry, want.Type, want.Status, want.Retry)
	}
	return p
}

// wantOwnFailure fails the test unless the answer says of its own request that
// the outcome is unknown.
func (a answer) wantOwnFailure(t testing.TB) semelhttp.Problem {
	t.Helper()
	p := a.problem(t)
	if p.Type != semelhttp.ProblemOutcomeUnknown.Type() || a.status != 500 || p.Status != 500 || p.Retry != semel.RetryAfterResolution {
		t.Fatalf("got problem %q with status %d (member %d) and retry %q", p.Type, a.status, p.Status, p.Retry)
	}
	return p
}

func newRequest(t testing.TB, method, url, key, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	// Without it the transport sends the request again by itself when a reused
	// connection breaks, and the test would not see it.
	r.GetBody = nil
	if key != "" {
		r.Header.Set(semelhttp.HeaderKey, key)
	}
	r.Header.Set("Actor", "alice")
	r.Header.Set("Content-Type", "application/json")
	return r
}

func send(c *http.Client, r *http.Request) (answer, error) {
	resp, err := c.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), resp.Trailer, resp.ContentLength, resp.Close, err}, nil
}

func mustSend(t testing.TB, s *httptest.Server, r *http.Request) answer {
	t.Helper()
	a, err := send(s.Client(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// post sends one protected request and returns its answer.
func post(t testing.TB, s *httptest.Server, key, body string) answer {
	t.Helper()
	return mustSend(t, s, newRequest(t, http.MethodPost, s.URL+"/orders", key, body))
}

// direct calls h as a server would, without a network, so that time can be
// virtual.
func direct(t testing.TB, h http.Handler, key, body string) answer {
	t.Helper()
	return directRequest(h, newRequest(t, http.MethodPost, "http://shop.example/orders", key, body))
}

func directRequest(h http.Handler, r *http.Request) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	resp := w.Result()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), resp.Trailer, resp.ContentLength, resp.Close, err}
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

var unknownOnly = semel.Filter{State: semel.StateUnknown}

func isNotSupported(err error) bool { return errors.Is(err, http.ErrNotSupported) }
