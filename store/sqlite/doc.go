// Package sqlite keeps records in an SQLite database file: for services and
// gateways on one host that need records to survive crashes and power loss
// without a database server. It is pure Go.
//
// # What it promises
//
//   - A call that returned without an error has its change on disk: the file's
//     log is synced before anyone is answered (journal mode WAL, synchronous
//     FULL), replays and refusals included. That covers the crash of a process
//     and, as far as the disk keeps its own promise, the loss of power.
//   - At most one claim of an identity is granted, among all goroutines, stores
//     and processes that have the file open on one host.
//   - A process that dies at any point leaves each record as it was before or as
//     it was after a change, with the entries of the audit trail that go with
//     it. Its claims lapse.
//   - An error that says "nothing was written" means that, and so does the bare
//     error of a context; an error that says "whether the write took effect is
//     open" means that. Calls can be repeated either way.
//   - Find and a Begin that is refused see committed records only.
//
// # What it does not
//
//   - The file must be on a local file system. On network file systems (NFS, SMB)
//     locks and shared memory do not work as SQLite needs them, and two hosts
//     cannot share a file at all.
//   - The clock is the host's wall clock, read when a write has its turn. A step
//     back makes leases and retentions longer by as much, a step forward makes
//     them shorter. A lease that lapses too early costs no safety under the
//     policy "hold": its record is held as unknown until its owner settles it.
//   - Nothing here survives the loss of the disk. Replicate or back up the file.
//   - Keys are found by themselves and by operation, actor and tenant. Listings by
//     tenant, actor or operation alone read through all records.
//   - SQLite has no checksums: a disk that silently changes bytes of a stored
//     result changes the replay. Damage to the structure is reported.
//   - Nothing but SQLite may open the file in a process that has a Store on it,
//     not even to read it: on POSIX systems, closing a file drops all locks that
//     the process has on it.
//
// # How it writes
//
// One goroutine of each Store writes. It takes all calls that wait at that moment
// and commits them together, so that one sync of the disk serves many callers.
// Only record changes are grouped; no transaction is open while the handler of a
// leased claim runs. With ModeTransactional, the handler works in the transaction
// that its record is committed in, and nobody else can write to the file
// meanwhile.
//
// While its record exists, an execution has no row of its own in the audit trail:
// readers of the trail merge records and entries, and a sweep that removes the
// record writes the entry.
//
// The pieces of a large result are written before its record, 1 MiB at a time, so
// that other writes can take turns. They become visible with the record. If the
// process dies first, a sweep removes them.
//
// A call whose context ends before its turn has no effect. Processes take turns
// with the lock of the file, and wait for it for at most Config.BusyTimeout.
//
// # Looking after it
//
// Someone must call [Store.Run], or the file grows without bound. Space that a
// sweep frees is used again, but the file does not shrink; to shrink it, stop all
// processes and run VACUUM.
//
// To back a file up while it is in use, let SQLite do it: "VACUUM INTO 'copy.db'"
// or the command ".backup". Copying the file alone misses what is still in the
// -wal file. A restored backup has forgotten what happened since: identities
// that were executed in between would execute again, so restore only with that
// in mind. Claims from after the backup cannot write to restored records.
//
// A new file can be read and written by its owner only. Keys, actors, the messages of
// the outbox and the audit trail are not encrypted in it; results are if the guard has
// a semel.Cipher. The ids of records are derived from a secret in the file: whoever
// can read the file can predict them.
package sqlite
