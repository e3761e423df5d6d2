// Package shelldoc runs the shell lines of documents in tests.
package shelldoc

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
)

// Run runs the document's blocks of type sh in one shell, in dir, and compares what each
// prints with the block of type text after it, but for the white space in a line.
func Run(t *testing.T, document, dir string) {
	t.Helper()
	bash := testenv.Program(t, "bash")
	testenv.Program(t, "curl")
	all := shellLines(t, document)
	const end = "-- end of the block --"
	script := "set -eu -o pipefail\n"
	for _, l := range all {
		script += l.shell + "echo '" + end + "'\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "no_proxy=*")
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("the shell ends with %v: %s", err, &stderr)
	}
	printed := strings.Split(string(out), end+"\n")
	for i, l := range all {
		if i == len(printed) {
			t.Fatalf("these lines were not run:\n%s", l.shell)
		}
		if got, want := words(printed[i]), words(l.want); got != want {
			t.Errorf("%s\nprints\n%s\nthe document says\n%s", l.shell, got, want)
		}
	}
}

// words is the text with single spaces.
func words(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(out, "\n")
}

// lines are a block of shell lines of a document, and what they print.
type lines struct{ shell, want string }

// shellLines returns the document's blocks of type sh, each with the block of
// type text after it.
func shellLines(t *testing.T, document string) (all []lines) {
	t.Helper()
	kind, text := "", ""
	for line := range strings.Lines(document) {
		fence, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "```")
		switch {
		case !ok:
			text += line
		case kind == "":
			kind, text = fence, ""
		default:
			switch {
			case kind == "sh":
				all = append(all, lines{shell: text})
			case kind == "text" && len(all) > 0 && all[len(all)-1].want == "":
				all[len(all)-1].want = text
			}
			kind = ""
		}
	}
	if kind != "" {
		t.Fatalf("a block of type %s does not end", kind)
	}
	for _, l := range all {
		if l.want == "" {
			t.Fatalf("nothing says what these lines print:\n%s", l.shell)
		}
	}
	return all
}
