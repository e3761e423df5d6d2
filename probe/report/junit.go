package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Stamp    string      `xml:"timestamp,attr,omitempty"`
		Cases    []junitCase `xml:"testcase"`
		Out      string      `xml:"system-out,omitempty"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitMessage `xml:"failure"`
		Error   *junitMessage `xml:"error"`
		Skipped *junitMessage `xml:"skipped"`
		Out     string        `xml:"system-out,omitempty"`

		took time.Duration
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes a test suite for each operation and a test case for each
// experiment, for CI systems:
//
//   - broken, or with a finding that is not P2: a failure with the findings' texts;
//   - inconclusive: skipped, with the reason. It is not a failure of the target;
//     the exit code of semel probe run says that the run was not conclusive;
//   - not applicable, not run: skipped;
//   - findings of P2 where the experiment held: in the output of the case.
//
// A run that ended early, or did nothing, has one more case that says so: an
// error, or skipped after a dry run. Findings that belong to no experiment have
// a separate case.
func JUnit(w io.Writer, r *evidence.Run) error {
	all := junitSuites{Name: "semel probe " + name(r.Plan)}
	var total time.Duration
	for i := range r.Operations {
		s, d := junitOperation(&r.Operations[i])
		if !r.Started.IsZero() {
			s.Stamp = r.Started.UTC().Format("2006-01-02T15:04:05")
		}
		total += d
		all.Suites = append(all.Suites, s)
	}
	c := junitCase{Class: "semel.probe", Name: "run", Time: "0.000"}
	switch {
	case r.Interrupted != "":
		c.Error = &junitMessage{Message: "interrupted: " + text(r.Interrupted), Type: "interrupted", Text: "The experiment that it interrupted is inconclusive; those that had not begun were not run."}
	case r.DryRun:
		c.Skipped = &junitMessage{Message: "dry run: nothing was sent"}
	case len(r.Operations) == 0:
		c.Error = &junitMessage{Message: "no operation was probed", Type: "empty"}
	}
	if c.Error != nil || c.Skipped != nil {
		all.Suites = append(all.Suites, junitCount(junitSuite{Name: "run", Time: "0.000", Cases: []junitCase{c}}))
	}
	for _, s := range all.Suites {
		all.Tests += s.Tests
		all.Failures += s.Failures
		all.Errors += s.Errors
	}
	all.Time = seconds(total)

	var b strings.Builder
	b.WriteString(xml.Header)
	e := xml.NewEncoder(&b)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

func junitOperation(o *evidence.Operation) (junitSuite, time.Duration) {
	s := junitSuite{Name: name(o.Name)}
	class := "semel.probe." + name(o.Name)
	left := map[string][]evidence.Finding{}
	var order []string
	for _, f := range ranked(o.Findings) {
		if _, ok := left[f.Experiment]; !ok {
			order = append(order, f.Experiment)
		}
		left[f.Experiment] = append(left[f.Experiment], f)
	}
	seen := map[string]int{}
	var total time.Duration
	for _, e := range o.Experiments {
		c := junitCase{Class: class, Name: name(e.Name)}
		if seen[e.Name]++; seen[e.Name] > 1 {
			c.Name += fmt.Sprintf(" (%d)", seen[e.Name])
		}
		if d := e.Ended.Sub(e.Started); !e.Started.IsZero() && d > 0 {
			c.took = d
			total += d
		}
		c.Time = seconds(c.took)
		fs := left[e.Name]
		delete(left, e.Name)
		switch {
		case e.Outcome == evidence.Broken || slices.ContainsFunc(fs, func(f evidence.Finding) bool { return f.Priority != evidence.P2 }):
			c.Failure = junitFailure(fs, e.Why)
			if e.Outcome != evidence.Broken {
				c.Out = "The experiment itself: " + outcomeWords(e.Outcome) + ". " + text(e.Why)
			}
		case e.Outcome == evidence.Inconclusive:
			c.Skipped = &junitMessage{Message: "inconclusive: " + text(e.Why), Type: "inconclusive"}
			c.Out = findingTexts(fs)
		case e.Outcome == evidence.Held:
			c.Out = findingTexts(fs)
		default:
			c.Skipped = &junitMessage{Message: outcomeWords(e.Outcome) + ": " + text(e.Why)}
			c.Out = findingTexts(fs)
		}
		s.Cases = append(s.Cases, c)
	}
	for _, of := range order {
		fs := left[of]
		if len(fs) == 0 {
			continue
		}
		if of == "" {
			of = "the operation"
		}
		s.Cases = append(s.Cases, junitCase{Class: class, Name: "findings of " + name(of), Time: "0.000", Failure: junitFailure(fs, "")})
	}
	s.Time = seconds(total)
	if sum := guidelineSum([]evidence.Operation{*o}); len(sum) > 0 {
		s.Out = "In the words of guidelines:\n" + strings.Join(sum, "\n")
	}
	return junitCount(s), total
}

func junitCount(s junitSuite) junitSuite {
	s.Tests = len(s.Cases)
	for _, c := range s.Cases {
		switch {
		case c.Failure != nil:
			s.Failures++
		case c.Error != nil:
			s.Errors++
		case c.Skipped != nil:
			s.Skipped++
		}
	}
	return s
}

func junitFailure(fs []evidence.Finding, why string) *junitMessage {
	if len(fs) == 0 {
		return &junitMessage{Message: text(why), Type: "broken"}
	}
	return &junitMessage{Message: name(string(fs[0].Priority)) + " " + text(fs[0].Title), Type: name(string(fs[0].ID)), Text: strings.Join(nonEmpty(text(why), findingTexts(fs)), "\n\n")}
}

// findingTexts is findings as plain text.
func findingTexts(fs []evidence.Finding) string {
	var all []string
	for _, f := range fs {
		all = append(all, strings.Join(nonEmpty(
			fmt.Sprintf("%s %s (%s, %s)", name(string(f.Priority)), text(f.Title), name(string(f.ID)), name(string(f.Basis))),
			text(f.Explanation), symptomLine(f), "Remedy: "+text(f.Remedy), sendsWord(f), guidelineLine(f)), "\n"))
	}
	return strings.Join(all, "\n\n")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
