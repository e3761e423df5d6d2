package brokenstore

import (
	"context"
	"errors"
	"time"

	"github.com/semelhq/semel"
)

// What makes a claim stale.
var fencing = []Broken{
	{
		Name:   "no-fence",
		What:   "lets whoever once held the claim write: the owner that was paused overwrites its successor",
		Breaks: []string{"stale-claim-cannot-write", "fences-survive-deletion"},
		change: func(s *seams) { s.owns = func(row, *claim, string) bool { return true } },
	},
	{
		Name:   "release-without-fence",
		What:   "checks the fence at every write but the one that deletes",
		Breaks: []string{"stale-claim-cannot-write"},
		change: func(s *seams) { s.owns = unfenced("release") },
	},
	{
		Name:   "complete-without-fence",
		What:   "checks the fence at every write but the last",
		Breaks: []string{"stale-claim-cannot-write"},
		change: func(s *seams) { s.owns = unfenced("complete") },
	},
	{
		Name:   "renew-without-fence",
		What:   "renews the lease for an owner that has lost it, which so never learns",
		Breaks: []string{"stale-claim-cannot-write"},
		change: func(s *seams) { s.owns = unfenced("renew") },
	},
	{
		Name:   "hold-without-fence",
		What:   "lets an owner that has lost its claim mark its successor's unknown",
		Breaks: []string{"stale-claim-cannot-write"},
		change: func(s *seams) { s.owns = unfenced("hold") },
	},
	{
		Name:   "refuses-after-writing",
		What:   "writes the result first and finds out then that the claim is lost",
		Breaks: []string{"stale-claim-cannot-write"},
		change: func(s *seams) {
			s.claim = func(c *claim) semel.Claim { return refusesAfterWriting{c} }
		},
	},
	{
		Name:   "fence-restarts-after-delete",
		What:   "counts fences in the record, so a claim is good again once the record was deleted and claimed anew",
		Breaks: []string{"fences-survive-deletion"},
		change: func(s *seams) {
			s.next = func(s *store, id semel.Identity) uint64 { return s.rows[id].Fence + 1 }
			s.owns = func(r row, c *claim, _ string) bool { return r.Fence == c.fence }
		},
	},
	{
		Name:   "fence-of-the-identity",
		What:   "counts fences for each identity, so effects that span identities cannot compare them",
		Breaks: []string{"fences-rise-store-wide"},
		change: func(s *seams) {
			last := make(map[semel.Identity]uint64)
			s.next = func(_ *store, id semel.Identity) uint64 { last[id]++; return last[id] }
		},
	},
	{
		Name:   "fences-in-blocks",
		What:   "hands each process a block of fences, as a cached sequence does, so they do not rise across processes",
		Breaks: []string{"fences-rise-store-wide"},
		wrap: func(s *store) semel.Store {
			var last uint64
			s.next = func(s *store, _ semel.Identity) uint64 {
				if last%100 == 0 {
					last = s.fence
					s.fence += 100
				}
				last++
				return last
			}
			return s
		},
	},
	{
		Name:   "no-token",
		What:   "trusts the fence alone, which repeats once the store was restored from a backup",
		Breaks: []string{"claims-end-with-a-restore"},
		change: func(s *seams) {
			s.owns = func(r row, c *claim, _ string) bool { return r.Fence == c.fence }
		},
	},
}

type refusesAfterWriting struct{ *claim }

func (c refusesAfterWriting) Complete(ctx context.Context, res semel.Result) (time.Time, error) {
	expires, err := c.claim.Complete(ctx, res)
	if errors.Is(err, semel.ErrLostClaim) {
		s := c.store
		s.mu.Lock()
		defer s.mu.Unlock()
		if r := s.rows[c.id]; r.State != 0 {
			r.Result = res
			s.rows[c.id] = r
		}
	}
	return expires, err
}

// unfenced checks fence and token except in one call.
func unfenced(exempt string) func(row, *claim, string) bool {
	return func(r row, c *claim, call string) bool {
		return call == exempt || r.Fence == c.fence && r.token == c.token
	}
}
