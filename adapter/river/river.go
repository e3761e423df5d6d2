package river

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/store/postgres"
)

// ErrTaken: River has rescued the job from this worker, or somebody has cancelled it.
// What the handler did was rolled back.
var ErrTaken = errors.New("river: the job has been taken from this worker")

// InsertTx enqueues a job in the transaction that ctx carries: that of the claim, or
// of the message or job, that a handler works under (see postgres.Tx). It fails with
// postgres.ErrNoTransaction where there is none.
func InsertTx(ctx context.Context, client *river.Client[pgx.Tx], args river.JobArgs, opts *river.InsertOpts) (*rivertype.JobInsertResult, error) {
	tx, ok := postgres.Tx(ctx)
	if !ok {
		return nil, postgres.ErrNoTransaction
	}
	r, err := client.InsertTx(ctx, tx, args, opts)
	if err != nil {
		return nil, fmt.Errorf("river: %w", err)
	}
	return r, nil
}

// Worker is a worker of River whose jobs are completed in the transaction of their
// effect. Inbox and Handle are required.
type Worker[T river.JobArgs] struct {
	river.WorkerDefaults[T]
	// Inbox is over the Inbox of a postgres.Store in the database of River's client.
	Inbox *inbox.Inbox
	// Handle works in the transaction that postgres.Tx and postgres.SQLTx return.
	// Its errors are River's: river.JobCancel and JobSnooze roll back, too.
	Handle func(ctx context.Context, job *river.Job[T]) error
	// ID, if not nil, returns the id of a job, in place of its number: for jobs
	// that are the same work even if they were inserted twice.
	ID func(job *river.Job[T]) string
}

// Work implements river.Worker.
func (w *Worker[T]) Work(ctx context.Context, job *river.Job[T]) error {
	if w.Inbox == nil || w.Handle == nil {
		return errors.New("river: fields Inbox and Handle of the worker are required")
	}
	id := "river:" + strconv.FormatInt(job.ID, 10)
	if w.ID != nil {
		id = w.ID(job)
	}
	// A duplicate has nothing to do, and River completes it.
	_, err := w.Inbox.Process(ctx, id, func(ctx context.Context) error {
		if err := w.Handle(ctx, job); err != nil {
			return err
		}
		tx, ok := postgres.Tx(ctx)
		if !ok {
			return postgres.ErrNoTransaction
		}
		done, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		switch {
		case err != nil:
			return fmt.Errorf("river: the job could not be completed: %w", err)
		case done.State != rivertype.JobStateCompleted || done.Attempt != job.Attempt:
			return ErrTaken // which River itself would not say
		}
		return nil
	})
	return err
}
