package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// earlier returns the statements for the version before that of a schema.
func earlier(t *testing.T, schema string) (statements string, version int) {
	t.Helper()
	const header = "schema version "
	at := strings.LastIndex(schema, header)
	if _, err := fmt.Sscanf(schema[at:], header+"%d", &version); err != nil || version < 2 {
		t.Fatalf("the schema has no earlier version: %v", err)
	}
	return schema[:strings.LastIndex(schema[:at], "\n")+1], version - 1
}

// wantMigration: who looks at a store of an earlier version changes nothing, migrate
// brings it up to date once, and then it can be used as role.
func wantMigration(t *testing.T, owner, user string, grant ...string) {
	t.Helper()
	for _, args := range [][]string{{"keys", "list"}, {"audit", "search"}, {"outbox", "list"}, {"migrate", "--check"}} {
		out := semelWith(nil, "", append(args, "--store", owner)...)
		if out.code != exitFailed || !strings.Contains(out.stderr, "has to be migrated") || !strings.Contains(out.stderr, "semel migrate") {
			t.Errorf("semel %s over an earlier version: exit code %d: %s", strings.Join(args, " "), out.code, out.stderr)
		}
	}
	for i, args := range [][]string{grant, grant, {"--check"}} {
		var done migrateJSON
		noError(t, json.Unmarshal([]byte(ok(t, append([]string{"migrate", "--json", "--store", owner}, args...)...)), &done))
		want(t, fmt.Sprintf("%d: changed", i), done.Changed, i == 0)
	}
	ok(t, "keys", "list", "--store", user)
}

func TestMigrateSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	db, err := sql.Open("sqlite", path)
	noError(t, err)
	statements, version := earlier(t, sqlite.Schema())
	_, ids, _ := strings.Cut(sqlite.Schema(), "PRAGMA application_id")
	ids, _, _ = strings.Cut(ids, ";")
	_, err = db.Exec(statements + fmt.Sprintf("PRAGMA application_id%s; PRAGMA user_version = %d", ids, version))
	noError(t, err)
	noError(t, db.Close())
	before, err := os.ReadFile(path)
	noError(t, err)
	want(t, "exit code of a look", semelWith(nil, "", "keys", "list", "--store", "sqlite:"+path).code, exitFailed)
	after, err := os.ReadFile(path)
	noError(t, err)
	want(t, "the file is as it was", bytes.Equal(before, after), true)
	wantMigration(t, "sqlite:"+path, "sqlite:"+path)

	missing := filepath.Join(t.TempDir(), "other.db")
	want(t, "exit code without a file", semelWith(nil, "", "migrate", "--store", "sqlite:"+missing).code, exitFailed)
	if _, err := os.Stat(missing); err == nil {
		t.Error("a file was made")
	}
}

func TestMigratePostgres(t *testing.T) {
	server := testenv.Postgres(t)
	owner, err := pgx.Connect(t.Context(), server)
	noError(t, err)
	defer func() { _ = owner.Close(t.Context()) }()
	run := func(sql string) {
		t.Helper()
		_, err := owner.Exec(t.Context(), sql)
		noError(t, err)
	}
	const role = `semel_migrate_app`
	run("CREATE ROLE " + role + " LOGIN")
	defer run("DROP ROLE " + role)
	defer run("DROP OWNED BY " + role)
	c, err := pgx.ParseConfig(server)
	noError(t, err)
	user := strings.Replace(server, "//"+c.User+"@", "//"+role+"@", 1)

	statements, version := earlier(t, postgres.Schema(postgresSchema))
	run(statements + fmt.Sprintf("UPDATE semel.version SET version = %d", version))
	wantMigration(t, server, user, "--grant-to", role)

	run("DROP SCHEMA semel CASCADE")
	ok(t, "migrate", "--store", server, "--grant-to", role)
	ok(t, "keys", "list", "--store", user)
}

func TestMigrateUsage(t *testing.T) {
	for args, word := range map[string]string{
		"migrate": "--store", "migrate --store memory:": "has no tables", "migrate --store sqlite:a.db --grant-to app": "--grant-to is for",
		"migrate --store postgres://h/d --grant-to=": "--grant-to is empty", "migrate --store postgres://h/d --check --grant-to app": "not for --check",
	} {
		if out := semelWith(nil, "", strings.Fields(args)...); out.code != exitUsage || !strings.Contains(out.stderr, word) {
			t.Errorf("semel %s: exit code %d, %q; want %d and %q", args, out.code, out.stderr, exitUsage, word)
		}
	}
}
