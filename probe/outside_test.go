package probe_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
)

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
		strings.Repeat("x", 2000): {"", "at most 1024 are used"},
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
		if want.why != "" { // it is never read, however long that is tried
			p.Timing.SettleLimit = 50 * time.Millisecond
		}
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

// A missing mail is found once another has been seen to arrive.
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
	if err := report.Terminal(&page, run, report.TerminalOptions{Width: 400}); err != nil || !strings.Contains(page.String(), "- Requests that reading number and lines may send are not counted.") {
		t.Error(err, page.String())
	}
	for _, change := range d.Changes {
		if change.Effects != 2 {
			t.Errorf("%+v", change)
		}
	}
}
