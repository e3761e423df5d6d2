package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

// maxTopics is how many topics a status tells of.
const maxTopics = 1000

const (
	selectWaitingTopics = `
		WITH RECURSIVE next (topic) AS (
			SELECT (SELECT topic FROM outbox WHERE state = 'pending' ORDER BY topic LIMIT 1)
			UNION ALL
			SELECT (SELECT o.topic FROM outbox o WHERE o.state = 'pending' AND o.topic > next.topic ORDER BY o.topic LIMIT 1)
			FROM next WHERE next.topic IS NOT NULL
		)
		SELECT topic,
			(SELECT coalesce(o.not_before, o.created_at) FROM outbox o WHERE o.state = 'pending' AND o.topic = next.topic
				ORDER BY coalesce(o.not_before, o.created_at) LIMIT 1),
			(SELECT count(*) FROM (SELECT 1 FROM outbox o WHERE o.state = 'pending' AND o.topic = next.topic LIMIT 0 + ?))
		FROM next WHERE topic IS NOT NULL LIMIT 0 + ?`
	selectGivenUp = `
		SELECT topic, state, count(*), sum(in_lane = 1 AND key IS NOT NULL)
		FROM (SELECT topic, state, in_lane, key FROM outbox WHERE state = ?1 AND state <> 'pending' LIMIT 0 + ?2)
		GROUP BY topic, state LIMIT 0 + ?3`
)

// Status implements outbox.Store. It reports the first 1,000 topics.
func (o *Outbox) Status(ctx context.Context) (all []outbox.TopicStatus, err error) {
	err = o.store.read(ctx, func(c *conn) error {
		all = nil
		now := time.Now().UnixMicro()
		at := map[string]int{}
		of := func(topic string) *outbox.TopicStatus {
			i, ok := at[topic]
			if !ok {
				i = len(all)
				at[topic] = i
				all = append(all, outbox.TopicStatus{Topic: topic})
			}
			return &all[i]
		}
		err := c.query(selectWaitingTopics, func(r *row) {
			s := of(r.text())
			s.OldestAge = time.Duration(max(now-r.int(), 0)) * time.Microsecond
			s.Pending = int(r.int())
		}, int64(outbox.CountLimit), int64(maxTopics))
		for _, state := range []outbox.State{outbox.StateDead, outbox.StateUnknown} {
			if err != nil {
				return err
			}
			err = c.query(selectGivenUp, func(r *row) {
				s := of(r.text())
				if outbox.State(r.text()) == outbox.StateDead {
					s.Dead = int(r.int())
				} else {
					s.Unknown = int(r.int())
				}
				s.Blocked = min(s.Blocked+int(r.int()), outbox.CountLimit)
			}, string(state), int64(outbox.CountLimit), int64(maxTopics))
		}
		return err
	})
	slices.SortFunc(all, func(a, b outbox.TopicStatus) int { return cmp.Compare(a.Topic, b.Topic) })
	return all, err
}

// The conditions repeat what the index says of itself, or it would not be used.
const (
	notBlocking    = ` AND NOT (in_lane = 1 AND key IS NOT NULL) AND state <> 'pending'`
	selectSurplus  = `SELECT settled_at, position FROM outbox WHERE state = ?` + notBlocking + ` ORDER BY settled_at DESC, position DESC LIMIT 1 OFFSET 0 + ?`
	deleteMessages = `
		DELETE FROM outbox WHERE position IN (
			SELECT position FROM outbox WHERE state = ?` + notBlocking + ` AND (settled_at, position) <= (?, ?)
			ORDER BY settled_at, position LIMIT 0 + ?)`
)

// Sweep implements outbox.Store. If it fails halfway, it returns the number
// removed so far along with the error.
func (o *Outbox) Sweep(ctx context.Context, r outbox.Retention, limit int) (removed int, err error) {
	r = r.WithDefaults()
	for _, s := range []struct {
		state outbox.State
		age   time.Duration
		most  int
	}{
		{outbox.StateDelivered, r.Delivered, r.MaxDelivered},
		{outbox.StateDead, r.Dead, r.MaxDead},
	} {
		var at, position int64 // the latest to remove
		if s.age >= 0 {
			at, position = time.Now().UnixMicro()-micros(s.age), 1<<62
		}
		if s.most >= 0 {
			err := o.store.read(ctx, func(c *conn) error {
				return c.query(selectSurplus, func(r *row) {
					if settled, p := r.int(), r.int(); settled >= at {
						at, position = settled, p
					}
				}, string(s.state), int64(s.most))
			})
			if err != nil {
				return removed, err
			}
		}
		for more := at > 0; more && removed < limit; {
			rows := min(sweepRows, limit-removed)
			n, err := write(ctx, o.store, 0, func(t *tx) (int64, error) {
				return t.exec(deleteMessages, string(s.state), at, position, int64(rows))
			})
			if err != nil {
				return removed, err
			}
			removed += int(n)
			more = n > 0
		}
	}
	return removed, nil
}

const entryColumns = `position, id, topic, key, type, headers, created_at, not_before, state, due, leased,
	attempts, lapses, unsure, redriven, in_lane, settled_at, cause, origin, octet_length(payload)`

// entry reads entryColumns.
func (r *row) entry(now int64) (e outbox.Entry) {
	e.Position = uint64(r.int())
	e.ID, e.Topic, e.Key, e.Type = r.text(), r.text(), r.text(), r.text()
	e.Headers, _ = storekit.Headers([]byte(r.text())) // what is malformed can be looked at all the same
	e.EnqueuedAt = time.UnixMicro(r.int())
	e.NotBefore, _ = r.time()
	e.State = outbox.State(r.text())
	due, scheduled := r.number()
	leased := r.int() != 0
	e.Attempts, e.Lapses, e.Unsure, e.Redriven = int(r.int()), int(r.int()), r.int() != 0, int(r.int())
	inLane := r.int() != 0 && e.Key != ""
	e.SettledAt, _ = r.time()
	e.Cause, e.Origin, e.Size = r.text(), r.text(), int(r.int())
	switch {
	case e.State != outbox.StatePending:
		e.Blocks = inLane
	case !scheduled:
		e.Waiting = true
	case leased:
		e.LeaseLeft = time.Duration(max(due-now, 0)) * time.Microsecond
	case due > now:
		e.DueAt = time.UnixMicro(due)
	}
	return e
}

// Find implements outbox.Admin.
func (o *Outbox) Find(ctx context.Context, id string) (e outbox.Entry, err error) {
	found := false
	err = o.store.read(ctx, func(c *conn) error {
		found = false
		return c.queryOnce(ctx, "SELECT "+entryColumns+", CAST(payload AS BLOB) FROM outbox WHERE id = ?", func(r *row) {
			found = true
			e = r.entry(time.Now().UnixMicro())
			e.Payload = r.blob()
		}, id)
	})
	if err == nil && !found {
		err = outbox.ErrNotFound
	}
	if err == nil {
		e.Decisions, err = outbox.DecisionsIn(ctx, o.store, id)
	}
	return e, err
}

// ofOrigin goes through the buckets of the index.
const ofOrigin = `position IN (
	WITH RECURSIVE bucket (n) AS (
		SELECT (SELECT min(position) FROM outbox) >> 11
		UNION ALL
		SELECT n + 1 FROM bucket WHERE n < (SELECT max(position) FROM outbox) >> 11
	)
	SELECT o.position FROM bucket CROSS JOIN outbox o INDEXED BY outbox_origin
	WHERE o.position >> 11 = bucket.n AND o.origin = ? AND o.origin IS NOT NULL)`

// selection is a query for the messages that f selects, and that meet one more
// condition.
func selection(f outbox.Filter, columns, also string) (query string, args []driver.Value) {
	table, conditions := "outbox", []string{also}
	add := func(condition string, values ...driver.Value) {
		conditions = append(conditions, condition)
		args = append(args, values...)
	}
	add("position > ?", int64(min(f.After, math.MaxInt64)))
	if f.State != "" && f.State != outbox.StatePending {
		table = "outbox INDEXED BY outbox_settled"
		add("state <> 'pending'")
	}
	for _, c := range []struct{ column, value string }{
		{"id", f.ID}, {"state", string(f.State)}, {"topic", f.Topic}, {"key", f.Key},
	} {
		if c.value != "" {
			add(c.column+" = ?", c.value)
		}
	}
	if f.Origin != "" {
		add(ofOrigin, f.Origin)
	}
	if f.TopicPrefix != "" {
		add("substr(topic, 1, length(?)) = ?", f.TopicPrefix, f.TopicPrefix)
	}
	if prefix, ok := strings.CutSuffix(f.Cause, "*"); ok {
		add("substr(cause, 1, length(?)) = ?", prefix, prefix)
	} else if f.Cause != "" {
		add("cause = ?", f.Cause)
	}
	return "SELECT " + columns + " FROM " + table + " WHERE " + strings.Join(conditions, " AND ") +
		" ORDER BY position LIMIT " + strconv.Itoa(storekit.PageSize(f.Limit)), args
}

// List implements outbox.Admin.
func (o *Outbox) List(ctx context.Context, f outbox.Filter) (page []outbox.Entry, err error) {
	query, args := selection(f, entryColumns, "true")
	err = o.store.read(ctx, func(c *conn) error {
		page = nil
		now := time.Now().UnixMicro()
		return c.queryOnce(ctx, query, func(r *row) { page = append(page, r.entry(now)) }, args...)
	})
	return page, err
}

// redriveOne puts a message back. One that kept its place in its lane is first
// in it.
const redriveOne = `
	UPDATE outbox SET state = 'pending', due = 0, attempts = 0, lapses = 0, unsure = 0, redriven = redriven + 1, settled_at = NULL
	WHERE position = ?`

// Redrive implements outbox.Admin.
func (o *Outbox) Redrive(ctx context.Context, f outbox.Filter) ([]outbox.Redriven, error) {
	return o.redrive(ctx, f, outbox.Decision{})
}

// Decide implements outbox.Admin.
func (o *Outbox) Decide(ctx context.Context, f outbox.Filter, d outbox.Decision) ([]outbox.Redriven, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if d.Verdict == outbox.VerdictAgain {
		return o.redrive(ctx, f, d)
	}
	return o.change(ctx, f, d, "false", "state = 'pending'", cancelOne, func(t *tx, position int64) []driver.Value {
		return []driver.Value{1 + rand.Int64N(1<<62), t.now, storekit.Cut(d.Cause()), position}
	})
}

// cancelOne ends whatever claim there is.
const cancelOne = `
	UPDATE outbox SET state = 'dead', due = NULL, leased = 0, lapses = 0, in_lane = 0, fence = ?, settled_at = ?, cause = ?
	WHERE position = ?`

func (o *Outbox) redrive(ctx context.Context, f outbox.Filter, d outbox.Decision) ([]outbox.Redriven, error) {
	states := "state IN ('dead', 'unknown')"
	if f.ID != "" && f.State == outbox.StateDelivered {
		states = "true"
	}
	return o.change(ctx, f, d, "key IS NOT NULL AND in_lane = 0", states, redriveOne, func(_ *tx, position int64) []driver.Value {
		return []driver.Value{position}
	})
}

// change changes the messages that f selects and that meet one more condition, and
// puts a decision on record.
func (o *Outbox) change(ctx context.Context, f outbox.Filter, d outbox.Decision, outOfOrder, also, statement string, args func(*tx, int64) []driver.Value) ([]outbox.Redriven, error) {
	query, selected := selection(f, "position, id, topic, "+outOfOrder, also)
	done, err := write(ctx, o.store, 512*max(f.Limit, 100), func(t *tx) (done []outbox.Redriven, err error) {
		var topics []string
		err = t.look(query, func(r *row) {
			m := outbox.Redriven{Position: uint64(r.int()), ID: r.text()}
			topics = append(topics, r.text())
			m.OutOfOrder = r.int() != 0
			done = append(done, m)
		}, selected)
		for i, m := range done {
			if err == nil {
				_, err = t.exec(statement, args(t, int64(m.Position))...)
			}
			if err == nil && d.By != "" {
				err = t.append(time.UnixMicro(t.now), d.Entry(m.ID, topics[i]))
			}
		}
		return done, err
	})
	if err == nil && len(done) > 0 {
		o.Wake()
	}
	return done, err
}

// Purge implements outbox.Admin.
func (o *Outbox) Purge(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	if f.ID == "" && f.State == "" {
		return nil, outbox.ErrPurgeAll
	}
	gone, err := write(ctx, o.store, 64*max(f.Limit, 100), func(t *tx) (gone []outbox.Entry, err error) {
		query, args := selection(f, entryColumns, "(leased = 0 OR due <= ?)")
		args = append([]driver.Value{t.now}, args...)
		err = t.look(query, func(r *row) { gone = append(gone, r.entry(t.now)) }, args)
		for _, e := range gone {
			if err == nil {
				_, err = t.exec("DELETE FROM outbox WHERE position = ?", int64(e.Position))
			}
		}
		return gone, err
	})
	if err == nil && len(gone) > 0 {
		o.Wake()
	}
	return gone, err
}

// look is query for a query that is not worth keeping prepared.
func (t *tx) look(query string, each func(*row), args []driver.Value) error {
	err := t.conn.queryOnce(context.Background(), query, each, args...)
	if err != nil {
		t.fail(err)
	}
	return err
}
