package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestDocsCommands holds each line of a document that calls the program, and each
// example of its help, to its commands, flags and arguments.
func TestDocsCommands(t *testing.T) {
	root := filepath.Join("..", "..")
	found := 0
	check := func(where, line string) {
		args, ok := commandLine(line)
		if !ok {
			return
		}
		found++
		// A tree of its own: flags keep what they were set to.
		p := &program{}
		cmd, rest, err := p.root().Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && !cmd.Runnable() {
			return
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %s\n%v", where, line, err)
		}
	}
	noError(t, fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || strings.HasPrefix(d.Name(), ".") && name != "."):
			return fs.SkipDir
		case !strings.HasSuffix(name, ".md"):
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		document := strings.ReplaceAll(strings.ReplaceAll(string(text), "\r\n", "\n"), "\\\n", " ")
		for i, block := range strings.Split("\n"+document, "\n```") {
			if kind, lines, _ := strings.Cut(block, "\n"); i%2 == 1 && (kind == "" || kind == "sh" || kind == "console") {
				for line := range strings.Lines(lines) {
					check(name, line)
				}
			}
		}
		return nil
	}))
	var examples func(c *cobra.Command)
	examples = func(c *cobra.Command) {
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
			check("the help of "+c.CommandPath(), line)
		}
		for _, c := range c.Commands() {
			examples(c)
		}
	}
	examples((&program{}).root())
	if found < 100 {
		t.Errorf("only %d lines call the program", found)
	}
}

// commandLine returns the arguments of the program in a line that calls it, as a shell
// would split it, up to a pipe, a redirection or a comment.
func commandLine(line string) (args []string, ok bool) {
	line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
	line, ok = strings.CutPrefix(strings.TrimPrefix(line, "bin/"), "semel ")
	if !ok {
		return nil, false
	}
	var word strings.Builder
	inWord, quote := false, rune(0)
	end := func() {
		if inWord {
			args = append(args, word.String())
		}
		word.Reset()
		inWord = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case strings.ContainsRune("|<>&;", r), r == '#' && !inWord:
			end()
			return args, true
		case r == ' ' || r == '\t':
			end()
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	end()
	return args, true
}
