package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

// sarifObjects is the part of SARIF 2.1.0 that may be written: each object's
// members and what each is. A ! marks what is required, [] a list. SARIF's
// objects have no members but their own.
var sarifObjects = map[string]map[string]string{
	"log":        {"$schema": "uri", "version!": "2.1.0", "runs!": "[]run"},
	"run":        {"tool!": "tool", "automationDetails": "automation", "invocations": "[]invocation", "columnKind": "utf16CodeUnits|unicodeCodePoints", "results": "[]result", "properties": "bag"},
	"automation": {"id": "string", "guid": "string", "description": "message"},
	"tool":       {"driver!": "driver"},
	"driver":     {"name!": "string", "version": "string", "semanticVersion": "string", "informationUri": "uri", "rules": "[]rule"},
	"rule": {
		"id!": "string", "name": "string", "shortDescription": "text", "fullDescription": "text", "help": "text", "helpUri": "uri",
		"defaultConfiguration": "configuration", "properties": "bag",
	},
	"configuration": {"level": "none|note|warning|error", "enabled": "bool"},
	"text":          {"text!": "string", "markdown": "string"},
	"message":       {"text!": "string", "markdown": "string"},
	"invocation":    {"executionSuccessful!": "bool", "startTimeUtc": "time", "endTimeUtc": "time", "toolExecutionNotifications": "[]notification"},
	"notification":  {"message!": "message", "level": "none|note|warning|error"},
	"result": {
		"ruleId": "string", "ruleIndex": "count", "kind": "notApplicable|pass|fail|review|open|informational", "level": "none|note|warning|error",
		"message!": "message", "locations": "[]location", "partialFingerprints": "strings", "properties": "bag",
	},
	"location":         {"physicalLocation": "physical", "logicalLocations": "[]logical"},
	"physical":         {"artifactLocation!": "artifactLocation", "region": "region"},
	"artifactLocation": {"uri": "reference", "uriBaseId": "string"},
	"region":           {"startLine": "line", "startColumn": "line", "endLine": "line", "endColumn": "line"},
	"logical":          {"name": "string", "fullyQualifiedName": "string", "kind": "function|member|module|namespace|resource|type"},
}

func checkSARIF(kind, at string, v any) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, at+": "+fmt.Sprintf(format, args...)) }
	if of, ok := strings.CutPrefix(kind, "[]"); ok {
		list, ok := v.([]any)
		if !ok {
			bad("%T is no list", v)
		}
		for i, e := range list {
			wrong = append(wrong, checkSARIF(of, fmt.Sprintf("%s[%d]", at, i), e)...)
		}
		return wrong
	}
	if members, ok := sarifObjects[kind]; ok {
		object, ok := v.(map[string]any)
		if !ok {
			bad("%T is no %s", v, kind)
			return wrong
		}
		for m, e := range object {
			of, ok := members[m]
			if !ok {
				of, ok = members[m+"!"]
			}
			if !ok {
				bad("a %s has no %q", kind, m)
				continue
			}
			wrong = append(wrong, checkSARIF(of, at+"."+m, e)...)
		}
		for m := range members {
			if m, required := strings.CutSuffix(m, "!"); required {
				if _, ok := object[m]; !ok {
					bad("%q is missing", m)
				}
			}
		}
		return wrong
	}
	s, isString := v.(string)
	n, isNumber := v.(float64)
	switch kind {
	case "string":
		if !isString || s == "" {
			bad("%v is no text", v)
		}
	case "uri", "reference":
		u, err := url.Parse(s)
		if !isString || err != nil || kind == "uri" && !u.IsAbs() || strings.ContainsAny(s, " <>\"{}|\\^`") {
			bad("%q is no %s: %v", s, kind, err)
		}
	case "time":
		if _, err := time.Parse("2006-01-02T15:04:05.000Z", s); err != nil {
			bad("%v", err)
		}
	case "bool":
		if _, ok := v.(bool); !ok {
			bad("%v is no bool", v)
		}
	case "count":
		if !isNumber || n < 0 || n != float64(int(n)) {
			bad("%v is no index", v)
		}
	case "line":
		if !isNumber || n < 1 || n != float64(int(n)) {
			bad("%v is no line", v)
		}
	case "bag", "strings":
		m, ok := v.(map[string]any)
		if !ok {
			bad("%T is no object", v)
		}
		for k, e := range m {
			if _, ok := e.(string); kind == "strings" && !ok {
				bad("%q is no text", k)
			}
		}
		if tags, ok := m["tags"]; ok {
			var seen []string
			for _, tag := range tags.([]any) {
				if slices.Contains(seen, tag.(string)) {
					bad("tag %q is there twice", tag)
				}
				seen = append(seen, tag.(string))
			}
		}
	default:
		if !isString || !slices.Contains(strings.Split(kind, "|"), s) {
			bad("%v is none of %s", v, kind)
		}
	}
	return wrong
}

// The outputs have also been validated against the published JSON Schema.
func TestSARIFIsSARIF(t *testing.T) {
	for name, r := range runs() {
		var doc any
		b := write(t, "sarif", r)
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		for _, w := range checkSARIF("log", name, doc) {
			t.Error(w)
		}
		var l sarifLog
		if err := json.Unmarshal(b, &l); err != nil {
			t.Fatal(err)
		}
		run, ids := l.Runs[0], map[string]bool{}
		for _, rule := range run.Tool.Driver.Rules {
			if ids[rule.ID] {
				t.Errorf("%s: rule %q is there twice", name, rule.ID)
			}
			ids[rule.ID] = true
		}
		want := 0
		for _, o := range r.Operations {
			want += len(o.Findings)
		}
		if len(run.Results) != want {
			t.Errorf("%s: %d results of %d findings", name, len(run.Results), want)
		}
		for _, x := range run.Results {
			if x.Index >= len(run.Tool.Driver.Rules) || run.Tool.Driver.Rules[x.Index].ID != x.Rule {
				t.Errorf("%s: result of %q points to rule %d", name, x.Rule, x.Index)
			}
		}
		if run.Invocations[0].Successful != (r.Interrupted == "") {
			t.Errorf("%s: an interrupted run is a success, or a whole one is not", name)
		}
	}
}

func TestSARIFCheckerRefuses(t *testing.T) {
	var doc map[string]any
	if err := json.Unmarshal(write(t, "sarif", raceRun()), &doc); err != nil {
		t.Fatal(err)
	}
	run := doc["runs"].([]any)[0].(map[string]any)
	result := run["results"].([]any)[0].(map[string]any)
	for _, c := range []struct {
		in   map[string]any
		key  string
		with any
	}{
		{doc, "version", "2.0.0"},
		{doc, "extra", 1.0},
		{run, "tool", nil},
		{result, "level", "fatal"},
		{result, "ruleIndex", 1.5},
		{result, "message", map[string]any{}},
		{result, "locations", []any{map[string]any{"physicalLocation": map[string]any{"artifactLocation": map[string]any{"uri": "a b"}}}}},
		{result, "partialFingerprints", map[string]any{"a": 1.0}},
	} {
		was, had := c.in[c.key]
		c.in[c.key] = c.with
		if len(checkSARIF("log", "", doc)) == 0 {
			t.Errorf("%s: %v passes", c.key, c.with)
		}
		if c.in[c.key] = was; !had {
			delete(c.in, c.key)
		}
	}
	if wrong := checkSARIF("log", "", doc); len(wrong) > 0 {
		t.Error(wrong)
	}
}

// Code scanners track an alert by its fingerprints: one finding keeps its own
// from run to run, and no two share one.
func TestFingerprints(t *testing.T) {
	prints := func(r *evidence.Run) (finding, verdict []string) {
		var l sarifLog
		if err := json.Unmarshal(write(t, "sarif", r), &l); err != nil {
			t.Fatal(err)
		}
		for _, x := range l.Runs[0].Results {
			finding, verdict = append(finding, x.Fingerprints["finding/v1"]), append(verdict, x.Fingerprints["verdict/v1"])
		}
		return finding, verdict
	}
	a, b := raceRun(), raceRun()
	b.ID, b.Started, b.Operations[0].Verdict.Confidence, b.Operations[0].Findings[1].Sends = "another", began.Add(time.Hour), 0.2, []int{1}
	af, av := prints(a)
	bf, bv := prints(b)
	if !reflect.DeepEqual(af, bf) || !reflect.DeepEqual(av, bv) {
		t.Error("another run of the same has other fingerprints")
	}
	if slices.Sort(af); len(slices.Compact(af)) != 3 {
		t.Errorf("fingerprints are shared: %q", af)
	}
	b.Operations[0].Verdict.RaceBehavior = "unknown"
	if _, cv := prints(b); cv[0] == av[0] {
		t.Error("another verdict has the same fingerprint")
	}
}

func TestSourceURI(t *testing.T) {
	for source, want := range map[string]string{
		"":                                      "",
		"api/openapi.yaml":                      "api/openapi.yaml",
		`api\v 1\openapi.yml`:                   "api/v%201/openapi.yml",
		"../a:b?#.yaml":                         "../a:b%3F%23.yaml",
		"a:b.yaml":                              "./a:b.yaml",
		"/etc/openapi.yaml":                     "file:///etc/openapi.yaml",
		`C:\api\openapi.yaml`:                   "file:///C:/api/openapi.yaml",
		"https://u:p@example.test/openapi.yaml": "https://example.test/openapi.yaml",
		"javascript:alert(1)":                   "./javascript:alert%281%29",
	} {
		if got := sourceURI(source); got != want {
			t.Errorf("%q: %q; want %q", source, got, want)
		}
	}
}

// Rules are those of the catalogue even where a finding's texts are not.
func TestSARIFRulesAreTheCatalogue(t *testing.T) {
	for _, e := range evidence.Catalogue() {
		f := e.Finding("x")
		f.Title, f.Priority = "of this run", evidence.P2
		r := rule(string(e.ID), f)
		if want := map[evidence.Priority]string{evidence.P0: "error", evidence.P1: "warning", evidence.P2: "note"}[e.Priority]; r.Default.Level != want || r.Short.Text != sentence(e.Title) || !strings.Contains(r.Help.Text, e.Remedy) {
			t.Errorf("%s: %+v", e.ID, r)
		}
	}
}

// What GitHub documents as required, or limits, for code scanning: four numbers of
// a region, a fingerprint of its own name, texts of up to 1024 characters, up to
// ten tags, one location, a severity above 0 and a category that is the same in
// every run.
func TestSARIFForGitHub(t *testing.T) {
	r := raceRun()
	r.Operations[0].Source, r.Operations[0].SourceLine = "probes/orders.yaml", 12
	r.Operations[0].Findings = nil
	for _, e := range evidence.Catalogue() {
		r.Operations[0].Findings = append(r.Operations[0].Findings, e.Finding("race", 5))
	}
	var l sarifLog
	if err := json.Unmarshal(write(t, "sarif", r), &l); err != nil {
		t.Fatal(err)
	}
	run := l.Runs[0]
	if category, id, ok := strings.Cut(strings.TrimPrefix(run.Automation.ID, "semel-probe/"), "/"); !ok || category == "" || strings.Contains(id, "/") {
		t.Errorf("the category and the run are %q", run.Automation.ID)
	}
	for _, rule := range run.Tool.Driver.Rules {
		for what, text := range map[string]string{"shortDescription": rule.Short.Text, "fullDescription": rule.Full.Text, "help": rule.Help.Text} {
			if n := len([]rune(text)); n == 0 || what != "help" && n > 1024 {
				t.Errorf("%s: the %s has %d characters", rule.ID, what, n)
			}
		}
		tags, _ := rule.Properties["tags"].([]any)
		score, _ := strconv.ParseFloat(fmt.Sprint(rule.Properties["security-severity"]), 64)
		// Above 9.0 is critical; 9.0 itself is in no band.
		if len(rule.Name) > 255 || len(tags) > 10 || !(score > 0 && score <= 10) || score == 9 || !slices.Contains([]any{"very-high", "high", "medium", "low"}, rule.Properties["precision"]) {
			t.Errorf("%s: %+v", rule.ID, rule.Properties)
		}
	}
	prints := map[string]bool{}
	for _, x := range run.Results {
		p := x.Locations[0].Physical
		if len(x.Locations) != 1 || p == nil || *p.Region != (sarifRegion{12, 1, 12, 2}) {
			t.Errorf("%s is at %+v", x.Rule, x.Locations)
		}
		h := x.Fingerprints["primaryLocationLineHash"]
		if !regexp.MustCompile(`^[0-9a-f]{16}:1$`).MatchString(h) || prints[h] {
			t.Errorf("%s has the fingerprint %q", x.Rule, h)
		}
		prints[h] = true
	}
}

// junitElements are what the XSD of Jenkins's xUnit plugin allows (junit-10.xsd),
// which is the strictest that CI systems read with: attributes, then children.
var junitElements = map[string][2]string{
	"testsuites": {"name time tests failures errors", "testsuite"},
	"testsuite":  {"name! tests! failures! errors! group time skipped timestamp hostname id package file log url", "testsuite properties testcase system-out system-err"},
	"testcase":   {"name! time classname group", "skipped error failure rerunFailure rerunError flakyFailure flakyError system-out system-err"},
	"failure":    {"type message", ""}, "error": {"type message", ""}, "skipped": {"type message", ""}, "system-out": {}, "system-err": {},
}

func checkJUnit(b []byte) (wrong []string) {
	d := xml.NewDecoder(bytes.NewReader(b))
	var open []string
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return wrong
		}
		if err != nil {
			return append(wrong, err.Error())
		}
		switch x := tok.(type) {
		case xml.StartElement:
			e, ok := junitElements[x.Name.Local]
			if len(open) > 0 {
				_, children := open[len(open)-1], strings.Fields(junitElements[open[len(open)-1]][1])
				ok = ok && slices.Contains(children, x.Name.Local)
			}
			if !ok {
				wrong = append(wrong, fmt.Sprintf("%s in %q", x.Name.Local, open))
			}
			has := map[string]bool{}
			for _, a := range x.Attr {
				has[a.Name.Local] = true
				if !slices.Contains(strings.Fields(strings.ReplaceAll(e[0], "!", "")), a.Name.Local) {
					wrong = append(wrong, fmt.Sprintf("%s has the attribute %s", x.Name.Local, a.Name.Local))
				}
				if a.Name.Local == "time" && !regexp.MustCompile(`^[0-9]{1,3}(,?[0-9]{3})*(\.[0-9]*)?$`).MatchString(a.Value) {
					wrong = append(wrong, "the time is "+a.Value)
				}
			}
			for _, a := range strings.Fields(e[0]) {
				if name, required := strings.CutSuffix(a, "!"); required && !has[name] {
					wrong = append(wrong, x.Name.Local+" lacks "+name)
				}
			}
			open = append(open, x.Name.Local)
		case xml.EndElement:
			open = open[:len(open)-1]
		}
	}
}

func TestJUnitIsJUnit(t *testing.T) {
	for name, r := range runs() {
		for _, w := range checkJUnit(write(t, "junit.xml", r)) {
			t.Errorf("%s: %s", name, w)
		}
	}
	for _, b := range []string{`<testsuites skipped="1"/>`, `<testsuites><testsuite name="x" tests="1" failures="0"/></testsuites>`, `<testsuites><testcase name="x"/></testsuites>`, `<testsuites time="soon"/>`, `<testsuites>`} {
		if len(checkJUnit([]byte(b))) == 0 {
			t.Errorf("%s passes", b)
		}
	}
}
