package sqlite

import (
	"context"
	"database/sql/driver"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

// Who searches for what is due finds it at the beginning of a topic's part of
// the index: first what has no time, then what is over, then what is not.
//
// A LIMIT that is a parameter and no more would have SQLite prepare the statement
// anew for each value.
const (
	selectFresh = `
		SELECT position, 0, octet_length(payload) FROM outbox
		WHERE topic = ? AND due = 0 ORDER BY position LIMIT 0 + ?`
	selectOverdue = `
		SELECT position, lapses + leased, octet_length(payload) FROM outbox
		WHERE topic = ? AND due > 0 AND due <= ? ORDER BY due LIMIT 0 + ?`
	existsDue = `SELECT topic FROM outbox WHERE topic = ? AND due <= ? LIMIT 1`
	// From one topic to the next, without what is between.
	selectDueTopics = `
		WITH RECURSIVE next (topic) AS (
			SELECT (SELECT topic FROM outbox WHERE due IS NOT NULL AND topic > ?1 ORDER BY topic LIMIT 1)
			UNION ALL
			SELECT (SELECT o.topic FROM outbox o WHERE o.due IS NOT NULL AND o.topic > next.topic ORDER BY o.topic LIMIT 1)
			FROM next WHERE next.topic IS NOT NULL
		)
		SELECT topic FROM next
		WHERE topic IS NOT NULL AND EXISTS (SELECT 1 FROM outbox o WHERE o.topic = next.topic AND o.due <= ?2)
		LIMIT 0 + ?3`
	existsDelayed = `SELECT 1 FROM outbox WHERE due IS NOT NULL LIMIT 1`
	selectClock   = `SELECT at FROM outbox_clock`
	// What was enqueued with a time keeps it: that is a time of the calendar.
	shiftDelays   = `UPDATE outbox SET due = max(due - ?1, 1) WHERE due > ?2 AND due IS NOT not_before`
	selectClaimed = `
		SELECT position, id, topic, key, type, headers, CAST(payload AS BLOB), created_at, not_before, attempts + 1, lapses + leased, unsure
		FROM outbox `
	selectOne   = selectClaimed + "WHERE position = ?"
	selectFirst = selectClaimed + "WHERE topic = ? AND due = 0 ORDER BY position LIMIT 0 + ?"
	claimSet    = "UPDATE outbox SET fence = ?, leased = 1, due = ?, attempts = attempts + 1, lapses = lapses + leased WHERE "
	claimRun    = claimSet + positionRun
	claimSome   = claimSet + positionSome

	// together is how many messages are changed in a statement: each would open
	// its indexes anew. Those that follow each other are found faster.
	together     = 32
	positionRun  = "position BETWEEN ? AND ?"
	positionSome = "position IN (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

const (
	// topicsAtOnce is of how many topics a claim takes messages at most.
	topicsAtOnce = 64
	// suspectRoom is how many suspects a claim reads over.
	suspectRoom = 64
	// clockStep is by how much the clock must have gone back to be noticed.
	clockStep = int64(time.Second / time.Microsecond)
	// clockIdle is for how long the clock is not looked at while messages only
	// wait for their time.
	clockIdle = int64(30 * time.Second / time.Microsecond)
)

// Exchange implements outbox.Store. Messages of several topics are claimed in turn.
// Messages whose delay or lease has ended fill up to half of a claim, ahead of
// messages that were never tried.
func (o *Outbox) Exchange(ctx context.Context, settlements []outbox.Settlement, c outbox.Claim) ([]outbox.Claimed, []outbox.Ref, error) {
	for _, s := range settlements {
		if err := s.Validate(); err != nil {
			return nil, nil, err
		}
	}
	c.Max = max(c.Max, 0)
	if len(settlements) == 0 {
		if c.Max == 0 {
			return nil, nil, nil
		}
		// Who probably finds nothing looks first, without the write lock.
		if !o.busy.Load() {
			found := false
			err := o.store.read(ctx, func(conn *conn) (err error) {
				found, err = worthClaiming(ctx, conn, c.Topic)
				return err
			})
			if err != nil || !found {
				return nil, nil, err
			}
		}
	}
	o.mu.Lock()
	after := o.after
	o.mu.Unlock()
	type result struct {
		claimed []outbox.Claimed
		lost    []outbox.Ref
		last    string
	}
	r, err := write(ctx, o.store, 128*len(settlements)+256*c.Max, func(t *tx) (r result, err error) {
		if r.lost, err = t.settleMessages(settlements); err != nil || c.Max == 0 {
			return r, err
		}
		if err := t.tickOutbox(); err != nil {
			return r, err
		}
		topics := []string{c.Topic}
		if c.Topic == "" {
			if topics, err = dueTopics(context.Background(), t.conn, after, t.now); err != nil {
				t.fail(err)
				return r, err
			}
		}
		if len(topics) > 0 {
			r.last = topics[len(topics)-1]
			r.claimed, err = t.claimMessages(c, topics)
		}
		return r, err
	})
	if err != nil {
		return nil, nil, err
	}
	if c.Max > 0 {
		o.busy.Store(len(r.claimed) > 0)
	}
	if r.last != "" {
		o.mu.Lock()
		o.after = r.last
		o.mu.Unlock()
	}
	for i := range r.claimed {
		if m := &r.claimed[i]; m.Malformed == nil {
			m.Malformed = m.Validate()
		}
	}
	return r.claimed, r.lost, nil
}

// worthClaiming reports whether something is due, or the clock is to be looked at.
func worthClaiming(ctx context.Context, c *conn, topic string) (found bool, err error) {
	now := time.Now().UnixMicro()
	if topic == "" {
		topics, err := dueTopics(ctx, c, "", now)
		if err != nil || len(topics) > 0 {
			return true, err
		}
	} else {
		if err := c.query(existsDue, func(*row) { found = true }, topic, now); err != nil || found {
			return true, err
		}
	}
	var at int64
	if err := c.query(selectClock, func(r *row) { at = r.int() }); err != nil {
		return false, err
	}
	if now >= at-clockStep && now <= at+clockIdle {
		return false, nil
	}
	err = c.query(existsDelayed, func(*row) { found = true })
	return found, err
}

// dueTopics returns topics in which something is due: those behind after, then
// those before.
func dueTopics(ctx context.Context, c *conn, after string, now int64) (topics []string, err error) {
	err = c.query(selectDueTopics, func(r *row) { topics = append(topics, r.text()) }, after, now, int64(topicsAtOnce))
	if left := topicsAtOnce - len(topics); err == nil && left > 0 && after != "" {
		err = c.query(selectDueTopics, func(r *row) {
			if topic := r.text(); topic <= after {
				topics = append(topics, topic)
			}
		}, "", now, int64(left))
	}
	return topics, err
}

// tickOutbox notices a clock that went back, and moves what waits with it.
func (t *tx) tickOutbox() error {
	var at int64
	if err := t.query(selectClock, func(r *row) { at = r.int() }); err != nil {
		return err
	}
	back := at - t.now
	if back > clockStep {
		if _, err := t.exec(shiftDelays, back, t.now); err != nil {
			return err
		}
	}
	if back > clockStep || back < -clockStep {
		_, err := t.exec("UPDATE outbox_clock SET at = ?", t.now)
		return err
	}
	return nil
}

// candidate is a message that may be claimed.
type candidate struct{ position, lapses, size int64 }

func (t *tx) claimMessages(c outbox.Claim, topics []string) (claimed []outbox.Claimed, err error) {
	fence := 1 + rand.Int64N(1<<62)
	left := int64(c.MaxBytes)
	suspect := c.Suspect
	for i, topic := range topics {
		room := c.Max - len(claimed)
		share := (room + len(topics) - i - 1) / (len(topics) - i)
		if share == 0 {
			break
		}
		var fresh, overdue []candidate
		if err := t.query(selectOverdue, collect(&overdue), topic, t.now, int64(share+suspectRoom)); err != nil {
			return nil, err
		}
		chosen := overdue[:0]
		for _, m := range overdue {
			if m.lapses >= outbox.SuspectLapses {
				if !suspect {
					continue
				}
				suspect = false
			}
			chosen = append(chosen, m)
		}
		// How many there are, and how large, matters where not all can be taken.
		old, new, full, before := 0, share, false, len(claimed)
		if len(chosen) > 0 || c.MaxBytes > 0 && left < int64(share*outbox.MaxPayload) {
			if err := t.query(selectFresh, collect(&fresh), topic, int64(share)); err != nil {
				return nil, err
			}
			// Neither kind starves the other.
			old = min(len(chosen), max((share+1)/2, share-len(fresh)))
			taken, left := 0, left
			for _, m := range slices.Concat(chosen[:old], fresh[:min(len(fresh), share-old)]) {
				if full = c.MaxBytes > 0 && len(claimed)+taken > 0 && m.size > left; full {
					break
				}
				left -= m.size
				taken++
			}
			old, new = min(taken, old), max(taken-old, 0)
		}
		add := func(r *row) { claimed = append(claimed, r.claimed(fence)) }
		for _, m := range chosen[:old] {
			if err := t.query(selectOne, add, m.position); err != nil {
				return nil, err
			}
		}
		if new > 0 {
			if err := t.query(selectFirst, add, topic, int64(new)); err != nil {
				return nil, err
			}
		}
		positions := make([]int64, 0, len(claimed)-before)
		for _, m := range claimed[before:] {
			positions = append(positions, int64(m.Position))
		}
		slices.Sort(positions)
		for some := range slices.Chunk(positions, together) {
			if _, err := t.update(claimRun, claimSome, some, fence, t.now+micros(c.Lease)); err != nil {
				return nil, err
			}
		}
		for _, m := range claimed[before:] {
			left -= int64(len(m.Payload))
		}
		if full {
			break
		}
	}
	return claimed, nil
}

// update changes the messages at some positions, which are sorted, each once, and
// at most together: by the first statement where they follow each other.
func (t *tx) update(run, scattered string, positions []int64, args ...driver.Value) (int64, error) {
	n := len(positions)
	if first, last := positions[0], positions[n-1]; last-first == int64(n-1) {
		return t.exec(run, append(args, first, last)...)
	}
	for i := range together {
		args = append(args, positions[min(i, n-1)])
	}
	return t.exec(scattered, args...)
}

func collect(to *[]candidate) func(*row) {
	return func(r *row) { *to = append(*to, candidate{r.int(), r.int(), r.int()}) }
}

// claimed reads what claimOne returns.
func (r *row) claimed(fence int64) (m outbox.Claimed) {
	m.Position, m.Fence = uint64(r.int()), uint64(fence)
	m.ID, m.Topic, m.Key, m.Type = r.text(), r.text(), r.text(), r.text()
	m.Headers, m.Malformed = storekit.Headers([]byte(r.text()))
	m.Payload = r.blob()
	m.EnqueuedAt = time.UnixMicro(r.int())
	m.NotBefore, _ = r.time()
	m.Attempts, m.Lapses, m.Unsure = int(r.int()), int(r.int()), r.int() != 0
	return m
}

// Mark implements outbox.Store.
func (o *Outbox) Mark(ctx context.Context, ref outbox.Ref) error {
	_, err := write(ctx, o.store, 64, func(t *tx) (struct{}, error) {
		n, err := t.exec("UPDATE outbox SET unsure = 1 WHERE position = ? AND fence = ? AND leased = 1",
			int64(ref.Position), int64(ref.Fence))
		if err == nil && n == 0 {
			err = outbox.ErrLeaseLost
		}
		return struct{}{}, err
	})
	return err
}

// Renew implements outbox.Store.
func (o *Outbox) Renew(ctx context.Context, lease time.Duration, refs []outbox.Ref) (lost []outbox.Ref, err error) {
	return write(ctx, o.store, 64*len(refs), func(t *tx) (lost []outbox.Ref, err error) {
		if err := t.tickOutbox(); err != nil {
			return nil, err
		}
		for _, ref := range refs {
			n, err := t.exec("UPDATE outbox SET due = ? WHERE position = ? AND fence = ? AND leased = 1",
				t.now+micros(lease), int64(ref.Position), int64(ref.Fence))
			if err != nil {
				return nil, err
			}
			if n == 0 {
				lost = append(lost, ref)
			}
		}
		return lost, nil
	})
}
