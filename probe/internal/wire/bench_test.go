package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// arrivals keeps when the requests of a race were complete at the server.
type arrivals struct {
	mu  sync.Mutex
	at  []time.Time
	all chan struct{} // closed when n have come
	n   int
}

func (a *arrivals) reset(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at, a.n, a.all = nil, n, make(chan struct{})
}

// came books an arrival and returns what to wait for before answering: an
// answer within a race would disturb it.
func (a *arrivals) came() <-chan struct{} {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at = append(a.at, now); len(a.at) == a.n {
		close(a.all)
	}
	return a.all
}

func (a *arrivals) spread() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.MaxFunc(a.at, time.Time.Compare).Sub(slices.MinFunc(a.at, time.Time.Compare))
}

// serveRaw1 speaks enough HTTP/1.1 to see the end of a request.
func (a *arrivals) serveRaw1(b *testing.B, conf *tls.Config) string {
	return serve(b, func(c *serverConn) {
		var conn net.Conn = c.TCPConn
		if conf != nil {
			conn = tls.Server(conn, conf)
		}
		r := bufio.NewReader(conn)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		<-a.came()
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
		_ = conn.Close()
	}).addr
}

// serveRaw2 sees the frames that end streams.
func (a *arrivals) serveRaw2(b *testing.B, conf *tls.Config) string {
	return serve(b, func(c *serverConn) {
		var conn net.Conn = c.TCPConn
		if conf != nil {
			conn = tls.Server(conn, conf)
		}
		r := bufio.NewReader(conn)
		if _, err := io.ReadFull(r, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		h := &h2{c: c, fr: http2.NewFramer(conn, r)}
		_ = h.fr.WriteSettings()
		var ids []uint32
		for id := h.request(); id != 0; id = h.request() {
			all := a.came()
			ids = append(ids, id)
			select {
			case <-all:
				var buf bytes.Buffer
				fr := http2.NewFramer(&buf, nil)
				for _, id := range ids {
					_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x89}, EndHeaders: true, EndStream: true}) // :status 204
				}
				_, _ = conn.Write(buf.Bytes())
			default:
			}
		}
	}).addr
}

// BenchmarkArrivalSpread races 20 requests over the loopback and measures at
// the server, by its clock, how far apart the first and the last of them were
// complete. The servers named raw read the wire; the others are handlers of
// net/http, which adds the time to start a handler. The client of the last is
// what one would write without this package: goroutines and net/http.
func BenchmarkArrivalSpread(b *testing.B) {
	const parallel = 20
	cert := webServer(b, true, nil)
	secret := &tls.Config{Certificates: cert.TLS.Certificates}
	secret2 := &tls.Config{Certificates: cert.TLS.Certificates, NextProtos: []string{"h2"}}
	var a arrivals
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-a.came()
	}
	body := `{"amount":100,"currency":"EUR"}`

	race := func(url string, p Protocol) func(b *testing.B) {
		s := sender(b, trimScheme(url), func(c *Config) { c.TLS = trust(cert.Certificate()) })
		rs := times(parallel, Request{Method: "POST", URL: url, Protocol: p, Body: []byte(body)})
		return func(b *testing.B) {
			if r := runRace(b, s, rs, nil); !r.Released {
				b.Fatal(r.Err)
			}
		}
	}
	naive := func(url string) func(b *testing.B) {
		return func(b *testing.B) {
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			c := &http.Client{Transport: tr}
			var wg sync.WaitGroup
			for range parallel {
				wg.Go(func() {
					req, _ := http.NewRequestWithContext(context.Background(), "POST", url, strings.NewReader(body))
					resp, err := c.Do(req)
					if err != nil {
						b.Error(err)
						return
					}
					_ = resp.Body.Close()
				})
			}
			wg.Wait()
		}
	}
	web := func() string { return webServer(b, false, handler).URL }
	for _, bench := range []struct {
		name string
		run  func(b *testing.B)
	}{
		{"HTTP2/raw", race("http://"+a.serveRaw2(b, nil), HTTP2)},
		{"HTTP2/raw-TLS", race("https://"+a.serveRaw2(b, secret2), HTTP2)},
		{"HTTP2/handler", race(web(), HTTP2)},
		{"HTTP1/raw", race("http://"+a.serveRaw1(b, nil), HTTP1)},
		{"HTTP1/raw-TLS", race("https://"+a.serveRaw1(b, secret), HTTP1)},
		{"HTTP1/handler", race(web(), HTTP1)},
		{"goroutines/raw", naive("http://" + a.serveRaw1(b, nil))},
		{"goroutines/handler", naive(web())},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var spreads []time.Duration
			for b.Loop() {
				a.reset(parallel)
				bench.run(b)
				spreads = append(spreads, a.spread())
			}
			slices.Sort(spreads)
			for name, at := range map[string]int{"p50-us": 50, "p90-us": 90} {
				d := spreads[(len(spreads)-1)*at/100]
				b.ReportMetric(float64(d.Nanoseconds())/1000, name)
			}
		})
	}
}
