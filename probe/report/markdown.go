package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
)

// Most findings and experiments of an operation in Markdown, which is for a
// comment that people read among others.
const mostInMarkdown = 20

// Markdown writes a short summary for a comment on a pull request. Texts of the
// run cannot create markup, links or mentions in it.
func Markdown(w io.Writer, r *evidence.Run) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	head, t := headline(r)
	line("### %s Does it happen once? %s", map[tone]string{good: "🟢", bad: "🔴", doubt: "🟡", neutral: "⚪"}[t], code(visible(r.Plan, 80)))
	line("")
	line("**%s**", prose(bottomLine(r)))
	line("")
	line("%s", prose(head))
	if r.Interrupted != "" {
		line("")
		line("**Interrupted:** %s. The experiment that it interrupted is inconclusive; those that had not begun were not run.", prose(visible(r.Interrupted, 300)))
	}
	for i := range r.Operations {
		o := &r.Operations[i]
		line("")
		line("#### %s", code(visible(o.Name, 80)))
		line("")
		fs := ranked(o.Findings)
		for _, f := range fs[:min(len(fs), mostInMarkdown)] {
			line("- **%s** %s (%s)", prose(name(string(f.Priority))), prose(visible(f.Title, 200)), strings.Join(nonEmpty(code(name(string(f.ID))), prose(name(string(f.Basis))), sendsWord(f)), ", "))
			for _, s := range f.Symptoms[:min(len(f.Symptoms), mostInMarkdown)] {
				line("  <br>Same cause: %s (%s)", prose(visible(s.Title, 200)), strings.Join(nonEmpty(code(name(string(s.ID))), prose(name(string(s.Basis)))), ", "))
			}
			for _, c := range f.Causes {
				if c.State == evidence.Supported {
					line("  <br>Likely cause: %s", prose(visible(c.Text, 300)))
				}
			}
			line("  <br>Remedy: %s", prose(visible(f.Remedy, 500)))
			if g := guidelineLine(f); g != "" {
				line("  <br>%s", prose(g))
			}
		}
		if len(fs) > mostInMarkdown {
			line("- %d more findings are in the report.", len(fs)-mostInMarkdown)
		}
		if len(fs) == 0 {
			line("No findings.")
		}
		var open []evidence.Experiment
		count := map[evidence.Outcome]int{}
		for _, e := range o.Experiments {
			count[e.Outcome]++
			if e.Outcome == evidence.Inconclusive {
				open = append(open, e)
			}
		}
		if len(open) > 0 {
			line("")
			line("Not shown:")
			line("")
		}
		for _, e := range open[:min(len(open), mostInMarkdown)] {
			line("- %s: %s", code(name(e.Name)), prose(visible(e.Why, 300)))
		}
		if len(open) > mostInMarkdown {
			line("- %d more.", len(open)-mostInMarkdown)
		}
		line("")
		line("Experiments: %d held, %d broken, %d inconclusive, %d not applicable, %d not run.", count[evidence.Held], count[evidence.Broken], count[evidence.Inconclusive], count[evidence.NotApplicable], count[evidence.NotRun])
		if rows := witnesses(o); len(rows) > 0 {
			line("")
			line("| experiment | ids | state | audit | outside | first | second |")
			line("|---|---|---|---|---|---|---|")
			for _, r := range rows[:min(len(rows), mostInMarkdown)] {
				line("| %s | %s | %s | %s | %s | %s | %s |", code(cell(r.Experiment)), prose(r.IDs), prose(r.State), prose(r.Audit), prose(r.Outside), prose(r.First), prose(r.Second))
			}
			if len(rows) > mostInMarkdown {
				line("")
				line("%d more experiments are in the report.", len(rows)-mostInMarkdown)
			}
		}
		line("")
		for _, s := range o.Standings() {
			line("- Hypothesis %s is %s. %s %s", s.Name, prose(string(s.State)), prose(s.Text), prose(visible(s.Because, 300)))
		}
		line("")
		line("%s", code(text(o.Verdict.Key())))
	}
	if sum := guidelineSum(r.Operations); len(sum) > 0 {
		line("")
		line("In the words of guidelines, in sum:")
		line("")
		for _, l := range sum {
			line("- %s", prose(l))
		}
	}
	line("")
	line("Run %s, semel %s, %d of at most %d requests sent. The absence of findings proves nothing: a probe sees only what its plan's readers show.", code(visible(r.ID, 80)), prose(visible(r.Version, 40)), r.Sent, r.Budget)
	_, err := io.WriteString(w, b.String())
	return err
}

// prose escapes a text of one line so that Markdown shows it as it is. An empty
// comment keeps forges from making mentions and links of what they find in the
// finished page, where a backslash no longer helps.
func prose(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch r {
		case '&':
			b.WriteString("&amp;")
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '@', '#':
			b.WriteByte('\\')
			b.WriteRune(r)
			b.WriteString("<!-- -->")
		case ':':
			b.WriteByte(':')
			if strings.HasPrefix(s[i:], "://") || strings.HasPrefix(s[i:], ":") && i > 0 && strings.HasSuffix(strings.ToLower(s[:i]), "mailto") {
				b.WriteString("<!-- -->")
			}
		case '.':
			if i >= 3 && strings.EqualFold(s[i-3:i], "www") {
				b.WriteString("<!-- -->")
			}
			b.WriteByte('.')
		case '\\', '`', '*', '_', '{', '}', '[', ']', '(', ')', '!', '|', '~', '$', '^', '=', '"':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '-', '+':
			if i == 0 {
				b.WriteByte('\\')
			}
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// cell is a text for a code span in a table, where a | ends the cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", "¦") }

// code is a code span with a fence that is longer than any in it.
func code(s string) string {
	if s == "" {
		return ""
	}
	longest, run := 0, 0
	for _, r := range s {
		if run++; r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", longest+1)
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") || strings.HasPrefix(s, " ") && strings.HasSuffix(s, " ") {
		s = " " + s + " "
	}
	return fence + s + fence
}
