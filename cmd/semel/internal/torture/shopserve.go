package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/httpsink"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// ShopHooks replace parts of a shop. A test makes a mistake there, to see that torture
// finds it. A part whose hook is nil is correct.
type ShopHooks struct {
	// Calls returns the transport of calls of the remote.
	Calls func(http.RoundTripper) http.RoundTripper
	// Events verifies the webhooks of the peer.
	Events func(webhook.Scheme) webhook.Scheme
	// Relayed is the store that the relay delivers from.
	Relayed func(*postgres.Outbox) outbox.Store
	// Authorize decides whether a job may still run.
	Authorize func(context.Context, jobs.Job) error
	// Key is the key under which an entry places an order.
	Key func(entry, order string) string
	// Lane is the key that orders notices.
	Lane func(lane string) string
	// Within does a part of the shop's work: "reserve", "enqueue", "job" or
	// "event". Default: in the transaction that ctx carries.
	Within func(ctx context.Context, in ShopParts, part string, do func(context.Context, pgx.Tx) error) error
	// Notice handles a message of the outbox. Default: once, in the transaction
	// of the inbox.
	Notice func(ctx context.Context, in ShopParts, id string, do func(context.Context, pgx.Tx) error) (inbox.Outcome, error)
}

// ShopParts are the parts of a shop that hooks may use.
type ShopParts struct {
	Pool  *pgxpool.Pool
	Inbox *inbox.Inbox
	// Linger waits, so that faults can strike.
	Linger func(context.Context)
}

// withDefaults fills in the hooks of a correct shop.
func (h ShopHooks) withDefaults(s *shop) ShopHooks {
	if h.Calls == nil {
		h.Calls = func(calls http.RoundTripper) http.RoundTripper { return calls }
	}
	if h.Events == nil {
		h.Events = func(scheme webhook.Scheme) webhook.Scheme { return scheme }
	}
	if h.Relayed == nil {
		h.Relayed = func(o *postgres.Outbox) outbox.Store { return o }
	}
	if h.Authorize == nil {
		h.Authorize = s.authorize
	}
	if h.Key == nil {
		h.Key = func(_, order string) string { return order }
	}
	if h.Lane == nil {
		h.Lane = func(lane string) string { return lane }
	}
	if h.Within == nil {
		h.Within = func(ctx context.Context, _ ShopParts, _ string, do func(context.Context, pgx.Tx) error) error {
			return do(ctx, s.tx(ctx))
		}
	}
	if h.Notice == nil {
		h.Notice = func(ctx context.Context, in ShopParts, id string, do func(context.Context, pgx.Tx) error) (inbox.Outcome, error) {
			return in.Inbox.Process(ctx, id, func(ctx context.Context) error { return do(ctx, s.tx(ctx)) })
		}
	}
	return h
}

// ShopConfig says how a shop behaves.
type ShopConfig struct {
	// Database is the URL of a PostgreSQL database, with the tables of shops in it.
	Database string
	// Remote is the URL of the service that charges. Peer is the URL of the shop, this
	// one or another, to which the outbox delivers.
	Remote, Peer string
	// Listen is the address to listen on.
	Listen string
	Lease  time.Duration
	// Clock is how far the clock that the shop passes to packages is off.
	Clock time.Duration
	Hooks ShopHooks
	Manner
	// Listening is called with the address when the shop listens.
	Listening func(addr string)
}

// makeShop creates the tables of shops and of the store.
func makeShop(ctx context.Context, pool *pgxpool.Pool) (*postgres.Store, error) {
	store, err := postgres.New(ctx, pool, postgres.Config{})
	if err != nil {
		return nil, err
	}
	if _, err = pool.Exec(ctx, shopTables); err == nil {
		_, err = pool.Exec(ctx, "INSERT INTO shop_stock SELECT n, $1 FROM generate_series(0, $2 - 1) n", shopStock, shopItems)
	}
	if err != nil {
		return store, fmt.Errorf("the tables of shops cannot be made; use an empty database: %w", err)
	}
	return store, nil
}

// ServeShop runs a shop until ctx ends, with what completes its orders: a completer, a
// relay and a worker for jobs.
func ServeShop(ctx context.Context, c ShopConfig) (err error) {
	poolConfig, err := pgxpool.ParseConfig(c.Database)
	if err != nil {
		return errors.New("the database's URL cannot be parsed") // err would show it
	}
	poolConfig.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return err
	}
	defer pool.Close()
	closing := context.WithoutCancel(ctx)
	open := func(m postgres.Mode) (store *postgres.Store) {
		if err == nil {
			store, err = postgres.New(ctx, pool, postgres.Config{Mode: m, NoMigrate: true, IdleTimeout: 2 * c.Lease, PeerTimeout: 4 * c.Lease})
		}
		return store
	}
	leased, inTx := open(postgres.ModeLeased), open(postgres.ModeTransactional)
	for _, s := range []*postgres.Store{leased, inTx} {
		if s != nil {
			defer func() { err = errors.Join(err, s.Close(closing)) }()
		}
	}
	if err != nil {
		return err
	}
	s := &shop{config: c, planner: newPlanner(c.Manner), pool: pool, outbox: leased.Outbox()}
	s.hooks = c.Hooks.withDefaults(s)
	// A later attempt at an execution that died continues it; so does the completer.
	policy := semel.Policy{Lease: c.Lease, Deadline: 20 * c.Lease, OnCrash: semel.CrashRetry}
	observer := &semel.Observer{LeaseLost: func(context.Context, semel.LeaseLost) { say(lostLease) }}
	outer, err := semel.New(semel.Config{Store: leased, Policy: policy, Observer: observer})
	if err != nil {
		return err
	}
	if s.orders, err = outer.With(policy); err != nil {
		return err
	}
	atomic, err := semel.New(semel.Config{Store: inTx, Policy: policy, Observer: observer})
	if err != nil {
		return err
	}
	background, err := s.background(leased)
	if err != nil {
		return err
	}
	handler, err := s.handler(outer, atomic)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	c.Listening(listener.Addr().String())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	working, stop := context.WithCancel(closing)
	var work sync.WaitGroup
	for _, run := range background {
		work.Go(func() { run(working) })
	}
	defer func() {
		stop()
		work.Wait()
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(closing, 30*time.Second)
	defer cancel()
	err = server.Shutdown(ending)
	stop()
	work.Wait()
	return errors.Join(err, outer.Drain(ending), atomic.Drain(ending))
}

func (s *shop) parts() ShopParts { return ShopParts{Pool: s.pool, Inbox: s.inbox, Linger: s.linger} }

// handler serves orders by request, by webhook and by job, and receives what the outbox
// delivers.
func (s *shop) handler(outer, atomic *semel.Guard) (http.Handler, error) {
	one := func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "customer"}, nil }
	request, err := semelhttp.New(semelhttp.Config{Guard: outer, RequireKey: true, Scope: one})
	if err != nil {
		return nil, err
	}
	later, err := semelhttp.New(semelhttp.Config{Guard: atomic, RequireKey: true, Scope: one})
	if err != nil {
		return nil, err
	}
	partner, err := s.scheme(partnerSecret)
	if err != nil {
		return nil, err
	}
	hook, err := webhook.New(webhook.Config{Guard: outer, Scheme: partner, Name: "shop.hooks", Sender: "partner"})
	if err != nil {
		return nil, err
	}
	own, err := s.scheme(shopSecret)
	if err != nil {
		return nil, err
	}
	event, err := webhook.New(webhook.Config{Guard: atomic, Scheme: s.hooks.Events(own), Name: "shop.events", Sender: "shop"})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", request(s.placing("http", http.StatusCreated)))
	mux.Handle("POST /hooks", hook(s.placing("webhook", http.StatusOK)))
	mux.Handle("POST /later", later(http.HandlerFunc(s.later)))
	mux.HandleFunc("POST /notices", s.notice)
	mux.Handle("POST /events", deliveries(event(http.HandlerFunc(s.event))))
	return mux, nil
}

// background returns what runs beside requests.
func (s *shop) background(store *postgres.Store) (all []func(context.Context), err error) {
	c := s.config
	quick := 50 * time.Millisecond
	call, err := semelclient.New(semelclient.Config{
		Base: &http.Transport{MaxIdleConnsPerHost: 16}, MaxTries: 2, MaxElapsed: 6 * c.Lease, TryTimeout: 4 * c.Lease, MinBackoff: quick, MaxBackoff: quick,
	})
	if err != nil {
		return nil, err
	}
	s.calls = s.hooks.Calls(call)
	if s.journal, err = steps.New(steps.Config{Store: store.Steps(), LookAfter: c.Lease, StoreTimeout: c.Lease}); err != nil {
		return nil, err
	}
	completer, err := steps.NewCompleter(steps.CompleterConfig{
		Journal: s.journal, Guard: s.orders, Operations: map[string]steps.Handler{operationPlace: steps.Handle(s.journal, s.order, nil)},
		Every: c.Lease / 2, MaxAttempts: 1_000_000, MinBackoff: quick, MaxBackoff: c.Lease,
	})
	if err != nil {
		return nil, err
	}
	if s.inbox, err = inbox.New(inbox.Config{Store: store.Inbox(), Consumer: "notices", RetrySpan: 24 * time.Hour, Timeout: 10 * c.Lease}); err != nil {
		return nil, err
	}

	notices, err := httpsink.New(httpsink.Config{URL: c.Peer + "/notices", AllowPrivate: true})
	if err != nil {
		return nil, err
	}
	var endpoints send.Memory
	for lane := range shopLanes {
		endpoints.Put(send.Endpoint{ID: laneName(lane), URL: c.Peer + "/events", Secrets: []string{shopSecret}})
	}
	events, err := send.New(send.Config{Endpoints: &endpoints, AllowHTTP: true, AllowPrivate: true, DisableAfter: -1, Now: s.now})
	if err != nil {
		return nil, err
	}
	route := func(topic string, sink outbox.Sink) outbox.Route {
		return outbox.Route{Topic: topic, Sink: sink, MaxAttempts: 100_000, Backoff: quick, MaxBackoff: c.Lease, Timeout: 3 * c.Lease, MaxInFlight: 16}
	}
	// Settled messages stay, to be checked.
	settings := outbox.Config{
		Lease: c.Lease, StoreTimeout: 2 * c.Lease, Drain: 2 * c.Lease, Retention: outbox.Retention{Delivered: 24 * time.Hour, MaxDelivered: -1},
		Observer: &outbox.Observer{LeaseLost: func(context.Context, outbox.Attempted) { say(lostMessage) }},
	}
	relaying := settings
	relaying.Store, relaying.Routes = s.hooks.Relayed(s.outbox), []outbox.Route{route(topicNotices, notices), route(topicEvents, events)}
	relay, err := outbox.New(relaying)
	if err != nil {
		return nil, err
	}
	worker, err := jobs.New(jobs.Config{
		Store: s.outbox, Inbox: store.Inbox(), Authorize: s.hooks.Authorize, Relay: settings,
		Queues:   []jobs.QueueConfig{{Name: queueOrders, Workers: 6, Timeout: 10 * c.Lease, MaxAttempts: 100_000, Backoff: quick, MaxBackoff: c.Lease}},
		Handlers: map[string]jobs.Handler{"place": {Prepare: s.prepare, Handle: s.handle}},
	})
	if err != nil {
		return nil, err
	}
	return []func(context.Context){
		completer.Run, s.inbox.Run,
		func(ctx context.Context) { _ = relay.Run(ctx) },  // others claim what is left
		func(ctx context.Context) { _ = worker.Run(ctx) }, // likewise
	}, nil
}

// laneName returns the name of a customer, and of the customer's endpoint.
func laneName(n int) string { return fmt.Sprintf("lane-%d", n) }
