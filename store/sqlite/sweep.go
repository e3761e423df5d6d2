package sqlite

import (
	"context"
	"math"
	"time"

	"github.com/semelhq/semel/internal/storekit"
)

const (
	// A sweep takes turns with other writers. One turn removes at most this
	// much, and ends after sweepTurn if others wait for it; but it removes as many
	// as share its commit, so that a sweep keeps up with them.
	sweepRows  = 100
	sweepBytes = 16 << 20
	sweepTurn  = time.Millisecond
	// sweepBatch is what Run removes in one call of Sweep.
	sweepBatch = 1000
)

// Sweep implements semel.Sweeper. It also removes about limit audit entries that
// are older than Config.TrailRetention; the executions of one commit are removed
// together. If it fails halfway, it returns the number removed so far along with
// the error.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	records, _, err := s.sweep(ctx, limit)
	return records, err
}

// sweep removes fewer than limit of a kind only where no more is left.
func (s *Store) sweep(ctx context.Context, limit int) (records, entries int, err error) {
	if limit > 0 {
		_, err = s.turns(ctx, math.MaxInt, (*tx).sweepStaged)
	}
	if err == nil {
		records, err = s.turns(ctx, limit, (*tx).sweepRecords)
	}
	if err == nil {
		entries, err = s.turns(ctx, limit, (*tx).sweepTrail)
	}
	return records, entries, err
}

// turns has the writer remove up to limit of what one removes, as long as there is more.
func (s *Store) turns(ctx context.Context, limit int, one func(t *tx, limit int) (n int, more bool, err error)) (removed int, err error) {
	type turn struct {
		n    int
		more bool
	}
	for did := (turn{more: true}); did.more && removed < limit && err == nil; {
		// The writer may run this after a caller whose context ended has left.
		left := limit - removed
		did, err = write(ctx, s, 0, func(t *tx) (turn, error) {
			n, more, err := one(t, min(max(sweepRows, t.callers), left))
			return turn{n, more}, err
		})
		removed += did.n
	}
	return removed, err
}

// late reports whether a sweep that has removed so many would hold others up.
func (t *tx) late(removed int) bool {
	return removed >= t.callers && (t.callers > 1 || len(t.store.queue) > 0) && time.Since(t.time) > sweepTurn
}

// The size of a result is read without it. Deleting has to walk through it. A
// bare parameter as a limit would have the statement prepared for each value.
const selectExpired = `
	SELECT number, position, coalesce(octet_length(head), 0) + coalesce(octet_length(body), 0) + coalesce(pieces_size, 0)
	FROM record WHERE state = 2 AND expires_at <= ? ORDER BY expires_at LIMIT 0 + ?`

func (t *tx) sweepRecords(limit int) (n int, more bool, err error) {
	var rows []removal
	found, bytes := 0, int64(0)
	err = t.query(selectExpired, func(r *row) {
		if found++; bytes < sweepBytes {
			rows = append(rows, removal{number: uint64(r.int()), position: uint64(r.int())})
			bytes += r.int()
		}
	}, t.now, int64(limit))
	if err == nil {
		n, err = t.remove(rows, t.late)
	}
	return n, found == limit || n < found, err
}

const (
	selectOldRuns = "SELECT position, records FROM executed WHERE at < ? ORDER BY at LIMIT 0 + ?"
	deleteEntries = "DELETE FROM trail WHERE position IN (SELECT position FROM trail WHERE at < ? ORDER BY at LIMIT 0 + ?)"
	// entriesAtOnce is how many entries a statement removes.
	entriesAtOnce = 20
)

// sweepTrail removes entries past their retention, also those that are records:
// what is left of them is no entry any more.
func (t *tx) sweepTrail(limit int) (n int, more bool, err error) {
	if t.store.config.TrailRetention < 0 {
		return 0, false, nil
	}
	before := t.now - micros(t.store.config.TrailRetention)
	type old struct{ position, records int64 }
	var rows []old
	err = t.query(selectOldRuns, func(r *row) { rows = append(rows, old{r.int(), r.int()}) }, before, int64(limit))
	for i := 0; i < len(rows) && n < limit && err == nil; i++ {
		if t.late(n) {
			return n, true, nil
		}
		_, err = t.exec("DELETE FROM executed WHERE position = ?", rows[i].position)
		n += int(rows[i].records)
	}
	for n < limit && err == nil {
		if t.late(n) {
			return n, true, nil
		}
		rows := min(entriesAtOnce, limit-n)
		var deleted int64
		deleted, err = t.exec(deleteEntries, before, int64(rows))
		if n += int(deleted); int(deleted) < rows {
			return n, false, err
		}
	}
	return n, true, err
}

// Swept describes a completed sweep.
type Swept struct {
	Records int // expired, removed
	Entries int // of the audit trail, past their retention, removed
	Took    time.Duration
	Err     error // why the sweep ended early; the next one goes on
}

// Run sweeps at once and then every Config.SweepEvery, in batches of 1,000 until
// fewer are left, and calls Config.OnSweep. It returns nil when ctx ends, and
// ErrClosed when the store is closed. It continues after a sweep that fails. If
// no process sweeps, the file grows.
func (s *Store) Run(ctx context.Context) error {
	if (storekit.Sweeps{Every: s.config.SweepEvery, Batch: sweepBatch, Sweep: s.sweep, Told: s.swept, Done: s.stop}).Run(ctx) {
		return ErrClosed
	}
	return nil
}

func (s *Store) swept(did storekit.Swept) {
	if s.config.OnSweep != nil {
		s.config.OnSweep(Swept(did))
	}
}
