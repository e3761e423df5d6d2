package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

const (
	settleEnd = `
		UPDATE outbox SET state = ?, due = NULL, leased = 0, lapses = 0, unsure = ?, in_lane = ?, settled_at = ?, cause = ?
		WHERE position = ? AND fence = ? AND leased = 1`
	settledSet = `state = 'delivered', due = NULL, leased = 0, lapses = 0, unsure = 0, settled_at = ?, cause = NULL
		WHERE fence = ? AND leased = 1 AND `
	// Of what has no key the place in a lane means nothing, and it has no trigger.
	settleFree  = "UPDATE outbox SET " + settledSet + "key IS NULL AND "
	settleKeyed = "UPDATE outbox SET in_lane = 0, " + settledSet + "key IS NOT NULL AND "
	settleRetry = `
		UPDATE outbox SET due = ?, leased = 0, lapses = 0, unsure = ?, cause = ?
		WHERE position = ? AND fence = ? AND leased = 1`
	settleRelease = `
		UPDATE outbox SET due = ?, leased = 0, lapses = 0, attempts = attempts - 1
		WHERE position = ? AND fence = ? AND leased = 1`
	selectSettled = `SELECT 1 FROM outbox WHERE position = ? AND fence = ? AND leased = 0`
)

// SettleTx implements outbox.Settler. It settles in the transaction that Tx
// returns.
func (o *Outbox) SettleTx(ctx context.Context, ref outbox.Ref) error {
	h, ok := ctx.Value(handlerKey{}).(*handler)
	if !ok {
		return ErrNoTransaction
	}
	r, err := h.work.ExecContext(ctx, settleEnd, string(outbox.StateDelivered), 0, 0, time.Now().UnixMicro(), nil, int64(ref.Position), int64(ref.Fence))
	if err != nil {
		return fmt.Errorf("sqlite: settle: %w", err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, outbox.ErrLeaseLost)
	}
	return nil
}

// settleMessages settles what was delivered together, as far as one claim goes.
func (t *tx) settleMessages(settlements []outbox.Settlement) (lost []outbox.Ref, err error) {
	settlements = slices.Clone(settlements)
	slices.SortFunc(settlements, func(a, b outbox.Settlement) int {
		return cmp.Or(cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Fence, b.Fence), cmp.Compare(a.Position, b.Position))
	})
	for len(settlements) > 0 {
		first := settlements[0]
		n := 1
		for n < min(len(settlements), together) && settlements[n].Outcome == first.Outcome && settlements[n].Fence == first.Fence {
			n++
		}
		some := settlements[:n]
		settlements = settlements[n:]
		if first.Outcome == outbox.OutcomeDelivered && n > 1 {
			done, err := t.settleDelivered(some)
			if err != nil {
				return nil, err
			}
			if done {
				continue
			}
		}
		for _, s := range some {
			held, err := t.settleMessage(s)
			if err != nil {
				return nil, err
			}
			if !held {
				lost = append(lost, s.Ref)
			}
		}
	}
	return lost, nil
}

// settleDelivered reports whether all of them, which are of one claim, were held
// and are settled.
func (t *tx) settleDelivered(some []outbox.Settlement) (bool, error) {
	positions := make([]int64, len(some))
	for i, s := range some {
		positions[i] = int64(s.Position)
	}
	positions = slices.Compact(positions)
	fence := int64(some[0].Fence)
	n, err := t.update(settleFree+positionRun, settleFree+positionSome, positions, t.now, fence)
	if err == nil && n < int64(len(some)) {
		var keyed int64
		keyed, err = t.update(settleKeyed+positionRun, settleKeyed+positionSome, positions, t.now, fence)
		n += keyed
	}
	return n == int64(len(some)), err
}

func (t *tx) settleMessage(s outbox.Settlement) (held bool, err error) {
	position, fence := int64(s.Position), int64(s.Fence)
	end := func(state outbox.State) (int64, error) {
		return t.exec(settleEnd, string(state), flag(s.Unsure), flag(s.Blocks), t.now, orNull(storekit.Cut(s.Cause)), position, fence)
	}
	var n int64
	switch s.Outcome {
	case outbox.OutcomeDelivered:
		s.Unsure, s.Blocks, s.Cause = false, false, ""
		n, err = end(outbox.StateDelivered)
	case outbox.OutcomeDead:
		n, err = end(outbox.StateDead)
	case outbox.OutcomeUnknown:
		n, err = end(outbox.StateUnknown)
	case outbox.OutcomeRetry:
		n, err = t.exec(settleRetry, t.now+micros(s.Delay), flag(s.Unsure), orNull(storekit.Cut(s.Cause)), position, fence)
	case outbox.OutcomeReleased:
		due := int64(0)
		if s.Delay > 0 {
			due = t.now + micros(s.Delay)
		}
		n, err = t.exec(settleRelease, due, position, fence)
	}
	if err != nil || n > 0 {
		return true, err
	}
	err = t.query(selectSettled, func(*row) { held = true }, position, fence)
	return held, err
}

func flag(b bool) driver.Value {
	if b {
		return int64(1)
	}
	return int64(0)
}
