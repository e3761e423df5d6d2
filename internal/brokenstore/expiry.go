package brokenstore

import (
	"time"

	"github.com/semelhq/semel"
)

// When records end.
var timing = []Broken{
	{
		Name:   "retention-from-begin",
		What:   "counts the retention from the claim, so a slow operation's result is gone at once",
		Breaks: []string{"retention-starts-at-completion"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				kind, err := complete(r, res, now)
				r.ExpiresAt = r.BegunAt.Add(r.Retention)
				return kind, err
			}
		},
	},
	{
		Name:   "retention-of-its-own",
		What:   "keeps every result for as long as the store is configured to, whatever was asked for",
		Breaks: []string{"replay-is-exact", "expired-is-absent"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				kind, err := complete(r, res, now)
				r.ExpiresAt = r.SettledAt.Add(48 * time.Hour)
				return kind, err
			}
		},
	},
	{
		Name:   "end-from-begin",
		What:   "gives a record an end before it is completed",
		Breaks: []string{"conflict-shows-the-record"},
		change: func(s *seams) {
			s.create = func(old row, a semel.Attempt, now time.Time) row {
				r := create(old, a, now)
				r.ExpiresAt = now.Add(a.Retention)
				return r
			}
		},
	},
	{
		Name:   "early-expiry",
		What:   "lets results go before their time, as an eviction does",
		Breaks: []string{"retention-is-kept"},
		change: func(s *seams) {
			s.expired = func(r row, now time.Time) bool { return expired(r, now.Add(time.Hour)) }
		},
	},
	{
		Name:   "expired-answers",
		What:   "replays an expired record until a sweep has come by",
		Breaks: []string{"expired-is-absent"},
		change: func(s *seams) {
			s.expired = func(row, time.Time) bool { return false }
			s.sweepable = func(_ *store, r row, now time.Time) bool { return expired(r, now) }
		},
	},
	{
		Name:   "expired-lingers-in-the-row",
		What:   "updates an expired row into its successor and leaves some of it there",
		Breaks: []string{"expired-is-absent"},
		change: func(s *seams) {
			s.create = func(old row, a semel.Attempt, now time.Time) row {
				r := create(old, a, now)
				r.Result.Tombstone, r.Result.Reference = old.Result.Tombstone, old.Result.Reference
				return r
			}
		},
	},
	{
		Name:   "expired-lends-its-id",
		What:   "gives a successor the id of the expired record, so its status link tells of another request",
		Breaks: []string{"expired-is-absent"},
		change: func(s *seams) {
			s.create = func(old row, a semel.Attempt, now time.Time) row {
				r := create(old, a, now)
				if old.ID != "" {
					r.ID = old.ID
				}
				return r
			}
		},
	},
	{
		Name:   "no-deadline-is-a-past-one",
		What:   "takes a record that has no end yet for one that has ended",
		Breaks: []string{"one-claim-of-many", "conflict-shows-the-record"},
		change: func(s *seams) {
			s.expired = func(r row, now time.Time) bool { return !r.ExpiresAt.After(now) }
		},
	},
	{
		Name:   "claims-expire",
		What:   "lets a record in progress go when the retention has passed since it began",
		Breaks: []string{"lapse-is-seen-not-granted", "sweep-removes-only-expired"},
		change: func(s *seams) {
			s.expired = func(r row, now time.Time) bool {
				return expired(r, now) || r.State == semel.StateInProgress && !r.BegunAt.Add(r.Retention).After(now)
			}
		},
	},
	{
		Name:   "unknown-expires",
		What:   "frees an identity whose outcome nobody has settled",
		Breaks: []string{"hold-blocks", "sweep-removes-only-expired"},
		change: func(s *seams) {
			s.expired = func(r row, now time.Time) bool {
				return expired(r, now) || r.State == semel.StateUnknown && !r.SettledAt.Add(r.Retention).After(now)
			}
		},
	},
	{
		Name:   "callers-clock",
		What:   "judges leases and retention by the clock of whoever asks",
		Breaks: []string{"store-clock-decides"},
		change: func(s *seams) { s.now = func(s *store) time.Time { return time.Now().Add(s.skew) } },
	},
}
