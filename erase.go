package semel

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Erasure removes the result and the fingerprint from the completed record of
// Identity, if that still has Fence.
type Erasure struct {
	Identity Identity
	Fence    uint64
	// Cause says why, for the audit trail. It must hold no payload.
	Cause string
	// Origin is the request or operator that decided.
	Origin Origin
}

// Eraser is implemented by stores that can erase a result without forgetting
// that there was one. All stores of this project implement it.
type Eraser interface {
	// Erase makes the record a tombstone without a reference, a head, a body and a
	// fingerprint, in one commit with an entry in the audit trail, and reports
	// whether the record had any of these. If it had none, nothing is written.
	//
	// All else stays until the retention is over: the identity, so that a repeated
	// request does not execute again, the times, the label and the entries of the
	// trail. Calls of the claim that has completed the record return the same as
	// before. A request with the same key is not compared any more, so it is never
	// a mismatch.
	//
	// The error is ErrNotFound if there is no record, and ErrStaleFence if it has
	// another fence or is not completed. Nothing was written then.
	Erase(ctx context.Context, e Erasure) (erased bool, err error)
}

// Erased reports whether the record holds nothing that Erase would take out of it.
// The record must come with its result.
func (r Record) Erased() bool {
	return r.State == StateCompleted && r.Result.Tombstone && r.Result.Reference == "" && r.Result.Size() == 0 && len(r.Result.Head) == 0 &&
		r.Fingerprint == Fingerprint{}
}

// BulkErasure erases the results of many records. See [Guard.EraseWhere].
type BulkErasure struct {
	// Where selects records. It must name a tenant or an actor; State, Lapsed,
	// Cause and Limit must be zero. After continues a run: see ErasureReport.Next.
	Where Filter
	// Cause says why, for the audit trail, and Origin who decided.
	Cause  string
	Origin Origin
	// DryRun only counts. Seen, if not nil, is then called with each record,
	// without its result.
	DryRun bool
	Seen   func(r Record)
	// Parallel is how many results are erased at the same time. Default 16.
	Parallel int
	// Progress, if not nil, is called after each page of at most 1,000 records
	// with the state of the run. Like Seen, it holds up the run until it returns.
	Progress func(ErasureReport)
}

// ErasureReport says what a bulk erasure did, or in a dry run, what it would
// do.
type ErasureReport struct {
	// Completed counts records that are completed. Except in a dry run, each is
	// also counted by one of the next four.
	Completed int
	// Erased counts those whose result was erased, each with its own entry in the
	// audit trail, and Bare those that had nothing to erase.
	Erased, Bare int
	// Moved counts records that had meanwhile been removed or replaced.
	Moved int
	// InDoubt counts records whose erasure the store did not confirm.
	InDoubt int
	// Open counts records that are in progress or unknown. They have no result yet,
	// and get one when they are settled: erase again after that.
	Open int
	// Next is the fence of the last record dealt with, for Where.After.
	Next uint64
}

// EraseWhere erases the results of the completed records that b selects, or with
// b.DryRun only counts them. See [Eraser] for what is erased. A retry then learns
// that the result is not retained, and nothing executes again.
//
// When ctx ends, or after the first error, the run ends as soon as the records
// under way are done; the report is valid even then. Running again is safe. The run
// does not see records that it has already passed when they are completed.
//
// The error wraps [errors.ErrUnsupported] unless the store implements [Lister]
// and [Eraser].
func (g *Guard) EraseWhere(ctx context.Context, b BulkErasure) (ErasureReport, error) {
	lister, ok := g.store.(Lister)
	eraser, ok2 := g.store.(Eraser)
	switch {
	case !ok || !ok2:
		return ErasureReport{}, fmt.Errorf("semel: erase: %T does not implement Lister and Eraser: %w", g.store, errors.ErrUnsupported)
	case b.Where.Tenant == "" && b.Where.Actor == "":
		return ErasureReport{}, errors.New("semel: bulk erasure: field Where names no tenant and no actor")
	case b.Where.State != 0 || b.Where.Lapsed || b.Where.Cause != "" || b.Where.Limit != 0 || b.Parallel < 0:
		return ErasureReport{}, errors.New("semel: bulk erasure: fields State, Lapsed, Cause and Limit of Where must be zero, and Parallel not negative")
	case b.Parallel == 0:
		b.Parallel = 16
	}
	report := ErasureReport{Next: b.Where.After}
	var mu sync.Mutex // for report, while a page is worked on
	erase := func(ctx context.Context, r Record) error {
		call := g.storeContext(ctx)
		defer call.over()
		erased, err := eraser.Erase(call, Erasure{Identity: r.Identity, Fence: r.Fence, Cause: b.Cause, Origin: b.Origin})
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrStaleFence):
			report.Moved++
		case err != nil:
			report.InDoubt++
			return err
		case erased:
			report.Erased++
		default:
			report.Bare++
		}
		return nil
	}
	err := g.pages(ctx, lister, b.Where, func(page []Record) (more bool, err error) {
		var completed []Record
		for _, r := range page {
			if r.State == StateCompleted {
				completed = append(completed, r)
			} else {
				report.Open++
			}
			if b.DryRun && b.Seen != nil {
				b.Seen(r)
			}
		}
		if b.DryRun {
			report.Completed += len(completed)
		} else {
			err = each(ctx, b.Parallel, completed, erase)
			report.Completed = report.Erased + report.Bare + report.Moved + report.InDoubt
		}
		if err == nil && len(page) > 0 {
			report.Next = page[len(page)-1].Fence
		}
		if b.Progress != nil {
			b.Progress(report)
		}
		return true, err
	})
	if err != nil {
		err = fmt.Errorf("semel: erase: %w", err)
	}
	return report, err
}
