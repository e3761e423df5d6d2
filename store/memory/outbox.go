package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
)

// Outbox implements outbox.Store, Watcher and Admin in the memory of one
// process: for tests, and for learning what such a store does. There is no
// transaction that a message could be part of. A claim looks at every message.
// Its clock is time.Now.
type Outbox struct {
	// MaxPending is how many messages may be pending: beyond it Enqueue fails
	// with outbox.ErrFull. 0 is no bound. Set it before use.
	MaxPending int

	mu       sync.Mutex
	rows     []*letter // in the order of their positions
	ids      map[string]*letter
	position uint64
	hints    map[chan struct{}]struct{}
}

// letter is a message in an outbox.
type letter struct {
	outbox.Entry // its LeaseLeft and Waiting are not kept up
	fence        uint64
	leased       bool
	settling     bool      // by a transaction that has not ended
	inLane       bool      // it keeps its place in its lane
	due          time.Time // of a delay or a lease; zero is at once
}

var (
	_ outbox.Store   = (*Outbox)(nil)
	_ outbox.Watcher = (*Outbox)(nil)
	_ outbox.Admin   = (*Outbox)(nil)
	_ outbox.Settler = (*Outbox)(nil)
)

// NewOutbox returns an empty outbox.
func NewOutbox() *Outbox {
	return &Outbox{ids: map[string]*letter{}, hints: map[chan struct{}]struct{}{}}
}

// Enqueue adds messages, all or none. It fails with outbox.ErrDuplicate where a
// message of the same id is held, and with outbox.ErrFull beyond MaxPending.
func (o *Outbox) Enqueue(ctx context.Context, messages ...outbox.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var added []*letter
	seen := map[string]bool{}
	for _, m := range messages {
		m.Origin = cmp.Or(m.Origin, outbox.OriginOf(ctx))
		if err := m.Validate(); err != nil {
			return err
		}
		if m.ID == "" {
			m.ID = semel.NewKey()
		}
		if o.ids[m.ID] != nil || seen[m.ID] {
			return fmt.Errorf("%w: %s", outbox.ErrDuplicate, m.ID)
		}
		seen[m.ID] = true
		m.Headers, m.Payload = maps.Clone(m.Headers), slices.Clone(m.Payload)
		added = append(added, &letter{
			Entry:  outbox.Entry{Message: m, State: outbox.StatePending, EnqueuedAt: time.Now(), Size: len(m.Payload)},
			inLane: m.Key != "", due: m.NotBefore,
		})
	}
	if o.MaxPending > 0 {
		pending := len(added)
		for _, l := range o.rows {
			if l.State == outbox.StatePending {
				pending++
			}
		}
		if pending > o.MaxPending {
			return outbox.ErrFull
		}
	}
	for _, l := range added {
		o.position++
		l.Position = o.position
		o.ids[l.ID] = l
		o.rows = append(o.rows, l)
	}
	o.hint()
	return nil
}

func (o *Outbox) hint() {
	for c := range o.hints {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Watch implements outbox.Watcher.
func (o *Outbox) Watch() (hints <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hints[c] = struct{}{}
	return c, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.hints, c)
	}
}

type laneName struct{ topic, key string }

// first calls fn with each pending message that nothing of its lane is before.
func (o *Outbox) first(fn func(*letter)) {
	taken := map[laneName]bool{}
	for _, l := range o.rows {
		if l.inLane {
			lane := laneName{l.Topic, l.Key}
			if taken[lane] {
				continue
			}
			taken[lane] = true
		}
		if l.State == outbox.StatePending {
			fn(l)
		}
	}
}

// Exchange implements outbox.Store.
func (o *Outbox) Exchange(ctx context.Context, settlements []outbox.Settlement, c outbox.Claim) (claimed []outbox.Claimed, lost []outbox.Ref, err error) {
	for _, s := range settlements {
		if err := s.Validate(); err != nil {
			return nil, nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	lost = o.settle(settlements)
	if c.Max > 0 {
		claimed = o.claim(c)
	}
	return claimed, lost, nil
}

func (o *Outbox) claim(c outbox.Claim) (claimed []outbox.Claimed) {
	now := time.Now()
	var due []*letter
	o.first(func(l *letter) {
		if (c.Topic == "" || l.Topic == c.Topic) && !l.due.After(now) && !l.settling {
			due = append(due, l)
		}
	})
	due = inTurn(due, c.Max)
	fence, size, suspect := rand.Uint64()>>1, 0, c.Suspect
	for _, l := range due {
		lapses := l.Lapses
		if l.leased {
			lapses++ // the lease is over
		}
		switch {
		case len(claimed) == c.Max:
			return claimed
		case len(claimed) > 0 && c.MaxBytes > 0 && size+l.Size > c.MaxBytes:
			return claimed
		case lapses >= outbox.SuspectLapses && !suspect:
			continue
		case lapses >= outbox.SuspectLapses:
			suspect = false
		}
		size += l.Size
		l.Attempts++
		l.Lapses = lapses
		l.fence, l.leased, l.due = fence, true, now.Add(c.Lease)
		claimed = append(claimed, outbox.Claimed{
			Ref: outbox.Ref{Position: l.Position, Fence: fence}, Message: l.clone(), EnqueuedAt: l.EnqueuedAt,
			Attempts: l.Attempts, Lapses: l.Lapses, Unsure: l.Unsure,
		})
	}
	return claimed
}

// inTurn puts what is due into an order in which topics take turns, and in which
// what comes back after a delay or a lease, and what was never tried, do not starve
// each other.
func inTurn(due []*letter, most int) []*letter {
	var fresh, overdue []*letter
	for _, l := range due {
		if l.due.IsZero() {
			fresh = append(fresh, l)
		} else {
			overdue = append(overdue, l)
		}
	}
	slices.SortStableFunc(overdue, func(a, b *letter) int { return a.due.Compare(b.due) })
	half := min(len(overdue), (most+1)/2)
	due = slices.Concat(overdue[:half], fresh, overdue[half:])
	place, of := map[*letter]int{}, map[string]int{}
	for _, l := range due {
		place[l] = of[l.Topic]
		of[l.Topic]++
	}
	slices.SortStableFunc(due, func(a, b *letter) int { return cmp.Compare(place[a], place[b]) })
	return due
}

func (l *letter) clone() outbox.Message {
	m := l.Message
	m.Headers, m.Payload = maps.Clone(m.Headers), slices.Clone(m.Payload)
	return m
}

func (o *Outbox) at(ref outbox.Ref) *letter {
	i, ok := slices.BinarySearchFunc(o.rows, ref.Position, func(l *letter, p uint64) int { return cmp.Compare(l.Position, p) })
	if !ok || o.rows[i].fence != ref.Fence {
		return nil
	}
	return o.rows[i]
}

// Mark implements outbox.Store.
func (o *Outbox) Mark(ctx context.Context, ref outbox.Ref) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.at(ref)
	if l == nil || l.State != outbox.StatePending || !l.leased {
		return outbox.ErrLeaseLost
	}
	l.Unsure = true
	return nil
}

// Renew implements outbox.Store.
func (o *Outbox) Renew(ctx context.Context, lease time.Duration, refs []outbox.Ref) (lost []outbox.Ref, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, ref := range refs {
		if l := o.at(ref); l != nil && l.leased {
			l.due = time.Now().Add(lease)
		} else {
			lost = append(lost, ref)
		}
	}
	return lost, nil
}

// SettleTx implements outbox.Settler, in the transaction of an Inbox.
func (o *Outbox) SettleTx(ctx context.Context, ref outbox.Ref) error {
	tx, ok := ctx.Value(inboxTxKey{}).(*inboxTx)
	if !ok {
		return errors.New("memory: the context carries no transaction of an inbox")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.at(ref)
	if l == nil || l.State != outbox.StatePending || !l.leased {
		return outbox.ErrLeaseLost
	}
	l.settling = true
	end := func(commit bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if l.settling = false; commit {
			o.settle([]outbox.Settlement{{Ref: ref, Outcome: outbox.OutcomeDelivered}})
		}
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.done = append(tx.done, func() { end(true) })
	tx.undone = append(tx.undone, func() { end(false) })
	return nil
}

func (o *Outbox) settle(settlements []outbox.Settlement) (lost []outbox.Ref) {
	now := time.Now()
	onward := false
	for _, s := range settlements {
		l := o.at(s.Ref)
		if l == nil {
			lost = append(lost, s.Ref)
			continue
		}
		if !l.leased {
			continue // settled by this claim before
		}
		l.leased, l.Cause, l.Lapses = false, s.Cause, 0
		onward = onward || l.inLane || s.Outcome == outbox.OutcomeReleased
		switch s.Outcome {
		case outbox.OutcomeDelivered:
			l.end(outbox.StateDelivered, now, false)
			l.Unsure, l.Cause = false, ""
		case outbox.OutcomeDead:
			l.end(outbox.StateDead, now, s.Blocks)
			l.Unsure = s.Unsure
		case outbox.OutcomeUnknown:
			l.end(outbox.StateUnknown, now, s.Blocks)
			l.Unsure = s.Unsure
		case outbox.OutcomeRetry:
			l.due, l.Unsure = now.Add(s.Delay), s.Unsure
		case outbox.OutcomeReleased:
			if l.due = (time.Time{}); s.Delay > 0 {
				l.due = now.Add(s.Delay)
			}
			l.Attempts--
		}
	}
	if onward {
		o.hint()
	}
	return lost
}

func (l *letter) end(s outbox.State, now time.Time, blocks bool) {
	l.State, l.SettledAt = s, now
	l.inLane = l.inLane && blocks
}

// Status implements outbox.Store.
func (o *Outbox) Status(ctx context.Context) ([]outbox.TopicStatus, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	topics := map[string]*outbox.TopicStatus{}
	for _, l := range o.rows {
		s := topics[l.Topic]
		if s == nil {
			s = &outbox.TopicStatus{Topic: l.Topic}
			topics[l.Topic] = s
		}
		var count *int
		switch l.State {
		case outbox.StatePending:
			since := l.EnqueuedAt
			if l.NotBefore.After(since) {
				since = l.NotBefore
			}
			s.OldestAge = max(s.OldestAge, now.Sub(since))
			count = &s.Pending
		case outbox.StateDead:
			count = &s.Dead
		case outbox.StateUnknown:
			count = &s.Unknown
		default:
			continue
		}
		*count = min(*count+1, outbox.CountLimit)
		if l.blocks() {
			s.Blocked = min(s.Blocked+1, outbox.CountLimit)
		}
	}
	var all []outbox.TopicStatus
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		if s := topics[topic]; *s != (outbox.TopicStatus{Topic: topic}) {
			all = append(all, *s)
		}
	}
	return all, nil
}

func (l *letter) blocks() bool { return l.inLane && l.State != outbox.StatePending }

// Sweep implements outbox.Store.
func (o *Outbox) Sweep(ctx context.Context, r outbox.Retention, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r = r.WithDefaults()
	n := 0
	sweep := func(s outbox.State, age time.Duration, most int) {
		var settled []*letter
		for _, l := range o.rows {
			if l.State == s && !l.inLane {
				settled = append(settled, l)
			}
		}
		slices.SortStableFunc(settled, func(a, b *letter) int { return a.SettledAt.Compare(b.SettledAt) })
		for i, l := range settled {
			if n < limit && (age >= 0 && time.Since(l.SettledAt) >= age || most >= 0 && len(settled)-i > most) {
				o.remove(l)
				n++
			}
		}
	}
	sweep(outbox.StateDelivered, r.Delivered, r.MaxDelivered)
	sweep(outbox.StateDead, r.Dead, r.MaxDead)
	return n, nil
}

func (o *Outbox) remove(l *letter) {
	delete(o.ids, l.ID)
	o.rows = slices.DeleteFunc(o.rows, func(other *letter) bool { return other == l })
}

// Find implements outbox.Admin.
func (o *Outbox) Find(ctx context.Context, id string) (outbox.Entry, error) {
	if err := ctx.Err(); err != nil {
		return outbox.Entry{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.ids[id]
	if l == nil {
		return outbox.Entry{}, outbox.ErrNotFound
	}
	return o.entry(l), nil
}

func (o *Outbox) entry(l *letter) outbox.Entry {
	e := l.Entry
	e.Message = l.clone()
	now := time.Now()
	if e.Blocks = l.blocks(); e.State != outbox.StatePending {
		return e
	}
	e.Waiting = l.inLane && slices.ContainsFunc(o.rows, func(other *letter) bool {
		return other.inLane && other.Topic == l.Topic && other.Key == l.Key && other.Position < l.Position
	})
	switch {
	case l.leased:
		e.LeaseLeft = max(l.due.Sub(now), 0)
	case l.due.After(now) && !e.Waiting:
		e.DueAt = l.due
	}
	return e
}

func (o *Outbox) selected(f outbox.Filter, also func(*letter) bool) (page []*letter) {
	limit := f.Limit
	switch {
	case limit <= 0:
		limit = 100
	case limit > 1000:
		limit = 1000
	}
	cause, prefix := strings.CutSuffix(f.Cause, "*")
	for _, l := range o.rows {
		if l.Position > f.After && len(page) < limit &&
			(f.ID == "" || f.ID == l.ID) && (f.State == "" || f.State == l.State) &&
			(f.Topic == "" || f.Topic == l.Topic) && strings.HasPrefix(l.Topic, f.TopicPrefix) && (f.Key == "" || f.Key == l.Key) && (f.Origin == "" || f.Origin == l.Origin) &&
			(f.Cause == "" || l.Cause == cause || prefix && strings.HasPrefix(l.Cause, cause)) &&
			(also == nil || also(l)) {
			page = append(page, l)
		}
	}
	return page
}

// List implements outbox.Admin.
func (o *Outbox) List(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var page []outbox.Entry
	for _, l := range o.selected(f, nil) {
		e := o.entry(l)
		e.Payload, e.Decisions = nil, nil
		page = append(page, e)
	}
	return page, nil
}

// Redrive implements outbox.Admin.
func (o *Outbox) Redrive(ctx context.Context, f outbox.Filter) ([]outbox.Redriven, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.redrive(f, nil), nil
}

func (o *Outbox) redrive(f outbox.Filter, decisions []outbox.Decision) (done []outbox.Redriven) {
	again := f.ID != "" && f.State == outbox.StateDelivered
	for _, l := range o.selected(f, func(l *letter) bool {
		return l.State == outbox.StateDead || l.State == outbox.StateUnknown || again && l.State == outbox.StateDelivered
	}) {
		l.State, l.due, l.Attempts, l.Lapses, l.Unsure, l.SettledAt = outbox.StatePending, time.Time{}, 0, 0, false, time.Time{}
		l.Redriven++
		l.Decisions = append(l.Decisions, decisions...)
		done = append(done, outbox.Redriven{ID: l.ID, Position: l.Position, OutOfOrder: l.Key != "" && !l.inLane})
	}
	o.hint()
	return done
}

// Decide implements outbox.Admin.
func (o *Outbox) Decide(ctx context.Context, f outbox.Filter, d outbox.Decision) ([]outbox.Redriven, error) {
	if err := errors.Join(d.Validate(), ctx.Err()); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	d.At = time.Now()
	if d.Verdict == outbox.VerdictAgain {
		return o.redrive(f, []outbox.Decision{d}), nil
	}
	var done []outbox.Redriven
	for _, l := range o.selected(f, func(l *letter) bool { return l.State == outbox.StatePending && !l.settling }) {
		l.leased, l.Lapses, l.fence, l.Cause = false, 0, 0, d.Cause()
		l.end(outbox.StateDead, d.At, false)
		l.Decisions = append(l.Decisions, d)
		done = append(done, outbox.Redriven{ID: l.ID, Position: l.Position})
	}
	o.hint()
	return done, nil
}

// Purge implements outbox.Admin.
func (o *Outbox) Purge(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.ID == "" && f.State == "" {
		return nil, outbox.ErrPurgeAll
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var gone []outbox.Entry
	now := time.Now()
	for _, l := range o.selected(f, func(l *letter) bool { return !l.settling && (!l.leased || !l.due.After(now)) }) {
		e := o.entry(l)
		e.Payload = nil
		gone = append(gone, e)
		o.remove(l)
	}
	o.hint()
	return gone, nil
}
