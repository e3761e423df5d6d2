package matrix

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// store is what all of ours are.
type store interface {
	semel.Store
	semel.Resolver
	semel.Lister
	semel.Trail
}

// subject is a store with a place where effects can be seen.
type subject struct {
	kind
	store store
	// effect is half of the effect of an execution.
	effect func(ctx context.Context, key string, exec, half int) error
	// effects returns which halves there are, for each execution of a key.
	effects func(key string) (map[int]int, error)
	// session ends the transaction that ctx carries, from elsewhere, and returns
	// when it has ended.
	session func(ctx context.Context) (end func() error, err error)
	// around is what begins and commits the transaction, where that is not the
	// store's to do.
	around func(next http.Handler, r *run) http.Handler
	// idle fails if something is held for a request that is over.
	idle func() error
}

// ledger is for effects that are elsewhere.
type ledger struct {
	mu   sync.Mutex
	done map[string]map[int]int
}

func (l *ledger) effect(_ context.Context, key string, exec, half int) error {
	if half == 1 {
		return nil // it happens all at once
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done[key] == nil {
		l.done[key] = map[int]int{}
	}
	l.done[key][exec] += 2
	return nil
}

func (l *ledger) effects(key string) (map[int]int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := map[int]int{}
	for exec, n := range l.done[key] {
		done[exec] = n
	}
	return done, nil
}

func leased(k kind, s store) *subject {
	l := &ledger{done: map[string]map[int]int{}}
	return &subject{kind: k, store: s, effect: l.effect, effects: l.effects, idle: func() error { return nil }}
}

func newMemory(t testing.TB) *subject {
	s, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return leased(kind{virtual: true}, s)
}

func openSQLite(t testing.TB, mode sqlite.Mode) (*sqlite.Store, string) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	return s, path
}

func newSQLite(t testing.TB) *subject {
	s, _ := openSQLite(t, sqlite.ModeLeased)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return leased(kind{virtual: true}, s)
}

const createEffect = "CREATE TABLE effect (key text NOT NULL, exec integer NOT NULL, half integer NOT NULL)"

func newSQLiteTx(t testing.TB) *subject {
	s, path := openSQLite(t, sqlite.ModeTransactional)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(db.Close(), s.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.Exec(createEffect); err != nil {
		t.Fatal(err)
	}
	return &subject{
		kind:  kind{transactional: true, virtual: true},
		store: s,
		effect: func(ctx context.Context, key string, exec, half int) error {
			tx, ok := sqlite.Tx(ctx)
			if !ok {
				return errors.New("the handler has no transaction")
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES (?, ?, ?)", key, exec, half)
			return err
		},
		effects: func(key string) (map[int]int, error) {
			rows, err := db.Query("SELECT exec, count(*) FROM effect WHERE key = ? GROUP BY exec", key)
			if err != nil {
				return nil, err
			}
			defer func() { _ = rows.Close() }()
			done := map[int]int{}
			for rows.Next() {
				var exec, n int
				if err := rows.Scan(&exec, &n); err != nil {
					return nil, err
				}
				done[exec] = n
			}
			return done, rows.Err()
		},
		idle: func() error { return nil },
	}
}

func newPostgres(t testing.TB, k kind) *subject {
	ctx := t.Context()
	config, err := pgxpool.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 40
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	c := postgres.Config{}
	if k.transactional {
		c.Mode = postgres.ModeTransactional
	}
	ps, err := postgres.New(ctx, pool, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ps.Close(context.Background()); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	idle := func() error {
		// The store's own audit entries need a connection for a moment too.
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			switch n := pool.Stat().AcquiredConns(); {
			case n == 0:
				return nil
			case time.Now().After(end):
				return fmt.Errorf("%d connections are not given back", n)
			}
		}
	}
	if !k.transactional {
		s := leased(k, ps)
		s.idle = idle
		return s
	}

	if _, err := pool.Exec(ctx, createEffect); err != nil {
		t.Fatal(err)
	}
	s := &subject{
		kind:  k,
		store: ps,
		effect: func(ctx context.Context, key string, exec, half int) error {
			tx, ok := postgres.Tx(ctx)
			if !ok {
				return errors.New("the handler has no transaction")
			}
			_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1, $2, $3)", key, exec, half)
			return err
		},
		effects: func(key string) (map[int]int, error) {
			rows, err := pool.Query(ctx, "SELECT exec, count(*) FROM effect WHERE key = $1 GROUP BY exec", key)
			if err != nil {
				return nil, err
			}
			done := map[int]int{}
			var exec, n int
			_, err = pgx.ForEachRow(rows, []any{&exec, &n}, func() error { done[exec] = n; return nil })
			return done, err
		},
		session: func(ctx context.Context) (func() error, error) {
			tx, _ := postgres.Tx(ctx)
			var pid int
			if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				return nil, err
			}
			return func() error {
				var ended bool
				err := pool.QueryRow(context.Background(), "SELECT pg_terminate_backend($1, 20000)", pid).Scan(&ended)
				if err == nil && !ended {
					err = errors.New("the session did not end")
				}
				return err
			}, nil
		},
		idle: idle,
	}
	if k.joined {
		s.around = func(next http.Handler, r *run) http.Handler { return &committer{pool, next, r} }
	}
	return s
}

// committer is what stands around the protection where the transaction is the
// caller's: it begins one, and passes no answer on before it has committed.
type committer struct {
	pool *pgxpool.Pool
	next http.Handler
	run  *run
}

func (c *committer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := context.WithoutCancel(r.Context())
	tx, err := c.pool.Begin(ctx)
	if err != nil {
		http.Error(w, "no transaction", http.StatusServiceUnavailable)
		return
	}
	defer func() { _ = tx.Rollback(ctx) }() // of what has not been committed
	b := &buffer{header: w.Header()}
	c.next.ServeHTTP(b, r.WithContext(postgres.WithTx(r.Context(), tx)))
	if err := tx.Commit(ctx); err != nil {
		clear(w.Header())
		http.Error(w, outers, http.StatusInternalServerError)
		return
	}
	c.run.recorded.Store(true)
	if b.status != 0 {
		w.WriteHeader(b.status)
	}
	_, _ = w.Write(b.body.Bytes())
}

// buffer is a ResponseWriter that keeps what is written. The header, and what
// comes into it later, is that of the writer behind it.
type buffer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (b *buffer) Header() http.Header { return b.header }

func (b *buffer) WriteHeader(status int) {
	if b.status == 0 {
		b.status = status
	}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.WriteHeader(http.StatusOK)
	return b.body.Write(p)
}

// network is where a cell's servers are.
type network interface {
	listen() (net.Listener, error)
	dial(ctx context.Context, l net.Listener) (net.Conn, error)
}

// loopback is the machine's own.
type loopback struct{}

func (loopback) listen() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

func (loopback) dial(ctx context.Context, l net.Listener) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", l.Addr().String())
}

// pipes is one in memory, for virtual time.
type pipes struct{}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func (pipes) listen() (net.Listener, error) {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}, nil
}

func (pipes) dial(ctx context.Context, l net.Listener) (net.Conn, error) {
	p := l.(*pipeListener)
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// faulty is the store as the first request meets it.
type faulty struct {
	store
	run  *run
	mine atomic.Pointer[semel.Token]
}

var errFault = errors.New("the store is out of order")

func (f *faulty) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	first := f.mine.CompareAndSwap(nil, &a.Token)
	if *f.mine.Load() != a.Token {
		return f.store.Begin(ctx, a)
	}
	if first {
		f.run.leave(leavesBefore)
	}
	var c semel.Claim
	err := f.run.through(ctx, begin, func() (err error) {
		c, err = f.store.Begin(ctx, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &faultyClaim{c, f.run}, nil
}

type faultyClaim struct {
	semel.Claim
	run *run
}

// Joined implements semel.Joiner.
func (c *faultyClaim) Joined() bool {
	j, ok := c.Claim.(semel.Joiner)
	return ok && j.Joined()
}

func (c *faultyClaim) Renew(ctx context.Context) error {
	return c.run.through(ctx, renew, func() error { return c.Claim.Renew(ctx) })
}

func (c *faultyClaim) Complete(ctx context.Context, r semel.Result) (expires time.Time, err error) {
	c.run.settles()
	err = c.run.through(ctx, complete, func() error {
		var err error
		expires, err = c.Claim.Complete(ctx, r)
		if err == nil && !c.run.subject.joined {
			c.run.recorded.Store(true)
		}
		return err
	})
	return expires, err
}

func (c *faultyClaim) Release(ctx context.Context) error {
	c.run.settles()
	return c.run.through(ctx, release, func() error {
		err := c.Claim.Release(ctx)
		if err == nil {
			c.run.recorded.Store(true)
		}
		return err
	})
}

func (c *faultyClaim) Hold(ctx context.Context, cause string) error {
	c.run.settles()
	err := c.run.through(ctx, hold, func() error { return c.Claim.Hold(ctx, cause) })
	c.run.holds()
	return err
}

// through makes a call of the store, with the cell's fault.
func (r *run) through(ctx context.Context, what call, do func() error) error {
	f := r.cell.fault
	if r.cell.rival == marks || r.cell.rival == takesOver {
		f = fault{renew, false, down}
	}
	if f.call != what || r.mended.Load() {
		return do()
	}
	n := int(r.failed.Add(1))
	switch {
	case f.how != down && n > 1, what == begin && n > 3:
		return do()
	}
	defer r.fails()
	if f.how == down && !f.after && r.subject.sessions && what != renew && what != begin {
		// Whatever the store makes of it.
		if n == 1 {
			if err := r.endSession(); err != nil {
				r.wrong("%v", err)
			}
		}
		return do()
	}
	if f.after {
		if err := do(); err != nil && f.how == once && !errors.Is(err, semel.ErrRolledBack) {
			return err
		}
	}
	if f.how == hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return errFault
}
