package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel"
)

// What the promise of durability rests on, and cannot be seen by killing
// processes.
func TestSettings(t *testing.T) {
	s, err := Open(t.Context(), Config{Path: filepath.Join(t.TempDir(), "semel.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	ask := func(query func(string, func(*row), ...driver.Value) error, pragma, want string) {
		t.Helper()
		var got string
		if err := query("SELECT CAST("+pragma+" AS TEXT) FROM pragma_"+pragma, func(r *row) { got = r.text() }); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", pragma, got, err, want)
		}
	}
	// As after the reopening of a connection that failed.
	for range 2 {
		_, err = write(t.Context(), s, 0, func(tx *tx) (none, error) {
			ask(tx.query, "synchronous", "2")
			ask(tx.query, "journal_mode", "wal")
			ask(tx.query, "fullfsync", "1")
			ask(tx.query, "checkpoint_fullfsync", "1")
			return none{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := write(t.Context(), s, 0, func(tx *tx) (none, error) {
			_, err := tx.exec("SELECT nothing")
			return none{}, err
		}); err == nil {
			t.Fatal("a statement that cannot run was carried out")
		}
	}
	err = s.read(t.Context(), func(c *conn) error {
		_, err := c.exec("DELETE FROM record")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("a reader that writes was answered %v", err)
	}
}

// A query that takes long ends with its context, and the connection serves on.
func TestLongQueryEndsWithItsContext(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{Readers: 1})
	ctx, cancel := context.WithCancel(t.Context())
	rows := 0
	err := s.read(ctx, func(c *conn) error {
		return c.queryOnce(ctx, "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT n FROM n", func(*row) {
			if rows++; rows == 1000 {
				cancel()
			}
		})
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a query without end was answered %v", err)
	}
	for range 100 {
		if _, err := s.List(t.Context(), semel.Filter{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A value of a type that the schema does not allow is an error, not a zero.
func TestValuesOfAnotherType(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	for _, query := range []string{"SELECT 'text'", "SELECT x'00'", "SELECT 1.5"} {
		if err := s.read(t.Context(), func(c *conn) error {
			return c.query(query, func(r *row) { r.int() })
		}); err == nil || !strings.Contains(err.Error(), "column 1") {
			t.Errorf("%s, read as an integer: %v", query, err)
		}
	}
	if err := s.read(t.Context(), func(c *conn) error {
		return c.query("SELECT 7, 8", func(r *row) { r.text(); r.blob() })
	}); err == nil {
		t.Error("integers were read as a text and a blob")
	}
	err := s.read(t.Context(), func(c *conn) error { return c.query("SELECT ?, ?", func(*row) {}, int64(1)) })
	if err == nil || !strings.Contains(err.Error(), "parameters") {
		t.Errorf("one parameter for two: %v", err)
	}
}

// What is bound is what is read: empty is not missing, and no byte is special.
func TestValuesReadBack(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	long := strings.Repeat("\x00\xff\xc3é", mostBuffer)
	for _, want := range []string{"", "\x00", "a\x00b", "\xff\xfe", long, "short again"} {
		err := s.read(t.Context(), func(c *conn) error {
			return c.query("SELECT ?, ?, ?, ?", func(r *row) {
				text, blob := r.text(), r.blob()
				missing, none := r.blob(), r.text()
				if text != want || string(blob) != want || blob == nil || missing != nil || none != "" {
					t.Errorf("%.10q reads back as text %.10q and blob %.10q; nothing as %q and %q", want, text, blob, missing, none)
				}
			}, want, []byte(want), []byte(nil), nil)
		})
		if err != nil {
			t.Error(err)
		}
	}
}
