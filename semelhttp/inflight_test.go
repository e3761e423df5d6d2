package semelhttp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// slow is a handler that takes a time before its effect.
func slow(d time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(d)
		next.ServeHTTP(w, r)
	})
}

// withResources protects h and mounts its resources beside it.
func (b *fixture) withResources(t testing.TB, h http.Handler, rc semelhttp.ResourcesConfig, edit ...func(*semelhttp.Config)) http.Handler {
	t.Helper()
	rc.Guard = b.guard
	if rc.Scope == nil {
		rc.Scope = tester
	}
	res, err := semelhttp.NewResources(rc)
	if err != nil {
		t.Fatal(err)
	}
	p := b.protect(t, h, append([]func(*semelhttp.Config){func(c *semelhttp.Config) { c.Resources = res }}, edit...)...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if res.Serves(r) {
			res.ServeHTTP(w, r)
			return
		}
		p.ServeHTTP(w, r)
	})
}

func preferring(t testing.TB, key, body, prefer string) *http.Request {
	r := newRequest(t, http.MethodPost, "http://shop.example/orders", key, body)
	if prefer != "" {
		r.Header.Set("Prefer", prefer)
	}
	return r
}

func get(t testing.TB, path, actor string) *http.Request {
	r := newRequest(t, http.MethodGet, "http://shop.example"+path, "", "")
	r.Header.Set("Actor", actor)
	return r
}

func TestDuplicatesInFlight(t *testing.T) {
	for _, c := range []struct {
		name     string
		inFlight semelhttp.InFlight
		wait     time.Duration // of the config
		prefer   string
		runs     time.Duration // the first request
		status   int
		after    time.Duration
		applied  string
	}{
		{"reject", semelhttp.InFlightReject, 0, "", 20 * time.Second, 409, 0, ""},
		{"reject, client would wait", semelhttp.InFlightReject, 0, "wait=25", 20 * time.Second, 201, 20 * time.Second, "wait=25"},
		{"reject, client waits in vain", semelhttp.InFlightReject, 0, "wait=5", 20 * time.Second, 409, 5 * time.Second, "wait=5"},
		{"reject, client wants too much", semelhttp.InFlightReject, 0, "wait=3600", time.Minute, 409, 30 * time.Second, "wait=30"},
		{"reject, wait=0", semelhttp.InFlightReject, 0, "wait=0", time.Minute, 409, 0, "wait=0"},
		{"reject, waiting is off", semelhttp.InFlightReject, -1, "wait=5", 3 * time.Second, 409, 0, ""},
		{"wait", semelhttp.InFlightWait, 0, "", 8 * time.Second, 201, 8 * time.Second, ""},
		{"wait in vain", semelhttp.InFlightWait, 0, "", time.Minute, 409, 10 * time.Second, ""},
		{"wait, client shorter", semelhttp.InFlightWait, 0, "wait=2", time.Minute, 409, 2 * time.Second, "wait=2"},
		{"wait, client longer", semelhttp.InFlightWait, 0, "wait=28", 25 * time.Second, 201, 25 * time.Second, "wait=28"},
		{"accept", semelhttp.InFlightAccept, 0, "", time.Minute, 202, 0, ""},
		{"accept, client would wait", semelhttp.InFlightAccept, 0, "wait=7", 5 * time.Second, 201, 5 * time.Second, "wait=7"},
		{"accept, client waits in vain", semelhttp.InFlightAccept, 0, "wait=7", time.Minute, 202, 7 * time.Second, "wait=7"},
		{"respond-async", semelhttp.InFlightReject, 0, "respond-async", time.Minute, 202, 0, "respond-async"},
		{"respond-async, wait", semelhttp.InFlightReject, 0, "respond-async, wait=3", time.Minute, 202, 3 * time.Second, "wait=3, respond-async"},
		{"respond-async, in time", semelhttp.InFlightWait, 0, "respond-async, wait=3", 2 * time.Second, 201, 2 * time.Second, "wait=3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newFixture(t)
				var o orders
				h := b.withResources(t, slow(c.runs, &o), semelhttp.ResourcesConfig{}, func(cfg *semelhttp.Config) {
					cfg.InFlight = c.inFlight
					if c.wait < 0 {
						cfg.MaxWait = -1
					}
				})
				var wg sync.WaitGroup
				wg.Go(func() {
					if a := directRequest(h, preferring(t, "k", "{}", "")); a.status != 201 || a.replayed() {
						t.Errorf("the first request: %d", a.status)
					}
				})
				synctest.Wait()
				start := time.Now()
				a := directRequest(h, preferring(t, "k", "{}", c.prefer))
				if took := time.Since(start); a.status != c.status || took != c.after {
					t.Fatalf("%d after %v; want %d after %v", a.status, took, c.status, c.after)
				}
				if got := a.header.Get("Preference-Applied"); got != c.applied {
					t.Fatalf("Preference-Applied %q; want %q", got, c.applied)
				}
				switch a.status {
				case 409:
					if p := a.want(t, semelhttp.ProblemInProgress); !strings.HasPrefix(p.StatusURL, semelhttp.DefaultPrefix+"/operations/") || a.header.Get("Retry-After") == "" {
						t.Fatalf("status_url %q, Retry-After %q", p.StatusURL, a.header.Get("Retry-After"))
					}
				case 201:
					if !a.replayed() || a.body != `{"id":1}` {
						t.Fatalf("replayed %v: %s", a.replayed(), a.body)
					}
				case 202:
					status := directRequest(h, get(t, a.header.Get("Location"), "alice"))
					if status.status != 200 || !strings.Contains(status.body, `"state":"in_progress"`) || a.body != status.body {
						t.Fatalf("status %d %s beside %s", status.status, status.body, a.body)
					}
				}
				wg.Wait()
				o.want(t, 1)
			})
		})
	}
}

// The first request of a client that prefers not to wait is answered while it
// executes; then the status resource leads to its answer.
func TestRespondAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		var o orders
		preferred := make(chan []string, 1)
		h := b.withResources(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			preferred <- r.Header["Prefer"]
			slow(time.Minute, &o).ServeHTTP(w, r)
		}), semelhttp.ResourcesConfig{})
		start := time.Now()
		a := directRequest(h, preferring(t, "k", "{}", "respond-async, wait=2, return=minimal"))
		if a.status != 202 || time.Since(start) != 2*time.Second || a.header.Get("Preference-Applied") != "wait=2, respond-async" {
			t.Fatalf("%d after %v, applied %q", a.status, time.Since(start), a.header.Get("Preference-Applied"))
		}
		if prefer := <-preferred; len(prefer) != 1 || prefer[0] != "return=minimal" {
			t.Fatalf("the handler is asked to %q", prefer)
		}
		where := a.header.Get("Location")
		if r := directRequest(h, get(t, where+"/result", "alice")); r.status != 409 {
			t.Fatalf("a result before the end: %d", r.status)
		}
		// A status request can wait as well.
		poll := get(t, where, "alice")
		poll.Header.Set("Prefer", "wait=30")
		if s := directRequest(h, poll); time.Since(start) != 32*time.Second || !strings.Contains(s.body, `"in_progress"`) {
			t.Fatalf("after %v: %s", time.Since(start), s.body)
		}
		s := directRequest(h, poll.Clone(t.Context()))
		if time.Since(start) != time.Minute {
			t.Fatalf("told after %v; it took a minute", time.Since(start))
		}
		var doc struct {
			State, Operation string
			Result           struct {
				Status, URL, Reference string
				Retained               bool
			}
		}
		if err := json.Unmarshal([]byte(s.body), &doc); err != nil {
			t.Fatal(err)
		}
		if doc.State != "completed" || doc.Operation != "POST /orders" || doc.Result.Status != "201" || !doc.Result.Retained || doc.Result.Reference != "/orders/1" {
			t.Fatalf("%+v in %s", doc, s.body)
		}
		r := directRequest(h, get(t, doc.Result.URL, "alice"))
		if r.status != 201 || r.body != `{"id":1}` || !r.replayed() || r.header.Get("Location") != "/orders/1" {
			t.Fatalf("the result: %d %q", r.status, r.body)
		}
		o.want(t, 1)
	})
}

// A fast answer is not held up by a preference for none.
func TestRespondAsyncButDone(t *testing.T) {
	b := newFixture(t)
	var o orders
	h := b.withResources(t, &o, semelhttp.ResourcesConfig{})
	if a := directRequest(h, preferring(t, "k", "{}", "respond-async, wait=10")); a.status != 201 || a.replayed() {
		t.Fatalf("%d", a.status)
	}
	o.want(t, 1)
}

// A client that is answered before the end sees nothing of a stream, but it goes
// on to its end.
func TestRespondAsyncStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		var o orders
		h := b.withResources(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 10 {
				if _, err := fmt.Fprintf(w, "data: %d\n\n", i); err != nil {
					t.Errorf("event %d: %v", i, err)
					return
				}
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
			o.add()
		}), semelhttp.ResourcesConfig{})
		a := directRequest(h, preferring(t, "k", "{}", "respond-async, wait=3"))
		if a.status != 202 || strings.Contains(a.body, "data") {
			t.Fatalf("%d %q", a.status, a.body)
		}
		if err := b.guard.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := directRequest(h, get(t, a.header.Get("Location"), "alice")); !strings.Contains(s.body, `"retained":false`) {
			t.Fatalf("its status: %s", s.body)
		}
		o.want(t, 1)
		// One that is done in time is whole.
		h2 := newFixture(t).withResources(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: all\n\n")
		}), semelhttp.ResourcesConfig{})
		if a := directRequest(h2, preferring(t, "k", "{}", "respond-async, wait=3")); a.status != 200 || a.body != "data: all\n\n" {
			t.Fatalf("%d %q", a.status, a.body)
		}
	})
}

func TestStatusBelongsToItsScope(t *testing.T) {
	b := newFixture(t)
	var o orders
	h := b.withResources(t, &o, semelhttp.ResourcesConfig{})
	a := directRequest(h, preferring(t, "k", "{}", ""))
	found, err := b.store.List(t.Context(), semel.Filter{})
	if err != nil || len(found) != 1 || a.status != 201 {
		t.Fatal(a.status, len(found), err)
	}
	path := semelhttp.DefaultPrefix + "/operations/" + found[0].ID
	for _, suffix := range []string{"", "/result"} {
		if a := directRequest(h, get(t, path+suffix, "alice")); a.status != 200 && a.status != 201 {
			t.Fatalf("its owner gets %d", a.status)
		}
		stranger := directRequest(h, get(t, path+suffix, "bob"))
		nothing := directRequest(h, get(t, semelhttp.DefaultPrefix+"/operations/aaaaaaaaaaaaaaaaaaaaaaaaaa"+suffix, "bob"))
		stranger.want(t, semelhttp.ProblemNotFound)
		if stranger.body != nothing.body || fmt.Sprint(stranger.header) != fmt.Sprint(nothing.header) {
			t.Fatalf("another's operation looks like %v, none like %v", stranger, nothing)
		}
		tenant := get(t, path+suffix, "alice")
		tenant.Header.Set("Tenant", "other")
		directRequest(h, tenant).want(t, semelhttp.ProblemNotFound)
	}
}

func TestStatusOfUnknownAndTombstone(t *testing.T) {
	b := newFixture(t)
	h := b.withResources(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("large") {
			w.Header().Set("Location", "/exports/1")
			_, _ = w.Write(bytes.Repeat([]byte("x"), 100))
			return
		}
		semelhttp.DeclareIndeterminate(r.Context(), "cut off")
	}), semelhttp.ResourcesConfig{}, func(c *semelhttp.Config) { c.MaxResult = 10 })

	p := directRequest(h, preferring(t, "k", "{}", "")).wantOwnFailure(t)
	if s := directRequest(h, get(t, p.StatusURL, "alice")); !strings.Contains(s.body, `"state":"unknown","retry":"after-resolution"`) {
		t.Fatalf("%d %s", s.status, s.body)
	}
	directRequest(h, get(t, p.StatusURL+"/result", "alice")).want(t, semelhttp.ProblemOutcomeUnknown)

	large := func() *http.Request {
		return newRequest(t, http.MethodPost, "http://shop.example/exports?large", "k", "{}")
	}
	if a := directRequest(h, large()); a.status != 200 {
		t.Fatal(a.status)
	}
	p = directRequest(h, large()).want(t, semelhttp.ProblemResultNotRetained)
	if s := directRequest(h, get(t, p.StatusURL, "alice")); !strings.Contains(s.body, `"retained":false,"reference":"/exports/1"`) {
		t.Fatalf("%d %s", s.status, s.body)
	}
	directRequest(h, get(t, p.StatusURL+"/result", "alice")).want(t, semelhttp.ProblemResultNotRetained)
}

// What the status advises is by the policy of the operation, and not by that of the
// guard that the resources have.
func TestStatusAdvisesByThePolicy(t *testing.T) {
	b := newFixture(t)
	h := b.withResources(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		semelhttp.DeclareIndeterminate(r.Context(), "cut off")
	}), semelhttp.ResourcesConfig{}, func(c *semelhttp.Config) {
		var err error
		if c.Guard, err = b.guard.With(semel.Policy{OnCrash: semel.CrashRetry}); err != nil {
			t.Fatal(err)
		}
		c.Operation.Name = "pay"
		c.Scope = func(r *http.Request) (semel.Scope, error) {
			s, err := tester(r)
			s.Operation = "pay"
			return s, err
		}
	})
	const advice = `"retry":"same-key"`
	if a := directRequest(h, preferring(t, "k", "{}", "")); !strings.Contains(a.body, advice) {
		t.Fatalf("the request gets %s", a.body)
	}
	found, err := b.store.List(t.Context(), semel.Filter{})
	if err != nil || len(found) != 1 {
		t.Fatal(len(found), err)
	}
	for _, suffix := range []string{"", "/result"} {
		if s := directRequest(h, get(t, semelhttp.DefaultPrefix+"/operations/"+found[0].ID+suffix, "alice")); !strings.Contains(s.body, advice) {
			t.Fatalf("%s gets %s", suffix, s.body)
		}
	}
}

func TestTwoStepKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		issuer, err := semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{Secrets: [][]byte{bytes.Repeat([]byte("s"), 32)}, Retention: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		var o orders
		h := b.withResources(t, &o, semelhttp.ResourcesConfig{Keys: issuer}, func(c *semelhttp.Config) { c.IssuedOnly = true })
		issue := func(actor, body string) answer {
			r := newRequest(t, http.MethodPost, "http://shop.example"+semelhttp.DefaultPrefix+"/keys", "", body)
			r.Header.Set("Actor", actor)
			return directRequest(h, r)
		}
		key := func(actor string) string {
			t.Helper()
			a := issue(actor, `{"operation":"POST /orders"}`)
			var k struct {
				Key, Header, Value string
				ExpiresAt          time.Time `json:"expires_at"`
			}
			if err := json.Unmarshal([]byte(a.body), &k); err != nil || a.status != 201 || a.header.Get("Cache-Control") != "no-store" {
				t.Fatalf("%d %s: %v", a.status, a.body, err)
			}
			if k.Header != "Idempotency-Key" || k.Value != `"`+k.Key+`"` || time.Until(k.ExpiresAt) != time.Hour {
				t.Fatalf("%+v", k)
			}
			return k.Value
		}
		// A key that was lost on the way costs nothing.
		_ = key("alice")
		if all, err := b.store.List(t.Context(), semel.Filter{}); err != nil || len(all) != 0 {
			t.Fatalf("issuing stored %d records: %v", len(all), err)
		}
		used, unused := key("alice"), key("alice")
		if a := direct(t, h, used, "{}"); a.status != 201 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if a := direct(t, h, used, "{}"); !a.replayed() {
			t.Fatalf("%d %s", a.status, a.body)
		}
		direct(t, h, used, `{"other":1}`).want(t, semelhttp.ProblemKeyMismatch)
		direct(t, h, `"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "{}").want(t, semelhttp.ProblemKeyNotIssued)
		direct(t, h, key("bob"), "{}").want(t, semelhttp.ProblemKeyNotIssued)
		direct(t, h, "", "{}").want(t, semelhttp.ProblemKeyMissing)
		if a := issue("alice", `{"operation":`); a.status != 400 {
			t.Fatal(a.status)
		}
		if a := issue("alice", `{"for":"x"}`); a.status != 400 {
			t.Fatal(a.status)
		}
		if a := issue("alice", ""); a.status != 201 {
			t.Fatal(a.status)
		}
		o.want(t, 1)

		time.Sleep(2 * time.Hour)
		// Expired: no new use, but still the answer of an earlier one.
		direct(t, h, unused, "{}").want(t, semelhttp.ProblemKeyExpired)
		direct(t, h, unused, "{}").want(t, semelhttp.ProblemKeyExpired)
		if a := direct(t, h, used, "{}"); !a.replayed() || a.body != `{"id":1}` {
			t.Fatalf("%d %s", a.status, a.body)
		}
		// And when its record is gone it does not start over.
		time.Sleep(48 * time.Hour)
		direct(t, h, used, "{}").want(t, semelhttp.ProblemKeyExpired)
		o.want(t, 1)
	})
}

func TestSpecification(t *testing.T) {
	b := newFixture(t)
	h := b.withResources(t, &orders{}, semelhttp.ResourcesConfig{}, func(c *semelhttp.Config) {
		c.RequireKey = true
		c.Operation = semelhttp.OperationSpec{Name: "orders.create", Methods: []string{"POST"}, Path: "/orders", Summary: "Creates <an> order."}
		c.Fingerprint.Exclude = []string{"/sent_at"}
		c.KeyRules = semel.KeyRules{RequireUUID: true}
	})
	a := directRequest(h, get(t, semelhttp.DefaultPrefix+"/specification", "alice"))
	var spec struct {
		Operations []struct {
			Operation, Key   string
			KeyHeader        string   `json:"key_header"`
			RetentionSeconds int      `json:"retention_seconds"`
			InFlight         string   `json:"in_flight"`
			KeyRules         []string `json:"key_rules"`
			Fingerprint      []string
			Problems         []struct {
				Type, Retry string
				Status      int
			}
		}
	}
	if err := json.Unmarshal([]byte(a.body), &spec); err != nil {
		t.Fatal(err)
	}
	if len(spec.Operations) != 1 {
		t.Fatalf("%s", a.body)
	}
	o := spec.Operations[0]
	if o.Operation != "orders.create" || o.Key != "required" || o.KeyHeader != "Idempotency-Key" || o.RetentionSeconds != 86400 || o.InFlight != "reject" ||
		len(o.KeyRules) != 1 || o.Fingerprint[len(o.Fingerprint)-1] != "without: /sent_at" {
		t.Fatalf("%+v", o)
	}
	for _, p := range o.Problems {
		if p.Retry == "" || p.Status == 0 || p.Type == "" {
			t.Errorf("%+v", p)
		}
	}
	page := get(t, semelhttp.DefaultPrefix+"/specification", "alice")
	page.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	a = directRequest(h, page)
	if a.header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(a.body, "Creates &lt;an&gt; order.") || !strings.Contains(a.body, "24h0m0s") {
		t.Fatalf("%s", a.body)
	}
}

func TestInFlightConfig(t *testing.T) {
	b := newFixture(t)
	for name, c := range map[string]semelhttp.Config{
		"accept without resources": {InFlight: semelhttp.InFlightAccept},
		"no such policy":           {InFlight: 9},
		"wait over its bound":      {Wait: time.Minute},
		"negative wait":            {Wait: -1},
		"issued-only, no issuer":   {IssuedOnly: true},
		"unknown case":             {Contract: semelhttp.Contract{Name: "x", KeyHeader: "K", Status: map[semelhttp.ProblemCase]int{"x": 400}}},
		"no error":                 {Contract: semelhttp.Contract{Name: "x", KeyHeader: "K", Status: map[semelhttp.ProblemCase]int{semelhttp.ProblemKeyMismatch: 200}}},
		"no key header":            {Contract: semelhttp.Contract{Name: "x"}},
		"one header for two":       {Contract: semelhttp.Contract{Name: "x", KeyHeader: "K", ReplayedHeader: "k"}},
		"no header name":           {Contract: semelhttp.Contract{Name: "x", KeyHeader: "a b"}},
	} {
		c.Guard, c.Scope = b.guard, tester
		if _, err := semelhttp.New(c); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	for _, c := range []semelhttp.ResourcesConfig{{}, {Guard: b.guard}, {Guard: b.guard, Scope: tester, Prefix: "x"}, {Guard: b.guard, Scope: tester, Prefix: "/x/"}, {Guard: b.guard, Scope: tester, MaxWait: -1}} {
		if _, err := semelhttp.NewResources(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// Whoever holds resources cannot change what they were made of while requests
// are served from them.
func TestResourcesDoNotChange(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[semelhttp.Resources]()) {
		if f.IsExported() {
			t.Errorf("field %s can be set", f.Name)
		}
	}
	b := newFixture(t)
	c := semelhttp.ResourcesConfig{Guard: b.guard, Scope: tester}
	c.Contract = semelhttp.IETF()
	c.Contract.Status = map[semelhttp.ProblemCase]int{semelhttp.ProblemNotFound: 410}
	r, err := semelhttp.NewResources(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Contract.Status[semelhttp.ProblemNotFound] = 418
	if a := directRequest(r, get(t, semelhttp.DefaultPrefix+"/operations/x", "ann")); a.status != 410 {
		t.Errorf("answered %d", a.status)
	}
}
