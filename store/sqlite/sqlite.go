package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// ErrClosed reports that the store has been closed. A call that was waiting had
// no effect.
var ErrClosed = fmt.Errorf("sqlite: the store is closed: %w", semel.ErrNotOpen)

// ErrBusy reports that the file's lock could not be acquired within
// Config.BusyTimeout. Nothing was opened, claimed or written, and it is safe to
// try again. The lock is held by a handler in its transaction, perhaps one that
// executes the same identity in another process, or by a backup, a VACUUM or
// another program that has the file open.
var ErrBusy = errors.New("sqlite: another handler or process kept the file busy")

// Errors of Open that persist until somebody corrects their cause.
var (
	// ErrPath reports that a file or directory is missing, is not a regular
	// file, or is not accessible.
	ErrPath = errors.New("sqlite: the path cannot hold a store")
	// ErrForeign reports that the file is not a database, or belongs to another
	// application.
	ErrForeign = errors.New("sqlite: the file is not a store")
)

// Mode says where a claim lives.
type Mode uint8

const (
	// ModeLeased makes a claim a committed record under a lease, which the owner
	// renews. Use it for effects outside the file.
	ModeLeased Mode = iota
	// ModeTransactional makes a claim a transaction: the record, the audit entry and
	// all that the handler changes through Tx are committed together or not at all.
	// A process that dies before that commit has changed nothing, so no outcome is
	// ever unknown. Use it for operations whose only effects are in this file.
	//
	// A claim holds the write lock of the whole file, from Begin to the end of the
	// handler. So only one handler runs at a time, among all processes, and others
	// wait for at most Config.BusyTimeout before Begin fails with ErrBusy. Sweeps,
	// other entries of the audit trail and leased claims of other stores on the
	// file wait as well. Keep handlers short. Replays and other reads do not wait.
	//
	// While a claim is open, a submit of the same identity through the same Store
	// is refused as in progress. Other processes cannot see the claim. They wait
	// for the lock and find the record once it is committed.
	ModeTransactional
)

var modeNames = [...]string{ModeLeased: "leased", ModeTransactional: "transactional"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Config configures a store. Only Path is required.
type Config struct {
	// Path is the path of the database file. If there is no file, Open creates
	// one that only its owner can read and write. An existing file keeps its
	// mode. SQLite creates two companions beside it, with the same mode and the
	// suffixes -wal and -shm.
	Path string
	// Mode says where claims live. Stores of both modes may share a file: each
	// sees the claims of the other.
	Mode Mode
	// MustExist makes Open fail if the file is missing or empty. Set it if that
	// would mean that a volume is not mounted: a new store does not know what
	// has been executed.
	MustExist bool
	// NoMigrate makes Open fail with ErrOlderSchema if the schema is of an earlier
	// version, and with ErrPath if the file is missing or empty, instead of changing
	// it. Set it where a program of the earlier version may still use the file.
	NoMigrate bool

	// BusyTimeout is how long a write waits while other processes write to
	// the file. Default 5 s.
	BusyTimeout time.Duration
	// MaxGroup is the maximum number of writes in one commit. Default 512.
	MaxGroup int
	// MaxQueue is the maximum number of writes that wait for their turn. Beyond it
	// callers block until there is room or their context ends. Default 4,096.
	MaxQueue int
	// Readers is the maximum number of concurrent reads. Default 4.
	Readers int
	// CacheBytes limits the memory for completed records that were requested
	// more than once and are served without reading the file. Results larger
	// than a 64th of it are not cached. Default 16 MiB; a negative value
	// disables the cache.
	CacheBytes int
	// MaxResultBytes limits the size of a result: its head, body and reference
	// together, in pieces or not. Complete and Resolve refuse larger results.
	// Default 64 MiB, at most 512 MiB.
	MaxResultBytes int

	// MaxNotes is the maximum number of audit entries that wait to be written.
	// Entries beyond it are dropped and counted. Default 8,192.
	MaxNotes int
	// TrailRetention is how long audit entries are kept. Default 90 days; a
	// negative value keeps them forever.
	TrailRetention time.Duration
	// SweepEvery is the time between two sweeps of Run. Default 1 min.
	SweepEvery time.Duration
	// OnSweep, if not nil, is called with the result of each sweep of Run.
	OnSweep func(Swept)

	// MaxPending is the maximum number of pending messages in the outbox. Beyond
	// it Enqueue and Outbox.EnqueueTx fail with outbox.ErrFull. Messages are
	// counted at most once a second, so several processes together may exceed it
	// by what they enqueue in a second. Rows inserted by other programs are
	// counted but never refused. 0 means no limit.
	MaxPending int
}

func (c Config) withDefaults() Config {
	if c.BusyTimeout == 0 {
		c.BusyTimeout = 5 * time.Second
	}
	if c.MaxGroup == 0 {
		c.MaxGroup = 512
	}
	if c.MaxQueue == 0 {
		c.MaxQueue = 4096
	}
	if c.Readers == 0 {
		c.Readers = 4
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 16 << 20
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
	const mostResultBytes = 512 << 20 // SQLite holds rows up to 1,000,000,000 bytes
	errs := []error{validatePath(c.Path)}
	if c.Mode > ModeTransactional {
		errs = append(errs, fmt.Errorf("field Mode is %v; use ModeLeased or ModeTransactional", c.Mode))
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"MaxGroup", c.MaxGroup},
		{"MaxQueue", c.MaxQueue},
		{"Readers", c.Readers},
		{"MaxResultBytes", c.MaxResultBytes},
		{"MaxNotes", c.MaxNotes},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("field %s is %d; it must be positive", f.name, f.value))
		}
	}
	if c.MaxResultBytes > mostResultBytes {
		errs = append(errs, fmt.Errorf("field MaxResultBytes is %d; at most %d are allowed", c.MaxResultBytes, mostResultBytes))
	}
	if c.MaxPending < 0 {
		errs = append(errs, fmt.Errorf("field MaxPending is %d; it must be positive, or 0 for no bound", c.MaxPending))
	}
	if c.BusyTimeout < 0 {
		errs = append(errs, fmt.Errorf("field BusyTimeout is %v; it must be positive", c.BusyTimeout))
	}
	if c.SweepEvery < 0 {
		errs = append(errs, fmt.Errorf("field SweepEvery is %v; it must be positive", c.SweepEvery))
	}
	return errors.Join(errs...)
}

// Store implements semel.Store, Resolver, Sweeper, Lister, Trail and Eraser over one
// database file. It is safe for concurrent use. Open makes one.
type Store struct {
	config   Config
	dial     dialer
	files    *files
	names    namer
	instance instance // of this handle, in the audit trail
	known    known
	cache    cache
	readers  readers
	notes    storekit.Notes
	hints    storekit.Hints // of the outbox
	pending  pending        // in the outbox
	txs      transactions

	queue chan *op
	slow  signal        // to those whose turn is long in coming
	stop  chan struct{} // closed when Close begins
	done  chan struct{} // closed when the writer has ended

	closing  sync.Once
	closed   chan struct{} // closed when all is, and closeErr set
	writeErr error         // of the writer's end
	closeErr error
}

var (
	_ semel.Store    = (*Store)(nil)
	_ semel.Resolver = (*Store)(nil)
	_ semel.Eraser   = (*Store)(nil)
	_ semel.Sweeper  = (*Store)(nil)
	_ semel.Lister   = (*Store)(nil)
	_ semel.Trail    = (*Store)(nil)
)

// Open opens the database file, brings its schema up to date, and starts the
// goroutine that writes to it, which Close ends. Several stores, in one process
// or in many on the same host, may have the same file open.
//
// Open fails without changing the file if the file is not a database, belongs to
// another application, or has a newer schema (ErrNewerSchema). It fails with
// ErrBusy if others keep the file locked; a writer in its turn does not, unless
// the schema has to be brought up to date. ctx applies to Open only.
func Open(ctx context.Context, c Config) (*Store, error) { return open(ctx, c, connect) }

func open(ctx context.Context, c Config, dial dialer) (*Store, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("sqlite: config: %w", err)
	}
	s := &Store{
		config:   c,
		dial:     dial,
		instance: newInstance(),
		queue:    make(chan *op, c.MaxQueue),
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
		closed:   make(chan struct{}),
	}
	s.txs.init(s)
	s.slow.init()
	s.known.init()
	s.cache.init(c)
	s.notes.Init(c.MaxNotes)
	w := &writer{store: s}
	w.slowTime = time.AfterFunc(time.Hour, w.slowTurn)
	if err := w.open(ctx); err != nil {
		switch code(err) & 0xff {
		case sqlite3.SQLITE_READONLY:
			err = fmt.Errorf("the file or its directory is not writable: %w", err)
		case sqlite3.SQLITE_NOTADB:
			err = fmt.Errorf("%w: %w", ErrForeign, err)
		}
		return nil, fmt.Errorf("sqlite: open %s: %w", c.Path, err)
	}
	s.readers.init(c)
	go w.run()
	return s, nil
}

// Close rolls back open transactional claims, once a running statement has ended,
// finishes the waiting writes, writes out the audit trail, and closes the file.
// Later calls fail with ErrClosed. The error says what could not be written or
// closed.
//
// If ctx ends first, Close returns its error, and the store continues to close.
// Another call of Close waits for that and returns its result.
func (s *Store) Close(ctx context.Context) error {
	s.closing.Do(func() {
		go func() {
			defer close(s.closed)
			err := s.txs.close()
			close(s.stop)
			<-s.done
			s.closeErr = errors.Join(err, s.writeErr)
		}()
	})
	select {
	case <-s.closed:
		return s.closeErr
	default:
	}
	select {
	case <-s.closed:
		return s.closeErr
	case <-ctx.Done():
		return fmt.Errorf("sqlite: the store is still being closed: audit entries that wait are lost if the process ends now; call Close again to wait for it: %w", ctx.Err())
	}
}
