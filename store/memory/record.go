package memory

import (
	"container/heap"
	"context"
	"time"

	"github.com/semelhq/semel"
)

type record struct {
	*semel.Record // that of conflict; its Lease is not kept up: leaseEnd is
	conflict      semel.ConflictError
	token         semel.Token
	leaseEnd      time.Time
	place         int  // in the expiry heap, if it is completed
	gone          bool // it has been removed
}

func (r *record) expired(now time.Time) bool {
	return r.State == semel.StateCompleted && !r.ExpiresAt.After(now)
}

// read returns a copy of the record as it is at now.
func (r *record) read(now time.Time) semel.Record {
	out := *r.Record
	out.Lease = r.leaseEnd.Sub(now)
	return out
}

// unsettled reports whether the record may be taken over, or marked unknown.
func (r *record) unsettled(now time.Time) bool {
	return r.State == semel.StateUnknown || r.State == semel.StateInProgress && !r.leaseEnd.After(now)
}

// find returns the record of id unless it has expired. Called with mu held.
func (s *Store) find(id semel.Identity, now time.Time) *record {
	r := s.records[id]
	if r == nil || r.expired(now) {
		return nil
	}
	return r
}

// Find implements semel.Store.
func (s *Store) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	if err := ctx.Err(); err != nil {
		return semel.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.find(id, now)
	if r == nil {
		return semel.Record{}, semel.ErrNotFound
	}
	return r.read(now), nil
}

// remove takes a record out. Called with mu held.
func (s *Store) remove(r *record) {
	r.gone = true
	if r.State == semel.StateCompleted {
		heap.Remove(&s.expiry, r.place)
	}
	delete(s.records, r.Identity)
}

// expiryHeap orders completed records by the end of their retention.
type expiryHeap []*record

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].ExpiresAt.Before(h[j].ExpiresAt) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *expiryHeap) Push(x any) {
	r := x.(*record)
	r.place = len(*h)
	*h = append(*h, r)
}

func (h *expiryHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}
