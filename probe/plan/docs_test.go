package plan

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/semelhq/semel/internal/strict"
)

// TestDocsReference fails when the guide's list of keys is not what the types
// say. Run it with -update to write it anew.
func TestDocsReference(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "probe.md")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const intro = "What is not marked as required is optional. The descriptions are those of `semel probe schema`.\n\n"
	want, ok := strict.Section(string(data), "Every key of a plan", intro+language.Reference(reflect.TypeFor[Plan](), comments(t)))
	if !ok {
		t.Fatal("docs/probe.md has no section for the keys")
	}
	if want == strings.ReplaceAll(string(data), "\r\n", "\n") {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("the keys in docs/probe.md are not those of the types: go test -run TestDocsReference -update")
}
