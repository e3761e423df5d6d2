package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

// Extra is what an HTML report can show in addition to the run. All of it is
// optional.
type Extra struct {
	// Plan is the text of the plan.
	Plan string
	// Exchanges are the bytes of each send, by its number. Longer ones than
	// maxExchangeShown are cut in the report.
	Exchanges map[int]Exchange
	// Evidence names the file with all exchanges, such as exchanges.har.
	Evidence string
}

// Exchange is a request and its response as text, with secrets replaced.
type Exchange struct{ Request, Response string }

// maxExchangeShown is how many characters of a request and of a response a
// report shows.
const maxExchangeShown = 8 << 10

// Most rows of one table of sends, and exchanges in a report.
const (
	mostSends     = 2000
	mostExchanges = 400
)

var (
	//go:embed report.css
	css string
	//go:embed report.html.tmpl
	page string

	// policy lets the report's own style in, by its digest, and nothing else:
	// no script, no request, whatever should have got past the escaping.
	policy = func() string {
		sum := sha256.Sum256([]byte(css))
		return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
	}()

	pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
		"name": name, "text": text, "outcome": outcomeWords, "outcomeTone": outcomeTone, "priorityTone": priorityTone,
		"ranked": ranked, "race": raceLine, "contract": contract, "when": when, "url": evidence.ReferenceURL,
		"us":       func(us int64) string { return duration(us) },
		"response": response, "visible": visible, "short": short,
		"guideline":     func(id string) evidence.GuidelineEntry { e, _ := evidence.Guideline(id); return e },
		"guidelineName": guidelineName, "standingTone": standingTone, "causeTone": causeTone, "looseCauses": looseCauses, "further": func(f htmlFinding) []string { return further(f.Finding) }, "record": func() string { return RecordFile },
	}).Parse(page))
)

// HTML writes one self-contained page: it has no script and loads nothing. It
// can be read in light and dark mode, on paper, and with a screen reader.
func HTML(w io.Writer, r *evidence.Run, x Extra) error {
	v := htmlRun{Run: r, BottomLine: bottomLine(r), Guidelines: evidence.SumGuidelines(r.Operations), CSS: template.CSS(css), Policy: policy, Limits: limits(r), Took: took(r.Started, r.Ended), Targets: targets(r), Plan: lines(x.Plan, 1<<20), Evidence: text(x.Evidence)}
	v.Headline, v.Tone = headline(r)
	exchanges := 0
	here := map[int]bool{}
	for i := range r.Operations {
		for _, e := range r.Operations[i].Experiments {
			for _, s := range e.Sends[:min(len(e.Sends), mostSends)] {
				here[s.N] = true
			}
		}
	}
	anchored := map[int]bool{}
	for i := range r.Operations {
		o := &r.Operations[i]
		op := htmlOperation{Operation: o, ID: fmt.Sprintf("op-%d", i+1), Source: source(o), Fields: o.Verdict.Fields(), Witnesses: witnesses(o), Standings: o.Standings()}
		for j, f := range ranked(o.Findings) {
			found := htmlFinding{Finding: f, Links: links(f.Sends, here)}
			for k, ids := range f.GuidelinesOf().Lists() {
				if len(ids) > 0 {
					found.Guidelines = append(found.Guidelines, htmlGuidelines{evidence.Standards()[k], ids[:min(len(ids), 10)]})
				}
			}
			if x.Exchanges != nil && j < mostScripts {
				found.Script, found.File = scriptOf(r, o, f, x), scriptFile(i, j, f)
			}
			op.Findings = append(op.Findings, found)
		}
		of := byExperiment(o)
		for j := range o.Experiments {
			e := &o.Experiments[j]
			ex := htmlExperiment{Experiment: e, of: o, ID: fmt.Sprintf("%s-%d", op.ID, j+1), Picture: picture(of[e.Name], e), Findings: of[e.Name], More: max(len(e.Sends)-mostSends, 0)}
			for _, s := range e.Sends[:min(len(e.Sends), mostSends)] {
				row := htmlSend{Send: s, Where: where(o.URL, s.URL)}
				if !anchored[s.N] {
					row.ID, anchored[s.N] = fmt.Sprintf("send-%d", s.N), true
				}
				if got, ok := x.Exchanges[s.N]; ok && exchanges < mostExchanges {
					exchanges++
					row.Request, row.Response = lines(got.Request, maxExchangeShown), lines(got.Response, maxExchangeShown)
				}
				ex.Rows = append(ex.Rows, row)
			}
			op.Experiments = append(op.Experiments, ex)
		}
		for _, basis := range []evidence.Basis{evidence.Established, evidence.Inferred, evidence.Unknowable} {
			var of []evidence.Statement
			for _, s := range o.Statements {
				if s.Basis == basis {
					of = append(of, s)
				}
			}
			if len(of) > 0 {
				op.Known = append(op.Known, htmlKnown{basisTitle(basis), of})
			}
		}
		v.Operations = append(v.Operations, op)
	}
	return pageTemplate.Execute(w, v)
}

func basisTitle(b evidence.Basis) string {
	switch b {
	case evidence.Established:
		return "Established: seen, and the evidence is here"
	case evidence.Inferred:
		return "Inferred from what was seen, but not itself seen"
	}
	return "Cannot be known from outside"
}

type (
	htmlRun struct {
		Run                           *evidence.Run
		BottomLine                    string
		Guidelines                    []evidence.GuidelineSum
		CSS                           template.CSS
		Policy, Headline              string
		Tone                          tone
		Took, Targets, Plan, Evidence string
		Limits                        []string
		Operations                    []htmlOperation
	}
	htmlOperation struct {
		*evidence.Operation
		ID, Source  string
		Fields      []evidence.Field
		Findings    []htmlFinding
		Experiments []htmlExperiment
		Known       []htmlKnown
		Witnesses   []witnessRow
		Standings   []evidence.Standing
	}
	htmlFinding struct {
		evidence.Finding
		Links        []htmlLink
		Guidelines   []htmlGuidelines
		Script, File string
	}
	htmlGuidelines struct {
		Standard string
		IDs      []string
	}
	htmlLink struct {
		N    int
		Here bool // there is a row to link to
	}
	htmlKnown struct {
		Title      string
		Statements []evidence.Statement
	}
	htmlExperiment struct {
		*evidence.Experiment
		ID       string
		of       *evidence.Operation
		Findings []evidence.Finding
		Picture  *svg
		Rows     []htmlSend
		More     int
	}
	htmlSend struct {
		evidence.Send
		ID, Where         string
		Request, Response string
	}
)

// Idle says that nothing was tried.
func (e htmlExperiment) Idle() bool { return outcomeTone(e.Outcome) == neutral }

// From is how well the fields of the verdict are known, by the statements about
// them.
func (o htmlOperation) From(field string) []evidence.Statement {
	var of []evidence.Statement
	for _, s := range o.Statements {
		if s.Field == field {
			of = append(of, s)
		}
	}
	return of
}

// where is a URL without the origin that it shares with the operation.
func where(operation, url string) string {
	at := strings.Index(operation, "://")
	if at < 0 {
		return url
	}
	end := strings.IndexByte(operation[at+3:], '/')
	if end < 0 {
		return url
	}
	rest, ok := strings.CutPrefix(url, operation[:at+3+end])
	if !ok || !strings.HasPrefix(rest, "/") {
		return url
	}
	return rest
}

func links(sends []int, here map[int]bool) (all []htmlLink) {
	for _, n := range sends[:min(len(sends), 50)] {
		all = append(all, htmlLink{n, here[n]})
	}
	return all
}

// mostShownChanges is how many changes are shown before the rest is folded.
const mostShownChanges = 12

// Diff is the changes, each with whether it is one of effects, and wrong: first
// those that are.
func (e htmlExperiment) Diff() (rows []htmlChange) {
	for _, c := range e.Changes {
		rows = append(rows, htmlChange{c, counts(c), wrong(e.of, e.Experiment, c)})
	}
	if len(rows) > mostShownChanges {
		slices.SortStableFunc(rows, func(a, b htmlChange) int {
			switch {
			case a.Wrong == b.Wrong:
				return 0
			case a.Wrong:
				return -1
			}
			return 1
		})
	}
	return rows
}

// Compared says how the second response relates to the first.
func (e htmlExperiment) Compared() string {
	return secondLine(e.of, e.Experiment)
}

// Folded is Diff, first what is shown, then what is folded.
func (e htmlExperiment) Folded() [][]htmlChange {
	rows := e.Diff()
	if len(rows) <= mostShownChanges {
		return [][]htmlChange{rows}
	}
	return [][]htmlChange{rows[:mostShownChanges], rows[mostShownChanges:]}
}

type htmlChange struct {
	evidence.Change
	Counts, Wrong bool
}

// mostReadings is how many readings of an experiment are shown.
const mostReadings = 200

// Read is the readings of the state that were kept, in the order of time. They
// are not paired: between two requests of an experiment one may be before the
// one and after the other.
func (e htmlExperiment) Read() (rows []htmlReading) {
	add := func(rs []evidence.Reading, when string) {
		for _, r := range rs {
			rows = append(rows, htmlReading{Reader: name(r.Reader), When: when, At: r.At, Said: reading(r)})
		}
	}
	add(e.Before, "before")
	add(e.After, "after")
	slices.SortStableFunc(rows, func(a, b htmlReading) int { return a.At.Compare(b.At) })
	return rows
}

// Kept are the readings that are shown.
func (e htmlExperiment) Kept() []htmlReading {
	rows := e.Read()
	return rows[:min(len(rows), mostReadings)]
}

// Reads reports whether readings of the state are among the requests.
func (e htmlExperiment) Reads() bool {
	return slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Role == evidence.RoleRead })
}

type htmlReading struct {
	Reader, When, Said string
	At                 time.Time
}

func reading(r evidence.Reading) string {
	var parts []string
	if r.Count != nil {
		parts = append(parts, fmt.Sprint(*r.Count))
	}
	var keys []string
	for k := range r.Values {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for i, k := range keys {
		if i == 50 {
			parts = append(parts, fmt.Sprintf("(%d more)", len(keys)-i))
			break
		}
		parts = append(parts, name(k)+" = "+visible(r.Values[k], 300))
	}
	if r.Err != "" {
		parts = append(parts, "not read: "+text(r.Err))
	}
	return strings.Join(parts, "; ")
}

// duration is a mark of a send, in its table.
func duration(us int64) string {
	if us < 0 {
		return "–"
	}
	return span(float64(us))
}

// lines makes a text of several lines safe to show.
func lines(s string, limit int) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	var b strings.Builder
	for line := range strings.SplitAfterSeq(s, "\n") {
		body, ended := strings.CutSuffix(line, "\n")
		if len(body) >= limit {
			b.WriteString(visible(body, limit))
			if rest := len(s) - b.Len(); rest > 0 {
				b.WriteString("\n… (cut here)")
			}
			break
		}
		limit -= len(line)
		b.WriteString(visible(body, len(body)))
		if ended {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// svg is the picture of an experiment's sends.
type svg struct {
	Width, Height, Top, Bottom float64
	Left, Right                float64
	LabelX, ResponseX          float64
	Ticks                      []svgTick
	Rows                       []svgRow
	Hidden                     string
	Other                      bool
	Describe                   string
}

type svgTick struct {
	X    string
	Text string
}

type svgRow struct {
	Y, Middle, Base       string
	Label, Response, Full string
	Kind                  string
	Odd                   bool
	None                  bool // nothing was sent
	Other                 bool // it names another resource
	// Positions; empty for what did not happen.
	Start, Finis                      string
	SendW, WaitX, WaitW, RecvX, RecvW string
	Write, First, Cross               string
}

// picture draws an experiment; nil if there is nothing to draw.
func picture(fs []evidence.Finding, e *evidence.Experiment) *svg {
	const (
		left, right, width = 230.0, 770.0, 1000.0
		row, top           = 26.0, 30.0
	)
	sends := shown(fs, e)
	if len(sends) == 0 {
		return nil
	}
	bs, begin, whole := bars(sends)
	px := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	at := func(us float64) float64 { return left + (us-begin)/whole*(right-left) }
	p := &svg{Width: width, Left: left, LabelX: left - 12, ResponseX: right + 12, Right: right, Top: top, Hidden: unshown(e, len(sends))}
	for _, us := range ticks(begin, whole) {
		p.Ticks = append(p.Ticks, svgTick{px(at(us)), span(us)})
	}
	var said []string
	for i, b := range bs {
		y := top + float64(i)*row
		s := svgRow{Y: px(y), Middle: px(y + row/2), Base: px(y + row/2 + 4), Odd: i%2 == 1, Kind: kind(b.send)}
		s.Label = strings.Join(nonEmpty(fmt.Sprintf("#%d", b.send.N), short(string(b.send.Role), 14), short(b.send.Principal, 8)), " ")
		s.Response = short(b.response(), 26)
		s.Other = b.other
		p.Other = p.Other || b.other
		if b.start < 0 {
			s.None = true
			s.Full = s.Label + ": not sent"
		} else {
			start, finis := at(b.start), max(at(b.finis), at(b.start)+2)
			write, first := finis, finis
			if b.lastWrite >= 0 {
				write = min(at(b.lastWrite), finis)
				s.Write = px(write)
			}
			if b.firstByte >= 0 {
				first = min(max(at(b.firstByte), write), finis)
				s.First = px(first)
			}
			s.Start, s.Finis = px(start), px(finis)
			s.SendW, s.WaitX, s.WaitW = px(max(write-start, 0)), px(write), px(max(first-write, 0))
			s.RecvX, s.RecvW = px(first), px(max(finis-first, 0))
			if b.open {
				s.Cross = px(finis)
			}
			s.Full = fmt.Sprintf("%s: began at %s, last byte written at %s, first byte back at %s, done at %s; %s", s.Label, duration(b.send.StartUS), duration(b.send.LastWriteUS), duration(b.send.FirstByteUS), duration(b.send.DoneUS), b.response())
		}
		said = append(said, s.Full)
		p.Rows = append(p.Rows, s)
	}
	p.Bottom = top + float64(len(bs))*row
	p.Height = p.Bottom + 8
	p.Describe = strings.Join(said, ". ")
	return p
}

// kind is how a bar is coloured.
func kind(s evidence.Send) string {
	switch {
	case s.Status >= 500 || s.Status == 0:
		return "bad"
	case s.Status >= 400, s.SaysError:
		return "doubt"
	case s.Replayed:
		return "replay"
	}
	return "good"
}

// ticks are up to seven round times within a picture.
func ticks(begin, whole float64) (all []float64) {
	step := math.Pow(10, math.Floor(math.Log10(whole/2)))
	for _, f := range []float64{1, 2, 5, 10} {
		if whole/(step*f) <= 6 {
			step *= f
			break
		}
	}
	step = max(step, 1)
	for us := math.Ceil(begin/step) * step; us <= begin+whole && len(all) < 10; us += step {
		all = append(all, us)
	}
	return all
}
