package matrix

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// gauge counts what is going on, and how much there was at most.
type gauge struct {
	mu        sync.Mutex
	changed   chan struct{}
	now, most int
}

func newGauge() *gauge { return &gauge{changed: make(chan struct{})} }

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gauge) read() (now, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now, g.most
}

// await waits until there are n.
func (g *gauge) await(t *testing.T, n int) {
	t.Helper()
	for {
		g.mu.Lock()
		now, changed := g.now, g.changed
		g.mu.Unlock()
		if now == n {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("there are %d; want %d", now, n)
		case <-time.After(time.Minute):
			t.Fatalf("there are %d for a minute; want %d", now, n)
		}
	}
}

// serveHTTP2 serves h over HTTP/2 without TLS, streams at a time at most for
// each connection.
func serveHTTP2(t *testing.T, h http.Handler, streams int) (addr string, stop func(context.Context) error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{
		Handler: h, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	stop = func(ctx context.Context) error {
		err := s.Shutdown(ctx)
		<-served
		return err
	}
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String(), stop
}

// resetter is a client of one connection that sends whole requests and resets
// them.
type resetter struct {
	conn  net.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
	next  uint32        // stream
	pongs chan struct{} // a value for each PING that the server has answered
	over  chan struct{} // the server has hung up, or the client has
}

func newResetter(t *testing.T, addr string) *resetter {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r := &resetter{conn: conn, next: 1, pongs: make(chan struct{}, 1000), over: make(chan struct{})}
	r.enc = hpack.NewEncoder(&r.block)
	go func() {
		defer close(r.over)
		in := http2.NewFramer(io.Discard, r.conn)
		for {
			frame, err := in.ReadFrame()
			if err != nil {
				return
			}
			if p, ok := frame.(*http2.PingFrame); ok && p.IsAck() {
				r.pongs <- struct{}{}
			}
		}
	}()
	return r
}

// send sends n requests with keys of their own, resets those of the streams
// given, or its own at once, and returns when the server has read all that, or
// has had enough and hung up.
func (r *resetter) send(n int, key string, reset []uint32, atOnce bool) (streams []uint32) {
	var out bytes.Buffer
	if r.next == 1 {
		_, _ = out.WriteString(http2.ClientPreface)
	}
	f := http2.NewFramer(&out, nil)
	if r.next == 1 {
		_ = f.WriteSettings()
	}
	for _, id := range reset {
		_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	for range n {
		r.block.Reset()
		for _, h := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":authority", "shop.example"},
			{":path", "/orders"},
			{"content-type", "application/json"},
			{"idempotency-key", fmt.Sprint(key, r.next)},
			{"authorization", "Bearer x"},
		} {
			_ = r.enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: r.next, BlockFragment: r.block.Bytes(), EndHeaders: true})
		_ = f.WriteData(r.next, true, []byte(`{"item":"book"}`))
		if atOnce {
			_ = f.WriteRSTStream(r.next, http2.ErrCodeCancel)
		}
		streams = append(streams, r.next)
		r.next += 2
	}
	_ = f.WritePing(false, [8]byte{1})
	_, _ = r.conn.Write(out.Bytes()) // an error is the server's way to say that it has had enough
	select {
	case <-r.pongs:
	case <-r.over:
	}
	return streams
}

func (r *resetter) hangUp() {
	_ = r.conn.Close()
	<-r.over
}

// resets sends n requests over conns connections and resets them: the first of
// each connection once busy has returned, which waits until the server is at as
// many as it will be, and the others at once.
func resets(t *testing.T, addr string, round, n, conns int, busy func()) (hangUp func()) {
	t.Helper()
	all := make([]*resetter, conns)
	streams := make([][]uint32, conns)
	each := func(do func(i int)) {
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() { do(i) })
		}
		wg.Wait()
	}
	for i := range all {
		all[i] = newResetter(t, addr)
	}
	const first = 100
	each(func(i int) { streams[i] = all[i].send(first, fmt.Sprintf("key-%d-%d-", round, i), nil, false) })
	if busy != nil {
		busy()
	}
	each(func(i int) { all[i].send(n/conns-first, fmt.Sprintf("key-%d-%d-", round, i), streams[i], true) })
	return func() {
		for _, r := range all {
			r.hangUp()
		}
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// inFlight counts the requests that a handler is at, whoever waits for them.
func inFlight(next http.Handler, g *gauge) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.add(1)
		defer g.add(-1)
		next.ServeHTTP(w, r)
	})
}

const resetRequests = 2000

// HTTP/2 clients that send requests and reset them at once have no more of them
// executed at the same time than the bounds allow: those of the server for each
// connection, and the guard's for all. The others leave nothing.
func TestResetStreamsAreBounded(t *testing.T) {
	quick.LeaveOut(t)
	for _, tc := range []struct {
		name           string
		conns, streams int
		executions     int // of the guard
		bound          int
	}{
		{"by the server", 1, 100, 4096, 100},
		{"by the guard", 10, 100, 50, 50},
		{"by a tenant's share", 10, 100, 200, 50},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := memory.New(memory.Config{})
			if err != nil {
				t.Fatal(err)
			}
			guard, err := semel.New(semel.Config{Store: m, MaxExecutions: tc.executions})
			if err != nil {
				t.Fatal(err)
			}
			tenant := ""
			if tc.bound < tc.executions && tc.executions != 4096 {
				tenant = "acme"
			}
			protect, err := semelhttp.New(semelhttp.Config{Guard: guard, Scope: func(*http.Request) (semel.Scope, error) {
				return semel.Scope{Tenant: tenant, Operation: "orders"}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			executing, open := newGauge(), newGauge()
			gate := make(chan struct{})
			release := sync.OnceFunc(func() { close(gate) })
			defer release()
			addr, stop := serveHTTP2(t, inFlight(protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				executing.add(1)
				defer executing.add(-1)
				<-gate
				_, _ = io.WriteString(w, "done")
			})), open), tc.streams)

			before := heap()
			hangUp := resets(t, addr, 0, resetRequests, tc.conns, func() { executing.await(t, tc.bound) })
			if tc.bound < tc.streams { // the others have been refused, and are gone
				open.await(t, tc.bound)
			}
			if grown := int64(heap()) - int64(before); grown > 64<<20 {
				t.Errorf("%d MiB more in use", grown>>20)
			}

			// The next client is answered, whether or not there is room for it.
			client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}, Timeout: time.Minute}
			defer client.CloseIdleConnections()
			client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
			ask := func(key string) (*http.Response, string) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/orders", strings.NewReader(`{}`))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Idempotency-Key", key)
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp, string(body)
			}
			if tc.bound < tc.streams {
				resp, body := ask("next")
				if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "#busy") {
					t.Errorf("the next client is answered %d %q", resp.StatusCode, body)
				}
			}
			release()
			if resp, body := ask("next"); resp.StatusCode != 200 || body != "done" {
				t.Errorf("the next client is answered %d %q", resp.StatusCode, body)
			}
			hangUp()
			open.await(t, 0)
			if _, most := executing.read(); most > tc.bound {
				t.Errorf("%d executions at a time; the bound is %d", most, tc.bound)
			}
			if err := stop(t.Context()); err != nil {
				t.Error(err)
			}
			if err := guard.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			if left, err := m.List(t.Context(), semel.Filter{State: semel.StateInProgress}); err != nil || len(left) > 0 {
				t.Errorf("%d records in progress, %v", len(left), err)
			}
			if tc.bound < tc.streams {
				// Nothing of those that were refused is stored.
				all, err := m.List(t.Context(), semel.Filter{Limit: 1000})
				if err != nil || len(all) > resetRequests/2 {
					t.Errorf("%d records, %v", len(all), err)
				}
			}
		})
	}
}

// Round after round of resets costs no memory that stays.
func TestResetStreamsLeaveNoMemoryBehind(t *testing.T) {
	quick.LeaveOut(t)
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: m, MaxExecutions: 50})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{Guard: guard, Scope: func(*http.Request) (semel.Scope, error) {
		return semel.Scope{Operation: "orders"}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	open := newGauge()
	addr, _ := serveHTTP2(t, inFlight(protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		semelhttp.DeclareNoEffect(r.Context(), nil) // so that no record is left on purpose
		_, _ = w.Write(make([]byte, 20<<10))
	})), open), 100)
	var first uint64
	for round := range 3 {
		resets(t, addr, round, resetRequests, 10, nil)()
		open.await(t, 0)
		now := heap()
		if round == 0 {
			first = now
		} else if now > first+8<<20 {
			t.Errorf("round %d: %d MiB in use; %d after the first", round, now>>20, first>>20)
		}
	}
	if n := runtime.NumGoroutine(); n > 100 {
		t.Errorf("%d goroutines are left", n)
	}
	if err := guard.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

// Behind a gateway the upstream sees no more connections than there are
// executions, though nobody waits for any of them.
func TestResetStreamsHoldNoMoreConnectionsThanTheBound(t *testing.T) {
	const bound = 30
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: m, MaxExecutions: bound})
	if err != nil {
		t.Fatal(err)
	}
	executing := newGauge()
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	var connections, most atomic.Int32
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		executing.add(1)
		defer executing.add(-1)
		<-gate
		_, _ = io.WriteString(w, "done")
	}))
	upstream.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			n := connections.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
		case http.StateClosed, http.StateHijacked:
			connections.Add(-1)
		}
	}
	upstream.Start()
	defer upstream.Close()
	defer release()
	u, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Upstream: u, Guard: guard})
	if err != nil {
		t.Fatal(err)
	}
	open := newGauge()
	addr, stop := serveHTTP2(t, inFlight(g, open), 100)
	hangUp := resets(t, addr, 0, resetRequests, 10, func() { executing.await(t, bound) })
	open.await(t, bound)
	hangUp() // and now there is no client at all
	if n := most.Load(); n > bound {
		t.Errorf("%d connections to the upstream; the bound is %d", n, bound)
	}
	release()
	open.await(t, 0)
	executing.await(t, 0)
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := g.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := m.List(t.Context(), semel.Filter{State: semel.StateInProgress}); err != nil || len(left) > 0 {
		t.Errorf("%d records in progress, %v", len(left), err)
	}
}
