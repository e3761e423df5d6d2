package semelchi_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/semelhq/semel"
	semelchi "github.com/semelhq/semel/adapter/chi"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func newOnce(t *testing.T) func(http.Handler) http.Handler {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{
		Guard: guard, Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard:     guard,
		Scope:     func(r *http.Request) (semel.Scope, error) { return semel.Scope{Operation: semelchi.Route(r)}, nil },
		Resources: resources,
	})
	if err != nil {
		t.Fatal(err)
	}
	return semelchi.New(protect)
}

func post(path, key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, nil)
	if key != "" {
		r.Header.Set(semelhttp.HeaderKey, key)
	}
	return r
}

func do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func check(t *testing.T, w *httptest.ResponseRecorder, status int, body string, replayed bool) {
	t.Helper()
	if w.Code != status || body != "" && w.Body.String() != body {
		t.Errorf("answer is %d %q, want %d %q", w.Code, w.Body, status, body)
	}
	if got := w.Header().Get(semelhttp.HeaderReplayed) == "true"; got != replayed {
		t.Errorf("replayed: %v, want %v", got, replayed)
	}
}

// TestRoute: the operation is the route's pattern, through sub-routers too, and
// so a key of one order cannot be used for another.
func TestRoute(t *testing.T) {
	once := newOnce(t)
	router := chi.NewRouter()
	var operation string
	router.Route("/shops/{shop}", func(r chi.Router) {
		r.With(once).Post("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
			x, _ := semel.CurrentExecution(r.Context())
			operation = x.Identity().Operation
			_, _ = fmt.Fprint(w, chi.URLParam(r, "shop"), chi.URLParam(r, "id"), r.PathValue("id"))
		})
	})
	check(t, do(router, post("/shops/a/orders/7", "k")), http.StatusOK, "a77", false)
	check(t, do(router, post("/shops/a/orders/7", "k")), http.StatusOK, "a77", true)
	check(t, do(router, post("/shops/a/orders/8", "k")), http.StatusUnprocessableEntity, "", false)
	if operation != "POST /shops/{shop}/orders/{id}" {
		t.Errorf("the operation is %q", operation)
	}
	if got := semelchi.Route(post("/", "")); got != "" {
		t.Errorf("a request without a route has the route %q", got)
	}
}

// TestRouteOutlivesRequest: a client prefers not to wait and is answered, chi
// gives its routing context to thousands of other requests, and the handler still
// sees its own.
func TestRouteOutlivesRequest(t *testing.T) {
	for _, use := range []string{"With", "Use"} { // behind the routing and in front of it
		t.Run(use, func(t *testing.T) {
			once := newOnce(t)
			var (
				entered, proceed = make(chan struct{}), make(chan struct{})
				effects          atomic.Int64
			)
			router := chi.NewRouter()
			var to chi.Router = router
			if use == "Use" {
				router.Use(once)
			} else {
				to = router.With(once)
			}
			to.Post("/orders/{id}/pay/{with}", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Has("slow") {
					close(entered)
					<-proceed
					effects.Add(1)
				}
				_, _ = fmt.Fprint(w, chi.URLParam(r, "id"), " ", chi.URLParam(r, "with"), " ", r.PathValue("id"), " ",
					chi.RouteContext(r.Context()).RoutePattern())
			})
			mine := post("/orders/mine/pay/card?slow", "k")
			mine.Header.Set("Prefer", "respond-async")
			check(t, do(router, mine), http.StatusAccepted, "", false)
			<-entered

			var others sync.WaitGroup
			for g := range 8 {
				others.Go(func() {
					for i := range 500 {
						w := do(router, post(fmt.Sprintf("/orders/other%d/pay/cash", i), fmt.Sprintf("k-%d-%d", g, i)))
						if want := fmt.Sprintf("other%d cash other%d /orders/{id}/pay/{with}", i, i); w.Body.String() != want {
							t.Errorf("answer is %d %q, want %q", w.Code, w.Body, want)
						}
						if i == 250 && g == 0 {
							close(proceed) // in the midst of them
						}
					}
				})
			}
			others.Wait()
			again := post("/orders/mine/pay/card?slow", "k")
			again.Header.Set("Prefer", "wait=30")
			check(t, do(router, again), http.StatusOK, "mine card mine /orders/{id}/pay/{with}", true)
			if n := effects.Load(); n != 1 {
				t.Errorf("%d effects, want 1", n)
			}
		})
	}
}

// TestRouteInFront: who waits for the answer leaves the route where a middleware
// in front of everything finds it, as without the adapter.
func TestRouteInFront(t *testing.T) {
	for _, key := range []string{"", "k"} {
		once := newOnce(t)
		var pattern string
		router := chi.NewRouter()
		router.Use(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r)
				pattern = semelchi.Route(r)
			})
		}, once)
		router.Post("/orders/{id}", func(http.ResponseWriter, *http.Request) {})
		check(t, do(router, post("/orders/7", key)), http.StatusOK, "", false)
		if pattern != "POST /orders/{id}" {
			t.Errorf("with the key %q, the route in front is %q", key, pattern)
		}
	}
}

// TestMiddleware: with chi's own middlewares in front and behind, a replay equals
// the first answer as a client sees it.
func TestMiddleware(t *testing.T) {
	chain := chi.Middlewares{
		middleware.Recoverer, middleware.RequestID, middleware.SetHeader("X-Frame-Options", "DENY"), middleware.Compress(5), middleware.StripSlashes,
	}
	for _, place := range []string{"front", "behind", "both"} {
		t.Run(place, func(t *testing.T) {
			once := newOnce(t)
			effects := 0
			router := chi.NewRouter()
			if place != "behind" {
				router.Use(chain...)
			}
			router.Use(once)
			if place != "front" {
				router.Use(chain...)
			}
			router.Post("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
				effects++
				w.Header().Set("Content-Type", "text/plain")
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprint(w, chi.URLParam(r, "id"), strings.Repeat(" long", 1000))
			})
			server := httptest.NewServer(router)
			defer server.Close()
			send := func() (*http.Response, string) {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/orders/7/", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set(semelhttp.HeaderKey, "k")
				resp, err := server.Client().Do(r) // it asks for gzip
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
			first, body := send()
			again, replayed := send()
			if !first.Uncompressed || body != "7"+strings.Repeat(" long", 1000) || again.Header.Get(semelhttp.HeaderReplayed) != "true" {
				t.Errorf("the first answer is %v %q, the replay %v", first, body, again)
			}
			first.Header.Del("Date")
			again.Header.Del("Date")
			again.Header.Del(semelhttp.HeaderReplayed)
			if fmt.Sprint(first.StatusCode, first.Header, body) != fmt.Sprint(again.StatusCode, again.Header, replayed) {
				t.Errorf("the first answer is %v, the replay %v", first, again)
			}
			if effects != 1 {
				t.Errorf("%d effects, want 1", effects)
			}
		})
	}
}
