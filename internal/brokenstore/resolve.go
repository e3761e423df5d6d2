package brokenstore

import (
	"time"

	"github.com/semelhq/semel"
)

// How unknown outcomes are settled.
var resolving = []Broken{
	{
		Name:   "unknown-ends-the-claim",
		What:   "gives a lapsed record a new fence when it marks it unknown, so the owner's result is refused",
		Breaks: []string{"resolve-as-unknown-keeps-the-claim"},
		change: func(s *seams) {
			s.resolve = func(s *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
				r = resolve(s, r, d, fence, now)
				if d.Decision == semel.DecideUnknown {
					r.Fence = fence()
				}
				return r
			}
		},
	},
	{
		Name:   "complete-after-resolve",
		What:   "leaves the claim alive when an operator records the result",
		Breaks: []string{"resolve-with-a-result"},
		change: func(s *seams) {
			s.resolve = func(s *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
				after := resolve(s, r, d, fence, now)
				if d.Decision == semel.DecideResult {
					after.Fence = r.Fence
				}
				return after
			}
		},
	},
	{
		Name:   "no-effect-keeps-the-record",
		What:   "puts a record resolved as no effect back in progress instead of removing it",
		Breaks: []string{"resolve-as-no-effect"},
		change: func(s *seams) {
			s.resolve = func(s *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
				if d.Decision == semel.DecideNoEffect {
					r.State = semel.StateInProgress
					return r
				}
				return resolve(s, r, d, fence, now)
			}
		},
	},
	{
		Name:   "execute-again-keeps-the-claim",
		What:   "reopens a record under its old fence, so the old owner and the new both write",
		Breaks: []string{"resolve-as-execute-again"},
		change: func(s *seams) {
			s.resolve = func(s *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
				after := resolve(s, r, d, fence, now)
				if d.Decision == semel.DecideExecuteAgain {
					after.Fence, after.token = r.Fence, r.token
				}
				return after
			}
		},
	},
	{
		Name:   "execute-again-keeps-the-token",
		What:   "reopens a record under its old token, so the old owner's repeated Begin claims it unseen",
		Breaks: []string{"resolve-as-execute-again"},
		change: func(s *seams) {
			s.resolve = func(s *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
				after := resolve(s, r, d, fence, now)
				after.token = r.token
				return after
			}
		},
	},
	{
		Name:   "execute-again-forgets-the-request",
		What:   "reopens a record for any request under its key",
		Breaks: []string{"resolve-as-execute-again"},
		change: func(s *seams) {
			s.resolve = func(s *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
				r = resolve(s, r, d, fence, now)
				if d.Decision == semel.DecideExecuteAgain {
					r.Fingerprint = semel.Fingerprint{}
				}
				return r
			}
		},
	},
	{
		Name:   "reopened-for-good",
		What:   "leaves a record reopened after the one more execution it was reopened for",
		Breaks: []string{"resolve-as-execute-again"},
		change: func(s *seams) {
			s.take = func(r *row, a semel.Attempt) {
				reopened := r.Reopened
				take(r, a)
				r.Reopened = reopened
			}
		},
	},
	{
		Name:   "resolve-of-the-unmarked",
		What:   "settles a record that has merely lapsed, whose owner may come back after somebody looked",
		Breaks: []string{"resolve-needs-a-mark-first"},
		change: func(s *seams) {
			s.settles = func(s *store, r row, d semel.Resolution, now time.Time) bool {
				return d.Fence == r.Fence && s.unsettled(s, r, now)
			}
		},
	},
	{
		Name:   "mark-leaves-reopened",
		What:   "marks a reopened record unknown, and lets it be executed again all the same",
		Breaks: []string{"resolve-needs-a-mark-first"},
		change: func(s *seams) {
			s.resolve = func(st *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
				reopened := r.Reopened
				r = resolve(st, r, d, fence, now)
				if d.Decision == semel.DecideUnknown {
					r.Reopened = reopened
				}
				return r
			}
		},
	},
	{
		Name:   "resolve-of-what-was-not-seen",
		What:   "settles whatever claim there is now, not the one that the operator looked at",
		Breaks: []string{"resolve-needs-the-current-fence"},
		change: func(s *seams) {
			s.settles = func(s *store, r row, _ semel.Resolution, now time.Time) bool { return s.unsettled(s, r, now) }
		},
	},
	{
		Name:   "resolve-of-the-living",
		What:   "settles a record whose owner is at work",
		Breaks: []string{"resolve-leaves-the-living-alone"},
		change: func(s *seams) {
			s.settles = func(_ *store, r row, d semel.Resolution, _ time.Time) bool {
				return d.Fence == r.Fence && r.State != semel.StateCompleted
			}
		},
	},
	{
		Name:   "resolve-of-the-completed",
		What:   "looks at the fence and the lease but not at the state, and settles what is settled",
		Breaks: []string{"resolve-leaves-the-living-alone"},
		change: func(s *seams) {
			s.settles = func(s *store, r row, d semel.Resolution, now time.Time) bool {
				return d.Fence == r.Fence && (r.State == semel.StateUnknown || s.lapsed(r, now))
			}
		},
	},
	{
		Name:   "resolve-check-then-act",
		What:   "looks whether the record is unknown, then settles it; another operator looks in between",
		Breaks: []string{"one-resolution-of-many"},
		change: func(s *seams) { s.gap = raceAt("resolve") },
	},
}
