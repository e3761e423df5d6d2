package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// stagePieces is how many pieces go into the file in one turn of the writer.
const stagePieces = 4

var (
	// errMoved reports that the record of a body is settled, or belongs to another
	// claim.
	errMoved = errors.New("sqlite: the record has moved on")
	// errIncomplete reports that pieces disappeared from the file while a body was
	// being written.
	errIncomplete = errors.New("sqlite: pieces of the result are gone from the file; call again")
)

const (
	insertPiece = "INSERT INTO piece (body, n, bytes) VALUES (?, ?, ?) ON CONFLICT (body, n) DO NOTHING"
	selectPiece = "SELECT bytes FROM piece WHERE body = ? AND n = ?"
)

// staging is a body on its way into the file. Its pieces are committed ahead of
// the record, a few at a time: other writers get their turns in between, and
// nobody waits for the source that the pieces are read from. They are seen when
// the record that names them is committed, and not before.
type staging struct {
	body  int64
	from  *semel.Pieces
	begun bool // something of it may be in the file
	next  int  // the first piece that may not be
}

func newStaging(p *semel.Pieces) *staging { return &staging{body: rand.Int64(), from: p} }

// stage puts the rest of a body into the file, for the record with that fence.
// wanted reports whether that still waits for it; once it does not, the error is
// errMoved. After any other error but ErrTooLarge it can be called again, and
// goes on where it was.
func (s *Store) stage(ctx context.Context, g *staging, fence uint64, wanted func(*tx) (bool, error)) error {
	for g.next < g.from.Count() {
		var (
			first  = g.next
			pieces [][]byte
			size   int
		)
		for n := first; n < min(first+stagePieces, g.from.Count()); n++ {
			piece, err := g.from.ReadPiece(ctx, n)
			if err != nil {
				return fmt.Errorf("sqlite: %w", storekit.Unreadable(ctx, err))
			}
			pieces = append(pieces, piece)
			size += len(piece)
		}
		g.begun = true
		if _, err := write(ctx, s, size, func(t *tx) (none, error) {
			ok, err := wanted(t)
			switch {
			case err != nil:
				return none{}, err
			case !ok:
				return none{}, errMoved
			}
			_, err = t.exec("INSERT INTO staging (body, fence) VALUES (?, ?) ON CONFLICT (body) DO NOTHING", g.body, int64(fence))
			for i := 0; i < len(pieces) && err == nil; i++ {
				_, err = t.exec(insertPiece, g.body, int64(first+i), pieces[i])
			}
			return none{}, err
		}); err != nil {
			return err
		}
		g.next += len(pieces)
	}
	return nil
}

// checkStaged makes sure that a body is in the file as a whole, just before a
// record names it: a restored backup may have taken pieces of it away.
func (t *tx) checkStaged(g *staging) error {
	var count, size int64
	err := t.query("SELECT count(*), coalesce(sum(octet_length(bytes)), 0) FROM piece WHERE body = ?",
		func(r *row) { count, size = r.int(), r.int() }, g.body)
	if err == nil && (count != int64(g.from.Count()) || size != g.from.Size) {
		err = errIncomplete
	}
	return err
}

// named removes the mark of a body that a record names now.
func (t *tx) named(g *staging) error {
	_, err := t.exec("DELETE FROM staging WHERE body = ?", g.body)
	return err
}

// unstage removes a body that no record names.
func (t *tx) unstage(body int64) error {
	_, err := t.exec("DELETE FROM piece WHERE body IN (SELECT body FROM staging WHERE body = ?)", body)
	if err == nil {
		_, err = t.exec("DELETE FROM staging WHERE body = ?", body)
	}
	return err
}

// discard removes a body that will not be recorded. It waits for that only as
// long as ctx allows. Where it fails, a sweep removes the body once its record
// is settled.
func (s *Store) discard(ctx context.Context, g *staging) {
	if g == nil || !g.begun {
		return
	}
	o := &op{done: make(chan struct{}), run: func(t *tx) { _ = t.unstage(g.body) }}
	select {
	case s.queue <- o:
	default:
		return
	}
	select {
	case <-o.done:
	case <-s.done:
	case <-ctx.Done():
	}
}

// selectStale finds bodies that no record waits for any more.
const selectStale = `
	SELECT body, (SELECT coalesce(sum(octet_length(bytes)), 0) FROM piece WHERE piece.body = staging.body) FROM staging
	WHERE NOT EXISTS (SELECT 1 FROM record WHERE (number = staging.fence AND record.fence IS NULL OR record.fence = staging.fence)
		AND state <> 2) LIMIT 0 + ?`

// sweepStaged removes what processes that died have left, and reports how many
// bodies that was.
func (t *tx) sweepStaged(limit int) (n int, more bool, err error) {
	type stale struct{ body, bytes int64 }
	var all []stale
	if err := t.query(selectStale, func(r *row) { all = append(all, stale{r.int(), r.int()}) }, int64(limit)); err != nil {
		return 0, false, err
	}
	for bytes := int64(0); n < len(all) && bytes < sweepBytes && !t.late(n); n++ {
		if err := t.unstage(all[n].body); err != nil {
			return n, false, err
		}
		bytes += all[n].bytes
	}
	return n, len(all) == limit || n < len(all), nil
}

// pieces returns the body with that number, which is read from the file.
func (s *Store) pieces(body, size int64) *semel.Pieces {
	return &semel.Pieces{Size: size, Read: func(ctx context.Context, n int) ([]byte, error) {
		var (
			piece []byte
			found bool
		)
		err := s.read(ctx, func(c *conn) error {
			found = false
			return c.query(selectPiece, func(r *row) { piece, found = r.blob(), true }, body, int64(n))
		})
		if err == nil && !found {
			err = semel.ErrNotFound
		}
		return piece, err
	}}
}

// stagingOf takes the body that was left behind by an earlier Complete out of
// the claim, or for other pieces makes a new one.
func (c *claim) stagingOf(p *semel.Pieces) *staging {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.staged
	c.staged = nil
	if p != nil && (g == nil || g.from != p) {
		g = newStaging(p)
	}
	return g
}

func (c *claim) completePieces(ctx context.Context, res semel.Result) (expires time.Time, err error) {
	s, g := c.store, c.stagingOf(res.Pieces)
	err = s.stage(ctx, g, c.fence, func(t *tx) (bool, error) {
		state, _, err := c.state(t)
		return state == semel.StateInProgress || state == semel.StateUnknown, err
	})
	if err == nil {
		expires, err = write(ctx, s, resultBytes(res), func(t *tx) (time.Time, error) { return c.complete(t, res, g) })
	}
	switch {
	case errors.Is(err, errMoved):
		s.discard(ctx, g)
		return write(ctx, s, 0, c.completed)
	case errors.Is(err, semel.ErrTooLarge), errors.Is(err, semel.ErrLostClaim), errors.Is(err, errIncomplete):
		s.discard(ctx, g)
	case err != nil:
		// The caller will try again, and find there what is in the file.
		c.mu.Lock()
		defer c.mu.Unlock()
		c.staged = g
	}
	return expires, err
}
