package brokenstore

import (
	"time"

	"github.com/semelhq/semel"
)

// What becomes of an answer that is erased.
var erasing = []Broken{
	{
		Name:   "erase-frees-the-key",
		What:   "removes the record with its answer, so that a retry executes again",
		Breaks: []string{"erase-leaves-a-tombstone"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				if err := erase(s, r, e); err != nil {
					return err
				}
				*r = row{}
				return nil
			}
		},
	},
	{
		Name:   "erase-marks-only",
		What:   "marks the record as a tombstone, and keeps where the resource is",
		Breaks: []string{"erase-leaves-a-tombstone"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				reference := r.Result.Reference
				err := erase(s, r, e)
				r.Result.Reference = reference
				return err
			}
		},
	},
	{
		Name:   "erase-leaves-the-pieces",
		What:   "leaves a large body to whoever has been told of it",
		Breaks: []string{"erase-takes-the-pieces"},
		change: func(s *seams) {
			s.view = func(_ *store, r row) *semel.Pieces { return r.Result.Pieces }
		},
	},
	{
		Name:   "erase-of-whatever-is-there",
		What:   "erases without a look at the fence and the state",
		Breaks: []string{"erase-needs-the-record"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				e.Fence = r.Fence
				if r.State != semel.StateCompleted {
					return nil
				}
				return erase(s, r, e)
			}
		},
	},
	{
		Name:   "erase-starts-retention-again",
		What:   "gives the tombstone a retention of its own",
		Breaks: []string{"erase-leaves-a-tombstone"},
		change: func(s *seams) {
			s.erase = func(s *store, r *row, e semel.Erasure) error {
				err := erase(s, r, e)
				r.ExpiresAt = r.ExpiresAt.Add(time.Hour)
				return err
			}
		},
	},
}
