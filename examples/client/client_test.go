package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stripe/stripe-go/v83"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/store/memory"
)

// start returns a server with the faults to come, and stripe-go that talks to it.
func start(t *testing.T, plan ...fault) (*stripeServer, *stripe.Client) {
	t.Helper()
	server := newStripeServer(plan...)
	s := httptest.NewUnstartedServer(server)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	client, err := newStripe(s.URL, s.Client().Transport)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// wantOneKey fails the test unless the server saw the statuses, in this order,
// under one key.
func wantOneKey(t *testing.T, server *stripeServer, wantCharges int, statuses ...int) string {
	t.Helper()
	seen, charges := server.state()
	var got []int
	for _, e := range seen {
		got = append(got, e.status)
		if e.key == "" || e.key != seen[0].key {
			t.Fatalf("keys on the wire: %v", seen)
		}
	}
	if !slices.Equal(got, statuses) || charges != wantCharges {
		t.Fatalf("statuses %v and %d charges; want %v and %d", got, charges, statuses, wantCharges)
	}
	return seen[0].key
}

// TestStripeKeepsItsOwnKey: the key that the SDK makes for a call is in all its
// tries.
func TestStripeKeepsItsOwnKey(t *testing.T) {
	server, client := start(t, answerLost, lockHeld, overload)
	intent, err := charge(t.Context(), client, 1999)
	if err != nil || intent.ID != "pi_1" {
		t.Fatalf("%+v, %v", intent, err)
	}
	if intent.LastResponse.Header.Get("Idempotent-Replayed") != "true" {
		t.Error("the answer is no replay")
	}
	wantOneKey(t, server, 1, 0, 409, 429, 200)
}

// TestStripeUnderOurKey: several calls of the SDK, one operation, one charge.
func TestStripeUnderOurKey(t *testing.T) {
	server, client := start(t, none, answerLost)
	ctx := semelclient.NewOperation(t.Context())
	for range 2 {
		if intent, err := charge(ctx, client, 1999); err != nil || intent.ID != "pi_1" {
			t.Fatalf("%+v, %v", intent, err)
		}
	}
	op, _ := semelclient.CurrentOperation(ctx)
	if key := wantOneKey(t, server, 1, 200, 0, 200); key != op.Key {
		t.Errorf("the key on the wire is %q, the operation's %q", key, op.Key)
	}
	// Another amount under the same key is refused, and that is not retried.
	_, err := charge(ctx, client, 2999)
	if e, ok := errors.AsType[*stripe.Error](err); !ok || e.HTTPStatusCode != 400 {
		t.Errorf("error %v", err)
	}
	wantOneKey(t, server, 1, 200, 0, 200, 400)
}

// TestStripeSaysNo: Stripe-Should-Retry: false is obeyed.
func TestStripeSaysNo(t *testing.T) {
	server, client := start(t, declined)
	_, err := charge(t.Context(), client, 1999)
	if e, ok := errors.AsType[*stripe.Error](err); !ok || e.Code != stripe.ErrorCodeCardDeclined {
		t.Errorf("error %v", err)
	}
	wantOneKey(t, server, 0, 402)
}

// TestStripeGivesUp: whoever sees the error can come back with the key.
func TestStripeGivesUp(t *testing.T) {
	server, client := start(t, answerLost, answerLost, answerLost, answerLost, answerLost)
	_, err := charge(t.Context(), client, 1999)
	e, ok := errors.AsType[*semelclient.Error](err)
	if !ok || !errors.Is(err, semel.ErrMaybeEffect) {
		t.Fatalf("error %v", err)
	}
	intent, err := charge(semelclient.WithOperation(t.Context(), e.Operation()), client, 1999)
	if err != nil || intent.ID != "pi_1" {
		t.Fatalf("%+v, %v", intent, err)
	}
	wantOneKey(t, server, 1, 0, 0, 0, 0, 0, 200)
}

// TestStripeInAnExecution: an operation that charges is executed, cannot tell
// how it ended, and is executed again. The charge is the same one.
func TestStripeInAnExecution(t *testing.T) {
	server, client := start(t)
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store, Policy: semel.Policy{OnCrash: semel.CrashRetry}})
	if err != nil {
		t.Fatal(err)
	}
	crash := errors.New("the database does not answer")
	order := func(ctx context.Context) (string, error) {
		ctx, err := semelclient.WithStep(ctx, "charge")
		if err != nil {
			return "", err
		}
		intent, err := charge(ctx, client, 1999)
		if err != nil {
			return "", err
		}
		return intent.ID, crash
	}
	submit := semel.Submit{
		Identity:    semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: semel.NewKey()},
		Fingerprint: semel.FingerprintOf([]byte("one book")),
	}
	if _, _, err := semel.Call(t.Context(), guard, submit, order); !errors.Is(err, semel.ErrUnknown) {
		t.Fatalf("error %v", err)
	}
	crash = nil
	id, _, err := semel.Call(t.Context(), guard, submit, order)
	if err != nil || id != "pi_1" {
		t.Fatalf("%q, %v", id, err)
	}
	child, err := submit.Identity.ChildKey("charge")
	if err != nil {
		t.Fatal(err)
	}
	if key := wantOneKey(t, server, 1, 200, 200); key != child {
		t.Errorf("the key on the wire is %q; want %q", key, child)
	}
}

// TestWithoutTheTransport is the control: the SDK alone, its retries switched
// off, leaves the caller with the lost answer.
func TestWithoutTheTransport(t *testing.T) {
	server := newStripeServer(answerLost)
	s := httptest.NewUnstartedServer(server)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	client := stripe.NewClient("sk_test_local", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL: stripe.String(s.URL), HTTPClient: &http.Client{Transport: s.Client().Transport}, MaxNetworkRetries: stripe.Int64(0),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull}, EnableTelemetry: stripe.Bool(false),
	})))
	if _, err := charge(t.Context(), client, 1999); err == nil {
		t.Fatal("no error")
	}
	wantOneKey(t, server, 1, 0)
}
