package lint

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
	"unicode/utf8"
)

const guaranteesFile = "docs/guarantees.md"

// proofs is what the tests of one folder offer.
type proofs struct {
	tests    map[string]bool // names of tests, fuzz tests and examples that run
	literals map[string]bool // string literals, as the names of subtests
}

// sharedNames are folders whose string literals may name subtests of any
// package: suites that run in the packages of the stores.
var sharedNames = []string{"storetest", "internal/brokenstore", "outbox/outboxtest", "inbox/inboxtest", "jobs/jobstest", "steps/stepstest"}

// readProofs parses the Go files of a folder. A file that a build constraint
// keeps off linux/amd64 offers nothing, and neither does an example without
// an expected output: it is compiled and never run.
func readProofs(tree fs.FS, dir string) (proofs, error) {
	p := proofs{tests: map[string]bool{}, literals: map[string]bool{}}
	names, err := fs.Glob(tree, path.Join(dir, "*.go"))
	if err != nil {
		return p, err
	}
	target := build.Default
	target.GOOS, target.GOARCH = "linux", "amd64"
	target.JoinPath = path.Join
	target.OpenFile = func(name string) (io.ReadCloser, error) { return tree.Open(name) }
	for _, name := range names {
		match, err := target.MatchFile(dir, path.Base(name))
		if err != nil {
			return p, err
		}
		if !match {
			continue
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return p, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return p, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					p.literals[strings.ReplaceAll(s, " ", "_")] = true
				}
			}
			return true
		})
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && isTest(f) {
				p.tests[f.Name.Name] = true
			}
		}
		for _, e := range doc.Examples(file) {
			if e.Output != "" || e.EmptyOutput {
				p.tests["Example"+e.Name] = true
			}
		}
	}
	return p, nil
}

// isTest reports whether the go command would run f as a test or fuzz test.
func isTest(f *ast.FuncDecl) bool {
	if f.Recv != nil || f.Type.TypeParams != nil || len(f.Type.Params.List) != 1 {
		return false
	}
	for prefix, param := range map[string]string{"Test": "T", "Fuzz": "F"} {
		rest, ok := strings.CutPrefix(f.Name.Name, prefix)
		if first, _ := utf8.DecodeRuneInString(rest); !ok || unicode.IsLower(first) {
			continue
		}
		star, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
		if !ok {
			return false
		}
		sel, ok := star.X.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == param
	}
	return false
}

// promise is a row of the document's tables.
type promise struct {
	line  int
	text  string
	tests []string
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	ruleLine = regexp.MustCompile(`^\|[ :|-]*-[ :|-]*$`)
	testName = regexp.MustCompile(`^([a-z0-9_/-]+)\.((?:Test|Fuzz|Example)\w*)((?:/[^/]+)*)$`)
)

// parseGuarantees returns the promises of the document, and what is wrong with
// its form: each table's last column is "Proved by", and no row leaves it
// without a test.
func parseGuarantees(text string) (promises []promise, wrong []string) {
	fenced, inTable := false, false
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced || !strings.HasPrefix(line, "|") {
			inTable = false
			continue
		}
		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, "¦"), "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		if !inTable {
			inTable = true
			if last != "Proved by" {
				wrong = append(wrong, fmt.Sprintf("line %d: the table's last column is %q, not \"Proved by\"", n, last))
			}
			continue
		}
		if ruleLine.MatchString(line) {
			continue
		}
		p := promise{line: n, text: strings.TrimSpace(cells[0])}
		for _, m := range codeSpan.FindAllStringSubmatch(last, -1) {
			p.tests = append(p.tests, m[1])
		}
		if len(p.tests) == 0 {
			wrong = append(wrong, fmt.Sprintf("line %d: no test proves %q", n, p.text))
		}
		promises = append(promises, p)
	}
	return promises, wrong
}

// checkGuarantees returns what is wrong with the document.
func checkGuarantees(tree fs.FS) ([]string, error) {
	text, err := fs.ReadFile(tree, guaranteesFile)
	if err != nil {
		return nil, err
	}
	promises, wrong := parseGuarantees(string(text))
	if len(promises) == 0 {
		wrong = append(wrong, "there is no promise in it")
	}

	skips, err := readSkips(tree)
	if err != nil {
		return nil, err
	}
	read := map[string]proofs{}
	of := func(dir string) (proofs, error) {
		if p, ok := read[dir]; ok {
			return p, nil
		}
		p, err := readProofs(tree, dir)
		read[dir] = p
		return p, err
	}
	for _, promise := range promises {
		for _, name := range promise.tests {
			why, err := checkTest(of, skips, name)
			if err != nil {
				return nil, err
			}
			if why != "" {
				wrong = append(wrong, fmt.Sprintf("line %d: %s: %s", promise.line, name, why))
			}
		}
	}
	return wrong, nil
}

// skipped says which rules of the suite do not run for a store.
type skipped map[string][]string

// readSkips reads storetest's table, whose lines are "store: rule".
func readSkips(tree fs.FS) (skipped, error) {
	text, err := fs.ReadFile(tree, "storetest/skips.txt")
	if err != nil {
		return nil, err
	}
	skips := skipped{}
	for line := range strings.Lines(string(text)) {
		if store, rule, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			skips[store] = append(skips[store], rule)
		}
	}
	return skips, nil
}

// checkTest says why name is not the name of a test that runs, or "".
func checkTest(of func(dir string) (proofs, error), skips skipped, name string) (string, error) {
	m := testName.FindStringSubmatch(name)
	if m == nil {
		return "is not of the form folder.TestName/subtest", nil
	}
	dir, test, subtests := m[1], m[2], m[3]
	if dir == "semel" {
		dir = "."
	}
	own, err := of(dir)
	if err != nil {
		return "", err
	}
	if !own.tests[test] {
		return "there is no such test", nil
	}
	names := []map[string]bool{own.literals}
	for _, shared := range sharedNames {
		p, err := of(shared)
		if err != nil {
			return "", err
		}
		names = append(names, p.literals)
	}
	for sub := range strings.SplitSeq(strings.TrimPrefix(subtests, "/"), "/") {
		known := slices.ContainsFunc(names, func(literals map[string]bool) bool { return literals[sub] })
		if sub != "" && !known {
			return fmt.Sprintf("no subtest is named %q", sub), nil
		}
		// A mode of a store has a name of its own, such as "postgres leased".
		for store, rules := range skips {
			if own, _, _ := strings.Cut(store, " "); path.Join("store", own) == dir && slices.Contains(rules, sub) {
				return fmt.Sprintf("the table of skips lists it for %q", store), nil
			}
		}
	}
	return "", nil
}

func TestGuarantees(t *testing.T) {
	wrong, err := checkGuarantees(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Errorf("%s: %s", guaranteesFile, w)
	}
}

func TestGuaranteesFinds(t *testing.T) {
	const head = "# Guarantees\n\n| Promise | Limit | Proved by |\n|---|:--|---|\n"
	tree := fstest.MapFS{
		"root_test.go": {Data: []byte("package semel_test\n\nimport \"testing\"\n\nfunc TestRoot(t *testing.T) {}\n")},
		"store/sqlite/a_test.go": {Data: []byte(`package sqlite

import "testing"

func TestConformance(t *testing.T) { t.Run("one claim", func(t *testing.T) {}) }
func FuzzKey(f *testing.F)         {}
func TestMain(m *testing.M)        {}
func TestHelper(n int)             {}
func Testimony(t *testing.T)       {}
func (s suite) TestMethod(t *testing.T) {}
func ExampleNever()                { println() }
func Example() {
	println()
	// Output:
}
`)},
		"store/sqlite/a.go":         {Data: []byte("package sqlite\n\nimport \"testing\"\n\nfunc TestNotInATestFile(t *testing.T) {}\n")},
		"store/sqlite/w_windows.go": {Data: []byte("package sqlite\n")},
		"store/sqlite/b_windows_test.go": {Data: []byte(`package sqlite

import "testing"

func TestWindows(t *testing.T) {}
`)},
		"storetest/suite.go":  {Data: []byte("package storetest\n\nvar names = []string{\"fence is checked\", \"outage\"}\n")},
		"storetest/skips.txt": {Data: []byte("A line is \"store: rule\".\n\nsqlite: outage\nmemory: fence_is_checked\n")},
	}
	tests := []struct {
		name, text, want string
	}{
		{"root", head + "| a | b | `semel.TestRoot` |\n", ""},
		{"folder", head + "| a | b | `store/sqlite.TestConformance`, `store/sqlite.FuzzKey` |\n", ""},
		{"example", head + "| a | b | `store/sqlite.Example` |\n", ""},
		{"subtest of its own", head + "| a | b | `store/sqlite.TestConformance/one_claim` |\n", ""},
		{"subtest of a suite", head + "| a | b | `store/sqlite.TestConformance/fence_is_checked` |\n", ""},
		{"a fenced table is text", head + "| a | b | `semel.TestRoot` |\n\n```\n| x |\n```\n", ""},
		{"an escaped bar", head + "| a \\| b | c | `semel.TestRoot` |\n", ""},

		{"unknown test", head + "| a | b | `semel.TestGone` |\n", "line 5: semel.TestGone: there is no such test"},
		{"unknown folder", head + "| a | b | `store/gone.TestConformance` |\n", "there is no such test"},
		{"one of two is unknown", head + "| a | b | `semel.TestRoot` `semel.TestGone` |\n", "semel.TestGone: there is no such test"},
		{"unknown subtest", head + "| a | b | `store/sqlite.TestConformance/gone` |\n", `no subtest is named "gone"`},
		{"unknown second subtest", head + "| a | b | `store/sqlite.TestConformance/one_claim/gone` |\n", `no subtest is named "gone"`},
		{"a skipped rule", head + "| a | b | `store/sqlite.TestConformance/outage` |\n", `the table of skips lists it for "sqlite"`},
		{"TestMain", head + "| a | b | `store/sqlite.TestMain` |\n", "there is no such test"},
		{"a helper", head + "| a | b | `store/sqlite.TestHelper` |\n", "there is no such test"},
		{"a lower-case name", head + "| a | b | `store/sqlite.Testimony` |\n", "there is no such test"},
		{"a method", head + "| a | b | `store/sqlite.TestMethod` |\n", "there is no such test"},
		{"an example that never runs", head + "| a | b | `store/sqlite.ExampleNever` |\n", "there is no such test"},
		{"not in a test file", head + "| a | b | `store/sqlite.TestNotInATestFile` |\n", "there is no such test"},
		{"not built on linux", head + "| a | b | `store/sqlite.TestWindows` |\n", "there is no such test"},
		{"form", head + "| a | b | `TestRoot` |\n", "is not of the form"},
		{"a promise without a test", head + "| a | b | soon |\n", `line 5: no test proves "a"`},
		{"a table without tests", head + "| a | b | `semel.TestRoot` |\n\n| Promise |\n|---|\n| c `semel.TestRoot` |\n", `line 7: the table's last column is "Promise"`},
		{"nothing", "# Guarantees\n", "there is no promise in it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree[guaranteesFile] = &fstest.MapFile{Data: []byte(tt.text)}
			wrong, err := checkGuarantees(tree)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, wrong, tt.want)
		})
	}
}
