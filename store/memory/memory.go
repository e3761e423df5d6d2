// Package memory keeps records in the memory of one process: the reference
// store, for tests, for single processes whose effects die with them, and for
// learning what a store does.
//
// Its records do not survive the process. A retry that reaches another process,
// or the same one after a restart, executes again.
package memory

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recordid"
)

// ErrFull: the store holds Config.MaxRecords records and none has expired.
// Nothing was claimed.
var ErrFull = errors.New("memory: the store is full")

// Config bounds a store. The zero value means the defaults.
type Config struct {
	// MaxRecords is how many records are held at most; beyond it Begin fails
	// with ErrFull. Default 1,000,000.
	MaxRecords int
	// MaxTrail is how many audit entries are held; older ones are forgotten.
	// Default 10,000.
	MaxTrail int
}

// Store implements semel.Store, Resolver, Sweeper, Lister and Trail. Its clock
// is the process's monotonic clock: setting the wall clock moves no lease and
// no retention.
type Store struct {
	config   Config
	instance string
	names    *recordid.Namer

	mu      sync.Mutex
	records map[semel.Identity]*record
	expiry  expiryHeap
	fence   uint64
	trail   []semel.TrailEntry // a ring, once it is full
	oldest  int                // in trail
	noted   uint64
}

type record struct {
	*semel.Record // that of conflict; its Lease is not kept up: leaseEnd is
	conflict      *semel.ConflictError
	token         semel.Token
	leaseEnd      time.Time
	place         int  // in the expiry heap, if it is completed
	gone          bool // it has been removed
}

// New returns an empty store.
func New(c Config) (*Store, error) {
	if c.MaxRecords == 0 {
		c.MaxRecords = 1_000_000
	}
	if c.MaxTrail == 0 {
		c.MaxTrail = 10_000
	}
	if c.MaxRecords < 0 || c.MaxTrail < 0 {
		return nil, fmt.Errorf("memory: MaxRecords %d and MaxTrail %d must not be negative", c.MaxRecords, c.MaxTrail)
	}
	names, err := recordid.New(recordid.NewSecret())
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	return &Store{config: c, instance: semel.NewRecordID(), names: names, records: make(map[semel.Identity]*record)}, nil
}

// find returns the record of id unless it has expired. Called with mu held.
func (s *Store) find(id semel.Identity, now time.Time) *record {
	r := s.records[id]
	if r == nil || r.expired(now) {
		return nil
	}
	return r
}

// remove takes a record out. Called with mu held.
func (s *Store) remove(r *record) {
	r.gone = true
	if r.State == semel.StateCompleted {
		heap.Remove(&s.expiry, r.place)
	}
	delete(s.records, r.Identity)
}

func (r *record) expired(now time.Time) bool {
	return r.State == semel.StateCompleted && !r.ExpiresAt.After(now)
}

// read returns a copy of the record as it is at now.
func (r *record) read(now time.Time) semel.Record {
	out := *r.Record
	out.Lease = r.leaseEnd.Sub(now)
	return out
}

// Begin implements semel.Store.
func (s *Store) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.records[a.Identity]
	if r != nil && r.expired(now) {
		s.remove(r)
		r = nil
	}
	takeover := r != nil
	switch {
	case r == nil:
		if len(s.records) >= s.config.MaxRecords && s.sweep(now, 1) == 0 {
			return nil, ErrFull
		}
		r = &record{conflict: &semel.ConflictError{Record: semel.Record{
			ID: s.names.ID(s.fence + 1), Identity: a.Identity, Fingerprint: a.Fingerprint, State: semel.StateInProgress,
		}}}
		r.Record = &r.conflict.Record
		s.records[a.Identity] = r
	case r.State == semel.StateInProgress && r.token == a.Token && a.Token != (semel.Token{}):
		r.leaseEnd = now.Add(a.Lease)
		return &claim{store: s, record: r, fence: r.Fence, token: r.token, lease: a.Lease}, nil
	case a.Takeover == r.Fence && r.unsettled(now):
		r.State = semel.StateInProgress
		r.Reopened, r.Cause, r.SettledAt = false, "", time.Time{}
	case r.State == semel.StateCompleted: // which it stays, as it is
		return nil, r.conflict
	default:
		return nil, &semel.ConflictError{Record: r.read(now)}
	}
	s.fence++
	r.Fence, r.token = s.fence, a.Token
	r.BegunAt, r.leaseEnd = now, now.Add(a.Lease)
	r.Retention, r.Origin = a.Retention, a.Origin
	if takeover {
		s.enter(now, semel.TrailTakeover, r, a.Origin, "", "")
	}
	return &claim{store: s, record: r, fence: r.Fence, token: r.token, lease: a.Lease}, nil
}

// unsettled reports whether the record may be taken over, or marked unknown.
func (r *record) unsettled(now time.Time) bool {
	return r.State == semel.StateUnknown || r.State == semel.StateInProgress && !r.leaseEnd.After(now)
}

// Find implements semel.Store.
func (s *Store) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	if err := ctx.Err(); err != nil {
		return semel.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.find(id, now)
	if r == nil {
		return semel.Record{}, semel.ErrNotFound
	}
	return r.read(now), nil
}

// Resolve implements semel.Resolver.
func (s *Store) Resolve(ctx context.Context, d semel.Resolution) (_ semel.Record, err error) {
	if err := ctx.Err(); err != nil {
		return semel.Record{}, err
	}
	if d.Decision == semel.DecideResult && d.Result.Pieces != nil {
		if d.Result, err = whole(ctx, d.Result); err != nil {
			return semel.Record{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.find(d.Identity, now)
	if r == nil {
		return semel.Record{}, semel.ErrNotFound
	}
	if r.Fence != d.Fence || !r.unsettled(now) || r.State != semel.StateUnknown && d.Decision != semel.DecideUnknown {
		return semel.Record{}, semel.ErrStaleFence
	}
	switch d.Decision {
	case semel.DecideUnknown:
		if r.State == semel.StateUnknown {
			return r.read(now), nil
		}
		r.State, r.Reopened, r.SettledAt, r.Cause = semel.StateUnknown, false, now, d.Cause
		s.enter(now, semel.TrailHeld, r, d.Origin, "", d.Cause)
		return r.read(now), nil
	case semel.DecideResult:
		s.fence++ // the owner, should it live, has lost its claim
		r.Fence = s.fence
		s.complete(r, d.Result, now)
	case semel.DecideNoEffect:
		s.remove(r)
	case semel.DecideExecuteAgain:
		s.fence++
		r.Fence, r.token = s.fence, semel.Token{}
		r.State, r.Reopened, r.SettledAt, r.Cause = semel.StateInProgress, true, time.Time{}, ""
		r.leaseEnd = minTime(r.leaseEnd, now)
	default:
		return semel.Record{}, fmt.Errorf("memory: no such decision: %v", d.Decision)
	}
	s.enter(now, semel.TrailResolved, r, d.Origin, d.Decision.String(), d.Cause)
	return r.read(now), nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// complete records a result. Called with mu held.
func (s *Store) complete(r *record, res semel.Result, now time.Time) {
	r.State, r.Result, r.Cause, r.Reopened = semel.StateCompleted, res, "", false
	r.SettledAt, r.ExpiresAt = now, now.Add(r.Retention)
	heap.Push(&s.expiry, r)
}

// Sweep implements semel.Sweeper.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep(time.Now(), limit), nil
}

func (s *Store) sweep(now time.Time, limit int) (n int) {
	for n < limit && len(s.expiry) > 0 && s.expiry[0].expired(now) {
		s.remove(s.expiry[0])
		n++
	}
	return n
}

// Run sweeps every minute, in batches, until ctx ends; then it returns nil. A
// store that is not swept makes room when it is full.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		for n := 1; n > 0; {
			n, _ = s.Sweep(ctx, 1000) // it fails when ctx has ended, and then removes nothing
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// List implements semel.Lister.
func (s *Store) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	limit := pageSize(f.Limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var out []semel.Record
	for _, r := range s.records {
		if r.expired(now) || r.Fence <= f.After ||
			f.ID != "" && r.ID != f.ID ||
			f.State != 0 && r.State != f.State ||
			f.Tenant != "" && r.Identity.Tenant != f.Tenant ||
			f.Actor != "" && r.Identity.Actor != f.Actor ||
			f.Operation != "" && r.Identity.Operation != f.Operation ||
			f.Key != "" && r.Identity.Key != f.Key ||
			f.Cause != "" && !hasCause(r, f.Cause) ||
			!f.BegunSince.IsZero() && r.BegunAt.Before(f.BegunSince) ||
			!f.BegunUntil.IsZero() && !r.BegunAt.Before(f.BegunUntil) {
			continue
		}
		rec := r.read(now)
		if f.Lapsed && !rec.Lapsed() {
			continue
		}
		rec.Result = semel.Result{}
		out = append(out, rec)
	}
	slices.SortFunc(out, func(a, b semel.Record) int { return cmp.Compare(a.Fence, b.Fence) })
	return out[:min(limit, len(out))], nil
}

func hasCause(r *record, cause string) bool {
	if r.State != semel.StateUnknown {
		return false
	}
	if prefix, ok := strings.CutSuffix(cause, "*"); ok {
		return strings.HasPrefix(r.Cause, prefix)
	}
	return r.Cause == cause
}

func pageSize(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}

// enter writes an audit entry about r. Called with mu held.
func (s *Store) enter(now time.Time, kind semel.TrailKind, r *record, o semel.Origin, label, cause string) {
	s.append(now, &semel.TrailEntry{
		Kind: kind, RecordID: r.ID, Fence: r.Fence, Tenant: r.Identity.Tenant, Actor: r.Identity.Actor,
		Operation: r.Identity.Operation, Key: r.Identity.Key, Origin: o, Label: label, Cause: cause,
	})
}

func (s *Store) append(now time.Time, e *semel.TrailEntry) {
	s.noted++
	e.Position, e.Seq, e.Instance, e.At = s.noted, s.noted, s.instance, now
	if len(s.trail) < s.config.MaxTrail {
		s.trail = append(s.trail, *e)
		return
	}
	s.trail[s.oldest] = *e
	s.oldest = (s.oldest + 1) % len(s.trail)
}

// Note implements semel.Trail. It writes at once and loses nothing.
func (s *Store) Note(e semel.TrailEntry) {
	if e.Kind == semel.TrailLost {
		e.Count = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.append(time.Now(), &e)
}

// Trail implements semel.Trail.
func (s *Store) Trail(ctx context.Context, f semel.TrailFilter) ([]semel.TrailEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	limit := pageSize(f.Limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []semel.TrailEntry
	for n := range s.trail {
		if len(out) == limit {
			break
		}
		e := &s.trail[(s.oldest+n)%len(s.trail)]
		if e.Position <= f.After ||
			f.RecordID != "" && e.RecordID != f.RecordID ||
			f.Tenant != "" && e.Tenant != f.Tenant ||
			f.Actor != "" && e.Actor != f.Actor ||
			f.Operation != "" && e.Operation != f.Operation ||
			f.Key != "" && e.Key != f.Key ||
			f.RequestID != "" && e.RequestID != f.RequestID ||
			f.EventID != "" && e.EventID != f.EventID ||
			f.TraceID != "" && e.TraceID != f.TraceID ||
			f.Kind != "" && e.Kind != f.Kind ||
			!f.Since.IsZero() && e.At.Before(f.Since) ||
			!f.Until.IsZero() && !e.At.Before(f.Until) {
			continue
		}
		out = append(out, *e)
	}
	return out, nil
}

// claim is a claim on one record.
type claim struct {
	store  *Store
	record *record
	fence  uint64
	token  semel.Token
	lease  time.Duration
}

func (c *claim) Context(ctx context.Context) context.Context { return ctx }
func (c *claim) RecordID() string                            { return c.record.ID }
func (c *claim) Fence() uint64                               { return c.fence }
func (c *claim) Transactional() bool                         { return false }

// own runs change on the claim's record if the claim still holds it.
func (c *claim) own(ctx context.Context, change func(r *record, now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	now := time.Now()
	r := c.record
	if r.gone || r.expired(now) || r.Fence != c.fence || r.token != c.token {
		return semel.ErrLostClaim
	}
	return change(r, now)
}

func (c *claim) Complete(ctx context.Context, res semel.Result) (expires time.Time, err error) {
	if res.Pieces != nil {
		if res, err = whole(ctx, res); err != nil {
			return expires, err
		}
	}
	err = c.own(ctx, func(r *record, now time.Time) error {
		if r.State != semel.StateCompleted {
			c.store.complete(r, res, now)
			c.store.enter(now, semel.TrailExecuted, r, r.Origin, res.Label, "")
		}
		expires = r.ExpiresAt
		return nil
	})
	return expires, err
}

// whole returns a result with pieces as one whose body is in memory, where
// everything of this store is.
func whole(ctx context.Context, res semel.Result) (semel.Result, error) {
	if res.Pieces.Size <= 0 || res.Pieces.Read == nil || len(res.Body) > 0 {
		return res, fmt.Errorf("memory: %w: its pieces, %d bytes long, are not a body", semel.ErrTooLarge, res.Pieces.Size)
	}
	var body []byte // no room made for a size that somebody made up
	for n := 0; int64(len(body)) < res.Pieces.Size; n++ {
		piece, err := res.Pieces.ReadPiece(ctx, n)
		switch {
		case ctx.Err() != nil: // which says nothing about the body
			return res, ctx.Err()
		case err != nil:
			return res, fmt.Errorf("memory: %w: %v", semel.ErrTooLarge, err)
		}
		body = append(body, piece...)
	}
	res.Body, res.Pieces = body, nil
	return res, nil
}

func (c *claim) Release(ctx context.Context) error {
	return c.own(ctx, func(r *record, now time.Time) error {
		if r.State == semel.StateCompleted {
			return semel.ErrLostClaim
		}
		c.store.remove(r)
		c.store.enter(now, semel.TrailReleased, r, r.Origin, "", "")
		return nil
	})
}

func (c *claim) Hold(ctx context.Context, cause string) error {
	return c.own(ctx, func(r *record, now time.Time) error {
		switch r.State {
		case semel.StateCompleted:
			return semel.ErrLostClaim
		case semel.StateUnknown:
			return nil
		}
		r.State, r.SettledAt, r.Cause = semel.StateUnknown, now, cause
		r.leaseEnd = minTime(r.leaseEnd, now)
		c.store.enter(now, semel.TrailHeld, r, r.Origin, "", cause)
		return nil
	})
}

func (c *claim) Renew(ctx context.Context) error {
	return c.own(ctx, func(r *record, now time.Time) error {
		if r.State != semel.StateInProgress {
			return semel.ErrLostClaim
		}
		r.leaseEnd = now.Add(c.lease)
		return nil
	})
}

// expiryHeap orders completed records by the end of their retention.
type expiryHeap []*record

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].ExpiresAt.Before(h[j].ExpiresAt) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *expiryHeap) Push(x any) {
	r := x.(*record)
	r.place = len(*h)
	*h = append(*h, r)
}

func (h *expiryHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}
