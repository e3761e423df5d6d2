package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"

	_ "modernc.org/sqlite" // the driver
)

type order struct {
	ID       int64  `json:"id"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
}

type payment struct {
	ID      int64 `json:"id"`
	OrderID int64 `json:"order_id"`
	Amount  int64 `json:"amount"` // in cents
}

type counters struct {
	Orders   int64 `json:"orders"`
	Payments int64 `json:"payments"`
}

// shop keeps orders and payments in SQLite.
type shop struct{ db *sql.DB }

const schema = `
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, quantity INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL REFERENCES orders, amount INTEGER NOT NULL) STRICT;
`

func openShop(ctx context.Context, path string) (*shop, error) {
	dsn := ":memory:"
	if path != "" {
		dsn = "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)"
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	db.SetMaxOpenConns(1) // a database in memory is its connection's own
	if _, err := db.ExecContext(ctx, schema); err != nil {
		db.Close()
		return nil, fmt.Errorf("open database %q: %w", path, err)
	}
	return &shop{db: db}, nil
}

func (s *shop) close() { s.db.Close() }

func (s *shop) addOrder(ctx context.Context, o *order) error {
	return s.db.QueryRowContext(ctx, `INSERT INTO orders (item, quantity) VALUES (?, ?) RETURNING id`, o.Item, o.Quantity).Scan(&o.ID)
}

// addPayment returns sql.ErrNoRows if there is no such order.
func (s *shop) addPayment(ctx context.Context, p *payment) error {
	return s.db.QueryRowContext(ctx, `INSERT INTO payments (order_id, amount) SELECT id, ? FROM orders WHERE id = ? RETURNING id`,
		p.Amount, p.OrderID).Scan(&p.ID)
}

func (s *shop) order(ctx context.Context, id int64) (o order, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT id, item, quantity FROM orders WHERE id = ?`, id).Scan(&o.ID, &o.Item, &o.Quantity)
	return o, err
}

func (s *shop) orders(ctx context.Context) ([]order, error) {
	return list(ctx, s.db, `SELECT id, item, quantity FROM orders ORDER BY id DESC LIMIT 100`,
		func(o *order) []any { return []any{&o.ID, &o.Item, &o.Quantity} })
}

func (s *shop) payments(ctx context.Context) ([]payment, error) {
	return list(ctx, s.db, `SELECT id, order_id, amount FROM payments ORDER BY id DESC LIMIT 100`,
		func(p *payment) []any { return []any{&p.ID, &p.OrderID, &p.Amount} })
}

func (s *shop) count(ctx context.Context) (c counters, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM payments)`).Scan(&c.Orders, &c.Payments)
	return c, err
}

func list[T any](ctx context.Context, db *sql.DB, query string, fields func(*T) []any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []T{}
	for rows.Next() {
		var v T
		if err := rows.Scan(fields(&v)...); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
