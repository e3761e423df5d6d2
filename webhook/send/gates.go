package send

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// firstPlaces is how many places an endpoint has of which nothing is known.
	firstPlaces = 4
	// slow is how long an endpoint may take before it loses places.
	slow = time.Second
	// minWait and maxWait bound how long a message is put off; shortWait does
	// where the endpoint is not slow, as far as is known.
	minWait, shortWait, maxWait = 20 * time.Millisecond, 3 * time.Second, 5 * time.Minute
	// maxGates is how many endpoints are known before those are forgotten that
	// nothing is under way to.
	maxGates = 10_000
)

// gates keep an endpoint from taking all places of a relay. An endpoint that
// answers soon gets a place more with each delivery; one that is slow or fails
// loses half of its places, down to one.
type gates struct {
	most int
	mu   sync.Mutex
	all  map[string]*gate
}

type gate struct {
	limit, under int
	took         time.Duration // on average, of late
	moved        time.Time     // when a place was last taken of none, or left
	until        time.Time     // the endpoint asked for quiet until then

	// How many messages were put off and did not find a place since, as of then:
	// supposed that they come back one after the other, as places get free.
	queue float64
	as    time.Time
}

// putOff is for how long the next message has to wait.
func (e *gate) putOff(now time.Time) time.Duration {
	took := max(e.took, time.Millisecond)
	if e.under > 0 {
		took = max(took, now.Sub(e.moved)) // nobody knows how much longer
	}
	pace, most := float64(took)/float64(e.limit), maxWait
	if took < slow {
		most = shortWait
	}
	e.queue = min(max(e.queue-float64(now.Sub(e.as))/pace, 0)+1, float64(most)/pace)
	e.as = now
	wait := max(time.Duration(e.queue*pace), minWait) + max(e.until.Sub(now), 0)
	return wait - rand.N(wait/4)
}

// result is what is known of an endpoint after a message left.
type result struct {
	tried, ok bool
	took      time.Duration
	after     time.Duration // it asked for quiet
	gone      bool          // nothing is sent to it, so nothing has to wait
}

func newGates(most int) gates { return gates{most: most, all: map[string]*gate{}} }

// enter returns nil if the message has to wait, and for how long.
func (g *gates) enter(id string) (*gate, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	e := g.all[id]
	if e == nil {
		if len(g.all) >= maxGates {
			for id, old := range g.all {
				if old.under == 0 {
					delete(g.all, id)
				}
			}
		}
		e = &gate{limit: min(firstPlaces, g.most), as: now}
		g.all[id] = e
	}
	if e.under >= e.limit || now.Before(e.until) {
		return nil, e.putOff(now)
	}
	if e.under == 0 {
		e.moved = now
	}
	e.under++
	return e, 0
}

// leave ends what enter began.
func (g *gates) leave(id string, r result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, now := g.all[id], time.Now()
	e.under--
	e.moved = now
	switch {
	case r.gone:
		e.limit, e.took, e.queue, e.until = g.most, 0, 0, time.Time{}
	case r.tried:
		e.took += (r.took - e.took) / 4
		if r.ok && r.took < slow {
			e.limit = min(e.limit+1, g.most)
		} else {
			e.limit = max(e.limit/2, 1)
		}
		if r.after > 0 {
			e.until = now.Add(min(r.after, maxWait))
		}
	}
}
