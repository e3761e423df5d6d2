package matrix

import (
	"fmt"
	"iter"
)

// The axes. A cell is one value of each.

// shape is what the handler's answer looks like.
type shape int

const (
	small      shape = iota
	large            // over MaxInline, so it is recorded in pieces
	stream           // an event stream with Flush
	trailers         // announced and unannounced ones
	over             // over MaxResult
	spoolFails       // over MaxInline, and there is no directory to spool in
	spoolFull        // over MaxInline, and over what one spool may hold
	shapes
)

var shapeNames = [...]string{"small", "large", "stream", "trailers", "over", "spool-fails", "spool-full"}

func (s shape) String() string { return shapeNames[s] }

// whole reports whether the answer can be recorded.
func (s shape) whole() bool { return s == small || s == large || s == trailers }

// ending is how the handler ends, in its first execution. In every later one it
// answers with 201.
type ending int

const (
	ok            ending = iota // 201
	fails4                      // 422
	fails5                      // 500
	noEffect                    // DeclareNoEffect, having changed half of what it wanted, where that can be undone
	indeterminate               // DeclareIndeterminate, in the middle of its answer
	panics                      // likewise
	exits                       // runtime.Goexit, likewise
	deadline                    // it heeds its context's end at the deadline
	overruns                    // it heeds nothing until the guard has given it up
	endings
)

var endingNames = [...]string{"ok", "422", "500", "no-effect", "indeterminate", "panic", "goexit", "deadline", "overrun"}

func (e ending) String() string { return endingNames[e] }

// client is what becomes of the client of the first request.
type client int

const (
	stays        client = iota
	leavesBefore        // the store is being asked for the claim
	leavesDuring        // the handler is in the middle of its answer
	leavesAfter         // the handler has returned, and the store is being told
	clients
)

var clientNames = [...]string{"stays", "leaves-before", "leaves-during", "leaves-after"}

func (c client) String() string { return clientNames[c] }

// call is one of the calls of the store for the first request.
type call int

const (
	none call = iota
	begin
	renew
	complete
	hold
	release
	calls
)

var callNames = [...]string{"none", "begin", "renew", "complete", "hold", "release"}

func (c call) String() string { return callNames[c] }

// fault is how a call of the store fails.
type fault struct {
	call  call
	after bool // it took effect all the same
	how   how
}

type how int

const (
	once  how = iota // the first time
	hangs            // the first time, by not answering until its time is over
	down             // for as long as the guard tries
	hows
)

var howNames = [...]string{"once", "hangs", "down"}

func (f fault) String() string {
	if f.call == none {
		return "no-fault"
	}
	when := "before"
	if f.after {
		when = "after"
	}
	return fmt.Sprintf("%v-%s-%s", f.call, howNames[f.how], when)
}

// faults are all of them but that there is none.
func faults() iter.Seq[fault] {
	return func(yield func(fault) bool) {
		for c := begin; c < calls; c++ {
			for h := once; h < hows; h++ {
				for _, after := range []bool{false, true} {
					if !yield(fault{c, after, h}) {
						return
					}
				}
			}
		}
	}
}

// rival is who else asks for the same while the handler runs. There is always
// somebody who does afterwards.
type rival int

const (
	duplicate rival = iota // while the claim holds
	marks                  // the lease has lapsed; the rival holds the record
	takesOver              // the lease has lapsed; the rival executes
	inherits               // the transaction's session is gone; the rival executes
	rivals
)

var rivalNames = [...]string{"duplicate", "marks", "takes-over", "inherits"}

func (r rival) String() string { return rivalNames[r] }

type cell struct {
	shape  shape
	ending ending
	client client
	fault  fault
	rival  rival
	http2  bool
}

func (c cell) String() string {
	s := fmt.Sprintf("%v/%v/%v/%v/%v", c.shape, c.ending, c.client, c.fault, c.rival)
	if c.http2 {
		s += "/http2"
	}
	return s
}

// kind is how a subject keeps claims.
type kind struct {
	transactional bool
	joined        bool // in a transaction that somebody around the protection began
	sessions      bool // the transaction lives in a session that can be ended
	virtual       bool // time is
}

// settledBy is the call by which the first execution tells what it came to.
func (c cell) settledBy(k kind) call {
	switch c.ending {
	case ok, fails4:
		return complete
	case fails5:
		if k.transactional {
			return release
		}
		return complete
	case noEffect:
		return release
	case deadline:
		if k.transactional {
			return release
		}
		return complete
	}
	return hold
}

// cannot says why there is no such cell; "" if there is.
func (c cell) cannot(k kind) string {
	f := c.fault
	switch {
	case !k.virtual && (c.ending == deadline || c.ending == overruns || f.call == renew):
		return "it is about times that a busy machine does not keep; virtual time shows it"
	case k.transactional && (c.rival == marks || c.rival == takesOver):
		return "a transaction has no lease that could lapse before it ends"
	case !k.sessions && c.rival == inherits:
		return "there is no session that could end before its process does"
	case c.rival == inherits && c.ending == overruns:
		return "it is given up once: either the session is gone or the deadline has passed"
	case c.rival != duplicate && f.call != none:
		return "that somebody takes over is a fault of its own"
	case f.call == none:
		return ""
	case f.how == hangs && !k.virtual:
		return "to the guard it is a call that failed, but later; virtual time shows it"
	case f.call == begin && f.after && k.transactional:
		return "a granted transaction whose grant is lost is lost with it"
	case f.call == begin && f.how == down && c.ending != ok:
		return "the handler is not called"
	case f.call == begin && f.how == down && c.client == leavesDuring, f.call == begin && f.how == down && c.client == leavesAfter:
		return "the handler is not called"
	case f.call == begin || f.call == renew:
		return ""
	case c.ending == overruns && f.call == complete && !k.transactional:
		return ""
	case f.call != c.settledBy(k):
		return "an execution that ends so does not make this call"
	case f.how == down && !f.after && k.transactional && !k.sessions:
		return "a file's transaction that cannot be settled is one that is rolled back or committed at the next look, which the store's own tests enumerate"
	}
	return ""
}
