package semelhttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

func TestNewNamesEverythingWrong(t *testing.T) {
	_, err := semelhttp.New(semelhttp.Config{
		MaxRequestBody: -1, MaxResult: -1, MaxInline: -1, KeyRules: semel.KeyRules{MinLength: -1},
		Fingerprint: semelhttp.FingerprintConfig{Exclude: []string{"no pointer"}},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Guard", "Scope", "MaxRequestBody", "MaxResult", "MaxInline", "key rules", "no pointer"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

// What stands before the store.
func TestRequestsThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		edit   func(*semelhttp.Config)
		change func(*http.Request)
		want   semelhttp.ProblemCase
		detail string
	}{
		{
			name: "missing", change: func(r *http.Request) { r.Header.Del(semelhttp.HeaderKey) },
			edit: func(c *semelhttp.Config) { c.RequireKey = true }, want: semelhttp.ProblemKeyMissing,
		},
		// Bug 46.
		{name: "empty", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, "") }, want: semelhttp.ProblemKeyMalformed},
		{name: "empty string", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, `""`) }, want: semelhttp.ProblemKeyMalformed},
		{name: "malformed", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, `"k`) }, want: semelhttp.ProblemKeyMalformed},
		{name: "too long", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, strings.Repeat("k", 256)) }, want: semelhttp.ProblemKeyMalformed},
		// Bug 47.
		{name: "two lines", change: func(r *http.Request) { r.Header[semelhttp.HeaderKey] = []string{"k", "k"} }, want: semelhttp.ProblemKeyMalformed},
		{name: "two keys in a line", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, "k, k") }, want: semelhttp.ProblemKeyMalformed},
		{
			name: "not strict", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, "bare") },
			edit: func(c *semelhttp.Config) { c.StrictKey = true }, want: semelhttp.ProblemKeyMalformed,
		},
		{
			name: "against the rules", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, "order-42") },
			edit: func(c *semelhttp.Config) { c.KeyRules = semel.KeyRules{RequireUUID: true, RefuseSerials: true} },
			want: semelhttp.ProblemKeyMalformed, detail: "UUID of version 4 or 7; the key reads as a serial number",
		},
		{
			name: "body of known length too large", change: func(r *http.Request) { setBody(r, strings.NewReader(strings.Repeat("x", 101)), 101) },
			edit: func(c *semelhttp.Config) { c.MaxRequestBody = 100 }, want: semelhttp.ProblemBodyTooLarge, detail: "100 bytes",
		},
		{
			name: "body of unknown length too large", change: func(r *http.Request) { setBody(r, strings.NewReader(strings.Repeat("x", 101)), -1) },
			edit: func(c *semelhttp.Config) { c.MaxRequestBody = 100 }, want: semelhttp.ProblemBodyTooLarge, detail: "100 bytes",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			b.hooks.begin = func() error { t.Error("the store was asked"); return nil }
			edit := tc.edit
			if edit == nil {
				edit = func(*semelhttp.Config) {}
			}
			s, _ := serve(t, b.protect(t, effects, edit), false)
			r := newRequest(t, http.MethodPost, s.URL+"/orders", "secret-key", `{}`)
			tc.change(r)
			a := mustSend(t, s, r)
			p := a.want(t, tc.want)
			if !strings.Contains(p.Detail, tc.detail) || !strings.Contains(p.Detail, "Nothing was executed.") && !strings.Contains(p.Detail, "not executed") {
				t.Errorf("detail is %q", p.Detail)
			}
			if strings.Contains(a.body, "order-42") || strings.Contains(a.body, "secret-key") {
				t.Error("the problem holds the key")
			}
			if a.header.Get("Cache-Control") != "no-store" || a.header.Get("Retry-After") != "" {
				t.Errorf("header is %v", a.header)
			}
			effects.want(t, 0)
		})
	}
}

func setBody(r *http.Request, body io.Reader, length int64) {
	r.Body, r.ContentLength = io.NopCloser(body), length
}

type untouchable struct{ t *testing.T }

func (u untouchable) Read([]byte) (int, error) { u.t.Error("the body was read"); return 0, io.EOF }

func TestBodyKnownToBeTooLargeIsNotRead(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, &orders{}, func(c *semelhttp.Config) { c.MaxRequestBody = 100 })
	r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "")
	setBody(r, untouchable{t}, 101)
	directRequest(h, r).want(t, semelhttp.ProblemBodyTooLarge)
}

// What a proxy behind would act on although it has been dealt with here.
func TestHandlerCannotSendTheBodyAgain(t *testing.T) {
	b := newFixture(t)
	h := b.protect(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.GetBody != nil {
			t.Error("the request has a GetBody")
		}
		if _, ok := r.Body.(io.Seeker); ok {
			t.Error("the body can be rewound")
		}
		if r.Header.Get("Expect") != "" {
			t.Error("the request still expects something")
		}
	}))
	for _, body := range []string{"{}", ""} {
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k"+body, body)
		r.Header.Set("Expect", "100-continue")
		r.GetBody = func() (io.ReadCloser, error) { return http.NoBody, nil }
		if a := directRequest(h, r); a.status != http.StatusOK {
			t.Errorf("got %d", a.status)
		}
	}
}

func TestLargestBodyPasses(t *testing.T) {
	for _, length := range []int64{100, -1} {
		b := newFixture(t)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprint(w, len(body), err, r.ContentLength, r.TransferEncoding, r.GetBody == nil)
		})
		s, _ := serve(t, b.protect(t, h, func(c *semelhttp.Config) { c.MaxRequestBody = 100 }), false)
		r := newRequest(t, http.MethodPost, s.URL, "k", "")
		setBody(r, strings.NewReader(strings.Repeat("x", 100)), length)
		if a := mustSend(t, s, r); a.body != "100 <nil> 100 [] true" {
			t.Errorf("with length %d the handler saw %q", length, a.body)
		}
	}
}

// The sizes are around those at which reading grows its buffer.
func TestBodyArrivesWhole(t *testing.T) {
	b := newFixture(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	s, _ := serve(t, b.protect(t, h, func(c *semelhttp.Config) { c.MaxResult = 1 << 20 }), false)
	for _, n := range []int{0, 1, 511, 512, 513, 64<<10 - 1, 64 << 10, 64<<10 + 1, 128 << 10, 200_001} {
		body := make([]byte, n)
		for i := range body {
			body[i] = byte(i * 31)
		}
		for _, length := range []int64{int64(n), -1} {
			r := newRequest(t, http.MethodPost, s.URL, fmt.Sprintf("k%d/%d", n, length), "")
			setBody(r, bytes.NewReader(body), length)
			if a := mustSend(t, s, r); a.body != string(body) {
				t.Errorf("%d bytes with length %d came back as %d", n, length, len(a.body))
			}
		}
	}
}

func TestBodyCutOffMidUploadExecutesNothing(t *testing.T) {
	for name, head := range map[string]string{
		"length":  "Content-Length: 100\r\n\r\n{\"item\":",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"item\":\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			b.hooks.begin = func() error { t.Error("the store was asked"); return nil }
			s, _ := serve(t, b.protect(t, effects), false)
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\n"+head)
			_ = conn.(*net.TCPConn).CloseWrite()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) || !bytes.Contains(got, []byte("#body-unreadable")) {
				t.Errorf("got %q, %v", got, err)
			}
			effects.want(t, 0)
		})
	}
}

// A body that is gone would make all requests equal.
func TestBodyReadBeforeIsRefused(t *testing.T) {
	for name, read := range map[string]func(*http.Request){
		"read":                   func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"form of unknown length": func(r *http.Request) { _ = r.ParseForm() },
	} {
		t.Run(name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			protected := b.protect(t, effects)
			s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				read(r)
				protected.ServeHTTP(w, r)
			}), false)
			r := newRequest(t, http.MethodPost, s.URL, "k", "a=b")
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if strings.Contains(name, "unknown") {
				r.ContentLength = -1
			}
			if a := mustSend(t, s, r); a.status != http.StatusInternalServerError || a.problem(t).Retry != semel.RetryNo {
				t.Errorf("got %d %s", a.status, a.body)
			}
			effects.want(t, 0)
		})
	}
}

func TestEmptyFormParsedBeforeIsFine(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	protected := b.protect(t, effects)
	s, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.FormValue("q")
		protected.ServeHTTP(w, r)
	}), false)
	if a := post(t, s, "k", ""); a.status != http.StatusCreated {
		t.Errorf("got %d %s", a.status, a.body)
	}
	effects.want(t, 1)
}

func TestRequestTrailersReachTheHandler(t *testing.T) {
	b := newFixture(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, string(body), r.Trailer, r.ContentLength)
	})
	s, _ := serve(t, b.protect(t, h), false)
	r := newRequest(t, http.MethodPost, s.URL, "k", "")
	setBody(r, strings.NewReader("{}"), -1)
	r.Trailer = http.Header{"Checksum": {"abc"}}
	if a := mustSend(t, s, r); a.body != "{}map[Checksum:[abc]] -1" {
		t.Errorf("the handler saw %q", a.body)
	}
}

func TestPassesUnprotected(t *testing.T) {
	for _, tc := range []struct {
		name, method, key string
		protects          func(*http.Request) bool
	}{
		{name: "GET", method: http.MethodGet, key: "k"},
		{name: "HEAD", method: http.MethodHead, key: "k", protects: func(*http.Request) bool { return true }},
		{name: "CORS preflight", method: http.MethodOptions, key: "k", protects: func(*http.Request) bool { return true }},
		{name: "TRACE", method: http.MethodTrace, key: "k", protects: func(*http.Request) bool { return true }},
		{name: "PUT by default", method: http.MethodPut, key: "k"},
		{name: "DELETE by default", method: http.MethodDelete, key: "k"},
		{name: "POST by configuration", method: http.MethodPost, key: "k", protects: func(*http.Request) bool { return false }},
		{name: "no key", method: http.MethodPost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			b.hooks.begin = func() error { t.Error("the store was asked"); return nil }
			h := b.protect(t, effects, func(c *semelhttp.Config) { c.Protects = tc.protects })
			s, _ := serve(t, h, false)
			for range 2 {
				r := newRequest(t, tc.method, s.URL+"/orders", tc.key, "")
				if a := mustSend(t, s, r); a.status != http.StatusCreated || a.header.Get(semelhttp.HeaderExpires) != "" {
					t.Errorf("got %d, %v", a.status, a.header)
				}
			}
			effects.want(t, 2)
		})
	}
}

func TestProtectedByDefaultOrConfiguration(t *testing.T) {
	all := func(*http.Request) bool { return true }
	for method, protects := range map[string]func(*http.Request) bool{
		http.MethodPost: nil, http.MethodPatch: nil, http.MethodPut: all, http.MethodDelete: all,
	} {
		b, effects := newFixture(t), &orders{}
		s, _ := serve(t, b.protect(t, effects, func(c *semelhttp.Config) { c.Protects = protects }), false)
		for i := range 2 {
			a := mustSend(t, s, newRequest(t, method, s.URL+"/orders", "k", "{}"))
			if a.status != http.StatusCreated || a.replayed() != (i == 1) {
				t.Errorf("%s: got %d, replayed %v", method, a.status, a.replayed())
			}
		}
		effects.want(t, 1)
	}
}

// Bugs 28 and 29: the same key elsewhere is another identity, and bug 26: here it
// is the same.
func TestScopes(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, effects), false)
	type id struct{ tenant, actor, method, path string }
	ask := func(i id) answer {
		r := newRequest(t, i.method, s.URL+i.path, "k", "{}")
		r.Header.Set("Tenant", i.tenant)
		r.Header.Set("Actor", i.actor)
		return mustSend(t, s, r)
	}
	long := strings.Repeat("/é", 200)
	for i, id := range []id{
		{"t1", "alice", "POST", "/orders"},
		{"t2", "alice", "POST", "/orders"},
		{"t1", "bob", "POST", "/orders"},
		{"t1", "alice", "PATCH", "/orders"},
		{"t1", "alice", "POST", "/payments"},
		{"t1", "alice", "POST", long},
		{"t1", "alice", "POST", long + "a"},
		{"t1", "alice", "POST", "/%0a"},
		{"t1", "alice", "POST", "/%ff"},
	} {
		first, second := ask(id), ask(id)
		want := fmt.Sprintf(`{"id":%d}`, i+1)
		if first.status != http.StatusCreated || first.body != want || first.replayed() {
			t.Errorf("%v: first answer is %d %s, replayed %v", id, first.status, first.body, first.replayed())
		}
		if second.status != http.StatusCreated || second.body != want || !second.replayed() {
			t.Errorf("%v: second answer is %d %s, replayed %v", id, second.status, second.body, second.replayed())
		}
	}
	effects.want(t, 9)
}

// Another caller's key leaves no trace in an answer, whatever state its record is
// in: it is the answer to a key that nobody has used.
func TestAnotherCallersKeyIsLikeANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := func(h http.Handler, actor, key, body string) answer {
			r := newRequest(t, http.MethodPost, "http://shop.example/orders", key, body)
			r.Header.Set("Actor", actor)
			return directRequest(h, r)
		}
		goOn := make(chan struct{})
		newHandler := func() http.Handler {
			return newFixture(t).protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Actor") == "mallory" {
					_, _ = io.WriteString(w, "mallory's own")
					return
				}
				switch body, _ := io.ReadAll(r.Body); string(body) {
				case "running":
					<-goOn
				case "unknown":
					semelhttp.DeclareIndeterminate(r.Context(), "cut off")
				case "tombstone":
					_, _ = w.Write(make([]byte, 1000))
				}
				_, _ = io.WriteString(w, "secret")
			}), func(c *semelhttp.Config) { c.MaxResult = 100 })
		}
		h := newHandler()
		fresh := ask(newHandler(), "mallory", "unused", "completed")
		for _, state := range []string{"completed", "running", "unknown", "tombstone"} {
			go ask(h, "alice", state, state)
			synctest.Wait()
			wantEqual(t, state, ask(h, "mallory", state, state), fresh)
		}
		close(goOn)
		synctest.Wait()
	})
}

func TestScopeRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		err    error
		status int
		retry  semel.RetryAdvice
	}{
		{"any error", errors.New("secret reason"), 401, semel.RetrySameKey},
		{"no status", &semelhttp.ScopeError{Err: errors.New("secret reason")}, 401, semel.RetrySameKey},
		{"status of no error", &semelhttp.ScopeError{Status: 200}, 401, semel.RetrySameKey},
		{"401", &semelhttp.ScopeError{Status: 401, Header: http.Header{"Www-Authenticate": {"Bearer"}}}, 401, semel.RetrySameKey},
		{"403", fmt.Errorf("wrapped: %w", &semelhttp.ScopeError{Status: 403, Err: errors.New("secret reason")}), 403, semel.RetryNo},
		{"503", &semelhttp.ScopeError{Status: 503}, 503, semel.RetrySameKey},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, effects := newFixture(t), &orders{}
			b.hooks.begin = func() error { t.Error("the store was asked"); return nil }
			h := b.protect(t, effects, func(c *semelhttp.Config) {
				c.Scope = func(*http.Request) (semel.Scope, error) { return semel.Scope{}, tc.err }
			})
			a := direct(t, h, "k", "{}")
			p := a.problem(t)
			if a.status != tc.status || p.Status != tc.status || p.Retry != tc.retry || strings.Contains(a.body, "secret") {
				t.Errorf("got %d %s", a.status, a.body)
			}
			if tc.name == "401" && a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Error("the challenge is missing")
			}
			effects.want(t, 0)
		})
	}
}

func TestScopeThatIsNoIdentity(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	h := b.protect(t, effects, func(c *semelhttp.Config) {
		c.Scope = func(*http.Request) (semel.Scope, error) {
			return semel.Scope{Actor: strings.Repeat("a", 256), Operation: "o"}, nil
		}
	})
	if a := direct(t, h, "k", "{}"); a.status != http.StatusInternalServerError || a.problem(t).Retry != semel.RetryNo {
		t.Errorf("got %d %s", a.status, a.body)
	}
	effects.want(t, 0)
}

func TestOriginIsOnTheTrail(t *testing.T) {
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, &orders{}), false)
	r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", "{}")
	r.Header.Set("X-Request-Id", "req-1")
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	mustSend(t, s, r)
	entries, err := b.store.Trail(t.Context(), semel.TrailFilter{RequestID: "req-1", TraceID: "0af7651916cd43dd8448eb211c80319c"})
	if err != nil || len(entries) != 1 || entries[0].Kind != semel.TrailExecuted || entries[0].Label != "201" || entries[0].Operation != "POST /orders" {
		t.Errorf("got %+v, %v", entries, err)
	}
}

func TestExpiresTellsTheEndOfRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		h := b.protect(t, effects)
		time.Sleep(1500 * time.Millisecond)
		want := time.Now().Add(24 * time.Hour).UTC().Format(http.TimeFormat)
		first := direct(t, h, "k", "{}")
		time.Sleep(24*time.Hour - time.Second)
		second := direct(t, h, "k", "{}")
		if first.header.Get(semelhttp.HeaderExpires) != want || second.header.Get(semelhttp.HeaderExpires) != want {
			t.Errorf("got %q and %q; want %q", first.header.Get(semelhttp.HeaderExpires), second.header.Get(semelhttp.HeaderExpires), want)
		}
		if first.replayed() || !second.replayed() { // bug 27
			t.Error("not marked right")
		}
		time.Sleep(time.Second)
		if third := direct(t, h, "k", "{}"); third.replayed() || third.body != `{"id":2}` {
			t.Errorf("after retention: %s, replayed %v", third.body, third.replayed())
		}
		effects.want(t, 2)
	})
}

// Bug 37: a mismatch is seen in every state, and changes nothing.
func TestMismatchInEveryState(t *testing.T) {
	type state struct {
		name string
		// put brings the record of key k with body {} into the state.
		put  func(t *testing.T, b *fixture, h http.Handler)
		then func(t *testing.T, a answer) // the answer to the right request
	}
	begin := func(t *testing.T, b *fixture, lease time.Duration) semel.Claim {
		t.Helper()
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "")
		f, err := semelhttp.NewFingerprinter(semelhttp.FingerprintConfig{})
		if err != nil {
			t.Fatal(err)
		}
		id := semel.Identity{Scope: semel.Scope{Actor: "alice", Operation: "POST /orders"}, Key: "k"}
		c, err := b.store.Store.Begin(t.Context(), semel.NewAttempt(id, f.Fingerprint(r.Method, r.URL, r.Header, []byte("{}")), lease, time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, s := range []state{
		{
			"in progress",
			func(t *testing.T, b *fixture, _ http.Handler) { begin(t, b, 15*time.Second) },
			func(t *testing.T, a answer) {
				a.want(t, semelhttp.ProblemInProgress)
				if got := a.header.Get("Retry-After"); got != "5" {
					t.Errorf("Retry-After is %q", got)
				}
			},
		},
		{
			"nearly lapsed",
			func(t *testing.T, b *fixture, _ http.Handler) {
				begin(t, b, 15*time.Second)
				time.Sleep(15*time.Second - time.Millisecond)
			},
			func(t *testing.T, a answer) {
				a.want(t, semelhttp.ProblemInProgress)
				if got := a.header.Get("Retry-After"); got != "1" {
					t.Errorf("Retry-After is %q", got)
				}
			},
		},
		{
			"lapsed",
			func(t *testing.T, b *fixture, _ http.Handler) {
				begin(t, b, 15*time.Second)
				time.Sleep(16 * time.Second)
			},
			func(t *testing.T, a answer) {
				a.want(t, semelhttp.ProblemOutcomeUnknown)
				if got := a.header.Get("Retry-After"); got != "" {
					t.Errorf("Retry-After is %q", got)
				}
			},
		},
		{
			"unknown",
			func(t *testing.T, b *fixture, _ http.Handler) {
				if err := begin(t, b, 15*time.Second).Hold(t.Context(), "cut off"); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, a answer) { a.want(t, semelhttp.ProblemOutcomeUnknown) },
		},
		{
			"completed",
			func(t *testing.T, b *fixture, h http.Handler) {
				if a := direct(t, h, "k", "{}"); a.status != http.StatusCreated {
					t.Fatalf("got %d %s", a.status, a.body)
				}
			},
			func(t *testing.T, a answer) {
				if a.status != http.StatusCreated || !a.replayed() {
					t.Errorf("got %d, replayed %v", a.status, a.replayed())
				}
			},
		},
		{
			"tombstone",
			func(t *testing.T, b *fixture, h http.Handler) {
				r := semel.Result{Codec: semelhttp.CodecHTTP, Tombstone: true, Reference: "/orders/1"}
				if _, err := begin(t, b, 15*time.Second).Complete(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, a answer) {
				if p := a.want(t, semelhttp.ProblemResultNotRetained); p.Reference != "/orders/1" {
					t.Errorf("the reference is %q", p.Reference)
				}
				if a.header.Get(semelhttp.HeaderExpires) == "" || a.replayed() {
					t.Errorf("header is %v", a.header)
				}
			},
		},
		{
			"completed by other code",
			func(t *testing.T, b *fixture, h http.Handler) {
				if _, err := begin(t, b, 15*time.Second).Complete(t.Context(), semel.Result{Codec: "json/1", Body: []byte(`"stored secret"`)}); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, a answer) { a.want(t, semelhttp.ProblemResultNotRetained) },
		},
		{
			"completed with a failure by other code",
			func(t *testing.T, b *fixture, h http.Handler) {
				if _, err := begin(t, b, 15*time.Second).Complete(t.Context(), semel.Result{Codec: "error/1", Body: []byte("stored secret")}); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, a answer) { a.want(t, semelhttp.ProblemResultNotRetained) },
		},
		{
			"completed with a head that cannot be read",
			func(t *testing.T, b *fixture, h http.Handler) {
				if _, err := begin(t, b, 15*time.Second).Complete(t.Context(), semel.Result{Codec: semelhttp.CodecHTTP, Head: []byte("stored secret")}); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, a answer) { a.want(t, semelhttp.ProblemResultNotRetained) },
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, effects := newFixture(t), &orders{}
				h := b.protect(t, effects)
				s.put(t, b, h)
				before := effects.count()
				direct(t, h, "k", `{"other":1}`).want(t, semelhttp.ProblemKeyMismatch)
				a := direct(t, h, "k", "{}")
				s.then(t, a)
				if strings.Contains(a.body, "secret") {
					t.Error("the answer holds a stored payload")
				}
				effects.want(t, before)
			})
		})
	}
}

func TestStoreUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		h := b.protect(t, effects)
		var down atomic.Bool
		down.Store(true)
		b.hooks.begin = func() error {
			if down.Load() {
				return errors.New("secret address unreachable")
			}
			return nil
		}
		a := direct(t, h, "k", "{}")
		a.want(t, semelhttp.ProblemStoreUnavailable)
		if a.header.Get("Retry-After") != "1" || strings.Contains(a.body, "secret") {
			t.Errorf("got %v %s", a.header, a.body)
		}
		effects.want(t, 0)

		down.Store(false)
		time.Sleep(time.Minute) // a claim that was granted unseen has been given back
		if a := direct(t, h, "k", "{}"); a.status != http.StatusCreated || a.replayed() {
			t.Errorf("after the outage: %d %s", a.status, a.body)
		}
		effects.want(t, 1)
	})
}

// Bug 45, where it is asked for: each request that goes unprotected is noted.
func TestFailOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var noted atomic.Int32
		b := newFixture(t, func(c *semel.Config) {
			c.Observer = &semel.Observer{FailedOpen: func(context.Context, semel.Scope, error) { noted.Add(1) }}
		})
		b.hooks.begin = func() error { return errors.New("down") }
		effects := &orders{}
		h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); string(body) != "{}" || r.ContentLength != 2 {
				t.Errorf("the handler saw %q of length %d", body, r.ContentLength)
			}
			semelhttp.DeclareNoEffect(r.Context(), nil) // to nobody
			effects.ServeHTTP(w, r)
		}), func(c *semelhttp.Config) { c.FailOpen = true })
		for range 2 {
			if a := direct(t, h, "k", "{}"); a.status != http.StatusCreated || a.header.Get(semelhttp.HeaderExpires) != "" {
				t.Errorf("got %d %v", a.status, a.header)
			}
		}
		effects.want(t, 2)
		if n := noted.Load(); n != 2 {
			t.Errorf("noted %d times", n)
		}
		entries, _ := b.store.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailFailedOpen})
		if len(entries) != 2 {
			t.Errorf("%d entries on the trail", len(entries))
		}
		time.Sleep(time.Minute)
	})
}

func TestFailOpenDoesNotRunForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, effects := newFixture(t), &orders{}
		ctx, cancel := context.WithCancel(t.Context())
		b.hooks.begin = func() error { cancel(); return errors.New("down") }
		h := b.protect(t, effects, func(c *semelhttp.Config) { c.FailOpen = true })
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}")
		directRequest(h, r.WithContext(ctx)).want(t, semelhttp.ProblemStoreUnavailable)
		effects.want(t, 0)
		time.Sleep(time.Minute)
	})
}

func TestDraining(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		b, effects := newFixture(t), &orders{}
		h := b.protect(t, effects, func(c *semelhttp.Config) { c.FailOpen = failOpen })
		if err := b.guard.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := direct(t, h, "k", "{}")
		if p := a.problem(t); a.status != http.StatusServiceUnavailable || p.Retry != semel.RetrySameKey || a.header.Get("Retry-After") != "1" {
			t.Errorf("got %d %v %s", a.status, a.header, a.body)
		}
		effects.want(t, 0)
	}
}

func TestConcurrentPostsExecuteOnce(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, effects), false)
	const n = 200
	s.Client().Transport.(*http.Transport).MaxConnsPerHost = 64
	start := make(chan struct{})
	var executed, replayed, conflicts atomic.Int32
	var wg sync.WaitGroup
	for range n {
		r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", `{"item":"book"}`)
		wg.Go(func() {
			<-start
			a, err := send(s.Client(), r)
			switch {
			case err != nil:
				t.Error(err)
			case a.status == http.StatusCreated && a.body == `{"id":1}` && a.header.Get("Location") == "/orders/1":
				if a.replayed() {
					replayed.Add(1)
				} else {
					executed.Add(1)
				}
			case a.status == http.StatusConflict && strings.Contains(a.body, "#in-progress") && a.header.Get("Retry-After") != "":
				conflicts.Add(1)
			default:
				t.Errorf("got %d %s", a.status, a.body)
			}
		})
	}
	close(start)
	wg.Wait()
	effects.want(t, 1)
	if executed.Load() != 1 || executed.Load()+replayed.Load()+conflicts.Load() != n {
		t.Errorf("%d executed, %d replayed, %d conflicts", executed.Load(), replayed.Load(), conflicts.Load())
	}
}

// Bug 38: nothing of the body is left out of the comparison, however long.
func TestMismatchInTheLastByte(t *testing.T) {
	b, effects := newFixture(t), &orders{}
	s, _ := serve(t, b.protect(t, effects), false)
	body := strings.Repeat("x", 1<<20)
	for i, last := range []string{"a", "b"} {
		r := newRequest(t, http.MethodPost, s.URL+"/orders", "k", body+last)
		r.Header.Set("Content-Type", "application/octet-stream")
		if a := mustSend(t, s, r); a.status != []int{http.StatusCreated, http.StatusUnprocessableEntity}[i] {
			t.Errorf("got %d", a.status)
		}
	}
	effects.want(t, 1)
}

// The server removes the files of a form that the handler read from the original
// request only, and the handler reads a copy.
func TestFilesOfFormsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TMP", dir) // for Windows
	b := newFixture(t)
	s, _ := serve(t, b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if files, _ := os.ReadDir(dir); len(files) == 0 {
			t.Error("there is no file that could be left behind")
		}
	})), false)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("scan", "scan.png")
	_, _ = part.Write(make([]byte, 11<<20)) // the parser has 10 MiB of its own
	_ = form.Close()
	r := newRequest(t, http.MethodPost, s.URL, "k", body.String())
	r.Header.Set("Content-Type", form.FormDataContentType())
	if a := mustSend(t, s, r); a.status != http.StatusOK {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if files, err := os.ReadDir(dir); len(files) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", files, err)
	}
}
