package postgres

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

// maxTopics is how many topics a status tells of.
const maxTopics = 1000

// states are the numbers of states.
var states = map[outbox.State]int16{
	outbox.StatePending: 1, outbox.StateDelivered: 2, outbox.StateDead: 3, outbox.StateUnknown: 4,
}

func stateOf(n int16) outbox.State {
	for s, number := range states {
		if number == n {
			return s
		}
	}
	return ""
}

const (
	// sqlStatus counts what is pending, and what is given up.
	sqlStatus = `
		WITH RECURSIVE next (topic) AS (
			SELECT (SELECT topic FROM {s}.outbox_queue WHERE state = 1 ORDER BY topic LIMIT 1)
			UNION ALL
			SELECT (SELECT q.topic FROM {s}.outbox_queue q WHERE q.state = 1 AND q.topic > next.topic ORDER BY q.topic LIMIT 1)
			FROM next WHERE next.topic IS NOT NULL
		)
		SELECT topic, 1::smallint, (SELECT count(*) FROM (SELECT FROM {s}.outbox_queue q WHERE q.state = 1 AND q.topic = next.topic LIMIT $1) AS c), 0::bigint,
			greatest(clock_timestamp() - (
				SELECT q.since FROM {s}.outbox_queue q WHERE q.state = 1 AND q.topic = next.topic ORDER BY q.since LIMIT 1), '0')
		FROM (SELECT topic FROM next WHERE topic IS NOT NULL LIMIT $2) AS next
		UNION ALL
		(SELECT topic, state, count(*), sum(blocks), interval '0' FROM (
			(SELECT topic, state, 1 AS blocks FROM {s}.outbox_queue WHERE state <> 1 LIMIT $1)
			UNION ALL
			(SELECT o.topic, d.state, 0 FROM (
				SELECT position, state FROM {s}.outbox_settled WHERE state IN (3, 4) LIMIT $1) AS d
				JOIN {s}.outbox o ON o.position = d.position)) AS given_up
		GROUP BY topic, state LIMIT $2)`

	sqlSurplus      = `SELECT settled_at, position FROM {s}.outbox_settled WHERE state = $1 ORDER BY settled_at DESC, position DESC LIMIT 1 OFFSET $2`
	sqlSweepSettled = `
		DELETE FROM {s}.outbox WHERE position IN (
			SELECT position FROM {s}.outbox_settled
			WHERE state = $1 AND (settled_at < (SELECT clock_timestamp()) - $2::interval OR (settled_at, position) <= ($3::timestamptz, $4::bigint))
			ORDER BY settled_at, position LIMIT $5 FOR UPDATE SKIP LOCKED)
		RETURNING position`

	messageColumns = `position, id, topic, coalesce(key, ''), type, headers, created_at, not_before, state, due IS NOT NULL,
		leased, CASE WHEN leased THEN greatest(due - clock_timestamp(), '0') ELSE '0' END, CASE WHEN isfinite(due) AND due > clock_timestamp() THEN due END,
		attempts, lapses, unsure, redriven, in_lane, settled_at, coalesce(cause, ''), coalesce(origin, ''), octet_length(payload)`
)

// Status implements outbox.Store. It reports the first 1,000 topics.
func (o *Outbox) Status(ctx context.Context) ([]outbox.TopicStatus, error) {
	at := map[string]*outbox.TopicStatus{}
	var none []struct{}
	err := o.store.atOnce(ctx, into(&none, func(row pgx.CollectableRow) (struct{}, error) {
		var (
			topic          string
			state          int16
			count, blocked int
			age            time.Duration
		)
		err := row.Scan(&topic, &state, &count, &blocked, &age)
		s := at[topic]
		if s == nil {
			s = &outbox.TopicStatus{Topic: topic}
			at[topic] = s
		}
		count = min(count, outbox.CountLimit)
		switch stateOf(state) {
		case outbox.StatePending:
			s.Pending, s.OldestAge = count, age
		case outbox.StateDead:
			s.Dead = count
		case outbox.StateUnknown:
			s.Unknown = count
		}
		s.Blocked = min(s.Blocked+blocked, outbox.CountLimit)
		return struct{}{}, err
	}, o.store.sql.status, outbox.CountLimit, maxTopics))
	if err != nil {
		return nil, err
	}
	var all []outbox.TopicStatus
	for _, s := range at {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b outbox.TopicStatus) int { return cmp.Compare(a.Topic, b.Topic) })
	return all, nil
}

// Sweep implements outbox.Store. Several relays may sweep at the same time
// without waiting for each other. If it fails halfway, it returns the number
// removed so far along with the error.
func (o *Outbox) Sweep(ctx context.Context, r outbox.Retention, limit int) (removed int, err error) {
	r = r.WithDefaults()
	type place struct {
		at       time.Time
		position int64
	}
	for _, s := range []struct {
		state outbox.State
		age   time.Duration
		most  int
	}{
		{outbox.StateDelivered, r.Delivered, r.MaxDelivered},
		{outbox.StateDead, r.Dead, r.MaxDead},
	} {
		var age *time.Duration
		if s.age >= 0 {
			d := whole(s.age)
			age = &d
		}
		var surplus []place // the latest of it
		if s.most >= 0 {
			err := o.store.atOnce(ctx, into(&surplus, func(row pgx.CollectableRow) (p place, err error) {
				err = row.Scan(&p.at, &p.position)
				return p, err
			}, o.store.sql.surplus, states[s.state], s.most))
			if err != nil {
				return removed, err
			}
		}
		var at, position any
		if len(surplus) > 0 {
			at, position = surplus[0].at, surplus[0].position
		}
		for more := age != nil || len(surplus) > 0; more && removed < limit; {
			var gone []int64
			err := o.store.atOnce(ctx, into(&gone, pgx.RowTo[int64], o.store.sql.sweepSettled,
				states[s.state], age, at, position, min(sweepRows, limit-removed)))
			if err != nil {
				return removed, err
			}
			removed += len(gone)
			more = len(gone) > 0
		}
	}
	return removed, nil
}

// scanEntry reads messageColumns, and the columns after them.
func scanEntry(row pgx.CollectableRow, further ...any) (e outbox.Entry, err error) {
	var (
		position               int64
		headers                []byte
		state                  int16
		scheduled, leased, in  bool
		left                   time.Duration
		before, due, settledAt *time.Time
	)
	err = row.Scan(append([]any{
		&position, &e.ID, &e.Topic, &e.Key, &e.Type, &headers, &e.EnqueuedAt, &before, &state, &scheduled, &leased, &left, &due,
		&e.Attempts, &e.Lapses, &e.Unsure, &e.Redriven, &in, &settledAt, &e.Cause, &e.Origin, &e.Size,
	}, further...)...)
	if err != nil {
		return e, err
	}
	e.Position, e.State = uint64(position), stateOf(state)
	e.Headers, _ = storekit.Headers(headers) // what is malformed can be looked at all the same
	for to, from := range map[*time.Time]*time.Time{&e.NotBefore: before, &e.SettledAt: settledAt} {
		if from != nil {
			*to = *from
		}
	}
	switch {
	case e.State != outbox.StatePending:
		e.Blocks = in
	case !scheduled:
		e.Waiting = true
	case leased:
		e.LeaseLeft = left
	case due != nil:
		e.DueAt = *due
	}
	return e, nil
}

// Find implements outbox.Admin.
func (o *Outbox) Find(ctx context.Context, id string) (e outbox.Entry, err error) {
	var found []outbox.Entry
	err = o.store.atOnce(ctx, into(&found, func(row pgx.CollectableRow) (outbox.Entry, error) {
		var payload []byte
		e, err := scanEntry(row, &payload)
		e.Payload = payload
		return e, err
	}, in(o.store.config.Schema, "SELECT "+messageColumns+", payload FROM {s}.outbox_message WHERE id = $1"), id))
	if err != nil {
		return e, err
	}
	if len(found) == 0 {
		return e, outbox.ErrNotFound
	}
	e = found[0]
	e.Decisions, err = outbox.DecisionsIn(ctx, o.store, id)
	return e, err
}

// selection is the end of a query for the messages that f selects, and that meet one
// more condition.
func selection(f outbox.Filter, also string) (query string, args []any) {
	conditions := []string{also}
	add := func(condition string, value any) {
		args = append(args, value)
		conditions = append(conditions, fmt.Sprintf(condition, len(args)))
	}
	add("position > $%d", int64(min(f.After, math.MaxInt64)))
	for _, c := range []struct{ column, value string }{{"id", f.ID}, {"topic", f.Topic}, {"key", f.Key}, {"origin", f.Origin}} {
		if c.value != "" {
			add(c.column+" = $%d", c.value)
		}
	}
	if f.State != "" {
		add("state = $%d", states[f.State])
	}
	if f.TopicPrefix != "" {
		add("starts_with(topic, $%d)", f.TopicPrefix)
	}
	if prefix, ok := strings.CutSuffix(f.Cause, "*"); ok {
		add("starts_with(cause, $%d)", prefix)
	} else if f.Cause != "" {
		add("cause = $%d", f.Cause)
	}
	return " WHERE " + strings.Join(conditions, " AND ") + " ORDER BY position LIMIT " + strconv.Itoa(storekit.PageSize(f.Limit)), args
}

// List implements outbox.Admin.
func (o *Outbox) List(ctx context.Context, f outbox.Filter) (page []outbox.Entry, err error) {
	query, args := selection(f, "true")
	err = o.store.atOnce(ctx, into(&page, func(row pgx.CollectableRow) (outbox.Entry, error) { return scanEntry(row) },
		in(o.store.config.Schema, "SELECT "+messageColumns+" FROM {s}.outbox_message"+query), args...))
	return page, err
}

const (
	// sqlRedrive puts messages back. One that kept its place in its lane is first in it;
	// the others are in no lane any more. Who waited for another's lock finds that the
	// messages have left.
	sqlRedrive = `
	WITH wanted AS MATERIALIZED (SELECT position, id, topic, key IS NOT NULL AND NOT in_lane AS out_of_order FROM {s}.outbox_message%s),
	back AS (
		UPDATE {s}.outbox_queue AS q SET state = 1, due = '-infinity', turn = nextval('{q}.outbox_position'),
			attempts = 0, lapses = 0, unsure = false, redriven = q.redriven + 1, settled_at = NULL
		FROM wanted WHERE q.position = wanted.position AND q.state <> 1
		RETURNING q.position),
	gone AS (
		DELETE FROM {s}.outbox_settled AS d USING wanted WHERE d.position = wanted.position RETURNING d.position, d.redriven, d.cause),
	again AS (
		INSERT INTO {s}.outbox_queue (position, turn, due, since, not_before, size, redriven, head, topic, cause)
		SELECT o.position, nextval('{q}.outbox_position'), '-infinity', coalesce(o.not_before, o.created_at), o.not_before, octet_length(o.payload),
			gone.redriven + 1, true, o.topic, gone.cause
		FROM gone JOIN {s}.outbox AS o ON o.position = gone.position
		RETURNING position),
	done AS (SELECT wanted.* FROM wanted JOIN (TABLE back UNION ALL TABLE again) AS b ON b.position = wanted.position)`
	// sqlCancel gives up pending messages. The owner of a claim finds another fence. If
	// an owner is settling the message in a transaction that has not ended, the
	// statement waits for it.
	sqlCancel = `
	WITH wanted AS MATERIALIZED (SELECT position, id, topic, false AS out_of_order FROM {s}.outbox_message%s),
	gone AS (
		DELETE FROM {s}.outbox_queue AS q USING wanted WHERE q.position = wanted.position AND q.state = 1
		RETURNING wanted.*, q.attempts, q.redriven, q.unsure),
	settled AS (
		INSERT INTO {s}.outbox_settled (position, fence, settled_at, attempts, redriven, state, unsure, cause)
		SELECT position, %d, clock_timestamp(), attempts, redriven, 3, unsure, %s FROM gone),
	done AS (SELECT position, id, topic, out_of_order FROM gone)`
	sqlDecided = `,
	noted AS (
		INSERT INTO {s}.trail (at, kind, fence, tenant, actor, operation, key, request_id, event_id, cause)
		SELECT clock_timestamp(), %s, 0, '', '', topic, '', %s, id, %s FROM done)`
	sqlDone = ` SELECT position, id, out_of_order FROM done ORDER BY position`
)

// Redrive implements outbox.Admin.
func (o *Outbox) Redrive(ctx context.Context, f outbox.Filter) ([]outbox.Redriven, error) {
	query, args := selection(f, redrivable(f))
	return o.change(ctx, fmt.Sprintf(sqlRedrive, query)+sqlDone, args)
}

func redrivable(f outbox.Filter) string {
	if f.ID != "" && f.State == outbox.StateDelivered {
		return "state = 2"
	}
	return "state IN (3, 4)"
}

// Decide implements outbox.Admin.
func (o *Outbox) Decide(ctx context.Context, f outbox.Filter, d outbox.Decision) ([]outbox.Redriven, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	var sql string
	query, args := selection(f, redrivable(f))
	if d.Verdict == outbox.VerdictCancel {
		query, args = selection(f, "state = 1")
	}
	arg := func(text string) string {
		args = append(args, text)
		return fmt.Sprintf("$%d::text", len(args))
	}
	if d.Verdict == outbox.VerdictCancel {
		sql = fmt.Sprintf(sqlCancel, query, 1+rand.Int64N(1<<62), arg(d.Cause()))
	} else {
		sql = fmt.Sprintf(sqlRedrive, query)
	}
	e := d.Entry("", "")
	return o.change(ctx, sql+fmt.Sprintf(sqlDecided, arg(string(e.Kind)), arg(e.RequestID), arg(e.Cause))+sqlDone, args)
}

func (o *Outbox) change(ctx context.Context, sql string, args []any) (done []outbox.Redriven, err error) {
	err = o.store.atOnce(ctx, into(&done, func(row pgx.CollectableRow) (r outbox.Redriven, err error) {
		var position int64
		err = row.Scan(&position, &r.ID, &r.OutOfOrder)
		r.Position = uint64(position)
		return r, err
	}, in(o.store.config.Schema, sql), args...))
	if err == nil && len(done) > 0 {
		o.Wake()
	}
	return done, err
}

// sqlPurge removes messages. It waits for nobody: a message that is being claimed or
// settled is left alone. It checks each message again once it is locked.
const sqlPurge = `
	WITH wanted AS MATERIALIZED (SELECT * FROM {s}.outbox_message%s),
	locked AS MATERIALIZED (
		SELECT q.position FROM wanted CROSS JOIN LATERAL (
			SELECT position FROM {s}.outbox_queue AS q
			WHERE q.position = wanted.position AND q.state = wanted.state AND (NOT q.leased OR q.until <= clock_timestamp()) FOR UPDATE SKIP LOCKED) AS q
		UNION ALL
		SELECT d.position FROM wanted CROSS JOIN LATERAL (
			SELECT position FROM {s}.outbox_settled AS d WHERE d.position = wanted.position FOR UPDATE SKIP LOCKED) AS d),
	gone AS (DELETE FROM {s}.outbox AS o USING locked WHERE o.position = locked.position RETURNING o.position)
	SELECT ` + messageColumns + ` FROM wanted WHERE position IN (SELECT position FROM gone) ORDER BY position`

// Purge implements outbox.Admin.
func (o *Outbox) Purge(ctx context.Context, f outbox.Filter) (gone []outbox.Entry, err error) {
	if f.ID == "" && f.State == "" {
		return nil, outbox.ErrPurgeAll
	}
	query, args := selection(f, "(NOT leased OR due <= clock_timestamp())")
	err = o.store.atOnce(ctx, into(&gone, func(row pgx.CollectableRow) (outbox.Entry, error) { return scanEntry(row) },
		in(o.store.config.Schema, fmt.Sprintf(sqlPurge, query)), args...))
	if err == nil && len(gone) > 0 {
		o.Wake()
	}
	return gone, err
}
