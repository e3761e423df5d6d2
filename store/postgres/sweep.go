package postgres

import (
	"context"
	"time"

	"github.com/semelhq/semel/internal/storekit"
)

const (
	// sweepRows is what one statement removes at most, so that no transaction
	// grows long.
	sweepRows = 200
	// sweepRest is how long Run rests at most between two statements. It rests for
	// as long as the one before took, so that others have half of the time.
	sweepRest = time.Second
)

// Sweep implements semel.Sweeper. It also removes at most limit audit entries
// that are older than Config.TrailRetention. Several processes may sweep at the
// same time without waiting for each other. If it fails halfway, it returns the
// number removed so far along with the error.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	records, _, err := s.sweep(ctx, limit)
	return records, err
}

func (s *Store) sweep(ctx context.Context, limit int) (records, entries int, err error) {
	remove := func(total *int, sql string, args ...any) error {
		for *total < limit {
			size := min(sweepRows, limit-*total)
			n, err := again(ctx, s, func() (int, error) {
				tag, err := s.pool.Exec(ctx, sql, append([]any{size}, args...)...)
				return int(tag.RowsAffected()), err
			})
			if err != nil {
				return err
			}
			*total += n
			if n == 0 { // a statement may remove less than there is
				return nil
			}
		}
		return nil
	}
	if err := remove(&records, s.sql.sweep); err != nil {
		return records, entries, err
	}
	if s.config.TrailRetention >= 0 {
		err = remove(&entries, s.sql.sweepTrail, whole(s.config.TrailRetention))
	}
	return records, entries, err
}

// Swept describes a completed sweep.
type Swept struct {
	Records int // expired, removed
	Entries int // of the audit trail, past their retention, removed
	Took    time.Duration
	Err     error // why the sweep ended early; the next one goes on
}

// Run sweeps at once and then every Config.SweepEvery, in batches of 200 until
// nothing is left to remove, and calls Config.OnSweep. After each batch it rests
// for as long as the batch took, but at most a second. It returns nil when ctx
// ends, and ErrClosed when the store is closed. It continues after a sweep that
// fails. If no process sweeps, the tables grow.
func (s *Store) Run(ctx context.Context) error {
	if (storekit.Sweeps{
		Every: s.config.SweepEvery, Batch: sweepRows, Rest: sweepRest, Sweep: s.sweep, Told: s.swept, Done: s.notes.stop,
	}).Run(ctx) {
		return ErrClosed
	}
	return nil
}

func (s *Store) swept(did storekit.Swept) {
	if s.config.OnSweep != nil {
		s.config.OnSweep(Swept(did))
	}
}
