package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/semelhq/semel"
)

// The filter remembers a quarter of its size without losing much: what it loses
// goes through the writer.
func TestKnownIdentities(t *testing.T) {
	var k known
	k.init()
	const n = knownBuckets
	id := func(i uint64) digest {
		sum := sha256.Sum256(binary.AppendUvarint(nil, i))
		return digest(sum[:len(digest{})])
	}
	for i := range uint64(n) {
		k.add(id(i))
		k.add(id(i))
	}
	lost, wrong := 0, 0
	for i := range uint64(n) {
		if !k.has(id(i)) {
			lost++
		}
		if k.has(id(n + i)) {
			wrong++
		}
	}
	if lost > n/50 || wrong > n/1000 {
		t.Errorf("of %d identities %d were forgotten, and of as many others %d taken for known", n, lost, wrong)
	}
}

// A store that was opened anew knows nobody. Once repeats come often it looks for
// all, and no more once they do not.
func TestRepeatsOfForgottenIdentities(t *testing.T) {
	const n = 500
	f, path := &faults{}, filepath.Join(t.TempDir(), "semel.db")
	var looks, turns int
	f.arm(func(_ int, query string, _ []driver.Value) (bool, bool) {
		switch query {
		case selectRecord:
			looks++
		case "BEGIN IMMEDIATE":
			turns++
		}
		return false, false
	})
	begin := func(s *Store, prefix string, repeats bool) (looked, wrote int) {
		t.Helper()
		looks, turns = 0, 0
		for i := range n {
			if _, err := s.Begin(t.Context(), attempt(fmt.Sprint(prefix, i))); isConflict(err) != repeats || !repeats && err != nil {
				t.Fatal(err)
			}
		}
		return looks, turns
	}
	s := openFaulty(t, f, Config{Path: path})
	if looked, _ := begin(s, "a", false); looked > n/10 { // one for each turn that takes long
		t.Errorf("%d looks for %d first requests", looked, n)
	}
	if _, wrote := begin(s, "a", true); wrote != 0 {
		t.Errorf("%d of %d repeats took a turn of the writer", wrote, n)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s = openFaulty(t, f, Config{Path: path})
	if _, wrote := begin(s, "a", true); wrote > n/10 {
		t.Errorf("%d of %d repeats of forgotten identities took a turn of the writer", wrote, n)
	}
	if looked, _ := begin(s, "b", false); looked == 0 || looked > n*9/10 {
		t.Errorf("%d looks for %d first requests behind repeats", looked, n)
	}
}

// A statement that is kept is not prepared again for each value of a parameter,
// as SQLite does for those that its planner looks at.
func TestStatementsArePreparedOnce(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	for i := range 3 {
		if _, err := mustBegin(t, s, attempt("a")).Complete(t.Context(), semel.Result{Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Begin(t.Context(), attempt("a")); !isConflict(err) {
			t.Fatal(err)
		}
		pass(t, s, 100*24*time.Hour)
		if _, err := s.Sweep(t.Context(), 10+i); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Trail(t.Context(), semel.TrailFilter{Kind: semel.TrailExecuted}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(c *conn) {
		for query, st := range c.statements {
			n := sqlite3.Xsqlite3_stmt_status(c.database.tls, st.handle, sqlite3.SQLITE_STMTSTATUS_REPREPARE, 0)
			if st.parameters > 0 && n > 0 { // others are, after changes of the schema
				t.Errorf("prepared %d times more: %s", n, query)
			}
		}
	}
	if _, err := write(t.Context(), s, 0, func(t *tx) (none, error) { check(t.conn); return none{}, nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.read(t.Context(), func(c *conn) error { check(c); return nil }); err != nil {
		t.Fatal(err)
	}
}
