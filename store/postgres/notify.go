package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
)

const (
	// listenTimeout bounds each attempt to listen, and each look whether the
	// connection is still there, which is made after a silence of listenSilence.
	listenTimeout = 5 * time.Second
	listenSilence = 30 * time.Second
	// listenRest is how long the first wait between two attempts is; each
	// further one is twice as long, up to listenRestMost.
	listenRest     = 50 * time.Millisecond
	listenRestMost = 10 * time.Second
)

// sqlNotify notifies listeners of a change. Its payload is the number of the
// identity's advisory lock.
const sqlNotify = `SELECT pg_notify($1, $2)`

// ErrPooler reports that the connection for listening goes through a pooler, so
// that it is not a single session of the server.
var ErrPooler = errors.New("postgres: Config.Notify needs a connection to the server itself to listen on, and this one goes through a pooler; set Config.Listen")

func channelName(schema string) string {
	return fmt.Sprintf("semel_%016x", uint64(hash("notify", schema)))
}

func (s *Store) payload(id semel.Identity) string {
	return strconv.FormatInt(lockKey(s.digest(id)), 36)
}

// queueNotify adds to a batch the notification that id's record has changed.
func (s *Store) queueNotify(b *pgx.Batch, id semel.Identity) {
	b.Queue(sqlNotify, channelName(s.config.Schema), s.payload(id))
}

// batcher is a pool, a connection or a transaction.
type batcher interface {
	querier
	batchSender
}

// told runs a statement that settles the record of id, and notifies others in
// the same transaction. A batch is one transaction, and one round trip.
func (s *Store) told(ctx context.Context, q batcher, id semel.Identity, sql string, args []any, scan func(pgx.Row) error) error {
	if !s.config.Notify {
		return scan(q.QueryRow(ctx, sql, args...))
	}
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	s.queueNotify(b, id)
	br := q.SendBatch(ctx, b)
	err := scan(br.QueryRow())
	if cerr := br.Close(); err == nil {
		err = cerr
	}
	return err
}

// Watch implements semel.Watcher. Without Config.Notify the channel is nil.
func (s *Store) Watch(id semel.Identity) (changed <-chan struct{}, stop func()) {
	if s.watchers == nil {
		return nil, func() {}
	}
	return s.watchers.add(s.payload(id))
}

// watchers listens for all who watch, on one connection, in one goroutine.
type watchers struct {
	pool    *pgxpool.Pool
	config  *pgx.ConnConfig // nil: as the pool's
	channel string
	cancel  context.CancelFunc
	done    sync.WaitGroup

	mu sync.Mutex
	of map[string]map[chan struct{}]struct{}
}

// watch starts to listen. The first attempt must succeed; later ones are made
// until it does.
func watch(ctx context.Context, pool *pgxpool.Pool, c Config, messages <-chan struct{}) (*watchers, error) {
	w := &watchers{
		pool: pool, config: c.Listen, channel: channelName(c.Schema),
		of: make(map[string]map[chan struct{}]struct{}),
	}
	conn, err := w.listen(ctx)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.done.Go(func() { w.run(run, conn) })
	w.done.Go(func() { w.tell(run, messages) })
	return w, nil
}

func (w *watchers) close() {
	w.cancel()
	w.done.Wait()
}

func (w *watchers) listen(ctx context.Context) (_ *pgx.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	config := w.config
	if config == nil {
		of := w.pool.Config()
		config = of.ConnConfig
		if of.BeforeConnect != nil {
			if err := of.BeforeConnect(ctx, config); err != nil {
				return nil, err
			}
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close(ctx)
		}
	}()
	// A pooler hands out numbers of its own for its sessions.
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return nil, err
	}
	if pid != conn.PgConn().PID() {
		return nil, ErrPooler
	}
	if _, err := conn.Exec(ctx, "LISTEN "+w.channel); err != nil {
		return nil, err
	}
	return conn, nil
}

// run hands on what it hears until ctx ends. When it may have missed something
// it wakes everybody.
func (w *watchers) run(ctx context.Context, conn *pgx.Conn) {
	for rest := listenRest; ; {
		err := w.hear(ctx, conn)
		bye, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = conn.Close(bye) // err is why
		cancel()
		w.wakeAll()
		for err != nil {
			t := time.NewTimer(rest/2 + rand.N(rest))
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
			rest = min(2*rest, listenRestMost)
			conn, err = w.listen(ctx)
		}
		rest = listenRest
		w.wakeAll()
	}
}

// hear hands on what it hears until the connection fails.
func (w *watchers) hear(ctx context.Context, conn *pgx.Conn) error {
	for {
		some, cancel := context.WithTimeout(ctx, listenSilence)
		n, err := conn.WaitForNotification(some)
		silent := some.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			w.wake(n.Payload)
		case !silent || conn.IsClosed():
			return err
		default:
			ping, cancel := context.WithTimeout(ctx, listenTimeout)
			err := conn.Ping(ping)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}

func (w *watchers) add(payload string) (<-chan struct{}, func()) {
	changed := make(chan struct{}, 1)
	return changed, w.addTo(payload, changed)
}

// addTo is add for a channel that there is.
func (w *watchers) addTo(payload string, changed chan struct{}) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[payload] == nil {
		w.of[payload] = make(map[chan struct{}]struct{})
	}
	w.of[payload][changed] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.of[payload], changed)
		if len(w.of[payload]) == 0 {
			delete(w.of, payload)
		}
	}
}

func (w *watchers) wake(payload string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for changed := range w.of[payload] {
		hint(changed)
	}
}

func (w *watchers) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, all := range w.of {
		for changed := range all {
			hint(changed)
		}
	}
}

// hint leaves a value for a watcher that has none yet.
func hint(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

const (
	// outboxPayload is the payload of notifications that messages may be due. Those
	// about records are numbers.
	outboxPayload = "+outbox"
	// tellRest is how long the process rests between two notifications of messages.
	tellRest = 20 * time.Millisecond
)

// tell notifies others of messages, until ctx ends. That is a transaction of its
// own, and one for all that came while it rested: the commits of those who enqueue do
// not take the lock that notifications take. One that fails is one less.
func (w *watchers) tell(ctx context.Context, messages <-chan struct{}) {
	for {
		select {
		case <-messages:
		case <-ctx.Done():
			return
		}
		within, cancel := context.WithTimeout(ctx, listenTimeout)
		_, _ = w.pool.Exec(within, sqlNotify, w.channel, outboxPayload)
		cancel()
		t := time.NewTimer(tellRest)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}
