package seal

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/semelhq/semel"
)

// TestTreeIsThatOfRFC6962 compares roots with another implementation's.
func TestTreeIsThatOfRFC6962(t *testing.T) {
	var hashes []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) (of []tlog.Hash, err error) {
		for _, i := range indexes {
			of = append(of, hashes[i])
		}
		return of, nil
	})
	var got tree
	for n := range int64(300) {
		want, err := tlog.TreeHash(n, reader)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 && got.root() != want { // the library's hash of nothing is not the RFC's
			t.Fatalf("the root of %d is %v; want %v", n, got.root(), want)
		}
		leaf := row{position: uint64(n)}.leaf()
		got.add(leaf)
		more, err := tlog.StoredHashesForRecordHash(n, leaf, reader)
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, more...)
	}
}

// entries is a trail.
type entries struct {
	mu  sync.Mutex
	all []semel.TrailEntry
}

func (e *entries) Note(semel.TrailEntry) {}

func (e *entries) Trail(_ context.Context, f semel.TrailFilter) (page []semel.TrailEntry, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, entry := range e.all {
		if entry.Position > f.After && len(page) < f.Limit {
			page = append(page, entry)
		}
	}
	return page, nil
}

var begun = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

// add adds n entries, one a second, at every other position.
func (e *entries) add(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for range n {
		i := len(e.all)
		e.all = append(e.all, semel.TrailEntry{
			Position: uint64(2*i + 2), At: begun.Add(time.Duration(i) * time.Second), Kind: semel.TrailExecuted,
			RecordID: fmt.Sprint("r", i), Key: fmt.Sprint("k", i), Origin: semel.Origin{TraceID: "t"},
		})
	}
}

type world struct {
	*entries
	t        *testing.T
	path     string
	signer   note.Signer
	verifier note.Verifier
}

func newWorld(t *testing.T) *world {
	secret, public, err := note.GenerateKey(rand.Reader, "test")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{entries: &entries{}, t: t, path: filepath.Join(t.TempDir(), "a b?#%.seals")}
	w.signer, _ = note.NewSigner(secret)
	w.verifier, _ = note.NewVerifier(public)
	return w
}

// seal seals what is older than until and returns the checkpoint.
func (w *world) seal(until time.Time) (last Checkpoint) {
	w.t.Helper()
	f, err := Open(w.t.Context(), w.path, true)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Extend(w.t.Context(), w.entries, until, w.signer, func(c Checkpoint) error { last = c; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return last
}

// verify returns the findings, as texts.
func (w *world) verify(keptSince time.Time, kept *Checkpoint) (Verification, []string) {
	w.t.Helper()
	f, err := Open(w.t.Context(), w.path, false)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	var found []string
	v, err := f.Verify(w.t.Context(), w.entries, w.verifier, keptSince, kept, func(f Finding) error {
		found = append(found, strings.TrimSuffix(fmt.Sprint(f.What, " ", f.Position), " 0"))
		return nil
	}, func(int64) {})
	if err != nil {
		w.t.Fatal(err)
	}
	if int(v.Findings) != len(found) {
		w.t.Errorf("%d findings are counted, and %d were told", v.Findings, len(found))
	}
	return v, found
}

func (w *world) exec(statement string) {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+strings.NewReplacer(" ", "%20", "?", "%3f", "#", "%23", "%", "%25").Replace(w.path))
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		w.t.Fatal(err)
	}
}

var endOfTime = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// TestVerifyNames: whatever was done to the trail or to the file is named.
func TestVerifyNames(t *testing.T) {
	edit := func(i int, change func(*semel.TrailEntry)) func(*world) {
		return func(w *world) { change(&w.all[i]) }
	}
	tests := []struct {
		name   string
		tamper func(w *world)
		want   string
	}{
		{"nothing", func(*world) {}, ""},
		{"what came later", func(w *world) { w.add(3) }, ""},
		{"a key", edit(4, func(e *semel.TrailEntry) { e.Key = "x" }), "changed 10"},
		{"a cause", edit(4, func(e *semel.TrailEntry) { e.Cause = "x" }), "changed 10"},
		{"an origin", edit(4, func(e *semel.TrailEntry) { e.TraceID = "" }), "changed 10"},
		{"a count", edit(4, func(e *semel.TrailEntry) { e.Count = 2 }), "changed 10"},
		{"a time", edit(4, func(e *semel.TrailEntry) { e.At = e.At.Add(time.Microsecond) }), "changed 10"},
		{"a position", edit(4, func(e *semel.TrailEntry) { e.Position = 9 }), "added 9 removed 10"},
		{"the first, removed", func(w *world) { w.all = w.all[1:] }, "removed 2"},
		{"one between, removed", func(w *world) { w.all = append(w.all[:7], w.all[8:]...) }, "removed 16"},
		{"the last, removed", func(w *world) { w.all = w.all[:19] }, "removed 40"},
		{"all", func(w *world) { w.all = w.all[:0] }, "removed 2 "},
		{"one slipped in", edit(0, func(e *semel.TrailEntry) { e.Position = 1; e.Key = "x" }), "added 1 removed 2"},
		{"two swapped", func(w *world) {
			w.all[3].Position, w.all[4].Position = w.all[4].Position, w.all[3].Position
			w.all[3], w.all[4] = w.all[4], w.all[3]
		}, "changed 8 changed 10"},
		{"a digest of the file", func(w *world) { w.exec("UPDATE entry SET digest = zeroblob(32) WHERE position = 8") }, "changed 8 digests"},
		{"a time of the file", func(w *world) { w.exec("UPDATE entry SET at = 0 WHERE position = 8") }, "changed 8 digests"},
		{"a row of the file, removed", func(w *world) { w.exec("DELETE FROM entry WHERE position = 8") }, "added 8 digests"},
		{"trail and file alike", func(w *world) {
			w.all[3].Key = "x"
			r, _ := rowOf(w.all[3])
			w.exec(fmt.Sprintf("UPDATE entry SET digest = x'%x' WHERE position = 8", r.digest))
		}, "digests"},
		{"a row behind the checkpoint", func(w *world) {
			w.add(1)
			r, _ := rowOf(w.all[20])
			w.exec(fmt.Sprintf("INSERT INTO entry VALUES (42, %d, x'%x')", r.at.UnixMicro(), r.digest))
		}, "digests"},
		{"no checkpoint", func(w *world) { w.exec("DELETE FROM checkpoint") }, "digests"},
		{"a checkpoint that nobody signed", func(w *world) { w.exec("UPDATE checkpoint SET note = replace(note, '20', '19')") }, "digests"},
		{"a trail and a file from before", func(w *world) {
			w.all = w.all[:8]
			w.exec("DELETE FROM entry WHERE position > 16; DELETE FROM checkpoint WHERE size > 8")
		}, "digests"}, // only by the checkpoint that was kept
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.add(8)
			w.seal(endOfTime)
			w.add(12)
			kept := w.seal(endOfTime)
			if kept.Size != 20 {
				t.Fatalf("%d entries are sealed", kept.Size)
			}
			tt.tamper(w)
			v, found := w.verify(time.Time{}, &kept)
			got := strings.Join(found, " ")
			if strings.HasSuffix(tt.want, " ") {
				got = got[:min(len(tt.want), len(got))]
			}
			if strings.Contains(tt.want, "digests") { // once or for each checkpoint
				got = strings.TrimSuffix(strings.Replace(got+" ", "digests digests ", "digests ", 1), " ")
			}
			if got != tt.want {
				t.Errorf("found %q; want %q", got, tt.want)
			}
			if tt.want == "" && (v.Intact != 20 || v.Unsealed != int64(len(w.all)-20)) {
				t.Errorf("counted %+v", v)
			}
		})
	}
}

// TestExpiredEntriesMayBeGone: and only those.
func TestExpiredEntriesMayBeGone(t *testing.T) {
	w := newWorld(t)
	w.add(20)
	w.seal(endOfTime)
	w.all = w.all[10:]
	if v, found := w.verify(begun.Add(10*time.Second), nil); len(found) > 0 || v.Expired != 10 || v.Intact != 10 {
		t.Errorf("found %v, counted %+v", found, v)
	}
	if _, found := w.verify(begun.Add(9*time.Second), nil); strings.Join(found, " ") != "removed 20" {
		t.Errorf("found %v", found)
	}
}

// TestSealsStopAtWhatIsNew: in the order of positions, not of times, so that
// nothing behind it is sealed before it.
func TestSealsStopAtWhatIsNew(t *testing.T) {
	w := newWorld(t)
	w.add(10)
	w.all[5].At = begun.Add(time.Hour)
	if c := w.seal(begun.Add(time.Minute)); c.Size != 5 {
		t.Errorf("%d are sealed", c.Size)
	}
	if c := w.seal(begun.Add(time.Hour)); c.Size != 5 {
		t.Errorf("%d are sealed; the limit itself is not older", c.Size)
	}
	c := w.seal(begun.Add(2 * time.Hour))
	if c.Size != 10 {
		t.Errorf("%d are sealed", c.Size)
	}
	if again := w.seal(endOfTime); again.Note != c.Note || again.Root != c.Root {
		t.Error("with nothing new the last checkpoint is not told")
	}
	if _, found := w.verify(time.Time{}, &c); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// TestSealersTakeTurns: many extend one file while the trail grows, some of them
// give up at a checkpoint, and one always starts anew.
func TestSealersTakeTurns(t *testing.T) {
	w := newWorld(t)
	gone := errors.New("nobody listens")
	var sealers sync.WaitGroup
	for i := range 8 {
		sealers.Go(func() {
			for range 20 {
				w.add(5)
				f, err := Open(t.Context(), w.path, true)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = f.Extend(t.Context(), w.entries, endOfTime, w.signer, func(Checkpoint) error {
					if i == 0 {
						return gone
					}
					return nil
				})
				if err != nil && !errors.Is(err, gone) {
					t.Error(err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sealers.Wait()
	c := w.seal(endOfTime)
	if v, found := w.verify(time.Time{}, &c); len(found) > 0 || v.Intact != 800 {
		t.Errorf("found %v, counted %+v", found, v)
	}
}

// TestBadFiles: what is no file of digests is left alone.
func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"text": strings.Repeat("no database\n", 1000), "cut off": "SQLite format 3\x00"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, create := range []bool{false, true} {
			if f, err := Open(t.Context(), path, create); err == nil {
				_ = f.Close()
				t.Errorf("%s was opened", name)
			}
		}
		if after, _ := os.ReadFile(path); string(after) != content {
			t.Errorf("%s was written to", name)
		}
	}
	later := filepath.Join(dir, "later")
	db, err := sql.Open("sqlite", later)
	if err == nil {
		_, err = db.Exec("CREATE TABLE entry (position); PRAGMA user_version = 7")
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), later, true); !errors.Is(err, ErrFormat) {
		t.Errorf("a file of a later version: %v", err)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "none"), false); !errors.Is(err, ErrNoFile) {
		t.Errorf("no file: %v", err)
	}
}

// TestCheckpointOfAnother: a key signs for its own name only.
func TestCheckpointOfAnother(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	w.add(1)
	c := w.seal(endOfTime)
	if _, err := ParseCheckpoint(c.Note, other.verifier); err == nil {
		t.Error("a checkpoint that another has signed was taken")
	}
	for _, text := range []string{"", "test\n1\n", "test\n-1\nAAAA\n", "test\n1\nAAAA\n", "else\n1\n" + strings.Split(c.Note, "\n")[2] + "\n"} {
		signed, err := note.Sign(&note.Note{Text: text}, w.signer)
		if err == nil {
			if _, err := ParseCheckpoint(string(signed), w.verifier); err == nil {
				t.Errorf("taken for a checkpoint: %q", text)
			}
		}
	}
}
