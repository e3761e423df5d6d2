package steps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// Handler executes an operation for a completer from its recorded input, and
// returns the result that the guard records. Handle makes one.
type Handler func(ctx context.Context, input []byte) (semel.Result, error)

// Handle returns a handler that calls Run with fn. result converts fn's result to
// the one that the guard records. It may be nil for operations of semel.Call. For
// those of an HTTP handler it returns the response, encoded with
// semelhttp.EncodeResult.
func Handle[In, Out any](j *Journal, fn func(ctx context.Context, in In) (Out, error), result func(out Out) (semel.Result, error)) Handler {
	return func(ctx context.Context, input []byte) (semel.Result, error) {
		in, err := decode[In](input)
		if err != nil {
			return semel.Result{}, semel.Indeterminate("the journal's input does not fit", err)
		}
		out, err := Run(ctx, j, in, fn)
		if err != nil {
			return semel.Result{}, err
		}
		if result == nil {
			res, _ := semel.JSONResult(out) // a tombstone, if it cannot be encoded
			return res, nil
		}
		return result(out)
	}
}

// CompleterConfig configures a completer. Journal, Guard and Operations are
// required.
type CompleterConfig struct {
	Journal *Journal
	// Guard holds the records of the operations. Its policy applies, except that a
	// completer takes over executions whose lease has lapsed or whose outcome is
	// unknown, regardless of OnCrash.
	Guard *semel.Guard
	// Operations maps Identity.Operation to handlers. Other operations are
	// ignored.
	Operations map[string]Handler

	// Every is the time between two rounds of Run. Default 5 s.
	Every time.Duration
	// MaxAttempts is the number of attempts after which an operation is held.
	// Default 10.
	MaxAttempts int
	// MinBackoff and MaxBackoff limit the delay after an attempt, which doubles
	// each time. Default 5 s and 10 min.
	MinBackoff, MaxBackoff time.Duration
	// Parallel is the maximum number of operations executed at the same time.
	// Default 4.
	Parallel int
	// Retention is how long the journals of finished operations are kept. It must
	// not be shorter than the retention of the guard's policy, which is the
	// default.
	Retention time.Duration
	// OnRound, if not nil, is called with the result of each round of Run.
	OnRound func(Report)
}

// Completer completes operations whose process has died or whose steps have failed.
// Any number of completers may run.
type Completer struct {
	config CompleterConfig
	names  []string
}

// Report is the result of a round.
type Report struct {
	Finished  int // operations whose record is complete, by this round or before
	Postponed int // are being executed, or have failed and will be tried again
	Held      int // wait for a person from now on
	Swept     int // old journals that were forgotten
	Err       error
}

// NewCompleter returns a completer. It starts no goroutine: call Run.
func NewCompleter(c CompleterConfig) (*Completer, error) {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Every, 5*time.Second)
	def(&c.MinBackoff, 5*time.Second)
	def(&c.MaxBackoff, max(10*time.Minute, c.MinBackoff))
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 10
	}
	if c.Parallel == 0 {
		c.Parallel = 4
	}
	var errs []error
	if c.Journal == nil || c.Guard == nil || len(c.Operations) == 0 {
		errs = append(errs, errors.New("field Journal, Guard or Operations is missing"))
	}
	if c.Every < 0 || c.MaxAttempts < 0 || c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff || c.Parallel < 0 {
		errs = append(errs, errors.New("field Every, MaxAttempts, MinBackoff or Parallel is negative, or MaxBackoff less than MinBackoff"))
	}
	k := &Completer{}
	c.Operations = maps.Clone(c.Operations)
	for name, h := range c.Operations {
		if h == nil {
			errs = append(errs, fmt.Errorf("the handler of %q is nil", name))
		}
		k.names = append(k.names, name)
	}
	if c.Guard != nil {
		p := c.Guard.Policy()
		def(&c.Retention, p.Retention)
		if c.Retention < p.Retention {
			errs = append(errs, fmt.Errorf("field Retention %v is shorter than that of the records, %v", c.Retention, p.Retention))
		}
		p.OnCrash, p.Reconcile, p.SettleAfter = semel.CrashRetry, nil, 0
		var err error
		if c.Guard, err = c.Guard.With(p); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("steps: completer config: %w", err)
	}
	k.config = c
	return k, nil
}

// Run does a round every CompleterConfig.Every until ctx ends. Then it begins no more
// operations, waits for the running ones, and returns.
func (c *Completer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		r := c.Round(ctx)
		if c.config.OnRound != nil {
			c.config.OnRound(r)
		}
		t := time.NewTimer(c.config.Every - rand.N(c.config.Every/4+1))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// sweepTogether is how many journals a round forgets at a time.
const sweepTogether = 1000

// Round executes all operations that are due, once.
func (c *Completer) Round(ctx context.Context) (total Report) {
	store := c.config.Journal.config.Store
	f := Filter{Phases: []Phase{PhaseOpen}, Operations: c.names, Due: true}
	for ctx.Err() == nil {
		page, err := store.List(ctx, f)
		if err != nil {
			total.Err = err
			break
		}
		total.add(c.page(ctx, page))
		if len(page) < f.Page() {
			break
		}
		f.After = page[len(page)-1].Number
	}
	for ctx.Err() == nil {
		n, err := store.Sweep(ctx, c.config.Retention, sweepTogether)
		total.Swept += n
		total.Err = errors.Join(total.Err, err)
		if err != nil || n < sweepTogether {
			break
		}
	}
	return total
}

func (r *Report) add(o Report) {
	r.Finished += o.Finished
	r.Postponed += o.Postponed
	r.Held += o.Held
	r.Err = errors.Join(r.Err, o.Err)
}

// page looks after some operations, in goroutines that it waits for.
func (c *Completer) page(ctx context.Context, page []Operation) (total Report) {
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		busy = make(chan struct{}, c.config.Parallel)
	)
	for _, o := range page {
		busy <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-busy }()
			r := c.look(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			total.add(r)
		})
	}
	wg.Wait()
	return total
}

// look asks what the operation's record says, and executes it if nobody else does.
func (c *Completer) look(ctx context.Context, o Operation) Report {
	m := Mark{Number: o.Number, Fence: o.Fence, Phase: PhaseOpen, Attempts: o.Attempts, Due: c.config.Journal.config.LookAfter}
	r, err := c.config.Guard.Find(ctx, o.Identity)
	switch {
	case errors.Is(err, semel.ErrNotFound):
		// The record was released, as having had no effect, or it has expired.
		found, err := c.config.Journal.config.Store.Find(ctx, o.Identity)
		if err != nil {
			return Report{Err: err}
		}
		m.Phase = PhaseFinished
		for _, s := range found.Steps {
			if s.State != StateFree {
				m.Phase, m.Cause = PhaseHeld, "steps have been done, but the operation has no record: it was resolved as without effect, or has expired"
			}
		}
	case err != nil && !errors.Is(err, semel.ErrUnreadable): // what is on record need not be read
		return Report{Err: err}
	case r.State == semel.StateCompleted:
		m.Phase = PhaseFinished
	case r.State == semel.StateInProgress && !r.Lapsed():
	default:
		return c.execute(ctx, o, m)
	}
	return c.mark(ctx, m)
}

// mark writes m, unless somebody has gone on with the operation.
func (c *Completer) mark(ctx context.Context, m Mark) Report {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.Journal.config.StoreTimeout)
	defer cancel()
	err := c.config.Journal.config.Store.Mark(ctx, m)
	switch {
	case errors.Is(err, ErrStale):
		return Report{}
	case err != nil:
		return Report{Err: err}
	case m.Phase == PhaseFinished:
		return Report{Finished: 1}
	case m.Phase == PhaseHeld:
		return Report{Held: 1}
	}
	return Report{Postponed: 1}
}

// execute takes the operation over.
func (c *Completer) execute(ctx context.Context, o Operation, m Mark) Report {
	before := m.Fence
	if err := c.config.Journal.open(&o); err != nil { // until somebody has put the key back
		return Report{Err: err}
	}
	out, err := func() (out semel.Outcome, err error) {
		returned := false
		defer func() {
			if !returned && recover() != nil { // it is on record
				out.Claimed, err = true, errors.New("the handler panicked")
			}
		}()
		out, err = c.config.Guard.Do(ctx, semel.Submit{Identity: o.Identity, Fingerprint: o.Fingerprint}, func(ctx context.Context) (semel.Result, error) {
			x, _ := semel.CurrentExecution(ctx)
			if !x.InDoubt() { // the record has gone since it was looked at: the next round says what that means
				return semel.Result{}, semel.NoEffect(errGone)
			}
			m.Fence = x.Fence()
			return c.config.Operations[o.Identity.Operation](ctx, o.Input)
		})
		returned = true
		return out, err
	}()
	failed, _ := errors.AsType[*semel.Error](err)
	switch {
	case err == nil, errors.Is(err, semel.ErrRecorded):
		m.Phase = PhaseFinished
	case !out.Claimed && failed != nil && failed.Answer == semel.AnswerMismatch:
		m.Phase, m.Cause = PhaseHeld, "its record is another request's"
	case !out.Claimed: // somebody else is at it, or nobody can be now
	default:
		m.Attempts++
		m.Cause = "an execution did not come to its end" // the errors of handlers may hold anything
		m.Due = min(c.config.MinBackoff<<min(m.Attempts-1, 30), c.config.MaxBackoff)
		if m.Due <= 0 {
			m.Due = c.config.MaxBackoff
		}
		changed, is := errors.AsType[*ChangedError](err)
		switch {
		case is:
			m.Phase, m.Cause = PhaseHeld, changed.Error()
		case errors.Is(err, ErrUnknown):
			m.Phase, m.Cause = PhaseHeld, ErrUnknown.Error()
		case errors.Is(err, ErrCorrupt):
			m.Phase, m.Cause = PhaseHeld, ErrCorrupt.Error()
		case m.Attempts >= c.config.MaxAttempts:
			m.Phase = PhaseHeld
		}
	}
	report := c.mark(ctx, m)
	if report == (Report{}) && m.Fence != before { // the handler has not come to open the journal
		m.Fence = before
		report = c.mark(ctx, m)
	}
	return report
}

var errGone = errors.New("steps: the operation's record is gone")
