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
// A handler that fails, panics, is cut off or dies leaves nothing behind, and
// the identity is free again. A failure that is recorded (semel.Final, or
// Result.Failed) takes back what the handler changed first. A handler must do
// all its work on that transaction: a connection of its own from the same pool
// can wait for ever for one that other handlers hold.
//
// A handler must leave the transaction to the store. A statement that would end
// it is refused (ErrNotYours). One that ends it all the same, such as a COMMIT
// behind another statement, or one on the *pgx.Conn itself, may have committed
// anything: later statements fail, and the store records that the outcome is
// unknown, in a transaction of its own. Until that is done, at the handler's end,
// the identity is free; and if the process dies first, or cannot reach the
// database for as long as the guard tries, nothing says that the handler ever ran.
//
// A leased store is for effects somewhere else. Each change of a record is one
// statement.
//
// # Records and the trail
//
// A completed record is the audit trail's entry of its execution. The entry is
// written down when the record goes, in the same commit and by a trigger: when it
// is swept, replaced after its retention, or deleted by hand (but not by
// TRUNCATE). A store that is never swept keeps expired records as its trail, and an
// entry is there for as long as its record, whatever Config.TrailRetention says.
//
// Identities are found by a keyed digest, and ids of records are their numbers
// encrypted. The secret for both is in the table version, and is made with it, by
// the server. Whoever can read the tables can read it: it keeps callers from
// guessing, and is no key to the records, which are not encrypted. It must be
// restored with the tables (ErrNoSecret).
//
// A record is found at once by its identity, its id, its key, and the ids of its
// request, event or trace; open ones also by their state. Any other filter of List
// and Trail reads on until a page is full.
//
// # How a transaction protects
//
// At read committed the claim is an advisory lock of the transaction, taken by
// try before the look for a record, and the record is inserted once, complete,
// just before the commit: two messages to the server beside the handler's own.
// At higher levels, in a transaction of the caller's (WithTx), and where the
// database has no such locks (Config.NoAdvisoryLocks), the record is inserted
// first, in progress, and completed at the end. The table's unique constraint
// decides in all of them. A claim is only seen by others as being in progress;
// what it is for shows when it is committed.
//
// A commit whose answer was lost is looked up on the primary, once the session
// that may still be committing has certainly ended. A serialization failure, a
// deadlock or a constraint that fails at the commit is semel.ErrRolledBack: no
// effect.
//
// # Messages
//
// Enqueue adds messages to the outbox in a handler's transaction, Outbox.EnqueueTx
// in one of the caller's, and any other program by inserting into the table outbox:
// see Schema. Store.Outbox is what relays of package outbox deliver from, in this
// process or another.
//
// In a lane messages are delivered in the order of their commits, at whatever
// isolation level they were inserted. So a transaction that has inserted into a lane
// keeps others that would from going on until it ends. The locks for that are
// advisory, one for each lane, and the server's table of locks has room for some
// thousands of them (max_locks_per_transaction).
//
// A dump is restored as a whole. Who restores data alone has to keep the triggers
// from firing (pg_restore --disable-triggers), or every message is new again.
//
// # Large results
//
// A result in pieces is written in one transaction with its record, four pieces
// at a time, and read piece by piece. A leased claim can be renewed meanwhile.
// The whole has to be done within the guard's StoreTimeout, so that bounds what
// a slow connection can record; a result that is never done is unknown.
//
// # Connections
//
// The pool's connections must go to the primary. Through PgBouncer in transaction mode
// use a pool that prepares nothing: set default_query_exec_mode=exec in its
// connection string (or cache_describe or simple_protocol). Through a pooler
// everything that the store sets lasts for one transaction, and it uses no session
// state. In a session of the pool's own Config.PeerTimeout stays set.
//
// A transactional claim holds a connection for as long as its handler runs. A
// duplicate that is told to wait holds none.
//
// # Rights
//
// New makes the tables, and needs the right to create a schema for it only if
// that schema is missing. To keep that right from the program, run Migrate (or
// what Schema prints) as the owner, and what Grants prints for the program's
// role, and set Config.NoMigrate. "semel schema --store postgres" prints both, and
// "semel migrate --grant-to ROLE" runs both.
// The program's role has to read the table version, with the secret in it.
// Sweeping old audit entries (Sweep, Run) takes a right that the rest does not;
// with Config.TrailRetention below zero it is not needed.
//
// # Limits
//
// All times are the server's. After a failover to a standby that had not
// received a commit, what was acknowledged is lost, claims included: use
// synchronous replication. New refuses synchronous_commit=off, as set for the
// session that it looks at.
package postgres
