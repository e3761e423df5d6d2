//go:build linux || darwin

package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

func TestFilesBelongToTheirOwnerOnly(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o277} {
		old := syscall.Umask(mask)
		path := filepath.Join(t.TempDir(), "semel.db")
		s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
		syscall.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"", "-wal", "-shm"} {
			info, err := os.Lstat(path + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("under umask %03o the file %q has mode %v", mask, suffix, info.Mode())
			}
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// A file that is there keeps its mode, and its companions take it.
func TestModeOfAnExistingFileIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	if err := os.WriteFile(path, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	open(t, sqlite.Config{Path: path})
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if info, err := os.Lstat(path + suffix); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("the file %q has mode %v (%v)", suffix, info.Mode(), err)
		}
	}
}

// Opening a pipe would wait for a writer.
func TestPipeIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("Open of a pipe: %v", err)
	}
}

// The disk fills up in the middle of commits, and has room again. Every write
// is acknowledged and there, or refused and, asked again, done once.
func TestFullDisk(t *testing.T) {
	// The limit that stands for the full disk holds for a whole process, what
	// the testing package writes included. So it is that of a child.
	if ranAsChild(t) {
		return
	}
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path})
	fill(t, s, 20)
	running, err := s.Begin(t.Context(), attempt("running"))
	if err != nil {
		t.Fatal(err)
	}

	log, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	full := limit
	full.Cur = uint64(log.Size()) + 100_000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	mend := func() {
		t.Helper()
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	defer mend()

	large := semel.Result{Codec: "test/1", Body: make([]byte, 200_000)}
	if _, err := running.Complete(t.Context(), large); err == nil {
		t.Error("a result was recorded that had no room")
	} else {
		t.Log(err)
	}
	granted := map[string]bool{}
	refused := 0
	for i := 0; i < 1000 && refused < 3; i++ {
		key := fmt.Sprint("disk ", i)
		_, err := s.Begin(t.Context(), attempt(key))
		granted[key] = err == nil
		if err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("the disk did not fill up")
	}
	s.Note(semel.TrailEntry{Kind: semel.TrailReplayed, Key: "note"})
	if r, err := s.Find(t.Context(), identity("key 7")); err != nil || string(r.Result.Body) != "key 7" {
		t.Errorf("Find on a full disk: %+v, %v", r, err)
	}

	mend()
	if _, err := running.Complete(t.Context(), large); err != nil {
		t.Errorf("Complete when there was room again: %v", err)
	}
	for key, ok := range granted {
		_, err := s.Begin(t.Context(), attempt(key))
		if _, conflict := errors.AsType[*semel.ConflictError](err); conflict != ok || !conflict && err != nil {
			t.Errorf("%s (granted before: %v) was answered %v", key, ok, err)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s = open(t, sqlite.Config{Path: path})
	if r, err := s.Find(t.Context(), identity("running")); err != nil || len(r.Result.Body) != len(large.Body) {
		t.Errorf("the result that had no room at first reads %d bytes, %v", len(r.Result.Body), err)
	}
	trail, err := s.Trail(t.Context(), semel.TrailFilter{Key: "note"})
	if err != nil || len(trail) != 1 {
		t.Errorf("%d of 1 note from the time of the full disk, %v", len(trail), err)
	}
	all, err := s.Trail(t.Context(), semel.TrailFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range all {
		if e.Seq != uint64(i+1) {
			t.Errorf("entry %d of the trail has number %d", i+1, e.Seq)
		}
	}
	var check string
	if err := raw(t, path).QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("the file is damaged: %s (%v)", check, err)
	}
}

// ranAsChild runs the test once more in a process of its own, and reports true
// when that has passed. In that process it reports false.
func ranAsChild(t *testing.T) bool {
	t.Helper()
	const child = "SEMEL_TEST_CHILD"
	if os.Getenv(child) != "" {
		return false
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return true
}
