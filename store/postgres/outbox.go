package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
)

// ErrNoTransaction: the context is not that of a handler that works in the
// transaction of its claim. Nothing was enqueued.
var ErrNoTransaction = errors.New("postgres: the context carries no transaction of a claim: use Outbox.EnqueueTx, or a transactional store")

// Enqueue adds messages to the outbox in the transaction of the claim that a
// handler works under, or of the message that it handles (Inbox), which ctx comes
// from: they are delivered if that is
// committed, and never otherwise. Relays in this process are woken by the commit,
// and with Config.Notify those of others soon after.
//
// It fails with ErrNoTransaction where there is no transaction, with outbox.ErrFull
// beyond Config.MaxPending, and with outbox.ErrDuplicate where an id is taken. The
// transaction can go on after each; behind the last, the messages of the call whose
// ids were free are in it.
//
// Messages with a key hold the lock of their lane until the transaction ends:
// others that enqueue into it wait. The lanes of one call, at most 1,000, are locked
// in one order. A transaction that takes half of the server's locks fails, with
// SQLSTATE 54000.
// Transactions that call it several times should keep to an order too; where two
// wait for each other the server ends one, with SQLSTATE 40P01 and without effect.
func Enqueue(ctx context.Context, messages ...outbox.Message) error {
	tx, ok := ctx.Value(claimTxKey{}).(*handlerTx)
	if !ok {
		return ErrNoTransaction
	}
	tx.claim.enqueued.Store(true)
	return tx.claim.store.Outbox().EnqueueTx(ctx, tx, messages...)
}

// EnqueueTx adds messages to the outbox in a transaction of the caller's on the
// same database, as Enqueue does. Relays find them by polling; Wake after the
// commit has them look at once.
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

// EnqueueSQL is EnqueueTx in a transaction of database/sql, of whatever driver.
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
			if m.ID == "" {
				m.ID = semel.NewKey()
			}
			m.Origin = cmp.Or(m.Origin, origin)
			var headers, before any
			if len(m.Headers) > 0 {
				b, err := json.Marshal(m.Headers)
				if err != nil {
					return nil, fmt.Errorf("postgres: headers: %w", err)
				}
				headers = string(b)
			}
			if !m.NotBefore.IsZero() {
				before = ceilMicro(m.NotBefore)
			}
			payload := m.Payload
			if payload == nil {
				payload = []byte{} // nil would be NULL
			}
			args = append(args, m.ID, m.Topic, orNull(m.Key), m.Type, headers, before, orNull(m.Origin), payload)
		}
		build(sqlEnqueue, "($%d::text, $%d::text, $%d::text, $%d::text, $%d::text::jsonb, $%d::timestamptz, $%d::text, $%d::bytea)", len(some), 8, args)
		all[len(all)-1].messages = len(some)
	}
	return all, nil
}

// Outbox is the outbox in a store's tables, whatever the store's mode. It
// implements outbox.Store, Watcher and Admin, and ends with the store.
//
// Each call is one transaction at read committed, sent in one message, so no lock
// waits for the network. All times are the server's.
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

// Wake has relays look for messages now: those in this process that work on this
// Store and, with Config.Notify, those that work on another with it. Call it after
// the commit of a transaction with EnqueueTx. It never blocks.
func (o *Outbox) Wake() { o.store.hints.send() }

// Watch implements outbox.Watcher. It tells of what was enqueued with Enqueue
// through this Store and of calls of Wake, and with Config.Notify also of those
// through other stores with it.
func (o *Outbox) Watch() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	stop := o.store.hints.add(c)
	if o.store.watchers == nil {
		return c, stop
	}
	stopHearing := o.store.watchers.addTo(outboxPayload, c)
	return c, func() { stop(); stopHearing() }
}

// planning keeps the server from plans that were good for a smaller table, or for
// none: each step of these statements has its index. Nor is it to compile a plan, by
// what it takes a full table to cost, for longer than it runs. It lasts for the
// transaction.
const planning = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
	set_config('jit', 'off', true)`

// step is a statement and what is made of its rows.
type step struct {
	sql  string
	args []any
	read func(pgx.Rows) error
}

// into returns a step whose rows are to be in all.
func into[T any](all *[]T, scan pgx.RowToFunc[T], sql string, args ...any) step {
	return step{sql, args, func(rows pgx.Rows) (err error) {
		*all, err = pgx.CollectRows(rows, scan)
		return err
	}}
}

// atOnce runs statements in a transaction at read committed, all of it in one
// message, and again where it had no effect because of another transaction.
func (s *Store) atOnce(ctx context.Context, steps ...step) error {
	_, err := again(ctx, s, func() (struct{}, error) {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return struct{}{}, err
		}
		defer conn.Release()
		b := &pgx.Batch{}
		b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
		b.Queue(planning)
		for _, s := range steps {
			b.Queue(s.sql, s.args...)
		}
		b.Queue("COMMIT")
		br := conn.SendBatch(ctx, b)
		err = func() error {
			for range 2 {
				if _, err := br.Exec(); err != nil {
					return err
				}
			}
			for _, s := range steps {
				rows, err := br.Query()
				if err == nil {
					err = s.read(rows)
				}
				if err != nil {
					return err
				}
			}
			tag, err := br.Exec()
			if err == nil && tag.String() != "COMMIT" {
				err = errors.New("postgres: COMMIT was answered with " + tag.String())
			}
			return err
		}()
		if cerr := br.Close(); err == nil {
			err = cerr
		}
		if c := conn.Conn(); err != nil && !c.IsClosed() && c.PgConn().TxStatus() != outside {
			_, _ = c.Exec(ctx, "ROLLBACK") // or the pool closes it
		}
		return struct{}{}, err
	})
	return err
}

var (
	// claimNamed is the beginning of sqlClaimMessages for topics that are named, and for how
	// far each was looked at.
	claimNamed = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t),
		topics AS MATERIALIZED (SELECT * FROM unnest($6::text[], $7::bigint[], $8::bigint[], $9::timestamptz[]) AS t (topic, ready, arrived, since)),`
	// claimAny is that for those in which something is due, of those behind one. It
	// goes from one topic to the next, without what is between.
	claimAny = `
		WITH RECURSIVE n AS MATERIALIZED (SELECT clock_timestamp() AS t),
		next (topic) AS (
			SELECT (SELECT topic FROM {s}.outbox_queue WHERE due IS NOT NULL AND topic > $6 ORDER BY topic LIMIT 1)
			UNION ALL
			SELECT (SELECT q.topic FROM {s}.outbox_queue q WHERE q.due IS NOT NULL AND q.topic > next.topic ORDER BY q.topic LIMIT 1)
			FROM next WHERE next.topic IS NOT NULL
		),
		topics AS MATERIALIZED (
			SELECT topic, 0::bigint AS ready, 0::bigint AS arrived, 'epoch'::timestamptz AS since FROM next
			WHERE topic IS NOT NULL AND EXISTS (
				SELECT FROM {s}.outbox_queue q WHERE q.topic = next.topic AND q.due <= (SELECT t FROM n) AND ` + free + `)
			LIMIT ` + fmt.Sprint(topicsAtOnce) + `),`

	// free: nobody has a lease on what was due at once.
	free = `(NOT leased OR until <= (SELECT t FROM n))`

	// queueColumns are what a claim needs to know of a message to choose it.
	queueColumns = `position, topic, key, turn, due, head, size, lapses + leased::integer >= ` + fmt.Sprint(outbox.SuspectLapses) + ` AS suspect`

	// sqlClaimMessages finds what is due in a topic's part of the index: what is over, which
	// is between the epoch and now; what has no time and is to be looked at; and what
	// has no time. It takes turns between the three, and between topics.
	//
	// What is not known to be the first of its lane is looked at. If it is the first,
	// it stays so. If there is one before it, that one is locked, so that it cannot
	// leave unseen, and the message waits until that one's leaving wakes it; where
	// that one is locked, which is not for long, the message is left for another
	// time. No lock is waited for.
	//
	// The first row tells of the whole.
	sqlClaimMessages = `
		each AS MATERIALIZED (SELECT CASE WHEN count(*) > 1 THEN 2 * $1::bigint / count(*) + 1 ELSE $1::bigint END AS n FROM topics),
		overdue AS MATERIALIZED (
			SELECT q.*, 1 AS kind FROM topics CROSS JOIN LATERAL (
				SELECT ` + queueColumns + ` FROM {s}.outbox_queue
				WHERE topic = topics.topic AND due > topics.since AND due <= (SELECT t FROM n)
				ORDER BY due, turn LIMIT (SELECT n + ` + fmt.Sprint(suspectRoom) + ` FROM each) FOR UPDATE SKIP LOCKED) AS q),
		arrived AS MATERIALIZED (
			SELECT q.*, 2 AS kind FROM topics CROSS JOIN LATERAL (
				SELECT ` + queueColumns + ` FROM {s}.outbox_queue
				WHERE topic = topics.topic AND due = 'epoch' AND turn > topics.arrived AND ` + free + `
				ORDER BY turn LIMIT (SELECT n + ` + fmt.Sprint(arrivedRoom) + ` FROM each) FOR UPDATE SKIP LOCKED) AS q),
		ready AS MATERIALIZED (
			SELECT q.*, 3 AS kind FROM topics CROSS JOIN LATERAL (
				SELECT ` + queueColumns + ` FROM {s}.outbox_queue
				WHERE topic = topics.topic AND due = '-infinity' AND turn > topics.ready AND ` + free + `
				ORDER BY turn LIMIT (SELECT n FROM each) FOR UPDATE SKIP LOCKED) AS q),
		found AS MATERIALIZED (
			SELECT c.*, coalesce(first.position, c.position) AS front
			FROM (TABLE overdue UNION ALL TABLE arrived UNION ALL TABLE ready) AS c LEFT JOIN LATERAL (
				SELECT p.position FROM {s}.outbox_queue AS p
				WHERE NOT c.head AND p.topic = c.topic AND p.key = c.key ORDER BY p.position LIMIT 1) AS first ON true),
		behind AS MATERIALIZED (
			SELECT found.* FROM found CROSS JOIN LATERAL (
				SELECT FROM {s}.outbox_queue AS p WHERE p.position = found.front FOR SHARE SKIP LOCKED) AS locked
			WHERE found.front < found.position),
		parked AS (
			UPDATE {s}.outbox_queue AS q SET due = NULL FROM behind WHERE q.position = behind.position),
		ranked AS (
			SELECT *, row_number() OVER (PARTITION BY topic, kind ORDER BY due, turn) AS rank
			FROM found WHERE front >= position AND (NOT suspect OR $2::boolean AND position = (
				SELECT f.position FROM found AS f WHERE f.suspect AND f.front >= f.position ORDER BY f.due, f.turn LIMIT 1))),
		chosen AS MATERIALIZED (
			SELECT * FROM (
				SELECT *, row_number() OVER w AS nth, sum(size) OVER w AS sum
				FROM ranked WINDOW w AS (ORDER BY rank, kind, topic ROWS UNBOUNDED PRECEDING)) AS c
			WHERE nth <= $1::bigint AND (nth = 1 OR $3::bigint <= 0 OR sum <= $3::bigint)),
		done AS (
			UPDATE {s}.outbox_queue AS q SET fence = $4::bigint, leased = true, head = true, until = n.t + $5::interval,
				due = CASE WHEN q.due <= 'epoch' AND NOT q.leased THEN q.due ELSE n.t + $5::interval END,
				attempts = attempts + 1, lapses = lapses + leased::integer
			FROM chosen, n WHERE q.position = chosen.position
			RETURNING q.position, q.attempts, q.lapses, q.unsure, chosen.nth),
		told AS (
			SELECT done.*, m.id, m.topic, m.key, m.type, m.headers, m.payload, m.created_at, m.not_before
			FROM done CROSS JOIN LATERAL (SELECT * FROM {s}.outbox AS m WHERE m.position = done.position LIMIT 1) AS m)
		SELECT whole.*, told.position, told.attempts, told.lapses, told.unsure,
			told.id, told.topic, coalesce(told.key, ''), told.type, told.headers, told.payload, told.created_at, told.not_before
		FROM n LEFT JOIN told ON true LEFT JOIN LATERAL (
			SELECT n.t, (SELECT count(*) FROM chosen), (SELECT array_agg(topic) FROM topics), extract(epoch FROM clock_timestamp() - statement_timestamp())::float8,
				NOT EXISTS (SELECT FROM overdue), EXISTS (SELECT FROM behind), NOT EXISTS (SELECT FROM chosen) AND (
					EXISTS (SELECT FROM found WHERE front < position)
					OR NOT EXISTS (SELECT FROM found) AND EXISTS (
						SELECT FROM topics WHERE
							EXISTS (SELECT FROM {s}.outbox_queue AS q WHERE q.topic = topics.topic AND q.due = '-infinity' AND q.turn > topics.ready AND ` + free + `)
							OR EXISTS (SELECT FROM {s}.outbox_queue AS q WHERE q.topic = topics.topic AND q.due = 'epoch' AND q.turn > topics.arrived AND ` + free + `)
							OR EXISTS (SELECT FROM {s}.outbox_queue AS q WHERE q.topic = topics.topic AND q.due > topics.since AND q.due <= (SELECT t FROM n)))),
				(SELECT jsonb_object_agg(topic, turns) FROM (
					SELECT topic, jsonb_build_array(max(turn) FILTER (WHERE kind = 3), max(turn) FILTER (WHERE kind = 2)) AS turns
					FROM (SELECT topic, turn, kind FROM chosen UNION ALL SELECT topic, turn, kind FROM behind) AS taken GROUP BY topic) AS t)
			) AS whole ON coalesce(told.nth, 1) = 1
		ORDER BY told.nth`
)

const (
	// topicsAtOnce is of how many topics a claim takes messages at most.
	topicsAtOnce = 64
	// suspectRoom is how many suspects a claim reads over.
	suspectRoom = 64
	// arrivedRoom is how many messages a look reads beside those that it may claim, of
	// which it is not known whether others come before them. looksAtOnce is how often a
	// claim looks that finds only such as wait, or are locked.
	arrivedRoom = 32
	looksAtOnce = 16
)

// looked is what a look came to.
type looked struct {
	at          time.Time // by the server's clock
	chosen      int
	topics      []string
	seconds     float64
	noneOverdue bool
	parked      bool
	wrapped     bool // the topics before have not been looked at
	busy        bool // something is due, and others had it locked, or what is before it
	// Of each topic the turns of what was taken last: of what was ready, and of what
	// was looked at.
	taken map[string][2]*int64
}

// readLook reads the rows of sqlClaimMessages.
func readLook(rows pgx.Rows, fence int64) (l looked, claimed []outbox.Claimed, err error) {
	defer rows.Close()
	var (
		first            *int64 // NULL where nothing is claimed
		position         int64
		attempts, lapses int32
		m                outbox.Claimed
		headers          []byte
		before           pgtype.Timestamptz
		none             [8]any
	)
	whole := append([]any{&l.at, &l.chosen, &l.topics, &l.seconds, &l.noneOverdue, &l.parked, &l.busy, &l.taken, &first}, make([]any, 11)...)
	message := append(none[:], &position, &attempts, &lapses, &m.Unsure,
		&m.ID, &m.Topic, &m.Key, &m.Type, &headers, &m.Payload, &m.EnqueuedAt, &before)
	for n := 0; rows.Next(); n++ {
		if n == 0 {
			if err := rows.Scan(whole...); err != nil {
				return l, nil, err
			}
			if first == nil {
				continue
			}
			claimed = make([]outbox.Claimed, 0, l.chosen)
		}
		m = outbox.Claimed{Ref: outbox.Ref{Fence: uint64(fence)}}
		if err := rows.Scan(message...); err != nil {
			return l, nil, err
		}
		m.Position, m.Attempts, m.Lapses = uint64(position), int(attempts), int(lapses)
		if before.Valid {
			m.NotBefore = before.Time
		}
		if m.Headers, m.Malformed = readHeaders(headers); m.Malformed == nil {
			m.Malformed = m.Validate()
		}
		claimed = append(claimed, m)
	}
	return l, claimed, rows.Err()
}

func readHeaders(b []byte) (h map[string]string, err error) {
	if len(b) > 0 {
		if err := json.Unmarshal(b, &h); err != nil {
			return nil, errors.New("the headers are not a JSON object of texts")
		}
	}
	return h, nil
}

// Exchange implements outbox.Store. Messages of several topics are claimed in turn.
// Those that come back after a delay, or a lease, take up to half of a claim before
// those that were never tried.
func (o *Outbox) Exchange(ctx context.Context, s []outbox.Settlement, c outbox.Claim) (claimed []outbox.Claimed, lost []outbox.Ref, err error) {
	var steps []step
	if len(s) > 0 {
		sql, args, err := o.settle(s)
		if err != nil {
			return nil, nil, err
		}
		steps = append(steps, into(&lost, scanRef, sql, args...))
	}
	if c.Max <= 0 {
		err = o.store.ready(ctx)
		if len(steps) > 0 {
			err = o.store.atOnce(ctx, steps...)
		}
	} else {
		claimed, err = o.claim(ctx, steps, c)
	}
	if err != nil {
		return nil, nil, err
	}
	if len(lost) > 0 {
		var really []outbox.Ref
		if o.store.atOnce(ctx, into(&really, scanRef, o.store.sql.settledBefore, refArgs(lost)...)) == nil {
			lost = really
		}
	}
	return claimed, lost, nil
}

// claim claims, in the transaction of the first look behind the steps that are given.
// Where that found nothing that can be claimed at once, there are others.
func (o *Outbox) claim(ctx context.Context, steps []step, c outbox.Claim) ([]outbox.Claimed, error) {
	fully := o.floors.begin(false)
	for n := 0; ; n++ {
		claimed, l, err := o.look(ctx, steps, c, fully)
		if n > 0 && err != nil {
			err = nil // what was to be settled is; the next claim finds out
		}
		if err != nil || len(claimed) > 0 || n == looksAtOnce {
			return claimed, err
		}
		steps = nil
		switch {
		case l.parked || l.wrapped:
		case l.busy:
			o.store.rest(ctx, rand.N(2*time.Millisecond)) // locks are not held for long
		case fully || !o.floors.begin(true):
			return nil, nil
		default:
			fully = true
		}
	}
}

// look claims what it finds at one look, at the whole or behind the last ones.
func (o *Outbox) look(ctx context.Context, steps []step, c outbox.Claim, fully bool) (claimed []outbox.Claimed, l looked, err error) {
	fence := 1 + rand.Int64N(1<<62)
	args := []any{int64(c.Max), c.Suspect, int64(c.MaxBytes), fence, whole(c.Lease)}
	sql, named, after := o.store.sql.claimNamed, []string{c.Topic}, ""
	if c.Topic == "" {
		named, after = o.floors.all()
	}
	if any := c.Topic == "" && (fully || len(named) == 0); any {
		sql, args, fully = o.store.sql.claimAny, append(args, after), true
	} else {
		args, after = append(args, o.floors.of(named, fully)...), ""
	}
	read := func(rows pgx.Rows) (err error) {
		l, claimed, err = readLook(rows, fence)
		return err
	}
	if err := o.store.atOnce(ctx, append(steps, step{sql, args, read})...); err != nil {
		return nil, l, err
	}
	l.wrapped = after != "" && len(l.topics) < topicsAtOnce
	o.floors.end(fully, c.Topic == "", l)
	return claimed, l, nil
}

const (
	sqlMark = `
		UPDATE {s}.outbox_queue SET unsure = true WHERE position = $1 AND fence = $2 AND leased
		RETURNING position`
	// Locks are taken in one order.
	held = `
		held AS MATERIALIZED (
			SELECT s.*, q.position IS NOT NULL AS found, q.key, q.attempts, q.redriven
			FROM (SELECT DISTINCT ON (position, fence) * FROM s ORDER BY position, fence OFFSET 0) AS s LEFT JOIN LATERAL (
				SELECT position, key, attempts, redriven FROM {s}.outbox_queue AS q
				WHERE q.position = s.position AND q.fence = s.fence AND q.leased FOR UPDATE) AS q ON true)`
	lost             = `SELECT position, fence FROM held WHERE NOT found`
	sqlRenewMessages = `
		WITH s AS MATERIALIZED (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS s (position, fence)),` + held + `,
		done AS (
			UPDATE {s}.outbox_queue AS q SET due = n.t, until = n.t
			FROM held, (SELECT clock_timestamp() + $3::interval AS t OFFSET 0) AS n WHERE held.found AND q.position = held.position)
		` + lost

	// ends: the message leaves the queue.
	ends = `(held.outcome = 1 OR held.outcome IN (3, 4) AND NOT (held.blocks AND held.key IS NOT NULL))`
	// sqlSettle has the numbers of outcomes and states from Go.
	sqlSettle = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t),
		s AS MATERIALIZED (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::boolean[], $6::boolean[], $7::text[])
				AS s (position, fence, outcome, delay, unsure, blocks, cause)),` + held + `,
		gone AS (
			DELETE FROM {s}.outbox_queue AS q USING held
			WHERE held.found AND q.position = held.position AND ` + ends + `),
		ended AS (
			INSERT INTO {s}.outbox_settled (position, fence, settled_at, attempts, redriven, state, unsure, cause)
			SELECT position, fence, n.t, attempts, redriven, CASE outcome WHEN 1 THEN 2 ELSE outcome END,
				unsure AND outcome <> 1, CASE WHEN outcome <> 1 THEN cause END
			FROM held, n WHERE found AND ` + ends + `),
		kept AS (
			UPDATE {s}.outbox_queue AS q SET leased = false, lapses = 0,
				state = CASE WHEN outcome IN (3, 4) THEN outcome ELSE 1 END,
				due = CASE WHEN outcome IN (3, 4) THEN NULL WHEN outcome = 5 AND held.delay <= 0 THEN '-infinity'
					ELSE n.t + held.delay * interval '1 microsecond' END,
				turn = CASE outcome WHEN 5 THEN nextval('{q}.outbox_position') ELSE q.turn END,
				settled_at = CASE WHEN outcome IN (3, 4) THEN n.t END,
				attempts = q.attempts - (outcome = 5)::integer,
				unsure = CASE outcome WHEN 5 THEN q.unsure ELSE held.unsure END,
				cause = CASE outcome WHEN 5 THEN q.cause ELSE held.cause END
			FROM held, n WHERE held.found AND q.position = held.position AND NOT ` + ends + `)
		` + lost
	// sqlDelivered is sqlSettle for messages that have all been delivered, as most are:
	// it writes each row once, in one order too.
	sqlDelivered = `
		WITH s AS MATERIALIZED (
			SELECT DISTINCT position, fence FROM unnest($1::bigint[], $2::bigint[]) AS s (position, fence) ORDER BY position, fence),
		gone AS (
			DELETE FROM {s}.outbox_queue AS q USING s
			WHERE q.position = s.position AND q.fence = s.fence AND q.leased
			RETURNING q.position, q.fence, q.attempts, q.redriven),
		ended AS (
			INSERT INTO {s}.outbox_settled (position, fence, settled_at, attempts, redriven, state, unsure)
			SELECT position, fence, (SELECT clock_timestamp()), attempts, redriven, 2, false FROM gone)
		SELECT position, fence FROM s WHERE (position, fence) NOT IN (SELECT position, fence FROM gone)`
	// sqlSettledBefore is asked behind sqlSettle, which may have waited for what it
	// then did not find.
	sqlSettledBefore = `
		SELECT position, fence FROM unnest($1::bigint[], $2::bigint[]) AS s (position, fence)
		WHERE NOT EXISTS (SELECT FROM {s}.outbox_settled AS d WHERE d.position = s.position AND d.fence = s.fence)
			AND NOT EXISTS (SELECT FROM {s}.outbox_queue AS q WHERE q.position = s.position AND q.fence = s.fence AND NOT q.leased)`
)

// sqlSettleInside settles a claim in somebody's transaction, with the plans that are
// usual there. It waits for a renewal, which moves the row, and sees it after that.
const sqlSettleInside = `
	WITH gone AS (
		DELETE FROM {s}.outbox_queue WHERE position = $1 AND fence = $2 AND leased RETURNING position, fence, attempts, redriven)
	INSERT INTO {s}.outbox_settled (position, fence, settled_at, attempts, redriven, state, unsure)
	SELECT position, fence, clock_timestamp(), attempts, redriven, 2, false FROM gone`

// SettleTx implements outbox.Settler, in the transaction of the claim or of the
// message that a handler works under: see Tx. It locks the message until that ends.
//
// At repeatable read and above it fails, with SQLSTATE 40001, where the lease was
// renewed after the transaction began; and where the message has a key.
func (o *Outbox) SettleTx(ctx context.Context, ref outbox.Ref) error {
	tx, ok := Tx(ctx)
	if !ok {
		return ErrNoTransaction
	}
	tag, err := tx.Exec(ctx, o.store.sql.settleInside, int64(ref.Position), int64(ref.Fence))
	switch {
	case sqlState(err) == "0A000":
		return fmt.Errorf("postgres: settle: a message with a key is settled in a transaction at read committed only: have its worker use a store of that Isolation; nothing took effect, and a retry is safe: %w", err)
	case err != nil:
		return fmt.Errorf("postgres: settle: %w", err)
	case tag.RowsAffected() == 0:
		return outbox.ErrLeaseLost
	}
	return nil
}

// Mark implements outbox.Store.
func (o *Outbox) Mark(ctx context.Context, ref outbox.Ref) error {
	var marked []int64
	err := o.store.atOnce(ctx, into(&marked, pgx.RowTo[int64], o.store.sql.markMessage, int64(ref.Position), int64(ref.Fence)))
	if err == nil && len(marked) == 0 {
		err = outbox.ErrLeaseLost
	}
	return err
}

func scanRef(row pgx.CollectableRow) (outbox.Ref, error) {
	var position, fence int64
	err := row.Scan(&position, &fence)
	return outbox.Ref{Position: uint64(position), Fence: uint64(fence)}, err
}

// refArgs are the columns of refs.
func refArgs(refs []outbox.Ref) []any {
	positions, fences := make([]int64, len(refs)), make([]int64, len(refs))
	for i, r := range refs {
		positions[i], fences[i] = int64(r.Position), int64(r.Fence)
	}
	return []any{positions, fences}
}

// Renew implements outbox.Store.
func (o *Outbox) Renew(ctx context.Context, lease time.Duration, refs []outbox.Ref) (lost []outbox.Ref, err error) {
	err = o.store.atOnce(ctx, into(&lost, scanRef, o.store.sql.renewMessages, append(refArgs(refs), whole(lease))...))
	return lost, err
}

// settle returns what settles, and the columns of settlements.
func (o *Outbox) settle(settlements []outbox.Settlement) (sql string, args []any, err error) {
	var (
		outcomes        []int16
		delays          []int64
		unsures, blocks []bool
		causes          []pgtype.Text
		others          bool
	)
	refs := make([]outbox.Ref, len(settlements))
	for i, s := range settlements {
		if err := s.Validate(); err != nil {
			return "", nil, err
		}
		refs[i] = s.Ref
		others = others || s.Outcome != outbox.OutcomeDelivered
	}
	if !others {
		return o.store.sql.delivered, refArgs(refs), nil
	}
	for _, s := range settlements {
		outcomes, delays = append(outcomes, int16(s.Outcome)), append(delays, whole(s.Delay).Microseconds())
		unsures, blocks = append(unsures, s.Unsure), append(blocks, s.Blocks)
		causes = append(causes, pgtype.Text{String: text(s.Cause), Valid: s.Cause != ""})
	}
	return o.store.sql.settle, append(refArgs(refs), outcomes, delays, unsures, blocks, causes), nil
}
