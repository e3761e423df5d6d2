package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel/internal/recordid"
)

// Each file of schema/ takes the schema from one version to the next. A file
// that has been released is never changed. {s} stands for the schema's name.
//
//go:embed schema/*.sql
var schemaFiles embed.FS

var (
	// ErrNewerSchema reports that the tables were created by a newer version of
	// this package.
	ErrNewerSchema = errors.New("postgres: the database has a newer schema than this program knows")
	// ErrOlderSchema reports that the tables are missing or of an older
	// version, and that Config.NoMigrate is set.
	ErrOlderSchema = errors.New("postgres: the database's schema has to be migrated")
	// ErrNoSecret reports that the table version does not hold the secret from
	// which the ids and digests of the records are derived. With another secret no
	// record would be found.
	ErrNoSecret = errors.New("postgres: the store's secret is not in its table version; restore that row from a backup")
)

var migrations = func() (all []string) {
	names, err := fs.Glob(schemaFiles, "schema/*.sql") // sorted
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		ddl, err := schemaFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		all = append(all, string(ddl))
	}
	return all
}()

// in fills in the name of the schema: {s}, or {q} within single quotes.
func in(schema, sql string) string {
	name := pgx.Identifier{schema}.Sanitize()
	return strings.NewReplacer("{s}", name, "{q}", strings.ReplaceAll(name, "'", "''")).Replace(sql)
}

// Schema returns the statements that Migrate executes to create the tables of
// this package in the database schema called name.
func Schema(name string) string {
	var b strings.Builder
	b.WriteString(in(name, "CREATE SCHEMA IF NOT EXISTS {s};\n\n"))
	for i, ddl := range migrations {
		fmt.Fprintf(&b, "-- semel: PostgreSQL schema version %d\n\n%s\n", i+1, in(name, ddl))
	}
	b.WriteString(in(name, fmt.Sprintf("UPDATE {s}.version SET version = %d;\n", len(migrations))))
	return b.String()
}

// Grants returns the statements that give a role the rights that a store needs
// on the tables in the database schema called name, and no others. The last
// statement is needed only for sweeping old audit entries. If
// Config.TrailRetention is negative, leave it out; the trail is then
// append-only for that role.
func Grants(name, role string) string {
	return strings.ReplaceAll(in(name, `GRANT USAGE ON SCHEMA {s} TO {r};
GRANT SELECT ON {s}.version TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.record TO {r};
GRANT SELECT, INSERT, DELETE ON {s}.piece TO {r};
GRANT SELECT, INSERT ON {s}.trail TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.inbox TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.journal, {s}.journal_step TO {r};
GRANT USAGE ON SEQUENCE {s}.counter TO {r};
GRANT SELECT, INSERT, DELETE ON {s}.outbox TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.outbox_queue, {s}.outbox_settled TO {r};
GRANT SELECT ON {s}.outbox_message TO {r};
GRANT USAGE ON SEQUENCE {s}.outbox_position TO {r};
GRANT UPDATE, DELETE ON {s}.trail TO {r};
`), "{r}", pgx.Identifier{role}.Sanitize())
}

const (
	// othersMigrate is how long Migrate waits for another's that is under way,
	// which on large tables can take its time; tableLock is how long it waits
	// for a lock on a table, because all who want to read or write the table
	// wait behind it.
	othersMigrate = time.Minute
	tableLock     = 5 * time.Second
)

// Migrate creates the tables in the database schema called schema, or brings
// them up to date. If several processes call it at the same time, one of them
// migrates. If the tables are newer than this package, it fails with
// ErrNewerSchema and changes nothing.
//
// It waits up to a minute for another migration, and up to 5 s for each lock on
// a table that an open transaction has used. Then it fails with SQLSTATE 55P03,
// having changed nothing.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	return migrate(ctx, pool, schema, migrations, othersMigrate, tableLock)
}

func migrate(ctx context.Context, pool *pgxpool.Pool, schema string, migrations []string, othersMigrate, tableLock time.Duration) error {
	inTheWay, waited := "another process migrates it", othersMigrate
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		const limit = "SELECT set_config('lock_timeout', $1, true)"
		if _, err := tx.Exec(ctx, limit, milliseconds(othersMigrate)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", migrationLock(schema)); err != nil {
			return err
		}
		inTheWay, waited = "a transaction of another session uses its tables", tableLock
		if _, err := tx.Exec(ctx, limit, milliseconds(tableLock)); err != nil {
			return err
		}
		version, err := schemaVersion(ctx, tx, schema)
		switch {
		case err != nil:
			return err
		case version == len(migrations):
			_, err := readNames(ctx, tx, schema)
			return err
		case version > len(migrations):
			return fmt.Errorf("%w: version %d, not %d", ErrNewerSchema, version, len(migrations))
		}
		ddl := migrations[version:]
		if version == 0 {
			var exists bool
			if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", schema).Scan(&exists); err != nil {
				return err
			}
			if !exists { // else the right to create schemas is not needed
				if _, err := tx.Exec(ctx, in(schema, "CREATE SCHEMA {s}")); err != nil {
					return err
				}
			}
		}
		for _, sql := range ddl {
			// Without arguments several statements may go in one.
			if _, err := tx.Exec(ctx, in(schema, sql)); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, in(schema, "UPDATE {s}.version SET version = $1"), len(migrations))
		return err
	})
	if sqlState(err) == codeLockWait {
		err = fmt.Errorf("%s and did not end within %v: let it end, or end it (pg_stat_activity shows it); nothing was changed, and a retry is safe: %w", inTheWay, waited, err)
	}
	if err != nil {
		return fmt.Errorf("postgres: migrate schema %q: %w", schema, err)
	}
	return nil
}

func migrationLock(schema string) int64 { return hash("schema", schema) }

// schemaVersion returns 0 where there are no tables.
func schemaVersion(ctx context.Context, q queryRower, schema string) (version int, err error) {
	// Not to_regclass, which in a transaction that waited for another to make
	// the tables may answer from before.
	var exists bool
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'version')`, schema).Scan(&exists)
	if err != nil || !exists {
		return 0, err
	}
	err = q.QueryRow(ctx, in(schema, "SELECT version FROM {s}.version")).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoSecret
	}
	return version, err
}

// readNames reads the secret that was made with the tables.
func readNames(ctx context.Context, q queryRower, schema string) (namer, error) {
	var secret []byte
	if err := q.QueryRow(ctx, in(schema, "SELECT secret FROM {s}.version")).Scan(&secret); err != nil {
		return nil, err
	}
	names, err := recordid.New(secret)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSecret, err)
	}
	return names, nil
}

type queryRower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
