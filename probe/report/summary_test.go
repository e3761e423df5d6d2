package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

func TestBottomLine(t *testing.T) {
	seen := []evidence.Reader{{Name: "rows", Seen: true}}
	held := func(names ...string) (es []evidence.Experiment) {
		for _, n := range names {
			es = append(es, evidence.Experiment{Name: n, Outcome: evidence.Held})
			if n == "race" {
				es[len(es)-1].Race = &evidence.Race{Overlapped: 20}
			}
		}
		return es
	}
	op := func(name string, es []evidence.Experiment, fs ...evidence.Finding) evidence.Operation {
		return evidence.Operation{Name: name, Readers: seen, Experiments: es, Findings: fs}
	}
	supposed := func(id evidence.FindingID, experiment string) evidence.Finding {
		e, _ := evidence.Lookup(id)
		return e.FindingOn(evidence.Inferred, e.Priority, experiment)
	}
	inferred, scope := supposed("double-effect-race", "race"), supposed("key-not-scoped-tenant", "other_tenant")
	all := held("duplicate", "race", "lost_unread", "lost_begun", "failed_first", "altered", "other_actor", "other_tenant")
	for want, r := range map[string]evidence.Run{
		"Nothing was tried: this is what would be sent.":                             {DryRun: true},
		"Nothing was tried: the run has no operation.":                               {},
		"Whether pay is safe to repeat was not shown.":                               {Operations: []evidence.Operation{{Name: "pay"}}},
		"Whether pay is safe to repeat is not known: no effect of it could be seen.": {Operations: []evidence.Operation{{Name: "pay", Readers: []evidence.Reader{{Name: "rows"}}, Experiments: all}}},
		"pay took effect once when it was repeated; not shown: requests at the same time, lost responses and failures, keys of other requests and parties.": {
			Operations: []evidence.Operation{op("pay", held("duplicate"))},
		},
		"pay took effect once when it was repeated, when it was sent several times at once and after lost responses and failures, and its keys were kept apart from those of others, as far as that was tried.": {
			Operations: []evidence.Operation{op("pay", append(all[:len(all):len(all)], evidence.Experiment{Name: "failed_first", Outcome: evidence.Held, Sends: []evidence.Send{{Role: "first", Status: 500}}}))},
		},
		"Whether pay is safe to repeat is not known: no request of it succeeded.": {
			Operations: []evidence.Operation{{Name: "pay", Readers: []evidence.Reader{{Name: "rows"}}, Experiments: []evidence.Experiment{{Name: "duplicate", Outcome: evidence.Inconclusive, Sends: []evidence.Send{{Role: "read", Status: 200}, {Role: "first", Status: 401}, {Role: "duplicate", Status: 401}}}}}},
		},
		// Lost responses that were tried are no failures.
		"pay took effect once when it was repeated, when it was sent several times at once and after lost responses, and its keys were kept apart from those of others; not shown: failures; 1 finding of low priority.": {
			Operations: []evidence.Operation{op("pay", all, find("replay-unmarked", "duplicate"))},
		},
		"pay is not safe to repeat: requests that ran at the same time took effect more than once, and 1 other finding (2 operations: 1 not safe, 1 shown in part).": {
			Operations: []evidence.Operation{op("refund", all), op("pay", nil, find("replay-unmarked", "duplicate"), find("double-effect-race", "race"))},
		},
		"pay is not safe: a tenant gets the result of another tenant's request.": {
			Operations: []evidence.Operation{op("pay", all, find("key-not-scoped-tenant", "other_tenant"))},
		},
		"pay is probably not safe to repeat: requests that ran at the same time seem to have taken effect more than once.": {
			Operations: []evidence.Operation{op("pay", nil, inferred)},
		},
		"pay is probably not safe: a key of one tenant seems to keep another tenant out (2 operations: 2 probably not safe).": {
			Operations: []evidence.Operation{op("pay", nil, scope), op("pay", nil, inferred)},
		},
		// Of what is equally bad, repeats are the matter.
		"pay is not safe to repeat: requests that ran at the same time took effect more than once, and 1 other finding.": {
			Operations: []evidence.Operation{op("pay", all, find("key-not-scoped-tenant", "other_tenant"), find("double-effect-race", "race"))},
		},
		"pay is not safe: a request without a key was mistaken for another one without a key.": {
			Operations: []evidence.Operation{op("pay", all, find("keyless-requests-confused", "missing_key"))},
		},
		"Whether pay is safe to repeat was not shown; its keys were kept apart from those of others.": {
			Operations: []evidence.Operation{op("pay", held("altered", "other_actor", "other_tenant"))},
		},
		"pay took effect once when it was repeated, and what others send was kept apart; not shown: requests at the same time, lost responses and failures.": {
			Operations: []evidence.Operation{{Name: "pay", Readers: seen, KeyIn: evidence.NoKey, Experiments: held("duplicate", "altered", "other_tenant")}},
		},
		"pay should be fixed before it is relied on: an earlier attempt leaves the request unusable.": {
			Operations: []evidence.Operation{op("pay", all, find("failure-blocks-key", "failed_first"))},
		},
	} {
		if got := bottomLine(&r); got != want {
			t.Errorf("%q; want %q", got, want)
		}
		for format, write := range map[string]func(*bytes.Buffer) error{
			"terminal": func(b *bytes.Buffer) error { return Terminal(b, &r, TerminalOptions{Width: 400}) },
			"html":     func(b *bytes.Buffer) error { return HTML(b, &r, Extra{}) },
		} {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			at := strings.Index(html.UnescapeString(b.String()), bottomLine(&r))
			if first := strings.Index(b.String(), "idempotency_support("); at < 0 || first >= 0 && first < at {
				t.Errorf("%s does not open with it", format)
			}
		}
	}
}

// The witnesses, the hypotheses and the guidelines are in every form that people
// read, and the record has them all.
func TestReportsCollate(t *testing.T) {
	r := raceRun()
	for format, wants := range map[string][]string{
		"txt":       {"state orders: 2 of 1 due !", "B  supported:", "v5.0.0-15.4.2", "TA0040 Impact", "sh runs/20260921/reproduce/1-1-double-effect-race.sh"},
		"html":      {"orders: 2 of 1 due", ">supported<", "v5.0.0-15.4.2", "TA0040 Impact", "A script that reproduces it", "201 in 12.1 ms", "the same result"},
		"md":        {"orders: 2 of 1 due", "Hypothesis B", "v5.0.0-15.4.2", "TA0040 Impact", "- OWASP ASVS 5.0.0: v5.0.0-"},
		"junit.xml": {"WSTG-BUSL-11 · PTES", "OWASP ASVS 5.0.0: v5.0.0-", "TA0040 Impact"},
		"record":    {`"guidelines": [`, `"standard": "OWASP ASVS 5.0.0"`, `"schema": "semel-probe-record/1"`, `"state": "supported"`, `"v5.0.0-15.4.2"`, `"class": "same_result"`},
		"json":      {`"v5.0.0-15.4.2"`},
		"sarif":     {`"v5.0.0-15.4.2"`, "external/cwe/cwe-362"},
	} {
		out := string(write(t, format, r))
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s lacks %q", format, want)
			}
		}
	}
}

// Long lists are shortened with a count on a terminal, and folded on the page.
func TestLongListsAreFolded(t *testing.T) {
	r := cleanRun()
	o := &r.Operations[0]
	for i := range 70 {
		o.Statements = append(o.Statements, evidence.Statement{Basis: evidence.Established, Text: fmt.Sprintf("statement %d", i)})
		o.Experiments[2].Changes = append(o.Experiments[2].Changes, evidence.Change{Reader: "orders", Name: "effects", Before: fmt.Sprint(i), After: fmt.Sprint(i + 2), Effects: 2, Expected: 1})
		o.Findings = append(o.Findings, find("replay-differs", fmt.Sprintf("x%d", i)))
	}
	o.Findings = append(o.Findings, find("double-effect-race", "race", 5, 6))
	out := string(write(t, "txt", r))
	for _, want := range []string{"... and 51 findings, in the evidence", "... and 48 statements, in the evidence", "... and 63 changes, in the evidence"} {
		if !strings.Contains(out, want) {
			t.Errorf("the terminal lacks %q", want)
		}
	}
	if n := strings.Count(out, "\n"); n > 360 {
		t.Errorf("the terminal has %d lines", n)
	}
	if page := string(write(t, "html", r)); !strings.Contains(page, "59 more changes of the state</summary>") {
		t.Error("the page does not fold the changes")
	}
}

// Code scanners show a result where the plan begins the operation.
func TestSARIFForCodeScanning(t *testing.T) {
	r := raceRun()
	r.Operations[0].Source, r.Operations[0].SourceLine = "probes/orders.yaml", 12
	var doc sarifLog
	if err := json.Unmarshal(write(t, "sarif", r), &doc); err != nil {
		t.Fatal(err)
	}
	for _, x := range doc.Runs[0].Results {
		p := x.Locations[0].Physical
		if p == nil || p.Artifact.URI != "probes/orders.yaml" || p.Region == nil || p.Region.Line != 12 {
			t.Errorf("%s is at %+v", x.Rule, p)
		}
	}
	severity := map[string]string{}
	for _, rule := range doc.Runs[0].Tool.Driver.Rules {
		severity[rule.ID], _ = rule.Properties["security-severity"].(string)
		tags, _ := rule.Properties["tags"].([]any)
		if !slices.Contains(tags, any("security")) {
			t.Errorf("%s has the tags %v; scanners want security among them", rule.ID, tags)
		}
	}
	if severity["double-effect-race"] != "9.1" || severity["in-flight-error-invites-new-key"] != "6.0" || severity["retention-not-published"] != "2.0" {
		t.Errorf("severities %v", severity)
	}
	r.Operations[0].SourceLine = 0
	if err := json.Unmarshal(write(t, "sarif", r), &doc); err != nil {
		t.Fatal(err)
	}
	if p := doc.Runs[0].Results[0].Locations[0].Physical; p.Region == nil || p.Region.Line != 1 {
		t.Error("without a line a result has no region")
	}
}

func TestDiffOfTheWrongOrder(t *testing.T) {
	older, newer := cleanRun(), raceRun()
	newer.Started = older.Started.Add(time.Hour)
	for _, c := range []struct {
		old, new *evidence.Run
		swapped  bool
	}{{older, newer, false}, {newer, older, true}, {older, older, false}, {&evidence.Run{}, older, false}, {newer, &evidence.Run{}, false}} {
		d := Compare(c.old, c.new)
		var text, markdown, js bytes.Buffer
		if err := d.Text(&text); err != nil {
			t.Fatal(err)
		}
		if err := d.Markdown(&markdown); err != nil {
			t.Fatal(err)
		}
		if err := d.JSON(&js); err != nil {
			t.Fatal(err)
		}
		for format, told := range map[string]bool{
			"struct": d.Swapped, "text": strings.Contains(text.String(), "Attention"), "markdown": strings.Contains(markdown.String(), "Attention"), "json": strings.Contains(js.String(), `"swapped": true`),
		} {
			if told != c.swapped {
				t.Errorf("%s of %s and %s: swapped %t", format, c.old.Started, c.new.Started, told)
			}
		}
	}
}

// stubCurl is a curl that writes down what it is told and answers nothing.
const stubCurl = `#!/bin/sh
of=
for a in "$@"; do
	case $of in
	-H) cat "${a#@}" >>"$SEEN/head" ;;
	--data-binary) cat "${a#@}" >>"$SEEN/body" ;;
	--url) printf '%s\n' "$a" >>"$SEEN/url" ;;
	-X) printf '%s\n' "$a" >>"$SEEN/method" ;;
	esac
	of=$a
done
printf '200 in 0 s'
`

// Whatever is in a request, a script sends it to the byte and runs none of it.
func TestScriptIsData(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no sh here")
	}
	tricks := []string{
		`'; touch canary; '`, "`touch canary`", "$(touch canary)", `"; touch canary #`, "\\'; touch canary; \\'", "%s%n%d%%\\n\\0101\\c", "$v1 ${HOME} $IFS", "!!\\!*?[a-z]~", "a\nEOF\ntouch canary\n", "-e -n --", "\x1b[31m\x07\x7f", "\u202egpj.exe\u200b ü 漢", "\xff\xfe\x80", "\r\n", "redacted-12 redacted-1 redacted-", "\x00nul\x00",
	}
	all := strings.Join(tricks, "|")
	body := "{" + all + " 0123456789abcdef ref}"
	r := raceRun()
	o := &r.Operations[0]
	f := find("replay-differs", "duplicate")
	f.Title = all
	o.Name, r.ID = all, all
	e := &o.Experiments[1]
	e.Why, e.Drawn = all, []string{"0123456789abcdef", all, "; touch canary"}
	e.Sends = e.Sends[:3]
	e.Sends[0].URL, e.Sends[0].Method = "http://127.0.0.1:8080/orders?state", "GET"
	for i := range e.Sends {
		e.Sends[i].Role = map[int]evidence.Role{0: "read", 1: "first", 2: evidence.Role(all)}[i]
	}
	e.Sends[1].URL = "http://127.0.0.1:8080/'$(touch-canary)'/0123456789abcdef"
	e.Sends[2].URL = e.Sends[1].URL
	r.Secrets = []evidence.SecretName{{Placeholder: "redacted-1", From: "env MY_TOKEN"}, {Placeholder: "redacted-12", From: "env x; touch canary"}}
	oneLine := strings.NewReplacer("\n", "", "\r", "", "\x00", "", "\x1b", "", "\x07", "", "\x7f", "").Replace(all)
	request := "POST / HTTP/1.1\nHost: 127.0.0.1:8080\nContent-Length: 7\nX-Trick: " + oneLine + "\nAuthorization: Bearer redacted-1\n\n" + body
	x := Extra{Exchanges: map[int]Exchange{1: {Request: "GET /orders HTTP/1.1\nAccept: */*\n"}, 2: {Request: request}, 3: {Request: request}}}
	script := scriptOf(r, o, f, x)
	if i := strings.IndexFunc(script, func(c rune) bool { return c != '\n' && c != '\t' && (c < ' ' || c >= 0x7f) }); i >= 0 {
		t.Fatalf("the script has %q", script[i:i+4])
	}
	if strings.Contains(script, "does not use curl") || !strings.Contains(script, "\n# MY_TOKEN must be set to what is redacted-1 in the evidence, as in authorization: Bearer redacted-1.\n") {
		t.Fatal(script)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "script.sh")
	if err := os.WriteFile(filepath.Join(dir, "curl"), []byte(stubCurl), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"sh", "dash", "bash", "ksh", "zsh"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		t.Run(shell, func(t *testing.T) {
			seen := t.TempDir()
			c := exec.CommandContext(t.Context(), path, file)
			c.Dir = seen
			c.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "SEEN="+seen, "SETTLE=0", "MY_TOKEN=it's $(touch canary)", "SECRET_12=twelve")
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, script)
			}
			if _, err := os.Stat(filepath.Join(seen, "canary")); err == nil {
				t.Fatal("something of the run was executed")
			}
			read := func(name string) string {
				b, err := os.ReadFile(filepath.Join(seen, name))
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			// Both sends have the same value of its own in place of the drawn one.
			url := strings.Split(read("url"), "\n")
			own := url[1][strings.LastIndex(url[1], "/")+1:]
			if len(own) != 16 || own == "0123456789abcdef" || url[1] != url[2] || !strings.HasPrefix(url[1], "http://127.0.0.1:8080/'$(touch-canary)'/") {
				t.Errorf("the addresses are %q", url)
			}
			sent := func(s string) string {
				return strings.NewReplacer("0123456789abcdef", own, "redacted-12", "twelve", "redacted-1", "it's $(touch canary)").Replace(s)
			}
			if got, want := read("body"), strings.Repeat(sent(body), 2); got != want {
				t.Errorf("sent\n%q; want\n%q", got, want)
			}
			if head := read("head"); strings.Count(head, "x-trick: "+sent(oneLine)+"\n") != 2 || strings.Count(head, "authorization: Bearer it's $(touch canary)\n") != 2 || strings.Contains(head, "content-length") {
				t.Errorf("the header is %q", head)
			}
			if read("method") != "GET\nPOST\nPOST\nGET\n" {
				t.Errorf("the methods are %q", read("method"))
			}
			if i := bytes.IndexFunc(out, func(c rune) bool { return c != '\n' && (c < ' ' || c >= 0x7f) }); i >= 0 {
				t.Errorf("it prints %q", out[i:min(i+10, len(out))])
			}
		})
	}
}

// Where curl cannot do it, the script says so and calls semel, with names that
// are no code either.
func TestScriptBySemel(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no sh here")
	}
	whole := Exchange{Request: "POST /orders HTTP/1.1\n\n{}"}
	x := Extra{Exchanges: map[int]Exchange{1: whole, 2: whole, 3: whole, 4: whole}}
	for why, change := range map[string]func(*evidence.Operation, *evidence.Experiment, *Extra){
		"signed separately":     func(o *evidence.Operation, _ *evidence.Experiment, _ *Extra) { o.Signed = true },
		"bytes of its requests": func(_ *evidence.Operation, _ *evidence.Experiment, x *Extra) { x.Exchanges = nil },
		"before its last byte": func(_ *evidence.Operation, e *evidence.Experiment, _ *Extra) {
			e.Sends[1].Cut, e.Sends[1].Delivery = "x", "partial"
		},
		"too long": func(_ *evidence.Operation, _ *evidence.Experiment, x *Extra) {
			x.Exchanges = map[int]Exchange{2: {Request: strings.Repeat("x", maxExchangeShown+1)}}
		},
		"an address that cannot be given": func(_ *evidence.Operation, e *evidence.Experiment, _ *Extra) { e.Sends[1].URL = "file:///etc/passwd" },
		"a method":                        func(_ *evidence.Operation, e *evidence.Experiment, _ *Extra) { e.Sends[1].Method = "GET -o x" },
		"more than 12": func(_ *evidence.Operation, e *evidence.Experiment, _ *Extra) {
			e.Sends = slices.Repeat(e.Sends[1:2], 13)
		},
		"waits for 100 seconds": func(_ *evidence.Operation, e *evidence.Experiment, _ *Extra) {
			e.Name = "retention_edge"
			e.Sends[2].StartUS += 100e6 - 1e5
		},
		"about requests that were": func(_ *evidence.Operation, e *evidence.Experiment, _ *Extra) { e.Sends = nil },
	} {
		r := raceRun()
		o := &r.Operations[0]
		o.Name = `a'; touch canary; $(touch canary) %s`
		e, extra := &o.Experiments[1], x
		change(o, e, &extra)
		text := scriptOf(r, o, find("replay-differs", e.Name), extra)
		if !strings.Contains(text, why) || !strings.Contains(text, "# This script does not use curl: ") {
			t.Errorf("%s: %s", why, text)
			continue
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "semel"), []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), "sh", "-s", "--", "my plan.yaml")
		c.Dir, c.Stdin = dir, strings.NewReader(text)
		c.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		if want := "<probe><run><my plan.yaml><--send><--operation><" + o.Name + "><--only><" + e.Name + ">"; err != nil || string(out) != want {
			t.Errorf("%s: %v: %s; want %s", why, err, out, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "canary")); err == nil {
			t.Error("something of the run was executed")
		}
		// As the terminal prints it, it runs with the plan of the run's folder.
		if err := WriteFile(filepath.Join(dir, "again.sh"), func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
			t.Fatal(err)
		}
		alone := exec.CommandContext(t.Context(), "sh", filepath.Join(dir, "again.sh"))
		alone.Env = c.Env
		if out, err := alone.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "<probe><run><"+dir+"/../"+PlanFile+"><--send>") {
			t.Errorf("%s, without an argument: %v: %s", why, err, out)
		}
	}
}

// What is read by an id that the client drew is read by another here; what is
// read by an id of the target's is not, and the script says why.
func TestScriptReadsByDrawnIDs(t *testing.T) {
	get := Exchange{Request: "GET /orders HTTP/1.1\n\n"}
	x := Extra{Exchanges: map[int]Exchange{1: get, 2: {Request: "PUT /orders HTTP/1.1\n\n{}"}, 3: get}}
	for _, c := range []struct {
		drawn []string
		want  string
		never string
	}{
		{[]string{"0123456789abcdef"}, "ask read read_1 GET", "the reader asks"},
		{nil, "state %s: the reader asks for an id that a response of the run gave", "ask read "},
	} {
		r := raceRun()
		o := &r.Operations[0]
		e := &o.Experiments[1]
		e.Drawn = c.drawn
		e.Sends = e.Sends[:2]
		for i := range e.Sends {
			e.Sends[i].N, e.Sends[i].Role, e.Sends[i].Method = i+1, []evidence.Role{"read", "first"}[i], []string{"GET", "PUT"}[i]
			e.Sends[i].URL, e.Sends[i].Resource = "http://127.0.0.1:8080/orders/0123456789abcdef", "0123456789abcdef"
		}
		text := scriptOf(r, o, find("replay-differs", e.Name), x)
		if reads := strings.Contains(text, "with real effects, and reads the state."); reads != (c.drawn != nil) {
			t.Errorf("%v: it says that it reads the state: %t", c.drawn, reads)
		}
		if !strings.Contains(text, c.want) || strings.Contains(text, c.never) {
			t.Errorf("%v: %s", c.drawn, text)
		}
	}
}
