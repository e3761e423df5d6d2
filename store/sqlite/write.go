package sqlite

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// write has the store's writer run fn in its next transaction, together with
// what other callers wait for, and returns fn's answer once that transaction is
// committed. An error of fn is an answer like another; if a statement fails
// instead, fn's changes are rolled back, and no one else's.
//
// fn may run more than once, and after write has returned with the end of ctx,
// so it must not use what its caller changes. It must not change anything before
// it returns an error. size is about how many bytes it writes.
func write[T any](ctx context.Context, s *Store, size int, fn func(*tx) (T, error)) (T, error) {
	return writeOrLook(ctx, s, size, fn, nil)
}

// writeOrLook is write for what may be answered without: if its turn is long in
// coming it calls look once, whose error, unless it is nil, takes the place of fn.
func writeOrLook[T any](ctx context.Context, s *Store, size int, fn func(*tx) (T, error), look func() error) (T, error) {
	var (
		zero, value T
		answer      error
	)
	o := &op{size: size, done: make(chan struct{}), run: func(t *tx) { value, answer = fn(t) }, look: look}
	if err := s.submit(ctx, o); err != nil {
		return zero, err
	}
	return value, answer
}

// A turn is long in coming once the one before waits for the file's lock for
// lookAfter, or takes slowTurn, as where the disk is slow. A writer that is merely
// busy answers sooner than everybody's looks would.
const (
	lookAfter = 5 * time.Millisecond
	slowTurn  = 100 * time.Millisecond
)

// signal wakes all who wait for it, again and again.
type signal struct {
	channel atomic.Pointer[chan none]
}

func (s *signal) init()             { s.channel.Store(new(make(chan none))) }
func (s *signal) wait() <-chan none { return *s.channel.Load() }
func (s *signal) fire()             { close(*s.channel.Swap(new(make(chan none)))) }

// op is a write that waits for its group.
type op struct {
	run   func(*tx)
	look  func() error // what to ask meanwhile; may be nil
	size  int
	state atomic.Int32
	err   error         // why there is no answer; read it once done is closed
	done  chan struct{} // closed once the op is settled
}

// An op that waits belongs to its caller, who may drop it; then it has no effect.
const (
	opWaiting int32 = iota
	opTaken
	opDropped
)

func (o *op) settle(err error) {
	o.err = err
	close(o.done)
}

// submit queues o and waits until its group is committed.
func (s *Store) submit(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.stop:
		return ErrClosed
	default:
	}
	var slow <-chan none
	if o.look != nil {
		slow = s.slow.wait()
	}
	queue, ended := s.queue, s.stop
	select {
	case queue <- o: // the usual case, for which the larger select is not needed
		queue, ended = nil, s.done
	default:
	}
	var err error
	for err == nil {
		select {
		case queue <- o:
			queue, ended = nil, s.done // the writer may see o before it ends
		case <-o.done:
			return o.err
		case <-slow:
			slow = nil
			if seen := o.look(); seen != nil && o.state.CompareAndSwap(opWaiting, opDropped) {
				return seen
			}
		case <-ctx.Done():
			err = ctx.Err()
		case <-ended:
			err = ErrClosed
		}
	}
	if o.state.CompareAndSwap(opWaiting, opDropped) {
		return err
	}
	select {
	case <-o.done:
		return o.err
	default:
		return fmt.Errorf("sqlite: whether the write took effect is open: %w", err)
	}
}

// settle ends ops with an error that says that they had no effect.
func settle(ops []*op, err error) {
	for _, o := range ops {
		o.settle(fmt.Errorf("sqlite: nothing was written: %w", err))
	}
}
