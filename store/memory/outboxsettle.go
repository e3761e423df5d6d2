package memory

import (
	"context"
	"errors"
	"time"

	"github.com/semelhq/semel/outbox"
)

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
		o.hints.Send()
	}
	return lost
}

func (l *letter) end(s outbox.State, now time.Time, blocks bool) {
	l.State, l.SettledAt = s, now
	l.inLane = l.inLane && blocks
}
