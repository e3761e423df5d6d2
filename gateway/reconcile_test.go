package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// pipes is a listener whose connections are in memory, for virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return &conn{Conn: here}, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// ledger is an upstream that keeps what it has done, by caller and key, and loses
// its answers while broken is set.
type ledger struct {
	mu      sync.Mutex
	effects map[string]int
	fences  map[string]string
	broken  bool
	lookUps []*http.Request
	now     atomic.Int32 // look-ups under way
	most    int32
	answer  http.HandlerFunc // to look-ups; nil for the truth
}

func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		l.lookedUp(w, r)
		return
	}
	who := r.Header.Get("Authorization") + " " + strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	l.mu.Lock()
	l.effects[who]++
	l.fences[who] = r.Header.Get(HeaderFence)
	broken := l.broken
	l.mu.Unlock()
	if broken {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, "made")
}

func (l *ledger) lookedUp(w http.ResponseWriter, r *http.Request) {
	now := l.now.Add(1)
	defer l.now.Add(-1)
	who := r.Header.Get("Authorization") + " " + r.URL.Query().Get("key")
	l.mu.Lock()
	l.most = max(l.most, now)
	l.lookUps = append(l.lookUps, r)
	answer, n := l.answer, l.effects[who]
	l.mu.Unlock()
	switch {
	case answer != nil:
		answer(w, r)
	case n == 0:
		http.NotFound(w, r)
	default:
		w.Header().Set("Location", "/orders/1")
		_, _ = fmt.Fprintf(w, `{"status":"done","effects":%d}`, n)
	}
}

func (l *ledger) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// asking is a gateway before a ledger, in virtual time.
type asking struct {
	t *testing.T
	*ledger
	gateway *Gateway
	told    []Reconciled
}

func newAsking(t *testing.T, r Reconcile) *asking {
	t.Helper()
	a := &asking{t: t, ledger: &ledger{effects: map[string]int{}, fences: map[string]string{}, broken: true}}
	listener := &pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: a.ledger}
	go func() { _ = server.Serve(listener) }()
	via, err := NewUpstream(UpstreamConfig{URL: &url.URL{Scheme: "http", Host: "ledger", Path: "/v1"}})
	noError(t, err)
	via.transport.DialContext = listener.dial
	store, err := memory.New(memory.Config{})
	noError(t, err)
	guard, err := semel.New(semel.Config{Store: store})
	noError(t, err)
	a.gateway, err = New(Config{Via: via, Guard: guard, Reconcile: &r, NoResources: true, Observer: &Observer{Reconciled: func(_ context.Context, told Reconciled) {
		a.set(func() { a.told = append(a.told, told) })
	}}})
	noError(t, err)
	t.Cleanup(func() {
		noError(t, a.gateway.Drain(context.Background()))
		via.CloseIdle()
		_ = server.Close()
	})
	return a
}

func (a *asking) post(key string, headers ...string) answer {
	r := httptest.NewRequest(http.MethodPost, "/accounts/a%20b/orders", strings.NewReader(`{"item":"book"}`))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Authorization", "alice")
	r.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	a.gateway.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Result().Body)
	return answer{w.Code, w.Header(), string(body), err}
}

// unknown makes an operation whose outcome is unknown, and has the upstream in
// order again.
func (a *asking) unknown(key string) {
	a.t.Helper()
	got := a.post(key)
	want(a.t, "the status of the request that was cut off", got.status, http.StatusBadGateway)
	want(a.t, "its problem", got.problem(a.t), "outcome-unknown")
	a.set(func() { a.broken = false })
}

func (a *asking) last() Reconciled {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.told) == 0 {
		return Reconciled{}
	}
	return a.told[len(a.told)-1]
}

const byKey = "/by-key?key={key}"

// What the upstream answers to a look-up, and what that makes of the duplicate that
// asked, and of another one later.
func TestReconcileJudges(t *testing.T) {
	keep := Reconcile{URL: byKey, Absent: []int{404}, SettleAfter: time.Minute, KeepResponse: true}
	fact := keep
	fact.KeepResponse = false
	value := keep
	value.Value, value.PresentValues, value.AbsentValues = "/status", []string{"done", "1"}, []string{"none"}
	says := func(status int, body string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, test := range map[string]struct {
		rule   Reconcile
		answer http.HandlerFunc
		found  string
		// of the duplicate
		status        int
		body, problem string
	}{
		"present, kept":      {keep, nil, "present", 200, `{"status":"done","effects":1}`, ""},
		"present, as a fact": {fact, nil, "present", 409, "", "result-not-retained"},
		"absent, too early":  {keep, says(404, ""), "absent", 409, "", "outcome-unknown"},
		"a failure":          {keep, says(500, ""), "undecided", 409, "", "outcome-unknown"},
		"no permission":      {keep, says(401, ""), "undecided", 409, "", "outcome-unknown"},
		"a redirect":         {keep, says(302, "", "Location", "/v1/by-key?key=k"), "undecided", 409, "", "outcome-unknown"},
		"from a cache":       {keep, says(200, "{}", "Age", "3"), "undecided", 409, "", "outcome-unknown"},
		"absent, of a cache": {keep, says(404, "", "Age", "0"), "undecided", 409, "", "outcome-unknown"},
		"broken off":         {keep, says(200, "{", "Content-Length", "10"), "undecided", 409, "", "outcome-unknown"},
		"nothing in time":    {keep, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "undecided", 409, "", "outcome-unknown"},
		"too large":          {keep, says(200, strings.Repeat("x", 257<<10)), "present", 409, "", "result-not-retained"},
		"its value present":  {value, says(200, `{"status":"done"}`), "present", 200, `{"status":"done"}`, ""},
		"its value a number": {value, says(200, `{"status":1}`), "present", 200, `{"status":1}`, ""},
		"its value absent":   {value, says(200, `{"status":"none"}`), "absent", 409, "", "outcome-unknown"},
		"its value another":  {value, says(200, `{"status":"pending"}`), "undecided", 409, "", "outcome-unknown"},
		"no value":           {value, says(200, `{}`), "undecided", 409, "", "outcome-unknown"},
		"a value twice":      {value, says(200, `{"status":"done","status":"none"}`), "undecided", 409, "", "outcome-unknown"},
		"a value, but a 404": {value, says(404, `{"status":"done"}`), "absent", 409, "", "outcome-unknown"},
		"a value, too large": {value, says(200, `{"status":"done","x":"`+strings.Repeat("x", 257<<10)+`"}`), "undecided", 409, "", "outcome-unknown"},
		"another status":     {keep, says(299, ""), "undecided", 409, "", "outcome-unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAsking(t, test.rule)
				a.unknown("k")
				a.set(func() { a.answer = test.answer })
				for _, when := range []string{"the duplicate", "the next"} {
					got := a.post("k")
					want(t, "the status of "+when, got.status, test.status)
					if test.problem != "" {
						want(t, "the problem of "+when, got.problem(t), test.problem)
					} else {
						want(t, "the body of "+when, got.body, test.body)
						want(t, when+" is replayed", got.replayed(), true)
					}
				}
				want(t, "what was found", a.last().Found, test.found)
				want(t, "there is an error", a.last().Err != nil, test.found == "undecided")
				want(t, "the number of look-ups", len(a.lookUps), 1)
				want(t, "the number of effects", a.effects["alice k"], 1)
			})
		})
	}
}

// An effect that is absent is made, but not before it can no longer appear.
func TestReconcileWaitsForTheEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t, Reconcile{URL: byKey, Absent: []int{404}, SettleAfter: time.Minute})
		a.unknown("k")
		a.set(func() { a.effects["alice k"] = 0 }) // it died before
		start := time.Now()
		for {
			got := a.post("k")
			if got.status == http.StatusCreated {
				want(t, "the body", got.body, "made")
				break
			}
			want(t, "the problem", got.problem(t), "outcome-unknown")
			want(t, "the advice", got.header.Get("Retry-After"), "5")
			if time.Since(start) > 2*time.Minute {
				t.Fatal("it is never executed")
			}
			time.Sleep(time.Second)
		}
		if waited := time.Since(start); waited < time.Minute || waited > 66*time.Second {
			t.Errorf("it was executed after %v", waited)
		}
		want(t, "the number of effects", a.effects["alice k"], 1)
		if n := len(a.lookUps); n < 12 || n > 14 {
			t.Errorf("there were %d look-ups in a minute, want one in 5 s", n)
		}
	})
}

// A hundred duplicates at once, and a flood of them, cost the upstream one look-up
// in each heartbeat.
func TestReconcileUnderAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t, Reconcile{URL: byKey, KeepResponse: true})
		a.unknown("k")
		a.set(func() {
			a.answer = func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(time.Second)
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		for range 12 { // in 12 s
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() { want(t, "the status", a.post("k").status, http.StatusConflict) })
			}
			time.Sleep(time.Second)
			all.Wait()
		}
		want(t, "the number of look-ups", len(a.lookUps), 2)
		want(t, "the most at once", a.most, 1)

		a.set(func() { a.answer = nil })
		time.Sleep(5 * time.Second)
		var replays atomic.Int32
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if got := a.post("k"); got.status == http.StatusOK && got.replayed() {
					replays.Add(1)
				}
			})
		}
		all.Wait()
		if replays.Load() == 0 {
			t.Error("nobody got the answer")
		}
		want(t, "the status of a later one", a.post("k").status, http.StatusOK)
		want(t, "the number of look-ups", len(a.lookUps), 3)
		want(t, "the number of effects", a.effects["alice k"], 1)
	})
}

// What is remembered of look-ups is bounded, and makes room again.
func TestReconcileRemembersLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t, Reconcile{URL: byKey})
		l := a.gateway.lookUps
		for i := range maxLookedUp {
			about := lookedUp{fmt.Sprint(i), 1}
			want(t, "there is room", l.begin(about), true)
			l.end(about)
		}
		want(t, "there is room for one more", l.begin(lookedUp{"more", 1}), false)
		time.Sleep(5 * time.Second)
		want(t, "there is room later", l.begin(lookedUp{"more", 1}), true)
		want(t, "what is remembered", len(l.known), 1)
	})
}

// A look-up is made in the name of who asks, is a GET whatever the request was, and
// names the execution.
func TestReconcileAsksAsTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t, Reconcile{
			URL: "/accounts/{account}/orders?key={key}&fence={fence}", Patterns: []string{"POST /accounts/{account}/orders"}, KeepResponse: true,
		})
		a.unknown(`"a/b&fence=0#%"`)
		got := a.post(`"a/b&fence=0#%"`, "If-None-Match: *", "Range: bytes=0-1", "Accept-Encoding: gzip", "Prefer: wait=1", "Cookie: c=1",
			"Connection: X-Hop", "X-Hop: 1", "X-Forwarded-For: 1.2.3.4", "Cache-Control: max-stale", HeaderFence+": 99")
		want(t, "the status", got.status, http.StatusOK)
		want(t, "the number of look-ups", len(a.lookUps), 1)
		r := a.lookUps[0]
		fence := a.fences["alice a/b&fence=0#%"]
		want(t, "the method", r.Method, http.MethodGet)
		want(t, "the target", r.RequestURI, "/v1/accounts/a%20b/orders?key=a%2Fb%26fence%3D0%23%25&fence="+fence)
		for name, value := range map[string]string{
			"Authorization": "alice", "Cookie": "c=1", HeaderFence: fence, "Cache-Control": "no-cache", "X-Forwarded-For": "192.0.2.1",
			"Idempotency-Key": `"a/b&fence=0#%"`,
			"If-None-Match":   "", "Range": "", "Accept-Encoding": "", "Prefer": "", "X-Hop": "", "Content-Type": "", "Content-Length": "",
			"Transfer-Encoding": "",
		} {
			want(t, name, r.Header.Get(name), value)
		}
		want(t, "the length of its body", r.ContentLength, 0)
	})
}

// A request that asks to be taken for one of another method asks with a GET too.
func TestReconcileIsAGet(t *testing.T) {
	for name, in := range map[string]bool{
		"X-Http-Method-Override": false, "X_HTTP_METHOD": false, "X-Method-Override": false, "content_length": false, "If_match": false,
		"Te": false, "Authorization": true, "Tenant": true, "Iffy": true, "X-Forwarded-Proto": true,
	} {
		want(t, name+" is in a look-up", asked(name), in)
	}
}

// A value that a server could read otherwise in a path is not asked for: a 404 would
// be about something else.
func TestReconcileKeepsToItsPath(t *testing.T) {
	for _, key := range []string{"..", ".", "a/b", "a%b", "/"} {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAsking(t, Reconcile{URL: "/by-key/{key}", Absent: []int{404}, SettleAfter: time.Millisecond})
				a.unknown(key)
				time.Sleep(time.Minute)
				want(t, "the problem", a.post(key).problem(t), "outcome-unknown")
				want(t, "the number of look-ups", len(a.lookUps), 0)
				want(t, "there is an error", a.last().Err != nil, true)
			})
		})
	}
}

// Somebody else who has chosen the same key gets nothing of an operation, though the
// upstream would find it, and asks about nothing.
func TestReconcileIsOfOneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t, Reconcile{URL: byKey, KeepResponse: true})
		a.unknown("k")
		got := a.post("k", "Authorization: bob")
		want(t, "the status of the other's request", got.status, http.StatusCreated)
		want(t, "the number of look-ups", len(a.lookUps), 0)
		want(t, "the number of the other's effects", a.effects["bob k"], 1)
		// Nor is a request looked up that is not the one that was made.
		r := httptest.NewRequest(http.MethodPost, "/accounts/a%20b/orders", strings.NewReader(`{"item":"film"}`))
		r.Header.Set("Idempotency-Key", "k")
		r.Header.Set("Authorization", "alice")
		w := httptest.NewRecorder()
		a.gateway.ServeHTTP(w, r)
		want(t, "the status of another request with the key", w.Code, http.StatusUnprocessableEntity)
		want(t, "the number of look-ups", len(a.lookUps), 0)
	})
}

// Without a request there is nobody in whose name to ask.
func TestReconcileNeedsSomebody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t, Reconcile{URL: byKey, KeepResponse: true})
		finding, err := a.gateway.lookUps.reconcile(t.Context(), semel.Record{ID: "r", Fence: 1})
		noError(t, err)
		want(t, "the finding", fmt.Sprintf("%+v", finding), fmt.Sprintf("%+v", semel.FoundUndecided()))
		want(t, "the number of look-ups", len(a.lookUps), 0)
	})
}

func TestReconcileConfig(t *testing.T) {
	store, err := memory.New(memory.Config{})
	noError(t, err)
	guard, err := semel.New(semel.Config{Store: store})
	noError(t, err)
	good := Reconcile{URL: "/x/{key}", Absent: []int{404}, SettleAfter: time.Minute}
	for text, change := range map[string]func(*Reconcile){
		"":                                  func(*Reconcile) {},
		"Reconcile.URL is \"\"":             func(r *Reconcile) { r.URL = "" },
		"write it as /orders":               func(r *Reconcile) { r.URL = "http://elsewhere/{key}" },
		"//elsewhere":                       func(r *Reconcile) { r.URL = "//elsewhere/{key}" },
		"neither {key} nor {fence}":         func(r *Reconcile) { r.URL = "/x" },
		"only {key} and {fence}":            func(r *Reconcile) { r.URL = "/x/{key}/{id}" },
		"a wildcard of the pattern":         func(r *Reconcile) { r.URL, r.Patterns = "/x/{key}/{id}", []string{"POST /{name}"} },
		"without a name":                    func(r *Reconcile) { r.URL = "/x/{key" },
		"cannot have there":                 func(r *Reconcile) { r.URL = "/x/{key}#a" },
		"401, which says nothing":           func(r *Reconcile) { r.Absent = []int{401} },
		"503, which says nothing":           func(r *Reconcile) { r.Present = []int{503} },
		"200, and so does Present":          func(r *Reconcile) { r.Absent = []int{200} },
		"SettleAfter is missing":            func(r *Reconcile) { r.SettleAfter = 0 },
		"nothing says that an effect is ab": func(r *Reconcile) { r.Absent = nil },
		"Timeout is 16s":                    func(r *Reconcile) { r.Timeout = 16 * time.Second },
		"Value is empty":                    func(r *Reconcile) { r.PresentValues = []string{"a"} },
		"PresentValues is empty":            func(r *Reconcile) { r.Value = "/a" },
		"and so does PresentValues": func(r *Reconcile) {
			r.Value, r.PresentValues, r.AbsentValues = "/a", []string{"a"}, []string{"a"}
		},
	} {
		r := good
		change(&r)
		_, err := New(Config{Upstream: &url.URL{Scheme: "http", Host: "x"}, Guard: guard, Reconcile: &r})
		if text == "" {
			noError(t, err)
			continue
		}
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %v; it should say %q", err, text)
		}
	}
	retries, err := guard.With(semel.Policy{OnCrash: semel.CrashRetry})
	noError(t, err)
	if _, err := New(Config{Upstream: &url.URL{Scheme: "http", Host: "x"}, Guard: retries, Reconcile: &good}); err == nil {
		t.Error("a policy that retries is accepted")
	}
}
