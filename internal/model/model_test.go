package model

import (
	"testing"

	"github.com/semelhq/semel/internal/quick"
)

const faults = 2

func TestModel(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		// states is how many there must be: fewer would mean that part of the
		// model is out of reach.
		states int
	}{
		{PolicyHold, 290_000}, {PolicyRetry, 760_000}, {PolicyReconcile, 360_000},
	} {
		t.Run(c.policy.String(), func(t *testing.T) {
			t.Parallel()
			m := &Model{Policy: c.policy, Faults: faults}
			rep := holds(t, m)
			if rep.States < c.states {
				t.Errorf("explored %d states, want at least %d", rep.States, c.states)
			}
			for _, a := range m.Actions() {
				if rep.Fired[a.Name] == 0 {
					t.Errorf("%s never happens: %s", a.By, a.Name)
				}
			}
		})
	}
}

// TestRestore restores the store from a backup, where fences repeat. Results are
// lost then, but the tokens still tell claims apart.
func TestRestore(t *testing.T) {
	m := &Model{Policy: PolicyHold, Restore: true}
	rep := m.Explore([]Invariant{OneClaim, NoZombie, StaleNotKept})
	t.Logf("%d states, %d steps", rep.States, rep.Steps)
	for inv, trace := range rep.Broken {
		t.Errorf("%s:\n%v", inv, trace)
	}
	if rep.Fired[restore.Name] == 0 {
		t.Error("nothing was restored")
	}
}

// TestMutations breaks the model in one place at a time. Each break must be
// seen, as the invariant that it is about.
func TestMutations(t *testing.T) {
	for _, c := range []struct {
		mutation Mutation
		policy   Policy
		faults   uint8
		restore  bool
		breaks   []Invariant
	}{
		{NoToken, PolicyHold, 1, false, []Invariant{Repeatable}},
		{NoToken, PolicyHold, 0, true, []Invariant{NoZombie}},
		{SharedToken, PolicyHold, 0, false, []Invariant{OneEffect}},
		{FenceRestarts, PolicyHold, 1, false, []Invariant{FencesUnique, ResolvesOwn}},
		{CheckThenAct, PolicyHold, 0, false, []Invariant{OneClaim, OneEffect}},
		{ExpiredUnchecked, PolicyHold, 1, false, []Invariant{OneClaim, OneEffect}},
		{BeginRevives, PolicyHold, 1, false, []Invariant{CompletedKept, EffectKept}},
		{LapsedIsFree, PolicyHold, 0, false, []Invariant{OneEffect}},
		{LeaseNeverLapses, PolicyHold, 0, false, []Invariant{NothingIsStuck}},
		{TakeoverOfLive, PolicyRetry, 0, false, []Invariant{OneClaim}},
		{TakeoverKeepsFence, PolicyHold, 1, false, []Invariant{FencesUnique, OneEffect}},
		{TakeoverKeepsReopened, PolicyHold, 1, false, []Invariant{OneEffect}},
		{CompleteWithoutFence, PolicyRetry, 0, false, []Invariant{NoZombie}},
		{ReleaseWithoutFence, PolicyHold, 0, false, []Invariant{NoZombie, ReleasedTrue, OneEffect}},
		{RenewWithoutFence, PolicyRetry, 0, false, []Invariant{StaleNotKept}},
		{HoldOverwrites, PolicyHold, 1, false, []Invariant{CompletedKept, EffectKept}},
		{CompleteAfterResolve, PolicyHold, 0, false, []Invariant{NoZombie, EffectKept}},
		{ResolveKeepsToken, PolicyHold, 0, false, []Invariant{SameAnswer}},
		{ResolveWithoutFence, PolicyHold, 1, false, []Invariant{ResolvesOwn, ReleasedTrue, OneEffect}},
		{LookFirst, PolicyReconcile, 1, false, []Invariant{OneEffect}},
		{SweepInProgress, PolicyHold, 0, false, []Invariant{SweepSpares, OneEffect}},
		{SweepEarly, PolicyHold, 0, false, []Invariant{CompletedKept, EffectKept, OneEffect}},

		{MarkBeforeEffect, PolicyHold, 0, false, []Invariant{CompletedTrue}},
		{AnswerBeforeRecord, PolicyHold, 0, false, []Invariant{EffectKept}},
		{ReleaseUnclear, PolicyHold, 0, false, []Invariant{ReleasedTrue, OneEffect}},
		{ReleaseAfterTakeover, PolicyRetry, 0, false, []Invariant{ReleasedTrue, NoEffectTrue}},
		{ReleaseAfterTakeover, PolicyHold, 1, false, []Invariant{ReleasedTrue, NoEffectTrue}},
		{AbandonByTakeover, PolicyRetry, 0, false, []Invariant{ReleasedTrue}},
		{LostReleaseIsNoEffect, PolicyRetry, 0, false, []Invariant{NoEffectTrue}},
		{UnavailableIsNoEffect, PolicyHold, 0, false, []Invariant{NoEffectTrue}},
		{NoOneResolves, PolicyHold, 0, false, []Invariant{NothingIsStuck}},
	} {
		name := string(c.mutation) + "/" + c.policy.String()
		if c.restore {
			name += ", store restored"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &Model{Policy: c.policy, Mutation: c.mutation, Faults: c.faults, Restore: c.restore}
			breaks(t, m, c.breaks)
		})
	}
}

func breaks(t *testing.T, m *Model, invs []Invariant) {
	t.Helper()
	for _, inv := range invs {
		rep := m.Explore([]Invariant{inv}, inv)
		trace := rep.Broken[inv]
		if trace == nil {
			t.Errorf("%d states and nothing breaks %q", rep.States, inv)
			continue
		}
		t.Logf("%s (%d states):\n%v", inv, rep.States, trace)
	}
}

// TestAssumptions drops what the software cannot enforce.
func TestAssumptions(t *testing.T) {
	for _, c := range []struct {
		mutation Mutation
		policy   Policy
		faults   uint8
		breaks   []Invariant
	}{
		{ResolveUnsettled, PolicyHold, 0, []Invariant{ReleasedTrue, OneEffect}},
		{ResolveUnsettled, PolicyReconcile, 0, []Invariant{OneEffect}},
		{RetentionTooShort, PolicyRetry, 1, []Invariant{ReleasedTrue}},
		{RetryNotIdempotent, PolicyRetry, 0, []Invariant{OneEffect}},
	} {
		t.Run(string(c.mutation)+"/"+c.policy.String(), func(t *testing.T) {
			t.Parallel()
			breaks(t, &Model{Policy: c.policy, Mutation: c.mutation, Faults: c.faults}, c.breaks)
		})
	}
}

func holds(t *testing.T, m *Model) Report {
	t.Helper()
	rep := m.Explore(Invariants)
	t.Logf("%d states, %d steps", rep.States, rep.Steps)
	for inv, trace := range rep.Broken {
		t.Errorf("%s:\n%v", inv, trace)
	}
	return rep
}

// TestRenaming explores without renaming and finds no state that the
// exploration with renaming has missed, nor one that it made up.
func TestRenaming(t *testing.T) {
	quick.LeaveOut(t)
	for _, c := range []struct {
		policy Policy
		faults uint8
	}{{PolicyHold, faults - 1}, {PolicyRetry, 0}, {PolicyReconcile, 0}} {
		t.Run(c.policy.String(), func(t *testing.T) {
			t.Parallel()
			m := &Model{Policy: c.policy, Faults: c.faults}
			verbatim := *m
			verbatim.Verbatim = true
			all := make(map[State]bool)
			for s := range verbatim.reachable() {
				if s.Seen.broken != 0 {
					t.Fatalf("broken: %v", s)
				}
				s.rename()
				all[s] = true
			}
			few := m.reachable()
			t.Logf("%d states by name", len(few))
			for s := range few {
				if !all[s] {
					t.Fatalf("not reachable: %v", s)
				}
			}
			for s := range all {
				if !few[s] {
					t.Fatalf("missed: %v", s)
				}
			}
		})
	}
}

// reachable is Explore, plainly.
func (m *Model) reachable() map[State]bool {
	seen := map[State]bool{m.Initial(): true}
	queue := []State{m.Initial()}
	actions := m.Actions()
	for len(queue) > 0 {
		from := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for a := range actions {
			for o := range actions[a].parties() {
				if s := from; m.take(&actions[a], &s, o) && !seen[s] {
					seen[s] = true
					queue = append(queue, s)
				}
			}
		}
	}
	return seen
}

// TestStepsNotTaken holds actions to their promise to leave the state alone.
func TestStepsNotTaken(t *testing.T) {
	m := &Model{Policy: PolicyHold, Faults: faults - 1}
	for from := range m.reachable() {
		for _, a := range m.Actions() {
			for o := range a.parties() {
				if s := from; !a.take(m, &s, o) && s != from {
					t.Fatalf("%s changes\n%v\ninto\n%v", a.Name, from, s)
				}
			}
		}
	}
}
