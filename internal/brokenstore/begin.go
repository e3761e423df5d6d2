package brokenstore

import (
	"context"
	"errors"
	"time"

	"github.com/semelhq/semel"
)

// Who is granted the claim, and what the others hear.
var claiming = []Broken{
	{
		Name:   "check-then-act",
		What:   "looks whether the identity is free, then claims it; others look in between",
		Breaks: []string{"one-claim-of-many"},
		change: func(s *seams) { s.gap = raceAt("begin") },
	},
	{
		Name:   "lock-of-one-process",
		What:   "guards look and claim by a lock that other processes do not see",
		Breaks: []string{"one-claim-across-handles"},
		change: func(s *seams) { s.gap = raceAt("begin") },
		wrap:   func(s *store) semel.Store { return lockOfOneProcess{s, make(chan struct{}, 1)} },
	},
	{
		Name:   "expired-not-checked-again",
		What:   "claims atomically where there is no row, but replaces an expired one unconditionally",
		Breaks: []string{"one-claim-of-many-after-expiry"},
		change: func(s *seams) { s.gap = raceAt("replace") },
	},
	{
		Name:   "last-claim-wins",
		What:   "sets the claim instead of setting it only if it is absent",
		Breaks: []string{"one-claim-of-many", "lapse-is-seen-not-granted"},
		change: func(s *seams) {
			s.mayTake = func(_ *store, r row, _ semel.Attempt, _ time.Time) bool {
				return r.State == semel.StateInProgress
			}
		},
	},
	{
		Name:   "gone-means-go",
		What:   "when the record in the way is gone on a second look, proceeds without a claim",
		Breaks: []string{"one-claim-of-many-at-release"},
		change: func(s *seams) { s.delay = meet("release") },
		wrap:   func(s *store) semel.Store { return goneMeansGo{s} },
	},
	{
		Name:   "losers-hear-an-error",
		What:   "answers the loser of a race with the driver's error, which reads like an outage",
		Breaks: []string{"one-claim-of-many", "conflict-shows-the-record"},
		change: func(s *seams) {
			s.refuse = func(r row, now time.Time) error {
				if r.State == semel.StateInProgress {
					return errors.New("UNIQUE constraint failed")
				}
				return &semel.ConflictError{Record: r.read(now)}
			}
		},
	},
	{
		Name:   "losers-hear-nothing",
		What:   "answers the loser with neither claim nor error, so it goes ahead",
		Breaks: []string{"one-claim-of-many"},
		change: func(s *seams) { s.refuse = func(row, time.Time) error { return nil } },
	},
	{
		Name:   "conflict-without-fingerprint",
		What:   "shows the record in the way without what was asked, so a mismatch goes unseen",
		Breaks: []string{"conflict-shows-the-record"},
		change: func(s *seams) {
			s.refuse = func(r row, now time.Time) error {
				r.Fingerprint = semel.Fingerprint{}
				return &semel.ConflictError{Record: r.read(now)}
			}
		},
	},
	{
		Name:   "begin-not-repeatable",
		What:   "refuses the owner that asks again because the answer was lost: its claim is stranded",
		Breaks: []string{"begin-repeats-with-its-token"},
		change: func(s *seams) { s.repeats = func(row, semel.Attempt) bool { return false } },
	},
	{
		Name:   "takeover-not-repeatable",
		What:   "knows a repeated first claim, but not a repeated takeover",
		Breaks: []string{"begin-repeats-with-its-token"},
		change: func(s *seams) {
			s.repeats = func(r row, a semel.Attempt) bool {
				return a.Takeover == 0 && r.State == semel.StateInProgress && r.token == a.Token
			}
		},
	},
	{
		Name:   "takeover-repeated-anew",
		What:   "takes a repeated takeover for another one, so the first answer's claim is stale at birth",
		Breaks: []string{"begin-repeats-with-its-token"},
		change: func(s *seams) {
			repeats, mayTake := s.repeats, s.mayTake
			s.repeats = func(r row, a semel.Attempt) bool { return a.Takeover == 0 && repeats(r, a) }
			s.mayTake = func(s *store, r row, a semel.Attempt, now time.Time) bool {
				return repeats(r, a) || mayTake(s, r, a, now)
			}
		},
	},
	{
		Name:   "repeat-leaves-the-lease",
		What:   "grants the same claim again on what little is left of its lease",
		Breaks: []string{"begin-repeats-with-its-token"},
		change: func(s *seams) { s.repeat = func(*row, time.Duration, time.Time) {} },
	},
	{
		Name:   "repeat-of-the-unknown",
		What:   "grants the same claim again though its outcome has been marked unknown",
		Breaks: []string{"begin-repeats-with-its-token"},
		change: func(s *seams) {
			s.repeats = func(r row, a semel.Attempt) bool {
				return r.State != semel.StateCompleted && r.token == a.Token
			}
		},
	},
	{
		Name:   "absent-reads-as-empty",
		What:   "answers a look-up of nothing with an empty record",
		Breaks: []string{"absent-is-not-found"},
		wrap:   func(s *store) semel.Store { return absentReadsAsEmpty{s} },
	},
	{
		Name:   "background-context",
		What:   "gives the handler a context that knows neither its caller's values nor its end",
		Breaks: []string{"claim-context-descends"},
		change: func(s *seams) {
			s.context = func(context.Context) context.Context { return context.Background() }
		},
	},
}

type lockOfOneProcess struct {
	*store
	lock chan struct{} // a mutex would keep the bubble's time from passing
}

func (s lockOfOneProcess) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	s.lock <- struct{}{}
	defer func() { <-s.lock }()
	return s.store.Begin(ctx, a)
}

type goneMeansGo struct{ *store }

func (s goneMeansGo) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.store.Begin(ctx, a)
	if _, refused := errors.AsType[*semel.ConflictError](err); !refused {
		return c, err
	}
	time.Sleep(moment)
	if _, gone := s.Find(ctx, a.Identity); errors.Is(gone, semel.ErrNotFound) {
		return &claim{store: s.store, id: a.Identity, record: semel.NewRecordID(), fence: 1, token: a.Token, lease: a.Lease}, nil
	}
	return nil, err
}

type absentReadsAsEmpty struct{ *store }

func (s absentReadsAsEmpty) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	r, err := s.store.Find(ctx, id)
	if errors.Is(err, semel.ErrNotFound) {
		return semel.Record{}, nil
	}
	return r, err
}
