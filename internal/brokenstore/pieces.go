package brokenstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
)

// gathering has f say what becomes of pieces that cannot be read as they should.
func gathering(f func(ctx context.Context, p *semel.Pieces, n int) ([]byte, error)) func(*seams) {
	return func(s *seams) {
		s.gather = func(ctx context.Context, _ *store, _ string, _ *claim, p *semel.Pieces) (*semel.Pieces, error) {
			var held [][]byte
			for n := 0; p.Size < 1<<30 && n < p.Count(); n++ {
				piece, err := f(ctx, p, n)
				if err != nil {
					return nil, err
				}
				held = append(held, piece)
			}
			return inMemory(p.Size, held), nil
		}
	}
}

// What becomes of results in pieces.
var piecemeal = []Broken{
	{
		Name:   "pieces-by-reference",
		What:   "completes the record, and reads the pieces when somebody asks for them",
		Breaks: []string{"pieces-come-with-the-record", "pieces-have-their-sizes"},
		change: func(s *seams) {
			s.gather = func(_ context.Context, _ *store, _ string, _ *claim, p *semel.Pieces) (*semel.Pieces, error) {
				return p, nil
			}
		},
	},
	{
		Name:   "pieces-end-where-they-fail",
		What:   "takes a piece that cannot be read for the end of the body",
		Breaks: []string{"pieces-come-with-the-record"},
		change: gathering(func(ctx context.Context, p *semel.Pieces, n int) ([]byte, error) {
			piece, err := p.Read(ctx, n)
			if err != nil && ctx.Err() == nil {
				return nil, nil
			}
			return piece, err
		}),
	},
	{
		Name:   "pieces-of-any-length",
		What:   "does not compare what it reads with the length it was told",
		Breaks: []string{"pieces-have-their-sizes"},
		change: gathering(func(ctx context.Context, p *semel.Pieces, n int) ([]byte, error) {
			piece, err := p.Read(ctx, n)
			if err != nil && ctx.Err() == nil {
				err = semel.ErrTooLarge
			}
			return piece, err
		}),
	},
	{
		Name:   "impatience-makes-a-tombstone",
		What:   "says that a result cannot be kept because the caller's time was over while it was read",
		Breaks: []string{"pieces-outlast-an-ended-context"},
		change: gathering(func(ctx context.Context, p *semel.Pieces, n int) ([]byte, error) {
			piece, err := p.ReadPiece(ctx, n)
			if err != nil {
				err = semel.ErrTooLarge
			}
			return piece, err
		}),
	},
	{
		Name:   "pieces-in-one-order",
		What:   "hands out the next piece, whichever is asked for",
		Breaks: []string{"pieces-read-back"},
		change: func(s *seams) {
			s.view = func(s *store, r row) *semel.Pieces {
				right := view(s, r)
				var next atomic.Int64
				return &semel.Pieces{Size: right.Size, Read: func(ctx context.Context, n int) ([]byte, error) {
					if n < 0 || n >= right.Count() {
						return nil, semel.ErrNotFound
					}
					return right.Read(ctx, int(next.Add(1)-1)%right.Count())
				}}
			}
		},
	},
	{
		Name:   "pieces-by-identity",
		What:   "finds pieces by the identity, so that who holds an old record is given those of the new one",
		Breaks: []string{"pieces-go-with-the-record"},
		change: func(s *seams) {
			s.view = func(s *store, r row) *semel.Pieces {
				held := r.Result.Pieces
				return &semel.Pieces{Size: held.Size, Read: func(ctx context.Context, n int) ([]byte, error) {
					s.mu.Lock()
					now := s.rows[s.row(r.Identity)]
					s.mu.Unlock()
					switch {
					case now.State != semel.StateCompleted || now.Result.Pieces == nil:
						return nil, semel.ErrNotFound
					case now.Fence != r.Fence:
						return now.Result.Pieces.Read(ctx, n)
					}
					return held.Read(ctx, n)
				}}
			}
		},
	},
	{
		Name:   "pieces-left-behind",
		What:   "removes records and leaves their pieces, to be read for ever",
		Breaks: []string{"pieces-are-swept", "pieces-go-with-the-record"},
		change: func(s *seams) {
			s.view = func(_ *store, r row) *semel.Pieces { return r.Result.Pieces }
		},
	},
	{
		Name:   "pieces-replaced-by-a-repeat",
		What:   "stores the pieces of each Complete, also when the record was completed before",
		Breaks: []string{"pieces-complete-repeats"},
		change: func(s *seams) {
			s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
				if r.State == semel.StateCompleted {
					r.Result.Pieces = res.Pieces
				}
				return complete(r, res, now)
			}
		},
	},
	{
		Name:   "pieces-before-the-fence",
		What:   "stores pieces under the identity before it looks whether the claim is stale",
		Breaks: []string{"pieces-need-the-claim"},
		change: func(s *seams) {
			bodies := make(map[semel.Identity]*semel.Pieces)
			s.gather = func(ctx context.Context, s *store, call string, c *claim, p *semel.Pieces) (*semel.Pieces, error) {
				held, err := gather(ctx, s, call, c, p)
				if err == nil && c != nil {
					s.mu.Lock()
					defer s.mu.Unlock()
					bodies[c.id] = held
				}
				return held, err
			}
			s.view = func(s *store, r row) *semel.Pieces {
				right := view(s, r)
				return &semel.Pieces{Size: right.Size, Read: func(ctx context.Context, n int) ([]byte, error) {
					if _, err := right.Read(ctx, n); err != nil {
						return nil, err
					}
					s.mu.Lock()
					held := bodies[r.Identity]
					s.mu.Unlock()
					return held.Read(ctx, n)
				}}
			}
		},
	},
	{
		Name:   "resolution-by-reference",
		What:   "keeps no pieces of a resolution's result, but the way to where they came from",
		Breaks: []string{"pieces-resolve"},
		change: func(s *seams) {
			s.gather = func(ctx context.Context, s *store, call string, c *claim, p *semel.Pieces) (*semel.Pieces, error) {
				if call == "resolve" {
					return p, nil
				}
				return gather(ctx, s, call, c, p)
			}
		},
	},
}
