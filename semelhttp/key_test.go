package semelhttp

import (
	"errors"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"

	"github.com/semelhq/semel"
)

func TestParseKey(t *testing.T) {
	long := strings.Repeat("k", semel.MaxKeyBytes)
	for _, tc := range []struct {
		name   string
		line   string
		key    string    // accepted when lenient
		strict bool      // accepted when strict as well
		reason KeyReason // refused when lenient
	}{
		{name: "string", line: `"k"`, key: "k", strict: true},
		{name: "bare", line: `k`, key: "k"},
		{name: "uuid string", line: `"8e03978e-40d5-43e8-bc93-6894a57f9324"`, key: "8e03978e-40d5-43e8-bc93-6894a57f9324", strict: true},
		{name: "uuid bare", line: `8e03978e-40d5-43e8-bc93-6894a57f9324`, key: "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{name: "white space around a string", line: " \t\"k\"\t ", key: "k", strict: true},
		{name: "white space around a bare value", line: "\t k ", key: "k"},
		{name: "spaces in a string", line: `" a b "`, key: " a b ", strict: true},
		{name: "escapes in a string", line: `"a\"b\\c"`, key: `a"b\c`, strict: true},
		{name: "comma and semicolon in a string", line: `"a,b;c=1"`, key: `a,b;c=1`, strict: true},
		{name: "integer", line: `123`, key: "123"},
		{name: "decimal", line: `1.50`, key: "1.50"},
		{name: "token", line: `*a/b:c`, key: "*a/b:c"},
		{name: "boolean", line: `?1`, key: "?1"},
		{name: "date", line: `@1659578233`, key: "@1659578233"},
		{name: "byte sequence", line: `:aGk=:`, key: ":aGk=:"},
		{name: "inner list", line: `(a)`, key: "(a)"},
		{name: "single quotes", line: `'k'`, key: "'k'"},
		{name: "percent", line: `%20`, key: "%20"},
		{name: "longest string", line: `"` + long + `"`, key: long, strict: true},
		{name: "longest bare", line: long, key: long},
		{name: "longest with every character escaped", line: `"` + strings.Repeat(`\"`, 255) + `"`, key: strings.Repeat(`"`, 255), strict: true},

		{name: "empty line", line: "", reason: KeyEmpty},
		{name: "white space only", line: " \t ", reason: KeyEmpty},
		{name: "empty string", line: `""`, reason: KeyEmpty},
		{name: "too long string", line: `"` + long + `k"`, reason: KeyTooLong},
		{name: "too long string with escapes", line: `"` + strings.Repeat(`\\`, 256) + `"`, reason: KeyTooLong},
		{name: "too long bare", line: long + "k", reason: KeyTooLong},
		{name: "parameter", line: `"k";a=1`, reason: KeyParameters},
		{name: "parameter without value", line: `"k";a`, reason: KeyParameters},
		{name: "parameter of an empty string", line: `"";a`, reason: KeyParameters},
		{name: "semicolon without parameter", line: `"k";`, reason: KeyMalformed},
		{name: "lone quote", line: `"`, reason: KeyMalformed},
		{name: "no closing quote", line: `"k`, reason: KeyMalformed},
		{name: "escaped closing quote", line: `"k\"`, reason: KeyMalformed},
		{name: "other escape", line: `"a\nb"`, reason: KeyMalformed},
		{name: "text behind the string", line: `"k"x`, reason: KeyMalformed},
		{name: "merged strings", line: `"a", "b"`, reason: KeyMalformed},
		{name: "merged equal strings", line: `"a","a"`, reason: KeyMalformed},
		{name: "merged bare values", line: `a, b`, reason: KeyBareCharacter},
		{name: "merged bare values without space", line: `a,b`, reason: KeyBareCharacter},
		{name: "non-ASCII string", line: `"é"`, reason: KeyMalformed},
		{name: "non-ASCII bare", line: `é`, reason: KeyBareCharacter},
		{name: "byte 0x80", line: "\x80", reason: KeyBareCharacter},
		{name: "NUL in a string", line: "\"a\x00\"", reason: KeyMalformed},
		{name: "newline in a string", line: "\"a\nb\"", reason: KeyMalformed},
		{name: "tab in a string", line: "\"a\tb\"", reason: KeyMalformed},
		{name: "DEL in a string", line: "\"a\x7f\"", reason: KeyMalformed},
		{name: "NUL bare", line: "a\x00", reason: KeyBareCharacter},
		{name: "newline bare", line: "a\n", reason: KeyBareCharacter},
		{name: "DEL bare", line: "a\x7f", reason: KeyBareCharacter},
		{name: "space bare", line: "a b", reason: KeyBareCharacter},
		{name: "bare with parameter", line: `k;a=1`, reason: KeyBareCharacter},
		{name: "bare with backslash", line: `a\b`, reason: KeyBareCharacter},
		{name: "quote inside bare", line: `a"b`, reason: KeyBareCharacter},
		{name: "display string", line: `%"k"`, reason: KeyBareCharacter},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key, err := ParseKey([]string{tc.line}, false)
			if tc.reason == 0 {
				if err != nil || key != tc.key {
					t.Errorf("lenient: got %q, %v; want %q", key, err, tc.key)
				}
			} else {
				wantKeyError(t, key, err, tc.reason)
			}
			key, err = ParseKey([]string{tc.line}, true)
			switch {
			case tc.strict:
				if err != nil || key != tc.key {
					t.Errorf("strict: got %q, %v; want %q", key, err, tc.key)
				}
			case tc.reason == 0, tc.reason == KeyBareCharacter, tc.reason == KeyTooLong && tc.line[0] != '"':
				wantKeyError(t, key, err, KeyNotString)
			default:
				wantKeyError(t, key, err, tc.reason)
			}
		})
	}
}

func wantKeyError(t *testing.T, key string, err error, want KeyReason) {
	t.Helper()
	var ke *KeyError
	if !errors.As(err, &ke) || ke.Reason != want || key != "" {
		t.Errorf("got %q, %v; want no key and reason %d (%v)", key, err, want, &KeyError{want})
	}
}

func TestParseKeyMissingIsNotEmpty(t *testing.T) {
	for _, lines := range [][]string{nil, {}} {
		if key, err := ParseKey(lines, false); !errors.Is(err, ErrKeyMissing) || key != "" {
			t.Errorf("got %q, %v; want ErrKeyMissing", key, err)
		}
	}
	if _, err := ParseKey([]string{""}, false); errors.Is(err, ErrKeyMissing) {
		t.Error("an empty header was taken for a missing one")
	}
}

// Others have failed here: two header lines were read as one of them, or as a list.
func TestRepeatedKeyHeaderIsRefused(t *testing.T) {
	for _, lines := range [][]string{{"a", "b"}, {"a", "a"}, {`"a"`, `"a"`}, {"", "a"}, {"a", ""}, {"", ""}} {
		key, err := ParseKey(lines, false)
		wantKeyError(t, key, err, KeyRepeated)
	}
}

func TestKeyErrorNeverHoldsTheKey(t *testing.T) {
	const secret = "s3cr3t"
	for _, line := range []string{
		secret + " ", secret + " x", secret + ",", `"` + secret, `"` + secret + `";a=1`, `"` + secret + `\n"`,
		strings.Repeat(secret, 50), `"` + strings.Repeat(secret, 50) + `"`, secret + "\x00",
	} {
		for _, strict := range []bool{false, true} {
			if _, err := ParseKey([]string{line}, strict); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("error for %q holds the key: %v", line, err)
			}
		}
	}
	if _, err := FormatKey(secret + "\x00"); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("FormatKey: %v", err)
	}
}

func TestKeyReasonsSayWhatToDo(t *testing.T) {
	seen := map[string]bool{}
	for r := KeyEmpty; r <= KeyNotExpressible; r++ {
		s := (&KeyError{r}).Error()
		if s == "" || seen[s] {
			t.Errorf("reason %d has no message of its own: %q", r, s)
		}
		seen[s] = true
	}
	if (&KeyError{}).Error() == "" || (&KeyError{200}).Error() == "" {
		t.Error("an unknown reason has no message")
	}
}

func TestFormatKey(t *testing.T) {
	for _, tc := range []struct{ key, want string }{
		{"k", `"k"`},
		{`a"b\c`, `"a\"b\\c"`},
		{" ", `" "`},
	} {
		got, err := FormatKey(tc.key)
		if err != nil || got != tc.want {
			t.Errorf("FormatKey(%q) = %q, %v; want %q", tc.key, got, err, tc.want)
		}
	}
	for _, tc := range []struct {
		key    string
		reason KeyReason
	}{
		{"", KeyEmpty},
		{strings.Repeat("k", 256), KeyTooLong},
		{"é", KeyNotExpressible},
		{"a\nb", KeyNotExpressible},
		{"\x7f", KeyNotExpressible},
	} {
		got, err := FormatKey(tc.key)
		wantKeyError(t, got, err, tc.reason)
	}
}

// A usual key must not cost the middleware allocations.
func TestParseKeyDoesNotAllocate(t *testing.T) {
	for _, line := range []string{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "8e03978e-40d5-43e8-bc93-6894a57f9324"} {
		lines := []string{line}
		if n := testing.AllocsPerRun(100, func() { _, _ = ParseKey(lines, false) }); n != 0 {
			t.Errorf("ParseKey(%s) allocates %v times", line, n)
		}
	}
}

// FuzzParseKey checks that an accepted key is a valid part of an identity and
// survives FormatKey, that strict accepts exactly what the Structured Field
// parser calls a string, and that strict and lenient never differ on a key.
func FuzzParseKey(f *testing.F) {
	for _, s := range []string{
		`"k"`, "k", "", `""`, ` "k" `, `"a\"b\\c"`, `"k";a=1`, `"k`, `"a", "b"`, "a,b", "é", `"é"`, ":aGk=:", `%"k"`, "?1", "(a)",
		"\"\x00\"", "\"a\"\t", strings.Repeat("k", 256), `"` + strings.Repeat(`\\`, 255) + `"`, `"k";`, `"k" ;a`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := ParseKey([]string{line}, false)
		if err == nil {
			id := semel.Identity{Scope: semel.Scope{Operation: "op"}, Key: key}
			if err := id.Validate(); err != nil {
				t.Fatalf("accepted %q as %q: %v", line, key, err)
			}
			formatted, err := FormatKey(key)
			if err != nil {
				t.Fatalf("FormatKey(%q): %v", key, err)
			}
			for _, strict := range []bool{false, true} {
				if again, err := ParseKey([]string{formatted}, strict); err != nil || again != key {
					t.Fatalf("ParseKey(FormatKey(%q)) = %q, %v", key, again, err)
				}
			}
		} else if !errors.As(err, new(*KeyError)) || key != "" {
			t.Fatalf("ParseKey(%q) = %q, %v", line, key, err)
		}

		strictKey, strictErr := ParseKey([]string{line}, true)
		if strictErr == nil && strictKey != key {
			t.Fatalf("%q: strict says %q, lenient %q, %v", line, strictKey, key, err)
		}
		item, sfErr := httpsfv.UnmarshalItem([]string{strings.Trim(line, " \t")})
		s, isString := item.Value.(string)
		want := sfErr == nil && isString && len(item.Params.Names()) == 0 && s != "" && len(s) <= semel.MaxKeyBytes
		if (strictErr == nil) != want || want && s != strictKey {
			t.Fatalf("%q: strict says %q, %v; the Structured Field parser %q, %v", line, strictKey, strictErr, s, sfErr)
		}

		if formatted, err := FormatKey(line); err == nil {
			if again, err := ParseKey([]string{formatted}, true); err != nil || again != line {
				t.Fatalf("ParseKey(FormatKey(%q)) = %q, %v", line, again, err)
			}
		}
	})
}
