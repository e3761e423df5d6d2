package semel

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// BulkResolution settles many unknown outcomes by one rule. See
// Guard.ResolveWhere.
type BulkResolution struct {
	// Where selects records, by anything but State, Lapsed and Limit, which
	// must be zero. After continues a run: see BulkReport.Next.
	Where Filter
	// AsOf is a time by the store's clock: only records that were unknown by
	// then are settled. BulkReport.AsOf of a dry run is one. Required with
	// Decide.
	//
	// Whoever looked before a record became unknown saw nothing of an effect
	// that came in between. So the order is: dry run, then look, then settle.
	AsOf time.Time
	// Decide says how to settle a record, which comes without its result. It
	// returns Decision, Result, Cause and, if it is not that of the bulk
	// resolution, Origin. A zero Decision leaves the record as it is;
	// DecideUnknown is an error. An error ends the run.
	//
	// It may be called from Parallel goroutines at once, and is given at most
	// one lease of time. Nil makes it a dry run.
	Decide func(ctx context.Context, r Record) (Resolution, error)
	// Origin is the request or operator that decided.
	Origin Origin
	// Limit is how many records are decided, and how many marked, at most; 0
	// for all.
	Limit int
	// Parallel is how many records are settled at the same time. Default 16.
	Parallel int
	// Seen is told of each record that a dry run selects, without its result;
	// nil for nobody.
	Seen func(r Record)
	// Progress is told after each page of at most 1,000 records how far the run
	// has come; nil for nobody. Like Seen, it holds the run up until it returns.
	Progress func(BulkReport)
}

// BulkReport is what a bulk resolution did, or in a dry run, has to do.
type BulkReport struct {
	// AsOf is that of the resolution. In a dry run without one it is the
	// newest time seen, by the store's clock; zero if no record was selected.
	AsOf time.Time
	// Selected counts records that were unknown as of then. Of a run that
	// settles, those that it came to: each is among the next four.
	Selected int
	// Settled counts records that were settled, each with its own entry in
	// the audit trail.
	Settled int
	// Left counts records that Decide left as they are.
	Left int
	// Moved counts records that somebody else had settled, or taken over, by
	// the time they were decided. Nothing was written to them.
	Moved int
	// InDoubt counts records whose decision the store did not confirm. The
	// next run finds those that were not settled.
	InDoubt int
	// Newer counts records that became unknown after AsOf. They are left.
	Newer int
	// Lapsed counts records in progress, begun by AsOf, whose lease is over.
	// Where.Cause selects none of them. Marked counts those that were marked
	// unknown, and are left for a later run.
	Lapsed, Marked int
	// More says that Limit, or an error, ended the run before its end.
	More bool
	// Next is the fence of the last record dealt with, for Where.After. Without
	// it, the next run begins with the records that this one left.
	Next uint64
}

// ResolveWhere settles the unknown records that b selects. Without b.Decide it
// is a dry run, which only counts them. See Resolution for why the order is:
// mark, then look, then settle.
//
//	report, err := guard.ResolveWhere(ctx, b) // a dry run
//	...
//	b.AsOf, b.Decide = report.AsOf, lookUp
//	report, err = guard.ResolveWhere(ctx, b)
//
// Records in progress under a lease are not touched. Those whose lease has
// lapsed are only marked unknown, after which a later dry run counts them and
// their owners can no longer renew. A record that was reopened waits for its
// next submit and is left.
//
// A record is decided at its fence, so nobody else's decision is overwritten
// and no record is settled twice, however many runs there are. When ctx ends,
// or with the first error, the run ends as soon as the records under way are
// settled; the report is valid then too. A run with the same resolution goes on
// with what is left.
//
// The error is errors.ErrUnsupported if the store is no Lister and Resolver.
func (g *Guard) ResolveWhere(ctx context.Context, b BulkResolution) (BulkReport, error) {
	lister, ok := g.store.(Lister)
	if !ok || g.resolver == nil {
		return BulkReport{}, fmt.Errorf("semel: resolve: %T is no Lister and Resolver: %w", g.store, errors.ErrUnsupported)
	}
	if b.Parallel == 0 {
		b.Parallel = 16
	}
	if err := b.check(); err != nil {
		return BulkReport{}, fmt.Errorf("semel: bulk resolution: %w", err)
	}
	run := &bulkRun{BulkResolution: b, guard: g, lister: lister, report: BulkReport{AsOf: b.AsOf, Next: b.Where.After}}
	err := run.lapsed(ctx)
	if err == nil {
		err = run.unknown(ctx)
	}
	if err != nil {
		run.report.More = true
		err = fmt.Errorf("semel: resolve: %w", err)
	}
	return run.report, err
}

func (b BulkResolution) check() error {
	var errs []error
	if b.Where.State != 0 || b.Where.Lapsed || b.Where.Limit != 0 {
		errs = append(errs, errors.New("fields State, Lapsed and Limit of Where must be zero"))
	}
	if b.Decide != nil && b.AsOf.IsZero() {
		errs = append(errs, errors.New("field AsOf is zero; a dry run tells it"))
	}
	if b.Limit < 0 || b.Parallel < 0 {
		errs = append(errs, errors.New("fields Limit and Parallel must not be negative"))
	}
	return errors.Join(errs...)
}

// bulkRun is one run. Its report belongs to the goroutine of the caller, but
// while a page is worked on, to whoever holds mu.
type bulkRun struct {
	BulkResolution
	guard  *Guard
	lister Lister

	taken  int // unknown records, of which Limit allows so many
	mu     sync.Mutex
	report BulkReport
}

// pages calls each with the pages of a listing until it returns false.
func (b *bulkRun) pages(ctx context.Context, f Filter, each func([]Record) (more bool, err error)) error {
	return b.guard.pages(ctx, b.lister, f, func(page []Record) (bool, error) {
		more, err := each(page)
		if b.Progress != nil {
			b.Progress(b.report)
		}
		return more, err
	})
}

func (g *Guard) pages(ctx context.Context, lister Lister, f Filter, each func([]Record) (more bool, err error)) error {
	const size = 1000 // the most that a store lists at once
	list := func() ([]Record, error) {
		ctx, cancel := context.WithTimeout(ctx, g.policy.StoreTimeout)
		defer cancel()
		return lister.List(ctx, f)
	}
	f.Limit = size
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		page, err := list()
		if err != nil {
			return err
		}
		if len(page) > 0 {
			f.After = page[len(page)-1].Fence
		}
		if more, err := each(page); err != nil || !more || len(page) < size {
			return err
		}
	}
}

// lapsed marks lapsed records. It begins with the first, because Next, which
// counts in unknown ones, knows nothing of a record that was left unmarked.
func (b *bulkRun) lapsed(ctx context.Context) error {
	if b.Where.Cause != "" {
		return nil
	}
	f := b.Where
	f.Lapsed, f.After = true, 0
	return b.pages(ctx, f, func(page []Record) (more bool, err error) {
		records := page[:0]
		for _, r := range page {
			if r.Reopened || !b.AsOf.IsZero() && r.BegunAt.After(b.AsOf) {
				continue
			}
			if b.full(b.report.Lapsed) {
				b.report.More = true
				return false, b.each(ctx, records, b.mark)
			}
			b.report.Lapsed++
			b.see(r, r.BegunAt)
			records = append(records, r)
		}
		return true, b.each(ctx, records, b.mark)
	})
}

// unknown settles unknown records.
func (b *bulkRun) unknown(ctx context.Context) error {
	f := b.Where
	f.State = StateUnknown
	return b.pages(ctx, f, func(page []Record) (more bool, err error) {
		records, next := page[:0], b.report.Next
		for _, r := range page {
			if !b.AsOf.IsZero() && r.SettledAt.After(b.AsOf) {
				b.report.Newer++
			} else if b.full(b.taken) {
				b.report.More = true
				break
			} else {
				b.taken++
				b.see(r, r.SettledAt)
				records = append(records, r)
			}
			next = r.Fence
		}
		if err := b.each(ctx, records, b.settle); err != nil {
			return false, err
		}
		b.report.Next = next
		return !b.report.More, nil
	})
}

// full reports whether no more than n records may be worked on.
func (b *bulkRun) full(n int) bool { return b.Decide != nil && b.Limit > 0 && n == b.Limit }

// see tells of a record in a dry run. at is a time by the store's clock.
func (b *bulkRun) see(r Record, at time.Time) {
	if b.Decide != nil {
		return
	}
	if r.State == StateUnknown {
		b.report.Selected++
	}
	if b.AsOf.IsZero() && at.After(b.report.AsOf) {
		b.report.AsOf = at
	}
	if b.Seen != nil {
		b.Seen(r)
	}
}

// each has work done on the records, on some at a time, until all are done, work
// fails or ctx ends. None is left half done.
func (b *bulkRun) each(ctx context.Context, records []Record, work func(context.Context, Record) error) error {
	if b.Decide == nil {
		return nil
	}
	return each(ctx, b.Parallel, records, work)
}

func each(ctx context.Context, parallel int, records []Record, work func(context.Context, Record) error) error {
	if len(records) == 0 {
		return nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan Record)
	var workers sync.WaitGroup
	for range min(parallel, len(records)) {
		workers.Go(func() {
			ended := false
			defer func() {
				if !ended {
					stop(errors.New("decide ended its goroutine"))
				}
			}()
			for r := range next {
				if err := work(ctx, r); err != nil {
					stop(fmt.Errorf("record %s: %w", r.ID, err))
				}
			}
			ended = true
		})
	}
	for _, r := range records {
		if ctx.Err() != nil {
			break // of the two cases below, either may be chosen
		}
		select {
		case next <- r:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

// count adds one to a figure of the report.
func (b *bulkRun) count(figure *int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*figure++
}

// mark does not follow ctx, as settle does not: what has begun is finished, so
// that it is known what became of it.
func (b *bulkRun) mark(ctx context.Context, r Record) error {
	_, err := b.guard.resolve(ctx, Resolution{
		Identity: r.Identity, Fence: r.Fence, Decision: DecideUnknown,
		Cause: "the lease lapsed before the operation was settled", Origin: b.Origin,
	})
	switch {
	case err == nil:
		b.count(&b.report.Marked)
	case !errors.Is(err, ErrStaleFence) && !errors.Is(err, ErrNotFound):
		return err
	}
	return nil
}

func (b *bulkRun) settle(ctx context.Context, r Record) error {
	decided := false
	defer func() { // also where Decide ends the goroutine
		b.count(&b.report.Selected)
		if !decided {
			b.count(&b.report.Left)
		}
	}()
	d, err := b.decide(ctx, r)
	if err != nil || d.Decision == 0 {
		return err
	}
	decided = true
	d.Identity, d.Fence = r.Identity, r.Fence
	if d.Origin == (Origin{}) {
		d.Origin = b.Origin
	}
	switch _, err := b.guard.resolve(ctx, d); {
	case err == nil:
		b.count(&b.report.Settled)
	case errors.Is(err, ErrStaleFence), errors.Is(err, ErrNotFound):
		b.count(&b.report.Moved)
	default:
		b.count(&b.report.InDoubt)
		return err
	}
	return nil
}

func (b *bulkRun) decide(ctx context.Context, r Record) (d Resolution, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.guard.policy.Lease)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("decide: %w", &PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	d, err = b.Decide(ctx, r)
	switch {
	case err != nil:
		err = fmt.Errorf("decide: %w", err)
	case d.Decision == DecideUnknown:
		err = errors.New("decide: the decision is unknown; return none to leave the record as it is")
	}
	return d, err
}
