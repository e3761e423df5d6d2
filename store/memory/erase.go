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
	// Another record in its place: who was told of it goes on reading it, and the
	// claim that has completed it is answered by it.
	bare := *r
	bare.Record = &bare.conflict.Record
	bare.Fingerprint = semel.Fingerprint{}
	bare.Result = semel.Result{Codec: r.Result.Codec, Label: r.Result.Label, Tombstone: true}
	s.records[r.Identity], s.expiry[r.place] = &bare, &bare
	s.enter(now, semel.TrailErased, &bare, e.Origin, "", e.Cause)
	return true, nil
}
