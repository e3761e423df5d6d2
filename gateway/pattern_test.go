package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/store/memory"
)

// TestRouterTellsThePattern: whoever measures around a router learns the route from
// the request, as from an http.ServeMux.
func TestRouterTellsThePattern(t *testing.T) {
	upstream := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(upstream.Close)
	u, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Upstream: u, Guard: guard, NoResources: true})
	if err != nil {
		t.Fatal(err)
	}
	router, err := gateway.NewRouter(gateway.RouterConfig{Routes: []gateway.Route{{Patterns: []string{"POST /users/{id}/orders"}, Gateway: g}}})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/users/42/orders": "POST /users/{id}/orders", "/elsewhere/42": ""} {
		r := httptest.NewRequest(http.MethodPost, path, nil)
		router.ServeHTTP(httptest.NewRecorder(), r)
		if r.Pattern != want {
			t.Errorf("%s: the pattern is %q, want %q", path, r.Pattern, want)
		}
	}
}
