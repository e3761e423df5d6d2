package sqlite_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

func attempt(key string) semel.Attempt {
	return semel.NewAttempt(identity(key), semel.FingerprintOf([]byte(key)), 15*time.Second, time.Hour)
}

// fill completes n identities, "key 0" and on, with their keys as results.
func fill(t testing.TB, s *sqlite.Store, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			key := fmt.Sprint("key ", i)
			c, err := s.Begin(t.Context(), attempt(key))
			if err == nil {
				_, err = c.Complete(t.Context(), semel.Result{Codec: "test/1", Body: []byte(key)})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestConfigNamesEveryProblem(t *testing.T) {
	_, err := sqlite.Open(t.Context(), sqlite.Config{
		Path: ":memory:", Mode: 7, BusyTimeout: -1, MaxGroup: -1, MaxQueue: -1, Readers: -1,
		MaxResultBytes: 1 << 40, MaxNotes: -1, SweepEvery: -1,
	})
	if err == nil {
		t.Fatal("a config that is wrong throughout was accepted")
	}
	for _, field := range []string{"Path", "store/memory", "Mode(7)", "BusyTimeout", "MaxGroup", "MaxQueue", "Readers", "MaxResultBytes", "MaxNotes", "SweepEvery"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not mention %s: %v", field, err)
		}
	}
}

func TestPathsThatAreNoFiles(t *testing.T) {
	dir := t.TempDir()
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nothing"), dangling); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config sqlite.Config
		want   string
	}{
		{sqlite.Config{}, "Path is empty"},
		{sqlite.Config{Path: "file:x.db"}, "ParseURL"},
		{sqlite.Config{Path: "sqlite:x.db"}, "ParseURL"},
		{sqlite.Config{Path: filepath.Join(dir, "a\x00b")}, "zero byte"},
		{sqlite.Config{Path: dir}, "is a directory"},
		{sqlite.Config{Path: dangling}, "symbolic link to nothing"},
		{sqlite.Config{Path: filepath.Join(dir, "missing", "x.db")}, "directory"},
		{sqlite.Config{Path: filepath.Join(empty, "x.db")}, "not a directory"},
		{sqlite.Config{Path: filepath.Join(dir, "x.db"), MustExist: true}, "MustExist"},
		{sqlite.Config{Path: empty, MustExist: true}, "MustExist"},
		{sqlite.Config{Path: filepath.Join(dir, "x.db"), NoMigrate: true}, "NoMigrate"},
		{sqlite.Config{Path: empty, NoMigrate: true}, "NoMigrate"},
	} {
		s, err := sqlite.Open(t.Context(), c.config)
		if err == nil {
			t.Errorf("Open of %q succeeded", c.config.Path)
			_ = s.Close(context.Background())
		} else if !strings.Contains(err.Error(), c.want) && runtime.GOOS != "windows" {
			t.Errorf("Open of %q: %v; want %q in it", c.config.Path, err, c.want)
		} else if configured := !strings.HasPrefix(err.Error(), "sqlite: config"); errors.Is(err, sqlite.ErrPath) != configured {
			t.Errorf("Open of %q: %v; want it to be ErrPath: %v", c.config.Path, err, configured)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "x.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failed Open left a file: %v", err)
	}
}

// A path is a path, whatever it holds; a link to a file is that file.
func TestPathsWithSpecialCharacters(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a b.db", "a%20b.db", "a#b.db", "a&mode=memory.db", "ü+é.db", "a;b.db", "'.db", "..db"}
	if runtime.GOOS != "windows" {
		names = append(names, "a?mode=memory.db", `a\b.db`, `".db`, ":memory:.db", "file:x.db", "\xff.db")
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		s := open(t, sqlite.Config{Path: path})
		fill(t, s, 1)
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("%q: the records are elsewhere: %v", name, err)
		}
		link := filepath.Join(dir, "link")
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t, sqlite.Config{Path: link, MustExist: true}).Find(t.Context(), identity("key 0")); err != nil {
			t.Errorf("%q by a link: %v", name, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries { // open stores have companions
		name := strings.TrimSuffix(strings.TrimSuffix(e.Name(), "-wal"), "-shm")
		if !strings.Contains(strings.Join(names, "\n"), name) {
			t.Errorf("a stray file: %q", e.Name())
		}
	}
}

func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	s := open(t, sqlite.Config{Path: "semel.db"})
	t.Chdir(t.TempDir()) // the store stays with its file
	fill(t, s, 2)
}

// Files that are not ours are refused and stay as they are.
func TestForeignFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign.db")
	db := raw(t, foreign)
	mustExec(t, db, "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
	marked := filepath.Join(dir, "marked.db")
	db = raw(t, marked)
	mustExec(t, db, "PRAGMA application_id = 7")
	newer := filepath.Join(dir, "newer.db")
	if err := open(t, sqlite.Config{Path: newer}).Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	db = raw(t, newer)
	mustExec(t, db, "PRAGMA journal_mode = DELETE; PRAGMA user_version = 999")
	for path, want := range map[string]string{
		garbage: "not a database", foreign: "another application", marked: "another application", newer: sqlite.ErrNewerSchema.Error(),
	} {
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}); err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, sqlite.ErrForeign) == (path == newer) {
			t.Errorf("Open of %s: %v; want %q in it", path, err, want)
		}
		after, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("Open changed %s (%v)", path, err)
		}
		if _, err := os.Lstat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open left a log beside %s", path)
		}
	}
}

// A newer program migrates the file while this one has it open: from then on
// this one must not write to what it does not know.
func TestNewerSchemaUnderWay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path})
	fill(t, s, 1)
	db := raw(t, path)
	var version int
	if err := db.QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, "PRAGMA user_version = 999")
	if _, err := s.Begin(t.Context(), attempt("new")); !errors.Is(err, sqlite.ErrNewerSchema) {
		t.Errorf("Begin under a newer schema: %v", err)
	}
	mustExec(t, db, fmt.Sprintf("PRAGMA user_version = %d", version))
	if _, err := s.Begin(t.Context(), attempt("new")); err != nil {
		t.Errorf("Begin after the schema was put back: %v", err)
	}
}

func TestSchemaIsWhatOpenMakes(t *testing.T) {
	dir := t.TempDir()
	byHand, byOpen := filepath.Join(dir, "by hand.db"), filepath.Join(dir, "by open.db")
	mustExec(t, raw(t, byHand), sqlite.Schema())
	if err := open(t, sqlite.Config{Path: byOpen}).Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		t.Helper()
		var all string
		err := raw(t, path).QueryRow(`SELECT group_concat(sql, ';') || (SELECT user_version || ' ' || application_id
			FROM pragma_user_version, pragma_application_id) FROM (SELECT sql FROM sqlite_schema ORDER BY name)`).Scan(&all)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if a, b := read(byHand), read(byOpen); a != b {
		t.Errorf("Schema makes\n%s\nOpen makes\n%s", a, b)
	}
	s := open(t, sqlite.Config{Path: byHand, MustExist: true})
	fill(t, s, 1)
}

// Another file in the place of the one that is open, or none: nothing is
// granted and nothing is answered, until the file is back.
func TestLostFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // open files cannot be moved there
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		for _, replace := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "semel.db")
			s := open(t, sqlite.Config{Path: path})
			fill(t, s, 3)
			running, err := s.Begin(t.Context(), attempt("running"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+suffix, path+".away"); err != nil {
				t.Fatal(err)
			}
			if replace {
				if err := os.WriteFile(path+suffix, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for name, call := range map[string]func() error{
				"Begin":        func() error { _, err := s.Begin(t.Context(), attempt("new")); return err },
				"Begin again":  func() error { _, err := s.Begin(t.Context(), attempt("key 0")); return err },
				"Find":         func() error { _, err := s.Find(t.Context(), identity("key 0")); return err },
				"Find nothing": func() error { _, err := s.Find(t.Context(), identity("new")); return err },
				"Complete":     func() error { _, err := running.Complete(t.Context(), semel.Result{}); return err },
			} {
				if err := call(); !errors.Is(err, sqlite.ErrFileLost) {
					t.Errorf("%s without the file %q (replaced: %v): %v", name, suffix, replace, err)
				}
			}
			if err := os.Rename(path+".away", path+suffix); err != nil {
				t.Fatal(err)
			}
			if _, err := running.Complete(t.Context(), semel.Result{}); err != nil {
				t.Errorf("Complete with the file %q back: %v", suffix, err)
			}
		}
	}
}

// Damage is reported. It is not taken for an absent record.
func TestDamagedFile(t *testing.T) {
	const page = 4096
	whole := filepath.Join(t.TempDir(), "whole.db")
	s := open(t, sqlite.Config{Path: whole})
	fill(t, s, 120)
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	pages := len(content) / page
	if pages < 20 {
		t.Fatalf("the file has only %d pages", pages)
	}
	damages := map[string][]byte{
		"half of it":     content[:len(content)/2],
		"one page short": content[:len(content)-page],
		"the first page": content[:page],
	}
	for p := 1; p < pages; p += 4 {
		damaged := bytes.Clone(content)
		copy(damaged[p*page:], bytes.Repeat([]byte{0xff}, page))
		damages[fmt.Sprint("page ", p)] = damaged
	}
	seen := 0
	for name, damaged := range damages {
		path := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
		if err != nil {
			seen++
			continue
		}
		for i := range 120 {
			key := fmt.Sprint("key ", i)
			r, err := s.Find(t.Context(), identity(key))
			if errors.Is(err, semel.ErrNotFound) || err == nil && string(r.Result.Body) != key {
				t.Errorf("%s: Find of %s: %q, %v", name, key, r.Result.Body, err)
			} else if err != nil {
				seen++
			}
			if i%10 == 0 {
				if _, err := s.Begin(t.Context(), attempt(key)); err == nil {
					t.Errorf("%s: Begin of %s was granted again", name, key)
				}
			}
		}
		_ = s.Close(context.Background())
	}
	if seen < len(damages) {
		t.Errorf("only %d reports of %d damages", seen, len(damages))
	}
}

// A duplicate used to wait for the write lock, for as long as another process held
// it, to be told what a look could tell.
func TestDuplicateDoesNotWaitForTheWriteLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	first := open(t, sqlite.Config{Path: path})
	states := map[string]semel.State{"done": semel.StateCompleted, "held": semel.StateUnknown, "live": semel.StateInProgress}
	claims := map[string]semel.Claim{}
	for key := range states {
		c, err := first.Begin(t.Context(), attempt(key))
		if err != nil {
			t.Fatal(err)
		}
		claims[key] = c
	}
	if _, err := claims["done"].Complete(t.Context(), semel.Result{Body: []byte("answer")}); err != nil {
		t.Fatal(err)
	}
	if err := claims["held"].Hold(t.Context(), "lost contact"); err != nil {
		t.Fatal(err)
	}

	db := raw(t, path)
	mustExec(t, db, "BEGIN IMMEDIATE")
	// In another process, which has not seen them yet and waits for ever.
	s := open(t, sqlite.Config{Path: path, BusyTimeout: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for key, state := range states {
		for _, takeover := range []uint64{0, claims[key].Fence() + 1000} {
			a := attempt(key)
			a.Takeover = takeover
			_, err := s.Begin(ctx, a)
			if conflict, ok := errors.AsType[*semel.ConflictError](err); !ok || conflict.Record.State != state || state == semel.StateCompleted && string(conflict.Record.Result.Body) != "answer" {
				t.Errorf("a duplicate of what is %v, with takeover %d: %v", state, takeover, err)
			}
		}
	}
	// What has to be written waits for its turn, and is granted then.
	granted := make(chan error, 2)
	go func() { _, err := s.Begin(ctx, attempt("new")); granted <- err }()
	taken := attempt("held")
	taken.Takeover = claims["held"].Fence()
	go func() { _, err := s.Begin(ctx, taken); granted <- err }()
	mustExec(t, db, "COMMIT")
	for range 2 {
		if err := <-granted; err != nil {
			t.Error(err)
		}
	}
}

// A file that others had locked was told as a wrong path or a full disk.
func TestLockedFileAtOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	if err := open(t, sqlite.Config{Path: path}).Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	db := raw(t, path)
	mustExec(t, db, "BEGIN IMMEDIATE")
	if err := open(t, sqlite.Config{Path: path}).Close(context.Background()); err != nil { // it need not write
		t.Error(err)
	}
	mustExec(t, db, "ROLLBACK; PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; UPDATE counter SET fence = fence; COMMIT")
	if _, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, BusyTimeout: time.Millisecond}); !errors.Is(err, sqlite.ErrBusy) {
		t.Errorf("Open of a locked file: %v; want ErrBusy", err)
	}
}

// While another process holds the write lock, callers wait no longer than they
// want to, or BusyTimeout; reads do not wait at all.
func TestBusyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path, BusyTimeout: time.Millisecond})
	fill(t, s, 1)
	db := raw(t, path)
	mustExec(t, db, "BEGIN IMMEDIATE")
	if _, err := s.Begin(t.Context(), attempt("k")); !errors.Is(err, sqlite.ErrBusy) || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("Begin in a busy file: %v", err)
	}
	patient := open(t, sqlite.Config{Path: path + ".2", BusyTimeout: time.Hour})
	other := raw(t, path+".2")
	mustExec(t, other, "BEGIN IMMEDIATE")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := patient.Begin(ctx, attempt("k")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Begin with a short context in a busy file: %v", err)
	}
	for _, s := range []*sqlite.Store{s, patient} {
		if _, err := s.Find(t.Context(), identity("k")); !errors.Is(err, semel.ErrNotFound) {
			t.Errorf("Find in a busy file: %v", err)
		}
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	empty := filepath.Join(t.TempDir(), "semel.db")
	locked := raw(t, empty)
	mustExec(t, locked, "BEGIN IMMEDIATE")
	if _, err := sqlite.Open(ctx, sqlite.Config{Path: empty}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open of a busy file: %v", err)
	}
	mustExec(t, db, "ROLLBACK")
	mustExec(t, other, "ROLLBACK")
	for _, s := range []*sqlite.Store{s, patient} {
		if _, err := s.Begin(t.Context(), attempt("k")); err != nil {
			t.Errorf("Begin when the file was free again: %v", err)
		}
	}
}

func TestOversizedInput(t *testing.T) {
	s := open(t, sqlite.Config{Path: filepath.Join(t.TempDir(), "semel.db"), MaxResultBytes: 1000})
	long := strings.Repeat("x", 300)
	for name, change := range map[string]func(a *semel.Attempt){
		"an empty key":        func(a *semel.Attempt) { a.Identity.Key = "" },
		"a long key":          func(a *semel.Attempt) { a.Identity.Key = long },
		"a long tenant":       func(a *semel.Attempt) { a.Identity.Tenant = long },
		"a long scheme":       func(a *semel.Attempt) { a.Fingerprint.Scheme = long },
		"a key with controls": func(a *semel.Attempt) { a.Identity.Key = "a\x00b" },
	} {
		a := attempt("k")
		change(&a)
		if _, err := s.Begin(t.Context(), a); err == nil {
			t.Errorf("an attempt with %s was granted", name)
		} else if strings.Contains(err.Error(), long) {
			t.Errorf("the error about %s repeats it", name)
		}
	}

	c, err := s.Begin(t.Context(), attempt("first"))
	if err != nil {
		t.Fatal(err)
	}

	// A result that is too large changes nothing; a tombstone can follow.
	for _, r := range []semel.Result{{Body: make([]byte, 1001)}, {Head: make([]byte, 500), Body: make([]byte, 501)}, {Reference: strings.Repeat("x", 1001)}} {
		if _, err := c.Complete(t.Context(), r); !errors.Is(err, semel.ErrTooLarge) {
			t.Errorf("Complete with a result that is too large: %v", err)
		}
	}
	if _, err := c.Complete(t.Context(), semel.Result{Codec: long}); err == nil {
		t.Error("a long codec was accepted")
	}
	if _, err := c.Complete(t.Context(), semel.Result{Tombstone: true, Label: strings.Repeat("é", 1000)}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Find(t.Context(), identity("first"))
	if err != nil || r.Result.Label != strings.Repeat("é", 512) {
		t.Errorf("a long label reads back as %d bytes, %v", len(r.Result.Label), err)
	}

	// Texts for people are cut between characters, wherever they come in.
	a := attempt("texts")
	text := "x" + strings.Repeat("é", 1000)
	cut := "x" + strings.Repeat("é", 511)
	a.Origin = semel.Origin{RequestID: text, EventID: text, TraceID: text}
	if c, err = s.Begin(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if err := c.Hold(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	if r, err = s.Find(t.Context(), identity("texts")); err != nil || r.Cause != cut || r.Origin != (semel.Origin{RequestID: cut, EventID: cut, TraceID: cut}) {
		t.Errorf("long texts read back as %+v, %v", r, err)
	}
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "note", Origin: a.Origin, Cause: text})
	for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
		entries, err := s.Trail(t.Context(), semel.TrailFilter{Key: "note"})
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 1 {
			if e := entries[0]; e.RequestID != cut || e.Cause != cut {
				t.Errorf("a note with long texts reads back as %+v", e)
			}
			tick.Stop()
			break
		}
	}
}

func TestParseURL(t *testing.T) {
	for url, want := range map[string]string{
		"sqlite:orders.db":                 "orders.db",
		"sqlite:./data/orders.db":          "./data/orders.db",
		"sqlite:../orders.db":              "../orders.db",
		"sqlite:/var/lib/orders.db":        "/var/lib/orders.db",
		"sqlite:///var/lib/orders.db":      "/var/lib/orders.db",
		"sqlite://localhost/var/orders.db": "/var/orders.db",
		"sqlite:a%20b%3Fc%23d%25.db":       "a b?c#d%.db",
		"sqlite:ü.db":                      "ü.db",
		"sqlite:a+b.db":                    "a+b.db",
		"sqlite:///C:/data/orders.db":      map[bool]string{false: "/C:/data/orders.db", true: "C:/data/orders.db"}[runtime.GOOS == "windows"],
		"sqlite:":                          "",
		"sqlite://":                        "",
		"sqlite:///":                       "",
		"sqlite:dir/":                      "",
		"sqlite://orders.db":               "",
		"sqlite://host/orders.db":          "",
		"sqlite:orders.db?mode=memory":     "",
		"sqlite:orders.db#x":               "",
		"sqlite:%zz.db":                    "",
		"orders.db":                        "",
		"postgres://localhost/orders":      "",
		"SQLITE:orders.db":                 "",
		"file:orders.db":                   "",
	} {
		got, err := sqlite.ParseURL(url)
		if got != filepath.FromSlash(want) || (err == nil) != (want != "") {
			t.Errorf("ParseURL(%q) = %q, %v; want %q", url, got, err, want)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, path := range []string{"orders.db", "/var/lib/orders.db", "a b?c#d%.db", "//x/y.db", "\xff"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if got, err := sqlite.ParseURL("sqlite:" + path); err == nil && got == "" {
			t.Errorf("%q names no file and is no error", path)
		}
		escaped := (&url.URL{Path: path}).EscapedPath()
		if path == "" || strings.HasSuffix(path, "/") || strings.HasPrefix(path, "//") || runtime.GOOS == "windows" {
			return
		}
		if got, err := sqlite.ParseURL("sqlite:" + escaped); err != nil || got != path {
			t.Errorf("the path %q, written %q, was read as %q, %v", path, escaped, got, err)
		}
	})
}
