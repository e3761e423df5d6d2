// Package inbox drops the repetitions of messages that a queue or broker
// delivers at least once: the id of a message is recorded in the database
// transaction of what is done because of it.
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
//   - What a handler does in its transaction is committed at most once for each
//     consumer and message id, among all goroutines and processes on one
//     database, for as long as the id is kept.
//   - A handler that fails, panics or dies with its process leaves nothing, its
//     id neither. A redelivery runs it again.
//   - Consumers are independent: each handles every message.
//   - Nil is told only after the commit. After any error the message must be
//     delivered again, and may be: where it is open whether the commit took
//     effect ([ErrUnknown]), the redelivery finds that out.
//
// # What it does not
//
//   - What a handler does outside of its transaction is done as often as it
//     runs. Use an outbox for that: messages that are enqueued in the handler's
//     transaction go with it.
//   - An id that is delivered again after its [Config.Retention] is handled
//     again.
//   - It does not order messages, beyond what [Inbox.ProcessBatch] says, and
//     does not count attempts: a message that always fails is the broker's to
//     give up.
//
// Who has a transaction of their own records ids in it with Receive or ReceiveTx
// of a store's inbox, and needs this package only to sweep.
package inbox
