package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
)

// Every statement of a claim's life fails once, or is carried out and its
// answer lost. Whatever fails: a payment is there exactly if its record is, and
// what was told of both is so; the next claim is not held up; no fence repeats;
// the trail has no gap.
func TestTxEveryFault(t *testing.T) {
	for _, mode := range []string{"not carried out", "answer lost"} {
		for _, life := range []string{"complete", "fail", "release", "hold"} {
			t.Run(mode+" "+life, func(t *testing.T) {
				t.Parallel()
				n := 1
				for quick.Skips(n, 4) || txFaultAt(t, n, mode == "answer lost", life) {
					n++
				}
				if n < 12 {
					t.Errorf("only %d points", n-1)
				}
			})
		}
	}
}

func txFaultAt(t *testing.T, n int, lost bool, life string) (hit bool) {
	ctx := t.Context()
	f := &faults{}
	path := filepath.Join(t.TempDir(), "semel.db")
	s := openFaulty(t, f, Config{Path: path, Mode: ModeTransactional})
	if _, err := write(ctx, s, 0, func(tx *tx) (none, error) {
		_, err := tx.exec("CREATE TABLE payment (id INTEGER PRIMARY KEY, note TEXT) STRICT")
		return none{}, err
	}); err != nil {
		t.Fatal(err)
	}
	where := ""
	f.arm(func(call int, query string, _ []driver.Value) (before, after bool) {
		if call != n {
			return false, false
		}
		hit, where = true, query
		return !lost, lost
	})

	completed, fences := 0, map[uint64]bool{}
	for _, key := range []string{"a", "b"} {
		if txLife(t, ctx, s, key, life, fences) {
			completed++
		}
		if t.Failed() {
			t.Fatalf("at call %d, %s", n, where)
		}
	}
	f.arm(nil)

	// What was told is what is there.
	payments, records := 0, 0
	if err := s.read(ctx, func(c *conn) error {
		return c.queryOnce(ctx, "SELECT (SELECT count(*) FROM payment), (SELECT count(*) FROM record WHERE state = 2)",
			func(r *row) { payments, records = int(r.int()), int(r.int()) })
	}); err != nil {
		t.Fatal(err)
	}
	want := completed
	if life == "fail" {
		want = 0
	}
	if payments != want || records != completed {
		t.Errorf("%s at call %d, %s: %d payments and %d records; want %d and %d", life, n, where, payments, records, want, completed)
	}
	entries, err := s.Trail(ctx, semel.TrailFilter{})
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	for _, e := range entries {
		if e.Instance == s.instance.String() {
			if seq++; e.Seq != seq {
				t.Errorf("%s at call %d, %s: entry %d follows %d", life, n, where, e.Seq, seq-1)
			}
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Errorf("%s at call %d, %s: close: %v", life, n, where, err)
	}
	return hit
}

// txLife has key pay, as a guard would: it asks again until it is told.
func txLife(t *testing.T, ctx context.Context, s *Store, key, life string, fences map[uint64]bool) (completed bool) {
	for range 5 {
		var c semel.Claim
		err := errors.New("not tried")
		for try := 0; err != nil && try < 3; try++ {
			c, err = s.Begin(ctx, attempt(key))
		}
		if err != nil {
			t.Errorf("begin %s: %v", key, err)
			return false
		}
		if fences[c.Fence()] {
			t.Errorf("fence %d is given again", c.Fence())
		}
		fences[c.Fence()] = true
		hctx := c.Context(ctx)
		tx, _ := Tx(hctx)
		_, err = tx.ExecContext(hctx, "INSERT INTO payment (note) VALUES (?)", key)
		what := life
		if err != nil && life == "complete" {
			what = "hold" // as the guard does with an error of the handler
		}
		var told error
		for range 3 {
			switch what {
			case "complete", "fail":
				_, told = c.Complete(ctx, semel.Result{Failed: what == "fail"})
			case "release":
				told = c.Release(ctx)
			case "hold":
				told = c.Hold(ctx, "lost contact")
			}
			if told == nil || errors.Is(told, semel.ErrRolledBack) || errors.Is(told, semel.ErrLostClaim) {
				break
			}
		}
		switch {
		case told == nil && (what == "complete" || what == "fail"):
			return true
		case told == nil && what == "release", errors.Is(told, semel.ErrRolledBack) && what == "hold":
			if life != "complete" {
				return false
			}
		case errors.Is(told, semel.ErrRolledBack) && what != "release":
		default:
			t.Errorf("%s %s: %v", what, key, told)
			return false
		}
	}
	t.Error(fmt.Sprint(life, " ", key, ": never settled"))
	return false
}

// A commit whose answer was lost is told as it ended: once the file can be read
// again, and not before.
func TestTxLostCommit(t *testing.T) {
	for _, applied := range []bool{false, true} {
		lostCommit(t, applied, true)
		lostCommit(t, applied, false)
	}
}

// lostCommit: the claim is asked again what became of it, or never, and then
// another asks.
func lostCommit(t *testing.T, applied, asked bool) {
	t.Helper()
	f := &faults{}
	s := openFaulty(t, f, Config{Mode: ModeTransactional})
	c, err := s.Begin(t.Context(), attempt("k"))
	if err != nil {
		t.Fatal(err)
	}
	down := false
	f.arm(func(_ int, query string, _ []driver.Value) (before, after bool) {
		if query == "COMMIT" && !down {
			down = true
			return !applied, applied
		}
		return down, false
	})
	for range 2 {
		if _, err := c.Complete(t.Context(), semel.Result{}); !errors.Is(err, errInjected) || errors.Is(err, semel.ErrRolledBack) {
			t.Errorf("told %v while the file cannot be read", err)
		}
	}
	_, err = s.Begin(t.Context(), attempt("k"))
	if err == nil {
		t.Error("the identity was granted in the meantime")
	}
	f.arm(nil)
	if !asked {
		other, err := s.Begin(t.Context(), attempt("k"))
		if isConflict(err) != applied || (err == nil) == applied {
			t.Errorf("committed %v: another is told %v", applied, err)
		}
		if err == nil {
			if err := other.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		return
	}
	expires, err := c.Complete(t.Context(), semel.Result{})
	if applied && (err != nil || expires.IsZero()) || !applied && !errors.Is(err, semel.ErrRolledBack) {
		t.Errorf("committed %v: told %v", applied, err)
	}
	if _, err := s.Find(t.Context(), identity("k")); (err == nil) != applied {
		t.Errorf("committed %v: found %v", applied, err)
	}
	entries, err := s.Trail(t.Context(), semel.TrailFilter{})
	if err != nil || len(entries) != 1 || strings.HasPrefix(string(entries[0].Kind), "exec") != applied {
		t.Errorf("committed %v: the trail is %+v, %v", applied, entries, err)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
