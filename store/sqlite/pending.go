package sqlite

import (
	"context"
	"sync"
	"time"

	"github.com/semelhq/semel/outbox"
)

// pending is about how many messages wait.
type pending struct {
	mu      sync.Mutex
	counted time.Time
	n       int // then, and what this process has enqueued since
}

const countPending = "SELECT count(*) FROM (SELECT 1 FROM outbox WHERE state = 'pending' LIMIT 0 + ?)"

// admit refuses messages beyond the bound.
func (s *Store) admit(ctx context.Context, n int) error {
	if s.config.MaxPending == 0 {
		return nil
	}
	p := &s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.counted.IsZero() || now.Sub(p.counted) >= time.Second {
		err := s.read(ctx, func(c *conn) error {
			return c.query(countPending, func(r *row) { p.n = int(r.int()) }, int64(s.config.MaxPending))
		})
		if err != nil {
			return err
		}
		p.counted = now
	}
	if p.n+n > s.config.MaxPending {
		return outbox.ErrFull
	}
	p.n += n
	return nil
}
