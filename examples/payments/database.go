package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// database is one of the two that the service can keep its rows in, and semel's
// store in it.
type database struct {
	store interface {
		semel.Store
		Run(ctx context.Context) error
	}
	// tx returns the transaction of the request, or the database where the
	// request has none.
	tx    func(ctx context.Context) querier
	close func() error
}

func open(ctx context.Context, url string) (*database, error) {
	if strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://") {
		return openPostgres(ctx, url)
	}
	return openSQLite(ctx, url)
}

const tables = `
CREATE TABLE IF NOT EXISTS orders (id ID PRIMARY KEY, item TEXT NOT NULL, price INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('CREATED', 'PAID')));
CREATE TABLE IF NOT EXISTS payments (id ID PRIMARY KEY, order_id BIGINT NOT NULL REFERENCES orders, amount BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS receipts (id ID PRIMARY KEY, order_id BIGINT NOT NULL REFERENCES orders);
`

// openPostgres: the transaction of a request is a pgx.Tx.
func openPostgres(ctx context.Context, url string) (*database, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	store, err := postgres.New(ctx, pool, postgres.Config{Mode: postgres.ModeTransactional})
	if err == nil {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// Of several processes that start at once, one makes the tables.
			_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(7291)")
			if err == nil {
				_, err = tx.Exec(ctx, strings.ReplaceAll(tables, " ID ", " BIGINT GENERATED ALWAYS AS IDENTITY "))
			}
			return err
		})
		if err != nil {
			err = errors.Join(err, store.Close(ctx))
		}
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &database{
		store: store,
		tx: func(ctx context.Context) querier {
			if tx, ok := postgres.Tx(ctx); ok {
				return pgxQuerier{tx}
			}
			return pgxQuerier{pool}
		},
		close: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			err := store.Close(ctx)
			pool.Close()
			return err
		},
	}, nil
}

type pgxQuerier struct {
	q interface {
		QueryRow(ctx context.Context, query string, args ...any) pgx.Row
	}
}

func (q pgxQuerier) row(ctx context.Context, query string, args []any, into ...any) error {
	err := q.q.QueryRow(ctx, query, args...).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return errNoRows
	}
	return err
}

// openSQLite: the transaction of a request does what a sql.Tx does.
func openSQLite(ctx context.Context, path string) (*database, error) {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: path, Mode: sqlite.ModeTransactional})
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, errors.Join(err, store.Close(ctx))
	}
	file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(abs), "/"), RawQuery: "_pragma=busy_timeout(5000)"}
	pool, err := sql.Open("sqlite", file.String()) // for reads outside of requests with a key
	if err == nil {
		if _, err = pool.ExecContext(ctx, strings.ReplaceAll(tables, " ID ", " INTEGER ")); err != nil {
			err = errors.Join(err, pool.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, store.Close(ctx))
	}
	return &database{
		store: store,
		tx: func(ctx context.Context) querier {
			if tx, ok := sqlite.Tx(ctx); ok {
				return sqlQuerier{tx}
			}
			return sqlQuerier{pool}
		},
		close: func() error { return errors.Join(pool.Close(), store.Close(context.Background())) },
	}, nil
}

type sqlQuerier struct{ q sqlite.Querier }

func (q sqlQuerier) row(ctx context.Context, query string, args []any, into ...any) error {
	// SQLite numbers its parameters with a question mark.
	err := q.q.QueryRowContext(ctx, strings.ReplaceAll(query, "$", "?"), args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoRows
	}
	return err
}
