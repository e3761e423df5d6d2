package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func lastLine(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return lines[len(lines)-1]
}

// TestRun runs the real go command on packages that pass, fail and die in
// every way a test binary can.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	const head = "package p\n\nimport \"testing\"\n\n"
	sources := map[string]string{
		"pass":    head + "func TestA(t *testing.T) { t.Run(\"sub\", func(*testing.T) {}) }\n",
		"skip":    head + "func TestA(t *testing.T) { t.Skip(\"the reason\") }\nfunc TestB(*testing.T) {}\n",
		"fail":    head + "func TestA(t *testing.T) { t.Run(\"leaf\", func(t *testing.T) { t.Error(\"what went wrong\") }) }\n",
		"panic":   head + "func TestA(*testing.T) { panic(\"the panic\") }\nfunc TestB(*testing.T) {}\n",
		"hang":    head + "func TestA(*testing.T) { select {} }\n",
		"exit":    "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestA(*testing.T) {}\nfunc TestB(*testing.T) { os.Exit(3) }\n",
		"main":    "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestA(*testing.T) {}\nfunc TestMain(m *testing.M) { m.Run(); os.Exit(4) }\n",
		"broken":  head + "func TestA(*testing.T) { undefined() }\n",
		"missing": "package p\n\nimport _ \"example.test/nowhere\"\n",
		"none":    "package p\n",
	}
	tests := []struct {
		packages string
		args     []string
		code     int
		last     string
		says     []string
	}{
		{"./pass ./none", nil, 0, "2 passed, 0 failed, 0 skipped (without -race: switched off)", []string{"ok   testall/pass"}},
		{"./skip", nil, 0, "1 passed, 0 failed, 1 skipped (without -race: switched off)", []string{"testall/skip.TestA: p_test.go:5: the reason"}},
		{"./pass ./fail", nil, 1, "2 passed, 2 failed, 0 skipped (without -race: switched off)", []string{"--- FAIL: testall/fail.TestA/leaf", "what went wrong"}},
		{"./panic", nil, 1, "0 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"panic: the panic"}},
		{"./hang", nil, 1, "0 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"did not end", "test timed out"}},
		{"./exit", nil, 1, "1 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"--- FAIL: testall/exit.TestB"}},
		{"./main", nil, 1, "1 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"--- FAIL: testall/main"}},
		{"./broken ./pass", nil, 1, "2 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"undefined: undefined", "does not build"}},
		{"./missing", nil, 1, "0 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"example.test/nowhere"}},
		{"./nowhere", nil, 1, "0 passed, 1 failed, 0 skipped (without -race: switched off)", nil},
		{"./pass ./nowhere", nil, 1, "2 passed, 1 failed, 0 skipped (without -race: switched off)", nil},
		{"./none", nil, 1, "0 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"no test ran"}},
		{"./pass", []string{"--", "-run=^TestNone$"}, 1, "0 passed, 1 failed, 0 skipped (without -race: switched off)", []string{"no test ran"}},
		{"./fail", []string{"--", "-skip=TestA/leaf"}, 0, "1 passed, 0 failed, 0 skipped (without -race: switched off)", nil},
	}

	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/semelhq/testall\n\ngo 1.26.0\n")
	for name, text := range sources {
		file := "p_test.go"
		if name == "none" {
			file = "p.go"
		}
		write(name+"/"+file, text)
	}
	t.Chdir(dir)
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "-buildvcs=false")

	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.packages+strings.Join(tt.args, ""), "./", ""), func(t *testing.T) {
			var out, log bytes.Buffer
			// The time limit is for ./hang alone; the others end by themselves.
			limit := "10m"
			if tt.packages == "./hang" {
				limit = "2s"
			}
			args := append([]string{"-race=off", "-timeout=" + limit, "-packages=" + tt.packages}, tt.args...)
			if code := run(t.Context(), args, &out, &log); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if got := lastLine(out.String()); got != tt.last {
				t.Errorf("last line %q, want %q", got, tt.last)
			}
			for _, s := range tt.says {
				if !strings.Contains(out.String()+log.String(), s) {
					t.Errorf("the output does not say %q", s)
				}
			}
			if t.Failed() {
				t.Logf("output:\n%s\nlog:\n%s", &out, &log)
			}
		})
	}
}

// TestRunAlone has a module that the workspace leaves out, which fails. A package of
// the workspace waits until that module is tested.
func TestRunAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.work":          "go 1.26.0\n\nuse .\n",
		"go.mod":           "module github.com/semelhq/testall\n\ngo 1.26.0\n",
		"a/p_test.go":      "package p\n\nimport \"testing\"\n\nfunc TestA(*testing.T) {}\n",
		"b/p_test.go":      "package p\n\nimport (\"net/http\"; \"os\"; \"testing\")\n\nfunc TestB(*testing.T) { http.Get(os.Getenv(\"TESTALL_RENDEZVOUS\")+\"/wait\") }\n",
		"out/go.mod":       "module github.com/semelhq/testall/out\n\ngo 1.26.0\n",
		"out/p_test.go":    "package p\n\nimport (\"net/http\"; \"os\"; \"testing\")\n\nfunc TestB(t *testing.T) { t.Error(http.Get(os.Getenv(\"TESTALL_RENDEZVOUS\") + \"/tested\")) }\n",
		"out/in/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestC(*testing.T) {}\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOWORK", "")
	t.Setenv("GOFLAGS", "-buildvcs=false")
	for packages, last := range map[string]string{
		"work":         "3 passed, 1 failed, 0 skipped",
		"./a":          "1 passed, 0 failed, 0 skipped",
		"./out":        "0 passed, 1 failed, 0 skipped",
		"./a ./out/in": "2 passed, 0 failed, 0 skipped",
		"./out/...":    "1 passed, 1 failed, 0 skipped",
	} {
		tested := make(chan struct{})
		rendezvous := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/tested" {
				close(tested)
			}
			select {
			case <-tested:
			case <-r.Context().Done():
			}
		}))
		t.Setenv("TESTALL_RENDEZVOUS", rendezvous.URL)
		var out, log bytes.Buffer
		run(t.Context(), []string{"-race=off", "-packages=" + packages, "-first=a b", "-alone=out", "-timeout=2m"}, &out, &log)
		rendezvous.Close()
		if got, want := lastLine(out.String()), last+" (without -race: switched off)"; got != want {
			t.Errorf("%s: last line %q, want %q\n%s%s", packages, got, want, &out, &log)
		}
	}
}

// TestSplit has the longest begin where all are tested, and nowhere else.
func TestSplit(t *testing.T) {
	for packages, want := range map[string]string{
		"work":        "[{ [./b ./c work]} {out [./...]}]",
		"./a":         "[{ [./a]}]",
		"./out ./a":   "[{out [.]} { [./a]}]",
		"./outer/...": "[{ [./outer/...]}]",
	} {
		if got := fmt.Sprint(split(strings.Fields(packages), []string{"b", "c"}, []string{"out"})); got != want {
			t.Errorf("%s is split into %s, want %s", packages, got, want)
		}
	}
}

func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, log bytes.Buffer
	if code := run(ctx, []string{"-race=off"}, &out, &log); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(out.String(), "interrupted") {
		t.Errorf("the output does not say that the run was interrupted:\n%s", &out)
	}
}

// A go command that dies halfway leaves packages without a result.
func TestPackageWithoutEnd(t *testing.T) {
	var out bytes.Buffer
	r := newReporter(&out)
	err := r.read(bufio.NewReader(strings.NewReader(`{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"so far\n"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if code := r.close(""); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if got, want := lastLine(out.String()), "0 passed, 2 failed, 0 skipped"; got != want {
		t.Errorf("last line %q, want %q", got, want)
	}
	if !strings.Contains(out.String(), "so far") {
		t.Errorf("the output of the unfinished test is not shown:\n%s", &out)
	}
}

func TestLineThatIsNoEvent(t *testing.T) {
	var out bytes.Buffer
	newReporter(&out).line([]byte("go: something else\n"))
	if got := out.String(); got != "go: something else\n" {
		t.Errorf("printed %q", got)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var tl tail
	for range 3 * keepBytes {
		tl.add("x\n")
	}
	tl.add("the end\n")
	if len(tl.b) > 2*keepBytes {
		t.Errorf("%d bytes are held, at most %d should be", len(tl.b), 2*keepBytes)
	}
	told := tl.told()
	if !strings.HasSuffix(told, "the end") || !strings.Contains(told, "left out") {
		t.Errorf("the end, or the remark on what is left out, is missing")
	}
}

// A misspelt package name would silently leave the race detector's calls in.
func TestUninstrumentedPackagesExist(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, uninstrumented...)...)
	cmd.Dir = filepath.Join("..", "..", "..", "..", "store", "sqlite") // tested in the workspace, which these tools are not in
	cmd.Env = append(os.Environ(), "GOWORK=")
	out, err := cmd.CombinedOutput()
	if got := strings.Fields(string(out)); err != nil || !slices.Equal(got, uninstrumented) {
		t.Errorf("go list: %v\n%s", err, out)
	}
}

type fakeDetector struct {
	tries      []error // one for each try
	installErr error
	installed  int
}

func (f *fakeDetector) try() error {
	err := f.tries[0]
	f.tries = f.tries[1:]
	return err
}

func (f *fakeDetector) install() error {
	f.installed++
	return f.installErr
}

func TestDecideRace(t *testing.T) {
	bad := errors.New("no")
	tests := []struct {
		name       string
		mode       string
		ci         bool
		tries      []error
		installErr error

		race, note, fails bool
		installs          int
	}{
		{name: "works", mode: "auto", tries: []error{nil}, race: true},
		{name: "works after installing", mode: "auto", tries: []error{bad, nil}, race: true, installs: 1},
		{name: "cannot install", mode: "auto", tries: []error{bad}, installErr: bad, note: true, installs: 1},
		{name: "installing does not help", mode: "auto", tries: []error{bad, bad}, note: true, installs: 1},
		{name: "CI demands it", mode: "auto", ci: true, tries: []error{bad}, installErr: bad, fails: true, installs: 1},
		{name: "CI works after installing", mode: "auto", ci: true, tries: []error{bad, nil}, race: true, installs: 1},
		{name: "on demands it", mode: "on", tries: []error{bad, bad}, fails: true, installs: 1},
		{name: "off", mode: "off", ci: true, note: true},
		{name: "neither", mode: "yes", fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &fakeDetector{tries: tt.tries, installErr: tt.installErr}
			race, note, err := decideRace(tt.mode, tt.ci, d)
			if race != tt.race || (note != "") != tt.note || (err != nil) != tt.fails {
				t.Errorf("race %t, note %q, error %v", race, note, err)
			}
			if d.installed != tt.installs {
				t.Errorf("installed %d times, want %d", d.installed, tt.installs)
			}
		})
	}
}

// TestSlowest has more tests than are told.
func TestSlowest(t *testing.T) {
	var out bytes.Buffer
	r := newReporter(&out)
	event := func(action, test string, elapsed float64) {
		r.line(fmt.Appendf(nil, `{"Action":%q,"Package":"github.com/semelhq/semel/p","Test":%q,"Elapsed":%g}`, action, test, elapsed))
	}
	for i := range 2 * keepSlowest {
		name := fmt.Sprintf("Test%d", i)
		event("run", name, 0)
		event("run", name+"/sub", 0)
		event("pass", name+"/sub", 1000)
		event("pass", name, float64(i*7%(2*keepSlowest)))
	}
	r.close("")
	_, table, _ := strings.Cut(out.String(), "slowest:\n")
	lines := strings.Split(table, "\n")
	for i, line := range lines[:keepSlowest] {
		elapsed := 2*keepSlowest - 1 - i
		want := fmt.Sprintf("    %7.2fs  semel/p.Test%d", float64(elapsed), elapsed*23%(2*keepSlowest)) // 7*23 = 1 modulo 40
		if line != want {
			t.Errorf("line %d is %q, want %q", i, line, want)
		}
	}
	if next := lines[keepSlowest]; !strings.HasSuffix(next, "passed, 0 failed, 0 skipped") {
		t.Errorf("after the table: %q", next)
	}
}
