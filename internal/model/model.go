package model

import "fmt"

// Policy is what a submit may do with a lapsed claim.
type Policy uint8

// The policies.
const (
	PolicyHold Policy = iota
	PolicyRetry
	PolicyReconcile
)

func (p Policy) String() string { return [...]string{"hold", "retry", "reconcile"}[p] }

// Mutation is one way to get it wrong.
type Mutation string

// Mutations of the store.
const (
	Faithful Mutation = ""
	// NoToken: fences are all that tells claims apart, and nothing tells a
	// repeated begin from another's.
	NoToken Mutation = "no token"
	// SharedToken: attempts do not have tokens of their own.
	SharedToken Mutation = "shared token"
	// FenceRestarts: the counter lives in the record and dies with it.
	FenceRestarts Mutation = "fence restarts after delete"
	// CheckThenAct: begin looks, and then writes whatever it finds.
	CheckThenAct Mutation = "check then act"
	// ExpiredUnchecked: the same, where the record is an expired one.
	ExpiredUnchecked Mutation = "expired record replaced without a second look"
	// BeginRevives: a repeated begin is granted whatever became of its claim.
	BeginRevives Mutation = "begin revives a settled claim"
	// LapsedIsFree: a lapsed lease frees the identity, as an expiring lock does.
	LapsedIsFree Mutation = "a lapsed lease frees the identity"
	// LeaseNeverLapses: a claim holds until its owner lets go.
	LeaseNeverLapses      Mutation = "the lease never lapses"
	TakeoverOfLive        Mutation = "takeover of a live lease"
	TakeoverKeepsFence    Mutation = "takeover keeps the fence"
	TakeoverKeepsReopened Mutation = "takeover leaves the record reopened"
	CompleteWithoutFence  Mutation = "complete without fence"
	ReleaseWithoutFence   Mutation = "release without fence"
	RenewWithoutFence     Mutation = "renew without fence"
	HoldOverwrites        Mutation = "hold overwrites a result"
	CompleteAfterResolve  Mutation = "complete after resolve"
	ResolveKeepsToken     Mutation = "a resolution leaves the claim's token"
	ResolveWithoutFence   Mutation = "resolve without fence"
	// LookFirst: a lapsed record is resolved as it is, without being marked
	// unknown before anyone looks what became of its effect. Meanwhile its
	// owner can revive it under the same fence.
	LookFirst       Mutation = "look, then resolve unmarked"
	SweepInProgress Mutation = "sweep of in_progress"
	SweepEarly      Mutation = "sweep before retention is over"
)

// Mutations of the guard.
const (
	// MarkBeforeEffect: the record is completed first, the effect comes after.
	MarkBeforeEffect Mutation = "mark before effect"
	// AnswerBeforeRecord: the result leaves before its record is durable.
	AnswerBeforeRecord Mutation = "answer before record"
	// ReleaseUnclear: an error releases the identity, whatever it says.
	ReleaseUnclear Mutation = "release of an unclear outcome"
	// ReleaseAfterTakeover: an owner that took over and had no effect itself
	// releases, though the effect of the one before it may have happened.
	ReleaseAfterTakeover Mutation = "release after takeover"
	// AbandonByTakeover: cleaning up after a begin takes the record over.
	AbandonByTakeover Mutation = "abandon takes over and releases"
	// LostReleaseIsNoEffect: a release answered "claim lost" is taken for its
	// own echo.
	LostReleaseIsNoEffect Mutation = "a lost release is answered as no effect"
	// UnavailableIsNoEffect: a store that cannot be asked is answered as if
	// it had said that there is nothing.
	UnavailableIsNoEffect Mutation = "unavailable is answered as no effect"
	// NoOneResolves: there is no operator, and no other way to resolve.
	NoOneResolves Mutation = "no one resolves"
)

// What happens if an assumption named in the package comment does not hold.
const (
	ResolveUnsettled   Mutation = "absent taken for no effect before the attempt is over"
	RetentionTooShort  Mutation = "retention over before the execution is"
	RetryNotIdempotent Mutation = "retry of an effect whose owner is not idempotent"
)

// Model is the configuration of one exploration.
type Model struct {
	Policy   Policy
	Mutation Mutation
	// Faults is how many of these may happen in one run: a call that is
	// delayed, a ruling that is carried out late, a decision to execute
	// again, a retention that ends. Crashes, pauses, lapses and other
	// rulings may happen at any time.
	Faults uint8
	// Restore adds a restore of the store from a backup, made before the
	// first claim. It loses results, so only the invariants about claims
	// can survive it.
	Restore bool
	// Verbatim turns off what rename does.
	Verbatim bool
}

// verbatim: names must be kept because fences may repeat, or for comparison.
func (m *Model) verbatim() bool {
	return m.Verbatim || m.Restore || m.Mutation == FenceRestarts || m.Mutation == TakeoverKeepsFence
}

// Initial is the state that everything starts from.
func (m *Model) Initial() State {
	var s State
	s.Seen.Allowed = 1
	return s
}

// claim is the right that an owner or a message names in its calls.
type claim struct {
	fence uint8
	token Token
	grant uint8
}

// Action is a step that can be taken in some states.
type Action struct {
	Name string
	// By is who takes it: "owner" for each owner, or another party.
	By string
	// take changes s into the state that the step leads to, or returns false
	// and leaves s alone if the step cannot be taken. o is the owner.
	take func(m *Model, s *State, o int) bool
}

// parties is how many there are to take the step.
func (a *Action) parties() int {
	if a.By == "owner" {
		return owners
	}
	return 1
}

func (a *Action) by(o int) string {
	if a.By == "owner" {
		return fmt.Sprintf("owner %d", o+1)
	}
	return a.By
}
