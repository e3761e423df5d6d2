package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/webhook"
	"github.com/semelhq/semel/webhook/send"
)

// shop is the service: its tables are in the file in which semel keeps its own.
type shop struct {
	store *sqlite.Store
	db    *sql.DB // for reads outside of requests
	guard *semel.Guard
	relay *outbox.Relay

	checkout http.Handler // POST /checkout
	payments http.Handler // webhooks of the provider
}

const tables = `
CREATE TABLE IF NOT EXISTS orders (
  id     INTEGER PRIMARY KEY,
  item   TEXT    NOT NULL,
  amount INTEGER NOT NULL, -- in cents
  state  TEXT    NOT NULL DEFAULT 'placed' CHECK (state IN ('placed', 'paid'))
) STRICT`

type order struct {
	ID     int64  `json:"id"`
	Item   string `json:"item"`
	Amount int64  `json:"amount"`
	State  string `json:"state"`
}

// openShop opens the store and makes what is protected by it.
func openShop(ctx context.Context, c config) (s *shop, err error) {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: c.path, Mode: sqlite.ModeTransactional})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	s = &shop{store: store}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.db, err = openTables(ctx, c.path); err != nil {
		return nil, err
	}
	if s.guard, err = semel.New(semel.Config{Store: s.store}); err != nil {
		return nil, err
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: s.guard, RequireKey: true,
		// One customer. A real shop returns who is signed in.
		Scope: func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "customer"}, nil },
		NoEffectStatus: func(status int, h http.Header) bool { // the transaction was rolled back
			return status >= 500 || semelhttp.DefaultNoEffectStatus(status, h)
		},
	})
	if err != nil {
		return nil, err
	}
	scheme, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{providerSecret}})
	if err != nil {
		return nil, err
	}
	once, err := webhook.New(webhook.Config{Guard: s.guard, Scheme: scheme, Name: "payments", Sender: "provider"})
	if err != nil {
		return nil, err
	}
	s.checkout, s.payments = protect(http.HandlerFunc(placeOrder)), once(http.HandlerFunc(orderPaid))
	s.relay, err = newRelay(s.store.Outbox(), c)
	return s, err
}

// openTables makes the shop's tables, in a file that semel has made.
func openTables(ctx context.Context, path string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(abs), "/"), RawQuery: "_pragma=busy_timeout(5000)"}
	db, err := sql.Open("sqlite", file.String())
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func (s *shop) close() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, s.store.Close(context.Background()))
}

// latest returns the latest orders.
func (s *shop) latest(ctx context.Context, n int) (orders []order, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, item, amount, state FROM orders ORDER BY id DESC LIMIT ?", n)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var o order
		if err := rows.Scan(&o.ID, &o.Item, &o.Amount, &o.State); err != nil {
			return nil, err
		}
		orders = append(orders, o)
	}
	return orders, rows.Err()
}

// inDoubt returns the mails of which nobody can know whether they were sent.
func (s *shop) inDoubt(ctx context.Context) ([]outbox.Entry, error) {
	return s.store.Outbox().List(ctx, outbox.Filter{Topic: "mail", State: outbox.StateUnknown})
}

// decide settles a mail in doubt: it was sent, or is to be sent again.
func (s *shop) decide(ctx context.Context, id string, sent bool) error {
	var err error
	if sent {
		_, err = s.store.Outbox().Purge(ctx, outbox.Filter{ID: id, State: outbox.StateUnknown})
	} else {
		_, err = s.store.Outbox().Redrive(ctx, outbox.Filter{ID: id, State: outbox.StateUnknown})
	}
	return err
}

// placeOrder runs in the transaction of its record: order, message and recorded
// answer are committed together.
func placeOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Item == "" || o.Amount <= 0 {
		http.Error(w, `want {"item": "book", "amount": 500}`, http.StatusBadRequest)
		return
	}
	tx, _ := sqlite.Tx(r.Context())
	err := tx.QueryRowContext(r.Context(), "INSERT INTO orders (item, amount) VALUES (?, ?) RETURNING id, state", o.Item, o.Amount).Scan(&o.ID, &o.State)
	if err == nil {
		err = enqueue(r.Context(), o, outbox.Message{Topic: "charges", Type: "charge"})
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/orders/"+strconv.FormatInt(o.ID, 10))
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(o)
}

// orderPaid handles the provider's webhook, once for each event. The state is set,
// not toggled or counted, and what follows from it is enqueued with it.
func orderPaid(w http.ResponseWriter, r *http.Request) {
	var charge struct {
		Type  string `json:"type"`
		Order int64  `json:"order"`
	}
	if err := json.NewDecoder(r.Body).Decode(&charge); err != nil || charge.Type != "charge.succeeded" {
		w.WriteHeader(http.StatusNoContent) // nothing for us, and no reason to come again
		return
	}
	tx, _ := sqlite.Tx(r.Context())
	o := order{ID: charge.Order}
	err := tx.QueryRowContext(r.Context(), "UPDATE orders SET state = 'paid' WHERE id = ? RETURNING item, amount, state", o.ID).Scan(&o.Item, &o.Amount, &o.State)
	if err == nil {
		err = announce(r.Context(), o)
	}
	if err != nil {
		fail(w, err) // rolled back; the provider comes again
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// announce enqueues what follows from a payment: a mail, and a webhook.
func announce(ctx context.Context, o order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	events, err := send.Event{Type: "order.paid", Payload: payload}.Messages("warehouse", send.Endpoint{ID: "warehouse"})
	if err != nil {
		return err
	}
	return enqueue(ctx, o, append(events, outbox.Message{
		Topic: "mail", Type: "confirmation", Payload: fmt.Appendf(nil, "Thank you. %s is paid and on its way.\n", o.Item),
		Headers: map[string]string{
			"To": "customer@example.com", "Subject": fmt.Sprintf("Your order %d", o.ID), "Content-Type": "text/plain; charset=utf-8",
		},
	})...)
}

// enqueue adds messages about an order in the transaction of the handler. All of an
// order's messages to one place are a lane: they arrive in their order. What has no
// payload gets the order.
func enqueue(ctx context.Context, o order, messages ...outbox.Message) error {
	for i := range messages {
		m := &messages[i]
		m.Key = strconv.FormatInt(o.ID, 10)
		if m.Payload == nil {
			var err error
			if m.Payload, err = json.Marshal(o); err != nil {
				return err
			}
		}
	}
	return sqlite.Enqueue(ctx, messages...)
}

func fail(w http.ResponseWriter, err error) {
	http.Error(w, "try again with the same key: "+err.Error(), http.StatusInternalServerError)
}
