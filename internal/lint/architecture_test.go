package lint

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// TestArchitecture holds ARCHITECTURE.md to the tree: each arrow between packages is an
// import, each import between packages that are drawn is an arrow or follows from
// arrows, and each package that others can import is named.
func TestArchitecture(t *testing.T) {
	for _, p := range checkArchitecture(tree(t)) {
		t.Error(p)
	}
}

func TestArchitectureFinds(t *testing.T) {
	house := func(text string) fs.FS {
		return fstest.MapFS{
			"ARCHITECTURE.md": {Data: []byte("```mermaid\nflowchart TD\n" + text + "\n```\n`b` `c`\n")},
			"a.go":            {Data: []byte("package a\n")},
			"b/b.go":          {Data: []byte("package b\n\nimport _ \"" + modulePath + "\"\n")},
			"c/c.go":          {Data: []byte("package c\n")},
			"c/d/d.go":        {Data: []byte("package d\n\nimport _ \"" + modulePath + "/b\"\n")},
		}
	}
	const nodes = "  a[\"semel<br/>x\"]\n  b[\"b<br/>x\"]\n  c[\"c, c/d<br/>x\"]\n"
	for _, right := range []string{nodes + "  c --> b --> a", nodes + "  c --> b\n  b --> a\n  a -. x .- c"} {
		if p := checkArchitecture(house(right)); len(p) > 0 {
			t.Errorf("%q: %v", right, p)
		}
	}
	for _, wrong := range []string{
		nodes + "  c --> b --> a --> b", nodes + "  c --> b --> a\n  c --> a", nodes + "  c --> b --> a\n  x --> a", nodes, nodes + "  b --> a", nodes + "  c --> b",
		"  a[\"semel\"]\n  b[\"b\"]\n  c[\"c\"]\n  e[\"e\"]\n  b --> a", "  a[\"semel\"]\n  b[\"b\"]\n  b --> a",
	} {
		if len(checkArchitecture(house(wrong))) == 0 {
			t.Errorf("%q passes", wrong)
		}
	}
}

var mermaidNode = regexp.MustCompile(`^\s*(\w+)\["([^"]*)"\]$`)

func checkArchitecture(tree fs.FS) (problems []string) {
	text, err := fs.ReadFile(tree, "ARCHITECTURE.md")
	if err != nil {
		return []string{err.Error()}
	}
	imports, err := packageImports(tree)
	if err != nil {
		return []string{err.Error()}
	}
	_, drawing, _ := strings.Cut(string(text), "```mermaid\nflowchart")
	drawing, _, _ = strings.Cut(drawing, "```")
	nodes, arrows := map[string][]string{}, map[string][]string{}
	for line := range strings.Lines(drawing) {
		line = strings.TrimSpace(line)
		if m := mermaidNode.FindStringSubmatch(line); m != nil {
			names, _, _ := strings.Cut(m[2], "<br/>")
			for i, name := range strings.Split(names, ", ") {
				if i > 0 && !strings.Contains(name, "/") { // beside the first
					name = path.Join(path.Dir(nodes[m[1]][0]), name)
				}
				if name == "semel" {
					name = "."
				}
				nodes[m[1]] = append(nodes[m[1]], name)
				if imports[name] == nil && !slices.ContainsFunc(slices.Collect(maps.Keys(imports)), func(p string) bool { return strings.HasPrefix(p, name+"/") }) {
					problems = append(problems, "ARCHITECTURE.md draws "+name+", which is no package")
				}
			}
			continue
		}
		chain := strings.Split(line, " --> ")
		for i := range len(chain) - 1 {
			from, to := nodes[chain[i]], nodes[chain[i+1]]
			arrows[chain[i]] = append(arrows[chain[i]], chain[i+1])
			if from == nil || to == nil {
				problems = append(problems, "ARCHITECTURE.md: an arrow without an end: "+line)
			} else if !slices.ContainsFunc(from, func(a string) bool {
				return slices.ContainsFunc(to, func(b string) bool { return reaches(imports, a, b) })
			}) {
				problems = append(problems, "ARCHITECTURE.md: "+chain[i]+" does not import "+chain[i+1])
			}
		}
	}
	if len(arrows) == 0 {
		problems = append(problems, "ARCHITECTURE.md has no drawing of packages with arrows")
	}
	for node := range arrows {
		if leads(arrows, node, node) {
			problems = append(problems, "ARCHITECTURE.md: arrows lead from "+node+" to itself")
		}
	}
	for name, of := range imports {
		from := nodeOf(nodes, name)
		if from == "" {
			continue
		}
		for imported := range of {
			if to := nodeOf(nodes, imported); to != "" && to != from && !leads(arrows, from, to) {
				problems = append(problems, "ARCHITECTURE.md has no way of arrows from "+from+" to "+to+", but "+name+" imports "+imported)
			}
		}
	}
	for name := range imports {
		if name == "." || strings.Contains("/"+name+"/", "/internal/") || strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "bench") || strings.HasPrefix(name, "docs/") {
			continue
		}
		named := func(p string) bool {
			return strings.Contains(string(text), "`"+p+"`") || slices.ContainsFunc(slices.Collect(maps.Values(nodes)), func(all []string) bool { return slices.Contains(all, p) })
		}
		if !named(name) && !named(path.Base(name)) {
			problems = append(problems, "ARCHITECTURE.md does not name "+name)
		}
	}
	slices.Sort(problems)
	return problems
}

// nodeOf returns the node that a package is drawn in, or "": that of the longest name
// above it. Suites of rules for others' tests and internal packages are no part of the
// node above them.
func nodeOf(nodes map[string][]string, pkg string) (node string) {
	longest := ""
	for id, names := range nodes {
		for _, name := range names {
			below := name != "." && strings.HasPrefix(pkg, name+"/") && !strings.HasSuffix(pkg, "test") && !strings.Contains(pkg[len(name):], "/internal/")
			if (pkg == name || below) && len(name) > len(longest) {
				node, longest = id, name
			}
		}
	}
	return node
}

// leads reports whether arrows lead from one node to another.
func leads(arrows map[string][]string, from, to string) bool {
	reached := slices.Clone(arrows[from])
	for i := 0; i < len(reached); i++ {
		for _, next := range arrows[reached[i]] {
			if !slices.Contains(reached, next) {
				reached = append(reached, next)
			}
		}
	}
	return slices.Contains(reached, to)
}

// reaches reports whether a package in folder a, or below it, imports one in folder b.
func reaches(imports map[string]map[string]bool, a, b string) bool {
	for name, of := range imports {
		if name != a && !strings.HasPrefix(name, a+"/") {
			continue
		}
		for imported := range of {
			if imported == b || b != "." && strings.HasPrefix(imported, b+"/") {
				return true
			}
		}
	}
	return false
}

// packageImports returns the folders with Go files and what of the tree they import.
// Folders with nothing but tests are left out, and so are commands but the program.
func packageImports(tree fs.FS) (map[string]map[string]bool, error) {
	names, err := files(tree, ".go")
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]bool{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return nil, err
		}
		dir := path.Dir(name)
		if all[dir] == nil {
			all[dir] = map[string]bool{}
		}
		for _, i := range file.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return nil, err
			}
			if folder, ok := inTree(p); ok {
				all[dir][folder] = true
			}
		}
	}
	return all, nil
}
