package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
)

// service is a gateway as it is run, whatever has described it.
type service struct {
	log           *logger
	at            listening
	listenSetting string // how messages name its address
	store         string
	admin         adminSettings
	spools        *semelhttp.Spools
	requireStore  bool
	maxResult     int64
	drain         func() time.Duration
	guard         semel.Config // without store and observer
	// handler makes what answers.
	handler func(guard *semel.Guard, store *lateStore, observer *gateway.Observer) (http.Handler, error)
	// announce says what was started.
	announce func(addr string, notOpen error)
	// explain says what the configuration is now, without secrets.
	explain func() gatewayfile.Explanation
	// reload, if not nil, is called for each signal to read the configuration again.
	reload func()
}

// counter counts the requests that are being answered.
type counter struct {
	next http.Handler
	n    atomic.Int64
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.n.Add(1)
	defer c.n.Add(-1)
	c.next.ServeHTTP(w, r)
}

// serve runs a gateway until ctx ends, and drains it.
func (p *program) serve(ctx context.Context, cmd *cobra.Command, s service) (err error) {
	log := s.log
	var ops *operations
	store := newLateStore(log, func(ctx context.Context) (store, error) {
		return openStore(ctx, cmd, s.store, s.maxResult, ops.swept)
	})
	if ops, err = p.operate(ctx, s.admin, log, store); err != nil {
		return err
	}
	defer ops.close()
	defer func() {
		if e := store.Close(context.Background()); e != nil && err == nil {
			err = &fault{code: exitFailed, err: fmt.Errorf("the store could not be closed properly: %w", e), do: "Records are durable; entries of the audit trail may be missing."}
		}
	}()
	running, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	ended, hopeless := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		if err := store.Run(running); err != nil {
			hopeless <- err
		}
	}()
	defer func() {
		stopStore()
		<-ended
	}()
	if err := awaitStore(ctx, store, s.requireStore); err != nil {
		return err
	}
	s.guard.Store, s.guard.Observer = store, ops.guardObserver()
	guard, err := semel.New(s.guard)
	if err != nil {
		return usagef("the settings do not fit together: %w", err)
	}
	inner, err := s.handler(guard, store, ops.gatewayObserver())
	if err != nil {
		return err
	}
	listener, err := s.at.open(ctx, func(err error) { log.Error("TLS goes on with what it has", "err", err) })
	if err != nil {
		return &fault{
			code: exitFailed, err: fmt.Errorf("cannot listen on %s: %w", s.at.Address, err),
			do: fmt.Sprintf("Free the address or choose another with %s. Nothing was started; a retry is safe.", s.listenSetting),
		}
	}
	requests := &counter{next: inner}
	server := &http.Server{
		Handler:           ops.handler(requests),
		Protocols:         s.at.protocols(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	defer s.onSignal()()
	s.announce(listener.Addr().String(), store.failure())
	if err := ops.start(guard, s.spools, s.explain); err != nil {
		return err
	}
	defer ops.endRuns()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return &fault{code: exitFailed, err: fmt.Errorf("the server ended: %w", err), do: "Start it again; what is recorded is durable."}
	case err := <-hopeless: // and nothing protected was ever served
		return errors.Join(err, s.stop(server, guard, requests))
	case <-ctx.Done():
	}
	select {
	case <-ops.drain():
	case <-served: // nobody comes any more
	}
	return s.stop(server, guard, requests)
}

// onSignal calls reload for each signal, one after the other, until stop is called.
func (s *service) onSignal() (stop func()) {
	if s.reload == nil || len(reloadSignals) == 0 {
		return func() {}
	}
	signals, end, ended := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, reloadSignals...)
	go func() {
		defer close(ended)
		for {
			select {
			case <-signals:
				s.reload()
			case <-end:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(end)
		<-ended
	}
}

// awaitStore waits for the first attempt to open the store: not long, unless the
// store is required. The error is why the gateway cannot start.
func awaitStore(ctx context.Context, store *lateStore, required bool) error {
	patience := time.NewTimer(2 * time.Second)
	defer patience.Stop()
	if required {
		patience.Stop()
	}
	select {
	case <-store.first:
	case <-patience.C:
	case <-ctx.Done():
	}
	err := store.failure()
	if required && errors.Is(err, errNotTried) {
		return &fault{code: exitFailed, err: errors.New("interrupted before the store was open"), do: "Nothing was started; a retry is safe."}
	}
	if err != nil && (required || troubleOf(err).permanent) {
		return err
	}
	return nil
}

// stop lets what is running come to its end.
func (s *service) stop(server *http.Server, guard *semel.Guard, running *counter) error {
	drain := s.drain()
	s.log.Info("draining: no new connections", "requests", running.n.Load(), "longest", drain)
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	_ = server.Shutdown(ctx) // ctx ends it, and the counter tells the rest
	left := guard.Drain(ctx) // executions whose clients have gone
	requests := running.n.Load()
	if left == nil && requests == 0 {
		s.log.Info("drained")
		return nil
	}
	_ = server.Close()
	if left == nil {
		left = errors.New("no protected operation is among them")
	}
	return &fault{
		code: exitFailed, err: fmt.Errorf("the drain took longer than %v: %d requests are cut off: %w", drain, requests, left),
		do: "Protected operations among them become unknown when their lease lapses: semel keys list --state unknown, and --lapsed before that.",
	}
}
