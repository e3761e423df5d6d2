package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func erase(t testing.TB, ctx context.Context, s semel.Store, key string, fence uint64) bool {
	t.Helper()
	erased, err := s.(semel.Eraser).Erase(ctx, semel.Erasure{
		Identity: identity(key), Fence: fence, Cause: "they asked", Origin: semel.Origin{RequestID: "operator"},
	})
	if err != nil {
		t.Fatalf("Erase: %v", err)
	}
	return erased
}

// wantBare asserts that the record of key is before, but for what is erased.
func wantBare(t testing.TB, before, got semel.Record) {
	t.Helper()
	if !got.Erased() {
		t.Fatalf("an erased record reads %+v", got)
	}
	got.Lease, before.Lease = 0, 0
	want := before
	want.Fingerprint, want.Result = semel.Fingerprint{}, semel.Result{Codec: before.Result.Codec, Label: before.Result.Label, Tombstone: true}
	got.Result.Head, got.Result.Body = nil, nil // empty, which is as good
	if !got.BegunAt.Equal(want.BegunAt) || !got.SettledAt.Equal(want.SettledAt) || !got.ExpiresAt.Equal(want.ExpiresAt) {
		t.Fatalf("an erasure moved times from\n%+v\nto\n%+v", before, got)
	}
	got.BegunAt, got.SettledAt, got.ExpiresAt = want.BegunAt, want.SettledAt, want.ExpiresAt
	if got.ID != want.ID || got.Identity != want.Identity || got.Fence != want.Fence || got.State != want.State || got.Origin != want.Origin ||
		got.Retention != want.Retention || got.Result.Codec != want.Result.Codec || got.Result.Label != want.Result.Label {
		t.Fatalf("erased, the record reads\n%+v; want\n%+v", got, want)
	}
}

// eraseLeavesATombstone: whoever looks sees that it was done, and nothing of the
// answer, also who has seen it before; and it is erased once.
func eraseLeavesATombstone(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin = semel.Origin{RequestID: "the first"}
	c := begin(t, ctx, h.Store, a)
	res := result("secret")
	res.Reference = "/orders/secret"
	complete(t, ctx, c, res)
	handles := []semel.Store{h.Store}
	if h.Open != nil {
		handles = append(handles, h.Open())
	}
	var before semel.Record
	_, err := h.Store.Begin(ctx, attempt("k"))
	told, ok := errors.AsType[*semel.ConflictError](err)
	if !ok {
		t.Fatalf("Begin: %v; want a ConflictError", err)
	}
	for _, s := range handles {
		for range 3 { // so that a store which keeps what is asked for again does
			before = find(t, ctx, s, identity("k"))
			blocked(t, ctx, s, attempt("k"), semel.StateCompleted)
		}
	}
	if !erase(t, ctx, h.Store, "k", c.Fence()) {
		t.Fatal("nothing was erased")
	}
	if string(told.Record.Result.Body) != "secret" || told.Record.Result.Tombstone {
		t.Fatalf("what somebody was told before has become %+v", told.Record)
	}
	for range 2 {
		for _, s := range handles {
			wantBare(t, before, find(t, ctx, s, identity("k")))
			wantBare(t, before, blocked(t, ctx, s, attempt("k"), semel.StateCompleted))
			if erase(t, ctx, s, "k", c.Fence()) {
				t.Fatal("it was erased twice")
			}
		}
		if !h.Transactional {
			if expires := complete(t, ctx, c, result("secret")); !expires.Equal(before.ExpiresAt) {
				t.Fatalf("completed again, the record expires at %v; want %v", expires, before.ExpiresAt)
			}
		}
	}
	if _, ok := h.Store.(semel.Trail); ok {
		entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: "k", Kind: semel.TrailErased})
		if len(entries) != 1 || entries[0].Cause != "they asked" || entries[0].RequestID != "operator" || entries[0].RecordID != before.ID || entries[0].Fence != c.Fence() {
			t.Fatalf("of the erasure the trail has %+v", entries)
		}
		executed := trail(t, ctx, h.Store, semel.TrailFilter{Key: "k", Kind: semel.TrailExecuted})
		if len(executed) != 1 || executed[0].Label != "201" || executed[0].RequestID != "the first" {
			t.Fatalf("of the execution the trail has %+v", executed)
		}
	}
	// It goes when any other would.
	h.advance(retention + time.Second)
	_, err = h.Store.Find(ctx, identity("k"))
	wantErr(t, "Find after the retention", err, semel.ErrNotFound)
	begin(t, ctx, h.Store, attempt("k"))
}

// eraseNeedsTheRecord: what is not completed, or is not the record that was meant,
// stays as it is.
func eraseNeedsTheRecord(t testing.TB, h Harness, ctx context.Context) {
	refused := func(what string, key string, fence uint64, want error) {
		t.Helper()
		_, err := h.Store.(semel.Eraser).Erase(ctx, semel.Erasure{Identity: identity(key), Fence: fence})
		wantErr(t, "Erase of "+what, err, want)
	}
	refused("no record", "k", 1, semel.ErrNotFound)
	c := begin(t, ctx, h.Store, attempt("k"))
	refused("a record in progress", "k", c.Fence(), semel.ErrStaleFence)
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	refused("an unknown record", "k", c.Fence(), semel.ErrStaleFence)
	complete(t, ctx, c, result("answer"))
	refused("a record with another fence", "k", c.Fence()+1, semel.ErrStaleFence)
	if r := find(t, ctx, h.Store, identity("k")); string(r.Result.Body) != "answer" || r.Fingerprint != fingerprint("request") {
		t.Fatalf("a refused erasure left %+v", r)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := h.Store.(semel.Eraser).Erase(ended, semel.Erasure{Identity: identity("k"), Fence: c.Fence()}); err == nil {
		t.Fatal("Erase under an ended context succeeded")
	}
	if r := find(t, ctx, h.Store, identity("k")); string(r.Result.Body) != "answer" {
		t.Fatalf("an erasure under an ended context left %+v", r)
	}
	h.advance(retention + time.Second)
	refused("an expired record", "k", c.Fence(), semel.ErrNotFound)
	next := begin(t, ctx, h.Store, attempt("k"))
	complete(t, ctx, next, result("another"))
	refused("the record that was there before", "k", c.Fence(), semel.ErrStaleFence)
}

// eraseTakesThePieces: who has the result in hand cannot read it any more, or has
// all of it already.
func eraseTakesThePieces(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	p := &pieces{seed: 7, size: threeAndABit}
	complete(t, ctx, c, p.result())
	before := find(t, ctx, h.Store, identity("k"))
	p.readBack(t, ctx, "before the erasure", before)
	if !erase(t, ctx, h.Store, "k", c.Fence()) {
		t.Fatal("nothing was erased")
	}
	wantBare(t, before, find(t, ctx, h.Store, identity("k")))
	if before.Result.Pieces != nil {
		for n := range before.Result.Pieces.Count() {
			if _, err := before.Result.Pieces.ReadPiece(ctx, n); !errors.Is(err, semel.ErrNotFound) {
				t.Fatalf("piece %d of an erased result reads with %v; want ErrNotFound", n, err)
			}
		}
	}
}
