// Package brokenstore holds stores that are wrong on purpose, each in one way
// in which real ones have been. The conformance suite in storetest must fail
// on every one of them, and every rule of the suite must fail on at least one:
// a rule that nothing can break proves nothing.
//
// They share one small correct store over a map, cut into seams, and another
// whose claims are transactions. A broken store
// is a name, what is wrong with it, the rules it must be caught by, and another
// piece for one seam. Where the defect is a race, time passes at the place
// where it is open, so in a bubble of package testing/synctest it is lost
// every time.
package brokenstore

import (
	"maps"
	"slices"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/storetest"
)

// Broken is a store with one defect.
type Broken struct {
	Name string
	// What is wrong.
	What string
	// Breaks names rules of storetest that must notice. Others may as well.
	Breaks []string

	// change puts the wrong piece into its seam.
	change func(s *seams)
	// wrap does the same where a defect needs a method of its own, or state
	// of one handle.
	wrap func(s *store) semel.Store
	// tx puts the wrong piece into a store whose claims are transactions.
	tx func(s *txSeams)
}

// Harness sets up a fresh store. It must run in a bubble.
func (b Broken) Harness() storetest.Harness {
	if b.tx != nil {
		return txHarness(b.tx)
	}
	return harness(b.change, b.wrap)
}

// Correct sets up the store that the broken ones differ from.
func Correct() storetest.Harness { return harness(nil, nil) }

func harness(change func(*seams), wrap func(*store) semel.Store) storetest.Harness {
	d := &disk{rows: make(map[semel.Identity]row)}
	pieces := correct()
	if change != nil {
		change(&pieces)
	}
	open := func(skew time.Duration) semel.Store {
		s := &store{disk: d, seams: pieces, skew: skew}
		if wrap != nil {
			return wrap(s)
		}
		return s
	}
	return storetest.Harness{
		Store:  open(0),
		Open:   func() semel.Store { return open(0) },
		Skewed: open,
		Break: func() (mend func()) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.down = make(chan struct{})
			return func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				close(d.down)
				d.down = nil
			}
		},
		Backup: func() (restore func()) {
			d.mu.Lock()
			defer d.mu.Unlock()
			rows, fence, trail := maps.Clone(d.rows), d.fence, slices.Clone(d.trail)
			return func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.rows, d.fence, d.trail = rows, fence, trail
			}
		},
	}
}

// moment is how long a race stays open.
const moment = time.Millisecond

// raceAt opens a gap between look and write in the given calls.
func raceAt(calls ...string) func(*store, string) {
	return func(s *store, call string) {
		if slices.Contains(calls, call) {
			s.mu.Unlock()
			time.Sleep(moment)
			s.mu.Lock()
		}
	}
}

// meet has the given calls arrive in the middle of a gap.
func meet(calls ...string) func(string) {
	return func(call string) {
		if slices.Contains(calls, call) {
			time.Sleep(moment / 2)
		}
	}
}

// keyed finds rows by what f makes of their identity.
func keyed(f func(id semel.Identity) semel.Identity) func(*seams) {
	return func(s *seams) { s.row = f }
}

// stored writes what f makes of a result.
func stored(f func(r *semel.Result)) func(*seams) {
	return func(s *seams) {
		s.complete = func(r *row, res semel.Result, now time.Time) (semel.TrailKind, error) {
			f(&res)
			return complete(r, res, now)
		}
	}
}

// Stores returns all broken stores.
func Stores() []Broken {
	return slices.Concat(claiming, naming, recording, piecemeal, timing, leasing, fencing, resolving, erasing, sweeping, failing, listing, telling, transacting)
}
