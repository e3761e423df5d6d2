// Package river enqueues jobs of River (github.com/riverqueue/river, on PostgreSQL
// with pgx) in the transaction of an operation that semel protects, and completes
// them in the transaction of their effect.
//
//	_, err := river.InsertTx(ctx, client, SendMail{To: "bob"}, nil) // in a protected handler
//
//	upstream.AddWorker(workers, &river.Worker[SendMail]{Inbox: in, Handle: send})
//
// It is for services that already use River; semel's package jobs does not need it.
//
// # What it promises
//
//   - A job exists if and only if the transaction that enqueued it was committed.
//   - What a handler does in its transaction is committed once for each job, with the
//     fact that the job is completed. That holds when River rescues a job whose
//     worker is alive, which it does by the job's age: from then on that worker cannot
//     commit, whether the next has the job already or not.
//   - A handler that fails, panics or dies leaves nothing; River tries again, by its
//     own policy.
//
// # What it does not promise
//
//   - What a handler does elsewhere is done each time it runs. Enqueue it, or
//     protect it with a key.
//   - River has no leases: a job whose worker died waits for RescueStuckJobsAfter.
//   - The inbox's Timeout bounds handlers as River's JobTimeout does: make it as
//     long. Its Retention has to be longer than River keeps and retries jobs.
package river
