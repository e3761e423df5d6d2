package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
)

// ErrNoTransaction: the context is not that of a handler that works in the
// transaction of its claim. Nothing was enqueued.
var ErrNoTransaction = errors.New("sqlite: the context carries no transaction of a claim: use EnqueueTx, or a TxStore")

// Enqueue adds messages to the outbox in the transaction of the claim that a
// handler works under, or of the message that it handles (Inbox), which ctx comes
// from: they are delivered if that is
// committed, and never otherwise. Relays in this process are woken by the commit.
// It fails with ErrNoTransaction where there is none, with outbox.ErrDuplicate
// where an id is taken, and with outbox.ErrFull beyond Config.MaxPending; the
// transaction can go on either way.
func Enqueue(ctx context.Context, messages ...outbox.Message) error {
	h, ok := ctx.Value(handlerKey{}).(*handler)
	if !ok {
		return ErrNoTransaction
	}
	if err := h.store.admit(ctx, len(messages)); err != nil {
		return err
	}
	h.enqueued.Store(true)
	return enqueue(ctx, h.work, messages)
}

// EnqueueTx adds messages to the outbox in a transaction of the caller's, on a
// file that a Store has been opened on before: they are delivered if it is
// committed, and never otherwise. Relays find them by polling; Outbox.Wake after
// the commit has those of this process look at once.
//
// It fails with outbox.ErrDuplicate where an id is taken, as far as the driver is
// the one that this package uses. What was added before it failed stays in the
// transaction: roll it back.
func EnqueueTx(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	return enqueue(ctx, tx, messages)
}

// EnqueueTx is the function of that name with the bound of Config.MaxPending.
func (o *Outbox) EnqueueTx(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	if err := o.store.admit(ctx, len(messages)); err != nil {
		return err
	}
	return enqueue(ctx, tx, messages)
}

// pending is about how many messages wait.
type pending struct {
	mu      sync.Mutex
	counted time.Time
	n       int // then, and what this process has enqueued since
}

const countPending = "SELECT count(*) FROM (SELECT 1 FROM outbox WHERE state = 'pending' LIMIT 0 + ?)"

// admit refuses messages beyond the bound.
func (s *Store) admit(ctx context.Context, n int) error {
	if s.config.MaxPending == 0 {
		return nil
	}
	p := &s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.counted.IsZero() || now.Sub(p.counted) >= time.Second {
		err := s.read(ctx, func(c *conn) error {
			return c.query(countPending, func(r *row) { p.n = int(r.int()) }, int64(s.config.MaxPending))
		})
		if err != nil {
			return err
		}
		p.counted = now
	}
	if p.n+n > s.config.MaxPending {
		return outbox.ErrFull
	}
	p.n += n
	return nil
}

const (
	insertMessage   = "INSERT INTO outbox (id, topic, key, type, headers, not_before, origin, payload) VALUES "
	insertOne       = "(?, ?, ?, ?, ?, ?, ?, ?)"
	enqueueTogether = 50 // messages in a statement
)

func enqueue(ctx context.Context, tx *sql.Tx, messages []outbox.Message) error {
	for _, m := range messages {
		if err := m.Validate(); err != nil {
			return err
		}
	}
	var args []any
	origin := outbox.OriginOf(ctx)
	for len(messages) > 0 {
		some := messages[:min(len(messages), enqueueTogether)]
		messages = messages[len(some):]
		args = args[:0]
		for _, m := range some {
			if m.ID == "" {
				m.ID = semel.NewKey()
			}
			m.Origin = cmp.Or(m.Origin, origin)
			var headers, before any
			if len(m.Headers) > 0 {
				b, err := json.Marshal(m.Headers)
				if err != nil {
					return fmt.Errorf("sqlite: headers: %w", err)
				}
				headers = string(b)
			}
			if !m.NotBefore.IsZero() {
				before = max(ceilMicro(m.NotBefore), 1)
			}
			payload := m.Payload
			if payload == nil {
				payload = []byte{} // nil would be NULL
			}
			args = append(args, m.ID, m.Topic, sql.NullString{String: m.Key, Valid: m.Key != ""}, m.Type, headers, before,
				sql.NullString{String: m.Origin, Valid: m.Origin != ""}, payload)
		}
		query := insertMessage + insertOne + strings.Repeat(", "+insertOne, len(some)-1)
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			if code(err) == sqlite3.SQLITE_CONSTRAINT_UNIQUE {
				return fmt.Errorf("%w: %w", outbox.ErrDuplicate, err)
			}
			return fmt.Errorf("sqlite: enqueue: %w", err)
		}
	}
	return nil
}

// Outbox is the outbox in a store's file. It implements outbox.Store, Watcher and
// Admin, and ends with the store.
//
// Its writes are grouped with the store's others; looks, an idle relay's among
// them, never wait for the write lock. The clock is the host's. Where it was set
// back, relays notice and move leases and delays by as much, so nothing waits for
// longer than about a minute because of it; where it is set forward, leases end
// early, and what is under way may be delivered twice.
type Outbox struct {
	store *Store
	busy  atomic.Bool // the last claim found something

	mu    sync.Mutex
	after string // the last topic that a claim for all topics came to
}

var (
	_ outbox.Store   = (*Outbox)(nil)
	_ outbox.Watcher = (*Outbox)(nil)
	_ outbox.Admin   = (*Outbox)(nil)
	_ outbox.Settler = (*Outbox)(nil)
)

// Outbox returns the outbox in the store's file.
func (s *Store) Outbox() *Outbox { return &Outbox{store: s} }

// Wake has the relays in this process that work on this Store look for messages
// now. Call it after the commit of a transaction with EnqueueTx.
func (o *Outbox) Wake() { o.store.hints.send() }

// Watch implements outbox.Watcher. It tells of what was enqueued with Enqueue
// through this Store, and of calls of Wake.
func (o *Outbox) Watch() (<-chan struct{}, func()) { return o.store.hints.watch() }

// hints wakes those who watch.
type hints struct {
	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

func (h *hints) send() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (h *hints) watch() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers == nil {
		h.watchers = map[chan struct{}]struct{}{}
	}
	h.watchers[c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, c)
	}
}

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
// Those that come back after a delay, or a lease, take up to half of a claim
// before those that were never tried.
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

func (t *tx) fail(err error) {
	if t.err == nil {
		t.err = err
	}
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
	m.Headers, m.Malformed = r.headers()
	m.Payload = r.blob()
	m.EnqueuedAt = time.UnixMicro(r.int())
	m.NotBefore, _ = r.time()
	m.Attempts, m.Lapses, m.Unsure = int(r.int()), int(r.int()), r.int() != 0
	return m
}

func (r *row) headers() (h map[string]string, err error) {
	if s := r.text(); s != "" {
		if err := json.Unmarshal([]byte(s), &h); err != nil {
			return nil, errors.New("the headers are not a JSON object of texts")
		}
	}
	return h, nil
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

const (
	settleEnd = `
		UPDATE outbox SET state = ?, due = NULL, leased = 0, lapses = 0, unsure = ?, in_lane = ?, settled_at = ?, cause = ?
		WHERE position = ? AND fence = ? AND leased = 1`
	settledSet = `state = 'delivered', due = NULL, leased = 0, lapses = 0, unsure = 0, settled_at = ?, cause = NULL
		WHERE fence = ? AND leased = 1 AND `
	// Of what has no key the place in a lane means nothing, and it has no trigger.
	settleFree  = "UPDATE outbox SET " + settledSet + "key IS NULL AND "
	settleKeyed = "UPDATE outbox SET in_lane = 0, " + settledSet + "key IS NOT NULL AND "
	settleRetry = `
		UPDATE outbox SET due = ?, leased = 0, lapses = 0, unsure = ?, cause = ?
		WHERE position = ? AND fence = ? AND leased = 1`
	settleRelease = `
		UPDATE outbox SET due = ?, leased = 0, lapses = 0, attempts = attempts - 1
		WHERE position = ? AND fence = ? AND leased = 1`
	selectSettled = `SELECT 1 FROM outbox WHERE position = ? AND fence = ? AND leased = 0`
)

// SettleTx implements outbox.Settler, in the transaction of the claim or of the
// message that a handler works under: see Tx.
func (o *Outbox) SettleTx(ctx context.Context, ref outbox.Ref) error {
	h, ok := ctx.Value(handlerKey{}).(*handler)
	if !ok {
		return ErrNoTransaction
	}
	r, err := h.work.ExecContext(ctx, settleEnd, string(outbox.StateDelivered), 0, 0, time.Now().UnixMicro(), nil, int64(ref.Position), int64(ref.Fence))
	if err != nil {
		return fmt.Errorf("sqlite: settle: %w", err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, outbox.ErrLeaseLost)
	}
	return nil
}

// settleMessages settles what was delivered together, as far as one claim goes.
func (t *tx) settleMessages(settlements []outbox.Settlement) (lost []outbox.Ref, err error) {
	settlements = slices.Clone(settlements)
	slices.SortFunc(settlements, func(a, b outbox.Settlement) int {
		return cmp.Or(cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Fence, b.Fence), cmp.Compare(a.Position, b.Position))
	})
	for len(settlements) > 0 {
		first := settlements[0]
		n := 1
		for n < min(len(settlements), together) && settlements[n].Outcome == first.Outcome && settlements[n].Fence == first.Fence {
			n++
		}
		some := settlements[:n]
		settlements = settlements[n:]
		if first.Outcome == outbox.OutcomeDelivered && n > 1 {
			done, err := t.settleDelivered(some)
			if err != nil {
				return nil, err
			}
			if done {
				continue
			}
		}
		for _, s := range some {
			held, err := t.settleMessage(s)
			if err != nil {
				return nil, err
			}
			if !held {
				lost = append(lost, s.Ref)
			}
		}
	}
	return lost, nil
}

// settleDelivered reports whether all of them, which are of one claim, were held
// and are settled.
func (t *tx) settleDelivered(some []outbox.Settlement) (bool, error) {
	positions := make([]int64, len(some))
	for i, s := range some {
		positions[i] = int64(s.Position)
	}
	positions = slices.Compact(positions)
	fence := int64(some[0].Fence)
	n, err := t.update(settleFree+positionRun, settleFree+positionSome, positions, t.now, fence)
	if err == nil && n < int64(len(some)) {
		var keyed int64
		keyed, err = t.update(settleKeyed+positionRun, settleKeyed+positionSome, positions, t.now, fence)
		n += keyed
	}
	return n == int64(len(some)), err
}

func (t *tx) settleMessage(s outbox.Settlement) (held bool, err error) {
	position, fence := int64(s.Position), int64(s.Fence)
	end := func(state outbox.State) (int64, error) {
		return t.exec(settleEnd, string(state), flag(s.Unsure), flag(s.Blocks), t.now, orNull(cut(s.Cause)), position, fence)
	}
	var n int64
	switch s.Outcome {
	case outbox.OutcomeDelivered:
		s.Unsure, s.Blocks, s.Cause = false, false, ""
		n, err = end(outbox.StateDelivered)
	case outbox.OutcomeDead:
		n, err = end(outbox.StateDead)
	case outbox.OutcomeUnknown:
		n, err = end(outbox.StateUnknown)
	case outbox.OutcomeRetry:
		n, err = t.exec(settleRetry, t.now+micros(s.Delay), flag(s.Unsure), orNull(cut(s.Cause)), position, fence)
	case outbox.OutcomeReleased:
		due := int64(0)
		if s.Delay > 0 {
			due = t.now + micros(s.Delay)
		}
		n, err = t.exec(settleRelease, due, position, fence)
	}
	if err != nil || n > 0 {
		return true, err
	}
	err = t.query(selectSettled, func(*row) { held = true }, position, fence)
	return held, err
}

func flag(b bool) driver.Value {
	if b {
		return int64(1)
	}
	return int64(0)
}
