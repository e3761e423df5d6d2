package httpsink_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/httpsink"
	"github.com/semelhq/semel/store/memory"
)

func sink(t *testing.T, c httpsink.Config) *httpsink.Sink {
	t.Helper()
	s, err := httpsink.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// server answers at a loopback address.
func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// fate runs one delivery through a relay, in real time, and says where the message
// ended up after its first attempt.
func fate(t *testing.T, s outbox.Sink, m outbox.Message) outbox.Entry {
	t.Helper()
	o := memory.NewOutbox()
	m.ID, m.Topic = "id-1", "t"
	if err := o.Enqueue(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := func(context.Context, outbox.Attempted) { cancel() }
	r, err := outbox.New(outbox.Config{
		Store: o, Routes: []outbox.Route{{Sink: s}},
		Observer: &outbox.Observer{Delivered: done, Retried: done, Dead: done, Unknown: done},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	e, err := o.Find(t.Context(), "id-1")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestStatuses(t *testing.T) {
	for _, tt := range []struct {
		status int
		after  string
		state  outbox.State
		delay  time.Duration // at least, if it is pending
	}{
		{200, "", outbox.StateDelivered, 0},
		{204, "", outbox.StateDelivered, 0},
		{202, "60", outbox.StateDelivered, 0},
		{302, "", outbox.StatePending, 0},
		{400, "", outbox.StateDead, 0},
		{401, "60", outbox.StateDead, 0},
		{404, "", outbox.StateDead, 0},
		{408, "", outbox.StatePending, 0},
		{409, "", outbox.StateDead, 0},
		{409, "5", outbox.StatePending, 5 * time.Second},
		{409, "0", outbox.StatePending, 0},
		{410, "", outbox.StateDead, 0},
		{422, "", outbox.StateDead, 0},
		{425, "", outbox.StatePending, 0},
		{429, "120", outbox.StatePending, 120 * time.Second},
		{429, "99999999999999999999", outbox.StatePending, 0},
		{500, "", outbox.StatePending, 0},
		{503, time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), outbox.StatePending, 59 * time.Minute},
		{503, "soon", outbox.StatePending, 0},
		{599, "999999999", outbox.StatePending, 23 * time.Hour},
	} {
		t.Run(fmt.Sprint(tt.status, " ", tt.after), func(t *testing.T) {
			var calls atomic.Int64
			srv := server(t, func(w http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				w.Header().Set("Location", "/elsewhere")
				if tt.after != "" {
					w.Header().Set("Retry-After", tt.after)
				}
				w.WriteHeader(tt.status)
			})
			e := fate(t, sink(t, httpsink.Config{URL: srv.URL, AllowPrivate: true}), outbox.Message{})
			if e.State != tt.state || calls.Load() != 1 {
				t.Errorf("it is %s after %d requests: %s", e.State, calls.Load(), e.Cause)
			}
			if e.State == outbox.StatePending {
				if left := time.Until(e.DueAt); left < tt.delay-time.Second || left > tt.delay+tt.delay/8+2*time.Second && tt.delay < time.Hour || left > 27*time.Hour {
					t.Errorf("it is tried again in %v; want %v", left, tt.delay)
				}
			}
		})
	}
}

func TestRequest(t *testing.T) {
	got := make(chan *http.Request, 1)
	bodies := make(chan string, 1)
	srv := server(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- r
		bodies <- string(b)
	})
	s := sink(t, httpsink.Config{URL: srv.URL + "/hook?x=1", AllowPrivate: true, Header: http.Header{"Authorization": {"Bearer x"}}})
	fate(t, s, outbox.Message{
		Key: "cust 1/ü\n", Type: "order.paid", Payload: []byte("body\x00"),
		Headers: map[string]string{"Content-Type": "text/plain", "authorization": "mine", "X-A": "b"},
	})
	r := <-got
	for name, want := range map[string]string{
		"Idempotency-Key": `"id-1"`, "Semel-Topic": "t", "Semel-Lane": "cust%201%2F%C3%BC%0A", "Semel-Type": "order.paid", "Semel-Attempt": "1",
		"Content-Type": "text/plain", "Authorization": "Bearer x", "X-A": "b", "Content-Length": "5",
	} {
		if v := strings.Join(r.Header.Values(name), "|"); v != want {
			t.Errorf("%s is %q; want %q", name, v, want)
		}
	}
	if b := <-bodies; b != "body\x00" || r.Method != "POST" || r.URL.String() != "/hook?x=1" {
		t.Errorf("%s %s with body %q", r.Method, r.URL, b)
	}
	fate(t, s, outbox.Message{})
	if r, b := <-got, <-bodies; b != "" || r.Header.Get("Semel-Lane") != "" || r.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("an empty message came as %q, %v", b, r.Header)
	}
}

// No header of a message can become another, or take the place of the sink's own.
func TestHeaderInjection(t *testing.T) {
	srv := server(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	s := sink(t, httpsink.Config{URL: srv.URL, AllowPrivate: true})
	for _, h := range []map[string]string{
		{"X-A": "b\r\nX-C: d"},
		{"X-A: b\r\nX-C": "d"},
		{"X A": "b"},
		{"X-A": "\x01"},
		{"X-A": "\x7f"},
		{"Ü": "b"},
		{"idempotency-key": "mine"},
		{"Host": "elsewhere"},
		{"content-length": "0"},
		{"Transfer-Encoding": "chunked"},
		{"Semel-Attempt": "9"},
		{"Connection": "close"},
	} {
		if e := fate(t, s, outbox.Message{Headers: h}); e.State != outbox.StateDead {
			t.Errorf("with %q it is %s", h, e.State)
		}
	}
}

// Addresses are checked when the connection is made, whatever led there.
func TestPrivateAddressesAreRefused(t *testing.T) {
	srv := server(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"127.0.0.1", "localhost", "127.1.2.3", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::]", "10.1.2.3", "172.16.0.1", "192.168.1.1",
		"169.254.169.254", "100.64.0.1", "[fe80::1]", "[fd00::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1",
	} {
		s := sink(t, httpsink.Config{URL: "http://" + host + ":" + port})
		err := s.Deliver(t.Context(), outbox.Delivery{Message: outbox.Message{ID: "x", Topic: "t"}})
		if !errors.Is(err, httpsink.ErrAddress) {
			t.Errorf("%s: %v", host, err)
		}
	}
	// A public one is tried: no answer comes within the time, or no route is there.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := sink(t, httpsink.Config{URL: "http://8.8.8.8:81"}).Deliver(ctx, outbox.Delivery{}); err == nil || errors.Is(err, httpsink.ErrAddress) {
		t.Errorf("a public address: %v", err)
	}
}

// proxy starts a proxy that lives as long as the process, as what net/http has once read
// from the environment does.
var (
	proxied atomic.Int64
	proxy   = sync.OnceValue(func() string {
		return httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { proxied.Add(1) })).URL
	})
)

// A proxy of the environment is used when asked for.
func TestProxyOnlyWhenAsked(t *testing.T) {
	url := proxy()
	t.Setenv("HTTP_PROXY", url)
	t.Setenv("http_proxy", url)
	before := proxied.Load()
	d := outbox.Delivery{Message: outbox.Message{ID: "x", Topic: "t"}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_ = sink(t, httpsink.Config{URL: "http://8.8.8.8:81", AllowPrivate: true}).Deliver(ctx, d)
	if proxied.Load() != before {
		t.Error("a proxy was used that nobody asked for")
	}
	if err := sink(t, httpsink.Config{URL: "http://8.8.8.8:81", AllowPrivate: true, UseProxyFromEnvironment: true}).Deliver(t.Context(), d); err != nil || proxied.Load() != before+1 {
		t.Errorf("the proxy was not used: %v", err)
	}
	if err := sink(t, httpsink.Config{URL: "http://8.8.8.8:81", UseProxyFromEnvironment: true}).Deliver(t.Context(), d); !errors.Is(err, httpsink.ErrAddress) {
		t.Errorf("a proxy at a private address was used: %v", err)
	}
}

// One delivery is one request, even where a connection that is used again breaks
// after the request was read: the transport would send it again by itself.
func TestOneDeliveryIsOneRequest(t *testing.T) {
	for _, payload := range []string{"body", ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var requests atomic.Int64
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					in := bufio.NewReader(c)
					for {
						r, err := http.ReadRequest(in)
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, r.Body)
						if requests.Add(1) == 2 {
							return // after it was read, on the connection of the first
						}
						fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					}
				}()
			}
		}()
		s := sink(t, httpsink.Config{URL: "http://" + l.Addr().String(), AllowPrivate: true})
		d := outbox.Delivery{Message: outbox.Message{ID: "x", Topic: "t", Payload: []byte(payload)}}
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if err := s.Deliver(t.Context(), d); err == nil {
			t.Error("a delivery without an answer is told as one")
		}
		if n := requests.Load(); n != 2 {
			t.Errorf("two deliveries of %q were %d requests", payload, n)
		}
	}
}

// An answer without end is cut off.
func TestEndlessAnswer(t *testing.T) {
	var sent atomic.Int64
	ended := make(chan struct{})
	srv := server(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for {
			n, err := w.Write(make([]byte, 32<<10))
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	s := sink(t, httpsink.Config{URL: srv.URL, AllowPrivate: true})
	if err := s.Deliver(t.Context(), outbox.Delivery{Message: outbox.Message{ID: "x"}}); err != nil {
		t.Error(err)
	}
	<-ended
}

// A receiver that never answers costs the route's timeout, and the message stays.
func TestReceiverThatNeverAnswers(t *testing.T) {
	release := make(chan struct{})
	srv := server(t, func(_ http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	s := sink(t, httpsink.Config{URL: srv.URL, AllowPrivate: true})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Deliver(ctx, outbox.Delivery{Message: outbox.Message{ID: "x"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended by %v", err)
	}
}

func TestConfig(t *testing.T) {
	for url, want := range map[string]string{
		"": "must be an http or https", "ftp://x": "must be an http", "http://": "with a host", "http://u:secret@x": "credentials", "http://%zz": "cannot be parsed",
	} {
		_, err := httpsink.New(httpsink.Config{URL: url, MaxConns: -1})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "MaxConns") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
