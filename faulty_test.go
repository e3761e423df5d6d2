package semel_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// faulty is a store whose calls can fail before they take effect, or after it,
// as when the answer is lost.
type faulty struct {
	semel.Store
	before func(call string) error
	after  func(call string) error
}

func (f *faulty) around(call string, do func() error) error {
	if f.before != nil {
		if err := f.before(call); err != nil {
			return err
		}
	}
	err := do()
	if f.after != nil {
		if lost := f.after(call); lost != nil {
			return lost
		}
	}
	return err
}

func (f *faulty) Begin(ctx context.Context, a semel.Attempt) (c semel.Claim, err error) {
	err = f.around("begin", func() error { c, err = f.Store.Begin(ctx, a); return err })
	if err != nil {
		return nil, err
	}
	return &faultyClaim{Claim: c, f: f}, nil
}

func (f *faulty) Find(ctx context.Context, id semel.Identity) (r semel.Record, err error) {
	err = f.around("find", func() error { r, err = f.Store.Find(ctx, id); return err })
	return r, err
}

func (f *faulty) Resolve(ctx context.Context, d semel.Resolution) (r semel.Record, err error) {
	err = f.around("resolve", func() error { r, err = f.Store.(semel.Resolver).Resolve(ctx, d); return err })
	return r, err
}

type faultyClaim struct {
	semel.Claim
	f *faulty
}

func (c *faultyClaim) Complete(ctx context.Context, r semel.Result) (expires time.Time, err error) {
	err = c.f.around("complete", func() error { expires, err = c.Claim.Complete(ctx, r); return err })
	return expires, err
}

func (c *faultyClaim) Release(ctx context.Context) error {
	return c.f.around("release", func() error { return c.Claim.Release(ctx) })
}

func (c *faultyClaim) Hold(ctx context.Context, cause string) error {
	return c.f.around("hold", func() error { return c.Claim.Hold(ctx, cause) })
}

func (c *faultyClaim) Renew(ctx context.Context) error {
	return c.f.around("renew", func() error { return c.Claim.Renew(ctx) })
}

var errDown = errors.New("store down")

// failFor makes calls fail until the time is over.
func failFor(d time.Duration, which ...string) func(string) error {
	end := time.Now().Add(d)
	return func(call string) error {
		for _, w := range which {
			if w == call && time.Now().Before(end) {
				return errDown
			}
		}
		return nil
	}
}

func TestStoreDownFailsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &faulty{Store: newStore(t), before: failFor(time.Hour, "begin")}
		g := newGuard(t, s, semel.Policy{})
		var e effects
		out, err := g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		// Not "no effect": an earlier submit may have had one, and nobody
		// could look.
		if !errors.Is(err, errDown) || errors.Is(err, semel.ErrNoEffect) || !errors.Is(err, semel.ErrUnavailable) {
			t.Fatalf("told %v", err)
		}
		e.want(t, 0)
		time.Sleep(time.Hour)
		out, err = g.Do(t.Context(), submit("k"), e.do)
		wantAnswer(t, out, err, semel.AnswerExecuted)
		e.want(t, 1)
	})
}

// A closed store is called once, and no lost grant is released.
func TestClosedStoreIsAskedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		calls := map[string]int{}
		closed := false
		s := &faulty{Store: newStore(t)}
		s.before = func(call string) error {
			if calls[call]++; closed {
				return fmt.Errorf("closed: %w", semel.ErrNotOpen)
			}
			return nil
		}
		g := newGuard(t, s, semel.Policy{})
		start := time.Now()
		out, err := g.Do(t.Context(), submit("during"), func(context.Context) (semel.Result, error) {
			closed = true
			return semel.Result{}, nil
		})
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if !out.Claimed || errors.Is(err, semel.ErrNoEffect) {
			t.Errorf("told %v", err)
		}
		out, err = g.Do(t.Context(), submit("after"), func(context.Context) (semel.Result, error) {
			t.Error("executed")
			return semel.Result{}, nil
		})
		wantAnswer(t, out, err, semel.AnswerUnavailable)
		if err := g.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if calls["begin"] != 2 || calls["complete"] != 1 || time.Since(start) > 0 {
			t.Errorf("called %v in %v", calls, time.Since(start))
		}
	})
}

// Each call of the store in turn fails, before or after it took effect, until
// a run has none left to fail. Whatever fails: never two effects, an answer
// that says "executed" is on record, and one that says "no effect" had none.
func TestEveryFaultPoint(t *testing.T) {
	for _, work := range []string{"effect", "no effect", "final"} {
		for _, policy := range []semel.CrashPolicy{semel.CrashHold, semel.CrashRetry} {
			for _, applied := range []bool{false, true} {
				for _, long := range []bool{false, true} {
					for n := 1; ; n++ {
						hit := false
						bubble(t, func(t *testing.T) {
							hit = faultAt(t, n, work, policy, applied, long)
						})
						if !hit {
							if n < 3 {
								t.Fatalf("only %d fault points", n-1)
							}
							break
						}
					}
				}
			}
		}
	}
}

func faultAt(t *testing.T, n int, work string, policy semel.CrashPolicy, applied, long bool) (hit bool) {
	name := fmt.Sprintf("fault %d (%s, applied %v, long %v, %v)", n, work, applied, long, policy)
	calls := 0
	var end time.Time
	var mu sync.Mutex
	fail := func(call string) error {
		mu.Lock()
		defer mu.Unlock()
		if !end.IsZero() {
			if time.Now().Before(end) {
				return fmt.Errorf("%s: %w", call, errDown)
			}
			return nil
		}
		if calls++; calls == n {
			hit = true
			end = time.Now()
			if long {
				end = end.Add(40 * time.Second)
			}
			return fmt.Errorf("%s: %w", call, errDown)
		}
		return nil
	}
	mem := newStore(t)
	s := &faulty{Store: mem}
	if applied {
		s.after = fail
	} else {
		s.before = fail
	}
	g := newGuard(t, s, semel.Policy{OnCrash: policy})
	var e effects
	fn := func(ctx context.Context) (semel.Result, error) {
		time.Sleep(12 * time.Second)
		switch {
		case ctx.Err() != nil:
			return semel.Result{}, ctx.Err()
		case work == "no effect":
			return semel.Result{}, semel.NoEffect(errors.New("busy"))
		}
		r, _ := e.do(ctx)
		if work == "final" {
			return semel.Result{}, semel.Final(errors.New("declined"))
		}
		return r, nil
	}
	var acknowledged bool
	released := int64(-1) // effects when a submit was last told that there was none
	rounds := 60
	if work == "no effect" {
		rounds = 8 // each of which claims anew
	}
	for range rounds {
		out, err := g.Do(t.Context(), submit("k"), fn)
		now := e.n.Load()
		switch {
		case out.Answer == semel.AnswerExecuted:
			acknowledged = true
			if r, err := mem.Find(t.Context(), submit("k").Identity); err != nil || r.State != semel.StateCompleted {
				t.Fatalf("%s: executed, but the record reads %+v, %v", name, r, err)
			}
		case errors.Is(err, semel.ErrNoEffect):
			if now != 0 {
				t.Fatalf("%s: told %v after an effect", name, err)
			}
			released = now
		}
		if work == "no effect" && out.Answer == semel.AnswerReleased {
			// The key is free: the same request may have its effect now, once.
			if r, err := mem.Find(t.Context(), submit("k").Identity); err == nil && r.State == semel.StateCompleted {
				t.Fatalf("%s: released, but the record reads %+v", name, r)
			}
		}
		time.Sleep(3 * time.Second)
	}
	if work == "no effect" {
		mu.Lock()
		calls = n // no more faults
		mu.Unlock()
		time.Sleep(time.Minute) // the last may have been the one that failed
		_, _ = g.Do(t.Context(), submit("k"), fn)
	}
	// Whatever a submit that was told "no effect" set in motion has had the time
	// to come true.
	if now := e.n.Load(); released >= 0 && work == "no effect" && now != released {
		t.Fatalf("%s: %d effects after the answer that there was none", name, now-released)
	}
	if got := e.n.Load(); got > 1 && policy == semel.CrashHold {
		t.Fatalf("%s: %d effects under hold", name, got)
	}
	if err := g.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := mem.Find(t.Context(), submit("k").Identity)
	if work == "no effect" && errors.Is(err, semel.ErrNotFound) {
		return hit
	}
	if err != nil || r.Lapsed() || r.State == semel.StateInProgress {
		t.Fatalf("%s: stuck with %+v, %v", name, r, err)
	}
	if policy == semel.CrashRetry && work != "no effect" && r.State != semel.StateCompleted {
		t.Fatalf("%s: under retry the record ends as %v", name, r.State)
	}
	if acknowledged && r.State != semel.StateCompleted {
		t.Fatalf("%s: an acknowledged effect is gone", name)
	}
	return hit
}
