package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// A zombie can neither overwrite a result nor free a claim.
func staleClaimCannotWrite(t testing.TB, h Harness, ctx context.Context) {
	first := attempt("k")
	zombie := begin(t, ctx, h.Store, first)
	h.advance(2 * lease)
	a := attempt("k")
	a.Takeover = zombie.Fence()
	owner := begin(t, ctx, h.Store, a)
	lost(t, ctx, h.Store, zombie, identity("k"))
	blocked(t, ctx, h.Store, first, semel.StateInProgress)
	complete(t, ctx, owner, result("the owner's"))
	lost(t, ctx, h.Store, zombie, identity("k"))
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted); string(r.Result.Body) != "the owner's" {
		t.Fatalf("the record reads %q", r.Result.Body)
	}
}

// The ABA of fences: a claim must stay stale after the record was deleted and
// claimed anew.
func fencesSurviveDeletion(t testing.TB, h Harness, ctx context.Context) {
	zombie := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Release", zombie.Release(ctx))
	owner := begin(t, ctx, h.Store, attempt("k"))
	if owner.Fence() <= zombie.Fence() {
		t.Fatalf("after a deletion the fence went from %d to %d", zombie.Fence(), owner.Fence())
	}
	lost(t, ctx, h.Store, zombie, identity("k"))
	must(t, "Renew by the owner", owner.Renew(ctx))
	complete(t, ctx, owner, result("the owner's"))
	lost(t, ctx, h.Store, zombie, identity("k"))

	expired := begin(t, ctx, h.Store, attempt("k2"))
	complete(t, ctx, expired, result("old"))
	h.advance(retention + time.Second)
	if s, ok := h.Store.(semel.Sweeper); ok {
		_, err := s.Sweep(ctx, 100)
		must(t, "Sweep", err)
	}
	owner = begin(t, ctx, h.Store, attempt("k2"))
	if owner.Fence() <= expired.Fence() {
		t.Fatalf("after a sweep the fence went from %d to %d", expired.Fence(), owner.Fence())
	}
	lost(t, ctx, h.Store, expired, identity("k2"))
}

func fencesRise(t testing.TB, h Harness, ctx context.Context) {
	stores := []semel.Store{h.Store}
	if h.Open != nil {
		stores = append(stores, h.Open())
	}
	var last uint64
	for i := range 12 {
		c := begin(t, ctx, stores[i%len(stores)], attempt(fmt.Sprint("k", i)))
		if c.Fence() <= last {
			t.Fatalf("claim %d got fence %d after %d", i, c.Fence(), last)
		}
		last = c.Fence()
		if i%3 == 0 {
			must(t, "Release", c.Release(ctx))
		}
	}
}

// A restored backup takes the counter back with it, so a fence may be granted
// again. The token tells its owners apart.
func claimsEndWithARestore(t testing.TB, h Harness, ctx context.Context) {
	before := begin(t, ctx, h.Store, attempt("before"))
	restore := h.Backup()
	zombie := begin(t, ctx, h.Store, attempt("k"))
	restore()
	lost(t, ctx, h.Store, zombie, identity("k"))
	owner := begin(t, ctx, h.Store, attempt("k"))
	lost(t, ctx, h.Store, zombie, identity("k"))
	complete(t, ctx, owner, result("the owner's"))
	lost(t, ctx, h.Store, zombie, identity("k"))
	complete(t, ctx, before, result("begun before the backup"))
}
