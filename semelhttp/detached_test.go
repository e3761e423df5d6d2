package semelhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// A client that goes away neither stops the work nor loses its record.
func TestClientDisconnect(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			recorded := make(chan struct{})
			b.hooks.completed = func(semel.Result) { close(recorded) }
			started, served, goOn := make(chan struct{}), make(chan struct{}), make(chan struct{})
			protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(started)
				<-goOn
				if err := r.Context().Err(); err != nil {
					t.Errorf("the handler's context ended: %v", err)
				}
				body, err := io.ReadAll(r.Body)
				if string(body) != `{"item":"book"}` || err != nil || r.Header.Get("Actor") != "alice" {
					t.Errorf("the handler saw %q, %v, %v", body, err, r.Header)
				}
				effects.ServeHTTP(w, r)
			}))
			s, logged := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				protected.ServeHTTP(w, r)
				if r.Header.Get("X-First") != "" {
					close(served)
				}
			}), http2)

			ctx, cancel := context.WithCancel(t.Context())
			r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", `{"item":"book"}`)
			r.Header.Set("X-First", "yes")
			lost := make(chan error, 1)
			go func() {
				_, err := send(s.Client(), r.WithContext(ctx))
				lost <- err
			}()
			<-started
			post(t, s, "k", `{"item":"book"}`).want(t, semelhttp.ProblemInProgress)
			cancel()
			if err := <-lost; err == nil {
				t.Error("the client got an answer")
			}
			post(t, s, "k", `{"item":"book"}`).want(t, semelhttp.ProblemInProgress)
			select {
			case <-served:
				t.Error("the server's goroutine left its execution behind")
			default:
			}
			close(goOn)
			<-recorded
			<-served
			if a := post(t, s, "k", `{"item":"book"}`); a.status != http.StatusCreated || a.body != `{"id":1}` || !a.replayed() {
				t.Errorf("got %d %s", a.status, a.body)
			}
			effects.want(t, 1)
			if l := logged.String(); l != "" {
				t.Errorf("the server logged %q", l)
			}
		})
	}
}

// The client may be gone before the handler starts.
func TestHandlerStartsAfterTheClientHasLeft(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	ctx, cancel := context.WithCancel(t.Context())
	b.hooks.context = cancel
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) != "{}" || r.Header.Get("Actor") != "alice" || r.URL.Path != "/orders" {
			t.Errorf("the handler saw %q, %v, %v", body, r.Header, r.URL)
		}
		if _, ok := semel.CurrentExecution(r.Context()); !ok || r.Context().Err() != nil {
			t.Error("the handler's context is not that of the execution")
		}
		effects.ServeHTTP(w, r)
	}))
	directRequest(h, newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}").WithContext(ctx))
	effects.want(t, 1)
	if a := direct(t, h, "k", "{}"); a.status != http.StatusCreated || !a.replayed() {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

// At the deadline the outcome is unknown to whoever asks; the handler's result
// still counts when it comes, and its own client is told.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			if !errors.Is(context.Cause(r.Context()), semel.ErrDeadline) {
				t.Errorf("cancelled by %v", context.Cause(r.Context()))
			}
			time.Sleep(time.Minute)
			effects.ServeHTTP(w, r)
		}))
		go func() {
			time.Sleep(10*time.Minute + 30*time.Second)
			direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
		}()
		if a := direct(t, h, "k", "{}"); a.status != http.StatusCreated || a.replayed() {
			t.Errorf("got %d %s", a.status, a.body)
		}
		if a := direct(t, h, "k", "{}"); a.status != http.StatusCreated || !a.replayed() {
			t.Errorf("got %d %s", a.status, a.body)
		}
		effects.want(t, 1)
	})
}

// Whoever's own request was cut off meets a failure of the server, not a
// conflict with somebody else.
func TestOwnFailureIsNoConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, contract := range map[string]semelhttp.Contract{"ietf": semelhttp.IETF(), "stripe": semelhttp.Stripe(), "oasis": semelhttp.OASIS()} {
			for _, forwards := range []bool{false, true} {
				for cut, handler := range map[string]http.HandlerFunc{
					"cut off": func(_ http.ResponseWriter, r *http.Request) { semelhttp.DeclareIndeterminate(r.Context(), "cut off") },
					"timed out": func(_ http.ResponseWriter, r *http.Request) {
						<-r.Context().Done()
						semelhttp.DeclareIndeterminate(r.Context(), "timed out")
					},
				} {
					b := newFixture(t)
					h := b.protect(t, handler, func(c *semelhttp.Config) { c.Contract, c.Forwards = contract, forwards })
					want := http.StatusInternalServerError
					if forwards {
						want = map[string]int{"cut off": http.StatusBadGateway, "timed out": http.StatusGatewayTimeout}[cut]
					}
					r := func() *http.Request {
						r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}")
						if contract.KeyHeader != semelhttp.HeaderKey {
							r.Header.Set(contract.KeyHeader, "5f8b3a7e-7c1f-4f0e-9a51-1f0d4b1c2a11")
							r.Header.Set(contract.FirstSentHeader, time.Now().UTC().Format(http.TimeFormat))
						}
						return r
					}
					first := r()
					a := directRequest(h, first)
					if a.status != want || a.header.Get("Location") != "" {
						t.Errorf("%s, forwards %v, %s: answered %d; want %d", name, forwards, cut, a.status, want)
					}
					if name != "stripe" {
						if p := a.problem(t); p.Type != semelhttp.ProblemOutcomeUnknown.Type() || p.Retry != semel.RetryAfterResolution || p.Status != want {
							t.Errorf("%s, forwards %v, %s: told %+v", name, forwards, cut, p)
						}
					}
					again := r()
					again.Header = first.Header.Clone()
					if a := directRequest(h, again); a.status != http.StatusConflict {
						t.Errorf("%s, forwards %v, %s: who comes later is answered %d", name, forwards, cut, a.status)
					}
				}
			}
		}
	})
}

// spy is a ResponseWriter that remembers whether anything has left.
type spy struct {
	*httptest.ResponseRecorder
	left atomic.Bool
}

func (s *spy) WriteHeader(code int) { s.left.Store(true); s.ResponseRecorder.WriteHeader(code) }

func (s *spy) Write(p []byte) (int, error) { s.left.Store(true); return s.ResponseRecorder.Write(p) }

func (s *spy) Flush() { s.left.Store(true); s.ResponseRecorder.Flush() }

// No byte of a result leaves before its record is durable. What cannot be
// recorded passes as it comes, but not to its end: that waits for the tombstone.
func TestNothingLeavesBeforeTheRecord(t *testing.T) {
	for name, tc := range map[string]struct {
		handler   http.HandlerFunc
		tombstone bool
	}{
		"flushed": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "body")
			w.(http.Flusher).Flush()
		}},
		"too large": {handler: func(w http.ResponseWriter, _ *http.Request) {
			for range 20 {
				_, _ = w.Write(make([]byte, 10))
				w.(http.Flusher).Flush()
			}
		}, tombstone: true},
		"event stream": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "data: 1\n\n")
		}, tombstone: true},
		"event stream without Flush": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
		}, tombstone: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			w := &spy{ResponseRecorder: httptest.NewRecorder()}
			completed := 0
			b.hooks.complete = func(r semel.Result) error {
				completed++
				if w.left.Load() != tc.tombstone {
					t.Errorf("something left before the record: %v", w.left.Load())
				}
				if r.Tombstone != tc.tombstone {
					t.Errorf("tombstone is %v", r.Tombstone)
				}
				return nil
			}
			h := b.protect(t, tc.handler, func(c *semelhttp.Config) { c.MaxResult = 100 })
			h.ServeHTTP(w, newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}"))
			if completed != 1 || w.Body.Len() == 0 {
				t.Errorf("completed %d times, sent %q", completed, w.Body)
			}
		})
	}
}

// What is too large to be kept is passed on whole, never executed
// again, and never replayed in part.
func TestTooLargeLeavesATombstone(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, declared := range []bool{false, true} {
			t.Run(fmt.Sprintf("http2=%v,length=%v", http2, declared), func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				const rows = 50_000
				whole := strings.Repeat("<p>row\n", rows)
				s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					effects.add()
					w.Header().Set("Location", "/exports/1")
					w.Header().Set("X-List", "a")
					w.Header().Add("X-List", "b")
					w.Header().Set("Trailer", "Rows")
					if declared {
						w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
					}
					w.WriteHeader(http.StatusCreated)
					row := []byte("<p>row\n")
					for range rows {
						_, _ = w.Write(row) // the same memory each time: it must have been taken
					}
					w.Header().Set("Rows", fmt.Sprint(rows))
					w.Header().Set(http.TrailerPrefix+"Late", "yes")
				}), func(c *semelhttp.Config) { c.MaxResult = 1000 }), http2)
				a := post(t, s, "k", "{}")
				if a.err != nil || a.status != http.StatusCreated || a.body != whole || a.header.Get(semelhttp.HeaderExpires) != "" ||
					len(a.header["X-List"]) != 2 || a.header.Get("Content-Type") != "text/html; charset=utf-8" || declared != (a.length == int64(len(whole))) {
					t.Errorf("got %d, %d bytes, %v, %v", a.status, len(a.body), a.err, a.header)
				}
				if wantTrailers := http2 || !declared; wantTrailers && (a.trailer.Get("Rows") != fmt.Sprint(rows) || a.trailer.Get("Late") != "yes") {
					t.Errorf("trailers are %v", a.trailer)
				}
				for range 2 {
					if p := post(t, s, "k", "{}").want(t, semelhttp.ProblemResultNotRetained); p.Reference != "/exports/1" {
						t.Errorf("the reference is %q", p.Reference)
					}
				}
				post(t, s, "k", "{ }x").want(t, semelhttp.ProblemKeyMismatch)
				effects.want(t, 1)
			})
		}
	}
}

func TestOneWriteTooLarge(t *testing.T) {
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("%PDF-1.4 "), 1000))
	}), func(c *semelhttp.Config) { c.MaxResult = 100 }), false)
	if a := post(t, s, "k", "{}"); len(a.body) != 9000 || a.header.Get("Content-Type") != "application/pdf" {
		t.Errorf("got %d bytes, %v", len(a.body), a.header)
	}
}

// A stream is sent as it comes, event by event.
func TestEventStreamPassesAsItComes(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			b := newFixture(t)
			seen := make(chan struct{})
			s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				<-seen // the head alone
				for i := range 3 {
					_, _ = fmt.Fprintf(w, "data: %d\n", i)
					w.(http.Flusher).Flush()
					<-seen
				}
			})), http2)
			resp, err := s.Client().Do(newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("got %d %v", resp.StatusCode, resp.Header)
			}
			post(t, s, "k", "{}").want(t, semelhttp.ProblemInProgress)
			seen <- struct{}{}
			lines := bufio.NewReader(resp.Body)
			for i := range 3 {
				if line, err := lines.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) || err != nil {
					t.Fatalf("got %q, %v", line, err)
				}
				seen <- struct{}{}
			}
			if rest, err := io.ReadAll(lines); len(rest) > 0 || err != nil {
				t.Errorf("got %q, %v", rest, err)
			}
			post(t, s, "k", "{}").want(t, semelhttp.ProblemResultNotRetained)
		})
	}
}

// The client leaves after the first event: the handler goes on to its end, and
// only then the record says that it is completed.
func TestEventStreamGoesOnWithoutItsClient(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			left, ended, recorded := make(chan struct{}), make(chan error, 1), make(chan struct{})
			b.hooks.completed = func(semel.Result) { close(recorded) }
			var serverContext context.Context
			protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: 1\n")
				w.(http.Flusher).Flush()
				<-left
				<-serverContext.Done()
				for range 100 {
					if n, err := w.Write(make([]byte, 10_000)); n != 10_000 || err != nil {
						t.Errorf("Write gave %d, %v", n, err)
					}
					w.(http.Flusher).Flush()
				}
				effects.add()
				ended <- r.Context().Err()
			}))
			s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if serverContext == nil {
					serverContext = r.Context()
				}
				protected.ServeHTTP(w, r)
			}), http2)
			ctx, cancel := context.WithCancel(t.Context())
			resp, err := s.Client().Do(newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}").WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "data: 1\n" || err != nil {
				t.Fatalf("got %q, %v", line, err)
			}
			cancel()
			_ = resp.Body.Close()
			post(t, s, "k", "{}").want(t, semelhttp.ProblemInProgress)
			close(left)
			if err := <-ended; err != nil {
				t.Errorf("the handler's context ended: %v", err)
			}
			<-recorded
			post(t, s, "k", "{}").want(t, semelhttp.ProblemResultNotRetained)
			effects.want(t, 1)
		})
	}
}

// brokenPipe is the writer of a client that goes away after some bytes.
type brokenPipe struct {
	*httptest.ResponseRecorder
	room int
}

func (w *brokenPipe) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errors.New("broken pipe")
	}
	return w.ResponseRecorder.Write(p)
}

// The work of a large answer goes on without its client.
func TestLargeAnswerGoesOnWithoutItsClient(t *testing.T) {
	b := newFixture(t)
	ended := make(chan error, 1)
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ended <- func() error {
			for range 100 {
				if n, err := w.Write(make([]byte, 100)); n != 100 || err != nil {
					return fmt.Errorf("write gave %d, %w", n, err)
				}
				if err := http.NewResponseController(w).Flush(); err != nil {
					return err
				}
			}
			return r.Context().Err()
		}()
	}), func(c *semelhttp.Config) { c.MaxResult = 250 })
	w := &brokenPipe{httptest.NewRecorder(), 1000}
	// A server must see that the answer is not whole.
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler {
				t.Errorf("panicked with %v", v)
			}
		}()
		h.ServeHTTP(w, newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}"))
	}()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := w.Body.Len(); n != 1000 {
		t.Errorf("%d bytes were sent", n)
	}
	direct(t, h, "k", "{}").want(t, semelhttp.ProblemResultNotRetained)
	if err := b.guard.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

// slowWriter takes one chunk at a time, when told.
type slowWriter struct {
	*httptest.ResponseRecorder
	writing chan int
	take    chan struct{}
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.writing <- len(p)
	<-w.take
	return w.ResponseRecorder.Write(p)
}

// A large answer takes no more memory than the client leaves room for: the
// handler is held up.
func TestLargeAnswerIsHeldUpByItsClient(t *testing.T) {
	b := newFixture(t)
	var written atomic.Int32
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 5 {
			_, _ = w.Write(make([]byte, 100))
			written.Add(1)
		}
	}), func(c *semelhttp.Config) { c.MaxResult = 250 })
	w := &slowWriter{httptest.NewRecorder(), make(chan int), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ServeHTTP(w, newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}"))
	}()
	// First what was kept in memory, then write by write.
	for i, want := range []int{200, 100, 100, 100} {
		if got := <-w.writing; got != want {
			t.Errorf("write %d is of %d bytes; want %d", i, got, want)
		}
		if got, want := int(written.Load()), 2+max(i-1, 0); got != want {
			t.Errorf("during write %d the handler has finished %d; want %d", i, got, want)
		}
		w.take <- struct{}{}
	}
	<-done
	if w.Body.Len() != 500 {
		t.Errorf("%d bytes were sent", w.Body.Len())
	}
}

// A stream whose tombstone cannot be recorded must not look whole.
func TestTombstoneThatCannotBeRecorded(t *testing.T) {
	for name, header := range map[string]http.Header{
		"too large":                {"Content-Type": {"text/plain"}},
		"too large, of its length": {"Content-Type": {"text/plain"}, "Content-Length": {"1000"}},
		"event stream":             {"Content-Type": {"text/event-stream"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				b.hooks.complete = func(semel.Result) error { return errors.New("disk full") }
				h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					effects.add()
					maps.Copy(w.Header(), header)
					for range 10 {
						if n, err := w.Write(make([]byte, 100)); n != 100 || err != nil {
							t.Errorf("Write gave %d, %v", n, err)
						}
						w.(http.Flusher).Flush()
					}
				}), func(c *semelhttp.Config) { c.MaxResult = 250 })
				w := httptest.NewRecorder()
				func() {
					defer func() {
						if v := recover(); v != http.ErrAbortHandler {
							t.Errorf("panicked with %v", v)
						}
					}()
					h.ServeHTTP(w, newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}"))
				}()
				if header.Get("Content-Length") != "" && w.Body.Len() >= 1000 {
					t.Error("the client has every byte, and will take it for an answer")
				}
				time.Sleep(time.Minute)
				direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
				effects.want(t, 1)
			})
		})
	}
}

// The same for an answer that is kept: the record may still come to say how it
// ended, so nobody is sent to an operator.
func TestResultThatCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		b.hooks.complete = func(semel.Result) error { return errors.New("disk full") }
		a := direct(t, b.protect(t, effects), "k", "{}")
		if p := a.want(t, semelhttp.ProblemStoreUnavailable); !strings.Contains(p.Detail, "Keep the key") || strings.Contains(p.Detail, "not executed") {
			t.Errorf("told %q", p.Detail)
		}
		if a.header.Get("Location") != "" {
			t.Errorf("got %v", a.header)
		}
		effects.want(t, 1)
	})
}

// A claim that was lost answers with what the winner recorded, not with its own.
func TestLostClaimAnswersFromTheRecord(t *testing.T) {
	for _, large := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newFixture(t)
			b.hooks.renew = func() error { return errors.New("cut off from the store") }
			h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done() // the lease has lapsed, and somebody settles the record
				time.Sleep(time.Second)
				x, _ := semel.CurrentExecution(r.Context())
				res, err := semelhttp.EncodeResult(http.MethodPost, http.StatusAccepted, http.Header{"X-From": {"resolution"}}, nil, []byte("resolved"))
				if err != nil {
					t.Error(err)
				}
				for _, d := range []semel.Decision{semel.DecideUnknown, semel.DecideResult} {
					if _, err := b.store.Resolve(t.Context(), semel.Resolution{Identity: x.Identity(), Fence: x.Fence(), Decision: d, Result: res}); err != nil {
						t.Error(err)
					}
				}
				w.WriteHeader(http.StatusCreated)
				if large {
					_, _ = w.Write(make([]byte, 1000))
				}
				_, _ = io.WriteString(w, "mine")
			}), func(c *semelhttp.Config) { c.MaxResult = 100 })
			if large {
				// Part of another answer has left.
				func() {
					defer func() {
						if v := recover(); v != http.ErrAbortHandler {
							t.Errorf("panicked with %v", v)
						}
					}()
					direct(t, h, "k", "{}")
				}()
				return
			}
			a := direct(t, h, "k", "{}")
			if a.status != http.StatusAccepted || a.body != "resolved" || a.header.Get("X-From") != "resolution" || !a.replayed() {
				t.Errorf("large %v: got %d %v %q", large, a.status, a.header, a.body)
			}
		})
	}
}

// A panic leaves the outcome unknown, and goes its way like any handler's: to
// the middleware around, and to the server, which ends the connection.
func TestPanic(t *testing.T) {
	for _, value := range []any{"boom", http.ErrAbortHandler} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, http2=%v", value, http2), func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					effects.add()
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, "half of it")
					panic(value)
				}))
				seen := make(chan any, 2)
				s, logged := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer func() {
						if v := recover(); v != nil {
							seen <- v
							panic(v)
						}
					}()
					protected.ServeHTTP(w, r)
				}), http2)
				if a, err := send(s.Client(), newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")); err == nil {
					t.Errorf("the client got %+v", a)
				}
				if v := <-seen; v != value {
					t.Errorf("middleware around saw %v", v)
				}
				post(t, s, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
				effects.want(t, 1)
				s.Close()
				if l := logged.String(); !http2 && strings.Contains(l, "boom") != (value == "boom") {
					t.Errorf("the server logged %q", l)
				}
				records, err := b.store.List(t.Context(), unknownOnly)
				if err != nil || len(records) != 1 || records[0].Cause != "the handler panicked" {
					t.Errorf("got %+v, %v", records, err)
				}
			})
		}
	}
}

// A middleware around that recovers must not have a stream that broke off look
// whole.
func TestRecoverAroundDoesNotMendAStream(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		b := newFixture(t)
		protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			panic("boom")
		}))
		s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { _ = recover() }()
			protected.ServeHTTP(w, r)
		}), http2)
		if a, err := send(s.Client(), newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")); err == nil && a.err == nil {
			t.Errorf("http2 %v: the client took %q for the whole answer", http2, a.body)
		}
		post(t, s, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
	}
}

// A middleware around that answers for a panic answers the client, too.
func TestRecoverAroundAnswersForAPanic(t *testing.T) {
	b := newFixture(t)
	protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Half", "done")
		panic("boom")
	}))
	s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				http.Error(w, "sorry", http.StatusInternalServerError)
			}
		}()
		protected.ServeHTTP(w, r)
	}), false)
	if a := post(t, s, "k", "{}"); a.status != http.StatusInternalServerError || a.body != "sorry\n" || a.header.Get("X-Half") != "" {
		t.Errorf("got %d %q %v", a.status, a.body, a.header)
	}
	post(t, s, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
}

func TestPanicAfterDeclaringNoEffectIsUnknown(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		semelhttp.DeclareNoEffect(r.Context(), nil)
		panic("boom")
	}))
	func() {
		defer func() { _ = recover() }()
		direct(t, h, "k", "{}")
	}()
	direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
}

func TestGoexit(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		effects.add()
		runtime.Goexit()
	})), false)
	if a, err := send(s.Client(), newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")); err == nil {
		t.Errorf("the client got %+v", a)
	}
	post(t, s, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
	effects.want(t, 1)
}

// A body that was cut off must not look whole, whoever cut it.
func TestStreamThatBreaksOffIsSeenToBreak(t *testing.T) {
	for name, end := range map[string]func(w http.ResponseWriter){
		"panic": func(http.ResponseWriter) { panic("boom") },
		"abort": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"short": nil,
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,http2=%v", name, http2), func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					effects.add()
					if end == nil {
						w.Header().Set("Content-Length", "1000")
					}
					for range 5 {
						_, _ = w.Write(make([]byte, 100))
						w.(http.Flusher).Flush()
					}
					if end != nil {
						end(w)
					}
				}), func(c *semelhttp.Config) { c.MaxResult = 250 }), http2)
				a := post(t, s, "k", "{}")
				if a.err == nil || a.status != http.StatusOK {
					t.Errorf("got %d and %d bytes that look whole", a.status, len(a.body))
				}
				post(t, s, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
				effects.want(t, 1)
			})
		}
	}
}

// Over HTTP/2 nobody else would notice.
func TestShortStreamAborts(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write(make([]byte, 500))
	}), func(c *semelhttp.Config) { c.MaxResult = 100 })
	defer func() {
		if v := recover(); v != http.ErrAbortHandler {
			t.Errorf("panicked with %v", v)
		}
	}()
	direct(t, h, "k", "{}")
}

// What a handler leaves running must not touch the record.
func TestWritesAfterTheHandlerReturned(t *testing.T) {
	b := newFixture(t)
	var late http.ResponseWriter
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "in time")
		late = w
	}))
	first := direct(t, h, "k", "{}")
	if n, err := io.WriteString(late, "too late"); n != 0 || err == nil {
		t.Errorf("Write gave %d, %v", n, err)
	}
	if err := http.NewResponseController(late).Flush(); err == nil {
		t.Error("Flush gave no error")
	}
	late.WriteHeader(http.StatusTeapot)
	if second := direct(t, h, "k", "{}"); first.body != "in time" || second.body != "in time" || second.status != http.StatusOK {
		t.Errorf("got %q, then %d %q", first.body, second.status, second.body)
	}
}

func TestInvalidStatusPanicsLikeNetHTTP(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(99) }))
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
	}()
	direct(t, h, "k", "{}")
}

// A transaction that was rolled back at its commit: what the handler answered
// did not come true, so the client must not see it.
func TestRolledBackIsNotAnsweredAsDone(t *testing.T) {
	b := newFixture(t)
	b.hooks.complete = func(semel.Result) error { return semel.ErrRolledBack }
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "created")
	}))
	a := direct(t, h, "k", "{}")
	if p := a.problem(t); a.status != http.StatusServiceUnavailable || p.Type != semelhttp.ProblemRolledBack.Type() || p.Retry != semel.RetrySameKey || a.header.Get("Retry-After") == "" {
		t.Fatalf("got %d %v %q", a.status, a.header, a.body)
	}
}

// Where the policy lets the next submit settle an unknown outcome, the client is
// told so.
func TestUnknownUnderRetryAdvisesTheSameKey(t *testing.T) {
	for _, policy := range []semel.CrashPolicy{semel.CrashHold, semel.CrashRetry} {
		b := newFixture(t, func(c *semel.Config) { c.Policy.OnCrash = policy })
		h := b.protect(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			semelhttp.DeclareIndeterminate(r.Context(), "cut off")
		}))
		want := map[semel.CrashPolicy]semel.RetryAdvice{semel.CrashHold: semel.RetryAfterResolution, semel.CrashRetry: semel.RetrySameKey}[policy]
		a := direct(t, h, "k", "{}")
		if p := a.problem(t); a.status != http.StatusInternalServerError || p.Retry != want || (a.header.Get("Retry-After") != "") != (policy == semel.CrashRetry) {
			t.Errorf("%v: got %d %v %q", policy, a.status, a.header, a.body)
		}
	}
}

// A recorded failure must not commit half an effect: stores that hold the claim
// in a transaction are told which answers keep what the handler changed.
func TestFailedAnswersAreToldToTheStore(t *testing.T) {
	for _, tc := range []struct {
		status int
		size   int
		commit func(int) bool
		failed bool
	}{
		{201, 10, nil, false},
		{304, 0, nil, false},
		{402, 10, nil, true},
		{500, 10, nil, true},
		{500, 1000, nil, true}, // over MaxResult: a tombstone
		{402, 10, func(status int) bool { return status == 402 }, false},
		{201, 10, func(status int) bool { return status == 402 }, true},
	} {
		b := newFixture(t)
		var got []bool
		b.hooks.completed = func(r semel.Result) { got = append(got, r.Failed) }
		h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(tc.status)
			if tc.size > 0 {
				_, _ = w.Write(make([]byte, tc.size))
			}
		}), func(c *semelhttp.Config) { c.MaxResult, c.CommitStatus = 100, tc.commit })
		direct(t, h, "k", "{}")
		if len(got) != 1 || got[0] != tc.failed {
			t.Errorf("%d with %d bytes: the store is told failed %v; want %v", tc.status, tc.size, got, tc.failed)
		}
	}
}
