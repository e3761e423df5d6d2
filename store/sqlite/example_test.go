package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

func Example() {
	dir, err := os.MkdirTemp("", "semel")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx, stop := context.WithCancel(context.Background())
	store, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "payments.db")})
	if err != nil {
		log.Fatal(err)
	}
	swept := make(chan error, 1)
	go func() { swept <- store.Run(ctx) }()

	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		log.Fatal(err)
	}
	submit := semel.Submit{Identity: semel.Identity{
		Scope: semel.Scope{Actor: "user-17", Operation: "payments.create"},
		Key:   "0198c2a4-8f7e-7d7e-9b57-0f6f3b1f2a10",
	}}
	for range 2 {
		id, answer, err := semel.Call(ctx, guard, submit, func(context.Context) (string, error) {
			return "payment-1", nil // the effect
		})
		fmt.Println(id, answer, err)
	}

	// On the way out: no new work, then the sweep, then the file.
	if err := guard.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	stop()
	if err := <-swept; err != nil {
		log.Fatal(err)
	}
	if err := store.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// payment-1 executed <nil>
	// payment-1 replayed <nil>
}

func ExampleParseURL() {
	for _, url := range []string{"sqlite:orders.db", "sqlite:///var/lib/semel/orders.db"} {
		path, err := sqlite.ParseURL(url)
		fmt.Println(filepath.ToSlash(path), err)
	}
	// Output:
	// orders.db <nil>
	// /var/lib/semel/orders.db <nil>
}
