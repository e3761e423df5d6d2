// Package outbox sends messages that were written down in the same database
// transaction as the change they tell of: a mail, a webhook or an event that is
// neither lost by a crash nor sent for a change that was rolled back.
//
// A service enqueues a [Message] in its own transaction (the packages of the
// stores have the functions for that, and document their table for services in
// other languages). A [Relay] claims messages and hands each to a [Sink], in
// the service itself or in a process of its own. Any number of relays may run.
//
// # What it promises
//
//   - A message whose transaction was committed is delivered at least once,
//     or is told as dead or unknown, and kept. One whose transaction was rolled
//     back is never delivered.
//   - A message keeps its id over all attempts, so that the receiver can drop
//     repetitions. Receivers must: a relay that dies between a delivery and its
//     record delivers again. That is at-least-once delivery; with a receiver
//     that drops repetitions it takes effect once.
//   - Messages with the same topic and key form a lane. Their first deliveries
//     are in the order in which they were enqueued: only the first message of a
//     lane is ever under way, and a lane stops at its first failure. Messages
//     without a key are in no order.
//   - A message that cannot be delivered holds up its own lane and nothing else.
//   - An effect that cannot be repeated, as a mail, is not repeated under the
//     policy [Hold]: where nobody can know whether it happened, the message is
//     unknown until somebody decides. See [Delivery.BeforeEffect].
//   - No database lock is held while a sink works.
//
// # What it does not
//
// A paused process may go on with a delivery after another relay has taken the
// message over. Its receiver then sees the repetition late, perhaps after later
// messages of the lane; its settlement changes nothing. A message that was
// redriven after its lane had gone on is out of order.
package outbox
