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
	// Where selects the records. State, Lapsed and Limit must be zero. After
	// continues a run from its BulkReport.Next.
	Where Filter
	// AsOf is a time by the clock of the store, such as BulkReport.AsOf of a dry
	// run. Only records that were unknown at that time are settled. It is required
	// if Decide is set.
	//
	// An effect can appear after somebody has looked for it and before its record
	// becomes unknown. So the order is: dry run, then look, then settle.
	AsOf time.Time
	// Decide says how to settle a record, which it gets without its result. It sets
	// Decision, Result, Cause and, if it differs from that of the bulk resolution,
	// Origin. A zero Decision leaves the record as it is. DecideUnknown is an error.
	// An error ends the run.
	//
	// Decide is called concurrently, by Parallel goroutines, and each call has at
	// most one lease of time. If Decide is nil, the run is a dry run.
	Decide func(ctx context.Context, r Record) (Resolution, error)
	// Origin is the request or the operator that made the decision.
	Origin Origin
	// Limit is the largest number of records to decide, and of records to mark.
	// Zero means no limit.
	Limit int
	// Parallel is how many records are settled at the same time. Default 16.
	Parallel int
	// Seen, if not nil, is called for each record that a dry run selects, without
	// its result. The run waits for it.
	Seen func(r Record)
	// Progress, if not nil, is called after each page of up to 1,000 records. The
	// run waits for it.
	Progress func(BulkReport)
}

// BulkReport says what a bulk resolution did or, in a dry run, would have to do.
type BulkReport struct {
	// AsOf is that of the resolution. In a dry run without one, it is the latest
	// time found, by the clock of the store, or zero if no record was selected.
	AsOf time.Time
	// Selected counts the records that were unknown at AsOf. In a run that settles,
	// it counts those that were reached, each of which is in one of the next four.
	Selected int
	// Settled counts the records that were settled. Each has its own entry in the
	// audit trail.
	Settled int
	// Left counts the records that Decide left as they are.
	Left int
	// Moved counts the records that somebody else had settled or taken over by the
	// time they were decided. Nothing was written to them.
	Moved int
	// InDoubt counts the records whose decision the store did not confirm. The next
	// run finds those that were not settled.
	InDoubt int
	// Newer counts the records that became unknown after AsOf. They are left as
	// they are.
	Newer int
	// Lapsed counts the records in progress, begun by AsOf, whose lease has lapsed.
	// It is zero if Where.Cause is set. Marked counts those of them that were marked
	// as unknown and left to a later run.
	Lapsed, Marked int
	// More reports whether the run stopped early, because of Limit or an error.
	More bool
	// Next is the fence of the last record that was reached, for Where.After.
	// Without it, the next run begins with the records that this one has left.
	Next uint64
}

// ResolveWhere settles the unknown records that b selects. If b.Decide is nil, it
// only counts them, which is a dry run. See Resolution for why the order is: mark,
// then look, then settle.
//
//	report, err := guard.ResolveWhere(ctx, b) // a dry run
//	...
//	b.AsOf, b.Decide = report.AsOf, lookUp
//	report, err = guard.ResolveWhere(ctx, b)
//
// Records in progress under a lease are left as they are. Those whose lease has
// lapsed are marked as unknown: their owners can no longer renew, and a later dry
// run counts them. A record that was reopened is left to its next submit.
//
// A decision holds for the fence of the record. So it does not overwrite another
// decision, and no record is settled twice, even if several runs are made at the
// same time. If ctx ends, or after the first error, the run ends when the decisions
// under way have been made, and the report is valid. Another run with the same
// resolution continues with the rest.
//
// The error wraps errors.ErrUnsupported unless the store implements Lister and
// Resolver.
func (g *Guard) ResolveWhere(ctx context.Context, b BulkResolution) (BulkReport, error) {
	lister, ok := g.store.(Lister)
	if !ok || g.resolver == nil {
		return BulkReport{}, fmt.Errorf("semel: resolve: %T does not implement Lister and Resolver: %w", g.store, errors.ErrUnsupported)
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
		errs = append(errs, errors.New("field AsOf is zero; use the one that a dry run returns"))
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
