package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

const (
	sarifSchema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
	homepage    = "https://github.com/semelhq/semel"
)

type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		Automation  *sarifAutomation  `json:"automationDetails,omitempty"`
		Invocations []sarifInvocation `json:"invocations"`
		Columns     string            `json:"columnKind"`
		Results     []sarifResult     `json:"results"`
		Properties  map[string]any    `json:"properties,omitempty"`
	}
	sarifAutomation struct {
		ID string `json:"id"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Home    string      `json:"informationUri"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID         string         `json:"id"`
		Name       string         `json:"name"`
		Short      sarifMessage   `json:"shortDescription"`
		Full       sarifMessage   `json:"fullDescription"`
		Help       sarifMessage   `json:"help"`
		HelpURI    string         `json:"helpUri,omitempty"`
		Default    sarifLevel     `json:"defaultConfiguration"`
		Properties map[string]any `json:"properties,omitempty"`
	}
	sarifLevel struct {
		Level string `json:"level"`
	}
	sarifMessage struct {
		Text     string `json:"text"`
		Markdown string `json:"markdown,omitempty"`
	}
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		Start         string              `json:"startTimeUtc,omitempty"`
		End           string              `json:"endTimeUtc,omitempty"`
		Notifications []sarifNotification `json:"toolExecutionNotifications,omitempty"`
	}
	sarifNotification struct {
		Level   string       `json:"level"`
		Message sarifMessage `json:"message"`
	}
	sarifResult struct {
		Rule         string            `json:"ruleId"`
		Index        int               `json:"ruleIndex"`
		Kind         string            `json:"kind"`
		Level        string            `json:"level"`
		Message      sarifMessage      `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
		Properties   map[string]any    `json:"properties"`
	}
	sarifLocation struct {
		Physical *sarifPhysical `json:"physicalLocation,omitempty"`
		Logical  []sarifLogical `json:"logicalLocations"`
	}
	sarifPhysical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	}
	sarifRegion struct {
		Line      int `json:"startLine"`
		Column    int `json:"startColumn"`
		EndLine   int `json:"endLine"`
		EndColumn int `json:"endColumn"`
	}
	sarifLogical struct {
		Name string `json:"name"`
		Full string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
)

// SARIF writes the findings as SARIF 2.1.0: P0 is an error, P1 a warning, P2 a
// note. A finding is at the line of the plan at which its operation begins, and
// at the operation as a logical location; of a plan that was made in Go only the
// latter is known, and code scanners want the first. Name the plan by a path
// within the repository. Of its partial fingerprints,
// finding/v1 is of operation, kind and experiment, so that it is the same in
// every run; verdict/v1 is of the verdict's key but for the confidence, so that
// it changes when the verdict does; primaryLocationLineHash is of operation and
// kind, for GitHub code scanning.
//
// Inconclusive experiments are notifications, not results; a run that was
// interrupted is an invocation without success.
func SARIF(w io.Writer, r *evidence.Run) error {
	run := sarifRun{Columns: "utf16CodeUnits", Results: []sarifResult{}}
	run.Tool.Driver = sarifDriver{Name: "semel probe", Version: name(r.Version), Home: homepage, Rules: []sarifRule{}}
	if r.Plan != "" || r.ID != "" {
		run.Automation = &sarifAutomation{ID: "semel-probe/" + url.PathEscape(name(r.Plan)) + "/" + url.PathEscape(name(r.ID))}
	}
	call := sarifInvocation{Successful: r.Interrupted == "", Start: utc(r.Started), End: utc(r.Ended)}
	note := func(level, format string, args ...any) {
		call.Notifications = append(call.Notifications, sarifNotification{level, sarifMessage{Text: fmt.Sprintf(format, args...)}})
	}
	if r.Interrupted != "" {
		note("error", "Interrupted: %s", text(r.Interrupted))
	}
	if r.DryRun {
		note("note", "Dry run: nothing was sent.")
	}

	rules := map[string]int{}
	for i := range r.Operations {
		o := &r.Operations[i]
		for _, e := range o.Experiments {
			if e.Outcome == evidence.Inconclusive {
				note("warning", "%s, %s: inconclusive: %s", name(o.Name), name(e.Name), text(e.Why))
			}
		}
		for _, f := range ranked(o.Findings) {
			id := ruleID(string(f.ID))
			at, ok := rules[id]
			if !ok {
				at = len(run.Tool.Driver.Rules)
				rules[id] = at
				run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, rule(id, f))
			}
			run.Results = append(run.Results, sarifResult{
				Rule: id, Index: at, Kind: "fail", Level: level(f.Priority),
				Message:   sarifMessage{Text: sentence(name(o.Name)+": "+text(f.Title)) + " " + text(f.Explanation) + strings.TrimRight(" "+symptomLine(f), " ")},
				Locations: []sarifLocation{location(o)},
				Fingerprints: map[string]string{
					"finding/v1": digest(o.Name, string(string(f.ID)), f.Experiment),
					"verdict/v1": digest(keyWithoutConfidence(o.Verdict)),
					// The one that GitHub code scanning looks at, in its form: without
					// it an alert would hang on the text of the plan's line.
					"primaryLocationLineHash": digest(o.Name, string(string(f.ID)))[:16] + ":1",
				},
				Properties: map[string]any{
					"priority": name(string(f.Priority)), "basis": name(string(f.Basis)), "experiment": name(f.Experiment),
					"sends": append([]int{}, f.Sends...), "verdict": text(o.Verdict.Key()), "guidelines": safeGuidelines(f.GuidelinesOf()),
				},
			})
		}
	}
	run.Invocations = []sarifInvocation{call}
	return writeJSON(w, sarifLog{Schema: sarifSchema, Version: "2.1.0", Runs: []sarifRun{run}})
}

func utc(t time.Time) string {
	if t.IsZero() || t.Year() > 9999 {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func level(p evidence.Priority) string {
	switch p {
	case evidence.P0:
		return "error"
	case evidence.P1:
		return "warning"
	}
	return "note"
}

func sentence(s string) string { return strings.TrimRight(s, ".") + "." }

func ruleID(id string) string {
	if id == "" {
		return "unnamed"
	}
	return name(id)
}

// rule describes a kind of finding: by the catalogue, else by the finding.
func rule(id string, f evidence.Finding) sarifRule {
	e, ok := evidence.Lookup(f.ID)
	if !ok {
		e = evidence.Entry{Title: f.Title, Priority: f.Priority, Explanation: f.Explanation, Remedy: f.Remedy, References: f.References, Guidelines: f.Guidelines}
	}
	r := sarifRule{ID: id, Name: pascal(id), Short: sarifMessage{Text: sentence(text(e.Title))}, Full: sarifMessage{Text: sentence(text(e.Explanation))}, Default: sarifLevel{level(e.Priority)}}
	r.Help.Text = text(e.Explanation) + "\n\nRemedy: " + text(e.Remedy)
	r.Help.Markdown = prose(text(e.Explanation)) + "\n\n**Remedy.** " + prose(text(e.Remedy))
	if len(e.References) > 0 {
		r.Help.Text += "\n\nSee: " + names(e.References)
	}
	for _, ref := range e.References {
		if u := evidence.ReferenceURL(ref); u != "" && r.HelpURI == "" {
			r.HelpURI = u
		}
	}
	tags := []string{"idempotency", "security"}
	for _, id := range e.Guidelines.CWE {
		if g, ok := evidence.Guideline(id); ok {
			tags = append(tags, "external/cwe/"+strings.ToLower(id))
			r.HelpURI = cmp.Or(r.HelpURI, g.URL)
		}
	}
	r.Properties = map[string]any{
		"tags": tags, "guidelines": safeGuidelines(e.Guidelines),
		// What code scanners rank and filter by.
		"security-severity": map[string]string{"error": "9.1", "warning": "6.0", "note": "2.0"}[level(e.Priority)],
		"precision":         map[bool]string{true: "very-high", false: "medium"}[e.Basis == evidence.Established],
	}
	return r
}

// safeGuidelines is what may have come from another hand, safe to show.
func safeGuidelines(g evidence.Guidelines) map[string][]string {
	all := map[string][]string{}
	for i, key := range []string{"asvs", "wstg", "ptes", "attack", "cwe"} {
		all[key] = []string{}
		for _, id := range g.Lists()[i] {
			all[key] = append(all[key], name(id))
		}
	}
	return all
}

// pascal makes DoubleEffectRace of double-effect-race.
func pascal(id string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(id, "-") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

func location(o *evidence.Operation) sarifLocation {
	at := sarifLocation{Logical: []sarifLogical{{Name: name(o.Name), Full: name(o.Method) + " " + text(o.URL), Kind: "function"}}}
	if uri := sourceURI(o.Source); uri != "" {
		at.Physical = &sarifPhysical{}
		at.Physical.Artifact.URI = uri
		line := max(o.SourceLine, 1)
		at.Physical.Region = &sarifRegion{line, 1, line, 2} // its first character: how long it is is not known
	}
	return at
}

// sourceURI makes a URI reference of the name of a file or of an http URL.
func sourceURI(source string) string {
	if source == "" {
		return ""
	}
	if u, err := url.Parse(source); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		u.User = nil
		return u.String()
	}
	source = strings.ReplaceAll(text(source), `\`, "/")
	switch {
	case strings.HasPrefix(source, "/"):
		return (&url.URL{Scheme: "file", Path: source}).String()
	case len(source) > 2 && source[1] == ':' && source[2] == '/':
		return (&url.URL{Scheme: "file", Path: "/" + source}).String()
	}
	// With a colon in its first part it becomes ./a:b.
	return (&url.URL{Path: path.Clean(source)}).String()
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// keyWithoutConfidence is the part of the verdict's key that is the same
// whenever the same was found.
func keyWithoutConfidence(v evidence.Verdict) string {
	key, _, _ := strings.Cut(v.Key(), " + confidence(")
	return key
}
