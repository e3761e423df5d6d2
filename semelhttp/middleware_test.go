package semelhttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
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

// Requests that are refused before the store is called.
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
		{name: "empty", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, "") }, want: semelhttp.ProblemKeyMalformed},
		{name: "empty string", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, `""`) }, want: semelhttp.ProblemKeyMalformed},
		{name: "malformed", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, `"k`) }, want: semelhttp.ProblemKeyMalformed},
		{name: "too long", change: func(r *http.Request) { r.Header.Set(semelhttp.HeaderKey, strings.Repeat("k", 256)) }, want: semelhttp.ProblemKeyMalformed},
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
		if first.replayed() || !second.replayed() {
			t.Error("not marked right")
		}
		time.Sleep(time.Second)
		if third := direct(t, h, "k", "{}"); third.replayed() || third.body != `{"id":2}` {
			t.Errorf("after retention: %s, replayed %v", third.body, third.replayed())
		}
		effects.want(t, 2)
	})
}

// A mismatch is seen in every state, and changes nothing.
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

// A guard that fails open notes each request that goes unprotected.
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

// Nothing of the body is left out of the comparison, however long.
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
