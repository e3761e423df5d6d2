package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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

// TestDeliveryHTTP1 is a server that does one thing wrong after the other. Each
// time there is one connection and one request on it, whatever happens.
func TestDeliveryHTTP1(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	respond := func(text string) func(*testing.T, *serverConn) {
		return func(t *testing.T, c *serverConn) { c.request(t); c.say(text) }
	}
	tests := []struct {
		name      string
		server    func(*testing.T, *serverConn)
		delivery  Delivery
		status    int
		body      string
		truncated bool
		err       error
	}{
		{"answered", respond(ok), Answered, 200, "hi", false, nil},
		{"redirected", respond("HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"), Answered, 307, "", false, nil},
		{"too many", respond("HTTP/1.1 429 Slow\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"), Answered, 429, "", false, nil},
		{"unavailable", respond("HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"), Answered, 503, "", false, nil},
		{"asked for a login", respond("HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"), Answered, 401, "", false, nil},
		{"interim first", respond("HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + ok), Answered, 200, "hi", false, nil},
		{"until the end", respond("HTTP/1.0 200 OK\r\n\r\nall of it"), Answered, 200, "all of it", false, nil},
		{"chunked", respond("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"), Answered, 200, "abc", false, nil},
		{"no content", respond("HTTP/1.1 204 No Content\r\n\r\n"), Answered, 204, "", false, nil},
		{"length not reached", respond("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), Answered, 200, "half", true, ErrClosed},
		{"chunk not whole", respond("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf"), Answered, 200, "half", true, ErrClosed},
		{"no last chunk", respond("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"), Answered, 200, "half", true, ErrClosed},
		{"broken chunk", respond("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n"), Answered, 200, "", true, ErrProtocol},
		{"half a head", respond("HTTP/1.1 200 OK\r\nContent-"), Unanswered, 0, "", false, ErrClosed},
		{"interim alone", respond("HTTP/1.1 100 Continue\r\n\r\n"), Unanswered, 0, "", false, ErrClosed},
		{"nothing", respond(""), Unanswered, 0, "", false, ErrClosed},
		{"something else", respond("secret-220 mail.example ESMTP\r\n\r\n"), Unanswered, 0, "", false, ErrProtocol},
		{"reset", func(t *testing.T, c *serverConn) { c.request(t); c.reset() }, Unanswered, 0, "", false, ErrClosed},
		{"reset within the body", func(t *testing.T, c *serverConn) {
			c.request(t)
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
			drained(c)
			c.reset()
		}, Answered, 200, "half", true, ErrClosed},
		{"too large", respond("HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 5000)), Answered, 200, strings.Repeat("x", 4096-19), true, ErrTooLarge},
		{"too large a head", respond("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 5000) + "\r\n\r\n"), Unanswered, 0, "", false, ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := serve(t, func(c *serverConn) { tt.server(t, c) })
			r := post(srv.addr, HTTP1)
			s := sender(t, srv.addr, func(c *Config) { c.MaxResponse = 4096 })
			x := send(t, s, r)

			if x.Delivery != tt.delivery {
				t.Errorf("delivery is %v, want %v (%v)", x.Delivery, tt.delivery, x.Err)
			}
			wantErr(t, "Err", x.Err, tt.err)
			if x.Err != nil && strings.Contains(x.Err.Error(), "secret") {
				t.Errorf("the error quotes the response: %v", x.Err)
			}
			if tt.status != 0 {
				if x.Response == nil || x.Response.Status != tt.status || string(x.Response.Body) != tt.body || x.Response.Truncated != tt.truncated {
					t.Errorf("response is %+v", x.Response)
				}
			} else if x.Response != nil {
				t.Errorf("response is %+v, want none", x.Response)
			}
			want, _ := r.Bytes()
			if got := srv.only(t).got(); got != string(want) {
				t.Errorf("the server got %q\nwant           %q", got, want)
			}
			if !bytes.Equal(x.Sent, want) {
				t.Errorf("Sent is %q", x.Sent)
			}
			checkTiming(t, x)
			if got := s.cfg.MaxSends - s.Left(); got != 1 {
				t.Errorf("%d sends were counted, want 1", got)
			}
		})
	}
}

// drained waits until the client has read all that was said.
func drained(c *serverConn) {
	p := pipe{Conn: c.TCPConn}
	for {
		if n, ok := p.unacked(); n == 0 || !ok {
			return
		}
	}
}

func checkTiming(t *testing.T, x Exchange) {
	t.Helper()
	at := []time.Time{x.Timing.Start, x.Timing.Resolved, x.Timing.Connected, x.Timing.Secured, x.Timing.FirstWrite, x.Timing.LastWrite}
	at = slices.DeleteFunc(at, time.Time.IsZero)
	if !slices.IsSortedFunc(at, time.Time.Compare) {
		t.Errorf("times are not in order: %+v", x.Timing)
	}
	if x.Timing.Start.IsZero() || x.Timing.Done.IsZero() || x.Timing.Done.Before(x.Timing.FirstByte) {
		t.Errorf("times are missing or wrong: %+v", x.Timing)
	}
	if (len(x.Received) > 0) != !x.Timing.FirstByte.IsZero() {
		t.Errorf("%d bytes were received, the first at %v", len(x.Received), x.Timing.FirstByte)
	}
}

func TestHTTP1ResponseInFull(t *testing.T) {
	const text = "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 201 Made it\r\nSet-Cookie: a=1, b\r\nset-cookie: c=2\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"
	srv := serve(t, func(c *serverConn) { c.request(t); c.say(text) })
	x := send(t, sender(t, srv.addr), post(srv.addr, Auto))
	if string(x.Received) != text {
		t.Errorf("received %q", x.Received)
	}
	r := x.Response
	if r == nil || r.Reason != "Made it" || !slices.Equal(r.Header["Set-Cookie"], []string{"a=1, b", "c=2"}) || r.Trailer.Get("X") != "y" || !slices.Equal(r.Interim, []int{103}) {
		t.Errorf("response is %+v", r)
	}
	if x.Protocol != HTTP1 || x.Remote.String() != srv.addr || !x.Local.IsValid() || x.TLS != nil {
		t.Errorf("exchange is %+v", x)
	}
}

// A server may answer and stop reading before it has the whole request.
func TestHTTP1EarlyResponse(t *testing.T) {
	srv := serve(t, func(c *serverConn) {
		if _, err := c.r.ReadString('\n'); err != nil {
			t.Error(err)
		}
		c.say("HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n")
		_, _ = c.TCPConn.Read(make([]byte, 1)) // and no more
		<-t.Context().Done()
	})
	r := post(srv.addr, HTTP1)
	r.Body = make([]byte, huge)
	x := send(t, sender(t, srv.addr), r)
	if x.Delivery != Answered || x.Response.Status != 413 || x.Response.Truncated || x.Err != nil {
		t.Errorf("got %v, %+v, %v", x.Delivery, x.Response, x.Err)
	}
	if !x.Timing.LastWrite.IsZero() || len(x.Sent) == 0 || len(x.Sent) >= len(r.Body) {
		t.Errorf("%d bytes were sent, the last at %v", len(x.Sent), x.Timing.LastWrite)
	}
}

func TestPartialWhenTheServerStopsReading(t *testing.T) {
	srv := serve(t, func(c *serverConn) { _, _ = c.r.ReadString('\n'); c.reset() })
	r := post(srv.addr, HTTP1)
	r.Body = make([]byte, huge)
	x := send(t, sender(t, srv.addr), r)
	if x.Delivery != Partial || x.Response != nil || len(x.Sent) >= len(r.Body) {
		t.Errorf("got %v, %+v after %d bytes", x.Delivery, x.Response, len(x.Sent))
	}
	wantErr(t, "Err", x.Err, ErrClosed)
}

func TestNotSent(t *testing.T) {
	gone := serve(t, func(c *serverConn) {})
	s := sender(t, gone.addr, func(c *Config) {
		c.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
	})
	x := send(t, s, post(gone.addr, HTTP1))
	if x.Delivery != NotSent || x.Err == nil || len(x.Sent) != 0 || !x.Timing.FirstWrite.IsZero() {
		t.Errorf("got %+v", x)
	}
	checkTiming(t, x)
	if len(gone.all()) != 0 {
		t.Error("the server was reached")
	}
}

// A server that does not speak HTTP/2 gets a preface, and never a request.
func TestHTTP2NeedsAServerThatSpeaksIt(t *testing.T) {
	for name, say := range map[string]string{"HTTP/1.1": "HTTP/1.1 400 Bad Request\r\n\r\n", "PING first": "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, func(c *serverConn) {
				_, _ = io.ReadFull(c.r, make([]byte, len(http2.ClientPreface)))
				c.say(say)
				if say != "" {
					c.drain()
				}
			})
			x := send(t, sender(t, srv.addr), post(srv.addr, HTTP2))
			if x.Delivery != NotSent {
				t.Errorf("delivery is %v", x.Delivery)
			}
			if want := ErrProtocol; say != "" {
				wantErr(t, "Err", x.Err, want)
			} else {
				wantErr(t, "Err", x.Err, ErrClosed)
			}
			if got := srv.only(t).got(); strings.Contains(got, "orders") {
				t.Errorf("the server got %q", got)
			}
		})
	}
}

func TestDeliveryHTTP2(t *testing.T) {
	ok := func(h *h2, id uint32) {
		h.headers(id, false, ":status", "200", "x-a", "1")
		h.data(id, true, "hi")
	}
	tests := []struct {
		name      string
		server    func(h *h2)
		delivery  Delivery
		body      string
		truncated bool
		err       error
	}{
		{"answered", func(h *h2) { ok(h, h.request()) }, Answered, "hi", false, nil},
		{"interim and trailers", func(h *h2) {
			id := h.request()
			h.headers(id, false, ":status", "103", "link", "x")
			h.headers(id, false, ":status", "200", "x-a", "1")
			h.data(id, false, "h")
			h.data(id, false, "i")
			h.headers(id, true, "x-t", "2")
		}, Answered, "hi", false, nil},
		{"refused stream", func(h *h2) { _ = h.fr.WriteRSTStream(h.request(), http2.ErrCodeRefusedStream) }, Refused, "", false, ErrClosed},
		{"GOAWAY without the stream", func(h *h2) { h.request(); _ = h.fr.WriteGoAway(0, http2.ErrCodeNo, []byte("secret")) }, Refused, "", false, ErrClosed},
		{"GOAWAY with the stream", func(h *h2) { id := h.request(); _ = h.fr.WriteGoAway(id, http2.ErrCodeNo, nil); ok(h, id) }, Answered, "hi", false, nil},
		{"GOAWAY with the stream, then gone", func(h *h2) { id := h.request(); _ = h.fr.WriteGoAway(id, http2.ErrCodeNo, nil); h.c.reset() }, Unanswered, "", false, ErrClosed},
		{"stream reset", func(h *h2) { _ = h.fr.WriteRSTStream(h.request(), http2.ErrCodeInternal) }, Unanswered, "", false, ErrClosed},
		{"stream reset within the body", func(h *h2) {
			id := h.request()
			h.headers(id, false, ":status", "200", "x-a", "1")
			h.data(id, false, "ha")
			_ = h.fr.WriteRSTStream(id, http2.ErrCodeInternal)
		}, Answered, "ha", true, ErrClosed},
		{"shorter than said", func(h *h2) {
			id := h.request()
			h.headers(id, false, ":status", "200", "x-a", "1", "content-length", "9")
			h.data(id, true, "half")
		}, Answered, "half", true, ErrProtocol},
		{"cut off within the body", func(h *h2) {
			id := h.request()
			h.headers(id, false, ":status", "200", "x-a", "1")
			h.data(id, false, "ha")
			_ = h.c.CloseWrite()
			h.drain()
		}, Answered, "ha", true, ErrClosed},
		{"closed", func(h *h2) { h.request() }, Unanswered, "", false, ErrClosed},
		{"no status", func(h *h2) { h.headers(h.request(), true, "x-a", "1"); h.drain() }, Unanswered, "", false, ErrProtocol},
		{"DATA first", func(h *h2) { h.data(h.request(), true, "x"); h.drain() }, Unanswered, "", false, ErrProtocol},
		{"broken connection", func(h *h2) { h.request(); _ = h.fr.WriteRawFrame(http2.FramePing, 0, 0, []byte("short")); h.drain() }, Unanswered, "", false, ErrProtocol},
		{"too large", func(h *h2) {
			id := h.request()
			h.headers(id, false, ":status", "200", "x-a", "1")
			h.data(id, false, strings.Repeat("x", 3000))
			h.data(id, false, strings.Repeat("x", 3000))
			h.drain()
		}, Answered, strings.Repeat("x", 3000), true, ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			headers := 0
			srv := serve2(t, func(h *h2) {
				tt.server(h)
				_ = h.c.CloseWrite()
				for f := h.next(); f != nil; f = h.next() {
					if f.Header().Type == http2.FrameHeaders {
						headers++
					}
				}
			})
			s := sender(t, srv.addr, func(c *Config) { c.MaxResponse = 4096 })
			x := send(t, s, post(srv.addr, HTTP2))
			if x.Delivery != tt.delivery {
				t.Errorf("delivery is %v, want %v (%v)", x.Delivery, tt.delivery, x.Err)
			}
			wantErr(t, "Err", x.Err, tt.err)
			if x.Err != nil && strings.Contains(x.Err.Error(), "secret") {
				t.Errorf("the error quotes the server: %v", x.Err)
			}
			if tt.delivery == Answered && (x.Response.Status != 200 || x.Response.Header.Get("X-A") != "1" || string(x.Response.Body) != tt.body || x.Response.Truncated != tt.truncated) {
				t.Errorf("response is %+v", x.Response)
			}
			if tt.name == "interim and trailers" && (x.Response.Trailer.Get("X-T") != "2" || !slices.Equal(x.Response.Interim, []int{103})) {
				t.Errorf("response is %+v", x.Response)
			}
			got := srv.only(t).got()
			if !strings.Contains(got, string(x.Sent[:bytes.Index(x.Sent, []byte(`{"n":1}`))+7])) {
				t.Errorf("what Sent says is not what the server got")
			}
			if headers != 0 {
				t.Errorf("%d more requests came", headers)
			}
			checkTiming(t, x)
		})
	}
}

// TestHTTP2LargeBothWays has a body, a header and a response beyond frames and windows.
func TestHTTP2LargeBothWays(t *testing.T) {
	for _, secure := range []bool{false, true} {
		body := bytes.Repeat([]byte("0123456789"), 300_000)
		srv := webServer(t, secure, func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 || len(r.Header.Get("X-Long")) != 40_000 {
				t.Errorf("%s, %d", r.Proto, len(r.Header.Get("X-Long")))
			}
			got, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(got)
		})
		s := sender(t, trimScheme(srv.URL), func(c *Config) { c.TLS = trust(srv.Certificate()) })
		x := send(t, s, Request{
			Method: "PUT", URL: srv.URL, Protocol: HTTP2, Body: body,
			Header: []Field{{"X-Long", strings.Repeat("~", 40_000)}},
		})
		if x.Delivery != Answered || x.Err != nil || !bytes.Equal(x.Response.Body, body) {
			t.Errorf("secure %v: got %v, %v", secure, x.Delivery, x.Err)
		}
		if (x.TLS != nil) != secure {
			t.Errorf("TLS is %v", x.TLS)
		}
	}
}

func trust(cert *x509.Certificate) *tls.Config {
	c := &tls.Config{}
	if cert != nil {
		c.RootCAs = x509.NewCertPool()
		c.RootCAs.AddCert(cert)
	}
	return c
}

func TestTLS(t *testing.T) {
	served := 0
	srv := webServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		served++
		_, _ = io.WriteString(w, r.Proto)
	})
	addr := trimScheme(srv.URL)
	request := func(p Protocol) Request { return Request{Method: "GET", URL: srv.URL, Protocol: p} }

	t.Run("verified by default", func(t *testing.T) {
		x := send(t, sender(t, addr), request(Auto))
		var unknown x509.UnknownAuthorityError
		if x.Delivery != NotSent || !errors.As(x.Err, &unknown) || served != 0 {
			t.Errorf("got %v, %v; served %d", x.Delivery, x.Err, served)
		}
	})
	t.Run("the name counts", func(t *testing.T) {
		x := send(t, sender(t, addr, func(c *Config) { c.TLS = trust(srv.Certificate()); c.TLS.ServerName = "other.test" }), request(Auto))
		if x.Delivery != NotSent || served != 0 {
			t.Errorf("got %v, %v; served %d", x.Delivery, x.Err, served)
		}
	})
	t.Run("unverified if asked", func(t *testing.T) {
		x := send(t, sender(t, addr, func(c *Config) { c.TLS = &tls.Config{InsecureSkipVerify: true} }), request(Auto))
		if x.Delivery != Answered || x.TLS == nil || len(x.TLS.VerifiedChains) != 0 {
			t.Errorf("got %v, %v", x.Delivery, x.Err)
		}
	})
	for p, want := range map[Protocol]string{Auto: "HTTP/2.0", HTTP2: "HTTP/2.0", HTTP1: "HTTP/1.1"} {
		t.Run("ALPN "+p.String(), func(t *testing.T) {
			x := send(t, sender(t, addr, func(c *Config) { c.TLS = trust(srv.Certificate()) }), request(p))
			if x.Delivery != Answered || string(x.Response.Body) != want || x.Response.Proto != want || len(x.TLS.VerifiedChains) == 0 {
				t.Errorf("got %v, %v, %+v", x.Delivery, x.Err, x.Response)
			}
			checkTiming(t, x)
		})
	}
	t.Run("client certificate", func(t *testing.T) {
		mutual := webServerMutual(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.Organization[0])
		})
		conf := trust(mutual.Certificate())
		conf.Certificates = mutual.TLS.Certificates
		x := send(t, sender(t, trimScheme(mutual.URL), func(c *Config) { c.TLS = conf }), Request{Method: "GET", URL: mutual.URL})
		if x.Delivery != Answered || string(x.Response.Body) != "Acme Co" {
			t.Errorf("got %v, %v", x.Delivery, x.Err)
		}
	})
	t.Run("HTTP/2 is not offered", func(t *testing.T) {
		only1 := webServerOnly1(t)
		before := only1.hits.Load()
		x := send(t, sender(t, trimScheme(only1.URL), func(c *Config) { c.TLS = trust(only1.Certificate()) }), Request{Method: "GET", URL: only1.URL, Protocol: HTTP2})
		if x.Delivery != NotSent || only1.hits.Load() != before {
			t.Errorf("got %v, %v", x.Delivery, x.Err)
		}
	})
}

func TestTimeLimits(t *testing.T) {
	srv := serve(t, func(c *serverConn) { c.drain() })
	for _, p := range []Protocol{HTTP1, HTTP2} {
		s := sender(t, srv.addr, func(c *Config) { c.Timeout = 20 * time.Millisecond })
		x := send(t, s, post(srv.addr, p))
		wantErr(t, "Err", x.Err, ErrTimeout)
		if want := map[Protocol]Delivery{HTTP1: Unanswered, HTTP2: NotSent}[p]; x.Delivery != want {
			t.Errorf("delivery is %v, want %v", x.Delivery, want)
		}
	}
	t.Run("connecting", func(t *testing.T) {
		s := sender(t, srv.addr, func(c *Config) { c.TLS = trust(nil); c.ConnectTimeout = 20 * time.Millisecond })
		x := send(t, s, Request{Method: "GET", URL: "https://" + srv.addr})
		wantErr(t, "Err", x.Err, ErrTimeout)
		if x.Delivery != NotSent {
			t.Errorf("delivery is %v", x.Delivery)
		}
	})
}

func TestContextEnds(t *testing.T) {
	stopped := errors.New("interrupted by the user")
	t.Run("before", func(t *testing.T) {
		srv := serve(t, func(c *serverConn) {})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(stopped)
		s := sender(t, srv.addr)
		left := s.Left()
		_, err := s.Send(ctx, post(srv.addr, HTTP1))
		wantErr(t, "error", err, stopped)
		if s.Left() != left || len(srv.all()) != 0 {
			t.Error("something was sent")
		}
	})
	t.Run("HTTP/1.1", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		srv := serve(t, func(c *serverConn) { c.request(t); cancel(stopped); c.drain() })
		x, err := sender(t, srv.addr).Send(ctx, post(srv.addr, HTTP1))
		if err != nil || x.Delivery != Unanswered || x.Cut {
			t.Errorf("got %v, %v", x.Delivery, err)
		}
		wantErr(t, "Err", x.Err, stopped)
		srv.only(t) // the connection has ended
	})
	t.Run("HTTP/2 within the response", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		read := make(chan struct{})
		srv := serve2(t, func(h *h2) {
			id := h.request()
			h.headers(id, false, ":status", "200")
			h.data(id, false, "x")
			_ = h.fr.WritePing(false, [8]byte{1}) // its acknowledgement comes after the frames above were read
			for {
				f, err := h.fr.ReadFrame()
				if err != nil {
					return
				}
				if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
					close(read)
					cancel(stopped)
				}
			}
		})
		x, err := sender(t, srv.addr).Send(ctx, post(srv.addr, HTTP2))
		<-read
		if err != nil || x.Delivery != Answered || !x.Response.Truncated {
			t.Errorf("got %v, %+v, %v", x.Delivery, x.Response, err)
		}
		wantErr(t, "Err", x.Err, stopped)
		srv.only(t)
	})
}

// A server with TLS sends its settings before it has read anything, and is not
// to be answered before the preface. Go's server then drops the connection.
func TestHTTP2PrefaceComesFirst(t *testing.T) {
	srv := webServer(t, true, func(http.ResponseWriter, *http.Request) {})
	s := sender(t, trimScheme(srv.URL), func(c *Config) { c.TLS = trust(srv.Certificate()) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				x, err := s.Send(t.Context(), Request{Method: "GET", URL: srv.URL, Protocol: HTTP2})
				if err != nil || x.Delivery != Answered {
					t.Errorf("got %v, %v, %v", err, x.Delivery, x.Err)
				}
			}
		})
	}
	wg.Wait()
}
