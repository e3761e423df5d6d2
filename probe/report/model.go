package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

// stamp is how times are written, in UTC.
const stamp = "2006-01-02 15:04:05 MST"

func when(t time.Time) string {
	if t.IsZero() {
		return "at an unknown time"
	}
	return t.UTC().Format(stamp)
}

func took(from, to time.Time) string {
	if from.IsZero() || to.Before(from) {
		return "an unknown time"
	}
	return span(float64(to.Sub(from).Microseconds()))
}

var priorities = []evidence.Priority{evidence.P0, evidence.P1, evidence.P2}

// place is a priority's place from the worst; those that are none come last.
func place(p evidence.Priority) int {
	if i := slices.Index(priorities, p); i >= 0 {
		return i
	}
	return len(priorities)
}

// ranked returns findings, the worst first.
func ranked(fs []evidence.Finding) []evidence.Finding {
	fs = slices.Clone(fs)
	slices.SortStableFunc(fs, func(a, b evidence.Finding) int { return place(a.Priority) - place(b.Priority) })
	return fs
}

func outcomeWords(o evidence.Outcome) string {
	switch o {
	case evidence.NotApplicable:
		return "not applicable"
	case evidence.NotRun:
		return "not run"
	}
	return name(string(o))
}

// tone is how something looks: in a terminal's colours and in HTML's classes.
type tone string

const (
	good    tone = "good"
	bad     tone = "bad"
	doubt   tone = "doubt"
	neutral tone = "neutral"
)

func outcomeTone(o evidence.Outcome) tone {
	switch o {
	case evidence.Held:
		return good
	case evidence.Broken:
		return bad
	case evidence.Inconclusive:
		return doubt
	}
	return neutral
}

func priorityTone(p evidence.Priority) tone {
	switch p {
	case evidence.P0:
		return bad
	case evidence.P1:
		return doubt
	}
	return neutral
}

// headline says in a sentence what came out of the run.
func headline(r *evidence.Run) (string, tone) {
	if r.DryRun {
		return "Dry run: nothing was sent, so nothing was shown.", neutral
	}
	count := map[evidence.Priority]int{}
	total, held := 0, 0
	for _, o := range r.Operations {
		for _, f := range o.Findings {
			count[f.Priority]++
			total++
		}
		for _, e := range o.Experiments {
			if e.Outcome == evidence.Held {
				held++
			}
		}
	}
	rest := ""
	if !r.Conclusive() {
		rest = " Other parts are inconclusive."
	}
	if total > 0 {
		var parts []string
		for _, p := range priorities {
			if count[p] > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", count[p], p))
				total -= count[p]
			}
		}
		if total > 0 {
			parts = append(parts, plural(total, "other", "others"))
		}
		how := "Findings: " + strings.Join(parts, ", ") + "." + rest
		switch {
		case count[evidence.P0] > 0:
			return how, bad
		case count[evidence.P1] > 0:
			return how, doubt
		}
		return how, neutral
	}
	if rest != "" {
		return "Inconclusive: nothing was found, but not everything could be shown.", doubt
	}
	return fmt.Sprintf("Held: nothing was found in %s. What that leaves open is said below.", plural(held, "experiment", "experiments")), good
}

// telling returns the experiment that says most: that of the worst finding,
// else one that is broken, else the one with most to see. nil if nothing was
// sent.
func telling(o *evidence.Operation) *evidence.Experiment {
	of := byExperiment(o)
	var best *evidence.Experiment
	most := -1
	for i := range o.Experiments {
		e := &o.Experiments[i]
		sends := shown(of[e.Name], e)
		if len(sends) == 0 {
			continue
		}
		score := len(sends) // at most mostShown
		if fs := of[e.Name]; len(fs) > 0 {
			score += 1000 * (1 + len(priorities) - place(fs[0].Priority))
		}
		if e.Outcome == evidence.Broken {
			score += 500
		}
		if score > most {
			best, most = e, score
		}
	}
	return best
}

// byExperiment is an operation's findings by their experiments, the worst first.
func byExperiment(o *evidence.Operation) map[string][]evidence.Finding {
	of := map[string][]evidence.Finding{}
	for _, f := range ranked(o.Findings) {
		of[f.Experiment] = append(of[f.Experiment], f)
	}
	return of
}

// mostShown is how many sends a picture has at most.
const mostShown = 40

// shown returns the sends of an experiment that a picture of it should have:
// those that its findings name; else, of a race of several trials, those of the
// first; else all but readers and warm-ups.
func shown(fs []evidence.Finding, e *evidence.Experiment) []evidence.Send {
	named := map[int]bool{}
	for _, f := range fs {
		for _, n := range f.Sends {
			named[n] = true
		}
	}
	pick := func(keep func(evidence.Send) bool) (s []evidence.Send) {
		for _, x := range e.Sends {
			if keep(x) && len(s) < mostShown {
				s = append(s, x)
			}
		}
		return s
	}
	if s := pick(func(s evidence.Send) bool { return named[s.N] }); len(s) > 1 {
		return s
	}
	s := pick(func(s evidence.Send) bool { return s.Role != evidence.RoleRead && s.Role != evidence.RoleWarmUp })
	if e.Race != nil && e.Race.Trials > 1 && e.Race.Width > 0 && len(s) > e.Race.Width {
		s = s[:e.Race.Width]
	}
	return s
}

// bar is a send in a picture: microseconds since the experiment's start, -1
// for marks that there are not.
type bar struct {
	send                               evidence.Send
	start, lastWrite, firstByte, finis float64
	open                               bool // it did not end: no response, or cut
	other                              bool // a duplicate that names another resource than the first
}

func (b bar) response() string {
	if b.other {
		return "≠ " + response(b.send) // first, for what is long is cut
	}
	return response(b.send)
}

// bars returns the sends with their marks in order and within a picture that
// begins at 0 and is whole wide; times that cannot be are put right.
func bars(sends []evidence.Send) (bs []bar, begin, whole float64) {
	const longest = 24 * 3600 * 1e6
	limit := func(us int64) float64 {
		if us < 0 {
			return -1
		}
		return min(float64(us), longest)
	}
	begin, end := longest, 0.0
	first := ""
	for _, s := range sends {
		b := bar{send: s, start: limit(s.StartUS), lastWrite: limit(s.LastWriteUS), firstByte: limit(s.FirstByteUS), finis: limit(s.DoneUS)}
		last := max(b.start, b.lastWrite, b.firstByte, b.finis)
		if first == "" && (s.Role == evidence.RoleFirst || s.Role == evidence.RoleDuplicate) {
			first = s.Resource
		}
		b.other = s.Role == evidence.RoleDuplicate && s.Resource != "" && s.Resource != first
		b.open = s.Delivery != "answered" || b.finis < 0 || s.Cut != ""
		if b.start >= 0 {
			b.finis = last
			begin, end = min(begin, b.start), max(end, last)
		} else {
			b.lastWrite, b.firstByte, b.finis = -1, -1, -1
		}
		if b.lastWrite < b.start {
			b.lastWrite = -1
		}
		if b.firstByte < b.start {
			b.firstByte = -1
		}
		bs = append(bs, b)
	}
	if begin > end {
		return bs, 0, 1
	}
	return bs, begin, max(end-begin, 1)
}

// status is that of a response, with a word for an error that only its body tells.
func status(n int, saysError bool) string {
	if saysError {
		return fmt.Sprintf("%d (error)", n)
	}
	return fmt.Sprint(n)
}

// response says in a few words what a send came to.
func response(s evidence.Send) string {
	var parts []string
	switch {
	case s.Status != 0:
		parts = append(parts, status(s.Status, s.SaysError))
	case s.Cut != "":
		parts = append(parts, "cut "+name(s.Cut))
	default:
		parts = append(parts, name(s.Delivery))
	}
	if s.Replayed {
		parts = append(parts, "replayed")
	}
	if s.Resource != "" {
		parts = append(parts, name(s.Resource))
	}
	if s.Status != 0 && s.Cut != "" {
		parts = append(parts, "cut "+name(s.Cut))
	}
	if s.Err != "" && s.Status == 0 && s.Cut == "" {
		parts = append(parts, visible(s.Err, 60))
	}
	return strings.Join(parts, " ")
}

// raceLine says what a race of requests comes to, with its bound.
func raceLine(r *evidence.Race) string {
	line := fmt.Sprintf("%s of %d requests each over %s: %d requests delivered, released within %s; in %s they overlapped and an effect was seen. %d doubled, %d lost.",
		plural(r.Trials, "trial", "trials"), r.Width, name(r.Protocol), r.Delivered, span(float64(r.SpreadUS)), plural(r.Overlapped, "trial", "trials"), r.Doubled, r.Lost)
	if r.Doubled == 0 {
		line += fmt.Sprintf(" That leaves open a rate of double effects of up to %s (95 %% confidence).", percent(bound(r)))
	}
	return line
}

// bound is the race's bound. One that was never computed must not read as a
// rate of zero.
func bound(r *evidence.Race) float64 {
	if r.Bound > 0 {
		return r.Bound
	}
	return evidence.RateBound(r.Doubled, r.Overlapped)
}

func percent(rate float64) string {
	return evidence.Percent(rate)
}

// secondLine says how the second response relates to the first. Of resources it
// speaks only where one was named, and it has no hint of time where a reader
// told.
func secondLine(o *evidence.Operation, e *evidence.Experiment) string {
	s := e.Second
	says, first, second := e.Compared()
	if says == "" {
		return ""
	}
	parts := []string{says}
	if first.Status != 0 && second.Status != 0 {
		status := fmt.Sprintf("%d, then %d", first.Status, second.Status)
		if s.Status {
			status = fmt.Sprintf("%d both times", first.Status)
		}
		parts = append(parts, status)
		switch {
		case first.Bytes == 0 && second.Bytes == 0:
		case s.Body:
			parts = append(parts, "same body")
		default:
			parts = append(parts, "another body")
		}
		switch a, b := first.Resource, second.Resource; {
		case a != "" && b != "" && a != b:
			parts = append(parts, "another resource")
		case a != "" && b != "":
			parts = append(parts, "same resource")
		case a != "":
			parts = append(parts, "a resource named by the first alone")
		case b != "":
			parts = append(parts, "a resource named by the second alone")
		}
	}
	line := strings.Join(parts, ", ")
	if s.FirstUS > 0 && s.SecondUS > 0 && first.Timed() && second.Timed() {
		line += fmt.Sprintf("; the first took %s, the second %s", span(float64(s.FirstUS)), span(float64(s.SecondUS)))
	}
	if s.Timing != "" && s.Timing != "undecided" && !slices.ContainsFunc(e.Changes, func(c evidence.Change) bool { return !blind(o, c.Reader) }) {
		line += " (" + name(s.Timing) + ", a hint only)"
	}
	return line
}

// blind reports whether a reader has seen the effect of no fresh request, so that
// what it counts says nothing.
func blind(o *evidence.Operation, reader string) bool {
	return slices.ContainsFunc(o.Readers, func(r evidence.Reader) bool { return r.Name == reader && !r.Seen })
}

// wrong reports whether a change is known to be of other effects than were due.
func wrong(o *evidence.Operation, e *evidence.Experiment, c evidence.Change) bool {
	return e.Outcome == evidence.Broken && c.Expected >= 0 && (c.Effects != c.Expected || strings.HasPrefix(c.Name, "effects: ")) && !blind(o, c.Reader)
}

// contract says where the key is, and by which contract it was judged.
func contract(o *evidence.Operation) string {
	key, by := "", "contract "+name(o.Profile)
	switch o.KeyIn {
	case "":
	case evidence.NoKey:
		if key = "no key"; o.Profile == "none" {
			return key
		}
		key += ", "
	default:
		key = "key in " + name(o.KeyIn) + ", "
	}
	if o.Assumed {
		by += ", which is assumed: the plan names no profile"
	}
	return key + by
}

// limits are what a report has to say about what it cannot.
func limits(r *evidence.Run) []string {
	all := []string{
		"A probe sees effects only through the state readers of its plan.",
		"How the target makes an operation happen once cannot be seen from outside. Such fields are unknown unless the plan gave evidence, or a race doubled: in that case whatever decides between requests did not hold.",
	}
	once := false
	var apart []string
	for _, o := range r.Operations {
		for _, rd := range o.Readers {
			if said := name(rd.Name); rd.Uncounted && !slices.Contains(apart, said) {
				apart = append(apart, said)
			}
		}
	}
	if len(apart) > 0 && !r.DryRun {
		all = append(all, fmt.Sprintf("Requests that reading %s may send are not counted.", list(apart[:min(len(apart), 20)])))
	}
	for _, o := range r.Operations {
		for _, e := range o.Experiments {
			if e.Race != nil && e.Race.Doubled == 0 && e.Race.Overlapped > 0 {
				once = true
				all = append(all, fmt.Sprintf("%s, %s: no double effect in %s, which leaves open a rate of up to %s at 95 %% confidence.", name(o.Name), name(e.Name), plural(e.Race.Overlapped, "overlapping trial", "overlapping trials"), percent(bound(e.Race))))
			}
		}
	}
	if once {
		all = append(all, "If no race doubled, that is a bound on a rate under the conditions of the run, not a proof. With more instances, more load or a busier database, races can end differently.")
	}
	return all
}

// sendsWord says which sends are the evidence of a finding.
func sendsWord(f evidence.Finding) string {
	if len(f.Sends) == 0 {
		return ""
	}
	sends := slices.Sorted(slices.Values(f.Sends))
	if len(sends) == 1 {
		return "send " + ranges(sends)
	}
	return "sends " + ranges(sends)
}
