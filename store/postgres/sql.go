package postgres

// Every statement names its tables in full: a search path is state of a
// session, which a pooler in transaction mode does not keep.
//
// An absolute time comes from clock_timestamp(), the server's clock at that
// moment: now() is the start of the transaction, which may lie an hour back.

const (
	// recordColumns are what scanRecord reads.
	recordColumns = `fence, token, id, tenant, actor, operation, key, state, reopened,
		begun_at, lease_until - clock_timestamp(), retention, settled_at, expires_at,
		fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id, cause`
	resultColumns = `codec, label, reference, tombstone, head, body, pieces, pieces_size`

	byIdentity = `key = $1 AND operation = $2 AND actor = $3 AND tenant = $4`
	expired    = `record.state = 2 AND record.expires_at <= clock_timestamp()`
	// unsettled: the record may be taken over.
	unsettled = `(record.state = 3 OR record.state = 1 AND record.lease_until <= clock_timestamp())`

	trailColumns = `position, instance, seq, at, kind, record_id, tenant, actor, operation, key, fence,
		request_id, event_id, trace_id, label, cause, count`
)

// enter is the part of a statement that adds an entry to the trail for each
// record that its part "done" returns. An entry that is part of its record's
// commit cannot get lost; it is an instance of its own.
func enter(kind, instance, label, cause string) string {
	return `
		INSERT INTO {s}.trail (instance, seq, at, kind, record_id, tenant, actor, operation, key, fence,
			request_id, event_id, trace_id, label, cause, count)
		SELECT ` + instance + ` || '/' || fence || '/` + kind + `', 1, clock_timestamp(), '` + kind + `', id, tenant, actor, operation, key, fence,
			request_id, event_id, trace_id, ` + label + `, ` + cause + `, 0
		FROM done`
}

const insertColumns = `fence, token, id, key, operation, actor, tenant, state, begun_at, lease_until, retention,
	fingerprint_scheme, fingerprint_sum, request_id, event_id, trace_id`

// replace is what an insert does to the record that it takes the place of.
const replace = `
	ON CONFLICT (key, operation, actor, tenant) DO UPDATE SET
		fence = excluded.fence, token = excluded.token, id = excluded.id, state = excluded.state, reopened = false,
		begun_at = excluded.begun_at, lease_until = excluded.lease_until, retention = excluded.retention,
		settled_at = excluded.settled_at, expires_at = excluded.expires_at,
		fingerprint_scheme = excluded.fingerprint_scheme, fingerprint_sum = excluded.fingerprint_sum,
		request_id = excluded.request_id, event_id = excluded.event_id, trace_id = excluded.trace_id,
		cause = excluded.cause, codec = excluded.codec, label = excluded.label, reference = excluded.reference,
		tombstone = excluded.tombstone, head = excluded.head, body = excluded.body,
		pieces = excluded.pieces, pieces_size = excluded.pieces_size`

// Statements on records. Those that write answer with a row where they wrote
// and with none where they did not.
var (
	sqlFind = `SELECT ` + recordColumns + `, ` + resultColumns + ` FROM {s}.record
		WHERE ` + byIdentity + ` AND NOT (` + expired + `)`

	// sqlBegin grants a claim where there is no record or an expired one, and
	// else answers with the record in the way. No row: the two raced.
	//
	// The look comes first because an insert that loses would still lock the
	// record it lost to, which is a write for each replay.
	sqlBegin = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t),
		seen AS MATERIALIZED (
			SELECT * FROM {s}.record WHERE ` + byIdentity + ` AND NOT (` + expired + `)
		),
		done AS (` + sqlInsert + `
			RETURNING *
		)
		SELECT true, ` + recordColumns + `, ` + resultColumns + ` FROM done
		UNION ALL
		SELECT false, ` + recordColumns + `, ` + resultColumns + ` FROM seen`

	sqlInsert = `
			INSERT INTO {s}.record (` + insertColumns + `)
			SELECT nextval('{q}.fence'), $5, $6, $1, $2, $3, $4, 1, n.t, n.t + $7::interval, $8::interval, $9, $10, $11, $12, $13
			FROM n WHERE NOT EXISTS (SELECT FROM seen)` + replace + `
			WHERE ` + expired + ` AND record.fence < excluded.fence`

	sqlTakeover = `
		WITH done AS (
			UPDATE {s}.record SET fence = nextval('{q}.fence'), token = $2, state = 1, reopened = false,
				begun_at = clock_timestamp(), lease_until = clock_timestamp() + $3::interval, retention = $4::interval,
				settled_at = NULL, request_id = $5, event_id = $6, trace_id = $7, cause = ''
			WHERE fence = $1 AND ` + unsettled + `
			RETURNING *
		),
		entry AS (` + enter("taken_over", "$8", "''", "''") + `)
		SELECT fence FROM done`

	sqlRenew = `
		UPDATE {s}.record SET lease_until = clock_timestamp() + $3::interval
		WHERE fence = $1 AND token = $2 AND state = 1
		RETURNING fence`

	sqlComplete = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t),
		done AS (
			UPDATE {s}.record SET state = 2, settled_at = n.t, expires_at = n.t + retention, cause = '',
				codec = $3, label = $4, reference = $5, tombstone = $6, head = $7, body = $8, pieces = $9, pieces_size = $10
			FROM n WHERE fence = $1 AND token = $2 AND state <> 2
			RETURNING record.*
		),
		entry AS (` + enter("executed", "$11", "label", "''") + `)
		SELECT expires_at FROM done`

	sqlRelease = `
		WITH done AS (
			DELETE FROM {s}.record WHERE fence = $1 AND token = $2 AND state <> 2
			RETURNING *
		),
		entry AS (` + enter("released", "$3", "''", "''") + `)
		SELECT fence FROM done`

	sqlHold = `
		WITH done AS (
			UPDATE {s}.record SET state = 3, settled_at = clock_timestamp(),
				lease_until = least(lease_until, clock_timestamp()), cause = $3
			WHERE fence = $1 AND token = $2 AND state = 1
			RETURNING *
		),
		entry AS (` + enter("held", "$4", "''", "cause") + `)
		SELECT fence FROM done`

	// sqlClaim says what became of a claim's record.
	sqlClaim = `SELECT state, expires_at, coalesce(expires_at <= clock_timestamp(), false) FROM {s}.record WHERE fence = $1 AND token = $2`
)

// Statements of resolutions. The trail tells of the operator's request, not of
// the record's.
var (
	resolveFence = `key = $1 AND operation = $2 AND actor = $3 AND tenant = $4 AND fence = $5`
	resolveWhere = resolveFence + ` AND state = 3`

	resolved = func(kind string) string {
		return `
		entry AS (
			INSERT INTO {s}.trail (instance, seq, at, kind, record_id, tenant, actor, operation, key, fence,
				request_id, event_id, trace_id, label, cause, count)
			SELECT $6 || '/' || fence || '/` + kind + `', 1, clock_timestamp(), '` + kind + `', id, tenant, actor, operation, key, fence,
				$7, $8, $9, $10, $11, 0
			FROM done
		)
		SELECT ` + recordColumns + `, ` + resultColumns + ` FROM done`
	}

	sqlResolveUnknown = `
		WITH done AS (
			UPDATE {s}.record SET state = 3, reopened = false, settled_at = clock_timestamp(), cause = $11
			WHERE ` + resolveFence + ` AND state = 1 AND lease_until <= clock_timestamp()
			RETURNING *
		),` + resolved("held")

	sqlResolveResult = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t),
		done AS (
			UPDATE {s}.record SET fence = nextval('{q}.fence'), token = NULL, state = 2, reopened = false,
				settled_at = n.t, expires_at = n.t + retention, cause = '',
				codec = $12, label = $13, reference = $14, tombstone = $15, head = $16, body = $17, pieces = $18, pieces_size = $19
			FROM n WHERE ` + resolveWhere + `
			RETURNING record.*
		),` + resolved("resolved")

	sqlResolveNoEffect = `
		WITH done AS (
			DELETE FROM {s}.record WHERE ` + resolveWhere + `
			RETURNING *
		),` + resolved("resolved")

	sqlResolveAgain = `
		WITH done AS (
			UPDATE {s}.record SET fence = nextval('{q}.fence'), token = NULL, state = 1, reopened = true,
				settled_at = NULL, lease_until = least(lease_until, clock_timestamp()), cause = ''
			WHERE ` + resolveWhere + `
			RETURNING *
		),` + resolved("resolved")
)

// Statements of claims that live in a transaction.
var (
	// sqlLock takes the in-flight marker, or says that another has it. It is a
	// statement of its own: one that also looked for the record would look
	// with a snapshot older than the lock. It is told which settings to make.
	sqlLock = `SELECT CASE WHEN pg_try_advisory_xact_lock($1) THEN nextval('{q}.fence') END, clock_timestamp(), %s`
	// sqlNoLock is for a database without such locks.
	sqlNoLock = `SELECT nextval('{q}.fence'), clock_timestamp(), %s`

	// noSettings leaves them as they are, in a transaction of the caller's.
	noSettings = `NULL`
	// idleSetting has the server end a transaction whose host has gone silent,
	// peerSettings one whose host no longer answers at the level of TCP. The
	// latter cost the server a dozen system calls.
	idleSetting  = `set_config('idle_in_transaction_session_timeout', '%s', true)`
	peerSettings = `concat(` + idleSetting + `, set_config('tcp_user_timeout', '%s', true), set_config('tcp_keepalives_idle', '%[3]s', true),
		set_config('tcp_keepalives_interval', '%[3]s', true), set_config('tcp_keepalives_count', '3', true))`

	// sqlInsertCompleted writes the record once, complete.
	sqlInsertCompleted = insertCompleted(`('executed', $16)`)
	// sqlTakeoverCompleted also tells the trail of a takeover.
	sqlTakeoverCompleted = insertCompleted(`('taken_over', ''), ('executed', $16)`)

	// insertCompleted must not leave the transaction to be committed without
	// the record, so where another record is in the way it fails: it divides
	// by whether it has written. This is the statement that every operation
	// pays for: the trail is entered from its arguments, in the same pass.
	insertCompleted = func(entries string) string {
		return `
		WITH done AS (
			INSERT INTO {s}.record (` + insertColumns + `, settled_at, expires_at, ` + resultColumns + `)
			SELECT $5, $6, $7, $1, $2, $3, $4, 2, $8::timestamptz, n.t, $9::interval, $10, $11, $12, $13, $14, n.t, n.t + $9::interval,
				$15, $16, $17, $18, $19, $20, $21::bigint, $22::bigint
			FROM (SELECT clock_timestamp() AS t OFFSET 0) AS n` + replace + `
			WHERE ` + expired + ` OR record.fence = $23 AND ` + unsettled + `
			RETURNING settled_at
		)
		INSERT INTO {s}.trail (instance, seq, at, kind, record_id, tenant, actor, operation, key, fence,
			request_id, event_id, trace_id, label, cause, count)
		SELECT $24 || '/' || $5 || '/' || entry.kind, 1 / (done.settled_at IS NOT NULL)::int, done.settled_at, entry.kind, $7, $4, $3, $2, $1, $5,
			$12, $13, $14, entry.label, '', 0
		FROM (VALUES ` + entries + `) AS entry (kind, label) LEFT JOIN done ON true
		RETURNING at + $9::interval`
	}

	// sqlInsertOpen writes the record first, in progress. It is found again
	// by its fence and token when it is completed.
	sqlInsertOpen = `
		INSERT INTO {s}.record (` + insertColumns + `)
		VALUES ($5, $6, $7, $1, $2, $3, $4, 1, $8::timestamptz, $8::timestamptz, $9::interval, $10, $11, $12, $13, $14)` + replace + `
		WHERE ` + expired + ` OR record.fence = $15 AND ` + unsettled + `
		RETURNING fence`

	// sqlEscape records that the outcome is unknown of a claim whose transaction
	// the handler has ended: beside no record, in place of the one that was taken
	// over, or of its own, which was committed in progress.
	sqlEscape = `
		WITH done AS (
			INSERT INTO {s}.record (` + insertColumns + `, settled_at, cause)
			SELECT $5, $6, $7, $1, $2, $3, $4, 3, $8::timestamptz, n.t, $9::interval, $10, $11, $12, $13, $14, n.t, $17
			FROM (SELECT clock_timestamp() AS t OFFSET 0) AS n` + replace + `
			WHERE ` + expired + ` OR record.fence = $15 AND ` + unsettled + ` OR record.fence = $5 AND record.token = $6 AND record.state = 1
			RETURNING *
		),
		entry AS (` + enter("held", "$16", "''", "cause") + `)
		SELECT fence FROM done`

	sqlCompleteOpen = `
		WITH n AS MATERIALIZED (SELECT clock_timestamp() AS t),
		done AS (
			UPDATE {s}.record SET state = 2, lease_until = n.t, settled_at = n.t, expires_at = n.t + retention,
				codec = $3, label = $4, reference = $5, tombstone = $6, head = $7, body = $8, pieces = $9, pieces_size = $10
			FROM n WHERE fence = $1 AND token = $2 AND state = 1
			RETURNING record.*
		),
		takeover AS (` + enter("taken_over", "$11", "''", "''") + ` WHERE $12::bigint <> 0),
		entry AS (` + enter("executed", "$11", "label", "''") + `)
		SELECT (SELECT expires_at FROM done) WHERE 1 / (SELECT count(*) FROM done) = 1`
)

// Statements of upkeep.
var (
	// The time is a subquery because no index is searched for a value that
	// may change from row to row.
	//
	// Beyond 64 MiB of pieces the rest is left to the next statement.
	sqlSweep = `
		WITH due AS MATERIALIZED (
			SELECT fence, expires_at, coalesce(pieces_size, 0) AS size
			FROM {s}.record WHERE state = 2 AND expires_at <= (SELECT clock_timestamp())
			ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED),
		gone AS MATERIALIZED (
			SELECT fence FROM (SELECT fence, sum(size) OVER (ORDER BY expires_at, fence) - size AS before FROM due) AS d
			WHERE before < 67108864)
		DELETE FROM {s}.record USING gone WHERE record.fence = gone.fence`

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
			INSERT INTO {s}.trail (instance, seq, at, kind, record_id, tenant, actor, operation, key, fence,
				request_id, event_id, trace_id, label, cause, count)
			SELECT $1, e.seq, clock_timestamp() - e.age * interval '1 microsecond', e.kind, e.record_id, e.tenant, e.actor, e.operation,
				e.key, e.fence, e.request_id, e.event_id, e.trace_id, e.label, e.cause, e.count
			FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
				$11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::bigint[])
				WITH ORDINALITY AS e (seq, age, kind, record_id, tenant, actor, operation, key, fence,
					request_id, event_id, trace_id, label, cause, count, n)
			WHERE e.seq > $2 ORDER BY e.n
			RETURNING position
		)
		SELECT coalesce(max(position), 0) FROM done`

	sqlLastNote = `SELECT coalesce(max(seq), 0), coalesce(max(position), 0) FROM {s}.trail WHERE position > $1 AND instance = $2`
)
