package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

// Difference is what differs between two runs. Operations are matched by name,
// findings by kind and experiment, experiments by name.
type Difference struct {
	Old RunRef `json:"old"`
	New RunRef `json:"new"`
	// Swapped reports whether the old run is the later one, so that what is called
	// new may have been fixed.
	Swapped    bool                  `json:"swapped,omitempty"`
	Operations []OperationDifference `json:"operations"`
}

// RunRef names a run.
type RunRef struct {
	ID      string    `json:"id"`
	Plan    string    `json:"plan"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
}

// OperationDifference is what differs about one operation.
type OperationDifference struct {
	Name string `json:"name"`
	// Only is old or new if only that run has the operation; its findings then
	// count as Unproven or New.
	Only    string        `json:"only,omitempty"`
	Verdict []FieldChange `json:"verdict,omitempty"`
	// New findings, or those of a higher priority than before.
	New []FindingRef `json:"new_findings,omitempty"`
	// Fixed are findings that are gone while their experiment showed something.
	Fixed []FindingRef `json:"fixed_findings,omitempty"`
	// Unproven are findings that are gone while their experiment showed
	// nothing: whether they are fixed is not known.
	Unproven  []FindingRef    `json:"unproven_findings,omitempty"`
	Unchanged []FindingRef    `json:"unchanged_findings,omitempty"`
	Outcomes  []OutcomeChange `json:"outcomes,omitempty"`
}

// FieldChange is a field of the verdict.
type FieldChange struct {
	Field string `json:"field"`
	Old   string `json:"old"`
	New   string `json:"new"`
}

// FindingRef names a finding. Was is its priority in the old run, if that
// differs.
type FindingRef struct {
	ID         string            `json:"id"`
	Experiment string            `json:"experiment"`
	Priority   evidence.Priority `json:"priority"`
	Was        evidence.Priority `json:"was_priority,omitempty"`
	Title      string            `json:"title"`
}

// OutcomeChange is an experiment with another outcome; an empty outcome means
// that the run does not have the experiment.
type OutcomeChange struct {
	Experiment string           `json:"experiment"`
	Old        evidence.Outcome `json:"old"`
	New        evidence.Outcome `json:"new"`
	Why        string           `json:"why"` // in the new run
}

// Compare compares two runs.
func Compare(old, new *evidence.Run) Difference {
	ref := func(r *evidence.Run) RunRef { return RunRef{r.ID, r.Plan, r.Version, r.Started} }
	d := Difference{Old: ref(old), New: ref(new), Operations: []OperationDifference{}}
	d.Swapped = !old.Started.IsZero() && !new.Started.IsZero() && old.Started.After(new.Started)
	before := map[string]*evidence.Operation{}
	for i := range old.Operations {
		before[old.Operations[i].Name] = &old.Operations[i]
	}
	seen := map[string]bool{}
	for i := range new.Operations {
		o := &new.Operations[i]
		if seen[o.Name] {
			continue
		}
		seen[o.Name] = true
		if was := before[o.Name]; was != nil {
			d.Operations = append(d.Operations, compare(was, o))
		} else {
			x := compare(&evidence.Operation{Name: o.Name, Verdict: evidence.UnknownVerdict()}, o)
			x.Only, x.Verdict = "new", nil
			d.Operations = append(d.Operations, x)
		}
	}
	for i := range old.Operations {
		o := &old.Operations[i]
		if !seen[o.Name] {
			seen[o.Name] = true
			x := compare(o, &evidence.Operation{Name: o.Name, Verdict: evidence.UnknownVerdict()})
			x.Only, x.Verdict = "old", nil
			d.Operations = append(d.Operations, x)
		}
	}
	return d
}

// findingKey is what makes two findings of one operation the same.
type findingKey struct{ id, experiment string }

func findingsByKey(o *evidence.Operation) (keys []findingKey, by map[findingKey]evidence.Finding) {
	by = map[findingKey]evidence.Finding{}
	for _, f := range ranked(o.Findings) {
		k := findingKey{string(f.ID), f.Experiment}
		if _, ok := by[k]; !ok {
			keys = append(keys, k)
			by[k] = f
		}
	}
	return keys, by
}

// outcomes are the experiments of an operation by name; where a name is there
// more than once, it is counted.
func outcomes(o *evidence.Operation) (names []string, by map[string]evidence.Experiment) {
	by = map[string]evidence.Experiment{}
	count := map[string]int{}
	for _, e := range o.Experiments {
		n := e.Name
		if count[n]++; count[e.Name] > 1 {
			n = fmt.Sprintf("%s (%d)", e.Name, count[e.Name])
		}
		names = append(names, n)
		by[n] = e
	}
	return names, by
}

func compare(old, new *evidence.Operation) OperationDifference {
	d := OperationDifference{Name: new.Name}
	was := old.Verdict.Fields()
	for i, f := range new.Verdict.Fields() {
		if f.Value != was[i].Value {
			d.Verdict = append(d.Verdict, FieldChange{f.Name, was[i].Value, f.Value})
		}
	}

	names, ran := outcomes(new)
	wasNames, hadRun := outcomes(old)
	for _, n := range names {
		if e, before := ran[n], hadRun[n]; e.Outcome != before.Outcome {
			d.Outcomes = append(d.Outcomes, OutcomeChange{n, before.Outcome, e.Outcome, e.Why})
		}
	}
	for _, n := range wasNames {
		if _, ok := ran[n]; !ok {
			d.Outcomes = append(d.Outcomes, OutcomeChange{n, hadRun[n].Outcome, "", ""})
		}
	}

	keys, now := findingsByKey(new)
	wasKeys, before := findingsByKey(old)
	ref := func(f evidence.Finding) FindingRef {
		return FindingRef{ID: string(f.ID), Experiment: f.Experiment, Priority: f.Priority, Title: f.Title}
	}
	for _, k := range keys {
		f, r := now[k], ref(now[k])
		b, had := before[k]
		if had && b.Priority != f.Priority {
			r.Was = b.Priority
		}
		if !had || f.Priority < b.Priority {
			d.New = append(d.New, r)
		} else {
			d.Unchanged = append(d.Unchanged, r)
		}
	}
	for _, k := range wasKeys {
		if _, still := now[k]; still {
			continue
		}
		switch ran[k.experiment].Outcome {
		case evidence.Held, evidence.Broken:
			d.Fixed = append(d.Fixed, ref(before[k]))
		default:
			d.Unproven = append(d.Unproven, ref(before[k]))
		}
	}
	return d
}

// Changed reports whether anything but a confidence differs: findings,
// priorities, fields of the verdict, outcomes, operations. It is meant for exit
// codes.
func (d Difference) Changed() bool {
	for _, o := range d.Operations {
		if o.changed() {
			return true
		}
	}
	return false
}

func (o OperationDifference) changed() bool {
	for _, f := range o.Verdict {
		if f.Field != "confidence" {
			return true
		}
	}
	for _, f := range o.Unchanged {
		if f.Was != "" {
			return true
		}
	}
	return o.Only != "" || len(o.New)+len(o.Fixed)+len(o.Unproven)+len(o.Outcomes) > 0
}

// Worse reports whether there are new findings, or some of a higher priority.
func (d Difference) Worse() bool {
	for _, o := range d.Operations {
		if len(o.New) > 0 {
			return true
		}
	}
	return false
}

// JSON writes the difference as JSON, stable like a run's.
func (d Difference) JSON(w io.Writer) error { return writeJSON(w, d) }

// Text writes the difference for a terminal, without escape sequences.
func (d Difference) Text(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, r := range []struct {
		word string
		run  RunRef
	}{{"old", d.Old}, {"new", d.New}} {
		line("%s  run %s of %s, %s, semel %s", r.word, name(r.run.ID), name(r.run.Plan), when(r.run.Started), name(r.run.Version))
	}
	line("")
	if d.Swapped {
		line("%s", swapped)
	}
	line("%s", d.summary())
	for _, o := range d.Operations {
		line("")
		line("%s%s", name(o.Name), o.only())
		if !o.changed() && len(o.Verdict) == 0 {
			line("  unchanged%s", o.kept())
			continue
		}
		for _, g := range o.groups() {
			for _, f := range g.findings {
				line("  %-9s %s %s (%s)%s", g.word, name(string(f.Priority)), text(f.Title), strings.Join(nonEmpty(name(f.ID), name(f.Experiment)), ", "), f.was())
			}
		}
		for _, v := range o.Verdict {
			line("  verdict   %s: %s -> %s", v.Field, name(v.Old), name(v.New))
		}
		for _, c := range o.Outcomes {
			line("  outcome   %s: %s -> %s%s", name(c.Experiment), absent(c.Old), absent(c.New), reason(text(c.Why)))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown writes the difference for a comment on a pull request.
func (d Difference) Markdown(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("### What changed between run %s and run %s", code(visible(d.Old.ID, 80)), code(visible(d.New.ID, 80)))
	line("")
	if d.Swapped {
		line("**%s**", prose(swapped))
		line("")
	}
	line("%s", prose(d.summary()))
	for _, o := range d.Operations {
		line("")
		line("#### %s%s", code(visible(o.Name, 80)), o.only())
		line("")
		if !o.changed() && len(o.Verdict) == 0 {
			line("Unchanged%s.", o.kept())
			continue
		}
		left := 3 * mostInMarkdown
		item := func(format string, args ...any) {
			if left--; left >= 0 {
				line("- "+format, args...)
			}
		}
		for _, g := range o.groups() {
			for _, f := range g.findings {
				item("%s: **%s** %s (%s)%s", g.word, prose(name(string(f.Priority))), prose(visible(f.Title, 200)), code(name(f.ID)), prose(f.was()))
			}
		}
		for _, v := range o.Verdict {
			item("verdict %s: %s → %s", code(v.Field), code(name(v.Old)), code(name(v.New)))
		}
		for _, c := range o.Outcomes {
			item("outcome of %s: %s → %s%s", code(name(c.Experiment)), prose(absent(c.Old)), prose(absent(c.New)), prose(reason(visible(c.Why, 300))))
		}
		if left < 0 {
			line("- %d more", -left)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// swapped is said if the runs are the wrong way round.
const swapped = "Attention: the run named as old was made after the one named as new. Name the older run first."

func (d Difference) summary() string {
	if !d.Changed() {
		return "Nothing changed."
	}
	var fresh, fixed, unproven, same int
	for _, o := range d.Operations {
		fresh, fixed, unproven, same = fresh+len(o.New), fixed+len(o.Fixed), unproven+len(o.Unproven), same+len(o.Unchanged)
	}
	return fmt.Sprintf("Findings: %d new, %d fixed, %d gone without proof, %d unchanged.", fresh, fixed, unproven, same)
}

type findingGroup struct {
	word     string
	findings []FindingRef
}

func (o OperationDifference) groups() []findingGroup {
	return []findingGroup{{"new", o.New}, {"fixed", o.Fixed}, {"unproven", o.Unproven}, {"unchanged", o.Unchanged}}
}

func (o OperationDifference) only() string {
	if o.Only == "" {
		return ""
	}
	return " (only in the " + o.Only + " run)"
}

func (o OperationDifference) kept() string {
	if len(o.Unchanged) == 0 {
		return ""
	}
	return ", " + plural(len(o.Unchanged), "finding", "findings")
}

func (f FindingRef) was() string {
	if f.Was == "" {
		return ""
	}
	return ", was " + name(string(f.Was))
}

func absent(o evidence.Outcome) string {
	if o == "" {
		return "absent"
	}
	return outcomeWords(o)
}

func reason(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
