package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
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

// ShopHooks replace what a shop does in some places. A test has it make a mistake
// there, to see that torture finds it. What is nil is done as it should be.
type ShopHooks struct {
	// Calls are what the remote is called through.
	Calls func(http.RoundTripper) http.RoundTripper
	// Events verifies the webhooks of the peer.
	Events func(webhook.Scheme) webhook.Scheme
	// Relayed is what the relay delivers from.
	Relayed func(*postgres.Outbox) outbox.Store
	// Authorize says whether a job may still run.
	Authorize func(context.Context, jobs.Job) error
	// Key is the key under which an entry places an order.
	Key func(entry, order string) string
	// Lane is the key under which notices are in order.
	Lane func(lane string) string
	// Within does a part of the shop's work: "reserve", "enqueue", "job" or
	// "event". Default: in the transaction that ctx carries.
	Within func(ctx context.Context, in ShopParts, part string, do func(context.Context, pgx.Tx) error) error
	// Notice handles a message of the outbox. Default: once, in the transaction
	// of the inbox.
	Notice func(ctx context.Context, in ShopParts, id string, do func(context.Context, pgx.Tx) error) (inbox.Outcome, error)
}

// ShopParts are what hooks can work with.
type ShopParts struct {
	Pool  *pgxpool.Pool
	Inbox *inbox.Inbox
	// Linger takes its time, so that faults can strike.
	Linger func(context.Context)
}

// withDefaults fills in what a shop that makes no mistake does.
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

// ShopConfig makes a shop.
type ShopConfig struct {
	// Database is the URL of a PostgreSQL database, with the tables of shops in it.
	Database string
	// Remote is the URL of the service that charges; Peer that of the shop, this one
	// or another, to which the outbox delivers.
	Remote, Peer string
	// Listen is the address to listen on.
	Listen string
	Lease  time.Duration
	// Clock is how far the shop's clock is off, wherever one is asked for.
	Clock time.Duration
	Hooks ShopHooks
	Manner
	// Listening is told the address when the shop serves.
	Listening func(addr string)
}

// No table has a constraint that would keep anything from happening twice.
const shopTables = `
CREATE TABLE shop_stock (item INT PRIMARY KEY, remaining INT NOT NULL);
CREATE TABLE shop_reservations (id TEXT, order_no TEXT, item INT, delta INT);
CREATE TABLE shop_orders (order_no TEXT, receipt TEXT, lane TEXT, notice TEXT, event TEXT, by_entry TEXT);
CREATE TABLE shop_notices (seq BIGSERIAL, message TEXT, order_no TEXT, lane TEXT);
CREATE TABLE shop_events (event TEXT, order_no TEXT);
CREATE TABLE shop_jobs (job TEXT, order_no TEXT, not_before TIMESTAMPTZ);
CREATE TABLE shop_done (job TEXT, order_no TEXT, receipt TEXT);
CREATE TABLE shop_actors (actor TEXT PRIMARY KEY, sure_at TIMESTAMPTZ)`

const (
	shopItems = 16
	shopStock = 1_000_000
	shopLanes = 40
)

// makeShop makes the tables of shops, and the store's.
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

// Secrets of those who send webhooks, and of somebody who would like to.
const (
	partnerSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	shopSecret    = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	forgerSecret  = "whsec_plJ3nmyCDGBKInavdOK15jsl"
)

// wanted is what is asked for, by whatever entry.
type wanted struct {
	Order string `json:"order"`
	Item  int    `json:"item"`
	Lane  string `json:"lane"`
	// Actor is whose job it is, and Later that the job is to wait, so that there is
	// time to revoke that actor's permission.
	Actor string `json:"actor,omitempty"`
	Later bool   `json:"later,omitempty"`
}

// receipt is what an order comes to.
type receipt struct {
	Order       string `json:"order"`
	Reservation string `json:"reservation"`
	Charge      string `json:"charge,omitempty"`
	Declined    bool   `json:"declined,omitempty"`
}

// shop is a service whose orders can be placed by a request, a webhook and a job.
type shop struct {
	config  ShopConfig
	planner *planner
	pool    *pgxpool.Pool
	outbox  *postgres.Outbox
	orders  *semel.Guard // over the natural keys of orders
	journal *steps.Journal
	inbox   *inbox.Inbox
	calls   http.RoundTripper
	hooks   ShopHooks
}

// ServeShop runs a shop until ctx ends, with what it needs to come to an end: a
// completer, a relay and a worker for jobs.
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
	// Whoever meets an execution that died goes on with it; so does the completer.
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

// within does a part of the work in the transaction that ctx carries.
func (s *shop) within(ctx context.Context, part string, do func(context.Context, pgx.Tx) error) error {
	return s.hooks.Within(ctx, s.parts(), part, do)
}

func (s *shop) now() time.Time { return time.Now().Add(s.config.Clock) }

func (s *shop) scheme(secret string) (webhook.Scheme, error) {
	return webhook.NewStandard(webhook.StandardConfig{Secrets: []string{secret}, Now: s.now})
}

// handler has an entry for orders by request, by webhook and by job, and the receivers
// of what the outbox delivers.
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

// background returns what works beside requests.
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
	// What was settled stays, to be looked at.
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
		func(ctx context.Context) { _ = relay.Run(ctx) },  // what is left is claimed by others
		func(ctx context.Context) { _ = worker.Run(ctx) }, // likewise
	}, nil
}

const (
	operationPlace = "orders.place"
	topicNotices   = "notices"
	topicEvents    = "events"
	queueOrders    = "orders"
)

// laneName is the name of a customer, and of the endpoint which that has.
func laneName(n int) string { return fmt.Sprintf("lane-%d", n) }

// place has an order placed, under its natural key, whoever asks for it.
func (s *shop) place(ctx context.Context, entry string, in wanted) (receipt, error) {
	in.Actor, in.Later = "", false // no part of what is asked for
	id := semel.Identity{Scope: semel.Scope{Tenant: "shop", Operation: operationPlace}, Key: s.hooks.Key(entry, in.Order)}
	got, _, err := semel.Call(context.WithValue(ctx, entryKey{}, entry), s.orders, semel.Submit{
		Identity: id, Fingerprint: semel.FingerprintOf([]byte(in.Order)), Wait: 2 * s.config.Lease,
	}, func(ctx context.Context) (receipt, error) { return steps.Run(ctx, s.journal, in, s.order) })
	return got, err
}

// entryKey is that of the entry which an order is placed by. The completer has none.
type entryKey struct{}

// order is the operation. Its time passes within its steps, so that is where it is
// interrupted.
func (s *shop) order(ctx context.Context, in wanted) (r receipt, err error) {
	r.Order = in.Order
	if r.Reservation, err = steps.Local(ctx, "reserve", in, s.reserve); err != nil {
		return r, err
	}
	r.Charge, err = steps.Remote(ctx, "charge", steps.Policy{OnCrash: semel.CrashRetry}, in.Order, s.charge)
	if failed, ok := errors.AsType[*semel.RecordedError](err); ok && failed.Message == errDeclined.Error() {
		r.Declined = true
		_, err = steps.Local(ctx, "release", in, func(ctx context.Context, in wanted) (struct{}, error) {
			if err := s.move(ctx, s.tx(ctx), r.Reservation, in, +1); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, s.write(ctx, in, r, "", "")
		})
		return r, err
	}
	if err != nil {
		return r, err
	}
	_, err = steps.Local(ctx, "confirm", in, func(ctx context.Context, in wanted) (struct{}, error) { return struct{}{}, s.confirm(ctx, in, r) })
	return r, err
}

// tx is the transaction that ctx carries.
func (s *shop) tx(ctx context.Context) pgx.Tx {
	tx, ok := postgres.Tx(ctx)
	if !ok {
		panic("torture: no transaction")
	}
	return tx
}

// linger takes its time in a transaction, less than the server lets it idle.
func (s *shop) linger(ctx context.Context) { pause(ctx, min(s.planner.plan("").after, s.config.Lease)) }

// move takes an item from the stock, or gives it back.
func (s *shop) move(ctx context.Context, tx pgx.Tx, id string, in wanted, delta int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO shop_reservations VALUES ($1, $2, $3, $4)", id, in.Order, in.Item, delta); err != nil {
		return err
	}
	s.linger(ctx)
	// Last, since others wait for the row.
	_, err := tx.Exec(ctx, "UPDATE shop_stock SET remaining = remaining + $1 WHERE item = $2", delta, in.Item)
	return err
}

func (s *shop) reserve(ctx context.Context, in wanted) (id string, err error) {
	id = semel.NewRecordID()
	return id, s.within(ctx, "reserve", func(ctx context.Context, tx pgx.Tx) error { return s.move(ctx, tx, id, in, -1) })
}

var errDeclined = errors.New("the charge is declined")

func (s *shop) charge(ctx context.Context, order string) (id string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.config.Remote+"/charges", strings.NewReader(order))
	if err != nil {
		return "", err
	}
	r.Header.Set(headerOrder, order)
	answer, err := s.calls.RoundTrip(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return "", err
	}
	switch {
	case answer.StatusCode == http.StatusOK:
		return string(body), nil
	case answer.StatusCode == http.StatusPaymentRequired:
		return "", semel.Final(errDeclined)
	case answer.Header.Get(headerRefused) != "":
		return "", semel.NoEffect(errors.New("the remote turned the call away"))
	}
	return "", fmt.Errorf("the remote answered %d", answer.StatusCode)
}

// confirm writes the order down, with the messages that tell of it.
func (s *shop) confirm(ctx context.Context, in wanted, r receipt) error {
	notice := outbox.Message{
		ID: semel.NewKey(), Topic: topicNotices, Key: s.hooks.Lane(in.Lane), Payload: fmt.Appendf(nil, `{"order":%q,"lane":%q}`, in.Order, in.Lane),
		Headers: map[string]string{"Content-Type": "application/json", headerOrder: in.Order},
	}
	messages, err := send.Event{Type: "order.placed", Payload: fmt.Appendf(nil, `{"order":%q}`, in.Order)}.Messages(topicEvents, send.Endpoint{ID: in.Lane})
	if err != nil {
		return err
	}
	messages[0].Headers[headerOrder] = in.Order
	if err := s.write(ctx, in, r, notice.ID, messages[0].ID); err != nil {
		return err
	}
	messages = append(messages, notice)
	err = s.within(ctx, "enqueue", func(ctx context.Context, tx pgx.Tx) error { return s.outbox.EnqueueTx(ctx, tx, messages...) })
	s.linger(ctx)
	return err
}

func (s *shop) write(ctx context.Context, in wanted, r receipt, notice, event string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	entry, ok := ctx.Value(entryKey{}).(string)
	if !ok {
		entry = "completer"
	}
	_, err = s.tx(ctx).Exec(ctx, "INSERT INTO shop_orders VALUES ($1, $2, $3, $4, $5, $6)", in.Order, string(text), in.Lane, notice, event, entry)
	return err
}

// placing serves requests and webhooks that ask for an order.
func (s *shop) placing(entry string, status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in wanted
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, "no order", http.StatusBadRequest)
			return
		}
		got, err := s.place(r.Context(), entry, in)
		if err != nil {
			// The order goes on, or not: whoever asks again learns it.
			if entry == "http" {
				semelhttp.DeclareIndeterminate(r.Context(), "the order is open")
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", typeReply)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(got)
	})
}

// later enqueues a job in the transaction of the request's record.
func (s *shop) later(w http.ResponseWriter, r *http.Request) {
	id, err := s.enqueueJob(r.Context(), r.Body)
	if err != nil { // rolled back
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", typeReply)
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, `{"job":%q}`, id)
}

func (s *shop) enqueueJob(ctx context.Context, body io.Reader) (id string, err error) {
	args, err := io.ReadAll(body)
	if err != nil {
		return "", err
	}
	var in wanted
	if err := json.Unmarshal(args, &in); err != nil {
		return "", err
	}
	job := jobs.Job{ID: semel.NewKey(), Queue: queueOrders, Kind: "place", Args: args, Authority: jobs.Authority{Actor: in.Actor, Permissions: []string{"order"}}}
	var notBefore *time.Time // by the database's clock
	if in.Later {
		notBefore = new(time.Time)
		if err := s.tx(ctx).QueryRow(ctx, "SELECT clock_timestamp() + $1", 2*s.config.Lease).Scan(notBefore); err != nil {
			return "", err
		}
		job.NotBefore = *notBefore
	}
	m, err := job.Message()
	if err != nil {
		return "", err
	}
	if _, err := s.tx(ctx).Exec(ctx, "INSERT INTO shop_jobs VALUES ($1, $2, $3)", m.ID, in.Order, notBefore); err != nil {
		return "", err
	}
	if err := postgres.Enqueue(ctx, m); err != nil {
		return "", err
	}
	s.linger(ctx)
	return m.ID, nil
}

// authorize asks whether the actor of a job has been revoked.
func (s *shop) authorize(ctx context.Context, j jobs.Job) error {
	if j.Authority.Actor == "" || !slices.Contains(j.Authority.Permissions, "order") {
		return fmt.Errorf("%w: it has none", jobs.ErrRevoked)
	}
	var revoked bool
	if err := s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM shop_actors WHERE actor = $1)", j.Authority.Actor).Scan(&revoked); err != nil {
		return err
	}
	if revoked {
		return jobs.ErrRevoked
	}
	return nil
}

func (s *shop) prepare(ctx context.Context, j jobs.Job) (any, error) {
	var in wanted
	if err := json.Unmarshal(j.Args, &in); err != nil {
		return nil, jobs.Cancel(err)
	}
	return s.place(ctx, "job", in)
}

// handle writes down what a job came to, in the transaction that settles it.
func (s *shop) handle(ctx context.Context, j jobs.Job) error {
	got := j.Prepared.(receipt)
	text, err := json.Marshal(got)
	if err != nil {
		return err
	}
	err = s.within(ctx, "job", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO shop_done VALUES ($1, $2, $3)", j.ID, got.Order, string(text))
		return err
	})
	s.linger(ctx)
	return err
}

// news is what the outbox's messages say.
type news struct {
	Order string `json:"order"`
	Lane  string `json:"lane"`
}

// What shops say on standard error, to be counted.
const (
	droppedRepetition = "dropped a repetition"
	lostLease         = "lost the lease of an execution"
	lostMessage       = "lost the claim on a message"
)

func say(what string) { _, _ = fmt.Fprintln(os.Stderr, what) }

// notice receives a message of the outbox, behind an inbox.
func (s *shop) notice(w http.ResponseWriter, r *http.Request) {
	var m news
	id := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil || id == "" {
		http.Error(w, "no notice", http.StatusBadRequest)
		return
	}
	// The work goes on when the sender has gone.
	ctx := context.WithoutCancel(r.Context())
	outcome, err := s.hooks.Notice(ctx, s.parts(), id, func(ctx context.Context, tx pgx.Tx) error { return s.noted(ctx, tx, id, m) })
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if outcome == inbox.OutcomeDuplicate {
		say(droppedRepetition)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *shop) noted(ctx context.Context, tx pgx.Tx, id string, m news) error {
	_, err := tx.Exec(ctx, "INSERT INTO shop_notices (message, order_no, lane) VALUES ($1, $2, $3)", id, m.Order, m.Lane)
	s.linger(ctx)
	return err
}

// event receives a webhook of the outbox, in the transaction of its record.
func (s *shop) event(w http.ResponseWriter, r *http.Request) {
	var m news
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, "no event", http.StatusBadRequest)
		return
	}
	e, _ := webhook.EventOf(r.Context())
	id, _, _ := strings.Cut(e.ID, ".") // without what a hook has added
	if err := s.within(r.Context(), "event", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO shop_events VALUES ($1, $2)", id, m.Order)
		s.linger(ctx)
		return err
	}); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// HeaderDelivery numbers deliveries: many senders do.
const HeaderDelivery = "Delivery-Id"

func deliveries(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(HeaderDelivery, semel.NewKey())
		next.ServeHTTP(w, r)
	})
}
