package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

const token = "0123456789abcdef-token"

// world is a page with a store behind it.
type world struct {
	t      *testing.T
	store  *slowStore
	page   *Console
	url    string
	client *http.Client
	begun  atomic.Int64 // records
	wrong  atomic.Int64 // tokens
}

// slowStore lets a test hold resolutions up, or have calls fail.
type slowStore struct {
	*memory.Store
	resolve func(semel.Resolution) error
	list    func(context.Context) error
}

func (s *slowStore) Resolve(ctx context.Context, r semel.Resolution) (semel.Record, error) {
	if s.resolve != nil {
		if err := s.resolve(r); err != nil {
			return semel.Record{}, err
		}
	}
	return s.Store.Resolve(ctx, r)
}

func (s *slowStore) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if s.list != nil {
		if err := s.list(ctx); err != nil {
			return nil, err
		}
	}
	return s.Store.List(ctx, f)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	inner, err := memory.New(memory.Config{MaxTrail: 100_000})
	noError(t, err)
	w := &world{t: t, store: &slowStore{Store: inner}}
	guard, err := semel.New(semel.Config{Store: w.store})
	noError(t, err)
	registry := prometheus.NewRegistry()
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "semel_decisions_total"}, []string{"semel_outcome"})
	registry.MustRegister(decisions)
	decisions.WithLabelValues("executed").Add(1234)
	w.page = New(Config{
		Gate:  NewGate(token, func(times int) { w.wrong.Add(int64(times)) }),
		Store: w.store, Guard: guard, Metrics: registry, Ready: func() string { return "" },
		Configuration: func() gatewayfile.Explanation {
			return gatewayfile.Explanation{Server: []gatewayfile.Setting{{Name: "store", Value: "sqlite:semel.db", From: "default"}}}
		},
	})
	server := httptest.NewServer(w.page.Handler())
	w.url, w.client = server.URL, newClient(t)
	t.Cleanup(server.Close)
	t.Cleanup(w.page.Close)
	return w
}

func newClient(t *testing.T) *http.Client {
	jar, err := cookiejar.New(nil)
	noError(t, err)
	return &http.Client{Jar: jar}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v; want %v", what, got, want)
	}
}

// unknown adds records whose outcome is unknown.
func (w *world) unknown(n int, cause string) {
	w.t.Helper()
	for range n {
		w.claim(func(c semel.Claim) { noError(w.t, c.Hold(w.t.Context(), cause)) })
	}
}

func (w *world) claim(then func(semel.Claim)) semel.Identity {
	w.t.Helper()
	id := semel.Identity{Scope: semel.Scope{Tenant: "acme", Actor: "alice", Operation: "POST /orders"}, Key: fmt.Sprintf("secret-key-%d", w.begun.Add(1))}
	c, err := w.store.Begin(w.t.Context(), semel.NewAttempt(id, semel.Fingerprint{Scheme: semelhttp.SchemeHTTP}, time.Minute, time.Hour))
	noError(w.t, err)
	then(c)
	return id
}

func (w *world) list(state semel.State) []semel.Record {
	w.t.Helper()
	list, err := w.store.Store.List(w.t.Context(), semel.Filter{State: state, Limit: 1000})
	noError(w.t, err)
	return list
}

type response struct {
	status int
	path   string // after redirects
	body   string
	header http.Header
}

func (w *world) do(client *http.Client, req *http.Request) response {
	w.t.Helper()
	res, err := client.Do(req)
	noError(w.t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	noError(w.t, err)
	return response{res.StatusCode, res.Request.URL.Path, string(body), res.Header}
}

func (w *world) get(path string) response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, nil)
	noError(w.t, err)
	return w.do(w.client, req)
}

func (w *world) post(client *http.Client, path string, form url.Values, headers ...string) response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+path, strings.NewReader(form.Encode()))
	noError(w.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return w.do(client, req)
}

func (w *world) login(client *http.Client) {
	w.t.Helper()
	a := w.post(client, "/console/login", url.Values{"token": {token}})
	want(w.t, "page after the login", a.path, "/console/")
	want(w.t, "its status", a.status, 200)
}

var (
	hiddenInput = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)
	runForm     = regexp.MustCompile(`(?s)<form method="post" action="/console/runs">(.*?)</form>`)
)

// carried returns the form of a preview that carries it out.
func carried(t *testing.T, a response) url.Values {
	t.Helper()
	m := runForm.FindStringSubmatch(a.body)
	if m == nil {
		t.Fatalf("the preview cannot be carried out:\n%s", a.body)
	}
	form := url.Values{}
	for _, in := range hiddenInput.FindAllStringSubmatch(m[1], -1) {
		form.Add(in[1], strings.NewReplacer("&#43;", "+", "&#39;", "'", "&#34;", `"`).Replace(in[2]))
	}
	for _, in := range regexp.MustCompile(`(?s)<textarea name="([^"]+)" hidden>\n(.*?)</textarea>`).FindAllStringSubmatch(m[1], -1) {
		form.Set(in[1], strings.ReplaceAll(in[2], "&#34;", `"`))
	}
	return form
}

// ended waits until a run has come to its end.
func (w *world) ended(a response) runView {
	w.t.Helper()
	id := strings.TrimPrefix(a.path, "/console/runs/")
	one := w.page.findRun(id)
	if one == nil {
		w.t.Fatalf("there is no run at %s, status %d:\n%s", a.path, a.status, a.body)
	}
	w.page.running.Wait()
	return one.view()
}

func decision(way string, more ...string) url.Values {
	v := url.Values{"way": {way}, "because": {"not in the ledger"}, "who": {"alice"}, "all": {"1"}, "status": {"200"}}
	for i := 0; i < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return v
}

// TestLogin: nothing is seen or done without the token, which is in no URL, and the
// session ends when it is told to.
func TestLogin(t *testing.T) {
	w := newWorld(t)
	w.unknown(1, "the handler answered 502")
	id := w.list(semel.StateUnknown)[0].ID
	paths := []string{"", "now", "records", "records/" + id, "runs", "runs/x", "configuration"}
	for _, path := range paths {
		a := w.get(Prefix + path)
		want(t, "status of "+path, a.status, 401)
		if strings.Contains(a.body, "answered 502") || strings.Contains(a.body, "1,234") || strings.Contains(a.body, "sqlite") {
			t.Errorf("%s shows what is inside:\n%s", path, a.body)
		}
	}
	for _, path := range []string{"settle", "runs", "find", "runs/x/end", "logout"} {
		want(t, "status of POST "+path, w.post(w.client, Prefix+path, decision("no-effect")).status, 401)
	}
	for _, wrong := range []string{"", "0123456789abcdef-toke", token + "x"} {
		want(t, "status of a wrong token", w.post(w.client, "/console/login", url.Values{"token": {wrong}}).status, 401)
	}
	want(t, "wrong tokens told, once a minute", w.wrong.Load(), 1)
	want(t, "unknown records", len(w.list(semel.StateUnknown)), 1)

	w.login(w.client)
	for _, path := range paths {
		if a := w.get(Prefix + path); path != "runs/x" {
			want(t, "status of "+path+" with the session", a.status, 200)
		}
	}
	u, _ := url.Parse(w.url + Prefix)
	a := w.post(newClient(t), "/console/login", url.Values{"token": {token}})
	_ = a
	noRedirect := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	set := w.post(noRedirect, "/console/login", url.Values{"token": {token}}).header.Get("Set-Cookie")
	for _, part := range []string{"HttpOnly", "SameSite=Strict", "Path=/console/", "Max-Age=28800"} {
		if !strings.Contains(set, part) {
			t.Errorf("the cookie lacks %s: %s", part, set)
		}
	}
	if strings.Contains(set, token) {
		t.Error("the cookie is the token")
	}
	// A cookie that was copied is of no use after the end of the session.
	copied := w.client.Jar.Cookies(u)
	w.post(w.client, "/console/logout", nil)
	w.client.Jar.SetCookies(u, copied)
	want(t, "status after the end of the session", w.get(Prefix).status, 401)

	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+Prefix, nil)
	req.Header.Set("Authorization", "Bearer "+token)
	want(t, "status with the token in the header", w.do(newClient(t), req).status, 200)
	// More sessions than are kept: the oldest ends.
	first := newClient(t)
	w.login(first)
	for range maxSessions {
		w.login(newClient(t))
	}
	want(t, "sessions", len(w.page.sessions), maxSessions)
	req, _ = http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+Prefix, nil)
	want(t, "status of the oldest", w.do(first, req).status, 401)

	w.page.Gate = NewGate("", func(int) {})
	req.Header.Set("Authorization", "Bearer ")
	a = w.do(newClient(t), req)
	want(t, "status where there is no token", a.status, 401)
	if !strings.Contains(a.body, "--admin-token-file") {
		t.Errorf("it does not say how to give one:\n%s", a.body)
	}
	want(t, "status of a login there", w.post(newClient(t), "/console/login", url.Values{"token": {""}}).status, 401)
}

// TestForeignPagesCannotSettle: a form of another site does nothing, even if the
// browser has a session.
func TestForeignPagesCannotSettle(t *testing.T) {
	w := newWorld(t)
	w.unknown(3, "the handler answered 502")
	w.login(w.client)
	form := carried(t, w.post(w.client, "/console/settle", decision("no-effect")))
	for _, header := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: https://evil.example"} {
		for _, path := range []string{"login", "settle", "runs", "find", "logout"} {
			want(t, "status of "+path+" with "+header, w.post(w.client, Prefix+path, form, header).status, 403)
		}
	}
	want(t, "unknown records", len(w.list(semel.StateUnknown)), 3)
	a := w.get(Prefix)
	csp := a.header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"} {
		if !strings.Contains(csp, part) {
			t.Errorf("the policy lacks %s: %s", part, csp)
		}
	}
	if strings.Contains(csp, "unsafe") {
		t.Error(csp)
	}
	want(t, "status without these", w.post(w.client, "/console/runs", form, "Sec-Fetch-Site: same-origin").status, 200)
	w.page.running.Wait()
	want(t, "unknown records then", len(w.list(semel.StateUnknown)), 0)
}

// TestSettledOnceFromThePage: a preview changes nothing; carried out twice at the
// same time and again later, also by another operator with a preview of his own, each
// record is settled once, and its trail says by whom.
func TestSettledOnceFromThePage(t *testing.T) {
	w := newWorld(t)
	const n = 50
	w.unknown(n, "the handler answered 502")
	w.unknown(1, "another cause")
	alice, bob := newClient(t), newClient(t)
	w.login(alice)
	w.login(bob)
	first := w.post(alice, "/console/settle", decision("no-effect", "cause", "the handler answered *"))
	want(t, "status of the preview", first.status, 200)
	second := w.post(bob, "/console/settle", decision("execute-again", "cause", "the handler answered *", "who", "bob"))
	want(t, "unknown records after the previews", len(w.list(semel.StateUnknown)), n+1)
	if !strings.Contains(first.body, "<b>50</b>") {
		t.Errorf("the preview does not say 50:\n%s", first.body)
	}
	// One that is unknown since after the preview is left.
	w.unknown(1, "the handler answered 504")

	form := carried(t, first)
	var clicks sync.WaitGroup
	answers := make([]response, 4)
	for i := range answers {
		clicks.Go(func() { answers[i] = w.post(alice, "/console/runs", form) })
	}
	clicks.Wait()
	for _, a := range answers {
		want(t, "page of a click", a.path, answers[0].path)
	}
	report := w.ended(answers[0]).Report
	want(t, "settled", report.Settled, n)
	want(t, "newer", report.Newer, 1)
	want(t, "runs", len(w.page.runs), 1)

	other := w.ended(w.post(bob, "/console/runs", carried(t, second))).Report
	want(t, "settled by the other operator", other.Settled, 0)
	want(t, "page of a reload", w.post(alice, "/console/runs", form).path, answers[0].path)
	form.Set("way", "execute-again")
	want(t, "status of the form with another content", w.post(alice, "/console/runs", form).status, 422)
	// The gateway is started again, and knows nothing of the run.
	w.page.runs = nil
	form.Set("way", "no-effect")
	want(t, "settled by the same form then", w.ended(w.post(alice, "/console/runs", form)).Report.Settled, 0)

	trail, err := w.store.Store.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailResolved, Limit: 1000})
	noError(t, err)
	want(t, "resolutions in the trail", len(trail), n)
	for _, e := range trail {
		if e.RequestID != "operator:alice" || e.Cause != "not in the ledger (by alice)" || e.Label != "no_effect" {
			t.Fatalf("the trail says %+v", e)
		}
	}
	want(t, "unknown records that are left", len(w.list(semel.StateUnknown)), 2)
}

// TestSettleTicked: of the records that were ticked those are settled that are as
// they were seen, with the response that was given, which replays then.
func TestSettleTicked(t *testing.T) {
	w := newWorld(t)
	w.unknown(3, "cut off")
	w.login(w.client)
	list := w.list(semel.StateUnknown)
	form := decision("result", "status", "201", "headers", "Location: /orders/17\r\n", "body", `{"id": "17"}`)
	form.Del("all")
	for _, r := range list[:2] {
		form.Add("record", ticket(r))
	}
	// The second one is taken over after it was looked at, and unknown again.
	c, err := w.store.Begin(t.Context(), func() semel.Attempt {
		a := semel.NewAttempt(list[1].Identity, list[1].Fingerprint, time.Minute, time.Hour)
		a.Takeover = list[1].Fence
		return a
	}())
	noError(t, err)
	noError(t, c.Hold(t.Context(), "cut off"))
	preview := w.post(w.client, "/console/settle", form)
	if !strings.Contains(preview.body, `<p class="big"><b>1</b>`) || !strings.Contains(preview.body, "have changed meanwhile") {
		t.Errorf("the preview says\n%s", preview.body)
	}
	carry := carried(t, preview)
	want(t, "settled", w.ended(w.post(w.client, "/console/runs", carry)).Report.Settled, 1)
	done := w.list(semel.StateCompleted)
	if len(done) != 1 || done[0].ID != list[0].ID {
		t.Fatalf("completed are %+v", done)
	}
	rec, err := w.store.Find(t.Context(), list[0].Identity)
	noError(t, err)
	want(t, "label", rec.Result.Label, "201")
	want(t, "body", string(rec.Result.Body), `{"id": "17"}`)
	want(t, "reference", rec.Result.Reference, "/orders/17")

	// What cannot be carried out says why, and changes nothing.
	for wrong, form := range map[string]url.Values{
		"Say what became":    decision(""),
		"Say how you know":   decision("no-effect", "because", " "),
		"Say who decides":    decision("no-effect", "who", ""),
		"cannot be recorded": decision("result", "status", "99"),
		"header is":          decision("result", "headers", "nonsense"),
		"write a number":     decision("result", "status", "abc"),
	} {
		a := w.post(w.client, "/console/settle", form)
		want(t, "status of a form without a decision", a.status, 422)
		if !strings.Contains(a.body, wrong) || runForm.MatchString(a.body) {
			t.Errorf("the page does not say %q, or can be carried out:\n%s", wrong, a.body)
		}
	}
	form = decision("no-effect")
	form.Del("all")
	form["record"] = []string{"nonsense"}
	want(t, "status of a wrong ticket", w.post(w.client, "/console/settle", form).status, 400)
	form["record"] = make([]string, maxTicked+1)
	want(t, "status of too many", w.post(w.client, "/console/settle", form).status, 400)
	want(t, "status of a wrong time", w.post(w.client, "/console/settle", decision("no-effect", "since", "yesterday")).status, 400)
	want(t, "status of a run without a preview", w.post(w.client, "/console/runs", decision("no-effect")).status, 400)
	want(t, "status of a large form", w.post(w.client, "/console/settle", decision("result", "body", strings.Repeat("x", maxForm))).status, 400)
	want(t, "unknown records", len(w.list(semel.StateUnknown)), 2)
}

// TestRunEnds: a run that is under way is shown, keeps others from beginning, and
// ends when it is asked to, or with the gateway; a new preview goes on with what is
// left.
func TestRunEnds(t *testing.T) {
	w := newWorld(t)
	const n = 300
	w.unknown(n, "cut off")
	w.login(w.client)
	entered, release := make(chan struct{}, n), make(chan struct{})
	w.store.resolve = func(semel.Resolution) error {
		entered <- struct{}{}
		<-release
		return nil
	}
	form := carried(t, w.post(w.client, "/console/settle", decision("no-effect")))
	next := carried(t, w.post(w.client, "/console/settle", decision("no-effect")))
	a := w.post(w.client, "/console/runs", form)
	<-entered
	if !strings.Contains(a.body, "Under way") || !strings.Contains(a.body, `http-equiv="refresh"`) {
		t.Errorf("the run is not shown to be under way:\n%s", a.body)
	}
	want(t, "status of another run", w.post(w.client, "/console/runs", next).status, 409)
	id := strings.TrimPrefix(a.path, "/console/runs/")
	want(t, "status of ending it", w.post(w.client, "/console/runs/"+id+"/end", nil).status, 200)
	close(release)
	v := w.ended(a)
	if v.Report.Settled == 0 || v.Report.Settled >= n || len(w.list(semel.StateUnknown)) != n-v.Report.Settled {
		t.Errorf("settled are %d; unknown %d of %d", v.Report.Settled, len(w.list(semel.StateUnknown)), n)
	}
	if page := w.get(a.path); !strings.Contains(page.body, "as requested") || strings.Contains(page.body, `http-equiv="refresh"`) {
		t.Errorf("the run is not shown to have ended:\n%s", page.body)
	}
	w.store.resolve = nil
	rest := w.ended(w.post(w.client, "/console/runs", next)).Report
	want(t, "settled in all", v.Report.Settled+rest.Settled, n)
	for range maxRuns {
		w.unknown(1, "cut off")
		w.ended(w.post(w.client, "/console/runs", carried(t, w.post(w.client, "/console/settle", decision("no-effect")))))
	}
	want(t, "runs that are remembered", len(w.page.runs), maxRuns)
	want(t, "status of a run that is not", w.get(a.path).status, 404)

	w.store.resolve = func(semel.Resolution) error { return errors.New("the disk is full") }
	w.unknown(2, "cut off")
	failed := w.post(w.client, "/console/runs", carried(t, w.post(w.client, "/console/settle", decision("no-effect"))))
	v = w.ended(failed)
	if v.Err == nil || v.Report.InDoubt == 0 || !strings.Contains(w.get(failed.path).body, "the disk is full") {
		t.Errorf("a run that failed is %+v", v)
	}
	form = carried(t, w.post(w.client, "/console/settle", decision("no-effect")))
	w.page.Close()
	want(t, "status while the gateway stops", w.post(w.client, "/console/runs", form).status, 503)
}

// TestPreviewOfMany: where there is no time to look at all, what was looked at can be
// carried out, and the next preview has the rest.
func TestPreviewOfMany(t *testing.T) {
	w := newWorld(t)
	w.unknown(1500, "cut off")
	w.login(w.client)
	w.page.lookTime = 2 * time.Second
	pages := 0
	w.store.list = func(ctx context.Context) error {
		if pages++; pages == 3 { // of the lapsed ones, of the unknown ones, and another
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	a := w.post(w.client, "/console/settle", decision("no-effect"))
	if !strings.Contains(a.body, "<b>1,000</b> or more") {
		t.Fatalf("the preview says\n%s", a.body)
	}
	w.ended(w.post(w.client, "/console/runs", carried(t, a)))
	if left := len(w.list(semel.StateUnknown)); left > 500 {
		t.Errorf("%d are left", left)
	}
}

// TestNeverShown: no page has a key, a stored response or its reference, in any state.
func TestNeverShown(t *testing.T) {
	w := newWorld(t)
	var keys []string
	add := func(then func(semel.Claim)) { keys = append(keys, w.claim(then).Key) }
	add(func(semel.Claim) {})
	add(func(c semel.Claim) { noError(t, c.Hold(t.Context(), "<script>alert(1)</script>\u202e")) })
	add(func(c semel.Claim) {
		_, err := c.Complete(t.Context(), semel.Result{Codec: semelhttp.CodecHTTP, Head: []byte("secret-head"), Body: []byte("secret-body"), Label: "201", Reference: "/secret-reference"})
		noError(t, err)
	})
	w.login(w.client)
	paths := []string{"", "now", "records", "records?state=unknown", "records?state=completed", "configuration", "runs"}
	for _, s := range []semel.State{semel.StateInProgress, semel.StateUnknown, semel.StateCompleted} {
		for _, r := range w.list(s) {
			paths = append(paths, "records/"+r.ID)
		}
	}
	var all []string
	for _, path := range paths {
		all = append(all, w.get(Prefix+path).body)
	}
	all = append(all, w.post(w.client, "/console/find", url.Values{"key": {keys[2]}}).body, w.post(w.client, "/console/settle", decision("no-effect")).body)
	for i, body := range all {
		for _, not := range []string{"secret-", "<script>alert", "\u202e", token} {
			if strings.Contains(body, not) {
				t.Errorf("page %d shows %q:\n%s", i, not, body)
			}
		}
	}
	if found := all[len(all)-2]; !strings.Contains(found, semel.Digest(keys[2])) || strings.Contains(found, semel.Digest(keys[1])) {
		t.Errorf("a record is not found by its key:\n%s", found)
	}
	want(t, "status of no record", w.get("/console/records/nothing").status, 404)
	want(t, "status of no state", w.get("/console/records?state=colour").status, 400)

	w.store.list = func(ctx context.Context) error { return errors.New("the store is away") }
	for path, status := range map[string]int{"": 200, "records": 503, "records/x": 503, "configuration": 200} {
		want(t, "status of "+path+" without the store", w.get(Prefix+path).status, status)
	}
	want(t, "status of a preview without the store", w.post(w.client, "/console/settle", decision("no-effect")).status, 503)
}

// TestPaging: further records are one page after the other, each record once.
func TestPaging(t *testing.T) {
	w := newWorld(t)
	w.unknown(2*pageRows+1, "cut off")
	w.login(w.client)
	row, next := regexp.MustCompile(`name="record" value="(\w+)@`), regexp.MustCompile(`rel="next" href="([^"]+)"`)
	seen := map[string]int{}
	pages := 0
	for path := "/console/records?state=unknown&cause=cut*"; path != ""; pages++ {
		a := w.get(path)
		for _, m := range row.FindAllStringSubmatch(a.body, -1) {
			seen[m[1]]++
		}
		path = ""
		if m := next.FindStringSubmatch(a.body); m != nil {
			path = strings.ReplaceAll(m[1], "&amp;", "&")
		}
	}
	want(t, "pages", pages, 3)
	want(t, "records", len(seen), 2*pageRows+1)
	for id, times := range seen {
		want(t, "times of "+id, times, 1)
	}
}

// TestUpstreamHealth: what became of the requests of the last minute says how an
// upstream is doing.
func TestUpstreamHealth(t *testing.T) {
	before := upstreamCounts{requests: 100, seconds: 10, failing: 5, noResponse: map[string]float64{"connect": 3}}
	for _, tt := range []struct {
		is   upstreamCounts
		want string
	}{
		{before, "no requests"},
		{upstreamCounts{requests: 110, seconds: 11, failing: 5, noResponse: before.noResponse}, "answers"},
		{upstreamCounts{requests: 110, seconds: 11, failing: 6, noResponse: before.noResponse}, "fails sometimes"},
		{upstreamCounts{requests: 110, seconds: 11, failing: 5, noResponse: map[string]float64{"connect": 8}}, "fails"},
	} {
		got := upstreamOf("u:80", tt.is, before, 10)
		want(t, "health", got.State, tt.want)
		if got.State != "no requests" && (got.Rate != 1 || got.Mean != 100*time.Millisecond) {
			t.Errorf("%+v", got)
		}
	}
}

// TestJapaneseIsWhole: each text of the page, and each word of it that comes from
// elsewhere, has its Japanese.
func TestJapaneseIsWhole(t *testing.T) {
	said := map[string]bool{}
	for _, m := range regexp.MustCompile(`\bt "([^"]+)"`).FindAllStringSubmatch(pageHTML, -1) {
		said[m[1]] = true
	}
	for _, file := range []string{"console.go", "settle.go"} {
		text, err := os.ReadFile(file)
		noError(t, err)
		for _, m := range regexp.MustCompile(`(?:Title: |Wrong: |v\.Wrong, v\.Why = |wrong: |return |failed\(w, r, [^"]+|showLogin\(w, r, [^"]+|storeFailed = )"([A-Z][^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			said[m[1]] = true
		}
	}
	for _, tr := range troubles {
		said[tr.text] = true
	}
	words := slices.Concat(outcomeNames, []string{
		"lapsed", "reopened", "completed", "executions", "waiters", "spooled bytes", "no requests", "answers", "fails sometimes", "fails",
		"result", "no-effect", "execute-again", "the gateway is stopping", "the store does not answer",
		"held", "taken_over", "resolved", "erased", "failed_open", "lost", "redriven", "cancelled", "step_resolved", "retried",
	})
	for _, word := range words {
		said[word] = true
	}
	for _, text := range slices.Sorted(maps.Keys(said)) {
		if japanese[text] == "" {
			t.Errorf("no Japanese for %q", text)
		}
	}
	var all map[string]string
	noError(t, json.Unmarshal(jaJSON, &all))
	for text := range all {
		if !said[text] {
			t.Errorf("nothing says %q", text)
		}
	}
}
