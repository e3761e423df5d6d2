package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// What is printed for PostgreSQL makes a database that the program's store
// takes as it is, under a role that may do no more than it needs.
func TestSchemaPostgres(t *testing.T) {
	server := testenv.Postgres(t)
	owner, err := pgx.Connect(t.Context(), server)
	noError(t, err)
	defer func() { _ = owner.Close(t.Context()) }()
	run := func(sql string) {
		t.Helper()
		_, err := owner.Exec(t.Context(), sql)
		noError(t, err)
	}
	const role = `semel schema's "app"`
	quoted := pgx.Identifier{role}.Sanitize()
	run("CREATE ROLE " + quoted + " LOGIN")
	defer run("DROP ROLE " + quoted)
	defer run("DROP OWNED BY " + quoted)

	run(ok(t, "schema", "--store", "postgres", "--grant-to", role))
	c, err := pgxpool.ParseConfig(server)
	noError(t, err)
	c.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	noError(t, err)
	defer pool.Close()
	s, err := postgres.New(t.Context(), pool, postgres.Config{NoMigrate: true})
	noError(t, err)
	_, err = s.Sweep(t.Context(), 10)
	noError(t, err)
	noError(t, s.Close(t.Context()))

	want(t, "schema", ok(t, "schema", "--store", "postgres"), postgres.Schema("semel"))
	var out struct{ Store, Schema, Grants string }
	noError(t, json.Unmarshal([]byte(ok(t, "schema", "--store", "postgres", "--grant-to", role, "--json")), &out))
	want(t, "store", out.Store, "postgres")
	want(t, "schema", out.Schema, postgres.Schema("semel"))
	want(t, "grants", out.Grants, postgres.Grants("semel", role))

	for args, word := range map[string]string{
		"schema --store sqlite --grant-to app": "--grant-to is for",
		"schema --store postgres --grant-to=":  "--grant-to is empty",
		"schema --store oracle":                "postgres",
	} {
		out := semelWith(nil, "", strings.Fields(args)...)
		if out.code != exitUsage || !strings.Contains(out.stderr, word) {
			t.Errorf("semel %s: exit code %d, %q; want %d and %q", args, out.code, out.stderr, exitUsage, word)
		}
	}
}
