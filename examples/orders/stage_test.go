package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/store/memory"
)

// stage is the service behind a gateway, and what a test does to the requests
// between browser, gateway and service.
type stage struct {
	t     *testing.T
	shop  *shop
	store *memory.Store
	guard *semel.Guard
	url   string

	came     chan string   // the key of each post that comes to the gateway
	answered chan exchange // what the gateway answered to each post, in order

	mu    sync.Mutex
	posts []exchange
	front func(w http.ResponseWriter, r *http.Request, gateway http.Handler)
	back  func(w http.ResponseWriter, r *http.Request, service http.Handler)
}

// exchange is a post that came from the browser, and its answer.
type exchange struct {
	key      string
	status   int
	replayed bool
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, came: make(chan string, 100), answered: make(chan exchange, 100), front: pass, back: pass}
	var err error
	if s.shop, err = openShop(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(s.between(&s.back, handler(s.shop, 0)))
	if s.store, err = memory.New(memory.Config{}); err != nil {
		t.Fatal(err)
	}
	// What is in progress is to be asked for again after a heartbeat.
	policy := semel.Policy{Heartbeat: time.Second}
	if s.guard, err = semel.New(semel.Config{Store: s.store, Policy: policy}); err != nil {
		t.Fatal(err)
	}
	upstream, err := url.Parse(service.URL)
	if err != nil {
		t.Fatal(err)
	}
	gw, err := gateway.New(gateway.Config{Upstream: upstream, Guard: s.guard})
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(s.between(&s.front, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			gw.ServeHTTP(w, r)
			return
		}
		key, rec := r.Header.Get("Idempotency-Key"), httptest.NewRecorder()
		s.came <- key
		gw.ServeHTTP(rec, r)
		e := exchange{key, rec.Code, rec.Header().Get("Idempotency-Replayed") == "true"}
		s.mu.Lock()
		s.posts = append(s.posts, e)
		s.mu.Unlock()
		s.answered <- e
		give(w, rec)
	})))
	s.url = proxy.URL
	t.Cleanup(func() {
		proxy.Close()
		if err := gw.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		service.Close()
		s.shop.close()
	})
	return s
}

// between has the function at f, as it is when a post comes, decide about it.
func (s *stage) between(f *func(http.ResponseWriter, *http.Request, http.Handler), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		decide := *f
		s.mu.Unlock()
		if r.Method != http.MethodPost {
			decide = pass
		}
		decide(w, r, next)
	})
}

func (s *stage) set(f *func(http.ResponseWriter, *http.Request, http.Handler), decide func(http.ResponseWriter, *http.Request, http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*f = decide
}

func pass(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) }

func give(w http.ResponseWriter, rec *httptest.ResponseRecorder) {
	for name, values := range rec.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes()) // the browser may be gone
}

// lose has the whole work done and cuts the connection instead of answering.
func lose(_ http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// loseHalf cuts the connection in the middle of the answer's body.
func loseHalf(w http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	whole := rec.Body.Bytes()
	rec.Header().Set("Content-Length", fmt.Sprint(len(whole)))
	rec.Body.Truncate(len(whole) / 2)
	give(w, rec)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// times passes all posts but the first n, which do decides about.
func times(n int, do func(http.ResponseWriter, *http.Request, http.Handler)) func(http.ResponseWriter, *http.Request, http.Handler) {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		n--
		mine := n >= 0
		mu.Unlock()
		if mine {
			do(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// hold keeps posts waiting before the service until release is called. Each
// tells arrived.
func (s *stage) hold() (arrived <-chan struct{}, release func()) {
	came, gate := make(chan struct{}, 100), make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	s.t.Cleanup(release)
	s.set(&s.back, func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		came <- struct{}{}
		<-gate
		service.ServeHTTP(w, r)
	})
	return came, release
}

// expect fails unless there are so many orders, made of posts with so many keys.
func (s *stage) expect(orders int64, keys int) {
	s.t.Helper()
	c, err := s.shop.count(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, p := range s.posts {
		seen[p.key] = true
	}
	if c.Orders != orders || len(seen) != keys {
		s.t.Fatalf("%d orders of %d keys; want %d of %d: %+v", c.Orders, len(seen), orders, keys, s.posts)
	}
}

// seen returns the posts so far.
func (s *stage) seen() []exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.posts)
}

// await returns what comes from the channel.
func await[T any](t *testing.T, ctx context.Context, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-ctx.Done():
		t.Fatalf("%s: %v", what, ctx.Err())
	}
	return v
}

// tab is a tab of the browser, or what calls once.js in Node.
type tab struct {
	t   *testing.T
	ctx context.Context
	// node evaluates an expression, if the tab is no browser's.
	node func(expression string) (json.RawMessage, error)
}

func (p tab) run(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

// eval evaluates a JavaScript expression, and awaits it if it is a promise.
func eval[T any](p tab, expression string) T {
	p.t.Helper()
	var v T
	var err error
	if p.node != nil {
		var text json.RawMessage
		if text, err = p.node(expression); err == nil {
			err = json.Unmarshal(text, &v)
		}
	} else {
		v, err = chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise,
			func(e *runtime.EvaluateParams) { e.UserGesture = new(true) }))
	}
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

func (p tab) click() { p.t.Helper(); p.run(chromedp.Click(button)) }

// doubleClick clicks, and then what chromedp calls a double click: the second
// click of one.
func (p tab) doubleClick() { p.t.Helper(); p.run(chromedp.Click(button), chromedp.DoubleClick(button)) }

const button = chromedp.CSS("button")

// says waits until the page says something that starts with prefix.
func (p tab) says(prefix string) {
	p.t.Helper()
	eval[bool](p, fmt.Sprintf(`new Promise((resolve, reject) => {
		const output = document.querySelector('output')
		const look = () => output.textContent.startsWith(%q) && resolve(true)
		new MutationObserver(look).observe(output, { childList: true, characterData: true, subtree: true })
		setTimeout(() => reject(new Error('it says: ' + output.textContent)), 30_000)
		look()
	})`, prefix))
}

// told is what a call of once came to.
type told struct {
	Status   int
	Replayed bool
	Answer   struct{ ID int64 }
	Error    string
}

// once calls the wrapper. options is a JavaScript object.
func (p tab) once(quantity int, options string) told {
	p.t.Helper()
	return eval[told](p, fmt.Sprintf(`import('/once.js').then(async ({ once }) => {
		const response = await once(%s, %s)
		return {
			Status: response.status, Replayed: response.headers.get('Idempotency-Replayed') === 'true',
			Answer: await response.json(), Error: '',
		}
	}).catch((error) => ({ Status: 0, Replayed: false, Answer: {}, Error: error.name }))`, request(quantity), options))
}

// another is a new tab, which shares what tabs share.
func (p tab) another(url string) tab {
	p.t.Helper()
	ctx, cancel := chromedp.NewContext(p.ctx)
	p.t.Cleanup(cancel)
	second := tab{t: p.t, ctx: ctx}
	second.run(chromedp.Navigate(url))
	return second
}

func (p tab) forget(quantity int, options string) {
	p.t.Helper()
	eval[bool](p, fmt.Sprintf(`import('/once.js').then(({ forget }) => { forget(%s, %s); return true })`, request(quantity), options))
}

func request(quantity int) string {
	return fmt.Sprintf(`'buy', '/orders', { method: 'POST', body: JSON.stringify({ item: 'book', quantity: %d }) }`, quantity)
}

// setClock stops the page's clock, at so many ms after its start.
func (p tab) setClock(ms int) {
	p.t.Helper()
	eval[bool](p, fmt.Sprintf(`Date.now = () => 1.7e12 + %d, true`, ms))
}

func expectTold(t *testing.T, got told, status int, replayed bool, id int64) {
	t.Helper()
	if got.Status != status || got.Replayed != replayed || got.Answer.ID != id || got.Error != "" {
		t.Fatalf("once gave %+v; want %d, replayed: %t, order %d", got, status, replayed, id)
	}
}

// fill leaves no room in the session storage.
func (p tab) fill() {
	p.t.Helper()
	eval[bool](p, `{
		const room = (slot, n) => { try { sessionStorage.setItem(slot, 'x'.repeat(n)); return true } catch { return false } }
		for (let n = 2 ** 23, i = 0; n >= 1; room('other' + i++, n) || (n = Math.floor(n / 2)));
	}; true`)
}

// kept tells what once.js has in the session storage.
func (p tab) kept() map[string]string {
	p.t.Helper()
	return eval[map[string]string](p, `Object.fromEntries(Array.from({ length: sessionStorage.length }, (_, i) => sessionStorage.key(i))
		.filter((slot) => !slot.startsWith('other')).map((slot) => [slot, sessionStorage.getItem(slot)]))`)
}
