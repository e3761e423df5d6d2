package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	_ "modernc.org/sqlite" // the driver

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

// backupJSON is what was written. The names are stable.
type backupJSON struct {
	File    string  `json:"file"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func (p *program) backupCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy a SQLite store to a new file, while the gateway runs",
		Long: `Writes all that is committed in a SQLite store at one moment to a new file, while
the gateway runs and writes. The copy is opened, checked and synced to disk before
it gets its name, so the file is whole or does not exist. An existing file is never
overwritten. Only you can read the new one.

The copy holds recorded results, keys and callers as the store does: keep it as
safe. What was erased before is not in it. A process that is killed leaves a file
FILE.partial-NNN behind, which can be removed.

A restored store has forgotten what came after the backup, so a retry of such a
request executes again: see docs/operations.md. Back up PostgreSQL by its own means,
and restore it from its log to the moment of the failure.`,
		Example: "  semel backup --store sqlite:///var/lib/semel/semel.db /backup/semel-2026-11-23.db",
		Args:    cobra.ExactArgs(1),
	}
	p.admin(cmd, func(ctx context.Context, _ store, args []string) error {
		from, err := parseStoreURL(cmd.Flags().Lookup("store").Value.String())
		if err != nil || from.kind != "sqlite" {
			return usagef("%s: only SQLite stores can be copied; back up PostgreSQL by its own means, such as pg_basebackup and its log", named(cmd, "store"))
		}
		show := p.newProgress()
		defer show.end()
		done, err := backup(ctx, from.path, args[0])
		if err != nil {
			return &fault{code: exitFailed, err: fmt.Errorf("no backup was made: %w", err), do: "The store was not changed, and no file was made under the backup's name. A retry is safe."}
		}
		if asJSON {
			return p.printJSON(done)
		}
		_, err = fmt.Fprintf(p.stdout, "%s\t%d bytes\t%.1f s\n", printable(done.File), done.Bytes, done.Seconds)
		return err
	})
	jsonFlag(cmd, &asJSON)
	return cmd
}

// backup writes a copy of the store at from to a new file.
func backup(ctx context.Context, from, to string) (done backupJSON, err error) {
	begun := time.Now()
	if _, err := os.Lstat(to); err == nil {
		return done, fmt.Errorf("%s: %w", to, fs.ErrExist)
	}
	partial, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".partial-*") // that only its owner can read
	if err != nil {
		return done, err
	}
	name := partial.Name()
	defer func() {
		for _, companion := range []string{"", "-wal", "-shm", "-journal"} {
			if e := os.Remove(name + companion); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}()
	if err := partial.Close(); err != nil {
		return done, err
	}
	if err := vacuumInto(ctx, from, name); err != nil {
		return done, err
	}
	if err := checkBackup(ctx, name); err != nil {
		return done, fmt.Errorf("the copy is damaged: %w", err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return done, err
	}
	info, err := f.Stat()
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return done, err
	}
	// A link and not a change of the name: that would write over what has come to be
	// there meanwhile.
	if err := os.Link(name, to); err != nil {
		return done, err
	}
	if dir, err := os.Open(filepath.Dir(to)); err == nil {
		_ = dir.Sync() // not on all systems
		_ = dir.Close()
	}
	return backupJSON{File: to, Bytes: info.Size(), Seconds: time.Since(begun).Seconds()}, nil
}

// openFile opens a database file for one statement after the other.
func openFile(path string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	name := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path), RawQuery: "mode=rw&_pragma=busy_timeout(10000)&_pragma=trusted_schema(0)"}
	db, err := sql.Open("sqlite", name.String())
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

// vacuumInto writes what is committed to another file. Writers are not kept waiting:
// the file has a log.
func vacuumInto(ctx context.Context, from, to string) error {
	db, err := openFile(from)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	return errors.Join(err, db.Close())
}

// checkBackup opens a copy as a gateway would, and has SQLite check all of it.
func checkBackup(ctx context.Context, path string) error {
	db, err := openFile(path)
	if err != nil {
		return err
	}
	verdict := ""
	err = db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict)
	if err == nil && verdict != "ok" {
		err = errors.New(verdict)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	s, err := sqlite.Open(ctx, sqlite.Config{Path: path, NoMigrate: true})
	if err != nil {
		return err
	}
	_, err = s.List(ctx, semel.Filter{Limit: 1})
	return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
}
