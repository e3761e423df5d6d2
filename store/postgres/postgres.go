package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
)

var (
	// ErrClosed: the store has been closed.
	ErrClosed = fmt.Errorf("postgres: the store is closed: %w", semel.ErrNotOpen)
	// ErrUnfit: the database is set up so that it cannot keep a store's
	// promises. The error says how.
	ErrUnfit = errors.New("postgres: the database cannot hold a store")
)

// Mode is where a claim lives.
type Mode uint8

const (
	// Leased: a claim is a committed record under a lease, which the owner
	// renews. For effects somewhere else.
	Leased Mode = iota
	// Transactional: a claim is a transaction, which the handler uses for its
	// own changes. They and the record commit together, or not at all. For
	// effects in this database, and nowhere else.
	Transactional
)

var modeNames = [...]string{Leased: "leased", Transactional: "transactional"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Config says how a store uses its database. The zero value is a leased store
// with the defaults named at each field.
type Config struct {
	// Mode is where claims live. An operation must be protected by stores of
	// one mode only: under another it would run, and be rolled back at its end.
	Mode Mode
	// Schema is the name of the database schema that holds the tables.
	// Default "semel".
	Schema string
	// NoMigrate has New fail with ErrOlderSchema where it would otherwise make
	// the tables or bring them up to date.
	NoMigrate bool

	// Isolation is the level of the transactions that a transactional store
	// begins. Default read committed. Above it the record is written first
	// and completed at the end, which costs a round trip.
	Isolation pgx.TxIsoLevel
	// NoAdvisoryLocks is for databases that lack pg_try_advisory_xact_lock.
	// A duplicate of a transaction under way then holds a connection for
	// LockTimeout to learn of it, and the record is written first.
	NoAdvisoryLocks bool
	// LockTimeout is how long a transactional claim waits for another
	// transaction that has written the same identity, before it takes that
	// one to be in progress. Default 50 ms.
	LockTimeout time.Duration
	// IdleTimeout ends a transactional claim whose session has sent nothing
	// for so long: its process is paused, dead or cut off. The transaction is
	// rolled back and its lock freed. The guard's renewals count as signs of
	// life, so it need not be longer than an operation, only than a few
	// heartbeats. Default 1 min, rounded up to a millisecond.
	IdleTimeout time.Duration
	// PeerTimeout ends a transactional claim whose host has not answered for so
	// long at the level of TCP, where the server's connection is to that host
	// and not to a pooler. It may take a quarter longer, as the server probes
	// four times in it, but no less than every second. Default 30 s. It is set for
	// the session, and stays with it; through a pooler for each transaction, which
	// has a price. Where the server's role or the connection string sets
	// tcp_user_timeout, that counts instead.
	PeerTimeout time.Duration

	// Notify has waiting submits woken by other processes' changes (see
	// semel.Watcher): each change of a record sends a notification with its
	// commit, and the store keeps one connection open, beside the pool, to
	// listen. All stores over the same tables should agree on it.
	//
	// It is off by default because of its price: PostgreSQL takes a lock that
	// the whole database shares for the commit of a transaction that notifies,
	// so those commits come one after the other. A commit also fails if some
	// session of the database listens and does not read for so long that the
	// server's queue of notifications is full.
	//
	// Notifications carry a digest of the identity. Every role of the database
	// can listen to them.
	Notify bool
	// Listen says how to connect to the server for Notify. Default: as the
	// pool does. Set it where that is to a pooler, such as PgBouncer: listening
	// takes a session of the server, and New fails with ErrPooler without one.
	Listen *pgx.ConnConfig

	// MaxResultBytes bounds head, body and reference of a result together,
	// also of one in pieces. Complete and Resolve refuse larger ones. Default
	// 64 MiB, at most 512 MiB.
	MaxResultBytes int
	// MaxNotes is how many audit entries wait to be written at most; beyond
	// it they are dropped and counted. Default 8,192.
	MaxNotes int
	// TrailRetention is how long audit entries are kept. Default 90 days;
	// negative keeps them for ever. The entry of an execution is kept for as long
	// as its record at least.
	TrailRetention time.Duration
	// SweepEvery is the time between two sweeps of Run. Default 1 min.
	SweepEvery time.Duration
	// OnSweep is told what each sweep of Run did; nil for nobody.
	OnSweep func(Swept)

	// MaxPending is how many messages may be pending in the outbox: beyond it
	// Enqueue, EnqueueTx and EnqueueSQL fail with outbox.ErrFull. They are counted
	// at most once a second, so several processes together may go over it by what
	// they enqueue in a second. Rows that other programs insert are counted and
	// not refused. 0 is no bound: what must not be lost waits on disk, and the age
	// of the oldest is the warning.
	MaxPending int
}

func (c Config) withDefaults() Config {
	if c.Schema == "" {
		c.Schema = "semel"
	}
	if c.Isolation == "" {
		c.Isolation = pgx.ReadCommitted
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 50 * time.Millisecond
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = time.Minute
	}
	if c.PeerTimeout == 0 {
		c.PeerTimeout = 30 * time.Second
	}
	if c.MaxResultBytes == 0 {
		c.MaxResultBytes = 64 << 20
	}
	if c.MaxNotes == 0 {
		c.MaxNotes = 8192
	}
	if c.TrailRetention == 0 {
		c.TrailRetention = 90 * 24 * time.Hour
	}
	if c.SweepEvery == 0 {
		c.SweepEvery = time.Minute
	}
	return c
}

func (c Config) validate() error {
	const (
		mostResultBytes = 512 << 20 // a message to the server holds at most 1 GiB
		mostName        = 63        // of PostgreSQL's names, which are cut there
	)
	var errs []error
	if c.Mode > Transactional {
		errs = append(errs, fmt.Errorf("field Mode is %v; use Leased or Transactional", c.Mode))
	}
	if err := checkName("field Schema", c.Schema, false); err != nil {
		errs = append(errs, err)
	} else if len(c.Schema) > mostName {
		errs = append(errs, fmt.Errorf("field Schema is %d bytes long; at most %d are allowed", len(c.Schema), mostName))
	}
	switch c.Isolation {
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
		if c.Mode == Leased && c.Isolation != pgx.ReadCommitted {
			errs = append(errs, errors.New("field Isolation is set, but Mode is leased"))
		}
	default:
		errs = append(errs, fmt.Errorf("field Isolation is %q; use %q, %q or %q", c.Isolation, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"LockTimeout", int64(c.LockTimeout)},
		{"IdleTimeout", int64(c.IdleTimeout)},
		{"PeerTimeout", int64(c.PeerTimeout)},
		{"MaxResultBytes", int64(c.MaxResultBytes)},
		{"MaxNotes", int64(c.MaxNotes)},
		{"SweepEvery", int64(c.SweepEvery)},
		{"MaxPending", int64(c.MaxPending)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("field %s is negative; it must be positive", f.name))
		}
	}
	const most = 24 * time.Hour
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"LockTimeout", c.LockTimeout},
		{"IdleTimeout", c.IdleTimeout},
		{"PeerTimeout", c.PeerTimeout},
	} {
		if f.value > most {
			errs = append(errs, fmt.Errorf("field %s is %v; at most %v is allowed", f.name, f.value, most))
		}
	}
	if c.Listen != nil && !c.Notify {
		errs = append(errs, errors.New("field Listen is set, but Notify is not"))
	}
	if c.MaxResultBytes > mostResultBytes {
		errs = append(errs, fmt.Errorf("field MaxResultBytes is %d; at most %d are allowed", c.MaxResultBytes, mostResultBytes))
	}
	return errors.Join(errs...)
}

// Store implements semel.Store, Resolver, Sweeper, Lister, Trail and, with
// Config.Notify, Watcher over the tables of one database schema. It is safe for concurrent use. New makes one.
type Store struct {
	config   Config
	pool     *pgxpool.Pool
	instance string // of this handle, in the audit trail
	names    namer
	sql      statements
	notes    notes
	hints    hints     // of the outbox, in this process
	pending  pending   // in the outbox
	watchers *watchers // nil without Config.Notify

	mu     sync.Mutex
	closed bool
	open   map[*txClaim]struct{} // claims with a transaction of their own

	closing sync.Once
}

var (
	_ semel.Store    = (*Store)(nil)
	_ semel.Resolver = (*Store)(nil)
	_ semel.Sweeper  = (*Store)(nil)
	_ semel.Lister   = (*Store)(nil)
	_ semel.Trail    = (*Store)(nil)
	_ semel.Watcher  = (*Store)(nil)
)

// namer makes the ids of records and finds identities. It is a recordid.Namer.
type namer interface {
	ID(number uint64) string
	Number(id string) (number uint64, ok bool)
	Digest(id semel.Identity) [16]byte
}

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

// New makes a store on a pool of connections to the primary, which stays the
// caller's: close the store first, then the pool. It brings the tables up to
// date (Migrate) unless they are, and starts the goroutine that writes the
// audit trail, and with Config.Notify the one that listens, which Close ends. Any number of stores, in any number of
// processes, may share the tables.
//
// New fails if the tables are newer than this package (ErrNewerSchema), if they
// have lost the secret that finds their records (ErrNoSecret), and, with
// ErrUnfit, if the database's encoding is not UTF-8 or synchronous_commit is off:
// then a result that was answered with could be lost. ctx bounds New only.
func New(ctx context.Context, pool *pgxpool.Pool, c Config) (*Store, error) {
	c = c.withDefaults()
	err := c.validate()
	if pool == nil {
		err = errors.Join(errors.New("the pool is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("postgres: config: %w", err)
	}
	peer, err := checkDatabase(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	version, err := schemaVersion(ctx, pool, c.Schema)
	switch {
	case err != nil:
		return nil, fmt.Errorf("postgres: the schema's version: %w", err)
	case version > len(migrations):
		return nil, fmt.Errorf("%w: version %d, not %d", ErrNewerSchema, version, len(migrations))
	case version < len(migrations) && c.NoMigrate:
		return nil, fmt.Errorf("%w: version %d, not %d", ErrOlderSchema, version, len(migrations))
	case version < len(migrations):
		if err := Migrate(ctx, pool, c.Schema); err != nil {
			return nil, err
		}
	}
	names, err := readNames(ctx, pool, c.Schema)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s := &Store{
		config: c, pool: pool, instance: semel.NewRecordID(), names: names, sql: newStatements(c, peer),
		open: map[*txClaim]struct{}{},
	}
	if c.Notify {
		messages := make(chan struct{}, 1)
		if s.watchers, err = watch(ctx, pool, c, messages); err != nil {
			return nil, fmt.Errorf("postgres: listen: %w", err)
		}
		s.hints.add(messages)
	}
	s.notes.start(s)
	return s, nil
}

// checkDatabase refuses a database that cannot keep our promises. It reports
// whether its sessions lack a TCP timeout and could use one.
func checkDatabase(ctx context.Context, pool *pgxpool.Pool) (p peer, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	var (
		encoding, commit string
		needed           bool
		pid              uint32
	)
	err = conn.QueryRow(ctx, `SELECT current_setting('server_encoding'), current_setting('synchronous_commit'),
		inet_server_addr() IS NOT NULL AND (SELECT reset_val = '0' FROM pg_settings WHERE name = 'tcp_user_timeout'), pg_backend_pid()`).Scan(&encoding, &commit, &needed, &pid)
	switch {
	case err != nil:
		return 0, err
	case encoding != "UTF8":
		return 0, fmt.Errorf("%w: its encoding is %s; UTF8 is needed", ErrUnfit, encoding)
	case commit == "off":
		return 0, fmt.Errorf("%w: synchronous_commit is off: a commit that was answered could be lost", ErrUnfit)
	case !needed:
		return peerNone, nil
	case pid != conn.Conn().PgConn().PID(): // a pooler hands out numbers of its own for its sessions
		return peerTransaction, nil
	}
	return peerSession, nil
}

// Close writes the audit trail out and ends the store's claims that live in
// transactions, which rolls them back. The error says how many entries could
// not be written before ctx ended. Calls that come later fail with
// ErrClosed. The pool stays open.
func (s *Store) Close(ctx context.Context) (err error) {
	s.closing.Do(func() {
		s.mu.Lock()
		s.closed = true
		open := s.open
		s.open = nil
		s.mu.Unlock()
		for c := range open {
			c.abandon(ctx)
		}
		if s.watchers != nil {
			s.watchers.close()
		}
		err = s.notes.close(ctx)
	})
	return err
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// ready refuses calls that cannot, or must not, do anything.
func (s *Store) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.isClosed() {
		return ErrClosed
	}
	return nil
}

// hash is a 64-bit number for parts that frame themselves by their lengths.
// It is the key of advisory locks: those of other applications in the database
// are as unlikely to have it as another identity is. Where two do share one,
// they are never in flight together, and nothing else.
func hash(parts ...string) int64 {
	h := sha256.New()
	h.Write([]byte("semel/1"))
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// lockKey is the advisory lock of an identity: that part of its digest which is
// of the whole of it.
func lockKey(digest pgtype.UUID) int64 { return int64(binary.BigEndian.Uint64(digest.Bytes[8:])) }
