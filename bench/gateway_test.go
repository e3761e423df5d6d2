package bench

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/store/sqlite"
)

const connections = 64

// BenchmarkGateway counts requests through the gateway, first-time and
// replayed, beside a bare httputil.ReverseProxy before the same upstream.
// Client, proxy and upstream share the machine.
func BenchmarkGateway(b *testing.B) {
	answer := `{"id":1,"item":"` + strings.Repeat("x", 150) + `","quantity":1}`
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	}))
	defer upstream.Close()
	target, _ := url.Parse(upstream.URL)

	bare := &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(target); p.SetXForwarded() },
		Transport: &http.Transport{MaxIdleConnsPerHost: connections * 2},
	}
	b.Run("bare", func(b *testing.B) { load(b, bare, func(int64) string { return "" }) })
	for _, name := range []string{"sqlite", "memory"} {
		for _, replayed := range []bool{false, true} {
			kind := map[bool]string{false: "first", true: "replay"}[replayed]
			b.Run(name+"/"+kind, func(b *testing.B) {
				guard, err := semel.New(semel.Config{Store: openStore(b, name)})
				if err != nil {
					b.Fatal(err)
				}
				gw, err := gateway.New(gateway.Config{Upstream: target, Guard: guard})
				if err != nil {
					b.Fatal(err)
				}
				load(b, gw, func(i int64) string {
					if replayed {
						i = -(max(i, -i) % 1000)
					}
					return fmt.Sprintf(`"8e03978e-40d5-43e8-bc93-%012d"`, i)
				})
			})
		}
	}
}

func openStore(b *testing.B, name string) semel.Store {
	b.Helper()
	if name == "memory" {
		s, err := memory.New(memory.Config{MaxRecords: 10_000_000})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// load sends b.N posts over so many connections.
func load(b *testing.B, h http.Handler, key func(i int64) string) {
	server := httptest.NewServer(h)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections * 2}}
	defer client.CloseIdleConnections()
	send := func(i int64) error {
		r, err := http.NewRequest("POST", server.URL+"/orders", strings.NewReader(`{"item":"book","quantity":1}`))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer 0123456789abcdef")
		if k := key(i); k != "" {
			r.Header.Set("Idempotency-Key", k)
		}
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err == nil && resp.StatusCode != http.StatusCreated {
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		return err
	}
	// One after the other: connections are warm, and what is to be replayed is
	// on record.
	for i := range int64(1000) {
		if err := send(-i); err != nil {
			b.Fatal(err)
		}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	for range connections {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := send(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "req/s")
}
