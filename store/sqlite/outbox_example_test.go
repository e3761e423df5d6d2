package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

// A handler enqueues a message in the transaction that it works in, and a relay
// in the same process delivers it.
func Example_outbox() {
	dir, err := os.MkdirTemp("", "semel")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	store, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "shop.db"), Mode: sqlite.ModeTransactional})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}

	arrived := make(chan struct{})
	relay, err := outbox.New(outbox.Config{
		Store: store.Outbox(),
		Routes: []outbox.Route{{Topic: "orders", Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) error {
			fmt.Printf("%s for %s: %s\n", d.Type, d.Key, d.Payload)
			close(arrived)
			return nil
		})}},
	})
	if err != nil {
		log.Fatal(err)
	}
	relayed := make(chan error, 1)
	go func() { relayed <- relay.Run(ctx) }()

	submit := semel.Submit{Identity: semel.Identity{
		Scope: semel.Scope{Actor: "user-17", Operation: "orders.pay"}, Key: "0198c2a4-8f7e-7d7e-9b57-0f6f3b1f2a10",
	}}
	for range 2 { // the request, and its retry
		_, answer, err := semel.Call(ctx, guard, submit, func(ctx context.Context) (string, error) {
			// ... changes of the order, through sqlite.Tx(ctx) ...
			return "order-1", sqlite.Enqueue(ctx, outbox.Message{
				Topic: "orders", Key: "user-17", Type: "order.paid", Payload: []byte(`{"order": 1}`),
			})
		})
		if err != nil {
			log.Fatal(err)
		}
		if answer == semel.AnswerExecuted {
			<-arrived
		}
		fmt.Println(answer)
	}

	// On the way out: no new work, then the relay, then the file.
	if err := guard.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	stop()
	if err := <-relayed; err != nil {
		log.Fatal(err)
	}
	if err := store.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order.paid for user-17: {"order": 1}
	// executed
	// replayed
}
