package matrix

import "fmt"

// told is what a client is told, in the words of the contract.
type told struct {
	what   string
	status int
	exec   int // whose answer it is: 1 for that of the first execution
}

func (t told) String() string { return fmt.Sprintf("%s %d (execution %d)", t.what, t.status, t.exec) }

const (
	own         = "the handler's answer"   // of this request's own execution, recorded
	freed       = "an answer of no effect" // likewise, and the key is free
	replayed    = "a replay"
	notRetained = "result-not-retained"
	unknown     = "outcome-unknown"
	unavailable = "store-unavailable"
	undone      = "rolled-back"
	dropped     = "no effect, and the answer was too large"
	outers      = "the failure of who began the transaction"
	cut         = "cut off"
)

// status is that of the first execution's answer.
func (c cell) status(k kind) int {
	switch c.ending {
	case fails4:
		return 422
	case fails5:
		return 500
	case noEffect:
		return 403
	case deadline:
		if k.transactional { // what it wanted to change next could not be
			return 500
		}
	}
	return 201
}

// passes reports whether the first execution's answer has begun to reach the
// client in its middle, or at its end.
func (c cell) passes(k kind) (middle, end bool) {
	if k.transactional {
		return false, false
	}
	middle = c.shape == stream || c.shape == spoolFails || c.shape == spoolFull
	return middle, middle || c.shape == over
}

// executed is what a client is told whose request is the nth execution, which
// completes with the status.
func (c cell) executed(k kind, n, status int) told {
	if k.transactional && (c.shape == spoolFails || c.shape == spoolFull) {
		return told{notRetained, 409, 0}
	}
	return told{own, status, n}
}

// again is what later ones are told.
func (c cell) again(n, status int) told {
	if !c.shape.whole() {
		return told{notRetained, 409, 0}
	}
	return told{replayed, status, n}
}

// expect says what the first client is told, and what one that asks again. The
// rival, if it executes, is told what its execution answers.
func (c cell) expect(k kind) (first, retry told) {
	status := c.status(k)
	middle, end := c.passes(k)
	afresh := c.executed(k, 2, 201) // where the retry executes
	if c.ending == ok && c.fault.call == begin && c.fault.how == down {
		return told{unavailable, 503, 0}, c.executed(k, 1, 201)
	}
	broken := func(t told, passing bool) told {
		if passing {
			return told{what: cut}
		}
		return t
	}

	if c.rival == takesOver {
		// What the owner that lost its claim can say is what the record says.
		first, retry = c.again(2, 201), c.again(2, 201)
		if c.ending == panics || c.ending == exits {
			return told{what: cut}, retry
		}
		if c.ending == indeterminate {
			return broken(first, middle), retry // what would have begun to pass later did not
		}
		return broken(first, end), retry
	}
	if c.rival == inherits {
		first, retry = told{undone, 503, 0}, c.again(2, 201)
		switch {
		case c.ending == panics || c.ending == exits:
			first = told{what: cut}
		case k.joined:
			first = told{outers, 500, 0}
		case c.settledBy(k) == release:
			first = c.released(k, status)
		}
		return first, retry
	}

	f := c.fault
	failsFor := func(what call) bool { return f.call == what && f.how == down }
	ended := failsFor(c.settledBy(k)) && !f.after && k.sessions && k.transactional // the session, to be exact

	switch c.settledBy(k) {
	case complete:
		first, retry = c.executed(k, 1, status), c.again(1, status)
		switch {
		case ended:
			first, retry = told{undone, 503, 0}, afresh
		case failsFor(complete) && f.after && k.transactional && !k.joined:
			first = retry // who would roll it back finds it on record
		case failsFor(complete):
			first = broken(told{unavailable, 503, 0}, end)
			if !f.after {
				retry = told{unknown, 409, 0}
			}
		}
	case release:
		first, retry = c.released(k, status), afresh
		if failsFor(release) && !f.after && !k.transactional {
			// There was no effect, but nobody could write that down.
			first, retry = broken(told{unavailable, 503, 0}, end), told{unknown, 409, 0}
		}
	case hold:
		switch c.ending {
		case panics, exits:
			first, retry = told{what: cut}, told{unknown, 409, 0}
			if k.transactional {
				retry = afresh
			}
		case overruns:
			if !k.transactional {
				first, retry = c.executed(k, 1, status), c.again(1, status)
				if failsFor(complete) {
					first = broken(told{unavailable, 503, 0}, end)
					if !f.after {
						retry = told{unknown, 409, 0}
					}
				}
				return first, retry
			}
			fallthrough
		default: // indeterminate
			first, retry = broken(told{unknown, 500, 0}, middle), told{unknown, 409, 0}
			if k.transactional {
				first, retry = told{undone, 503, 0}, afresh
			}
			if failsFor(hold) && !ended && c.ending != overruns { // whose result asks once more
				first = broken(told{unavailable, 503, 0}, middle)
			}
		}
	}
	if ended && k.joined && first.what != cut {
		first = told{outers, 500, 0}
	}
	return first, retry
}

// released is what a client is told whose request's execution had no effect.
func (c cell) released(k kind, status int) told {
	if k.transactional && (c.shape == spoolFails || c.shape == spoolFull) {
		return told{dropped, status, 0}
	}
	return told{freed, status, 1}
}
