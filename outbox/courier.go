package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
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
	freed  signal // less is under way
	ended  signal // outcomes wait to be settled

	mu       sync.Mutex
	held     map[*parcel]struct{} // claimed and not settled
	bytes    int                  // of their payloads
	suspect  bool                 // one of them is a suspect
	outcomes []outcome
}

// parcel is a message under a claim of ours.
type parcel struct {
	Claimed
	marked atomic.Bool // the effect may have happened

	// Under courier.mu.
	cancel context.CancelCauseFunc // nil before the delivery
	until  time.Time               // end of the lease by our clock
	lost   bool                    // somebody else has the message
	told   bool                    // that the lease was lost
	done   bool                    // the outcome is known, and is what counts
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
		hint: make(signal, 1), freed: make(signal, 1), ended: make(signal, 1),
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
	keepers.Go(func() { c.settle(keep) })

	c.fetch(ctx, func(p *parcel) { deliveries.Go(func() { c.deliver(work, p) }) })

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

// fetch claims messages and starts their deliveries until ctx ends.
func (c *courier) fetch(ctx context.Context, start func(*parcel)) {
	pause := c.config.PollMin
	for ctx.Err() == nil {
		room, ok := c.room(ctx)
		if !ok {
			return
		}
		began := time.Now()
		// Not with ctx: a claim whose answer nobody hears waits for its lease.
		got, err := call(context.WithoutCancel(ctx), c.config, "claim", func(ctx context.Context) ([]Claimed, error) {
			return c.config.Store.Claim(ctx, room)
		})
		for _, m := range got {
			start(c.hold(m, began.Add(c.config.Lease)))
		}
		if err == nil && c.config.Observer.Claimed != nil {
			c.config.Observer.Claimed(ctx, Fetched{Topic: c.route.Topic, Asked: room.Max, Got: len(got), Took: time.Since(began)})
		}
		switch {
		case err != nil:
			pause = c.config.PollMax
		case len(got) == room.Max:
			pause = c.config.PollMin
			continue // there is probably more
		case len(got) > 0:
			pause = c.config.PollMin
		default:
			pause = min(pause*2, c.config.PollMax)
		}
		sleep(ctx, pause-rand.N(pause/4+1), c.hint)
	}
}

// room waits until something can be claimed, and says how much. It waits a little
// longer for a fair share to be free, so that a full relay does not claim messages
// one by one.
func (c *courier) room(ctx context.Context) (Claim, bool) {
	patience := time.NewTimer(c.config.PollMin)
	defer patience.Stop()
	waited := false
	for {
		c.mu.Lock()
		claim := Claim{
			Topic: c.route.Topic, Max: c.route.MaxInFlight - len(c.held), MaxBytes: c.route.MaxBytesInFlight - c.bytes,
			Lease: c.config.Lease, Suspect: !c.suspect,
		}
		c.mu.Unlock()
		if claim.Max > 0 && claim.MaxBytes >= MaxPayload && (waited || claim.Max >= (c.route.MaxInFlight+3)/4) {
			return claim, ctx.Err() == nil
		}
		select {
		case <-c.freed:
		case <-patience.C:
			waited = true
		case <-ctx.Done():
			return claim, false
		}
	}
}

func (c *courier) hold(m Claimed, until time.Time) *parcel {
	p := &parcel{Claimed: m, until: until}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[p] = struct{}{}
	c.bytes += len(m.Payload)
	c.suspect = c.suspect || m.Lapses >= SuspectLapses
	return p
}

// drop ends what hold began.
func (c *courier) drop(p *parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, p)
	c.bytes -= len(p.Payload)
	if p.Lapses >= SuspectLapses {
		c.suspect = false
	}
	c.freed.send()
}

// deliver has the sink deliver a message, and queues what came of it.
func (c *courier) deliver(work context.Context, p *parcel) {
	began := time.Now()
	o, ok := c.undeliverable(p)
	if !ok {
		ctx, cancel := context.WithCancelCause(work)
		c.mu.Lock()
		p.cancel = cancel
		if p.lost || !began.Before(p.until) {
			cancel(ErrLeaseLost) // this process was paused
		}
		c.mu.Unlock()
		within, end := context.WithTimeout(ctx, c.route.Timeout)
		if err := within.Err(); err != nil {
			o.Outcome = OutcomeReleased
		} else {
			err = c.try(within, p)
			o = c.judge(p, err, context.Cause(ctx))
		}
		end()
		cancel(nil)
	}
	o.took = time.Since(began)
	c.mu.Lock()
	p.done = true
	lost := p.lost
	if !lost {
		c.outcomes = append(c.outcomes, o)
	}
	c.mu.Unlock()
	if lost {
		c.drop(p)
		return
	}
	c.ended.send()
}

// undeliverable is the outcome of a message that the sink is not to be given.
func (c *courier) undeliverable(p *parcel) (o outcome, ok bool) {
	o = outcome{parcel: p, Settlement: Settlement{Ref: p.Ref}}
	switch {
	case p.Malformed != nil:
		o.Outcome, o.err = OutcomeDead, p.Malformed
	case p.Unsure && c.route.OnUnknown == Hold:
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
	o.Blocks = c.route.OnDead == Block
	return o
}

// try calls the sink.
func (c *courier) try(ctx context.Context, p *parcel) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return c.route.Sink.Deliver(ctx, Delivery{
		Message: p.Message, Attempt: p.Attempts, EnqueuedAt: p.EnqueuedAt, Unsure: p.Unsure,
		mark: func(ctx context.Context) error {
			if err := ctx.Err(); err != nil {
				return err
			}
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
		},
	})
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
	case unsure && c.route.OnUnknown == Hold:
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
			if !p.lost {
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
	if _, held := c.held[p]; !held || p.done {
		c.mu.Unlock()
		return // how it is settled will tell
	}
	p.lost = p.lost || certain
	told := p.told
	p.told = true
	if p.cancel != nil {
		p.cancel(cause)
	}
	c.mu.Unlock()
	if !told {
		tell(ctx, c.config.Observer.LeaseLost, Attempted{Topic: p.Topic, ID: p.ID, Attempt: p.Attempts, Err: cause})
	}
}

// mostSettled is how many outcomes are written together.
const mostSettled = 512

// settle writes outcomes as they come, those together that come together.
func (c *courier) settle(ctx context.Context) {
	size, pause := mostSettled, c.config.PollMin
	var failed []outcome // which are tried again
	for {
		runtime.Gosched() // those that end together are settled together
		c.mu.Lock()
		todo := append(c.outcomes, failed...)
		n := min(len(todo), size)
		batch, rest := todo[:n:n], todo[n:]
		c.outcomes, failed = append([]outcome(nil), rest...), nil
		c.mu.Unlock()
		if n == 0 {
			select {
			case <-c.ended:
				continue
			case <-ctx.Done():
				return
			}
		}
		settlements := make([]Settlement, n)
		for i, o := range batch {
			settlements[i] = o.Settlement
		}
		lost, err := call(ctx, c.config, "settle", func(ctx context.Context) ([]Ref, error) {
			return c.config.Store.Settle(ctx, settlements)
		})
		if err != nil {
			// The next try is smaller, and others come first: one row that
			// cannot be written does not keep the others from it.
			failed, size = batch, max(size/4, 1)
			if !sleep(ctx, pause-rand.N(pause/4+1), nil) {
				return
			}
			pause = min(pause*2, c.config.PollMax)
			continue
		}
		size, pause = min(size*2, mostSettled), c.config.PollMin
		c.settled(ctx, batch, lost)
	}
}

// settled tells what was written, and makes room.
func (c *courier) settled(ctx context.Context, batch []outcome, lost []Ref) {
	gone := make(map[Ref]bool, len(lost))
	for _, ref := range lost {
		gone[ref] = true
	}
	onward := false // a lane has gone on
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
			onward = onward || p.Key != ""
			tell(ctx, c.config.Observer.Delivered, at)
		case o.Outcome == OutcomeRetry:
			at.Delay = o.Delay
			tell(ctx, c.config.Observer.Retried, at)
		case o.Outcome == OutcomeDead:
			onward = onward || p.Key != ""
			tell(ctx, c.config.Observer.Dead, at)
		case o.Outcome == OutcomeUnknown:
			onward = onward || p.Key != ""
			tell(ctx, c.config.Observer.Unknown, at)
		}
		c.drop(p)
	}
	if onward {
		c.hint.send()
	}
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
		case <-c.freed:
		case <-ctx.Done():
			return fmt.Errorf("outbox: what became of %d messages could not be written down: they are delivered again once their lease is over", n)
		}
	}
}
