// Package brokenstore holds stores that are wrong on purpose, each in one way
// in which real ones have been. The conformance suite in storetest must fail
// on every one of them, and every rule of the suite must fail on at least one:
// a rule that nothing can break proves nothing.
//
// They share one small correct store over a map, cut into seams, and another
// whose claims are transactions. A broken store
// is a name, what is wrong with it, the rules it must be caught by, and another
// piece for one seam. Where the defect is a race, time passes at the place
// where it is open, so in a bubble of package testing/synctest it is lost
// every time.
package brokenstore

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/storetest"
)

// Broken is a store with one defect.
type Broken struct {
	Name string
	// What is wrong.
	What string
	// Breaks names rules of storetest that must notice. Others may as well.
	Breaks []string

	// change puts the wrong piece into its seam.
	change func(s *seams)
	// wrap does the same where a defect needs a method of its own, or state
	// of one handle.
	wrap func(s *store) semel.Store
	// tx puts the wrong piece into a store whose claims are transactions.
	tx func(s *txSeams)
}

// Harness sets up a fresh store. It must run in a bubble.
func (b Broken) Harness() storetest.Harness {
	if b.tx != nil {
		return txHarness(b.tx)
	}
	return harness(b.change, b.wrap)
}

// Correct sets up the store that the broken ones differ from.
func Correct() storetest.Harness { return harness(nil, nil) }

func harness(change func(*seams), wrap func(*store) semel.Store) storetest.Harness {
	d := &disk{rows: make(map[semel.Identity]row)}
	pieces := correct()
	if change != nil {
		change(&pieces)
	}
	open := func(skew time.Duration) semel.Store {
		s := &store{disk: d, seams: pieces, skew: skew}
		if wrap != nil {
			return wrap(s)
		}
		return s
	}
	return storetest.Harness{
		Store:  open(0),
		Open:   func() semel.Store { return open(0) },
		Skewed: open,
		Break: func() (mend func()) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.down = make(chan struct{})
			return func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				close(d.down)
				d.down = nil
			}
		},
		Backup: func() (restore func()) {
			d.mu.Lock()
			defer d.mu.Unlock()
			rows, fence, trail := maps.Clone(d.rows), d.fence, slices.Clone(d.trail)
			return func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.rows, d.fence, d.trail = rows, fence, trail
			}
		},
	}
}

// moment is how long a race stays open.
const moment = time.Millisecond

// raceAt opens a gap between look and write in the given calls.
func raceAt(calls ...string) func(*store, string) {
	return func(s *store, call string) {
		if slices.Contains(calls, call) {
			s.mu.Unlock()
			time.Sleep(moment)
			s.mu.Lock()
		}
	}
}

// meet has the given calls arrive in the middle of a gap.
func meet(calls ...string) func(string) {
	return func(call string) {
		if slices.Contains(calls, call) {
			time.Sleep(moment / 2)
		}
	}
}

// keyed finds rows by what f makes of their identity.
func keyed(f func(id semel.Identity) semel.Identity) func(*seams) {
	return func(s *seams) { s.row = f }
}

// stored writes what f makes of a result.
func stored(f func(r *semel.Result)) func(*seams) {
	return func(s *seams) {
		s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
			f(&res)
			return complete(r, res, now)
		}
	}
}

// Stores returns all broken stores.
func Stores() []Broken {
	return slices.Concat(claiming, naming, recording, piecemeal, timing, leasing, fencing, resolving, erasing, sweeping, failing, telling, transacting)
}

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

// What tells one identity from another.
var naming = []Broken{
	{
		Name:   "keys-without-scope",
		What:   "finds records by the key alone, whoever's it is and whatever for",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity { return semel.Identity{Key: id.Key} }),
	},
	{
		Name:   "keys-without-tenant",
		What:   "answers one tenant with another's result",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Tenant = ""; return id }),
	},
	{
		Name:   "keys-without-operation",
		What:   "answers one operation with another's result",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Operation = ""; return id }),
	},
	{
		Name:   "parts-joined-by-a-colon",
		What:   "makes one string of the parts, with a separator that they may contain",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity {
			return semel.Identity{Key: strings.Join([]string{id.Tenant, id.Actor, id.Operation, id.Key}, ":")}
		}),
	},
	{
		Name:   "keys-case-folded",
		What:   "has a collation that takes k and K for the same key",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Key = strings.ToLower(id.Key); return id }),
	},
	{
		Name:   "tenants-case-folded",
		What:   "has a collation that takes t and T for the same tenant",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Tenant = strings.ToLower(id.Tenant); return id }),
	},
	{
		Name:   "keys-padded",
		What:   "compares keys without the spaces at their end",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Key = strings.TrimRight(id.Key, " "); return id }),
	},
	{
		Name:   "keys-normalised",
		What:   "takes two spellings of a letter for the same key",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity {
			id.Key = strings.ReplaceAll(id.Key, "e\u0301", "é")
			return id
		}),
	},
	{
		Name:   "keys-truncated",
		What:   "indexes the first 191 bytes of a key",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Key = id.Key[:min(len(id.Key), 191)]; return id }),
	},
}

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

// What people are told.
var telling = []Broken{
	{
		Name:   "list-with-results",
		What:   "hands out stored answers to whoever may list records",
		Breaks: []string{"list-filters-and-pages"},
		wrap:   func(s *store) semel.Store { return listWithResults{s} },
	},
	{
		Name:   "list-with-the-expired",
		What:   "lists records that no longer exist",
		Breaks: []string{"list-filters-and-pages"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if r.State == semel.StateCompleted {
					r.ExpiresAt = now.Add(time.Hour)
				}
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-by-key",
		What:   "orders by key but pages by fence, so pages miss records",
		Breaks: []string{"list-filters-and-pages"},
		wrap:   func(s *store) semel.Store { return listByKey{s} },
	},
	{
		Name:   "list-without-leases",
		What:   "takes records of living owners for lapsed ones",
		Breaks: []string{"list-filters-and-pages"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if f.Lapsed {
					f.Lapsed, f.State = false, semel.StateInProgress
				}
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-with-patterns",
		What:   "takes a cause for a pattern of its query language",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				cause := f.Cause
				f.Cause = ""
				return listed(s, f, r, now) && (cause == "" || r.State == semel.StateUnknown && like(cause, r.Cause))
			}
		},
	},
	{
		Name:   "list-deaf-to-causes",
		What:   "answers a question for one cause with every record",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				f.Cause = ""
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-begun-until-inclusive",
		What:   "counts a record at the edge of a time range in, so that it is in two ranges that meet",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if r.BegunAt.Equal(f.BegunUntil) {
					f.BegunUntil = time.Time{}
				}
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "list-by-the-first-claim",
		What:   "keeps the time of the first claim for that of the latest",
		Breaks: []string{"list-by-cause-and-time"},
		change: func(s *seams) {
			first := make(map[string]time.Time)
			s.listed = func(s *store, f semel.Filter, r row, now time.Time) bool {
				if at, ok := first[r.ID]; ok {
					r.BegunAt = at
				}
				first[r.ID] = r.BegunAt
				return listed(s, f, r, now)
			}
		},
	},
	{
		Name:   "trail-behind-the-answer",
		What:   "tells of a change after it was answered: a crash in between leaves no trace of it",
		Breaks: []string{"trail-commits-with-the-record"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				time.AfterFunc(50*time.Millisecond, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					enter(s, e)
				})
			}
		},
	},
	{
		Name:   "trail-tells-twice",
		What:   "tells of an execution again when its answer was asked for again",
		Breaks: []string{"trail-commits-with-the-record"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				_, err := complete(r, res, now)
				return semel.TrailExecuted, err
			}
		},
	},
	{
		Name:   "trail-tells-of-no-takeover",
		What:   "tells of a takeover where the claim was free",
		Breaks: []string{"trail-commits-with-the-record"},
		wrap:   func(s *store) semel.Store { return tellsOfNoTakeover{s} },
	},
	{
		Name:   "trail-without-origin",
		What:   "does not say which request it was",
		Breaks: []string{"trail-commits-with-the-record", "trail-tells-resolutions"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				e.Origin = semel.Origin{}
				enter(s, e)
			}
		},
	},
	{
		Name:   "trail-without-cause",
		What:   "does not say why",
		Breaks: []string{"trail-commits-with-the-record", "trail-tells-resolutions"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				e.Cause = ""
				enter(s, e)
			}
		},
	},
	{
		Name:   "silent-resolutions",
		What:   "does not say that an operator has settled a record",
		Breaks: []string{"trail-tells-resolutions"},
		change: func(s *seams) {
			s.enter = func(s *store, e semel.TrailEntry) {
				if e.Kind != semel.TrailResolved {
					enter(s, e)
				}
			}
		},
	},
	{
		Name:   "notes-dropped",
		What:   "loses notes when they come fast, and does not count them",
		Breaks: []string{"trail-notes-are-kept-in-order"},
		change: func(s *seams) {
			var last time.Time
			burst := 0
			s.note = func(s *store, e semel.TrailEntry) {
				if e.At.After(last) {
					last, burst = e.At, 0
				}
				if burst++; burst <= 32 {
					s.enter(s, e)
				}
			}
		},
	},
	{
		Name:   "notes-without-count",
		What:   "keeps no count with a note: a hundred replays read as one",
		Breaks: []string{"trail-notes-are-kept-in-order"},
		change: func(s *seams) {
			s.note = func(s *store, e semel.TrailEntry) {
				e.Count = 0
				s.enter(s, e)
			}
		},
	},
	{
		Name:   "notes-out-of-order",
		What:   "writes each batch of notes in the order in which its writers wake up",
		Breaks: []string{"trail-notes-are-kept-in-order"},
		change: func(s *seams) {
			var batch []semel.TrailEntry
			s.note = func(s *store, e semel.TrailEntry) {
				if batch = append(batch, e); len(batch) < 2 {
					return
				}
				for _, e := range slices.Backward(batch) {
					s.enter(s, e)
				}
				batch = nil
			}
		},
	},
	{
		Name:   "trail-deaf-to-traces",
		What:   "answers a question for one trace with every other's entries too",
		Breaks: []string{"trail-filters-and-pages"},
		change: func(s *seams) {
			s.told = func(f semel.TrailFilter, e semel.TrailEntry) bool {
				f.TraceID = ""
				return told(f, e)
			}
		},
	},
}

type tellsOfNoTakeover struct{ *store }

func (s tellsOfNoTakeover) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	_, absent := s.Find(ctx, a.Identity)
	c, err := s.store.Begin(ctx, a)
	if err == nil && absent != nil && a.Takeover != 0 {
		s.Note(semel.TrailEntry{Kind: semel.TrailTakeover, RecordID: c.RecordID(), Key: a.Identity.Key})
	}
	return c, err
}

// like matches as SQL's LIKE does, with * for %.
func like(pattern, s string) bool {
	var re strings.Builder
	for _, c := range pattern {
		switch c {
		case '*', '%':
			re.WriteString(".*")
		case '_':
			re.WriteString(".")
		default:
			re.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	return regexp.MustCompile("(?is)^" + re.String() + "$").MatchString(s)
}

type listWithResults struct{ *store }

func (s listWithResults) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	out, err := s.store.List(ctx, f)
	for i, r := range out {
		if full, err := s.Find(ctx, r.Identity); err == nil {
			out[i].Result = full.Result
		}
	}
	return out, err
}

type listByKey struct{ *store }

func (s listByKey) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	out, err := s.store.List(ctx, f)
	slices.SortFunc(out, func(a, b semel.Record) int { return strings.Compare(a.Identity.Key, b.Identity.Key) })
	return out, err
}

type claimsToBeATransaction struct{ *claim }

func (claimsToBeATransaction) Transactional() bool { return true }

// What becomes of an answer that is erased.
var erasing = []Broken{
	{
		Name:   "erase-frees-the-key",
		What:   "removes the record with its answer, so that a retry executes again",
		Breaks: []string{"erase-leaves-a-tombstone"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				if err := erase(s, r, e); err != nil {
					return err
				}
				*r = row{}
				return nil
			}
		},
	},
	{
		Name:   "erase-marks-only",
		What:   "marks the record as a tombstone, and keeps where the resource is",
		Breaks: []string{"erase-leaves-a-tombstone"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				reference := r.Result.Reference
				err := erase(s, r, e)
				r.Result.Reference = reference
				return err
			}
		},
	},
	{
		Name:   "erase-leaves-the-pieces",
		What:   "leaves a large body to whoever has been told of it",
		Breaks: []string{"erase-takes-the-pieces"},
		change: func(s *seams) {
			s.view = func(_ *store, r row) *semel.Pieces { return r.Result.Pieces }
		},
	},
	{
		Name:   "erase-of-whatever-is-there",
		What:   "erases without a look at the fence and the state",
		Breaks: []string{"erase-needs-the-record"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				e.Fence = r.Fence
				if r.State != semel.StateCompleted {
					return nil
				}
				return erase(s, r, e)
			}
		},
	},
	{
		Name:   "erase-starts-retention-again",
		What:   "gives the tombstone a retention of its own",
		Breaks: []string{"erase-leaves-a-tombstone"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				err := erase(s, r, e)
				r.ExpiresAt = r.ExpiresAt.Add(time.Hour)
				return err
			}
		},
	},
}
