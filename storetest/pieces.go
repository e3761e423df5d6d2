package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
)

// Rules of results in pieces. A store may hand such a result back whole, in
// Result.Body, where everything that it has is in memory.

// pieces is a source of pieces, each of them different, and each source too.
type pieces struct {
	seed  byte
	size  int64
	fail  map[int]error // instead of a piece
	reads atomic.Int64
	// before, if set, runs before a piece is handed over.
	before func(n int)
}

const threeAndABit = 3*semel.PieceBytes + 1001

func (p *pieces) result() semel.Result {
	return semel.Result{Codec: "test/1", Head: []byte("head"), Label: "200", Pieces: &semel.Pieces{Size: p.size, Read: p.read}}
}

func (p *pieces) read(ctx context.Context, n int) ([]byte, error) {
	p.reads.Add(1)
	if p.before != nil {
		p.before(n)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.fail[n]; err != nil {
		return nil, err
	}
	return p.piece(n), nil
}

// piece is what piece n has to be.
func (p *pieces) piece(n int) []byte {
	length := (&semel.Pieces{Size: p.size}).Length(n)
	if length <= 0 {
		return nil
	}
	return bytes.Repeat([]byte{p.seed, byte(n), 0, 0xff}, length/4+1)[:length]
}

// readBack reads pieces of a recorded result in the order given, and compares
// them. Without an order it reads all.
func (p *pieces) readBack(t testing.TB, ctx context.Context, when string, r semel.Record, order ...int) {
	t.Helper()
	res := r.Result
	if res.Codec != "test/1" || string(res.Head) != "head" || res.Tombstone || res.Size() != p.size {
		t.Fatalf("%s the result reads back with codec %q, head %q, tombstone %v and %d bytes; want %d bytes",
			when, res.Codec, res.Head, res.Tombstone, res.Size(), p.size)
	}
	count := (&semel.Pieces{Size: p.size}).Count()
	if len(order) == 0 {
		for n := range count {
			order = append(order, n)
		}
	}
	for _, n := range order {
		var got []byte
		var err error
		if res.Pieces != nil {
			got, err = res.Pieces.ReadPiece(ctx, n)
		} else {
			got = res.Body[n*semel.PieceBytes : min((n+1)*semel.PieceBytes, len(res.Body))]
		}
		if err != nil || !bytes.Equal(got, p.piece(n)) {
			t.Fatalf("%s piece %d reads back as %d bytes that are not those recorded (%v)", when, n, len(got), err)
		}
	}
}

// gone makes sure that a record read earlier has no pieces to give any more.
func gone(t testing.TB, ctx context.Context, when string, r semel.Record) {
	t.Helper()
	if r.Result.Pieces == nil {
		return // it was handed over whole
	}
	for n := range r.Result.Pieces.Count() {
		if got, err := r.Result.Pieces.Read(ctx, n); !errors.Is(err, semel.ErrNotFound) {
			t.Fatalf("%s piece %d of the old result reads as %d bytes, %v; want ErrNotFound", when, n, len(got), err)
		}
	}
}

func piecesReadBack(t testing.TB, h Harness, ctx context.Context) {
	for i, size := range []int64{1, semel.PieceBytes - 1, semel.PieceBytes, semel.PieceBytes + 1, threeAndABit, 10 * semel.PieceBytes} {
		p := &pieces{seed: byte(i + 1), size: size}
		key := fmt.Sprint(size)
		expires := complete(t, ctx, begin(t, ctx, h.Store, attempt(key)), p.result())
		seen := blocked(t, ctx, h.Store, attempt(key), semel.StateCompleted)
		p.readBack(t, ctx, "for who is refused", seen)
		if !seen.ExpiresAt.Equal(expires) {
			t.Fatalf("Complete answered %v, though the record expires at %v", expires, seen.ExpiresAt)
		}
		p.readBack(t, ctx, "for who looks", find(t, ctx, h.Store, identity(key)))
	}
	p := &pieces{seed: 5, size: threeAndABit}
	r := find(t, ctx, h.Store, identity(fmt.Sprint(threeAndABit)))
	p.readBack(t, ctx, "out of order and twice", r, 3, 1, 1, 0, 2, 3)
	if r.Result.Pieces != nil {
		for _, n := range []int{-1, 4, 1 << 30} {
			if got, err := r.Result.Pieces.Read(ctx, n); err == nil {
				t.Fatalf("piece %d of 4 reads as %d bytes", n, len(got))
			}
		}
	}
	if h.Open != nil {
		p.readBack(t, ctx, "from another handle", find(t, ctx, h.Open(), r.Identity))
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			mine, err := h.Store.Find(ctx, r.Identity)
			if err != nil {
				t.Errorf("Find: %v", err)
				return
			}
			for k := range 4 {
				n := (i + k) % 4
				var got []byte
				if mine.Result.Pieces == nil {
					return
				}
				if got, err = mine.Result.Pieces.ReadPiece(ctx, n); err != nil || !bytes.Equal(got, p.piece(n)) {
					t.Errorf("one of many readers gets %d bytes for piece %d (%v)", len(got), n, err)
				}
			}
		})
	}
	wg.Wait()
	if l, ok := h.Store.(semel.Lister); ok {
		all, err := l.List(ctx, semel.Filter{})
		must(t, "List", err)
		for _, r := range all {
			if r.Result.Pieces != nil || r.Result.Body != nil {
				t.Fatalf("a listing has the result of %s", r.Identity.Key)
			}
		}
	}
}

// A result is recorded with all of its pieces or not at all. Then a tombstone
// can be.
func piecesComeWithTheRecord(t testing.TB, h Harness, ctx context.Context) {
	broken := errors.New("the disk is gone")
	for i, failing := range []int{0, 2, 3} {
		key := fmt.Sprint("fails at ", failing)
		c := begin(t, ctx, h.Store, attempt(key))
		p := &pieces{seed: byte(i + 1), size: threeAndABit, fail: map[int]error{failing: broken}}
		p.before = func(n int) {
			if r, err := h.Store.Find(ctx, identity(key)); err == nil && r.State == semel.StateCompleted {
				t.Errorf("before piece %d was read the record says completed", n)
			}
		}
		for range 2 {
			_, err := c.Complete(ctx, p.result())
			wantErr(t, "Complete with a piece that cannot be read", err, semel.ErrTooLarge)
			if r, err := h.Store.Find(ctx, identity(key)); err == nil && (r.State != semel.StateInProgress || r.Result.Size() != 0) {
				t.Fatalf("after it the record is %v, with %d bytes", r.State, r.Result.Size())
			}
		}
		must(t, "Renew after it", c.Renew(ctx))
		complete(t, ctx, c, semel.Result{Codec: "test/1", Tombstone: true})
		if r := find(t, ctx, h.Store, identity(key)); !r.Result.Tombstone || r.Result.Pieces != nil || r.Result.Size() != 0 {
			t.Fatalf("the tombstone reads %+v", r.Result)
		}
	}
	// While they are read nobody sees the record, and then all of it.
	c := begin(t, ctx, h.Store, attempt("k"))
	p := &pieces{seed: 9, size: threeAndABit}
	p.before = func(n int) {
		if r, err := h.Store.Find(ctx, identity("k")); err == nil && r.State == semel.StateCompleted {
			t.Errorf("before piece %d was read the record says completed", n)
		}
	}
	complete(t, ctx, c, p.result())
	p.before = nil
	p.readBack(t, ctx, "in the end", find(t, ctx, h.Store, identity("k")))
}

// That the caller's time is over says nothing about the result.
func piecesOutlastAnEndedContext(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	p := &pieces{seed: 1, size: 10 * semel.PieceBytes}
	for i := range 3 {
		short, cancel := context.WithCancel(ctx)
		p.before = func(n int) {
			if n == 4*i {
				cancel()
			}
		}
		_, err := c.Complete(short, p.result())
		cancel()
		if err == nil || errors.Is(err, semel.ErrTooLarge) || errors.Is(err, semel.ErrLostClaim) || errors.Is(err, semel.ErrRolledBack) {
			t.Fatalf("Complete whose context ended: %v; want an error that lets it be called again", err)
		}
	}
	p.before = nil
	complete(t, ctx, c, p.result())
	p.readBack(t, ctx, "after Complete was called again", find(t, ctx, h.Store, identity("k")))
}

func piecesHaveTheirSizes(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	honest := &pieces{seed: 1, size: 2 * semel.PieceBytes}
	end := errors.New("there is no such piece")
	for name, p := range map[string]*semel.Pieces{
		"no size":              {Size: 0, Read: honest.read},
		"a negative size":      {Size: -1, Read: honest.read},
		"no end":               {Size: 1<<63 - 1, Read: func(context.Context, int) ([]byte, error) { return nil, end }},
		"a piece less":         {Size: 3 * semel.PieceBytes, Read: honest.read},
		"a byte less":          {Size: 2*semel.PieceBytes - 1, Read: honest.read},
		"a byte more":          {Size: 2*semel.PieceBytes + 1, Read: honest.read},
		"pieces of other size": {Size: 2, Read: func(context.Context, int) ([]byte, error) { return []byte("x"), nil }},
	} {
		_, err := c.Complete(ctx, semel.Result{Codec: "test/1", Pieces: p})
		if !errors.Is(err, semel.ErrTooLarge) {
			t.Fatalf("Complete with pieces of %s: %v; want ErrTooLarge", name, err)
		}
	}
	complete(t, ctx, c, honest.result())
	honest.readBack(t, ctx, "after those were refused", find(t, ctx, h.Store, identity("k")))
}

func piecesCompleteRepeats(t testing.TB, h Harness, ctx context.Context) {
	c := begin(t, ctx, h.Store, attempt("k"))
	first := &pieces{seed: 1, size: threeAndABit}
	expires := complete(t, ctx, c, first.result())
	for _, again := range []semel.Result{
		first.result(),
		(&pieces{seed: 2, size: threeAndABit}).result(),
		(&pieces{seed: 3, size: 1}).result(),
		result("whole"),
		{Codec: "test/1", Tombstone: true},
	} {
		if at := complete(t, ctx, c, again); !at.Equal(expires) {
			t.Fatalf("a repeated Complete answered %v; the first %v", at, expires)
		}
		first.readBack(t, ctx, "after a repeated Complete", find(t, ctx, h.Store, identity("k")))
	}
	// And the other way round.
	c = begin(t, ctx, h.Store, attempt("whole"))
	complete(t, ctx, c, result("whole"))
	complete(t, ctx, c, first.result())
	if r := find(t, ctx, h.Store, identity("whole")); string(r.Result.Body) != "whole" || r.Result.Pieces != nil {
		t.Fatalf("a repeated Complete with pieces changed the record: %d bytes", r.Result.Size())
	}
}

// A stale claim's pieces are nobody's.
func piecesNeedTheClaim(t testing.TB, h Harness, ctx context.Context) {
	stale := begin(t, ctx, h.Store, attempt("k"))
	h.advance(lease + lease/2)
	a := attempt("k")
	a.Takeover = stale.Fence()
	owner := begin(t, ctx, h.Store, a)
	theirs, mine := &pieces{seed: 1, size: threeAndABit}, &pieces{seed: 2, size: threeAndABit}
	_, err := stale.Complete(ctx, theirs.result())
	wantErr(t, "Complete with pieces after a takeover", err, semel.ErrLostClaim)
	complete(t, ctx, owner, mine.result())
	r := find(t, ctx, h.Store, identity("k"))
	_, err = stale.Complete(ctx, theirs.result())
	wantErr(t, "Complete with pieces after the record was completed", err, semel.ErrLostClaim)
	mine.readBack(t, ctx, "after a stale claim's Complete", r)
	mine.readBack(t, ctx, "after a stale claim's Complete", find(t, ctx, h.Store, identity("k")))

	// The claim is lost while its pieces are read.
	c := begin(t, ctx, h.Store, attempt("k2"))
	theirs.before = func(n int) {
		if n != 3 {
			return
		}
		h.advance(lease + lease/2)
		a := attempt("k2")
		a.Takeover = c.Fence()
		complete(t, ctx, begin(t, ctx, h.Store, a), mine.result())
	}
	_, err = c.Complete(ctx, theirs.result())
	wantErr(t, "Complete that was overtaken while its pieces were read", err, semel.ErrLostClaim)
	mine.readBack(t, ctx, "after it", find(t, ctx, h.Store, identity("k2")))
}

// Pieces end with their record; who still holds that gets none of the next.
func piecesGoWithTheRecord(t testing.TB, h Harness, ctx context.Context) {
	old := &pieces{seed: 1, size: threeAndABit}
	record := func(key string) semel.Record {
		complete(t, ctx, begin(t, ctx, h.Store, attempt(key)), old.result())
		return find(t, ctx, h.Store, identity(key))
	}
	replaced, shrunk, emptied := record("replaced"), record("shrunk"), record("emptied")
	h.advance(retention + 1e9)
	next := &pieces{seed: 2, size: threeAndABit}
	complete(t, ctx, begin(t, ctx, h.Store, attempt("replaced")), next.result())
	gone(t, ctx, "after a new record took its place", replaced)
	next.readBack(t, ctx, "of the new record", find(t, ctx, h.Store, identity("replaced")))

	complete(t, ctx, begin(t, ctx, h.Store, attempt("shrunk")), result("whole"))
	gone(t, ctx, "after a whole result took its place", shrunk)
	complete(t, ctx, begin(t, ctx, h.Store, attempt("emptied")), semel.Result{Codec: "test/1", Tombstone: true})
	gone(t, ctx, "after a tombstone took its place", emptied)
	if r := find(t, ctx, h.Store, identity("emptied")); r.Result.Pieces != nil || r.Result.Size() != 0 {
		t.Fatalf("a tombstone reads %d bytes", r.Result.Size())
	}
}

func piecesAreSwept(t testing.TB, h Harness, ctx context.Context) {
	p := &pieces{seed: 1, size: threeAndABit}
	complete(t, ctx, begin(t, ctx, h.Store, attempt("k")), p.result())
	r := find(t, ctx, h.Store, identity("k"))
	n, err := h.Store.(semel.Sweeper).Sweep(ctx, 10)
	if n != 0 || err != nil {
		t.Fatalf("Sweep removed %d records, %v; none had expired", n, err)
	}
	p.readBack(t, ctx, "after a sweep before the end of the retention", r)
	h.advance(retention + 1e9)
	if n, err = h.Store.(semel.Sweeper).Sweep(ctx, 10); n != 1 || err != nil {
		t.Fatalf("Sweep removed %d records, %v; want 1", n, err)
	}
	gone(t, ctx, "after the record was swept", r)
}

// A resolution brings its pieces like a claim.
func piecesResolve(t testing.TB, h Harness, ctx context.Context) {
	s := h.Store.(semel.Resolver)
	c := begin(t, ctx, h.Store, attempt("k"))
	p := &pieces{seed: 1, size: threeAndABit}
	d := semel.Resolution{Identity: identity("k"), Fence: c.Fence(), Decision: semel.DecideResult, Result: p.result()}
	_, err := s.Resolve(ctx, d)
	wantErr(t, "Resolve with pieces of a live claim", err, semel.ErrStaleFence)
	must(t, "Hold", c.Hold(ctx, "lost contact"))

	p.fail = map[int]error{2: errors.New("the disk is gone")}
	_, err = s.Resolve(ctx, d)
	wantErr(t, "Resolve with a piece that cannot be read", err, semel.ErrTooLarge)
	if r := find(t, ctx, h.Store, identity("k")); r.State != semel.StateUnknown || r.Fence != c.Fence() {
		t.Fatalf("after it the record is %v with fence %d", r.State, r.Fence)
	}
	p.fail = nil
	wrong := d
	wrong.Fence += 1000
	_, err = s.Resolve(ctx, wrong)
	wantErr(t, "Resolve with pieces under another fence", err, semel.ErrStaleFence)
	wrong.Identity.Key = "none"
	_, err = s.Resolve(ctx, wrong)
	wantErr(t, "Resolve with pieces without a record", err, semel.ErrNotFound)

	r := resolve(t, ctx, h.Store, d)
	if r.State != semel.StateCompleted || r.Fence <= c.Fence() {
		t.Fatalf("resolved, the record is %v with fence %d", r.State, r.Fence)
	}
	p.readBack(t, ctx, "as Resolve returns it", r)
	p.readBack(t, ctx, "as it is found", find(t, ctx, h.Store, identity("k")))
	late := &pieces{seed: 2, size: threeAndABit}
	_, err = c.Complete(ctx, late.result())
	wantErr(t, "Complete with pieces after a resolution", err, semel.ErrLostClaim)
	p.readBack(t, ctx, "after the old claim's Complete", r)
}
