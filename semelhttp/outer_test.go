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
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

type middleware = func(http.Handler) http.Handler

// cors is as CORS middleware is written: what it says depends on the request.
func cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		if origin := r.Header.Get("Origin"); origin != "" {
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Allow-Credentials", "true")
			h.Set("Access-Control-Expose-Headers", strings.Join(semelhttp.IETF().ResponseHeaders(), ", "))
		}
		next.ServeHTTP(w, r)
	})
}

// sessionsAtOnce gives each request a session, and says so before the handler.
func sessionsAtOnce(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: r.Header.Get("Caller")})
		w.Header().Add("Vary", "Cookie")
		next.ServeHTTP(w, r)
	})
}

// sessionsAtLast does it when the header is written, as session managers do that
// save what the handler has changed.
func sessionsAtLast(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&lastMoment{ResponseWriter: w, do: func() {
			http.SetCookie(w, &http.Cookie{Name: "session", Value: r.Header.Get("Caller")})
			w.Header().Add("Vary", "Cookie")
		}}, r)
	})
}

type lastMoment struct {
	http.ResponseWriter
	do    func()
	wrote bool
}

func (w *lastMoment) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *lastMoment) WriteHeader(status int) {
	if !w.wrote {
		w.wrote = true
		w.do()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *lastMoment) Write(p []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// requestID echoes the request's id.
func requestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		next.ServeHTTP(w, r)
	})
}

// serverTiming announces a trailer and has it ready when the handler is done.
func serverTiming(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Trailer", "Server-Timing")
		next.ServeHTTP(w, r)
		w.Header().Set("Server-Timing", "total;dur="+r.Header.Get("Caller"))
	})
}

// recovers answers for a panic, of whatever kind, as careless ones do.
func recovers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				http.Error(w, "sorry", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// gzips compresses for those who can read it, in the few lines that are copied
// from one program to the next: it leaves a Content-Length alone.
func gzips(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer func() { _ = z.Close() }()
		next.ServeHTTP(gzipWriter{w, z}, r)
	})
}

// gzipsWithCare is as compression middleware of some name does it: once the
// header is written, and without the length.
func gzipsWithCare(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		z := gzip.NewWriter(w)
		defer func() { _ = z.Close() }()
		next.ServeHTTP(gzipWriter{&lastMoment{ResponseWriter: w, do: func() {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Del("Content-Length")
		}}, z}, r)
	})
}

type gzipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w gzipWriter) Write(p []byte) (int, error) { return w.z.Write(p) }

func (w gzipWriter) Flush() {
	_ = w.z.Flush()
	w.ResponseWriter.(http.Flusher).Flush()
}

func timesOut(next http.Handler) http.Handler {
	return http.TimeoutHandler(next, time.Hour, "too late")
}

// read returns the answer as who understands its encoding sees it.
func (a answer) read(t testing.TB) answer {
	t.Helper()
	if a.header.Get("Content-Encoding") != "gzip" {
		return a
	}
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		t.Fatalf("no gzip in %d bytes: %v", len(a.body), err)
	}
	body, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("gzip of %d bytes: %v", len(a.body), err)
	}
	a.body = string(body)
	return a
}

// caller is who asks, as middleware sees it.
type caller struct {
	name, origin, encoding string
}

func (c caller) ask(t testing.TB, url, key string) *http.Request {
	r := newRequest(t, http.MethodPost, url, key, `{"item":"book"}`)
	r.Header.Set("Caller", c.name)
	r.Header.Set("X-Request-Id", "request-"+c.name)
	r.Header.Set("Origin", c.origin)
	if c.encoding != "" {
		r.Header.Set("Accept-Encoding", c.encoding)
	}
	return r
}

// A replay is the first answer as a client sees it, apart from what stands around
// the protection: that speaks of the request at hand.
func TestReplayUnderOuterMiddleware(t *testing.T) {
	around := []struct {
		name string
		mw   middleware
		says func(c caller, handler http.Header) http.Header // what is to be seen of it
	}{
		{"cors", cors, func(c caller, h http.Header) http.Header {
			return http.Header{"Vary": append([]string{"Origin"}, h["Vary"]...), "Access-Control-Allow-Origin": {c.origin}}
		}},
		{"sessions at once", sessionsAtOnce, func(c caller, h http.Header) http.Header {
			return http.Header{"Set-Cookie": append([]string{"session=" + c.name}, h["Set-Cookie"]...), "Vary": append([]string{"Cookie"}, h["Vary"]...)}
		}},
		{"sessions at last", sessionsAtLast, func(c caller, h http.Header) http.Header {
			// The handler's is written in another case, which comes behind.
			return http.Header{"Set-Cookie": append([]string{"session=" + c.name}, h["Set-Cookie"]...), "Vary": append(slices.Clone(h["Vary"]), "Cookie")}
		}},
		{"request id", requestID, func(c caller, _ http.Header) http.Header {
			return http.Header{"X-Request-Id": {"request-" + c.name}}
		}},
		{"a trailer", serverTiming, func(caller, http.Header) http.Header { return nil }},
		{"recover", recovers, func(caller, http.Header) http.Header { return nil }},
		{"gzip", gzips, func(c caller, h http.Header) http.Header {
			want := http.Header{"Vary": append([]string{"Accept-Encoding"}, h["Vary"]...), "Content-Encoding": nil}
			if c.encoding != "" {
				want["Content-Encoding"] = []string{"gzip"}
			}
			return want
		}},
		{"gzip with care", gzipsWithCare, func(c caller, h http.Header) http.Header {
			want := http.Header{"Vary": append([]string{"Accept-Encoding"}, h["Vary"]...), "Content-Encoding": nil}
			if c.encoding != "" {
				want["Content-Encoding"] = []string{"gzip"}
			}
			return want
		}},
		{"http.TimeoutHandler", timesOut, func(caller, http.Header) http.Header { return nil }},
	}
	bodies := []struct {
		name  string
		body  []byte
		trail bool
	}{
		{"small", []byte(`{"id":7}`), false},
		{"none", nil, false},
		{"in pieces", bytes.Repeat([]byte(`{"id":7} `), 40_000), false},
		{"with trailers", []byte(`{"id":7}`), true},
	}
	callers := []caller{{"1", "https://a.example", "gzip"}, {"2", "https://b.example", ""}, {"3", "https://c.example", "gzip"}}

	for _, http2 := range []bool{false, true} {
		for _, m := range around {
			for _, tc := range bodies {
				t.Run(fmt.Sprintf("http2=%v/%s/%s", http2, m.name, tc.name), func(t *testing.T) {
					b, effects := newFixture(t), &orders{}
					sent := http.Header{
						"Content-Type": {"application/json"}, "Vary": {"Accept"}, "Set-Cookie": {"basket=7"},
						"Location": {"/orders/7"}, "X-Own": {"a", "b"},
					}
					s, _ := serve(t, m.mw(b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						effects.add()
						h := w.Header()
						for name, values := range sent {
							if name == "Set-Cookie" {
								name = "set-cookie" // raw
								if before := h["Set-Cookie"]; len(before) > 0 {
									name = "Set-Cookie"
								}
							}
							h[name] = append(h[name], values...)
						}
						if tc.trail {
							h.Add("Trailer", "X-Sum")
						}
						w.WriteHeader(http.StatusCreated)
						_, _ = w.Write(tc.body)
						if tc.trail {
							h.Set("X-Sum", "42")
						}
					}))), http2)

					var first answer
					for i, c := range callers {
						a := mustSend(t, s, c.ask(t, s.URL+"/orders", "k")).read(t)
						if a.err != nil || a.status != 201 || a.body != string(tc.body) {
							t.Fatalf("caller %s: %d, %d bytes, %v; want %d bytes", c.name, a.status, len(a.body), a.err, len(tc.body))
						}
						if a.replayed() != (i > 0) {
							t.Errorf("caller %s: %v", c.name, a.header)
						}
						if tc.trail && m.name != "http.TimeoutHandler" && a.trailer.Get("X-Sum") != "42" {
							t.Errorf("caller %s: trailers %v", c.name, a.trailer)
						}
						if m.name == "a trailer" && a.trailer.Get("Server-Timing") != "total;dur="+c.name {
							t.Errorf("caller %s: trailers %v", c.name, a.trailer)
						}
						says := m.says(c, sent)
						for name, want := range says {
							if got := a.header[name]; !slices.Equal(got, want) {
								t.Errorf("caller %s: %s is %q; want %q", c.name, name, got, want)
							}
						}
						if i == 0 {
							first = a
							continue
						}
						apart := append(slices.Collect(maps.Keys(says)), ownOrHop...)
						apart = append(apart, "Content-Length") // of what was compressed or not
						got, want := without(a.header, apart...), without(first.header, apart...)
						delete(got, "Access-Control-Expose-Headers")
						delete(want, "Access-Control-Expose-Headers")
						if !maps.EqualFunc(got, want, slices.Equal) {
							t.Errorf("caller %s: header\n%v; want\n%v", c.name, got, want)
						}
					}
					effects.want(t, 1)

					// A problem is one too.
					other := callers[0].ask(t, s.URL+"/orders", "k")
					other.Body = io.NopCloser(strings.NewReader(`{"item":"pen"}`))
					other.ContentLength = -1
					p := mustSend(t, s, other).read(t)
					if p.err != nil {
						t.Fatal(p.err)
					}
					p.want(t, semelhttp.ProblemKeyMismatch)
				})
			}
		}
	}
}

// The header of middleware inside the protection is replayed as it was.
func TestReplayOfInnerMiddleware(t *testing.T) {
	for name, mw := range map[string]middleware{
		"cors": cors, "sessions at once": sessionsAtOnce, "sessions at last": sessionsAtLast, "request id": requestID,
		"gzip": gzips, "gzip with care": gzipsWithCare, "recover": recovers, "http.TimeoutHandler": timesOut,
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("http2=%v/%s", http2, name), func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				s, _ := serve(t, b.protect(t, mw(effects)), http2)
				first := mustSend(t, s, caller{"1", "https://a.example", "gzip"}.ask(t, s.URL+"/orders", "k"))
				replay := mustSend(t, s, caller{"2", "https://b.example", ""}.ask(t, s.URL+"/orders", "k"))
				if first.status != 201 || !replay.replayed() {
					t.Fatalf("%d %v", first.status, replay.header)
				}
				wantEqual(t, "replay", replay, first, ownOrHop...)
				effects.want(t, 1)
			})
		}
	}
}

// Where callers are not told apart nobody gets the cookie that the handler gave
// another, however it was written, whatever stands around, and whichever way the
// answer is asked for.
func TestNoCookieReachesAnother(t *testing.T) {
	const secret = "secret-of-the-first"
	for name, set := range map[string]func(h http.Header){
		"added":                func(h http.Header) { h.Add("Set-Cookie", "a="+secret) },
		"set":                  func(h http.Header) { h.Set("Set-Cookie", "a="+secret) },
		"raw":                  func(h http.Header) { h["set-cookie"] = []string{"a=" + secret} },
		"raw and added":        func(h http.Header) { h["SET-cookie"] = []string{"a=" + secret}; h.Add("Set-Cookie", "b="+secret) },
		"before the session's": func(h http.Header) { h["Set-Cookie"] = append([]string{"a=" + secret}, h["Set-Cookie"]...) },
		"instead of it":        func(h http.Header) { h.Del("Set-Cookie"); h["set-cookie"] = []string{"a=" + secret} },
		"as an announced trailer": func(h http.Header) {
			h.Add("Trailer", "Set-Cookie")
		},
		"as a trailer": func(h http.Header) { h[http.TrailerPrefix+"Set-Cookie"] = []string{"a=" + secret} },
		"as a raw one": func(h http.Header) { h[http.TrailerPrefix+"set-cookie"] = []string{"a=" + secret} },
	} {
		for around, mw := range map[string]middleware{
			"nothing": func(h http.Handler) http.Handler { return h }, "sessions at once": sessionsAtOnce, "sessions at last": sessionsAtLast,
		} {
			t.Run(name+"/"+around, func(t *testing.T) {
				b := newFixture(t)
				h := b.withResources(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					set(w.Header())
					w.WriteHeader(201)
					_, _ = io.WriteString(w, "done")
					if name == "as an announced trailer" {
						w.Header().Set("Set-Cookie", "a="+secret)
					}
				}), semelhttp.ResourcesConfig{})
				s, _ := serve(t, mw(h), false)
				ask := func(method, path, who string) answer {
					r := newRequest(t, method, s.URL+path, "k", "{}")
					r.Header.Set("Actor", "")
					r.Header.Set("Caller", who)
					if method == http.MethodGet {
						r.Body = nil
						r.ContentLength = 0
					}
					return mustSend(t, s, r)
				}
				if a := ask("POST", "/orders", "1"); !strings.Contains(fmt.Sprint(a.header, a.trailer), secret) {
					t.Fatalf("its own caller has no cookie: %v %v", a.header, a.trailer)
				}
				records, err := b.store.List(t.Context(), semel.Filter{})
				if err != nil || len(records) != 1 {
					t.Fatal(records, err)
				}
				for _, a := range []answer{
					ask("POST", "/orders", "2"),
					ask("GET", semelhttp.DefaultPrefix+"/operations/"+records[0].ID, "2"),
					ask("GET", semelhttp.DefaultPrefix+"/operations/"+records[0].ID+"/result", "2"),
				} {
					if a.status != 200 && a.status != 201 {
						t.Errorf("status %d", a.status)
					}
					if got := fmt.Sprint(a.header, a.trailer, a.body); strings.Contains(got, secret) {
						t.Errorf("another has got %v", got)
					}
					if got := fmt.Sprint(a.header, a.trailer); strings.Contains(got, "session=1") {
						t.Errorf("another has got the first's session: %v", got)
					}
					if around != "nothing" && !slices.Contains(a.header["Set-Cookie"], "session=2") {
						t.Errorf("the request at hand has lost its session: %v", a.header)
					}
				}
			})
		}
	}
}

// Mounts whose prefix a router takes away are as many operations, and as many
// fingerprints.
func TestStripPrefixDoesNotMergeOperations(t *testing.T) {
	for _, scope := range []string{"", "money"} { // by the path, or by a name that they share
		for _, outside := range []bool{true, false} {
			t.Run(fmt.Sprintf("operation=%q/stripped-outside=%v", scope, outside), func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				mux := http.NewServeMux()
				for _, mount := range []string{"/charge", "/refund", "/v2/refund"} {
					h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						effects.add()
						_, _ = io.WriteString(w, mount+" "+r.URL.Path)
					}))
					protect := func(h http.Handler) http.Handler {
						return b.protect(t, h, func(c *semelhttp.Config) {
							c.Scope = func(*http.Request) (semel.Scope, error) {
								return semel.Scope{Actor: "alice", Operation: scope}, nil
							}
						})
					}
					if outside {
						h = http.StripPrefix(mount, protect(h))
					} else {
						h = protect(http.StripPrefix(mount, h))
					}
					mux.Handle(mount+"/", h)
				}
				s, _ := serve(t, mux, false)
				executed := 0
				for _, path := range []string{"/charge/42", "/refund/42", "/v2/refund/42", "/charge/42?x=1"} {
					for again := range 2 {
						a := mustSend(t, s, newRequest(t, http.MethodPost, s.URL+path, "k", "{}"))
						mount, _, _ := strings.Cut(path, "/42")
						switch {
						case scope != "" && path != "/charge/42", path == "/charge/42?x=1":
							a.want(t, semelhttp.ProblemKeyMismatch) // one name, or one path, for two requests
						case a.status != 200 || a.body != mount+" /42" || a.replayed() != (again == 1):
							t.Errorf("%s: %d %q, replayed %v", path, a.status, a.body, a.replayed())
						case again == 0:
							executed++
						}
					}
				}
				effects.want(t, executed)
			})
		}
	}
}

// A panic travels on to whoever recovers from it around. If that brings the
// answer to its end, what has passed until then must not look like all of it.
func TestStreamThatPanicsIsSeenToBreakUnderRecover(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			b := newFixture(t)
			s, _ := serve(t, recovers(b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: 1\n\n")
				w.(http.Flusher).Flush()
				if r.URL.Path == "/doubtful" {
					semelhttp.DeclareIndeterminate(r.Context(), "asked to")
					return
				}
				panic("boom")
			}))), http2)
			for _, path := range []string{"/panics", "/doubtful"} {
				a, err := send(s.Client(), newRequest(t, http.MethodPost, s.URL+path, "k", "{}"))
				if err == nil && a.err == nil {
					t.Errorf("%s: %d %q looks whole", path, a.status, a.body)
				}
				mustSend(t, s, newRequest(t, http.MethodPost, s.URL+path, "k", "{}")).want(t, semelhttp.ProblemOutcomeUnknown)
			}
		})
	}
}

// A handler that outlasts the http.TimeoutHandler around it goes on, and who asks
// again has its answer.
func TestTimeoutHandlerAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		goOn, done := make(chan struct{}), make(chan struct{})
		slow := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-goOn
			if r.Context().Err() != nil {
				t.Error("the handler was cancelled")
			}
			effects.ServeHTTP(w, r)
		}))
		waited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(done)
			slow.ServeHTTP(w, r)
		})
		if a := direct(t, http.TimeoutHandler(waited, time.Second, "too late"), "k", "{}"); a.status != http.StatusServiceUnavailable || a.body != "too late" {
			t.Fatalf("%d %q", a.status, a.body)
		}
		close(goOn)
		<-done
		if a := direct(t, slow, "k", "{}"); a.status != 201 || !a.replayed() {
			t.Errorf("%d %v", a.status, a.header)
		}
		effects.want(t, 1)
	})
}

// Likewise a replay whose record cannot be read to its end.
func TestReplayThatBreaksOffIsSeenToBreakUnderRecover(t *testing.T) {
	withoutCollector(t)
	for _, http2 := range []bool{false, true} {
		l := serveLarge(t, http2, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Sum") // so it has no length
			_, _ = io.Copy(w, noise(3*semel.PieceBytes))
			w.Header().Set("Sum", "1")
		})
		post(t, l.Server, "k", "{}")
		l.store.failRead(func(n int) error {
			if n == 2 {
				return io.ErrUnexpectedEOF
			}
			return nil
		})
		s, _ := serve(t, recovers(l.Config.Handler), http2)
		if a, err := send(s.Client(), newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")); err == nil && a.err == nil {
			t.Errorf("http2=%v: %d bytes look whole", http2, len(a.body))
		}
	}
}
