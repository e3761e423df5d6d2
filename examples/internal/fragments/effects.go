//lint:file-ignore U1000,SA4006 the documents leave out what becomes of errors and results

package fragments

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/sqlite"
)

func enqueue(ctx context.Context, event []byte) error {
	err := sqlite.Enqueue(ctx, outbox.Message{Topic: "orders", Key: "customer-17", Type: "order.paid", Payload: event})
	return err
}

func enqueueTx(ctx context.Context, db *sql.DB, store *sqlite.Store, event []byte) error {
	tx, err := db.BeginTx(ctx, nil)
	// ... your changes ...
	err = sqlite.EnqueueTx(ctx, tx, outbox.Message{Topic: "orders", Payload: event})
	err = tx.Commit()
	store.Outbox().Wake() // optional: relays in this process look at once
	return err
}

func relays(ctx context.Context, store *sqlite.Store, sink, mailer outbox.Sink) error {
	relay, err := outbox.New(outbox.Config{
		Store:  store.Outbox(),
		Routes: []outbox.Route{{Topic: "orders", Sink: sink, OnDead: outbox.DeadSkip}, {Topic: "mail", Sink: mailer}},
	})
	err = relay.Run(ctx) // returns when ctx ends and what was under way is settled
	return err
}

func consume(ctx context.Context, store *sqlite.Store, msg outbox.Message, span time.Duration) (inbox.Outcome, error) {
	in, err := inbox.New(inbox.Config{Store: store.Inbox(), Consumer: "billing", RetrySpan: span})
	go in.Run(ctx) // forgets old ids

	outcome, err := in.Process(ctx, msg.ID, func(ctx context.Context) error {
		tx, _ := sqlite.Tx(ctx)                                            // or postgres.Tx, postgres.SQLTx
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET due = due + 1") // your changes, and what follows from them: sqlite.Enqueue
		return err
	})
	return outcome, err
}

func job(ctx context.Context, args []byte) error {
	m, err := jobs.Job{Queue: "mail", Kind: "welcome", Args: args, Authority: jobs.Authority{Actor: "alice", Permissions: []string{"mail.send"}}}.Message()
	err = sqlite.Enqueue(ctx, m) // or postgres.Enqueue, or EnqueueTx in a transaction of your own
	return err
}

func work(ctx context.Context, store *sqlite.Store, h jobs.Handler) error {
	render, record := h.Prepare, h.Handle
	var stillMay func(context.Context, jobs.Job) error
	worker, err := jobs.New(jobs.Config{
		Store: store.Outbox(), Inbox: store.Inbox(),
		Queues:    []jobs.QueueConfig{{Name: "mail", Workers: 8, Timeout: 5 * time.Minute}},
		Handlers:  map[string]jobs.Handler{"welcome": {Prepare: render, Handle: record}},
		Authorize: stillMay, // asked before each attempt
	})
	err = worker.Run(ctx) // returns when ctx ends and what was under way is settled
	return err
}

// Order is what is ordered.
type Order struct {
	Items, Payment, Mail string
}

type calls struct {
	reserve, charge, notify func(ctx context.Context, in string) (string, error)
}

func operation(guard *semel.Guard, r *http.Request, store *sqlite.Store, o Order, c calls) error {
	reserve, charge, notify := c.reserve, c.charge, c.notify
	var respond func(Receipts) (semel.Result, error)
	ctx := r.Context()
	journal, err := steps.New(steps.Config{Store: store.Steps()}) // sqlite or postgres

	order := func(ctx context.Context, o Order) (Receipts, error) {
		reserved, err := steps.Local(ctx, "reserve", o.Items, reserve) // in a transaction: sqlite.Tx(ctx), postgres.Tx(ctx)
		if err != nil {
			return Receipts{}, err
		}
		paid, err := steps.Remote(ctx, "charge", steps.Policy{OnCrash: semel.CrashRetry}, o.Payment, charge)
		if err != nil {
			return Receipts{}, err
		}
		_, err = steps.Remote(ctx, "notify", steps.Policy{}, o.Mail, notify)
		return Receipts{reserved, paid}, err
	}

	receipts, err := steps.Run(r.Context(), journal, o, order) // in a handler behind semelhttp, or in semel.Call
	_ = receipts
	completer, err := steps.NewCompleter(steps.CompleterConfig{
		Journal: journal, Guard: guard,
		Operations: map[string]steps.Handler{"orders.create": steps.Handle(journal, order, respond)}, // respond: semelhttp.EncodeResult
	})
	go completer.Run(ctx)
	return err
}

// Receipts are what an order ends with.
type Receipts struct{ Reserved, Paid string }
