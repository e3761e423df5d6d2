package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/semelhq/semel"
)

func resolve(t testing.TB, ctx context.Context, s semel.Store, r semel.Resolution) semel.Record {
	t.Helper()
	rec, err := s.(semel.Resolver).Resolve(ctx, r)
	if err != nil {
		t.Fatalf("Resolve as %v: %v", r.Decision, err)
	}
	return rec
}

func resolveUnknown(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	d := semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideUnknown, Cause: "lapsed"}
	for range 2 {
		if r := resolve(t, ctx, h.Store, d); r.State != semel.StateUnknown || r.Fence != c.Fence() || r.Cause != "lapsed" {
			t.Fatalf("marked unknown, the record reads %+v", r)
		}
	}
	wantErr(t, "Renew of an unknown record", c.Renew(ctx), semel.ErrLostClaim)
	complete(t, ctx, c, result("after all"))
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)
}

func resolveResult(t testing.TB, h Harness, ctx context.Context) {
	for _, held := range []bool{true, false} {
		key := fmt.Sprint("held ", held)
		c := begin(t, ctx, h.Store, attempt(key))
		if held {
			must(t, "Hold", c.Hold(ctx, "lost contact"))
		} else {
			h.advance(2 * lease)
			resolve(t, ctx, h.Store, semel.Resolution{Identity: identity(key), Fence: c.Fence(), Decision: semel.DecideUnknown})
		}
		r := resolve(t, ctx, h.Store, semel.Resolution{
			Identity: identity(key), Fence: c.Fence(), Decision: semel.DecideResult, Result: result("learned"),
		})
		if r.State != semel.StateCompleted || r.Fence <= c.Fence() || r.ID != c.RecordID() {
			t.Fatalf("resolved with a result, the record reads %+v", r)
		}
		lost(t, ctx, h.Store, c, identity(key))
		got := blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted)
		if string(got.Result.Body) != "learned" || !got.ExpiresAt.Equal(got.SettledAt.Add(retention)) || got.Cause != "" {
			t.Fatalf("the resolved record reads %+v", got)
		}
	}
}

func resolveNoEffect(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	r := resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideNoEffect})
	if r.ID != c.RecordID() || r.Identity != identity("k") {
		t.Fatalf("resolved as no effect, the record read %+v", r)
	}
	_, err := h.Store.Find(ctx, identity("k"))
	wantErr(t, "Find", err, semel.ErrNotFound)
	lost(t, ctx, h.Store, c, identity("k"))
	next := begin(t, ctx, h.Store, attempt("k"))
	if next.Fence() <= c.Fence() {
		t.Fatalf("the fence went from %d to %d", c.Fence(), next.Fence())
	}
	lost(t, ctx, h.Store, c, identity("k"))
}

func resolveExecuteAgain(t testing.TB, h Harness, ctx context.Context) {
	first := attempt("k")
	c := begin(t, ctx, h.Store, first)
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	r := resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideExecuteAgain})
	if r.State != semel.StateInProgress || !r.Reopened || !r.Lapsed() || r.Fence <= c.Fence() {
		t.Fatalf("resolved as execute again, the record reads %+v", r)
	}
	lost(t, ctx, h.Store, c, identity("k"))
	seen := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress)
	if !seen.Reopened || seen.Fence != r.Fence || seen.Fingerprint != fingerprint("request") {
		t.Fatalf("the reopened record reads %+v", seen)
	}
	blocked(t, ctx, h.Store, first, semel.StateInProgress) // the old token opens nothing
	again := wantOne(t, race(t, 8, func(int) (semel.Claim, error) {
		a := attempt("k")
		a.Takeover = r.Fence
		return h.Store.Begin(ctx, a)
	}))
	if got := find(t, ctx, h.Store, identity("k")); got.Reopened || got.Lapsed() || got.Fence != again.Fence() {
		t.Fatalf("after the new claim the record reads %+v", got)
	}
	lost(t, ctx, h.Store, c, identity("k"))
	complete(t, ctx, again, result("again"))
}

// Mark, then look: what has merely lapsed may be renewed by its owner after
// somebody looked, so it cannot be settled before it is marked.
func resolveNeedsMark(t testing.TB, h Harness, ctx context.Context) {
	resolver := h.Store.(semel.Resolver)
	c := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	for _, d := range []semel.Decision{semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: d})
		wantErr(t, "Resolve of a lapsed record that is not marked", err, semel.ErrStaleFence)
	}
	must(t, "Renew", c.Renew(ctx))
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	r := resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideExecuteAgain})
	_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("k"), Fence: r.Fence, Decision: semel.DecideNoEffect})
	wantErr(t, "Resolve of a reopened record that is not marked", err, semel.ErrStaleFence)
	r = resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: r.Fence, Decision: semel.DecideUnknown, Cause: "changed their mind"})
	if r.State != semel.StateUnknown || r.Reopened {
		t.Fatalf("marked again, the record reads %+v", r)
	}
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateUnknown || r.Reopened {
		t.Fatalf("marked again, the record reads %+v", r)
	}
	resolve(t, ctx, h.Store, semel.Resolution{Identity: identity("k"), Fence: r.Fence, Decision: semel.DecideNoEffect})
	begin(t, ctx, h.Store, attempt("k"))
}

func resolveNeedsFence(t testing.TB, h Harness, ctx context.Context) {
	resolver := h.Store.(semel.Resolver)
	_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("nobody"), Fence: 1, Decision: semel.DecideNoEffect})
	wantErr(t, "Resolve of no record", err, semel.ErrNotFound)

	first := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	a := attempt("k")
	a.Takeover = first.Fence()
	second := begin(t, ctx, h.Store, a)
	must(t, "Hold", second.Hold(ctx, "lost contact"))
	for _, d := range []semel.Decision{semel.DecideUnknown, semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("k"), Fence: first.Fence(), Decision: d})
		wantErr(t, "Resolve with a stale fence", err, semel.ErrStaleFence)
	}
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateUnknown || r.Fence != second.Fence() {
		t.Fatalf("a refused resolution left %+v", r)
	}
}

func resolveLeavesTheLiving(t testing.TB, h Harness, ctx context.Context) {
	resolver := h.Store.(semel.Resolver)
	done := begin(t, ctx, h.Store, attempt("done"))
	complete(t, ctx, done, result("done"))
	h.advance(2 * lease) // a completed record has no lease that could lapse
	running := begin(t, ctx, h.Store, attempt("running"))
	for _, d := range []semel.Decision{semel.DecideUnknown, semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		_, err := resolver.Resolve(ctx, semel.Resolution{Identity: identity("running"), Fence: running.Fence(), Decision: d})
		wantErr(t, "Resolve of a record under a lease", err, semel.ErrStaleFence)
		_, err = resolver.Resolve(ctx, semel.Resolution{Identity: identity("done"), Fence: done.Fence(), Decision: d})
		wantErr(t, "Resolve of a completed record", err, semel.ErrStaleFence)
	}
	must(t, "Renew", running.Renew(ctx))
	if r := find(t, ctx, h.Store, identity("done")); string(r.Result.Body) != "done" {
		t.Fatalf("the completed record reads %+v", r)
	}
}

// Two operators, and the owner after all: the first to settle a record shuts
// the others out.
func oneResolutionOfMany(t testing.TB, h Harness, ctx context.Context) {
	for round := range 4 {
		key := fmt.Sprint("k", round)
		c := begin(t, ctx, h.Store, attempt(key))
		must(t, "Hold", c.Hold(ctx, "lost contact"))
		var (
			mu    sync.Mutex
			won   []string
			wrong []error
			wg    sync.WaitGroup
		)
		settled := func(body string, err, want error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, body)
			} else if !errors.Is(err, want) {
				wrong = append(wrong, err)
			}
		}
		wg.Go(func() {
			_, err := c.Complete(ctx, result("the owner's"))
			settled("the owner's", err, semel.ErrLostClaim)
		})
		for i := range 8 {
			wg.Go(func() {
				body := fmt.Sprint("operator ", i)
				_, err := h.Store.(semel.Resolver).Resolve(ctx, semel.Resolution{
					Identity: identity(key), Fence: c.Fence(), Decision: semel.DecideResult, Result: result(body),
				})
				settled(body, err, semel.ErrStaleFence)
			})
		}
		wg.Wait()
		if len(won) != 1 || len(wrong) > 0 {
			t.Fatalf("settled by %q; want one of them. Unexpected errors: %v", won, wrong)
		}
		if r := find(t, ctx, h.Store, identity(key)); string(r.Result.Body) != won[0] {
			t.Fatalf("settled by %s, the record reads %q", won[0], r.Result.Body)
		}
	}
}
