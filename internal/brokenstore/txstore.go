package brokenstore

import (
	"context"
	"errors"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/storetest"
)

var (
	errLostAnswer = errors.New("brokenstore: the answer to a commit was lost")
	errTxDone     = errors.New("brokenstore: the transaction is over")
)

// txDisk is what handles of one transactional store share beside the records.
type txDisk struct {
	locks   map[semel.Identity]*txClaim
	effects int
	lose    *bool // the next commit loses its answer, and whether it is taken
}

// txStore is a store whose claims are transactions, over the records of a
// store. As correctTx() leaves its seams it keeps every rule.
type txStore struct {
	*store
	*txDisk
	txSeams
}

// txSeams are the pieces of a transactional store that can be exchanged. All
// but reach run with the records locked.
type txSeams struct {
	// reach says whether a call of a claim or a begin may go ahead.
	reach func(s *txStore, ctx context.Context, call string) error
	// blocks returns Begin's answer to an attempt whose identity c has.
	blocks func(c *txClaim, now time.Time) error
	// replaces says whether the final write may take the place of was, which
	// has expired.
	replaces func(was row) bool
	// final makes the completed row; was is the expired one, if any.
	final func(c *txClaim, was row, res semel.Result, now time.Time) row
	// commit makes the row and the effects last; undo does neither.
	commit func(c *txClaim, r row, res semel.Result, now time.Time)
	undo   func(c *txClaim, call string, now time.Time)
	// lost is the answer to a commit whose own answer was lost, once.
	lost func(c *txClaim, taken bool) error
	// effect is what a handler does.
	effect func(c *txClaim) error
	// tell tells the trail of a transaction that left nothing.
	tell func(c *txClaim, call string, now time.Time)
}

func correctTx() txSeams {
	return txSeams{
		reach: func(s *txStore, ctx context.Context, call string) error { return reach(s.store, ctx, call) },
		blocks: func(c *txClaim, _ time.Time) error {
			return &semel.ConflictError{Record: semel.Record{Identity: c.attempt.Identity, State: semel.StateInProgress, Lease: time.Second}}
		},
		replaces: func(row) bool { return true },
		final:    writeTx,
		commit:   commitTx,
		undo:     func(*txClaim, string, time.Time) {},
		lost:     func(*txClaim, bool) error { return errLostAnswer },
		effect: func(c *txClaim) error {
			if c.state != txLive {
				return errTxDone
			}
			c.done++
			return nil
		},
		tell: func(c *txClaim, _ string, now time.Time) { c.enter(semel.TrailReleased, "", now) },
	}
}

func writeTx(c *txClaim, _ row, res semel.Result, now time.Time) row {
	a := c.attempt
	return row{
		Record: semel.Record{
			ID: c.id, Identity: a.Identity, Fingerprint: a.Fingerprint, State: semel.StateCompleted, Fence: c.fence,
			BegunAt: c.begun, Retention: a.Retention, Origin: a.Origin,
			Result: res, SettledAt: now, ExpiresAt: now.Add(a.Retention),
		},
		token: a.Token, leaseEnd: now,
	}
}

func commitTx(c *txClaim, r row, res semel.Result, now time.Time) {
	if !res.Failed {
		c.store.effects += c.done
	}
	c.record(r, res, now)
}

// record stores the row and tells the trail of it.
func (c *txClaim) record(r row, res semel.Result, now time.Time) {
	if r.Result.Pieces != nil {
		r.Result.Pieces = c.store.view(c.store.store, r)
	}
	c.store.rows[r.Identity] = r
	c.enter(semel.TrailExecuted, res.Label, now)
}

func (c *txClaim) enter(kind semel.TrailKind, label string, now time.Time) {
	a := c.attempt
	enter(c.store.store, semel.TrailEntry{
		Kind: kind, Label: label, At: now, RecordID: c.id, Fence: c.fence, Origin: a.Origin,
		Tenant: a.Identity.Tenant, Actor: a.Identity.Actor, Operation: a.Identity.Operation, Key: a.Identity.Key,
	})
}

type txState int

const (
	txLive txState = iota
	txCommitted
	txReleased
	txRolledBack
)

// txClaim is a claim that is a transaction.
type txClaim struct {
	store   *txStore
	attempt semel.Attempt
	id      string
	fence   uint64
	begun   time.Time
	state   txState
	done    int // effects of the handler
}

func (s *txStore) call(ctx context.Context, call string, f func(now time.Time) error) error {
	if err := s.reach(s, ctx, call); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return f(time.Now())
}

func (s *txStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c := &txClaim{store: s, attempt: a, id: semel.NewRecordID()}
	err := s.call(ctx, "begin", func(now time.Time) error {
		if r := s.live(a.Identity, now); r.State != 0 {
			return &semel.ConflictError{Record: r.read(now)}
		}
		if owner := s.locks[a.Identity]; owner != nil {
			if err := s.blocks(owner, now); err != nil {
				return err
			}
		}
		s.locks[a.Identity] = c
		c.fence, c.begun = s.next(s.store, a.Identity), now
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *txClaim) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, txKey{}, c)
}
func (c *txClaim) RecordID() string    { return c.id }
func (c *txClaim) Fence() uint64       { return c.fence }
func (c *txClaim) Transactional() bool { return true }

type txKey struct{}

// end frees the identity.
func (c *txClaim) end(as txState) {
	c.state = as
	if c.store.locks[c.attempt.Identity] == c {
		delete(c.store.locks, c.attempt.Identity)
	}
}

// over is the answer of a claim that is settled otherwise.
func (c *txClaim) over() error {
	if c.state == txRolledBack {
		return semel.ErrRolledBack
	}
	return semel.ErrLostClaim
}

func (c *txClaim) Complete(ctx context.Context, res semel.Result) (expires time.Time, err error) {
	s := c.store
	if res, err = s.gathered(ctx, "complete", nil, res); err != nil {
		return expires, err
	}
	err = s.call(ctx, "complete", func(now time.Time) error {
		was := s.rows[c.attempt.Identity]
		switch {
		case c.state == txCommitted && was.Fence == c.fence && !s.expired(was, now):
			expires = was.ExpiresAt
			return nil
		case c.state == txCommitted:
			return semel.ErrLostClaim
		case c.state != txLive:
			return c.over()
		}
		if lose := s.lose; lose != nil {
			s.lose = nil
			if !*lose {
				c.end(txRolledBack)
				return s.lost(c, false)
			}
			s.commit(c, s.final(c, was, res, now), res, now)
			c.end(txCommitted)
			return s.lost(c, true)
		}
		if was.State != 0 && (!s.expired(was, now) || !s.replaces(was)) {
			c.end(txRolledBack)
			return semel.ErrRolledBack
		}
		r := s.final(c, was, res, now)
		s.commit(c, r, res, now)
		c.end(txCommitted)
		expires = r.ExpiresAt
		return nil
	})
	return expires, err
}

func (c *txClaim) leave(ctx context.Context, call string, as txState) error {
	s := c.store
	return s.call(ctx, call, func(now time.Time) error {
		if c.state != txLive {
			return c.over()
		}
		s.undo(c, call, now)
		c.end(as)
		s.tell(c, call, now)
		return nil
	})
}

func (c *txClaim) Release(ctx context.Context) error {
	err := c.leave(ctx, "release", txReleased)
	if errors.Is(err, semel.ErrRolledBack) {
		return nil
	}
	return err
}

func (c *txClaim) Hold(ctx context.Context, _ string) error {
	if err := c.leave(ctx, "hold", txRolledBack); err != nil {
		return err
	}
	return semel.ErrRolledBack
}

func (c *txClaim) Renew(ctx context.Context) error {
	return c.store.call(ctx, "renew", func(time.Time) error {
		if c.state != txLive {
			return semel.ErrLostClaim
		}
		return nil
	})
}

// CorrectTransactional sets up the store that the broken ones with transactions
// differ from.
func CorrectTransactional() storetest.Harness { return txHarness(nil) }

func txHarness(change func(*txSeams)) storetest.Harness {
	h := harness(nil, nil)
	base, ok := h.Store.(*store)
	if !ok {
		panic("brokenstore: the store is wrapped")
	}
	pieces := correctTx()
	if change != nil {
		change(&pieces)
	}
	d := &txDisk{locks: make(map[semel.Identity]*txClaim)}
	open := func() semel.Store { return &txStore{store: base, txDisk: d, txSeams: pieces} }
	return storetest.Harness{
		Transactional: true,
		Store:         open(),
		Open:          open,
		Break:         h.Break,
		Effect: func(ctx context.Context) error {
			c, ok := ctx.Value(txKey{}).(*txClaim)
			if !ok {
				return errTxDone
			}
			base.mu.Lock()
			defer base.mu.Unlock()
			return c.store.effect(c)
		},
		Effects: func() int {
			base.mu.Lock()
			defer base.mu.Unlock()
			return d.effects
		},
		LoseCommit: func(taken bool) {
			base.mu.Lock()
			defer base.mu.Unlock()
			d.lose = &taken
		},
	}
}

// later runs f on the records in a moment.
func (c *txClaim) later(f func()) {
	time.AfterFunc(moment, func() {
		c.store.mu.Lock()
		defer c.store.mu.Unlock()
		f()
	})
}
