package stepstest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/steps/stepstest"
	"github.com/semelhq/semel/store/memory"
)

// broken is a store whose methods may be replaced by wrong ones.
type broken struct {
	*memory.Steps
	open     func(b *memory.Steps, ctx context.Context, o steps.Opening) (steps.Operation, error)
	put      func(b *memory.Steps, ctx context.Context, number, fence uint64, s steps.Step) error
	transact func(b *memory.Steps, ctx context.Context, number, fence uint64, s steps.Step, work func(context.Context) ([]byte, error)) error
	list     func(b *memory.Steps, ctx context.Context, f steps.Filter) ([]steps.Operation, error)
	mark     func(b *memory.Steps, ctx context.Context, m steps.Mark) error
	decide   func(b *memory.Steps, ctx context.Context, d steps.Decision) error
	sweep    func(b *memory.Steps, ctx context.Context, retention time.Duration, limit int) (int, error)
}

func (b *broken) Open(ctx context.Context, o steps.Opening) (steps.Operation, error) {
	if b.open != nil {
		return b.open(b.Steps, ctx, o)
	}
	return b.Steps.Open(ctx, o)
}

func (b *broken) Put(ctx context.Context, number, fence uint64, s steps.Step) error {
	if b.put != nil {
		return b.put(b.Steps, ctx, number, fence, s)
	}
	return b.Steps.Put(ctx, number, fence, s)
}

func (b *broken) Transact(ctx context.Context, number, fence uint64, s steps.Step, work func(context.Context) ([]byte, error)) error {
	if b.transact != nil {
		return b.transact(b.Steps, ctx, number, fence, s, work)
	}
	return b.Steps.Transact(ctx, number, fence, s, work)
}

func (b *broken) List(ctx context.Context, f steps.Filter) ([]steps.Operation, error) {
	if b.list != nil {
		return b.list(b.Steps, ctx, f)
	}
	return b.Steps.List(ctx, f)
}

func (b *broken) Mark(ctx context.Context, m steps.Mark) error {
	if b.mark != nil {
		return b.mark(b.Steps, ctx, m)
	}
	return b.Steps.Mark(ctx, m)
}

func (b *broken) Decide(ctx context.Context, d steps.Decision) error {
	if b.decide != nil {
		return b.decide(b.Steps, ctx, d)
	}
	return b.Steps.Decide(ctx, d)
}

func (b *broken) Sweep(ctx context.Context, retention time.Duration, limit int) (int, error) {
	if b.sweep != nil {
		return b.sweep(b.Steps, ctx, retention, limit)
	}
	return b.Steps.Sweep(ctx, retention, limit)
}

// fenceOf is the fence on record, which a store that does not care takes.
func fenceOf(s *memory.Steps, number uint64) uint64 {
	all, _ := s.List(context.Background(), steps.Filter{After: number - 1, Limit: 1})
	if len(all) == 1 && all[0].Number == number {
		return all[0].Fence
	}
	return 0
}

// The suite fails on each of these stores.
func TestBrokenStores(t *testing.T) {
	for name, b := range map[string]broken{
		"": {},
		"lowers the fence": {open: func(b *memory.Steps, ctx context.Context, o steps.Opening) (steps.Operation, error) {
			op, err := b.Open(ctx, o)
			if errors.Is(err, steps.ErrStale) {
				return b.Find(ctx, o.Identity)
			}
			return op, err
		}},
		"takes the new input": {open: func(b *memory.Steps, ctx context.Context, o steps.Opening) (steps.Operation, error) {
			op, err := b.Open(ctx, o)
			op.Input = o.Input
			return op, err
		}},
		"mixes tenants": {open: func(b *memory.Steps, ctx context.Context, o steps.Opening) (steps.Operation, error) {
			o.Identity.Tenant = ""
			return b.Open(ctx, o)
		}},
		"puts without fence": {put: func(b *memory.Steps, ctx context.Context, number, _ uint64, s steps.Step) error {
			return b.Put(ctx, number, fenceOf(b, number), s)
		}},
		"puts what is settled": {put: func(b *memory.Steps, ctx context.Context, number, fence uint64, s steps.Step) error {
			if err := b.Put(ctx, number, fence, s); err != nil && fenceOf(b, number) != fence {
				return err
			}
			return nil
		}},
		"marks without fence": {mark: func(b *memory.Steps, ctx context.Context, m steps.Mark) error {
			m.Fence = fenceOf(b, m.Number)
			return b.Mark(ctx, m)
		}},
		"commits the effect before the step": {transact: func(b *memory.Steps, ctx context.Context, number, fence uint64, s steps.Step, work func(context.Context) ([]byte, error)) error {
			other := memory.NewSteps()
			o, _ := other.Open(ctx, steps.Opening{Identity: semel.Identity{Key: "x"}, Fence: 1})
			if err := other.Transact(ctx, o.Number, 1, s, func(ctx context.Context) (r []byte, err error) { s.Result, err = work(ctx); return nil, err }); err != nil {
				return err
			}
			s.State = steps.StateDone
			return b.Put(ctx, number, fence, s)
		}},
		"transacts without fence": {transact: func(b *memory.Steps, ctx context.Context, number, _ uint64, s steps.Step, work func(context.Context) ([]byte, error)) error {
			return b.Transact(ctx, number, fenceOf(b, number), s, work)
		}},
		"decides without fence": {decide: func(b *memory.Steps, ctx context.Context, d steps.Decision) error {
			d.Fence = fenceOf(b, d.Number)
			return b.Decide(ctx, d)
		}},
		"says that a decision was taken twice": {decide: func(b *memory.Steps, ctx context.Context, d steps.Decision) error {
			if err := b.Decide(ctx, d); err != nil && fenceOf(b, d.Number) != d.Fence {
				return err
			}
			return nil
		}},
		"decides without a trail": {decide: func(b *memory.Steps, ctx context.Context, d steps.Decision) error {
			if d.Step.Name != "" {
				if err := b.Put(ctx, d.Number, d.Fence, d.Step); err != nil {
					return err
				}
			}
			return b.Mark(ctx, steps.Mark{Number: d.Number, Fence: d.Fence, Phase: steps.PhaseOpen})
		}},
		"resolves, and does not go on": {decide: func(b *memory.Steps, ctx context.Context, d steps.Decision) error {
			err := b.Decide(ctx, d)
			if err == nil {
				err = b.Mark(ctx, steps.Mark{Number: d.Number, Fence: d.Fence, Phase: steps.PhaseHeld})
			}
			return err
		}},
		"lists what is not due": {list: func(b *memory.Steps, ctx context.Context, f steps.Filter) ([]steps.Operation, error) {
			f.Due = false
			return b.List(ctx, f)
		}},
		"lists the operations of others": {list: func(b *memory.Steps, ctx context.Context, f steps.Filter) ([]steps.Operation, error) {
			f.Operations = nil
			return b.List(ctx, f)
		}},
		"sweeps early": {sweep: func(b *memory.Steps, ctx context.Context, _ time.Duration, limit int) (int, error) {
			return b.Sweep(ctx, -1, limit)
		}},
		"sweeps without bound": {sweep: func(b *memory.Steps, ctx context.Context, retention time.Duration, _ int) (int, error) {
			return b.Sweep(ctx, retention, 1000)
		}},
		"takes no notice of contexts": {put: func(b *memory.Steps, ctx context.Context, number, fence uint64, s steps.Step) error {
			return b.Put(context.WithoutCancel(ctx), number, fence, s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			found := stepstest.Check(t, stepstest.Config{New: func(testing.TB) stepstest.Harness {
				s := b
				s.Steps = memory.NewSteps()
				e := &recorder.Effects{OnCommit: memory.OnCommit}
				return stepstest.Harness{Store: &s, Open: func() steps.Store { return &s }, Advance: time.Sleep, Effect: e.Effect, Effects: e.Effects}
			}})
			if (len(found) == 0) != (name == "") {
				t.Errorf("it breaks %v", found)
			}
		})
	}
}
