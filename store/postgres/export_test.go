package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
)

// SchemaVersion is what this package knows.
func SchemaVersion() int { return len(migrations) }

// ChannelName is where the stores over a schema notify.
func ChannelName(schema string) string { return channelName(schema) }

// MigrateWithin is Migrate with other bounds, and to a version beyond what this
// package knows.
func MigrateWithin(ctx context.Context, pool *pgxpool.Pool, schema string, othersMigrate, tableLock time.Duration, further ...string) error {
	return migrate(ctx, pool, schema, append(slices.Clone(migrations), further...), othersMigrate, tableLock)
}

// MigrationLock is what keeps a second migration waiting.
func MigrationLock(schema string) int64 { return migrationLock(schema) }

// SameDigest makes a store find all identities by one digest.
func SameDigest(s *Store) { s.names = sameDigest{s.names} }

type sameDigest struct{ namer }

func (sameDigest) Digest(semel.Identity) (d [16]byte) { return d }

// ForgetPending has the next message count those that wait.
func (s *Store) ForgetPending() {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	s.pending.counted, s.pending.n = time.Time{}, 0
}

// ClaimStatement returns the statement that claims messages of a topic.
func ClaimStatement(o *Outbox, topic string, most int) (string, []any) {
	return o.store.sql.claimNamed, append([]any{int64(most), true, int64(0), int64(7), time.Minute}, new(floors).of([]string{topic}, true)...)
}

// ClaimStatementBehind is that for a look behind what was taken.
func ClaimStatementBehind(o *Outbox, topic string, most int) (string, []any) {
	sql, args := ClaimStatement(o, topic, most)
	return sql, append(args[:5:5], o.floors.of([]string{topic}, false)...)
}

// SettleStatement is what settles a claim.
func SettleStatement(o *Outbox, s outbox.Settlement) (string, []any) {
	sql, args, err := o.settle([]outbox.Settlement{s})
	if err != nil {
		panic(err)
	}
	return sql, args
}

// OutboxStatements are the statements of relays with arguments, and the index or
// indexes that each shall search.
func OutboxStatements(o *Outbox) (all []OutboxStatement) {
	q, due := o.store.sql, []string{"outbox_queue_due"}
	sql, args := ClaimStatement(o, "t", 64)
	all = append(all, OutboxStatement{sql, args, due})
	all = append(all, OutboxStatement{q.claimAny, append(args[:5:5], ""), due})
	for _, outcome := range []outbox.Outcome{outbox.OutcomeDelivered, outbox.OutcomeRetry} {
		sql, args = SettleStatement(o, outbox.Settlement{Ref: outbox.Ref{Position: 1, Fence: 1}, Outcome: outcome})
		all = append(all, OutboxStatement{sql, args, []string{"outbox_queue_position"}})
	}
	refs := refArgs([]outbox.Ref{{Position: 1, Fence: 1}})
	return append(
		all, OutboxStatement{q.settledBefore, refs, []string{"outbox_settled_position"}},
		OutboxStatement{q.markMessage, []any{int64(1), int64(1)}, []string{"outbox_queue_position"}},
		OutboxStatement{q.renewMessages, append(refs[:2:2], time.Minute), []string{"outbox_queue_position"}},
		OutboxStatement{q.status, []any{100, 100}, []string{"outbox_queue_since", "outbox_queue_given_up", "outbox_settled_at"}},
		OutboxStatement{q.surplus, []any{int16(2), 10}, []string{"outbox_settled_at"}},
		OutboxStatement{q.sweepSettled, []any{int16(2), time.Hour, nil, nil, 10}, []string{"outbox_settled_at"}},
	)
}

// OutboxStatement is one of OutboxStatements.
type OutboxStatement struct {
	SQL     string
	Args    []any
	Indexes []string
}

// Planning is what comes before each of them.
const Planning = planning

// ForgetFloors has the next look be at the whole, as a look is that finds nothing.
func (o *Outbox) ForgetFloors() {
	o.floors.mu.Lock()
	defer o.floors.mu.Unlock()
	o.floors.next, o.floors.topic = time.Time{}, map[string]floor{}
}
