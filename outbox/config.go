package outbox

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// DeadPolicy says what becomes of a lane whose first message is dead, or
// unknown.
type DeadPolicy uint8

const (
	// DeadBlock keeps the lane waiting until the message is redriven or purged:
	// order goes before progress.
	DeadBlock DeadPolicy = iota
	// DeadSkip lets the lane go on. A later redrive of the message gives its order
	// up.
	DeadSkip
)

// UnknownPolicy says what becomes of a message of which nobody can know whether
// it has arrived.
type UnknownPolicy uint8

const (
	// UnknownHold keeps it, as unknown, until somebody redrives or purges it.
	UnknownHold UnknownPolicy = iota
	// UnknownRetry delivers it again, with the same id.
	UnknownRetry
)

// Route is a topic and where its messages go.
type Route struct {
	// Topic is the one to deliver; empty stands for all, and is then the only
	// route.
	Topic string
	// Sink delivers the messages. Required.
	Sink Sink

	// OnDead is what becomes of a lane whose first message is dead or unknown.
	// Default Block.
	OnDead DeadPolicy
	// OnUnknown is what becomes of a message that may have arrived or not, and
	// whose receiver would not recognise a repetition: see
	// Delivery.BeforeEffect. Default Hold.
	OnUnknown UnknownPolicy
	// MaxAttempts is after how many attempts a message is dead: or unknown, if
	// one of them may have arrived. Default 20, which take about six hours, or
	// as many as Schedule is made for.
	MaxAttempts int
	// Schedule lists the delays after the first failure, the second and so on,
	// in place of Backoff and MaxBackoff; the last is that of all further ones.
	// Of every delay a random part of up to a fifth is left away.
	Schedule []time.Duration
	// Backoff is the delay after the first failure. It doubles with each, up to
	// MaxBackoff; of every delay a random part of up to a half is left away.
	// Default 1 s.
	Backoff time.Duration
	// MaxBackoff bounds the delay. Default 1 h.
	MaxBackoff time.Duration
	// Timeout ends the context of an attempt. Default 30 s.
	Timeout time.Duration
	// MaxInFlight is how many messages are under way at most. Default 64.
	MaxInFlight int
	// MaxBytesInFlight is how many bytes of payload are. Default 64 MiB, at
	// least MaxPayload.
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
		errs = append(errs, errors.New("field OnDead or OnUnknown is none of the policies"))
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

// Config is what a relay is made of. Store and Routes are required.
type Config struct {
	Store  Store
	Routes []Route

	// Lease is how long a claim holds without being renewed, which is done every
	// third of it. A relay that dies leaves its messages waiting for as long.
	// Default 15 s.
	Lease time.Duration
	// PollMin and PollMax bound the time between two looks at a store that had
	// nothing: it grows from one to the other while nothing comes. A hint of the
	// store, or Wake, cuts it short. Defaults 50 ms and 1 s.
	PollMin, PollMax time.Duration
	// StoreTimeout bounds each call of the store. Default 10 s.
	StoreTimeout time.Duration
	// Drain is how long deliveries may go on once Run's context has ended.
	// Then they are cancelled. Default 10 s.
	Drain time.Duration
	// Retention says how long settled messages are kept.
	Retention Retention
	// SweepEvery is the time between two sweeps. Default 1 min; negative is for
	// relays beside one that sweeps.
	SweepEvery time.Duration
	// StatusEvery is the time between two calls of Observer.Status. Default 10 s.
	StatusEvery time.Duration
	// Observer is told what happens; nil for nobody.
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
