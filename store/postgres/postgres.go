package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

var (
	// ErrClosed reports that the store has been closed.
	ErrClosed = fmt.Errorf("postgres: the store is closed: %w", semel.ErrNotOpen)
	// ErrUnfit reports that the configuration of the database does not allow a
	// store to keep its promises. The error says why.
	ErrUnfit = errors.New("postgres: the database cannot hold a store")
)

// Mode says where a claim lives.
type Mode uint8

const (
	// ModeLeased makes a claim a committed record under a lease, which the
	// owner renews. Use it for effects outside the database.
	ModeLeased Mode = iota
	// ModeTransactional makes a claim a transaction, in which the handler makes
	// its changes. They and the record are committed together or not at all. Use
	// it for operations whose only effects are in this database.
	ModeTransactional
)

var modeNames = [...]string{ModeLeased: "leased", ModeTransactional: "transactional"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Config configures a store. The zero value is a leased store with the defaults
// documented at each field.
type Config struct {
	// Mode says where claims live. All stores that protect an operation must
	// have the same mode. In the other mode the operation would run and then be
	// rolled back.
	Mode Mode
	// Schema is the name of the database schema that holds the tables.
	// Default "semel".
	Schema string
	// NoMigrate makes New fail with ErrOlderSchema if the tables are missing or
	// have to be brought up to date.
	NoMigrate bool

	// Isolation is the level of the transactions that a transactional store
	// begins. Default read committed. At higher levels the record is written
	// first and completed at the end, which costs a round trip.
	Isolation pgx.TxIsoLevel
	// NoAdvisoryLocks is for databases that lack pg_try_advisory_xact_lock. A
	// duplicate of a running operation then holds a connection for LockTimeout,
	// and the record is written first.
	NoAdvisoryLocks bool
	// LockTimeout is how long a transactional claim waits for another
	// transaction that has written the same identity, before it reports that
	// one as in progress. Default 50 ms.
	LockTimeout time.Duration
	// IdleTimeout ends a transactional claim whose session has sent nothing for
	// that long, because its process is paused, dead or cut off. The
	// transaction is rolled back and its lock released. The guard's renewals
	// count as activity, so IdleTimeout may be shorter than an operation, but
	// must be longer than a few heartbeats. Default 1 min, rounded up to a
	// millisecond.
	IdleTimeout time.Duration
	// PeerTimeout ends a transactional claim whose host has not responded for that
	// long at the level of TCP, if the server's connection is to that host and not
	// to a pooler. Detection may take a quarter longer. Default 30 s. The setting
	// stays with the session. Through a pooler it is set for each transaction, at
	// some cost. If the server's role or the connection string sets
	// tcp_user_timeout, that value is used instead.
	PeerTimeout time.Duration

	// Notify wakes waiting submits when other processes change a record (see
	// semel.Watcher). Each change of a record sends a notification with its
	// commit, and the store keeps one connection open outside the pool to
	// listen. All stores on the same tables should use the same setting.
	//
	// It is off by default because of its cost: PostgreSQL takes a lock on the
	// whole database for the commit of a transaction that notifies, so these
	// commits are serialized. A commit also fails if the server's queue of
	// notifications is full, because some session listens and does not read.
	//
	// Notifications carry a digest of the identity. Any role of the database
	// can listen to them.
	Notify bool
	// Listen says how to connect to the server for Notify. Default: as the pool
	// does. Set it if the pool connects to a pooler such as PgBouncer:
	// listening needs a session of the server, and New fails with ErrPooler
	// without one.
	Listen *pgx.ConnConfig

	// MaxResultBytes limits the size of a result: its head, body and reference
	// together, in pieces or not. Complete and Resolve refuse larger results.
	// Default 64 MiB, at most 512 MiB.
	MaxResultBytes int
	// MaxNotes is the maximum number of audit entries that wait to be written.
	// Entries beyond it are dropped and counted. Default 8,192.
	MaxNotes int
	// TrailRetention is how long audit entries are kept. Default 90 days; a
	// negative value keeps them forever. The entry of an execution is kept for at
	// least as long as its record.
	TrailRetention time.Duration
	// SweepEvery is the time between two sweeps of Run. Default 1 min.
	SweepEvery time.Duration
	// OnSweep, if not nil, is called with the result of each sweep of Run.
	OnSweep func(Swept)

	// MaxPending is the maximum number of pending messages in the outbox. Beyond
	// it Enqueue, EnqueueTx and EnqueueSQL fail with outbox.ErrFull. Messages are
	// counted at most once a second, so several processes together may exceed it
	// by what they enqueue in a second. Rows inserted by other programs are
	// counted but never refused. 0 means no limit.
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
	if c.Mode > ModeTransactional {
		errs = append(errs, fmt.Errorf("field Mode is %v; use ModeLeased or ModeTransactional", c.Mode))
	}
	if err := checkName("field Schema", c.Schema, false); err != nil {
		errs = append(errs, err)
	} else if len(c.Schema) > mostName {
		errs = append(errs, fmt.Errorf("field Schema is %d bytes long; at most %d are allowed", len(c.Schema), mostName))
	}
	switch c.Isolation {
	case pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable:
		if c.Mode == ModeLeased && c.Isolation != pgx.ReadCommitted {
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

// Store implements semel.Store, Resolver, Sweeper, Lister, Trail, Eraser and, with
// Config.Notify, Watcher over the tables of one database schema. It is safe for
// concurrent use. New makes one.
type Store struct {
	config   Config
	pool     *pgxpool.Pool
	instance string // of this handle, in the audit trail
	names    namer
	sql      statements
	notes    notes
	hints    storekit.Hints // of the outbox, in this process
	pending  pending        // in the outbox
	watchers *watchers      // nil without Config.Notify

	mu     sync.Mutex
	closed bool
	open   map[*txClaim]struct{} // claims with a transaction of their own

	closing  sync.Once
	closeErr error
}

var (
	_ semel.Store    = (*Store)(nil)
	_ semel.Resolver = (*Store)(nil)
	_ semel.Sweeper  = (*Store)(nil)
	_ semel.Lister   = (*Store)(nil)
	_ semel.Trail    = (*Store)(nil)
	_ semel.Watcher  = (*Store)(nil)
)

// New returns a store on a pool of connections to the primary. The caller keeps the
// ownership of the pool: close the store first, then the pool. New brings the tables up
// to date (see Migrate) and starts the goroutine that writes the audit trail and, with
// Config.Notify, the one that listens. Close ends both. Any number of stores, in any
// number of processes, may share the tables.
//
// New fails with ErrNewerSchema if the tables are newer than this package, with
// ErrNoSecret if they have lost the secret of their ids, and with ErrUnfit if the
// encoding of the database is not UTF-8 or synchronous_commit is off, because a
// result that was already returned could then be lost. ctx applies to New only.
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
		s.hints.Add(messages)
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

// Close rolls back open transactional claims, except those that joined a
// transaction of the caller, and writes out the audit trail. Later calls fail with
// ErrClosed. The pool remains open. The error says how many audit entries could
// not be written before ctx ended. Calling Close again returns the same error.
func (s *Store) Close(ctx context.Context) error {
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
		s.closeErr = s.notes.close(ctx)
	})
	return s.closeErr
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
