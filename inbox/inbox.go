package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

var (
	// ErrFull reports that Config.MaxRows ids are on record and this one is not.
	// Nothing was done, and no id was forgotten.
	ErrFull = errors.New("inbox: as many messages as may be are on record")
	// ErrLaneFailed reports that an earlier message of the same lane in the batch
	// has failed. The handler was not called.
	ErrLaneFailed = errors.New("inbox: an earlier message of the lane has failed")
)

// PanicError is the error for a handler that panicked. Its transaction was
// rolled back.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("inbox: the handler panicked: %v", e.Value) }

// Config configures an inbox. Store, Consumer and RetrySpan are required.
type Config struct {
	Store Store
	// Consumer names the handler of the messages. Each consumer handles every
	// message once. So all processes of a service use the same name, and services
	// that share a database, or two handlers of the same messages, use different
	// names.
	Consumer string
	// RetrySpan is how long after its first delivery a message may be delivered
	// again. Schedule computes it for brokers, and outbox.Route.RetrySpan for an
	// outbox. Most senders count attempts, not hours, so add the longest outage of
	// either side that must be survived.
	RetrySpan time.Duration
	// Retention is how long ids are kept, by the store's clock. Default twice
	// RetrySpan; less than RetrySpan is an error.
	Retention time.Duration

	// MaxRows is the maximum number of ids of the consumer. Beyond it messages are
	// refused with ErrFull, unless they are duplicates. Run counts the ids, so the
	// limit may be exceeded by the messages handled between two rounds. Default
	// 10,000,000; a negative value means no limit.
	MaxRows int
	// MaxBatch is the maximum number of messages of a batch in one transaction.
	// Default 256.
	MaxBatch int
	// Timeout limits the context of a transaction's handlers. Default 30 s.
	Timeout time.Duration
	// Remember is how many of the latest ids this process remembers, in about 2.5
	// bytes each. A remembered id is looked up before a transaction is begun, which
	// avoids the transaction if the id is on record. This helps if duplicates
	// return to the process that handled the message, especially if transactions
	// have to wait for each other. Default 0: no ids are looked up.
	Remember int
	// SweepEvery is the time between two rounds of Run. Default 1 min.
	SweepEvery time.Duration
	// OnSweep, if not nil, is called with the result of each round of Run.
	OnSweep func(Swept)
}

func (c Config) withDefaults() Config {
	def := func(v *int, n int) {
		if *v == 0 {
			*v = n
		}
	}
	if c.Retention == 0 {
		c.Retention = 2 * min(c.RetrySpan, forever/2)
	}
	def(&c.MaxRows, 10_000_000)
	def(&c.MaxBatch, 256)
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.SweepEvery == 0 {
		c.SweepEvery = time.Minute
	}
	return c
}

// maxRemember bounds Config.Remember to 250 MB.
const maxRemember = 100_000_000

func (c Config) validate() error {
	errs := []error{Check(c.Consumer)}
	if c.Store == nil {
		errs = append(errs, errors.New("field Store is nil"))
	}
	if c.RetrySpan <= 0 {
		errs = append(errs, fmt.Errorf("field RetrySpan is %v; it must be positive", c.RetrySpan))
	}
	if c.Retention < c.RetrySpan {
		errs = append(errs, fmt.Errorf("field Retention is %v, less than the RetrySpan of %v: a late repetition would be handled again", c.Retention, c.RetrySpan))
	}
	if c.MaxBatch < 0 || c.Timeout < 0 || c.SweepEvery < 0 {
		errs = append(errs, errors.New("field MaxBatch, Timeout or SweepEvery is negative"))
	}
	if c.Remember < 0 || c.Remember > maxRemember {
		errs = append(errs, fmt.Errorf("field Remember is %d; it may be 0 to %d", c.Remember, maxRemember))
	}
	return errors.Join(errs...)
}

// Inbox handles the messages of one consumer. It is safe for concurrent use. New
// makes one.
type Inbox struct {
	config Config
	filter *filter // nil without Config.Remember
	full   atomic.Bool
}

// New returns an inbox. It starts no goroutine: call Run.
func New(c Config) (*Inbox, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("inbox: config: %w", err)
	}
	b := &Inbox{config: c}
	if c.Remember > 0 {
		b.filter = newFilter(c.Remember)
	}
	return b, nil
}

// Outcome is the outcome of a message that needs no redelivery.
type Outcome uint8

const (
	// OutcomeDone means that the message was handled, and the handler's
	// transaction is committed.
	OutcomeDone Outcome = iota + 1
	// OutcomeDuplicate means that the message had been handled before.
	OutcomeDuplicate
)

func (o Outcome) String() string {
	switch o {
	case OutcomeDone:
		return "done"
	case OutcomeDuplicate:
		return "duplicate"
	}
	return "failed"
}

// Process handles a message unless it has been handled before. It begins a
// transaction, records the id, calls handle with a context that carries the
// transaction, and commits. Acknowledge the message if the error is nil;
// otherwise have it delivered again. The error is that of handle, a *PanicError,
// or an error of this package or of the store.
//
// The context of handle ends with ctx or after Config.Timeout. If handle returns
// nil even then, its transaction is committed.
func (b *Inbox) Process(ctx context.Context, id string, handle func(ctx context.Context) error) (Outcome, error) {
	r := b.ProcessBatch(ctx, []Message{{ID: id}}, func(ctx context.Context, _ int) error { return handle(ctx) })
	return r[0].Outcome, r[0].Err
}

// Message is a message of a batch.
type Message struct {
	// ID identifies repetitions. It has at most MaxName bytes of UTF-8.
	ID string
	// Lane groups messages whose order matters, such as those of a partition and
	// key. If one fails, later messages of its lane in the batch are not handled.
	// Messages without a lane are independent.
	Lane string
}

// Result is the result of handling a message. If Err is nil, acknowledge the
// message; otherwise have it delivered again.
type Result struct {
	Outcome Outcome
	Err     error
}

// ProcessBatch handles messages in order, each as Process does, but as many as
// possible in one transaction. handle is called with the index of a message.
//
// A message that fails does not affect others. Its transaction is rolled back;
// then the messages before it, the message itself and the messages after it are
// handled again in transactions of their own. So handle may be called more than
// once for a message. If a transaction fails and it is not known because of which
// message, it is split in half. If the store cannot be reached, or the result of a
// commit is open, all messages of that transaction get the error.
//
// An id that occurs twice in the batch is handled once. The second message has the
// error of the first, or is an OutcomeDuplicate.
func (b *Inbox) ProcessBatch(ctx context.Context, messages []Message, handle func(ctx context.Context, i int) error) []Result {
	d := &delivery{Inbox: b, messages: messages, handle: handle, results: make([]Result, len(messages))}
	todo := make([]int, 0, len(messages))
	var again map[int]int // from the index of a repetition to that of the first
	firsts := make(map[string]int, len(messages))
	for i, m := range messages {
		if err := Check(b.config.Consumer, m.ID); err != nil {
			d.fail([]int{i}, err)
			continue
		}
		if first, ok := firsts[m.ID]; ok {
			if again == nil {
				again = map[int]int{}
			}
			again[i] = first
			continue
		}
		firsts[m.ID] = i
		todo = append(todo, i)
	}
	todo = d.lookUp(ctx, todo)
	for len(todo) > 0 {
		n := min(len(todo), b.config.MaxBatch)
		d.do(ctx, todo[:n])
		todo = todo[n:]
	}
	for i, first := range again {
		if d.results[i] = d.results[first]; d.results[i].Err == nil {
			d.results[i].Outcome = OutcomeDuplicate
		}
	}
	return d.results
}

// delivery is a batch under way. Its methods take indices of messages.
type delivery struct {
	*Inbox
	messages []Message
	handle   func(ctx context.Context, i int) error
	results  []Result
	failed   map[string]bool // lanes
}

func (d *delivery) fail(all []int, err error) {
	for _, i := range all {
		d.results[i] = Result{Err: err}
		if lane := d.messages[i].Lane; lane != "" {
			if d.failed == nil {
				d.failed = map[string]bool{}
			}
			d.failed[lane] = true
		}
	}
}

// lookUp settles what can be settled without a transaction, and returns the rest.
func (d *delivery) lookUp(ctx context.Context, todo []int) []int {
	full := d.full.Load()
	var known []int
	var ids []string
	if d.filter != nil || full {
		for _, i := range todo {
			if id := d.messages[i].ID; full || d.filter.has(id) {
				known = append(known, i)
				ids = append(ids, id)
			}
		}
	}
	if len(known) == 0 {
		return todo
	}
	seen, err := d.config.Store.Seen(ctx, d.config.Consumer, ids)
	if err != nil {
		if full {
			d.fail(todo, fmt.Errorf("%w, and it could not be looked up: %w", ErrFull, err))
			return nil
		}
		return todo // the transactions will tell
	}
	for n, i := range known {
		switch {
		case seen[n]:
			d.results[i].Outcome = OutcomeDuplicate
		case full:
			d.fail([]int{i}, ErrFull)
		}
	}
	rest := todo[:0]
	for _, i := range todo {
		if d.results[i] == (Result{}) {
			rest = append(rest, i)
		}
	}
	return rest
}

// do handles messages in one transaction, or, where one of them fails, in several.
func (d *delivery) do(ctx context.Context, todo []int) {
	if len(d.failed) > 0 {
		rest := make([]int, 0, len(todo))
		for _, i := range todo {
			if d.failed[d.messages[i].Lane] {
				d.results[i].Err = ErrLaneFailed
			} else {
				rest = append(rest, i)
			}
		}
		todo = rest
	}
	if len(todo) == 0 {
		return
	}
	at, err := d.transact(ctx, todo)
	switch {
	case err == nil:
	case len(todo) == 1 || ctx.Err() != nil:
		d.fail(todo, err)
	case at >= 0:
		d.do(ctx, todo[:at])
		d.do(ctx, todo[at:at+1])
		d.do(ctx, todo[at+1:])
	case errors.Is(err, ErrInProgress) || errors.Is(err, ErrRolledBack):
		d.do(ctx, todo[:len(todo)/2])
		d.do(ctx, todo[len(todo)/2:])
	default:
		d.fail(todo, err)
	}
}

// transact handles messages in one transaction. Where a handler failed it returns
// the place of its message in todo, and else -1.
func (d *delivery) transact(ctx context.Context, todo []int) (at int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.config.Timeout)
	defer cancel()
	ids := make([]string, len(todo))
	for n, i := range todo {
		ids[n] = d.messages[i].ID
	}
	at = -1
	outcomes := make([]Outcome, len(todo))
	err = d.config.Store.Transact(ctx, d.config.Consumer, ids, func(ctx context.Context, first []bool) error {
		for n, i := range todo {
			if !first[n] {
				continue
			}
			if err := d.call(ctx, i); err != nil {
				at = n
				return err
			}
			outcomes[n] = OutcomeDone
		}
		return nil
	})
	if err != nil {
		return at, err
	}
	for n, i := range todo {
		if outcomes[n] == 0 {
			outcomes[n] = OutcomeDuplicate
		}
		d.results[i].Outcome = outcomes[n]
		if d.filter != nil {
			d.filter.add(ids[n])
		}
	}
	return -1, nil
}

func (d *delivery) call(ctx context.Context, i int) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return d.handle(ctx, i)
}

// Swept is the result of a round of Run.
type Swept struct {
	Removed int // ids past their retention
	Rows    int // ids that are left, counted up to MaxRows
	Full    bool
	Took    time.Duration
	Err     error // why the round ended early; the next one goes on
}

const sweepBatch = 1000

// Run removes ids past their retention, at once and then every
// Config.SweepEvery, counts the others, and calls Config.OnSweep. It returns
// when ctx ends. Call it in every process that handles messages: MaxRows is not
// enforced without it, and if no process calls it, the table grows.
func (b *Inbox) Run(ctx context.Context) {
	for {
		start := time.Now()
		did := b.sweep(ctx)
		did.Took = time.Since(start)
		if ctx.Err() != nil {
			return
		}
		if b.config.OnSweep != nil {
			b.config.OnSweep(did)
		}
		// A count of many rows takes its time: it has a tenth of it.
		t := time.NewTimer(max(b.config.SweepEvery, 9*did.Took))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (b *Inbox) sweep(ctx context.Context) (did Swept) {
	c := b.config
	for {
		n, err := c.Store.Sweep(ctx, c.Consumer, c.Retention, sweepBatch)
		did.Removed += n
		if err != nil {
			did.Err = err
			break // what is left is counted all the same
		}
		if n == 0 {
			break
		}
	}
	if c.MaxRows >= 0 {
		n, err := c.Store.Count(ctx, c.Consumer, c.MaxRows)
		if err != nil {
			did.Err = errors.Join(did.Err, err)
		} else {
			did.Rows = n
			b.full.Store(n >= c.MaxRows)
		}
	}
	did.Full = b.full.Load()
	return did
}
