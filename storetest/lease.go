package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func lapseIsSeen(t testing.TB, h Harness, ctx context.Context) {
	begin(t, ctx, h.Store, attempt("k"))
	h.advance(lease - 5*time.Second)
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress); r.Lapsed() {
		t.Fatalf("the lease lapsed 5 s early: %v left", r.Lease)
	}
	h.advance(10 * time.Second)
	if r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress); !r.Lapsed() || r.Lease > -5*time.Second {
		t.Fatalf("the lease has %v left 5 s after it lapsed", r.Lease)
	}
	h.advance(2 * retention)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress)
}

func renewExtends(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	for range 3 {
		h.advance(lease - 5*time.Second)
		must(t, "Renew", c.Renew(ctx))
	}
	r := blocked(t, ctx, h.Store, attempt("k"), semel.StateInProgress)
	if r.Lapsed() || r.Lease > lease || r.Lease < lease-4*time.Second || r.Fence != c.Fence() {
		t.Fatalf("after Renew the lease has %v left, fence %d; want %v, %d", r.Lease, r.Fence, lease, c.Fence())
	}
}

// A lapsed lease alone loses nothing.
func lapsedClaimMaySettle(t testing.TB, h Harness, ctx context.Context) {
	settle := map[string]func(semel.Claim) error{
		"complete": func(c semel.Claim) error { _, err := c.Complete(ctx, result("late")); return err },
		"release":  func(c semel.Claim) error { return c.Release(ctx) },
		"hold":     func(c semel.Claim) error { return c.Hold(ctx, "late") },
		"renew":    func(c semel.Claim) error { return c.Renew(ctx) },
	}
	for name, call := range settle {
		c := begin(t, ctx, h.Store, attempt(name))
		h.advance(2 * lease)
		must(t, name+" after the lease lapsed", call(c))
	}
}

func unknownIsNotRenewed(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	must(t, "Hold", c.Hold(ctx, "deadline"))
	wantErr(t, "Renew of an unknown record", c.Renew(ctx), semel.ErrLostClaim)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateUnknown)
}

func takeoverNeedsLapse(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	a := attempt("k")
	a.Takeover = c.Fence()
	blocked(t, ctx, h.Store, a, semel.StateInProgress)
	must(t, "Renew by the owner", c.Renew(ctx))
	complete(t, ctx, c, result("mine"))
	blocked(t, ctx, h.Store, a, semel.StateCompleted)
	h.advance(2 * lease) // a completed record has no lease that could lapse
	if r := blocked(t, ctx, h.Store, a, semel.StateCompleted); string(r.Result.Body) != "mine" {
		t.Fatalf("the record reads %q", r.Result.Body)
	}
}

func takeoverNeedsFence(t testing.TB, h Harness, ctx context.Context) {
	first := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	a := attempt("k")
	a.Takeover = first.Fence()
	second := begin(t, ctx, h.Store, a)
	if second.Fence() <= first.Fence() {
		t.Fatalf("a takeover got fence %d after %d", second.Fence(), first.Fence())
	}
	h.advance(2 * lease)
	for _, wrong := range []uint64{0, first.Fence(), second.Fence() - 1, second.Fence() + 1} {
		late := attempt("k")
		late.Takeover = wrong
		if r := blocked(t, ctx, h.Store, late, semel.StateInProgress); r.Fence != second.Fence() {
			t.Fatalf("a refused takeover moved the fence from %d to %d", second.Fence(), r.Fence)
		}
	}
}

func takeoverKeepsTheRecord(t testing.TB, h Harness, ctx context.Context) {
	for _, held := range []bool{false, true} {
		key := fmt.Sprint("held ", held)
		first := begin(t, ctx, h.Store, attempt(key))
		if held {
			must(t, "Hold", first.Hold(ctx, "lost contact"))
		} else {
			h.advance(2 * lease)
		}
		a := attempt(key)
		a.Takeover, a.Origin.RequestID = first.Fence(), "the second"
		a.Fingerprint = fingerprint("another request") // the guard never does; the record must not follow
		c := begin(t, ctx, h.Store, a)
		r := find(t, ctx, h.Store, identity(key))
		if r.ID != first.RecordID() || c.RecordID() != r.ID || r.Fence != c.Fence() || r.State != semel.StateInProgress ||
			r.Lapsed() || r.Cause != "" || r.Fingerprint != fingerprint("request") || r.Origin != a.Origin || !r.SettledAt.IsZero() {
			t.Fatalf("the record after a takeover (held: %v) reads %+v", held, r)
		}
		lost(t, ctx, h.Store, first, identity(key))
		complete(t, ctx, c, result("by the second"))
		if r := find(t, ctx, h.Store, identity(key)); string(r.Result.Body) != "by the second" || r.Fingerprint != fingerprint("request") {
			t.Fatalf("the completed record reads %+v", r)
		}
	}
}

func oneTakeoverOfMany(t testing.TB, h Harness, ctx context.Context) {
	first := begin(t, ctx, h.Store, attempt("k"))
	h.advance(2 * lease)
	c := wantOne(t, race(t, 32, func(int) (semel.Claim, error) {
		a := attempt("k")
		a.Takeover = first.Fence()
		return h.Store.Begin(ctx, a)
	}))
	lost(t, ctx, h.Store, first, identity("k"))
	complete(t, ctx, c, result("once"))
}

// The owner's last write and a takeover at the same moment: whichever comes
// first shuts the other out, or leaves it a claim of its own.
func lateWriteOrTakeover(t testing.TB, h Harness, ctx context.Context) {
	late := map[string]func(c semel.Claim) error{
		"complete": func(c semel.Claim) error { _, err := c.Complete(ctx, result("late")); return err },
		"release":  func(c semel.Claim) error { return c.Release(ctx) },
		"hold":     func(c semel.Claim) error { return c.Hold(ctx, "late") },
		"renew":    func(c semel.Claim) error { return c.Renew(ctx) },
	}
	for name, write := range late {
		for round := range 4 {
			key := fmt.Sprint(name, round)
			zombie := begin(t, ctx, h.Store, attempt(key))
			h.advance(2 * lease)
			a := attempt(key)
			a.Takeover = zombie.Fence()
			var (
				wg       sync.WaitGroup
				writeErr error
				taker    semel.Claim
				beginErr error
			)
			wg.Go(func() { writeErr = write(zombie) })
			wg.Go(func() { taker, beginErr = h.Store.Begin(ctx, a) })
			wg.Wait()
			if writeErr != nil && !errors.Is(writeErr, semel.ErrLostClaim) {
				t.Fatalf("%s beside a takeover: %v", name, writeErr)
			}
			// A record that was held or released first can still be taken
			// over or claimed; one that was completed or renewed cannot.
			excludes := name == "complete" || name == "renew"
			if beginErr != nil {
				if _, ok := errors.AsType[*semel.ConflictError](beginErr); !ok || writeErr != nil || !excludes {
					t.Fatalf("a takeover beside %s failed: %v; the other: %v", name, beginErr, writeErr)
				}
				continue
			}
			if writeErr == nil && excludes {
				t.Fatalf("both %s and a takeover of the same claim were granted", name)
			}
			lost(t, ctx, h.Store, zombie, identity(key))
			complete(t, ctx, taker, result("the owner's"))
			if r := find(t, ctx, h.Store, identity(key)); string(r.Result.Body) != "the owner's" {
				t.Fatalf("after a takeover beside %s the record reads %q", name, r.Result.Body)
			}
		}
	}
}
