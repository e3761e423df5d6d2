package probe_test

import (
	"bufio"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/store/memory"
)

var listening = regexp.MustCompile(`listening on (http://[0-9.:]+)`)

// programs builds the programs of the folder examples, each once.
var programs = map[string]func() (string, error){
	"orders":   sync.OnceValues(func() (string, error) { return build("orders") }),
	"payments": sync.OnceValues(func() (string, error) { return build("payments") }),
}

// programsDir is removed by TestMain.
var programsDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "semel-probe-test-") })

func build(name string) (program string, err error) {
	dir, err := programsDir()
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, name)
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	c := exec.Command("go", "build", "-o", program, ".")
	c.Dir = filepath.Join("..", "examples", name)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return program, nil
}

// example starts a program of the folder examples and returns where it listens.
func example(t *testing.T, name string, args ...string) string {
	t.Helper()
	quick.LeaveOut(t)
	program, err := programs[name]()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-read
		_ = c.Wait()
	})
	at := make(chan string, 1)
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				at <- m[1]
			}
		}
	}()
	select {
	case u := <-at:
		return u
	case <-read:
		t.Fatalf("%s did not start", name)
	}
	return ""
}

func mustProbe(t *testing.T, p *plan.Plan, o probe.Options) evidence.Operation {
	t.Helper()
	o.Send = true
	result, err := probe.Run(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	if result.Run.Interrupted != "" {
		t.Fatal(result.Run.Interrupted)
	}
	op := result.Run.Operations[0]
	t.Log("\n" + describe(op))
	return op
}

// ordersPlan is the plan of the documentation for examples/orders.
func ordersPlan(t *testing.T, base string) *plan.Plan {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("plan", "testdata", "orders.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Parse("orders.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Set("base", base); err != nil {
		t.Fatal(err)
	}
	p.Target.Allow = []string{strings.TrimPrefix(base, "http://")}
	p.Timing.Timeout = 30 * time.Second
	return p
}

func finding(op evidence.Operation, id evidence.FindingID) *evidence.Finding {
	if i := slices.IndexFunc(op.Findings, func(f evidence.Finding) bool { return f.ID == id }); i >= 0 {
		return &op.Findings[i]
	}
	for _, f := range op.Findings {
		for _, s := range f.Symptoms {
			if s.ID == id {
				return &evidence.Finding{ID: s.ID, Title: s.Title, Basis: s.Basis, Experiment: s.Experiment, Sends: s.Sends}
			}
		}
	}
	return nil
}

// The unprotected example has two orders for one key, and the evidence shows
// them.
func TestOrdersBare(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel() // it mostly waits
	op := mustProbe(t, ordersPlan(t, example(t, "orders", "--delay", "50ms")), probe.Options{})
	f := finding(op, "double-effect-sequential")
	if f == nil || f.Priority != evidence.P0 || f.Basis != evidence.Established || len(f.Sends) < 2 {
		t.Fatalf("%+v", f)
	}
	if v := op.Verdict; v.IdempotencySupport != "none" || v.RaceBehavior != "double_apply" || v.RetryBehavior != "unsafe_retry" {
		t.Error(v.Key())
	}
	e := op.Experiments[0]
	if e.Name != "duplicate" || len(e.Changes) != 1 || e.Changes[0].Effects != 2 || e.Changes[0].Expected != 1 || e.Changes[0].Before != "0" || e.Changes[0].After != "2" {
		t.Errorf("%+v", e.Changes)
	}
	if ids := e.After[0].Values["ids"]; len(strings.Fields(ids)) != 2 {
		t.Errorf("the two orders are not named: %q", ids)
	}
}

// Behind the gateway the same service is clean.
func TestOrdersBehindGateway(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel() // it mostly waits
	upstream, err := url.Parse(example(t, "orders", "--delay", "50ms"))
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Upstream: upstream, Guard: guard, RequireKey: true})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g)
	defer server.Close()
	op := mustProbe(t, ordersPlan(t, server.URL), probe.Options{})
	clean(t, op)
	if op.Verdict.IdempotencySupport != "header_key" {
		t.Error(op.Verdict.Key())
	}
}

// clean fails if there is any finding, or an experiment that did not hold.
func clean(t *testing.T, op evidence.Operation) {
	t.Helper()
	for _, f := range op.Findings {
		t.Errorf("%s %s (%s) in %s", f.Priority, f.ID, f.Basis, f.Experiment)
	}
	for _, e := range op.Experiments {
		if e.Outcome != evidence.Held && e.Outcome != evidence.NotApplicable {
			t.Errorf("%s is %s: %s", e.Name, e.Outcome, e.Why)
		}
	}
	v := op.Verdict
	if v.RaceBehavior != "safe_converge" || v.RetryBehavior != "safe_stop" || v.ResultReplay != "same_response" || v.InProgressHandling != "yes" {
		t.Error(v.Key())
	}
}

// The example that protects itself in its own transaction is clean.
func TestPayments(t *testing.T) {
	quick.LeaveOut(t)
	t.Parallel() // it mostly waits
	base := example(t, "payments", "--delay", "50ms", "--db", filepath.Join(t.TempDir(), "payments.db"))
	p := &plan.Plan{
		Version: 1, Name: "payments",
		Target:    plan.Target{Allow: []string{strings.TrimPrefix(base, "http://")}, Production: new(false)},
		Variables: plan.Pairs{{Name: "item", Value: "probe {{hex 12}}"}},
		Principals: plan.Principals{
			ActorA: &plan.Principal{Headers: plan.Header{{Name: "X-User", Value: "alice"}}},
		},
		Operations: []plan.Operation{{
			Name: "orders.create",
			Request: plan.Request{
				Method: "POST", URL: base + "/orders", Body: &plan.Body{JSON: plan.JSON(`{"item":"{{.item}}","price":100}`)},
			},
			Key:     &plan.Key{Header: "Idempotency-Key"},
			Altered: &plan.Alteration{Edits: []plan.Edit{{Pointer: new(plan.Pointer("/price")), Value: plan.JSON("200")}}},
			Readers: []plan.Reader{{Name: "orders", HTTP: &plan.HTTPReader{URL: base + "/counters", Value: new(plan.Pointer("/orders"))}}},
		}},
		Experiments: []plan.Experiment{
			plan.Duplicate, plan.FreshKey, plan.LateRetry, plan.Altered, plan.MissingKey, plan.MalformedKey, plan.InFlight, plan.RaceSame,
			plan.LostUnread, plan.LostBegun, plan.FailedFirst, plan.Reordered,
		},
		Timing: plan.Timing{Settle: 200 * time.Millisecond, Poll: 20 * time.Millisecond, LateAfter: 100 * time.Millisecond, SettleLimit: 10 * time.Second},
		Race:   plan.Race{Width: 10, Trials: 3},
		Budget: plan.Budget{MaxSends: 200},
	}
	clean(t, mustProbe(t, p, probe.Options{}))
}
