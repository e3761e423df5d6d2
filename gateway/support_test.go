package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// bundle is a gateway before an upstream, served over loopback.
type bundle struct {
	t       *testing.T
	store   *memory.Store
	guard   *semel.Guard
	gateway *Gateway
	url     string
	server  *httptest.Server
	client  *http.Client

	mu     sync.Mutex
	failed []Failed
}

// newBundle serves a gateway before upstream. change may be nil.
func newBundle(t *testing.T, upstream string, policy semel.Policy, change func(*Config)) *bundle {
	t.Helper()
	b := &bundle{t: t}
	var err error
	b.store, err = memory.New(memory.Config{})
	noError(t, err)
	b.guard, err = semel.New(semel.Config{Store: b.store, Policy: policy})
	noError(t, err)
	u, err := url.Parse(upstream)
	noError(t, err)
	c := Config{Upstream: u, Guard: b.guard, Observer: &Observer{Failed: func(_ context.Context, f Failed) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failed = append(b.failed, f)
	}}}
	if change != nil {
		change(&c)
	}
	b.gateway, err = New(c)
	noError(t, err)
	server := httptest.NewServer(b.gateway)
	b.url, b.server = server.URL, server
	transport := &http.Transport{DisableCompression: true}
	b.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		noError(t, b.gateway.Drain(context.Background()))
	})
	return b
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// answer is an answer that was read whole.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// problem returns the part of the problem's type behind the number sign.
func (a answer) problem(t *testing.T) string {
	t.Helper()
	var p struct{ Type string }
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("status %d, body %q is no problem: %v", a.status, a.body, err)
	}
	_, name, _ := strings.Cut(p.Type, "#")
	return name
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

// request makes a request with a key, unless that is empty, and headers given
// as "Name: value".
func (b *bundle) request(method, path, key, body string, headers ...string) *http.Request {
	b.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, b.url+path, r)
	noError(b.t, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	return req
}

func (b *bundle) send(req *http.Request) answer {
	b.t.Helper()
	res, err := b.client.Do(req)
	if err != nil {
		b.t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(body), err}
}

func (b *bundle) post(path, key, body string, headers ...string) answer {
	b.t.Helper()
	return b.send(b.request(http.MethodPost, path, key, body, headers...))
}

func (b *bundle) records() []semel.Record {
	b.t.Helper()
	list, err := b.store.List(context.Background(), semel.Filter{})
	noError(b.t, err)
	return list
}

// record returns the only record there is, complete with its result.
func (b *bundle) record() semel.Record {
	b.t.Helper()
	list := b.records()
	if len(list) != 1 {
		b.t.Fatalf("there are %d records, want 1", len(list))
	}
	r, err := b.store.Find(context.Background(), list[0].Identity)
	noError(b.t, err)
	return r
}

func (b *bundle) failures() []Failed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Failed(nil), b.failed...)
}

// handler serves an upstream.
func handler(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return server.URL
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// breakOff sends a request, and goes away once the upstream has entered it.
func (b *bundle) breakOff(t *testing.T, r *http.Request, entered <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error)
	go func() {
		_, err := b.client.Do(r.WithContext(ctx))
		gone <- err
	}()
	<-entered
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client got %v", err)
	}
}
