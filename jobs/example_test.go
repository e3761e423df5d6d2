package jobs_test

import (
	"context"
	"fmt"
	"log"

	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
)

// A job is enqueued by somebody who may send mail, and one by somebody who may not
// any more by the time it runs. With sqlite's or postgres' stores, Enqueue is part of
// the caller's transaction, and Handle works in the one that sqlite.Tx or postgres.Tx
// returns.
func Example() {
	store := memory.NewOutbox()
	settled := make(chan struct{}, 2)
	worker, err := jobs.New(jobs.Config{
		Store: store, Inbox: memory.NewInbox(),
		Queues: []jobs.QueueConfig{{Name: "mail", Workers: 1}},
		Handlers: map[string]jobs.Handler{
			"welcome": {Handle: func(_ context.Context, j jobs.Job) error {
				fmt.Printf("welcome, %s\n", j.Args)
				return nil
			}},
		},
		Authorize: func(_ context.Context, j jobs.Job) error {
			if j.Authority.Actor != "alice" {
				return fmt.Errorf("%w: %s has left", jobs.ErrRevoked, j.Authority.Actor)
			}
			return nil
		},
		Relay: outbox.Config{Observer: &outbox.Observer{
			Delivered: func(context.Context, outbox.Attempted) { settled <- struct{}{} },
			Dead:      func(context.Context, outbox.Attempted) { settled <- struct{}{} },
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()

	for _, actor := range []string{"alice", "mallory"} {
		m, err := jobs.Job{
			ID: "welcome-by-" + actor, Queue: "mail", Kind: "welcome", Args: []byte("Bob"),
			Authority: jobs.Authority{Actor: actor, Permissions: []string{"mail.send"}},
		}.Message()
		if err != nil {
			log.Fatal(err)
		}
		if err := store.Enqueue(ctx, m); err != nil {
			log.Fatal(err)
		}
		<-settled
		e, err := store.Find(ctx, m.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s is %s; %q\n", m.ID, e.State, e.Cause)
	}
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// welcome, Bob
	// welcome-by-alice is delivered; ""
	// welcome-by-mallory is dead; "jobs: the authority of the job is revoked: mallory has left"
}
