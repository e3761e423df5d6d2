// Package probetest runs the probe against a handler or a URL from a Go test.
//
//	func TestOrdersSurviveDuplicates(t *testing.T) {
//		store := newStore()
//		probetest.Check(t, probetest.Target{
//			Handler: newHandler(store),
//			Path:    "/orders",
//			JSON:    `{"item":"tea {{hex 8}}","quantity":1}`,
//			State:   store.CountOrders,
//		})
//	}
package probetest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
)

// Target is an operation and how to observe its effect.
type Target struct {
	// Handler is served on a port of this machine, for as long as Check runs,
	// over HTTP/2: raced requests then arrive in one write. Set it or URL.
	Handler http.Handler
	// URL is where the target listens, without the Path. It must be on this
	// machine (localhost, or a loopback address). For others use probe.Run,
	// which requires an allow list.
	URL string

	// Method, default POST, and Path, default /, of the operation.
	Method, Path string
	// Header goes with every request, state readers of a Plan's excepted.
	// Values are templates of the package plan; a literal credential of at
	// least plan.MinSecretBytes is fine here.
	Header http.Header
	// JSON is the body; its strings are templates, as in plan.Body. Altered
	// is the body of another request, for the same key; empty leaves the
	// experiment out.
	JSON, Altered string
	// Key says where the key goes. Default: the header Idempotency-Key, quoted.
	Key *plan.Key
	// Contract is what the operation promises. Default: the profile ietf.
	Contract *plan.Contract

	// State returns a number that rises by one with each effect, such as how
	// many orders there are. It is called often, and while requests run.
	// Required, unless Readers are set.
	State func() (int64, error)
	// Readers are further state readers.
	Readers []probe.State
	// FailFirst makes the operation fail while it is true; nil leaves a failed
	// first attempt to a request that is cut off.
	FailFirst func(fail bool)

	// Experiments are run. Default: all but those that take long or more than
	// a Target says: duplicate, fresh_key, altered, missing_key,
	// malformed_key, in_flight, race, lost_unread, lost_begun, failed_first.
	Experiments []plan.Experiment
	// Race says how requests are raced. Default: 10 at once, 3 times.
	Race plan.Race
	// Timing says how long to wait. Default: state settles within 50 ms, at
	// the latest after 5 s.
	Timing plan.Timing

	// FailOn is the priority of findings that fail the test, with all above
	// it. Default: P1.
	FailOn evidence.Priority
	// AllowInconclusive does not fail the test for experiments that showed
	// nothing. That no effect was seen at all always fails it.
	AllowInconclusive bool
}

// Check runs the probe and fails the test if there are findings or if the probe
// was inconclusive. It returns the run. An invalid Target ends the test.
func Check(t testing.TB, target Target) *evidence.Run {
	t.Helper()
	base := target.URL
	protocol := "auto"
	if target.Handler != nil {
		base, protocol = serve(t, target.Handler), "http2"
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		t.Fatalf("probetest: the target needs a Handler or a URL, such as http://127.0.0.1:8080")
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		t.Fatalf("probetest: %s is not on this machine; use probe.Run with an allow-list", u.Host)
	}
	if target.State == nil && len(target.Readers) == 0 {
		t.Fatalf("probetest: the target needs State: without it, whether an effect happened once cannot be told")
	}
	l := literals{}
	p := target.plan(strings.TrimSuffix(base, "/"), u, protocol, l)
	result, err := probe.Run(t.Context(), p, target.options(l))
	if err != nil {
		t.Fatalf("probetest: %v", err)
	}
	run := result.Run
	if why := verdict(run, cmp.Or(target.FailOn, evidence.P1), target.AllowInconclusive); why != "" {
		var text strings.Builder
		if err := report.Terminal(&text, run, report.TerminalOptions{}); err != nil {
			t.Errorf("probetest: %v", err)
		}
		t.Errorf("probetest: %s\n%s", why, &text)
	}
	return run
}

// verdict says why a test fails; empty if it does not.
func verdict(run *evidence.Run, failOn evidence.Priority, inconclusive bool) string {
	worst := run.Worst()
	switch {
	case worst != "" && worst <= failOn:
		return "there are findings of priority " + string(failOn) + " or above"
	case run.Interrupted != "":
		return "the run ended early: " + run.Interrupted
	}
	for _, op := range run.Operations {
		shown := false
		for _, e := range op.Experiments {
			shown = shown || e.Outcome == evidence.Held || e.Outcome == evidence.Broken
			if e.Outcome == evidence.Inconclusive && !inconclusive {
				return e.Name + " is inconclusive: " + e.Why
			}
		}
		if !shown {
			return "nothing was shown"
		}
	}
	return ""
}

// serve serves h until the test is over and returns its URL.
func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("probetest: %v", err)
	}
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}

var defaults = []plan.Experiment{
	plan.Duplicate, plan.FreshKey, plan.Altered, plan.MissingKey, plan.MalformedKey, plan.InFlight, plan.RaceSame,
	plan.LostUnread, plan.LostBegun, plan.FailedFirst,
}

func (c Target) plan(base string, u *url.URL, protocol string, l literals) *plan.Plan {
	op := plan.Operation{
		Name: "operation", Key: cmp.Or(c.Key, &plan.Key{Header: "Idempotency-Key"}),
		Request: plan.Request{Method: cmp.Or(c.Method, http.MethodPost), URL: base + "/" + strings.TrimPrefix(c.Path, "/"), Protocol: protocol},
	}
	for _, name := range slices.Sorted(maps.Keys(c.Header)) {
		for _, v := range c.Header[name] {
			if plan.Sensitive(name) {
				v = l.add(name, v)
			}
			op.Request.Headers = append(op.Request.Headers, plan.Pair{Name: name, Value: v})
		}
	}
	if c.JSON != "" {
		op.Request.Body = &plan.Body{JSON: plan.JSON(c.JSON)}
	}
	experiments := c.Experiments
	if c.Altered != "" {
		op.Altered = &plan.Alteration{Body: &plan.Body{JSON: plan.JSON(c.Altered)}}
	}
	if len(experiments) == 0 {
		for _, e := range defaults {
			if e != plan.Altered || c.Altered != "" {
				experiments = append(experiments, e)
			}
		}
	}
	p := &plan.Plan{
		Version: 1, Name: "Go test", Operations: []plan.Operation{op}, Experiments: experiments, Contract: c.Contract,
		Target: plan.Target{Allow: []string{address(u)}, Production: new(false)},
		Race:   c.Race, Timing: c.Timing,
	}
	p.Race.Width, p.Race.Trials = cmp.Or(p.Race.Width, 10), cmp.Or(p.Race.Trials, 3)
	p.Timing.Settle = cmp.Or(p.Timing.Settle, 50*time.Millisecond)
	p.Timing.Poll = cmp.Or(p.Timing.Poll, 5*time.Millisecond)
	p.Timing.SettleLimit = cmp.Or(p.Timing.SettleLimit, 5*time.Second)
	p.Timing.LateAfter = cmp.Or(p.Timing.LateAfter, time.Second)
	p.Budget.MaxSends = 100 + p.Race.Width*p.Race.Trials
	return p
}

func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// literals are credentials that a Target has as they are. A plan takes such from
// outside only, so this is its environment.
type literals map[string]string

// add returns a template for a credential.
func (l literals) add(name, value string) string {
	if strings.Contains(value, "{{") {
		return value // it says itself where it comes from
	}
	scheme := ""
	if before, after, ok := strings.Cut(value, " "); ok && strings.EqualFold(name, "Authorization") {
		scheme, value = before+" ", after
	}
	id := fmt.Sprintf("literal %d", len(l)+1)
	l[id] = value
	return scheme + `{{env "` + id + `"}}`
}

func (c Target) options(l literals) probe.Options {
	o := probe.Options{Send: true, State: c.Readers}
	if c.State != nil {
		o.State = append([]probe.State{{Name: "state", Read: func(context.Context, probe.StateRequest) (int64, error) { return c.State() }}}, c.Readers...)
	}
	o.Source.Env = func(name string) (string, bool) {
		if v, ok := l[name]; ok {
			return v, true
		}
		return os.LookupEnv(name)
	}
	if c.FailFirst != nil {
		o.FailFirst = func(_ context.Context, fail bool) error {
			c.FailFirst(fail)
			return nil
		}
	}
	return o
}
