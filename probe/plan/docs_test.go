package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// reference tells of every key of a plan, in the words of the schema.
func reference(t *testing.T) string {
	docs := comments(t)
	var b strings.Builder
	seen := map[reflect.Type]bool{}
	var tell func(reflect.Type)
	tell = func(of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		list, oneOf, exactly := fieldsOf(of)
		fmt.Fprintf(&b, "### %s\n\n", of.Name())
		if doc := docs[of.Name()]; doc != "" {
			fmt.Fprintln(&b, escape(doc))
		}
		switch {
		case exactly:
			fmt.Fprintf(&b, "It has exactly one of `%s`.\n", strings.Join(oneOf, "`, `"))
		case len(oneOf) > 0:
			fmt.Fprintf(&b, "It has at least one of `%s`.\n", strings.Join(oneOf, "`, `"))
		}
		b.WriteString("\n")
		var inner []reflect.Type
		for _, f := range list {
			within := f.Type
			for within.Kind() == reflect.Pointer || within.Kind() == reflect.Slice && within.Elem().Kind() == reflect.Struct && within != pairsType && within != headerType {
				within = within.Elem()
			}
			notes := []string{}
			if within.Kind() == reflect.Struct {
				notes = append(notes, fmt.Sprintf("[%s](#%s)", within.Name(), strings.ToLower(within.Name())))
				inner = append(inner, within)
			}
			if f.Type.Kind() == reflect.Slice && within.Kind() == reflect.Struct {
				notes = append(notes, "a list")
			}
			if f.rule.required {
				notes = append(notes, "required")
			}
			if f.rule.enum != nil {
				notes = append(notes, "`"+strings.Join(f.rule.enum, "`, `")+"`")
			}
			note := ""
			if len(notes) > 0 {
				note = " (" + strings.Join(notes, "; ") + ")"
			}
			fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("- `%s`%s. %s", f.key, note, escape(docs[of.Name()+"."+f.Name])), " "))
		}
		b.WriteString("\n")
		for _, i := range inner {
			tell(i)
		}
	}
	tell(reflect.TypeFor[Plan]())
	return b.String()
}

// escape keeps templates from being read as anything else.
func escape(s string) string { return strings.NewReplacer("<", "\\<", "*", "\\*").Replace(s) }

// TestDocsReference fails when the guide's list of keys is not what the types
// say. Run it with -update to write it anew.
func TestDocsReference(t *testing.T) {
	const head, end = "## Every key of a plan\n\n", "## "
	file := filepath.Join("..", "..", "docs", "probe.md")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	before, rest, ok := strings.Cut(text, head)
	if !ok {
		t.Fatalf("docs/probe.md has no section %q", strings.TrimSpace(head))
	}
	got, after := rest, ""
	if i := strings.Index(rest, "\n"+end); i >= 0 {
		got, after = rest[:i+1], rest[i+1:]
	}
	const intro = "What is not marked as required can be left out. The words are those of `semel probe schema`.\n\n"
	want := intro + reference(t)
	if after == "" {
		want = strings.TrimSuffix(want, "\n")
	}
	if got == want {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+head+want+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("the keys in docs/probe.md are not those of the types: go test -run TestDocsReference -update")
}
