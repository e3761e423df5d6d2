package sqlite_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/semelhq/semel/store/sqlite"
)

// asNobody runs fn in a thread whose file accesses are those of an unprivileged
// user, even where the tests run as root.
func asNobody(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			const nobody = 65534
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0); errno != 0 {
				t.Error(errno)
			}
		}
		fn()
	}()
	<-done
}

// A store that could never write says so when it is opened, not to its first
// caller.
func TestFileThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "semel.db")
	if err := open(t, sqlite.Config{Path: path}).Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != os.TempDir() && d != filepath.Dir(d); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for mode, want := range map[fs.FileMode]string{0o444: "not writable", 0o000: "unable to open"} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		asNobody(t, func() {
			s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
			if err == nil {
				err = errors.Join(errors.New("it succeeded"), s.Close(context.Background()))
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("Open of a file of mode %v: %v; want %q in it", mode, err, want)
			}
		})
	}
	asNobody(t, func() {
		if _, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "new.db")}); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Open in a directory that cannot be written: %v", err)
		}
	})
	// The file is writable, but its companions cannot be made.
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	asNobody(t, func() {
		if s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}); err == nil {
			t.Error("Open succeeded where no log can be made")
			_ = s.Close(context.Background())
		}
	})
}
