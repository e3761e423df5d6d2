package outbox

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// DeadPolicy says what happens to a lane whose first message is dead or
// unknown.
type DeadPolicy uint8

const (
	// DeadBlock blocks the lane until the message is redriven or purged. It
	// puts order before progress.
	DeadBlock DeadPolicy = iota
	// DeadSkip lets the lane go on. If the message is redriven later, it is
	// delivered out of order.
	DeadSkip
)

// UnknownPolicy says what happens to a message if it cannot be known whether it
// has arrived.
type UnknownPolicy uint8

const (
	// UnknownHold keeps the message as unknown until somebody redrives or
	// purges it.
	UnknownHold UnknownPolicy = iota
	// UnknownRetry delivers the message again with the same id.
	UnknownRetry
)

// Route says how the messages of a topic are delivered.
type Route struct {
	// Topic is the topic to deliver. Empty means all topics; there must then be
	// no other route.
	Topic string
	// Sink delivers the messages. Required.
	Sink Sink

	// OnDead says what happens to a lane whose first message is dead or
	// unknown. Default DeadBlock.
	OnDead DeadPolicy
	// OnUnknown says what happens to a message that may have arrived and whose
	// receiver would not recognise a repetition; see Delivery.BeforeEffect.
	// Default UnknownHold.
	OnUnknown UnknownPolicy
	// MaxAttempts is the number of attempts after which a message is dead, or
	// unknown if it may have arrived. The default is 20, which take about six
	// hours, or one more than Schedule has delays.
	MaxAttempts int
	// Schedule lists the delays after the first failure, the second and so on,
	// in place of Backoff and MaxBackoff. The last delay is used for all
	// further failures. Each delay is shortened by a random part of up to a
	// fifth.
	Schedule []time.Duration
	// Backoff is the delay after the first failure. It doubles with each
	// failure, up to MaxBackoff. Each delay is shortened by a random part of up
	// to a half. Default 1 s.
	Backoff time.Duration
	// MaxBackoff is the maximum delay. Default 1 h.
	MaxBackoff time.Duration
	// Timeout limits the context of an attempt. Default 30 s.
	Timeout time.Duration
	// MaxInFlight is the maximum number of concurrent deliveries. Default 64.
	MaxInFlight int
	// MaxBytesInFlight is the maximum number of bytes of their payloads.
	// Default 64 MiB, at least MaxPayload.
	MaxBytesInFlight int
}

func (r Route) withDefaults() Route {
	if len(r.Schedule) > 0 {
		r.Schedule = slices.Clone(r.Schedule)
		defaults(&r.MaxAttempts, len(r.Schedule)+1)
	}
	defaults(&r.MaxAttempts, 20)
	defaults(&r.Backoff, time.Second)
	defaults(&r.MaxBackoff, time.Hour)
	defaults(&r.Timeout, 30*time.Second)
	defaults(&r.MaxInFlight, 64)
	defaults(&r.MaxBytesInFlight, 64<<20)
	return r
}

func defaults[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

func (r Route) validate() error {
	errs := []error{
		checkName("Topic", r.Topic),
		positive("MaxAttempts", r.MaxAttempts), positive("Backoff", r.Backoff), positive("Timeout", r.Timeout),
		positive("MaxInFlight", r.MaxInFlight),
	}
	if r.Sink == nil {
		errs = append(errs, errors.New("field Sink is nil"))
	}
	if r.OnDead > DeadSkip || r.OnUnknown > UnknownRetry {
		errs = append(errs, errors.New("field OnDead or OnUnknown is not a known policy"))
	}
	for i, d := range r.Schedule {
		errs = append(errs, positive(fmt.Sprintf("Schedule[%d]", i), d))
	}
	if r.MaxBackoff < r.Backoff {
		errs = append(errs, fmt.Errorf("field MaxBackoff is %v, less than the Backoff of %v", r.MaxBackoff, r.Backoff))
	}
	if r.MaxBytesInFlight < MaxPayload {
		errs = append(errs, fmt.Errorf("field MaxBytesInFlight is %d; one message may have %d", r.MaxBytesInFlight, MaxPayload))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("route %q: %w", r.Topic, err)
	}
	return nil
}

func positive[T int | time.Duration](field string, v T) error {
	if v <= 0 {
		return fmt.Errorf("field %s is %v; it must be positive", field, v)
	}
	return nil
}

// maxRetryAfter bounds what a receiver can ask for.
const maxRetryAfter = 24 * time.Hour

// delay is how long to wait after a failed attempt. The receiver's wish is kept,
// and lengthened at random too, so that many messages do not come back at once.
func (r Route) delay(attempt int, after time.Duration) time.Duration {
	d := r.longest(attempt)
	if len(r.Schedule) > 0 {
		d -= rand.N(d/5 + 1)
	} else {
		d -= rand.N(d/2 + 1)
	}
	if after > 0 {
		after = min(after, maxRetryAfter)
		d = max(d, after+rand.N(after/10+1))
	}
	return d
}

// longest is the delay after an attempt that failed, before chance shortens it.
func (r Route) longest(attempt int) time.Duration {
	if n := len(r.Schedule); n > 0 {
		return r.Schedule[min(attempt, n)-1]
	}
	d := r.Backoff
	for n := 1; n < attempt && d < r.MaxBackoff; n++ {
		d = min(d, math.MaxInt64/2) * 2
	}
	return min(d, r.MaxBackoff)
}

// Config configures a relay. Store and Routes are required.
type Config struct {
	Store  Store
	Routes []Route

	// Lease is how long a claim is valid. It is renewed after every third of
	// that time. The messages of a relay that dies wait until their leases end.
	// Default 15 s.
	Lease time.Duration
	// PollMin and PollMax limit the time between two polls of a store that had
	// no messages. It grows from one to the other while none come. A hint from
	// the store, or Wake, ends the wait. Defaults 50 ms and 1 s.
	PollMin, PollMax time.Duration
	// StoreTimeout limits each call of the store. Default 10 s.
	StoreTimeout time.Duration
	// Drain is how long deliveries may continue after Run's context has ended
	// before they are cancelled. Default 10 s.
	Drain time.Duration
	// Retention says how long settled messages are kept.
	Retention Retention
	// SweepEvery is the time between two sweeps. Default 1 min. A negative
	// value disables sweeping, for relays beside another one that sweeps.
	SweepEvery time.Duration
	// StatusEvery is the time between two calls of Observer.Status. Default 10 s.
	StatusEvery time.Duration
	// Observer, if not nil, is notified of events.
	Observer *Observer
}

func (c Config) withDefaults() Config {
	defaults(&c.Lease, 15*time.Second)
	defaults(&c.PollMin, 50*time.Millisecond)
	defaults(&c.PollMax, max(time.Second, c.PollMin))
	defaults(&c.StoreTimeout, 10*time.Second)
	defaults(&c.Drain, 10*time.Second)
	defaults(&c.SweepEvery, time.Minute)
	defaults(&c.StatusEvery, 10*time.Second)
	defaults(&c.Observer, &Observer{})
	c.Retention = c.Retention.WithDefaults()
	routes := make([]Route, len(c.Routes))
	for i, r := range c.Routes {
		routes[i] = r.withDefaults()
	}
	c.Routes = routes
	return c
}

func (c Config) validate() error {
	errs := []error{
		positive("Lease", c.Lease), positive("PollMin", c.PollMin), positive("StoreTimeout", c.StoreTimeout),
		positive("Drain", c.Drain), positive("StatusEvery", c.StatusEvery),
	}
	if c.Store == nil {
		errs = append(errs, errors.New("field Store is nil"))
	}
	if c.PollMax < c.PollMin {
		errs = append(errs, fmt.Errorf("field PollMax is %v, less than the PollMin of %v", c.PollMax, c.PollMin))
	}
	if len(c.Routes) == 0 {
		errs = append(errs, errors.New("field Routes is empty"))
	}
	seen := map[string]bool{}
	for _, r := range c.Routes {
		errs = append(errs, r.validate())
		if r.Topic == "" && len(c.Routes) > 1 {
			errs = append(errs, errors.New("field Routes has a route for all topics beside others"))
		}
		if seen[r.Topic] {
			errs = append(errs, fmt.Errorf("field Routes has two routes for the topic %q", r.Topic))
		}
		seen[r.Topic] = true
	}
	return errors.Join(errs...)
}
