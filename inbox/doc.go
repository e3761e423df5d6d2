// Package inbox drops repetitions of messages that a queue or broker delivers
// at least once. It records the id of a message in the same database
// transaction as the effects of handling it.
//
//	in, err := inbox.New(inbox.Config{Store: store.Inbox(), Consumer: "billing", RetrySpan: span})
//	...
//	_, err = in.Process(ctx, msg.ID, func(ctx context.Context) error {
//		tx, _ := sqlite.Tx(ctx)
//		_, err := tx.ExecContext(ctx, "INSERT INTO invoice ...")
//		return err
//	})
//	if err != nil {
//		return msg.Nak() // whatever it was: deliver it again
//	}
//	return msg.Ack() // done now, or before
//
// # What it promises
//
//   - The changes that a handler makes in its transaction are committed at most
//     once for each consumer and message id, among all goroutines and processes
//     on one database, for as long as the id is kept.
//   - A handler that fails, panics or dies with its process leaves nothing
//     behind, including the id. A redelivery runs it again.
//   - Consumers are independent. Each handles every message.
//   - A nil error is returned only after the commit. After any other error the
//     message must be delivered again, and it is safe to do so: if it is open
//     whether the commit took effect ([ErrUnknown]), the redelivery finds out.
//
// # What it does not
//
//   - Effects outside of a handler's transaction happen as often as it runs.
//     Use an outbox for them: messages enqueued in the handler's transaction
//     are committed with it.
//   - An id that is delivered again after its [Config.Retention] is handled
//     again.
//   - It does not order messages, except as documented by [Inbox.ProcessBatch],
//     and does not count attempts. Giving up a message that always fails is up
//     to the broker.
//
// Code that has its own transaction records ids in it with the methods Receive
// or ReceiveTx of a store's inbox, and needs this package only to sweep.
package inbox
