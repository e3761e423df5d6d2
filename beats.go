package semel

import (
	"sync"
	"time"
)

// beats has executions renew their claims, from when the first renewal of each is
// due. Most have ended by then, so those of one heartbeat wait for it together
// and share a timer. Work owns it: after a drain it holds a timer only as long
// as somebody executes.
type beats struct {
	heartbeat time.Duration

	mu          sync.Mutex
	first, last *Execution // in the order in which they are due
	timer       *time.Timer
	armed       bool // the timer is going to call turn
	draining    bool
}

// beat is an execution's place among those that wait for their first renewal.
type beat struct {
	due            time.Time // zero if it does not wait
	before, behind *Execution
}

// wait has x.tick called in a goroutine of its own when a heartbeat has passed
// since now, unless leave comes before.
func (b *beats) wait(x *Execution, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := &x.beat
	at.due = now.Add(b.heartbeat)
	if at.before = b.last; b.last == nil {
		b.first = x
	} else {
		b.last.beat.behind = x
		// The clock was read before the lock, so another may have been faster.
		if last := b.last.beat.due; last.After(at.due) {
			at.due = last
		}
	}
	b.last = x
	if !b.armed {
		b.arm()
	}
}

// leave takes x out, if it still waits.
func (b *beats) leave(x *Execution) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take(x)
	if b.draining && b.first == nil {
		b.disarm()
	}
}

func (b *beats) take(x *Execution) {
	at := x.beat
	if at.due.IsZero() {
		return
	}
	x.beat = beat{}
	if at.before != nil {
		at.before.beat.behind = at.behind
	} else {
		b.first = at.behind
	}
	if at.behind != nil {
		at.behind.beat.before = at.before
	} else {
		b.last = at.before
	}
}

// arm sets the timer to when the first is due. The first may leave before that:
// then the timer goes off for nothing, once in a heartbeat at most.
func (b *beats) arm() {
	b.armed = true
	wait := time.Until(b.first.beat.due)
	if b.timer == nil {
		b.timer = time.AfterFunc(wait, b.turn)
	} else {
		b.timer.Reset(wait)
	}
}

func (b *beats) disarm() {
	if b.armed {
		b.timer.Stop()
		b.armed = false
	}
}

// turn begins the renewals of all that are due.
func (b *beats) turn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = false
	for now := time.Now(); b.first != nil && !now.Before(b.first.beat.due); {
		x := b.first
		b.take(x)
		go x.tick()
	}
	if b.first != nil {
		b.arm()
	}
}

// drain gives the timer up, now or once nobody waits for it.
func (b *beats) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.draining = true
	if b.first == nil {
		b.disarm()
	}
}
