package semelchi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/semelhq/semel"
	semelchi "github.com/semelhq/semel/adapter/chi"
	"github.com/semelhq/semel/internal/routertest"
)

func newOnce(t *testing.T) func(http.Handler) http.Handler {
	t.Helper()
	return semelchi.New(routertest.NewProtect(t, semel.Policy{}, func(r *http.Request) (semel.Scope, error) {
		return semel.Scope{Operation: semelchi.Route(r)}, nil
	}))
}

func post(path, key string) *http.Request { return routertest.Post(path, key, "", "") }

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
	routertest.Check(t, routertest.Do(router, post("/shops/a/orders/7", "k")), http.StatusOK, "a77", false)
	routertest.Check(t, routertest.Do(router, post("/shops/a/orders/7", "k")), http.StatusOK, "a77", true)
	routertest.Check(t, routertest.Do(router, post("/shops/a/orders/8", "k")), http.StatusUnprocessableEntity, "", false)
	if operation != "POST /shops/{shop}/orders/{id}" {
		t.Errorf("the operation is %q", operation)
	}
	if got := semelchi.Route(post("/", "")); got != "" {
		t.Errorf("a request without a route has the route %q", got)
	}
}

// TestRouteOutlivesRequest: chi gives its routing context to other requests, and
// the handler still sees its own.
func TestRouteOutlivesRequest(t *testing.T) {
	for _, use := range []string{"With", "Use"} { // behind the routing and in front of it
		t.Run(use, func(t *testing.T) {
			routertest.ClientGone(t, func(t *testing.T, pay, over func(slow bool)) routertest.Shop {
				router := chi.NewRouter()
				router.Use(func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						next.ServeHTTP(w, r)
						over(r.URL.Query().Has("slow") && r.Header.Get("Prefer") == "") // who prefers not to wait does not
					})
				})
				var to chi.Router = router
				if use == "Use" {
					router.Use(newOnce(t))
				} else {
					to = router.With(newOnce(t))
				}
				to.Post("/orders/{id}/pay/{with}", func(w http.ResponseWriter, r *http.Request) {
					pay(r.URL.Query().Has("slow"))
					_, _ = fmt.Fprint(w, chi.URLParam(r, "id"), " ", chi.URLParam(r, "with"), " ", r.PathValue("id"), " ",
						chi.RouteContext(r.Context()).RoutePattern())
				})
				return routertest.Shop{Router: router, ByPath: use == "Use", Body: func(id, with, _ string) string {
					return id + " " + with + " " + id + " /orders/{id}/pay/{with}"
				}}
			})
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
		routertest.Check(t, routertest.Do(router, post("/orders/7", key)), http.StatusOK, "", false)
		if pattern != "POST /orders/{id}" {
			t.Errorf("with the key %q, the route in front is %q", key, pattern)
		}
	}
}

func TestMiddleware(t *testing.T) {
	all := map[string]func(http.Handler) http.Handler{
		"recover": middleware.Recoverer, "request id": middleware.RequestID, "frames": middleware.SetHeader("X-Frame-Options", "DENY"),
		"compress": middleware.Compress(5), "slashes": middleware.StripSlashes,
	}
	routertest.Middlewares(t, all, []string{"/orders/7"}, func(t *testing.T, front, behind []func(http.Handler) http.Handler) http.Handler {
		effects := 0
		router := chi.NewRouter()
		router.Use(slices.Concat(front, []func(http.Handler) http.Handler{newOnce(t)}, behind)...)
		router.Post("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
			effects++
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprint(w, effects, chi.URLParam(r, "id"), strings.Repeat(" long", 1000))
		})
		return router
	})
}
