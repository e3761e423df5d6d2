package semelhttp_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// nullWriter is a ResponseWriter that costs next to nothing.
type nullWriter struct {
	header http.Header
	status int
}

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) WriteHeader(status int)      { w.status = status }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }

// body is a request body that can be read again.
type body struct{ strings.Reader }

func (*body) Close() error { return nil }

// BenchmarkMiddleware compares a small handler without protection to the same
// one protected, on the memory store and without a network. "first" executes
// with a fresh key each time; "replay" repeats one key.
func BenchmarkMiddleware(b *testing.B) {
	answer := []byte(`{"id":"ord_0001","item":"book","quantity":1,"status":"accepted"}`)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var buf [2048]byte
		for {
			if _, err := r.Body.Read(buf[:]); err != nil {
				break
			}
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Location", "/orders/ord_0001")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer)
	})
	bodies := []struct{ name, contentType, body string }{
		{"raw", "application/octet-stream", strings.Repeat("x", 1000)},
		{"json", "application/json", `{"item":"book","quantity":1,"notes":[` + strings.Repeat(`"gift wrap, please",`, 44) + `"end"],"customer":{"name":"Ada","id":1815}}`},
	}
	for _, tc := range bodies {
		run := func(b *testing.B, h http.Handler, key func(i int) string) {
			w := &nullWriter{header: make(http.Header)}
			content := &body{}
			r := &http.Request{
				Method: http.MethodPost, URL: &url.URL{Path: "/orders"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "shop.example",
				ContentLength: int64(len(tc.body)), Body: content,
				Header: http.Header{
					"Content-Type": {tc.contentType}, "Accept": {"*/*"}, "User-Agent": {"bench"},
					"Authorization": {"Bearer abc"}, semelhttp.HeaderKey: {""},
				},
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(tc.body)))
			i := 0
			for b.Loop() {
				content.Reset(tc.body)
				clear(w.header)
				r.Header[semelhttp.HeaderKey][0] = key(i)
				h.ServeHTTP(w, r)
				if w.status != http.StatusCreated {
					b.Fatalf("status %d", w.status)
				}
				i++
			}
		}
		protected := func(b *testing.B) http.Handler {
			return newFixture(b).protect(b, handler, func(c *semelhttp.Config) {
				c.Scope = func(*http.Request) (semel.Scope, error) {
					return semel.Scope{Actor: "alice", Operation: "orders.create"}, nil
				}
			})
		}
		fresh := func(i int) string { return strconv.Itoa(i) }
		same := func(int) string { return "8e03978e-40d5-43e8-bc93-6894a57f9324" }
		b.Run(fmt.Sprintf("bare/%s", tc.name), func(b *testing.B) { run(b, handler, fresh) })
		b.Run(fmt.Sprintf("first/%s", tc.name), func(b *testing.B) { run(b, protected(b), fresh) })
		b.Run(fmt.Sprintf("replay/%s", tc.name), func(b *testing.B) { run(b, protected(b), same) })
	}
}
