package semel

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Find returns the record of id, or ErrNotFound. Like all look-ups of a guard, it
// takes no longer than the policy's StoreTimeout. If the result cannot be decrypted,
// the error is ErrUnreadable, and the record is returned without it.
func (g *Guard) Find(ctx context.Context, id Identity) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
	defer cancel()
	r, err := g.store.Find(ctx, id)
	if err != nil {
		return r, err
	}
	return g.opened(ctx, id, r)
}

// opened returns r with its result decrypted or, if that fails, with nothing of the
// result but its label.
func (g *Guard) opened(ctx context.Context, id Identity, r Record) (_ Record, err error) {
	if r.State != StateCompleted {
		return r, nil
	}
	label := r.Result.Label
	if r.Result, err = g.cipher.decrypt(id, r.Result); err != nil {
		r.Result = Result{Label: label}
		if g.observe.StoreFailed != nil {
			g.observe.StoreFailed(ctx, StoreFailed{Scope: id.Scope, RecordID: r.ID, Call: "decrypt", Err: err})
		}
	}
	return r, err
}

// FindID returns the record with the given ID if it belongs to the tenant and the
// actor of s, whatever its operation. Otherwise the error is ErrNotFound. It wraps
// errors.ErrUnsupported unless the store implements Lister.
func (g *Guard) FindID(ctx context.Context, s Scope, recordID string) (Record, error) {
	lister, ok := g.store.(Lister)
	if !ok {
		return Record{}, fmt.Errorf("semel: %T does not implement Lister: %w", g.store, errors.ErrUnsupported)
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

// Await waits until the identity is not being executed, or until wait has passed
// or ctx has ended, and returns the record as it is then. The error is ErrNotFound
// if there is none, as after a release, and if another record has replaced the
// first one found.
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
