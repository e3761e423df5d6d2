package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/remote"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/semelhttp"
)

// anywhere are the tests that need no page: they run in the browser and in Node.
var anywhere = map[string]func(*stage, tab){
	"two calls at once":          testTwoCalls,
	"answers":                    testAnswers,
	"changed under one id":       testChangedUnderID,
	"refused and corrected":      testCorrected,
	"session over":               testSessionOver,
	"server error":               testServerError,
	"key too old":                testStaleKey,
	"body without an id":         testBodyWithoutID,
	"entries are swept":          testSwept,
	"abort ends a wait":          testAbortInAWait,
	"abort of one of two":        testAbortOfOne,
	"forgotten while it is sent": testForgottenInFlight,
	"id is not in the storage":   testIDIsNotKept,
}

// TestBrowser clicks through the order page, and calls its once.js, in a real
// browser, and counts orders.
func TestBrowser(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ctx, cancel = remote.NewAllocator(ctx, testenv.Chromium(t), remote.NoModifyURL)
	defer cancel()
	// It begins the connection to the browser, which ends with it.
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}

	tests := maps.Clone(anywhere)
	maps.Copy(tests, map[string]func(*stage, tab){
		"double click":                 testDoubleClick,
		"second click after the first": testSecondClick,
		"reload while it runs":         testReload,
		"answer lost":                  testAnswerLost,
		"answer cut off":               testAnswerCutOff,
		"duplicated tab":               testDuplicatedTab,
		"tabs with one storage":        testLocalStorage,
		"answer after the next action": testLateAnswer,
		"key made by the server":       testGivenKey,
		"changed quantity":             testChangedQuantity,
		"outcome unknown":              testOutcomeUnknown,
		"no answer at all":             testNoAnswer,
		"insecure origin":              testInsecureOrigin,
		"storage that keeps nothing":   testNoStorage,
		"storage full of old entries":  testStorageFull,
		"storage full at the answer":   testStorageFullAtTheAnswer,
		"entry that cannot be read":    testCorruptStorage,
	})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			// Storage of its own.
			ctx, cancel := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
			t.Cleanup(cancel)
			ctx, cancel = context.WithTimeout(ctx, time.Minute)
			t.Cleanup(cancel)
			p := tab{t: t, ctx: ctx}
			p.run(chromedp.Navigate(s.url))
			test(s, p)
		})
	}
}

func testDoubleClick(s *stage, p tab) {
	arrived, release := s.hold()
	eval[bool](p, `globalThis.submits = 0, addEventListener('submit', () => submits++), true`)
	p.doubleClick()
	await(s.t, p.ctx, "the order's way to the service", arrived)
	if n := eval[int](p, `submits`); n != 2 {
		s.t.Fatalf("the form was sent %d times", n)
	}
	release()
	p.says("Order 1: 1 × book")
	s.expect(1, 1)
	if n := len(s.seen()); n != 1 {
		s.t.Fatalf("two clicks made %d requests", n)
	}
}

// The answer may be there before the second half of a double click.
func testSecondClick(s *stage, p tab) {
	p.setClock(0)
	p.click()
	p.says("Order 1")
	p.setClock(1999)
	p.click()
	if e := await(s.t, p.ctx, "the first answer", s.answered); e.replayed {
		s.t.Fatalf("the first answer is %+v", e)
	}
	if e := await(s.t, p.ctx, "the second answer", s.answered); !e.replayed {
		s.t.Fatalf("the second answer is %+v", e)
	}
	p.says("Order 1")
	s.expect(1, 1)
	// That did not prolong it: now it is another order of the same.
	p.setClock(2000)
	p.click()
	p.says("Order 2")
	s.expect(2, 2)
}

func testReload(s *stage, p tab) {
	arrived, release := s.hold()
	p.click()
	await(s.t, p.ctx, "the order's way to the service", arrived)
	p.run(chromedp.Reload())
	if kept := eval[string](p, `JSON.stringify(sessionStorage)`); !strings.Contains(kept, "key") || strings.Contains(kept, "book") {
		s.t.Fatalf("kept in storage: %s", kept)
	}
	p.click()
	if first, again := await(s.t, p.ctx, "the first post", s.came), await(s.t, p.ctx, "the post after the reload", s.came); first != again {
		s.t.Fatalf("the keys are %s and %s", first, again)
	}
	release()
	p.says("Order 1")
	s.expect(1, 1)
	if posts := s.seen(); !posts[len(posts)-1].replayed {
		s.t.Fatalf("posts: %+v", posts)
	}
}

func testAnswerLost(s *stage, p tab) {
	s.set(&s.front, times(3, lose)) // the browser itself may send once more on its own
	p.click()
	p.says("Order 1")
	s.expect(1, 1)
}

func testAnswerCutOff(s *stage, p tab) {
	s.set(&s.front, times(1, loseHalf))
	p.click()
	p.says("Order 1")
	s.expect(1, 1)
	if posts := s.seen(); len(posts) != 2 || !posts[1].replayed {
		s.t.Fatalf("posts: %+v", posts)
	}
}

// A duplicated tab begins with a copy of the first one's session storage, as
// does one that the first one opens.
func testDuplicatedTab(s *stage, p tab) {
	arrived, release := s.hold()
	p.click()
	await(s.t, p.ctx, "the order's way to the service", arrived)
	opened := chromedp.WaitNewTarget(p.ctx, func(i *target.Info) bool { return i.URL != "" })
	eval[bool](p, `open(location.href) !== null`)
	ctx, cancel := chromedp.NewContext(p.ctx, chromedp.WithTargetID(await(s.t, p.ctx, "the second tab", opened)))
	s.t.Cleanup(cancel)
	second := tab{t: s.t, ctx: ctx}
	second.run(chromedp.WaitVisible(button))
	// As the page does it, but without a wish to wait.
	call := "import('/once.js').then(({ once }) => once('place order', '/orders', " +
		"{ method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ item: 'book', quantity: 1 }) })).then((response) => response.status)"
	eval[bool](second, `globalThis.answer = `+call+`, true`)
	if e := await(s.t, p.ctx, "the second tab's answer", s.answered); e.status != http.StatusConflict {
		s.t.Fatalf("answered %+v", e)
	}
	release()
	p.says("Order 1")
	if status := eval[int](second, `answer`); status != http.StatusCreated {
		s.t.Fatalf("the second tab was answered with %d", status)
	}
	s.expect(1, 1)
}

// An answer that comes late does not end what another tab has begun since.
func testLateAnswer(s *stage, p tab) {
	arrived, release := s.hold()
	p.click()
	await(s.t, p.ctx, "the order's way to the service", arrived)
	const entry = `{"key":"of-the-next-action","made":1}`
	eval[bool](p, fmt.Sprintf(`globalThis.slot = Object.keys(sessionStorage)[0], sessionStorage.setItem(slot, %q), true`, entry))
	release()
	p.says("Order 1")
	if after := eval[string](p, `sessionStorage.getItem(slot)`); after != entry {
		s.t.Fatalf("the late answer made it %s", after)
	}
}

// Tabs that share nothing but what the server wrote into the page.
func testGivenKey(s *stage, p tab) {
	arrived, release := s.hold()
	call := fmt.Sprintf(`import('/once.js').then(({ once }) => { globalThis.running = once(%s, { id: 'cart 7', key: 'cart-7-of-the-server' }) }), true`, request(1))
	eval[bool](p, call)
	await(s.t, p.ctx, "the order's way to the service", arrived)
	second := p.another(s.url)
	eval[bool](second, call)
	for range 2 {
		if key := await(s.t, p.ctx, "a post", s.came); key != `"cart-7-of-the-server"` {
			s.t.Fatalf("the key is %s", key)
		}
	}
	release()
	for _, p := range []tab{p, second} {
		if id := eval[int](p, `running.then((response) => response.json()).then(({ id }) => id)`); id != 1 {
			s.t.Fatalf("a tab was told of order %d", id)
		}
	}
	s.expect(1, 1)
}

// Two calls of one action share its request and its answer.
func testTwoCalls(s *stage, p tab) {
	arrived, release := s.hold()
	p.begin("first", true)
	await(s.t, p.ctx, "the order's way to the service", arrived)
	p.begin("second", false)
	release()
	for _, name := range []string{"first", "second"} {
		if got := eval[string](p, name+`.answer`); got != "201" {
			s.t.Fatalf("the %s call was answered with %s", name, got)
		}
	}
	if posts := s.seen(); len(posts) != 1 {
		s.t.Fatalf("posts: %+v", posts)
	}
}

// testAnswers has the first post answered as a row says, and looks at what once
// does about it, and under which key the user's next call is sent.
func testAnswers(s *stage, p tab) {
	// Waits are noted, and not waited for. The shortest pause is 250 ms. Node's
	// fetch has timers of its own.
	eval[bool](p, `{
		const later = setTimeout
		globalThis.waits = []
		globalThis.setTimeout = (f, ms, ...rest) => {
			if (!new Error().stack.includes('once.js')) return later(f, ms, ...rest)
			waits.push(ms)
			return later(f, 0)
		}
	}; true`)
	p.setClock(0) // at 1.7e12: Tue, 14 Nov 2023 22:13:20 GMT
	type row struct {
		status                 int
		retry, after, recorded string
		again                  bool // sent again by itself
		wait                   int  // ms, at least
		next                   string
	}
	for i, row := range []row{
		{status: 201, recorded: "yes", next: "same"}, // the second half of a double click
		{status: 400, recorded: "yes", next: "new"},
		{status: 404, recorded: "yes", next: "new"},
		{status: 422, retry: "new-key", next: "new"},
		{status: 422, retry: "no", next: "same"},
		{status: 500, recorded: "yes", next: "same"},
		{status: 502, recorded: "yes", retry: "after-resolution", next: "same"}, // the outcome is unknown
		{status: 409, retry: "after-resolution", next: "same"},
		{status: 409, retry: "same-key", after: "2", again: true, wait: 2000},
		{status: 409, next: "same"}, // another server's: it may be any refusal
		{status: 425, after: "1", again: true, wait: 1000},
		{status: 425, again: true, wait: 250},
		{status: 429, after: "3", again: true, wait: 3000},
		{status: 503, after: "5", again: true, wait: 5000},
		{status: 503, after: "Tue, 14 Nov 2023 22:13:31 GMT", again: true, wait: 12_000},
		{status: 503, after: "Tue, 14 Nov 2023 22:13:00 GMT", again: true, wait: 250}, // is over
		{status: 503, after: "soon", again: true, wait: 250},
		{status: 503, after: "31", next: "same"}, // too long for a page
		{status: 503, after: "Tue, 14 Nov 2023 22:14:20 GMT", next: "same"},
		{status: 408, again: true}, // which Chromium sends again itself
		{status: 504, again: true, wait: 250},
		{status: 401, next: "same"},
	} {
		quantity := i + 1
		s.set(&s.front, times(1, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			h := w.Header()
			h.Set("Date", "Tue, 14 Nov 2023 22:13:19 GMT") // the server's clock is a second behind
			for name, value := range map[string]string{"Retry-After": row.after, "Idempotency-Expires": row.recorded} {
				if value != "" {
					h.Set(name, value)
				}
			}
			h.Set("Content-Type", "application/problem+json")
			w.WriteHeader(row.status)
			if row.retry != "" {
				_, _ = fmt.Fprintf(w, `{"retry":%q}`, row.retry)
			} else {
				_, _ = fmt.Fprint(w, `{}`)
			}
		}))
		var keys []string
		front := s.front
		s.set(&s.front, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			s.mu.Lock()
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			s.mu.Unlock()
			front(w, r, next)
		})
		eval[bool](p, `waits.length = 0, true`)
		got := p.once(quantity, `{}`)
		waits := eval[[]float64](p, `waits`)
		s.mu.Lock()
		sent := slices.Clone(keys)
		s.mu.Unlock()
		switch {
		case row.again && (got.Status != 201 || len(sent) != 2 || sent[0] != sent[1] || row.wait > 0 && (len(waits) != 1 || waits[0] < float64(row.wait))):
			s.t.Errorf("%+v: %d after posts with keys %v and waits %v", row, got.Status, sent, waits)
		case !row.again && (got.Status != row.status || len(sent) != 1 || len(waits) != 0):
			s.t.Errorf("%+v: %d after posts with keys %v and waits %v", row, got.Status, sent, waits)
		}
		if row.again {
			continue
		}
		if got := p.once(quantity, `{}`); got.Status != 201 {
			s.t.Errorf("%+v: the next call is answered with %d", row, got.Status)
		}
		s.mu.Lock()
		if same := keys[0] == keys[len(keys)-1]; same != (row.next == "same") {
			s.t.Errorf("%+v: the next call has the same key: %t", row, same)
		}
		s.mu.Unlock()
	}
}

func testChangedQuantity(s *stage, p tab) {
	p.setClock(0)
	p.click()
	p.says("Order 1: 1 × book")
	p.run(chromedp.SetValue(chromedp.CSS("[name=quantity]"), "2"))
	p.click()
	p.says("Order 2: 2 × book")
	s.expect(2, 2)
}

func testChangedUnderID(s *stage, p tab) {
	const options = `{ id: 'cart 7', tries: 1 }`
	p.setClock(0)
	expectTold(s.t, p.once(1, options), 201, false, 1)
	p.setClock(3600e3) // an id has no end
	expectTold(s.t, p.once(2, options), 422, false, 0)
	expectTold(s.t, p.once(1, options), 201, true, 1)
	s.expect(1, 1)
	expectTold(s.t, p.once(2, `{ id: 'cart 8' }`), 201, false, 2)
	s.expect(2, 2)

	// Also while the first is running: the changed request is not taken for it.
	arrived, release := s.hold()
	eval[bool](p, fmt.Sprintf(`import('/once.js').then(({ once }) => { globalThis.running = once(%s, { id: 'cart 9' }) }), true`, request(1)))
	await(s.t, p.ctx, "the order's way to the service", arrived)
	expectTold(s.t, p.once(2, `{ id: 'cart 9', tries: 1 }`), 422, false, 0)
	release()
	if status := eval[int](p, `running.then((response) => response.status)`); status != 201 {
		s.t.Fatalf("the first was answered with %d", status)
	}
	s.expect(3, 3)
}

// A refusal that is on record ends the action, also of an id: the corrected
// request needs a new key.
func testCorrected(s *stage, p tab) {
	expectTold(s.t, p.once(0, `{ id: 'cart 7' }`), 400, false, 0)
	expectTold(s.t, p.once(1, `{ id: 'cart 7' }`), 201, false, 1)
	s.expect(1, 2)
}

func testOutcomeUnknown(s *stage, p tab) {
	s.set(&s.back, times(1, lose))
	p.setClock(0)
	p.click()
	p.says("The outcome of this operation is unknown.")
	p.setClock(3600e3)
	p.click()
	p.says("The outcome of this operation is unknown.")
	if e := []exchange{await(s.t, p.ctx, "an answer", s.answered), await(s.t, p.ctx, "an answer", s.answered)}; e[0].status != 502 || e[1].status != 409 {
		s.t.Fatalf("answered %+v", e)
	}
	records, err := s.store.List(s.t.Context(), semel.Filter{})
	if err != nil || len(records) != 1 {
		s.t.Fatal(records, err)
	}
	result, err := semelhttp.EncodeResult(http.MethodPost, 201, http.Header{"Content-Type": {"application/json"}}, nil, []byte(`{"id":1,"item":"book","quantity":1}`))
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.guard.Resolve(s.t.Context(), semel.Resolution{
		Identity: records[0].Identity, Fence: records[0].Fence, Decision: semel.DecideResult, Result: result, Cause: "order 1 is there",
	}); err != nil {
		s.t.Fatal(err)
	}
	p.click()
	p.says("Order 1: 1 × book")
	s.expect(1, 1)
}

// An answer that is not from the record says nothing about the earlier try.
func testSessionOver(s *stage, p tab) {
	s.set(&s.front, times(2, lose))
	if got := p.once(1, `{ tries: 1 }`); got.Error != "TypeError" {
		s.t.Fatalf("once gave %+v", got)
	}
	s.set(&s.front, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		problem(w, http.StatusUnauthorized, "sign in")
	})
	expectTold(s.t, p.once(1, `{}`), 401, false, 0)
	s.set(&s.front, pass)
	expectTold(s.t, p.once(1, `{}`), 201, true, 1)
	s.expect(1, 1)
}

// A 500 on record may have had its effect. Only the user can say that another
// would be right.
func testServerError(s *stage, p tab) {
	s.set(&s.back, times(1, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		service.ServeHTTP(httptest.NewRecorder(), r)
		problem(w, http.StatusInternalServerError, "half done")
	}))
	p.setClock(0)
	expectTold(s.t, p.once(1, `{}`), 500, false, 0)
	p.setClock(3600e3)
	expectTold(s.t, p.once(1, `{}`), 500, true, 0)
	s.expect(1, 1)
	p.forget(1, `{}`)
	expectTold(s.t, p.once(1, `{}`), 201, false, 2)
	s.expect(2, 2)
}

func testNoAnswer(s *stage, p tab) {
	s.set(&s.front, lose)
	eval[bool](p, `{ const later = setTimeout; globalThis.setTimeout = (f, ms) => later(f, ms < 20_000 ? 0 : ms) }; true`)
	p.click()
	p.says("No answer came.")
	s.set(&s.front, pass)
	p.click()
	p.says("Order 1")
	s.expect(1, 1)
}

// Without TLS, and not from the loopback host, a page has no crypto.randomUUID.
func testInsecureOrigin(s *stage, p tab) {
	p.run(chromedp.Navigate(strings.Replace(s.url, "127.0.0.1", "orders.test", 1)))
	if !eval[bool](p, `!isSecureContext && !crypto.randomUUID`) {
		s.t.Fatal("the origin is secure")
	}
	s.set(&s.front, times(1, loseHalf))
	p.setClock(0)
	p.doubleClick()
	p.says("Order 1")
	s.expect(1, 1)
	key, err := semelhttp.ParseKey([]string{s.seen()[0].key}, true)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := (semel.KeyRules{RequireUUID: true}).Check(key); err != nil {
		s.t.Fatalf("the key is %s: %v", key, err)
	}
}

// A form with files is encoded anew each time, so that it cannot be told by
// its bytes.
func testBodyWithoutID(s *stage, p tab) {
	call := func(options string) string {
		return eval[string](p, fmt.Sprintf(`import('/once.js').then(({ once }) => once('buy', '/orders', { method: 'POST', body: new FormData() }, %s))
			.then((response) => String(response.status), (error) => error.name)`, options))
	}
	if got := call(`{}`); got != "TypeError" {
		s.t.Fatalf("once gave %s", got)
	}
	s.expect(0, 0)
	if got := call(`{ id: 'cart 7' }`); got != "400" { // the service wants JSON
		s.t.Fatalf("once gave %s", got)
	}
	s.expect(0, 1)
}

// begin calls the wrapper as the global name, with a signal of its own, right
// after what else there is to do. It fails unless the call sends a request of its
// own, or joins another, as wanted.
func (p tab) begin(name string, own bool, first ...string) {
	p.t.Helper()
	sent := eval[bool](p, fmt.Sprintf(`import('/once.js').then(({ once }) => {
		const abort = new AbortController()
		const [action, url, init] = [%s]
		%s
		let sent = false
		const fetch = globalThis.fetch
		globalThis.fetch = (...request) => { sent = true; return fetch(...request) }
		const answer = once(action, url, { ...init, signal: abort.signal }).then((response) => String(response.status), (error) => error.name)
		globalThis.fetch = fetch
		globalThis.%s = { abort, answer }
		return sent
	})`, request(1), strings.Join(first, "; "), name))
	if sent != own {
		p.t.Fatalf("the %s call sent a request: %t", name, sent)
	}
}

// abort ends the call, and returns what came of it.
func (p tab) abort(name string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf(`%[1]s.abort.abort(), %[1]s.answer`, name))
}

// Nothing but the abort ends this wait, and the key is kept.
func testAbortInAWait(s *stage, p tab) {
	s.set(&s.back, times(1, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", "20")
		problem(w, http.StatusServiceUnavailable, "come back")
	}))
	eval[bool](p, `{ const later = setTimeout; globalThis.waits = 0; globalThis.setTimeout = (f, ms, ...rest) => ms === 20_000 ? (globalThis.wake = f, ++waits) : later(f, ms, ...rest) }; true`)
	p.begin("first", true)
	await(s.t, p.ctx, "the first answer", s.answered)
	eval[bool](p, `new Promise((resolve) => { const look = () => waits ? resolve(true) : setTimeout(look, 1); look() })`)
	if got := p.abort("first"); got != "AbortError" {
		s.t.Fatalf("the aborted call gave %s", got)
	}
	if got := eval[string](p, `import('/once.js').then(({ once }) => once('buy', '/orders', { method: 'POST', body: '{}', signal: AbortSignal.abort() })).catch((error) => error.name)`); got != "AbortError" {
		s.t.Fatalf("a call that was aborted before gave %s", got)
	}
	eval[bool](p, `wake(), true`) // and nobody sends
	expectTold(s.t, p.once(1, `{}`), 201, false, 1)
	s.expect(1, 1)
	if posts := s.seen(); len(posts) != 2 {
		s.t.Fatalf("posts: %+v", posts)
	}
}

// Who leaves does not take the answer from who stays. When all have left, the
// request is aborted, and who comes then sends it again under its key.
func testAbortOfOne(s *stage, p tab) {
	arrived, release := s.hold()
	p.begin("first", true)
	await(s.t, p.ctx, "the order's way to the service", arrived)
	p.begin("second", false)
	if got := p.abort("first"); got != "AbortError" {
		s.t.Fatalf("the aborted call gave %s", got)
	}
	p.begin("third", false)
	for _, name := range []string{"third", "second"} {
		if got := p.abort(name); got != "AbortError" {
			s.t.Fatalf("the aborted call gave %s", got)
		}
	}
	hung := make(chan struct{}, 2)
	s.set(&s.front, times(1, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.Copy(io.Discard, r.Body) // or the client's end goes unnoticed
		hung <- struct{}{}
		<-r.Context().Done()
		hung <- struct{}{}
		panic(http.ErrAbortHandler)
	}))
	p.begin("fourth", true)
	await(s.t, p.ctx, "the fourth call's request", hung)
	// As pages do that want the last click's answer only.
	p.begin("fifth", true, `fourth.abort.abort()`)
	await(s.t, p.ctx, "the end of the fourth call's request", hung)
	p.begin("sixth", false)
	release()
	for _, name := range []string{"fifth", "sixth"} {
		if got := eval[string](p, name+`.answer`); got != "201" {
			s.t.Fatalf("the %s call was answered with %s", name, got)
		}
	}
	s.expect(1, 1)
}
