package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel/internal/recordid"
	"github.com/semelhq/semel/internal/storekit"
)

// maxGroupBytes ends a group early, so that large results do not hold up many
// callers at once.
const maxGroupBytes = 8 << 20

// writer owns the one connection that writes. One goroutine runs it.
type writer struct {
	store  *Store
	conn   *conn
	broken bool // conn failed in a way that makes it, or what we know, doubtful

	group []*op
	tx    tx
	last  counters // as this store's last commit left them

	// If alone is set, the counters are still last for as long as the file has
	// that version: nobody else has written to it.
	alone   bool
	version uint32
	seq     uint64 // of the last committed audit entry

	busy     atomic.Bool // in a turn
	slowTime *time.Timer // for turns that take long
	noteTime *time.Timer
	noteRest time.Time       // until then notes wait
	pending  []storekit.Note // taken from the queue, not yet committed
	unsure   bool            // pending was in a commit that failed

	crowded time.Time // until then others are taken to want the lock too
}

// slowTurn signals waiters that a turn takes long, for as long as it does.
func (w *writer) slowTurn() {
	if w.busy.Load() {
		w.store.slow.fire()
		w.slowTime.Reset(slowTurn)
	}
}

// open opens the file for the first time.
func (w *writer) open(ctx context.Context) (err error) {
	c := w.store.config
	path, err := locate(c.Path, c.MustExist || c.NoMigrate)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPath, err)
	}
	patiently := func(try func() error) error { return patient(ctx, c.BusyTimeout, try) }
	if err := patiently(func() (err error) {
		w.conn, err = w.store.dial(ctx, path, "", false)
		return err
	}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.conn.close())
		}
	}()
	if w.conn.database.readOnly() {
		return errors.New("the file is not writable")
	}
	// First look, then touch: another application's file stays as it is.
	var k fileKind
	if err := patiently(func() error {
		if k, err = w.conn.kind(ctx); err != nil {
			return err
		}
		return k.check()
	}); err != nil {
		return err
	}
	older := k.version < int64(len(migrations))
	if older && c.NoMigrate {
		return fmt.Errorf("%w: version %d, not %d", ErrOlderSchema, k.version, len(migrations))
	}
	if err := patiently(func() error { return w.conn.useWAL(ctx) }); err != nil {
		return err
	}
	if older { // else the lock is not needed, which others may have
		if err := patiently(func() error { return w.conn.begin() }); err != nil {
			return err
		}
		if err := w.conn.migrate(ctx); err != nil {
			return err
		}
	}
	if err := patiently(func() (err error) {
		if w.store.names, err = w.conn.names(); err == nil {
			w.last, err = w.conn.counters()
		}
		return err
	}); err != nil {
		return err
	}
	w.store.cache.open(w.conn.database)
	w.store.files, err = observeFiles(path)
	return err
}

// begin begins a transaction that holds the write lock.
func (c *conn) begin() error {
	_, err := c.exec("BEGIN IMMEDIATE")
	return err
}

// useWAL turns the write-ahead log on, which stays on for the file.
func (c *conn) useWAL(ctx context.Context) error {
	mode := ""
	if err := c.queryOnce(ctx, "PRAGMA journal_mode = WAL", func(r *row) { mode = r.text() }); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file system does not allow a write-ahead log (the journal mode stayed %q)", mode)
	}
	return nil
}

// patient calls try until it no longer finds another connection in the way.
// SQLite's own busy handler is not used: it cannot be asked to wait for all of
// these cases, and it sleeps too long to win the lock from a busy process.
func patient(ctx context.Context, timeout time.Duration, try func() error) error {
	start := time.Now()
	for wait := 100 * time.Microsecond; ; wait = min(wait*2, time.Millisecond) {
		err := try()
		if !isBusy(err) {
			return err
		}
		if waited := time.Since(start); waited > timeout {
			return fmt.Errorf("%w for %v: %w", ErrBusy, waited.Round(time.Millisecond), err)
		}
		t := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// run serves callers until the store is closed.
func (w *writer) run() {
	s := w.store
	defer close(s.done)
	w.noteTime = time.NewTimer(time.Hour)
	defer w.noteTime.Stop()
	defer w.slowTime.Stop()
	for {
		select {
		case o := <-s.queue:
			w.turn(o)
		case <-s.notes.Arrived():
			w.awaitNotes()
		case <-w.noteTime.C:
			if w.hasNotes() {
				w.turn(nil)
			}
		case <-s.stop:
			s.writeErr = w.finish()
			return
		}
	}
}

// turn writes one group: first, if there is one, and what else is waiting.
func (w *writer) turn(first *op) {
	w.busy.Store(true)
	w.slowTime.Reset(slowTurn)
	defer func() {
		w.busy.Store(false)
		w.slowTime.Stop()
		clear(w.group)
		if w.hasNotes() {
			w.awaitNotes()
		}
	}()
	err := w.lock()
	runtime.Gosched() // whom the last group woke is about to ask for more: let it into this one
	w.collect(first)
	if err != nil {
		settle(w.group, err)
		w.noteRest = time.Now().Add(noteRest)
		return
	}
	if settled, err := w.commit(w.group, w.dueNotes(noteDelay)); !settled {
		w.oneByOne(err)
	}
	if time.Now().Before(w.crowded) {
		// The lock goes to the process that asks at the right moment. Pause, or a
		// busy process would keep the others out.
		time.Sleep(2 * time.Millisecond)
	}
}

// collect takes the ops that wait, until the group is full. It is called with
// the write lock held, so an op waits as long as its caller may drop it.
func (w *writer) collect(first *op) {
	w.group = w.group[:0]
	size := 0
	take := func(o *op) {
		if o.state.CompareAndSwap(opWaiting, opTaken) {
			w.group = append(w.group, o)
			size += o.size
		}
	}
	if first != nil {
		take(first)
	}
	for len(w.group) < w.store.config.MaxGroup && size < maxGroupBytes {
		select {
		case o := <-w.store.queue:
			take(o)
		default:
			return
		}
	}
}

// lock begins a transaction, in w.tx.
func (w *writer) lock() error {
	if err := w.store.files.check(); err != nil {
		return err
	}
	if w.broken {
		if err := w.reconnect(); err != nil {
			return err
		}
	}
	since := time.Now()
	err := patient(context.Background(), w.store.config.BusyTimeout, func() error {
		err := w.conn.begin()
		if isBusy(err) {
			now := time.Now()
			if now.Sub(since) > lookAfter {
				since = now
				w.store.slow.fire()
			}
			w.crowded = now.Add(time.Second)
		}
		return err
	})
	if err != nil {
		w.broken = !isBusy(err)
		return err
	}
	now := time.Now()
	w.tx = tx{store: w.store, conn: w.conn, instance: w.store.instance, seq: w.seq, time: now, now: now.UnixMicro()}
	version, err := w.conn.database.version()
	switch {
	case err == nil && w.alone && version == w.version:
		w.tx.counters = w.last
		return nil
	case err == nil:
		w.tx.counters, err = w.conn.counters()
	}
	if err != nil {
		w.rollback(err)
		return err
	}
	if w.tx.counters != w.last {
		w.crowded = now.Add(time.Second)
	}
	return nil
}

// reconnect replaces a connection that is in doubt, and finds out whether its
// last commit took effect.
func (w *writer) reconnect() error {
	var c *conn
	seq := w.seq
	err := patient(context.Background(), w.store.config.BusyTimeout, func() (err error) {
		if c == nil {
			if c, err = w.store.dial(context.Background(), w.store.files.path, "", false); err != nil {
				return err
			}
		}
		return c.query(selectLastSeq,
			func(r *row) { seq = max(seq, uint64(r.int())) }, int64(w.last.position), int64(w.store.instance))
	})
	if err != nil {
		if c != nil {
			err = errors.Join(err, c.close())
		}
		return err
	}
	if seq > w.seq && w.unsure {
		w.pending = nil // the commit that failed has happened
	}
	w.store.cache.open(c.database)
	// The old connection goes last: closing the only one would remove the
	// companion files. Its own errors are known.
	_ = w.conn.close()
	w.conn, w.seq, w.unsure, w.broken, w.alone = c, seq, false, false, false
	return nil
}

// commit runs ops and writes notes in the transaction that lock began, and
// settles the ops, even if it is the commit that fails. If a statement fails, it
// rolls back and leaves the ops unsettled.
func (w *writer) commit(ops []*op, notes []storekit.Note) (settled bool, err error) {
	t := &w.tx
	before := t.counters
	t.callers = len(ops)
	for _, o := range ops {
		if t.err == nil {
			o.run(t)
		}
	}
	for _, n := range notes {
		if t.err == nil {
			_ = t.append(n.At, n.Entry) // kept in t.err
		}
	}
	_ = t.flush() // kept in t.err
	if t.err == nil && t.counters != before {
		_, _ = t.exec("UPDATE counter SET fence = ?, position = ?", int64(t.fence), int64(t.position))
	}
	if t.err != nil {
		w.rollback(t.err)
		return false, t.err
	}
	cache := &w.store.cache
	cache.beforeCommit()
	pages, err := w.conn.database.written()
	known := err == nil
	if _, err := w.conn.exec("COMMIT"); err != nil {
		cache.afterCommit(0, false)
		w.rollback(err)
		w.last, w.alone = before, false
		w.broken, w.unsure = true, len(notes) > 0
		w.noteRest = time.Now().Add(noteRest)
		for _, o := range ops {
			o.settle(fmt.Errorf("sqlite: commit: whether the write took effect is open: %w", err))
		}
		return true, err
	}
	commits := uint32(0)
	if after, err := w.conn.database.written(); err != nil {
		known = false
	} else if after != pages {
		commits = 1
	}
	cache.afterCommit(commits, known)
	w.last, w.seq = t.counters, t.seq
	var unknown error
	w.version, unknown = w.conn.database.version()
	w.alone = unknown == nil
	if len(notes) > 0 {
		w.pending = nil
	}
	for _, o := range ops {
		o.settle(nil)
	}
	return true, nil
}

func (w *writer) rollback(cause error) {
	w.alone = false
	// After some errors SQLite has rolled back already, and says so.
	_, _ = w.conn.exec("ROLLBACK")
	switch code(cause) & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG:
		// The statement was to blame, not the connection.
	default:
		w.broken = true
	}
}

// oneByOne runs every op of a group that failed with err in a transaction of its
// own, so that only those fail that must.
func (w *writer) oneByOne(err error) {
	if len(w.group) == 1 && len(w.pending) == 0 {
		settle(w.group, err)
		return
	}
	for i := range w.group {
		op := w.group[i : i+1]
		if err := w.lock(); err != nil {
			settle(w.group[i:], err)
			break
		}
		if settled, err := w.commit(op, nil); !settled {
			settle(op, err)
		}
	}
	if len(w.pending) > 0 && w.writeNotes() != nil {
		w.noteRest = time.Now().Add(noteRest)
	}
}

// finish serves what is left and closes the file.
func (w *writer) finish() error {
	s := w.store
	for {
		select {
		case o := <-s.queue:
			w.turn(o)
			continue
		default:
		}
		break
	}
	errs := []error{w.lastNotes()}
	s.cache.close()
	errs = append(errs, s.readers.close(), w.conn.close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sqlite: close: %w", err)
	}
	return nil
}

// counters are the numbers that never repeat.
type counters struct {
	fence, position uint64
}

const selectCounters = "SELECT fence, position, user_version FROM counter, pragma_user_version"

func (c *conn) counters() (n counters, err error) {
	var version int64
	err = c.query(selectCounters, func(r *row) {
		n = counters{fence: uint64(r.int()), position: uint64(r.int())}
		version = r.int()
	})
	if err == nil && version != int64(len(migrations)) {
		err = fmt.Errorf("%w: version %d, not %d", ErrNewerSchema, version, len(migrations))
	}
	return n, err
}

// names returns the namer of the file's secret.
func (c *conn) names() (namer, error) {
	var secret []byte
	if err := c.queryOnce(context.Background(), "SELECT secret FROM counter WHERE one = 1", func(r *row) { secret = r.blob() }); err != nil {
		return nil, err
	}
	names, err := recordid.New(secret)
	if err != nil {
		return nil, fmt.Errorf("the secret that its records are found by is damaged: %w", err)
	}
	return names, nil
}

// tx is a transaction that holds the write lock.
type tx struct {
	counters
	store    *Store
	conn     *conn
	time     time.Time // read when the lock was won
	now      int64     // time in microseconds
	instance instance
	seq      uint64
	callers  int      // who wait for the commit
	run      []uint64 // the records of the last entries, which are executions not in the file yet
	err      error    // of the first statement that failed; the transaction is lost
}

func (t *tx) exec(query string, args ...driver.Value) (int64, error) {
	n, err := t.conn.exec(query, args...)
	if err != nil && t.err == nil {
		t.err = err
	}
	return n, err
}

func (t *tx) query(query string, each func(*row), args ...driver.Value) error {
	err := t.conn.query(query, each, args...)
	if err != nil && t.err == nil {
		t.err = err
	}
	return err
}
