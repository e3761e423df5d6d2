package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

// ErrNoTransaction reports that the context does not carry the transaction of a
// claim. Nothing was enqueued.
var ErrNoTransaction = errors.New("postgres: the context carries no transaction of a claim: use Outbox.EnqueueTx, or a transactional store")

// Enqueue adds messages to the outbox in the transaction in ctx, which is that of
// the handler's claim or of the message that it handles (see Inbox). The messages
// are delivered only if that transaction commits. The commit wakes the relays in
// this process and, with Config.Notify, soon after those of other processes.
//
// It fails with ErrNoTransaction if ctx carries no transaction, with outbox.ErrFull
// beyond Config.MaxPending, and with outbox.ErrDuplicate if an id is taken. The
// transaction remains usable after each of these errors; after ErrDuplicate it
// contains those messages of the call whose ids were free.
//
// Messages with a key hold the lock of their lane until the transaction ends; other
// transactions that enqueue into the lane wait. The lanes of one call, at most
// 1,000, are locked in a fixed order. A transaction that takes half of the server's
// locks fails with SQLSTATE 54000. Transactions that call Enqueue several times
// should use a fixed order too: if two transactions deadlock, the server aborts one
// with SQLSTATE 40P01 and without effect.
func Enqueue(ctx context.Context, messages ...outbox.Message) error {
	tx, ok := ctx.Value(claimTxKey{}).(*handlerTx)
	if !ok {
		return ErrNoTransaction
	}
	tx.claim.enqueued.Store(true)
	return tx.claim.store.Outbox().EnqueueTx(ctx, tx, messages...)
}

// EnqueueTx is like Enqueue in a transaction of the caller on the same
// database. Relays find the messages by polling. Call Wake after the commit to
// make them look at once.
func (o *Outbox) EnqueueTx(ctx context.Context, tx pgx.Tx, messages ...outbox.Message) error {
	statements, err := o.enqueue(outbox.OriginOf(ctx), messages)
	if err == nil {
		err = o.store.admit(len(messages), func(sql string, most int) interface{ Scan(...any) error } { return tx.QueryRow(ctx, sql, most) })
	}
	if err != nil || len(statements) == 0 {
		return enqueued(err)
	}
	b := &pgx.Batch{}
	for _, s := range statements {
		b.Queue(s.sql, s.args...)
	}
	br := tx.SendBatch(ctx, b)
	for _, s := range statements {
		tag, e := br.Exec()
		if e == nil && int(tag.RowsAffected()) < s.messages {
			e = outbox.ErrDuplicate
		}
		err = errors.Join(err, e)
	}
	return enqueued(errors.Join(err, br.Close()))
}

// EnqueueSQL is like EnqueueTx in a transaction of database/sql, with any
// driver.
func (o *Outbox) EnqueueSQL(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	statements, err := o.enqueue(outbox.OriginOf(ctx), messages)
	if err == nil {
		err = o.store.admit(len(messages), func(sql string, most int) interface{ Scan(...any) error } { return tx.QueryRowContext(ctx, sql, most) })
	}
	if err != nil {
		return enqueued(err)
	}
	for _, s := range statements {
		r, e := tx.ExecContext(ctx, s.sql, s.args...)
		if e != nil {
			return enqueued(e)
		}
		if n, e := r.RowsAffected(); e != nil || int(n) < s.messages {
			err = errors.Join(e, outbox.ErrDuplicate)
		}
	}
	return enqueued(err)
}

func enqueued(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "54000" || e.Code == "53200") {
		err = fmt.Errorf("the messages of this transaction are in more lanes than the server has locks for: roll back, and "+
			"enqueue into fewer lanes in a transaction, or have the server started with a larger max_locks_per_transaction: %w", err)
	}
	if err != nil && !errors.Is(err, outbox.ErrDuplicate) && !errors.Is(err, outbox.ErrFull) {
		return fmt.Errorf("postgres: enqueue: %w", err)
	}
	return err
}

const (
	// sqlLanes takes the locks of lanes in one order, whoever takes them.
	sqlLanes = `
		SELECT pg_advisory_xact_lock(lock) FROM (
			SELECT DISTINCT {s}.outbox_lane_lock(topic, key) AS lock FROM (VALUES %s) AS lane (topic, key) ORDER BY lock OFFSET 0) AS sorted`
	sqlEnqueue = `INSERT INTO {s}.outbox (id, topic, key, type, headers, not_before, origin, payload) VALUES %s ON CONFLICT (id) DO NOTHING`
	// enqueueTogether is how many messages are in a statement.
	enqueueTogether = 50
	// lanesTogether is into how many lanes a call may enqueue.
	lanesTogether = 1000
)

// statement is one that enqueues so many messages.
type statement struct {
	sql      string
	args     []any
	messages int
}

// enqueue returns the statements that add messages, of this origin unless they name
// another.
func (o *Outbox) enqueue(origin string, messages []outbox.Message) (all []statement, err error) {
	type lane struct{ topic, key string }
	lanes := map[lane]bool{}
	for _, m := range messages {
		if err := m.Validate(); err != nil {
			return nil, err
		}
		if m.Key != "" {
			lanes[lane{m.Topic, m.Key}] = true
		}
	}
	build := func(format, row string, rows, fields int, args []any) {
		var values strings.Builder
		n := make([]any, fields)
		for i := range rows {
			for j := range n {
				n[j] = i*fields + j + 1
			}
			if i > 0 {
				values.WriteString(", ")
			}
			fmt.Fprintf(&values, row, n...)
		}
		all = append(all, statement{in(o.store.config.Schema, fmt.Sprintf(format, &values)), args, 0})
	}
	if len(lanes) > lanesTogether {
		return nil, fmt.Errorf("the messages of one call are in %d lanes, each of which takes a lock at the server; at most %d may be: nothing is enqueued, make it several transactions", len(lanes), lanesTogether)
	}
	if len(lanes) > 1 {
		var args []any
		for l := range lanes {
			args = append(args, l.topic, l.key)
		}
		for len(args) > 0 {
			n := min(len(args), 2*enqueueTogether)
			build(sqlLanes, "($%d::text, $%d::text)", n/2, 2, args[:n:n])
			args = args[n:]
		}
	}
	for len(messages) > 0 {
		some := messages[:min(len(messages), enqueueTogether)]
		messages = messages[len(some):]
		args := make([]any, 0, 8*len(some))
		for _, m := range some {
			m, headers, err := storekit.Stored(m, origin)
			if err != nil {
				return nil, fmt.Errorf("postgres: %w", err)
			}
			var before any
			if !m.NotBefore.IsZero() {
				before = ceilMicro(m.NotBefore)
			}
			args = append(args, m.ID, m.Topic, orNull(m.Key), m.Type, headers, before, orNull(m.Origin), m.Payload)
		}
		build(sqlEnqueue, "($%d::text, $%d::text, $%d::text, $%d::text, $%d::text::jsonb, $%d::timestamptz, $%d::text, $%d::bytea)", len(some), 8, args)
		all[len(all)-1].messages = len(some)
	}
	return all, nil
}

// Outbox is the outbox in a store's tables, whatever the store's mode. It
// implements outbox.Store, Watcher, Settler and Admin, and ends with the store.
//
// Each call is one transaction at read committed, sent in one message, so no lock
// is held during a network round trip. All times are the server's.
type Outbox struct {
	store  *Store
	floors floors
}

var (
	_ outbox.Store   = (*Outbox)(nil)
	_ outbox.Watcher = (*Outbox)(nil)
	_ outbox.Admin   = (*Outbox)(nil)
	_ outbox.Settler = (*Outbox)(nil)
)

// Outbox returns the outbox in the store's tables.
func (s *Store) Outbox() *Outbox { return &Outbox{store: s} }

// Wake makes relays look for messages now: those in this process that use this
// Store and, with Config.Notify, those of other stores with that setting. Call it
// after the commit of a transaction with EnqueueTx. It never blocks.
func (o *Outbox) Wake() { o.store.hints.Send() }

// Watch implements outbox.Watcher. It signals commits of messages added with
// Enqueue through this Store and calls of Wake, and with Config.Notify also
// those of other stores with that setting.
func (o *Outbox) Watch() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	stop := o.store.hints.Add(c)
	if o.store.watchers == nil {
		return c, stop
	}
	stopHearing := o.store.watchers.addTo(outboxPayload, c)
	return c, func() { stop(); stopHearing() }
}
