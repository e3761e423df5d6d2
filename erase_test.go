package semel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// eraseStore has calls of Erase fail, or told of.
type eraseStore struct {
	*memory.Store
	before func() error
}

func (s *eraseStore) Erase(ctx context.Context, e semel.Erasure) (bool, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return false, err
		}
	}
	return s.Store.Erase(ctx, e)
}

// TestEraseWhere: of a tenant's records all completed ones lose their answers, over
// several pages, once, even if the run is interrupted; what is open, and what is
// another tenant's, stays as it is.
func TestEraseWhere(t *testing.T) {
	inner, err := memory.New(memory.Config{MaxTrail: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	store := &eraseStore{Store: inner}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(tenant, key string) semel.Claim {
		id := semel.Identity{Scope: semel.Scope{Tenant: tenant, Actor: "a", Operation: "o"}, Key: key}
		c, err := store.Begin(t.Context(), semel.NewAttempt(id, semel.FingerprintOf([]byte("x")), time.Hour, time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	complete := func(tenant, key string) {
		if _, err := begin(tenant, key).Complete(t.Context(), semel.Result{Codec: "c/1", Body: []byte("answer"), Label: "201"}); err != nil {
			t.Fatal(err)
		}
	}
	const n = 2500
	for i := range n {
		complete("acme", fmt.Sprint(i))
	}
	complete("other", "0")
	begin("acme", "running")
	if err := begin("acme", "unknown").Hold(t.Context(), "cut off"); err != nil {
		t.Fatal(err)
	}
	bare := func() (count int) {
		f := semel.Filter{Tenant: "acme", State: semel.StateCompleted, Limit: 1000}
		for {
			page, err := store.List(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page {
				full, err := store.Find(t.Context(), r.Identity)
				if err != nil {
					t.Fatal(err)
				}
				if full.Erased() {
					count++
				} else if string(full.Result.Body) != "answer" {
					t.Fatalf("half of an answer: %+v", full)
				}
			}
			if len(page) < f.Limit {
				return count
			}
			f.After = page[len(page)-1].Fence
		}
	}
	all := semel.BulkErasure{Where: semel.Filter{Tenant: "acme"}, Cause: "they asked", Origin: semel.Origin{RequestID: "operator"}}

	dry, seen := all, 0
	dry.DryRun, dry.Seen = true, func(semel.Record) { seen++ }
	report, err := guard.EraseWhere(t.Context(), dry)
	if want := (semel.ErasureReport{Completed: n, Open: 2, Next: report.Next}); err != nil || report != want || seen != n+2 || bare() != 0 {
		t.Fatalf("the dry run reports %+v, %v, saw %d and erased %d", report, err, seen, bare())
	}

	// Interrupted on the second page.
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := all
	interrupted.Progress = func(r semel.ErasureReport) { cancel() }
	first, err := guard.EraseWhere(ctx, interrupted)
	if !errors.Is(err, context.Canceled) || first.Erased != 1000 || bare() != 1000 {
		t.Fatalf("interrupted, it reports %+v, %v and erased %d", first, err, bare())
	}
	// With an error, what is in doubt is told.
	store.before = func() error { return errors.New("the disk is full") }
	failed, err := guard.EraseWhere(t.Context(), all)
	if err == nil || failed.InDoubt == 0 || failed.Erased != 0 {
		t.Fatalf("without the store it reports %+v, %v", failed, err)
	}
	store.before = nil
	for _, want := range []semel.ErasureReport{{Erased: n - 1000, Bare: 1000}, {Bare: n}} {
		report, err := guard.EraseWhere(t.Context(), all)
		if err != nil || report.Erased != want.Erased || report.Bare != want.Bare || report.Open != 2 || report.Completed != n || bare() != n {
			t.Fatalf("the run reports %+v, %v and erased %d", report, err, bare())
		}
	}
	on := all
	on.Where.After = first.Next // only what is behind the page that was done
	if report, err := guard.EraseWhere(t.Context(), on); err != nil || report.Completed != n-1000 {
		t.Fatalf("from the second page on it reports %+v, %v", report, err)
	}
	if r, err := store.Find(t.Context(), semel.Identity{Scope: semel.Scope{Tenant: "other", Actor: "a", Operation: "o"}, Key: "0"}); err != nil || string(r.Result.Body) != "answer" {
		t.Fatalf("another tenant's record reads %+v, %v", r, err)
	}
	told, f := 0, semel.TrailFilter{Kind: semel.TrailErased, Limit: 1000}
	for {
		page, err := store.Trail(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		told += len(page)
		if len(page) < f.Limit {
			break
		}
		f.After = page[len(page)-1].Position
	}
	if told != n {
		t.Fatalf("the trail tells of %d erasures; want %d", told, n)
	}

	for _, wrong := range []semel.BulkErasure{
		{}, {Where: semel.Filter{Operation: "o"}}, {Where: semel.Filter{Tenant: "acme", State: semel.StateUnknown}}, {Where: semel.Filter{Tenant: "acme"}, Parallel: -1},
	} {
		if _, err := guard.EraseWhere(t.Context(), wrong); err == nil {
			t.Errorf("%+v is accepted", wrong)
		}
	}
	none, err := semel.New(semel.Config{Store: struct{ semel.Store }{inner}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.EraseWhere(t.Context(), all); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a store that cannot erase: %v", err)
	}
	if _, err := none.Resolve(t.Context(), semel.Resolution{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a store that cannot resolve: %v", err)
	}
}
