package memory

import (
	"context"
	"time"

	"github.com/semelhq/semel"
)

// Erase implements semel.Eraser.
func (s *Store) Erase(ctx context.Context, e semel.Erasure) (erased bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.find(e.Identity, now)
	switch {
	case r == nil:
		return false, semel.ErrNotFound
	case r.Fence != e.Fence || r.State != semel.StateCompleted:
		return false, semel.ErrStaleFence
	case r.Erased():
		return false, nil
	}
	r.conflict = &semel.ConflictError{Record: *r.Record} // who was told of the former goes on reading it
	r.Record = &r.conflict.Record
	r.Fingerprint = semel.Fingerprint{}
	r.Result = semel.Result{Codec: r.Result.Codec, Label: r.Result.Label, Tombstone: true}
	s.enter(now, semel.TrailErased, r, e.Origin, "", e.Cause)
	return true, nil
}
