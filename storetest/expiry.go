package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// Retention starts at completion.
func retentionStartsAtCompletion(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	h.advance(retention - time.Minute)
	complete(t, ctx, c, result("late"))
	h.advance(retention - time.Minute)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)
}

func retentionIsKept(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("kept"))
	h.advance(retention - time.Minute)
	if s, ok := h.Store.(semel.Sweeper); ok {
		n, err := s.Sweep(ctx, 100)
		must(t, "Sweep", err)
		if n != 0 {
			t.Fatalf("Sweep removed %d records before their time", n)
		}
	}
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted); string(r.Result.Body) != "kept" {
		t.Fatalf("the record reads %q", r.Result.Body)
	}
}

// Expired but unswept is absent.
func expiredIsAbsent(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin.RequestID = "first"
	old := begin(t, ctx, h.Store, a)
	complete(t, ctx, old, semel.Result{Codec: "test/1", Body: []byte("old"), Reference: "/old", Tombstone: true})
	h.advance(retention) // and not a moment longer
	_, err := h.Store.Find(ctx, identity("k"))
	wantErr(t, "Find of an expired record", err, semel.ErrNotFound)
	_, err = old.Complete(ctx, result("again"))
	wantErr(t, "Complete of an expired record", err, semel.ErrLostClaim)

	b := attempt("k")
	b.Fingerprint = fingerprint("another request")
	c := begin(t, ctx, h.Store, b)
	if c.Fence() <= old.Fence() || c.RecordID() == old.RecordID() {
		t.Fatalf("the successor has record %s fence %d; the expired one had %s and %d", c.RecordID(), c.Fence(), old.RecordID(), old.Fence())
	}
	lost(t, ctx, h.Store, old, identity("k"))
	r := find(t, ctx, h.Store, identity("k"))
	if r.Fingerprint != b.Fingerprint || r.Result.Reference != "" || r.Result.Tombstone || len(r.Result.Body) > 0 ||
		!r.SettledAt.IsZero() || r.Origin != b.Origin {
		t.Fatalf("the successor inherited from the expired record: %+v", r)
	}
}

// The store's clock decides, never the caller's.
func storeClockDecides(t testing.TB, h Harness, ctx context.Context) {
	begin(t, ctx, h.Store, attempt("running"))
	complete(t, ctx, begin(t, ctx, h.Store, attempt("done")), result("done"))
	for _, skew := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		off := h.Skewed(skew)
		if r := blocked(t, ctx, off, attempt("running"), semel.StateInProgress); r.Lapsed() || r.Lease > lease {
			t.Fatalf("a caller whose clock is off by %v sees %v of a lease of %v", skew, r.Lease, lease)
		}
		blocked(t, ctx, off, attempt("done"), semel.StateCompleted)

		key := fmt.Sprint("from ", skew)
		c := begin(t, ctx, off, attempt(key))
		if r := blocked(t, ctx, h.Store, attempt(key), semel.StateInProgress); r.Lapsed() || r.Lease > lease {
			t.Fatalf("a claim by a caller whose clock is off by %v has %v left of %v", skew, r.Lease, lease)
		}
		must(t, "Renew", c.Renew(ctx))
		complete(t, ctx, c, result("done"))
		h.advance(retention - time.Minute)
		blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted)
		h.advance(2 * time.Minute)
		if _, err := h.Store.Find(ctx, identity(key)); !errors.Is(err, semel.ErrNotFound) {
			t.Fatalf("a record completed by a caller whose clock is off by %v outlived its retention: %v", skew, err)
		}
		complete(t, ctx, begin(t, ctx, h.Store, attempt("done")), result("done"))
		takeover := attempt("running")
		takeover.Takeover = find(t, ctx, h.Store, identity("running")).Fence
		begin(t, ctx, h.Store, takeover)
	}
}
