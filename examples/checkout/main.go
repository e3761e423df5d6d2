// Command checkout is a shop whose orders have effects in three other places: a
// payment provider charges a card, a mail server sends a confirmation, and the
// warehouse hears of it by webhook. Each happens once, although requests, webhooks
// and answers come twice or get lost.
//
//	checkout                      open http://127.0.0.1:9002/ and press Order
//	checkout --lose 2             lose every second answer instead of every third
//
// It starts the three others as well, in world.go, and loses some of their answers
// on purpose. The page shows what was asked of them, and what came of it.
//
// The way of an order:
//
//  1. POST /checkout inserts the order and, in the same transaction, the message
//     that asks for the charge (shop.go). A repeated request is answered from its
//     record.
//  2. A relay delivers the message (relay.go). Its id is the Idempotency-Key, so
//     that the provider charges once however often it is asked.
//  3. The provider sends the webhook charge.succeeded, until it hears 2xx. The
//     transaction of its first delivery marks the order as paid, and enqueues the
//     mail and the webhook to the warehouse.
//  4. The relay delivers those. The warehouse knows a repeated webhook by its id.
//     A mail server knows no repetition: a mail whose answer was lost is unknown,
//     and the page asks what to do.
package main

import (
	"cmp"
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

const usage = `checkout: a shop with a payment provider, a mail server and a warehouse, each effect once.

Usage:
  checkout [--listen ADDR] [--db PATH] [--lose N]

Examples:
  checkout              open http://127.0.0.1:9002/ and press Order
  checkout --lose 0     a world in which no answer gets lost

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("checkout", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage); flags.PrintDefaults() }
	var c config
	flags.StringVar(&c.listen, "listen", "127.0.0.1:9002", "address to listen on")
	flags.StringVar(&c.path, "db", "checkout.db", "SQLite file of the shop")
	flags.IntVar(&c.lose, "lose", 3, "lose every N-th answer of each of the others; 0 for none")
	// For tests, in which the others outlive the shop.
	flags.StringVar(&c.provider, "provider", "", "URL of a provider that runs elsewhere, instead of one of its own")
	flags.StringVar(&c.mail, "mail", "", "address of a mail server, likewise")
	flags.StringVar(&c.warehouse, "warehouse", "", "URL of a warehouse, likewise")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "checkout: unexpected argument %q; see checkout --help\n", flags.Arg(0))
		return 2
	case c.lose < 0 || c.lose == 1:
		fmt.Fprintln(stderr, "checkout: --lose must be 0 or more than 1: who loses every answer never gets anywhere")
		return 2
	}
	if err := serve(ctx, c, log.New(stderr, "checkout: ", log.LstdFlags)); err != nil {
		fmt.Fprintf(stderr, "checkout: %v\n", err)
		return 1
	}
	return 0
}

type config struct {
	listen, path              string
	lose                      int
	provider, mail, warehouse string
}

func serve(ctx context.Context, c config, logger *log.Logger) (err error) {
	l, err := net.Listen("tcp", c.listen)
	if err != nil {
		return fmt.Errorf("%w (is another checkout running? choose another --listen)", err)
	}
	defer l.Close()
	var w *world
	if c.provider == "" || c.mail == "" || c.warehouse == "" {
		if w, err = newWorld("http://"+l.Addr().String()+"/webhooks/payments", c.lose); err != nil {
			return err
		}
		defer w.close()
		c.provider, c.mail, c.warehouse = cmp.Or(c.provider, w.provider), cmp.Or(c.mail, w.mail), cmp.Or(c.warehouse, w.warehouse)
	}
	s, err := openShop(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	server := &http.Server{Handler: (&page{shop: s, world: w}).handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: logger}
	logger.Printf("listening on http://%s", l.Addr())
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	swept, relayed := make(chan error, 1), make(chan error, 1)
	go func() { swept <- s.store.Run(background) }()   // removes expired records
	go func() { relayed <- s.relay.Run(background) }() // delivers messages
	defer func() {
		stop()
		err = errors.Join(err, <-relayed, <-swept)
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
	return errors.Join(server.Shutdown(ctx), s.guard.Drain(ctx))
}
