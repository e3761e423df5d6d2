// Package probe tests from outside whether an operation survives duplicates,
// races, lost responses and redeliveries. It sends what a [plan.Plan] says,
// reads the target's state before and after, and judges by the state first, by
// the ids in the responses second, and by their statuses last: responses that
// look alike prove nothing about effects.
//
// # Safety
//
// Without [Options.Send] a run is a dry run: every request is rendered and
// listed, nothing is sent, no reader reads and no program is started. With it,
// only the addresses of the plan's and the options' allow lists are contacted,
// and only as often as the plan's budget allows, state readers included.
// Targets that are marked as production also need [Options.Production], and are
// never raced, cut off or made to fail.
//
// # What an outcome rests on
//
// Every experiment begins with its own control: a request with a fresh key,
// whose effect each state reader has to see before anything else is believed.
// Experiments whose preconditions do not hold are inconclusive, never passed.
// The state is used once it has been unchanged for a multiple of the time that
// the control's effect took to appear, so the probe waits for late effects.
package probe
