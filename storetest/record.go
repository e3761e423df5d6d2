package storetest

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// A guard keeps answers back by this until the commit.
func claimSaysItsMode(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	if got := c.Transactional(); got != h.Transactional {
		t.Fatalf("Transactional is %t; the harness says %t", got, h.Transactional)
	}
	complete(t, ctx, c, result("done"))
}

// Replay is exact.
func replayIsExact(t testing.TB, h Harness, ctx context.Context) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	results := map[string]semel.Result{
		"empty":     {Codec: "test/1"},
		"no body":   {Codec: "test/1", Head: []byte("204"), Label: "204"},
		"binary":    {Codec: "test/1", Head: all, Body: slices.Concat(all, all), Label: "200"},
		"tombstone": {Codec: "test/1", Tombstone: true, Reference: "/orders/1?a=b&c=ü", Label: "201"},
		"large":     {Codec: "test/1", Head: bytes.Repeat([]byte("h"), 8<<10), Body: bytes.Repeat([]byte("body"), 64<<10)},
		"not UTF-8": {Codec: "test/1", Head: []byte{0xff, 0, 0xfe}, Body: []byte{0xc3, 0x28}},
	}
	for name, want := range results {
		c := begin(t, ctx, h.Store, attempt(name))
		complete(t, ctx, c, want)
		seen := blocked(t, ctx, h.Store, attempt(name), semel.StateCompleted)
		for _, r := range []semel.Record{seen, find(t, ctx, h.Store, identity(name))} {
			got := r.Result
			if got.Codec != want.Codec || !bytes.Equal(got.Head, want.Head) || !bytes.Equal(got.Body, want.Body) ||
				got.Label != want.Label || got.Tombstone != want.Tombstone || got.Reference != want.Reference {
				t.Fatalf("%s: the result reads back with codec %q, %d head and %d body bytes, label %q, tombstone %v, reference %q",
					name, got.Codec, len(got.Head), len(got.Body), got.Label, got.Tombstone, got.Reference)
			}
			if r.SettledAt.IsZero() || !r.ExpiresAt.Equal(r.SettledAt.Add(retention)) {
				t.Fatalf("%s: settled at %v, expires at %v; want %v later", name, r.SettledAt, r.ExpiresAt, retention)
			}
		}
	}
}

func completedIsSeenByOthers(t testing.TB, h Harness, ctx context.Context) {
	other := h.Open()
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("mine"))
	if r := blocked(t, ctx, other, attempt("k"), semel.StateCompleted); string(r.Result.Body) != "mine" {
		t.Fatalf("another handle reads %q", r.Result.Body)
	}
	c := begin(t, ctx, other, attempt("k2"))
	blocked(t, ctx, h.Store, attempt("k2"), semel.StateInProgress)
	complete(t, ctx, c, result("theirs"))
	if r := find(t, ctx, h.Store, identity("k2")); string(r.Result.Body) != "theirs" {
		t.Fatalf("the first handle reads %q", r.Result.Body)
	}
}

func completeRepeats(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	first := complete(t, ctx, c, result("done"))
	if r := find(t, ctx, h.Store, identity("k")); !first.Equal(r.ExpiresAt) {
		t.Fatalf("Complete answered %v, though the record expires at %v", first, r.ExpiresAt)
	}
	h.advance(time.Hour)
	r := find(t, ctx, h.Store, identity("k"))
	if again := complete(t, ctx, c, result("something else")); !again.Equal(r.ExpiresAt) {
		t.Fatalf("the second Complete answered %v, though the record expires at %v", again, r.ExpiresAt)
	}
	if got := find(t, ctx, h.Store, identity("k")); !got.ExpiresAt.Equal(r.ExpiresAt) ||
		!got.SettledAt.Equal(r.SettledAt) || string(got.Result.Body) != "done" {
		t.Fatalf("the second Complete changed the record: %+v", got)
	}
}

func releaseFrees(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Release", c.Release(ctx))
	_, err := h.Store.Find(ctx, identity("k"))
	wantErr(t, "Find of a released record", err, semel.ErrNotFound)
	lost(t, ctx, h.Store, c, identity("k"))
	begin(t, ctx, h.Store, attempt("k"))
}

func completedCannotBeReleased(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	complete(t, ctx, c, result("done"))
	wantErr(t, "Release after Complete", c.Release(ctx), semel.ErrLostClaim)
	wantErr(t, "Hold after Complete", c.Hold(ctx, "too late"), semel.ErrLostClaim)
	wantErr(t, "Renew after Complete", c.Renew(ctx), semel.ErrLostClaim)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)
}

func holdBlocks(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "the line went dead"))
	must(t, "Hold again", c.Hold(ctx, "the line went dead"))
	r := blocked(t, ctx, h.Store, attempt("k"), semel.StateUnknown)
	if r.Cause != "the line went dead" || r.Fence != c.Fence() || r.SettledAt.IsZero() || !r.ExpiresAt.IsZero() ||
		r.Fingerprint != fingerprint("request") || r.Lease > 0 {
		t.Fatalf("the held record reads %+v", r)
	}
	h.advance(10 * retention)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateUnknown)
}

// While unknown and unresolved, the same claim may settle it.
func heldClaimMaySettle(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "deadline"))
	complete(t, ctx, c, result("after all"))
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted); r.Cause != "" || string(r.Result.Body) != "after all" {
		t.Fatalf("the settled record reads %+v", r)
	}
	c = begin(t, ctx, h.Store, attempt("k2"))
	must(t, "Hold", c.Hold(ctx, "deadline"))
	must(t, "Release of a held record", c.Release(ctx))
	begin(t, ctx, h.Store, attempt("k2"))
}
