package semelconnect_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"connectrpc.com/connect"

	"github.com/semelhq/semel"
	semelconnect "github.com/semelhq/semel/adapter/connect"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
)

// TestClientKeys: each call gets a key of its own, even when the caller uses its
// request again.
func TestClientKeys(t *testing.T) {
	var keys []string
	r := newRig(t, func(_ context.Context, req *request) (*response, error) {
		keys = append(keys, req.Header()[semelhttp.HeaderKey]...)
		return paid(context.Background(), req)
	}, options{})
	c := r.client(pay, connect.WithInterceptors(semelconnect.ClientKeys()))
	req := newRequest(t, "ann", ten)
	for range 2 {
		if a := r.call(c, req); a.err != nil || a.replayed() {
			t.Errorf("the answer is %+v", a)
		}
	}
	r.call(c, newRequest(t, "ann", ten, "mine"))
	if len(keys) != 3 || keys[0] == keys[1] || keys[2] != "mine" {
		t.Errorf("the keys on the wire are %q", keys)
	}
	r.call(r.client(get, connect.WithInterceptors(semelconnect.ClientKeys()), connect.WithIdempotency(connect.IdempotencyNoSideEffects)), req)
	if len(keys) != 3 {
		t.Errorf("a call without side effects carries a key")
	}
}

// TestFreshKeyInsideAnExecution: an operation that is executed again makes its
// calls under the same keys, and one that is not named is not made.
func TestFreshKeyInsideAnExecution(t *testing.T) {
	var keys []string
	r := newRig(t, paid, options{front: []connect.Interceptor{connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			keys = append(keys, req.Header().Get(semelhttp.HeaderKey))
			return next(ctx, req)
		}
	})}})
	guard, err := r.guard.With(semel.Policy{OnCrash: semel.CrashRetry})
	if err != nil {
		t.Fatal(err)
	}
	submit := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: "k"}}
	keyed := connect.WithInterceptors(semelconnect.ClientKeys())
	for range 2 {
		_, err := guard.Do(semelclient.WithKey(t.Context(), "outer"), submit, func(ctx context.Context) (semel.Result, error) {
			// The key of the whole is not that of its parts.
			_, err := r.client(pay, keyed).CallUnary(ctx, newRequest(t, "ann", ten))
			if !errors.Is(err, semelclient.ErrNoStep) || !errors.Is(err, semel.ErrNoEffect) || connect.CodeOf(err) != connect.CodeInternal {
				t.Errorf("a call without a step: %v", err)
			}
			if _, err := r.client(get, keyed, connect.WithIdempotency(connect.IdempotencyNoSideEffects)).CallUnary(ctx, newRequest(t, "ann", ten)); err != nil {
				t.Error(err)
			}
			for _, step := range []string{"charge", "mail"} {
				step, err := semelclient.WithStep(ctx, step)
				if err != nil {
					return semel.Result{}, err
				}
				for range 2 {
					if _, err := r.client(pay, keyed).CallUnary(step, newRequest(t, "ann", ten)); err != nil {
						t.Error(err)
					}
				}
			}
			if _, err := r.client(pay, keyed).CallUnary(ctx, newRequest(t, "ann", ten, "mine")); err != nil {
				t.Error(err)
			}
			return semel.Result{}, errors.New("cannot tell")
		})
		if !errors.Is(err, semel.ErrUnknown) {
			t.Fatal(err)
		}
	}
	charge, err1 := submit.Identity.ChildKey("charge")
	mail, err2 := submit.Identity.ChildKey("mail")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	charge, mail = strconv.Quote(charge), strconv.Quote(mail)
	want := []string{"", charge, charge, mail, mail, "mine"}
	if !slices.Equal(keys, slices.Concat(want, want)) {
		t.Errorf("the keys on the wire are %q, want %q twice", keys, want)
	}
	r.wantEffects(5) // charge, mail and mine once, a read in each execution
}
