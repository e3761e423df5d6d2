package semelhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

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
