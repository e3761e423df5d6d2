package brokenstore

import (
	"context"
	"math"
	"time"

	"github.com/semelhq/semel"
)

// What a sweep removes.
var sweeping = []Broken{
	{
		Name:   "sweep-of-the-lapsed",
		What:   "cleans up records in progress whose owner seems dead",
		Breaks: []string{"sweep-removes-only-expired"},
		change: func(s *seams) {
			s.sweepable = func(s *store, r row, now time.Time) bool {
				return expired(r, now) || r.State == semel.StateInProgress && s.lapsed(r, now)
			}
		},
	},
	{
		Name:   "sweep-of-the-unknown",
		What:   "cleans up records whose outcome nobody has settled",
		Breaks: []string{"sweep-removes-only-expired"},
		change: func(s *seams) {
			s.sweepable = func(_ *store, r row, now time.Time) bool {
				return expired(r, now) || r.State == semel.StateUnknown
			}
		},
	},
	{
		Name:   "sweep-of-the-completed",
		What:   "cleans up results that are still owed to retries",
		Breaks: []string{"retention-is-kept", "sweep-removes-only-expired"},
		change: func(s *seams) {
			s.sweepable = func(_ *store, r row, _ time.Time) bool { return r.State == semel.StateCompleted }
		},
	},
	{
		Name:   "sweep-by-appointment",
		What:   "removes at the appointed time what has the identity then, be it a successor",
		Breaks: []string{"sweep-spares-a-successor"},
		change: func(s *seams) {
			due := make(map[semel.Identity]time.Time)
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				kind, err := complete(r, res, now)
				due[r.Identity] = r.ExpiresAt
				return kind, err
			}
			s.sweepable = func(_ *store, r row, now time.Time) bool {
				at, ok := due[r.Identity]
				return ok && !at.After(now)
			}
		},
	},
	{
		Name:   "sweep-check-then-act",
		What:   "lists what has expired, then deletes it by identity, successors included",
		Breaks: []string{"sweep-spares-a-successor"},
		change: func(s *seams) { s.gap, s.delay = raceAt("sweep"), meet("begin") },
	},
	{
		Name:   "sweep-without-bound",
		What:   "removes all that has expired at once, however long the others wait",
		Breaks: []string{"sweep-is-bounded"},
		wrap:   func(s *store) semel.Store { return sweepWithoutBound{s} },
	},
}

type sweepWithoutBound struct{ *store }

func (s sweepWithoutBound) Sweep(ctx context.Context, _ int) (int, error) {
	return s.store.Sweep(ctx, math.MaxInt)
}
