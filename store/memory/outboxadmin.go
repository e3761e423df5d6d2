package memory

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/outbox"
)

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
	o.hints.Send()
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
	o.hints.Send()
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
	o.hints.Send()
	return gone, nil
}
