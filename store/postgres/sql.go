package postgres

import (
	"fmt"
	"strconv"
)

// Every statement names its tables in full: a search path is state of a
// session, which a pooler in transaction mode does not keep.
//
// An absolute time comes from clock_timestamp(), the server's clock at that
// moment: now() is the start of the transaction, which may lie an hour back.

const (
	// recordColumns are what columns scans.
	recordColumns = `number, coalesce(fence, number), token, tenant, actor, operation, key, state, reopened,
		begun_at, coalesce(lease_until - clock_timestamp(), '0'), coalesce(retention, expires_at - settled_at), settled_at, expires_at,
		fingerprint_scheme, fingerprint_sum, coalesce(request_id, ''), coalesce(event_id, ''), coalesce(trace_id, ''), coalesce(cause, '')`
	// resultColumns are what scanRecord scans after them, resultFields where they
	// are written to.
	resultColumns = `coalesce(codec, ''), coalesce(label, ''), reference, tombstone, head, body, pieces, pieces_size`
	resultFields  = `codec, label, reference, tombstone, head, body, pieces, pieces_size`

	expired = `record.state = 2 AND record.expires_at <= clock_timestamp()`
	// unsettled: the record may be taken over.
	unsettled = `(record.state = 3 OR record.state = 1 AND record.lease_until <= clock_timestamp())`
	// claimed finds the record of a claim.
	claimed = `number = $1 AND coalesce(fence, number) = $2 AND token = $3`

	// settledAt is where an execution is in the trail. What was executed within
	// the time that the trail has to be written is where its claim was. All else
	// is where it was settled, or who reads on from what was there meanwhile would
	// never see it.
	settledAt = `CASE WHEN fence IS NULL AND state = 1 AND n.t < begun_at + '100 ms' THEN NULL ELSE nextval('{q}.counter') END`

	// clock is one moment for all that a statement writes.
	clock = `(SELECT clock_timestamp() AS t OFFSET 0) AS n`
)

// enter is the part of a statement that adds an entry to the trail for each
// record that its part "done" returns. An entry that is part of its record's
// commit cannot get lost; it is an instance of its own.
func enter(kind, cause string) string {
	return `
		INSERT INTO {s}.trail (at, kind, number, fence, tenant, actor, operation, key, request_id, event_id, trace_id, cause)
		SELECT clock_timestamp(), '` + kind + `', number, coalesce(fence, number), tenant, actor, operation, key,
			request_id, event_id, trace_id, ` + cause + `
		FROM done`
}

// Statements on records. Those that write answer with a row where they wrote
// and with none where they did not.
var (
	sqlFind = `SELECT ` + expired + `, ` + recordColumns + `, ` + resultColumns + ` FROM {s}.record WHERE digest = $1`

	// sqlLook says whether there is a record, and whether it has expired. Most
	// claims find none, and to prepare the answer of sqlFind costs more than to look.
	sqlLook = `SELECT ` + expired + ` FROM {s}.record WHERE digest = $1`

	// insertColumns are the values $1 to $12 of insertArgs.
	insertColumns = `digest, token, tenant, actor, operation, key, fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id, retention`

	// sqlBegin grants a claim if there is no record, and else returns the record
	// in the way, and whether it has expired. It returns no row if the two raced.
	//
	// The look comes first because an insert that loses would still take a number.
	sqlBegin = `
		WITH seen AS MATERIALIZED (SELECT * FROM {s}.record WHERE digest = $1),
		done AS (
			INSERT INTO {s}.record (` + insertColumns + `, number, begun_at, lease_until, state)
			SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::interval, nextval('{q}.counter'), n.t, n.t + $13::interval, 1
			FROM ` + clock + ` WHERE NOT EXISTS (SELECT FROM seen)
			ON CONFLICT (digest) DO NOTHING
			RETURNING *
		)
		SELECT true, false, ` + recordColumns + `, ` + resultColumns + ` FROM done
		UNION ALL
		SELECT false, ` + expired + `, ` + recordColumns + `, ` + resultColumns + ` FROM seen AS record`

	// sqlRemoveExpired makes room for another record of the same identity. What
	// it takes away goes into the trail, as always.
	sqlRemoveExpired = `DELETE FROM {s}.record WHERE digest = $1 AND ` + expired

	sqlTakeover = `
		WITH done AS (
			UPDATE {s}.record SET fence = nextval('{q}.counter'), token = $3, state = 1, reopened = false,
				begun_at = clock_timestamp(), lease_until = clock_timestamp() + $4::interval, retention = $5::interval,
				settled_at = NULL, request_id = $6, event_id = $7, trace_id = $8, cause = NULL
			WHERE number = $1 AND coalesce(fence, number) = $2 AND ` + unsettled + `
			RETURNING *
		),
		entry AS (` + enter("taken_over", "NULL") + `)
		SELECT fence FROM done`

	sqlRenew = `
		UPDATE {s}.record SET lease_until = clock_timestamp() + $4::interval
		WHERE ` + claimed + ` AND state = 1
		RETURNING number`

	sqlComplete = `
		UPDATE {s}.record SET position = ` + settledAt + `, state = 2, settled_at = n.t, expires_at = n.t + retention,
			lease_until = NULL, retention = NULL, cause = NULL,
			codec = $4, label = $5, reference = $6, tombstone = $7, head = $8, body = $9, pieces = $10, pieces_size = $11
		FROM ` + clock + ` WHERE ` + claimed + ` AND state <> 2
		RETURNING expires_at`

	sqlRelease = `
		WITH done AS (
			DELETE FROM {s}.record WHERE ` + claimed + ` AND state <> 2
			RETURNING *
		),
		entry AS (` + enter("released", "NULL") + `)
		SELECT number FROM done`

	sqlHold = `
		WITH done AS (
			UPDATE {s}.record SET state = 3, settled_at = clock_timestamp(),
				lease_until = least(lease_until, clock_timestamp()), cause = $4
			WHERE ` + claimed + ` AND state = 1
			RETURNING *
		),
		entry AS (` + enter("held", "cause") + `)
		SELECT number FROM done`

	// sqlClaim says what became of a claim's record.
	sqlClaim = `SELECT state, expires_at, coalesce(expires_at <= clock_timestamp(), false) FROM {s}.record WHERE ` + claimed
)

// Statements of resolutions. The trail entry names the operator's request, not
// the record's.
var (
	resolveFence = `digest = $1 AND key = $2 AND operation = $3 AND actor = $4 AND tenant = $5 AND coalesce(fence, number) = $6`
	resolveWhere = resolveFence + ` AND state = 3`

	resolved = func(kind string) string {
		return `
		entry AS (
			INSERT INTO {s}.trail (at, kind, number, fence, tenant, actor, operation, key, request_id, event_id, trace_id, label, cause)
			SELECT clock_timestamp(), '` + kind + `', number, coalesce(fence, number), tenant, actor, operation, key, $7, $8, $9, $10, $11
			FROM done
		)
		SELECT false, ` + recordColumns + `, ` + resultColumns + ` FROM done AS record`
	}

	sqlResolveUnknown = `
		WITH done AS (
			UPDATE {s}.record SET state = 3, reopened = false, settled_at = clock_timestamp(), cause = $11
			WHERE ` + resolveFence + ` AND state = 1 AND lease_until <= clock_timestamp()
			RETURNING *
		),` + resolved("held")

	// A record that a resolution has completed has no token, and its execution no
	// entry in the trail.
	sqlResolveResult = `
		WITH done AS (
			UPDATE {s}.record SET fence = nextval('{q}.counter'), token = NULL, state = 2, reopened = false,
				settled_at = n.t, expires_at = n.t + retention, lease_until = NULL, retention = NULL, cause = NULL,
				codec = $12, label = $13, reference = $14, tombstone = $15, head = $16, body = $17, pieces = $18, pieces_size = $19
			FROM ` + clock + ` WHERE ` + resolveWhere + `
			RETURNING record.*
		),` + resolved("resolved")

	sqlResolveNoEffect = `
		WITH done AS (
			DELETE FROM {s}.record WHERE ` + resolveWhere + `
			RETURNING *
		),` + resolved("resolved")

	sqlResolveAgain = `
		WITH done AS (
			UPDATE {s}.record SET fence = nextval('{q}.counter'), token = NULL, state = 1, reopened = true,
				settled_at = NULL, lease_until = least(lease_until, clock_timestamp()), cause = NULL
			WHERE ` + resolveWhere + `
			RETURNING *
		),` + resolved("resolved")
)

// Statements of claims that live in a transaction.
var (
	// sqlLock takes the in-flight marker, or reports that another has it. It is a
	// separate statement: one that also looked for the record would use a snapshot
	// older than the lock. It also makes the given settings.
	sqlLock = `SELECT CASE WHEN pg_try_advisory_xact_lock($1) THEN nextval('{q}.counter') END, clock_timestamp(), %s`
	// sqlNoLock is for a database without such locks.
	sqlNoLock = `SELECT nextval('{q}.counter'), clock_timestamp(), %s`

	// sqlBeginInbox makes the settings of a message's transaction, and bounds the
	// wait of its first statement as limitWait does.
	sqlBeginInbox = `SELECT set_config('semel.lock_timeout', current_setting('lock_timeout'), true),
		set_config('lock_timeout', '%s', true), %s`

	// noSettings leaves them as they are, in a transaction of the caller's.
	noSettings = `NULL`
	// idleSetting has the server end a transaction whose host has gone silent,
	// peerSettings one whose host no longer answers at the level of TCP. The
	// latter cost the server a dozen system calls: in a session of our own they are
	// made once, and are found made from then on.
	idleSetting  = `set_config('idle_in_transaction_session_timeout', '%[1]s', true)`
	peerSettings = `concat(` + idleSetting + `, CASE WHEN %[4]s OR current_setting('tcp_user_timeout') <> '%[2]s' THEN
		concat(set_config('tcp_user_timeout', '%[2]s', %[4]s), set_config('tcp_keepalives_idle', '%[3]s', %[4]s),
			set_config('tcp_keepalives_interval', '%[3]s', %[4]s), set_config('tcp_keepalives_count', '3', %[4]s)) END)`

	// sqlInsertCompleted writes the record once, complete. It fails if the
	// identity has one: the transaction must not be committed without it. This is
	// the statement that every operation pays for. It is a separate statement, so
	// statement_timestamp is the present time.
	sqlInsertCompleted = `
		INSERT INTO {s}.record (` + insertFieldsCompleted + `)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13::bigint, $14::timestamptz, 2, statement_timestamp(), statement_timestamp() + $12::interval,
			CASE WHEN statement_timestamp() < $14::timestamptz + '100 ms' THEN NULL ELSE nextval('{q}.counter') END,
			$15, $16, $17, $18, $19, $20, $21::bigint, $22::bigint)
		RETURNING expires_at`
	insertFieldsCompleted = `digest, token, tenant, actor, operation, key, fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id,
		number, begun_at, state, settled_at, expires_at, position, ` + resultFields

	// sqlTakeoverCompleted completes the record that is taken over. Where it cannot
	// it divides by zero, which ends the transaction.
	sqlTakeoverCompleted = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t, nextval('{q}.counter') AS first, nextval('{q}.counter') AS second),
		done AS (
			UPDATE {s}.record SET fence = $4, token = $3, begun_at = $5, state = 2, reopened = false, position = n.second,
				settled_at = n.t, expires_at = n.t + $6::interval, lease_until = NULL, retention = NULL, cause = NULL,
				request_id = $7, event_id = $8, trace_id = $9,
				codec = $10, label = $11, reference = $12, tombstone = $13, head = $14, body = $15, pieces = $16, pieces_size = $17
			FROM n WHERE number = $1 AND coalesce(fence, number) = $2 AND ` + unsettled + `
			RETURNING record.*
		),
		entry AS (` + takenOver + `)
		SELECT (SELECT expires_at FROM done) WHERE 1 / (SELECT count(*) FROM done) = 1`
	// takenOver is before the execution, and shown to be.
	takenOver = `
		INSERT INTO {s}.trail (position, at, kind, number, fence, tenant, actor, operation, key, request_id, event_id, trace_id)
		SELECT n.first, n.t, 'taken_over', number, fence, tenant, actor, operation, key, request_id, event_id, trace_id FROM done, n`

	// sqlInsertOpen writes the record first, in progress. It is found again
	// by its number, fence and token when it is completed.
	sqlInsertOpen = `
		INSERT INTO {s}.record (` + insertColumns + `, number, begun_at, lease_until, state)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::interval, $13, $14::timestamptz, $14::timestamptz, 1)
		ON CONFLICT (digest) DO NOTHING
		RETURNING number`

	// sqlTakeoverOpen is that for a record that is taken over.
	sqlTakeoverOpen = `
		UPDATE {s}.record SET fence = $4, token = $3, state = 1, reopened = false, begun_at = $5, lease_until = $5, retention = $6::interval,
			settled_at = NULL, request_id = $7, event_id = $8, trace_id = $9, cause = NULL
		WHERE number = $1 AND coalesce(fence, number) = $2 AND ` + unsettled + `
		RETURNING number`

	sqlCompleteOpen = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t, CASE WHEN $12 THEN nextval('{q}.counter') END AS first),
		done AS (
			UPDATE {s}.record SET position = ` + settledAt + `, state = 2, settled_at = n.t, expires_at = n.t + retention,
				lease_until = NULL, retention = NULL,
				codec = $4, label = $5, reference = $6, tombstone = $7, head = $8, body = $9, pieces = $10, pieces_size = $11
			FROM n WHERE ` + claimed + ` AND state = 1
			RETURNING record.*
		),
		entry AS (` + takenOver + ` WHERE $12)
		SELECT (SELECT expires_at FROM done) WHERE 1 / (SELECT count(*) FROM done) = 1`

	// sqlEscape records that the outcome is unknown of a claim whose transaction
	// the handler has ended: beside no record, in place of the one that was taken
	// over, or of its own, which was committed in progress. An expired one has to
	// be removed before.
	sqlEscape = `
		WITH done AS (
			INSERT INTO {s}.record (` + insertColumns + `, number, fence, begun_at, lease_until, state, settled_at, cause)
			SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::interval, $13::bigint, $14::bigint, $15::timestamptz, n.t, 3, n.t, $17
			FROM ` + clock + `
			ON CONFLICT (digest) DO UPDATE SET
				fence = excluded.fence, token = excluded.token, state = 3, reopened = false, begun_at = excluded.begun_at,
				lease_until = excluded.lease_until, retention = excluded.retention, settled_at = excluded.settled_at,
				request_id = excluded.request_id, event_id = excluded.event_id, trace_id = excluded.trace_id, cause = excluded.cause
			WHERE record.number = excluded.number AND (
				coalesce(record.fence, record.number) = $16 AND ` + unsettled + `
				OR coalesce(record.fence, record.number) = coalesce(excluded.fence, excluded.number) AND record.token = excluded.token AND record.state = 1)
			RETURNING *
		),
		entry AS (` + enter("held", "cause") + `)
		SELECT number FROM done`
)

// Statements of upkeep.
var (
	// The time is a subquery because no index is searched for a value that
	// may change from row to row.
	//
	// Beyond 64 MiB of pieces the rest is left to the next statement.
	sqlSweep = `
		WITH due AS MATERIALIZED (
			SELECT number, expires_at, coalesce(pieces_size, 0) AS size
			FROM {s}.record WHERE state = 2 AND expires_at <= (SELECT clock_timestamp())
			ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED),
		gone AS MATERIALIZED (
			SELECT number FROM (SELECT number, sum(size) OVER (ORDER BY expires_at, number) - size AS before FROM due) AS d
			WHERE before < 67108864)
		DELETE FROM {s}.record USING gone WHERE record.number = gone.number`

	// The oldest entries have the lowest positions, so there is nothing to
	// look for behind the first.
	sqlSweepTrail = `
		WITH oldest AS MATERIALIZED (
			SELECT position, at FROM {s}.trail ORDER BY position LIMIT $1 FOR UPDATE SKIP LOCKED)
		DELETE FROM {s}.trail USING oldest
		WHERE trail.position = oldest.position AND oldest.at < clock_timestamp() - $2::interval`

	// sqlNotes writes a batch of notes, but not those up to seq $2 of a batch
	// whose answer was lost and which was written after all.
	sqlNotes = `
		WITH done AS (
			INSERT INTO {s}.trail (instance, seq, at, kind, number, record_id, tenant, actor, operation, key, fence,
				request_id, event_id, trace_id, label, cause, count)
			SELECT $1, e.seq, clock_timestamp() - e.age * interval '1 microsecond', e.kind, nullif(e.number, 0), nullif(e.record_id, ''),
				e.tenant, e.actor, e.operation, e.key, e.fence, nullif(e.request_id, ''), nullif(e.event_id, ''), nullif(e.trace_id, ''),
				nullif(e.label, ''), nullif(e.cause, ''), nullif(e.count, 0)
			FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
				$12::bigint[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::bigint[])
				WITH ORDINALITY AS e (seq, age, kind, number, record_id, tenant, actor, operation, key, fence,
					request_id, event_id, trace_id, label, cause, count, n)
			WHERE e.seq > $2 ORDER BY e.n
			RETURNING position
		)
		SELECT coalesce(max(position), 0) FROM done`

	sqlLastNote = `SELECT coalesce(max(seq), 0), coalesce(max(position), 0) FROM {s}.trail WHERE position > $1 AND instance = $2`
)

// What is read page by page. Each is completed with conditions, an order and a
// limit.
var (
	sqlList = `SELECT ` + recordColumns + ` FROM {s}.record WHERE `

	sqlEntries = `SELECT position, coalesce(instance, ''), coalesce(seq, 0), at, kind, coalesce(number, 0), coalesce(record_id, ''),
		tenant, actor, operation, key, fence, coalesce(request_id, ''), coalesce(event_id, ''), coalesce(trace_id, ''),
		coalesce(label, ''), coalesce(cause, ''), coalesce(count, 0) FROM {s}.trail WHERE `
	// sqlExecutions are the entries that completed records are.
	sqlExecutions = `SELECT coalesce(position, number) AS position, '', 0::bigint, settled_at, 'executed', number, '',
		tenant, actor, operation, key, coalesce(fence, number), coalesce(request_id, ''), coalesce(event_id, ''), coalesce(trace_id, ''),
		coalesce(label, ''), '', 0::bigint FROM {s}.record WHERE state = 2 AND token IS NOT NULL AND `
)

// statements are the statements for one schema.
type statements struct {
	look, find, begin, removeExpired, takeover, renew, complete, release, hold, claim                              string
	resolveUnknown, resolveResult, resolveNoEffect, resolveAgain, erase                                            string
	lock, lockJoined, beginInbox                                                                                   string
	insertCompleted, takeoverCompleted, insertOpen, takeoverOpen, completeOpen, escape                             string
	sweep, sweepTrail, writeNotes, lastNote, list, entries, executions                                             string
	piece, insertPiece                                                                                             string
	countPending, claimNamed, claimAny, markMessage, renewMessages, settle, delivered, settledBefore, settleInside string
	status, surplus, sweepSettled                                                                                  string
}

// peer says how a store's sessions are to get a TCP timeout.
type peer uint8

const (
	peerNone        peer = iota
	peerTransaction      // for each transaction: sessions are shared
	peerSession
)

// newStatements returns a store's statements.
func newStatements(c Config, p peer) statements {
	q := func(sql string) string { return in(c.Schema, sql) }
	lock, settings := sqlLock, fmt.Sprintf(idleSetting, milliseconds(c.IdleTimeout))
	if c.NoAdvisoryLocks {
		lock = sqlNoLock
	}
	if p != peerNone {
		settings = fmt.Sprintf(peerSettings, milliseconds(c.IdleTimeout), milliseconds(c.PeerTimeout), probeSeconds(c.PeerTimeout),
			strconv.FormatBool(p == peerTransaction))
	}
	return statements{
		look: q(sqlLook), find: q(sqlFind), begin: q(sqlBegin), removeExpired: q(sqlRemoveExpired), takeover: q(sqlTakeover), renew: q(sqlRenew), complete: q(sqlComplete),
		release: q(sqlRelease), hold: q(sqlHold), claim: q(sqlClaim),
		resolveUnknown: q(sqlResolveUnknown), resolveResult: q(sqlResolveResult),
		resolveNoEffect: q(sqlResolveNoEffect), resolveAgain: q(sqlResolveAgain), erase: q(sqlErase),
		lock: q(fmt.Sprintf(lock, settings)), lockJoined: q(fmt.Sprintf(lock, noSettings)),
		beginInbox:      fmt.Sprintf(sqlBeginInbox, milliseconds(c.LockTimeout), settings),
		insertCompleted: q(sqlInsertCompleted), takeoverCompleted: q(sqlTakeoverCompleted), insertOpen: q(sqlInsertOpen),
		takeoverOpen: q(sqlTakeoverOpen), completeOpen: q(sqlCompleteOpen), escape: q(sqlEscape),
		sweep: q(sqlSweep), sweepTrail: q(sqlSweepTrail), writeNotes: q(sqlNotes), lastNote: q(sqlLastNote),
		piece: q(sqlPiece), insertPiece: q(sqlInsertPiece),
		list: q(sqlList), entries: q(sqlEntries), executions: q(sqlExecutions),
		countPending: q(sqlCountPending), claimNamed: q(claimNamed + sqlClaimMessages), claimAny: q(claimAny + sqlClaimMessages), markMessage: q(sqlMark),
		renewMessages: q(sqlRenewMessages), settle: q(sqlSettle), delivered: q(sqlDelivered), settledBefore: q(sqlSettledBefore), settleInside: q(sqlSettleInside),
		status: q(sqlStatus), surplus: q(sqlSurplus), sweepSettled: q(sqlSweepSettled),
	}
}
