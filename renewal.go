package semel

import (
	"errors"
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

// tick renews the claim, and gives the handler up once it is overdue.
func (x *Execution) tick() {
	x.mu.Lock()
	if x.stopped {
		x.mu.Unlock()
		return
	}
	x.guard.work.enterBackground()
	defer x.guard.work.leaveBackground()
	leaseEnd, settling := x.leaseEnd, x.settling
	x.mu.Unlock()

	p := x.guard.policy
	overdue := x.work.deadline.Add(p.Heartbeat)
	now := time.Now()
	if !settling && !now.Before(overdue) {
		x.giveUp()
		return
	}
	if !now.Before(leaseEnd) {
		x.lose(ErrLeaseLapsed)
		leaseEnd = now.Add(p.Lease) // keep trying: until a takeover the claim can still be settled
	}

	next := p.Heartbeat
	ctx := storeContext(x.work.parent, min(p.StoreTimeout, leaseEnd.Sub(now)))
	err := x.claim.Renew(ctx)
	ctx.over()
	if errors.Is(err, ErrLostClaim) {
		x.lose(ErrLostClaim)
		x.stop()
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped {
		return
	}
	if err == nil {
		leaseEnd = now.Add(p.Lease)
	} else {
		if x.guard.observe.StoreFailed != nil {
			x.guard.observe.StoreFailed(x.work.parent, StoreFailed{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Call: "renew", Err: err})
		}
		next = min(next, max(p.Heartbeat/4, time.Millisecond), max(time.Until(leaseEnd), time.Millisecond))
	}
	x.leaseEnd = leaseEnd
	if !x.settling {
		next = min(next, max(time.Until(overdue), time.Millisecond))
	}
	if x.timer == nil {
		x.timer = time.AfterFunc(next, x.tick)
	} else {
		x.timer.Reset(next)
	}
}

// lose cancels the work because its claim is lost. Once fn has ended a renewal
// cannot tell that from a record that was settled just now, and nothing is left
// to cancel.
func (x *Execution) lose(cause error) {
	x.mu.Lock()
	settling := x.settling || x.stopped
	x.mu.Unlock()
	if settling {
		return
	}
	x.work.end(cause)
	if x.guard.observe.LeaseLost != nil {
		x.guard.observe.LeaseLost(x.work.parent, LeaseLost{Scope: x.submit.Identity.Scope, RecordID: x.RecordID(), Fence: x.Fence(), Cause: cause})
	}
}

// stop ends the ticks. One that is under way may go on to its end.
func (x *Execution) stop() {
	x.guard.beats.leave(x)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stopped = true
	if x.timer != nil {
		x.timer.Stop()
	}
}
