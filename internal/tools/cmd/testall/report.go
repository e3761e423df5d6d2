package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// event is a line of go test -json; see go doc test2json and go help buildjson.
type event struct {
	Action      string
	ImportPath  string // of build-output and build-fail
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// keepBytes bounds the output held for one test: the end of it is what tells.
const keepBytes = 256 << 10

// reporter counts tests and prints what a reader needs: a line for each
// package, the whole output of what failed, the reason of each skip.
type reporter struct {
	out                     io.Writer
	passed, failed, skipped int
	packages                map[string]*pkg
	failures                []string
	skips                   []string
	slowest                 []timing // at most keepSlowest, the slowest first
	packageEnded            func()   // nil or called when a package has
}

// lockedWriter is written to by several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// keepSlowest is how many of the slowest tests are told at the end.
const keepSlowest = 20

// timing is how long a test took with its subtests, in seconds by the clock: what
// ran beside it made it slower.
type timing struct {
	name    string
	elapsed float64
}

type pkg struct {
	running                 map[string]*tail // tests that have begun and not ended
	output                  tail             // what belongs to no test
	passed, failed, skipped int
}

func newReporter(out io.Writer) *reporter {
	return &reporter{out: out, packages: map[string]*pkg{}}
}

func (r *reporter) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(r.out, "%s\n", strings.TrimRight(string(line), "\n"))
		return
	}
	if e.Package == "" {
		if e.Action == "build-output" {
			fmt.Fprint(r.out, e.Output)
		}
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &pkg{running: map[string]*tail{}}
		r.packages[e.Package] = p
	}
	if e.Test == "" {
		r.packageEvent(p, e)
		return
	}
	r.testEvent(p, e)
}

func (r *reporter) testEvent(p *pkg, e event) {
	name := short(e.Package) + "." + e.Test
	if e.Elapsed > 0 && !strings.Contains(e.Test, "/") {
		r.time(name, e.Elapsed)
	}
	switch e.Action {
	case "run":
		p.running[e.Test] = &tail{}
	case "output":
		if t := p.running[e.Test]; t != nil {
			t.add(e.Output)
		} else {
			p.output.add(e.Output)
		}
	case "pass", "bench":
		p.passed++
		r.passed++
		delete(p.running, e.Test)
	case "skip":
		p.skipped++
		r.skipped++
		if t := p.running[e.Test]; t != nil {
			r.skips = append(r.skips, name+": "+strings.Join(strings.Fields(t.told()), " "))
		}
		delete(p.running, e.Test)
	case "fail":
		told := ""
		if t := p.running[e.Test]; t != nil {
			told = t.told()
		}
		p.failed++
		r.fail(name, told)
		delete(p.running, e.Test)
	}
}

func (r *reporter) time(name string, elapsed float64) {
	i, _ := slices.BinarySearchFunc(r.slowest, elapsed, func(t timing, elapsed float64) int { return cmp.Compare(elapsed, t.elapsed) })
	r.slowest = slices.Insert(r.slowest, i, timing{name, elapsed})
	r.slowest = r.slowest[:min(len(r.slowest), keepSlowest)]
}

func (r *reporter) packageEvent(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.output.add(e.Output)
	case "pass", "skip", "fail":
		r.endPackage(p, e)
	}
}

func (r *reporter) endPackage(p *pkg, e event) {
	if r.packageEnded != nil {
		r.packageEnded()
	}
	delete(r.packages, e.Package)
	r.unfinished(p, e.Package)
	name := short(e.Package)
	if e.Action == "fail" {
		// The race detector and a panic in another goroutine speak outside
		// of tests, so the package's own output is worth showing even when a
		// failed test is known.
		told := p.output.told()
		switch {
		case e.FailedBuild != "":
			p.failed++
			r.fail(name, "does not build: "+e.FailedBuild)
		case p.failed == 0:
			p.failed++
			r.fail(name, told)
		case told != "":
			fmt.Fprintln(r.out, indent(told))
		}
	}
	if p.passed+p.failed+p.skipped == 0 && e.Action != "fail" {
		return // nothing to test here
	}
	verdict := map[string]string{"pass": "ok  ", "skip": "ok  ", "fail": "FAIL"}[e.Action]
	fmt.Fprintf(r.out, "%s %-40s %7.2fs  %s\n", verdict, name, e.Elapsed, counts(p.passed, p.failed, p.skipped))
}

// unfinished fails the tests that began and never ended: the process died.
func (r *reporter) unfinished(p *pkg, path string) {
	for _, test := range slices.Sorted(maps.Keys(p.running)) {
		p.failed++
		r.fail(short(path)+"."+test, strings.TrimRight("did not end\n"+p.running[test].told(), "\n"))
	}
	clear(p.running)
}

// finish fails the packages that began and never ended: go test died.
func (r *reporter) finish() {
	for _, path := range slices.Sorted(maps.Keys(r.packages)) {
		p := r.packages[path]
		r.unfinished(p, path)
		r.fail(short(path), strings.TrimRight("did not end\n"+p.output.told(), "\n"))
	}
	clear(r.packages)
}

func (r *reporter) fail(name, told string) {
	r.failed++
	r.failures = append(r.failures, name)
	if told != "" {
		told = indent(told) + "\n"
	}
	fmt.Fprintf(r.out, "--- FAIL: %s\n%s", name, told)
}

// add counts what p has counted.
func (r *reporter) add(p *reporter) {
	r.passed += p.passed
	r.failed += p.failed
	r.skipped += p.skipped
	r.failures = append(r.failures, p.failures...)
	r.skips = append(r.skips, p.skips...)
	for _, t := range p.slowest {
		r.time(t.name, t.elapsed)
	}
}

// close prints the summary, whose last line is the closing line, and returns
// the exit code.
func (r *reporter) close(note string) int {
	if r.passed+r.failed+r.skipped == 0 {
		r.fail("testall", "no test ran")
	}
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(r.out, "%s:\n", title)
		for _, l := range lines {
			fmt.Fprintf(r.out, "    %s\n", l)
		}
	}
	var slowest []string
	for _, t := range r.slowest {
		slowest = append(slowest, fmt.Sprintf("%7.2fs  %s", t.elapsed, t.name))
	}
	list("slowest", slowest)
	list("skipped", r.skips)
	list("failed", r.failures)
	line := counts(r.passed, r.failed, r.skipped)
	if note != "" {
		line += " (" + note + ")"
	}
	fmt.Fprintln(r.out, line)
	if r.failed > 0 {
		return 1
	}
	return 0
}

func counts(passed, failed, skipped int) string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", passed, failed, skipped)
}

func short(path string) string { return strings.TrimPrefix(path, "github.com/semelhq/") }

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ")
}

// tail holds the end of a test's output.
type tail struct {
	b    []byte
	lost int
}

func (t *tail) add(s string) {
	t.b = append(t.b, s...)
	if len(t.b) > 2*keepBytes {
		cut := len(t.b) - keepBytes
		t.lost += cut
		t.b = append(t.b[:0], t.b[cut:]...)
	}
}

// told is the output without the lines that only say that tests begin and end.
func (t *tail) told() string {
	var out strings.Builder
	if t.lost > 0 {
		fmt.Fprintf(&out, "[%d bytes before this are left out]\n", t.lost)
	}
	for line := range strings.Lines(string(t.b)) {
		if !framework(strings.TrimSpace(line)) {
			out.WriteString(line)
		}
	}
	return strings.TrimRight(out.String(), "\n")
}

func framework(line string) bool {
	if line == "FAIL" || line == "PASS" || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "exit status ") {
		return true
	}
	for _, p := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- PASS: ", "--- FAIL: ", "--- SKIP: "} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}
