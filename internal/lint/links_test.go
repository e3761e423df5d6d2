package lint

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// TestLinks holds that links in documents lead to files of the tree and to headings
// in them.
func TestLinks(t *testing.T) {
	for _, p := range checkLinks(tree(t)) {
		t.Error(p)
	}
}

func TestLinksFinds(t *testing.T) {
	house := func(text string) fs.FS {
		return fstest.MapFS{"docs/a.md": {Data: []byte(text)}, "b.md": {Data: []byte("# A `b` (c)\n\n```\n## not one\n```\n")}, "c/d.go": {}}
	}
	for _, right := range []string{"[b](../b.md)", "[b](../b.md#a-b-c)", "[c](../c)", "[c](../c/d.go)", "[x](https://example.com/x)", "# X\n[x](#x)", "```\n[b](nothing.md)\n```", "`[b](nothing.md)`"} {
		if p := checkLinks(house(right)); len(p) > 0 {
			t.Errorf("%q: %v", right, p)
		}
	}
	for _, wrong := range []string{"[b](b.md)", "[b](../b.md#nothing)", "[b](../b.md#not-one)", "[x](#x)", "[c](../c/e.go)"} {
		if len(checkLinks(house(wrong))) == 0 {
			t.Errorf("%q passes", wrong)
		}
	}
}

var (
	linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced     = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N}\p{M} _-]`)
)

// checkLinks returns what is wrong with links between files.
func checkLinks(tree fs.FS) (problems []string) {
	names, err := files(tree, ".md")
	if err != nil {
		return []string{err.Error()}
	}
	read := func(name string) string {
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			problems = append(problems, err.Error())
		}
		return fenced.ReplaceAllString(strings.ReplaceAll(string(text), "\r\n", "\n"), "")
	}
	for _, name := range names {
		for _, m := range linkTarget.FindAllStringSubmatch(inlineCode.ReplaceAllString(read(name), ""), -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			file, fragment, _ := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := fs.Stat(tree, to); err != nil {
				problems = append(problems, fmt.Sprintf("%s leads to %s, which is not there", name, m[1]))
			} else if fragment != "" && strings.HasSuffix(to, ".md") && !anchors(read(to))[fragment] {
				problems = append(problems, fmt.Sprintf("%s leads to %s, and there is no such heading", name, m[1]))
			}
		}
	}
	return problems
}

// anchors returns the fragments of a document's headings, as GitHub names them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			slug := notInSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			all[strings.ReplaceAll(slug, " ", "-")] = true
		}
	}
	return all
}

// TestIndex holds that docs/README.md leads to each document beside it.
func TestIndex(t *testing.T) {
	tree := tree(t)
	index, err := fs.ReadFile(tree, "docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	names, err := files(tree, ".md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if in, ok := strings.CutPrefix(name, "docs/"); ok && in != "README.md" && (!strings.Contains(in, "/") || path.Base(in) == "README.md" || strings.HasPrefix(in, "ja/")) &&
			!strings.Contains(string(index), "("+in+")") {
			t.Errorf("docs/README.md does not lead to %s", in)
		}
	}
}

// TestReadmes holds that each command of README.ja.md is one of README.md.
func TestReadmes(t *testing.T) {
	read := func(name string) string {
		text, err := fs.ReadFile(tree(t), name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "\r\n", "\n")
	}
	english, blocks := read("README.md"), fenced.FindAllString(read("README.ja.md"), -1)
	if len(blocks) == 0 {
		t.Error("there is none")
	}
	for _, block := range blocks {
		if !strings.Contains(english, block) {
			t.Errorf("this is not in README.md:\n%s", block)
		}
	}
}
