package model

import (
	"fmt"
	"slices"
	"strings"
)

// Report is what an exploration found.
type Report struct {
	States, Steps int
	// Fired counts the steps by action.
	Fired map[string]int
	// Broken holds a shortest way to break each invariant that broke.
	Broken map[Invariant]Trace
}

// Trace is a way through the model, from the initial state on.
type Trace []Step

// Step is an action taken and the state it led to.
type Step struct {
	Action string
	State  State
}

func (t Trace) String() string {
	var b strings.Builder
	for i, s := range t {
		fmt.Fprintf(&b, "%2d. %s\n      %v\n", i+1, s.Action, s.State)
	}
	return b.String()
}

type node struct {
	state  State
	parent int32
}

// Explore visits every reachable state, breadth first, and watches the
// invariants. A state that breaks one of them is not explored further. With
// until, it stops as soon as these are broken.
func (m *Model) Explore(watch []Invariant, until ...Invariant) Report {
	watched := set(watch)
	actions := m.Actions()
	var (
		nodes = []node{{state: m.Initial(), parent: -1}}
		index = map[State]int32{nodes[0].state: 0}
		fired = make([]int, len(actions))
		edges []edge
		rep   = Report{Fired: make(map[string]int), Broken: make(map[Invariant]Trace)}
	)
	done := func() bool {
		for _, inv := range until {
			if rep.Broken[inv] == nil {
				return false
			}
		}
		return len(until) > 0
	}
	var s State // the step's: outside the loop, to be allocated once
	for i := int32(0); int(i) < len(nodes) && !done(); i++ {
		if nodes[i].state.Seen.broken != 0 {
			continue
		}
		s = nodes[i].state
		for a := range actions {
			for o := range actions[a].parties() {
				if !m.take(&actions[a], &s, o) {
					continue
				}
				s.Seen.broken &= watched
				fired[a]++
				j, known := index[s]
				if !known {
					j = int32(len(nodes))
					index[s] = j
					nodes = append(nodes, node{s, i})
					for inv := range s.Seen.broken.all() {
						if rep.Broken[inv] == nil {
							rep.Broken[inv] = m.trace(nodes, j, watched)
						}
					}
				}
				edges = append(edges, edge{i, j})
				s = nodes[i].state
			}
		}
	}
	rep.States, rep.Steps = len(nodes), len(edges)
	for a := range actions {
		rep.Fired[actions[a].Name] = fired[a]
	}
	if watched.has(NothingIsStuck) && !done() {
		if i := stuck(nodes, edges); i >= 0 {
			rep.Broken[NothingIsStuck] = m.trace(nodes, i, watched)
		}
	}
	return rep
}

// take takes the step from s, if it can be taken, and looks at where it leads.
func (m *Model) take(a *Action, s *State, o int) bool {
	if !a.take(m, s, o) {
		return false
	}
	s.checkState()
	if !m.verbatim() {
		s.rename()
	}
	return true
}

// trace walks the way to state j again, without renaming, so that it reads as
// one story.
func (m *Model) trace(nodes []node, j int32, watched brokenSet) Trace {
	var path []int32
	for ; nodes[j].parent >= 0; j = nodes[j].parent {
		path = append(path, j)
	}
	slices.Reverse(path)
	verbatim := *m
	verbatim.Verbatim = true
	var t Trace
	now := m.Initial()
next:
	for _, j := range path {
		for _, a := range m.Actions() {
			for o := range a.parties() {
				s := now
				if !verbatim.take(&a, &s, o) {
					continue
				}
				s.Seen.broken &= watched
				renamed := s
				if !m.verbatim() {
					renamed.rename()
				}
				if renamed == nodes[j].state {
					t = append(t, Step{a.by(o) + ": " + a.Name, s})
					now = s
					continue next
				}
			}
		}
		panic("model: a path cannot be walked again: renaming is unsound")
	}
	return t
}

type edge struct{ from, to int32 }

// stuck returns the first state from which no settled one can be reached, or
// -1. It walks the steps backwards from the settled states.
func stuck(nodes []node, edges []edge) int32 {
	// The steps that lead to state j come from into[start[j]:start[j+1]].
	start := make([]int32, len(nodes)+1)
	for _, e := range edges {
		start[e.to+1]++
	}
	for j := range nodes {
		start[j+1] += start[j]
	}
	into := make([]int32, len(edges))
	free := slices.Clone(start)
	for _, e := range edges {
		into[free[e.to]] = e.from
		free[e.to]++
	}

	live := make([]bool, len(nodes))
	var queue []int32
	for i := range nodes {
		// What comes after a broken invariant was not explored.
		if s := &nodes[i].state; s.settled() || s.Seen.broken != 0 {
			live[i] = true
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		j := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, i := range into[start[j]:start[j+1]] {
			if !live[i] {
				live[i] = true
				queue = append(queue, i)
			}
		}
	}
	return int32(slices.Index(live, false))
}
