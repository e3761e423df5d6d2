package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func trail(t testing.TB, ctx context.Context, s semel.Store, f semel.TrailFilter) []semel.TrailEntry {
	t.Helper()
	entries, err := s.(semel.Trail).Trail(ctx, f)
	must(t, "Trail", err)
	return entries
}

func wantKinds(t testing.TB, entries []semel.TrailEntry, want ...semel.TrailKind) {
	t.Helper()
	var got []semel.TrailKind
	for _, e := range entries {
		got = append(got, e.Kind)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the trail reads %v; want %v", got, want)
	}
}

// The trail of a change is there when the change is answered.
func trailCommits(t testing.TB, h Harness, ctx context.Context) {
	a := attempt("k")
	a.Origin = semel.Origin{RequestID: "req-1", EventID: "ev-1", TraceID: "trace-1"}
	c := begin(t, ctx, h.Store, a)
	complete(t, ctx, c, result("done"))
	complete(t, ctx, c, result("done")) // repeated: no second entry
	entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: "k"})
	wantKinds(t, entries, semel.TrailExecuted)
	e := entries[0]
	if e.RecordID != c.RecordID() || e.Fence != c.Fence() || e.Origin != a.Origin || e.Label != "201" ||
		e.Tenant != "t" || e.Actor != "a" || e.Operation != "orders.create" || e.Instance == "" || e.Seq == 0 || e.At.IsZero() {
		t.Fatalf("the entry of an execution reads %+v", e)
	}

	c = begin(t, ctx, h.Store, attempt("released"))
	must(t, "Release", c.Release(ctx))
	wantKinds(t, trail(t, ctx, h.Store, semel.TrailFilter{Key: "released"}), semel.TrailReleased)

	c = begin(t, ctx, h.Store, attempt("held"))
	must(t, "Hold", c.Hold(ctx, "lost contact"))
	must(t, "Hold again", c.Hold(ctx, "lost contact"))
	b := attempt("held")
	b.Takeover = c.Fence()
	begin(t, ctx, h.Store, b)
	entries = trail(t, ctx, h.Store, semel.TrailFilter{Key: "held"})
	wantKinds(t, entries, semel.TrailHeld, semel.TrailTakeover)
	if entries[0].Cause != "lost contact" || entries[1].Fence <= entries[0].Fence {
		t.Fatalf("the entries of a hold and a takeover read %+v", entries)
	}

	// A claim that was allowed to take over, but found the identity free.
	c = begin(t, ctx, h.Store, attempt("freed"))
	b = attempt("freed")
	b.Takeover = c.Fence()
	must(t, "Release", c.Release(ctx))
	begin(t, ctx, h.Store, b)
	wantKinds(t, trail(t, ctx, h.Store, semel.TrailFilter{Key: "freed"}), semel.TrailReleased)
}

func trailResolutions(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("lapsed"))
	h.advance(2 * lease)
	for range 2 { // the second finds it done
		resolve(t, ctx, h.Store, semel.Resolution{
			Identity: identity("lapsed"), Fence: c.Fence(), Decision: semel.DecideUnknown, Cause: "lapsed",
			Origin: semel.Origin{RequestID: "a duplicate"},
		})
	}
	entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: "lapsed"})
	wantKinds(t, entries, semel.TrailHeld)
	if e := entries[0]; e.Cause != "lapsed" || e.RequestID != "a duplicate" || e.RecordID != c.RecordID() || e.Fence != c.Fence() {
		t.Fatalf("the entry of a record marked unknown reads %+v", e)
	}
	for _, d := range []semel.Decision{semel.DecideResult, semel.DecideNoEffect, semel.DecideExecuteAgain} {
		c := begin(t, ctx, h.Store, attempt(d.String()))
		must(t, "Hold", c.Hold(ctx, "lost contact"))
		resolve(t, ctx, h.Store, semel.Resolution{
			Identity: identity(d.String()), Fence: c.Fence(), Decision: d, Cause: "looked it up",
			Result: result("x"), Origin: semel.Origin{RequestID: "operator"},
		})
		entries := trail(t, ctx, h.Store, semel.TrailFilter{Key: d.String()})
		wantKinds(t, entries, semel.TrailHeld, semel.TrailResolved)
		if e := entries[1]; e.Label != d.String() || e.Cause != "looked it up" || e.RequestID != "operator" || e.RecordID != c.RecordID() {
			t.Fatalf("the entry of a resolution reads %+v", e)
		}
	}
}

// awaitTrail polls until the trail holds n entries for f.
func awaitTrail(t testing.TB, ctx context.Context, s semel.Store, f semel.TrailFilter, n int) []semel.TrailEntry {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-tick.C {
		entries := trail(t, ctx, s, f)
		if len(entries) >= n {
			return entries
		}
		if time.Now().After(end) {
			t.Fatalf("the trail holds %d entries; want %d", len(entries), n)
		}
	}
}

func trailNotes(t testing.TB, h Harness, ctx context.Context) {
	tr := h.Store.(semel.Trail)
	const n = 50
	for i := range n {
		tr.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "k", Origin: semel.Origin{RequestID: fmt.Sprint("r", i)}, Count: uint64(i)})
	}
	entries := awaitTrail(t, ctx, h.Store, semel.TrailFilter{Key: "k"}, n)
	for i, e := range entries {
		if e.RequestID != fmt.Sprint("r", i) || e.Count != uint64(i) || e.Instance != entries[0].Instance || e.At.IsZero() ||
			i > 0 && (e.Seq != entries[i-1].Seq+1 || e.Position <= entries[i-1].Position) {
			t.Fatalf("note %d reads %+v after %+v", i, e, entries[max(i-1, 0)])
		}
	}
}

func trailFilters(t testing.TB, h Harness, ctx context.Context) {
	tr := h.Store.(semel.Trail)
	for i := range 6 {
		tr.Note(semel.TrailEntry{
			Kind: []semel.TrailKind{semel.TrailReplayed, semel.TrailMismatch}[i%2], RecordID: fmt.Sprint("rec", i/2),
			Tenant: "t", Actor: fmt.Sprint("a", i%3), Operation: "op", Key: fmt.Sprint("k", i),
			Origin: semel.Origin{RequestID: fmt.Sprint("r", i), EventID: fmt.Sprint("e", i%2), TraceID: fmt.Sprint("x", i/3)},
		})
	}
	all := awaitTrail(t, ctx, h.Store, semel.TrailFilter{}, 6)
	now := all[5].At
	for _, c := range []struct {
		f    semel.TrailFilter
		want string
	}{
		{semel.TrailFilter{RecordID: "rec1"}, "k2k3"},
		{semel.TrailFilter{Actor: "a1"}, "k1k4"},
		{semel.TrailFilter{Kind: semel.TrailMismatch}, "k1k3k5"},
		{semel.TrailFilter{RequestID: "r4"}, "k4"},
		{semel.TrailFilter{EventID: "e1", TraceID: "x1"}, "k3k5"},
		{semel.TrailFilter{Operation: "op", Limit: 2}, "k0k1"},
		{semel.TrailFilter{After: all[3].Position}, "k4k5"},
		{semel.TrailFilter{Tenant: "another"}, ""},
		{semel.TrailFilter{Since: now.Add(time.Minute)}, ""},
		{semel.TrailFilter{Until: all[0].At.Add(-time.Minute)}, ""},
		{semel.TrailFilter{Since: all[0].At.Add(-time.Minute), Until: now.Add(time.Minute)}, "k0k1k2k3k4k5"},
	} {
		var got string
		for _, e := range trail(t, ctx, h.Store, c.f) {
			got += e.Key
		}
		if got != c.want {
			t.Fatalf("Trail %+v returned %q; want %q", c.f, got, c.want)
		}
	}
}
