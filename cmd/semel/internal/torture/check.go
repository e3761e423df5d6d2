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
	checkDiffer          = "responses-differ"
	checkMissing         = "effect-missing"
	checkLost            = "acknowledgement-lost"
	checkAfterRefusal    = "effect-after-refusal"
	checkWithoutCause    = "unknown-without-cause"
	checkStuck           = "stuck"
	checkTorn            = "torn-response"
	checkFailedStart     = "failed-start"
	checkRolledBack      = "effect-of-rolled-back"
	checkOrder           = "out-of-order"
	checkUnexpected      = "unexpected-response"
	maxTimeline          = 500 // lines of one
	maxViolationsPrinted = 20  // with their timelines
)

// Violation is a promise that was broken.
type Violation struct {
	Check  string `json:"check"`
	Key    string `json:"key"`
	Detail string `json:"detail"`
	// Faults struck while clients worked on the key.
	Faults []string `json:"faults"`
	// Timeline lists what happened to the key, and to the processes meanwhile.
	Timeline []string `json:"timeline"`
}

// evidence is what the checks look at.
type evidence struct {
	hold    bool // the policy is hold; otherwise it is retry
	atomic  bool // records and effects are committed together
	lease   time.Duration
	start   time.Time
	events  []event
	effects []Effect
	// stuck lists keys in progress under a lease that should have ended.
	stuck []string
	// over: the run has ended. Before that, what a later event may explain is
	// not a violation.
	over bool
	// shop and messages are the orders and the outbox if a shop is tortured.
	shop     *shopFacts
	messages map[string]outbox.Entry
}

// trouble is a time in which a process, or the machine, made no progress.
type trouble struct {
	what     string
	from, to time.Duration
}

const forever = time.Duration(1<<63 - 1)

// troubles returns the troubles in the order in which they began.
func (e *evidence) troubles() []trouble {
	var all []trouble
	open := map[string]int{} // by process: index in all
	for _, ev := range e.events {
		switch ev.kind {
		case kindKill, kindPause:
			open[ev.who] = len(all)
			all = append(all, trouble{string(ev.kind) + " " + ev.who, ev.at, forever})
		case kindStart, kindResume:
			if i, ok := open[ev.who]; ok {
				// What waited for it needs a while to continue.
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

// attempt is an attempt and its result.
type attempt struct {
	event
	over     time.Duration // when it got a response or broke; forever if neither
	response *response     // nil without one
	left     bool          // the client stopped waiting
	effect   string        // named by a response that broke off
}

// completed reports whether the response says that the operation completed.
func (a *attempt) completed() bool {
	return a.response != nil && (a.response.class == acknowledged || a.response.class == notRetained)
}

// mayFollow reports whether a response of class c is allowed after the operation has
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

// keyHistory lists what happened to one key.
type keyHistory struct {
	key      string
	attempts []*attempt
	cuts     []event
	ends     []event
	effects  []Effect
}

// span returns the times of the first attempt and of the last event of the key.
func (k *keyHistory) span() (from, to time.Duration) {
	from = k.attempts[0].at
	for _, a := range k.attempts {
		if to = max(to, a.at); a.over != forever {
			to = max(to, a.over)
		}
	}
	return from, to
}

func (e *evidence) byKey() []*keyHistory {
	keys := map[string]*keyHistory{}
	attempts := map[uint64]*attempt{}
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
		case kindAttempt:
			a := &attempt{event: ev, over: forever}
			attempts[ev.attempt] = a
			k := get(ev.key)
			k.attempts = append(k.attempts, a)
		case kindResponse, kindBroken:
			a := attempts[ev.attempt]
			a.over, a.response, a.left, a.effect = ev.at, ev.response, ev.left, ev.effect
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

// check returns every violation, in the order in which the keys were first sent.
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
		if len(k.attempts) == 0 {
			found(checkUnexpected, forever, "%d effects and %d cuts for a key that no client sent", len(k.effects), len(k.cuts))
			continue
		}
		e.checkEffects(k, found)
		e.checkResponses(k, found)
		e.checkCause(k, troubles, found)
		if slices.Contains(e.stuck, k.key) {
			found(checkStuck, forever, "its record is still in progress, under a lease that nobody should be renewing")
		}
	}
	return append(all, e.checkStarts(troubles)...)
}

// checkStarts returns a violation for each start of a gateway that failed. Only other
// subjects may need their database to start.
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

// when returns when an effect happened, or forever if the ledger does not say.
func (e *evidence) when(f Effect) time.Duration {
	if f.At.IsZero() {
		return forever
	}
	return f.At.Sub(e.start)
}

// finder reports a violation that existed at the given time.
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
	refused := func(a *attempt) bool {
		return a.response != nil && (a.response.class == noEffect || a.response.class == turnedAway)
	}
	if len(k.effects) > 0 && !slices.ContainsFunc(k.attempts, func(a *attempt) bool { return !refused(a) }) {
		found(checkAfterRefusal, forever, "the response to each of its %d attempts said that there was no effect, but there is one", len(k.attempts))
	}
}

func (e *evidence) checkResponses(k *keyHistory, found finder) {
	// The first attempt whose response said completed, and the first of these with
	// a whole response, by the time of the response.
	var first, whole *attempt
	for _, a := range k.attempts {
		if a.completed() && (first == nil || a.over < first.over) {
			first = a
		}
		if a.completed() && a.response.class == acknowledged && (whole == nil || a.over < whole.over) {
			whole = a
		}
	}
	f := formOf(k.key)
	once := map[string]bool{} // checks that have found something
	find := func(check string, a *attempt, format string, args ...any) {
		if check == checkUnexpected || check == checkTorn || !once[check] {
			once[check] = true
			found(check, a.over, format, args...)
		}
	}
	in := func(effect string) int {
		return slices.IndexFunc(k.effects, func(f Effect) bool { return f.ID == effect })
	}
	for _, a := range k.attempts {
		if a.effect != "" && (e.atomic || f != formStream) && in(a.effect) < 0 {
			// Only a stream without a transaction may begin before its effect.
			find(checkMissing, a, "attempt #%d was told of effect %s before the response broke off, and it is not in the ledger", a.attempt, a.effect)
		}
		if a.response == nil {
			continue
		}
		if first != nil && a.at > first.over && a.response.class != unexpected && a.response.class != torn && !a.response.class.mayFollow(f) {
			find(checkLost, a, "attempt #%d got %v; attempt #%d, sent later, got %v", first.attempt, first.response, a.attempt, a.response)
		}
		switch a.response.class {
		case unexpected:
			find(checkUnexpected, a, "attempt #%d: %v", a.attempt, a.response)
		case torn:
			find(checkTorn, a, "attempt #%d: %v came to its end, but is not the whole response", a.attempt, a.response)
		case notRetained:
			if !slices.ContainsFunc(k.effects, func(f Effect) bool { return f.At.IsZero() || e.when(f) <= a.over }) {
				find(checkMissing, a, "attempt #%d was told that the operation completed, but there was no effect in the ledger", a.attempt)
			}
		case acknowledged:
			if a.response.digest != whole.response.digest {
				find(checkDiffer, a, "attempt #%d: %v; attempt #%d: %v", whole.attempt, whole.response, a.attempt, a.response)
			} else if a != whole && !f.retained() {
				find(checkUnexpected, a, "attempt #%d and attempt #%d both got a whole response that cannot be replayed", whole.attempt, a.attempt)
			}
			if i := in(a.response.effect); i < 0 {
				find(checkMissing, a, "attempt #%d was told of effect %s, which is not in the ledger", a.attempt, a.response.effect)
			} else if d := k.effects[i].Digest; d != "" && d != a.response.digest {
				find(checkDiffer, a, "attempt #%d: %v; the ledger's response has digest %s", a.attempt, a.response, d)
			}
		}
	}
	if last := k.attempts[len(k.attempts)-1]; e.over && len(k.ends) > 0 && k.ends[len(k.ends)-1].text == endGaveUp {
		// At the end every key is sent until it is settled.
		found(checkStuck, forever, "no client could learn its outcome: the last attempt, #%d, got %v", last.attempt, last.response)
	}
}

// checkCause reports an unknown outcome without a cause. An execution does not depend
// on its client, so only a fault of the processes, or of the connection between gateway
// and ledger, is a cause.
func (e *evidence) checkCause(k *keyHistory, troubles []trouble, found finder) {
	for _, a := range k.attempts {
		if a.response == nil || a.response.class != unknown {
			continue
		}
		if !e.over && a.over > e.events[len(e.events)-1].at-e.lease {
			return // a stall is noted only when it is over
		}
		from := k.attempts[0].at
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
		found(checkWithoutCause, a.over, "attempt #%d: %v; since the first attempt no process was killed or paused, and its request was not cut off from the ledger", a.attempt, a.response)
		return
	}
}

// struckBy returns the faults that struck the key, or the processes while clients
// worked on it, until at.
func (k *keyHistory) struckBy(at time.Duration, troubles []trouble) []string {
	struck := map[string]bool{}
	for _, c := range k.cuts {
		if c.at <= at {
			struck[fmt.Sprintf("cut %s %s", c.side, c.text)] = true
		}
	}
	for _, a := range k.attempts {
		if a.over <= at && a.response == nil && a.left {
			struck["client left"] = true
		}
	}
	if len(k.attempts) > 0 {
		from, to := k.span()
		for _, t := range troubles {
			if t.from <= min(to, at) && t.to >= from {
				struck[t.what] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(struck))
}

// timeline lists what happened to a key, and to the processes meanwhile.
func (e *evidence) timeline(k *keyHistory) (timeline []string) {
	if len(k.attempts) == 0 {
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
			text: fmt.Sprintf("effect %s under fence %s, by process %d, response's digest %s", f.ID, f.Fence, f.PID, f.Digest),
		})
	}
	slices.SortStableFunc(lines, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for i, l := range lines {
		if i == maxTimeline {
			timeline = append(timeline, fmt.Sprintf("... and %d more lines, in the timeline of the run", len(lines)-i))
			break
		}
		timeline = append(timeline, l.String())
	}
	return timeline
}
