package semel_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

func submit(key string) semel.Submit {
	return semel.Submit{Identity: semel.Identity{Scope: scope, Key: key}, Fingerprint: semel.FingerprintOf([]byte("request"))}
}

// detached is a submit whose panics are answers.
func detached(key string) semel.Submit {
	s := submit(key)
	s.Detached = true
	return s
}

func newStore(t testing.TB) *memory.Store {
	t.Helper()
	s, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newGuard(t testing.TB, s semel.Store, p semel.Policy) *semel.Guard {
	t.Helper()
	g, err := semel.New(semel.Config{Store: s, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// effects counts effects and makes each result tell which one it is of.
type effects struct{ n atomic.Int64 }

func (e *effects) do(context.Context) (semel.Result, error) {
	return semel.Result{Codec: "test/1", Body: fmt.Append(nil, "effect ", e.n.Add(1)), Label: "ok"}, nil
}

func (e *effects) want(t testing.TB, n int64) {
	t.Helper()
	if got := e.n.Load(); got != n {
		t.Fatalf("%d effects; want %d", got, n)
	}
}

func wantAnswer(t testing.TB, out semel.Outcome, err error, want semel.Answer) {
	t.Helper()
	if out.Answer != want {
		t.Fatalf("answer %v, error %v; want %v", out.Answer, err, want)
	}
	if (err == nil) != (want == semel.AnswerExecuted || want == semel.AnswerReplayed) {
		t.Fatalf("answer %v came with error %v", want, err)
	}
	if e, ok := errors.AsType[*semel.Error](err); ok && e.Answer != want {
		t.Fatalf("the outcome says %v, its error %v", want, e.Answer)
	}
}

// bubble runs test in virtual time.
func bubble(t *testing.T, test func(t *testing.T)) { synctest.Test(t, test) }

// stranded leaves a record in progress, as a process that died would.
func stranded(t testing.TB, s semel.Store, sub semel.Submit, lease time.Duration) semel.Claim {
	t.Helper()
	c, err := s.Begin(t.Context(), semel.NewAttempt(sub.Identity, sub.Fingerprint, lease, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var scope = semel.Scope{Tenant: "t", Actor: "a", Operation: "orders.create"}
