package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/store/sqlite"
)

func get(t *testing.T, url string) answer { return sendTo(t, http.MethodGet, url, "", "", "") }

// wantClosed: a gateway whose store is not there refuses what is protected,
// passes what is not, and says why it is not ready, if it is known.
func wantClosed(t *testing.T, g *process, u *upstream, cause string) {
	t.Helper()
	before := u.effects.Load()
	a := post(t, g.url, "early", "{}")
	want(t, "status of a protected request", a.status, 503)
	want(t, "its problem", a.problem(), "store-unavailable")
	want(t, "its Retry-After", a.header.Get("Retry-After"), "1")
	want(t, "effects of it", u.effects.Load()-before, 0)
	want(t, "status of an unprotected request", get(t, g.url+"/orders").status, 201) // the upstream's, whatever is asked
	<-u.entered
	ready := get(t, g.url+"/.well-known/idempotency/ready")
	want(t, "status of ready", ready.status, 503)
	want(t, "Retry-After of ready", ready.header.Get("Retry-After"), "1")
	if cause == "" {
		return
	}
	want(t, "ready", ready.body, fmt.Sprintf("{\"ready\":false,\"store\":%q}\n", cause))
}

// wantOpen: the same gateway serves, once the store is there.
func wantOpen(t *testing.T, g *process) {
	t.Helper()
	g.await("the store is open")
	want(t, "status of ready", get(t, g.url+"/.well-known/idempotency/ready").status, 200)
	want(t, "status of a protected request", postUntilSettled(t, g.url, "early", "{}").status, 201)
	want(t, "replayed", post(t, g.url, "early", "{}").replayed(), true)
}

// TestStartsBeforeItsDatabase: the database is down when the gateway starts. It
// used to end at once.
func TestStartsBeforeItsDatabase(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{})
	url := server.NewDatabase(t)
	noError(t, server.Stop())
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", url)
	wantClosed(t, g, u, "unreachable")
	g.await("the store cannot be opened")
	noError(t, server.Start())
	wantOpen(t, g)
}

// TestStartsWhileItsFileIsLocked: another process holds the write lock of the
// file. It was told as a wrong path or a full disk.
func TestStartsWhileItsFileIsLocked(t *testing.T) {
	quick.LeaveOut(t)
	url := newStore(t)
	db, err := sql.Open("sqlite", strings.TrimPrefix(url, "sqlite:"))
	noError(t, err)
	defer func() { noError(t, db.Close()) }()
	db.SetMaxOpenConns(1)
	_, err = db.Exec("BEGIN IMMEDIATE")
	noError(t, err)
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", url)
	wantClosed(t, g, u, "") // it may be at its first attempt still
	g.await("cause=busy")
	wantClosed(t, g, u, "busy")
	out := semelWith(nil, "", "gateway", "--upstream", u.url, "--store", url, "--require-store")
	want(t, "exit code where the store is required", out.code, exitFailed)
	if !strings.Contains(out.stderr, "has locked the file") || strings.Contains(out.stderr, "path") || strings.Contains(out.stderr, "listening") {
		t.Errorf("it said: %s", out.stderr)
	}
	_, err = db.Exec("ROLLBACK")
	noError(t, err)
	wantOpen(t, g)
}

// TestHopelessStore: what no retry can mend ends the gateway at once, with what to
// do about it.
func TestHopelessStore(t *testing.T) {
	dir := t.TempDir()
	newer := filepath.Join(dir, "newer.db")
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: newer})
	noError(t, err)
	noError(t, s.Close(context.Background()))
	db, err := sql.Open("sqlite", newer)
	noError(t, err)
	_, err = db.Exec("PRAGMA user_version = 999")
	noError(t, err)
	noError(t, db.Close())
	garbage := filepath.Join(dir, "garbage")
	noError(t, os.WriteFile(garbage, []byte(strings.Repeat("no database ", 1000)), 0o600))
	for url, part := range map[string]string{
		"sqlite:" + newer:   "newer version",
		"sqlite:" + garbage: "name another",
		"sqlite:" + dir:     "Check the path",
		"sqlite:" + filepath.Join(dir, "none", "x.db"): "Check the path",
		"postgres://me@host:port/db":                   "not the URL",
		"redis://host":                                 "does not name a store",
	} {
		out := semelWith(nil, "", "gateway", "--upstream", "http://127.0.0.1:1", "--store", url, "--listen", "127.0.0.1:0")
		if out.code != exitFailed && out.code != exitUsage {
			t.Errorf("%s: exit code %d", url, out.code)
		}
		if !strings.Contains(out.stderr, part) || strings.Contains(out.stderr, "listening") {
			t.Errorf("%s: it said %s", url, out.stderr)
		}
	}
}

// TestRefusedByTheDatabase: the database can be reached and refuses access. That can be mended
// without the gateway, so it tries on; where the store is required it ends, and
// says why.
func TestRefusedByTheDatabase(t *testing.T) {
	url := testenv.Postgres(t)
	none := strings.Replace(url, "/"+databaseOf(url), "/nobody_made_this", 1)
	out := semelWith(nil, "", "gateway", "--upstream", "http://127.0.0.1:1", "--store", none, "--require-store")
	want(t, "exit code", out.code, exitFailed)
	if !strings.Contains(out.stderr, "refuses access") {
		t.Errorf("it said: %s", out.stderr)
	}
	u := newUpstream(t)
	wantClosed(t, startGateway(t, "--upstream", u.url, "--store", none), u, "refused")
}

func databaseOf(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	_, name, _ := strings.Cut(rest, "/")
	name, _, _ = strings.Cut(name, "?")
	return name
}

// TestStoppedBeforeItsStore: a gateway that still waits for its store stops in
// order, also one that requires it.
func TestStoppedBeforeItsStore(t *testing.T) {
	url := newStore(t)
	db, err := sql.Open("sqlite", strings.TrimPrefix(url, "sqlite:"))
	noError(t, err)
	defer func() { noError(t, db.Close()) }()
	db.SetMaxOpenConns(1)
	_, err = db.Exec("BEGIN IMMEDIATE")
	noError(t, err)
	for flag, code := range map[string]int{"--require-store=false": exitOK, "--require-store=true": exitFailed} {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan int)
		var stderr bytes.Buffer
		go func() {
			done <- run(ctx, []string{"gateway", "--upstream", "http://127.0.0.1:1", "--store", url, "--listen", "127.0.0.1:0", flag}, nil, nil, io.Discard, &stderr)
		}()
		stop()
		want(t, "exit code with "+flag, <-done, code)
	}
}

// TestLateStore: before it is open every call fails and nothing is lost of the
// trail; afterwards it is the store; in between the pauses are bounded.
func TestLateStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memory.New(memory.Config{})
		noError(t, err)
		var log bytes.Buffer
		var tries atomic.Int64
		var there atomic.Bool
		s := newLateStore(newLog(&log, "text"), func(context.Context) (store, error) {
			if tries.Add(1); there.Load() {
				return memoryStore{inner}, nil
			}
			return nil, storeFault("sqlite:x", fmt.Errorf("%w for 5s", sqlite.ErrBusy))
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		id := semel.Identity{Scope: semel.Scope{Operation: "POST /x"}, Key: "k"}
		a := semel.NewAttempt(id, semel.Fingerprint{}, time.Minute, time.Hour)
		calls := func() (errs []error) {
			_, begin := s.Begin(t.Context(), a)
			_, find := s.Find(t.Context(), id)
			_, list := s.List(t.Context(), semel.Filter{})
			_, trail := s.Trail(t.Context(), semel.TrailFilter{})
			_, resolve := s.Resolve(t.Context(), semel.Resolution{Identity: id, Decision: semel.DecideUnknown})
			_, unwatch := s.Watch(id)
			unwatch()
			return []error{begin, find, list, trail, resolve}
		}
		synctest.Wait()
		for i, err := range calls() {
			if err == nil || errors.Is(err, semel.ErrNotFound) || !strings.Contains(err.Error(), "busy") {
				t.Errorf("call %d before the store is there: %v", i, err)
			}
		}
		for i := range maxEarlyNotes + 2 {
			s.Note(semel.TrailEntry{Kind: semel.TrailFailedOpen, Key: fmt.Sprint("k", i), Cause: "store unavailable"})
		}
		time.Sleep(70 * time.Second)
		synctest.Wait()
		if n := tries.Load(); n < 12 || n > 40 {
			t.Errorf("%d tries in 70 s", n)
		}
		want(t, "lines in the log", strings.Count(log.String(), "the store cannot be opened"), 2)
		there.Store(true)
		time.Sleep(lastReopen)
		synctest.Wait()
		for _, err := range calls()[:4] {
			noError(t, err)
		}
		if err := calls()[4]; !errors.Is(err, semel.ErrStaleFence) {
			t.Errorf("Resolve afterwards: %v", err)
		}
		s.Note(semel.TrailEntry{Kind: semel.TrailFailedOpen, Key: "after"})
		entries, err := inner.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailFailedOpen, Limit: 1000})
		noError(t, err)
		want(t, "first note", entries[0].Key, "k0")
		if !strings.HasPrefix(entries[0].Cause, "store unavailable at 2000-01-01T00:00:00Z") {
			t.Errorf("its cause is %q", entries[0].Cause)
		}
		last, err := inner.Trail(t.Context(), semel.TrailFilter{Key: "after"})
		noError(t, err)
		want(t, "position of the last note", last[0].Position, maxEarlyNotes+1)
		if !strings.Contains(log.String(), "entries=2") {
			t.Errorf("what was lost of the trail is not told:\n%s", log.String())
		}
		stop()
		noError(t, <-ended)
		noError(t, s.Close(context.Background()))
	})
}

// TestLateStoreGivesUp: a store that turns out to be hopeless only when it can be
// reached ends the gateway then.
func TestLateStoreGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		s := newLateStore(newLog(io.Discard, "text"), func(context.Context) (store, error) {
			if tries++; tries < 3 {
				return nil, context.DeadlineExceeded
			}
			return nil, sqlite.ErrNewerSchema
		})
		if err := s.Run(t.Context()); !errors.Is(err, sqlite.ErrNewerSchema) {
			t.Errorf("Run: %v", err)
		}
		want(t, "tries", tries, 3)
		noError(t, s.Close(context.Background()))
	})
}

// TestFailedOpenBeforeTheStore: requests that pass unprotected because the store
// is not there yet are on its trail.
func TestFailedOpenBeforeTheStore(t *testing.T) {
	url := newStore(t)
	db, err := sql.Open("sqlite", strings.TrimPrefix(url, "sqlite:"))
	noError(t, err)
	defer func() { noError(t, db.Close()) }()
	db.SetMaxOpenConns(1)
	_, err = db.Exec("BEGIN IMMEDIATE")
	noError(t, err)
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", url, "--fail-open")
	want(t, "status", post(t, g.url, "k", "{}").status, 201)
	_, err = db.Exec("ROLLBACK")
	noError(t, err)
	g.await("the store is open")
	var trail struct{ Entries []struct{ Key, Cause string } }
	for len(trail.Entries) == 0 && t.Context().Err() == nil { // it is written behind the response
		noError(t, json.Unmarshal([]byte(ok(t, "audit", "search", "--store", url, "--kind", "failed_open", "--json")), &trail))
	}
	if len(trail.Entries) != 1 || trail.Entries[0].Key != "k" || !strings.Contains(trail.Entries[0].Cause, "was not open yet") {
		t.Errorf("the trail is %+v", trail.Entries)
	}
}

// TestUpgradedBeside: another process brings the schema up to a version that this
// one does not know. What is running on PostgreSQL goes on; on a file it writes
// nothing any more, and refuses. What is started anew ends, with why.
func TestUpgradedBeside(t *testing.T) {
	file := newStore(t)
	database := testenv.Postgres(t)
	for _, tt := range []struct {
		driver, dsn, url, raise string
		status                  int
	}{
		{"sqlite", strings.TrimPrefix(file, "sqlite:"), file, "PRAGMA user_version = 999", 503},
		{"pgx", database, database, "UPDATE semel.version SET version = 999", 201},
	} {
		u := newUpstream(t)
		g := startGateway(t, "--upstream", u.url, "--store", tt.url, "--admin", ":0")
		eventually(t, g.admin()+"/readyz", 200)
		want(t, "status before", post(t, g.url, "before", "{}").status, 201)
		db, err := sql.Open(tt.driver, tt.dsn)
		noError(t, err)
		_, err = db.Exec(tt.raise)
		noError(t, err)
		noError(t, db.Close())
		want(t, tt.driver+": status after", post(t, g.url, "after", "{}").status, tt.status)
		if effects := u.effects.Load(); tt.status == 503 && effects != 1 {
			t.Errorf("%s: %d effects", tt.driver, effects)
		}
		want(t, tt.driver+": replayed", post(t, g.url, "before", "{}").replayed(), true)
		eventually(t, g.admin()+"/readyz", 200)
		out := semelWith(nil, "", "gateway", "--upstream", u.url, "--store", tt.url, "--listen", "127.0.0.1:0")
		if out.code != exitFailed || !strings.Contains(out.stderr, "newer") || strings.Contains(out.stderr, "listening") {
			t.Errorf("%s: started anew: exit code %d, %s", tt.driver, out.code, out.stderr)
		}
	}
}
