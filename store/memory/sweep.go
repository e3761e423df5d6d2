package memory

import (
	"context"
	"time"
)

// Sweep implements semel.Sweeper.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sweep(time.Now(), limit), nil
}

func (s *Store) sweep(now time.Time, limit int) (n int) {
	for n < limit && len(s.expiry) > 0 && s.expiry[0].expired(now) {
		s.remove(s.expiry[0])
		n++
	}
	return n
}

// Run sweeps every minute, in batches, until ctx ends, and then returns nil. A
// store that is never swept removes expired records when it is full.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		for n := 1; n > 0; {
			n, _ = s.Sweep(ctx, 1000) // it fails when ctx has ended, and then removes nothing
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
