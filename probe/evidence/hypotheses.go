package evidence

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// RuledOut means that the experiments that would have shown it did not. It holds
// only for what was tried, under the conditions of the run.
const RuledOut CauseState = "ruled out as far as tried"

// Standing is a hypothesis of the method and its state. There are four, and a run
// has a Standing for each.
type Standing struct {
	Name string `json:"name"` // A to D
	Text string `json:"text"`
	// State is Supported, RuledOut or Open.
	State CauseState `json:"state"`
	// Because gives the reason for the state.
	Because string `json:"because"`
	// Next is the check that would decide it, or decide it better, with the
	// option or the key of the plan that it needs.
	Next string `json:"next"`
}

// hypothesis is one of the four, with the experiments and findings that decide
// it.
type hypothesis struct {
	name, text string
	// decides are the experiments that rule it out if all of them held; of a list
	// of several, one is enough. Those in also are named as well, but rule nothing
	// out.
	decides [][]string
	also    []string
	// try are the experiments of the next check, with what else it needs.
	try, with string
}

func (h hypothesis) next() string { return "--only " + h.try + h.with }

// hypothesesOf are the four, in the words of an operation with or without a key.
func (o *Operation) hypothesesOf() []hypothesis {
	a := hypothesis{
		name: "A", text: "Not implemented: duplicates are not recognised at all, or not for all effects.",
		decides: [][]string{{"duplicate", "late_retry", "redelivery", "reordered"}},
		try:     "duplicate,late_retry",
	}
	if !slices.ContainsFunc(o.Readers, func(r Reader) bool { return r.Seen && !r.Outside }) {
		a.with = ", with a reader of the state that sees its effect (operations[].readers)"
	}
	b := hypothesis{
		name: "B", text: "Weak in races: duplicates are recognised when they come one after the other, but not when they come at the same time.",
		decides: [][]string{{"race"}}, also: []string{"in_flight", "race_altered"},
		try: "duplicate,race", with: " --trials 60 --max-sends " + strconv.Itoa(o.sixty()) + " (race.trials, race.width, budget.max_sends); more trials leave open a lower rate",
	}
	c := hypothesis{
		name: "C", text: "Multiplies on failure: a lost response or a failed attempt makes the retry double, lose or block the effect.",
		decides: [][]string{{"lost_unread"}, {"lost_begun"}}, also: []string{"failed_first", "corrected"},
		try: "duplicate,lost_unread,lost_begun,failed_first",
	}
	d := hypothesis{
		name: "D", text: "Weakly bound: a key replays for, or blocks, a different request or another party; or it does not hold on another instance, later, or for the same request in another form.",
		decides: [][]string{{"altered"}, {"other_actor"}, {"other_tenant"}},
		also:    []string{"missing_key", "malformed_key", "other_operation", "other_instance", "same_meaning", "late_retry", "retention_search"},
		try:     "duplicate,altered,other_actor,other_tenant", with: " (operations[].altered, principals.actor_b, principals.tenant_b)",
	}
	switch {
	case o.Signed:
		d.text = "Weakly bound: an event's id replays for, or blocks, a different event; or it does not hold later."
		d.decides, d.also = [][]string{{"redelivery"}}, []string{"altered", "late_retry"}
		d.try, d.with = "redelivery", " (operations[].altered)"
	case o.KeyIn == NoKey:
		d.text = "Weakly bound: what identifies a request replays for, or blocks, a different request or another party; or it does not hold on another instance, later, or for the same request in another form."
		d.decides, d.also = [][]string{{"altered"}, {"other_tenant"}}, []string{"other_instance", "same_meaning", "late_retry"}
		d.try, d.with = "duplicate,altered,other_tenant", " (operations[].altered, principals.tenant_b)"
	}
	return []hypothesis{a, b, c, d}
}

// sixty is a budget of requests that suffices for duplicate and sixty trials of
// a race, with room for controls and for what is sent again.
func (o *Operation) sixty() int {
	width := 10 // as a plan has it by default
	for _, e := range o.Experiments {
		if e.Race != nil && e.Race.Width > 0 {
			width = e.Race.Width
		}
	}
	return (60*width + 99) / 50 * 50
}

// supports returns the hypothesis that a finding supports, by what was found and
// in which experiment; empty if there is none. A target that recognises no
// duplicates has some findings in every experiment; these add nothing to that.
func (o *Operation) supports(f Finding) string {
	alone := o.recognises() // some duplicate was recognised
	switch f.ID {
	case FindingKeyIgnored, FindingRateLimitIsNotIdempotency:
		return "A"
	case FindingDoubleEffectRace, FindingInFlightExecuted:
		return "B"
	case FindingDoubleEffectLostResponse, FindingFailureNotRepeatable, FindingFailureBlocksKey, FindingTruncatedExecuted, FindingRefusalSticks:
		return "C"
	case FindingRefusalExecuted:
		switch f.Experiment {
		case "lost_unread", "lost_begun", "failed_first", "corrected":
			return "C"
		}
		return "" // nothing failed, and nothing was repeated
	case FindingKeyNotScopedTenant, FindingKeyNotScopedActor, FindingKeyNotScopedOperation, FindingMalformedKeyAcceptedUnprotected, FindingKeylessRequestsConfused, FindingChangeNotMade, FindingPreviewUsesKey,
		FindingInstanceDoubles, FindingSameMeaningExecuted, FindingChangeDoubles, FindingContentNotRecognised, FindingKeyForgotten, FindingWebhookAlteredAccepted, FindingWebhookStaleAccepted:
		return "D"
	case FindingDoubleEffectSequential, FindingWebhookRedeliveryDoubles, FindingOutsideEffectDoubled, FindingEffectsDisagree:
		switch f.Experiment {
		case "race", "in_flight", "race_altered":
			return "B"
		case "lost_unread", "lost_begun", "failed_first", "corrected":
			return "C"
		case "other_instance":
			return "D"
		}
		switch {
		case !alone || f.ID == FindingOutsideEffectDoubled || f.ID == FindingEffectsDisagree:
			return "A"
		case o.failedFirst(f):
			return "C"
		}
		return "D" // later, or after another request
	case FindingMismatchExecuted, FindingMismatchReplayedAsSame:
		if f.Experiment == "race_altered" {
			return "B"
		}
		return "D"
	case FindingLostEffect:
		switch f.Experiment {
		case "race", "in_flight", "race_altered":
			return "B"
		case "lost_unread", "lost_begun", "failed_first", "corrected":
			return "C"
		}
		switch {
		case o.failedFirst(f):
			return "C"
		case f.Experiment == "fresh_key", f.Experiment == "malformed_key", f.Experiment == "missing_key":
			return "D"
		}
	}
	return ""
}

// recognises reports whether a duplicate of an answered request was seen to have
// no effect of its own.
func (o *Operation) recognises() bool {
	for _, name := range []string{"duplicate", "redelivery", "late_retry", "reordered"} {
		if e := o.experiment(name); e != nil && o.once(e) {
			return true
		}
	}
	return false
}

// failedFirst reports whether the first send of a finding did not succeed and
// was sent again.
func (o *Operation) failedFirst(f Finding) bool {
	if len(f.Sends) < 2 {
		return false
	}
	first := slices.Min(f.Sends)
	for _, e := range o.Experiments {
		if i := slices.IndexFunc(e.Sends, func(s Send) bool { return s.N == first }); i >= 0 {
			return e.Sends[i].Status == 0 || e.Sends[i].Status >= 400
		}
	}
	return false
}

// Standings returns the state of each of the four hypotheses after the run.
func (o *Operation) Standings() []Standing {
	of := o.hypothesesOf()
	all := make([]Standing, len(of))
	for i, h := range of {
		all[i] = o.weigh(h)
	}
	// A target that doubles in turn also doubles in races and after losses, and
	// has nothing bound to a request that it does not recognise.
	if all[0].State == Supported && !o.recognises() {
		for i := range all[1:] {
			s := &all[1+i]
			if s.State == Supported && slices.ContainsFunc(o.supporting(s.Name), func(f Finding) bool { return !doubles(f.ID) }) {
				continue
			}
			s.State = Open
			s.Because = "Duplicates already take effect again when they come one after the other. Hypothesis A explains what was seen, which says nothing about this one."
			s.Next = "Fix what hypothesis A is about, then " + of[1+i].next()
		}
	}
	return all
}

// doubles reports whether a finding is a double effect, which a target that
// recognises no duplicates shows in every experiment.
func doubles(id FindingID) bool {
	switch id {
	case FindingInFlightExecuted, FindingOutsideEffectDoubled, FindingEffectsDisagree, FindingMismatchExecuted, FindingMalformedKeyAcceptedUnprotected, FindingChangeDoubles, FindingFailureNotRepeatable,
		FindingContentNotRecognised, FindingInstanceDoubles, FindingSameMeaningExecuted, FindingKeyForgotten:
		return true
	}
	return strings.HasPrefix(string(id), "double-effect-")
}

func (o *Operation) supporting(name string) (fs []Finding) {
	for _, f := range o.flat() {
		if o.supports(f) == name {
			fs = append(fs, f)
		}
	}
	return fs
}

// flat returns the findings and their symptoms, which are findings too.
func (o *Operation) flat() (all []Finding) {
	for _, f := range o.Findings {
		all = append(all, f)
		for _, s := range f.Symptoms {
			all = append(all, Finding{ID: s.ID, Basis: s.Basis, Title: s.Title, Experiment: s.Experiment, Sends: s.Sends})
		}
	}
	return all
}

func (o *Operation) weigh(h hypothesis) Standing {
	s := Standing{Name: h.name, Text: h.text, State: Open, Next: h.next()}
	if fs := o.supporting(h.name); len(fs) > 0 {
		s.State = Supported
		var because []string
		for _, f := range fs {
			because = append(because, fmt.Sprintf("%s (%s, %s)", f.ID, f.Basis, f.Experiment))
		}
		s.Because, s.Next = "Found: "+strings.Join(because, ", ")+".", "Fix it, then "+h.next()
		return s
	}
	var held, due, missing []string
	note := func(found string) {
		if name, ok := strings.CutSuffix(found, brokenElse); ok {
			due = append(due, name)
		} else {
			held = append(held, found)
		}
	}
	for _, either := range h.decides {
		found, not := "", ""
		for _, name := range either {
			var why string
			if found, why = o.showing(name); found != "" {
				break
			}
			not = cmp.Or(not, why)
		}
		if found != "" {
			note(found)
		} else {
			missing = append(missing, not)
		}
	}
	decided := len(missing) == 0
	for _, name := range h.also {
		if found, why := o.showing(name); found != "" {
			note(found)
		} else if e := o.experiment(name); e != nil && e.Outcome != NotApplicable && e.Outcome != NotRun {
			missing = append(missing, why)
		}
	}
	var because []string
	if len(held) > 0 {
		because = append(because, "Held: "+strings.Join(held, ", ")+".")
	}
	if len(due) > 0 {
		because = append(because, "Broken for another reason, with the effects that were due: "+strings.Join(due, ", ")+".")
	}
	if h.name == "C" && decided && !o.Failed() {
		because = append(because, "Not tried: an attempt that fails by itself.")
	}
	if len(missing) > 0 {
		because = append(because, "Not decided: "+strings.Join(missing, "; ")+".")
	}
	if decided {
		s.State = RuledOut
		// More trials of a race show more; repeating other experiments does not.
		if h.name != "B" {
			s.Next = o.better(h)
		}
	}
	s.Because = strings.Join(because, " ")
	return s
}

// better returns the experiments that would show more about what is ruled out:
// those of its check that were not made, else those that showed nothing.
func (o *Operation) better(h hypothesis) string {
	var again []string
	for _, name := range slices.Concat(strings.Split(h.try, ","), slices.Concat(h.decides...), h.also) {
		e := o.experiment(name)
		if e == nil || e.Outcome == NotRun {
			if slices.Contains(strings.Split(h.try, ","), name) {
				return h.next()
			}
		} else if e.Outcome == Inconclusive && !slices.Contains(again, name) {
			again = append(again, name)
		}
	}
	if len(again) == 0 {
		return "nothing more with this plan"
	}
	return "--only duplicate," + strings.Join(again, ",")
}

// brokenElse marks what is broken for another reason than its effects.
const brokenElse = " (broken)"

// showing says how an experiment shows the absence of what it looks for, or why
// it does not.
func (o *Operation) showing(name string) (held, why string) {
	switch e := o.experiment(name); {
	case e == nil || e.Outcome == NotRun:
		return "", name + " was not tried"
	case e.Outcome == NotApplicable:
		return "", name + " does not apply: " + strings.TrimRight(e.Why, ".")
	case !o.once(e):
		return "", name + " showed nothing of it (" + strings.ReplaceAll(string(e.Outcome), "_", " ") + ")"
	case strings.HasPrefix(name, "lost_") && !e.cut():
		return "", name + " lost no response: it was there before the connection could be cut"
	case e.Race != nil:
		trials := "1 overlapping trial"
		if n := e.Race.Overlapped; n != 1 {
			trials = fmt.Sprintf("%d overlapping trials", n)
		}
		held = fmt.Sprintf("%s (%s; a rate of up to %s is left open)", name, trials, Percent(e.Race.bound()))
	case name == "failed_first" && !o.Failed():
		held = name + " (the first attempt was cut off before its last byte, and did not run)"
	default:
		held = name
	}
	if o.experiment(name).Outcome == Broken {
		held += brokenElse
	}
	return held, ""
}

// cut reports whether a first request was cut off, as far as its sends are
// known.
func (e *Experiment) cut() bool {
	first := func(s Send) bool { return s.Role == RoleFirst }
	return !slices.ContainsFunc(e.Sends, first) || slices.ContainsFunc(e.Sends, func(s Send) bool { return first(s) && s.Cut != "" })
}

// once reports whether an experiment showed the right number of effects, by a
// reader that saw one before: it held, or is broken only for its responses.
func (o *Operation) once(e *Experiment) bool {
	if !o.told(e) {
		return false
	}
	if e.Outcome != Broken {
		return e.Outcome == Held
	}
	seen := map[string]bool{}
	for _, r := range o.Readers {
		seen[r.Name] = r.Seen
	}
	some := false
	for _, c := range e.Changes {
		if !seen[c.Reader] || c.Expected < 0 {
			continue
		}
		if c.Effects != c.Expected || c.Name != "effects" {
			return false
		}
		some = some || c.Effects > 0
	}
	return some && (e.Race == nil || e.Race.Overlapped > 0)
}

// Failed reports whether there was a first attempt that failed by itself, with
// a response.
func (o *Operation) Failed() bool {
	e := o.experiment("failed_first")
	return e != nil && slices.ContainsFunc(e.Sends, func(s Send) bool { return s.Role == RoleFirst && s.Status >= 400 })
}

// experiment returns the experiment of a name, the last if there are several;
// nil if there is none.
func (o *Operation) experiment(name string) *Experiment {
	for i := len(o.Experiments) - 1; i >= 0; i-- {
		if o.Experiments[i].Name == name {
			return &o.Experiments[i]
		}
	}
	return nil
}

// told reports whether an experiment that held did so by a reader that had seen
// an effect.
func (o *Operation) told(e *Experiment) bool {
	if len(o.Readers) == 0 { // as earlier versions wrote it
		return len(e.Changes) > 0 || e.Race != nil
	}
	return slices.ContainsFunc(o.Readers, func(r Reader) bool { return r.Seen })
}

// bound returns the race's bound. A bound that was never computed is not a rate
// of zero.
func (r *Race) bound() float64 {
	if r.Bound > 0 {
		return r.Bound
	}
	return RateBound(r.Doubled, r.Overlapped)
}
