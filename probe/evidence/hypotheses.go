package evidence

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// RuledOut: the experiments that would have shown it did not. That is said of
// what was tried, under the conditions of the run, and of no more.
const RuledOut CauseState = "ruled out as far as tried"

// Standing is a hypothesis of the method and where it stands. There are four,
// and a run says of each what it knows.
type Standing struct {
	Name string `json:"name"` // A to D
	Text string `json:"text"`
	// State is Supported, RuledOut or Open.
	State CauseState `json:"state"`
	// Because says what the state rests on.
	Because string `json:"because"`
	// Next is the check that would decide it, or decide it better, with the
	// option or the key of the plan that it takes.
	Next string `json:"next"`
}

// hypothesis is one of the four and what tells of it.
type hypothesis struct {
	name, text string
	findings   []string // that support it
	// decides are the experiments that rule it out if all of them held; of a
	// list of several, one is enough.
	decides [][]string
	next    string
}

var hypotheses = []hypothesis{
	{
		name: "A", text: "Not implemented: duplicates are not recognised at all.",
		findings: []string{"double-effect-sequential", "webhook-redelivery-doubles", "content-not-recognised", "key-ignored", "rate-limit-is-not-idempotency"},
		decides:  [][]string{{"duplicate", "late_retry", "redelivery", "reordered"}},
		next:     "--only duplicate,late_retry, with a reader of the state (operations[].readers)",
	},
	{
		name: "B", text: "Weak in races: duplicates are recognised one after the other, not at the same time.",
		findings: []string{"double-effect-race", "in-flight-executed"},
		decides:  [][]string{{"race"}},
		next:     "--only duplicate,race --trials 60 (race.trials, race.width); more trials leave open a lower rate",
	},
	{
		name: "C", text: "Multiplies on failure: a lost answer or a failed attempt makes the retry double, lose or block the effect.",
		findings: []string{"double-effect-lost-response", "lost-effect", "outside-effect-doubled", "effects-disagree", "failure-not-repeatable", "failure-blocks-key"},
		decides:  [][]string{{"lost_unread"}, {"lost_begun"}, {"failed_first"}},
		next:     "--only duplicate,lost_unread,lost_begun,failed_first",
	},
	{
		name: "D", text: "Weakly bound: a key answers, or blocks, what is not the same request of the same party.",
		findings: []string{"mismatch-executed", "mismatch-replayed-as-same", "key-not-scoped-tenant", "key-not-scoped-actor", "malformed-key-accepted-unprotected", "conflict-leaks-payload"},
		decides:  [][]string{{"altered"}, {"other_actor"}, {"other_tenant"}},
		next:     "--only duplicate,altered,other_actor,other_tenant (operations[].altered, principals.actor_b, principals.tenant_b)",
	},
}

// Standings says of each of the four hypotheses where it stands after the run.
func (o *Operation) Standings() []Standing {
	all := make([]Standing, len(hypotheses))
	for i, h := range hypotheses {
		all[i] = o.weigh(h)
	}
	// What doubles one after the other doubles in races and after losses too:
	// that says nothing of a cause of its own.
	if all[0].State == Supported {
		for i := range all[1:3] {
			s := &all[1+i]
			if s.State == Supported && !slices.ContainsFunc(o.supporting(hypotheses[1+i]), func(f Finding) bool { return !doubles(f.ID) }) {
				s.State = Open
				s.Because = "Duplicates that come one after the other take effect again already, which explains this too."
				s.Next = "Mend what hypothesis A is about, then " + s.Next
			}
		}
	}
	return all
}

// doubles says whether a finding is a double effect, which a target that knows
// no duplicates has anywhere.
func doubles(id string) bool {
	return strings.HasPrefix(id, "double-effect-") || id == "in-flight-executed" || id == "outside-effect-doubled" || id == "effects-disagree"
}

func (o *Operation) supporting(h hypothesis) (fs []Finding) {
	for _, f := range o.flat() {
		if slices.Contains(h.findings, f.ID) {
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
	s := Standing{Name: h.name, Text: h.text, State: Open, Next: h.next}
	if fs := o.supporting(h); len(fs) > 0 {
		s.State = Supported
		var because []string
		for _, f := range fs {
			because = append(because, fmt.Sprintf("%s (%s, %s)", f.ID, f.Basis, f.Experiment))
		}
		s.Because = "Found: " + strings.Join(because, ", ") + "."
		return s
	}
	var held, missing []string
	for _, either := range h.decides {
		found, not := "", ""
		for _, name := range either {
			why := ""
			switch e := o.experiment(name); {
			case e == nil:
				why = name + " was not tried"
			case e.Outcome == NotApplicable:
				why = name + " does not apply: " + strings.TrimRight(e.Why, ".")
			case e.Outcome != Held || !o.told(e):
				why = name + " showed nothing of it (" + strings.ReplaceAll(string(e.Outcome), "_", " ") + ")"
			case e.Race != nil:
				found = fmt.Sprintf("%s (%d overlapping trials; a rate of up to %.1f %% is left open)", name, e.Race.Overlapped, 100*e.Race.bound())
			default:
				found = name
			}
			if found != "" {
				break
			}
			not = cmp.Or(not, why)
		}
		if found != "" {
			held = append(held, found)
		} else {
			missing = append(missing, not)
		}
	}
	var because []string
	if len(held) > 0 {
		because = append(because, "Held: "+strings.Join(held, ", ")+".")
	}
	if len(missing) > 0 {
		because = append(because, "Not decided: "+strings.Join(missing, "; ")+".")
	} else {
		s.State = RuledOut
	}
	s.Because = strings.Join(because, " ")
	return s
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

// told says whether an experiment that held did so by a reader that can tell.
func (o *Operation) told(e *Experiment) bool {
	if len(o.Readers) == 0 { // as earlier versions wrote it
		return len(e.Changes) > 0 || e.Race != nil
	}
	return slices.ContainsFunc(o.Readers, func(r Reader) bool { return r.Seen })
}

// bound is the race's bound; one that was never computed is no rate of zero.
func (r *Race) bound() float64 {
	if r.Bound > 0 {
		return r.Bound
	}
	return RateBound(r.Doubled, r.Overlapped)
}
