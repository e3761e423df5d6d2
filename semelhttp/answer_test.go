package semelhttp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

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
