package brokenstore

import (
	"time"

	"github.com/semelhq/semel"
)

// What a lease is worth.
var leasing = []Broken{
	{
		Name:   "lapsed-is-free",
		What:   "keeps the claim as a lock that expires, and grants it anew to whoever asks next",
		Breaks: []string{"lapse-is-seen-not-granted", "takeover-needs-the-current-fence"},
		change: func(s *seams) {
			s.mayTake = func(s *store, r row, _ semel.Attempt, now time.Time) bool {
				return r.State == semel.StateInProgress && s.lapsed(r, now)
			}
		},
	},
	{
		Name:   "lapse-without-age",
		What:   "shows a lapsed lease as just lapsed, so nobody can tell when its effects have settled",
		Breaks: []string{"lapse-is-seen-not-granted"},
		change: func(s *seams) {
			s.refuse = func(r row, now time.Time) error {
				rec := r.read(now)
				rec.Lease = max(rec.Lease, 0)
				return &semel.ConflictError{Record: rec}
			}
		},
	},
	{
		Name:   "lapse-ends-the-claim",
		What:   "refuses the result of an owner that was slow, though nobody took over",
		Breaks: []string{"lapsed-claim-may-settle"},
		change: func(s *seams) {
			s.owns = func(r row, c *claim, _ string) bool {
				return r.Fence == c.fence && r.token == c.token &&
					(r.State != semel.StateInProgress || r.leaseEnd.After(time.Now()))
			}
		},
	},
	{
		Name:   "renew-does-nothing",
		What:   "answers heartbeats without writing them",
		Breaks: []string{"renew-extends-the-lease"},
		change: func(s *seams) {
			s.renew = func(*row, time.Duration, time.Time) (semel.TrailKind, error) { return "", nil }
		},
	},
	{
		Name:   "renew-adds-up",
		What:   "adds each heartbeat's lease to the last, so a dead owner blocks for as long as it lived",
		Breaks: []string{"renew-extends-the-lease"},
		change: func(s *seams) {
			s.renew = func(r *row, lease time.Duration, _ time.Time) (semel.TrailKind, error) {
				return renew(r, lease, r.leaseEnd)
			}
		},
	},
	{
		Name:   "renew-revives",
		What:   "puts a record that was marked unknown back in progress at a late heartbeat",
		Breaks: []string{"unknown-is-not-renewed"},
		change: func(s *seams) {
			s.renew = func(r *row, lease time.Duration, now time.Time) (semel.TrailKind, error) {
				if r.State == semel.StateUnknown {
					r.State = semel.StateInProgress
				}
				return renew(r, lease, now)
			}
		},
	},
	{
		Name:   "takeover-of-the-living",
		What:   "grants a takeover without looking at the lease",
		Breaks: []string{"takeover-needs-a-lapsed-lease"},
		change: func(s *seams) {
			s.mayTake = func(_ *store, r row, a semel.Attempt, _ time.Time) bool {
				return a.Takeover == r.Fence && r.State != semel.StateCompleted
			}
		},
	},
	{
		Name:   "takeover-of-the-completed",
		What:   "looks at the fence and the lease but not at the state, and executes again",
		Breaks: []string{"takeover-needs-a-lapsed-lease"},
		change: func(s *seams) {
			s.mayTake = func(s *store, r row, a semel.Attempt, now time.Time) bool {
				return a.Takeover == r.Fence && (r.State == semel.StateUnknown || s.lapsed(r, now))
			}
		},
	},
	{
		Name:   "takeover-of-what-was-not-seen",
		What:   "grants a takeover of whatever claim there is now, not of the one that was seen",
		Breaks: []string{"takeover-needs-the-current-fence"},
		change: func(s *seams) {
			s.mayTake = func(s *store, r row, a semel.Attempt, now time.Time) bool {
				return a.Takeover != 0 && s.unsettled(s, r, now)
			}
		},
	},
	{
		Name:   "takeover-by-a-higher-fence",
		What:   "compares the fence seen with >= and so grants a takeover of what is yet to come",
		Breaks: []string{"takeover-needs-the-current-fence"},
		change: func(s *seams) {
			s.mayTake = func(s *store, r row, a semel.Attempt, now time.Time) bool {
				return a.Takeover >= r.Fence && s.unsettled(s, r, now)
			}
		},
	},
	{
		Name:   "takeover-changes-the-request",
		What:   "puts the taker's fingerprint in the record, so the first request is now a mismatch",
		Breaks: []string{"takeover-keeps-the-record"},
		change: func(s *seams) {
			s.take = func(r *row, a semel.Attempt) {
				take(r, a)
				r.Fingerprint = a.Fingerprint
			}
		},
	},
	{
		Name:   "takeover-renames-the-record",
		What:   "gives the record a new id, so the status link handed out before leads nowhere",
		Breaks: []string{"takeover-keeps-the-record"},
		change: func(s *seams) {
			s.take = func(r *row, a semel.Attempt) {
				take(r, a)
				r.ID = semel.NewRecordID()
			}
		},
	},
	{
		Name:   "takeover-keeps-the-fence",
		What:   "gives the taker the fence of the one it took over from, so effects cannot tell them apart",
		Breaks: []string{"takeover-needs-the-current-fence"},
		change: func(s *seams) {
			next := s.next
			s.next = func(s *store, id semel.Identity) uint64 {
				if r := s.rows[id]; r.State == semel.StateInProgress || r.State == semel.StateUnknown {
					return r.Fence
				}
				return next(s, id)
			}
		},
	},
	{
		Name:   "takeover-check-then-act",
		What:   "looks at the lapsed lease, then takes over; others look in between",
		Breaks: []string{"one-takeover-of-many", "resolve-as-execute-again"},
		change: func(s *seams) { s.gap = raceAt("takeover") },
	},
	{
		Name:   "late-complete-check-then-act",
		What:   "looks at the fence, then writes the result, over a takeover that came in between",
		Breaks: []string{"late-write-or-takeover-not-both"},
		change: func(s *seams) { s.gap, s.delay = raceAt("complete"), meet("begin") },
	},
	{
		Name:   "late-release-check-then-act",
		What:   "looks at the fence, then deletes the record, of a takeover that came in between",
		Breaks: []string{"late-write-or-takeover-not-both"},
		change: func(s *seams) { s.gap, s.delay = raceAt("release"), meet("begin") },
	},
}
