package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestSkips holds skips.txt to the tree: a test that is skipped is a promise
// that is not proved, so each needs its reason where it can be read.
func TestSkips(t *testing.T) {
	table, err := os.ReadFile("skips.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range checkSkips(tree(t), string(table)) {
		t.Error(p)
	}
}

func TestSkipsFinds(t *testing.T) {
	house := fstest.MapFS{"a/a_test.go": {Data: []byte("package a\nfunc TestA(t *testing.T) { t.Skip(); tb.Skipf(\"x\"); t.SkipNow() }\n")}}
	const right = "prose\n\na/a_test.go: 3: why\n"
	if p := checkSkips(house, right); len(p) > 0 {
		t.Errorf("a right table is wrong: %v", p)
	}
	for _, wrong := range []string{"", "a/a_test.go: 2: why\n", "a/a_test.go: 3: \n", right + "b/b_test.go: 1: why\n"} {
		if len(checkSkips(house, wrong)) == 0 {
			t.Errorf("%q passes", wrong)
		}
	}
}

func checkSkips(tree fs.FS, table string) (problems []string) {
	listed := map[string]string{}
	for line := range strings.Lines(table) {
		if file, rest, ok := strings.Cut(strings.TrimSpace(line), ".go: "); ok {
			times, why, _ := strings.Cut(rest, ": ")
			if strings.TrimSpace(why) == "" {
				problems = append(problems, "skips.txt: "+file+".go has no reason")
			}
			listed[file+".go"] = times
		}
	}
	names, err := files(tree, ".go")
	if err != nil {
		return []string{err.Error()}
	}
	found := map[string]int{}
	for _, name := range names {
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return []string{err.Error()}
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			return []string{err.Error()}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, f.Sel.Name) {
					found[name]++
				}
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if want := fmt.Sprint(found[name]); listed[name] != want {
			problems = append(problems, fmt.Sprintf("%s skips %s times; skips.txt says %q", name, want, listed[name]))
		}
		delete(listed, name)
	}
	for name := range listed {
		problems = append(problems, "skips.txt: "+name+" skips nothing")
	}
	return problems
}
