package brokenstore

import (
	"context"
	"errors"
	"time"

	"github.com/semelhq/semel"
)

// Claims that are transactions.
var transacting = []Broken{
	{
		Name:   "effect-outside-the-transaction",
		What:   "lets the handler work on a connection of its own, whose changes are there at once, and stay",
		Breaks: []string{"transaction-commits-both", "transaction-rolls-back", "transaction-obeys-cancelled-context"},
		tx: func(s *txSeams) {
			s.effect = func(c *txClaim) error {
				if c.state != txLive {
					return errTxDone
				}
				c.store.effects++
				return nil
			}
		},
	},
	{
		Name:   "record-behind-the-effect",
		What:   "commits the handler's changes, then writes the record: a crash in between executes again",
		Breaks: []string{"transaction-commits-both", "lost-commit-is-learned"},
		tx: func(s *txSeams) {
			s.commit = func(c *txClaim, r row, res semel.Result, now time.Time) {
				c.store.effects += c.done
				c.later(func() { c.record(r, res, now) })
			}
		},
	},
	{
		Name:   "effect-behind-the-record",
		What:   "commits the record, then the handler's changes: a crash in between loses them for good",
		Breaks: []string{"transaction-commits-both", "lost-commit-is-learned"},
		tx: func(s *txSeams) {
			s.commit = func(c *txClaim, r row, res semel.Result, now time.Time) {
				c.record(r, res, now)
				c.later(func() { c.store.effects += c.done })
			}
		},
	},
	{
		Name:   "release-commits",
		What:   "commits what the handler did when the claim is released",
		Breaks: []string{"transaction-rolls-back"},
		tx:     undoes("release"),
	},
	{
		Name:   "hold-commits",
		What:   "commits what the handler did when nobody knows what it did",
		Breaks: []string{"transaction-rolls-back"},
		tx:     undoes("hold"),
	},
	{
		Name:   "late-writes-land",
		What:   "takes what a handler does after the end of its transaction, each change by itself",
		Breaks: []string{"transaction-ends-with-its-claim"},
		tx: func(s *txSeams) {
			s.effect = func(c *txClaim) error {
				if c.state == txLive {
					c.done++
				} else {
					c.store.effects++
				}
				return nil
			}
		},
	},
	{
		Name:   "failure-keeps-its-effect",
		What:   "records a failure and commits what was done before it failed",
		Breaks: []string{"transaction-keeps-no-failed-effect"},
		tx: func(s *txSeams) {
			s.commit = func(c *txClaim, r row, res semel.Result, now time.Time) {
				res.Failed = false
				commitTx(c, r, res, now)
			}
		},
	},
	{
		Name:   "no-lock",
		What:   "looks for a record alone, and does not see transactions under way",
		Breaks: []string{"one-claim-of-many", "transaction-blocks-others"},
		tx: func(s *txSeams) {
			s.blocks = func(*txClaim, time.Time) error { return nil }
		},
	},
	{
		Name:   "lock-with-a-lease",
		What:   "lets a transaction's lock lapse while the transaction goes on",
		Breaks: []string{"transaction-blocks-others"},
		tx: func(s *txSeams) {
			blocks := s.blocks
			s.blocks = func(c *txClaim, now time.Time) error {
				if now.Sub(c.begun) > c.attempt.Lease {
					return nil
				}
				return blocks(c, now)
			}
		},
	},
	{
		Name:   "lock-reads-as-lapsed",
		What:   "says of a transaction under way that its lease is over, since it has none",
		Breaks: []string{"transaction-blocks-others"},
		tx: func(s *txSeams) {
			s.blocks = func(c *txClaim, _ time.Time) error {
				return &semel.ConflictError{Record: semel.Record{Identity: c.attempt.Identity, State: semel.StateInProgress}}
			}
		},
	},
	{
		Name:   "lock-reads-as-another-request",
		What:   "says of a transaction under way that it is another request's, which it cannot see",
		Breaks: []string{"transaction-blocks-others"},
		tx: func(s *txSeams) {
			s.blocks = func(c *txClaim, _ time.Time) error {
				return &semel.ConflictError{Record: semel.Record{
					Identity: c.attempt.Identity, State: semel.StateInProgress, Lease: time.Second,
					Fingerprint: semel.FingerprintOf(nil),
				}}
			}
		},
	},
	{
		Name:   "insert-only",
		What:   "finds an expired record in the way of the new one only when all is done",
		Breaks: []string{"transaction-replaces-the-expired"},
		tx:     func(s *txSeams) { s.replaces = func(row) bool { return false } },
	},
	{
		Name:   "update-of-the-expired",
		What:   "writes the new result over the expired one and leaves what the new one lacks",
		Breaks: []string{"transaction-replaces-the-expired"},
		tx: func(s *txSeams) {
			s.final = func(c *txClaim, was row, res semel.Result, now time.Time) row {
				r := writeTx(c, was, res, now)
				if r.Result.Reference == "" {
					r.Result.Reference = was.Result.Reference
				}
				return r
			}
		},
	},
	{
		Name:   "transaction-ignores-context",
		What:   "goes on with a call whose caller has gone",
		Breaks: []string{"transaction-obeys-cancelled-context"},
		tx: func(s *txSeams) {
			s.reach = func(s *txStore, ctx context.Context, call string) error {
				return reach(s.store, context.WithoutCancel(ctx), call)
			}
		},
	},
	{
		Name:   "cancelled-call-ends-the-transaction",
		What:   "rolls back because one call's caller has gone",
		Breaks: []string{"transaction-obeys-cancelled-context"},
		tx: func(s *txSeams) {
			s.reach = func(s *txStore, ctx context.Context, call string) error {
				err := reach(s.store, ctx, call)
				if ctx.Err() != nil && call == "renew" {
					s.mu.Lock()
					defer s.mu.Unlock()
					for _, c := range s.locks {
						c.end(txRolledBack)
					}
				}
				return err
			}
		},
	},
	{
		Name:   "lock-without-a-look",
		What:   "grants a claim without having seen the records",
		Breaks: []string{"transaction-fails-closed-in-an-outage"},
		tx: func(s *txSeams) {
			s.reach = func(s *txStore, ctx context.Context, call string) error {
				err := reach(s.store, ctx, call)
				if errors.Is(err, errOutage) && call == "begin" {
					return nil
				}
				return err
			}
		},
	},
	{
		Name:   "outage-is-a-rollback",
		What:   "says that a transaction was rolled back when it has lost sight of it",
		Breaks: []string{"transaction-fails-closed-in-an-outage"},
		tx: func(s *txSeams) {
			s.reach = func(s *txStore, ctx context.Context, call string) error {
				err := reach(s.store, ctx, call)
				if errors.Is(err, errOutage) && call == "complete" {
					return semel.ErrRolledBack
				}
				return err
			}
		},
	},
	{
		Name:   "lost-commit-is-a-rollback",
		What:   "takes a commit whose answer was lost for one that failed",
		Breaks: []string{"lost-commit-is-learned"},
		tx:     func(s *txSeams) { s.lost = func(*txClaim, bool) error { return semel.ErrRolledBack } },
	},
	{
		Name:   "lost-commit-is-a-success",
		What:   "takes a commit whose answer was lost for one that succeeded",
		Breaks: []string{"lost-commit-is-learned"},
		tx:     func(s *txSeams) { s.lost = func(*txClaim, bool) error { return nil } },
	},
	{
		Name:   "trail-tells-of-what-was-rolled-back",
		What:   "tells of an execution that was taken back",
		Breaks: []string{"trail-commits-with-the-transaction"},
		tx: func(s *txSeams) {
			s.tell = func(c *txClaim, _ string, now time.Time) { c.enter(semel.TrailExecuted, "", now) }
		},
	},
	{
		Name:   "trail-behind-the-transaction",
		What:   "tells of an execution after its commit: a crash in between leaves no trace of it",
		Breaks: []string{"trail-commits-with-the-transaction"},
		tx: func(s *txSeams) {
			s.commit = func(c *txClaim, r row, res semel.Result, now time.Time) {
				if !res.Failed {
					c.store.effects += c.done
				}
				c.store.rows[r.Identity] = r
				c.later(func() { c.enter(semel.TrailExecuted, res.Label, now) })
			}
		},
	},
}

// undoes commits the effects where the call should roll them back.
func undoes(call string) func(*txSeams) {
	return func(s *txSeams) {
		s.undo = func(c *txClaim, got string, _ time.Time) {
			if got == call {
				c.store.effects += c.done
			}
		}
	}
}
