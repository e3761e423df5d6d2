package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/semelhq/semel"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrClosed: the store has been closed. A call that was waiting took no effect.
var ErrClosed = fmt.Errorf("sqlite: the store is closed: %w", semel.ErrNotOpen)

// ErrBusy: the file's lock was not to be had within Config.BusyTimeout. Nothing
// was opened, claimed or written, and trying again later is safe. Somebody else
// has the lock: a handler in its transaction, perhaps one that executes the same
// identity in another process, which cannot be seen; or a backup, a VACUUM or
// another program that has the file open.
var ErrBusy = errors.New("sqlite: another handler or process kept the file busy")

// Reasons for which Open fails, and will until somebody sees to it.
var (
	// ErrPath: there is no such file or directory where one must be, or what is
	// there is no regular file, or may not be looked at.
	ErrPath = errors.New("sqlite: the path cannot hold a store")
	// ErrForeign: the file is no database, or another application's.
	ErrForeign = errors.New("sqlite: the file is not a store")
)

// Config says which file a store keeps its records in, and how. Only Path is
// required.
type Config struct {
	// Path is the path of the database file. Open creates the file, readable
	// and writable by its owner only, where there is none; a file that is
	// there keeps its mode. SQLite puts two companions beside it, with -wal
	// and -shm behind the name and of the same mode.
	Path string
	// MustExist has Open fail where there is no file, or an empty one. Set it
	// where that would mean that a volume is not mounted: a store that starts
	// anew has forgotten what was executed.
	MustExist bool

	// BusyTimeout is how long a write waits while other processes write to
	// the file. Default 5 s.
	BusyTimeout time.Duration
	// MaxGroup is how many writes are committed together at most. Default 512.
	MaxGroup int
	// MaxQueue is how many writes wait for their turn at most; beyond it
	// callers wait to be let in, for as long as their context allows. Default 4,096.
	MaxQueue int
	// Readers is how many look-ups run at the same time at most. Default 4.
	Readers int
	// CacheBytes bounds the memory for completed records that were asked for
	// again and are answered without the file. Results beyond a 64th of it are
	// not kept there. Default 16 MiB; negative keeps none.
	CacheBytes int
	// MaxResultBytes bounds head, body and reference of a result together,
	// also of one in pieces. Complete and Resolve refuse larger ones. Default
	// 64 MiB, at most 512 MiB.
	MaxResultBytes int

	// MaxNotes is how many audit entries wait to be written at most; beyond
	// it they are dropped and counted. Default 8,192.
	MaxNotes int
	// TrailRetention is how long audit entries are kept. Default 90 days;
	// negative keeps them for ever.
	TrailRetention time.Duration
	// SweepEvery is the time between two sweeps of Run. Default 1 min.
	SweepEvery time.Duration
	// OnSweep is told what each sweep of Run did; nil for nobody.
	OnSweep func(Swept)

	// MaxPending is how many messages may be pending in the outbox: beyond it
	// Enqueue and Outbox.EnqueueTx fail with outbox.ErrFull. They are counted at
	// most once a second, so several processes together may go over it by what
	// they enqueue in a second. Rows that other programs insert are counted and
	// not refused. 0 is no bound: what must not be lost waits on disk, and the
	// age of the oldest is the warning.
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

// Store implements semel.Store, Resolver, Sweeper, Lister and Trail over one
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
	notes    notes
	hints    hints   // of the outbox
	pending  pending // in the outbox

	queue chan *op
	slow  signal        // to those whose turn is long in coming
	stop  chan struct{} // closed when Close begins
	done  chan struct{} // closed when the writer has ended

	closing  sync.Once
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
// Open fails, without changing the file, if it is no database, another
// application's, or of a newer schema (ErrNewerSchema), and with ErrBusy if others
// keep it locked. Who only writes does not: the write lock is needed where the
// schema has to be brought up to date. ctx bounds Open only.
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
	}
	s.slow.init()
	s.known.init()
	s.cache.init(c)
	s.notes.init(c.MaxNotes)
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

// Close finishes the writes that wait, writes the audit trail out, and closes
// the file. Calls that come later fail with ErrClosed. The error says what could
// not be written or closed. Closing again returns the same.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.stop)
		<-s.done
	})
	return s.closeErr
}
