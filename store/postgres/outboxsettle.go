package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel/outbox"
)

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

// SettleTx implements outbox.Settler. It settles in the transaction that Tx
// returns. It locks the message until that transaction ends.
//
// At repeatable read and above it fails with SQLSTATE 40001 if the lease was
// renewed after the transaction began, or if the message has a key.
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
