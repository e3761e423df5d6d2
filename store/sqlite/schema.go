package sqlite

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/semelhq/semel/internal/recordid"
)

// Each file of schema/ takes the schema from one version to the next. A file
// that has been released is never changed.
//
//go:embed schema/*.sql
var schemaFiles embed.FS

// applicationID marks a database file as ours: "SEML".
const applicationID = 0x53454d4c

// ErrOlderSchema reports that the schema is of an earlier version, and that
// Config.NoMigrate is set. The file was left as it is.
var ErrOlderSchema = errors.New("sqlite: the file's schema has to be migrated")

// ErrNewerSchema reports that the file was written by a newer version of this
// package.
var ErrNewerSchema = errors.New("sqlite: the file has a newer schema than this program knows")

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

// Schema returns the statements that Open executes to create the tables of this
// package.
func Schema() string {
	var b strings.Builder
	for i, ddl := range migrations {
		fmt.Fprintf(&b, "-- semel: SQLite schema version %d\n\n%s\n", i+1, ddl)
	}
	fmt.Fprintf(&b, "PRAGMA application_id = %d;\nPRAGMA user_version = %d;\n", applicationID, len(migrations))
	return b.String()
}

// fileKind is what a database file says of itself.
type fileKind struct {
	application, version, objects int64
}

func (c *conn) kind(ctx context.Context) (k fileKind, err error) {
	err = c.queryOnce(ctx, `
		SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
		FROM pragma_application_id, pragma_user_version`,
		func(r *row) { k = fileKind{application: r.int(), version: r.int(), objects: r.int()} })
	return k, err
}

// check refuses files that are not ours to write to.
func (k fileKind) check() error {
	switch {
	case k == fileKind{}:
		return nil // an empty file
	case k.application != applicationID:
		return fmt.Errorf("%w: it is a database of another application", ErrForeign)
	case k.version > int64(len(migrations)):
		return fmt.Errorf("%w: version %d, not %d", ErrNewerSchema, k.version, len(migrations))
	}
	return nil
}

// migrate brings the schema up to date in the transaction that has begun, and
// commits it. The transaction holds the write lock, so of several processes that
// open a file together one does it.
func (c *conn) migrate(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			_, _ = c.exec("ROLLBACK") // err tells more
		}
	}()
	k, err := c.kind(ctx)
	if err == nil {
		err = k.check()
	}
	if err != nil {
		return err
	}
	for _, ddl := range migrations[k.version:] {
		if err := c.script(ddl); err != nil {
			return err
		}
	}
	if k.version == 0 { // SQLite's own random numbers may be poor ones where there is no /dev/urandom
		if _, err := c.exec("UPDATE counter SET secret = ?", recordid.NewSecret()); err != nil {
			return err
		}
	}
	if k.version < int64(len(migrations)) {
		if err := c.script(fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d",
			applicationID, len(migrations))); err != nil {
			return err
		}
	}
	_, err = c.exec("COMMIT")
	return err
}
