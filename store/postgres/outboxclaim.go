package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

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
	// The first row describes the whole.
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

// looked is the result of a look.
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
		if m.Headers, m.Malformed = storekit.Headers(headers); m.Malformed == nil {
			m.Malformed = m.Validate()
		}
		claimed = append(claimed, m)
	}
	return l, claimed, rows.Err()
}

// Exchange implements outbox.Store. Messages of several topics are claimed in turn.
// Messages whose delay or lease has ended fill up to half of a claim, ahead of
// messages that were never tried.
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

// claim claims messages, with its first look in the same transaction as the given
// steps, which come first. If that look found nothing that can be claimed at once,
// there are others.
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
			storekit.Rest(ctx, o.store.notes.stop, rand.N(2*time.Millisecond)) // locks are not held for long
		case fully || !o.floors.begin(true):
			return nil, nil
		default:
			fully = true
		}
	}
}

// look claims what it finds in one look, at everything or after the last ones.
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

// Mark implements outbox.Store.
func (o *Outbox) Mark(ctx context.Context, ref outbox.Ref) error {
	var marked []int64
	err := o.store.atOnce(ctx, into(&marked, pgx.RowTo[int64], o.store.sql.markMessage, int64(ref.Position), int64(ref.Fence)))
	if err == nil && len(marked) == 0 {
		err = outbox.ErrLeaseLost
	}
	return err
}

// Renew implements outbox.Store.
func (o *Outbox) Renew(ctx context.Context, lease time.Duration, refs []outbox.Ref) (lost []outbox.Ref, err error) {
	err = o.store.atOnce(ctx, into(&lost, scanRef, o.store.sql.renewMessages, append(refArgs(refs), whole(lease))...))
	return lost, err
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
