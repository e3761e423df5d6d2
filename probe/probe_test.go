package probe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/targets"
	"github.com/semelhq/semel/probe/plan"
)

// counter is a target that does not know duplicates, with hooks.
type counter struct {
	hits    atomic.Int64 // requests of any kind
	effects atomic.Int64
	ids     sync.Map // by key
	before  func(w http.ResponseWriter, r *http.Request) (answered bool)
	after   func(r *http.Request, body []byte)
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.hits.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it did not come whole
	}
	if r.Method == http.MethodGet {
		fmt.Fprintf(w, `{"n":%d}`, c.effects.Load())
		return
	}
	if c.before != nil && c.before(w, r) {
		return
	}
	n := c.effects.Add(1)
	c.ids.Store(r.Header.Get("Idempotency-Key"), n)
	if c.after != nil {
		c.after(r, body)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id":%d}`, n)
}

func (c *counter) serve(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(c)
	s.Config.ErrorLog = nil
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// serveVirtually serves in a bubble of virtual time, where the options then
// connect to. It returns the URL.
func serveVirtually(t *testing.T, h http.Handler, o *probe.Options) string {
	n := targets.NewNetwork()
	l := n.Listen()
	s := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		serving.Wait()
	})
	o.DialWith(n.Dial)
	return "http://" + l.Addr().String()
}

// simple is a plan for a counter.
func simple(base string, experiments ...plan.Experiment) *plan.Plan {
	return &plan.Plan{
		Version: 1, Name: "counter",
		Target:    plan.Target{Allow: []string{strings.TrimPrefix(base, "http://")}, Production: new(false)},
		Variables: plan.Pairs{{Name: "ref", Value: "ref-{{hex 16}}"}},
		Operations: []plan.Operation{{
			Name:     "count",
			Request:  plan.Request{Method: "POST", URL: base + "/", Body: &plan.Body{JSON: plan.JSON(`{"ref":"{{.ref}}"}`)}},
			Key:      &plan.Key{Header: "Idempotency-Key"},
			Altered:  &plan.Alteration{Body: &plan.Body{JSON: plan.JSON(`{"ref":"{{.ref}}","more":true}`)}},
			Readers:  []plan.Reader{{Name: "n", HTTP: &plan.HTTPReader{URL: base + "/", Value: new(plan.Pointer("/n"))}}},
			Resource: &plan.Resource{Pointer: new(plan.Pointer("/id"))},
		}},
		Experiments: experiments,
		Timing: plan.Timing{
			Settle: 20 * time.Millisecond, Poll: 5 * time.Millisecond, SettleLimit: time.Minute, LateAfter: 20 * time.Millisecond,
			Timeout: 5 * time.Second, StableFor: 2,
		},
		Race: plan.Race{Width: 4},
	}
}

func mustRun(t *testing.T, p *plan.Plan, o probe.Options) *probe.Result {
	t.Helper()
	res, err := probe.Run(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func outcome(t *testing.T, op evidence.Operation, name plan.Experiment) evidence.Experiment {
	t.Helper()
	i := slices.IndexFunc(op.Experiments, func(e evidence.Experiment) bool { return e.Name == string(name) })
	if i < 0 {
		t.Fatalf("%s was not run", name)
	}
	return op.Experiments[i]
}

// accepts counts the connections that anybody makes.
type accepts struct {
	net.Listener
	n atomic.Int64
}

func (a *accepts) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err == nil {
		a.n.Add(1)
	}
	return c, err
}

// Secrets are nowhere in what a run leaves behind, wherever the target puts them.
func TestSecretsAreNowhere(t *testing.T) {
	const secret, session = `s3cret/with+special="chars`, "a session that is long"
	c := &counter{}
	c.before = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.Header().Set("Set-Cookie", "session="+session)
		return false
	}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate, plan.Altered, plan.RaceSame)
	p.Operations[0].Request.Headers = plan.Header{{Name: "Authorization", Value: `Bearer {{env "TOKEN"}}`}}
	p.Operations[0].Request.URL = s.URL + `/?access_token={{env "TOKEN" | url}}`
	p.Operations[0].Request.Body = &plan.Body{JSON: plan.JSON(`{"ref":"{{.ref}}","token":"{{env \"TOKEN\"}}","card":{"pin":["{{env \"TOKEN\"}}"]}}`)}
	p.Operations[0].Altered.Body = &plan.Body{JSON: plan.JSON(`{"ref":"{{.ref}}","token":"other {{env \"TOKEN\"}}"}`)}
	p.Operations[0].Resource = &plan.Resource{Header: "X-Echo"}
	p.Operations[0].Readers = append(p.Operations[0].Readers, plan.Reader{Name: "broken", SQL: &plan.SQLReader{
		Driver: "postgres", DSN: `postgres://u:{{env "TOKEN"}}@db/x`, Query: "SELECT 1",
	}})
	var events strings.Builder
	for _, send := range []bool{true, false} {
		res := mustRun(t, p, probe.Options{
			Send: send, Source: plan.Source{Env: func(string) (string, bool) { return secret, true }},
			Progress: func(e probe.Event) { fmt.Fprintf(&events, "%+v\n", e) },
		})
		run, err := json.Marshal(res.Run)
		if err != nil {
			t.Fatal(err)
		}
		var har bytes.Buffer
		if err := res.WriteHAR(&har); err != nil {
			t.Fatal(err)
		}
		planned := ""
		for _, p := range res.Planned {
			planned += string(p.Bytes)
		}
		for name, text := range map[string]string{"run": string(run), "HAR": har.String(), "planned": planned, "events": events.String()} {
			for _, form := range []string{secret, "s3cret%2Fwith", "s3cret", "special=", session} {
				if strings.Contains(text, form) {
					t.Errorf("send %v: %s holds %q", send, name, form)
				}
			}
		}
		if !strings.Contains(string(run), "redacted-") {
			t.Error("nothing was redacted: the test sees nothing")
		}
		if !send && (!strings.Contains(planned, `"token":"redacted-`) || !strings.Contains(planned, `"pin":["redacted-`) || !strings.Contains(planned, `"token":"redacted-2"}`)) {
			t.Errorf("planned: %s", planned)
		}
		if send && len(res.HAR().Log.Entries) == 0 {
			t.Error("the HAR is empty")
		}
	}
}

// A number that no request changes shows nothing, and so does one that moves by
// itself, or a reader that fails: that is inconclusive, never passed.
func TestBlindReaders(t *testing.T) {
	var moving atomic.Int64
	for name, read := range map[string]func() (int64, error){
		"constant": func() (int64, error) { return 7, nil },
		"moving":   func() (int64, error) { return moving.Add(1), nil },
		"failing":  func() (int64, error) { return 0, errors.New("no connection") },
	} {
		c := &counter{}
		s := c.serve(t)
		p := simple(s.URL, plan.Duplicate, plan.Altered, plan.MissingKey, plan.MalformedKey, plan.RaceSame, plan.LostBegun, plan.InFlight, plan.FailedFirst)
		p.Operations[0].Readers = nil
		p.Operations[0].Resource = &plan.Resource{Header: "X-None"} // no ids either
		p.Timing.SettleLimit = 50 * time.Millisecond
		res := mustRun(t, p, probe.Options{Send: true, State: []probe.State{{Name: name, Read: func(context.Context, probe.StateRequest) (int64, error) { return read() }}}})
		op := res.Run.Operations[0]
		for _, e := range op.Experiments {
			if e.Outcome != evidence.Inconclusive {
				t.Errorf("%s: %s is %s: %s", name, e.Name, e.Outcome, e.Why)
			}
		}
		if len(op.Findings) > 0 || op.Verdict.Confidence != 0 {
			t.Errorf("%s: %+v %v", name, op.Findings, op.Verdict.Confidence)
		}
	}
}

// A number that moved before anything was sent is not this request's alone.
func TestMovingBefore(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate)
	p.Operations[0].Readers = nil
	p.Timing.SettleLimit = 50 * time.Millisecond
	var reads atomic.Int64
	state := []probe.State{{Name: "others too", Read: func(context.Context, probe.StateRequest) (int64, error) {
		if reads.Add(1) == 1 {
			return -1, nil
		}
		return c.effects.Load(), nil
	}}}
	op := mustRun(t, p, probe.Options{Send: true, State: state}).Run.Operations[0]
	if e := outcome(t, op, plan.Duplicate); e.Outcome != evidence.Inconclusive || !strings.Contains(e.Why, "moves by itself") {
		t.Errorf("%s: %s", e.Outcome, e.Why)
	}
}

// Without any reader, two ids are a hint, and one id is nothing.
func TestWithoutReaders(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate)
	p.Operations[0].Readers = nil
	op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
	if f := finding(op, "double-effect-sequential"); f == nil || f.Basis != evidence.Inferred {
		t.Errorf("%+v", f)
	}
	p.Operations[0].Resource = &plan.Resource{Header: "Content-Type"} // always the same
	op = mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
	if e := outcome(t, op, plan.Duplicate); e.Outcome != evidence.Inconclusive || len(op.Findings) > 0 {
		t.Errorf("%s %s", e.Outcome, describe(op))
	}
}

// Scope counts only where actor A itself got a replay: of a target that knows no
// duplicates, B's own effect says nothing.
func TestScopeNeedsAReplay(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.OtherActor, plan.OtherTenant)
	who := func(name string) *plan.Principal {
		return &plan.Principal{Headers: plan.Header{{Name: "X-Actor", Value: name}}}
	}
	p.Principals = plan.Principals{ActorA: who("alice"), ActorB: who("bob"), TenantB: who("carol")}
	op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
	for _, name := range []plan.Experiment{plan.OtherActor, plan.OtherTenant} {
		if e := outcome(t, op, name); e.Outcome != evidence.Inconclusive {
			t.Errorf("%s is %s: %s", name, e.Outcome, e.Why)
		}
	}
	if op.Verdict.KeyScopeBinding != "unknown" {
		t.Error(op.Verdict.KeyScopeBinding)
	}
}

// Waiting for an effect that never comes does not use up the budget of reads.
func TestWaitingIsCheap(t *testing.T) { synctest.Test(t, testWaitingIsCheap) }

func testWaitingIsCheap(t *testing.T) {
	c := &counter{}
	o := probe.Options{Send: true}
	p := simple(serveVirtually(t, c, &o), plan.Duplicate)
	p.Timing.SettleLimit = time.Second // 200 times the pause between two readings
	o.State = []probe.State{{Name: "blind", Read: func(context.Context, probe.StateRequest) (int64, error) { return 0, nil }}}
	res := mustRun(t, p, o)
	if reads := c.hits.Load() - c.effects.Load(); reads > 60 {
		t.Errorf("%d readings", reads)
	}
	if res.Run.Interrupted != "" {
		t.Error(res.Run.Interrupted)
	}
}

// remembering makes a counter answer keys that knows reports as replays.
func (c *counter) remembering(knows func(key string) bool) {
	var mu sync.Mutex
	c.before = func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if !knows(r.Header.Get("Idempotency-Key")) {
			return false
		}
		id, _ := c.ids.Load(r.Header.Get("Idempotency-Key"))
		w.Header().Set("Idempotency-Replayed", "true")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"id":%d}`, id)
		return true
	}
}

// A target that remembers only the last key takes an older request for new.
func TestReordered(t *testing.T) {
	last, all := "", map[string]bool{}
	for name, c := range map[string]struct {
		knows func(string) bool
		want  evidence.Outcome
	}{
		"the last": {func(key string) bool { same := key == last; last = key; return same }, evidence.Broken},
		"all":      {func(key string) bool { known := all[key]; all[key] = true; return known }, evidence.Held},
	} {
		target := &counter{}
		target.remembering(c.knows)
		p := simple(target.serve(t).URL, plan.Duplicate, plan.Reordered)
		op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
		if e := outcome(t, op, plan.Reordered); e.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, e.Outcome, e.Why)
		}
		if f := finding(op, "double-effect-sequential"); (f != nil) != (c.want == evidence.Broken) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// A key has to be known until shortly before its retention is over.
func TestRetentionEdge(t *testing.T) { synctest.Test(t, testRetentionEdge) }

func testRetentionEdge(t *testing.T) {
	first := map[string]time.Time{}
	target := &counter{}
	target.remembering(func(key string) bool {
		at, ok := first[key]
		if !ok {
			first[key] = time.Now()
		}
		return ok && time.Since(at) < time.Second
	})
	for _, c := range []struct {
		promised time.Duration
		want     evidence.Outcome
	}{{500 * time.Millisecond, evidence.Held}, {2 * time.Second, evidence.Broken}} {
		o := probe.Options{Send: true}
		p := simple(serveVirtually(t, target, &o), plan.RetentionEdge)
		p.Operations[0].Resource = nil
		p.Target.Retention = c.promised
		op := mustRun(t, p, o).Run.Operations[0]
		if e := outcome(t, op, plan.RetentionEdge); e.Outcome != c.want {
			t.Errorf("%v: %s: %s", c.promised, e.Outcome, e.Why)
		}
	}
}

// An operation whose request fails at first, and one whose first attempt is
// broken off: the retry must have the one effect.
func TestFailedFirst(t *testing.T) {
	for name, c := range map[string]struct {
		own, effect, fails bool // the operation is one that fails; after its effect
		want               evidence.Outcome
		find               evidence.FindingID
	}{
		"fails, then works":             {own: true, fails: true, want: evidence.Held},
		"fails after its effect":        {own: true, fails: true, effect: true, want: evidence.Broken, find: "double-effect-sequential"},
		"does not fail":                 {own: true, want: evidence.Inconclusive},
		"broken off before its end":     {want: evidence.Held},
		"broken off, and then it fails": {fails: true, want: evidence.Broken, find: "unstable-5xx-on-duplicate"},
	} {
		var mu sync.Mutex
		seen := map[string]int{}
		target := &counter{}
		target.before = func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			key := r.Header.Get("Idempotency-Key")
			seen[key]++
			// The control of the others is the first key of all.
			if !c.fails || seen[key] > 1 || !c.own && len(seen) == 1 {
				return false
			}
			if c.effect {
				target.effects.Add(1)
			}
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		p := simple(target.serve(t).URL, plan.FailedFirst, plan.LateRetry)
		p.Timing.SettleLimit = 5 * time.Second
		if p.Experiments = nil; c.own {
			p.Operations[0].Experiments = []plan.Experiment{plan.FailedFirst}
		} else {
			p.Experiments = []plan.Experiment{plan.FailedFirst}
		}
		op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
		if e := outcome(t, op, plan.FailedFirst); e.Outcome != c.want {
			t.Errorf("%s: %s: %s", name, e.Outcome, e.Why)
		}
		if c.find != "" && finding(op, c.find) == nil || c.find == "" && len(op.Findings) > 0 {
			t.Errorf("%s: %+v", name, op.Findings)
		}
	}
}

// watchful is a target that takes its time, and sees from its side what a probe
// does to it.
type watchful struct {
	counter
	active, most, cut, hooked atomic.Int64
}

func (w *watchful) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.hits.Add(1)
	if r.Method == http.MethodGet {
		fmt.Fprintf(rw, `{"n":%d}`, w.effects.Load())
		return
	}
	for n := w.active.Add(1); ; {
		if most := w.most.Load(); n <= most || w.most.CompareAndSwap(most, n) {
			break
		}
	}
	defer w.active.Add(-1)
	// Both before its response and in the middle of it somebody may go away.
	part := func(text string) bool {
		_, _ = io.WriteString(rw, text)
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-time.After(200 * time.Millisecond):
			return true
		case <-r.Context().Done():
			w.cut.Add(1)
			return false
		}
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		w.cut.Add(1)
		return
	}
	n := w.effects.Add(1)
	if part("") && part("{") {
		fmt.Fprintf(rw, `"id":%d}`, n)
	}
}

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "touch" { // the program of TestNothingIsSent
		if err := os.WriteFile(os.Args[2], nil, 0o600); err != nil {
			log.Fatal(err)
		}
		return
	}
	if log := os.Getenv("PROBE_TEST_COUNT"); log != "" { // the program of the test above
		b, _ := os.ReadFile(log)
		if len(os.Args) > 1 && os.Args[1] == "lines" {
			_, _ = os.Stdout.Write(b)
		} else {
			fmt.Println(bytes.Count(b, []byte("\n")))
		}
		return
	}
	// The programs above, built with the race detector, else each sleep for a
	// second before they end.
	if err := os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0")); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	if dir, err := programsDir(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}
