package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

// ErrNoTransaction reports that the context does not carry the transaction of a
// claim. Nothing was enqueued.
var ErrNoTransaction = errors.New("sqlite: the context carries no transaction of a claim: use EnqueueTx, or a transactional store")

// Enqueue adds messages to the outbox in the transaction in ctx, which is that of
// the handler's claim or of the message that it handles (see Inbox). The messages
// are delivered only if that transaction commits. The commit wakes the relays in
// this process. Enqueue fails with ErrNoTransaction if ctx carries no
// transaction, with outbox.ErrDuplicate if an id is taken, and with
// outbox.ErrFull beyond Config.MaxPending. The transaction remains usable after
// each of these errors.
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

// EnqueueTx adds messages to the outbox in a transaction of the caller, on a
// file on which a Store has been opened before. The messages are delivered only
// if the transaction commits. Relays find them by polling. Call Outbox.Wake
// after the commit to make the relays of this process look at once.
//
// It fails with outbox.ErrDuplicate if an id is taken and the driver is the one
// that this package uses. Messages added before the failure remain in the
// transaction: roll it back.
func EnqueueTx(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	return enqueue(ctx, tx, messages)
}

// EnqueueTx is like the function EnqueueTx, but enforces Config.MaxPending.
func (o *Outbox) EnqueueTx(ctx context.Context, tx *sql.Tx, messages ...outbox.Message) error {
	if err := o.store.admit(ctx, len(messages)); err != nil {
		return err
	}
	return enqueue(ctx, tx, messages)
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
			m, headers, err := storekit.Stored(m, origin)
			if err != nil {
				return fmt.Errorf("sqlite: %w", err)
			}
			var before any
			if !m.NotBefore.IsZero() {
				before = max(ceilMicro(m.NotBefore), 1)
			}
			args = append(args, m.ID, m.Topic, sql.NullString{String: m.Key, Valid: m.Key != ""}, m.Type, headers, before,
				sql.NullString{String: m.Origin, Valid: m.Origin != ""}, m.Payload)
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

// Outbox is the outbox in a store's file. It implements outbox.Store, Watcher,
// Settler and Admin, and ends with the store.
//
// Its writes are grouped with the other writes of the store. Reads, including
// those of idle relays, never wait for the write lock. The clock is the host's.
// If it is set back, relays notice and move leases and delays by the same amount,
// so nothing is delayed by more than about a minute. If it is set forward, leases
// end early and messages being delivered may be delivered twice.
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

// Wake makes the relays in this process that use this Store look for messages
// now. Call it after the commit of a transaction with EnqueueTx.
func (o *Outbox) Wake() { o.store.hints.Send() }

// Watch implements outbox.Watcher. It signals commits of messages added with
// Enqueue through this Store, and calls of Wake.
func (o *Outbox) Watch() (<-chan struct{}, func()) { return o.store.hints.Watch() }

func (t *tx) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}
