package semel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Find returns the record of id, or ErrNotFound. Like every look-up of the guard
// it takes the policy's StoreTimeout at most.
func (g *Guard) Find(ctx context.Context, id Identity) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	return g.store.Find(ctx, id)
}

// FindID returns the record with this opaque id if it belongs to the scope's
// tenant and actor, of whatever operation; otherwise, and if there is none, the
// error is ErrNotFound. It is errors.ErrUnsupported if the store is no Lister.
func (g *Guard) FindID(ctx context.Context, s Scope, recordID string) (Record, error) {
	lister, ok := g.store.(Lister)
	if !ok {
		return Record{}, fmt.Errorf("semel: %T is no Lister: %w", g.store, errors.ErrUnsupported)
	}
	if recordID == "" { // would select any
		return Record{}, ErrNotFound
	}
	lctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	found, err := lister.List(lctx, Filter{ID: recordID, Tenant: s.Tenant, Actor: s.Actor, Limit: 2})
	if err != nil {
		return Record{}, err
	}
	for _, r := range found {
		// An empty field of a filter selects all, but an empty part of a
		// scope is one like any other.
		if r.ID == recordID && r.Identity.Tenant == s.Tenant && r.Identity.Actor == s.Actor {
			whole, err := g.Find(ctx, r.Identity)
			if err == nil && whole.ID != recordID {
				err = ErrNotFound // replaced meanwhile
			}
			return whole, err
		}
	}
	return Record{}, ErrNotFound
}

// Await returns the record of id as soon as nobody is executing it any more, or
// as it is when the wait or ctx ends. The error is ErrNotFound where there is
// none, after a release, and if another record has replaced it meanwhile.
func (g *Guard) Await(ctx context.Context, id Identity, wait time.Duration) (Record, error) {
	w := g.newWaiter(id, wait)
	defer w.leave()
	for first := ""; ; {
		r, err := g.Find(ctx, id)
		if err == nil && first != "" && r.ID != first {
			return Record{}, ErrNotFound
		}
		if err != nil || r.State != StateInProgress || r.Lapsed() || !w.next(ctx, r) {
			return r, err
		}
		first = r.ID
	}
}
