package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

func TestWithoutSecrets(t *testing.T) {
	for given, shown := range map[string]string{
		"sqlite:semel.db":                      "sqlite:semel.db",
		"memory:":                              "memory:",
		"postgres://me:hunter2@host:5433/db":   "postgres://me:xxxxx@host:5433/db",
		"postgres://host/db?password=hunter2":  "postgres://host/db",
		"mysql://me:hunter2@host/db":           "mysql://me:xxxxx@host/db",
		"postgres://me:hunter2@host:port/db":   "postgres:...",
		"postgres://me:hunter2%zz@host/db?x=y": "postgres:...",
	} {
		want(t, "what is shown of "+given, withoutSecrets(given), shown)
	}
	for _, url := range []string{"postgres://me:hunter2@host:port/db", "postgres://me:hunter2@host/db?sslmode=odd", "mysql://me:hunter2@host/db"} {
		out := semelWith(nil, "", "keys", "list", "--store", url)
		want(t, "exit code", out.code, exitUsage)
		if strings.Contains(out.stderr+out.stdout, "hunter2") {
			t.Errorf("the password of %s is in the message: %s", url, out.stderr)
		}
	}
}

// TestPostgresStore: the commands look at what a gateway keeps in PostgreSQL, and
// make nothing there.
func TestPostgresStore(t *testing.T) {
	url := testenv.Postgres(t)
	out := semelWith(nil, "", "keys", "list", "--store", url)
	want(t, "exit code without tables", out.code, exitFailed)
	if !strings.Contains(out.stderr, postgres.ErrOlderSchema.Error()) {
		t.Errorf("without tables it says %q", out.stderr)
	}
	s, err := openStore(t.Context(), nil, url, 0, func(_ int, err error) { noError(t, err) })
	noError(t, err)
	noError(t, s.Close(context.Background()))
	want(t, "exit code", semelWith(nil, "", "keys", "list", "--store", url).code, exitOK)
}

// TestLockedStoreIsToldAsLocked: it was told as a wrong path or a full disk.
func TestLockedStoreIsToldAsLocked(t *testing.T) {
	f := asFault(storeFault("sqlite:semel.db", fmt.Errorf("sqlite: open semel.db: %w", sqlite.ErrBusy)))
	if !strings.Contains(f.do, "locked") || strings.Contains(f.do, "path") || strings.Contains(f.do, "space") {
		t.Errorf("the advice is %q", f.do)
	}
}
