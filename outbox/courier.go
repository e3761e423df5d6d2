package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// courier delivers the messages of one route. What is under way for it does not
// count for others, so a slow sink holds up its own route only.
type courier struct {
	config Config
	route  Route
	hint   signal // there may be more to claim
	ended  signal // outcomes wait to be settled, or something was dropped
	empty  signal // nothing is held

	mu       sync.Mutex
	held     map[*parcel]struct{} // claimed and not settled
	bytes    int                  // of their payloads
	suspect  bool                 // one of them is a suspect
	outcomes []outcome
	spare    []outcome // what outcomes were kept in before
}

// parcel is a message under a claim of ours.
type parcel struct {
	*Claimed
	courier *courier
	attempt attempt     // the delivery's context
	marked  atomic.Bool // the effect may have happened
	within  atomic.Bool // it is settled in a transaction of the sink's, which is about to end

	// Under courier.mu.
	until time.Time // end of the lease by our clock
	lost  bool      // somebody else has the message
	told  bool      // that the lease was lost
	done  bool      // the outcome is known, and is what counts
}

// outcome is what is to be written of a parcel.
type outcome struct {
	parcel *parcel
	Settlement
	took time.Duration
	err  error
}

func newCourier(c Config, r Route) *courier {
	return &courier{
		config: c, route: r,
		hint: make(signal, 1), ended: make(signal, 1), empty: make(signal, 1),
	}
}

func (c *courier) run(ctx context.Context) error {
	c.mu.Lock()
	c.held, c.bytes, c.suspect, c.outcomes = map[*parcel]struct{}{}, 0, false, nil // what an earlier run could not settle
	c.mu.Unlock()
	// What has been claimed is delivered and settled after ctx has ended.
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	var deliveries, keepers sync.WaitGroup
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	keepers.Go(func() { c.renew(keep) })
	claimed := make(chan struct{}) // closed once nothing more is
	start := func(claimed []Claimed, until time.Time) {
		r := c.hold(work, claimed, until)
		r.deliveries = &deliveries
		r.starting.Store(true)
		deliveries.Go(r.work)
	}
	keepers.Go(func() { c.exchange(ctx, keep, start, func() { close(claimed) }) })
	<-claimed

	drained := make(chan struct{})
	go func() {
		deliveries.Wait()
		close(drained)
	}()
	late := time.AfterFunc(c.config.Drain, func() { cancel(errDrained) })
	defer late.Stop()
	<-drained // a sink that ignores its context holds up the end, not others
	err := c.settleLast(context.WithoutCancel(ctx))
	stop()
	keepers.Wait()
	return err
}

// round is what was claimed together, until when by our clock. Its deliveries share a
// deadline, which the last one ends, and goroutines: each that begins one sees to it
// that another is about to begin the next. So no delivery waits for another that takes
// its time, and those that take none need few goroutines.
type round struct {
	courier    *courier
	deliveries *sync.WaitGroup
	within     context.Context
	end        context.CancelFunc
	began      time.Time
	until      time.Time
	parcels    []parcel
	next       atomic.Int64 // of parcels, that nobody has begun yet
	left       atomic.Int64 // that have not ended
	starting   atomic.Bool  // a goroutine is about to begin one
}

// gathering is for how long outcomes may wait, at the beginning of a round, until the
// others have begun.
const gathering = time.Millisecond

func (r *round) work() {
	r.starting.Store(false)
	all := int64(len(r.parcels))
	for {
		i := r.next.Add(1) - 1
		if i >= all {
			return
		}
		last := i == all-1
		if last {
			r.courier.ended.send() // what has ended waits for none that this may take
		} else if r.starting.CompareAndSwap(false, true) {
			r.deliveries.Go(r.work)
		}
		ended := r.courier.deliver(r, &r.parcels[i])
		if last || r.next.Load() >= all || ended.Sub(r.began) >= gathering {
			r.courier.ended.send()
		}
		if r.left.Add(-1) == 0 {
			r.end()
		}
	}
}

// hold keeps what was claimed, to be delivered.
func (c *courier) hold(work context.Context, claimed []Claimed, until time.Time) *round {
	r := &round{courier: c, began: time.Now(), until: until, parcels: make([]parcel, len(claimed))}
	r.within, r.end = context.WithTimeout(work, c.route.Timeout)
	r.left.Store(int64(len(claimed)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range claimed {
		p := &r.parcels[i]
		p.Claimed, p.courier, p.until = &claimed[i], c, until
		p.attempt.claim, p.attempt.id = r.within, p.ID
		c.held[p] = struct{}{}
		c.bytes += len(p.Payload)
		c.suspect = c.suspect || p.suspect()
	}
	return r
}

func (p *parcel) suspect() bool { return p.Lapses >= SuspectLapses }

// drop ends what hold began.
func (c *courier) drop(batch ...outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range batch {
		delete(c.held, o.parcel)
		c.bytes -= len(o.parcel.Payload)
		if o.parcel.suspect() {
			c.suspect = false
		}
		o.parcel.Payload, o.parcel.Headers = nil, nil // others of its round may take long
	}
	if len(c.held) == 0 {
		c.empty.send()
	}
}

// deliver has the sink deliver a message, queues what came of it, and returns when
// that was.
func (c *courier) deliver(r *round, p *parcel) time.Time {
	began := time.Now()
	o, ok := c.undeliverable(p)
	if !ok {
		if !began.Before(r.until) {
			c.mu.Lock()
			if !began.Before(p.until) {
				p.attempt.end(ErrLeaseLost) // this process was paused
			}
			c.mu.Unlock()
		}
		if err := p.attempt.Err(); err != nil {
			o.Outcome = OutcomeReleased
		} else {
			err = c.try(p)
			o = c.judge(p, err, context.Cause(&p.attempt))
		}
		p.attempt.end(nil)
	}
	ended := time.Now()
	o.took = ended.Sub(began)
	settled := o.Outcome == OutcomeDelivered && p.within.Load()
	p.within.Store(settled) // or it was rolled back
	c.mu.Lock()
	p.done = true
	lost := p.lost
	if !lost && !settled {
		c.outcomes = append(c.outcomes, o)
	}
	c.mu.Unlock()
	switch {
	case settled:
		c.settled(r.within, []outcome{o}, nil)
		if p.Key != "" {
			c.hint.send() // the lane goes on
		}
	case lost:
		c.drop(o)
	}
	return ended
}

// undeliverable is the outcome of a message that the sink is not to be given.
func (c *courier) undeliverable(p *parcel) (o outcome, ok bool) {
	o = outcome{parcel: p, Settlement: Settlement{Ref: p.Ref}}
	switch {
	case p.Malformed != nil:
		o.Outcome, o.err = OutcomeDead, p.Malformed
	case p.Unsure && c.route.OnUnknown == UnknownHold:
		o.Outcome, o.err = OutcomeUnknown, errors.New("the relay that delivered it died, or lost its lease, before it could say whether it has arrived")
	case p.Attempts > c.route.MaxAttempts:
		o.Outcome, o.err = c.exhausted(p, false), fmt.Errorf("relays died or lost their lease at it, the last %d times in a row", p.Lapses)
	default:
		return o, false
	}
	return c.cause(o), true
}

// exhausted is the outcome of a message that is out of attempts.
func (c *courier) exhausted(p *parcel, unsure bool) Outcome {
	if p.Unsure || unsure {
		return OutcomeUnknown
	}
	return OutcomeDead
}

func (c *courier) cause(o outcome) outcome {
	if o.err != nil {
		o.Cause = cutCause(o.err.Error())
	}
	switch o.Outcome {
	case OutcomeDead:
		o.Unsure = o.parcel.Unsure
	case OutcomeUnknown:
		o.Unsure = true
	default:
		return o
	}
	o.Blocks = c.route.OnDead == DeadBlock
	return o
}

// try calls the sink.
func (c *courier) try(p *parcel) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return c.route.Sink.Deliver(&p.attempt, Delivery{
		Message: p.Message, Attempt: p.Attempts, EnqueuedAt: p.EnqueuedAt, Unsure: p.Unsure, parcel: p,
	})
}

// mark is Delivery.BeforeEffect.
func (p *parcel) mark(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := p.courier
	lost, err := call(ctx, c.config, "mark", func(ctx context.Context) (bool, error) {
		err := c.config.Store.Mark(ctx, p.Ref)
		if errors.Is(err, ErrLeaseLost) {
			return true, nil
		}
		return false, err
	})
	if lost {
		c.lose(ctx, p, true)
		err = ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("outbox: nothing was sent, since that could not be put on record: %w", err)
	}
	p.marked.Store(true)
	return nil
}

// settle is Delivery.Settle.
func (p *parcel) settle(ctx context.Context) error {
	c := p.courier
	s, ok := c.config.Store.(Settler)
	if !ok {
		return fmt.Errorf("outbox: settle: %T does not implement Settler: %w", c.config.Store, errors.ErrUnsupported)
	}
	p.within.Store(true) // from here on a renewal finds nothing, or waits for the transaction
	err := s.SettleTx(ctx, p.Ref)
	if err != nil {
		p.within.Store(false)
	}
	if errors.Is(err, ErrLeaseLost) {
		c.lose(ctx, p, true)
	}
	return err
}

// judge decides by what a sink answered. ended is why its context was cancelled.
func (c *courier) judge(p *parcel, err, ended error) outcome {
	o := outcome{parcel: p, Settlement: Settlement{Ref: p.Ref}, err: err}
	kind, after := outcomeOf(err)
	unsure := kind == outcomeUncertain || kind == outcomePlain && p.marked.Load()
	switch {
	case err == nil:
		o.Outcome = OutcomeDelivered
	case kind == outcomePermanent:
		o.Outcome = OutcomeDead
	case kind == outcomePostponed && !p.marked.Load():
		o.Outcome, o.Delay = OutcomeReleased, min(max(after, 0), maxRetryAfter)
	case unsure && c.route.OnUnknown == UnknownHold:
		o.Outcome = OutcomeUnknown
	case errors.Is(ended, errDrained) && !unsure:
		o.Outcome = OutcomeReleased
	case p.Attempts >= c.route.MaxAttempts:
		o.Outcome = c.exhausted(p, unsure)
	default:
		o.Outcome, o.Unsure = OutcomeRetry, unsure || p.Unsure
		o.Delay = c.route.delay(p.Attempts, after)
	}
	return c.cause(o)
}

// cutCause bounds what is stored of an error.
func cutCause(s string) string {
	const most = 1024
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// renew keeps the claims alive.
func (c *courier) renew(ctx context.Context) {
	for wait := c.config.Lease / 3; sleep(ctx, wait, nil); {
		began := time.Now()
		c.mu.Lock()
		parcels := make(map[Ref]*parcel, len(c.held))
		refs := make([]Ref, 0, len(c.held))
		for p := range c.held {
			if !p.lost && !p.within.Load() {
				parcels[p.Ref] = p
				refs = append(refs, p.Ref)
			}
		}
		c.mu.Unlock()
		wait = c.config.Lease / 3
		if len(refs) == 0 {
			continue
		}
		lost, err := call(ctx, c.config, "renew", func(ctx context.Context) ([]Ref, error) {
			return c.config.Store.Renew(ctx, c.config.Lease, refs)
		})
		if err != nil {
			wait = c.config.Lease / 12 // there is lease left to try again in
		}
		for _, ref := range lost {
			c.lose(ctx, parcels[ref], true)
			delete(parcels, ref)
		}
		for _, p := range parcels {
			c.mu.Lock()
			if err == nil {
				p.until = began.Add(c.config.Lease)
			}
			lapsed := !time.Now().Before(p.until)
			c.mu.Unlock()
			if lapsed {
				c.lose(ctx, p, false)
			}
		}
	}
}

// errLapsed ends deliveries whose lease could not be renewed in time.
var errLapsed = fmt.Errorf("%w: it could not be renewed in time", ErrLeaseLost)

// lose cancels a delivery. If certain is not set the lease has merely lapsed:
// then the outcome is settled all the same, if nobody has claimed the message
// since.
func (c *courier) lose(ctx context.Context, p *parcel, certain bool) {
	cause := errLapsed
	if certain {
		cause = ErrLeaseLost
	}
	c.mu.Lock()
	if _, held := c.held[p]; !held || p.done || p.within.Load() {
		c.mu.Unlock()
		return // how it is settled will tell
	}
	p.lost = p.lost || certain
	told := p.told
	p.told = true
	p.attempt.end(cause)
	c.mu.Unlock()
	if !told {
		tell(ctx, c.config.Observer.LeaseLost, Attempted{Topic: p.Topic, ID: p.ID, Attempt: p.Attempts, Err: cause})
	}
}

// settled tells what was written, and makes room.
func (c *courier) settled(ctx context.Context, batch []outcome, lost []Ref) {
	var gone map[Ref]bool
	if len(lost) > 0 {
		gone = make(map[Ref]bool, len(lost))
		for _, ref := range lost {
			gone[ref] = true
		}
	}
	for _, o := range batch {
		p := o.parcel
		at := Attempted{Topic: p.Topic, ID: p.ID, Attempt: p.Attempts, Took: o.took, Err: o.err}
		switch {
		case gone[p.Ref]:
			if !p.told {
				at.Err = ErrLeaseLost
				tell(ctx, c.config.Observer.LeaseLost, at)
			}
		case o.Outcome == OutcomeDelivered:
			tell(ctx, c.config.Observer.Delivered, at)
		case o.Outcome == OutcomeRetry:
			at.Delay = o.Delay
			tell(ctx, c.config.Observer.Retried, at)
		case o.Outcome == OutcomeDead:
			tell(ctx, c.config.Observer.Dead, at)
		case o.Outcome == OutcomeUnknown:
			tell(ctx, c.config.Observer.Unknown, at)
		}
	}
	c.drop(batch...)
}

// settleLast waits until what was delivered is settled.
func (c *courier) settleLast(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.StoreTimeout)
	defer cancel()
	for {
		c.mu.Lock()
		n := len(c.held)
		c.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-c.empty:
		case <-ctx.Done():
			return fmt.Errorf("outbox: what became of %d messages could not be written down: they are delivered again once their lease is over", n)
		}
	}
}
