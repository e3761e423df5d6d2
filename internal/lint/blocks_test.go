package lint

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// TestGoBlocks holds that each Go block of a document stands in a Go file of the tree,
// line by line, so that it compiles. Fragments that are in no program or example are
// in examples/internal/fragments.
func TestGoBlocks(t *testing.T) {
	for _, p := range checkGoBlocks(tree(t)) {
		t.Error(p)
	}
}

func TestGoBlocksFinds(t *testing.T) {
	house := func(text string) fs.FS {
		return fstest.MapFS{"a.md": {Data: []byte(text)}, "a.go": {Data: []byte("package a\n\nfunc f() {\n\tif g() {\n\t\th()\n\t}\n}\n")}}
	}
	for _, right := range []string{"```go\nif g() {\n\th()\n}\n```\n", "```go\n\th()\n```", "```sh\nx\n```\n", "```\nx\n```\n", "x"} {
		if p := checkGoBlocks(house(right)); len(p) > 0 {
			t.Errorf("%q: %v", right, p)
		}
	}
	for _, wrong := range []string{"```go\nif g() {\n\ti()\n}\n```\n", "```go\nif g() {\n}\n```\n", "```go\ng\n```\n", "```go\n```\n"} {
		if len(checkGoBlocks(house(wrong))) == 0 {
			t.Errorf("%q passes", wrong)
		}
	}
}

// checkGoBlocks returns the Go blocks that are in no Go file. White space at the ends of
// lines does not count.
func checkGoBlocks(tree fs.FS) (problems []string) {
	flat := func(name string) string {
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			problems = append(problems, err.Error())
		}
		lines := strings.Split(string(text), "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return "\n" + strings.Join(lines, "\n") + "\n"
	}
	documents, err := files(tree, ".md")
	if err != nil {
		return []string{err.Error()}
	}
	code, err := files(tree, ".go")
	if err != nil {
		return []string{err.Error()}
	}
	var sources []string
	for _, name := range code {
		sources = append(sources, flat(name))
	}
	for _, name := range documents {
		for i, part := range strings.Split(flat(name), "\n```go\n")[1:] {
			block, _, _ := strings.Cut("\n"+part, "\n```\n")
			block += "\n"
			found := strings.TrimSpace(block) != ""
			if found {
				found = false
				for _, s := range sources {
					found = found || strings.Contains(s, block)
				}
			}
			if !found {
				problems = append(problems, fmt.Sprintf("%s: its Go block %d is in no Go file:%s", name, i+1, block))
			}
		}
	}
	return problems
}
