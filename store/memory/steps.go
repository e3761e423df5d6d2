package memory

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/steps"
)

// Steps implements steps.Store in the memory of one process. It is meant for tests and
// as a reference. Its transactions consist of the functions passed to OnCommit. Its
// clock is time.Now.
type Steps struct {
	mu     sync.Mutex
	number uint64
	rows   map[semel.Identity]*journal
}

type journal struct {
	steps.Operation
	due     time.Time
	started []time.Time // of the steps
}

var _ steps.Store = (*Steps)(nil)

// NewSteps returns an empty journal.
func NewSteps() *Steps { return &Steps{rows: map[semel.Identity]*journal{}} }

// copy is what a caller gets.
func (j *journal) copy() steps.Operation {
	o := j.Operation
	o.Steps, o.Decisions = slices.Clone(o.Steps), nil
	for i := range o.Steps {
		o.Steps[i].Age = time.Since(j.started[i])
	}
	return o
}

// Open implements steps.Store.
func (s *Steps) Open(ctx context.Context, o steps.Opening) (steps.Operation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return steps.Operation{}, ctx.Err()
	}
	j := s.rows[o.Identity]
	switch {
	case j == nil:
		s.number++
		j = &journal{Operation: steps.Operation{
			Number: s.number, Identity: o.Identity, Fingerprint: o.Fingerprint, Input: slices.Clone(o.Input),
		}}
		s.rows[o.Identity] = j
	case j.Fence > o.Fence:
		return steps.Operation{}, steps.ErrStale
	}
	j.Fence, j.Phase, j.Changed, j.due = o.Fence, steps.PhaseOpen, time.Now(), time.Now().Add(o.Due)
	return j.copy(), nil
}

// at returns the operation with that number and fence. It is called with mu held.
func (s *Steps) at(ctx context.Context, number, fence uint64) (*journal, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, j := range s.rows {
		if j.Number == number && j.Fence == fence {
			return j, nil
		}
	}
	return nil, steps.ErrStale
}

// Put implements steps.Store.
func (s *Steps) Put(ctx context.Context, number, fence uint64, step steps.Step) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(ctx, number, fence, step)
}

func (s *Steps) put(ctx context.Context, number, fence uint64, step steps.Step) error {
	j, err := s.at(ctx, number, fence)
	if err != nil {
		return err
	}
	now := time.Now()
	step.Input, step.Result = slices.Clone(step.Input), slices.Clone(step.Result)
	i := slices.IndexFunc(j.Steps, func(o steps.Step) bool { return o.Position == step.Position })
	if i < 0 {
		step.At = now
		j.Steps, j.started = append(j.Steps, step), append(j.started, now)
		return nil
	}
	old := &j.Steps[i]
	if old.State == steps.StateDone || old.State == steps.StateFailed || old.Name != step.Name || !slices.Equal(old.Input, step.Input) {
		return steps.ErrStale
	}
	step.At = old.At
	*old = step
	if step.State == steps.StateStarted {
		j.started[i] = now
	}
	return nil
}

// Transact implements steps.Store. See OnCommit.
func (s *Steps) Transact(ctx context.Context, number, fence uint64, step steps.Step, work func(context.Context) ([]byte, error)) (err error) {
	tx := &inboxTx{}
	step.State, step.Cause = steps.StateDone, ""
	if step.Result, err = work(context.WithValue(ctx, inboxTxKey{}, tx)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.put(ctx, number, fence, step); err != nil {
		return err
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	for _, fn := range tx.done {
		fn()
	}
	return nil
}

// Find implements steps.Store.
func (s *Steps) Find(ctx context.Context, id semel.Identity) (steps.Operation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.rows[id]
	if err := ctx.Err(); err != nil {
		return steps.Operation{}, err
	}
	if j == nil {
		return steps.Operation{}, steps.ErrNotFound
	}
	o := j.copy()
	o.Decisions = slices.Clone(j.Decisions)
	return o, nil
}

// List implements steps.Store.
func (s *Steps) List(ctx context.Context, f steps.Filter) (all []steps.Operation, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, j := range s.rows {
		if (len(f.Phases) == 0 || slices.Contains(f.Phases, j.Phase)) && j.Number > f.After && (!f.Due || !j.due.After(time.Now())) &&
			(len(f.Operations) == 0 || slices.Contains(f.Operations, j.Identity.Operation)) && (f.Key == "" || f.Key == j.Identity.Key) {
			o := j.Operation
			o.Steps, o.Decisions = nil, nil
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(x, y steps.Operation) int { return cmp.Compare(x.Number, y.Number) })
	return all[:min(len(all), f.Page())], nil
}

// Mark implements steps.Store.
func (s *Steps) Mark(ctx context.Context, m steps.Mark) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.at(ctx, m.Number, m.Fence)
	if err != nil {
		return err
	}
	now := time.Now()
	j.Phase, j.Attempts, j.Cause, j.Changed, j.due = m.Phase, m.Attempts, m.Cause, now, now.Add(m.Due)
	return nil
}

// Decide implements steps.Store. The entry appears in Operation.Decisions only,
// because this store has no trail.
func (s *Steps) Decide(ctx context.Context, d steps.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.at(ctx, d.Number, d.Fence)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(j.Steps, func(o steps.Step) bool { return o.Name == d.Step.Name && o.State == steps.StateUnknown })
	switch {
	case d.Step.Name == "" && j.Phase != steps.PhaseHeld, d.Step.Name != "" && i < 0:
		return steps.ErrStale
	case i >= 0:
		j.Steps[i].State, j.Steps[i].Result, j.Steps[i].Cause = d.Step.State, slices.Clone(d.Step.Result), d.Step.Cause
	}
	now := time.Now()
	j.Phase, j.Attempts, j.Cause, j.Changed, j.due = steps.PhaseOpen, 0, "", now, now
	d.Entry.At, d.Entry.Position = now, uint64(len(j.Decisions)+1)
	j.Decisions = append(j.Decisions, d.Entry)
	return nil
}

// Sweep implements steps.Store.
func (s *Steps) Sweep(ctx context.Context, retention time.Duration, limit int) (removed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	for id, j := range s.rows {
		if removed < limit && j.Phase == steps.PhaseFinished && time.Since(j.due) > retention {
			delete(s.rows, id)
			removed++
		}
	}
	return removed, nil
}
