package probetest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// shop makes orders and knows nothing of keys.
type shop struct {
	mu     sync.Mutex
	orders int64
	broken bool
}

func (s *shop) count() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders, nil
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer a=literal=token" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	s.orders++
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id":%d}`, s.orders)
}

func (s *shop) fail(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = on
}

func (s *shop) target(h http.Handler) Target {
	return Target{
		Handler: h, Path: "/orders", State: s.count, FailFirst: s.fail,
		Header: http.Header{"Authorization": {"Bearer a=literal=token"}},
		JSON:   `{"item":"tea {{hex 8}}","quantity":1}`, Altered: `{"item":"coffee","quantity":2}`,
	}
}

func protected(t *testing.T, h http.Handler) http.Handler {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	middleware, err := semelhttp.New(semelhttp.Config{
		Guard: guard, RequireKey: true,
		Scope: func(*http.Request) (semel.Scope, error) {
			return semel.Scope{Tenant: "acme", Actor: "alice", Operation: "orders"}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return middleware(h)
}

func TestProtectedHandlerPasses(t *testing.T) {
	s := &shop{}
	run := Check(t, s.target(protected(t, s)))
	if v := run.Operations[0].Verdict; v.RaceBehavior != "safe_converge" || v.IdempotencySupport != "header_key" {
		t.Error(v.Key())
	}
}

// failing records what Check says to a test.
type failing struct {
	testing.TB
	said  strings.Builder
	fatal bool
}

func (f *failing) Helper() {}

func (f *failing) Errorf(format string, args ...any) { fmt.Fprintf(&f.said, format, args...) }

func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	f.fatal = true
	runtime.Goexit()
}

// check runs Check in a test of its own, which may fail.
func check(t *testing.T, target Target) (run *evidence.Run, f *failing) {
	f = &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run = Check(f, target)
	}()
	<-done
	return run, f
}

func TestUnprotectedHandlerFails(t *testing.T) {
	s := &shop{}
	run, f := check(t, s.target(s))
	if run == nil || run.Worst() != evidence.P0 {
		t.Fatal(f.said.String())
	}
	for _, want := range []string{"findings of priority P1", "took effect again", "double_apply"} {
		if !strings.Contains(f.said.String(), want) {
			t.Errorf("the report says nothing of %q", want)
		}
	}
	if strings.Contains(f.said.String(), "literal=token") {
		t.Error("the report holds the credential")
	}
	found := run.Operations[0].All()
	for _, id := range []evidence.FindingID{"double-effect-sequential", "double-effect-race", "mismatch-executed", "key-ignored"} {
		if !slices.Contains(found, id) {
			t.Errorf("not found: %s in %v", id, found)
		}
	}
}

// A check that cannot see an effect must not pass, however right the target.
func TestBlindCheckFails(t *testing.T) {
	s := &shop{}
	target := s.target(protected(t, s))
	target.State = func() (int64, error) { return 7, nil }
	target.Timing = plan.Timing{SettleLimit: 1e8}
	target.AllowInconclusive = true
	if _, f := check(t, target); f.said.Len() == 0 {
		t.Error("it passed")
	}
}

func TestFailOn(t *testing.T) {
	s := &shop{}
	var mu sync.Mutex
	known := map[string][]byte{}
	target := s.target(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		if known[key] == nil {
			rec := httptest.NewRecorder()
			s.ServeHTTP(rec, r)
			known[key] = rec.Body.Bytes()
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(known[key])
	}))
	target.Experiments = []plan.Experiment{plan.Altered} // P1: it is answered with the first result
	target.FailOn = evidence.P0
	if _, f := check(t, target); f.said.Len() != 0 {
		t.Error(f.said.String())
	}
	target.FailOn = evidence.P1
	if _, f := check(t, target); f.said.Len() == 0 {
		t.Error("it passed")
	}
}

func TestWrongTargets(t *testing.T) {
	s := &shop{}
	for name, target := range map[string]Target{
		"no target":  {State: s.count},
		"elsewhere":  {URL: "http://192.0.2.1", State: s.count},
		"no state":   {Handler: s},
		"wrong JSON": {Handler: s, State: s.count, JSON: "{"},
	} {
		if _, f := check(t, target); !f.fatal {
			t.Errorf("%s: %s", name, f.said.String())
		}
	}
}
