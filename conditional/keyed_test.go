package conditional_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/conditional"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

func protect(t *testing.T, p semel.Policy) func(http.Handler) http.Handler {
	t.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	m, err := semelhttp.New(semelhttp.Config{
		Guard:       guard,
		Scope:       func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice"}, nil },
		Fingerprint: semelhttp.FingerprintConfig{Headers: conditional.RequestHeaders()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// An attempt that took over from one that made the change finds its precondition
// failed. That is not to be told as no effect.
func TestTakeoverIsNotToldAsRefused(t *testing.T) {
	for _, asks := range []bool{false, true} {
		d := newRow(there)
		dies := true
		h := protect(t, semel.Policy{OnCrash: semel.CrashRetry})(conditional.New(conditional.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := d.change("mine")
			if asks {
				c.Done = func(context.Context) (bool, error) { return d.text == "mine", nil }
			}
			res, err := conditional.Apply(r.Context(), c)
			if err != nil {
				conditional.Refuse(w, r, err)
				return
			}
			if dies {
				dies = false
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Etag", conditional.VersionTag(res.Version).String())
		})))
		send := func() (int, semelhttp.Problem) {
			defer func() { _ = recover() }()
			w := send(h, "PATCH", `If-Match: "7"`, "Idempotency-Key: k")
			if w.Code < 400 {
				return w.Code, semelhttp.Problem{}
			}
			return w.Code, problem(t, w)
		}
		send()
		for range 2 {
			code, p := send()
			if asks && code != 200 || !asks && !strings.HasSuffix(p.Type, "#outcome-unknown") {
				t.Errorf("asks %t: %d %+v", asks, code, p)
			}
		}
		if d.writes != 1 {
			t.Errorf("asks %t: %d writes", asks, d.writes)
		}
	}
}

// A handler that goes around the precondition is caught in either order of the two
// middlewares. In the wrong one a replay is too, the first time it happens.
func TestWrongOrderIsNoticed(t *testing.T) {
	d := newRow(there)
	told := 0
	outer := conditional.New(conditional.Config{Unapplied: func(*http.Request) { told++ }})
	h := outer(protect(t, semel.Policy{})(d))
	for i, want := range []int{200, 500, 500} {
		if w := send(h, "PATCH", `If-Match: "7"`, "Idempotency-Key: k"); w.Code != want || told != i {
			t.Errorf("request %d: %d, told %d times", i, w.Code, told)
		}
	}
	if d.writes != 1 {
		t.Errorf("%d writes", d.writes)
	}
}
