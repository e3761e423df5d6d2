package semelhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/semelhq/semel/semelhttp"
)

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

// If a middleware around this one responds to a panic, the client gets that
// response.
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
