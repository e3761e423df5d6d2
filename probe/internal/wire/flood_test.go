package wire

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// A server that never stops sending is stopped: by what it sent, and not by the
// time limit, and before it has sent much more than a response may have.
func TestFloods(t *testing.T) {
	const patience = 64 << 20 // buffers of two sockets included
	flood := func(c *serverConn, chunk []byte) (sent int) {
		chunk = []byte(strings.Repeat(string(chunk), 1+(16<<10)/len(chunk)))
		for sent < patience {
			n, err := c.TCPConn.Write(chunk)
			if sent += n; err != nil {
				break
			}
		}
		return sent
	}
	render := func(write func(f *http2.Framer)) []byte { return frames(write) }
	var block []byte // of a 1xx status
	headers := func(h *h2, id uint32, fields ...string) {
		h.buf.Reset()
		h.headers(id, false, fields...)
		block = append([]byte{}, h.buf.Bytes()...)
	}
	for name, overHTTP2 := range map[string]func(h *h2, id uint32) []byte{
		"empty CONTINUATION": func(h *h2, id uint32) []byte {
			_ = h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id})
			return render(func(f *http2.Framer) { _ = f.WriteContinuation(id, false, nil) })
		},
		"full CONTINUATION": func(h *h2, id uint32) []byte {
			_ = h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id})
			field := append([]byte{0, 1, 'a', 127, 0}, strings.Repeat("x", 127)...)
			return render(func(f *http2.Framer) { _ = f.WriteContinuation(id, false, field) })
		},
		"interim responses": func(h *h2, id uint32) []byte {
			headers(h, id, ":status", "103")
			headers(h, id, ":status", "103") // from the table now
			return render(func(f *http2.Framer) {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
			})
		},
		"broken headers": func(h *h2, id uint32) []byte {
			return render(func(f *http2.Framer) {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0, 1, 'A', 1, 'x'}, EndHeaders: true})
			})
		},
		"headers of no stream": func(_ *h2, id uint32) []byte {
			return render(func(f *http2.Framer) {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id + 2, BlockFragment: []byte{0x88}, EndHeaders: true})
			})
		},
		"trailers": func(h *h2, id uint32) []byte {
			headers(h, id, ":status", "200")
			return render(func(f *http2.Framer) {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0, 1, 'a', 1, 'x'}, EndHeaders: true})
			})
		},
		"empty DATA": func(h *h2, id uint32) []byte {
			headers(h, id, ":status", "200")
			return render(func(f *http2.Framer) { _ = f.WriteData(id, false, nil) })
		},
		"DATA of no stream": func(_ *h2, id uint32) []byte {
			return render(func(f *http2.Framer) { _ = f.WriteData(id+2, false, make([]byte, 100)) })
		},
		"SETTINGS": func(*h2, uint32) []byte {
			return render(func(f *http2.Framer) { _ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 9}) })
		},
		"PING":         func(*h2, uint32) []byte { return render(func(f *http2.Framer) { _ = f.WritePing(false, [8]byte{1}) }) },
		"PING answers": func(*h2, uint32) []byte { return render(func(f *http2.Framer) { _ = f.WritePing(true, [8]byte{1}) }) },
		"WINDOW_UPDATE": func(_ *h2, id uint32) []byte {
			return render(func(f *http2.Framer) { _ = f.WriteWindowUpdate(id, 1) })
		},
		"PRIORITY": func(_ *h2, id uint32) []byte {
			return render(func(f *http2.Framer) { _ = f.WritePriority(id, http2.PriorityParam{StreamDep: 1000001}) })
		},
		"unknown frames": func(*h2, uint32) []byte {
			return render(func(f *http2.Framer) { _ = f.WriteRawFrame(0x42, 0, 0, nil) })
		},
	} {
		t.Run("HTTP2 "+name, func(t *testing.T) {
			t.Parallel()
			sent := 0
			srv := serve2(t, func(h *h2) {
				id := h.request()
				go h.drain() // what it is answered must not stop it
				sent = flood(h.c, overHTTP2(h, id))
			})
			x := send(t, sender(t, srv.addr), post(srv.addr, HTTP2))
			srv.only(t)
			if name == "broken headers" || name == "full CONTINUATION" { // the framer has found out first
				wantErr(t, "the error", x.Err, ErrProtocol)
			} else {
				wantErr(t, "the error", x.Err, ErrTooLarge)
			}
			if sent >= patience || len(x.Received) > DefaultMaxResponse {
				t.Errorf("the server could send %d bytes, of which %d were kept", sent, len(x.Received))
			}
			if name == "interim responses" && len(x.Received) > 64<<10 {
				t.Errorf("%d bytes of interim responses were kept", len(x.Received))
			}
		})
	}
	for name, text := range map[string]string{
		"interim responses": "HTTP/1.1 103 Early Hints\r\n\r\n",
		"a head":            "X: y\r\n",
		"a chunked body":    "1\r\nx\r\n",
		"chunk extension":   ";a=b",
		"trailers":          "X: y\r\n",
	} {
		t.Run("HTTP1 "+name, func(t *testing.T) {
			t.Parallel()
			sent := 0
			srv := serve(t, func(c *serverConn) {
				c.request(t)
				switch name {
				case "a head":
					c.say("HTTP/1.1 200 OK\r\n")
				case "a chunked body":
					c.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				case "chunk extension":
					c.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1")
				case "trailers":
					c.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
				}
				sent = flood(c, []byte(text))
			})
			x := send(t, sender(t, srv.addr), post(srv.addr, HTTP1))
			srv.only(t)
			if name == "chunk extension" || name == "trailers" { // net/http has a bound of its own for these
				wantErr(t, "the error", x.Err, ErrProtocol)
			} else {
				wantErr(t, "the error", x.Err, ErrTooLarge)
			}
			if sent >= patience || len(x.Received) > DefaultMaxResponse {
				t.Errorf("the server could send %d bytes, of which %d were kept", sent, len(x.Received))
			}
			if name == "interim responses" && len(x.Received) > 64<<10 {
				t.Errorf("%d bytes of interim responses were kept", len(x.Received))
			}
		})
	}
}

// A plausible number of interim responses is accepted.
func TestInterimResponses(t *testing.T) {
	one := serve(t, func(c *serverConn) {
		c.request(t)
		c.say(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", maxInterim) + "HTTP/1.1 204 No Content\r\n\r\n")
	})
	two := serve2(t, func(h *h2) {
		id := h.request()
		for range maxInterim {
			h.headers(id, false, ":status", "103")
		}
		h.headers(id, true, ":status", "204")
		h.drain()
	})
	for p, addr := range map[Protocol]string{HTTP1: one.addr, HTTP2: two.addr} {
		x := send(t, sender(t, addr), post(addr, p))
		if x.Err != nil || x.Response.Status != 204 || len(x.Response.Interim) != maxInterim {
			t.Errorf("%v: %v, %+v", p, x.Err, x.Response)
		}
	}
}

// The responses of a race share one limit.
func TestRaceResponsesAreBounded(t *testing.T) {
	srv := serve(t, func(c *serverConn) {
		c.request(t)
		c.say("HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 1<<20))
	})
	var rs []Request
	for range 20 {
		rs = append(rs, post(srv.addr, HTTP1))
	}
	race, err := sender(t, srv.addr, func(c *Config) { c.MaxResponse = 1 << 20 }).SendRace(t.Context(), rs, nil)
	if err != nil || !race.Released {
		t.Fatal(err, race.Err)
	}
	total := 0
	for _, x := range race.Exchanges {
		wantErr(t, "the error", x.Err, ErrTooLarge)
		total += len(x.Received)
	}
	if total == 0 || total > 8<<20 {
		t.Errorf("%d bytes were kept", total)
	}
}
