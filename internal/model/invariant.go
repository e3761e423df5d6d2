package model

import (
	"iter"
	"slices"
)

// Invariant is a sentence that holds in every reachable state.
type Invariant string

// The invariants.
const (
	OneClaim       Invariant = "of any number of concurrent claims, at most one is granted"
	OneEffect      Invariant = "one effect per identity"
	NoZombie       Invariant = "a zombie can neither overwrite a result nor free a claim"
	StaleNotKept   Invariant = "a stale claim is not renewed"
	FencesUnique   Invariant = "fences never repeat"
	Repeatable     Invariant = "a begin whose answer was lost may be asked for again"
	SweepSpares    Invariant = "a sweep never removes in_progress or unknown"
	CompletedKept  Invariant = "a completed record stays as it is until its retention is over"
	CompletedTrue  Invariant = "a completed record had its effect"
	ReleasedTrue   Invariant = "a released identity had no effect"
	NoEffectTrue   Invariant = "an answer of no effect is true"
	SameAnswer     Invariant = "every answer executed or replayed is the recorded result"
	EffectKept     Invariant = "an acknowledged effect is never lost"
	ResolvesOwn    Invariant = "a resolution settles only the claim it was decided on"
	NothingIsStuck Invariant = "nothing is stuck: a settled state can always be reached"
)

// Invariants lists them all. NothingIsStuck speaks of the whole graph of
// states, the others of a state.
var Invariants = []Invariant{
	OneClaim, OneEffect, NoZombie, StaleNotKept, FencesUnique, Repeatable, SweepSpares, CompletedKept,
	CompletedTrue, ReleasedTrue, NoEffectTrue, SameAnswer, EffectKept, ResolvesOwn, NothingIsStuck,
}

// brokenSet is a set of positions in Invariants.
type brokenSet uint16

func bit(inv Invariant) brokenSet { return 1 << slices.Index(Invariants, inv) }

func set(invs []Invariant) (b brokenSet) {
	for _, inv := range invs {
		b |= bit(inv)
	}
	return b
}

func (b brokenSet) has(inv Invariant) bool { return b&bit(inv) != 0 }

func (b brokenSet) all() iter.Seq[Invariant] {
	return func(yield func(Invariant) bool) {
		for i, inv := range Invariants {
			if b&(1<<i) != 0 && !yield(inv) {
				return
			}
		}
	}
}

// check notes that a step broke inv, unless ok.
func (s *State) check(inv Invariant, ok bool) {
	if !ok {
		s.Seen.broken |= bit(inv)
	}
}

// checkState evaluates the invariants that can be read from a state. The
// others are noted down by the step that breaks them.
func (s *State) checkState() {
	s.check(OneEffect, s.World.Effects <= s.Seen.Allowed)
	s.check(EffectKept, s.Seen.Told == 0 || s.Rec.State == Completed && s.Rec.Result == s.Seen.Told)
	s.check(CompletedTrue, s.Rec.State != Completed || s.Rec.Expired || s.World.Effects > 0)
}

// answer tells a client that the effect's result is r.
func (s *State) answer(r Result) {
	s.check(SameAnswer, s.Rec.State == Completed && s.Rec.Result == r && (s.Seen.Told == 0 || s.Seen.Told == r))
	if s.Seen.Told == 0 {
		s.Seen.Told = r
	}
}

// answerNoEffect tells a client that the effect has certainly not happened.
func (s *State) answerNoEffect() {
	s.check(NoEffectTrue, s.World.Effects == 0 && !s.underWay())
}

// settled: nobody is at it, and nobody needs to be.
func (s *State) settled() bool {
	for _, o := range s.Owner {
		if o.Phase != Idle {
			return false
		}
	}
	return s.Rec.State == Absent || s.Rec.State == Completed
}

// over: no attempt that was granted the record can cause an effect any more.
// It is what deadline and settling time are for.
func (m *Model) over(s *State) bool {
	if m.Mutation == ResolveUnsettled {
		return true
	}
	for i := range s.Owner {
		if p := s.Owner[i].Phase; p == Claimed || p == Sent {
			return false
		}
	}
	return s.World.Orphans == 0
}
