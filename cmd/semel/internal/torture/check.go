package torture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/outbox"
)

// Names of the checks. See the package comment.
const (
	checkSecondEffect    = "second-effect"
	checkSecondOfClaim   = "second-effect-of-claim"
	checkDiffer          = "answers-differ"
	checkMissing         = "effect-missing"
	checkLost            = "acknowledgement-lost"
	checkAfterRefusal    = "effect-after-refusal"
	checkWithoutCause    = "unknown-without-cause"
	checkStuck           = "stuck"
	checkTorn            = "torn-answer"
	checkFailedStart     = "failed-start"
	checkRolledBack      = "effect-of-rolled-back"
	checkOrder           = "out-of-order"
	checkUnexpected      = "unexpected-answer"
	maxTimeline          = 500 // lines of one
	maxViolationsPrinted = 20  // with their timelines
)

// Violation is a promise that was broken.
type Violation struct {
	Check  string `json:"check"`
	Key    string `json:"key"`
	Detail string `json:"detail"`
	// Faults are those that struck while the key was being worked on.
	Faults []string `json:"faults"`
	// Timeline is what happened to the key, and to the processes meanwhile.
	Timeline []string `json:"timeline"`
}

// evidence is what the checks look at.
type evidence struct {
	hold    bool // the policy; otherwise it is retry
	atomic  bool // records and effects are committed together
	lease   time.Duration
	start   time.Time
	events  []event
	effects []Effect
	// stuck keys are in progress under a lease that should have ended.
	stuck []string
	// over: nothing more will happen. Before that, what could still be
	// explained is no violation.
	over bool
	// shop has what there is of orders, where those are what is tortured, and
	// messages what is in the outbox.
	shop     *shopFacts
	messages map[string]outbox.Entry
}

// trouble is a time in which a process, or the machine, did not get on.
type trouble struct {
	what     string
	from, to time.Duration
}

const forever = time.Duration(1<<63 - 1)

// troubles returns them in the order of their beginnings.
func (e *evidence) troubles() []trouble {
	var all []trouble
	open := map[string]int{} // by process, its place in all
	for _, ev := range e.events {
		switch ev.kind {
		case kindKill, kindPause:
			open[ev.who] = len(all)
			all = append(all, trouble{string(ev.kind) + " " + ev.who, ev.at, forever})
		case kindStart, kindResume:
			if i, ok := open[ev.who]; ok {
				// What waited for it needs a while to get on.
				all[i].to = ev.at + e.lease/2
				delete(open, ev.who)
			}
		case kindStall:
			all = append(all, trouble{"stall", ev.at - ev.took, ev.at + e.lease/2})
		}
	}
	slices.SortStableFunc(all, func(a, b trouble) int { return cmp.Compare(a.from, b.from) })
	return all
}

// asked is one ask and what came of it.
type asked struct {
	event
	over   time.Duration // when it was answered or broke; forever if neither
	answer *answer       // nil without one
	left   bool          // the client did not wait for it
	effect string        // that an answer told of before it broke off
}

// completed reports whether the answer says that the operation is.
func (a *asked) completed() bool {
	return a.answer != nil && (a.answer.class == acknowledged || a.answer.class == notRetained)
}

// mayFollow reports whether an answer of the class may be given once the operation has
// completed.
func (c class) mayFollow(f form) bool {
	switch c {
	case unavailable, turnedAway:
		return true
	case acknowledged:
		return f.retained()
	case notRetained:
		return !f.retained()
	}
	return false
}

// keyHistory is what happened to one key.
type keyHistory struct {
	key     string
	asks    []*asked
	cuts    []event
	ends    []event
	effects []Effect
}

// span is from the first ask to the last thing known of the key.
func (k *keyHistory) span() (from, to time.Duration) {
	from = k.asks[0].at
	for _, a := range k.asks {
		if to = max(to, a.at); a.over != forever {
			to = max(to, a.over)
		}
	}
	return from, to
}

func (e *evidence) byKey() []*keyHistory {
	keys := map[string]*keyHistory{}
	asks := map[uint64]*asked{}
	var order []*keyHistory
	get := func(key string) *keyHistory {
		k := keys[key]
		if k == nil {
			k = &keyHistory{key: key}
			keys[key] = k
			order = append(order, k)
		}
		return k
	}
	for _, ev := range e.events {
		switch ev.kind {
		case kindAsk:
			a := &asked{event: ev, over: forever}
			asks[ev.ask] = a
			k := get(ev.key)
			k.asks = append(k.asks, a)
		case kindAnswer, kindBroken:
			a := asks[ev.ask]
			a.over, a.answer, a.left, a.effect = ev.at, ev.answer, ev.left, ev.effect
		case kindCut:
			if ev.key != "" {
				k := get(ev.key)
				k.cuts = append(k.cuts, ev)
			}
		case kindEnd:
			k := get(ev.key)
			k.ends = append(k.ends, ev)
		}
	}
	for _, f := range e.effects {
		k := get(f.Key)
		k.effects = append(k.effects, f)
	}
	return order
}

// check returns every violation, by the order in which keys were first asked.
func (e *evidence) check() []Violation {
	if e.shop != nil {
		return e.checkShop()
	}
	troubles := e.troubles()
	var all []Violation
	for _, k := range e.byKey() {
		found := func(check string, at time.Duration, format string, args ...any) {
			all = append(all, Violation{
				Check: check, Key: k.key, Detail: fmt.Sprintf(format, args...),
				Faults: k.struckBy(at, troubles), Timeline: e.timeline(k),
			})
		}
		if len(k.asks) == 0 {
			found(checkUnexpected, forever, "%d effects and %d cuts for a key that no client asked for", len(k.effects), len(k.cuts))
			continue
		}
		e.checkEffects(k, found)
		e.checkAnswers(k, found)
		e.checkCause(k, troubles, found)
		if slices.Contains(e.stuck, k.key) {
			found(checkStuck, forever, "its record is still in progress, under a lease that nobody should be renewing")
		}
	}
	return append(all, e.checkStarts(troubles)...)
}

// checkStarts: a gateway starts whatever state its database is in. What else is
// tortured may need it.
func (e *evidence) checkStarts(troubles []trouble) (all []Violation) {
	for _, ev := range e.events {
		if ev.kind != kindLog || !strings.HasPrefix(ev.who, "gateway") || !strings.HasPrefix(ev.text, didNotStart) {
			continue
		}
		v := Violation{Check: checkFailedStart, Key: "-", Detail: ev.who + " " + ev.text, Timeline: []string{ev.String()}}
		for _, t := range troubles {
			if t.from <= ev.at && t.to >= ev.at {
				v.Faults = append(v.Faults, t.what)
			}
		}
		all = append(all, v)
	}
	return all
}

// when an effect happened; forever if the ledger does not say.
func (e *evidence) when(f Effect) time.Duration {
	if f.At.IsZero() {
		return forever
	}
	return f.At.Sub(e.start)
}

// finder reports a violation that was there by the time at.
type finder func(check string, at time.Duration, format string, args ...any)

func (e *evidence) checkEffects(k *keyHistory, found finder) {
	if e.hold && len(k.effects) > 1 {
		found(checkSecondEffect, e.when(k.effects[1]), "it has %d effects", len(k.effects))
	}
	if !e.hold {
		fences := map[string]int{}
		for _, f := range k.effects {
			if fences[f.Fence]++; fences[f.Fence] == 2 {
				found(checkSecondOfClaim, e.when(f), "the claim with fence %s caused more than one effect", f.Fence)
			}
		}
	}
	refused := func(a *asked) bool {
		return a.answer != nil && (a.answer.class == noEffect || a.answer.class == turnedAway)
	}
	if len(k.effects) > 0 && !slices.ContainsFunc(k.asks, func(a *asked) bool { return !refused(a) }) {
		found(checkAfterRefusal, forever, "each of its %d asks was told that there was no effect, but there is", len(k.asks))
	}
}

func (e *evidence) checkAnswers(k *keyHistory, found finder) {
	// The first that told of completion, and of those the first that was whole,
	// by when they came.
	var first, whole *asked
	for _, a := range k.asks {
		if a.completed() && (first == nil || a.over < first.over) {
			first = a
		}
		if a.completed() && a.answer.class == acknowledged && (whole == nil || a.over < whole.over) {
			whole = a
		}
	}
	f := formOf(k.key)
	once := map[string]bool{} // each check finds a thing once
	find := func(check string, a *asked, format string, args ...any) {
		if check == checkUnexpected || check == checkTorn || !once[check] {
			once[check] = true
			found(check, a.over, format, args...)
		}
	}
	in := func(effect string) int {
		return slices.IndexFunc(k.effects, func(f Effect) bool { return f.ID == effect })
	}
	for _, a := range k.asks {
		if a.effect != "" && (e.atomic || f != formStream) && in(a.effect) < 0 {
			// Only of a stream without a transaction some passes before the effect.
			find(checkMissing, a, "ask #%d was told of effect %s before the answer broke off, and it is not in the ledger", a.ask, a.effect)
		}
		if a.answer == nil {
			continue
		}
		if first != nil && a.at > first.over && a.answer.class != unexpected && a.answer.class != torn && !a.answer.class.mayFollow(f) {
			find(checkLost, a, "ask #%d got %v; ask #%d, sent later, got %v", first.ask, first.answer, a.ask, a.answer)
		}
		switch a.answer.class {
		case unexpected:
			find(checkUnexpected, a, "ask #%d: %v", a.ask, a.answer)
		case torn:
			find(checkTorn, a, "ask #%d: %v came to its end, but is not all of the answer", a.ask, a.answer)
		case notRetained:
			if !slices.ContainsFunc(k.effects, func(f Effect) bool { return f.At.IsZero() || e.when(f) <= a.over }) {
				find(checkMissing, a, "ask #%d was told that the operation completed, and there was no effect in the ledger", a.ask)
			}
		case acknowledged:
			if a.answer.digest != whole.answer.digest {
				find(checkDiffer, a, "ask #%d: %v; ask #%d: %v", whole.ask, whole.answer, a.ask, a.answer)
			} else if a != whole && !f.retained() {
				find(checkUnexpected, a, "ask #%d and ask #%d both got all of an answer that cannot be replayed", whole.ask, a.ask)
			}
			if i := in(a.answer.effect); i < 0 {
				find(checkMissing, a, "ask #%d was told of effect %s, which is not in the ledger", a.ask, a.answer.effect)
			} else if d := k.effects[i].Digest; d != "" && d != a.answer.digest {
				find(checkDiffer, a, "ask #%d: %v; the ledger's answer has digest %s", a.ask, a.answer, d)
			}
		}
	}
	if last := k.asks[len(k.asks)-1]; e.over && len(k.ends) > 0 && k.ends[len(k.ends)-1].text == endGaveUp {
		// At the end every key is asked for until it is settled.
		found(checkStuck, forever, "nobody could learn what became of it: the last ask, #%d, was %v", last.ask, last.answer)
	}
}

// checkCause looks for a reason why an outcome became unknown. The execution does
// not depend on its client, so only what struck the processes, or the connection
// between gateway and ledger, can be one.
func (e *evidence) checkCause(k *keyHistory, troubles []trouble, found finder) {
	for _, a := range k.asks {
		if a.answer == nil || a.answer.class != unknown {
			continue
		}
		if !e.over && a.over > e.events[len(e.events)-1].at-e.lease {
			return // a stall is noted when it is over
		}
		from := k.asks[0].at
		for _, t := range troubles {
			if t.from <= a.over && t.to >= from {
				return
			}
		}
		for _, c := range k.cuts {
			if c.side == back && c.at <= a.over {
				return
			}
		}
		found(checkWithoutCause, a.over, "ask #%d: %v; since the first ask no process was killed or paused, and its request was not cut off from the ledger", a.ask, a.answer)
		return
	}
}

// struckBy returns what struck a key, and what struck the processes while it was
// worked on, until at.
func (k *keyHistory) struckBy(at time.Duration, troubles []trouble) []string {
	struck := map[string]bool{}
	for _, c := range k.cuts {
		if c.at <= at {
			struck[fmt.Sprintf("cut %s %s", c.side, c.text)] = true
		}
	}
	for _, a := range k.asks {
		if a.over <= at && a.answer == nil && a.left {
			struck["client left"] = true
		}
	}
	if len(k.asks) > 0 {
		from, to := k.span()
		for _, t := range troubles {
			if t.from <= min(to, at) && t.to >= from {
				struck[t.what] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(struck))
}

// timeline is all that happened to a key, and to the processes meanwhile.
func (e *evidence) timeline(k *keyHistory) (timeline []string) {
	if len(k.asks) == 0 {
		return nil
	}
	from, to := k.span()
	for _, f := range k.effects {
		if !f.At.IsZero() {
			to = max(to, e.when(f))
		}
	}
	var lines []event
	for _, ev := range e.events {
		around := ev.at >= from-e.lease && ev.at <= to+e.lease
		switch ev.kind {
		case kindKill, kindStart, kindPause, kindResume, kindStall, kindPhase, kindHold, kindPass:
			if around {
				lines = append(lines, ev)
			}
		default:
			if ev.key == k.key {
				lines = append(lines, ev)
			}
		}
	}
	for _, f := range k.effects {
		lines = append(lines, event{
			at: min(e.when(f), to), kind: kindEffect, who: "ledger", key: k.key,
			text: fmt.Sprintf("effect %s under fence %s, by process %d, answer's digest %s", f.ID, f.Fence, f.PID, f.Digest),
		})
	}
	slices.SortStableFunc(lines, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for i, l := range lines {
		if i == maxTimeline {
			timeline = append(timeline, fmt.Sprintf("... and %d lines more, in the timeline of the run", len(lines)-i))
			break
		}
		timeline = append(timeline, l.String())
	}
	return timeline
}
