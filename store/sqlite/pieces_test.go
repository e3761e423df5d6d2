package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

// aboveOneTurn is the size of a body that takes two turns of the writer.
const aboveOneTurn = stagePieces*semel.PieceBytes + 1

// inPieces is a result whose body is aboveOneTurn times b.
func inPieces(b byte) semel.Result {
	return piecesFrom(func(context.Context, int) error { return nil }, b)
}

// piecesFrom has before run before each piece, and fail its reading.
func piecesFrom(before func(ctx context.Context, n int) error, b byte) semel.Result {
	p := &semel.Pieces{Size: aboveOneTurn}
	p.Read = func(ctx context.Context, n int) ([]byte, error) {
		if err := before(ctx, n); err != nil {
			return nil, err
		}
		return bytes.Repeat([]byte{b}, p.Length(n)), nil
	}
	return semel.Result{Codec: "test/1", Pieces: p}
}

func wantPieces(t *testing.T, r semel.Record, b byte) {
	t.Helper()
	p := r.Result.Pieces
	if p == nil || p.Size != aboveOneTurn {
		t.Fatalf("the result has %d bytes, in pieces: %v; want %d", r.Result.Size(), p != nil, aboveOneTurn)
	}
	for n := range p.Count() {
		piece, err := p.ReadPiece(t.Context(), n)
		if err != nil || bytes.Count(piece, []byte{b}) != len(piece) {
			t.Fatalf("piece %d reads back as %d bytes that are not those recorded (%v)", n, len(piece), err)
		}
	}
}

// left counts what no record names: pieces, and bodies on their way.
func left(t *testing.T, s *Store) (pieces, staged int64) {
	t.Helper()
	err := s.read(t.Context(), func(c *conn) error {
		return c.queryOnce(t.Context(), `SELECT
			(SELECT count(*) FROM piece WHERE body NOT IN (SELECT pieces FROM record WHERE pieces IS NOT NULL)),
			(SELECT count(*) FROM staging)`, func(r *row) { pieces, staged = r.int(), r.int() })
	})
	if err != nil {
		t.Fatal(err)
	}
	return pieces, staged
}

func wantNothingLeft(t *testing.T, s *Store) {
	t.Helper()
	if pieces, staged := left(t, s); pieces != 0 || staged != 0 {
		t.Fatalf("%d pieces that no record names and %d marks of bodies are left", pieces, staged)
	}
}

func mustBegin(t *testing.T, s semel.Store, a semel.Attempt) semel.Claim {
	t.Helper()
	c, err := s.Begin(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pass moves the records into the past.
func pass(t *testing.T, s *Store, d time.Duration) {
	t.Helper()
	if _, err := write(t.Context(), s, 0, func(t *tx) (int64, error) {
		return t.exec("UPDATE record SET lease_until = lease_until - ?1, settled_at = settled_at - ?1, expires_at = expires_at - ?1", micros(d))
	}); err != nil {
		t.Fatal(err)
	}
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	s.cache.drop() // nobody else changes completed records with the store's own writer
}

// However a record or an attempt to complete it ends, no piece is left behind.
func TestNoPieceIsLeftBehind(t *testing.T) {
	unreadable := errors.New("unreadable")
	fails := func(at int) semel.Result {
		return piecesFrom(func(_ context.Context, n int) error {
			if n == at {
				return unreadable
			}
			return nil
		}, 'x')
	}
	// begun leaves a body on its way, as a process that dies there does.
	begun := func(t *testing.T, c semel.Claim) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := c.Complete(ctx, piecesFrom(func(ctx context.Context, n int) error {
			if n == stagePieces {
				cancel()
			}
			return ctx.Err()
		}, 'x')); !errors.Is(err, context.Canceled) {
			t.Fatalf("Complete: %v; want context.Canceled", err)
		}
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	resolve := func(t *testing.T, s *Store, c semel.Claim, d semel.Decision, r semel.Result) error {
		t.Helper()
		_, err := s.Resolve(t.Context(), semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: d, Result: r})
		return err
	}
	for name, end := range map[string]func(t *testing.T, s *Store, c semel.Claim) (swept bool){
		"a piece cannot be read": func(t *testing.T, s *Store, c semel.Claim) bool {
			for at := range stagePieces + 1 {
				if _, err := c.Complete(t.Context(), fails(at)); !errors.Is(err, semel.ErrTooLarge) {
					t.Fatal(err)
				}
				wantNothingLeft(t, s)
			}
			return false
		},
		"then another result": func(t *testing.T, s *Store, c semel.Claim) bool {
			begun(t, c)
			_, err := c.Complete(t.Context(), inPieces('y'))
			must(t, err)
			return true
		},
		"then a tombstone": func(t *testing.T, s *Store, c semel.Claim) bool {
			begun(t, c)
			_, err := c.Complete(t.Context(), semel.Result{Tombstone: true})
			must(t, err)
			return false
		},
		"then released": func(t *testing.T, s *Store, c semel.Claim) bool {
			begun(t, c)
			must(t, c.Release(t.Context()))
			return false
		},
		"then taken over": func(t *testing.T, s *Store, c semel.Claim) bool {
			begun(t, c)
			pass(t, s, 2*time.Minute)
			a := attempt("k")
			a.Takeover = c.Fence()
			mustBegin(t, s, a)
			if _, err := c.Complete(t.Context(), inPieces('x')); !errors.Is(err, semel.ErrLostClaim) {
				t.Fatal(err)
			}
			return true
		},
		"taken over meanwhile": func(t *testing.T, s *Store, c semel.Claim) bool {
			_, err := c.Complete(t.Context(), piecesFrom(func(_ context.Context, n int) error {
				if n == stagePieces {
					pass(t, s, 2*time.Minute)
					a := attempt("k")
					a.Takeover = c.Fence()
					mustBegin(t, s, a)
				}
				return nil
			}, 'x'))
			if !errors.Is(err, semel.ErrLostClaim) {
				t.Fatal(err)
			}
			return false
		},
		"then held and resolved": func(t *testing.T, s *Store, c semel.Claim) bool {
			begun(t, c)
			must(t, c.Hold(t.Context(), "lost contact"))
			if _, err := s.Sweep(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if pieces, staged := left(t, s); pieces != stagePieces || staged != 1 {
				t.Fatalf("a sweep left %d pieces of a body whose record still waits, and %d marks", pieces, staged)
			}
			must(t, resolve(t, s, c, semel.DecideNoEffect, semel.Result{}))
			return true
		},
		"spared after a takeover": func(t *testing.T, s *Store, c semel.Claim) bool {
			pass(t, s, 2*time.Minute)
			a := attempt("k")
			a.Takeover = c.Fence()
			c = mustBegin(t, s, a)
			begun(t, c)
			if _, err := s.Sweep(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if pieces, staged := left(t, s); pieces != stagePieces || staged != 1 {
				t.Fatalf("a sweep left %d pieces of a body whose record still waits, and %d marks", pieces, staged)
			}
			must(t, c.Release(t.Context()))
			return true
		},
		"resolved in pieces": func(t *testing.T, s *Store, c semel.Claim) bool {
			must(t, c.Hold(t.Context(), "lost contact"))
			if err := resolve(t, s, c, semel.DecideResult, fails(stagePieces)); !errors.Is(err, semel.ErrTooLarge) {
				t.Fatal(err)
			}
			wantNothingLeft(t, s)
			must(t, resolve(t, s, c, semel.DecideResult, inPieces('y')))
			return false
		},
		"recorded and swept": func(t *testing.T, s *Store, c semel.Claim) bool {
			_, err := c.Complete(t.Context(), inPieces('y'))
			must(t, err)
			pass(t, s, 2*time.Hour)
			return true
		},
		"recorded and replaced": func(t *testing.T, s *Store, c semel.Claim) bool {
			_, err := c.Complete(t.Context(), inPieces('y'))
			must(t, err)
			pass(t, s, 2*time.Hour)
			mustBegin(t, s, attempt("k"))
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openFaulty(t, &faults{}, Config{})
			if end(t, s, mustBegin(t, s, attempt("k"))) {
				if _, err := s.Sweep(t.Context(), 10); err != nil {
					t.Fatal(err)
				}
			}
			wantNothingLeft(t, s)
		})
	}
}

// A claim that is lost between its last piece and its record takes the pieces
// away itself: no sweep is needed.
func TestClaimLostBehindItsPieces(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, f, Config{})
	c := mustBegin(t, s, attempt("k"))
	thief, err := connect(t.Context(), s.files.path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := thief.close(); err != nil {
			t.Error(err)
		}
	}()
	res := inPieces('x')
	inserted, stolen := 0, false
	f.arm(func(_ int, query string, _ []driver.Value) (before, after bool) {
		switch {
		case query == insertPiece:
			inserted++
		case query == "BEGIN IMMEDIATE" && inserted == res.Pieces.Count() && !stolen:
			stolen = true
			if _, err := thief.exec("UPDATE record SET token = NULL"); err != nil {
				t.Error(err)
			}
		}
		return false, false
	})
	if _, err := c.Complete(t.Context(), res); !errors.Is(err, semel.ErrLostClaim) || !stolen {
		t.Fatalf("Complete: %v; stolen: %t", err, stolen)
	}
	f.arm(nil)
	wantNothingLeft(t, s)
}

// A source that has nothing to give holds up its own caller and nobody else, and
// what is in the file by then is not to be seen.
func TestSlowPiecesHoldNobodyUp(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	c := mustBegin(t, s, attempt("slow"))
	reached, goOn := make(chan none), make(chan none)
	done := make(chan error, 1)
	go func() {
		_, err := c.Complete(t.Context(), piecesFrom(func(_ context.Context, n int) error {
			if n == stagePieces {
				close(reached)
				<-goOn
			}
			return nil
		}, 's'))
		done <- err
	}()
	<-reached
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	other, err := s.Begin(ctx, attempt("other"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Complete(ctx, semel.Result{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	if pieces, _ := left(t, s); pieces != stagePieces {
		t.Fatalf("%d pieces are in the file; want %d", pieces, stagePieces)
	}
	if r, err := s.Find(ctx, identity("slow")); err != nil || r.State != semel.StateInProgress || r.Result.Pieces != nil {
		t.Fatalf("half way the record is %v, %v", r.State, err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r, err := s.Find(ctx, identity("slow"))
	if err != nil {
		t.Fatal(err)
	}
	wantPieces(t, r, 's')
	wantNothingLeft(t, s)
}

// A Complete that is called again goes on where the last one was, so that a slow
// disk and an impatient caller get it done.
func TestCompleteGoesOnWhereItWas(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	c := mustBegin(t, s, attempt("k"))
	var cancel atomic.Pointer[context.CancelFunc]
	var reads []int
	res := piecesFrom(func(ctx context.Context, n int) error {
		reads = append(reads, n)
		if stop := cancel.Load(); n == stagePieces && stop != nil {
			(*stop)()
		}
		return ctx.Err()
	}, 'k')
	ctx, stop := context.WithCancel(t.Context())
	cancel.Store(&stop)
	if _, err := c.Complete(ctx, res); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	cancel.Store(nil)
	reads = nil
	if _, err := c.Complete(t.Context(), res); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(reads) != fmt.Sprint([]int{stagePieces}) {
		t.Errorf("the second Complete read the pieces %v; want only the last", reads)
	}
	r, err := s.Find(t.Context(), identity("k"))
	if err != nil {
		t.Fatal(err)
	}
	wantPieces(t, r, 'k')
	wantNothingLeft(t, s)
}

// A commit that took the record, and whose answer was lost, keeps its pieces:
// what is discarded then is what nobody names.
func TestLostAnswersLeaveThePieces(t *testing.T) {
	for _, taken := range []bool{true, false} {
		f := &faults{}
		s := openFaulty(t, f, Config{})
		loseNext := func() {
			settled := false
			f.arm(func(_ int, query string, _ []driver.Value) (before, after bool) {
				settled = settled || strings.Contains(query, "UPDATE record SET") && strings.Contains(query, "pieces = ?")
				if !settled || query != "COMMIT" {
					return false, false
				}
				f.decide = nil
				return !taken, taken
			})
		}
		c := mustBegin(t, s, attempt("k"))
		res := inPieces('k')
		loseNext()
		if _, err := c.Complete(t.Context(), res); !errors.Is(err, errInjected) {
			t.Fatalf("Complete: %v", err)
		}
		if _, err := c.Complete(t.Context(), res); err != nil {
			t.Fatal(err)
		}
		held := mustBegin(t, s, attempt("held"))
		if err := held.Hold(t.Context(), "lost contact"); err != nil {
			t.Fatal(err)
		}
		d := semel.Resolution{Identity: identity("held"), Fence: held.Fence(), Decision: semel.DecideResult, Result: inPieces('h')}
		loseNext()
		if _, err := s.Resolve(t.Context(), d); !errors.Is(err, errInjected) {
			t.Fatalf("Resolve: %v", err)
		}
		if _, err := s.Resolve(t.Context(), d); taken != errors.Is(err, semel.ErrStaleFence) || !taken && err != nil {
			t.Fatalf("Resolve again (the first was taken: %v): %v", taken, err)
		}
		for key, b := range map[string]byte{"k": 'k', "held": 'h'} {
			r, err := s.Find(t.Context(), identity(key))
			if err != nil {
				t.Fatal(err)
			}
			wantPieces(t, r, b)
		}
		wantNothingLeft(t, s)
	}
}

// A backup that is restored takes pieces away that were on their way. The claim
// may be valid in it.
func TestPiecesAreCountedBeforeTheyAreNamed(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	c := mustBegin(t, s, attempt("k"))
	res := piecesFrom(func(ctx context.Context, n int) error {
		if n < stagePieces {
			return nil
		}
		_, err := write(ctx, s, 0, func(t *tx) (int64, error) { return t.exec("DELETE FROM piece WHERE n = 1") })
		return err
	}, 'k')
	if _, err := c.Complete(t.Context(), res); !errors.Is(err, errIncomplete) {
		t.Fatalf("Complete: %v; want errIncomplete", err)
	}
	wantNothingLeft(t, s)
	if _, err := c.Complete(t.Context(), inPieces('k')); err != nil {
		t.Fatal(err)
	}
	r, err := s.Find(t.Context(), identity("k"))
	if err != nil {
		t.Fatal(err)
	}
	wantPieces(t, r, 'k')
}

// Who reads a record that expires meanwhile reads on until it is removed.
func TestPiecesOfTheExpiredAreReadOn(t *testing.T) {
	s := openFaulty(t, &faults{}, Config{})
	if _, err := mustBegin(t, s, attempt("k")).Complete(t.Context(), inPieces('k')); err != nil {
		t.Fatal(err)
	}
	r, err := s.Find(t.Context(), identity("k"))
	if err != nil {
		t.Fatal(err)
	}
	pass(t, s, 2*time.Hour)
	if _, err := s.Find(t.Context(), identity("k")); !errors.Is(err, semel.ErrNotFound) {
		t.Fatal(err)
	}
	wantPieces(t, r, 'k')
}

// A handler's work is committed with the tombstone that stands for a result
// which could not be read, and nothing of that is.
func TestTxUnreadablePiecesLeaveTheClaim(t *testing.T) {
	for _, failed := range []bool{false, true} {
		s := openFaulty(t, &faults{}, Config{Mode: ModeTransactional})
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		if _, err := write(t.Context(), s, 0, func(t *tx) (int64, error) { return t.exec("CREATE TABLE payment (id INTEGER)") }); err != nil {
			t.Fatal(err)
		}
		c := mustBegin(t, s, attempt("k"))
		tx, _ := Tx(c.Context(t.Context()))
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO payment VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			res := piecesFrom(func(_ context.Context, n int) error {
				if n == 2 {
					return errInjected
				}
				return nil
			}, 'x')
			res.Failed = failed
			if _, err := c.Complete(t.Context(), res); !errors.Is(err, semel.ErrTooLarge) || errors.Is(err, errInjected) {
				t.Fatalf("Complete: %v", err)
			}
		}
		if _, err := c.Complete(t.Context(), semel.Result{Tombstone: true, Failed: failed}); err != nil {
			t.Fatal(err)
		}
		var payments int64
		if err := s.read(t.Context(), func(c *conn) error {
			return c.queryOnce(t.Context(), "SELECT count(*) FROM payment", func(r *row) { payments = r.int() })
		}); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int64{false: 1, true: 0}[failed]; payments != want {
			t.Errorf("%d payments (failed: %v); want %d", payments, failed, want)
		}
		wantNothingLeft(t, s)
	}
}

// A file of the first version is brought up to date, with what it holds, and a
// program of that version is told.
func TestUpgradeFromVersion1(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	f := &faults{}
	old := openFaulty(t, f, Config{Path: path})
	if _, err := mustBegin(t, old, attempt("old")).Complete(t.Context(), inPieces('o')); err != nil {
		t.Fatal(err)
	}
	before, err := old.Find(t.Context(), identity("old"))
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	known := migrations
	migrations = append(known[:len(known):len(known)], "ALTER TABLE record ADD COLUMN later TEXT; CREATE TABLE later (n INTEGER) STRICT;")
	defer func() { migrations = known }()
	// An upgrade that fails changes nothing.
	failed := false
	f.arm(func(_ int, query string, _ []driver.Value) (before, after bool) {
		failed = failed || strings.HasPrefix(query, "ALTER")
		return strings.HasPrefix(query, "ALTER"), false
	})
	if _, err := open(t.Context(), Config{Path: path}, f.dial); !failed || !errors.Is(err, errInjected) {
		t.Fatalf("Open with an upgrade that fails: %v", err)
	}
	f.arm(nil)

	s := openFaulty(t, f, Config{Path: path})
	after, err := s.Find(t.Context(), identity("old"))
	if err != nil || after.ID != before.ID {
		t.Fatalf("the old record reads %+v, %v; want %+v", after, err, before)
	}
	wantPieces(t, after, 'o')
	claim := mustBegin(t, s, attempt("new"))
	if claim.Fence() != 2 {
		t.Errorf("the next fence is %d", claim.Fence())
	}
	migrations = known
	if _, err := open(t.Context(), Config{Path: path}, connect); !errors.Is(err, ErrNewerSchema) || !strings.Contains(err.Error(), fmt.Sprintf("version %d, not %d", len(known)+1, len(known))) {
		t.Errorf("Open by a program of the first version: %v", err)
	}
	// Another program has upgraded the file: what it wrote has the store look.
	other, err := connect(t.Context(), path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if err := other.script("INSERT INTO later VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin(t.Context(), attempt("newer")); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Begin by a program of the first version: %v", err)
	}
}
