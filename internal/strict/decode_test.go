package strict

import (
	"strings"
	"testing"
)

type setting struct {
	A string `yaml:"a"`
}

// TestSyntaxErrors: what is not YAML is told with its line and column.
func TestSyntaxErrors(t *testing.T) {
	tests := []struct{ text, want string }{
		{"a: b\n c: [\n", "f:2:3: this is not YAML: mapping values are not allowed in this context"},
		{"a: b: c\n", "f:1:5: this is not YAML: mapping values are not allowed in this context"},
		{"a: 1\n\tb: 2\n", "f:2:1: this is not YAML: found a tab character that violates indentation while scanning a plain scalar"},
		{"a: {\n b: 1\n", "f:3:1: this is not YAML: did not find expected ',' or '}' while parsing a flow mapping"},
		{"a: b\n---\nc: @\n", "f:3:4: this is not YAML: found character that cannot start any token while scanning for the next token"},
		{"a: b\n---\nc: d\n", "f:2:1: there is a second document; a file is one"},
		{"a: \x01\n", "f:1:1: this is not YAML: control characters are not allowed"},
	}
	for _, tt := range tests {
		l := &Language{Noun: "file", MaxBytes: 1 << 10, MaxDepth: 4}
		f := &Findings{Source: NewSource("f")}
		l.Decode(f, []byte(tt.text), &setting{})
		if err := f.Err(); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %s", tt.text, err, tt.want)
		}
	}
}

// TestPlainTag: what a variable holds counts as it would in the file.
func TestPlainTag(t *testing.T) {
	for text, want := range map[string]string{
		"": "!!null", "~": "!!null", "null": "!!null", "true": "!!bool", "False": "!!bool", "yes": "!!str",
		"12": "!!int", "-12": "!!int", "0x1F": "!!int", "1_000": "!!int", ".5": "!!float", "1e3": "!!float",
		"-": "!!str", "--": "!!str", "---": "!!str", "...": "!!str", ".": "!!str", "- a": "!!str", "a: b": "!!str",
		"[1": "!!str", "&a 1": "!!str", "*a": "!!str", "!!int 1": "!!str", "# 1": "!!str", "1\n---\n2": "!!str", "\x01": "!!str",
	} {
		if got := plainTag(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}
