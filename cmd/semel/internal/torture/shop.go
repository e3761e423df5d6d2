package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// No table has a constraint that would prevent a second effect.
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

// Secrets of the senders of webhooks, and of a forger.
const (
	partnerSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	shopSecret    = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	forgerSecret  = "whsec_plJ3nmyCDGBKInavdOK15jsl"
)

// wanted is the content of an order, the same by every entry.
type wanted struct {
	Order string `json:"order"`
	Item  int    `json:"item"`
	Lane  string `json:"lane"`
	// Actor is the actor of a job. Later delays the job, so that there is time to revoke
	// the actor's permission.
	Actor string `json:"actor,omitempty"`
	Later bool   `json:"later,omitempty"`
}

// receipt is the result of an order.
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

// within does a part of the work in the transaction that ctx carries.
func (s *shop) within(ctx context.Context, part string, do func(context.Context, pgx.Tx) error) error {
	return s.hooks.Within(ctx, s.parts(), part, do)
}

func (s *shop) now() time.Time { return time.Now().Add(s.config.Clock) }

func (s *shop) scheme(secret string) (webhook.Scheme, error) {
	return webhook.NewStandard(webhook.StandardConfig{Secrets: []string{secret}, Now: s.now})
}

const (
	operationPlace = "orders.place"
	topicNotices   = "notices"
	topicEvents    = "events"
	queueOrders    = "orders"
)

// place places an order under its natural key, the same for every entry.
func (s *shop) place(ctx context.Context, entry string, in wanted) (receipt, error) {
	in.Actor, in.Later = "", false // not part of the order
	id := semel.Identity{Scope: semel.Scope{Tenant: "shop", Operation: operationPlace}, Key: s.hooks.Key(entry, in.Order)}
	got, _, err := semel.Call(context.WithValue(ctx, entryKey{}, entry), s.orders, semel.Submit{
		Identity: id, Fingerprint: semel.FingerprintOf([]byte(in.Order)), Wait: 2 * s.config.Lease,
	}, func(ctx context.Context) (receipt, error) { return steps.Run(ctx, s.journal, in, s.order) })
	return got, err
}

// entryKey is the context key of an order's entry. The completer has none.
type entryKey struct{}

// order is the operation. It spends its time in its steps, so faults interrupt those.
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

// linger waits in a transaction, for less than the idle timeout of the server.
func (s *shop) linger(ctx context.Context) { pause(ctx, min(s.planner.plan("").after, s.config.Lease)) }

// move takes an item from the stock, or gives it back.
func (s *shop) move(ctx context.Context, tx pgx.Tx, id string, in wanted, delta int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO shop_reservations VALUES ($1, $2, $3, $4)", id, in.Order, in.Item, delta); err != nil {
		return err
	}
	s.linger(ctx)
	// Last, because others wait for the row.
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
	res, err := s.calls.RoundTrip(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return "", err
	}
	switch {
	case res.StatusCode == http.StatusOK:
		return string(body), nil
	case res.StatusCode == http.StatusPaymentRequired:
		return "", semel.Final(errDeclined)
	case res.Header.Get(headerRefused) != "":
		return "", semel.NoEffect(errors.New("the remote turned the call away"))
	}
	return "", fmt.Errorf("the remote responded with %d", res.StatusCode)
}

// confirm records the order, with the messages that report it.
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

// placing serves requests and webhooks that place an order.
func (s *shop) placing(entry string, status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in wanted
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, "no order", http.StatusBadRequest)
			return
		}
		got, err := s.place(r.Context(), entry, in)
		if err != nil {
			// The order may go on. A retry learns its result.
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

// authorize returns jobs.ErrRevoked if the actor of a job has no permission any more.
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

// handle records the result of a job, in the transaction that settles it.
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

// news is the payload of the outbox's messages.
type news struct {
	Order string `json:"order"`
	Lane  string `json:"lane"`
}

// What shops print on standard error, to be counted.
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
	// The work goes on even if the sender has gone.
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
	id, _, _ := strings.Cut(e.ID, ".") // without what a hook added
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

// HeaderDelivery identifies a delivery, as many senders do.
const HeaderDelivery = "Delivery-Id"

func deliveries(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(HeaderDelivery, semel.NewKey())
		next.ServeHTTP(w, r)
	})
}
