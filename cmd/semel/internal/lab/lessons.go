package lab

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	slash "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"

	"github.com/semelhq/semel/cmd/semel/internal/lab/trials"
	"github.com/semelhq/semel/cmd/semel/internal/words"
	"github.com/semelhq/semel/docs/lessons"
)

// A lesson is a page of docs/lessons. Its steps are blocks of type lab, with a line for
// each:
//
//	set charges unprotected before_ms=100    the operation, a preset, and switches that differ
//	press double                             a button of the page
//	send alice@acme A amount=900             a request: who, which key (- for none), what is in its body
//	probe                                    run the probe
//	try restart                              do this to the version by hand, and to semel
//	see done 2, responses 201 409            what must have come of it
//
// What the page runs, a test runs too.
type lesson struct {
	Name, Title string
	Parts       []part
	blocks      []*block
	lang        string
	links       []string // to other lessons, in their order
}

// part is text, or one of the blocks in it.
type part struct {
	Text    template.HTML
	Code    string
	Caption string // where Code is from, or its language
	Client  bool   // Code is a program that sends requests
	Steps   *block
}

// block has steps that belong together.
type block struct {
	N     int // in its lesson, from 1
	Text  string
	Steps []lessonStep
}

type lessonStep struct {
	Verb  string
	Words []string
	See   []figure
}

// figure is something that is counted or told.
type figure struct{ Name, Want string }

// seen reports whether got is what the lesson says.
func (f figure) seen(got string) bool {
	low, high, isRange := strings.Cut(f.Want, "-")
	from, err1 := strconv.Atoi(low)
	to, err2 := strconv.Atoi(high)
	n, err3 := strconv.Atoi(got)
	if isRange && err1 == nil && err2 == nil {
		return err3 == nil && from <= n && n <= to
	}
	return got == f.Want
}

// worth reports whether what a trial counts is good or bad.
func (b *block) worth(f figure) string {
	switch s := b.Steps[0]; {
	case s.Verb != "try" || f.Name != "hand" && f.Name != "semel":
		return ""
	case f.Want == trials.All[s.Words[0]].Right:
		return "good"
	}
	return "bad"
}

// buttons are those of the page that a lesson can press, by what they say.
var buttons = map[string]string{
	"once": "Send once", "double": "Double-click", "race": "Five at the same time", "lose": "Lose the response, try again",
	"newkey": "Try again with a new key", "stranger": "Same key, another customer", "altered": "Same key, another body",
	"webhook": "Webhook, delivered twice",
}

// course is all lessons in one language.
type course struct {
	index *lesson
	order []string // names
	by    map[string]*lesson
}

// courses are by language.
var courses = func() map[string]*course {
	all := map[string]*course{}
	for lang, dir := range map[string]string{"en": ".", "ja": "ja"} {
		c, err := readCourse(lessons.Files, dir, lang)
		if err != nil {
			panic(err) // it is part of the program
		}
		all[lang] = c
	}
	return all
}()

func readCourse(files fs.FS, dir, lang string) (*course, error) {
	names, err := fs.Glob(files, slash.Join(dir, "*.md"))
	if err != nil {
		return nil, err
	}
	c := &course{by: map[string]*lesson{}}
	for _, name := range names {
		source, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		l, err := readLesson(strings.TrimSuffix(slash.Base(name), ".md"), lang, source)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if l.Name == "README" {
			c.index = l
		} else {
			c.by[l.Name] = l
		}
	}
	if c.index == nil {
		return nil, fmt.Errorf("%s: there is no README.md", dir)
	}
	for _, name := range c.index.links {
		if c.by[name] != nil && !slices.Contains(c.order, name) {
			c.order = append(c.order, name)
		}
	}
	if len(c.order) != len(c.by) {
		return nil, fmt.Errorf("%s: README.md lists %d lessons of %d", dir, len(c.order), len(c.by))
	}
	return c, nil
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.Table))

func readLesson(name, lang string, source []byte) (*lesson, error) {
	l := &lesson{Name: name, lang: lang}
	doc := markdown.Parser().Parse(text.NewReader(source))
	err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, ok := n.(*ast.Link); ok && entering {
			link.Destination = []byte(l.resolve(string(link.Destination)))
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return nil, err
	}
	var html bytes.Buffer
	flush := func() {
		if html.Len() > 0 {
			l.Parts = append(l.Parts, part{Text: template.HTML(html.String())})
			html.Reset()
		}
	}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level == 1 {
			l.Title = string(h.Lines().Value(source))
			continue
		}
		code, ok := n.(*ast.FencedCodeBlock)
		if !ok {
			if err := markdown.Renderer().Render(&html, source, n); err != nil {
				return nil, err
			}
			continue
		}
		flush()
		said, kind, about := string(code.Lines().Value(source)), "", ""
		if code.Info != nil {
			kind, about, _ = strings.Cut(string(code.Info.Value(source)), " ")
		}
		switch {
		case kind == "lab":
			b, err := readBlock(len(l.blocks)+1, said)
			if err != nil {
				return nil, err
			}
			l.blocks = append(l.blocks, b)
			l.Parts = append(l.Parts, part{Steps: b})
		case about == "client":
			l.Parts = append(l.Parts, part{Code: said, Caption: kind, Client: true})
		default:
			l.Parts = append(l.Parts, part{Code: excerpt(strings.Split(said, "\n")), Caption: about})
		}
	}
	flush()
	return l, nil
}

// otherPages is where the links lead that go out of the lessons.
const otherPages = "https://github.com/semelhq/semel/blob/main/"

// resolve makes a link between files one between pages.
func (l *lesson) resolve(to string) string {
	if strings.Contains(to, ":") || strings.HasPrefix(to, "#") || strings.HasPrefix(to, "/") {
		return to
	}
	file, fragment, _ := strings.Cut(to, "#")
	if fragment != "" {
		fragment = "#" + fragment
	}
	page := func(name, lang string) string { return "/lessons/" + name + "?lang=" + lang + fragment }
	switch at := slash.Clean(file); {
	case at == "README.md":
		return page("", l.lang)
	case at == "ja/README.md":
		return page("", "ja")
	case at == "../README.md" && l.lang == "ja":
		return page("", "en")
	case !strings.Contains(at, "/"):
		name := strings.TrimSuffix(at, ".md")
		l.links = append(l.links, name)
		return page(name, l.lang)
	default: // above docs/lessons, or docs/lessons/ja
		for strings.HasPrefix(at, "../") {
			at = at[len("../"):]
		}
		return otherPages + "docs/" + at + fragment
	}
}

// shape is what words a verb has.
var shape = map[string]*regexp.Regexp{
	"set":   regexp.MustCompile(`^[a-z]+ [a-z]+( [a-z_]+=[a-z0-9]+)*$`),
	"press": regexp.MustCompile(`^[a-z]+$`),
	"send":  regexp.MustCompile(`^[a-z]+@[a-z]+ (-|[A-Z])( [a-z_]+=[a-z0-9]+)*$`),
	"probe": regexp.MustCompile(`^$`),
	"try":   regexp.MustCompile(`^[a-z-]+$`),
	"see":   regexp.MustCompile(`^[a-z_]+ [^,]+(, [a-z_]+ [^,]+)*$`),
}

func readBlock(n int, said string) (*block, error) {
	b := &block{N: n, Text: said}
	for line := range strings.Lines(said) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if shape[verb] == nil || !shape[verb].MatchString(rest) {
			return nil, fmt.Errorf("%q is no step", strings.TrimSpace(line))
		}
		s := lessonStep{Verb: verb, Words: strings.Fields(rest)}
		known := true
		switch verb {
		case "press":
			known = buttons[rest] != ""
		case "try":
			_, known = trials.All[rest]
		case "set":
			_, err := switchesOf(s.Words)
			known = err == nil && operationOf(s.Words[0]) != nil
		case "see":
			for f := range strings.SplitSeq(rest, ", ") {
				name, want, _ := strings.Cut(f, " ")
				s.See = append(s.See, figure{name, want})
			}
		}
		if !known {
			return nil, fmt.Errorf("%q: there is no such thing", strings.TrimSpace(line))
		}
		b.Steps = append(b.Steps, s)
	}
	if len(b.Steps) < 2 || b.Steps[len(b.Steps)-1].Verb != "see" {
		return nil, fmt.Errorf("block %d does not end with what is to be seen", n)
	}
	return b, nil
}

func operationOf(name string) *Operation {
	for _, o := range Operations {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// switchesOf returns those that a step sets.
func switchesOf(words []string) (Switches, error) {
	p, err := FindPreset(words[1])
	if err != nil {
		return Switches{}, err
	}
	return p.Switches.change(fields(words[2:], "{}"))
}

// fields returns the JSON object in text with what words say, name=value.
func fields(words []string, text string) []byte {
	object := map[string]json.RawMessage{}
	_ = json.Unmarshal([]byte(text), &object) // it is one of ours
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if !json.Valid([]byte(value)) {
			value = strconv.Quote(value)
		}
		object[name] = json.RawMessage(value)
	}
	out, _ := json.Marshal(object)
	return out
}

// lessonOf is the lesson on what can happen without a switch.
var lessonOf = map[string]string{
	"key": "timeout", "unique": "new-key", "in_progress": "parallel", "replay": "timeout",
	"fingerprint": "other-body", "scope": "tenant", "outbox": "mail", "failures": "timeout",
	"transaction": "thirty-lines", "lease": "lease", "queue": "thirty-lines",
}

//go:embed lessons.html
var lessonsHTML string

//go:embed lessons.css
var lessonsCSS string

//go:embed lessons.js
var lessonsJS string

//go:embed lessons.ja.json
var lessonsJaJSON []byte

// inLessons is what lessons say around their text, by what it is in English.
var inLessons = func() (texts map[string]string) {
	if err := json.Unmarshal(lessonsJaJSON, &texts); err != nil {
		panic(err) // it is part of the program
	}
	return texts
}()

// wordsOf returns what puts a text into the language.
func wordsOf(lang string) func(string) string {
	page := japanese.In(lang)
	return func(text string) string {
		if s, ok := inLessons[text]; ok && lang == "ja" {
			return s
		}
		return page(text)
	}
}

var lessonsTemplate = template.Must(template.New("lesson").Funcs(template.FuncMap{
	"t":      func(string) string { return "" }, // that of the language
	"got":    func(*block, int, figure) string { return "" },
	"button": func(name string) string { return buttons[name] },
	"preset": func(name string) string { p, _ := FindPreset(name); return p.Title },
	"trial":  func(name string) string { return trials.All[name].Title },
	"label":  func(figure string) string { return cmp.Or(labels[figure], figure) },
	"title":  func(operation string) string { return operationOf(operation).Title },
	"from":   func(n int, words []string) []string { return words[n:] },
	"seen":   figure.seen,
	"worth":  (*block).worth,
	"right":  (*lessonRun).right,
	"client": func(language string) string { return clientNames[language] },
}).Parse(lessonsHTML))

// labels are what figures are called where their name does not say it.
var labels = map[string]string{
	"done": "times done", "because": "missing", "hand": "by hand", "hand_receipts": "receipts by hand", "semel_receipts": "receipts with semel", "replayed": "responses repeated",
}

// clientNames are languages as people write them.
var clientNames = map[string]string{
	"sh": "curl", "powershell": "PowerShell", "ts": "TypeScript", "csharp": "C#", "python": "Python", "go": "Go",
}

// classroom keeps what came of the blocks that were run, the latest run of each. One
// runs at a time, for they set the switches.
type classroom struct {
	running sync.Mutex

	mu   sync.Mutex
	runs map[string]map[int]*lessonRun
}

func (c *classroom) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.runs)
}

// lessonsView is what a lesson's page shows.
type lessonsView struct {
	Lang         string
	Lesson       *lesson
	All          []*lesson
	Before, Next *lesson
	Runs         map[int]*lessonRun
}

// showLesson shows the lesson {name}, or the list of them.
func (l *Lab) showLesson(w http.ResponseWriter, r *http.Request) {
	v := lessonsView{Lang: words.Language(r)}
	c := courses[v.Lang]
	for _, name := range c.order {
		v.All = append(v.All, c.by[name])
	}
	name := r.PathValue("name")
	if v.Lesson = c.by[name]; name == "" {
		v.Lesson = c.index
	}
	if v.Lesson == nil {
		problem(w, http.StatusNotFound, "There is no such lesson.")
		return
	}
	if i := slices.Index(v.All, v.Lesson); i >= 0 {
		if i > 0 {
			v.Before = v.All[i-1]
		}
		if i+1 < len(v.All) {
			v.Next = v.All[i+1]
		}
	}
	l.classroom.mu.Lock()
	v.Runs = make(map[int]*lessonRun, len(l.classroom.runs[name]))
	for n, run := range l.classroom.runs[name] {
		v.Runs[n] = run
	}
	l.classroom.mu.Unlock()
	page, err := lessonsTemplate.Clone()
	if err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Funcs(template.FuncMap{ // who has gone does not read it
		"t": wordsOf(v.Lang),
		"got": func(b *block, step int, f figure) string {
			if run := v.Runs[b.N]; run != nil && run.Got[step] != nil {
				return cmp.Or(run.Got[step][f.Name], "–")
			}
			return ""
		},
	}).Execute(w, v)
}

// startLesson runs the block {n} of the lesson {name}, and leads back to it.
func (l *Lab) startLesson(w http.ResponseWriter, r *http.Request) {
	name, lang := r.PathValue("name"), words.Language(r)
	n, err := strconv.Atoi(r.PathValue("n"))
	lesson := courses[lang].by[name]
	if lesson == nil || err != nil || n < 1 || n > len(lesson.blocks) {
		problem(w, http.StatusNotFound, "There is no such step.")
		return
	}
	to, ok := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string })
	if !ok {
		problem(w, http.StatusInternalServerError, "The lab does not know where it listens.")
		return
	}
	if !l.classroom.running.TryLock() {
		w.Header().Set("Retry-After", "5")
		problem(w, http.StatusConflict, "Another step of a lesson is being done. Nothing was changed; try again.")
		return
	}
	defer l.classroom.running.Unlock()
	run := l.runBlock(r.Context(), "http://"+to.String(), lesson.blocks[n-1])
	l.classroom.mu.Lock()
	if l.classroom.runs == nil {
		l.classroom.runs = map[string]map[int]*lessonRun{}
	}
	if l.classroom.runs[name] == nil {
		l.classroom.runs[name] = map[int]*lessonRun{}
	}
	l.classroom.runs[name][n] = run
	l.classroom.mu.Unlock()
	http.Redirect(w, r, fmt.Sprintf("/lessons/%s?lang=%s#step-%d", name, lang, n), http.StatusSeeOther)
}

// addLessons adds the pages of the lessons to mux.
func (l *Lab) addLessons(mux *http.ServeMux) {
	mux.HandleFunc("GET /lessons/{$}", l.showLesson)
	mux.HandleFunc("GET /lessons/{name}", l.showLesson)
	mux.HandleFunc("POST /lessons/{name}/{n}", l.startLesson)
	for name, text := range map[string][2]string{"lessons.css": {"text/css", lessonsCSS}, "lessons.js": {"text/javascript", lessonsJS}} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", text[0]+"; charset=utf-8")
			_, _ = w.Write([]byte(text[1]))
		})
	}
}
