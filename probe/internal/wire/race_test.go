package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func times(n int, r Request) []Request {
	rs := make([]Request, n)
	for i := range rs {
		rs[i] = r
	}
	return rs
}

func runRace(t testing.TB, s *Sender, rs []Request, warm *Request) Race {
	t.Helper()
	r, err := s.SendRace(context.Background(), rs, warm)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// meeting is a handler that answers nobody before all have come. Requests that
// were sent one after the other would wait in it for ever.
type meeting struct {
	n    int
	mu   sync.Mutex
	came int
	all  chan struct{}
}

func newMeeting(n int) *meeting { return &meeting{n: n, all: make(chan struct{})} }

func (m *meeting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == "GET" {
		return // a warm-up
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m.mu.Lock()
	if m.came++; m.came == m.n {
		close(m.all)
	}
	m.mu.Unlock()
	select {
	case <-m.all:
	case <-r.Context().Done():
	}
	_, _ = fmt.Fprintf(w, "%s %s", r.Proto, body)
}

func TestRaceIsTogether(t *testing.T) {
	const n = 20
	for _, p := range []Protocol{HTTP1, HTTP2} {
		for _, secure := range []bool{false, true} {
			for _, body := range []string{"", `{"n":1}`, strings.Repeat("x", 20_000)} {
				for _, warmed := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v, TLS %v, %d bytes, warmed %v", p, secure, len(body), warmed), func(t *testing.T) {
						srv := webServer(t, secure, newMeeting(n).ServeHTTP)
						var n1 network
						s := sender(t, trimScheme(srv.URL), n1.use, func(c *Config) { c.TLS = trust(srv.Certificate()) })
						var warm *Request
						if warmed {
							warm = &Request{Method: "GET", URL: srv.URL}
						}
						r := runRace(t, s, times(n, Request{Method: "POST", URL: srv.URL + "/x", Protocol: p, Body: []byte(body)}), warm)
						if !r.Released || r.Err != nil {
							t.Fatalf("not released: %v", r.Err)
						}
						// With HTTP/1.1 the responses may be read before this side knows
						// that the last of the writes is done.
						if r.Overlap < n-1 || p == HTTP2 && (r.Overlap != n || r.Window <= 0) {
							t.Errorf("overlap is %d, window %v", r.Overlap, r.Window)
						}
						proto, conns := "HTTP/1.1", int64(n)
						if p == HTTP2 {
							proto, conns = "HTTP/2.0", 1
							if r.Spread != 0 {
								t.Errorf("spread is %v", r.Spread)
							}
						}
						if got := n1.dials.Load(); got != conns {
							t.Errorf("%d connections, want %d", got, conns)
						}
						for i, x := range r.Exchanges {
							if x.Delivery != Answered || x.Err != nil || string(x.Response.Body) != proto+" "+body || x.Protocol != p || (x.TLS != nil) != secure {
								t.Errorf("exchange %d is %v, %v", i, x.Delivery, x.Err)
							}
							if p == HTTP1 && !bytes.Equal(x.Sent, r.Exchanges[0].Sent) {
								t.Errorf("exchange %d sent other bytes", i)
							}
							checkTiming(t, x)
						}
						want := 0
						if warmed {
							want = int(conns)
						}
						if len(r.WarmUps) != want {
							t.Errorf("%d warm-ups, want %d", len(r.WarmUps), want)
						}
						for _, x := range r.WarmUps {
							if x.Delivery != Answered || x.Request.Method != "GET" || !x.Remote.IsValid() {
								t.Errorf("warm-up is %v, %v", x.Delivery, x.Err)
							}
							checkTiming(t, x)
						}
					})
				}
			}
		}
	}
}

// Auto uses the version that the server picks, for later connections too.
func TestRaceAuto(t *testing.T) {
	for _, secure := range []bool{false, true} {
		srv := webServer(t, secure, newMeeting(3).ServeHTTP)
		s := sender(t, trimScheme(srv.URL), func(c *Config) { c.TLS = trust(srv.Certificate()); c.MaxSends = 6 })
		warm := Request{Method: "GET", URL: srv.URL}
		r := runRace(t, s, times(3, Request{Method: "POST", URL: srv.URL}), &warm)
		want, left := HTTP1, 0
		if secure {
			want, left = HTTP2, 2 // one warm-up for all
		}
		if !r.Released || r.Exchanges[2].Protocol != want || s.Left() != left {
			t.Errorf("secure %v: %v, %v, %d left", secure, r.Err, r.Exchanges[2].Protocol, s.Left())
		}
	}
}

// writes keeps what was written by each call.
type writes struct {
	net.Conn
	mu  sync.Mutex
	all [][]byte
}

func (w *writes) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.all = append(w.all, bytes.Clone(b))
	w.mu.Unlock()
	return w.Conn.Write(b)
}

// recordWrites makes connections that are not of the type that the system's
// calls work on, which also shows that races do without.
func recordWrites(to *[]*writes) func(*Config) {
	var mu sync.Mutex
	return func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			w := &writes{Conn: raw}
			mu.Lock()
			*to = append(*to, w)
			mu.Unlock()
			return w, nil
		}
	}
}

func TestRaceHTTP2EndsInOneWrite(t *testing.T) {
	for _, body := range []string{"", "abc"} {
		for _, secure := range []bool{false, true} {
			srv := webServer(t, secure, newMeeting(20).ServeHTTP)
			var conns []*writes
			s := sender(t, trimScheme(srv.URL), recordWrites(&conns), func(c *Config) { c.TLS = trust(srv.Certificate()) })
			r := runRace(t, s, times(20, Request{Method: "POST", URL: srv.URL, Protocol: HTTP2, Body: []byte(body)}), nil)
			if !r.Released || len(conns) != 1 {
				t.Fatalf("%v, %d connections", r.Err, len(conns))
			}
			size := 20 * (9 + min(1, len(body)))
			found := 0
			for _, w := range conns[0].all {
				if secure {
					// One record: header 5, content type 1, tag 16.
					if len(w) == size+22 {
						found++
					}
					continue
				}
				fr := http2.NewFramer(io.Discard, bytes.NewReader(w))
				ends := 0
				for {
					f, err := fr.ReadFrame()
					if err != nil {
						break
					}
					if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
						ends++
					}
				}
				if ends == 20 && len(w) == size {
					found++
				} else if ends > 0 {
					t.Errorf("a write has %d ends", ends)
				}
			}
			if found != 1 {
				t.Errorf("body %q, TLS %v: the ends are in no write of their own", body, secure)
			}
		}
	}
}

func TestRaceHTTP1HoldsOneByteBack(t *testing.T) {
	for _, secure := range []bool{false, true} {
		srv := webServer(t, secure, newMeeting(5).ServeHTTP)
		var conns []*writes
		s := sender(t, trimScheme(srv.URL), recordWrites(&conns), func(c *Config) { c.TLS = trust(srv.Certificate()) })
		r := runRace(t, s, times(5, Request{Method: "POST", URL: srv.URL, Protocol: HTTP1}), nil)
		if !r.Released || len(conns) != 5 {
			t.Fatalf("%v, %d connections", r.Err, len(conns))
		}
		for _, c := range conns {
			if secure {
				// The write before the farewell is a record of one byte.
				if last := c.all[len(c.all)-2]; len(last) != 1+22 {
					t.Errorf("the last write is of %d bytes", len(last))
				}
			} else if last := c.all[len(c.all)-1]; string(last) != "\n" {
				t.Errorf("the last write is %q", last)
			}
		}
	}
}

// The blocks and bodies of all requests of a race are the same bytes.
func TestRaceHTTP2SameBytes(t *testing.T) {
	srv := serve2(t, func(h *h2) {
		for range 3 {
			id := h.request()
			defer h.headers(id, true, ":status", "204")
		}
	})
	r := runRace(t, sender(t, srv.addr), times(3, post(srv.addr, HTTP2)), nil)
	plain := func(b []byte) (all []byte) {
		fr := http2.NewFramer(io.Discard, bytes.NewReader(b))
		for {
			f, err := fr.ReadFrame()
			switch f := f.(type) {
			case *http2.HeadersFrame:
				all = append(all, f.HeaderBlockFragment()...)
			case *http2.DataFrame:
				all = append(all, f.Data()...)
			}
			if err != nil {
				return all
			}
		}
	}
	for i, x := range r.Exchanges {
		if got := plain(x.Sent); len(got) == 0 || !bytes.Equal(got, plain(r.Exchanges[0].Sent)) {
			t.Errorf("request %d is %q", i, got)
		}
	}
}

// One slow connection holds back the last bytes of all others.
func TestRaceHTTP1WaitsForTheSlowest(t *testing.T) {
	const n = 5
	small, large := Request{}, Request{}
	var ready sync.WaitGroup
	ready.Add(n - 1)
	var slow atomic.Bool
	srv := serve(t, func(c *serverConn) {
		line, _ := c.r.ReadString('\n')
		if strings.Contains(line, "/large") {
			ready.Wait() // all others have all but their last byte
			slow.Store(true)
		} else {
			whole, _ := small.Bytes()
			if _, err := io.ReadFull(c.r, make([]byte, len(whole)-len(line)-1)); err != nil {
				t.Error(err)
			}
			ready.Done()
			if _, err := c.r.ReadByte(); err != nil {
				t.Error(err)
			}
			if !slow.Load() {
				t.Error("a request came to its end before the slowest had begun to be read")
			}
			c.say("HTTP/1.0 204 No Content\r\n\r\n")
			return
		}
		whole, _ := large.Bytes()
		if _, err := io.ReadFull(c.r, make([]byte, len(whole)-len(line))); err != nil {
			t.Error(err)
		}
		c.say("HTTP/1.0 204 No Content\r\n\r\n")
	})
	small = post(srv.addr, HTTP1)
	large = small
	large.URL = "http://" + srv.addr + "/large"
	large.Body = make([]byte, huge)
	r := runRace(t, sender(t, srv.addr), append(times(n-1, small), large), nil)
	if !r.Released {
		t.Error(r.Err)
	}
	for i, x := range r.Exchanges {
		if x.Delivery != Answered {
			t.Errorf("request %d: %v, %v", i, x.Delivery, x.Err)
		}
	}
}

// TestRaceCouldNot: whatever keeps one from racing keeps all, and the server
// gets no request whole.
func TestRaceCouldNot(t *testing.T) {
	t.Run("streams", func(t *testing.T) {
		ended := 0
		srv := serve2(t, func(h *h2) {
			for f := h.next(); f != nil; f = h.next() {
				ended++
			}
		}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
		r := runRace(t, sender(t, srv.addr), times(3, post(srv.addr, HTTP2)), nil)
		couldNot(t, r, NotSent, NotSent, NotSent)
		if srv.only(t); ended != 0 {
			t.Errorf("the server got %d frames", ended)
		}
	})
	t.Run("windows", func(t *testing.T) {
		whole := false
		srv := serve2(t, func(h *h2) { whole = h.request() != 0 }, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 6})
		s := sender(t, srv.addr, func(c *Config) { c.Timeout = 50 * time.Millisecond })
		r := runRace(t, s, times(2, post(srv.addr, HTTP2)), nil)
		couldNot(t, r, Partial, Partial)
		wantErr(t, "Err", r.Err, ErrTimeout)
		if srv.only(t); whole {
			t.Error("a request came to its end")
		}
	})
	t.Run("refused stream", func(t *testing.T) {
		srv := serve2(t, func(h *h2) {
			bothCame(h)
			_ = h.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream)
			if h.request() != 0 {
				t.Error("a request came to its end")
			}
		})
		couldNot(t, runRace(t, sender(t, srv.addr), times(2, post(srv.addr, HTTP2)), nil), Refused, Partial)
	})
	t.Run("early response, HTTP/2", func(t *testing.T) {
		srv := serve2(t, func(h *h2) {
			bothCame(h)
			h.headers(1, true, ":status", "401")
			if h.request() != 0 {
				t.Error("a request came to its end")
			}
		})
		r := runRace(t, sender(t, srv.addr), times(2, post(srv.addr, HTTP2)), nil)
		couldNot(t, r, Answered, Partial)
	})
	t.Run("cut off, HTTP/1.1", func(t *testing.T) {
		var n atomic.Int64
		gone := make(chan struct{})
		srv := serve(t, func(c *serverConn) {
			if n.Add(1) == 1 {
				_, _ = c.r.ReadString('\n')
				c.reset()
				close(gone)
				return
			}
			<-gone
			c.drain()
			if strings.HasSuffix(c.got(), "end") {
				t.Error("a request came to its end")
			}
		})
		// Once the first one is gone, its end is seen before the release: the
		// large second request cannot have been taken before.
		r2 := post(srv.addr, HTTP1)
		r2.Body = append(make([]byte, huge), "end"...)
		s := sender(t, srv.addr)
		r := runRace(t, s, []Request{post(srv.addr, HTTP1), r2, r2}, nil)
		if r.Released || r.Exchanges[0].Delivery > Partial || r.Exchanges[1].Delivery > Partial {
			t.Errorf("released %v: %v, %v", r.Released, r.Exchanges[0].Delivery, r.Exchanges[1].Delivery)
		}
		wantErr(t, "Err", r.Err, ErrNotRaced)
	})
	t.Run("no connection for one", func(t *testing.T) {
		srv := serve(t, func(c *serverConn) {
			c.drain()
			if strings.HasSuffix(c.got(), `{"n":1}`) {
				t.Error("a request came to its end")
			}
		})
		var n atomic.Int64
		s := sender(t, srv.addr, func(c *Config) {
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if n.Add(1) == 3 {
					return nil, errors.New("no route")
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
		})
		r := runRace(t, s, times(4, post(srv.addr, HTTP1)), nil)
		if r.Released || !strings.Contains(r.Err.Error(), "no route") {
			t.Errorf("got %v, %v", r.Released, r.Err)
		}
		wantErr(t, "Err", r.Err, ErrNotRaced)
		notSent := 0
		for i, x := range r.Exchanges {
			if x.Delivery == NotSent {
				notSent++
			} else if x.Delivery != Partial {
				t.Errorf("exchange %d is %v", i, x.Delivery)
			}
			if x.Err == nil {
				t.Errorf("exchange %d has no error", i)
			}
		}
		if notSent == 0 {
			t.Error("all were sent")
		}
	})
	t.Run("no connection at all", func(t *testing.T) {
		s := sender(t, "127.0.0.1:9", func(c *Config) {
			c.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
		})
		couldNot(t, runRace(t, s, times(2, post("127.0.0.1:9", HTTP1)), nil), NotSent, NotSent)
	})
	t.Run("the warm-up's connection closes", func(t *testing.T) {
		srv := serve(t, func(c *serverConn) {
			if _, err := http.ReadRequest(c.r); err == nil { // else the other one was faster
				c.say("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			}
			c.drain()
			if strings.Contains(c.got(), "POST") {
				t.Error("something but the warm-up was sent")
			}
		})
		warm := Request{Method: "GET", URL: "http://" + srv.addr}
		r := runRace(t, sender(t, srv.addr), times(2, post(srv.addr, HTTP1)), &warm)
		couldNot(t, r, NotSent, NotSent)
	})
}

// bothCame reads until the second of two requests has begun, before it answers
// the PING that follows them.
func bothCame(h *h2) {
	for {
		if f, err := h.fr.ReadFrame(); err != nil || f.Header().StreamID == 3 {
			return
		} else if s, ok := f.(*http2.SettingsFrame); ok && !s.IsAck() {
			_ = h.fr.WriteSettingsAck()
		}
	}
}

func couldNot(t *testing.T, r Race, want ...Delivery) {
	t.Helper()
	if r.Released {
		t.Error("released")
	}
	wantErr(t, "Err", r.Err, ErrNotRaced)
	for i, x := range r.Exchanges {
		if x.Delivery != want[i] {
			t.Errorf("exchange %d is %v (%v), want %v", i, x.Delivery, x.Err, want[i])
		}
		if x.Err == nil && x.Delivery != Answered {
			t.Errorf("exchange %d has no error", i)
		}
		checkTiming(t, x)
	}
}

// A race whose requests end differently reports each one.
func TestRaceWithMixedEnds(t *testing.T) {
	srv := serve2(t, func(h *h2) {
		var ids []uint32
		for len(ids) < 4 {
			id := h.request()
			if id == 0 {
				return
			}
			ids = append(ids, id)
		}
		h.headers(ids[0], true, ":status", "201")
		_ = h.fr.WriteRSTStream(ids[1], http2.ErrCodeRefusedStream)
		h.headers(ids[2], true, ":status", "429")
		_ = h.fr.WriteRSTStream(ids[3], http2.ErrCodeInternal)
	})
	r := runRace(t, sender(t, srv.addr), times(4, post(srv.addr, HTTP2)), nil)
	want := []Delivery{Answered, Refused, Answered, Unanswered}
	for i, x := range r.Exchanges {
		if x.Delivery != want[i] {
			t.Errorf("exchange %d is %v, want %v", i, x.Delivery, want[i])
		}
	}
	if !r.Released || r.Overlap != 4 {
		t.Errorf("released %v, overlap %d", r.Released, r.Overlap)
	}
}

func TestRaceWithSeveralTargets(t *testing.T) {
	m := newMeeting(2)
	a, b := webServer(t, false, m.ServeHTTP), webServer(t, false, m.ServeHTTP)
	s := sender(t, trimScheme(a.URL), func(c *Config) { c.Allow = append(c.Allow, trimScheme(b.URL)) })
	rs := func(p Protocol) []Request {
		return []Request{post(trimScheme(a.URL), p), post(trimScheme(b.URL), p)}
	}
	r := runRace(t, s, rs(HTTP1), nil)
	if !r.Released || r.Exchanges[1].Delivery != Answered || r.Exchanges[0].Remote == r.Exchanges[1].Remote {
		t.Errorf("got %v, %+v", r.Err, r.Exchanges)
	}

	left := s.Left()
	one := rs(HTTP1)[0]
	for name, bad := range map[string][]Request{
		"HTTP/2": rs(HTTP2), "auto": rs(Auto), "one": rs(HTTP1)[:1], "none": nil, "protocols": {rs(HTTP1)[0], rs(HTTP2)[0]},
	} {
		if _, err := s.SendRace(t.Context(), bad, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := s.SendRace(t.Context(), rs(HTTP1), &one); err == nil {
		t.Error("warm-up: no error")
	}
	if s.Left() != left {
		t.Errorf("%d sends were counted", left-s.Left())
	}
}

func TestRaceInterrupted(t *testing.T) {
	stopped := errors.New("interrupted by the user")
	for _, p := range []Protocol{HTTP1, HTTP2} {
		ctx, cancel := context.WithCancelCause(t.Context())
		srv := webServer(t, false, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			cancel(stopped)
			<-r.Context().Done()
		})
		r, err := sender(t, trimScheme(srv.URL)).SendRace(ctx, times(3, post(trimScheme(srv.URL), p)), nil)
		if err != nil || !r.Released {
			t.Fatalf("%v: got %v, %v", p, err, r.Err)
		}
		for i, x := range r.Exchanges {
			if x.Delivery != Unanswered || !errors.Is(x.Err, stopped) {
				t.Errorf("%v, exchange %d: %v, %v", p, i, x.Delivery, x.Err)
			}
		}
	}
}

func TestMeasure(t *testing.T) {
	t0 := time.Now()
	x := func(out, in, done int) (x Exchange) {
		at := func(ms int) time.Time {
			if ms < 0 {
				return time.Time{}
			}
			return t0.Add(time.Duration(ms) * time.Millisecond)
		}
		x.Timing = Timing{LastWrite: at(out), FirstByte: at(in), Done: at(done)}
		return x
	}
	tests := []struct {
		name           string
		xs             []Exchange
		spread, window time.Duration
		overlap        int
	}{
		{"all together", []Exchange{x(1, 9, 10), x(2, 8, 10), x(3, 7, 10)}, 2 * time.Millisecond, 4 * time.Millisecond, 3},
		{"one after the other", []Exchange{x(1, 2, 2), x(3, 4, 4), x(5, 6, 6)}, 4 * time.Millisecond, -3 * time.Millisecond, 1},
		{"two of three", []Exchange{x(1, 5, 5), x(2, 6, 6), x(5, 7, 7)}, 4 * time.Millisecond, 0, 2},
		{"unanswered lasts to the end", []Exchange{x(1, -1, 9), x(2, 8, 8)}, time.Millisecond, 6 * time.Millisecond, 2},
		{"answered too early", []Exchange{x(-1, 1, 1), x(2, 8, 8), x(3, 8, 8)}, time.Millisecond, 0, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Race{Exchanges: tt.xs}
			r.measure()
			if r.Spread != tt.spread || r.Window != tt.window || r.Overlap != tt.overlap {
				t.Errorf("got %v, %v, %d; want %v, %v, %d", r.Spread, r.Window, r.Overlap, tt.spread, tt.window, tt.overlap)
			}
		})
	}
}

// Of a connection that the server has reset, the system may say for ever that
// something is not acknowledged. Waiting for it would last to the time limit.
func TestRaceAgainstAServerThatCloses(t *testing.T) {
	for range 20 {
		srv := serve(t, func(*serverConn) {})
		r := runRace(t, sender(t, srv.addr, func(c *Config) { c.Timeout = time.Hour }), times(3, post(srv.addr, HTTP1)), nil)
		for i, x := range r.Exchanges {
			if x.Response != nil || x.Err == nil {
				t.Errorf("exchange %d is %v, %v", i, x.Delivery, x.Err)
			}
		}
	}
}
