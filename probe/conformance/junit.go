package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
)

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Stamp    string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure,omitempty"`
	Skipped *junitMessage `xml:"skipped,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the report in the XML form that CI systems read.
func (r Report) WriteJUnit(w io.Writer) error {
	s := junitSuite{
		Name: "semel conformance " + r.Contract, Tests: len(r.Results), Failures: r.Failed(),
		Time: fmt.Sprintf("%.3f", r.Took.Seconds()), Stamp: r.Started.UTC().Format("2006-01-02T15:04:05"),
	}
	for _, c := range r.Results {
		j := junitCase{Class: "conformance." + r.Contract, Name: c.Case, Time: fmt.Sprintf("%.3f", c.Took.Seconds())}
		switch c.Outcome {
		case Failed:
			j.Failure = &junitMessage{Message: c.Detail, Text: "want " + c.Expected}
		case NotApplicable:
			s.Skipped++
			j.Skipped = &junitMessage{Message: c.Detail}
		}
		s.Cases = append(s.Cases, j)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
