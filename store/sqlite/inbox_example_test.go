package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

// A consumer's effect, the message that follows from it and the id of the message
// that caused both are committed together. What the queue delivers again is dropped,
// unless it failed before.
func Example_inbox() {
	dir, err := os.MkdirTemp("", "semel")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	store, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "billing.db")})
	if err != nil {
		log.Fatal(err)
	}

	// The broker delivers five times, a minute and more apart.
	span, err := inbox.Schedule{MaxDeliver: 5, AckWait: 30 * time.Second, Backoff: []time.Duration{time.Minute, 10 * time.Minute}}.Span()
	if err != nil {
		log.Fatal(err)
	}
	in, err := inbox.New(inbox.Config{Store: store.Inbox(), Consumer: "billing", RetrySpan: span + 24*time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	runCtx, stop := context.WithCancel(ctx)
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		in.Run(runCtx)
	}()

	attempts := 0
	for _, id := range []string{"order-1", "order-1", "order-2", "order-1"} { // as the queue delivers
		outcome, err := in.Process(ctx, id, func(ctx context.Context) error {
			// ... changes through sqlite.Tx(ctx) ...
			if attempts++; attempts == 1 {
				return errors.New("out of paper")
			}
			return sqlite.Enqueue(ctx, outbox.Message{Topic: "invoices", Payload: []byte(id)})
		})
		if err != nil {
			fmt.Println(id, "not acknowledged:", err)
			continue
		}
		fmt.Println(id, outcome)
	}

	stop()
	<-swept
	if err := store.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order-1 not acknowledged: out of paper
	// order-1 done
	// order-2 done
	// order-1 duplicate
}

// A batch shares a transaction. A message that fails takes nobody with it but what
// comes later in its lane.
func Example_inboxBatch() {
	dir, err := os.MkdirTemp("", "semel")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: filepath.Join(dir, "billing.db")})
	if err != nil {
		log.Fatal(err)
	}
	in, err := inbox.New(inbox.Config{Store: store.Inbox(), Consumer: "billing", RetrySpan: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	batch := []inbox.Message{
		{ID: "17.1", Lane: "customer-17"}, {ID: "42.1", Lane: "customer-42"}, {ID: "17.2", Lane: "customer-17"}, {ID: "17.1"},
	}
	for i, r := range in.ProcessBatch(context.Background(), batch, func(ctx context.Context, i int) error {
		if batch[i].ID == "17.1" {
			return errors.New("no such customer")
		}
		return nil
	}) {
		fmt.Println(batch[i].ID, r.Outcome, r.Err)
	}
	if err := store.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 17.1 failed no such customer
	// 42.1 done <nil>
	// 17.2 failed inbox: an earlier message of the lane has failed
	// 17.1 failed no such customer
}
