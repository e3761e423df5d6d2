package main

import (
	"context"
	"errors"
	"time"
)

type order struct {
	ID    int64  `json:"id"`
	Item  string `json:"item"`
	Price int64  `json:"price"` // in cents
	State string `json:"state"` // CREATED, then PAID
}

type payment struct {
	ID      int64 `json:"id"`
	OrderID int64 `json:"order_id"`
	Amount  int64 `json:"amount"` // in cents
}

type counters struct {
	Orders   int64 `json:"orders"`
	Payments int64 `json:"payments"`
	Receipts int64 `json:"receipts"`
}

var (
	errNoOrder = errors.New("no such order")
	errUnpaid  = errors.New("the order is not paid")
	errNoRows  = errors.New("no rows")
)

// shop is what the service does. Its queries run in the transaction of the
// request, where it has one.
type shop struct {
	db    *database
	delay time.Duration
}

// querier is a transaction, or a pool of connections.
type querier interface {
	// row runs a query of one row. It returns errNoRows if there is none.
	row(ctx context.Context, query string, args []any, into ...any) error
}

func (s *shop) addOrder(ctx context.Context, o *order) error {
	o.State = "CREATED"
	err := s.db.tx(ctx).row(ctx, `INSERT INTO orders (item, price, state) VALUES ($1, $2, 'CREATED') RETURNING id`,
		[]any{o.Item, o.Price}, &o.ID)
	return s.wait(ctx, err)
}

func (s *shop) addPayment(ctx context.Context, p *payment) error {
	err := s.db.tx(ctx).row(ctx, `INSERT INTO payments (order_id, amount) SELECT id, $1 FROM orders WHERE id = $2 RETURNING id`,
		[]any{p.Amount, p.OrderID}, &p.ID)
	if errors.Is(err, errNoRows) {
		return errNoOrder
	}
	return s.wait(ctx, err)
}

// confirm takes an order that is paid for from CREATED to PAID, and writes its
// receipt. The condition is part of the update: of two requests, with different
// keys even, one makes the transition, and the other finds it made and gets the
// same answer.
func (s *shop) confirm(ctx context.Context, id int64) (order, error) {
	tx := s.db.tx(ctx)
	err := tx.row(ctx, `UPDATE orders SET state = 'PAID' WHERE id = $1 AND state = 'CREATED'
		AND price <= (SELECT COALESCE(SUM(amount), 0) FROM payments WHERE order_id = $1) RETURNING id`, []any{id}, new(int64))
	if err == nil {
		err = tx.row(ctx, `INSERT INTO receipts (order_id) VALUES ($1) RETURNING id`, []any{id}, new(int64))
		if err := s.wait(ctx, err); err != nil {
			return order{}, err
		}
	} else if !errors.Is(err, errNoRows) {
		return order{}, err
	}
	o, err := s.order(ctx, id)
	if err == nil && o.State != "PAID" {
		err = errUnpaid
	}
	return o, err
}

func (s *shop) order(ctx context.Context, id int64) (o order, err error) {
	err = s.db.tx(ctx).row(ctx, `SELECT id, item, price, state FROM orders WHERE id = $1`, []any{id}, &o.ID, &o.Item, &o.Price, &o.State)
	if errors.Is(err, errNoRows) {
		err = errNoOrder
	}
	return o, err
}

func (s *shop) count(ctx context.Context) (c counters, err error) {
	err = s.db.tx(ctx).row(ctx, `SELECT (SELECT COUNT(*) FROM orders), (SELECT COUNT(*) FROM payments), (SELECT COUNT(*) FROM receipts)`,
		nil, &c.Orders, &c.Payments, &c.Receipts)
	return c, err
}

// wait takes the time that --delay says.
func (s *shop) wait(ctx context.Context, err error) error {
	if err != nil || s.delay == 0 {
		return err
	}
	t := time.NewTimer(s.delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
