package semelchi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/semelhq/semel"
	semelchi "github.com/semelhq/semel/adapter/chi"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func newOnce(t *testing.T, store semel.Store) (func(http.Handler) http.Handler, *semel.Guard) {
	t.Helper()
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	protect, err := semelhttp.New(semelhttp.Config{Guard: guard, Scope: func(r *http.Request) (semel.Scope, error) {
		return semel.Scope{Operation: semelchi.Route(r)}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return semelchi.New(protect), guard
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
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	once, _ := newOnce(t, store)
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

// TestRouteOutlivesRequest: the client goes away, chi gives its routing context
// to thousands of other requests, and the handler still sees its own.
func TestRouteOutlivesRequest(t *testing.T) {
	for _, use := range []string{"With", "Use"} { // behind the routing and in front of it
		t.Run(use, func(t *testing.T) {
			store, err := memory.New(memory.Config{})
			if err != nil {
				t.Fatal(err)
			}
			once, guard := newOnce(t, store)
			var (
				entered, left = make(chan struct{}), make(chan struct{})
				proceed       = make(chan struct{})
				effects       atomic.Int64
			)
			routes := func(once func(http.Handler) http.Handler) http.Handler {
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
					_, _ = fmt.Fprint(w, chi.URLParam(r, "id"), " ", chi.URLParam(r, "with"), " ", chi.RouteContext(r.Context()).RoutePattern())
				})
				return router
			}
			router := routes(once)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				defer close(left)
				do(router, post("/orders/mine/pay/card?slow", "k").WithContext(ctx))
			}()
			<-entered
			cancel()
			<-left

			var others sync.WaitGroup
			for g := range 8 {
				others.Go(func() {
					for i := range 500 {
						w := do(router, post(fmt.Sprintf("/orders/other%d/pay/cash", i), fmt.Sprintf("k-%d-%d", g, i)))
						if want := fmt.Sprintf("other%d cash /orders/{id}/pay/{with}", i); w.Body.String() != want {
							t.Errorf("answer is %d %q, want %q", w.Code, w.Body, want)
						}
						if i == 250 && g == 0 {
							close(proceed) // in the midst of them
						}
					}
				})
			}
			others.Wait()
			if err := guard.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			once, _ = newOnce(t, store)
			check(t, do(routes(once), post("/orders/mine/pay/card?slow", "k")), http.StatusOK, "mine card /orders/{id}/pay/{with}", true)
			if n := effects.Load(); n != 1 {
				t.Errorf("%d effects, want 1", n)
			}
		})
	}
}
