package sqlite

import (
	"context"
	"errors"
	"time"
)

const (
	// A sweep takes turns with other writers. One turn removes at most this
	// much, so that none waits long for it.
	sweepRows  = 100
	sweepBytes = 16 << 20
	// sweepBatch is what Run removes in one call of Sweep.
	sweepBatch = 1000
)

// Sweep implements semel.Sweeper. It also removes about limit audit entries that
// are older than Config.TrailRetention: the executions of one commit go together.
// When it fails half way it reports what it has removed beside the error.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	records, _, err := s.sweep(ctx, limit)
	return records, err
}

func (s *Store) sweep(ctx context.Context, limit int) (records, entries int, err error) {
	for more := limit > 0; more && err == nil; {
		var n int
		n, err = write(ctx, s, 0, func(t *tx) (int, error) { return t.sweepStaged(sweepRows) })
		more = n > 0
	}
	for more := true; more && records < limit && err == nil; {
		var n int
		// The writer may run this after a caller whose context ended has left.
		rows := min(sweepRows, limit-records)
		n, err = write(ctx, s, 0, func(t *tx) (int, error) { return t.sweepRecords(rows) })
		records += n
		more = n > 0
	}
	for more := s.config.TrailRetention >= 0; more && entries < limit && err == nil; {
		var n int
		rows := min(sweepRows, limit-entries)
		n, err = write(ctx, s, 0, func(t *tx) (int, error) {
			return t.sweepTrail(rows, t.now-micros(s.config.TrailRetention))
		})
		entries += n
		more = n > 0
	}
	return records, entries, err
}

// The size of a result is read without it. Deleting has to walk through it.
const selectExpired = `
	SELECT number, position, coalesce(octet_length(head), 0) + coalesce(octet_length(body), 0) + coalesce(pieces_size, 0)
	FROM record WHERE state = 2 AND expires_at <= ? ORDER BY expires_at LIMIT ?`

func (t *tx) sweepRecords(limit int) (n int, err error) {
	var rows []removal
	bytes := int64(0)
	err = t.query(selectExpired, func(r *row) {
		if bytes < sweepBytes {
			rows = append(rows, removal{number: uint64(r.int()), position: uint64(r.int())})
			bytes += r.int()
		}
	}, t.now, int64(limit))
	if err == nil {
		err = t.remove(rows)
	}
	return len(rows), err
}

// sweepTrail removes entries from before that time, also those that are records:
// what is left of them is no entry any more.
func (t *tx) sweepTrail(limit int, before int64) (n int, err error) {
	type old struct{ position, records int64 }
	var rows []old
	err = t.query("SELECT position, records FROM executed WHERE at < ? ORDER BY at LIMIT ?",
		func(r *row) { rows = append(rows, old{r.int(), r.int()}) }, before, int64(limit))
	for i := 0; i < len(rows) && n < limit && err == nil; i++ {
		_, err = t.exec("DELETE FROM executed WHERE position = ?", rows[i].position)
		n += int(rows[i].records)
	}
	if err != nil || n >= limit {
		return n, err
	}
	more, err := t.exec(`
		DELETE FROM trail WHERE position IN (SELECT position FROM trail WHERE at < ? ORDER BY at LIMIT ?)`,
		before, int64(limit-n))
	return n + int(more), err
}

// Swept is what a sweep did.
type Swept struct {
	Records int // expired, removed
	Entries int // of the audit trail, past their retention, removed
	Took    time.Duration
	Err     error // why the sweep ended early; the next one goes on
}

// Run sweeps at once and then every Config.SweepEvery, in batches of 1,000 until
// nothing is left to remove, and tells Config.OnSweep. It returns nil when ctx
// ends, and ErrClosed when the store is closed; a sweep that fails does not end
// it. Without sweeping nothing breaks, but the file grows.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.config.SweepEvery)
	defer ticker.Stop()
	for {
		start := time.Now()
		var did Swept
		for {
			records, entries, err := s.sweep(ctx, sweepBatch)
			did.Records += records
			did.Entries += entries
			did.Err = err
			if err != nil || records == 0 && entries == 0 {
				break
			}
		}
		did.Took = time.Since(start)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(did.Err, ErrClosed):
			return ErrClosed
		}
		if s.config.OnSweep != nil {
			s.config.OnSweep(did)
		}
		select {
		case <-ticker.C:
		case <-s.stop:
			return ErrClosed
		case <-ctx.Done():
			return nil
		}
	}
}
