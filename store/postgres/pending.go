package postgres

import (
	"sync"
	"time"

	"github.com/semelhq/semel/outbox"
)

// pending is about how many messages wait.
type pending struct {
	mu       sync.Mutex
	counted  time.Time
	took     time.Duration // to count
	counting bool
	n        int // then, and what this process has enqueued since
}

// sqlCountPending goes through an index, which a table with much that is dead needs:
// a scan of the table reads all of that, and the index only until the server has
// cleaned it.
const sqlCountPending = `SELECT count(*) FROM (SELECT FROM {s}.outbox_queue WHERE state = 1 ORDER BY topic, since LIMIT $1) AS q`

// due reports whether to count: every second, but where that takes long, as it does
// while an old transaction keeps the server from cleaning, not for more than a tenth of
// the time, and for half of it if n more would be refused.
func (p *pending) due(n, most int) bool {
	age := time.Since(p.counted)
	return p.counted.IsZero() || !p.counting && age >= time.Second && (age >= 10*p.took || p.n+n > most && age >= p.took)
}

// admit refuses messages beyond the bound. It counts with what the caller's
// transaction runs on: another connection may not be had while this one is held. Others
// go by the count before, meanwhile, unless there is none.
func (s *Store) admit(n int, count func(sql string, most int) interface{ Scan(...any) error }) error {
	most := s.config.MaxPending
	if most == 0 {
		return nil
	}
	p := &s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due(n, most) {
		first, before, began := p.counted.IsZero(), p.n, time.Now()
		p.counting = true
		if !first {
			p.mu.Unlock()
		}
		var there int
		err := count(s.sql.countPending, most).Scan(&there)
		if !first {
			p.mu.Lock()
		}
		p.counting = false
		if err != nil {
			return err
		}
		p.n = there + p.n - before // with what others have enqueued meanwhile
		p.counted, p.took = time.Now(), time.Since(began)
	}
	if p.n+n > most {
		return outbox.ErrFull
	}
	p.n += n
	return nil
}
