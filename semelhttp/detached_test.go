package semelhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// Bug 15: a client that goes away neither stops the work nor loses its record.
func TestBug15ClientDisconnect(t *testing.T) {
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
				// All of this after the server took the request away.
				body, err := io.ReadAll(r.Body)
				if string(body) != `{"item":"book"}` || err != nil || r.Header.Get("Actor") != "alice" || r.Header.Get("X-Outer") != "" {
					t.Errorf("the handler saw %q, %v, %v", body, err, r.Header)
				}
				effects.ServeHTTP(w, r)
			}))
			var once atomic.Bool
			s, logged := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				protected.ServeHTTP(w, r)
				r.Header.Set("X-Outer", "its own business") // a race if it were shared
				if once.CompareAndSwap(false, true) {
					close(served)
				}
			}), http2)

			ctx, cancel := context.WithCancel(t.Context())
			r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", `{"item":"book"}`)
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
			<-served
			post(t, s, "k", `{"item":"book"}`).want(t, semelhttp.ProblemInProgress)
			close(goOn)
			<-recorded
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

// The client may be gone, and the request with it, before the handler starts.
func TestHandlerStartsAfterTheServerHasLeft(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	claimed, goOn, recorded := make(chan struct{}), make(chan struct{}), make(chan struct{})
	b.hooks.context = func() { close(claimed); <-goOn }
	b.hooks.completed = func(semel.Result) { close(recorded) }
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) != "{}" || r.Header.Get("Actor") != "alice" || r.URL.Path != "/orders" {
			t.Errorf("the handler saw %q, %v, %v", body, r.Header, r.URL)
		}
		if _, ok := semel.CurrentExecution(r.Context()); !ok || r.Context().Err() != nil {
			t.Error("the handler's context is not that of the execution")
		}
		effects.ServeHTTP(w, r)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-claimed; cancel() }()
	r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}").WithContext(ctx)
	directRequest(h, r).want(t, semelhttp.ProblemInProgress)
	r.Header.Set("Actor", "mallory")
	r.URL.Path = "/elsewhere"
	close(goOn)
	<-recorded
	effects.want(t, 1)
}

// Rule 5: at the deadline the outcome is unknown to the client; the handler's
// result still counts when it comes.
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
		direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
		direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
		time.Sleep(time.Minute)
		if a := direct(t, h, "k", "{}"); a.status != http.StatusCreated || !a.replayed() {
			t.Errorf("got %d %s", a.status, a.body)
		}
		effects.want(t, 1)
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

// Rule 5: no byte of a result leaves before its record or tombstone is durable.
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
				if w.left.Load() {
					t.Error("something left before the record")
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

// Bugs 21, 22 and 24: too large to be kept is passed on whole, never executed
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
				if a.err != nil || a.status != http.StatusCreated || a.body != whole || a.header.Get(semelhttp.HeaderExpires) == "" ||
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
			if resp.StatusCode != http.StatusOK || resp.Header.Get(semelhttp.HeaderExpires) == "" {
				t.Errorf("got %d %v", resp.StatusCode, resp.Header)
			}
			post(t, s, "k", "{}").want(t, semelhttp.ProblemResultNotRetained) // on record already
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
		})
	}
}

// Nobody reads an event stream any more: it would go on for ever.
func TestEventStreamIsCancelledWithItsClient(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			b := newFixture(t)
			ended := make(chan error, 1)
			s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: 1\n")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				_, err := io.WriteString(w, "data: 2\n")
				ended <- err
			})), http2)
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
			if err := <-ended; err == nil {
				t.Error("the handler could write to nobody")
			}
			post(t, s, "k", "{}").want(t, semelhttp.ProblemResultNotRetained)
		})
	}
}

// The client can have left before the stream begins.
func TestEventStreamForNobody(t *testing.T) {
	b := newFixture(t)
	started, goOn, recorded, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	b.hooks.completed = func(semel.Result) { close(recorded) }
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(started)
		<-goOn
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	directRequest(h, newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}").WithContext(ctx)).want(t, semelhttp.ProblemInProgress)
	close(goOn)
	<-recorded
	<-ended
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

// Without a tombstone nothing of the answer may leave.
func TestTombstoneThatCannotBeRecorded(t *testing.T) {
	for name, contentType := range map[string]string{"too large": "text/plain", "event stream": "text/event-stream"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				b.hooks.complete = func(semel.Result) error { return errors.New("disk full") }
				h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					effects.add()
					w.Header().Set("Content-Type", contentType)
					for range 10 {
						if n, err := w.Write(make([]byte, 100)); n != 100 || err != nil {
							t.Errorf("Write gave %d, %v", n, err)
						}
						w.(http.Flusher).Flush()
					}
				}), func(c *semelhttp.Config) { c.MaxResult = 250 })
				direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
				time.Sleep(time.Minute)
				direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
				effects.want(t, 1)
			})
		})
	}
}

// The same for an answer that is kept: rule 5's "outcome unknown, same key".
func TestResultThatCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		b.hooks.complete = func(semel.Result) error { return errors.New("disk full") }
		a := direct(t, b.protect(t, effects), "k", "{}")
		a.want(t, semelhttp.ProblemOutcomeUnknown)
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
			a := direct(t, h, "k", "{}")
			if a.status != http.StatusAccepted || a.body != "resolved" || a.header.Get("X-From") != "resolution" || !a.replayed() {
				t.Errorf("large %v: got %d %v %q", large, a.status, a.header, a.body)
			}
		})
	}
}

// A panic leaves the outcome unknown, is told to the client in full, and goes on
// in the server's goroutine.
func TestPanic(t *testing.T) {
	for _, value := range []any{"boom", http.ErrAbortHandler} {
		t.Run(fmt.Sprint(value), func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				effects.add()
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, "half of it")
				panic(value)
			}))
			var seen any
			s, logged := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if v := recover(); v != nil {
						seen = v
						panic(v)
					}
				}()
				protected.ServeHTTP(w, r)
			}), false)
			a := post(t, s, "k", "{}")
			if a.err != nil || !a.close {
				t.Errorf("the answer is not whole (%v), or does not say that the connection will be closed", a.err)
			}
			a.want(t, semelhttp.ProblemOutcomeUnknown)
			a = post(t, s, "k", "{}")
			a.want(t, semelhttp.ProblemOutcomeUnknown)
			effects.want(t, 1)
			s.Close()
			if seen != value {
				t.Errorf("middleware around saw %v", seen)
			}
			if l := logged.String(); strings.Contains(l, "boom") != (value == "boom") {
				t.Errorf("the server logged %q", l)
			}
			records, err := b.store.List(t.Context(), unknownOnly)
			if err != nil || len(records) != 1 || records[0].Cause != "the handler panicked" {
				t.Errorf("got %+v, %v", records, err)
			}
		})
	}
}

// Over HTTP/2 a panic resets the stream, so the client's reader ends in an error;
// but it has been told everything before.
func TestPanicOverHTTP2(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	protected := b.protect(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		effects.add()
		panic("boom")
	}))
	seen := make(chan any, 2)
	s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			seen <- v
			if v != nil {
				panic(v)
			}
		}()
		protected.ServeHTTP(w, r)
	}), true)
	post(t, s, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
	if v := <-seen; v != "boom" {
		t.Errorf("middleware around saw %v", v)
	}
	a := post(t, s, "k", "{}")
	if a.want(t, semelhttp.ProblemOutcomeUnknown); a.err != nil {
		t.Error(a.err)
	}
	effects.want(t, 1)
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
	h := b.protect(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		effects.add()
		runtime.Goexit()
	}))
	for range 2 {
		direct(t, h, "k", "{}").want(t, semelhttp.ProblemOutcomeUnknown)
	}
	effects.want(t, 1)
}

// A body that was cut off must not look whole, whoever cut it.
func TestStreamThatBreaksOffIsSeenToBreak(t *testing.T) {
	for name, end := range map[string]func(w http.ResponseWriter){
		"panic":  func(http.ResponseWriter) { panic("boom") },
		"abort":  func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"goexit": func(http.ResponseWriter) { runtime.Goexit() },
		"short":  nil,
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
				post(t, s, "k", "{}").want(t, semelhttp.ProblemResultNotRetained)
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

// A handler that settles its claim by itself is answered from the record, like
// everybody after it.
func TestHandlerThatCompletesItself(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter){
		"writing nothing":   func(http.ResponseWriter) {},
		"writing something": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "late") },
		"writing too much":  func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 1000)) },
	} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,waits=%v", name, waits), func(t *testing.T) {
				b := newFixture(t)
				answered := make(chan struct{})
				h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					x, _ := semel.CurrentExecution(r.Context())
					res, err := semelhttp.EncodeResult(r.Method, http.StatusAccepted, http.Header{"X-From": {"handler"}}, nil, []byte("early"))
					if err != nil {
						t.Error(err)
					}
					if err := x.Complete(res); err != nil {
						t.Error(err)
					}
					if waits {
						<-answered
					}
					write(w)
				}), func(c *semelhttp.Config) { c.MaxResult = 100 })
				first := direct(t, h, "k", "{}")
				close(answered)
				second := direct(t, h, "k", "{}")
				if err := b.guard.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				wantEqual(t, "replay", second, first, ownOrHop...)
				if first.status != http.StatusAccepted || first.body != "early" || first.replayed() || !second.replayed() {
					t.Errorf("got %d %q, replayed %v", first.status, first.body, first.replayed())
				}
			})
		}
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
	for _, policy := range []semel.CrashPolicy{semel.Hold, semel.Retry} {
		b := newFixture(t, func(c *semel.Config) { c.Policy.OnCrash = policy })
		h := b.protect(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			semelhttp.DeclareIndeterminate(r.Context(), "cut off")
		}))
		want := map[semel.CrashPolicy]semel.RetryAdvice{semel.Hold: semel.RetryAfterResolution, semel.Retry: semel.RetrySameKey}[policy]
		a := direct(t, h, "k", "{}")
		if p := a.problem(t); a.status != http.StatusConflict || p.Retry != want || (a.header.Get("Retry-After") != "") != (policy == semel.Retry) {
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

// The handler's request is the handler's alone from the moment it starts: a mux
// writes to it. For the race detector.
func TestClientLeavesWhileTheHandlerStarts(t *testing.T) {
	mux := http.NewServeMux()
	var served atomic.Int64
	mux.HandleFunc("POST /{things}", func(w http.ResponseWriter, r *http.Request) {
		r.Pattern, r.Header = "mine", nil
		served.Add(1)
	})
	b := newFixture(t)
	h := b.protect(t, mux)
	const n = 200
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		b.hooks.context = cancel
		directRequest(h, newRequest(t, http.MethodPost, "http://shop.example/orders", fmt.Sprint("k", i), "{}").WithContext(ctx))
	}
	if err := b.guard.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if served.Load() != n {
		t.Fatalf("%d of %d requests were served", served.Load(), n)
	}
}
