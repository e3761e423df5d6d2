package lab

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// Tables of the payments app, in the words that SQLite and PostgreSQL share. They are
// where semel keeps its own, so that one transaction can have both.
const tables = `
CREATE TABLE IF NOT EXISTS effects ( -- one row for each time something was done
  id        SERIAL8 PRIMARY KEY,
  operation TEXT NOT NULL,
  tenant    TEXT NOT NULL,
  actor     TEXT NOT NULL,
  reference TEXT NOT NULL, -- the caller's own name for what is wanted
  detail    TEXT NOT NULL, -- JSON
  at        BIGINT NOT NULL, -- Unix milliseconds
  trace     TEXT NOT NULL, -- of the request that asked for it
  done      INTEGER NOT NULL, -- 0 for a draft: where the switch "transaction" is off, the first half
  only_one  TEXT UNIQUE, -- tenant, actor, operation and reference where the switch "unique" is on, else NULL
  made_by   TEXT UNIQUE, -- the key of semel's execution or job that made it, else NULL
  job       TEXT -- that made it, else NULL
);
CREATE INDEX IF NOT EXISTS effects_by_reference ON effects (operation, tenant, reference);
CREATE TABLE IF NOT EXISTS accounts (
  tenant  TEXT NOT NULL,
  owner   TEXT NOT NULL,
  balance BIGINT NOT NULL, -- in cents
  PRIMARY KEY (tenant, owner)
);
CREATE TABLE IF NOT EXISTS documents ( -- what is approved or confirmed
  tenant    TEXT NOT NULL,
  operation TEXT NOT NULL,
  reference TEXT NOT NULL,
  state     TEXT NOT NULL,
  PRIMARY KEY (tenant, operation, reference)
);
CREATE TABLE IF NOT EXISTS used_keys ( -- of homemade.go
  name        TEXT PRIMARY KEY,
  fingerprint TEXT NOT NULL,
  status      INTEGER, -- NULL while the first request is being worked on
  answer      BYTEA,
  until       BIGINT NOT NULL -- Unix milliseconds by the clock of who wrote it; 0 for ever
);`

// inPostgres is the database schema that everything is in, there.
const inPostgres = "semel_lab"

// openDatabase opens a connection to the app's tables, and makes them.
func openDatabase(ctx context.Context, c Config) (db *sql.DB, err error) {
	create := strings.ReplaceAll(tables, "SERIAL8 PRIMARY KEY", "INTEGER PRIMARY KEY")
	if c.Postgres != "" {
		config, err := pgx.ParseConfig(c.Postgres)
		if err != nil {
			return nil, errors.New("the URL of the database is not understood")
		}
		config.RuntimeParams["search_path"] = inPostgres
		db = stdlib.OpenDB(*config)
		db.SetMaxOpenConns(16)
		create = "CREATE SCHEMA IF NOT EXISTS " + inPostgres + ";" + strings.ReplaceAll(tables, "SERIAL8 PRIMARY KEY", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
	} else {
		abs, err := filepath.Abs(c.Path)
		if err != nil {
			return nil, err
		}
		file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(abs), "/"), RawQuery: "_pragma=busy_timeout(10000)&_txlock=immediate"}
		if db, err = sql.Open("sqlite", file.String()); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	if _, err = db.ExecContext(ctx, create); err != nil {
		return nil, fmt.Errorf("the lab's tables cannot be made: %w", err)
	}
	if _, err = db.ExecContext(ctx, "SELECT made_by, job, trace, done FROM effects WHERE 1 = 0"); err == nil {
		_, err = db.ExecContext(ctx, "SELECT until FROM used_keys WHERE 1 = 0")
	}
	if err != nil {
		return nil, fmt.Errorf("the tables are another version's of the lab: %w", err)
	}
	return db, nil
}

// querier is a transaction: the app's own, or one of semel's.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// storage is semel's stores and the app's tables, in one database.
type storage struct {
	records semel.Store
	outbox  interface {
		jobs.Store
		outbox.Admin
		Wake()
	}
	inbox inbox.Store
	ledger

	// enqueue adds messages in a transaction that the app has begun, and enqueueHere
	// in that of the job that ctx is of, which tx returns.
	enqueue     func(ctx context.Context, tx *sql.Tx, m ...outbox.Message) error
	enqueueHere func(ctx context.Context, m ...outbox.Message) error
	tx          func(ctx context.Context) (querier, bool)

	sweep func(ctx context.Context) error
	close func() error
}

func openStorage(ctx context.Context, c Config) (s *storage, err error) {
	if c.Postgres != "" {
		config, err := pgxpool.ParseConfig(c.Postgres)
		if err != nil {
			return nil, errors.New("the URL of the database is not understood")
		}
		config.ConnConfig.RuntimeParams["search_path"] = inPostgres // for jobs, in transactions of semel's
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		store, err := postgres.New(ctx, pool, postgres.Config{Schema: inPostgres})
		if err != nil {
			pool.Close()
			return nil, err
		}
		out := store.Outbox()
		s = &storage{
			records: store, outbox: out, inbox: store.Inbox(), sweep: store.Run, enqueue: out.EnqueueSQL, enqueueHere: postgres.Enqueue,
			tx: func(ctx context.Context) (querier, bool) { return postgres.SQLTx(ctx) },
			close: func() error {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				err := store.Close(ctx)
				pool.Close()
				return err
			},
		}
	} else {
		store, err := sqlite.Open(ctx, sqlite.Config{Path: c.Path, BusyTimeout: 10 * time.Second})
		if err != nil {
			return nil, err
		}
		s = &storage{
			records: store, outbox: store.Outbox(), inbox: store.Inbox(), sweep: store.Run, enqueue: sqlite.EnqueueTx, enqueueHere: sqlite.Enqueue,
			tx:    func(ctx context.Context) (querier, bool) { return sqlite.Tx(ctx) },
			close: func() error { return store.Close(context.Background()) },
		}
	}
	if s.ledger.db, err = openDatabase(ctx, c); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *storage) Close() error { return errors.Join(s.db.Close(), s.close()) }

// ledger reads what was done.
type ledger struct{ db *sql.DB }

// Effects returns what was done, the latest first. An empty tenant or reference
// stands for all of them.
func (l ledger) Effects(ctx context.Context, operation *Operation, tenant, reference string, most int) ([]Effect, error) {
	return l.rows(ctx, operation, tenant, reference, 1, most)
}

// Drafts returns what was begun and not done, like Effects.
func (l ledger) Drafts(ctx context.Context, operation *Operation, tenant, reference string, most int) ([]Effect, error) {
	return l.rows(ctx, operation, tenant, reference, 0, most)
}

func (l ledger) rows(ctx context.Context, operation *Operation, tenant, reference string, done, most int) ([]Effect, error) {
	return l.query(ctx, operation, `operation = $1 AND ($2 = '' OR tenant = $2) AND ($3 = '' OR reference = $3) AND done = $4 ORDER BY id DESC LIMIT $5`,
		operation.Name, tenant, reference, done, most)
}

// madeBy returns what a key of semel's, or a job, has made.
func (l ledger) madeBy(ctx context.Context, operation *Operation, key string) ([]Effect, error) {
	return l.query(ctx, operation, `(made_by = $1 OR job = $1) AND done = 1 ORDER BY id LIMIT 1`, key)
}

func (l ledger) query(ctx context.Context, operation *Operation, where string, args ...any) ([]Effect, error) {
	rows, err := l.db.QueryContext(ctx, "SELECT id, tenant, actor, reference, detail, at, trace FROM effects WHERE "+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := []Effect{}
	for rows.Next() {
		var (
			id, at int64
			detail string
			e      = Effect{Operation: operation.Name}
		)
		if err := rows.Scan(&id, &e.Tenant, &e.Actor, &e.Reference, &detail, &at, &e.Trace); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(detail), &e.Detail); err != nil {
			return nil, err
		}
		e.ID, e.At = operation.id(id), time.UnixMilli(at)
		list = append(list, e)
	}
	return list, rows.Err()
}

// balance is an account's, in cents.
func (l ledger) balance(ctx context.Context, who caller) (cents int64, err error) {
	err = l.db.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE tenant = $1 AND owner = $2", who.Tenant, who.Actor).Scan(&cents)
	if errors.Is(err, sql.ErrNoRows) {
		return startBalance, nil
	}
	return cents, err
}

// clear forgets everything that was done.
func (l ledger) clear(ctx context.Context) error {
	for _, table := range []string{"effects", "accounts", "documents", "used_keys"} {
		if _, err := l.db.ExecContext(ctx, "DELETE FROM "+table); err != nil {
			return err
		}
	}
	return nil
}
