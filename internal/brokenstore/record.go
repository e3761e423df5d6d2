package brokenstore

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// What is kept of a result.
var recording = []Broken{
	{
		Name:   "mark-before-success",
		What:   "records the identity as done before it is: what fails can never be tried again",
		Breaks: []string{"release-frees", "conflict-shows-the-record"},
		change: func(s *seams) {
			s.create = func(old row, a semel.Attempt, now time.Time) row {
				r := create(old, a, now)
				r.Retention = a.Retention
				_, _ = complete(&r, semel.Result{}, now)
				return r
			}
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				r.Result = res
				return semel.TrailExecuted, nil
			}
		},
	},
	{
		Name:   "lost-headers",
		What:   "replays the body without what goes with it",
		Breaks: []string{"replay-is-exact"},
		change: stored(func(r *semel.Result) { r.Head = nil }),
	},
	{
		Name:   "body-cut-off",
		What:   "keeps the first 64 KiB of a body and replays them as if they were all",
		Breaks: []string{"replay-is-exact"},
		change: stored(func(r *semel.Result) { r.Body = r.Body[:min(len(r.Body), 64<<10)] }),
	},
	{
		Name:   "body-as-text",
		What:   "keeps the body in a text column, which mends what is not UTF-8",
		Breaks: []string{"replay-is-exact"},
		change: stored(func(r *semel.Result) { r.Body = bytes.ToValidUTF8(r.Body, []byte("\uFFFD")) }),
	},
	{
		Name:   "empty-body-is-missing",
		What:   "takes a result without a body for no result, so a 204 executes again",
		Breaks: []string{"replay-is-exact"},
		change: func(s *seams) {
			s.expired = func(r row, now time.Time) bool {
				return expired(r, now) || r.State == semel.StateCompleted && len(r.Result.Body) == 0
			}
		},
	},
	{
		Name:   "tombstone-forgotten",
		What:   "keeps a tombstone as a result, so nothing is replayed as if it were the answer",
		Breaks: []string{"replay-is-exact"},
		change: stored(func(r *semel.Result) { r.Tombstone = false }),
	},
	{
		Name:   "stale-reads",
		What:   "reads from a copy that does not have what other processes wrote",
		Breaks: []string{"completed-is-seen-by-others"},
		wrap:   func(s *store) semel.Store { return &staleReads{store: s} },
	},
	{
		Name:   "complete-not-repeatable",
		What:   "tells an owner whose answer was lost that its claim was",
		Breaks: []string{"complete-repeats"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				if r.State == semel.StateCompleted {
					return "", semel.ErrLostClaim
				}
				return complete(r, res, now)
			}
		},
	},
	{
		Name:   "complete-overwrites",
		What:   "lets a second completion replace the result that has been replayed already",
		Breaks: []string{"complete-repeats"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				kind, err := complete(r, res, now)
				r.Result = res
				return kind, err
			}
		},
	},
	{
		Name:   "complete-prolongs",
		What:   "starts the retention again at a repeated completion",
		Breaks: []string{"complete-repeats"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				kind, err := complete(r, res, now)
				r.ExpiresAt = now.Add(r.Retention)
				return kind, err
			}
		},
	},
	{
		Name:   "complete-without-expiry",
		What:   "does not say until when the result will be replayed",
		Breaks: []string{"complete-repeats"},
		change: func(s *seams) {
			s.claim = func(c *claim) semel.Claim { return completesWithoutExpiry{c} }
		},
	},
	{
		Name:   "claims-to-be-a-transaction",
		What:   "says that its claims commit and roll back, and they do not",
		Breaks: []string{"claim-says-its-mode"},
		change: func(s *seams) {
			s.claim = func(c *claim) semel.Claim { return claimsToBeATransaction{c} }
		},
	},
	{
		Name:   "release-does-nothing",
		What:   "leaves the record of an execution that had no effect, so the key is spent",
		Breaks: []string{"release-frees", "held-claim-may-settle"},
		change: func(s *seams) { s.release = func(*row) (semel.TrailKind, error) { return "", nil } },
	},
	{
		Name:   "release-of-the-completed",
		What:   "removes the record at the end of every request, also of one that succeeded",
		Breaks: []string{"completed-cannot-be-released"},
		change: func(s *seams) {
			s.release = func(r *row) (semel.TrailKind, error) {
				*r = row{}
				return semel.TrailReleased, nil
			}
		},
	},
	{
		Name:   "failure-frees",
		What:   "removes the record of an outcome that nobody knows, so the effect may come twice",
		Breaks: []string{"hold-blocks"},
		change: func(s *seams) {
			s.hold = func(r *row, _ string, _ time.Time) (semel.TrailKind, error) { return release(r) }
		},
	},
	{
		Name:   "hold-not-repeatable",
		What:   "tells an owner that says twice that it does not know that its claim is lost",
		Breaks: []string{"hold-blocks"},
		change: func(s *seams) {
			s.hold = func(r *row, cause string, now time.Time) (semel.TrailKind, error) {
				if r.State == semel.StateUnknown {
					return "", semel.ErrLostClaim
				}
				return hold(r, cause, now)
			}
		},
	},
	{
		Name:   "hold-ends-the-claim",
		What:   "does not let the owner settle what it learned after all",
		Breaks: []string{"held-claim-may-settle"},
		change: func(s *seams) {
			s.hold = func(r *row, cause string, now time.Time) (semel.TrailKind, error) {
				r.token = semel.Token{}
				return hold(r, cause, now)
			}
		},
	},
}

type completesWithoutExpiry struct{ *claim }

func (c completesWithoutExpiry) Complete(ctx context.Context, r semel.Result) (time.Time, error) {
	_, err := c.claim.Complete(ctx, r)
	return time.Time{}, err
}

// staleReads answers Find from what this handle's Begin saw last.
type staleReads struct {
	*store
	seen sync.Map
}

func (s *staleReads) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.store.Begin(ctx, a)
	if conflict, ok := errors.AsType[*semel.ConflictError](err); ok {
		s.seen.Store(a.Identity, conflict.Record)
	}
	return c, err
}

func (s *staleReads) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	if r, ok := s.seen.Load(id); ok {
		return r.(semel.Record), nil
	}
	return s.store.Find(ctx, id)
}

type claimsToBeATransaction struct{ *claim }

func (claimsToBeATransaction) Transactional() bool { return true }
