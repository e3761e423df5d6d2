package report

import (
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
	same := 0
	for i := range r.Operations {
		ranks[i], lines[i] = verdictLine(&r.Operations[i])
		if ranks[i] < ranks[worst] {
			worst = i
		}
	}
	for _, rank := range ranks {
		if rank == ranks[worst] {
			same++
		}
	}
	line := lines[worst]
	if n := len(lines); n > 1 {
		line = strings.TrimSuffix(line, ".") + fmt.Sprintf(" (%d of %d operations came to that).", same, n)
	}
	return line
}

// otherThanRepeats are findings that say nothing of the same caller's repeating the
// same request.
var otherThanRepeats = map[string]bool{
	"key-not-scoped-tenant": true, "webhook-altered-accepted": true, "preview-executed": true, "truncated-executed": true, "mismatch-executed": true,
}

// verdictLine is the sentence about one operation, and its rank, from the worst.
func verdictLine(o *evidence.Operation) (rank int, line string) {
	who := name(o.Name)
	fs := ranked(o.Findings)
	sees := slices.ContainsFunc(o.Readers, func(r evidence.Reader) bool { return r.Seen })
	more := ""
	if len(fs) > 1 {
		more = fmt.Sprintf(", and %s beside it", plural(len(fs)-1, "finding", "findings"))
	}
	if len(fs) > 0 && fs[0].Priority == evidence.P0 && fs[0].Basis == evidence.Established && otherThanRepeats[fs[0].ID] {
		return 0, fmt.Sprintf("%s is not safe: %s%s.", who, lower(text(fs[0].Title)), more)
	}
	switch {
	case len(fs) > 0 && fs[0].Priority == evidence.P0 && fs[0].Basis == evidence.Established:
		return 0, fmt.Sprintf("%s is not safe to repeat: %s%s.", who, lower(text(fs[0].Title)), more)
	case len(fs) > 0 && fs[0].Priority == evidence.P0:
		return 1, fmt.Sprintf("%s is probably not safe to repeat: it looks as if this happened: %s%s.", who, lower(text(fs[0].Title)), more)
	case len(fs) > 0 && place(fs[0].Priority) <= place(evidence.P1):
		return 2, fmt.Sprintf("%s should be mended before it is relied on: %s%s.", who, lower(text(fs[0].Title)), more)
	}
	var shown, open []string
	for _, s := range o.Standings() {
		if s.State == evidence.RuledOut {
			shown = append(shown, risk[s.Name])
		} else {
			open = append(open, risk[s.Name])
		}
	}
	small := ""
	if len(fs) > 0 {
		small = fmt.Sprintf("; %s of little weight", plural(len(fs), "finding", "findings"))
	}
	switch {
	case len(shown) == 0 && !sees && len(o.Readers) > 0:
		return 3, fmt.Sprintf("Whether %s is safe to repeat is not known: no effect of it could be seen%s.", who, small)
	case len(shown) == 0:
		return 3, fmt.Sprintf("Whether %s is safe to repeat was not shown%s.", who, small)
	case len(open) > 0:
		return 4, fmt.Sprintf("%s took effect once with %s; %s: not shown%s.", who, list(shown), list(open), small)
	}
	return 5, fmt.Sprintf("%s took effect once with %s, as far as that was tried%s.", who, list(shown), small)
}

// risk is what a hypothesis is about, in a manager's words.
var risk = map[string]string{
	"A": "repeats", "B": "requests at the same time", "C": "lost answers and failures", "D": "keys of other requests and parties",
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
		if n := len(w.Resources); n > 0 {
			ids := make([]string, min(n, 4))
			for i := range ids {
				ids[i] = visible(w.Resources[i], 40)
			}
			if n > len(ids) {
				ids = append(ids, fmt.Sprintf("%d more", n-len(ids)))
			}
			r.IDs = strings.Join(ids, ", ")
			if w.Answers > 1 {
				r.IDs += fmt.Sprintf(" (%d answers)", w.Answers)
			}
		}
		r.State, r.WrongState = effects(w.State)
		r.Outside, r.WrongIt = effects(w.Outside)
		r.WrongIDs = len(w.Resources) > 1 && r.WrongState
		if w.AuditLines >= 0 {
			r.Audit = plural(w.AuditLines, "line", "lines")
		}
		r.First, r.Second = answered(w.First), answered(w.Second)
		rows = append(rows, r)
	}
	return rows
}

func effects(all []evidence.Effect) (said string, wrong bool) {
	var parts []string
	for i, e := range all {
		if e.Effects != e.Expected {
			wrong = true
		}
		if i < 4 {
			parts = append(parts, fmt.Sprintf("%s: %d of %d due", visible(e.Reader, 40), e.Effects, e.Expected))
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
	said := "no answer"
	if a.Status != 0 {
		said = fmt.Sprint(a.Status)
	}
	if a.WaitedUS >= 0 {
		said += " in " + span(float64(a.WaitedUS))
	}
	if a.Class != "" {
		said += ", " + strings.ReplaceAll(name(string(a.Class)), "_", " ")
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
		all = append(all, text(s.Title)+" ("+name(s.ID)+")")
	}
	if len(all) == 0 {
		return ""
	}
	return "With it, of the same cause: " + strings.Join(all, "; ")
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
