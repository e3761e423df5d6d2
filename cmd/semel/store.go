package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// storeURL is what --store names.
type storeURL struct {
	kind string // sqlite, postgres or memory
	path string // of a file, or the whole URL of a database
}

// withoutSecrets is a store's URL as it may be shown.
func withoutSecrets(s string) string {
	if !strings.Contains(s, "://") || strings.HasPrefix(s, "sqlite:") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		scheme, _, _ := strings.Cut(s, ":")
		return scheme + ":..."
	}
	u.RawQuery = "" // it can hold a password too
	return u.Redacted()
}

func parseStoreURL(s string) (storeURL, error) {
	kind, rest, ok := strings.Cut(s, ":")
	switch {
	case s == "":
		return storeURL{}, errors.New("it is not set")
	case ok && kind == "memory" && rest == "":
		return storeURL{kind: kind}, nil
	case ok && (kind == "postgres" || kind == "postgresql"):
		if _, err := pgxpool.ParseConfig(s); err != nil {
			return storeURL{}, fmt.Errorf("it is %q, which is not the URL of a PostgreSQL database", withoutSecrets(s))
		}
		return storeURL{kind: "postgres", path: s}, nil
	case !ok || kind != "sqlite":
		return storeURL{}, fmt.Errorf("it is %q, which does not name a store", withoutSecrets(s))
	}
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(after, "/") {
			return storeURL{}, fmt.Errorf("it is %q: after two slashes the path must be absolute; a relative path follows the colon directly", s)
		}
		rest = after
	}
	if rest == "" {
		return storeURL{}, fmt.Errorf("it is %q, without a path", s)
	}
	return storeURL{kind: kind, path: rest}, nil
}

const storeForms = "sqlite:semel.db, sqlite:///var/lib/semel/semel.db or postgres://user@host/database"

// openStore opens the store of a gateway. onSweep is told how each sweep ended.
func openStore(ctx context.Context, cmd *cobra.Command, url string, maxResult int64, onSweep func(records int, err error)) (store, error) {
	u, err := parseStoreURL(url)
	if err != nil {
		return nil, usagef("%s: %w; use %s, or memory: for records that end with the process", named(cmd, "store"), err, storeForms)
	}
	if u.kind == "memory" {
		s, err := memory.New(memory.Config{})
		if err != nil {
			return nil, err
		}
		return memoryStore{s}, nil
	}
	maxResultBytes := 0
	// The head of a response is stored beside its body.
	if need := maxResult + 1<<20; need > 64<<20 {
		maxResultBytes = int(need)
	}
	if u.kind == "postgres" {
		return openPostgres(ctx, u.path, postgres.Config{
			MaxResultBytes: maxResultBytes, OnSweep: func(did postgres.Swept) { onSweep(did.Records, did.Err) },
		})
	}
	s, err := sqlite.Open(ctx, sqlite.Config{
		Path: u.path, MaxResultBytes: maxResultBytes, OnSweep: func(did sqlite.Swept) { onSweep(did.Records, did.Err) },
	})
	if err != nil {
		return nil, storeFault(url, err)
	}
	return s, nil
}

// openAdmin opens the store that a gateway is using, or has used, to look at it.
func openAdmin(ctx context.Context, cmd *cobra.Command, url string) (store, error) {
	u, err := parseStoreURL(url)
	if err != nil {
		return nil, usagef("%s: %w; use the gateway's, such as %s", named(cmd, "store"), err, storeForms)
	}
	if u.kind == "memory" {
		return nil, usagef("%s: a memory: store lives in its gateway's process and cannot be looked at from outside; use %s there", named(cmd, "store"), storeForms)
	}
	if u.kind == "postgres" {
		return openPostgres(ctx, u.path, postgres.Config{NoMigrate: true})
	}
	s, err := sqlite.Open(ctx, sqlite.Config{Path: u.path, NoMigrate: true})
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || notThere(u.path) {
			return nil, &fault{
				code: exitFailed, err: fmt.Errorf("there is no store at %s", url),
				do: "Name the file that the gateway uses, with --store or SEMEL_STORE. Nothing was created; a retry is safe.",
			}
		}
		return nil, storeFault(url, err)
	}
	return s, nil
}

func notThere(path string) bool {
	info, err := os.Stat(path)
	return err != nil && errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0
}

// trouble is why a store cannot be opened, in one word, and what to do.
type trouble struct {
	class     string
	do        string
	permanent bool // trying again does not help until somebody has seen to it
}

func troubleOf(err error) trouble {
	is := func(target error) bool { return errors.Is(err, target) }
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	answer, isAnswer := errors.AsType[*pgconn.PgError](err)
	switch {
	case is(errNotTried):
		return trouble{class: "opening", do: "It takes its time."}
	case is(sqlite.ErrNewerSchema), is(postgres.ErrNewerSchema):
		return trouble{"newer-schema", "A newer version of this program has used it: use that one.", true}
	case is(sqlite.ErrOlderSchema), is(postgres.ErrOlderSchema):
		return trouble{"older-schema", "Use the version of this program that the gateway runs, or bring the store up to date with semel migrate, or by starting a gateway of this version.", true}
	case is(sqlite.ErrForeign):
		return trouble{"not-a-store", "The file is not one that this program made: name another. It was left as it is.", true}
	case is(sqlite.ErrPath):
		return trouble{"path", "Check the path, and what this user may do there.", true}
	case is(postgres.ErrUnfit):
		return trouble{"unfit", "Have the database set up as the message says.", true}
	case is(sqlite.ErrBusy):
		return trouble{class: "busy", do: "Another process has locked the file: a gateway that starts, a backup, a VACUUM, or a database shell with an open transaction. Let it end, or stop it."}
	case isAnswer && (strings.HasPrefix(answer.Code, "28") || answer.Code == "3D000" || answer.Code == "42501"):
		return trouble{class: "refused", do: "The database refuses access: check its name, the user, the password, and the rights of the user."}
	case isAnswer && (answer.Code == "57P03" || answer.Code == "53300"):
		return trouble{class: "busy", do: "The database is starting, stopping, or has no connection left."}
	case isAnswer:
		return trouble{class: "failed", do: "The database reported the error in the message."}
	case isConnect, is(context.DeadlineExceeded):
		return trouble{class: "unreachable", do: "The database does not respond: check its address, that it runs, and the network in between."}
	}
	return trouble{class: "failed", do: "Check the file's permissions and the space on the disk, or that the database responds."}
}

func storeFault(url string, err error) error {
	return &fault{
		code: exitFailed, err: fmt.Errorf("the store %s cannot be used: %w", withoutSecrets(url), err),
		do: troubleOf(err).do + " Nothing that is recorded was changed; a retry is safe.",
	}
}

// openPostgres opens a store for leased claims: the effects of a gateway are
// somewhere else.
func openPostgres(ctx context.Context, url string, c postgres.Config) (store, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, storeFault(url, err)
	}
	// What does not answer is given up soon; bringing the tables up to date may
	// take its time.
	ping, cancel := context.WithTimeout(ctx, 5*time.Second)
	err = pool.Ping(ping)
	cancel()
	var s *postgres.Store
	if err == nil {
		s, err = postgres.New(ctx, pool, c)
	}
	if err != nil {
		pool.Close()
		return nil, storeFault(url, err)
	}
	return &postgresStore{s, pool}, nil
}

// postgresStore is a store with its pool of connections.
type postgresStore struct {
	*postgres.Store
	pool *pgxpool.Pool
}

// Close implements store. What is left of the audit trail is written for as
// long as a database that answers takes.
func (s *postgresStore) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := s.Store.Close(ctx)
	s.pool.Close()
	return err
}

// callFault reports a call of the store that failed.
func callFault(what string, err error) error {
	return &fault{
		code: exitFailed, err: fmt.Errorf("%s: %w", what, err),
		do: "The store did not respond as expected. Looking is always safe to repeat; before repeating a change, check whether it took effect: semel keys show.",
	}
}

// store is what the commands need of one.
type store interface {
	semel.Store
	semel.Resolver
	semel.Eraser
	semel.Lister
	semel.Trail
	Run(ctx context.Context) error
	Close(ctx context.Context) error
}

// memoryStore adds to a memory store what others have themselves.
type memoryStore struct{ *memory.Store }

// Close implements store.
func (s memoryStore) Close(context.Context) error { return nil }
