package semel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel"
)

func childKey(t *testing.T, id semel.Identity, step string) string {
	t.Helper()
	key, err := id.ChildKey(step)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestChildKeyIsStable: a release that derived other keys would repeat the
// calls of operations that were under way.
func TestChildKeyIsStable(t *testing.T) {
	id := semel.Identity{Scope: semel.Scope{Tenant: "acme", Actor: "alice", Operation: "orders.create"}, Key: "k1"}
	const want = "ck_pv73n2lchnjp5hb5rfen4vy7efk3gxgn4lpff6mlyjlotflkqrcq"
	if got := childKey(t, id, "charge"); got != want {
		t.Errorf("child key %s; want %s", got, want)
	}
}

func TestChildKeysNeverMeet(t *testing.T) {
	seen := make(map[string]string)
	for _, tenant := range []string{"", "a", "ab"} {
		for _, actor := range []string{"", "b", "bc"} {
			for _, operation := range []string{"c", "cd"} {
				for _, key := range []string{"d", "de"} {
					for _, step := range []string{"e", "1", "ee"} {
						id := semel.Identity{Scope: semel.Scope{Tenant: tenant, Actor: actor, Operation: operation}, Key: key}
						of := fmt.Sprintf("%+v %s", id, step)
						child := childKey(t, id, step)
						if other, ok := seen[child]; ok {
							t.Fatalf("%s and %s share a child key", of, other)
						}
						seen[child] = of
						if len(child) > 64 {
							t.Errorf("child key %q of %s", child, of)
						}
					}
				}
			}
		}
	}
}

func TestChildKeyRefuses(t *testing.T) {
	id := semel.Identity{Scope: scope, Key: "k"}
	for _, step := range []string{"", "a\nb", "\xff", strings.Repeat("s", 256)} {
		if key, err := id.ChildKey(step); err == nil {
			t.Errorf("step %q got the key %q", step, key)
		}
	}
	if key, err := (semel.Identity{Scope: scope}).ChildKey("s"); err == nil {
		t.Errorf("an identity without a key got the child key %q", key)
	}
}

// TestChildKeysOfAnExecution: of goroutines that name the same step, one gets
// its key; and the next execution of the identity gets the same.
func TestChildKeysOfAnExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		var keys []string
		handler := func(ctx context.Context) (semel.Result, error) {
			x, _ := semel.CurrentExecution(ctx)
			var granted, repeated atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					key, err := x.ChildKey("charge")
					switch {
					case err == nil && key == childKey(t, x.Identity(), "charge"):
						granted.Add(1)
					case errors.Is(err, semel.ErrStepRepeated) && key == "":
						repeated.Add(1)
					default:
						t.Errorf("key %q, error %v", key, err)
					}
				})
			}
			wg.Wait()
			if granted.Load() != 1 || repeated.Load() != 7 {
				t.Errorf("%d got the key, %d were refused; want 1 and 7", granted.Load(), repeated.Load())
			}
			other, err := x.ChildKey("mail")
			if err != nil {
				t.Error(err)
			}
			keys = append(keys, other)
			if _, err := x.ChildKey(""); err == nil || errors.Is(err, semel.ErrStepRepeated) {
				t.Errorf("an empty step got the error %v", err)
			}
			return semel.Result{}, errors.New("cannot tell")
		}
		g := newGuard(t, s, semel.Policy{OnCrash: semel.CrashRetry})
		for range 2 {
			out, err := g.Do(t.Context(), submit("k"), handler)
			wantAnswer(t, out, err, semel.AnswerUnknown)
		}
		if len(keys) != 2 || keys[0] != keys[1] {
			t.Errorf("two executions got the keys %q", keys)
		}
	})
}
