package semel

import (
	"sync"
	"time"
)

// maxTallies bounds how many records have a tally. Answers about others have an
// entry of the trail each.
const maxTallies = 4096

// notes writes to the trail what submits were told, without letting a client
// that repeats a request fill it: what is told again about a record within an
// interval is counted, and is one entry at its end.
type notes struct {
	trail    Trail
	interval time.Duration

	mu      sync.Mutex
	tallies map[tallied]*tally
	ended   bool
}

// tallied is what entries have in common that are counted together.
type tallied struct {
	kind   TrailKind
	record string
	fence  uint64
}

type tally struct {
	count uint64 // of answers since the last entry
	last  TrailEntry
	timer *time.Timer
}

// write has the counted answers' entry written.
func (n *notes) write(t *tally) {
	if t.count > 1 {
		t.last.Count = t.count
	}
	n.trail.Note(t.last)
	t.count = 0
}

func newNotes(t Trail, interval time.Duration) *notes {
	return &notes{trail: t, interval: interval, tallies: map[tallied]*tally{}}
}

func (n *notes) add(e TrailEntry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	on := tallied{e.Kind, e.RecordID, e.Fence}
	if t := n.tallies[on]; t != nil {
		t.last = e
		t.count++
		return
	}
	n.trail.Note(e)
	if n.interval > 0 && !n.ended && e.RecordID != "" && len(n.tallies) < maxTallies {
		n.tallies[on] = &tally{timer: time.AfterFunc(n.interval, func() { n.turn(on) })}
	}
}

// turn ends an interval, and begins another if there was anything in it.
func (n *notes) turn(on tallied) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.tallies[on]
	if t == nil {
		return
	}
	if t.count == 0 {
		delete(n.tallies, on)
		return
	}
	n.write(t)
	t.timer.Reset(n.interval)
}

// end writes what has been counted. From then on every answer has its entry.
func (n *notes) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	for on, t := range n.tallies {
		t.timer.Stop()
		if t.count > 0 {
			n.write(t)
		}
		delete(n.tallies, on)
	}
}
