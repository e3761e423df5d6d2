package semelhttp_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

func TestStripeContract(t *testing.T) {
	b := newFixture(t)
	var o orders
	h := b.protect(t, &o, func(c *semelhttp.Config) { c.Contract = semelhttp.Stripe() })
	if a := direct(t, h, "k", "{}"); a.status != 201 || a.header.Get("Idempotent-Replayed") != "" || a.header.Get("Idempotency-Expires") != "" {
		t.Fatalf("%d %v", a.status, a.header)
	}
	if a := direct(t, h, "k", "{}"); a.status != 201 || a.header.Get("Idempotent-Replayed") != "true" || a.replayed() {
		t.Fatalf("%d %v", a.status, a.header)
	}
	stripe := func(a answer, status int, kind, code, retry string) {
		t.Helper()
		var body struct {
			Error struct{ Type, Code, Message string }
		}
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			t.Fatalf("%s: %v", a.body, err)
		}
		if a.status != status || body.Error.Type != kind || body.Error.Code != code || body.Error.Message == "" || a.header.Get("Stripe-Should-Retry") != retry || a.header.Get("Content-Type") != "application/json" {
			t.Fatalf("%d, Stripe-Should-Retry %q: %s", a.status, a.header.Get("Stripe-Should-Retry"), a.body)
		}
	}
	stripe(direct(t, h, "k", `{"other":1}`), 400, "idempotency_error", "", "false")
	stripe(direct(t, h, "a b", "{}"), 400, "invalid_request_error", "", "false")
	b.hooks.begin = func() error {
		return &semel.ConflictError{Record: semel.Record{State: semel.StateInProgress, Lease: time.Second}}
	}
	stripe(direct(t, h, "k2", "{}"), 409, "invalid_request_error", "idempotency_key_in_use", "true")
	b.hooks.begin = func() error { return &semel.ConflictError{Record: semel.Record{State: semel.StateUnknown}} }
	stripe(direct(t, h, "k2", "{}"), 409, "api_error", "", "false")
	b.hooks.begin = func() error { return errors.New("down") }
	a := direct(t, h, "k", "{}")
	stripe(a, 503, "api_error", "", "true")
	if a.header.Get("Retry-After") == "" {
		t.Fatal("no Retry-After")
	}
	o.want(t, 1)
}

func TestOASISContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		var o orders
		h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Busy") != "" {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			o.ServeHTTP(w, r)
		}), func(c *semelhttp.Config) { c.Contract = semelhttp.OASIS() })
		first := time.Now()
		send := func(method, id string, at any, body string, header ...string) answer {
			t.Helper()
			r := newRequest(t, method, "http://shop.example/orders", "", body)
			if id != "" {
				r.Header.Set("Repeatability-Request-ID", id)
			}
			switch at := at.(type) {
			case time.Time:
				r.Header.Set("Repeatability-First-Sent", at.UTC().Format(http.TimeFormat))
			case string:
				r.Header.Set("Repeatability-First-Sent", at)
			}
			for i := 0; i < len(header); i += 2 {
				r.Header.Add(header[i], header[i+1])
			}
			return directRequest(h, r)
		}
		want := func(a answer, status int, result string) {
			t.Helper()
			if got := a.header.Get("Repeatability-Result"); a.status != status || got != result {
				t.Fatalf("%d, Repeatability-Result %q, %s; want %d, %q", a.status, got, a.body, status, result)
			}
		}
		const id = "8e03978e-40d5-43e8-bc93-6894a57f9324"
		want(send("POST", id, first, "{}"), 201, "accepted")
		again := send("POST", strings.ToUpper(id), first, "{}")
		want(again, 201, "accepted")
		if again.body != `{"id":1}` || again.header.Get("Idempotency-Replayed") != "" {
			t.Fatalf("%s %v", again.body, again.header)
		}
		o.want(t, 1)

		want(send("POST", id, first, `{"other":1}`), 400, "rejected")
		want(send("POST", id, first.Add(time.Second), "{}"), 400, "rejected") // another header is another request
		want(send("POST", id, nil, "{}"), 400, "rejected")
		want(send("POST", "", first, "{}"), 400, "rejected")
		want(send("POST", id, "yesterday", "{}"), 400, "rejected")
		want(send("POST", id, first, "{}", "Repeatability-First-Sent", "x"), 400, "rejected")
		want(send("POST", "new", first.Add(-24*time.Hour), "{}"), 412, "rejected")
		want(send("POST", "new", first.Add(semelhttp.MaxAhead+2*time.Second), "{}"), 412, "rejected")
		want(send("DELETE", id, first, ""), 501, "rejected")
		o.want(t, 1)
		want(send("GET", id, first, ""), 201, "") // safe methods pass
		o.want(t, 2)
		want(send("DELETE", "", nil, ""), 201, "") // and what asks for nothing
		o.want(t, 3)

		// The same id of another client is another request.
		want(send("POST", id, first, `{"other":1}`, "Repeatability-Client-ID", "c1"), 201, "accepted")
		want(send("POST", id, first, `{"other":2}`, "Repeatability-Client-ID", "c2"), 201, "accepted")
		want(send("POST", id, first, `{"other":1}`, "Repeatability-Client-ID", "c1"), 201, "accepted")
		o.want(t, 5)
		want(send("POST", id, first, "{}", "Repeatability-Client-ID", ""), 400, "rejected")

		// What had no effect may be sent again.
		want(send("POST", "busy", first, "{}", "Busy", "1"), 429, "rejected")
		want(send("POST", "busy", first, "{}"), 201, "accepted")
		o.want(t, 6)

		// When its record could be gone, a request does not start over.
		time.Sleep(25 * time.Hour)
		want(send("POST", id, first, "{}"), 412, "rejected")
		o.want(t, 6)

		// Nobody is told "rejected" who could then have the effect twice.
		now := time.Now()
		b.hooks.begin = func() error { return &semel.ConflictError{Record: semel.Record{State: semel.StateUnknown}} }
		want(send("POST", "u", now, "{}"), 409, "accepted")
		b.hooks.begin = func() error {
			return &semel.ConflictError{Record: semel.Record{State: semel.StateInProgress, Lease: time.Second}}
		}
		want(send("POST", "u", now, "{}"), 409, "accepted")
		b.hooks.begin = func() error { return errors.New("down") }
		want(send("POST", "u", now, "{}"), 503, "accepted")
		time.Sleep(time.Minute) // the guard goes on asking whether it was granted
	})
}

// What a handler says about replays is not passed on as ours, nor recorded.
func TestContractHeadersAreOurs(t *testing.T) {
	for _, c := range []semelhttp.Contract{semelhttp.IETF(), semelhttp.Stripe(), semelhttp.OASIS()} {
		t.Run(c.Name, func(t *testing.T) {
			b := newFixture(t)
			h := b.protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, name := range []string{c.ReplayedHeader, c.ExpiresHeader, c.ResultHeader} {
					if name != "" {
						w.Header().Set(name, "lie")
					}
				}
			}), func(cfg *semelhttp.Config) { cfg.Contract = c })
			for range 2 {
				r := newRequest(t, http.MethodPost, "http://shop.example/orders", "", "{}")
				r.Header.Set(c.KeyHeader, "k")
				if c.FirstSentHeader != "" {
					r.Header.Set(c.FirstSentHeader, time.Now().UTC().Format(http.TimeFormat))
				}
				a := directRequest(h, r)
				for name, values := range a.header {
					if strings.Contains(strings.Join(values, ""), "lie") {
						t.Errorf("%s: %q", name, values)
					}
				}
			}
		})
	}
}

// Browsers: a preflight passes without a key, and what is around the middleware
// adds to every answer of ours, so that scripts can read it.
func TestCORS(t *testing.T) {
	b := newFixture(t)
	var o orders
	protected := b.protect(t, &o, func(c *semelhttp.Config) { c.RequireKey = true })
	contract := semelhttp.IETF()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Access-Control-Expose-Headers", strings.Join(contract.ResponseHeaders(), ", "))
		if r.Method == http.MethodOptions {
			w.Header().Set("Access-Control-Allow-Headers", strings.Join(contract.RequestHeaders(), ", "))
			return
		}
		protected.ServeHTTP(w, r)
	})
	preflight := newRequest(t, http.MethodOptions, "http://shop.example/orders", "", "")
	preflight.Header.Set("Origin", "https://a.example")
	if a := directRequest(h, preflight); a.status != 200 || !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
		t.Fatalf("%d %v", a.status, a.header)
	}
	for i, origin := range []string{"https://a.example", "https://b.example"} {
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "k", "{}")
		r.Header.Set("Origin", origin)
		a := directRequest(h, r)
		if a.replayed() != (i == 1) || a.header.Get("Access-Control-Allow-Origin") != origin {
			t.Fatalf("%v", a.header)
		}
		for _, name := range []string{"Idempotency-Replayed", "Idempotency-Expires", "Location", "Retry-After"} {
			if !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), name) {
				t.Errorf("%s is not exposed", name)
			}
		}
	}
	r := newRequest(t, http.MethodPost, "http://shop.example/orders", "", "{}")
	r.Header.Set("Origin", "https://a.example")
	if a := directRequest(h, r); a.status != 400 || a.header.Get("Access-Control-Allow-Origin") == "" {
		t.Fatalf("a problem: %d %v", a.status, a.header)
	}
	o.want(t, 1)
}

// A contract of one's own: other names, another status, another form.
func TestOwnContract(t *testing.T) {
	b := newFixture(t)
	var o orders
	c := semelhttp.IETF()
	c.Name, c.KeyHeader, c.ReplayedHeader = "shop", "x-request-key", "x-repeated"
	c.Status = map[semelhttp.ProblemCase]int{semelhttp.ProblemKeyMismatch: http.StatusConflict}
	c.Render = func(h http.Header, p semelhttp.Problem) (string, []byte) {
		h.Set("X-Retry", string(p.Retry))
		return "text/plain", bytes.ToUpper([]byte(p.Title))
	}
	h := b.protect(t, &o, func(cfg *semelhttp.Config) { cfg.Contract, cfg.RequireKey = c, true })
	send := func(key, body string) answer {
		r := newRequest(t, http.MethodPost, "http://shop.example/orders", "", body)
		if key != "" {
			r.Header.Set("X-Request-Key", key)
		}
		return directRequest(h, r)
	}
	if a := send("k", "{}"); a.status != 201 {
		t.Fatal(a.status)
	}
	if a := send("k", "{}"); a.header.Get("X-Repeated") != "true" {
		t.Fatal(a.header)
	}
	if a := send("k", `{"o":1}`); a.status != 409 || a.body != "IDEMPOTENCY-KEY IS ALREADY USED" || a.header.Get("X-Retry") != "no" || a.header.Get("Content-Type") != "text/plain" {
		t.Fatalf("%d %q %v", a.status, a.body, a.header)
	}
	if a := send("", "{}"); a.status != 400 {
		t.Fatal(a.status)
	}
	o.want(t, 1)
}
