package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/storetest"
)

func open(t testing.TB, c sqlite.Config) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Close waits for a handler under way no longer than its context allows, and may be
// called again to wait for what it goes on to do.
func TestCloseWaitsAsLongAsItMay(t *testing.T) {
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "semel.db")})
	if err != nil {
		t.Fatal(err)
	}
	atWork, leave, handled := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		handled <- s.Inbox().Transact(context.Background(), "c", []string{"m"}, func(context.Context, []bool) error {
			close(atWork)
			<-leave
			return nil
		})
	}()
	<-atWork
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.Close(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("while a handler is at work: %v", err)
	}
	close(leave)
	if err := <-handled; err != nil {
		t.Errorf("the handler: %v", err)
	}
	for range 2 {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(ended); err != nil {
		t.Errorf("what came of it, asked for without time to wait: %v", err)
	}
	if _, err := s.Begin(t.Context(), semel.NewAttempt(identity("k"), semel.Fingerprint{}, time.Minute, time.Hour)); !errors.Is(err, sqlite.ErrClosed) {
		t.Errorf("Begin behind Close: %v", err)
	}
}

// raw opens the file without the store, as another program would.
func raw(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func mustExec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func identity(key string) semel.Identity {
	return semel.Identity{Scope: semel.Scope{Tenant: "acme", Actor: "user-17", Operation: "payments.create"}, Key: key}
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Config{
		Name:      "sqlite",
		SkipTable: "../../storetest/skips.txt",
		New:       newHarness,
	})
}

func newHarness(t testing.TB) storetest.Harness {
	path := filepath.Join(t.TempDir(), "semel.db")
	s := open(t, sqlite.Config{Path: path})
	db := raw(t, path)
	return storetest.Harness{
		Store: s,
		Advance: func(d time.Duration) {
			t.Helper()
			mustExec(t, db, `UPDATE record SET begun_at = begun_at - ?1, lease_until = lease_until - ?1,
				settled_at = settled_at - ?1, expires_at = expires_at - ?1`, d.Microseconds())
			mustExec(t, db, `UPDATE trail SET at = at - ?`, d.Microseconds())
			mustExec(t, db, `UPDATE executed SET at = at - ?`, d.Microseconds())
		},
		Open: func() semel.Store {
			t.Helper()
			return open(t, sqlite.Config{Path: path})
		},
		Break: func() (mend func()) {
			t.Helper()
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.Rename(path+".away", path); err != nil {
					t.Error(err)
				}
			}
		},
		Backup: func() (restore func()) {
			t.Helper()
			mustExec(t, db, "VACUUM INTO ?", path+".backup")
			return func() {
				t.Helper()
				mustExec(t, db, "ATTACH ? AS backup", path+".backup")
				mustExec(t, db, `BEGIN IMMEDIATE;
					DELETE FROM record; INSERT INTO record SELECT * FROM backup.record;
					DELETE FROM piece; INSERT INTO piece SELECT * FROM backup.piece;
					DELETE FROM staging; INSERT INTO staging SELECT * FROM backup.staging;
					DELETE FROM executed; INSERT INTO executed SELECT * FROM backup.executed;
					DELETE FROM trail; INSERT INTO trail SELECT * FROM backup.trail;
					UPDATE counter SET (fence, position) = (SELECT fence, position FROM backup.counter);
					COMMIT`)
				mustExec(t, db, "DETACH backup")
			}
		},
	}
}
