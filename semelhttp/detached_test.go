package semelhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
