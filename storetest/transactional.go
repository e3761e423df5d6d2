package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// Rules of stores whose claims are transactions.

// effect does what a handler under c does.
func effect(t testing.TB, ctx context.Context, h Harness, c semel.Claim) {
	t.Helper()
	must(t, "the handler's effect", h.Effect(c.Context(ctx)))
}

func wantEffects(t testing.TB, h Harness, when string, want int) {
	t.Helper()
	if n := h.Effects(); n != want {
		t.Fatalf("%s there are %d effects; want %d", when, n, want)
	}
}

func wantAbsent(t testing.TB, ctx context.Context, h Harness, key, when string) {
	t.Helper()
	if r, err := h.Store.Find(ctx, identity(key)); !errors.Is(err, semel.ErrNotFound) {
		t.Fatalf("%s Find returns %v, %v; want ErrNotFound", when, r.State, err)
	}
}

// Record and effect are there together, and not before.
func transactionCommitsBoth(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	effect(t, ctx, h, c)
	effect(t, ctx, h, c)
	wantEffects(t, h, "before Complete", 0)
	wantAbsent(t, ctx, h, "k", "before Complete")
	expires := complete(t, ctx, c, result("done"))
	wantEffects(t, h, "after Complete", 2)
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateCompleted || string(r.Result.Body) != "done" ||
		!r.ExpiresAt.Equal(expires) || r.Fence != c.Fence() || r.ID != c.RecordID() {
		t.Fatalf("after Complete the record reads %+v", r)
	}
	complete(t, ctx, c, result("done"))
	wantEffects(t, h, "after a repeated Complete", 2)
}

// Release and Hold take back all that was done under the claim, and nothing
// stays unknown.
func transactionRollsBack(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	effect(t, ctx, h, c)
	must(t, "Release", c.Release(ctx))
	wantEffects(t, h, "after Release", 0)
	wantAbsent(t, ctx, h, "k", "after Release")
	_, err := c.Complete(ctx, result("late"))
	wantErr(t, "Complete after Release", err, semel.ErrLostClaim)

	c = begin(t, ctx, h.Store, attempt("k"))
	effect(t, ctx, h, c)
	wantErr(t, "Hold", c.Hold(ctx, "lost contact"), semel.ErrRolledBack)
	wantErr(t, "Hold again", c.Hold(ctx, "lost contact"), semel.ErrRolledBack)
	_, err = c.Complete(ctx, result("late"))
	wantErr(t, "Complete after Hold", err, semel.ErrRolledBack)
	wantErr(t, "Renew after Hold", c.Renew(ctx), semel.ErrLostClaim)
	wantEffects(t, h, "after Hold", 0)
	wantAbsent(t, ctx, h, "k", "after Hold")

	c = begin(t, ctx, h.Store, attempt("k"))
	effect(t, ctx, h, c)
	complete(t, ctx, c, result("done"))
	wantEffects(t, h, "after the third claim was completed", 1)
}

// What a handler does too late happens nowhere.
func transactionEnds(t testing.TB, h Harness, ctx context.Context) {
	want := 0
	for name, settle := range map[string]func(c semel.Claim) error{
		"Complete": func(c semel.Claim) error { want++; _, err := c.Complete(ctx, result("done")); return err },
		"Release":  func(c semel.Claim) error { return c.Release(ctx) },
		"Hold": func(c semel.Claim) error {
			if err := c.Hold(ctx, "lost contact"); !errors.Is(err, semel.ErrRolledBack) {
				return err
			}
			return nil
		},
	} {
		c := begin(t, ctx, h.Store, attempt(name))
		late := c.Context(ctx)
		must(t, "the handler's effect", h.Effect(late))
		must(t, name, settle(c))
		if h.Effect(late) == nil {
			t.Fatalf("after %s the handler's transaction takes an effect", name)
		}
		wantEffects(t, h, "after "+name+" and a late effect", want)
	}
}

// A failure that is recorded never commits half an effect.
func transactionKeepsNoFailedEffect(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	effect(t, ctx, h, c)
	failed := result("declined")
	failed.Failed = true
	complete(t, ctx, c, failed)
	wantEffects(t, h, "after a failure was recorded", 0)
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted); string(r.Result.Body) != "declined" {
		t.Fatalf("the failure reads %q", r.Result.Body)
	}
}

// While a transaction is open its identity is in progress, for however long,
// and never said to be another request's.
func transactionBlocks(t testing.TB, h Harness, ctx context.Context) {
	handles := []semel.Store{h.Store}
	if h.Open != nil && !h.Exclusive {
		handles = append(handles, h.Open())
	}
	c := begin(t, ctx, h.Store, attempt("k"))
	effect(t, ctx, h, c)
	for range 2 {
		for _, s := range handles {
			a := attempt("k")
			a.Takeover = c.Fence()
			r := blocked(t, ctx, s, a, semel.StateInProgress)
			if r.Lapsed() {
				t.Fatalf("a transaction that is open reads as lapsed: %+v", r)
			}
			if r.Fingerprint.Differs(a.Fingerprint) {
				t.Fatalf("the same request reads as another: %+v", r)
			}
		}
		if !h.Exclusive { // then time is somebody else's write
			h.advance(2*lease + retention)
		}
	}
	complete(t, ctx, c, result("done"))
	for _, s := range handles {
		blocked(t, ctx, s, attempt("k"), semel.StateCompleted)
	}
	wantEffects(t, h, "after Complete", 1)
}

// Expired but unswept is absent, and the final write takes its place.
func transactionReplacesTheExpired(t testing.TB, h Harness, ctx context.Context) {
	old := begin(t, ctx, h.Store, attempt("k"))
	complete(t, ctx, old, semel.Result{Codec: "test/1", Body: []byte("old"), Reference: "/old", Tombstone: true})
	h.advance(retention) // and not a moment longer
	wantAbsent(t, ctx, h, "k", "past its retention")
	_, err := old.Complete(ctx, result("again"))
	wantErr(t, "Complete of an expired record", err, semel.ErrLostClaim)

	b := attempt("k")
	b.Fingerprint = fingerprint("another request")
	c := begin(t, ctx, h.Store, b)
	effect(t, ctx, h, c)
	must(t, "Release", c.Release(ctx))
	wantAbsent(t, ctx, h, "k", "after its successor was released")

	c = begin(t, ctx, h.Store, b)
	if c.Fence() <= old.Fence() || c.RecordID() == old.RecordID() {
		t.Fatalf("the successor has record %s fence %d; the expired one had %s and %d", c.RecordID(), c.Fence(), old.RecordID(), old.Fence())
	}
	effect(t, ctx, h, c)
	complete(t, ctx, c, result("new"))
	wantEffects(t, h, "after the successor was completed", 1)
	r := blocked(t, ctx, h.Store, b, semel.StateCompleted)
	if r.Fingerprint != b.Fingerprint || r.ID != c.RecordID() || r.Fence != c.Fence() || string(r.Result.Body) != "new" ||
		r.Result.Reference != "" || r.Result.Tombstone {
		t.Fatalf("the successor inherited from the expired record: %+v", r)
	}
	lost(t, ctx, h.Store, old, identity("k"))
}

// A context that is over before the call: an error, and no effect on the
// transaction, which goes on.
func transactionObeysContext(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("expired")), result("old"))
	h.advance(retention + time.Second)
	c := begin(t, ctx, h.Store, attempt("k"))
	effect(t, ctx, h, c)
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
		wantEffects(t, h, "after "+name+" with a cancelled context", 0)
	}
	wantAbsent(t, ctx, h, "k", "after calls with a cancelled context")
	effect(t, ctx, h, c)
	complete(t, ctx, c, result("done"))
	wantEffects(t, h, "after Complete", 2)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)
	complete(t, ctx, begin(t, ctx, h.Store, attempt("other")), result("done"))
	if sweeps {
		if n, err := sweeper.Sweep(ctx, 100); n != 1 || err != nil {
			t.Fatalf("after a Sweep with a cancelled context another removed %d records, %v; want 1", n, err)
		}
	}
}

// settled asks c what became of it until that is certain, and asserts that it
// is told the truth.
func settled(t testing.TB, ctx context.Context, h Harness, c semel.Claim, key string, effects int) (committed bool) {
	t.Helper()
	var err error
	poll(t, ctx, "Complete says how a commit without an answer ended", func() bool {
		_, err = c.Complete(ctx, result("asked again"))
		if errors.Is(err, semel.ErrLostClaim) {
			t.Fatalf("Complete after a commit without an answer: %v; but nobody else was there", err)
		}
		return err == nil || errors.Is(err, semel.ErrRolledBack)
	}, func() any { return err })
	if err == nil {
		wantEffects(t, h, "after a commit", effects)
		if r := blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted); r.Fence != c.Fence() || r.ID != c.RecordID() {
			t.Fatalf("after a commit the record reads %+v", r)
		}
		return true
	}
	wantEffects(t, h, "after a rollback", 0)
	wantAbsent(t, ctx, h, key, "after a rollback")
	var next semel.Claim
	poll(t, ctx, "the identity of a transaction that was rolled back is free", func() bool {
		next, err = h.Store.Begin(ctx, attempt(key))
		return err == nil
	}, func() any { return err })
	must(t, "Release", next.Release(ctx))
	return false
}

// poll waits until ready; told is what it has seen last.
func poll(t testing.TB, ctx context.Context, what string, ready func() bool, told func() any) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !ready(); {
		if time.Now().After(end) {
			t.Fatalf("waited 30 s in vain until %s: %v", what, told())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("until %s: %v", what, ctx.Err())
		}
	}
}

// A transaction whose store cannot be reached is not said to be what nobody
// knows; and once that is known, it is said.
func transactionFailsClosed(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("done")), result("done"))
	running := begin(t, ctx, h.Store, attempt("running"))
	effect(t, ctx, h, running)
	mend := h.Break()
	mended := false
	defer func() {
		if !mended {
			mend()
		}
	}()
	calls := outage{t, ctx, make(map[string]chan error)}
	calls.looks(h.Store, "done", "new")
	calls.start("Complete", func(ctx context.Context) error { _, err := running.Complete(ctx, result("unheard")); return err })
	told := calls.answer("Complete")
	calls.failed("done", "new")
	if errors.Is(told, semel.ErrLostClaim) {
		t.Fatalf("Complete during an outage: %v; want an error that is not ErrLostClaim", told)
	}
	mended = true
	mend()
	committed := settled(t, ctx, h, running, "running", 1)
	if told == nil && !committed || errors.Is(told, semel.ErrRolledBack) && committed {
		t.Fatalf("Complete during an outage: %v; but committed is %t", told, committed)
	}
	blocked(t, ctx, h.Store, attempt("done"), semel.StateCompleted)
}

// A COMMIT whose answer is lost is indeterminate until it is looked up.
func lostCommitIsLearned(t testing.TB, h Harness, ctx context.Context) {
	for _, taken := range []bool{false, true} {
		key := fmt.Sprint("taken: ", taken)
		c := begin(t, ctx, h.Store, attempt(key))
		effect(t, ctx, h, c)
		h.LoseCommit(taken)
		_, err := c.Complete(ctx, result("done"))
		switch {
		case err == nil && !taken:
			t.Fatal("Complete says that it has committed what never arrived")
		case errors.Is(err, semel.ErrRolledBack) && taken:
			t.Fatalf("Complete: %v; but it has committed", err)
		case errors.Is(err, semel.ErrLostClaim):
			t.Fatalf("Complete: %v; want an error that leaves it open", err)
		}
		if committed := settled(t, ctx, h, c, key, 1); committed != taken {
			t.Fatalf("a commit that was %s reads as committed: %t", key, committed)
		}
		if taken {
			continue
		}
		wantErr(t, "Hold of what was rolled back", c.Hold(ctx, "late"), semel.ErrRolledBack)
	}
}

// The trail tells of an execution at once, and of none that was rolled back.
func trailCommitsWithTransaction(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin = semel.Origin{RequestID: "req-1", EventID: "ev-1", TraceID: "trace-1"}
	c := begin(t, ctx, h.Store, a)
	wantKinds(t, trail(t, ctx, h.Store, semel.TrailFilter{Key: "k"}))
	complete(t, ctx, c, result("done"))
	complete(t, ctx, c, result("done")) // repeated: no second entry
	entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: "k"})
	wantKinds(t, entries, semel.TrailExecuted)
	if e := entries[0]; e.RecordID != c.RecordID() || e.Fence != c.Fence() || e.Origin != a.Origin || e.Label != "201" || e.At.IsZero() {
		t.Fatalf("the entry of an execution reads %+v", e)
	}

	c = begin(t, ctx, h.Store, attempt("released"))
	must(t, "Release", c.Release(ctx))
	c = begin(t, ctx, h.Store, attempt("held"))
	wantErr(t, "Hold", c.Hold(ctx, "lost contact"), semel.ErrRolledBack)
	for _, key := range []string{"released", "held"} {
		f := semel.TrailFilter{Key: key}
		wantKinds(t, awaitTrail(t, ctx, h.Store, f, 1), semel.TrailReleased)
	}
}
