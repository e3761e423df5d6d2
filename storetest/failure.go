package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// What was claimed does not depend on the request that claimed it.
func claimOutlivesItsBegin(t testing.TB, h Harness, ctx context.Context) {
	for _, settle := range []func(c semel.Claim) error{
		func(c semel.Claim) error { _, err := c.Complete(ctx, result("done")); return err },
		func(c semel.Claim) error { return c.Release(ctx) },
	} {
		request, cancel := context.WithCancel(ctx)
		c := begin(t, request, h.Store, attempt("k"))
		cancel()
		must(t, "Renew after the context of Begin was cancelled", c.Renew(ctx))
		if h.Effect != nil {
			must(t, "a handler's effect after the context of Begin was cancelled", h.Effect(c.Context(ctx)))
		}
		must(t, "to settle a claim after the context of Begin was cancelled", settle(c))
		h.advance(retention + time.Second)
	}
}

// A context that is over before the call: an error, and no effect.
func cancelledContext(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("expired")), result("old"))
	h.advance(retention + time.Second)
	held := begin(t, ctx, h.Store, attempt("held"))
	must(t, "Hold", held.Hold(ctx, "lost contact"))
	c := begin(t, ctx, h.Store, attempt("k"))
	over, cancel := context.WithCancel(ctx)
	cancel()
	calls := map[string]func() error{
		"Begin":    func() error { _, err := h.Store.Begin(over, attempt("other")); return err },
		"Find":     func() error { _, err := h.Store.Find(over, identity("k")); return err },
		"Complete": func() error { _, err := c.Complete(over, result("late")); return err },
		"Release":  func() error { return c.Release(over) },
		"Hold":     func() error { return c.Hold(over, "late") },
		"Renew":    func() error { return c.Renew(over) },
	}
	if s, ok := h.Store.(semel.Resolver); ok {
		calls["Resolve"] = func() error {
			_, err := s.Resolve(over, semel.Resolution{Identity: identity("held"), Fence: held.Fence(), Decision: semel.DecideNoEffect})
			return err
		}
	}
	if s, ok := h.Store.(semel.Lister); ok {
		calls["List"] = func() error { _, err := s.List(over, semel.Filter{}); return err }
	}
	if s, ok := h.Store.(semel.Trail); ok {
		calls["Trail"] = func() error { _, err := s.Trail(over, semel.TrailFilter{}); return err }
	}
	sweeper, sweeps := h.Store.(semel.Sweeper)
	if sweeps {
		calls["Sweep"] = func() error { _, err := sweeper.Sweep(over, 100); return err }
	}
	for name, call := range calls {
		wantErr(t, name+" with a cancelled context", call(), context.Canceled)
	}
	if _, err := h.Store.Find(ctx, identity("other")); !errors.Is(err, semel.ErrNotFound) {
		t.Fatalf("Begin with a cancelled context left a record: %v", err)
	}
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateInProgress || r.Fence != c.Fence() {
		t.Fatalf("calls with a cancelled context left %+v", r)
	}
	blocked(t, ctx, h.Store, attempt("held"), semel.StateUnknown)
	if sweeps {
		if n, err := sweeper.Sweep(ctx, 100); n != 1 || err != nil {
			t.Fatalf("after a Sweep with a cancelled context another removed %d records, %v; want 1", n, err)
		}
	}
}

// A store that cannot reach its records grants nothing, and
// does not outstay its caller's context to find that out.
// outage are calls during one, all at the same time: each takes as long as its
// context lasts.
type outage struct {
	t       testing.TB
	ctx     context.Context
	answers map[string]chan error
}

// start makes a call in a goroutine of its own: one that ignores its context
// fails the rule and ends when the store is mended.
func (o outage) start(what string, call func(ctx context.Context) error) {
	answer := make(chan error, 1)
	o.answers[what] = answer
	go func() {
		short, cancel := context.WithTimeout(o.ctx, 500*time.Millisecond)
		defer cancel()
		answer <- call(short)
	}()
}

func (o outage) answer(what string) error {
	o.t.Helper()
	select {
	case err := <-o.answers[what]:
		return err
	case <-time.After(30 * time.Second):
		o.t.Fatalf("%s during an outage did not return 30 s after its context ended", what)
		return nil
	}
}

func (o outage) looks(s semel.Store, keys ...string) {
	for _, key := range keys {
		o.start("Begin of "+key, func(ctx context.Context) error { _, err := s.Begin(ctx, attempt(key)); return err })
		o.start("Find of "+key, func(ctx context.Context) error { _, err := s.Find(ctx, identity(key)); return err })
	}
}

// failed asserts that nobody who looked has seen anything.
func (o outage) failed(keys ...string) {
	o.t.Helper()
	for _, key := range keys {
		err := o.answer("Begin of " + key)
		if err == nil {
			o.t.Fatalf("Begin of %q during an outage granted a claim", key)
		}
		if _, ok := errors.AsType[*semel.ConflictError](err); ok {
			o.t.Fatalf("Begin of %q during an outage claims to have seen a record: %v", key, err)
		}
		if err := o.answer("Find of " + key); err == nil || errors.Is(err, semel.ErrNotFound) {
			o.t.Fatalf("Find of %q during an outage: %v; want an error that is not ErrNotFound", key, err)
		}
	}
}

func outageFailsClosed(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("done")), result("done"))
	running := begin(t, ctx, h.Store, attempt("running"))
	mend := sync.OnceFunc(h.Break())
	defer mend()

	calls := outage{t, ctx, make(map[string]chan error)}
	calls.looks(h.Store, "done", "running", "new")
	calls.start("Renew", running.Renew)
	calls.start("Complete", func(ctx context.Context) error { _, err := running.Complete(ctx, result("unheard")); return err })
	for _, name := range []string{"Renew", "Complete"} {
		if err := calls.answer(name); err == nil || errors.Is(err, semel.ErrLostClaim) {
			t.Fatalf("%s during an outage: %v; want an error that is not ErrLostClaim", name, err)
		}
	}
	calls.failed("done", "running", "new")
	mend()
	blocked(t, ctx, h.Store, attempt("done"), semel.StateCompleted)
	complete(t, ctx, running, result("heard"))
}
