package tutorial

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel/examples/internal/shelldoc"
)

// TestTutorial does what the tutorial says.
func TestTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	document := string(text)
	for _, r := range []struct{ old, with string }{
		{"go build -o bin/ ", "trap 'kill $pid' EXIT\ngo build -C " + root + " -buildvcs=false -o \"$PWD/bin/\" "},
		{"service=http://127.0.0.1:8088\n", "service=http://" + address + "\n"},
		{"bin/before & ", "bin/before -listen " + address + " & "},
		{"bin/after & ", "bin/after -listen " + address + " & "},
		{"charges.txt\nkill $pid\n", "charges.txt\nkill $pid\ntrap - EXIT\n"},
	} {
		if !strings.Contains(document, r.old) {
			t.Fatalf("the tutorial has no %q", r.old)
		}
		document = strings.ReplaceAll(document, r.old, r.with)
	}
	shelldoc.Run(t, document, t.TempDir())
}
