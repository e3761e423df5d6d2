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

// ErrRevoked is returned by Config.Authorize, possibly wrapped, if a job no longer
// has permission to run. The job is then dead, with the reason on record, and is
// not tried again.
var ErrRevoked = errors.New("jobs: the authority of the job is revoked")

// Cancel wraps a handler's error to report that the job must not be tried again. The
// job is dead, with the reason on record. The handler's transaction is rolled back.
func Cancel(err error) error {
	return outbox.Permanent(fmt.Errorf("cancelled by its handler: %w", err))
}

// Later wraps a handler's error to report that the job must be tried again no
// sooner than after d, at most 24 h.
func Later(d time.Duration, err error) error { return outbox.RetryAfter(d, err) }

// PanicError is the error for a handler, or a Config.Authorize, that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Handler runs the jobs of a kind. Its functions are called by many goroutines at
// once. Messages that they enqueue have the job as their origin. Their context ends
// after the queue's Timeout, when the worker has been stopped and its drain time is
// over, and when the claim is lost; context.Cause is then outbox.ErrLeaseLost.
type Handler struct {
	// Prepare, if not nil, is called first, outside of any transaction, for work
	// that takes long or calls other services. It may be called several times for a
	// job. Its result is Job.Prepared.
	Prepare func(ctx context.Context, j Job) (any, error)
	// Handle is called in the transaction in ctx, as documented by the store's
	// package, for everything that must happen once. It may be nil if Prepare does
	// everything and protects its own effects.
	Handle func(ctx context.Context, j Job) error
}

// QueueConfig says how the jobs of a queue are run.
type QueueConfig struct {
	// Name of the queue. Required.
	Name string
	// Workers is how many of its jobs run at the same time. Default 16.
	Workers int
	// Timeout limits an attempt at a job, from the claim to the commit. Default
	// 1 min.
	Timeout time.Duration
	// MaxAttempts is the number of attempts after which a job is dead, with the
	// last error as the reason. Default 20.
	MaxAttempts int
	// Schedule, Backoff and MaxBackoff set the delays between attempts, as in
	// an outbox.Route.
	Schedule            []time.Duration
	Backoff, MaxBackoff time.Duration
	// OnDead says what happens to a lane whose first job is dead. Default
	// DeadBlock.
	OnDead outbox.DeadPolicy
}

// Store holds jobs. The Outbox methods of the stores return one.
type Store interface {
	outbox.Store
	outbox.Settler
}

// Config configures a worker.
type Config struct {
	// Store holds the jobs, and Inbox the ids of those that are done. Both must be
	// in the database in which handlers have their effects. Required.
	Store Store
	Inbox inbox.Store
	// Queues are the queues whose jobs this worker runs. Required.
	Queues []QueueConfig
	// Handlers maps each kind of job to its handler. Required. A job of another kind
	// fails and is tried again, because there may be a newer worker.
	Handlers map[string]Handler
	// Authorize is called before each attempt and decides by the job's Authority
	// whether it may run. ErrRevoked refuses; after any other error the job is
	// tried again. Required; use Trusted if jobs need no permission.
	Authorize func(ctx context.Context, j Job) error
	// Consumer is the inbox's name for these jobs. All workers on a store must use
	// the same one. Default "jobs".
	Consumer string
	// Retention is how long the ids of jobs that are done are kept. The default is
	// the minimum: as long as a job may be tried, and as long as done jobs are
	// kept (Relay.Retention). A negative value keeps them forever and is required
	// if done jobs are kept forever.
	Retention time.Duration
	// Relay has the other settings: leases, polling, draining, the retention of
	// done jobs, and the observer. Its Store and Routes must be empty.
	Relay outbox.Config
	// OnSweep, if not nil, is called with the result of each sweep of the ids.
	OnSweep func(inbox.Swept)
}

// Trusted is a Config.Authorize that lets every job run.
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

// Wake makes the worker look for jobs now. Call it after committing jobs in a way
// that the store cannot see.
func (w *Worker) Wake() { w.relay.Wake() }

// Run runs jobs until ctx ends. Then it stops claiming, waits up to Relay.Drain for
// running jobs, and cancels the remaining ones, which other workers try again. It
// returns nil if the outcomes of all jobs are recorded. Run may be called again after
// it has returned.
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
