// Package postgres keeps semel's records in a PostgreSQL database, version 13
// or later. It has two modes.
//
// A transactional store is for operations that change this database and nothing
// else: their changes and the record of them commit together, or not at all.
// The handler gets the transaction from its context:
//
//	pool, err := pgxpool.New(ctx, url)
//	store, err := postgres.New(ctx, pool, postgres.Config{Mode: postgres.ModeTransactional})
//	guard, err := semel.New(semel.Config{Store: store})
//	out, err := guard.Do(ctx, submit, func(ctx context.Context) (semel.Result, error) {
//		tx, _ := postgres.Tx(ctx)
//		_, err := tx.Exec(ctx, "INSERT INTO payment ...")
//		return result, err
//	})
//
// If a handler fails, panics, is cut off or dies, its changes are rolled back, and
// the identity is free again. If the failure is to be recorded (semel.Final, or
// Result.Failed), the changes are rolled back before the record is committed. A
// handler must do all of its work in that transaction: if it takes another
// connection from the same pool, it can deadlock with other handlers that do so.
//
// Only the store may end the transaction. A statement of the handler that would
// end it is refused (ErrNotYours). If one ends it even so, such as a COMMIT behind
// another statement or on the *pgx.Conn itself, it may have committed anything:
// later statements fail, and when the handler returns, the store records in
// another transaction that the outcome is unknown. Until then the identity is
// free. If the process dies before that, or cannot reach the database for as long
// as the guard tries, no record shows that the handler ran.
//
// A leased store is for effects elsewhere. Each change of a record is one
// statement.
//
// # Records and the trail
//
// A completed record is also the entry of the audit trail for its execution. When
// the record is removed, because it is swept, replaced after its retention, or
// deleted by hand, a trigger writes the entry in the same commit. TRUNCATE does
// not fire the trigger. A store that is never swept keeps expired records as its
// trail. An entry exists for at least as long as its record, whatever
// Config.TrailRetention says.
//
// Identities are found by a keyed digest, and the id of a record is its number,
// encrypted. The server generates the secret for both when it creates the table
// version, which holds it. Whoever can read the tables can read the secret. It
// prevents callers from guessing ids and does not protect the records: keys,
// actors, messages and the trail are not encrypted, and results only if the guard
// has a semel.Cipher. The secret must be restored with the tables (ErrNoSecret).
//
// Indexes find a record by its identity, id and key, and by the ids of its
// request, event or trace; open ones also by their state. With any other filter,
// List and Trail read until a page is full.
//
// # How a transaction protects
//
// At read committed, Begin tries to take an advisory lock for the transaction and
// then looks for a record. The completed record is inserted just before the commit.
// That takes two messages to the server besides those of the handler. At higher
// levels, in a transaction of the caller (WithTx), and where the database has no
// such locks (Config.NoAdvisoryLocks), the record is inserted first, in progress,
// and completed at the end. In all cases the unique constraint of the table has
// the last word. Other transactions see only that the identity is claimed, and
// nothing else of the record until it is committed.
//
// If the response to a commit is lost, the store looks for the record on the
// primary, once the session that may still be committing has certainly ended. A
// serialization failure, a deadlock or a constraint that fails at the commit is
// semel.ErrRolledBack: there was no effect.
//
// # Messages
//
// Enqueue adds messages to the outbox in a handler's transaction, Outbox.EnqueueTx
// in one of the caller's, and any other program by inserting into the table outbox:
// see Schema. Store.Outbox is what relays of package outbox deliver from, in this
// process or another.
//
// The messages of a lane are delivered in the order of their commits, at every
// isolation level. For that, a transaction that has inserted into a lane blocks
// others that insert into it until it ends. It holds one advisory lock for each
// lane, and the server's lock table has room for some thousands of them
// (max_locks_per_transaction).
//
// Restore a dump as a whole. If you restore data only, disable the triggers
// (pg_restore --disable-triggers); otherwise every message becomes new again.
//
// # Large results
//
// A result in pieces is written in one transaction with its record, four pieces
// at a time, and read piece by piece. A leased claim can be renewed meanwhile.
// The guard allows its StoreTimeout and a second for each MiB, which limits what
// can be recorded over a slow connection. If a result cannot be recorded in that
// time, the outcome is unknown.
//
// # Connections
//
// The pool's connections must go to the primary. Through PgBouncer in transaction
// mode, use a pool that prepares no statements: set default_query_exec_mode=exec in
// its connection string (or cache_describe or simple_protocol). Through a pooler
// the store uses no session state, and its settings last for one transaction. On
// direct connections Config.PeerTimeout stays set for the session.
//
// A transactional claim holds a connection for as long as its handler runs. A
// duplicate that waits holds none.
//
// # Rights
//
// New creates the tables. It needs the right to create a schema only if the schema
// is missing. To run the program without that right, run Migrate (or the statements
// of Schema) and the statements of Grants as the owner, and set Config.NoMigrate.
// "semel schema --store postgres" prints both, and "semel migrate --grant-to ROLE"
// runs both. The program's role must be able to read the table version, including
// the secret. Removing old audit entries (Sweep, Run) needs a right of its own,
// unless Config.TrailRetention is negative.
//
// # Limits
//
// All times are the server's. A failover to a standby that has not received a
// commit loses what was acknowledged, including claims: use synchronous
// replication. New fails if synchronous_commit is off in its session; it does not
// see other sessions.
package postgres
