package semelhttp_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// shapes are answers that have been recorded or replayed wrong elsewhere. Each is
// compared: what a bare handler sends, what the protected one sends, and what is
// replayed.
var shapes = []struct {
	name    string
	handler http.HandlerFunc
	// header is what the client must get, at least.
	header http.Header
	// alters names the header fields in which a protected answer differs from a
	// bare one, and why is why.
	alters []string
	why    string
}{
	{name: "implicit 200", handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }},
	{name: "201 with Location and ETag", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/orders/7")
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":7}`)
	}, header: http.Header{"Location": {"/orders/7"}, "Etag": {`"v1"`}}},
	{name: "cookies with commas", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=1; Expires=Sat, 21 Nov 2026 12:00:00 GMT")
		w.Header().Add("Set-Cookie", "b=2, with a comma")
	}, header: http.Header{"Set-Cookie": {"a=1; Expires=Sat, 21 Nov 2026 12:00:00 GMT", "b=2, with a comma"}}},
	{name: "several values in order", handler: func(w http.ResponseWriter, _ *http.Request) {
		for _, v := range []string{"c", "a", "b", "a"} {
			w.Header().Add("X-List", v)
			w.Header().Add("Link", "<"+v+">")
		}
		w.Header().Add("WWW-Authenticate", `Basic realm="a, b"`)
		w.Header().Add("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusForbidden)
	}, header: http.Header{"X-List": {"c", "a", "b", "a"}, "Www-Authenticate": {`Basic realm="a, b"`, "Bearer"}}},
	{name: "gzip", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Vary", "Accept-Encoding")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, strings.Repeat("zip", 1000))
		_ = z.Close()
	}, header: http.Header{"Content-Encoding": {"gzip"}}},
	{name: "empty 200", handler: func(http.ResponseWriter, *http.Request) {}},
	{name: "204", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"v2"`)
		w.WriteHeader(http.StatusNoContent)
		if _, err := io.WriteString(w, "no"); err != http.ErrBodyNotAllowed {
			panic("a 204 took a body")
		}
	}},
	{name: "304 with the length of what it stands for", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"v2"`)
		w.Header().Set("Content-Length", "1234")
		w.WriteHeader(http.StatusNotModified)
	}},
	{name: "205", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusResetContent) }},
	{name: "unknown status", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }},
	{name: "trailers that were announced", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Checksum, Rows")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("Checksum", "abc")
		w.Header().Add("Rows", "1")
		w.Header().Add("Rows", "2")
	}},
	{name: "trailers that were not announced", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "body")
		w.(http.Flusher).Flush() // or a bare handler's trailers are lost
		w.Header().Set(http.TrailerPrefix+"Checksum", "abc")
	}, alters: []string{"Content-Length"}, why: "a Flush does not take effect"},
	{name: "trailers behind an empty body", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Checksum")
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("Checksum", "abc")
	}},
	{name: "trailer and header of one name", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Checksum")
		w.Header().Set("Checksum", "of the header")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("Checksum", "of the body")
	}},
	{name: "a 500 is an answer", handler: func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "it broke", http.StatusInternalServerError)
	}},
	{name: "a 400 is an answer", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }},
	{name: "a 503 without Retry-After is an answer", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}},
	{name: "redirect", handler: func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/orders/7", http.StatusSeeOther)
	}, header: http.Header{"Location": {"/orders/7"}}},
	{name: "sniffed HTML", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!DOCTYPE html><p>hi")
	}, header: http.Header{"Content-Type": {"text/html; charset=utf-8"}}},
	{name: "sniffed over several writes", handler: func(w http.ResponseWriter, _ *http.Request) {
		for _, p := range []string{"<!DOC", "TYPE ", "html><p>hi"} {
			_, _ = io.WriteString(w, p)
		}
	}, header: http.Header{"Content-Type": {"text/html; charset=utf-8"}}},
	{name: "sniffed from what was flushed", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!DOC")
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, "TYPE html><p>hi")
	}, header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, alters: []string{"Content-Length"}, why: "a Flush does not take effect"},
	{name: "header flushed before the body", handler: func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(err)
		}
		w.Header().Set("Too-Late", "yes")
		_, _ = io.WriteString(w, "<html>")
	}, alters: []string{"Content-Length"}, why: "a Flush does not take effect"},
	{name: "no sniffing", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>")
	}},
	{name: "binary", handler: func(w http.ResponseWriter, _ *http.Request) {
		var b [256]byte
		for i := range b {
			b[i] = byte(i)
		}
		_, _ = w.Write(b[:])
	}},
	{name: "explicit length", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "12345")
	}},
	{name: "length that is none", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "five")
		_, _ = io.WriteString(w, "12345")
	}, alters: []string{"Content-Length"}, why: "the length is known"},
	{name: "many writes", handler: func(w http.ResponseWriter, _ *http.Request) {
		for i := range 5000 {
			_, _ = fmt.Fprintln(w, i)
		}
	}, alters: []string{"Content-Length"}, why: "the length is known"},
	{name: "as large as fits in memory", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), semelhttp.DefaultMaxInline))
	}, alters: []string{"Content-Length"}, why: "the length is known"},
	{name: "too large for memory", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), semelhttp.DefaultMaxInline+1))
	}, alters: []string{"Content-Length"}, why: "the length is known"},
	{name: "too large for memory, with trailers", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Sum")
		for range 30 {
			_, _ = w.Write(bytes.Repeat([]byte("<p>x"), 10_000))
		}
		w.Header().Set("Sum", "1")
	}},
	{name: "as large as can be", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), semelhttp.DefaultMaxResult))
	}, alters: []string{"Content-Length"}, why: "the length is known"},
	{name: "1xx before", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "done")
	}, header: http.Header{"Link": {"</style.css>; rel=preload"}}},
	{name: "header changed too late", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("A", "1")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("A", "2")
		w.Header()["B"] = []string{"2"}
		w.WriteHeader(http.StatusBadGateway)
	}, header: http.Header{"A": {"1"}}},
	{name: "unusual spelling and values", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["x-lower"] = []string{"v"}
		w.Header().Set("Empty", "")
		w.Header().Set("Spaces", " v ")
		w.Header().Set("Utf8", "grün")
	}},
	{name: "Date and Connection of its own", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "Sat, 01 Jan 2000 00:00:00 GMT")
		w.Header().Set("Connection", "close, X-Hop")
		w.Header().Set("X-Hop", "for this connection")
		w.WriteHeader(http.StatusCreated)
	}},
	{name: "our own fields", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(semelhttp.HeaderReplayed, "no, really")
		w.Header().Set(semelhttp.HeaderExpires, "never")
		w.WriteHeader(http.StatusCreated)
	}},
}

// ownOrHop are the fields in which a replay differs from its original.
var ownOrHop = []string{"Date", "Connection", "X-Hop", semelhttp.HeaderReplayed, semelhttp.HeaderExpires}

func without(h http.Header, names ...string) http.Header {
	h = h.Clone()
	for _, n := range names {
		h.Del(n)
	}
	return h
}

func wantEqual(t *testing.T, what string, got, want answer, except ...string) {
	t.Helper()
	if fmt.Sprint(got.err) != fmt.Sprint(want.err) { // Go's client has one for a 304 with a length
		t.Errorf("%s: error %v; want %v", what, got.err, want.err)
	}
	if got.status != want.status {
		t.Errorf("%s: status %d; want %d", what, got.status, want.status)
	}
	if got.body != want.body {
		t.Errorf("%s: body of %d bytes %.100q; want %d bytes %.100q", what, len(got.body), got.body, len(want.body), want.body)
	}
	if g, w := without(got.header, except...), without(want.header, except...); !maps.EqualFunc(g, w, slices.Equal) {
		t.Errorf("%s: header\n%v; want\n%v", what, g, w)
	}
	if !maps.EqualFunc(got.trailer, want.trailer, slices.Equal) {
		t.Errorf("%s: trailer %v; want %v", what, got.trailer, want.trailer)
	}
}

func TestReplayIsExact(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, tc := range shapes {
			t.Run(fmt.Sprintf("http2=%v/%s", http2, tc.name), func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				bareServer, _ := serve(t, tc.handler, http2)
				s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					effects.add()
					tc.handler(w, r)
				})), http2)
				bare := post(t, bareServer, "k", "{}")
				original := post(t, s, "k", "{}")
				replay := post(t, s, "k", "{}")
				effects.want(t, 1)

				if original.header[semelhttp.HeaderReplayed] != nil || !replay.replayed() {
					t.Errorf("marked as replayed: original %v, replay %v", original.replayed(), replay.replayed())
				}
				expires := original.header.Get(semelhttp.HeaderExpires)
				if _, err := http.ParseTime(expires); err != nil || replay.header.Get(semelhttp.HeaderExpires) != expires {
					t.Errorf("%s is %q and %q", semelhttp.HeaderExpires, expires, replay.header.Get(semelhttp.HeaderExpires))
				}
				wantEqual(t, "replay", replay, original, ownOrHop...)
				if replay.length != original.length {
					t.Errorf("replay: length %d; want %d", replay.length, original.length)
				}
				wantEqual(t, "original beside the bare handler", original, bare,
					append(tc.alters, "Date", semelhttp.HeaderReplayed, semelhttp.HeaderExpires)...)
				if original.header.Get("Connection") != bare.header.Get("Connection") {
					t.Error("the original lost its Connection field")
				}
				for name, values := range tc.header {
					if !slices.Equal(replay.header[name], values) {
						t.Errorf("replay: %s is %q; want %q", name, replay.header[name], values)
					}
				}
			})
		}
	}
}

// Over HTTP/1.1 a bare handler with a Content-Length loses its trailers.
func TestTrailersBehindALength(t *testing.T) {
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "4")
		w.Header().Set("Trailer", "Checksum")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("Checksum", "abc")
	})), false)
	original, replay := post(t, s, "k", "{}"), post(t, s, "k", "{}")
	wantEqual(t, "replay", replay, original, ownOrHop...)
	if replay.body != "body" || replay.trailer.Get("Checksum") != "abc" {
		t.Errorf("got %q and %v", replay.body, replay.trailer)
	}
}

// The record holds the content type, so that a replay does not guess it.
func TestSniffedTypeIsRecorded(t *testing.T) {
	b := newFixture(t)
	var head []byte
	b.hooks.completed = func(r semel.Result) { head = r.Head }
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	direct(t, h, "k", "{}")
	_, header, _, err := semelhttp.DecodeHead(head)
	if err != nil || header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("recorded %v, %v", header, err)
	}
}

func TestSetCookieIsReplayedToAnActorOnly(t *testing.T) {
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "session=secret")
		w.Header().Set("Trailer", "Set-Cookie")
		_, _ = io.WriteString(w, "hello")
	})), false)
	for _, actor := range []string{"alice", ""} {
		ask := func() answer {
			r := newRequest(t, http.MethodPost, s.URL, "k", "{}")
			r.Header.Set("Actor", actor)
			return mustSend(t, s, r)
		}
		original, replay := ask(), ask()
		if original.header.Get("Set-Cookie") == "" || original.trailer.Get("Set-Cookie") == "" {
			t.Errorf("actor %q: the original lost its cookie: %v %v", actor, original.header, original.trailer)
		}
		if !replay.replayed() || replay.body != "hello" {
			t.Errorf("actor %q: got %v %q", actor, replay.header, replay.body)
		}
		if got := replay.header.Get("Set-Cookie") + replay.trailer.Get("Set-Cookie"); (got != "") != (actor != "") {
			t.Errorf("actor %q: replayed %q", actor, got)
		}
	}
}

// What middleware around this one puts into the header belongs to each request.
func TestHeaderOfOuterMiddlewareIsNotRecorded(t *testing.T) {
	b, requests := newFixture(t), &orders{}
	protected := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		if h.Get("Request-Number") != "1" {
			t.Errorf("the handler saw %v", h)
		}
		h.Add("Vary", "Accept")
		h.Set("Server", "orders")
		h.Del("Cache-Control")
		w.WriteHeader(http.StatusCreated)
	}))
	s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Request-Number", fmt.Sprint(requests.add()))
		w.Header().Set("Vary", "Origin")
		w.Header().Set("Server", "edge")
		w.Header().Set("Cache-Control", "public")
		protected.ServeHTTP(w, r)
	}), false)
	original, replay := post(t, s, "k", "{}"), post(t, s, "k", "{}")
	if original.header.Get("Request-Number") != "1" || replay.header.Get("Request-Number") != "2" {
		t.Errorf("got %v and %v", original.header, replay.header)
	}
	wantEqual(t, "replay", replay, original, append(ownOrHop, "Request-Number")...)
	if h := replay.header; !slices.Equal(h["Vary"], []string{"Origin", "Accept"}) || h.Get("Server") != "orders" || h["Cache-Control"] != nil {
		t.Errorf("got %v", h)
	}
}

func TestNoEffectIsPassedOnAndReleases(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		config  func(*semelhttp.Config)
		status  int
	}{
		{name: "401", handler: status(401), status: 401},
		{name: "407", handler: status(407), status: 407},
		{name: "425", handler: status(425), status: 425},
		{name: "429", handler: status(429), status: 429},
		{name: "503 with Retry-After", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(503)
		}, status: 503},
		{name: "configured", handler: status(418), status: 418, config: func(c *semelhttp.Config) {
			c.NoEffectStatus = func(status int, _ http.Header) bool { return status == 418 }
		}},
		{name: "declared", handler: func(w http.ResponseWriter, r *http.Request) {
			semelhttp.DeclareNoEffect(r.Context(), io.ErrUnexpectedEOF)
			w.WriteHeader(502)
		}, status: 502, config: func(c *semelhttp.Config) {
			c.IndeterminateStatus = func(status int, _ http.Header) bool { return status == 502 }
		}},
		{name: "an event stream", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(429)
			w.(http.Flusher).Flush()
		}, status: 429},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			n := 0
			h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n++; n > 2 {
					effects.ServeHTTP(w, r)
					return
				}
				w.Header().Set("X-Reason", "of the handler")
				tc.handler(w, r)
				_, _ = io.WriteString(w, "nothing happened")
			}), func(c *semelhttp.Config) {
				if tc.config != nil {
					tc.config(c)
				}
			})
			s, _ := serve(t, h, false)
			for range 2 {
				a := post(t, s, "k", "{}")
				if a.status != tc.status || a.body != "nothing happened" || a.header.Get("X-Reason") == "" || a.replayed() || a.header.Get(semelhttp.HeaderExpires) != "" {
					t.Errorf("got %d %v %q", a.status, a.header, a.body)
				}
			}
			if a := post(t, s, "k", "{}"); a.status != http.StatusCreated || a.replayed() {
				t.Errorf("the key is not free: %d %s", a.status, a.body)
			}
			effects.want(t, 1)
		})
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// A refusal that cannot be kept passes as it comes, and frees the key all the same.
func TestLargeNoEffectPasses(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		effects.add()
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		for range 10 {
			if n, err := w.Write(make([]byte, 30)); n != 30 || err != nil {
				t.Errorf("Write gave %d, %v", n, err)
			}
		}
	}), func(c *semelhttp.Config) { c.MaxResult = 100 })
	s, _ := serve(t, h, false)
	for range 2 {
		if a := post(t, s, "k", "{}"); a.status != http.StatusTooManyRequests || len(a.body) != 300 || a.header.Get("Retry-After") != "7" || a.err != nil {
			t.Errorf("got %d %v, %d bytes, %v", a.status, a.header, len(a.body), a.err)
		}
	}
	effects.want(t, 2)
}

func TestIndeterminateIsHeld(t *testing.T) {
	gateway := func(c *semelhttp.Config) {
		c.IndeterminateStatus = func(status int, h http.Header) bool {
			return status == 502 || status == 504 || status == 503 && h.Get("Retry-After") == ""
		}
	}
	declared := func(w http.ResponseWriter, r *http.Request) {
		semelhttp.DeclareNoEffect(r.Context(), nil)
		semelhttp.DeclareIndeterminate(r.Context(), "cut off")
		semelhttp.DeclareNoEffect(r.Context(), nil)
		w.WriteHeader(429)
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		cause   string
	}{
		{"502", status(502), "the handler answered 502"},
		{"504", status(504), "the handler answered 504"},
		{"bare 503", status(503), "the handler answered 503"},
		{"declared", declared, "cut off"},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			_, _ = w.Write(make([]byte, 1000))
		}, "the handler answered 502"},
		{"event stream", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(502)
			w.(http.Flusher).Flush()
			_, _ = w.Write(make([]byte, 1000))
		}, "the handler answered 502"},
		// A body that is not whole is neither recorded nor sent.
		{"shorter than it said", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "12345")
		}, "the response broke off before its Content-Length"},
		{"with a hole", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "12345")
			if _, err := io.WriteString(w, "678901"); err != http.ErrContentLength {
				panic("more was taken than the length allows")
			}
			_, _ = io.WriteString(w, "67890")
		}, "the response broke off before its Content-Length"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				effects.add()
				w.Header().Set("X-Reason", "of the handler")
				tc.handler(w, r)
			}), gateway, func(c *semelhttp.Config) { c.MaxResult = 100 }), false)
			for i := range 2 {
				a := post(t, s, "k", "{}")
				var p semelhttp.Problem
				if i == 0 {
					p = a.wantOwnFailure(t)
				} else {
					p = a.want(t, semelhttp.ProblemOutcomeUnknown)
				}
				if about := []string{"this request took", "An earlier request"}[i]; !strings.Contains(p.Detail, about) {
					t.Errorf("answer %d says %q", i, p.Detail)
				}
				if a.header.Get("X-Reason") != "" {
					t.Errorf("the answer holds the handler's header: %v", a.header)
				}
			}
			effects.want(t, 1)
			records, err := b.store.List(t.Context(), unknownOnly)
			if err != nil || len(records) != 1 || records[0].Cause != tc.cause {
				t.Errorf("got %+v, %v", records, err)
			}
		})
	}
}

func TestMoreThanTheLengthIsCutAsOnTheWire(t *testing.T) {
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "12345")
		if n, err := io.WriteString(w, "6"); n != 0 || err != http.ErrContentLength {
			t.Errorf("Write gave %d, %v", n, err)
		}
	})), false)
	for range 2 {
		if a := post(t, s, "k", "{}"); a.status != http.StatusOK || a.body != "12345" {
			t.Errorf("got %d %q", a.status, a.body)
		}
	}
}

// An upgrade leaves a tombstone; and nobody can take the connection.
func TestUpgradeIsRefused(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		effects.add()
		if _, ok := w.(http.Hijacker); ok {
			t.Error("the writer is a Hijacker")
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("the writer can be unwrapped")
		}
		c := http.NewResponseController(w)
		_, _, err := c.Hijack()
		for what, err := range map[string]error{
			"Hijack": err, "SetReadDeadline": c.SetReadDeadline(time.Time{}),
			"SetWriteDeadline": c.SetWriteDeadline(time.Time{}), "EnableFullDuplex": c.EnableFullDuplex(),
		} {
			if !isNotSupported(err) {
				t.Errorf("%s gave %v", what, err)
			}
		}
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
	})), false)
	for range 2 {
		a := post(t, s, "k", "{}")
		a.want(t, semelhttp.ProblemResultNotRetained)
		if a.header.Get("Upgrade") != "" {
			t.Errorf("header is %v", a.header)
		}
	}
	effects.want(t, 1)
}

func TestHeadTooLargeLeavesATombstone(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		effects.add()
		w.Header().Set("Location", "/orders/1")
		for i := range 100 {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "whole")
	})), false)
	if a := post(t, s, "k", "{}"); a.status != http.StatusCreated || a.body != "whole" || len(a.header.Get("X-99")) != 1000 {
		t.Errorf("got %d %q", a.status, a.body)
	}
	if p := post(t, s, "k", "{}").want(t, semelhttp.ProblemResultNotRetained); p.Reference != "/orders/1" {
		t.Errorf("the reference is %q", p.Reference)
	}
	effects.want(t, 1)
}
