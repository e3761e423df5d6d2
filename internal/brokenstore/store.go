package brokenstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// errOutage is what calls answer while the store is cut off from its records.
var errOutage = errors.New("brokenstore: the records cannot be reached")

// disk is what all handles of one store share.
type disk struct {
	mu    sync.Mutex
	rows  map[semel.Identity]row
	fence uint64
	trail []semel.TrailEntry
	down  chan struct{} // while cut off; closed when mended
}

// row is a record as stored. Its Lease is not kept up: leaseEnd is. A row
// without a state is no row.
type row struct {
	semel.Record
	token    semel.Token
	leaseEnd time.Time
}

func (r row) read(now time.Time) semel.Record {
	out := r.Record
	out.Lease = r.leaseEnd.Sub(now)
	return out
}

// store is one handle on a disk. As correct() leaves its seams it keeps every
// rule; each broken store has another piece in one of them.
type store struct {
	*disk
	seams
	skew time.Duration // how wrong the clock of this handle's process is
}

// seams are the pieces that can be exchanged for wrong ones. Calls are named
// begin, replace (a begin that finds an expired row), takeover, find,
// complete, release, hold, renew, resolve, sweep, list and trail.
type seams struct {
	// delay runs before a call reaches the records.
	delay func(call string)
	// gap runs between what a call has read and what it writes.
	gap func(s *store, call string)
	// reach says whether a call may go ahead.
	reach func(s *store, ctx context.Context, call string) error
	// now is the clock of leases and retention.
	now func(s *store) time.Time
	// row maps an identity to what its row is found by.
	row func(id semel.Identity) semel.Identity
	// next is the next claim's fence.
	next func(s *store, id semel.Identity) uint64

	expired   func(r row, now time.Time) bool
	lapsed    func(r row, now time.Time) bool
	unsettled func(s *store, r row, now time.Time) bool
	sweepable func(s *store, r row, now time.Time) bool

	// create makes the row of a first claim; old is the expired one it
	// replaces, if any.
	create func(old row, a semel.Attempt, now time.Time) row
	// repeats says whether a is the claim that r holds already; repeat
	// grants it again.
	repeats func(r row, a semel.Attempt) bool
	repeat  func(r *row, lease time.Duration, now time.Time)
	// mayTake says whether a may take r over; take does it.
	mayTake func(s *store, r row, a semel.Attempt, now time.Time) bool
	take    func(r *row, a semel.Attempt)
	// refuse is Begin's answer when r is in the way.
	refuse func(r row, now time.Time) error

	// owns says whether the claim still holds r.
	owns func(r row, c *claim, call string) bool
	// claim is what Begin hands out for a claim.
	claim func(c *claim) semel.Claim
	// context is what the claim makes of a handler's context.
	context func(ctx context.Context) context.Context
	// The transitions. They return what the trail tells of them.
	complete func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error)
	release  func(r *row) (semel.TrailKind, error)
	hold     func(r *row, cause string, now time.Time) (semel.TrailKind, error)
	renew    func(r *row, lease time.Duration, now time.Time) (semel.TrailKind, error)
	// settles says whether d may settle r.
	settles func(s *store, r row, d semel.Resolution, now time.Time) bool
	// resolve returns the row as it is after d; fence makes a new fence.
	resolve func(s *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row

	// erase takes the answer out of r, if e may.
	erase func(s *store, r *row, e semel.Erasure) error

	// gather reads the pieces of a result before call, of the claim c if it
	// is one's, writes it; view is how who reads the row r gets at them.
	gather func(ctx context.Context, s *store, call string, c *claim, p *semel.Pieces) (*semel.Pieces, error)
	view   func(s *store, r row) *semel.Pieces

	listed func(s *store, f semel.Filter, r row, now time.Time) bool
	told   func(f semel.TrailFilter, e semel.TrailEntry) bool
	// enter appends to the trail; note queues an entry for it.
	enter func(s *store, e semel.TrailEntry)
	note  func(s *store, e semel.TrailEntry)
}

func correct() seams {
	return seams{
		delay: func(string) {},
		gap:   func(*store, string) {},
		reach: reach,
		now:   func(*store) time.Time { return time.Now() },
		row:   func(id semel.Identity) semel.Identity { return id },
		next:  func(s *store, _ semel.Identity) uint64 { s.fence++; return s.fence },

		expired:   expired,
		lapsed:    func(r row, now time.Time) bool { return !r.leaseEnd.After(now) },
		unsettled: unsettled,
		sweepable: func(s *store, r row, now time.Time) bool { return s.expired(r, now) },

		create:  create,
		repeats: func(r row, a semel.Attempt) bool { return r.State == semel.StateInProgress && r.token == a.Token },
		repeat:  func(r *row, lease time.Duration, now time.Time) { r.leaseEnd = now.Add(lease) },
		mayTake: func(s *store, r row, a semel.Attempt, now time.Time) bool {
			return a.Takeover == r.Fence && s.unsettled(s, r, now)
		},
		take:   take,
		refuse: func(r row, now time.Time) error { return &semel.ConflictError{Record: r.read(now)} },

		owns:     func(r row, c *claim, _ string) bool { return r.Fence == c.fence && r.token == c.token },
		claim:    func(c *claim) semel.Claim { return c },
		context:  func(ctx context.Context) context.Context { return ctx },
		complete: complete,
		release:  release,
		hold:     hold,
		renew:    renew,
		settles: func(s *store, r row, d semel.Resolution, now time.Time) bool {
			marked := r.State == semel.StateUnknown || d.Decision == semel.DecideUnknown
			return d.Fence == r.Fence && marked && s.unsettled(s, r, now)
		},
		resolve: resolve,
		erase:   erase,

		gather: gather,
		view:   view,

		listed: listed,
		told:   told,
		enter:  enter,
		note:   func(s *store, e semel.TrailEntry) { s.enter(s, e) },
	}
}

func reach(s *store, ctx context.Context, _ string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return errOutage
	}
	return nil
}

func expired(r row, now time.Time) bool {
	return r.State == semel.StateCompleted && !r.ExpiresAt.After(now)
}

func unsettled(s *store, r row, now time.Time) bool {
	return r.State == semel.StateUnknown || r.State == semel.StateInProgress && s.lapsed(r, now)
}

func create(_ row, a semel.Attempt, now time.Time) row {
	return row{Record: semel.Record{
		ID: semel.NewRecordID(), Identity: a.Identity, Fingerprint: a.Fingerprint, State: semel.StateInProgress,
	}}
}

func take(r *row, _ semel.Attempt) {
	r.State, r.Cause, r.SettledAt, r.Reopened = semel.StateInProgress, "", time.Time{}, false
}

func complete(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
	if r.State == semel.StateCompleted {
		return "", nil
	}
	r.State, r.Result, r.Cause, r.Reopened = semel.StateCompleted, res, "", false
	r.SettledAt, r.ExpiresAt = now, now.Add(r.Retention)
	return semel.TrailExecuted, nil
}

func release(r *row) (semel.TrailKind, error) {
	if r.State == semel.StateCompleted {
		return "", semel.ErrLostClaim
	}
	*r = row{}
	return semel.TrailReleased, nil
}

func hold(r *row, cause string, now time.Time) (semel.TrailKind, error) {
	switch r.State {
	case semel.StateCompleted:
		return "", semel.ErrLostClaim
	case semel.StateUnknown:
		return "", nil
	}
	r.State, r.Cause, r.SettledAt = semel.StateUnknown, cause, now
	r.endLease(now)
	return semel.TrailHeld, nil
}

func renew(r *row, lease time.Duration, now time.Time) (semel.TrailKind, error) {
	if r.State != semel.StateInProgress {
		return "", semel.ErrLostClaim
	}
	r.leaseEnd = now.Add(lease)
	return "", nil
}

// gather has all pieces in memory, or none.
func gather(ctx context.Context, _ *store, _ string, _ *claim, p *semel.Pieces) (*semel.Pieces, error) {
	if p.Size <= 0 || p.Size > 1<<30 {
		return nil, semel.ErrTooLarge
	}
	held := make([][]byte, p.Count())
	for n := range held {
		piece, err := p.ReadPiece(ctx, n)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, semel.ErrTooLarge
		}
		held[n] = piece
	}
	return inMemory(p.Size, held), nil
}

// inMemory makes pieces of what is held in memory.
func inMemory(size int64, held [][]byte) *semel.Pieces {
	return &semel.Pieces{Size: size, Read: func(_ context.Context, n int) ([]byte, error) {
		if n < 0 || n >= len(held) {
			return nil, semel.ErrNotFound
		}
		return held[n], nil
	}}
}

// view shows the pieces of r for as long as it is there.
func view(s *store, r row) *semel.Pieces {
	held := r.Result.Pieces
	return &semel.Pieces{Size: held.Size, Read: func(ctx context.Context, n int) ([]byte, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if now := s.rows[s.row(r.Identity)]; now.Fence != r.Fence || now.State != semel.StateCompleted || now.Result.Pieces == nil {
			return nil, semel.ErrNotFound
		}
		return held.Read(ctx, n)
	}}
}

// gathered returns res with its pieces read.
func (s *store) gathered(ctx context.Context, call string, c *claim, res semel.Result) (_ semel.Result, err error) {
	if res.Pieces != nil {
		res.Pieces, err = s.gather(ctx, s, call, c, res.Pieces)
	}
	return res, err
}

func (r *row) endLease(now time.Time) {
	if r.leaseEnd.After(now) {
		r.leaseEnd = now
	}
}

func resolve(_ *store, r row, d semel.Resolution, fence func() uint64, now time.Time) row {
	switch d.Decision {
	case semel.DecideUnknown:
		_, _ = hold(&r, d.Cause, now)
		r.Reopened = false
	case semel.DecideResult:
		_, _ = complete(&r, d.Result, now)
		r.Fence = fence()
	case semel.DecideNoEffect:
		return row{}
	case semel.DecideExecuteAgain:
		r.State, r.Cause, r.SettledAt, r.Reopened = semel.StateInProgress, "", time.Time{}, true
		r.Fence, r.token = fence(), semel.Token{}
		r.endLease(now)
	}
	return r
}

// do runs f on the records, at the store's time.
func (s *store) do(ctx context.Context, call string, f func(now time.Time) error) error {
	s.delay(call)
	if err := s.reach(s, ctx, call); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return f(s.now(s))
}

// live returns the row of id, or none if it has expired.
func (s *store) live(id semel.Identity, now time.Time) row {
	r := s.rows[s.row(id)]
	if r.State == 0 || s.expired(r, now) {
		return row{}
	}
	return r
}

// write stores r in the place of was and tells the trail.
func (s *store) write(was, r row, now time.Time, e semel.TrailEntry) {
	id := s.row(cmp.Or(r.Identity, was.Identity))
	if r.State == 0 {
		delete(s.rows, id)
	} else {
		if r.Result.Pieces != nil && r.Result.Pieces != was.Result.Pieces {
			r.Result.Pieces = s.view(s, r)
		}
		s.rows[id] = r
	}
	if e.Kind == "" {
		return
	}
	about := r
	if r.State == 0 {
		about = was
	}
	e.At, e.RecordID, e.Fence = now, about.ID, about.Fence
	e.Tenant, e.Actor, e.Operation, e.Key = about.Identity.Tenant, about.Identity.Actor, about.Identity.Operation, about.Identity.Key
	s.enter(s, e)
}

func (s *store) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c := &claim{store: s, id: a.Identity, token: a.Token, lease: a.Lease}
	err := s.do(ctx, "begin", func(now time.Time) error {
		was := s.rows[s.row(a.Identity)]
		r := s.live(a.Identity, now)
		var e semel.TrailEntry
		switch {
		case r.State == 0 && was.State == 0:
			r = s.create(was, a, now)
			s.gap(s, "begin")
		case r.State == 0:
			r = s.create(was, a, now)
			s.gap(s, "replace")
		case s.repeats(r, a):
			s.repeat(&r, a.Lease, now)
			s.write(was, r, now, e)
			c.record, c.fence = r.ID, r.Fence
			return nil
		case s.mayTake(s, r, a, now):
			s.take(&r, a)
			e = semel.TrailEntry{Kind: semel.TrailTakeover, Origin: a.Origin}
			s.gap(s, "takeover")
		default:
			return s.refuse(r, now)
		}
		r.Fence, r.token = s.next(s, a.Identity), a.Token
		r.BegunAt, r.leaseEnd = now, now.Add(a.Lease)
		r.Retention, r.Origin = a.Retention, a.Origin
		s.write(was, r, now, e)
		c.record, c.fence = r.ID, r.Fence
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.claim(c), nil
}

func (s *store) Find(ctx context.Context, id semel.Identity) (rec semel.Record, err error) {
	err = s.do(ctx, "find", func(now time.Time) error {
		r := s.live(id, now)
		if r.State == 0 {
			return semel.ErrNotFound
		}
		rec = r.read(now)
		return nil
	})
	return rec, err
}

func (s *store) Resolve(ctx context.Context, d semel.Resolution) (rec semel.Record, err error) {
	if d.Result, err = s.gathered(ctx, "resolve", nil, d.Result); err != nil {
		return rec, err
	}
	err = s.do(ctx, "resolve", func(now time.Time) error {
		was := s.live(d.Identity, now)
		switch {
		case was.State == 0:
			return semel.ErrNotFound
		case !s.settles(s, was, d, now):
			return semel.ErrStaleFence
		}
		s.gap(s, "resolve")
		r := s.resolve(s, was, d, func() uint64 { return s.next(s, d.Identity) }, now)
		e := semel.TrailEntry{Kind: semel.TrailResolved, Label: d.Decision.String(), Cause: d.Cause, Origin: d.Origin}
		if d.Decision == semel.DecideUnknown {
			e.Kind, e.Label = semel.TrailHeld, ""
		}
		if d.Decision == semel.DecideUnknown && was.State == semel.StateUnknown {
			e.Kind = "" // found it done
		}
		s.write(was, r, now, e)
		if r.State == 0 {
			r = was
		} else {
			r = s.rows[s.row(r.Identity)]
		}
		rec = r.read(now)
		return nil
	})
	return rec, err
}

func erase(_ *store, r *row, e semel.Erasure) error {
	if r.Fence != e.Fence || r.State != semel.StateCompleted {
		return semel.ErrStaleFence
	}
	r.Fingerprint = semel.Fingerprint{}
	r.Result = semel.Result{Codec: r.Result.Codec, Label: r.Result.Label, Tombstone: true}
	return nil
}

func (s *store) Erase(ctx context.Context, e semel.Erasure) (erased bool, err error) {
	err = s.do(ctx, "erase", func(now time.Time) error {
		was := s.live(e.Identity, now)
		r := was
		switch {
		case was.State == 0:
			return semel.ErrNotFound
		case was.Erased() && was.Fence == e.Fence:
			return nil
		}
		if err := s.erase(s, &r, e); err != nil {
			return err
		}
		erased = true
		s.write(was, r, now, semel.TrailEntry{Kind: semel.TrailErased, Cause: e.Cause, Origin: e.Origin})
		return nil
	})
	return erased, err
}

func (s *store) Sweep(ctx context.Context, limit int) (n int, err error) {
	err = s.do(ctx, "sweep", func(now time.Time) error {
		var due []semel.Identity
		for id, r := range s.rows {
			if len(due) < limit && s.sweepable(s, r, now) {
				due = append(due, id)
			}
		}
		s.gap(s, "sweep")
		for _, id := range due {
			delete(s.rows, id)
		}
		n = len(due)
		return nil
	})
	return n, err
}

func (s *store) List(ctx context.Context, f semel.Filter) (out []semel.Record, err error) {
	err = s.do(ctx, "list", func(now time.Time) error {
		for _, r := range s.rows {
			if s.listed(s, f, r, now) {
				rec := r.read(now)
				rec.Result = semel.Result{}
				out = append(out, rec)
			}
		}
		slices.SortFunc(out, func(a, b semel.Record) int { return cmp.Compare(a.Fence, b.Fence) })
		out = out[:min(len(out), page(f.Limit))]
		return nil
	})
	return out, err
}

func page(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}

// is reports whether a filter's field lets v pass.
func is[T comparable](field, v T) bool {
	var empty T
	return field == empty || field == v
}

func listed(s *store, f semel.Filter, r row, now time.Time) bool {
	return !s.expired(r, now) && r.Fence > f.After && is(f.ID, r.ID) && is(f.State, r.State) &&
		(!f.Lapsed || r.State == semel.StateInProgress && s.lapsed(r, now)) &&
		is(f.Tenant, r.Identity.Tenant) && is(f.Actor, r.Identity.Actor) &&
		is(f.Operation, r.Identity.Operation) && is(f.Key, r.Identity.Key) &&
		hasCause(f.Cause, r) && !r.BegunAt.Before(f.BegunSince) && (f.BegunUntil.IsZero() || r.BegunAt.Before(f.BegunUntil))
}

func hasCause(cause string, r row) bool {
	prefix, begins := strings.CutSuffix(cause, "*")
	return cause == "" || r.State == semel.StateUnknown && (r.Cause == cause || begins && strings.HasPrefix(r.Cause, prefix))
}

func told(f semel.TrailFilter, e semel.TrailEntry) bool {
	return e.Position > f.After && is(f.Kind, e.Kind) && is(f.RecordID, e.RecordID) &&
		is(f.Tenant, e.Tenant) && is(f.Actor, e.Actor) && is(f.Operation, e.Operation) && is(f.Key, e.Key) &&
		is(f.RequestID, e.RequestID) && is(f.EventID, e.EventID) && is(f.TraceID, e.TraceID) &&
		!e.At.Before(f.Since) && (f.Until.IsZero() || e.At.Before(f.Until))
}

func enter(s *store, e semel.TrailEntry) {
	n := uint64(len(s.trail)) + 1
	e.Position, e.Seq, e.Instance = n, n, "one"
	s.trail = append(s.trail, e)
}

func (s *store) Note(e semel.TrailEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At = s.now(s)
	s.note(s, e)
}

func (s *store) Trail(ctx context.Context, f semel.TrailFilter) (out []semel.TrailEntry, err error) {
	err = s.do(ctx, "trail", func(time.Time) error {
		for _, e := range s.trail {
			if s.told(f, e) && len(out) < page(f.Limit) {
				out = append(out, e)
			}
		}
		return nil
	})
	return out, err
}

// claim is a claim on one row.
type claim struct {
	store  *store
	id     semel.Identity
	record string
	fence  uint64
	token  semel.Token
	lease  time.Duration
}

func (c *claim) Context(ctx context.Context) context.Context { return c.store.context(ctx) }
func (c *claim) RecordID() string                            { return c.record }
func (c *claim) Fence() uint64                               { return c.fence }
func (c *claim) Transactional() bool                         { return false }

// own applies change to the claim's row if the claim still holds it.
func (c *claim) own(ctx context.Context, call, label, cause string, change func(r *row, now time.Time) (semel.TrailKind, error)) (r row, err error) {
	s := c.store
	err = s.do(ctx, call, func(now time.Time) error {
		was := s.live(c.id, now)
		if was.State == 0 || !s.owns(was, c, call) {
			return semel.ErrLostClaim
		}
		r = was
		kind, err := change(&r, now)
		if err != nil {
			return err
		}
		s.gap(s, call)
		s.write(was, r, now, semel.TrailEntry{Kind: kind, Origin: was.Origin, Label: label, Cause: cause})
		return nil
	})
	return r, err
}

func (c *claim) Complete(ctx context.Context, res semel.Result) (time.Time, error) {
	res, err := c.store.gathered(ctx, "complete", c, res)
	if err != nil {
		return time.Time{}, err
	}
	r, err := c.own(ctx, "complete", res.Label, "", func(r *row, now time.Time) (semel.TrailKind, error) {
		return c.store.complete(r, res, now)
	})
	return r.ExpiresAt, err
}

func (c *claim) Release(ctx context.Context) error {
	_, err := c.own(ctx, "release", "", "", func(r *row, _ time.Time) (semel.TrailKind, error) {
		return c.store.release(r)
	})
	return err
}

func (c *claim) Hold(ctx context.Context, cause string) error {
	_, err := c.own(ctx, "hold", "", cause, func(r *row, now time.Time) (semel.TrailKind, error) {
		return c.store.hold(r, cause, now)
	})
	return err
}

func (c *claim) Renew(ctx context.Context) error {
	_, err := c.own(ctx, "renew", "", "", func(r *row, now time.Time) (semel.TrailKind, error) {
		return c.store.renew(r, c.lease, now)
	})
	return err
}
