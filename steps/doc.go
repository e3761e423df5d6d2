// Package steps gives an operation recovery points: after a crash it goes on behind the
// last step that was done, instead of beginning anew or leaving it to somebody to find
// out how far it came.
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
// An operation is an execution of a guard, and its name in the journal is the identity
// of the request. Whether it is executed, by whom, and what it came to is in its record;
// the journal holds its input, and of each step the input, whether it was begun, and its
// result. Whoever executes the operation next, a client that comes back or a [Completer],
// has the results of the steps that were done, and does the others.
//
// # What it promises
//
//   - A [Local] step takes effect once: its effect and its result are one commit.
//   - A [Remote] step's input is on record before the call is made, and the call carries a
//     key derived from the identity and the step's name, the same in every execution: a
//     service that knows repetitions by it has one effect.
//   - A call of which nobody knows what became is never made again unless its [Policy]
//     says so. By default it waits for a person.
//   - Of two executions, as of a process that was paused and the one that took over, only
//     the one with the higher fence writes to the journal, and commits local steps.
//   - An execution that comes to other steps than those on record, in another order, or
//     with other inputs ends with a [ChangedError], and calls nothing.
//
// # What it does not
//
// It is no workflow engine: it has no timers, signals, children, queries, schedules or
// parallel steps, and an operation is as long as the guard's Deadline allows. Where
// operations take days, wait for people, or change while they run, take Temporal, Restate
// or DBOS; [semel.Identity.ChildKey], of the workflow's id and the activity's name, is the
// key for the calls that their activities make, which they repeat too.
//
// A call that a paused process makes when it wakes cannot be stopped from here; the key
// stops it at the other service, for as long as that keeps keys. What a person, or
// Reconcile, looks for may come after they have looked, unless SettleAfter is longer than
// a call can take.
package steps
