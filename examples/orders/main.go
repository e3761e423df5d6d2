// Command orders is a small order and payment service without any protection
// against duplicates: post an order twice and there are two. It is what the
// README puts behind the gateway.
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

const usage = `orders: an order and payment service, with no protection against duplicates.

Usage:
  orders [--listen ADDR] [--db PATH] [--delay DURATION]

Examples:
  orders                                   listen on 127.0.0.1:9000, forget everything at the end
  orders --db orders.db --delay 3s         keep a file; take three seconds over each order and payment

Try:
  curl -i localhost:9000/orders -d '{"item":"book","quantity":1}'
  curl localhost:9000/counters

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage); flags.PrintDefaults() }
	listen := flags.String("listen", "127.0.0.1:9000", "address to listen on")
	path := flags.String("db", "", "SQLite file to keep orders in; empty keeps them in memory")
	delay := flags.Duration("delay", 0, "time each order and payment takes, to leave room for races and crashes")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "orders: unexpected argument %q; see orders --help\n", flags.Arg(0))
		return 2
	}

	if err := serve(ctx, *listen, *path, *delay, log.New(stderr, "orders: ", log.LstdFlags)); err != nil {
		fmt.Fprintf(stderr, "orders: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, listen, path string, delay time.Duration, logger *log.Logger) error {
	shop, err := openShop(ctx, path)
	if err != nil {
		return err
	}
	defer shop.close()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("%w (is another orders running? choose another --listen)", err)
	}
	server := &http.Server{
		Handler:           logged(logger, handler(shop, delay)),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          logger,
	}
	logger.Printf("listening on http://%s", l.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}

// logged writes a line for each request, without its body.
func logged(logger *log.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		s := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(s, r)
		logger.Printf("%s %q %d %v", r.Method, r.URL.Path, s.status, time.Since(start).Round(time.Microsecond))
	})
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}
