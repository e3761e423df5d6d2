// Command payments is a small service for orders and their payments, in which
// each request takes effect once: its record is committed in one transaction
// with the rows that its handler writes. It keeps them in PostgreSQL where it is
// given a URL, and in an SQLite file otherwise.
//
// What protects it is in protect.go: a guard and a middleware, on a store that
// database.go opens and main.go sweeps. The handlers (handler.go) and the queries
// (shop.go) are what they would be without, except that the queries take the
// transaction from the context.
//
//	payments --db payments.db
//	payments --db postgres://localhost/payments
//
// Try, twice each:
//
//	curl -i localhost:9001/orders -H 'X-User: alice' -H 'Idempotency-Key: "a1"' -d '{"item":"book","price":500}'
//	curl -i localhost:9001/payments -H 'X-User: alice' -H 'Idempotency-Key: "a2"' -d '{"order_id":1,"amount":500}'
//	curl -i localhost:9001/orders/1/confirm -H 'X-User: alice' -H 'Idempotency-Key: "a3"' -X POST
//	curl localhost:9001/counters
//
// The second answer of each is the first, with Idempotency-Replayed: true, and
// the counters stand still. Kill the process in the middle of a request
// (--delay leaves time for it): after the restart, sending the request again
// executes it, because the death was a rollback.
//
// X-User stands for an authentication, which a real service has in front.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `payments: orders and payments, each request once, in its own transaction.

Usage:
  payments [--listen ADDR] [--db PATH|URL] [--delay DURATION]

Examples:
  payments                                      listen on 127.0.0.1:9001, keep everything in payments.db
  payments --db postgres://localhost/payments   keep it in PostgreSQL
  payments --delay 3s                           take three seconds over each change

Try, twice:
  curl -i localhost:9001/orders -H 'X-User: alice' -H 'Idempotency-Key: "a1"' -d '{"item":"book","price":500}'
  curl localhost:9001/counters

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage); flags.PrintDefaults() }
	listen := flags.String("listen", "127.0.0.1:9001", "address to listen on")
	db := flags.String("db", "payments.db", "SQLite file, or URL of a PostgreSQL database")
	delay := flags.Duration("delay", 0, "time each change takes, within its transaction, to leave room for races and crashes")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "payments: unexpected argument %q; see payments --help\n", flags.Arg(0))
		return 2
	}
	if err := serve(ctx, *listen, *db, *delay, log.New(stderr, "payments: ", log.LstdFlags)); err != nil {
		fmt.Fprintf(stderr, "payments: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, listen, url string, delay time.Duration, logger *log.Logger) (err error) {
	db, err := open(ctx, url)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.close()) }()
	protected, guard, err := protect(handler(&shop{db: db, delay: delay}), db.store)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("%w (is another payments running? choose another --listen)", err)
	}
	server := &http.Server{Handler: protected, ReadHeaderTimeout: 10 * time.Second, ErrorLog: logger}
	logger.Printf("listening on http://%s", l.Addr())

	swept := make(chan error, 1)
	sweeping, stopSweep := context.WithCancel(context.WithoutCancel(ctx))
	go func() { swept <- db.store.Run(sweeping) }() // removes expired records
	defer func() {
		stopSweep()
		err = errors.Join(err, <-swept)
	}()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// New requests are refused, what runs is finished, then the rest goes.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(ctx), guard.Drain(ctx))
}
