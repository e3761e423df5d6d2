package model

// rename makes states equal that differ only in names which can no longer
// matter, and so have the same future; Explore visits one of them:
//
//   - A fence is compared with the record's, now or later, for equality only,
//     and a later record's fence is new. So a fence is the present record's, or
//     stale.
//   - A token matters while its attempt goes on, or a call under way names it.
//   - Results are compared for equality only; they are numbered as they appear.
//   - Owners are alike.
//
// The first holds only while fences never repeat; see Model.verbatim.
// TestRenaming explores with and without, and compares.
func (s *State) rename() {
	s.forgetFences()
	s.forgetTokens()
	if s.swap() {
		s.Owner[0], s.Owner[1] = s.Owner[1], s.Owner[0]
		s.Rec.Token = s.Rec.Token.swapped()
		s.Net.Token = s.Net.Token.swapped()
	}
	s.renumberResults()
}

const (
	current = 1
	stale   = 255
)

func (s *State) forgetFences() {
	fence, grant := s.Rec.Fence, s.Rec.grant
	rename := func(name *uint8, now uint8) {
		switch {
		case *name == 0:
		case *name == now:
			*name = current
		default:
			*name = stale
		}
	}
	for i := range s.Owner {
		w := &s.Owner[i]
		rename(&w.Fence, fence)
		rename(&w.grant, grant)
		rename(&w.Saw, fence)
	}
	rename(&s.Net.Fence, fence)
	rename(&s.Net.grant, grant)
	rename(&s.Net.Takeover, fence)
	rename(&s.Op.Fence, fence)
	rename(&s.Op.grant, grant)
	rename(&s.Rec.Fence, fence)
	rename(&s.Rec.grant, grant)
	if s.Fences != 0 {
		s.Fences, s.Seen.Grants = current, current
	}
}

// Tokens of attempts that are over.
const (
	deadInRecord Token = 255 - iota
	deadInCall
	deadInBoth
)

func (s *State) forgetTokens() {
	live := func(t Token) bool {
		for i, w := range s.Owner {
			if w.Phase != Idle && t == tokenOf(i, w.Attempt) {
				return true
			}
		}
		return t == 0
	}
	record, call := &s.Rec.Token, &s.Net.Token
	switch {
	case *record == *call && !live(*call):
		*record, *call = deadInBoth, deadInBoth
	default:
		if !live(*record) {
			*record = deadInRecord
		}
		if !live(*call) {
			*call = deadInCall
		}
	}
}

func (t Token) swapped() Token {
	switch {
	case t == 0 || t >= deadInBoth:
		return t
	case t <= attempts:
		return t + attempts
	}
	return t - attempts
}

func (s *State) renumberResults() {
	var names [8]Result
	n := 0
	rename := func(r *Result) {
		if *r == 0 {
			return
		}
		for i := range n {
			if names[i] == *r&^learned {
				*r = Result(i+1) | *r&learned
				return
			}
		}
		names[n] = *r &^ learned
		n++
		*r = Result(n) | *r&learned
	}
	rename(&s.Rec.Result)
	rename(&s.World.Result)
	rename(&s.Seen.Told)
	rename(&s.Net.Result)
	rename(&s.Op.Result)
	for i := range s.Owner {
		rename(&s.Owner[i].Result)
	}
	s.Seen.Effects = uint8(n)
}

// swap decides which owner comes first. Any rule will do that does not depend on
// their order.
func (s *State) swap() bool {
	a, b := s.rank(0), s.rank(1)
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

func (s *State) rank(o int) [10]uint8 {
	w := &s.Owner[o]
	is := func(b bool) uint8 {
		if b {
			return 1
		}
		return 0
	}
	return [...]uint8{
		w.Attempt, uint8(w.Phase), w.Fence, w.grant, w.Saw, is(w.Doubt), is(w.UnderWay),
		is(s.Rec.Token == s.token(o)), is(s.Net.Token == s.token(o)), is(w.Result == s.Rec.Result),
	}
}
