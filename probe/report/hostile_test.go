package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"

	"github.com/semelhq/semel/probe/evidence"
)

var sgr = regexp.MustCompile(`\x1b\[(0|31;1|32|33)m`)

// What came from a target has no control characters, no marks that turn the
// direction of writing, and nothing that is no text, in any format.
func TestNoControlCharacters(t *testing.T) {
	for name, r := range runs() {
		for format := range writers {
			out := string(write(t, format, r))
			if format == "colour.txt" {
				if name != "dry" && !strings.Contains(out, "\x1b[") {
					t.Errorf("%s: no colour", name)
				}
				out = sgr.ReplaceAllString(out, "")
			}
			if !utf8.ValidString(out) {
				t.Errorf("%s.%s is no UTF-8", name, format)
			}
			for _, c := range out {
				if c != '\n' && !unicode.IsPrint(c) {
					t.Errorf("%s.%s has %U", name, format, c)
					break
				}
			}
		}
		d := Compare(r, hostileRun())
		for format, write := range map[string]func(io.Writer) error{"text": d.Text, "markdown": d.Markdown, "json": d.JSON} {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			if i := strings.IndexFunc(b.String(), func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
				t.Errorf("%s: the difference as %s has %q", name, format, b.String()[i:i+4])
			}
		}
	}
}

// The page has the elements and attributes of its template, whatever the run
// has in it, and a policy that would stop anything else.
func TestHTMLIsTheTemplates(t *testing.T) {
	elements := strings.Fields("html head meta title style body header h1 h2 h3 h4 h5 p a nav ul li main section article div span strong code bdi table caption thead tbody tr th td figure figcaption svg g rect line circle path text details summary pre footer dl dt dd")
	attributes := strings.Fields("lang charset http-equiv content name class id role href rel scope aria-label aria-labelledby open title viewBox viewbox x y x1 x2 y1 y2 width height cx cy r d transform")
	for name, r := range runs() {
		doc, err := html.Parse(bytes.NewReader(write(t, "html", r)))
		if err != nil {
			t.Fatal(err)
		}
		var metas []string
		var styles []string
		for n := range doc.Descendants() {
			if n.Type == html.CommentNode {
				t.Errorf("%s: a comment: %s", name, short(n.Data, 60))
			}
			if n.Type != html.ElementNode {
				continue
			}
			if !slices.Contains(elements, n.Data) {
				t.Errorf("%s: element %s", name, n.Data)
			}
			for _, a := range n.Attr {
				if !slices.Contains(attributes, a.Key) {
					t.Errorf("%s: attribute %s of %s: %s", name, short(a.Key, 60), n.Data, short(a.Val, 60))
				}
				if a.Key == "href" && !strings.HasPrefix(a.Val, "#") && !slices.ContainsFunc(evidence.Catalogue(), func(e evidence.Entry) bool {
					return slices.ContainsFunc(e.References, func(s string) bool { return evidence.ReferenceURL(s) == a.Val }) ||
						slices.ContainsFunc(e.Guidelines.All(), func(s string) bool { g, _ := evidence.Guideline(s); return g.URL == a.Val })
				}) {
					t.Errorf("%s: a link to %s", name, short(a.Val, 60))
				}
				if a.Key == "http-equiv" {
					metas = append(metas, n.Attr[1].Val)
				}
			}
			if n.Data == "style" {
				styles = append(styles, n.FirstChild.Data)
			}
		}
		if len(metas) != 1 || len(styles) != 1 {
			t.Fatalf("%s: %d policies, %d styles; want one of each", name, len(metas), len(styles))
		}
		sum := sha256.Sum256([]byte(styles[0]))
		if want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"; metas[0] != want {
			t.Errorf("%s: the policy is %q; want %q", name, metas[0], want)
		}
	}
	page := string(write(t, "html", raceRun()))
	if policy := strings.Index(page, "Content-Security-Policy"); policy < 0 || policy > strings.Index(page, "<style") || policy > strings.Index(page, "<title") {
		t.Error("the policy comes too late")
	}
}

// No format leaves a finding out, wherever it belongs.
func TestNoFindingIsDropped(t *testing.T) {
	for name, r := range runs() {
		for format := range writers {
			out := string(write(t, format, r))
			for _, o := range r.Operations {
				for _, f := range o.Findings {
					_, known := evidence.Lookup(f.ID)
					if known && !strings.Contains(out, string(f.ID)) {
						t.Errorf("%s.%s lacks %s", name, format, f.ID)
					}
				}
			}
		}
		counts := map[string]int{"html": strings.Count(string(write(t, "html", r)), `<p class="soft small"><code>`), "md": strings.Count(string(write(t, "md", r)), "<br>Remedy: ")}
		for format, got := range counts {
			want := 0
			for _, o := range r.Operations {
				want += len(o.Findings)
			}
			if got != want {
				t.Errorf("%s.%s shows %d findings of %d", name, format, got, want)
			}
		}
	}
}

// The JSON form keeps the whole run. Text that is no UTF-8 cannot be kept.
func TestJSONKeepsTheRun(t *testing.T) {
	for name, r := range runs() {
		if name == "hostile" {
			continue
		}
		var again evidence.Run
		if err := json.Unmarshal(write(t, "json", r), &again); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r, &again) {
			t.Errorf("%s: %+v is not %+v", name, &again, r)
		}
	}
	r := newRun("x")
	r.Interrupted = script + escapes[:10] + "\u009b\u202e\u2028\U000e0001 \ufffe" + markdown + closing
	var again evidence.Run
	if err := json.Unmarshal(write(t, "json", r), &again); err != nil || again.Interrupted != r.Interrupted {
		t.Errorf("%q, %v; want %q", again.Interrupted, err, r.Interrupted)
	}
}

func TestJUnitCases(t *testing.T) {
	op := func(fs []evidence.Finding, es ...evidence.Experiment) *evidence.Run {
		r := newRun("x")
		o := newOperation()
		o.Experiments, o.Findings = es, fs
		r.Operations = []evidence.Operation{o}
		return r
	}
	ex := func(o evidence.Outcome) evidence.Experiment {
		return evidence.Experiment{Name: "race", Outcome: o, Why: "because"}
	}
	p0, p2 := find("double-effect-race", "race"), find("replay-unmarked", "race")
	interrupted := op(nil, ex(evidence.NotRun))
	interrupted.Interrupted = "budget"
	empty := newRun("x")
	for _, c := range []struct {
		what string
		run  *evidence.Run
		want []string
	}{
		{"held", op(nil, ex(evidence.Held)), []string{"passed"}},
		{"broken without a finding", op(nil, ex(evidence.Broken)), []string{"failed"}},
		{"broken", op([]evidence.Finding{p0}, ex(evidence.Broken)), []string{"failed"}},
		{"held with a grave finding", op([]evidence.Finding{p0}, ex(evidence.Held)), []string{"failed"}},
		{"held with a note", op([]evidence.Finding{p2}, ex(evidence.Held)), []string{"passed"}},
		{"inconclusive", op([]evidence.Finding{p2}, ex(evidence.Inconclusive)), []string{"skipped"}},
		{"inconclusive with a grave finding", op([]evidence.Finding{p0}, ex(evidence.Inconclusive)), []string{"failed"}},
		{"not applicable", op(nil, ex(evidence.NotApplicable)), []string{"skipped"}},
		{"not run", op(nil, ex(evidence.NotRun)), []string{"skipped"}},
		{"interrupted", interrupted, []string{"skipped", "error"}},
		{"of no experiment", op([]evidence.Finding{p0}), []string{"failed"}},
		{"of no operation", empty, []string{"error"}},
		{"dry", dryRun(), []string{"skipped", "skipped"}},
	} {
		var doc junitSuites
		if err := xml.Unmarshal(write(t, "junit.xml", c.run), &doc); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		var got []string
		n := map[string]int{}
		for _, s := range doc.Suites {
			for _, c := range s.Cases {
				is := "passed"
				switch {
				case c.Failure != nil:
					is = "failed"
				case c.Error != nil:
					is = "error"
				case c.Skipped != nil:
					is = "skipped"
				}
				got = append(got, is)
				n[is]++
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q; want %q", c.what, got, c.want)
		}
		skipped := 0
		for _, s := range doc.Suites {
			skipped += s.Skipped
		}
		if doc.Tests != len(got) || doc.Failures != n["failed"] || doc.Errors != n["error"] || skipped != n["skipped"] {
			t.Errorf("%s: the counts are wrong: %+v", c.what, doc)
		}
	}
}

// XML of any run can be read, and cases of one name are told apart.
func TestJUnitIsXML(t *testing.T) {
	for name, r := range runs() {
		var doc junitSuites
		if err := xml.Unmarshal(write(t, "junit.xml", r), &doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		seen := map[string]bool{}
		for _, s := range doc.Suites {
			for _, c := range s.Cases {
				if seen[c.Class+"/"+c.Name] {
					t.Errorf("%s: %s is there twice", name, c.Name)
				}
				seen[c.Class+"/"+c.Name] = true
			}
		}
	}
}

// A bound that is missing is computed, not shown as a rate of zero.
func TestNoRateOfZero(t *testing.T) {
	r := cleanRun()
	race := r.Operations[0].Experiments[2].Race
	race.Bound, race.Overlapped = 0, 1
	for _, format := range []string{"txt", "html"} {
		if out := string(write(t, format, r)); !strings.Contains(out, "up to 95 %") || strings.Contains(out, "up to 0 %") {
			t.Errorf("%s does not say that one trial leaves 95 %% open", format)
		}
	}
}

func TestPercent(t *testing.T) {
	for rate, want := range map[float64]string{0.0487: "4.87 %", 0.04871: "4.88 %", 0.95: "95 %", 0.776: "77.6 %", 0.1391: "14 %", 1: "100 %", 0.00001: "0.01 %", 0.1: "10 %"} {
		if got := percent(rate); got != want {
			t.Errorf("%v: %s; want %s", rate, got, want)
		}
	}
}

// The texts of the catalogue are shown whole even where there is little room.
func TestCatalogueIsShownWhole(t *testing.T) {
	for _, e := range evidence.Catalogue() {
		if brief(e.Title) != e.Title || brief(e.Explanation) != e.Explanation || brief(e.Remedy) != e.Remedy || visible(e.Title, 200) != e.Title {
			t.Errorf("%s is cut", e.ID)
		}
	}
}

func TestProse(t *testing.T) {
	for in, want := range map[string]string{
		"plain, text. 10% - ok":    "plain, text. 10% - ok",
		"<b>&amp;":                 "&lt;b&gt;&amp;amp;",
		"[a](b) ![c](d)":           `\[a\]\(b\) \!\[c\]\(d\)`,
		"@all #12 owner/x#3":       `\@<!-- -->all \#<!-- -->12 owner/x\#<!-- -->3`,
		"https://x www.y mailto:z": "https:<!-- -->//x www<!-- -->.y mailto:<!-- -->z",
		"`*_~|\\":                  "\\`\\*\\_\\~\\|\\\\",
		"- x":                      `\- x`,
	} {
		if got := prose(in); got != want {
			t.Errorf("%q: %q; want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"": "", "a": "`a`", "a`b": "``a`b``", "`": "`` ` ``", "a```b`": "```` a```b` ````"} {
		if got := code(in); got != want {
			t.Errorf("%q: %q; want %q", in, got, want)
		}
	}
}

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"a b\tc\r\n":             `a b\tc\r\n`,
		"\x1b[31m\x9b\u009b\x00": `\x1b[31m\x9b\u009b\x00`,
		"\u202e\u2066\u200f":     `\u202e\u2066\u200f`,
		"\U000e0041é日😀":          `\U000e0041é日😀`,
		"1234567890123":          "1234567890… (3 more)",
		"\xf0\x9f":               `\xf0\x9f`,
	} {
		if got := visible(in, 10); got != want {
			t.Errorf("%q: %q; want %q", in, got, want)
		}
	}
	if got := short("abcdef", 4); got != "abc…" {
		t.Error(got)
	}
}

// Terminal keeps to its width, except for words that cannot be broken.
func TestTerminalWidth(t *testing.T) {
	for name, r := range runs() {
		for _, width := range []int{60, 80, 132} {
			for _, colour := range []bool{false, true} {
				var b bytes.Buffer
				if err := Terminal(&b, r, TerminalOptions{Width: width, Colour: colour}); err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(b.String()) {
					if n := columns(strings.TrimSuffix(line, "\n")); n > width && name != "hostile" {
						if strings.HasPrefix(line, "      Again: sh ") {
							continue // to be copied
						}
						t.Errorf("%s at %d: %d columns: %q", name, width, n, line)
					}
				}
			}
		}
	}
}
