package postgres

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// floors are where looks for due messages begin. As long as some transaction of the
// database is open, wherever in it, the index keeps entries of what has been claimed
// since that began, and a look at the whole reads over all of them. Where that takes
// its time, most looks begin behind what they have taken. What comes late below that,
// of transactions that took long to commit, of rows that others had locked and of
// claims that were undone, is found by a look at the whole; those take no more than a
// tenth of the time.
type floors struct {
	mu    sync.Mutex
	took  time.Duration // by the last look at the whole
	next  time.Time     // when there is another
	topic map[string]floor
	named []string // the topics of the last look at all
	after string   // the last of them, if there may be more
}

// floor is where the looks at a topic begin.
type floor struct {
	ready, arrived int64     // turns
	since          time.Time // by the server's clock
}

const (
	// A look at the whole that takes no longer than cheapLook is always made, and
	// otherwise after a rest of wholeRest times as long as the last one took; but where
	// nothing else is found, at once if that took no longer than fairLook.
	cheapLook = 10 * time.Millisecond
	fairLook  = time.Second
	wholeRest = 10
	// floorMargin is how much later than its time a message may become visible.
	floorMargin = time.Second
)

// begin reports whether a look shall be at the whole. Empty says that one at less has
// found nothing.
func (f *floors) begin(empty bool) (fully bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.took <= cheapLook || empty && f.took <= fairLook || !time.Now().Before(f.next)
}

// all returns the topics of the last look at all, and behind which the next shall begin.
func (f *floors) all() (topics []string, after string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.named, f.after
}

// of returns, as the last arguments of a look, where it begins.
func (f *floors) of(topics []string, fully bool) []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	var (
		ready, arrived []int64
		since          []pgtype.Timestamptz
	)
	for _, t := range topics {
		var at floor
		if !fully {
			at = f.topic[t]
		}
		if at.since.IsZero() {
			at.since = time.Unix(0, 0)
		}
		ready, arrived = append(ready, at.ready), append(arrived, at.arrived)
		since = append(since, pgtype.Timestamptz{Time: at.since, Valid: true})
	}
	return []any{topics, ready, arrived, since}
}

// end notes what a look has taken. All says that it was not at one topic.
func (f *floors) end(fully, all bool, l looked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fully {
		f.took = time.Duration(l.seconds * float64(time.Second))
		f.next = time.Now().Add(wholeRest * f.took)
		f.topic = map[string]floor{}
	}
	if all && fully {
		f.named, f.after = l.topics, ""
		if len(l.topics) == topicsAtOnce {
			f.after = l.topics[topicsAtOnce-1]
		}
	}
	for _, t := range l.topics {
		to := f.topic[t]
		for i, at := range []*int64{&to.ready, &to.arrived} {
			if turn := l.taken[t][i]; turn != nil {
				*at = max(*at, *turn)
			}
		}
		if l.noneOverdue {
			to.since = l.at.Add(-floorMargin)
		}
		f.topic[t] = to
	}
}
