// Package outbox sends messages that were recorded in the same database
// transaction as the change that they announce: a mail, a webhook or an event
// that is neither lost in a crash nor sent for a change that was rolled back.
//
// A service enqueues a [Message] in its own transaction. The packages of the
// stores have functions for that, and document their tables for services in
// other languages. A [Relay] claims messages and passes each to a [Sink], in
// the service or in a separate process. Any number of relays may run.
//
// # What it promises
//
//   - A message whose transaction was committed is delivered at least once, or
//     is reported as dead or unknown, and kept. A message whose transaction was
//     rolled back is never delivered.
//   - A message keeps its id in all attempts, so that the receiver can drop
//     repetitions. Receivers must do so, because a relay that dies between a
//     delivery and its record delivers again. With a receiver that drops
//     repetitions, a message takes effect once.
//   - Messages with the same topic and key form a lane. Their first deliveries
//     are in the order in which they were enqueued: only the first message of a
//     lane is ever under way, and a lane stops at its first failure. Messages
//     without a key are in no order.
//   - A message that cannot be delivered holds up its own lane and nothing else.
//   - An effect that must not be repeated, such as a mail, is not repeated
//     under the policy [UnknownHold]. If nobody can know whether it happened,
//     the message is unknown until somebody decides. See
//     [Delivery.BeforeEffect].
//   - No database lock is held while a sink works.
//
// # What it does not
//
// A paused process may continue a delivery after another relay has taken the
// message over. The receiver then sees the repetition late, perhaps after later
// messages of the lane. The settlement of the paused process has no effect. A
// message that is redriven after its lane has gone on is delivered out of
// order.
package outbox
