package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// Of any number of concurrent claims, at most one is granted.
func oneClaimOfMany(t testing.TB, h Harness, ctx context.Context) {
	for round := range 8 {
		key := fmt.Sprint("raced", round)
		c := wantOne(t, race(t, 32, func(int) (semel.Claim, error) { return h.Store.Begin(ctx, attempt(key)) }))
		complete(t, ctx, c, result("once"))
	}
}

func oneClaimAcrossHandles(t testing.TB, h Harness, ctx context.Context) {
	handles := []semel.Store{h.Store, h.Open(), h.Open()}
	for round := range 4 {
		key := fmt.Sprint("raced", round)
		c := wantOne(t, race(t, 30, func(i int) (semel.Claim, error) {
			return handles[i%len(handles)].Begin(ctx, attempt(key))
		}))
		complete(t, ctx, c, result("once"))
	}
}

func oneClaimAfterExpiry(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("old"))
	h.advance(retention + time.Second)
	wantOne(t, race(t, 16, func(int) (semel.Claim, error) { return h.Store.Begin(ctx, attempt("k")) }))
}

// A record that goes away between a refused insert and the look at what is in
// the way is no leave to proceed.
func oneClaimAtRelease(t testing.TB, h Harness, ctx context.Context) {
	for round := range 8 {
		key := fmt.Sprint("freed", round)
		first := begin(t, ctx, h.Store, attempt(key))
		var (
			wg       sync.WaitGroup
			released error
		)
		wg.Go(func() { released = first.Release(ctx) })
		granted := race(t, 16, func(int) (semel.Claim, error) { return h.Store.Begin(ctx, attempt(key)) })
		wg.Wait()
		must(t, "Release", released)
		if len(granted) > 1 {
			t.Fatalf("%d claims were granted at a release; want at most 1", len(granted))
		}
		for _, c := range granted {
			complete(t, ctx, c, result("once"))
		}
	}
}

func conflictShowsTheRecord(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin = semel.Origin{RequestID: "req-1", EventID: "ev-1", TraceID: "trace-1"}
	c := begin(t, ctx, h.Store, a)
	second := attempt("k")
	second.Fingerprint = fingerprint("another request")
	r := blocked(t, ctx, h.Store, second, semel.StateInProgress)
	for _, r := range []semel.Record{r, find(t, ctx, h.Store, identity("k"))} {
		if r.Fingerprint != a.Fingerprint || r.ID != c.RecordID() || r.Fence != c.Fence() ||
			r.Identity != a.Identity || r.Origin != a.Origin || r.Retention != retention {
			t.Fatalf("the record does not show the claim it holds: %+v", r)
		}
		if r.Lease <= lease-10*time.Second || r.Lease > lease || r.Lapsed() || r.Reopened || r.BegunAt.IsZero() ||
			!r.SettledAt.IsZero() || !r.ExpiresAt.IsZero() {
			t.Fatalf("the record's times are wrong for a fresh claim: %+v", r)
		}
	}
}

// Begin whose answer was lost can be asked again.
func beginRepeats(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	first := begin(t, ctx, h.Store, a)
	again := begin(t, ctx, h.Store, a)
	if first.Fence() != again.Fence() || first.RecordID() != again.RecordID() {
		t.Fatalf("the same token was granted fence %d and then %d", first.Fence(), again.Fence())
	}
	h.advance(lease - 5*time.Second)
	begin(t, ctx, h.Store, a)
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress); r.Lease < lease-4*time.Second {
		t.Fatalf("a repeated Begin left %v of a lease of %v; want it renewed", r.Lease, lease)
	}
	complete(t, ctx, again, result("done"))
	blocked(t, ctx, h.Store, a, semel.StateCompleted)

	// So can one that took the record over.
	a = attempt("k2")
	a.Takeover = begin(t, ctx, h.Store, attempt("k2")).Fence()
	h.advance(2 * lease)
	first = begin(t, ctx, h.Store, a)
	again = begin(t, ctx, h.Store, a)
	if first.Fence() != again.Fence() || first.RecordID() != again.RecordID() {
		t.Fatalf("the same takeover was granted fence %d and then %d", first.Fence(), again.Fence())
	}
	must(t, "Hold", again.Hold(ctx, "lost contact"))
	blocked(t, ctx, h.Store, a, semel.StateUnknown)
}

func absentIsNotFound(t testing.TB, h Harness, ctx context.Context) {
	_, err := h.Store.Find(ctx, identity("nobody"))
	wantErr(t, "Find", err, semel.ErrNotFound)
}

// A handler sees its caller's values and cancellation.
func claimContextDescends(t testing.TB, h Harness, ctx context.Context) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(ctx, key{}, "value"))
	defer cancel()
	c := begin(t, ctx, h.Store, attempt("k"))
	child := c.Context(parent)
	if child.Value(key{}) != "value" {
		t.Fatalf("the claim's context holds %v; want its parent's value", child.Value(key{}))
	}
	must(t, "the claim's context", child.Err())
	cancel()
	wantErr(t, "the claim's context after its parent was cancelled", child.Err(), context.Canceled)
	complete(t, ctx, c, result("done"))
}
