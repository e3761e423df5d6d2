// Package jobs runs work later, in the service that asked for it: a job is a message
// of the outbox that is addressed to a handler here, enqueued in the transaction that
// wants the work done.
//
//	m, err := jobs.Job{Queue: "mail", Kind: "welcome", Args: args, Authority: whose}.Message()
//	...
//	err = sqlite.Enqueue(ctx, m) // or postgres.Enqueue, or EnqueueTx
//
// A [Worker] claims jobs under a lease, which it renews while their handlers run, and
// runs each handler in a transaction together with the id of the job, in an inbox, and
// with the settlement of the claim.
//
// # What it promises
//
//   - A job whose transaction was committed is run until it is done, is dead with
//     the reason, or was cancelled by a person. One whose transaction was rolled
//     back never runs.
//   - What [Handler].Handle does in its transaction is committed once for each id of
//     a job: with the fact that the job is done, and only by the worker that holds
//     the claim then. One that was paused, and whose job another has claimed, cannot
//     commit, whether the other has or not.
//   - A handler that fails, panics, runs out of time, or dies with its process leaves
//     nothing, and the job is tried again.
//   - Jobs run with the authority that was recorded when they were enqueued, and
//     only if [Config].Authorize still agrees.
//   - How many jobs of a queue run at the same time has a bound for each worker, and
//     one queue does not wait for another.
//   - What people decide, to run a job again or to cancel it, is on record with who
//     and why. No decision doubles what is done.
//
// # What it does not
//
//   - What is done outside of the transaction, in [Handler].Prepare or by a call to
//     another service, may be done again. Protect it by a guard, by a key that the
//     receiver honours (Job.ID is one), or leave it to the outbox.
//   - A done job is not run again. Enqueue another, with an id of its own.
//   - An id that is enqueued again after Config.Retention is another job.
//   - Jobs are in no order, unless they have a Key.
package jobs
