package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Relay delivers the messages of a store. New makes one.
type Relay struct {
	config   Config
	couriers []*courier
	running  sync.Mutex
}

// New returns a relay that does nothing until Run is called.
func New(c Config) (*Relay, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("outbox: config: %w", err)
	}
	r := &Relay{config: c}
	for _, route := range c.Routes {
		r.couriers = append(r.couriers, newCourier(c, route))
	}
	return r, nil
}

// Wake makes the relay look for messages now. Call it after committing messages
// in a way that the store cannot see. It never blocks.
func (r *Relay) Wake() {
	for _, c := range r.couriers {
		c.hint.send()
	}
}

// errDrained ends deliveries that did not end in time.
var errDrained = errors.New("outbox: the relay is being stopped")

// Run delivers messages until ctx ends. Then it stops claiming, waits up to
// Config.Drain for running deliveries, cancels the remaining ones, and settles
// all of them. It returns nil if all were settled. Messages that were not settled
// are claimed by others when their leases end. Failures of the store are reported
// to the Observer and do not end Run. Run may be called again after it has
// returned.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.TryLock() {
		return errors.New("outbox: the relay is running already")
	}
	defer r.running.Unlock()

	var wg sync.WaitGroup
	if w, ok := r.config.Store.(Watcher); ok {
		hints, stop := w.Watch()
		defer stop()
		wg.Go(func() {
			for {
				select {
				case <-hints:
					r.Wake()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	if r.config.SweepEvery > 0 {
		wg.Go(func() { r.every(ctx, r.config.SweepEvery, r.sweep) })
	}
	if r.config.Observer.Status != nil {
		wg.Go(func() { r.every(ctx, r.config.StatusEvery, r.status) })
	}
	errs := make([]error, len(r.couriers))
	for i, c := range r.couriers {
		wg.Go(func() { errs[i] = c.run(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// every calls fn at once and then at intervals, a little apart from other relays
// that were started together.
func (r *Relay) every(ctx context.Context, interval time.Duration, fn func(context.Context)) {
	for {
		fn(ctx)
		if !sleep(ctx, interval-rand.N(interval/10+1), nil) {
			return
		}
	}
}

const sweepBatch = 1000

func (r *Relay) sweep(ctx context.Context) {
	for ctx.Err() == nil {
		n, err := call(ctx, r.config, "sweep", func(ctx context.Context) (int, error) {
			return r.config.Store.Sweep(ctx, r.config.Retention, sweepBatch)
		})
		if n > 0 {
			tell(ctx, r.config.Observer.Swept, n)
		}
		if err != nil || n == 0 {
			return
		}
	}
}

func (r *Relay) status(ctx context.Context) {
	s, err := call(ctx, r.config, "status", r.config.Store.Status)
	if err == nil {
		r.config.Observer.Status(ctx, s)
	}
}

// call calls the store within its timeout, and tells of failures.
func call[T any](ctx context.Context, c Config, name string, fn func(context.Context) (T, error)) (T, error) {
	within, cancel := context.WithTimeout(ctx, c.StoreTimeout)
	defer cancel()
	v, err := fn(within)
	if err != nil && ctx.Err() == nil && c.Observer.StoreFailed != nil {
		c.Observer.StoreFailed(ctx, name, err)
	}
	return v, err
}

// signal wakes one who waits, now or the next to wait.
type signal chan struct{}

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// sleep waits for d or the signal, and reports false once ctx has ended.
func sleep(ctx context.Context, d time.Duration, wake signal) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
