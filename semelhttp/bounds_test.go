package semelhttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

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

// pipeServer serves h over a network in memory, so that time can be virtual.
func pipeServer(t *testing.T, h http.Handler) (dial func() net.Conn) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-served })
	return func() net.Conn {
		client, server := net.Pipe()
		l.conns <- server
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
}

// ask sends the head of a request and what there is of its body, and returns the
// status, the rest of the answer and when it came.
func ask(t *testing.T, c net.Conn, head string, body ...string) (status, rest string, took time.Duration) {
	t.Helper()
	start := time.Now()
	var sending sync.WaitGroup
	sending.Go(func() {
		_, _ = io.WriteString(c, "POST /orders HTTP/1.1\r\nHost: x\r\nActor: a\r\n"+head+"\r\n\r\n")
		for _, part := range body {
			if _, err := io.WriteString(c, part); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	})
	answer, _ := io.ReadAll(c)
	took = time.Since(start)
	_ = c.Close()
	sending.Wait()
	line, rest, _ := strings.Cut(string(answer), "\r\n")
	_, status, _ = strings.Cut(line, " ")
	return status, rest, took
}

// A body that does not come must not hold its connection, its memory and its
// spool, and it must not hold up a drain.
func TestSlowUploads(t *testing.T) {
	for name, tc := range map[string]struct {
		head   string
		body   []string
		drain  time.Duration
		status string
		took   time.Duration
		says   string
	}{
		"nothing comes":       {head: "Content-Length: 2", status: "408", took: 10 * time.Second, says: "body-too-slow"},
		"the last is missing": {head: "Content-Length: 20001", body: []string{strings.Repeat("x", 20000)}, status: "408", took: 29532 * time.Millisecond, says: "body-too-slow"},
		"idle after much":     {head: "Content-Length: 400000", body: []string{strings.Repeat("x", 399999)}, status: "408", took: 30 * time.Second, says: "body-too-slow"},
		"a byte a second":     {head: "Content-Length: 1000", body: strings.Split(strings.Repeat("x", 1000), ""), status: "408", says: "body-too-slow"},
		"slow but sure":       {head: "Content-Length: 40000", body: slicesOf(2000, 20), status: "201"},
		"withheld at a drain": {head: "Content-Length: 5", body: []string{"x"}, drain: 3 * time.Second, status: "503", took: 3 * time.Second, says: "is stopping"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				dir := t.TempDir()
				spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: dir})
				if err != nil {
					t.Fatal(err)
				}
				dial := pipeServer(t, b.protect(t, effects, func(c *semelhttp.Config) { c.Spools = spools }))
				if tc.drain > 0 {
					go func() {
						time.Sleep(tc.drain)
						_ = b.guard.Drain(t.Context())
					}()
				}
				status, rest, took := ask(t, dial(), "Idempotency-Key: k\r\nConnection: close\r\n"+tc.head, tc.body...)
				if !strings.HasPrefix(status, tc.status) || !strings.Contains(rest, tc.says) {
					t.Fatalf("after %v: %s\n%s", took, status, rest)
				}
				if tc.took > 0 && (took < tc.took-time.Second || took > tc.took+time.Second) {
					t.Errorf("answered after %v; want %v", took, tc.took)
				}
				if tc.status == "201" {
					effects.want(t, 1)
				} else {
					effects.want(t, 0)
				}
				synctest.Wait()
				if n := spools.Used(); n != 0 {
					t.Errorf("%d bytes are still spooled", n)
				}
			})
		})
	}
}

func slicesOf(size, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.Repeat("x", size)
	}
	return all
}

// Who does not read its answer is cut off; the execution goes on and is recorded.
func TestStalledReaders(t *testing.T) {
	for name, tc := range map[string]struct {
		events bool
		replay bool
	}{"own answer": {}, "stream": {events: true}, "replay": {replay: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				ended := make(chan error, 2)
				h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if tc.events {
						w.Header().Set("Content-Type", "text/event-stream")
					}
					for range 10 {
						_, _ = w.Write(make([]byte, 10_000))
						w.(http.Flusher).Flush()
					}
					effects.add()
					ended <- r.Context().Err()
				}))
				left := make(chan time.Duration, 1)
				dial := pipeServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					start := time.Now()
					defer func() { left <- time.Since(start) }()
					h.ServeHTTP(w, r)
				}))
				if tc.replay {
					direct(t, h, "k", "{}") // under another actor's scope: see below
					r := newRequest(t, http.MethodPost, "http://x/orders", "k", "")
					r.Header.Set("Actor", "a")
					directRequest(h, r)
					<-ended
					<-ended
				}
				c := dial()
				_, _ = io.WriteString(c, "POST /orders HTTP/1.1\r\nHost: x\r\nActor: a\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n")
				took := <-left // while nobody has read a byte
				if took < 9*time.Second || took > 31*time.Second {
					t.Errorf("cut off after %v", took)
				}
				if !tc.replay {
					if err := <-ended; err != nil {
						t.Errorf("the handler's context ended: %v", err)
					}
				}
				r := newRequest(t, http.MethodPost, "http://x/orders", "k", "")
				r.Header.Set("Actor", "a")
				a := directRequest(h, r)
				if tc.events {
					a.want(t, semelhttp.ProblemResultNotRetained)
				} else if a.status != http.StatusOK || !a.replayed() || len(a.body) != 100_000 {
					t.Errorf("got %d, %d bytes, replayed %v", a.status, len(a.body), a.replayed())
				}
			})
		})
	}
}

// A body has one limit, however much of it is in memory.
func TestLimitCountsTheWholeBody(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, effects, func(c *semelhttp.Config) { c.MaxRequestBody = 700_000 }), false)
	for size, want := range map[int]int{700_000: http.StatusCreated, 700_001: http.StatusRequestEntityTooLarge} {
		r := newRequest(t, http.MethodPost, s.URL+"/files", "k", "")
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(make([]byte, size))), -1 // chunked
		if a := mustSend(t, s, r); a.status != want {
			t.Errorf("%d bytes: got %d", size, a.status)
		}
	}
	effects.want(t, 1)
}

// What a router takes off the path may be all that tells two operations apart.
func TestStrippedPrefixesAreKeptApart(t *testing.T) {
	b := newFixture(t)
	var did []string
	inner := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		did = append(did, r.URL.Path)
		_, _ = io.WriteString(w, r.Header.Get("What"))
	}))
	named := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}), func(c *semelhttp.Config) {
		c.Scope = func(*http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: "a", Operation: "one name for both"}, nil
		}
	})
	mux := http.NewServeMux()
	for _, what := range []string{"charge", "refund"} {
		mux.Handle("/"+what+"/", http.StripPrefix("/"+what, inner))
		mux.Handle("/named/"+what+"/", http.StripPrefix("/named/"+what, named))
	}
	s, _ := serve(t, mux, false)
	for _, what := range []string{"charge", "refund"} {
		r := newRequest(t, http.MethodPost, s.URL+"/"+what+"/42", "k", "{}")
		r.Header.Set("What", what)
		if a := mustSend(t, s, r); a.body != what || a.replayed() {
			t.Errorf("%s was answered with %d %q, replayed %v", what, a.status, a.body, a.replayed())
		}
	}
	if len(did) != 2 {
		t.Errorf("executed: %q", did)
	}
	mustSend(t, s, newRequest(t, http.MethodPost, s.URL+"/named/charge/42", "k", "{}"))
	mustSend(t, s, newRequest(t, http.MethodPost, s.URL+"/named/refund/42", "k", "{}")).want(t, semelhttp.ProblemKeyMismatch)
}

// What the handler adds stands beside what others have to say about the answer at
// hand, even if they had nothing to say the first time.
func TestReplayAddsToTheOuterHeader(t *testing.T) {
	b := newFixture(t)
	protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("Cache-Control", "private")
	}))
	s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			w.Header().Set("Vary", "Origin")
			w.Header().Set("Cache-Control", "no-cache")
		}
		protected.ServeHTTP(w, r)
	}), false)
	post(t, s, "k", "{}")
	r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")
	r.Header.Set("Origin", "https://shop.example")
	a := mustSend(t, s, r)
	if got := strings.Join(a.header["Vary"], ", "); got != "Origin, Accept" || a.header.Get("Cache-Control") != "private" || !a.replayed() {
		t.Errorf("Vary is %q, Cache-Control %q", got, a.header.Get("Cache-Control"))
	}
}

// A method in another case, and one that asks to be taken for another, do not
// get around the protection.
func TestMethodsInDisguise(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, effects, func(c *semelhttp.Config) { c.RequireKey = true }), false)
	for _, tc := range []struct{ method, override string }{
		{"post", ""}, {"Patch", ""}, {"GET", "POST"}, {"get", "patch"}, {"PUT", "POST"}, {"POST", "DELETE"},
	} {
		r := newRequest(t, tc.method, s.URL+"/orders", "", "")
		if tc.override != "" {
			r.Header.Set("X-HTTP-Method-Override", tc.override)
		}
		if a := mustSend(t, s, r); a.status != http.StatusBadRequest {
			t.Errorf("%s as %q without a key: got %d", tc.method, tc.override, a.status)
		}
	}
	effects.want(t, 0)
	post(t, s, "k", "{}")
	r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")
	r.Header.Set("X-HTTP-Method-Override", "DELETE")
	mustSend(t, s, r).want(t, semelhttp.ProblemKeyMismatch)
	effects.want(t, 1)
}

// A client whose clock is ahead must not get a second effect after the record of
// the first has expired.
func TestFirstSentAheadIsRefusedBeforeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		h := b.protect(t, effects, func(c *semelhttp.Config) { c.Contract = semelhttp.OASIS() })
		first := time.Now().Add(4 * time.Minute).UTC().Format(http.TimeFormat)
		send := func() answer {
			r := newRequest(t, http.MethodPost, "http://shop.example/orders", "", "{}")
			r.Header.Set(semelhttp.HeaderRepeatabilityRequestID, "5f8b3a7e-7c1f-4f0e-9a51-1f0d4b1c2a11")
			r.Header.Set(semelhttp.HeaderRepeatabilityFirstSent, first)
			return directRequest(h, r)
		}
		if a := send(); a.status != http.StatusCreated {
			t.Fatalf("got %d", a.status)
		}
		time.Sleep(24*time.Hour - 10*time.Minute)
		if a := send(); a.status != http.StatusCreated {
			t.Fatalf("while it is remembered: got %d", a.status)
		}
		for range 10 {
			time.Sleep(2 * time.Minute)
			if a := send(); a.status == http.StatusCreated && a.header.Get("Repeatability-Result") != "accepted" {
				t.Fatalf("got %d %v", a.status, a.header)
			}
		}
		send().want(t, semelhttp.ProblemFirstSentOutOfRange)
		effects.want(t, 1)
	})
	b := newFixture(t, func(c *semel.Config) { c.Policy.Retention = 10 * time.Minute })
	if _, err := semelhttp.New(semelhttp.Config{Guard: b.guard, Scope: tester, Contract: semelhttp.OASIS()}); err == nil || !strings.Contains(err.Error(), "clocks may be apart") {
		t.Errorf("a retention as short as clocks are apart: %v", err)
	}
}

// A key that must not execute any more does not either while the store is down.
func TestFailOpenRefusesAnExpiredKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		keys, err := semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{Secrets: [][]byte{make([]byte, 32)}, Retention: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		h := b.withResources(t, effects, semelhttp.ResourcesConfig{Keys: keys}, func(c *semelhttp.Config) { c.FailOpen = true })
		key, _ := keys.Issue(semel.Scope{Actor: "alice"})
		b.hooks.begin = func() error { return errors.New("store down") }
		if a := direct(t, h, key, "{}"); a.status != http.StatusCreated {
			t.Fatalf("a key in its life: got %d", a.status)
		}
		time.Sleep(2 * time.Hour)
		direct(t, h, key, "{}").want(t, semelhttp.ProblemKeyExpired)
		effects.want(t, 1)
		if err := b.guard.Drain(t.Context()); err != nil { // the lost grant is pursued for a while
			t.Error(err)
		}
	})
}

// A bound that is reached is a problem that names it, and stores nothing.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t, func(c *semel.Config) { c.MaxExecutions = 2 }), &orders{}
		goOn := make(chan struct{})
		h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-goOn
			effects.ServeHTTP(w, r)
		}), func(c *semelhttp.Config) { c.FailOpen = true })
		for _, key := range []string{"a", "b"} {
			go direct(t, h, key, "{}")
		}
		synctest.Wait()
		a := direct(t, h, "c", "{}")
		if p := a.want(t, semelhttp.ProblemBusy); !strings.Contains(p.Detail, "MaxExecutions") || a.header.Get("Retry-After") == "" {
			t.Errorf("told %q, %v", p.Detail, a.header)
		}
		close(goOn)
		synctest.Wait()
		effects.want(t, 2)
		if found, err := b.store.List(t.Context(), semel.Filter{Key: "c"}); err != nil || len(found) != 0 {
			t.Errorf("on record: %v, %v", found, err)
		}
		if a := direct(t, h, "c", "{}"); a.status != http.StatusCreated {
			t.Errorf("afterwards: %d", a.status)
		}
	})
}

// Spools are bounded together, and each by a quarter.
func TestSpoolsAreBounded(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	var failed atomic.Int64
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: t.TempDir(), MaxBytes: 4 << 20, Failed: func(context.Context, error) { failed.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	entered, goOn := make(chan struct{}), make(chan struct{})
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-goOn
		effects.ServeHTTP(w, r)
	}), func(c *semelhttp.Config) { c.Spools = spools }), false)
	upload := func(key string, size int) answer {
		r := newRequest(t, http.MethodPost, s.URL+"/files", key, strings.Repeat("x", size))
		r.Header.Set("Content-Type", "application/octet-stream")
		return mustSend(t, s, r)
	}
	if a := upload("large", 2<<20); a.want(t, semelhttp.ProblemSpoolUnavailable).RetryAfter != 0 || a.header.Get("Retry-After") == "" {
		t.Errorf("got %v", a.header)
	}
	var wg sync.WaitGroup
	for _, key := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			if a := upload(key, 1_000_000); a.status != http.StatusCreated {
				t.Errorf("%s: got %d", key, a.status)
			}
		})
		<-entered
	}
	upload("e", 1_000_000).want(t, semelhttp.ProblemSpoolUnavailable)
	if failed.Load() != 2 || spools.Used() < 4_000_000 {
		t.Errorf("%d failures told, %d bytes used", failed.Load(), spools.Used())
	}
	close(goOn)
	wg.Wait()
	go func() { <-entered }()
	if a := upload("e", 1_000_000); a.status != http.StatusCreated {
		t.Errorf("afterwards: %d", a.status)
	}
	s.Close()
	if n := spools.Used(); n != 0 {
		t.Errorf("%d bytes are used by nobody", n)
	}
}

// A recorded cookie is not for whoever asks for the result in a scope that tells
// no callers apart.
func TestResultWithoutAnActorHasNoCookie(t *testing.T) {
	for actor, want := range map[string]int{"": 0, "alice": 2} {
		b := newFixture(t)
		h := b.withResources(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "Set-Cookie")
			w.Header()["set-cookie"] = []string{"session=raw"}
			w.Header().Add("Set-Cookie", "session=secret")
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("Set-Cookie", "session=trailer")
		}), semelhttp.ResourcesConfig{})
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}")
		r.Header.Set("Actor", actor)
		directRequest(h, r)
		found, err := b.store.List(t.Context(), semel.Filter{})
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		a := directRequest(h, get(t, semelhttp.DefaultPrefix+"/operations/"+found[0].ID+"/result", actor))
		n := 0
		for name, values := range a.header {
			if strings.EqualFold(name, "Set-Cookie") {
				n += len(values)
			}
		}
		if a.status != http.StatusCreated || n != want || len(a.trailer["Set-Cookie"]) > want {
			t.Errorf("actor %q: got %d with cookies %v, %v", actor, a.status, a.header, a.trailer)
		}
	}
}

// The status resource and a 202 do not hang when the store does.
func TestHangingStoreIsAnsweredInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		hanging := &hangingStore{hookedStore: b.store}
		guard, err := semel.New(semel.Config{Store: hanging, Policy: semel.Policy{StoreTimeout: 2 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		b.guard = guard
		h := b.withResources(t, &orders{}, semelhttp.ResourcesConfig{}, func(c *semelhttp.Config) { c.InFlight = semelhttp.InFlightAccept })
		start := time.Now()
		directRequest(h, get(t, semelhttp.DefaultPrefix+"/operations/abc", "alice")).want(t, semelhttp.ProblemStoreUnavailable)
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("the status came after %v", took)
		}
		c, err := b.store.Store.Begin(t.Context(), semel.NewAttempt(semel.Identity{Scope: semel.Scope{Actor: "alice", Operation: "POST /orders"}, Key: "k"}, semel.Fingerprint{}, time.Hour, time.Hour))
		if err != nil {
			t.Fatal(err, c)
		}
		start = time.Now()
		if a := direct(t, h, "k", "{}"); a.status != http.StatusConflict || time.Since(start) > 4*time.Second {
			t.Errorf("a duplicate was answered %d after %v", a.status, time.Since(start))
		}

		// Who has its own request executed is in conflict with nobody.
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "own", "{}")
		r.Header.Set("Actor", "alice")
		r.Header.Set("Prefer", "respond-async")
		h = b.withResources(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Minute) }), semelhttp.ResourcesConfig{})
		start = time.Now()
		directRequest(h, r).want(t, semelhttp.ProblemStoreUnavailable)
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("a 202 came after %v", took)
		}
		if err := guard.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// hangingStore answers claims, and no look-ups.
type hangingStore struct{ *hookedStore }

func (s *hangingStore) Find(ctx context.Context, _ semel.Identity) (semel.Record, error) {
	<-ctx.Done()
	return semel.Record{}, ctx.Err()
}

func (s *hangingStore) List(ctx context.Context, _ semel.Filter) ([]semel.Record, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
