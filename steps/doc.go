// Package steps gives an operation recovery points. After a crash it continues after
// the last step that was done, so that it neither starts over nor leaves somebody to
// find out how far it came.
//
//	j, err := steps.New(steps.Config{Store: store.Steps()})
//	...
//	func order(ctx context.Context, o Order) (Receipt, error) {
//		reservation, err := steps.Local(ctx, "reserve", o, reserve) // in a transaction
//		if err != nil {
//			return Receipt{}, err
//		}
//		charge, err := steps.Remote(ctx, "charge", steps.Policy{OnCrash: semel.CrashRetry}, o.Payment, charge)
//		...
//	}
//
//	// In a handler that a guard protects, with a leased claim:
//	receipt, err := steps.Run(ctx, j, o, order)
//
// An operation is an execution of a guard, identified in the journal by the identity of
// the request. Its record says whether it is being executed, by whom, and with which
// result. The journal holds its input and, for each step, the input, the state and the
// result. Whoever executes the operation next, a client that retries or a [Completer],
// reuses the results of the steps that are done and executes the others.
//
// # What it promises
//
//   - A [Local] step takes effect once: its effect and its result are committed
//     together.
//   - A [Remote] step's input is recorded before the call is made. The call
//     carries a key that is derived from the identity and the step's name and
//     is the same in every execution, so a service that honours the key has one
//     effect.
//   - A call whose outcome is unknown is never repeated unless its [Policy]
//     allows it. By default it waits for a person.
//   - Of two executions, such as one of a paused process and the one that took
//     over, only the one with the higher fence can write to the journal and
//     commit local steps.
//   - An execution whose steps, their order or their inputs differ from those
//     on record ends with a [ChangedError], and makes no call.
//
// # What it does not
//
// It is not a workflow engine: it has no timers, signals, children, queries, schedules
// or parallel steps, and an operation may take no longer than the guard's Deadline. If
// operations take days, wait for people, or change while they run, use Temporal, Restate
// or DBOS; [semel.Identity.ChildKey], of the workflow's id and the activity's name, is
// then the key for the calls of their activities, which are repeated too.
//
// A call that a paused process makes when it resumes cannot be prevented. The other
// service recognises it by the key, for as long as it keeps keys. An effect that a
// person, or Reconcile, looks for may happen after they have looked, unless SettleAfter
// is longer than a call can take.
package steps
