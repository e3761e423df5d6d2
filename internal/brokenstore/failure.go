package brokenstore

import (
	"context"
	"errors"

	"github.com/semelhq/semel"
)

// What happens when the store cannot, or must not, answer.
var failing = []Broken{
	{
		Name:   "ignores-context",
		What:   "goes on with a call whose caller has gone",
		Breaks: []string{"cancelled-context-is-obeyed"},
		change: func(s *seams) {
			s.reach = func(s *store, ctx context.Context, call string) error {
				return reach(s, context.WithoutCancel(ctx), call)
			}
		},
	},
	{
		Name:   "claim-of-its-request",
		What:   "ends a claim with the request that began it: who hangs up cuts the work off",
		Breaks: []string{"claim-outlives-its-begin"},
		wrap:   func(s *store) semel.Store { return claimOfItsRequest{s} },
	},
	{
		Name:   "hangs-in-an-outage",
		What:   "waits for its records to come back, whatever the caller's deadline says",
		Breaks: []string{"outage-fails-closed"},
		change: func(s *seams) {
			s.reach = func(s *store, ctx context.Context, call string) error {
				s.mu.Lock()
				down := s.down
				s.mu.Unlock()
				if down != nil {
					<-down
				}
				return reach(s, ctx, call)
			}
		},
	},
	{
		Name:   "fail-open",
		What:   "grants claims that it cannot record",
		Breaks: []string{"outage-fails-closed"},
		wrap:   func(s *store) semel.Store { return failOpen{s} },
	},
	{
		Name:   "outage-reads-as-absent",
		What:   "says that there is no record when it cannot look",
		Breaks: []string{"outage-fails-closed"},
		wrap:   func(s *store) semel.Store { return outageReadsAsAbsent{s} },
	},
	{
		Name:   "outage-is-a-lost-claim",
		What:   "tells an owner that its claim is lost when it cannot know, so the result is thrown away",
		Breaks: []string{"outage-fails-closed"},
		change: func(s *seams) {
			s.reach = func(s *store, ctx context.Context, call string) error {
				err := reach(s, ctx, call)
				if errors.Is(err, errOutage) && call == "complete" {
					return semel.ErrLostClaim
				}
				return err
			}
		},
	},
	{
		Name:   "heartbeat-failures-swallowed",
		What:   "reports a lease as renewed that it could not write",
		Breaks: []string{"outage-fails-closed"},
		change: func(s *seams) {
			s.claim = func(c *claim) semel.Claim { return swallowsHeartbeats{c} }
		},
	},
}

type claimOfItsRequest struct{ *store }

func (s claimOfItsRequest) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	own := *s.store
	own.reach = func(st *store, call context.Context, name string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return s.reach(st, call, name)
	}
	return own.Begin(ctx, a)
}

type failOpen struct{ *store }

func (s failOpen) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.store.Begin(ctx, a)
	if errors.Is(err, errOutage) {
		return &claim{store: s.store, id: a.Identity, record: semel.NewRecordID(), fence: 1, token: a.Token, lease: a.Lease}, nil
	}
	return c, err
}

type outageReadsAsAbsent struct{ *store }

func (s outageReadsAsAbsent) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	r, err := s.store.Find(ctx, id)
	if errors.Is(err, errOutage) {
		return r, semel.ErrNotFound
	}
	return r, err
}

type swallowsHeartbeats struct{ *claim }

func (c swallowsHeartbeats) Renew(ctx context.Context) error {
	err := c.claim.Renew(ctx)
	if errors.Is(err, errOutage) {
		return nil
	}
	return err
}
