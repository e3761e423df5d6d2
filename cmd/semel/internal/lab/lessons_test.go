package lab

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/cmd/semel/internal/lab/trials"
	"github.com/semelhq/semel/docs/lessons"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/testenv"
)

// TestLessons does the steps of all lessons, as their pages do, and holds the
// figures. What is tried by hand and with semel is TestTrials's.
func TestLessons(t *testing.T) {
	quick.LeaveOut(t)
	var all sync.WaitGroup // they mostly wait, so that they go on together
	defer all.Wait()
	for name, lesson := range courses["en"].by {
		do := func(t *testing.T) {
			l, url := start(t, "unprotected")
			for _, b := range lesson.blocks {
				if b.Steps[0].Verb == "try" {
					continue
				}
				resp, err := stay.Post(fmt.Sprintf("%s/lessons/%s/%d?lang=ja", url, name, b.N), "", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if to := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || to != fmt.Sprintf("/lessons/%s?lang=ja#step-%d", name, b.N) {
					t.Errorf("block %d: answered %d, to %s", b.N, resp.StatusCode, to)
				}
				if run := l.classroom.runs[name][b.N]; run == nil || !run.right(b) {
					t.Errorf("not as the lesson says: %+v\n%s", run, b.Text)
				}
			}
		}
		all.Go(func() { t.Run(name, do) })
	}
}

// stay follows no redirect.
var stay = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// TestTrials holds what the lessons say of code by hand and of semel. Those with
// leases need no real time.
func TestTrials(t *testing.T) {
	tried := map[string]bool{}
	for _, lesson := range courses["en"].by {
		for _, b := range lesson.blocks {
			if b.Steps[0].Verb != "try" {
				continue
			}
			name := b.Steps[0].Words[0]
			tried[name] = true
			t.Run(name, func(t *testing.T) {
				check := func(t *testing.T) {
					p := &pupil{told: map[string]string{}}
					if err := p.do(t.Context(), b.Steps[0]); err != nil {
						t.Fatal(err)
					}
					if run := (&lessonRun{Got: map[int]map[string]string{1: p.told}}); !run.right(b) {
						t.Errorf("got %v, not as the lesson says:\n%s", p.told, b.Text)
					}
				}
				if strings.HasSuffix(name, "-worker") {
					synctest.Test(t, check)
					return
				}
				t.Parallel()
				check(t)
			})
		}
	}
	if len(tried) != len(trials.All) {
		t.Errorf("lessons try %d things of %d", len(tried), len(trials.All))
	}
}

// TestLessonsQuote compares the lines that lessons show with the files that they
// name, but for their indentation.
func TestLessonsQuote(t *testing.T) {
	for lang, c := range courses {
		for name, lesson := range c.by {
			quoted := 0
			for _, p := range lesson.Parts {
				if p.Client || p.Caption == "" {
					continue
				}
				quoted++
				source, err := os.ReadFile(filepath.Join("../../../..", p.Caption))
				if err != nil {
					t.Errorf("%s, %s: %v", lang, name, err)
				} else if !strings.Contains(flat(string(source)), flat(p.Code)) {
					t.Errorf("%s, %s: these lines are not in %s any more:\n%s", lang, name, p.Caption, p.Code)
				}
			}
			if quoted == 0 && name != "README" {
				t.Errorf("%s, %s shows no code", lang, name)
			}
		}
	}
}

// flat is the lines of a text, each without white space at its ends.
func flat(text string) string {
	var b strings.Builder
	b.WriteString("\n")
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// TestLessonsInBothLanguages holds that a lesson has the same steps, code, links and
// headings in both, and that the Japanese one is in Japanese.
func TestLessonsInBothLanguages(t *testing.T) {
	en, ja := courses["en"], courses["ja"]
	if !slices.Equal(en.order, ja.order) {
		t.Fatalf("%q and %q", en.order, ja.order)
	}
	heading := regexp.MustCompile(`<h[23]`)
	for _, name := range append(slices.Clone(en.order), "README") {
		a, b := en.by[name], ja.by[name]
		if name == "README" {
			a, b = en.index, ja.index
		}
		var shapes [2][]string
		var words [2]string
		for i, l := range []*lesson{a, b} {
			for _, p := range l.Parts {
				switch {
				case p.Steps != nil:
					shapes[i] = append(shapes[i], p.Steps.Text)
				case p.Code != "":
					shapes[i] = append(shapes[i], p.Code)
				default:
					words[i] += string(p.Text)
					shapes[i] = append(shapes[i], fmt.Sprintf("%d headings", len(heading.FindAllString(string(p.Text), -1))))
				}
			}
			shapes[i] = append(shapes[i], fmt.Sprint(slices.Sorted(slices.Values(l.links))))
		}
		if !slices.Equal(shapes[0], shapes[1]) {
			t.Errorf("%s differs:\n%q\n%q", name, shapes[0], shapes[1])
		}
		if n := len(regexp.MustCompile(`[\p{Hiragana}\p{Katakana}]`).FindAllString(words[1], -1)); n*4 < len([]rune(words[0]))/4 {
			t.Errorf("%s: %d letters of Japanese for %d of English", name, n, len(words[0]))
		}
	}
	said := map[string]bool{}
	for _, m := range regexp.MustCompile(`\{\{t "([^"]+)"\}\}`).FindAllStringSubmatch(lessonsHTML, -1) {
		said[m[1]] = true
	}
	for _, tr := range trials.All {
		said[tr.Title] = true
	}
	for _, label := range labels {
		said[label] = true
	}
	for text := range said {
		if wordsOf("ja")(text) == text && text != "semel" {
			t.Errorf("no Japanese for %q", text)
		}
	}
	for text := range inLessons {
		if !said[text] && !slices.Contains([]string{"responses"}, text) {
			t.Errorf("nobody says %q", text)
		}
	}
}

// TestLessonsLink holds that links between lessons, and to files of the tree, lead
// somewhere, and that each switch's lesson is there.
func TestLessonsLink(t *testing.T) {
	for _, c := range courses {
		for _, l := range append(slices.Collect(maps.Values(c.by)), c.index) {
			for _, to := range l.links {
				if c.by[to] == nil {
					t.Errorf("%s leads to %s", l.Name, to)
				}
			}
			for _, p := range l.Parts {
				for _, m := range regexp.MustCompile(`href="`+otherPages+`([^"#]*)`).FindAllStringSubmatch(string(p.Text), -1) {
					if _, err := os.Stat(filepath.Join("../../../..", m[1])); err != nil {
						t.Errorf("%s: %v", l.Name, err)
					}
				}
			}
		}
	}
	for name, to := range lessonOf {
		if courses["en"].by[to] == nil {
			t.Errorf("%s: there is no lesson %s", name, to)
		}
	}
	for _, s := range Toggles {
		if !s.Fault && s.Name != "rate_limit" && lessonOf[s.Name] == "" {
			t.Errorf("no lesson is about %s", s.Name)
		}
	}
}

// TestWrongLessons are refused when they are read.
func TestWrongLessons(t *testing.T) {
	for _, steps := range []string{
		"", "press double\n", "see done 1\n", "press double\nsee done\n", "press twice\nsee done 1\n", "jump high\nsee done 1\n", "try nothing\nsee hand 1\n",
		"set charges nothing\nsee done 1\n", "set nothing semel\nsee done 1\n", "set charges semel sope=true\nsee done 1\n", "send alice A\nsee done 1\n",
	} {
		files := fstest.MapFS{"README.md": {Data: []byte("# L\n\n[a](a.md)\n")}, "a.md": {Data: []byte("# A\n\n```lab\n" + steps + "```\n")}}
		if _, err := readCourse(files, ".", "en"); err == nil {
			t.Errorf("%q passes", steps)
		}
	}
	if _, err := readCourse(fstest.MapFS{"README.md": {Data: []byte("# L\n")}, "a.md": {Data: []byte("# A\n")}}, ".", "en"); err == nil {
		t.Error("a lesson that is not in the list passes")
	}
	for _, f := range []struct {
		want, got string
		ok        bool
	}{{"2", "2", true}, {"2", "3", false}, {"2-5", "2", true}, {"2-5", "5", true}, {"2-5", "1", false}, {"2-5", "6", false}, {"2-5", "x", false}, {"201 409", "201 409", true}} {
		if (figure{"done", f.want}).seen(f.got) != f.ok {
			t.Errorf("%s is to be seen, %s was: %v", f.want, f.got, !f.ok)
		}
	}
}

// TestLessonRefused asks for what is not there, and for two at the same time.
func TestLessonRefused(t *testing.T) {
	l, url := start(t, "semel")
	for path, want := range map[string]int{"/lessons/none/1": 404, "/lessons/mail/0": 404, "/lessons/mail/99": 404, "/lessons/mail/x": 404} {
		resp, err := stay.Post(url+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: answered %d", path, resp.StatusCode)
		}
	}
	l.classroom.running.Lock()
	resp, err := stay.Post(url+"/lessons/mail/1", "", nil)
	l.classroom.running.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusConflict || len(l.classroom.runs) > 0 {
		t.Errorf("answered %d", resp.StatusCode)
	}
	if s := l.Switches("charges"); s != Presets[4].Switches {
		t.Errorf("the switches are %+v", s)
	}
}

// TestLessonClients runs the clients of the lessons from their text, against a lab
// that loses the first response: each makes one charge, and prints it.
func TestLessonClients(t *testing.T) {
	quick.LeaveOut(t)
	shown := map[string]string{}
	for _, p := range courses["en"].by["new-key"].Parts {
		if p.Client {
			shown[p.Caption] = p.Code
		}
	}
	if len(shown) != len(clientNames) {
		t.Errorf("%d languages are shown, of %d", len(shown), len(clientNames))
	}
	for _, c := range []struct{ language, file, program string }{
		{"sh", "client.sh", "bash"}, {"ts", "client.mjs", "nodejs"}, {"python", "client.py", "python3"}, {"go", "client.go", "go"},
	} {
		t.Run(c.language, func(t *testing.T) {
			t.Parallel()
			program := c.program
			if program != "go" {
				program = testenv.Program(t, program) // as its package is called
			}
			if c.program == "bash" {
				testenv.Program(t, "curl")
			}
			l, url := start(t, "semel")
			s := l.Switches("charges")
			s.LoseResponse = true
			if err := l.Set("charges", s); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), c.file)
			if err := os.WriteFile(file, []byte(shown[c.language]), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{file}
			if c.program == "go" {
				args = []string{"run", file}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.Env = append(os.Environ(), "LAB="+url, "no_proxy=*")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || !strings.Contains(string(out), `"id":"chg_1"`) {
				t.Errorf("it ends with %v and prints %s%s", err, out, &stderr)
			}
			attempts, _ := l.trail.list("", 10)
			if len(attempts) != 2 || attempts[0].Key == "" || attempts[0].Key != attempts[1].Key || !attempts[1].Lost || !attempts[0].Replayed {
				t.Errorf("what arrived: %+v", attempts)
			}
			if n := done(t, l, "charges", "acme", ""); n != 1 {
				t.Errorf("charged %d times", n)
			}
		})
	}
}

// TestLessonFiles: what is embedded is what is there.
func TestLessonFiles(t *testing.T) {
	for _, dir := range []string{".", "ja"} {
		found, err := filepath.Glob(filepath.Join("../../../../docs/lessons", dir, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		embedded, err := lessons.Files.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range embedded {
			if !e.IsDir() {
				n++
			}
		}
		if n != len(found) || n != len(courses["en"].order)+1 {
			t.Errorf("%s: %d of %d are embedded", dir, n, len(found))
		}
	}
}
