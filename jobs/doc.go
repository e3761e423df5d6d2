// Package jobs runs work in the background of the service that asked for it. A job is
// a message of the outbox that is addressed to a handler in the service and enqueued
// in the transaction that needs the work.
//
//	m, err := jobs.Job{Queue: "mail", Kind: "welcome", Args: args, Authority: whose}.Message()
//	...
//	err = sqlite.Enqueue(ctx, m) // or postgres.Enqueue, or EnqueueTx
//
// A [Worker] claims jobs under a lease, which it renews while their handlers run. It
// runs each handler in a transaction that also records the id of the job in an inbox
// and settles the claim.
//
// # What it promises
//
//   - A job whose transaction was committed is run until it is done, is dead
//     with the reason on record, or is cancelled by a person. A job whose
//     transaction was rolled back never runs.
//   - What [Handler].Handle does in its transaction is committed once for each
//     job id, together with the fact that the job is done, and only by the
//     worker that holds the claim. A worker that was paused and has lost its
//     claim cannot commit, whether or not the new owner has committed.
//   - A handler that fails, panics, runs out of time, or dies with its process
//     leaves nothing behind, and the job is tried again.
//   - Jobs run with the authority that was recorded when they were enqueued, and
//     only if [Config].Authorize still agrees.
//   - Each worker limits how many jobs of a queue run at the same time. One
//     queue does not wait for another.
//   - A person's decision to run a job again or to cancel it is recorded with
//     who decided and why. No decision makes a job take effect twice.
//
// # What it does not
//
//   - Effects outside of the transaction, in [Handler].Prepare or by a call to
//     another service, may be repeated. Protect it by a guard, by a key that
//     the receiver honours (Job.ID is one), or leave it to the outbox.
//   - A job that is done is not run again. Enqueue another one with its own id.
//   - An id that is enqueued again after Config.Retention is another job.
//   - Jobs run in no particular order unless they have a Key.
package jobs
