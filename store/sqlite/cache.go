package sqlite

import (
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel"
)

// cache keeps completed records that were asked for again, for the next who ask.
//
// What it has is what the file says, because it asks, each time, what SQLite asks
// before it uses pages that it has in memory: whether the header of the log's
// index, in memory that all processes share, is still the one that they were read
// under. Each commit changes it, whoever's it is, before it is seen by others. The
// writer follows its own commits from one header to the next, since nothing but an
// erasure changes a completed record that has not expired; an erasure, and a commit
// of anybody else, handlers' transactions included, empties the cache.
type cache struct {
	most int // bytes

	mu         sync.Mutex
	index      *[2]walHeader // nil before and after the file is open
	at         walHeader     // what the entries were read under
	committing bool          // the writer is about to change the header
	erased     bool          // by what it is about to commit
	swept      int64         // the latest time whose expired records may have been removed
	size       int           // of young
	young, old map[semel.Identity]*stored
}

// walHeader is one of the two copies of the header, of 48 bytes, at the start of a
// log's index. Where they differ, somebody is at it.
type walHeader [6]uint64

// commits returns the number of commits. Nothing else changes the count, except a
// recovery after a crash, which sets it to zero.
func (h *walHeader) commits() uint32 {
	return binary.NativeEndian.Uint32((*[8]byte)(unsafe.Pointer(&h[1]))[:])
}

const walIndexVersion = 3007000

func (h *walHeader) valid() bool {
	return binary.NativeEndian.Uint32((*[8]byte)(unsafe.Pointer(&h[0]))[:]) == walIndexVersion
}

// entryOverhead is about what an entry takes beyond its texts and its result: the
// record, and its share of a map with two identities' worth of room.
const entryOverhead = int(unsafe.Sizeof(stored{})) + 4*int(unsafe.Sizeof(semel.Identity{}))

func (c *cache) init(config Config) {
	c.most = max(config.CacheBytes, 0)
	c.young = make(map[semel.Identity]*stored)
}

// open has c look at the index that a connection has mapped, which is there for as
// long as the file is open by any.
func (c *cache) open(d *database) {
	index, err := d.walIndex()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
	c.index = nil
	if err == nil && c.most > 0 {
		c.index = (*[2]walHeader)(at(index))
	}
}

// close must be called before the last connection is closed, which removes the
// index.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index = nil
	c.drop()
}

func (c *cache) drop() {
	clear(c.young)
	c.old, c.size = nil, 0
}

// now returns the header. It is called with c.mu locked, so that the index stays.
func (c *cache) now() (h walHeader, ok bool) {
	if c.index == nil {
		return h, false
	}
	same := true
	for i := range h { // in the opposite order of who writes them
		h[i] = atomic.LoadUint64(&c.index[0][i])
	}
	for i := range h {
		same = same && h[i] == atomic.LoadUint64(&c.index[1][i])
	}
	return h, same && h.valid()
}

// state is what put needs to know of the time before a record is read.
func (c *cache) state() (h walHeader, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// get returns a completed record as it is in the file now, or nil.
func (c *cache) get(id *semel.Identity, now int64) *stored {
	c.mu.Lock()
	defer c.mu.Unlock()
	rec := c.young[*id]
	aged := rec == nil
	if aged {
		if rec = c.old[*id]; rec == nil {
			return nil
		}
	}
	// The clock may have been set back since a sweep.
	if rec.expired(max(now, c.swept)) {
		return nil
	}
	if h, ok := c.now(); !ok || h != c.at {
		return nil
	}
	if aged {
		c.add(rec)
	}
	return rec
}

// put keeps a record that was read after state was before. From then on it is
// shared, and nobody changes it.
func (c *cache) put(rec *stored, before walHeader) {
	size := rec.bytes()
	if rec.State != semel.StateCompleted || rec.Result.Pieces != nil || size > c.most/64 {
		return
	}
	id := &rec.Identity // which may be parts of a request
	id.Tenant, id.Actor = strings.Clone(id.Tenant), strings.Clone(id.Actor)
	id.Operation, id.Key = strings.Clone(id.Operation), strings.Clone(id.Key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.now(); !ok || h != before || c.committing {
		return
	}
	if c.at != before {
		c.drop()
		c.at = before
	}
	c.add(rec)
}

// add keeps the entries that were used last: once half of the room is full, what
// was not used since the last time is dropped.
func (c *cache) add(rec *stored) {
	size := rec.bytes()
	if c.size+size > c.most/2 {
		c.old, c.young, c.size = c.young, make(map[semel.Identity]*stored), 0
	}
	if was := c.young[rec.Identity]; was != nil { // it has expired, and there is another
		size -= was.bytes()
	}
	c.young[rec.Identity] = rec
	c.size += size
}

// bytes is about how much memory the record takes.
func (s *stored) bytes() int {
	return entryOverhead + len(s.token) + len(s.ID) + len(s.Identity.Tenant) + len(s.Identity.Actor) + len(s.Identity.Operation) + len(s.Identity.Key) +
		len(s.Fingerprint.Scheme) + len(s.Origin.RequestID) + len(s.Origin.EventID) + len(s.Origin.TraceID) +
		len(s.Result.Codec) + len(s.Result.Label) + len(s.Result.Reference) + cap(s.Result.Head) + cap(s.Result.Body)
}

// removing must be called before records that expired up to now are removed.
func (c *cache) removing(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.swept = max(c.swept, now)
}

// erasing must be called before a commit that changes a completed record.
func (c *cache) erasing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.erased = true
}

// beforeCommit and afterCommit are the writer's. Between them nobody puts what was
// read behind its commit, which afterCommit would take for what was read before.
func (c *cache) beforeCommit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committing = true
}

// afterCommit is called after a turn with its number of commits, one or none,
// or with known false. Any other commit between the last header and this one
// was another process's.
func (c *cache) afterCommit(commits uint32, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committing = false
	h, ok := c.now()
	if !ok || !known || c.erased || h.commits() != c.at.commits()+commits || commits == 0 && h != c.at {
		c.drop()
	}
	c.erased = false
	c.at = h
}

// walIndex returns where the index of the log is in memory. The connection has
// read the file.
func (d *database) walIndex() (uintptr, error) {
	if rc := sqlite3.Xsqlite3_file_control(d.tls, d.handle, 0, sqlite3.SQLITE_FCNTL_FILE_POINTER, d.word); rc != sqlite3.SQLITE_OK {
		return 0, d.failure(rc)
	}
	file := *(*uintptr)(at(d.word))
	methods := (*sqlite3.Tsqlite3_io_methods)(at((*sqlite3.Tsqlite3_file)(at(file)).FpMethods))
	if methods.FiVersion < 2 || methods.FxShmMap == 0 {
		return 0, d.failure(sqlite3.SQLITE_MISUSE)
	}
	// A pointer to a function of C is one to Go's.
	shmMap := *(*func(tls *libc.TLS, file uintptr, region, size, extend int32, p uintptr) int32)(unsafe.Pointer(&struct{ uintptr }{methods.FxShmMap}))
	*(*uintptr)(at(d.word)) = 0
	const size = 32 << 10 // of the index's regions
	if rc := shmMap(d.tls, file, 0, size, 0, d.word); rc != sqlite3.SQLITE_OK {
		return 0, d.failure(rc)
	}
	if index := *(*uintptr)(at(d.word)); index != 0 {
		return index, nil
	}
	return 0, d.failure(sqlite3.SQLITE_MISUSE)
}

// written counts the pages that this connection has written.
func (d *database) written() (int64, error) {
	if rc := sqlite3.Xsqlite3_db_status(d.tls, d.handle, sqlite3.SQLITE_DBSTATUS_CACHE_WRITE, d.word, d.word+4, 0); rc != sqlite3.SQLITE_OK {
		return 0, d.failure(rc)
	}
	return int64(*(*uint32)(at(d.word))), nil
}
