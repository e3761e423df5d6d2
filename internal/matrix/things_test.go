package matrix

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/conditional"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// rows are things with a version and a state, in a database that both pgx and
// database/sql can be behind.
type rows struct {
	exec func(ctx context.Context, query string, args ...any) (int64, error)
	// row returns false if there is none.
	row   func(ctx context.Context, query string, args []any, into ...any) (bool, error)
	close func() error
}

const createThings = `CREATE TABLE IF NOT EXISTS things (id TEXT PRIMARY KEY, version BIGINT NOT NULL, gone BOOLEAN NOT NULL DEFAULT FALSE,
	text TEXT NOT NULL DEFAULT '', state TEXT NOT NULL DEFAULT 'draft', event TEXT NOT NULL DEFAULT '', writes INTEGER NOT NULL DEFAULT 0)`

// openRows opens a database by the URL of a server or the path of a file. In a
// claim's transaction its statements are part of that.
func openRows(ctx context.Context, at string) (*rows, error) {
	if !strings.HasPrefix(at, "postgres://") {
		file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(at), "/"), RawQuery: "_pragma=busy_timeout(300000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"}
		db, err := sql.Open("sqlite", file.String())
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(4) // who waits for a file's lock is not served in turn
		query := func(ctx context.Context) sqlite.Querier {
			if tx, ok := sqlite.Tx(ctx); ok {
				return tx
			}
			return db
		}
		// SQLite numbers its parameters with a question mark.
		return &rows{
			exec: func(ctx context.Context, q string, args ...any) (int64, error) {
				return conditional.Rows(query(ctx).ExecContext(ctx, strings.ReplaceAll(q, "$", "?"), args...))
			},
			row: func(ctx context.Context, q string, args []any, into ...any) (bool, error) {
				err := query(ctx).QueryRowContext(ctx, strings.ReplaceAll(q, "$", "?"), args...).Scan(into...)
				if errors.Is(err, sql.ErrNoRows) {
					return false, nil
				}
				return err == nil, err
			},
			close: db.Close,
		}, nil
	}
	pool, err := pgxpool.New(ctx, at)
	if err != nil {
		return nil, err
	}
	return poolRows(pool), nil
}

func poolRows(pool *pgxpool.Pool) *rows {
	return &rows{
		exec: func(ctx context.Context, q string, args ...any) (int64, error) {
			exec := pool.Exec
			if tx, ok := postgres.Tx(ctx); ok {
				exec = tx.Exec
			}
			tag, err := exec(ctx, q, args...)
			return tag.RowsAffected(), err
		},
		row: func(ctx context.Context, q string, args []any, into ...any) (bool, error) {
			query := pool.QueryRow
			if tx, ok := postgres.Tx(ctx); ok {
				query = tx.QueryRow
			}
			err := query(ctx, q, args...).Scan(into...)
			if errors.Is(err, pgx.ErrNoRows) {
				return false, nil
			}
			return err == nil, err
		},
		close: func() error { pool.Close(); return nil },
	}
}

// change sets the text of a thing, as PUT and PATCH would, or deletes it.
func (d *rows) change(id string, text func(old string) string, remove bool) conditional.Change {
	var old string
	return conditional.Change{
		Current: func(ctx context.Context) (s conditional.State, err error) {
			old = ""
			_, err = d.row(ctx, "SELECT version, gone, text FROM things WHERE id = $1", []any{id}, &s.Version, &s.Gone, &old)
			return s, err
		},
		Write: func(ctx context.Context, found, next int64) (int64, error) {
			if found == 0 {
				return d.exec(ctx, "INSERT INTO things (id, version, text, writes) VALUES ($1, $2, $3, 1) ON CONFLICT DO NOTHING", id, next, text(old))
			}
			return d.exec(ctx, "UPDATE things SET version = $2, gone = $3, text = $4, writes = writes + 1 WHERE id = $1 AND version = $5",
				id, next, remove, text(old), found)
		},
	}
}

// approvals is a table of transitions in which one event matters.
var approvals, _ = conditional.NewTable(
	conditional.Transition{Event: "approve", From: []string{"draft"}, To: "approved"},
	conditional.Transition{Event: "reject", From: []string{"draft"}, To: "rejected"},
)

func (d *rows) subject(id string) conditional.Subject {
	return conditional.Subject{
		Current: func(ctx context.Context) (p conditional.Position, err error) {
			_, err = d.row(ctx, "SELECT state, event, version FROM things WHERE id = $1", []any{id}, &p.State, &p.Event, &p.Version)
			return p, err
		},
		Move: func(ctx context.Context, m conditional.Move) (int64, error) {
			return d.exec(ctx, "UPDATE things SET state = $2, event = $3, version = $4, writes = writes + 1 WHERE id = $1 AND state = $5 AND version = $6",
				id, m.To, m.Event, m.Next, m.From, m.Found)
		},
	}
}

// things is a service of rows, protected by keys.
type things struct {
	*rows
	protect func(http.Handler) http.Handler
	url     string

	// For those who enter by other ways: see entries_test.go.
	guard   *semel.Guard
	leased  semel.Store
	outbox  jobs.Store
	inbox   inbox.Store
	enqueue func(ctx context.Context, m outbox.Message) error
}

// thingStores are the databases, and the two ways in which each keeps claims.
var thingStores = []string{"sqlite-leased", "sqlite-transactional", "postgres-leased", "postgres-transactional"}

func newThings(t testing.TB, kind string) *things {
	t.Helper()
	if strings.HasPrefix(kind, "sqlite") {
		return openThings(t, kind, filepath.Join(t.TempDir(), "semel.db"))
	}
	return openThings(t, kind, testenv.Postgres(t))
}

func openThings(t testing.TB, kind, at string) *things {
	t.Helper()
	ctx := t.Context()
	transactional := strings.HasSuffix(kind, "-transactional")
	s := &things{url: at}
	var guarded semel.Store
	if strings.HasPrefix(kind, "sqlite") {
		c := sqlite.Config{Path: at, BusyTimeout: 5 * time.Minute}
		lease, err := sqlite.Open(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		base, end := lease, lease.Close
		if transactional {
			c.Mode = sqlite.ModeTransactional
			if base, err = sqlite.Open(ctx, c); err != nil {
				t.Fatal(err)
			}
			end = func(ctx context.Context) error { return errors.Join(lease.Close(ctx), base.Close(ctx)) }
		}
		guarded = base
		s.leased, s.outbox, s.inbox = lease, base.Outbox(), base.Inbox()
		s.enqueue = func(ctx context.Context, m outbox.Message) error {
			return base.Inbox().Transact(ctx, "enqueuer", []string{m.ID}, func(ctx context.Context, _ []bool) error { return sqlite.Enqueue(ctx, m) })
		}
		if !transactional {
			s.url += ".things" // leased, the effect is somewhere else
		}
		if s.rows, err = openRows(ctx, s.url); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(s.close(), end(context.Background())); err != nil {
				t.Error(err)
			}
		})
	} else {
		config, err := pgxpool.ParseConfig(at)
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns = 40
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		s.rows = poolRows(pool)
		c := postgres.Config{}
		if transactional {
			c.Mode = postgres.ModeTransactional
		}
		ps, err := postgres.New(ctx, pool, c)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := postgres.New(ctx, pool, postgres.Config{})
		if err != nil {
			t.Fatal(err)
		}
		guarded = ps
		s.leased, s.outbox, s.inbox = lease, ps.Outbox(), ps.Inbox()
		s.enqueue = func(ctx context.Context, m outbox.Message) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return ps.Outbox().EnqueueTx(ctx, tx, m) })
		}
		t.Cleanup(func() {
			if err := errors.Join(lease.Close(context.Background()), ps.Close(context.Background()), s.close()); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := s.exec(ctx, createThings); err != nil {
		t.Fatal(err)
	}
	// A file's lock may be a long time coming on a busy machine.
	guard, err := semel.New(semel.Config{Store: guarded, Policy: semel.Policy{Lease: 5 * time.Minute, StoreTimeout: 5 * time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	s.guard = guard
	s.protect, err = semelhttp.New(semelhttp.Config{
		Guard:       guard,
		Scope:       func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "alice"}, nil },
		Protects:    semelhttp.ProtectMethods("POST", "PUT", "PATCH", "DELETE"),
		Fingerprint: semelhttp.FingerprintConfig{Headers: conditional.RequestHeaders()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// add makes a thing as the cell wants it to be.
func (s *things) add(t testing.TB, id string, at conditional.State) {
	t.Helper()
	if at.Version == 0 {
		return
	}
	if _, err := s.exec(t.Context(), "INSERT INTO things (id, version, gone) VALUES ($1, $2, $3)", id, at.Version, at.Gone); err != nil {
		t.Fatal(err)
	}
}

// find returns a thing and how often it was written.
func (s *things) find(t testing.TB, id string) (at conditional.State, writes int) {
	t.Helper()
	if _, err := s.row(t.Context(), "SELECT version, gone, writes FROM things WHERE id = $1", []any{id}, &at.Version, &at.Gone, &writes); err != nil {
		t.Fatal(err)
	}
	return at, writes
}

// gate holds a handler up between its look and its change.
type gate struct {
	looked chan struct{}
	on     chan struct{}
	once   atomic.Bool // for one handler only
}

type gateKey struct{}

// handler serves things: PUT creates, PATCH changes, DELETE leaves a tombstone,
// POST approves.
func (s *things) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.URL.Path
		if r.Method == http.MethodPost {
			m, err := approvals.Apply(r.Context(), "approve", s.subject(id))
			if err != nil {
				if !conditional.Refuse(w, r, err) {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				}
				return
			}
			w.Header().Set("Etag", conditional.VersionTag(m.Version).String())
			_, _ = w.Write([]byte("the thing is " + m.State))
			return
		}
		c := s.change(id, func(string) string { return "changed" }, r.Method == http.MethodDelete)
		c.Creates = r.Method == http.MethodPut
		if g, ok := r.Context().Value(gateKey{}).(*gate); ok {
			current := c.Current
			c.Current = func(ctx context.Context) (conditional.State, error) {
				at, err := current(ctx)
				if g.looked != nil && g.once.CompareAndSwap(false, true) {
					close(g.looked)
					<-g.on
				}
				return at, err
			}
		}
		res, err := conditional.Apply(r.Context(), c)
		if err != nil {
			if !conditional.Refuse(w, r, err) {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
			return
		}
		w.Header().Set("Etag", conditional.VersionTag(res.Version).String())
		if res.Created {
			w.WriteHeader(http.StatusCreated)
		}
	})
}
