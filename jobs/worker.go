package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/outbox"
)

// ErrRevoked is what Config.Authorize returns, possibly wrapped, where a job has no
// permission to run any more: it is dead, with the reason, and not tried again.
var ErrRevoked = errors.New("jobs: the authority of the job is revoked")

// Cancel says of a handler's error that the job is not to be tried again: it is dead,
// with the reason. What the handler did in its transaction is rolled back.
func Cancel(err error) error {
	return outbox.Permanent(fmt.Errorf("cancelled by its handler: %w", err))
}

// Later says of a handler's error that the job is to be tried again no sooner than
// after d, which is bounded to 24 h.
func Later(d time.Duration, err error) error { return outbox.RetryAfter(d, err) }

// PanicError is a panic of a handler, or of Config.Authorize.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Handler does the jobs of a kind. Its functions are called by many goroutines at
// once. What they enqueue has the job for its origin. Their context ends with the
// queue's Timeout, when the worker is stopped and out of patience, and when the claim
// is lost: context.Cause then tells outbox.ErrLeaseLost.
type Handler struct {
	// Prepare, unless it is nil, is called first, in no transaction: for what takes
	// long, or talks to others. It may be called several times for a job. What it
	// returns is Job.Prepared.
	Prepare func(ctx context.Context, j Job) (any, error)
	// Handle is called in the transaction that ctx carries, as the store's package
	// documents, for all that is to happen once. It may be nil where Prepare does
	// everything, under protection of its own.
	Handle func(ctx context.Context, j Job) error
}

// QueueConfig says how the jobs of a queue are run.
type QueueConfig struct {
	// Name of the queue. Required.
	Name string
	// Workers is how many of its jobs run at the same time. Default 16.
	Workers int
	// Timeout bounds an attempt at a job, from the claim to the commit. Default 1 min.
	Timeout time.Duration
	// MaxAttempts is after how many attempts a job is dead, with the last error as
	// the reason. Default 20.
	MaxAttempts int
	// Schedule, Backoff and MaxBackoff are the delays between attempts, with a
	// random part, as in an outbox.Route.
	Schedule            []time.Duration
	Backoff, MaxBackoff time.Duration
	// OnDead is what becomes of a lane whose first job is dead. Default Block.
	OnDead outbox.DeadPolicy
}

// Store is where jobs are: what Outbox of a store returns.
type Store interface {
	outbox.Store
	outbox.Settler
}

// Config is what a worker is made of.
type Config struct {
	// Store has the jobs, and Inbox the ids of those that are done, in one database:
	// that in which handlers have their effects. Both are required.
	Store Store
	Inbox inbox.Store
	// Queues are those whose jobs this worker runs. Required.
	Queues []QueueConfig
	// Handlers are those of each kind. Required. A job of another kind fails, and is
	// tried again: there may be a newer worker.
	Handlers map[string]Handler
	// Authorize is asked before each attempt whether the job may run, with what is
	// in its Authority. ErrRevoked is a refusal; after any other error the job is
	// tried again. Required: Trusted is for services whose jobs need no permission.
	Authorize func(ctx context.Context, j Job) error
	// Consumer is the name under which the inbox knows these jobs. All workers on a
	// store use one. Default "jobs".
	Consumer string
	// Retention is how long the ids of done jobs are known. Default, and least, is
	// what it takes: as long as a job may be tried, and as long as done ones are
	// kept (Relay.Retention). Negative is for ever; required if done jobs are kept
	// for ever.
	Retention time.Duration
	// Relay has the other settings: leases, polling, draining, how long done jobs
	// are kept, and the observer. Its Store and Routes must be empty.
	Relay outbox.Config
	// OnSweep is told what each round of forgetting ids did; nil for nobody.
	OnSweep func(inbox.Swept)
}

// Trusted is for Config.Authorize: every job may run.
func Trusted(context.Context, Job) error { return nil }

// Worker runs jobs. New makes one.
type Worker struct {
	config Config
	relay  *outbox.Relay
	inbox  *inbox.Inbox
}

// New returns a worker that does nothing until Run is called.
func New(c Config) (*Worker, error) {
	c.Handlers = maps.Clone(c.Handlers)
	w := &Worker{config: c}
	var errs []error
	if c.Authorize == nil {
		errs = append(errs, errors.New("field Authorize is nil; Trusted is for jobs that need no permission"))
	}
	if len(c.Handlers) == 0 {
		errs = append(errs, errors.New("field Handlers is empty"))
	}
	for kind, h := range c.Handlers {
		if h.Prepare == nil && h.Handle == nil {
			errs = append(errs, fmt.Errorf("field Handlers: that of kind %q does nothing", kind))
		}
	}
	if c.Relay.Store != nil || len(c.Relay.Routes) > 0 {
		errs = append(errs, errors.New("fields Store and Routes of Relay must be empty"))
	}
	relay, span, timeout := c.Relay, time.Duration(0), time.Duration(0)
	if c.Store != nil {
		relay.Store = c.Store
	}
	if c.Inbox == nil {
		errs = append(errs, errors.New("field Inbox is nil"))
	}
	for _, q := range c.Queues {
		if q.Name == "" {
			errs = append(errs, errors.New("field Queues has one without a name"))
		}
		r := outbox.Route{
			Topic: Topic(q.Name), Sink: outbox.SinkFunc(w.deliver), OnDead: q.OnDead, Timeout: q.Timeout, MaxInFlight: q.Workers,
			MaxAttempts: q.MaxAttempts, Schedule: q.Schedule, Backoff: q.Backoff, MaxBackoff: q.MaxBackoff,
		}
		if r.Timeout == 0 {
			r.Timeout = time.Minute
		}
		if r.MaxInFlight == 0 {
			r.MaxInFlight = 16
		}
		relay.Routes = append(relay.Routes, r)
		timeout = max(timeout, r.Timeout)
		span = max(span, r.RetrySpan(0))
	}
	var err error
	if w.relay, err = outbox.New(relay); err != nil {
		errs = append(errs, err)
	}
	least, retention := span, c.Retention
	switch kept := c.Relay.Retention.WithDefaults().Delivered; {
	case retention < 0:
		retention = math.MaxInt64
	case kept < 0:
		errs = append(errs, errors.New("field Retention must be negative where done jobs are kept for ever"))
	default:
		least += min(kept, math.MaxInt64/4)
		if retention == 0 {
			retention = 2 * least
		}
	}
	consumer := c.Consumer
	if consumer == "" {
		consumer = "jobs"
	}
	if len(c.Queues) > 0 && c.Inbox != nil {
		if w.inbox, err = inbox.New(inbox.Config{
			Store: c.Inbox, Consumer: consumer, RetrySpan: least, Retention: retention, Timeout: timeout, OnSweep: c.OnSweep,
		}); err != nil {
			errs = append(errs, err)
		}
	}
	w.config.Consumer = consumer
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("jobs: config: %w", err)
	}
	return w, nil
}

// Wake has the worker look for jobs now: for callers that have just committed some
// in a way that the store cannot see.
func (w *Worker) Wake() { w.relay.Wake() }

// Run runs jobs until ctx ends. Then it claims no more, waits for those under way for
// Relay.Drain, cancels those that are left, which others try again, and returns: nil
// if what became of all jobs is written down. It may be called again, not twice at
// the same time.
func (w *Worker) Run(ctx context.Context) error {
	sweep, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.inbox.Run(sweep) })
	err := w.relay.Run(ctx)
	stop()
	wg.Wait()
	return err
}

// deliver makes an attempt at a job.
func (w *Worker) deliver(ctx context.Context, d outbox.Delivery) error {
	j, err := FromMessage(d.Message)
	if err != nil {
		return outbox.Permanent(err)
	}
	j.Attempt, j.EnqueuedAt = d.Attempt, d.EnqueuedAt
	h, ok := w.config.Handlers[j.Kind]
	if !ok {
		return fmt.Errorf("jobs: this worker has no handler of kind %q", j.Kind)
	}
	_, err = guarded(func() (struct{}, error) { return struct{}{}, w.config.Authorize(ctx, j) })
	if err == nil && h.Prepare != nil {
		err = w.prepare(ctx, h, &j)
	} else if err != nil {
		err = w.refused(ctx, j, err)
	}
	if err != nil {
		if errors.Is(err, errDone) {
			return nil
		}
		return err
	}
	_, err = w.inbox.Process(ctx, j.ID, func(ctx context.Context) error {
		if h.Handle != nil {
			if _, err := guarded(func() (struct{}, error) { return struct{}{}, h.Handle(ctx, j) }); err != nil {
				return err
			}
		}
		return d.Settle(ctx)
	})
	if errors.Is(err, inbox.ErrInProgress) {
		// A worker that was taken over is still at it, and cannot commit.
		return outbox.Postpone(time.Second, err)
	}
	return err
}

// errDone: the job was done before.
var errDone = errors.New("jobs: the job is done")

// done returns errDone if the job is, before something is done that would be in vain,
// or said that would be wrong.
func (w *Worker) done(ctx context.Context, j Job) error {
	seen, err := w.config.Inbox.Seen(ctx, w.config.Consumer, []string{j.ID})
	if err == nil && seen[0] {
		err = errDone
	}
	return err
}

func (w *Worker) prepare(ctx context.Context, h Handler, j *Job) error {
	err := w.done(ctx, *j)
	if err == nil {
		j.Prepared, err = guarded(func() (any, error) { return h.Prepare(ctx, *j) })
	}
	return err
}

// refused is what becomes of a job that Authorize returned err for.
func (w *Worker) refused(ctx context.Context, j Job, err error) error {
	if !errors.Is(err, ErrRevoked) {
		return fmt.Errorf("jobs: whether the job may run could not be found out: %w", err)
	}
	if e := w.done(ctx, j); e != nil {
		return e
	}
	return outbox.Permanent(err)
}

// guarded makes an error of a panic.
func guarded[T any](fn func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return fn()
}
