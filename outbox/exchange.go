package outbox

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"
)

// exchanger is a courier's side of the talk with the store: it settles what has
// ended and claims what comes next, with one call for both.
type exchanger struct {
	*courier
	start func(claimed []Claimed, until time.Time) // deliveries

	settling, claiming, retrying turn
	claimed                      time.Time // when anything was, last

	failed []outcome // settlements that are tried again, by themselves
	size   int       // of them at once
}

// turn says when a call is to be made.
type turn struct {
	at    time.Time     // not before
	pause time.Duration // until then, from the next call that comes to nothing
}

func (x *exchanger) soon(t *turn) { *t = turn{pause: x.config.PollMin} }

func (x *exchanger) later(t *turn) {
	t.at = time.Now().Add(t.pause - rand.N(t.pause/4+1))
	t.pause = min(t.pause*2, x.config.PollMax)
}

// exchange claims until ctx ends, then calls enough, and settles until keep ends.
func (c *courier) exchange(ctx, keep context.Context, start func([]Claimed, time.Time), enough func()) {
	x := &exchanger{courier: c, start: start}
	x.soon(&x.settling)
	x.soon(&x.claiming)
	x.soon(&x.retrying)
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop, claiming := ctx.Done(), true // Done is nil where ctx never ends
	for {
		if claiming && ctx.Err() != nil {
			stop, claiming = nil, false
			enough()
		}
		select {
		case <-c.hint:
			x.claiming.at = time.Time{}
		default:
		}
		wait := x.step(keep, claiming)
		if wait == 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-c.hint:
			x.claiming.at = time.Time{}
		case <-c.ended:
		case <-timer.C:
		case <-stop:
		case <-keep.Done():
			return
		}
	}
}

// step makes the calls whose turn it is. If there are none it returns for how long
// that stays so, but for signals.
func (x *exchanger) step(ctx context.Context, claiming bool) time.Duration {
	called, wait := false, time.Hour
	due := func(at time.Time) bool {
		d := time.Until(at)
		if d > 0 {
			wait = min(wait, d)
		}
		return d <= 0
	}
	if len(x.failed) > 0 && due(x.retrying.at) {
		n := min(len(x.failed), x.size)
		batch := x.failed[:n:n]
		x.failed = x.failed[n:]
		x.call(ctx, &x.retrying, batch, Claim{})
		called = true
	}
	var batch []outcome
	if due(x.settling.at) {
		batch = x.take()
	}
	var claim Claim
	if claiming {
		room, at := x.room(batch)
		if room.Max > 0 && due(at) {
			claim = room
		}
	}
	if len(batch) > 0 || claim.Max > 0 {
		x.call(ctx, &x.settling, batch, claim)
		called = true
	}
	if len(batch) > 0 {
		clear(batch)
		x.mu.Lock()
		x.spare = batch[:0]
		x.mu.Unlock()
	}
	if called {
		return 0
	}
	return wait
}

// take returns outcomes that nobody has tried to write yet.
func (x *exchanger) take() []outcome {
	// Those that end together are settled together.
	for before := -1; ; {
		runtime.Gosched()
		x.mu.Lock()
		if n := len(x.outcomes); n != before && n < mostSettled {
			before = n
			x.mu.Unlock()
			continue
		}
		n := min(len(x.outcomes), mostSettled)
		if n == 0 {
			x.mu.Unlock()
			return nil
		}
		batch := x.outcomes[:n:n]
		x.outcomes, x.spare = append(x.spare[:0], x.outcomes[n:]...), nil
		x.mu.Unlock()
		return batch
	}
}

// room says what to claim once the batch is settled, and when. It lets a fair share
// be free first, for a little while, so that a full relay does not claim messages
// one by one.
func (x *exchanger) room(batch []outcome) (claim Claim, at time.Time) {
	x.mu.Lock()
	claim = Claim{
		Topic: x.route.Topic, Max: x.route.MaxInFlight - len(x.held) + len(batch), MaxBytes: x.route.MaxBytesInFlight - x.bytes,
		Lease: x.config.Lease, Suspect: !x.suspect,
	}
	x.mu.Unlock()
	at = x.claiming.at
	for _, o := range batch {
		claim.MaxBytes += len(o.parcel.Payload)
		claim.Suspect = claim.Suspect || o.parcel.suspect()
		if o.parcel.Key != "" && o.Outcome != OutcomeRetry {
			at = time.Time{} // a lane goes on
		}
	}
	if claim.MaxBytes < MaxPayload {
		claim.Max = 0
	}
	if patience := x.claimed.Add(x.config.PollMin); claim.Max < (x.route.MaxInFlight+3)/4 && patience.After(at) {
		at = patience
	}
	return claim, at
}

// mostSettled is how many outcomes are written together.
const mostSettled = 512

// call settles a batch and claims what it says. The turn is that of the settlement.
func (x *exchanger) call(ctx context.Context, settling *turn, batch []outcome, claim Claim) {
	name := "exchange"
	switch {
	case len(batch) == 0:
		name = "claim"
	case claim.Max == 0:
		name = "settle"
	}
	settlements := make([]Settlement, len(batch))
	for i, o := range batch {
		settlements[i] = o.Settlement
	}
	type answer struct {
		claimed []Claimed
		lost    []Ref
	}
	began := time.Now()
	// A claim whose answer nobody hears waits for its lease.
	got, err := call(ctx, x.config, name, func(ctx context.Context) (a answer, err error) {
		a.claimed, a.lost, err = x.config.Store.Exchange(ctx, settlements, claim)
		return a, err
	})
	if err != nil {
		if len(batch) > 0 {
			// The next try is smaller, and others come first: one row that
			// cannot be written does not keep the others from it.
			x.failed = append(x.failed, batch...)
			x.size = max(len(batch)/4, 1)
			x.later(settling)
			x.retrying.at = settling.at
		}
		if claim.Max > 0 {
			x.later(&x.claiming)
		}
		return
	}
	if len(batch) > 0 {
		x.soon(settling)
		if settling == &x.retrying {
			x.size = min(x.size*2, mostSettled)
		}
		x.settled(ctx, batch, got.lost)
	}
	if claim.Max == 0 {
		return
	}
	if len(got.claimed) > 0 {
		x.start(got.claimed, began.Add(x.config.Lease))
	}
	if x.config.Observer.Claimed != nil {
		x.config.Observer.Claimed(ctx, Fetched{Topic: x.route.Topic, Asked: claim.Max, Got: len(got.claimed), Took: time.Since(began)})
	}
	if len(got.claimed) > 0 {
		x.claimed = began
		x.soon(&x.claiming)
	}
	if len(got.claimed) < claim.Max {
		x.later(&x.claiming) // else there is probably more
	}
}
