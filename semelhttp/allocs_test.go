//go:build !race

package semelhttp_test

import (
	"math"
	"net/http"
	"strconv"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// What protection may cost in allocations, on the memory store and with a handler
// that makes some itself: a little above what it does, so that a change that costs more
// is seen.
func TestAllocations(t *testing.T) {
	h := newFixture(t).protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":1}`))
	}), func(c *semelhttp.Config) {
		c.Scope = func(*http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: "alice", Operation: "orders.create"}, nil
		}
	})
	w := &nullWriter{header: make(http.Header)}
	content := &body{}
	r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "")
	r.Body, r.ContentLength = content, 4
	n := 0
	for _, tc := range []struct {
		name string
		key  func() string
		most float64
	}{
		{"first", func() string { n++; return strconv.Itoa(n) }, 25},
		{"replay", func() string { return "again" }, 6},
	} {
		got := math.Inf(1)
		for range 5 { // the least counts: what else the process does is counted too
			got = min(got, testing.AllocsPerRun(500, func() {
				content.Reset("body")
				clear(w.header)
				r.Header[semelhttp.HeaderKey][0] = tc.key()
				h.ServeHTTP(w, r)
			}))
		}
		if t.Logf("%s: %v allocations", tc.name, got); got > tc.most || w.status != http.StatusCreated {
			t.Errorf("%s: %v allocations for a %d; want %v at most", tc.name, got, w.status, tc.most)
		}
	}
}
