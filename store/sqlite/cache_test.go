package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// cached opens a store with the record of a in its cache, and another connection
// to its file.
func cached(t *testing.T, f *faults) (s *Store, foreign func(query string, args ...any)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "semel.db")
	s = openFaulty(t, f, Config{Path: path})
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	foreign = func(query string, args ...any) {
		t.Helper()
		if _, err := db.Exec(query, args...); err != nil {
			t.Fatal(err)
		}
	}
	foreign("PRAGMA user_version")
	if _, err := mustBegin(t, s, attempt("a")).Complete(t.Context(), semel.Result{Body: []byte("of a")}); err != nil {
		t.Fatal(err)
	}
	wantTaken(t, s, "a", "of a")
	wantCached(t, s, "a", true)
	return s, foreign
}

func wantTaken(t *testing.T, s semel.Store, key, body string) {
	t.Helper()
	_, err := s.Begin(t.Context(), attempt(key))
	if c, ok := errors.AsType[*semel.ConflictError](err); !ok || string(c.Record.Result.Body) != body {
		t.Errorf("%s was answered %v; want its record with %q", key, err, body)
	}
}

func wantCached(t *testing.T, s *Store, key string, want bool) {
	t.Helper()
	if got := s.Cached(identity(key)); got != want {
		t.Errorf("%s is cached: %v; want %v", key, got, want)
	}
}

// What is cached is answered without the file, over the store's own commits, and
// ends with whatever may have changed it.
func TestCacheIsWhatTheFileSays(t *testing.T) {
	const another = "UPDATE record SET body = CAST('other' AS BLOB) WHERE key = 'a'"
	for name, change := range map[string]func(t *testing.T, s *Store, foreign func(string, ...any)){
		"by hand": func(t *testing.T, s *Store, foreign func(string, ...any)) { foreign(another) },
		"and ours": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			foreign(another)
			mustBegin(t, s, attempt("b"))
		},
		"and none": func(t *testing.T, s *Store, foreign func(string, ...any)) { foreign(another); wantSwept(t, s, 0) },
		"vacuum":   func(t *testing.T, s *Store, foreign func(string, ...any)) { foreign(another); foreign("VACUUM") },
		"checkpoint": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			foreign(another)
			foreign("PRAGMA wal_checkpoint(TRUNCATE)")
		},
		"and others read": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			if _, err := mustBegin(t, s, attempt("b")).Complete(t.Context(), semel.Result{}); err != nil {
				t.Fatal(err)
			}
			wantCached(t, s, "a", true)
			foreign(another)
			wantTaken(t, s, "b", "")
			wantCached(t, s, "b", true)
		},
		"a handler": func(t *testing.T, s *Store, _ func(string, ...any)) {
			c, err := s.txs.begin(t.Context(), attempt("b"))
			if err != nil {
				t.Fatal(err)
			}
			tx, _ := Tx(c.Context(t.Context()))
			if _, err := tx.ExecContext(t.Context(), another); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Complete(t.Context(), semel.Result{}); err != nil {
				t.Fatal(err)
			}
		},
		// Between the writer's COMMIT and its learning of it.
		"behind ours": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			s.cache.beforeCommit()
			foreign("UPDATE counter SET fence = fence + 1")
			foreign(another)
			s.cache.afterCommit(1, true)
		},
		"behind none": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			s.cache.beforeCommit()
			foreign(another)
			s.cache.afterCommit(0, true)
		},
		"behind what is read behind ours": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			s.cache.beforeCommit()
			foreign("UPDATE counter SET fence = fence + 1")
			wantTaken(t, s, "a", "of a")
			foreign(another)
			s.cache.afterCommit(1, true)
		},
		"nobody knows": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			s.cache.beforeCommit()
			foreign(another)
			s.cache.afterCommit(1, false)
		},
		"while it is read": func(t *testing.T, s *Store, foreign func(string, ...any)) {
			before, _ := s.cache.state()
			rec := s.cache.get(new(identity("a")), 0)
			foreign(another)
			s.cache.put(rec, before)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, foreign := cached(t, &faults{})
			change(t, s, foreign)
			wantCached(t, s, "a", false)
			wantTaken(t, s, "a", "other")
			wantCached(t, s, "a", true)
		})
	}
}

func wantSwept(t *testing.T, s *Store, want int) {
	t.Helper()
	if n, err := s.Sweep(t.Context(), 10); err != nil || n != want {
		t.Errorf("swept %d, %v; want %d", n, err, want)
	}
}

// The store's own commits change nothing that is cached.
func TestCacheOutlivesOwnCommits(t *testing.T) {
	s, _ := cached(t, &faults{})
	for i := range 300 { // over more than one checkpoint
		c := mustBegin(t, s, attempt(fmt.Sprint("b", i)))
		if _, err := c.Complete(t.Context(), semel.Result{Body: make([]byte, 40_960)}); err != nil {
			t.Fatal(err)
		}
	}
	wantSwept(t, s, 0)
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed})
	wantCached(t, s, "a", true)
	// Nor does one that comes while a record is read.
	before, _ := s.cache.state()
	other := newStored()
	other.Identity, other.State, other.expiresAt = identity("other"), semel.StateCompleted, 1<<62
	mustBegin(t, s, attempt("c"))
	s.cache.put(other, before)
	wantCached(t, s, "a", true)
	wantCached(t, s, "other", false)
}

// A record that a sweep has removed does not come back when the clock is set back.
func TestCacheAndAClockSetBack(t *testing.T) {
	s, _ := cached(t, &faults{})
	if n, err := write(t.Context(), s, 0, func(t *tx) (int, error) {
		_, _ = t.exec("DROP TRIGGER guard_DELETE") // by the host's clock it is too early
		t.now += micros(100 * 24 * time.Hour)
		n, _, err := t.sweepRecords(10)
		return n, err
	}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	mustBegin(t, s, attempt("a"))
}

// A connection that is replaced, and a commit of which nobody knows what came of it.
func TestCacheOverAFailedCommit(t *testing.T) {
	f := &faults{}
	s, _ := cached(t, f)
	f.arm(func(_ int, query string, _ []driver.Value) (bool, bool) { return false, query == "COMMIT" })
	if _, err := s.Begin(t.Context(), attempt("b")); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	f.arm(nil)
	wantCached(t, s, "a", false)
	wantTaken(t, s, "a", "of a")
	wantCached(t, s, "a", true)
	wantTaken(t, s, "b", "") // by the writer, which has a new connection then
	wantCached(t, s, "a", false)
	wantTaken(t, s, "a", "of a")
	mustBegin(t, s, attempt("c"))
	wantTaken(t, s, "a", "of a")
	wantCached(t, s, "a", true)
}

// Closing takes away the memory that the cache looks at.
func TestCloseUnderReplays(t *testing.T) {
	s, _ := cached(t, &faults{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				_, err := s.Begin(t.Context(), attempt("a"))
				if errors.Is(err, ErrClosed) {
					return
				}
				if !isConflict(err) {
					t.Error(err)
					return
				}
			}
		})
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	wantCached(t, s, "a", false)
}

// The cache stays within its bound, also as the memory of the process shows.
func TestCacheIsBounded(t *testing.T) {
	const most = 4 << 20
	s := openFaulty(t, &faults{}, Config{CacheBytes: most})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	keep := func(id semel.Identity, result semel.Result, h walHeader) {
		rec := newStored()
		rec.Identity, rec.State, rec.Result, rec.expiresAt = id, semel.StateCompleted, result, 1<<62
		s.cache.put(rec, h)
	}
	h, ok := s.cache.state()
	if !ok {
		t.Fatal("the header cannot be read")
	}
	for i := range 50_000 {
		keep(identity(fmt.Sprint("key ", i)), semel.Result{Head: make([]byte, 60), Body: make([]byte, i%500)}, h)
	}
	n := len(s.cache.young) + len(s.cache.old)
	if grown := heap() - before; n < 1000 || grown > most*5/4 {
		t.Errorf("%d records take %d bytes; want %d at most", n, grown, most)
	}
	for _, large := range []semel.Result{{Body: make([]byte, most/64)}, {Pieces: &semel.Pieces{Size: 1}}} {
		keep(identity("large"), large, h)
		wantCached(t, s, "large", false)
	}
	runtime.KeepAlive(s)
}

func TestNoCache(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{CacheBytes: -1})
	if _, err := mustBegin(t, s, attempt("a")).Complete(t.Context(), semel.Result{}); err != nil {
		t.Fatal(err)
	}
	wantTaken(t, s, "a", "")
	wantCached(t, s, "a", false)
}
