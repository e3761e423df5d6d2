package probe_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/smtp"
	"os"
	"path/filepath"
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
	"github.com/semelhq/semel/probe/report"
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

// Without --send, without an allow-list, or in production without the word for
// it, not one connection is made, no database is opened, no program is started,
// no reader reads and no hook is called.
func TestNothingIsSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	count := &accepts{Listener: l}
	s := &http.Server{Handler: &counter{}}
	go func() { _ = s.Serve(count) }()
	defer s.Close()
	base := "http://" + l.Addr().String()
	var read, failed, opened atomic.Int64
	state := []probe.State{{Name: "go", Read: func(context.Context, probe.StateRequest) (int64, error) { return read.Add(1), nil }}}
	fail := func(context.Context, bool) error { failed.Add(1); return nil }

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	programs := []string{filepath.Join(dir, "reader"), filepath.Join(dir, "reset")}
	simple := func(base string) *plan.Plan {
		p := simple(base)
		op := &p.Operations[0]
		op.Readers = append(op.Readers,
			plan.Reader{Name: "program", Command: &plan.CommandReader{Argv: []string{self, "touch", programs[0]}}},
			plan.Reader{Name: "database", SQL: &plan.SQLReader{Driver: "sqlite", DSN: "x", Query: "SELECT 1"}})
		op.Audit = []plan.Audit{{Name: "trail", HTTP: &plan.AuditHTTP{URL: base + "/"}, Find: plan.Pairs{{Name: "key", Value: "{{.key}}"}}}}
		p.Reset = &plan.Hook{Command: []string{self, "touch", programs[1]}}
		p.Timing.SettleLimit = 50 * time.Millisecond
		return p
	}
	openSQL := func(context.Context, string, string) (*sql.DB, error) {
		opened.Add(1)
		return nil, errors.New("there is no database")
	}

	closed := simple(base)
	closed.Target.Allow = nil
	elsewhere := simple(base)
	elsewhere.Target.Allow = []string{"127.0.0.1:1"}
	reader := simple(base)
	reader.Operations[0].Readers[0].HTTP.URL = "http://127.0.0.2:1/"
	live := simple(base)
	live.Target.Production, live.Reset = new(true), nil // which production refuses
	reset := simple(base)
	reset.Reset = &plan.Hook{HTTP: &plan.HookRequest{Request: plan.Request{Method: "DELETE", URL: base + "/"}}}
	resetElsewhere := simple(base)
	resetElsewhere.Reset = &plan.Hook{HTTP: &plan.HookRequest{Request: plan.Request{Method: "DELETE", URL: "http://127.0.0.2:1/"}}}
	for name, c := range map[string]struct {
		p    *plan.Plan
		o    probe.Options
		want error
	}{
		"dry run":             {simple(base), probe.Options{Full: true}, nil},
		"dry run, allowed":    {closed, probe.Options{Full: true, Allow: []string{l.Addr().String()}}, nil},
		"no allow-list":       {closed, probe.Options{Send: true, Full: true}, probe.ErrNotAllowed},
		"another allow-list":  {elsewhere, probe.Options{Send: true}, probe.ErrNotAllowed},
		"a reader elsewhere":  {reader, probe.Options{Send: true}, probe.ErrNotAllowed},
		"dry run, a reset":    {reset, probe.Options{Full: true}, nil},
		"a reset elsewhere":   {resetElsewhere, probe.Options{Send: true}, probe.ErrNotAllowed},
		"production":          {live, probe.Options{Send: true}, probe.ErrProduction},
		"production, dry run": {live, probe.Options{}, nil},
	} {
		c.o.State, c.o.FailFirst, c.o.OpenSQL = state, fail, openSQL
		res, err := probe.Run(t.Context(), c.p, c.o)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (res.Run.Sent != 0 || !res.Run.DryRun || len(res.Planned) == 0) {
			t.Errorf("%s: %d sent, %d planned", name, res.Run.Sent, len(res.Planned))
		}
	}
	started := func() (n int) {
		for _, file := range programs {
			if _, err := os.Stat(file); err == nil {
				n++
			}
		}
		return n
	}
	if count.n.Load() != 0 || read.Load() != 0 || failed.Load() != 0 || opened.Load() != 0 || started() != 0 {
		t.Errorf("%d connections, %d readings, %d calls of the hook, %d databases, %d programs",
			count.n.Load(), read.Load(), failed.Load(), opened.Load(), started())
	}

	// The counting works.
	res := mustRun(t, closed, probe.Options{
		Send: true, Allow: []string{l.Addr().String()}, State: state, FailFirst: fail, OpenSQL: openSQL,
		Only: []plan.Experiment{plan.Duplicate, plan.FailedFirst},
	})
	if count.n.Load() == 0 || int(count.n.Load()) != res.Run.Sent {
		t.Errorf("%d connections for %d sends", count.n.Load(), res.Run.Sent)
	}
	if read.Load() == 0 || failed.Load() == 0 || opened.Load() == 0 || started() != len(programs) {
		t.Errorf("%d readings, %d calls of the hook, %d databases, %d programs; the test sees nothing",
			read.Load(), failed.Load(), opened.Load(), started())
	}
}

// A dry run lists what a run sends: the same requests but for their fresh values.
func TestDryRunListsWhatIsSent(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	list := []plan.Experiment{plan.Duplicate, plan.FreshKey, plan.Altered, plan.MissingKey, plan.RaceSame, plan.LostBegun}
	roles := func(res *probe.Result) (out []string) {
		for _, e := range res.Run.Operations[0].Experiments {
			n := map[string]int{}
			for _, s := range e.Sends {
				if s.Role != "read" {
					n[string(s.Role)]++
				}
			}
			if len(n) > 0 {
				delete(n, "race") // a dry run lists it once, with a number
				out = append(out, fmt.Sprint(e.Name, n))
			}
		}
		return out
	}
	dry := mustRun(t, simple(s.URL, list...), probe.Options{})
	wet := mustRun(t, simple(s.URL, list...), probe.Options{Send: true})
	if a, b := roles(dry), roles(wet); !slices.Equal(a, b) {
		t.Errorf("a dry run says\n%q, a run sends\n%q", a, b)
	}
	i := slices.IndexFunc(dry.Planned, func(p probe.Planned) bool { return p.Experiment == plan.RaceSame })
	if i < 0 || dry.Planned[i].Times != 4 {
		t.Errorf("the race is planned as %+v", dry.Planned)
	}
	if b := string(dry.Planned[0].Bytes); !strings.HasPrefix(b, "POST / HTTP/1.1\r\nHost: "+s.Listener.Addr().String()+"\r\n") || !strings.Contains(b, "Idempotency-Key: \"") {
		t.Errorf("%q", b)
	}
}

// By default a run is two requests, and readings.
func TestDefaultIsTwoSends(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	res := mustRun(t, simple(s.URL), probe.Options{Send: true})
	if n := c.effects.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
	op := res.Run.Operations[0]
	if outcome(t, op, plan.Duplicate).Outcome != evidence.Broken || finding(op, "double-effect-sequential") == nil {
		t.Error(describe(op))
	}
	if int64(res.Run.Sent) != c.hits.Load() {
		t.Errorf("%d sent by the evidence, %d arrived", res.Run.Sent, c.hits.Load())
	}
}

// The budget holds whatever is to be done, and what was not done is not passed.
func TestBudget(t *testing.T) {
	for _, budget := range []int{1, 3, 7} {
		c := &counter{}
		s := c.serve(t)
		p := simple(s.URL, plan.Duplicate, plan.FreshKey, plan.RaceSame, plan.LostUnread)
		p.Budget.MaxSends = budget
		p.Race.Width = min(4, budget+1)
		if p.Race.Width > budget {
			p.Experiments = []plan.Experiment{plan.Duplicate, plan.FreshKey}
		}
		res := mustRun(t, p, probe.Options{Send: true})
		if n := c.effects.Load(); n > int64(budget) {
			t.Errorf("%d requests with a budget of %d", n, budget)
		}
		if res.Run.Conclusive() {
			t.Errorf("budget %d: it passes for conclusive", budget)
		}
	}
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate)
	p.Budget.MaxReads = 3
	res := mustRun(t, p, probe.Options{Send: true})
	if reads := c.hits.Load() - c.effects.Load(); reads != 3 || res.Run.Interrupted == "" {
		t.Errorf("%d readings with a budget of 3: %q", reads, res.Run.Interrupted)
	}
}

// A run that is interrupted ends at once, and leaves the evidence so far.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("somebody pressed a key")
	c := &counter{}
	c.before = func(w http.ResponseWriter, r *http.Request) bool {
		if c.effects.Load() == 1 { // the duplicate is never answered
			c.effects.Add(1)
			cancel(why)
			<-r.Context().Done()
			return true
		}
		return false
	}
	s := c.serve(t)
	res, err := probe.Run(ctx, simple(s.URL, plan.Duplicate, plan.FreshKey, plan.RaceSame), probe.Options{Send: true})
	if err != nil {
		t.Fatal(err)
	}
	op := res.Run.Operations[0]
	if res.Run.Interrupted != why.Error() || res.Run.Conclusive() {
		t.Errorf("interrupted: %q", res.Run.Interrupted)
	}
	d := outcome(t, op, plan.Duplicate)
	posts := slices.DeleteFunc(slices.Clone(d.Sends), func(s evidence.Send) bool { return s.Role == "read" })
	if d.Outcome != evidence.Inconclusive || len(posts) != 2 || posts[1].Delivery != "unanswered" {
		t.Errorf("%s: %+v", d.Outcome, posts)
	}
	for _, name := range []plan.Experiment{plan.FreshKey, plan.RaceSame} {
		if e := outcome(t, op, name); e.Outcome != evidence.NotRun || !strings.Contains(e.Why, why.Error()) {
			t.Errorf("%s is %s: %s", name, e.Outcome, e.Why)
		}
	}
	if len(op.Findings) != 0 {
		t.Errorf("%+v", op.Findings)
	}
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + l.Addr().String()
	_ = l.Close()
	res, err := probe.Run(t.Context(), simple(base), probe.Options{Send: true})
	if !errors.Is(err, probe.ErrUnreachable) || res == nil || res.Run.Conclusive() {
		t.Error(err)
	}
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

// Effects outside are counted by the sinks that the probe opens, and doubles
// are found there though the target's own state is right.
func TestSinks(t *testing.T) {
	for _, c := range []struct {
		name           string
		hooks, mails   int // for each request
		sameID         bool
		find, verdict  string
		basis          evidence.Basis
		resultOutcomes evidence.Outcome
	}{
		{"once", 1, 1, false, "", "yes", "", evidence.Held},
		{"hooks twice", 2, 1, false, "outside-effect-doubled", "no", evidence.Established, evidence.Broken},
		{"mails twice", 1, 2, false, "outside-effect-doubled", "no", evidence.Established, evidence.Broken},
		{"hooks twice with one id", 2, 1, true, "outside-effect-doubled", "no", evidence.Inferred, evidence.Broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			hook, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			mails, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			known := map[string]bool{}
			target := &counter{}
			target.before = func(w http.ResponseWriter, r *http.Request) bool {
				mu.Lock()
				defer mu.Unlock()
				key := r.Header.Get("Idempotency-Key")
				again := known[key]
				known[key] = true
				hooks, letters := 1, 1
				if again {
					hooks, letters = c.hooks-1, c.mails-1
				}
				for range hooks {
					req, _ := http.NewRequest(http.MethodPost, "http://"+hook.Addr().String()+"/hook", strings.NewReader("an order, "+key))
					if c.sameID {
						req.Header.Set("Webhook-Id", "msg_"+strings.Trim(key, `"`))
					}
					if res, err := http.DefaultClient.Do(req); err == nil {
						_ = res.Body.Close()
					}
				}
				for range letters {
					_ = smtp.SendMail(mails.Addr().String(), nil, "shop@example.com", []string{"customer@example.com"},
						[]byte("Subject: an order\r\n\r\n.. "+key+"\r\n"))
				}
				if again {
					w.Header().Set("Idempotency-Replayed", "true")
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, `{"id":1}`)
				}
				return again
			}
			s := target.serve(t)
			p := simple(s.URL, plan.Duplicate)
			p.Operations[0].Resource = nil
			p.Operations[0].Readers = append(p.Operations[0].Readers,
				plan.Reader{Name: "hook", Webhook: &plan.Sink{Listen: hook.Addr().String(), Match: "{{.key}}"}},
				plan.Reader{Name: "mail", SMTP: &plan.Sink{Listen: mails.Addr().String(), Match: "Subject: (.|\n|\r)*{{.key}}"}})
			res := mustRun(t, p, probe.Options{Send: true, Listen: func(_, addr string) (net.Listener, error) {
				if addr == hook.Addr().String() {
					return hook, nil
				}
				return mails, nil
			}})
			op := res.Run.Operations[0]
			if e := outcome(t, op, plan.Duplicate); e.Outcome != c.resultOutcomes {
				t.Errorf("%s: %s", e.Outcome, e.Why)
			}
			if op.Verdict.OutboxPattern != c.verdict {
				t.Error(op.Verdict.OutboxPattern)
			}
			f := finding(op, "outside-effect-doubled")
			if (f != nil) != (c.find != "") || f != nil && f.Basis != c.basis {
				t.Errorf("%+v", f)
			}
			if finding(op, "double-effect-sequential") != nil {
				t.Error("the state was doubled")
			}
		})
	}
}

// What the target calls a resource leads readers nowhere else, and where it
// cannot be used the experiment says why.
func TestHostileResourceID(t *testing.T) {
	for id, want := range map[string]struct{ uri, why string }{
		"../admin?x=1#y":          {"/orders/..%2Fadmin%3Fx%3D1%23y", ""},
		"..":                      {"", "would lead to another path"},
		"a\r\nb":                  {"", "control character"},
		strings.Repeat("x", 2000): {"", "up to 1024 are used"},
	} {
		var uris sync.Map
		made := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				uris.Store(r.RequestURI, true)
				_, _ = io.WriteString(w, "[1]")
				return
			}
			if made++; made > 1 {
				w.Header().Set("Idempotency-Replayed", "true")
			}
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(map[string]string{"id": id})
		}))
		defer s.Close()
		p := simple(s.URL, plan.Duplicate)
		p.Timing.SettleLimit = 50 * time.Millisecond
		p.Operations[0].Readers = []plan.Reader{{Name: "n", HTTP: &plan.HTTPReader{URL: s.URL + "/orders/{{.resource_id}}", Count: new(plan.Pointer(""))}}}
		e := outcome(t, mustRun(t, p, probe.Options{Send: true}).Run.Operations[0], plan.Duplicate)
		uris.Range(func(uri, _ any) bool {
			if uri != want.uri {
				t.Errorf("%.20q: the reader asked for %s", id, uri)
			}
			return true
		})
		if want.why == "" && e.Outcome != evidence.Held || want.why != "" && (e.Outcome != evidence.Inconclusive || !strings.Contains(e.Why, want.why)) {
			t.Errorf("%.20q: %s: %s", id, e.Outcome, e.Why)
		}
	}
}

// A sink that could not take all there was says so, and nobody is accused of what
// it did not take.
func TestSinkIsFull(t *testing.T) {
	hook, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{}
	c.after = func(r *http.Request, _ []byte) {
		body := strings.NewReader(strings.Repeat("x", 1<<20))
		for range 70 {
			body.Reset(strings.Repeat("x", 1<<20))
			if res, err := http.Post("http://"+hook.Addr().String(), "text/plain", body); err == nil {
				_ = res.Body.Close()
			}
		}
	}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate)
	p.Timing.SettleLimit, p.Timing.Timeout = 100*time.Millisecond, time.Minute
	p.Operations[0].Readers = append(p.Operations[0].Readers, plan.Reader{Name: "hook", Effect: "70", Webhook: &plan.Sink{Listen: hook.Addr().String()}})
	res := mustRun(t, p, probe.Options{Send: true, Listen: func(string, string) (net.Listener, error) { return hook, nil }})
	op := res.Run.Operations[0]
	if e := outcome(t, op, plan.Duplicate); e.Outcome != evidence.Inconclusive || !strings.Contains(e.Why, "the sink was full: it has room for 64 MiB") {
		t.Errorf("%s: %s", e.Outcome, e.Why)
	}
	if finding(op, "outside-effect-doubled") != nil || finding(op, "lost-effect") != nil {
		t.Error(describe(op))
	}
}

// A mail that stays away is found, once another has been seen to come.
func TestLostMail(t *testing.T) { synctest.Test(t, testLostMail) }

func testLostMail(t *testing.T) {
	mails := atomic.Int64{}
	c := &counter{}
	c.after = func(*http.Request, []byte) {
		if c.effects.Load() == 1 {
			mails.Add(1)
		}
	}
	o := probe.Options{Send: true}
	p := simple(serveVirtually(t, c, &o), plan.Altered, plan.FreshKey)
	p.Timing.SettleLimit = 3 * time.Second // the mail is waited for that long
	o.State = []probe.State{{
		Name: "mails", Outside: true, Read: func(context.Context, probe.StateRequest) (int64, error) { return mails.Load(), nil },
	}}
	res := mustRun(t, p, o)
	op := res.Run.Operations[0]
	f := finding(op, "lost-effect")
	if f == nil || f.Basis != evidence.Established || op.Verdict.OutboxPattern != "no" {
		t.Error(describe(op))
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

// Waiting for what never comes does not use up the budget of reads.
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

// Whoever connects presents that one's certificate, and certificates are
// verified.
func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"alice", "bob"} {
		writeCertificate(t, dir, name)
	}
	c := &counter{}
	var mu sync.Mutex
	seen := map[string]int{}
	c.before = func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		seen[r.TLS.PeerCertificates[0].Subject.CommonName]++
		return false
	}
	s := httptest.NewUnstartedServer(c)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.StartTLS()
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	p := simple(s.URL, plan.OtherActor)
	p.Target.Allow = []string{s.Listener.Addr().String()}
	p.Principals = plan.Principals{
		ActorA: &plan.Principal{ClientCert: &plan.ClientCert{CertFile: filepath.Join(dir, "alice.pem"), KeyFile: filepath.Join(dir, "alice.key")}},
		ActorB: &plan.Principal{ClientCert: &plan.ClientCert{CertFile: filepath.Join(dir, "bob.pem"), KeyFile: filepath.Join(dir, "bob.key")}},
	}
	// Replay for A, so that B is tried.
	known := map[string]bool{}
	before := c.before
	c.before = func(w http.ResponseWriter, r *http.Request) bool {
		before(w, r)
		mu.Lock()
		defer mu.Unlock()
		id := r.TLS.PeerCertificates[0].Subject.CommonName + r.Header.Get("Idempotency-Key")
		if known[id] {
			w.Header().Set("Idempotency-Replayed", "true")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"id":1}`)
			return true
		}
		known[id] = true
		return false
	}
	if _, err := probe.Run(t.Context(), p, probe.Options{Send: true}); !errors.Is(err, probe.ErrUnreachable) {
		t.Errorf("an unknown authority: %v", err)
	}
	p.Target.CAFile = filepath.Join(dir, "ca.pem")
	op := mustRun(t, p, probe.Options{Send: true}).Run.Operations[0]
	if e := outcome(t, op, plan.OtherActor); e.Outcome != evidence.Held || seen["alice"] != 2 || seen["bob"] != 1 {
		t.Errorf("%s: %s %v", e.Outcome, e.Why, seen)
	}
}

func writeCertificate(t *testing.T, dir, name string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: cert},
		name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
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

// A target that remembers the last key only takes an older request for new.
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

// Only and Skip choose, Full takes all that the plan has what it takes for, and
// names that are none are refused.
func TestChoice(t *testing.T) {
	names := func(o probe.Options) (out []string) {
		res := mustRun(t, simple("http://127.0.0.1:9", plan.Duplicate, plan.RaceSame), o)
		for _, e := range res.Run.Operations[0].Experiments {
			if e.Outcome != evidence.NotApplicable {
				out = append(out, e.Name)
			}
		}
		return out
	}
	for _, c := range []struct {
		o    probe.Options
		want string
	}{
		{probe.Options{}, "[duplicate race]"},
		{probe.Options{Skip: []plan.Experiment{plan.RaceSame}}, "[duplicate]"},
		{probe.Options{Only: []plan.Experiment{plan.Altered, plan.Duplicate}}, "[duplicate altered]"},
		{probe.Options{Full: true}, "[duplicate fresh_key late_retry same_meaning altered missing_key malformed_key in_flight race race_altered lost_unread lost_begun failed_first reordered]"},
	} {
		if got := fmt.Sprint(names(c.o)); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	_, err := probe.Run(t.Context(), simple("http://127.0.0.1:9"), probe.Options{
		Only: []plan.Experiment{"dance"}, Operations: []string{"nothing"}, State: []probe.State{{}},
	})
	for _, want := range []string{"dance", "nothing", "State[0]"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not tell of %s", err, want)
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
	// Both before its answer and in the middle of it somebody may go away.
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

// In production nothing is raced, cut off or made to fail, whatever is asked
// for and whatever hook is there: the target sees it.
func TestProduction(t *testing.T) {
	never := map[plan.Experiment]func(w *watchful) bool{
		plan.RaceSame:    func(w *watchful) bool { return w.most.Load() > 1 },
		plan.RaceAltered: func(w *watchful) bool { return w.most.Load() > 1 },
		plan.InFlight:    func(w *watchful) bool { return w.most.Load() > 1 },
		plan.LostUnread:  func(w *watchful) bool { return w.cut.Load() > 0 },
		plan.LostBegun:   func(w *watchful) bool { return w.cut.Load() > 0 },
		plan.FailedFirst: func(w *watchful) bool { return w.hooked.Load() > 0 },
		plan.Reordered:   func(w *watchful) bool { return w.effects.Load() > 0 },
	}
	run := func(t *testing.T, production bool, only ...plan.Experiment) (*watchful, evidence.Operation) {
		w := &watchful{}
		o := probe.Options{Send: true, Production: production, Full: true, Only: only, FailFirst: func(context.Context, bool) error {
			w.hooked.Add(1)
			return nil
		}}
		p := simple(serveVirtually(t, w, &o))
		p.Target.Production = &production
		p.Timing.SettleLimit = time.Second
		return w, mustRun(t, p, o).Run.Operations[0]
	}
	for name, seen := range never {
		synctest.Test(t, func(t *testing.T) {
			if w, op := run(t, false, name); !seen(w) {
				t.Errorf("%s: the target sees nothing: %s", name, describe(op))
			}
			w, op := run(t, true, name)
			if e := outcome(t, op, name); e.Outcome != evidence.NotRun || !strings.Contains(e.Why, "production") {
				t.Errorf("%s is %s in production: %s", name, e.Outcome, e.Why)
			}
			if w.hits.Load() > 0 || w.hooked.Load() > 0 {
				t.Errorf("%s: %d requests and %d calls of the hook in production", name, w.hits.Load(), w.hooked.Load())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w, op := run(t, true, plan.Experiments()...)
		if w.most.Load() != 1 || w.cut.Load() > 0 || w.hooked.Load() > 0 {
			t.Errorf("%d at once, %d cut off, %d calls of the hook", w.most.Load(), w.cut.Load(), w.hooked.Load())
		}
		for _, e := range op.Experiments {
			if _, ok := never[plan.Experiment(e.Name)]; ok != (e.Outcome == evidence.NotRun) {
				t.Errorf("%s is %s: %s", e.Name, e.Outcome, e.Why)
			}
			for _, s := range e.Sends {
				if s.Cut != "" || s.Role == "race" {
					t.Errorf("%s: %+v", e.Name, s)
				}
			}
		}
	})
}

// State is read from files and programs, too.
func TestFilesAndPrograms(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "app.log")
	c := &counter{after: func(_ *http.Request, body []byte) {
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		fmt.Fprintf(f, "created %s\n", body)
	}}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PROBE_TEST_COUNT", log)
	p.Operations[0].Readers = []plan.Reader{
		{Name: "log", Log: &plan.LogReader{File: log, Pattern: `created .*{{.ref}}`}},
		{Name: "number", Command: &plan.CommandReader{Argv: []string{self}}},
		{Name: "lines", Command: &plan.CommandReader{Argv: []string{self, "lines"}, Pattern: "{{.ref}}"}},
	}
	run := mustRun(t, p, probe.Options{Send: true}).Run
	d := outcome(t, run.Operations[0], plan.Duplicate)
	if d.Outcome != evidence.Broken || len(d.Changes) != 3 {
		t.Fatalf("%s: %s %+v", d.Outcome, d.Why, d.Changes)
	}
	var page strings.Builder
	if err := report.Terminal(&page, run, report.TerminalOptions{Width: 400}); err != nil || !strings.Contains(page.String(), "- What reading number and lines sends, if it sends anything, is not among the requests that are counted.") {
		t.Error(err, page.String())
	}
	for _, change := range d.Changes {
		if change.Effects != 2 {
			t.Errorf("%+v", change)
		}
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
