package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/semelhq/semel/probe/evidence"
)

// TerminalOptions control the output of Terminal.
type TerminalOptions struct {
	Colour bool
	// Width in columns. Default: 80; at least 60.
	Width int
	// Evidence is where the run was written to, as a pointer for the reader.
	Evidence string
}

// Terminal writes a summary for people. It holds escape sequences only if
// Colour is set, and then only those that set colours.
func Terminal(w io.Writer, r *evidence.Run, o TerminalOptions) error {
	if o.Width == 0 {
		o.Width = 80
	}
	p := printer{colour: o.Colour, width: max(o.Width, 60)}
	line, t := headline(r)
	p.wrap("", "", fmt.Sprintf("semel probe %s: run %s of %s", name(r.Version), name(r.ID), name(r.Plan)))
	p.wrap("", "", fmt.Sprintf("%s, %s; %d of at most %d requests sent to %s", when(r.Started), took(r.Started, r.Ended), r.Sent, r.Budget, targets(r)))
	p.line("")
	p.wrap("", "", p.paint(t, bottomLine(r)))
	p.wrap("", "", line)
	if r.Interrupted != "" {
		p.wrap("", p.paint(doubt, "Interrupted:")+" ", brief(r.Interrupted)+". The experiment that it interrupted is inconclusive; those that had not begun were not run.")
	}
	for i := range r.Operations {
		in := o.Evidence
		if r.DryRun {
			in = ""
		}
		p.operation(i, &r.Operations[i], in)
	}
	p.guidelines(r)
	p.head("limits")
	for _, l := range limits(r) {
		p.wrap("  ", "- ", l)
	}
	if o.Evidence != "" {
		p.line("")
		p.line("Evidence: %s", visible(o.Evidence, 4096))
		p.line("  the record as JSON: %s; the page for people: %s", RecordFile, HTMLFile)
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}

func targets(r *evidence.Run) string {
	if len(r.Targets) == 0 {
		return "nowhere"
	}
	var names []string
	for _, t := range r.Targets {
		names = append(names, name(t))
	}
	return strings.Join(names, ", ")
}

type printer struct {
	b      strings.Builder
	colour bool
	width  int
}

func (p *printer) paint(t tone, s string) string {
	code := map[tone]string{good: "32", bad: "31;1", doubt: "33"}[t]
	if !p.colour || code == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *printer) head(s string) { p.line("\n%s", s) }

// wrap writes a paragraph: indent and lead before its first line, and as much
// white space before the others. Words that are longer than a line are cut.
func (p *printer) wrap(indent, lead, s string) {
	hang := indent + strings.Repeat(" ", columns(lead))
	room := max(p.width-len(hang), 20)
	line, used := indent+lead, 0
	for _, word := range strings.Fields(s) {
		for {
			n := columns(word)
			if used > 0 && used+1+n > room {
				p.line("%s", line)
				line, used = hang, 0
			}
			if n <= room {
				break
			}
			head := string([]rune(word)[:room])
			p.line("%s", line+head)
			line, used, word = hang, 0, word[len(head):]
		}
		if used > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+columns(word)
	}
	p.line("%s", strings.TrimRight(line, " "))
}

// columns is the width of a text that may have been painted.
func columns(s string) (n int) {
	for {
		before, after, found := strings.Cut(s, "\x1b[")
		n += utf8.RuneCountInString(before)
		if !found {
			return n
		}
		_, s, _ = strings.Cut(after, "m")
	}
}

// Most of a list that a terminal shows; what is left out is counted.
const (
	mostFindings   = 20
	mostStatements = 24
	mostChanges    = 8
)

// more says how many of a list are not shown.
func (p *printer) more(n int, what string) {
	if n > 0 {
		p.wrap("  ", "", fmt.Sprintf("... and %d %s, in the evidence", n, what))
	}
}

// guidelines sums up what guidelines call the findings.
func (p *printer) guidelines(r *evidence.Run) {
	lines := guidelineSum(r.Operations)
	if len(lines) > 0 {
		p.head("guidelines")
	}
	for _, l := range lines {
		standard, ids, _ := strings.Cut(l, ": ")
		p.wrap("  ", standard+": ", ids)
	}
}

// operation shows one, the at-th; dir is the run's folder, if there is one.
func (p *printer) operation(at int, o *evidence.Operation, dir string) {
	p.head(strings.Repeat("-", p.width))
	p.wrap("", "", fmt.Sprintf("%s   %s %s   %s", name(o.Name), name(o.Method), brief(o.URL), contract(o)))
	if o.Source != "" {
		p.wrap("", "", "see "+source(o))
	}

	p.head("verdict")
	p.wrap("  ", "", brief(o.Verdict.Key()))

	p.head("findings")
	if len(o.Findings) == 0 {
		p.line("  none")
	}
	for i, f := range ranked(o.Findings) {
		if i == mostFindings {
			p.line("")
			p.more(len(o.Findings)-i, "findings")
			break
		}
		if i > 0 {
			p.line("")
		}
		p.wrap("  ", p.paint(priorityTone(f.Priority), name(string(f.Priority)))+"  ", brief(f.Title))
		p.wrap("      ", "", strings.Join(nonEmpty(name(string(f.ID)), name(string(f.Basis)), name(f.Experiment), sendsWord(f)), " · "))
		p.wrap("      ", "", brief(f.Explanation))
		for _, s := range f.Symptoms[:min(len(f.Symptoms), mostFindings)] {
			p.wrap("      ", "+ ", brief(s.Title)+" ("+strings.Join(nonEmpty(name(string(s.ID)), name(string(s.Basis)), name(s.Experiment), sendsWord(evidence.Finding{Sends: s.Sends})), ", ")+")")
		}
		for _, c := range f.Causes[:min(len(f.Causes), mostFindings)] {
			p.wrap("      ", "Cause, "+p.paint(causeTone(c.State), name(string(c.State)))+": ", brief(c.Text)+" "+brief(c.For))
			if c.State == evidence.Open {
				p.wrap("        ", "Decided by: ", brief(c.Check))
			}
		}
		p.wrap("      ", "Remedy: ", brief(f.Remedy))
		if see := further(f); len(see) > 0 {
			p.wrap("      ", "See: ", names(see))
		}
		if line := guidelineLine(f); line != "" {
			p.wrap("      ", "Guidelines: ", line)
		}
		if file := scriptFile(at, i, f); dir != "" && file != "" {
			// To be copied: not broken, however long.
			p.line("      Again: sh %s/%s", visible(strings.TrimRight(dir, `/\`), 4096), file)
		}
	}

	p.head("experiments")
	if len(o.Experiments) == 0 {
		p.line("  none")
	}
	ran, idle := sameWhy(o.Experiments)
	for _, e := range append(ran, idle...) {
		word := outcomeWords(e.Outcome)
		lead := p.paint(outcomeTone(e.Outcome), word) + strings.Repeat(" ", max(15-utf8.RuneCountInString(word), 1))
		p.wrap("  ", fmt.Sprintf("%-2s", name(e.Step))+lead, name(e.Name)+": "+brief(e.Why))
	}

	p.witnesses(o)
	if e := telling(o); e != nil {
		p.timeline(o, e)
	}
	for _, basis := range []struct {
		basis evidence.Basis
		title string
	}{{evidence.Established, "established"}, {evidence.Inferred, "inferred"}, {evidence.Unknowable, "cannot be known from outside"}} {
		n := 0
		for _, s := range o.Statements {
			if s.Basis != basis.basis {
				continue
			}
			if n == 0 {
				p.head(basis.title)
			}
			if n++; n <= mostStatements {
				p.wrap("  ", "- ", brief(s.Text))
			}
		}
		p.more(n-mostStatements, "statements")
	}
	p.head("hypotheses")
	for _, s := range o.Standings() {
		p.wrap("  ", s.Name+"  "+p.paint(standingTone(s.State), string(s.State))+": ", s.Text)
		p.wrap("     ", "", brief(s.Because))
		p.wrap("     ", "Next: ", s.Next)
	}
	if len(o.Untried) > 0 {
		p.head("not tried, so nothing is known about it")
	}
	for _, u := range o.Untried[:min(len(o.Untried), mostStatements)] {
		p.wrap("  ", "- ", brief(u.What)+": "+brief(u.How))
	}
	p.more(len(o.Untried)-mostStatements, "things that were not tried")
	causes := looseCauses(o)
	if len(causes) > 0 {
		p.head("possible causes")
	}
	for _, h := range causes {
		p.wrap("  ", "- ", brief(h.Text))
		p.wrap("     ", "For it: ", brief(h.For))
		p.wrap("     ", "Check: ", brief(h.Check))
	}
}

func source(o *evidence.Operation) string {
	s := brief(o.Source)
	if o.SourceLine > 0 {
		s += fmt.Sprintf(":%d", o.SourceLine)
	}
	return s
}

func names(all []string) string {
	var shown []string
	for _, s := range all {
		shown = append(shown, name(s))
	}
	return strings.Join(shown, ", ")
}

func nonEmpty(all ...string) (some []string) {
	for _, s := range all {
		if s != "" {
			some = append(some, s)
		}
	}
	return some
}

// timeline draws the sends: = while sending, - while waiting, + while the
// response comes; w at the last byte written, f at the first byte back.
func (p *printer) timeline(o *evidence.Operation, e *evidence.Experiment) {
	const most = 12
	sends := shown(byExperiment(o)[e.Name], e)
	if len(sends) > most {
		sends = sends[:most]
	}
	bs, begin, whole := bars(sends)
	labels, responses := make([]string, len(bs)), make([]string, len(bs))
	left, right := 0, 0
	for i, b := range bs {
		labels[i] = fmt.Sprintf("#%d %s", b.send.N, short(string(b.send.Role), 14))
		if b.send.Principal != "" {
			labels[i] += " " + short(b.send.Principal, 8)
		}
		responses[i] = short(b.response(), longestResponse)
		left, right = max(left, utf8.RuneCountInString(labels[i])), max(right, utf8.RuneCountInString(responses[i]))
	}
	room := max(p.width-2-left-1-1-right-1, 16)

	p.head("timeline of " + name(e.Name))
	for i, b := range bs {
		row := []byte(strings.Repeat(" ", room))
		at := func(us float64) int { return int((us - begin) / whole * float64(room-1)) }
		if b.start >= 0 {
			from, to := at(b.start), at(b.finis)
			write, first := to, to+1
			if b.lastWrite >= 0 {
				write = at(b.lastWrite)
			}
			if b.firstByte >= 0 {
				first = at(b.firstByte)
			}
			for x := from; x <= to; x++ {
				switch {
				case x < write:
					row[x] = '='
				case x < first:
					row[x] = '-'
				default:
					row[x] = '+'
				}
			}
			row[from], row[to] = '|', '|'
			if b.open {
				row[to] = 'x'
			}
			// In a narrow bar the marks are what counts.
			if b.lastWrite >= 0 && (write != to || from == to && !b.open) {
				row[write] = 'w'
			}
			if b.firstByte >= 0 && first < len(row) && (first != to || !b.open) && row[first] != 'w' {
				row[first] = 'f'
			}
		}
		p.line("  %s%s %s %s", labels[i], strings.Repeat(" ", left-utf8.RuneCountInString(labels[i])), row, strings.TrimRight(responses[i], " "))
	}
	legend := ""
	if slices.ContainsFunc(bs, func(b bar) bool { return b.other }) {
		legend = ", ≠ a duplicate that names a different resource from the first"
	}
	if slices.ContainsFunc(sends, func(s evidence.Send) bool { return s.SaysError }) {
		legend += ", (error) one in the body of the response"
	}
	edge := span(begin)
	p.line("  %s %s%s%s", strings.Repeat(" ", left), edge, strings.Repeat(" ", max(room-utf8.RuneCountInString(edge)-utf8.RuneCountInString(span(begin+whole)), 1)), span(begin+whole))
	p.wrap("  ", "", "| start and end, = sending, w last byte written, - waiting, f first byte back, + receiving, x no response or cut"+legend)
	for _, l := range inFull(bs, longestResponse) {
		p.wrap("  ", l.who+"  ", l.response)
	}
	if rest := unshown(e, len(sends)); rest != "" {
		p.line("  not shown: %s; run.json has them", rest)
	}
	if e.Race != nil {
		p.wrap("  ", "", raceLine(e.Race))
	}
	if line := secondLine(o, e); line != "" {
		p.wrap("  ", "second response: ", line)
	}
	changes := changeLines(o, e)
	for _, line := range changes[:min(len(changes), mostChanges)] {
		p.wrap("  ", "state: ", line)
	}
	p.more(len(changes)-mostChanges, "changes")
}

// longestResponse is how much of a response is beside its bar.
const longestResponse = 24

// fullResponse is a response that there was no room for, and whose it is.
type fullResponse struct{ who, response string }

// inFull lists the responses that are cut at a length, so that ids in them can
// be looked up: each once, with the sends that got it.
func inFull(bs []bar, longest int) (lines []fullResponse) {
	of := map[string][]int{}
	for _, b := range bs {
		// The mark of another resource is in the picture.
		a := response(b.send)
		if b.start < 0 || utf8.RuneCountInString(b.response()) <= longest {
			continue
		}
		if of[a] == nil {
			lines = append(lines, fullResponse{response: a})
		}
		of[a] = append(of[a], b.send.N)
	}
	for i := range lines {
		lines[i].who = "#" + strings.ReplaceAll(ranges(of[lines[i].response]), ", ", ", #")
	}
	return lines
}

// unshown says what a picture of so many sends does not show; empty for nothing.
func unshown(e *evidence.Experiment, drawn int) string {
	hidden, reads := -drawn, 0
	for _, s := range e.Sends {
		if s.Role == evidence.RoleRead {
			reads++
		} else {
			hidden++
		}
	}
	var missing []string
	if hidden > 0 {
		missing = append(missing, plural(hidden, "send", "sends"))
	}
	if reads > 0 {
		missing = append(missing, plural(reads, "reading", "readings")+" of the state")
	}
	return strings.Join(missing, ", ")
}

// witnesses shows what the four witnesses say of each experiment.
func (p *printer) witnesses(o *evidence.Operation) {
	rows := witnesses(o)
	if len(rows) == 0 {
		return
	}
	p.head("witnesses")
	wide := 0
	for _, r := range rows {
		wide = max(wide, utf8.RuneCountInString(short(r.Experiment, 16)))
	}
	for i, r := range rows {
		if i == mostFindings {
			p.more(len(rows)-i, "experiments")
			break
		}
		mark := func(wrong bool, s string) string {
			if wrong {
				return p.paint(bad, s+" !")
			}
			return s
		}
		who := short(r.Experiment, 16)
		p.wrap("  ", who+strings.Repeat(" ", wide-utf8.RuneCountInString(who)+2),
			fmt.Sprintf("ids %s | state %s | audit %s | outside %s", mark(r.WrongIDs, r.IDs), mark(r.WrongState, r.State), r.Audit, mark(r.WrongIt, r.Outside)))
		if r.First != nothing || r.Second != nothing {
			said := r.First
			if r.Second != nothing {
				said += ", then " + r.Second
			}
			p.wrap(strings.Repeat(" ", wide+4), "", said)
		}
	}
}

// changeLines are the changes of an experiment; those of a race that are the
// same are one line.
func changeLines(o *evidence.Operation, e *evidence.Experiment) (lines []string) {
	n := map[string]int{}
	for _, c := range e.Changes {
		line := changeLine(o, c)
		if e.Race == nil || n[line] == 0 {
			lines = append(lines, line)
		}
		n[line]++
	}
	for i, line := range lines {
		switch {
		case e.Race == nil || n[line] == 1:
		case n[line] == e.Race.Trials && !slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Role == evidence.RoleControl }):
			lines[i] += fmt.Sprintf(" in each of %d trials", n[line])
		case n[line] == e.Race.Trials+1:
			lines[i] += fmt.Sprintf(" in the control and in each of %s", plural(e.Race.Trials, "trial", "trials"))
		default:
			lines[i] += fmt.Sprintf(" %d times", n[line])
		}
	}
	return lines
}

func changeLine(o *evidence.Operation, c evidence.Change) string {
	s := strings.Join(nonEmpty(name(c.Reader), name(c.Name)), " ") + ": " + brief(c.Before) + " -> " + brief(c.After)
	n := plural(int(c.Effects), "effect", "effects")
	switch {
	case blind(o, c.Reader):
		return s + " (it saw no effect of any fresh request, so this shows nothing)"
	case !counts(c):
		return s
	case c.Name != "effects" && strings.HasPrefix(c.Name, "effects: ") && c.Expected < 0:
		return s
	case c.Name != "effects" && strings.HasPrefix(c.Name, "effects: "):
		return s + fmt.Sprintf(" (%d due)", c.Expected)
	case c.Expected < 0:
		return s + " (" + n + ")"
	}
	return s + fmt.Sprintf(" (%s, %d due)", n, c.Expected)
}

// counts reports whether a change is one of effects, and not of a value.
func counts(c evidence.Change) bool {
	return c.Effects != 0 || c.Expected != 0 || strings.HasPrefix(c.Name, "effects")
}
