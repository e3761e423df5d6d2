package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
)

// bottomLine says in one sentence, for who reads nothing else, what the run
// means: whether the operations are safe to repeat.
func bottomLine(r *evidence.Run) string {
	if r.DryRun {
		return "Nothing was tried: this is what would be sent."
	}
	if len(r.Operations) == 0 {
		return "Nothing was tried: the run has no operation."
	}
	// Of several operations the worst speaks, and the others are counted.
	worst := 0
	lines := make([]string, len(r.Operations))
	ranks := make([]int, len(r.Operations))
	for i := range r.Operations {
		ranks[i], lines[i] = verdictLine(&r.Operations[i])
		if ranks[i] < ranks[worst] {
			worst = i
		}
	}
	count := make([]int, len(alike))
	for _, rank := range ranks {
		count[rank]++
	}
	line := lines[worst]
	if len(lines) > 1 {
		var parts []string
		for rank, n := range count {
			if n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, alike[rank]))
			}
		}
		line = strings.TrimSuffix(line, ".") + fmt.Sprintf(" (%d operations: %s).", len(lines), strings.Join(parts, ", "))
	}
	return line
}

// alike is what operations of a rank have in common.
var alike = []string{
	"not safe", "probably not safe", "to be fixed", "not known", "shown in part", "shown in all that was tried",
}

// ofRepeats are findings that say that the same request of the same caller took
// effect again.
var ofRepeats = []evidence.FindingID{
	evidence.FindingDoubleEffectSequential, evidence.FindingDoubleEffectRace, evidence.FindingDoubleEffectLostResponse, evidence.FindingInFlightExecuted, evidence.FindingWebhookRedeliveryDoubles, evidence.FindingOutsideEffectDoubled, evidence.FindingEffectsDisagree,
	evidence.FindingInstanceDoubles, evidence.FindingSameMeaningExecuted, evidence.FindingKeyForgotten,
}

// verdictLine is the sentence about one operation, and its rank, from the worst.
func verdictLine(o *evidence.Operation) (rank int, line string) {
	who := name(o.Name)
	fs := ranked(o.Findings)
	sees := slices.ContainsFunc(o.Readers, func(r evidence.Reader) bool { return r.Seen })
	if len(fs) > 0 && place(fs[0].Priority) <= place(evidence.P1) {
		// Of findings that are equally bad, and known, one of repeats is the matter.
		f := fs[0]
		if i := slices.IndexFunc(fs, func(g evidence.Finding) bool {
			return g.Priority == f.Priority && g.Basis == evidence.Established && slices.Contains(ofRepeats, g.ID)
		}); i >= 0 {
			f = fs[i]
		}
		what, more, safe := lower(text(f.Title)), "", "safe"
		if len(fs) > 1 {
			more = ", and " + plural(len(fs)-1, "other finding", "other findings")
		}
		if slices.Contains(ofRepeats, f.ID) {
			safe = "safe to repeat"
		}
		switch {
		case f.Priority != evidence.P0:
			return 2, fmt.Sprintf("%s should be fixed before it is relied on: %s%s.", who, what, more)
		case f.Basis != evidence.Established:
			return 1, fmt.Sprintf("%s is probably not %s: %s%s.", who, safe, what, more)
		}
		return 0, fmt.Sprintf("%s is not %s: %s%s.", who, safe, what, more)
	}
	var once, open []string
	apart := ""
	for _, s := range o.Standings() {
		r := risk(o, s.Name)
		switch {
		case s.State != evidence.RuledOut:
			open = append(open, r.what)
		case s.Name == "C" && !o.Failed():
			once, open = append(once, r.once), append(open, "failures")
		case s.Name == "D":
			apart = r.once
		default:
			once = append(once, r.once)
		}
	}
	rest := ""
	if len(open) > 0 {
		rest = "; not shown: " + strings.Join(open, ", ")
	}
	if len(fs) > 0 {
		rest += fmt.Sprintf("; %s of low priority", plural(len(fs), "finding", "findings"))
	}
	switch {
	case len(once) == 0 && apart == "" && refused(o):
		return 3, fmt.Sprintf("Whether %s is safe to repeat is not known: no request of it succeeded.", who)
	case len(once) == 0 && apart == "" && !sees && len(o.Readers) > 0:
		return 3, fmt.Sprintf("Whether %s is safe to repeat is not known: no effect of it could be seen.", who)
	case len(once) == 0:
		if apart != "" {
			apart = "; " + apart
		}
		return 3, fmt.Sprintf("Whether %s is safe to repeat was not shown%s.", who, apart)
	}
	if apart != "" {
		apart = ", and " + apart
	}
	if len(open) > 0 {
		return 4, fmt.Sprintf("%s took effect once %s%s%s.", who, list(once), apart, rest)
	}
	return 5, fmt.Sprintf("%s took effect once %s%s, as far as that was tried%s.", who, list(once), apart, rest)
}

// refused reports whether requests of an operation were answered, and all with
// a refusal or an error.
func refused(o *evidence.Operation) bool {
	responses := false
	for _, e := range o.Experiments {
		for _, s := range e.Sends {
			if s.Role == evidence.RoleRead || s.Status == 0 {
				continue
			}
			if responses = true; s.Status < 400 && !s.SaysError {
				return false
			}
		}
	}
	return responses
}

// risk is what a hypothesis is about, in a manager's words, and what it means
// that it is ruled out.
func risk(o *evidence.Operation, hypothesis string) (r struct{ what, once string }) {
	switch hypothesis {
	case "A":
		r.what, r.once = "repeats", "when it was repeated"
	case "B":
		r.what, r.once = "requests at the same time", "when it was sent several times at once"
	case "C":
		r.what, r.once = "lost responses and failures", "after lost responses"
		if o.Failed() {
			r.once = "after lost responses and failures"
		}
	case "D":
		r.what, r.once = "keys of other requests and parties", "its keys were kept apart from those of others"
		switch {
		case o.Signed:
			r.what, r.once = "events that are altered or stale", "events that are altered or stale had none"
		case o.KeyIn == evidence.NoKey:
			r.what, r.once = "what other parties send", "what others send was kept apart"
		}
	}
	return r
}

func list(all []string) string {
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}

// lower is a sentence within another.
func lower(s string) string {
	s = strings.TrimRight(s, ".")
	if len(s) > 1 && s[0] >= 'A' && s[0] <= 'Z' && s[1] >= 'a' && s[1] <= 'z' || strings.HasPrefix(s, "A ") {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}

// witnessRow is what the four witnesses say of an experiment, in words.
type witnessRow struct {
	Experiment                    string
	Outcome                       evidence.Outcome
	IDs, State, Audit, Outside    string
	First, Second                 string
	WrongIDs, WrongState, WrongIt bool // It: the outside
}

// nothing is what a witness says that could not tell.
const nothing = "–"

func witnesses(o *evidence.Operation) (rows []witnessRow) {
	for _, w := range o.Witnesses() {
		r := witnessRow{Experiment: name(w.Experiment), Outcome: w.Outcome, IDs: nothing, Audit: nothing, First: nothing, Second: nothing}
		tries := 0
		for _, e := range slices.Concat(w.State, w.Outside) {
			tries = max(tries, e.Tries)
		}
		if n := len(w.Resources); n > 0 {
			ids := make([]string, min(n, 4))
			for i := range ids {
				ids[i] = visible(w.Resources[i], 40)
			}
			if n > len(ids) {
				ids = append(ids, fmt.Sprintf("%d more", n-len(ids)))
			}
			r.IDs = strings.Join(ids, ", ")
			var of []string
			if w.Answers > 1 {
				of = append(of, fmt.Sprintf("%d responses", w.Answers))
			}
			switch {
			case w.Trials > 1:
				of = append(of, fmt.Sprintf("in one of %d trials", w.Trials))
			case tries > 1 && w.Answers > 1:
				of = append(of, fmt.Sprintf("in %d attempts", tries))
			}
			if len(of) > 0 {
				r.IDs += " (" + strings.Join(of, " ") + ")"
			}
		}
		r.State, r.WrongState = effects(w.State, w.Outcome)
		r.Outside, r.WrongIt = effects(w.Outside, w.Outcome)
		// Those of several attempts are of as many requests.
		r.WrongIDs = len(w.Resources) > max(tries, 1) && r.WrongState
		if w.AuditLines >= 0 {
			r.Audit = plural(w.AuditLines, "line", "lines")
		}
		r.First, r.Second = answered(w.First), answered(w.Second)
		rows = append(rows, r)
	}
	return rows
}

// effects says what readers counted. That a number is wrong is said only where
// the experiment is broken: else it may not be of the requests alone.
func effects(all []evidence.Effect, came evidence.Outcome) (said string, wrong bool) {
	var parts []string
	for i, e := range all {
		wrong = wrong || came == evidence.Broken && e.Wrong()
		if i < 4 {
			n := cmp.Or(visible(e.Exact, 40), fmt.Sprint(e.Effects))
			if e.Expected >= 0 {
				n += fmt.Sprintf(" of %d due", e.Expected)
			}
			if e.Tries > 0 {
				n += fmt.Sprintf(" in %d attempts", e.Tries)
			}
			parts = append(parts, visible(e.Reader, 40)+": "+n)
		}
	}
	if len(all) > 4 {
		parts = append(parts, fmt.Sprintf("%d more", len(all)-4))
	}
	if len(parts) == 0 {
		return nothing, false
	}
	return strings.Join(parts, ", "), wrong
}

func answered(a *evidence.Answer) string {
	if a == nil {
		return nothing
	}
	said := "no response"
	switch {
	case a.Status != 0:
		said = status(a.Status, a.SaysError)
	case a.Cut:
		said = "cut off by the probe"
	}
	// A response may be read before it is known that the last byte is out: it took
	// less than can be told.
	if a.WaitedUS > 0 {
		said += " in " + span(float64(a.WaitedUS))
	}
	if a.Says != "" && a.Status != 0 {
		said += ", " + a.Says
	}
	switch a.Timing {
	case "fast-as-a-replay":
		said += " (as fast as a replay)"
	case "slow-as-an-execution":
		said += " (as slow as an execution)"
	}
	return said
}

// symptomLine names the symptoms of a finding; empty if it has none.
func symptomLine(f evidence.Finding) string {
	var all []string
	for _, s := range f.Symptoms[:min(len(f.Symptoms), mostFindings)] {
		all = append(all, text(s.Title)+" ("+name(string(s.ID))+")")
	}
	if len(all) == 0 {
		return ""
	}
	return "Also from the same cause: " + strings.Join(all, "; ")
}

// further are a finding's references that its guidelines do not have.
func further(f evidence.Finding) []string {
	return slices.DeleteFunc(slices.Clone(f.References), func(ref string) bool {
		return evidence.ReferenceURL(ref) != "" && (strings.HasPrefix(ref, "CWE-") || strings.Contains(ref, "WSTG-"))
	})
}

// looseCauses are the possible causes that stand under no finding, as earlier
// versions wrote them.
func looseCauses(o *evidence.Operation) []evidence.Hypothesis {
	if slices.ContainsFunc(o.Findings, func(f evidence.Finding) bool { return len(f.Causes) > 0 }) {
		return nil
	}
	return o.Hypotheses
}

func causeTone(s evidence.CauseState) tone {
	switch s {
	case evidence.Supported:
		return bad
	case evidence.Open:
		return doubt
	}
	return neutral
}

func standingTone(s evidence.CauseState) tone {
	switch s {
	case evidence.Supported:
		return bad
	case evidence.RuledOut:
		return good
	}
	return doubt
}

// guidelineLine is a finding's entries of all guidelines in a line.
func guidelineLine(f evidence.Finding) string {
	var parts []string
	for i, ids := range f.GuidelinesOf().Lists() {
		if len(ids) == 0 {
			continue
		}
		var said []string
		for _, id := range ids[:min(len(ids), 10)] {
			said = append(said, guidelineName(id))
		}
		parts = append(parts, []string{"ASVS ", "", "PTES ", "ATT&CK ", ""}[i]+strings.Join(said, ", "))
	}
	return strings.Join(parts, " · ")
}

// guidelineSum is a line for each standard with the entries that findings have.
func guidelineSum(ops []evidence.Operation) (lines []string) {
	sum := evidence.SumGuidelines(ops)
	for _, standard := range evidence.Standards() {
		var ids []string
		for _, s := range sum {
			if s.Standard == standard {
				ids = append(ids, guidelineName(s.ID))
			}
		}
		if rest := len(ids) - 40; rest > 0 {
			ids = append(ids[:40], fmt.Sprintf("and %d more", rest))
		}
		if len(ids) > 0 {
			lines = append(lines, standard+": "+strings.Join(ids, ", "))
		}
	}
	return lines
}

// guidelineName is an id, with the name of a tactic, which its id does not tell.
func guidelineName(id string) string {
	if e, ok := evidence.Guideline(id); ok && strings.HasPrefix(id, "TA") {
		return id + " " + e.Title
	}
	return name(id)
}

// sameWhy joins experiments that did not run, for one reason, to one.
func sameWhy(all []evidence.Experiment) (rest []evidence.Experiment, idle []evidence.Experiment) {
	for _, e := range all {
		if e.Outcome != evidence.NotApplicable && e.Outcome != evidence.NotRun {
			rest = append(rest, e)
			continue
		}
		i := slices.IndexFunc(idle, func(x evidence.Experiment) bool { return x.Outcome == e.Outcome && x.Why == e.Why })
		if i < 0 {
			idle = append(idle, e)
			continue
		}
		idle[i].Step, idle[i].Name = "", idle[i].Name+", "+name(e.Name)
	}
	return rest, idle
}
