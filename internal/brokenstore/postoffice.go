package brokenstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
)

// postOffice is a correct outbox whose methods can be exchanged for wrong ones.
type postOffice struct {
	*memory.Outbox
	enqueue  func(context.Context, ...outbox.Message) error
	exchange func(context.Context, []outbox.Settlement, outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error)
	mark     func(context.Context, outbox.Ref) error
	renew    func(context.Context, time.Duration, []outbox.Ref) ([]outbox.Ref, error)
	status   func(context.Context) ([]outbox.TopicStatus, error)
	sweep    func(context.Context, outbox.Retention, int) (int, error)
	list     func(context.Context, outbox.Filter) ([]outbox.Entry, error)
	redrive  func(context.Context, outbox.Filter) ([]outbox.Redriven, error)
	decide   func(context.Context, outbox.Filter, outbox.Decision) ([]outbox.Redriven, error)
	purge    func(context.Context, outbox.Filter) ([]outbox.Entry, error)

	mu   sync.Mutex
	last map[uint64]outbox.Claimed // the latest claim on each position, where one is kept
}

// Exchange and what follows implement outboxtest.Store.
func (p *postOffice) Exchange(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
	return p.exchange(ctx, s, c)
}

func (p *postOffice) Mark(ctx context.Context, ref outbox.Ref) error { return p.mark(ctx, ref) }

func (p *postOffice) Renew(ctx context.Context, lease time.Duration, refs []outbox.Ref) ([]outbox.Ref, error) {
	return p.renew(ctx, lease, refs)
}

func (p *postOffice) Status(ctx context.Context) ([]outbox.TopicStatus, error) { return p.status(ctx) }

func (p *postOffice) Sweep(ctx context.Context, r outbox.Retention, limit int) (int, error) {
	return p.sweep(ctx, r, limit)
}

func (p *postOffice) List(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	return p.list(ctx, f)
}

func (p *postOffice) Redrive(ctx context.Context, f outbox.Filter) ([]outbox.Redriven, error) {
	return p.redrive(ctx, f)
}

func (p *postOffice) Decide(ctx context.Context, f outbox.Filter, d outbox.Decision) ([]outbox.Redriven, error) {
	return p.decide(ctx, f, d)
}

func (p *postOffice) Purge(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	return p.purge(ctx, f)
}

// claimed has fn change what claims return.
func (p *postOffice) claimed(fn func(*outbox.Claimed)) {
	exchange := p.exchange
	p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
		got, lost, err := exchange(ctx, s, c)
		for i := range got {
			fn(&got[i])
		}
		return got, lost, err
	}
}

// claim has fn change what claims ask for.
func (p *postOffice) claim(fn func(*outbox.Claim)) {
	exchange := p.exchange
	p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
		fn(&c)
		return exchange(ctx, s, c)
	}
}

// settlement has fn change what claims are settled by.
func (p *postOffice) settlement(fn func(*outbox.Settlement)) {
	exchange := p.exchange
	p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
		s = slices.Clone(s)
		for i := range s {
			fn(&s[i])
		}
		return exchange(ctx, s, c)
	}
}

// message has fn change what is enqueued.
func (p *postOffice) message(fn func(*outbox.Message)) {
	enqueue := p.enqueue
	p.enqueue = func(ctx context.Context, m ...outbox.Message) error {
		m = slices.Clone(m)
		for i := range m {
			fn(&m[i])
		}
		return enqueue(ctx, m...)
	}
}

// remember keeps the latest claim on each position.
func (p *postOffice) remember() {
	p.claimed(func(m *outbox.Claimed) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.last[m.Position] = *m
	})
}

// latest is the latest claim on the message, whoever has it.
func (p *postOffice) latest(ref outbox.Ref) outbox.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, ok := p.last[ref.Position]; ok {
		return m.Ref
	}
	return ref
}

func (p *postOffice) latestOf(refs []outbox.Ref) (latest []outbox.Ref) {
	for _, ref := range refs {
		latest = append(latest, p.latest(ref))
	}
	return latest
}

// refuse tells settlements as lost, and does not carry them out.
func (p *postOffice) refuse(fn func(outbox.Ref) bool) {
	exchange := p.exchange
	p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
		var good []outbox.Settlement
		var refused []outbox.Ref
		for _, s := range s {
			if fn(s.Ref) {
				refused = append(refused, s.Ref)
			} else {
				good = append(good, s)
			}
		}
		got, lost, err := exchange(ctx, good, c)
		return got, append(lost, refused...), err
	}
}

// prefer has claims take what comes first by an order, and no other.
func (p *postOffice) prefer(order func(a, b outbox.Claimed) int) {
	exchange := p.exchange
	p.exchange = func(ctx context.Context, s []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
		most := c.Max
		if most > 0 {
			c.Max = 1000
		}
		got, lost, err := exchange(ctx, s, c)
		slices.SortStableFunc(got, order)
		var back []outbox.Settlement
		for len(got) > most {
			back = append(back, outbox.Settlement{Ref: got[len(got)-1].Ref, Outcome: outbox.OutcomeReleased})
			got = got[:len(got)-1]
		}
		if len(back) > 0 {
			_, _, _ = exchange(ctx, back, outbox.Claim{})
		}
		return got, lost, err
	}
}
