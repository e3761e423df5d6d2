// Package routertest has the tests that the adapters for web frameworks share.
package routertest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// NewProtect returns a middleware over a store of its own.
func NewProtect(t testing.TB, policy semel.Policy, scope func(*http.Request) (semel.Scope, error)) func(http.Handler) http.Handler {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{
		Guard: guard, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{Guard: guard, Scope: scope, Resources: resources})
	if err != nil {
		t.Fatal(err)
	}
	return protect
}

// Post returns a request. An empty key is none.
func Post(path, key, user, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("X-User", user)
	if key != "" {
		r.Header.Set(semelhttp.HeaderKey, key)
	}
	return r
}

// Do serves a request.
func Do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// DoPanic is Do for a handler that may panic.
func DoPanic(h http.Handler, r *http.Request) (w *httptest.ResponseRecorder, panicked any) {
	w = httptest.NewRecorder()
	defer func() { panicked = recover() }()
	h.ServeHTTP(w, r)
	return w, nil
}

// Check checks a response. An empty body stands for any.
func Check(t testing.TB, w *httptest.ResponseRecorder, status int, body string, replayed bool) {
	t.Helper()
	if got := strings.TrimSpace(w.Body.String()); w.Code != status || body != "" && got != body {
		t.Errorf("the response is %d %q, want %d %q", w.Code, got, status, body)
	}
	if got := w.Header().Get(semelhttp.HeaderReplayed) == "true"; got != replayed {
		t.Errorf("replayed: %v, want %v", got, replayed)
	}
}

// Response is what a client sees.
type Response struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Body    string
	Err     error // of reading the body
}

// Send sends a request with the key "k" unless the header has another.
func Send(t testing.TB, server *httptest.Server, path string, header map[string]string) Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(semelhttp.HeaderKey, "k")
	for name, value := range header {
		if r.Header.Set(name, value); value == "" {
			r.Header.Del(name)
		}
	}
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if len(body) > 0 && resp.Header.Get("Content-Encoding") == "gzip" {
		z, zerr := gzip.NewReader(bytes.NewReader(body))
		if zerr != nil {
			t.Fatalf("%v of %q", zerr, body)
		}
		if body, zerr = io.ReadAll(z); zerr != nil {
			err = zerr
		}
	}
	return Response{resp.StatusCode, resp.Header, resp.Trailer, string(body), err}
}

// Shop is a router for ClientGone.
type Shop struct {
	// Router serves POST /orders/{id}/pay/{with}. Its handler calls Pay.
	Router http.Handler
	// Body is what the handler answers with, made of what it gets from its
	// framework after Pay.
	Body func(id, with, user string) string
	// ByPath says that the path is the operation, and not the route.
	ByPath bool
}

// ClientGone has a client go away, or not wait, while thousands of others take
// the framework's contexts and give them back. The handler keeps its own until it
// returns, and only then is the request over.
//
// The handler calls pay, and what stands in front calls over when what is behind
// has returned, with whether the query has "slow".
func ClientGone(t *testing.T, newShop func(t *testing.T, pay, over func(slow bool)) Shop) {
	for _, prefer := range []string{"", "respond-async"} {
		t.Run("prefer "+prefer, func(t *testing.T) {
			var (
				entered, proceed = make(chan struct{}), make(chan struct{})
				effects, ended   atomic.Int64
			)
			shop := newShop(t, func(slow bool) {
				if slow {
					close(entered)
					<-proceed
					effects.Add(1)
				}
			}, func(slow bool) {
				if slow && ended.Add(1) == 1 && effects.Load() != 1 {
					t.Error("the request was over before its handler")
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			mine := func() *http.Request {
				r := Post("/orders/mine/pay/card?slow=1", "k", "ann", "").WithContext(ctx)
				if prefer != "" {
					r.Header.Set("Prefer", prefer)
				}
				return r
			}
			var all sync.WaitGroup
			all.Go(func() { Do(shop.Router, mine()) })
			<-entered
			if prefer == "" {
				cancel()
			}
			for g := range 8 {
				all.Go(func() {
					for i := range 500 {
						id := fmt.Sprint("other", i)
						w := Do(shop.Router, Post("/orders/"+id+"/pay/cash", fmt.Sprintf("k-%d-%d", g, i/2), "eve", ""))
						if i%2 == 1 && !shop.ByPath { // a key that was used for another order
							Check(t, w, http.StatusUnprocessableEntity, "", false)
						} else {
							Check(t, w, http.StatusOK, shop.Body(id, "cash", "eve"), false)
						}
						if i == 250 && g == 0 {
							close(proceed) // in the midst of them
						}
					}
				})
			}
			all.Wait()
			ctx = t.Context()
			again := mine()
			again.Header.Set("Prefer", "wait=30")
			Check(t, Do(shop.Router, again), http.StatusOK, shop.Body("mine", "card", "ann"), true)
			if n := effects.Load(); n != 1 {
				t.Errorf("%d effects, want 1", n)
			}
		})
	}
}

// Panic has the handler of POST / panic with the framework's Recover in front of
// the adapter, behind it, on both sides or on none. The handler calls handle.
func Panic(t *testing.T, newRouter func(t *testing.T, front, behind bool, handle func()) http.Handler) {
	for _, tt := range []struct {
		name          string
		front, behind bool
		status, again int
	}{
		{"no Recover", false, false, http.StatusOK, http.StatusConflict}, // 200 is what nothing looks like to httptest
		{"Recover in front", true, false, http.StatusInternalServerError, http.StatusConflict},
		{"Recover behind", false, true, http.StatusInternalServerError, http.StatusInternalServerError},
		{"Recover on both sides", true, true, http.StatusInternalServerError, http.StatusInternalServerError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			effects := 0
			router := newRouter(t, tt.front, tt.behind, func() {
				effects++
				panic("half way")
			})
			w, panicked := DoPanic(router, Post("/", "k", "", ""))
			if ends := tt.front || tt.behind; ends && panicked != nil || !ends && panicked != "half way" {
				t.Errorf("the router panicked with %v, want a panic: %v", panicked, !ends)
			}
			Check(t, w, tt.status, "", false)
			Check(t, Do(router, Post("/", "k", "", "")), tt.again, "", tt.again == tt.status)
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
	}
}

// BrokenStream checks that a response that has begun does not look whole to the
// client if its handler breaks, even if the framework's Recover is in front. The
// handler of POST / begins an event stream, flushes it and calls breaks. Without
// a key it ends as it does without the adapter: whole if ends has the name.
func BrokenStream(t *testing.T, ends []string, newRouter func(t *testing.T, breaks func(*http.Request)) http.Handler) {
	breaks := map[string]func(*http.Request){
		"panic":         func(*http.Request) { panic("half way") },
		"aborted":       func(*http.Request) { panic(http.ErrAbortHandler) },
		"indeterminate": func(r *http.Request) { semelhttp.DeclareIndeterminate(r.Context(), "cut off") },
	}
	for name, breaks := range breaks {
		for _, proto := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " over HTTP/", proto), func(t *testing.T) {
				server := httptest.NewUnstartedServer(newRouter(t, breaks))
				server.Config.ErrorLog = log.New(io.Discard, "", 0)
				server.EnableHTTP2 = proto == 2
				server.StartTLS()
				defer server.Close()
				if a := Send(t, server, "/", nil); a.Err == nil || a.Status != http.StatusOK {
					t.Errorf("the client read %q of %d and saw no error", a.Body, a.Status)
				}
				if again := Send(t, server, "/", nil); again.Status != http.StatusConflict {
					t.Errorf("the repetition is answered with %d, want 409", again.Status)
				}
				unprotected := Send(t, server, "/", map[string]string{semelhttp.HeaderKey: ""})
				if slices.Contains(ends, name) && unprotected.Err != nil {
					t.Errorf("without a key the response ends with %v, which it does not without the adapter", unprotected.Err)
				}
			})
		}
	}
}

// Middlewares checks that a replay equals the first response as a client sees it,
// whatever stands in front of the adapter and behind it, apart from what those in
// front say of the request at hand. Each path is a handler of the router.
func Middlewares[M any](t *testing.T, all map[string]M, paths []string, newRouter func(t *testing.T, front, behind []M) http.Handler) {
	names := slices.Sorted(maps.Keys(all))
	chains := map[string][]M{}
	for _, name := range names {
		chains[name] = []M{all[name]}
		chains["all"] = append(chains["all"], all[name])
	}
	for _, place := range []string{"front", "behind", "both"} {
		for name, chain := range chains {
			t.Run(name+" "+place, func(t *testing.T) {
				var front, behind []M
				if place != "behind" {
					front = chain
				}
				if place != "front" {
					behind = chain
				}
				server := httptest.NewServer(newRouter(t, front, behind))
				defer server.Close()
				for _, path := range paths {
					header := map[string]string{
						"X-User": "ann", "Accept-Encoding": "gzip", "Origin": "https://a.example", "X-Request-Id": "1",
					}
					first, again := Send(t, server, path, header), Send(t, server, path, header)
					if first.Header.Get(semelhttp.HeaderReplayed) != "" || again.Header.Get(semelhttp.HeaderReplayed) != "true" {
						t.Fatalf("%s: not one executed and one replayed: %v, %v", path, first, again)
					}
					for _, a := range []Response{first, again} {
						a.Header.Del("Date")
						a.Header.Del(semelhttp.HeaderReplayed)
					}
					if fmt.Sprint(first) != fmt.Sprint(again) || first.Err != nil {
						t.Errorf("%s: the first response is\n%v, the replay\n%v", path, first, again)
					}
					header["X-Request-Id"], header["Origin"] = "2", "https://b.example"
					later := Send(t, server, path, header)
					if id := later.Header.Get("X-Request-Id"); id != "" && (id == "2") != (place != "behind") {
						t.Errorf("%s: the replay's request id is %q", path, id)
					}
					if later.Body != first.Body || later.Status != first.Status {
						t.Errorf("%s: for another request the replay is %v, not %v", path, later, first)
					}
				}
			})
		}
	}
}
