package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/http2"
)

func cutAt(t *testing.T, s *Sender, r Request, cut Cut) Exchange {
	t.Helper()
	x, err := s.SendCut(t.Context(), r, cut)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// acks: this system tells what was acknowledged.
const acks = runtime.GOOS == "linux" || runtime.GOOS == "darwin"

func TestCutHTTP1(t *testing.T) {
	for _, by := range []CutHow{ByReset, ByClose} {
		name := map[CutHow]string{ByReset: "reset", ByClose: "close"}[by]
		ended := func(t *testing.T, err error) {
			t.Helper()
			if reset := errors.Is(err, syscall.ECONNRESET); runtime.GOOS != "windows" && reset != (by == ByReset) {
				t.Errorf("the server's end of reading is %v", err)
			}
		}
		t.Run("before the last byte, "+name, func(t *testing.T) {
			srv := serve(t, func(c *serverConn) { c.drain() })
			r := post(srv.addr, HTTP1)
			x := cutAt(t, sender(t, srv.addr), r, Cut{BeforeLastByte, by})
			want, _ := r.Bytes()
			want = want[:len(want)-1]
			c := srv.only(t)
			if c.got() != string(want) || !bytes.Equal(x.Sent, want) {
				t.Errorf("the server got %q, Sent is %q", c.got(), x.Sent)
			}
			ended(t, c.end)
			if x.Delivery != Partial || !x.Cut || x.Err != ErrCut || x.Acked != acks || !x.Timing.LastWrite.IsZero() {
				t.Errorf("got %+v", x)
			}
		})
		t.Run("after the request, "+name, func(t *testing.T) {
			srv := serve(t, func(c *serverConn) { c.request(t); c.drain() })
			r := post(srv.addr, HTTP1)
			x := cutAt(t, sender(t, srv.addr), r, Cut{AfterRequest, by})
			want, _ := r.Bytes()
			c := srv.only(t)
			if c.got() != string(want) {
				t.Errorf("the server got %q", c.got())
			}
			ended(t, c.end)
			if x.Delivery != Unanswered || !x.Cut || x.Err != ErrCut || x.Acked != acks || x.Response != nil {
				t.Errorf("got %+v", x)
			}
		})
		t.Run("after the first byte, "+name, func(t *testing.T) {
			srv := serve(t, func(c *serverConn) {
				c.request(t)
				c.say("H")
				c.drain()
			})
			x := cutAt(t, sender(t, srv.addr), post(srv.addr, HTTP1), Cut{AfterFirstByte, by})
			ended(t, srv.only(t).end)
			if x.Delivery != Unanswered || !x.Cut || x.Err != ErrCut || string(x.Received) != "H" || x.Timing.FirstByte.IsZero() {
				t.Errorf("got %+v", x)
			}
		})
	}
}

// The whole response may be there already: one byte of it is read, and no more.
func TestCutAfterFirstByteReadsOneByte(t *testing.T) {
	srv := serve(t, func(c *serverConn) {
		c.request(t)
		c.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		c.drain()
	})
	x := cutAt(t, sender(t, srv.addr), post(srv.addr, HTTP1), Cut{At: AfterFirstByte})
	if string(x.Received) != "H" || !x.Cut || x.Delivery != Unanswered {
		t.Errorf("got %v, %q", x.Delivery, x.Received)
	}
}

func TestCutComesTooLate(t *testing.T) {
	for _, at := range []CutPoint{BeforeLastByte, AfterRequest, AfterFirstByte} {
		srv := serve(t, func(c *serverConn) { _, _ = c.r.ReadString('\n') }) // closes at once
		r := post(srv.addr, HTTP1)
		r.Body = make([]byte, huge)
		x := cutAt(t, sender(t, srv.addr), r, Cut{At: at})
		if x.Cut || x.Delivery != Partial || errors.Is(x.Err, ErrCut) {
			t.Errorf("cut %d: got %v, %v, %v", at, x.Cut, x.Delivery, x.Err)
		}
	}
}

func TestCutHTTP2(t *testing.T) {
	for _, by := range []CutHow{ByReset, ByClose, ByStream} {
		for _, at := range []CutPoint{BeforeLastByte, AfterRequest, AfterFirstByte} {
			name := map[CutHow]string{ByReset: "reset", ByClose: "close", ByStream: "stream"}[by] + map[CutPoint]string{BeforeLastByte: ", before the end", AfterRequest: ", after the request", AfterFirstByte: ", after the first frame"}[at]
			t.Run(name, func(t *testing.T) {
				var body []byte
				whole, cancelled := false, false
				srv := serve2(t, func(h *h2) {
					for f := h.next(); f != nil; f = h.next() {
						switch f := f.(type) {
						case *http2.DataFrame:
							body = append(body, f.Data()...)
							if whole = whole || f.StreamEnded(); whole && at == AfterFirstByte {
								h.headers(f.StreamID, false, ":status", "201")
								h.data(f.StreamID, true, "made")
							}
						case *http2.RSTStreamFrame:
							cancelled = f.ErrCode == http2.ErrCodeCancel
						}
					}
				})
				x := cutAt(t, sender(t, srv.addr), post(srv.addr, HTTP2), Cut{at, by})
				c := srv.only(t)
				want := `{"n":1}`
				if at == BeforeLastByte {
					want = want[:6]
				}
				if string(body) != want || whole != (at != BeforeLastByte) {
					t.Errorf("the server got %q, whole: %v", body, whole)
				}
				if cancelled != (by == ByStream) {
					t.Errorf("the stream was reset: %v", cancelled)
				}
				if reset := errors.Is(c.end, syscall.ECONNRESET); runtime.GOOS != "windows" && reset != (by == ByReset) {
					t.Errorf("the server's end of reading is %v", c.end)
				}
				delivery := map[CutPoint]Delivery{BeforeLastByte: Partial, AfterRequest: Unanswered, AfterFirstByte: Answered}[at]
				if x.Delivery != delivery || !x.Cut || x.Err != ErrCut {
					t.Errorf("got %v, %v, %v", x.Delivery, x.Cut, x.Err)
				}
				if at == AfterFirstByte && (x.Response.Status != 201 || !x.Response.Truncated || len(x.Response.Body) != 0) {
					t.Errorf("response is %+v", x.Response)
				}
				if (at != AfterFirstByte) && x.Acked != acks {
					t.Errorf("acknowledged: %v", x.Acked)
				}
			})
		}
	}
}

// What the server sent before the cut counts, not the cut.
func TestCutDoesNotHideARefusal(t *testing.T) {
	srv := serve2(t, func(h *h2) { _ = h.fr.WriteRSTStream(h.request(), http2.ErrCodeRefusedStream); h.drain() })
	x := cutAt(t, sender(t, srv.addr), post(srv.addr, HTTP2), Cut{AfterFirstByte, ByStream})
	if x.Delivery != Refused || x.Cut || errors.Is(x.Err, ErrCut) {
		t.Errorf("got %v, %v, %v", x.Delivery, x.Cut, x.Err)
	}
}

func TestCutOfAStreamNeedsStreams(t *testing.T) {
	srv := serve(t, func(c *serverConn) { c.drain() })
	x := cutAt(t, sender(t, srv.addr), post(srv.addr, HTTP1), Cut{AfterRequest, ByStream})
	if x.Delivery != NotSent || x.Err == nil || srv.only(t).got() != "" {
		t.Errorf("got %v, %v", x.Delivery, x.Err)
	}
	for _, cut := range []Cut{{}, {At: AfterFirstByte + 1}, {At: AfterRequest, By: ByStream + 1}} {
		s := sender(t, srv.addr)
		left := s.Left()
		if _, err := s.SendCut(context.Background(), post(srv.addr, HTTP1), cut); err == nil || s.Left() != left {
			t.Errorf("%+v: %v, %d left", cut, err, s.Left())
		}
	}
}

// A request that was cut after its end has arrived whole, even a large one.
func TestCutAfterALargeRequest(t *testing.T) {
	srv := serve(t, func(c *serverConn) {
		req := c.request(t)
		if req == nil {
			return
		}
		if n, _ := io.Copy(io.Discard, req.Body); n != 8<<20 {
			t.Errorf("the server got %d bytes", n)
		}
		c.drain()
	})
	r := post(srv.addr, HTTP1)
	r.Body = []byte(strings.Repeat("x", 8<<20))
	if x := cutAt(t, sender(t, srv.addr), r, Cut{At: AfterRequest}); x.Acked != acks {
		t.Errorf("acknowledged: %v", x.Acked)
	}
	srv.only(t)
}
