package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/store/postgres"
)

// inPieces is a result of five pieces, which take two messages, of b. before
// runs before each piece, and fails its reading.
func inPieces(b byte, before func(ctx context.Context, n int) error) semel.Result {
	p := &semel.Pieces{Size: 4*semel.PieceBytes + 1}
	p.Read = func(ctx context.Context, n int) ([]byte, error) {
		if before != nil {
			if err := before(ctx, n); err != nil {
				return nil, err
			}
		}
		return bytes.Repeat([]byte{b}, p.Length(n)), nil
	}
	return semel.Result{Codec: "test/1", Pieces: p}
}

func unreadableAt(at int) semel.Result {
	return inPieces('x', func(_ context.Context, n int) error {
		if n == at {
			return errors.New("the disk is gone")
		}
		return nil
	})
}

func wantPieces(t testing.TB, r semel.Record, b byte) {
	t.Helper()
	p := r.Result.Pieces
	if p == nil || p.Size != 4*semel.PieceBytes+1 {
		t.Fatalf("the result has %d bytes, in pieces: %v", r.Result.Size(), p != nil)
	}
	for n := range p.Count() {
		piece, err := p.ReadPiece(t.Context(), n)
		if err != nil || bytes.Count(piece, []byte{b}) != len(piece) {
			t.Fatalf("piece %d reads back as %d bytes that are not those recorded (%v)", n, len(piece), err)
		}
	}
}

// wantNoOrphans makes sure that each piece there is belongs to a record.
func wantNoOrphans(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	var n int
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM semel.piece
		WHERE NOT EXISTS (SELECT FROM semel.record WHERE record.pieces = piece.body)`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Fatalf("%d pieces are left that no record names", n)
	}
}

// However a record or an attempt to complete it ends, no piece is left behind.
func TestNoPieceIsLeftBehind(t *testing.T) {
	shop := newShop(t)
	leased := open(t, shop.direct, postgres.Config{})
	resolve := func(c semel.Claim, key string, d semel.Decision, r semel.Result) error {
		_, err := leased.Resolve(t.Context(), semel.Resolution{Identity: attempt(key).Identity, Fence: c.Fence(), Decision: d, Result: r})
		return err
	}
	ends := map[string]func(t *testing.T, s *postgres.Store, c semel.Claim, key string) error{
		"unreadable": func(t *testing.T, _ *postgres.Store, c semel.Claim, _ string) error {
			for at := range 5 {
				if _, err := c.Complete(t.Context(), unreadableAt(at)); !errors.Is(err, semel.ErrTooLarge) {
					return err
				}
				wantNoOrphans(t, shop.direct)
			}
			return c.Release(t.Context())
		},
		"tombstone": func(t *testing.T, _ *postgres.Store, c semel.Claim, _ string) error {
			_, _ = c.Complete(t.Context(), unreadableAt(4))
			_, err := c.Complete(t.Context(), semel.Result{Tombstone: true})
			return err
		},
		"swept": func(t *testing.T, s *postgres.Store, c semel.Claim, _ string) error {
			if _, err := c.Complete(t.Context(), inPieces('y', nil)); err != nil {
				return err
			}
			advance(t, shop.direct, "semel", 48*time.Hour)
			_, err := s.Sweep(t.Context(), 100)
			return err
		},
		"replaced": func(t *testing.T, s *postgres.Store, c semel.Claim, key string) error {
			if _, err := c.Complete(t.Context(), inPieces('y', nil)); err != nil {
				return err
			}
			advance(t, shop.direct, "semel", 48*time.Hour)
			_, err := begin(t, s, key).Complete(t.Context(), inPieces('z', nil))
			return err
		},
		"replaced by a whole one": func(t *testing.T, s *postgres.Store, c semel.Claim, key string) error {
			if _, err := c.Complete(t.Context(), inPieces('y', nil)); err != nil {
				return err
			}
			advance(t, shop.direct, "semel", 48*time.Hour)
			_, err := begin(t, s, key).Complete(t.Context(), result("whole"))
			return err
		},
	}
	for name, end := range ends {
		stores := map[string]*postgres.Store{"leased": leased}
		for level, tune := range levels {
			c := transactional()
			tune(&c)
			stores[level] = open(t, shop.direct, c)
		}
		for mode, s := range stores {
			t.Run(name+", "+mode, func(t *testing.T) {
				key := t.Name()
				if err := end(t, s, begin(t, s, key), key); err != nil {
					t.Fatal(err)
				}
				wantNoOrphans(t, shop.direct)
			})
		}
	}

	c := begin(t, leased, "resolved")
	if err := c.Hold(t.Context(), "lost contact"); err != nil {
		t.Fatal(err)
	}
	if err := resolve(c, "resolved", semel.DecideResult, unreadableAt(4)); !errors.Is(err, semel.ErrTooLarge) {
		t.Fatal(err)
	}
	wantNoOrphans(t, shop.direct)
	if err := resolve(c, "resolved", semel.DecideNoEffect, semel.Result{}); err != nil {
		t.Fatal(err)
	}

	// The claim is lost between the pieces and the record.
	c = begin(t, leased, "overtaken")
	_, err := c.Complete(t.Context(), inPieces('x', func(ctx context.Context, n int) error {
		if n < 4 {
			return nil
		}
		advance(t, shop.direct, "semel", time.Minute)
		a := attempt("overtaken")
		a.Takeover = c.Fence()
		owner, err := leased.Begin(ctx, a)
		if err == nil {
			_, err = owner.Complete(ctx, inPieces('o', nil))
		}
		return err
	}))
	if !errors.Is(err, semel.ErrLostClaim) {
		t.Fatal(err)
	}
	wantNoOrphans(t, shop.direct)
	r, err := leased.Find(t.Context(), attempt("overtaken").Identity)
	if err != nil {
		t.Fatal(err)
	}
	wantPieces(t, r, 'o')
}

// While pieces are read the owner stays the owner: its claim can be renewed, and
// others are answered.
func TestSlowPiecesHoldNobodyUp(t *testing.T) {
	shop := newShop(t)
	s := open(t, shop.direct, postgres.Config{})
	c := begin(t, s, "slow")
	_, err := c.Complete(t.Context(), inPieces('s', func(ctx context.Context, n int) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := s.Begin(ctx, attempt("slow"))
		if r := conflict(t, err, semel.StateInProgress); r.Lapsed() {
			return errors.New("lapsed")
		}
		// Others go on, whatever they have to do.
		for key, r := range map[string]semel.Result{fmt.Sprint("other", n): result("done"), fmt.Sprint("large", n): inPieces('o', nil)} {
			other, err := s.Begin(ctx, attempt(key))
			if err != nil {
				return err
			}
			if _, err := other.Complete(ctx, r); err != nil {
				return err
			}
		}
		advance(t, shop.direct, "semel", 48*time.Hour)
		if swept, err := s.Sweep(ctx, 100); swept != 2 || err != nil {
			return fmt.Errorf("a sweep meanwhile removed %d, %w", swept, err)
		}
		return c.Renew(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Find(t.Context(), attempt("slow").Identity)
	if err != nil {
		t.Fatal(err)
	}
	wantPieces(t, r, 's')
}

// A handler's work is committed with the tombstone that stands for a result
// which could not be read; a failure's is not.
func TestUnreadablePiecesLeaveTheTransaction(t *testing.T) {
	shop := newShop(t)
	for level, tune := range levels {
		c := transactional()
		tune(&c)
		s := open(t, shop.direct, c)
		for _, failed := range []bool{false, true} {
			key := level + map[bool]string{true: " failed"}[failed]
			claim := begin(t, s, key)
			if err := pay(claim.Context(t.Context()), key); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				res := unreadableAt(4)
				res.Failed = failed
				if _, err := claim.Complete(t.Context(), res); !errors.Is(err, semel.ErrTooLarge) {
					t.Fatalf("%s: %v", key, err)
				}
			}
			if _, err := claim.Complete(t.Context(), semel.Result{Tombstone: true, Failed: failed}); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			shop.want(t, key, map[bool]int{false: 1, true: 0}[failed])
			wantNoOrphans(t, shop.direct)
		}
	}
}

func TestPiecesCountForTheLimit(t *testing.T) {
	s := open(t, connect(t, testenv.Postgres(t), nil), postgres.Config{MaxResultBytes: 2*semel.PieceBytes + 10})
	c := begin(t, s, "k")
	read := func(context.Context, int) ([]byte, error) { return make([]byte, semel.PieceBytes), nil }
	for _, r := range []semel.Result{
		{Pieces: &semel.Pieces{Size: 3 * semel.PieceBytes, Read: read}},
		{Pieces: &semel.Pieces{Size: 2 * semel.PieceBytes, Read: read}, Head: make([]byte, 11)},
		{Pieces: &semel.Pieces{Size: 1<<63 - 1, Read: read}, Head: make([]byte, 11)},
		{Pieces: &semel.Pieces{Size: 2 * semel.PieceBytes}},
		{Pieces: &semel.Pieces{Size: 2 * semel.PieceBytes, Read: read}, Body: []byte("and a body")},
	} {
		if _, err := c.Complete(t.Context(), r); !errors.Is(err, semel.ErrTooLarge) {
			t.Errorf("Complete with pieces of %d bytes, %d of head and %d of body: %v", r.Pieces.Size, len(r.Head), len(r.Body), err)
		}
	}
	if _, err := c.Complete(t.Context(), semel.Result{Pieces: &semel.Pieces{Size: 2 * semel.PieceBytes, Read: read}, Head: make([]byte, 10)}); err != nil {
		t.Error(err)
	}
}

// One statement of a sweep stays short even where results are large.
func TestSweepOfLargeResults(t *testing.T) {
	pool := connect(t, testenv.Postgres(t), nil)
	s := open(t, pool, postgres.Config{})
	for _, key := range []string{"a", "b", "c", "d"} {
		if _, err := begin(t, s, key).Complete(t.Context(), inPieces('x', nil)); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, "UPDATE semel.record SET pieces_size = 40 << 20") // as far as the sweep can tell
	exec(t, pool, `CREATE TABLE swept (n bigint);
		CREATE FUNCTION count_swept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO swept SELECT count(*) FROM gone; RETURN NULL; END';
		CREATE TRIGGER count_swept AFTER DELETE ON semel.record REFERENCING OLD TABLE AS gone EXECUTE FUNCTION count_swept()`)
	advance(t, pool, "semel", 48*time.Hour)
	if n, err := s.Sweep(t.Context(), 100); n != 4 || err != nil {
		t.Fatalf("Sweep removed %d records, %v; want 4", n, err)
	}
	var most int
	if err := pool.QueryRow(t.Context(), "SELECT max(n) FROM swept").Scan(&most); err != nil {
		t.Fatal(err)
	}
	if most != 2 { // the second begins below 64 MiB
		t.Errorf("one statement removed %d records of 40 MiB; want 2", most)
	}
	wantNoOrphans(t, pool)
}
