package targets

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const ref = "ref-1"

// request is what a test sends.
type request struct {
	key             string // "" for the usual one, none for none
	tenant, actor   string
	quantity        int
	tornAtFirstByte bool // the client goes away at the first byte of the response
}

const none = "none"

// response is what comes back; status 0 for no response.
type response struct {
	status int
	header http.Header
	body   string
}

func (a response) id() string {
	var v struct{ ID string }
	_ = json.Unmarshal([]byte(a.body), &v)
	return v.ID
}

// client drives a service without a network, in a bubble of virtual time.
type client struct {
	t       *testing.T
	target  Target
	service *Service
}

// torn is a response whose reader goes away at its first byte.
type torn struct {
	*httptest.ResponseRecorder
	leave func()
}

func (w torn) Write(p []byte) (int, error) {
	w.leave()
	return w.ResponseRecorder.Write(p)
}

// begin sends a request. It returns a function that waits for the response.
func (c *client) begin(ctx context.Context, q request) func() response {
	ctx, cancel := context.WithCancel(ctx)
	var out response
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		rec := httptest.NewRecorder()
		defer func() {
			switch v := recover(); v {
			case nil:
				out = response{rec.Code, rec.Header(), rec.Body.String()}
			case http.ErrAbortHandler:
			default:
				panic(v)
			}
		}()
		if q.tornAtFirstByte {
			c.service.ServeHTTP(torn{rec, cancel}, c.render(ctx, q))
			return
		}
		c.service.ServeHTTP(rec, c.render(ctx, q))
	})
	return func() response {
		wg.Wait()
		return out
	}
}

func (c *client) send(q request) response { return c.begin(c.t.Context(), q)() }

func (c *client) render(ctx context.Context, q request) *http.Request {
	if q.key == "" {
		q.key = "key-1"
	}
	body := map[string]any{"reference": ref, "item": "green tea 42", "quantity": max(q.quantity, 1)}
	k := c.target.Key
	if k != nil && k.Body != "" && q.key != none {
		body[strings.TrimPrefix(string(k.Body), "/")] = q.key
	}
	raw, err := json.Marshal(body)
	if err != nil {
		c.t.Error(err)
	}
	r := httptest.NewRequestWithContext(ctx, "POST", "/orders", bytes.NewReader(raw))
	r.Header.Set("X-Tenant", cmp.Or(q.tenant, "acme"))
	r.Header.Set("X-Actor", cmp.Or(q.actor, "alice"))
	if k != nil && k.Header != "" && q.key != none {
		r.Header.Set(k.Header, q.key)
	}
	if c.target.Contract.Profile == "oasis" && q.key != none {
		r.Header.Set("Repeatability-First-Sent", time.Now().UTC().Format(http.TimeFormat))
	}
	return r
}

func (c *client) count() int {
	c.service.Wait()
	return c.service.Count(ref)
}

// retry sends again until it is neither turned away nor told to wait.
func (c *client) retry(q request) (a response) {
	for range 5 {
		if a = c.send(q); a.status != 0 && a.status != http.StatusTooManyRequests && a.status != http.StatusAccepted &&
			(a.status != http.StatusConflict || a.id() != "") {
			break
		}
		time.Sleep(time.Second) // virtual
	}
	return a
}

// profile is the number of orders made for one reference, by what was done.
type profile map[string]int

// scenarios say what is done. Each has a service of its own.
var scenarios = map[string]func(c *client){
	"once": func(c *client) { c.send(request{}) },
	"sequential": func(c *client) {
		c.send(request{})
		c.send(request{})
	},
	"late": func(c *client) {
		c.send(request{})
		time.Sleep(2 * time.Second) // virtual
		c.send(request{})
	},
	"race": func(c *client) {
		var wait []func() response
		for range 6 {
			wait = append(wait, c.begin(c.t.Context(), request{}))
		}
		for _, w := range wait {
			w()
		}
	},
	"in flight": func(c *client) {
		first := c.begin(c.t.Context(), request{})
		synctest.Wait()
		c.send(request{})
		first()
	},
	"cut": func(c *client) {
		ctx, cut := context.WithCancel(c.t.Context())
		first := c.begin(ctx, request{})
		synctest.Wait()
		cut()
		first()
		c.retry(request{})
	},
	"begun": func(c *client) {
		c.send(request{tornAtFirstByte: true})
		c.retry(request{})
	},
	"altered": func(c *client) {
		c.send(request{})
		c.send(request{quantity: 3})
	},
	"missing":   func(c *client) { c.send(request{key: none}) },
	"malformed": func(c *client) { c.send(request{key: malformed}) },
	"actor": func(c *client) {
		c.send(request{})
		c.send(request{actor: "bob"})
	},
	"tenant": func(c *client) {
		c.send(request{})
		c.send(request{tenant: "globex", actor: "carol"})
	},
	"fresh": func(c *client) {
		c.send(request{})
		c.send(request{key: "key-2"})
	},
	"failed": func(c *client) {
		c.service.Fail(true)
		c.send(request{})
		c.service.Fail(false)
		c.retry(request{})
	},
}

// malformed is what is no key anywhere.
var malformed = strings.Repeat("k", 300) + `"`

// expected is what a target that follows the draft comes to.
var expected = profile{
	"once": 1, "sequential": 1, "late": 1, "race": 1, "in flight": 1, "cut": 1, "begun": 1, "altered": 1, "missing": 0, "malformed": 0,
	"actor": 2, "tenant": 2, "fresh": 2, "failed": 0,
}

// different is what others come to. What is not here is as expected: a wrong
// target is wrong in one way only.
var different = map[string]profile{
	"ignores-key": {
		"sequential": 2, "late": 2, "race": 6, "in flight": 2, "cut": 2, "begun": 2, "altered": 2, "missing": 1, "malformed": 1, "failed": 1,
	},
	"check-then-act":         {"race": 6, "in flight": 2},
	"check-then-act-slowly":  {"race": 6, "in flight": 2},
	"check-then-queue":       {"race": 6, "in flight": 2},
	"record-needs-client":    {"cut": 2, "failed": 1},
	"record-after-answer":    {"cut": 2, "begun": 2, "failed": 1},
	"mark-before-success":    {"cut": 0, "failed": 1},
	"cut-blocks-key":         {"cut": 0, "failed": 1},
	"same-answer-twice-done": {"sequential": 2, "late": 2, "cut": 2, "begun": 2},
	"doubled-later":          {"sequential": 2, "late": 2, "cut": 2, "begun": 2},
	"keys-of-everybody":      {"actor": 1, "tenant": 1},
	"keys-of-tenant":         {"actor": 1},
	"mismatch-executes":      {"altered": 2},
	"failure-forgotten":      {"failed": 1},
	"failure-after-effect":   {"failed": 2},
	"rate-limiter": {
		"late": 2, "altered": 2, "missing": 1, "malformed": 1, "actor": 2, "fresh": 1, "cut": 2, "begun": 2, "failed": 1,
	},
	"malformed-key-runs":     {"malformed": 1},
	"missing-key-runs":       {"missing": 1},
	"stripe":                 {"missing": 1},
	"oasis":                  {"missing": 1, "failed": 1},
	"success-only":           {"failed": 1},
	"natural-key":            {"missing": 1, "malformed": 1, "actor": 1, "fresh": 1, "failed": 1},
	"natural-key-and-header": {"actor": 1, "fresh": 1},

	// Each first attempt takes effect, and is not remembered for it.
	"first-500-with-effect": {"sequential": 2, "late": 2, "cut": 2, "begun": 2, "failed": 2},
	"first-cut-with-effect": {"sequential": 2, "late": 2, "cut": 2, "begun": 2, "failed": 2},
	"burnt-key": {
		"once": 0, "sequential": 0, "late": 0, "race": 0, "in flight": 0, "cut": 0, "begun": 0, "altered": 0, "actor": 0, "tenant": 0, "fresh": 0,
	},
	"first-500-clean":      {"once": 0, "race": 0, "in flight": 0, "altered": 0, "actor": 0, "tenant": 0, "fresh": 0, "failed": 1},
	"first-500-recorded":   {"failed": 1},
	"first-500-for-good":   {"failed": 1},
	"first-400-for-good":   {"failed": 1},
	"accepted-and-dropped": {"cut": 0},
	"record-of-each-instance": {
		"sequential": 2, "late": 2, "race": 2, "in flight": 2, "cut": 2, "begun": 2, "altered": 2, "missing": 1, "malformed": 1, "failed": 1,
	},
	"async":           {"failed": 1}, // it fails later, when all is well again
	"async-slow":      {"failed": 1},
	"quota-used-up":   {"failed": 0},
	"key-expires":     {"late": 2},
	"no-key-is-a-key": {"missing": 1},
	"async-never": {
		"once": 0, "sequential": 0, "late": 0, "race": 0, "in flight": 0, "cut": 0, "begun": 0, "altered": 0, "actor": 0, "tenant": 0, "fresh": 0,
	},
	"no-key-doubles": {
		"sequential": 2, "late": 2, "race": 6, "in flight": 2, "cut": 2, "begun": 2, "altered": 2, "missing": 1, "malformed": 1, "failed": 1,
	},
	"unique-content": {"missing": 1, "malformed": 1, "actor": 1, "fresh": 1},
	"upsert":         {"missing": 1, "malformed": 1, "actor": 1, "fresh": 1},
	"error-in-200":   {"missing": 1, "malformed": 1, "actor": 1, "fresh": 1},
	"conditional":    {"missing": 1, "malformed": 1, "actor": 1, "fresh": 1},
}

func TestEffects(t *testing.T) {
	for _, target := range All() {
		if target.webhook {
			continue
		}
		want := maps.Clone(expected)
		maps.Copy(want, different[target.Name])
		for name, do := range scenarios {
			t.Run(target.Name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := &client{t: t, target: target, service: target.New()}
					do(c)
					if got := c.count(); got != want[name] {
						t.Errorf("%d orders, want %d", got, want[name])
					}
				})
			})
		}
	}
}

func run(t *testing.T, name string, f func(t *testing.T, c *client)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			target := named(t, name)
			c := &client{t: t, target: target, service: target.New()}
			f(t, c)
			c.service.Wait()
		})
	})
}

func named(t *testing.T, name string) Target {
	for _, target := range All() {
		if target.Name == name {
			return target
		}
	}
	t.Fatalf("there is no target %q", name)
	return Target{}
}

func (a response) want(t *testing.T, what string, status int) {
	t.Helper()
	if a.status != status {
		t.Errorf("%s: status %d, want %d; body %s", what, a.status, status, a.body)
	}
}

// TestResponses is about what is wrong or particular in responses, where the number
// of effects does not tell.
func TestResponses(t *testing.T) {
	inFlight := func(c *client, q request) response {
		first := c.begin(c.t.Context(), request{})
		synctest.Wait()
		second := c.send(q)
		first()
		return second
	}
	same := func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{})
		if a.status != 201 || b.status != a.status || a.body != b.body || a.id() == "" {
			t.Errorf("the responses are %d %q and %d %q", a.status, a.body, b.status, b.body)
		}
		if a.header.Get("X-Served-By") == "" {
			t.Error("no header that has to be overlooked")
		}
	}
	replayMarked := func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{})
		h := c.target.Contract.ReplayHeader
		if c.target.Contract.Profile == "stripe" {
			h = "Idempotent-Replayed"
		}
		if a.header.Get(h) != "" || b.header.Get(h) != "true" {
			t.Errorf("%s is %q in the first response and %q in the second", h, a.header.Get(h), b.header.Get(h))
		}
	}
	for _, name := range []string{"ietf-conflict", "same-answer-twice-done", "doubled-later", "mails-twice", "oasis", "stripe", "body-key", "no-audit", "late-effect", "serialises"} {
		run(t, name, same)
	}
	for _, name := range []string{"ietf-conflict", "ietf-waits", "stripe", "accepts", "no-audit", "natural-key-and-header"} {
		run(t, name, replayMarked)
	}

	run(t, "ietf-conflict", func(t *testing.T, c *client) {
		b := inFlight(c, request{})
		b.want(t, "in flight", 409)
		if b.header.Get("Retry-After") == "" || !strings.Contains(b.body, "same-key") {
			t.Errorf("the conflict says %v %s", b.header, b.body)
		}
		c.send(request{quantity: 2}).want(t, "mismatch", 422)
		c.send(request{key: none}).want(t, "missing", 400)
		c.send(request{key: malformed}).want(t, "malformed", 400)
		a, quoted := c.send(request{}), c.send(request{key: `"key-1"`})
		if a.id() != quoted.id() || a.id() == "" {
			t.Errorf("a key in quotes is another key: %q and %q", a.id(), quoted.id())
		}
	})
	run(t, "ietf-waits", func(t *testing.T, c *client) {
		b := inFlight(c, request{})
		b.want(t, "in flight", 201)
	})
	run(t, "serialises", func(t *testing.T, c *client) {
		inFlight(c, request{}).want(t, "in flight", 201)
		began := time.Now()
		one, two := c.begin(t.Context(), request{key: "x"}), c.begin(t.Context(), request{key: "y"})
		one()
		two()
		if took := time.Since(began); took < 2*work {
			t.Errorf("two requests took %v: they overlapped", took)
		}
	})
	run(t, "accepts", func(t *testing.T, c *client) {
		b := inFlight(c, request{})
		b.want(t, "in flight", 202)
		r := httptest.NewRequest("GET", b.header.Get("Location"), nil)
		r.Header.Set("X-Tenant", "acme")
		r.Header.Set("X-Actor", "alice")
		rec := httptest.NewRecorder()
		c.service.ServeHTTP(rec, r)
		if a := c.send(request{}); rec.Code != 201 || rec.Body.String() != a.body {
			t.Errorf("the place to look at says %d %s", rec.Code, rec.Body)
		}
	})
	run(t, "stripe", func(t *testing.T, c *client) {
		c.service.Fail(true)
		c.send(request{}).want(t, "failing", 500)
		c.service.Fail(false)
		c.send(request{}).want(t, "recorded failure", 500)
		c.send(request{quantity: 2}).want(t, "mismatch", 400)
	})
	run(t, "oasis", func(t *testing.T, c *client) {
		a := c.send(request{})
		if a.header.Get("Repeatability-Result") != "accepted" {
			t.Errorf("the response has %v", a.header)
		}
		b := c.send(request{quantity: 2})
		b.want(t, "mismatch", 400)
		if b.header.Get("Repeatability-Result") != "rejected" {
			t.Errorf("the mismatch has %v", b.header)
		}
		r := c.render(t.Context(), request{key: "key-9"})
		r.Header.Set("Repeatability-First-Sent", time.Now().Add(-2*time.Hour).UTC().Format(http.TimeFormat))
		rec := httptest.NewRecorder()
		c.service.ServeHTTP(rec, r)
		if rec.Code != 412 {
			t.Errorf("too long ago: %d", rec.Code)
		}
		r = c.render(t.Context(), request{key: "key-9"})
		r.Header.Del("Repeatability-Request-ID")
		rec = httptest.NewRecorder()
		c.service.ServeHTTP(rec, r)
		if rec.Code != 400 {
			t.Errorf("one header of two: %d", rec.Code)
		}
	})
	run(t, "body-key", func(t *testing.T, c *client) {
		c.send(request{})
		c.send(request{quantity: 2}).want(t, "mismatch", 400)
		c.send(request{key: none}).want(t, "missing", 400)
	})
	for _, name := range []string{"conflict-with-reference", "natural-key"} {
		run(t, name, func(t *testing.T, c *client) {
			a, b := c.send(request{}), c.send(request{})
			b.want(t, "duplicate", 409)
			if a.id() == "" || b.id() != a.id() || b.header.Get("Location") != a.header.Get("Location") {
				t.Errorf("the order is %q, the reference %q", a.id(), b.id())
			}
		})
	}
	run(t, "natural-key-and-header", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{key: "key-2"})
		b.want(t, "fresh key", 409)
		if b.id() != a.id() {
			t.Errorf("the order is %q, the reference %q", a.id(), b.id())
		}
	})
	run(t, "late-effect", func(t *testing.T, c *client) {
		c.send(request{})
		if n := c.service.Count(ref); n != 0 {
			t.Errorf("%d orders at the time of the response", n)
		}
	})
	run(t, "doubled-later", func(t *testing.T, c *client) {
		c.send(request{})
		c.send(request{})
		if n := c.service.Count(ref); n != 1 {
			t.Errorf("%d orders at the time of the second response", n)
		}
	})
	run(t, "current-state", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{})
		if a.id() != b.id() || !strings.Contains(a.body, "created") || !strings.Contains(b.body, "confirmed") {
			t.Errorf("the responses are %s and %s", a.body, b.body)
		}
	})
	run(t, "success-only", func(t *testing.T, c *client) {
		c.service.Fail(true)
		c.send(request{}).want(t, "failing", 500)
		c.service.Fail(false)
		c.send(request{}).want(t, "again", 201)
	})
	run(t, "another-id-each-time", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{})
		b.want(t, "duplicate", 201)
		if a.id() == b.id() {
			t.Errorf("both are %q", a.id())
		}
	})
	run(t, "keys-of-everybody", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{tenant: "globex", actor: "carol"})
		if a.body != b.body || !strings.Contains(b.body, "alice") {
			t.Errorf("globex got %s", b.body)
		}
	})
	run(t, "keys-of-tenant", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{actor: "bob"})
		if a.body != b.body {
			t.Errorf("bob got %s", b.body)
		}
	})
	run(t, "mismatch-executes", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{quantity: 3})
		b.want(t, "mismatch", 201)
		if a.id() == b.id() {
			t.Error("it is the same order")
		}
	})
	run(t, "mismatch-replays", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{quantity: 3})
		if b.status != 201 || a.body != b.body {
			t.Errorf("the mismatch got %d %s", b.status, b.body)
		}
	})
	run(t, "mismatch-leaks", func(t *testing.T, c *client) {
		a, b := c.send(request{}), c.send(request{quantity: 3})
		b.want(t, "mismatch", 422)
		if !strings.Contains(b.body, "green tea 42") || !strings.Contains(b.body, a.id()) {
			t.Errorf("nothing leaks: %s", b.body)
		}
		inFlight(c, request{quantity: 4}).want(t, "mismatch in flight", 422)
	})
	run(t, "in-flight-new-key", func(t *testing.T, c *client) {
		b := inFlight(c, request{})
		b.want(t, "in flight", 409)
		if b.header.Get("Retry-After") != "" || !strings.Contains(b.body, "new key") {
			t.Errorf("the conflict says %v %s", b.header, b.body)
		}
		c.send(request{}).want(t, "replay", 201)
	})
	run(t, "unique-violation-leaks", func(t *testing.T, c *client) {
		inFlight(c, request{}).want(t, "in flight", 500)
		c.send(request{}).want(t, "duplicate", 500)
	})
	for name, in := range map[string]func(c *client){
		"failure-blocks-key": func(c *client) {
			c.service.Fail(true)
			c.send(request{})
			c.service.Fail(false)
		},
		"cut-blocks-key": func(c *client) {
			ctx, cut := context.WithCancel(c.t.Context())
			first := c.begin(ctx, request{})
			synctest.Wait()
			cut()
			first()
		},
	} {
		run(t, name, func(t *testing.T, c *client) {
			in(c)
			time.Sleep(24 * time.Hour) // virtual
			c.send(request{}).want(t, "a day later", 409)
			if n := c.count(); n != 0 {
				t.Errorf("%d orders", n)
			}
			c.send(request{key: "key-2"}).want(t, "another key", 201)
		})
	}
	for _, name := range []string{"check-then-act", "check-then-queue"} {
		run(t, name, func(t *testing.T, c *client) {
			first := c.begin(t.Context(), request{})
			time.Sleep(work / 2) // virtual: the window is wide
			c.send(request{})
			first()
			if n := c.count(); n != 2 {
				t.Errorf("%d orders", n)
			}
		})
	}
	run(t, "mark-before-success", func(t *testing.T, c *client) {
		ctx, cut := context.WithCancel(t.Context())
		first := c.begin(ctx, request{})
		synctest.Wait()
		cut()
		first()
		c.send(request{}).want(t, "retry", 201)
	})
	run(t, "record-after-answer", func(t *testing.T, c *client) { same(t, c) })
	run(t, "failure-forgotten", func(t *testing.T, c *client) {
		c.service.Fail(true)
		c.send(request{}).want(t, "failing", 500)
		c.service.Fail(false)
		c.send(request{}).want(t, "again", 201)
	})
	run(t, "failure-after-effect", func(t *testing.T, c *client) {
		c.service.Fail(true)
		c.send(request{}).want(t, "failing", 500)
		if n := c.count(); n != 1 {
			t.Errorf("%d orders after the error", n)
		}
	})
	run(t, "rate-limiter", func(t *testing.T, c *client) {
		c.send(request{})
		c.send(request{}).want(t, "at once", 429)
		c.send(request{key: "key-2"}).want(t, "another key", 429)
		time.Sleep(time.Second) // virtual
		c.send(request{}).want(t, "later", 201)
	})
	run(t, "malformed-key-runs", func(t *testing.T, c *client) {
		for _, key := range []string{malformed, `"half`, ""} {
			before := c.count()
			r := c.render(t.Context(), request{})
			r.Header.Set("Idempotency-Key", key)
			rec := httptest.NewRecorder()
			c.service.ServeHTTP(rec, r)
			if rec.Code != 201 || c.count() != before+1 {
				t.Errorf("key %q: %d, %d orders more", key, rec.Code, c.count()-before)
			}
		}
	})
	run(t, "mails-twice", func(t *testing.T, c *client) {
		c.send(request{})
		c.send(request{})
		if n := c.service.Mails(ref); n != 2 || c.count() != 1 {
			t.Errorf("%d mails for %d orders", n, c.count())
		}
	})
	run(t, "mails-once", func(t *testing.T, c *client) {
		inFlight(c, request{})
		c.send(request{})
		if n := c.service.Mails(ref); n != 1 {
			t.Errorf("%d mails", n)
		}
	})
	run(t, "replay-unmarked", func(t *testing.T, c *client) {
		same(t, c)
		if h := c.send(request{}).header.Get(Marker); h != "" {
			t.Errorf("%s: %s", Marker, h)
		}
	})
	run(t, "no-audit", func(t *testing.T, c *client) {
		c.send(request{})
		if lines := c.service.Audit(); len(lines) != 0 {
			t.Errorf("the audit log has %q", lines)
		}
	})
	run(t, "sheds-429", func(t *testing.T, c *client) {
		b := inFlight(c, request{})
		b.want(t, "in flight", 429)
		c.send(request{}).want(t, "replay", 201)
		first := c.begin(t.Context(), request{key: "key-5"})
		synctest.Wait()
		c.send(request{key: "key-6"}).want(t, "another key meanwhile", 429)
		first().want(t, "first", 201)
	})
	run(t, "sheds-abort", func(t *testing.T, c *client) {
		inFlight(c, request{}).want(t, "in flight", 0)
		c.send(request{}).want(t, "replay", 201)
	})
	run(t, "ietf-conflict", func(t *testing.T, c *client) {
		c.send(request{})
		c.send(request{})
		c.send(request{quantity: 2})
		lines := strings.Join(c.service.Audit(), "\n")
		for _, want := range []string{"outcome=executed", "outcome=replayed", "outcome=refused", "actor=alice", "key=key-1"} {
			if !strings.Contains(lines, want) {
				t.Errorf("the audit log has no %s:\n%s", want, lines)
			}
		}
	})
}

func TestSpecifications(t *testing.T) {
	for name, want := range map[string][2]bool{
		"ietf-conflict": {true, true}, "retention-not-published": {true, false}, "no-specification": {false, false}, "natural-key": {true, false},
		"webhook": {true, true}, "body-key": {true, true},
	} {
		rec := httptest.NewRecorder()
		named(t, name).New().ServeHTTP(rec, httptest.NewRequest("GET", "/openapi.json", nil))
		text := strings.ToLower(rec.Body.String())
		got := [2]bool{strings.Contains(text, "idempoten"), strings.Contains(text, "retention")}
		if got != want || !json.Valid(rec.Body.Bytes()) {
			t.Errorf("%s: speaks of keys and retention: %v, want %v\n%s", name, got, want, text)
		}
	}
}

// deliver sends an event. The signature is of signed, if it is not empty.
func deliver(c *client, id, body, signed string, at time.Time) int {
	if signed == "" {
		signed = body
	}
	stamp := strconv.FormatInt(at.Unix(), 10)
	r := httptest.NewRequest("POST", "/hooks", strings.NewReader(body))
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", stamp)
	r.Header.Set("webhook-signature", signature(id, stamp, []byte(signed)))
	rec := httptest.NewRecorder()
	c.service.ServeHTTP(rec, r)
	return rec.Code
}

func TestDeliveries(t *testing.T) {
	const event, other = `{"type":"order.paid","reference":"ref-1","quantity":1}`, `{"type":"order.paid","reference":"ref-1","quantity":9}`
	type step struct{ status, orders int }
	steps := map[string]func(c *client) int{
		"same": func(c *client) int {
			deliver(c, "e1", event, "", time.Now())
			return deliver(c, "e1", event, "", time.Now())
		},
		"signed anew": func(c *client) int {
			deliver(c, "e1", event, "", time.Now())
			time.Sleep(time.Hour) // virtual
			return deliver(c, "e1", event, "", time.Now())
		},
		"stale":           func(c *client) int { return deliver(c, "e1", event, "", time.Now().Add(-time.Hour)) },
		"from the future": func(c *client) int { return deliver(c, "e1", event, "", time.Now().Add(time.Hour)) },
		"altered": func(c *client) int {
			deliver(c, "e1", event, "", time.Now())
			return deliver(c, "e1", other, event, time.Now())
		},
		"altered, another id": func(c *client) int { return deliver(c, "e2", other, event, time.Now()) },
		"other event, same id": func(c *client) int {
			deliver(c, "e1", event, "", time.Now())
			return deliver(c, "e1", other, "", time.Now())
		},
		"other id": func(c *client) int {
			deliver(c, "e1", event, "", time.Now())
			return deliver(c, "e2", event, "", time.Now())
		},
		"race": func(c *client) int {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { deliver(c, "e1", event, "", time.Now()) })
			}
			wg.Wait()
			return 200
		},
		"failed": func(c *client) int {
			c.service.Fail(true)
			deliver(c, "e1", event, "", time.Now())
			c.service.Fail(false)
			return deliver(c, "e1", event, "", time.Now())
		},
	}
	right := map[string]step{
		"same": {200, 1}, "signed anew": {200, 1}, "stale": {400, 0}, "from the future": {400, 0}, "altered": {400, 1}, "altered, another id": {400, 0},
		"other event, same id": {422, 1}, "other id": {200, 2}, "race": {200, 1}, "failed": {200, 1},
	}
	for name, not := range map[string]map[string]step{
		"webhook":          {},
		"webhook-doubles":  {"same": {200, 2}, "signed anew": {200, 2}, "other event, same id": {200, 2}, "race": {200, 8}},
		"webhook-unsigned": {"altered": {200, 2}, "altered, another id": {200, 1}, "other event, same id": {200, 2}},
		"webhook-any-time": {"stale": {200, 1}, "from the future": {200, 1}},
	} {
		want := maps.Clone(right)
		maps.Copy(want, not)
		for what, do := range steps {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					target := named(t, name)
					c := &client{t: t, target: target, service: target.New()}
					status := do(c)
					if got := (step{status, c.count()}); got != want[what] {
						t.Errorf("status and orders are %v, want %v", got, want[what])
					}
				})
			})
		}
	}
}

func Example() {
	s := All()[0].New()
	for range 2 {
		r := httptest.NewRequest("POST", "/orders", strings.NewReader(`{"reference":"r","item":"tea","quantity":1}`))
		r.Header = http.Header{"X-Tenant": {"acme"}, "X-Actor": {"alice"}, "Idempotency-Key": {"k"}}
		s.ServeHTTP(httptest.NewRecorder(), r)
	}
	fmt.Println(s.Count("r"), "orders for one key")
	// Output: 2 orders for one key
}
