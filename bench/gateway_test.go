package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
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

// BenchmarkGateway counts requests through the gateway, unprotected, first-time
// and replayed, beside a bare httputil.ReverseProxy before the same upstream.
// Client, proxy and upstream share the machine.
func BenchmarkGateway(b *testing.B) {
	answer := `{"id":1,"item":"` + strings.Repeat("x", 150) + `","quantity":1}`
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	}))
	upstream.Config.Protocols = new(http.Protocols)
	upstream.Config.Protocols.SetHTTP1(true)
	upstream.Config.Protocols.SetUnencryptedHTTP2(true)
	upstream.Start()
	defer upstream.Close()
	target, _ := url.Parse(upstream.URL)

	bare := &httputil.ReverseProxy{
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(target); p.SetXForwarded() },
		Transport: &http.Transport{MaxIdleConnsPerHost: connections * 2},
	}
	unkeyed := func(int64) string { return "" }
	b.Run("bare", func(b *testing.B) { load(b, bare, unkeyed) })
	open := func(b *testing.B, store string, http2 bool) http.Handler {
		guard, err := semel.New(semel.Config{Store: openStore(b, store)})
		if err != nil {
			b.Fatal(err)
		}
		via, err := gateway.NewUpstream(gateway.UpstreamConfig{URL: target, HTTP2: http2})
		if err != nil {
			b.Fatal(err)
		}
		gw, err := gateway.New(gateway.Config{Via: via, Guard: guard})
		if err != nil {
			b.Fatal(err)
		}
		return gw
	}
	b.Run("unprotected", func(b *testing.B) { load(b, open(b, "memory", false), unkeyed) })
	b.Run("unprotected/http2", func(b *testing.B) { load(b, open(b, "memory", true), unkeyed) })
	for _, name := range []string{"sqlite", "memory"} {
		b.Run(name+"/first", func(b *testing.B) {
			load(b, open(b, name, false), func(i int64) string { return fmt.Sprintf(`"8e03978e-40d5-43e8-bc93-%012d"`, i) })
		})
		replaying := open(b, name, false)
		if name == "sqlite" {
			// It looks at three files for each replay until their directory has been
			// left alone for some seconds, and at the directory from then on.
			time.Sleep(4 * time.Second)
		}
		b.Run(name+"/replay", func(b *testing.B) {
			load(b, replaying, func(i int64) string { return fmt.Sprintf(`"8e03978e-40d5-43e8-bc93-%012d"`, -(max(i, -i) % 1000)) })
		})
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
	b.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// load sends b.N posts over so many connections. Its client does as little as
// it can, because it shares the machine with what is measured.
func load(b *testing.B, h http.Handler, key func(i int64) string) {
	server := httptest.NewServer(h)
	defer server.Close()
	clients := make([]*client, connections)
	for i := range clients {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		clients[i] = &client{conn: c, answers: bufio.NewReader(c)}
	}
	// One after the other: connections are warm, and what is to be replayed is
	// on record.
	for i := range int64(1000) {
		if err := clients[i%connections].send(key(-i)); err != nil {
			b.Fatal(err)
		}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	for _, c := range clients {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := c.send(key(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "req/s")
}

type client struct {
	conn    net.Conn
	request []byte
	answers *bufio.Reader
}

const body = `{"item":"book","quantity":1}`

// send posts an order and reads the whole answer, which has a Content-Length.
func (c *client) send(key string) error {
	c.request = append(c.request[:0], "POST /orders HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"+
		"Authorization: Bearer 0123456789abcdef\r\n"...)
	if key != "" {
		c.request = append(append(append(c.request, "Idempotency-Key: "...), key...), "\r\n"...)
	}
	c.request = fmt.Appendf(c.request, "Content-Length: %d\r\n\r\n%s", len(body), body)
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	length := -1
	for first := true; ; first = false {
		line, err := c.answers.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 201 ")):
			return fmt.Errorf("answered %q", line)
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len("Content-Length: "):]))); err != nil {
				return err
			}
		case len(line) == 2:
			_, err := c.answers.Discard(length)
			return err
		}
	}
}

// BenchmarkGatewayRoutes is a gateway by itself, and the same among the routes of a
// router, with another that has the rest: what finding the route costs. They take
// turns within one run.
func BenchmarkGatewayRoutes(b *testing.B) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
	}))
	defer upstream.Close()
	target, _ := url.Parse(upstream.URL)
	config := func(b *testing.B) gateway.Config {
		guard, err := semel.New(semel.Config{Store: openStore(b, "memory")})
		if err != nil {
			b.Fatal(err)
		}
		return gateway.Config{Upstream: target, Guard: guard}
	}
	gatewayOf := func(b *testing.B, c gateway.Config) *gateway.Gateway {
		g, err := gateway.New(c)
		if err != nil {
			b.Fatal(err)
		}
		return g
	}
	fresh := func(i int64) string { return fmt.Sprintf(`"8e03978e-40d5-43e8-bc93-%012d"`, i) }
	b.Run("alone", func(b *testing.B) { load(b, gatewayOf(b, config(b)), fresh) })
	b.Run("routed", func(b *testing.B) {
		c := config(b)
		var routes []gateway.Route
		for i := range 100 {
			routes = append(routes, gateway.Route{Patterns: []string{fmt.Sprintf("POST /api%d/{id}/x", i)}, Gateway: gatewayOf(b, c)})
		}
		named := c
		named.Operation = "POST /orders"
		routes = append(routes, gateway.Route{Patterns: []string{"POST /orders"}, Gateway: gatewayOf(b, named)},
			gateway.Route{Patterns: []string{"/"}, Gateway: gatewayOf(b, c)})
		router, err := gateway.NewRouter(gateway.RouterConfig{Routes: routes})
		if err != nil {
			b.Fatal(err)
		}
		load(b, router, fresh)
	})
}

// BenchmarkRoute is what finding a route costs by itself, for paths that are spelled
// plainly and for those that are not.
func BenchmarkRoute(b *testing.B) {
	store := openStore(b, "memory")
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	target, _ := url.Parse("http://127.0.0.1:1")
	refuse := func(*http.Request) (semel.Scope, error) { return semel.Scope{}, errRefused }
	g, err := gateway.New(gateway.Config{Upstream: target, Guard: guard, Scope: refuse})
	if err != nil {
		b.Fatal(err)
	}
	routes := []gateway.Route{{Patterns: []string{"POST /users/{id}/orders"}, Gateway: g}, {Patterns: []string{"/"}, Gateway: g}}
	router, err := gateway.NewRouter(gateway.RouterConfig{Routes: routes})
	if err != nil {
		b.Fatal(err)
	}
	for _, bb := range []struct {
		name    string
		handler http.Handler
		path    string
	}{
		{"gateway", g, "/users/17/orders"},
		{"plain", router, "/users/17/orders"},
		{"upper", router, "/users/cus_Nff/orders"},
		{"escaped", router, "/users/a%20B/orders"},
	} {
		b.Run(bb.name, func(b *testing.B) {
			r := httptest.NewRequest("POST", bb.path, nil)
			r.Header["Idempotency-Key"] = []string{"k"}
			b.ReportAllocs()
			for b.Loop() {
				bb.handler.ServeHTTP(nowhere{}, r)
			}
		})
	}
}

var errRefused = errors.New("refused")

// nowhere takes an answer.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
