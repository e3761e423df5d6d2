// Package river has jobs of River (github.com/riverqueue/river, on PostgreSQL by
// pgx) enqueued in the transaction of what semel protects, and completed in that of
// their effect.
//
//	_, err := river.InsertTx(ctx, client, SendMail{To: "bob"}, nil) // in a protected handler
//
//	upstream.AddWorker(workers, &river.Worker[SendMail]{Inbox: in, Handle: send})
//
// It is for services that have River already; package jobs of semel needs none.
//
// # What it promises
//
//   - A job is there exactly if the transaction that enqueued it was committed.
//   - What a handler does in its transaction is committed once for each job, with the
//     fact that the job is completed. That holds when River rescues a job whose
//     worker is alive, which it does by the job's age: from then on that worker cannot
//     commit, whether the next has the job already or not.
//   - A handler that fails, panics or dies leaves nothing; River tries again, by its
//     own policy.
//
// # What it does not
//
//   - What a handler does elsewhere is done as often as it runs. Enqueue it, or
//     protect it by a key.
//   - River has no leases: a job whose worker died waits for RescueStuckJobsAfter.
//   - The inbox's Timeout bounds handlers as River's JobTimeout does: make it as
//     long. Its Retention has to be longer than River keeps and retries jobs.
package river
