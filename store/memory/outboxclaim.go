package memory

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/semelhq/semel/outbox"
)

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
