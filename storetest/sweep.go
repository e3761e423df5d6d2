package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// A sweep never removes in_progress or unknown.
func sweepOnlyExpired(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("expired")), result("old"))
	begin(t, ctx, h.Store, attempt("lapsed"))
	must(t, "Hold", begin(t, ctx, h.Store, attempt("unknown")).Hold(ctx, "lost contact"))
	h.advance(retention + time.Second)
	complete(t, ctx, begin(t, ctx, h.Store, attempt("fresh")), result("new"))
	n, err := h.Store.(semel.Sweeper).Sweep(ctx, 100)
	must(t, "Sweep", err)
	if n != 1 {
		t.Fatalf("Sweep removed %d records; want 1", n)
	}
	blocked(t, ctx, h.Store, attempt("lapsed"), semel.StateInProgress)
	blocked(t, ctx, h.Store, attempt("unknown"), semel.StateUnknown)
	blocked(t, ctx, h.Store, attempt("fresh"), semel.StateCompleted)
}

func sweepIsBounded(t testing.TB, h Harness, ctx context.Context) {
	for i := range 5 {
		complete(t, ctx, begin(t, ctx, h.Store, attempt(fmt.Sprint("k", i))), result("old"))
	}
	h.advance(retention + time.Second)
	for _, want := range []int{2, 2, 1, 0} {
		n, err := h.Store.(semel.Sweeper).Sweep(ctx, 2)
		must(t, "Sweep", err)
		if n != want {
			t.Fatalf("Sweep with limit 2 removed %d records; want %d", n, want)
		}
	}
}

func sweepSparesSuccessor(t testing.TB, h Harness, ctx context.Context) {
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), result("old"))
	h.advance(retention + time.Second)
	c := begin(t, ctx, h.Store, attempt("k"))
	n, err := h.Store.(semel.Sweeper).Sweep(ctx, 100)
	must(t, "Sweep", err)
	if n != 0 {
		t.Fatalf("Sweep removed %d records; want 0", n)
	}
	complete(t, ctx, c, result("new"))
	_, err = h.Store.(semel.Sweeper).Sweep(ctx, 100)
	must(t, "Sweep", err)
	blocked(t, ctx, h.Store, attempt("k"), semel.StateCompleted)

	// A successor that comes while the sweep is under way.
	for round := range 4 {
		key := fmt.Sprint("k", round)
		complete(t, ctx, begin(t, ctx, h.Store, attempt(key)), result("old"))
		h.advance(retention + time.Second)
		var (
			wg                 sync.WaitGroup
			c                  semel.Claim
			beginErr, sweepErr error
		)
		wg.Go(func() { _, sweepErr = h.Store.(semel.Sweeper).Sweep(ctx, 100) })
		wg.Go(func() { c, beginErr = h.Store.Begin(ctx, attempt(key)) })
		wg.Wait()
		must(t, "Begin beside a sweep", beginErr)
		must(t, "Sweep", sweepErr)
		complete(t, ctx, c, result("new"))
		blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted)
	}
}
