package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// quoteJSON writes a string as JSON. Invalid UTF-8 becomes U+FFFD.
func quoteJSON(s string) []byte {
	// It fails for invalid UTF-8 only, and then still writes.
	b, _ := jsontext.AppendQuote(nil, s)
	return b
}

// compactJSON returns a JSON text without white space, numbers as written.
func compactJSON(text []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Clone(text))
	if !v.IsValid() || v.Compact() != nil {
		return nil, errNotJSON
	}
	return v, nil
}

// mapStrings returns a JSON text with each string in it, names of members
// aside, replaced by what f returns. It is compact and otherwise the same.
func mapStrings(text []byte, f func(s string) (string, error)) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out)
	for {
		tok, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errNotJSON
		}
		if kind, n := dec.StackIndex(dec.StackDepth()); tok.Kind() == '"' && (kind != '{' || n%2 == 0) {
			s, err := f(tok.String())
			if err != nil {
				return nil, err
			}
			tok = jsontext.String(s)
		}
		if err := enc.WriteToken(tok); err != nil {
			return nil, errors.New("the value is not UTF-8")
		}
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// rewriteJSON returns a JSON text of the same meaning in other bytes: the members
// of objects in reverse, and white space between everything.
func rewriteJSON(text []byte) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	var value func(depth int) ([]byte, error)
	value = func(depth int) ([]byte, error) {
		kind := dec.PeekKind()
		if kind != '{' && kind != '[' {
			v, err := dec.ReadValue()
			if err != nil {
				return nil, errNotJSON
			}
			return bytes.Clone(v), nil
		}
		if depth > MaxDepth {
			return nil, errNotJSON
		}
		_, _ = dec.ReadToken()
		var items [][]byte
		for {
			next := dec.PeekKind()
			if next == '}' || next == ']' {
				break
			}
			var name []byte
			if kind == '{' {
				v, err := dec.ReadValue()
				if err != nil {
					return nil, errNotJSON
				}
				name = append(bytes.Clone(v), " : "...)
			}
			v, err := value(depth + 1)
			if err != nil {
				return nil, err
			}
			items = append(items, append(name, v...))
		}
		end, err := dec.ReadToken()
		if err != nil {
			return nil, errNotJSON
		}
		if kind == '{' {
			slices.Reverse(items)
		}
		out := append([]byte{byte(kind)}, ' ')
		return append(append(append(out, bytes.Join(items, []byte(" , "))...), ' '), byte(end.Kind())), nil
	}
	out, err := value(0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errNotJSON
	}
	return append(out, '\n'), nil
}

// splitPointer returns the reference tokens of a JSON pointer.
func splitPointer(p Pointer) []string {
	if p == "" {
		return nil
	}
	parts := strings.Split(string(p)[1:], "/")
	for i, s := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(s, "~1", "/"), "~0", "~")
	}
	return parts
}

var (
	errNoValue = errors.New("there is no such value")
	// What comes from the JSON decoder could quote the text.
	errNotJSON = errors.New("is not JSON, or has a member twice")
)

// findJSON returns where in a JSON text the value is that a pointer names, and
// which kind of value it is. It does not look behind it.
func findJSON(text []byte, p Pointer) (start, end int, kind jsontext.Kind, err error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	fail := func(err error) (int, int, jsontext.Kind, error) { return 0, 0, 0, err }
	for _, part := range splitPointer(p) {
		open, err := dec.ReadToken()
		if err != nil {
			return fail(errNotJSON)
		}
		want := -1
		if open.Kind() == '[' {
			if n, err := strconv.Atoi(part); err == nil && n >= 0 && strconv.Itoa(n) == part {
				want = n
			}
		} else if open.Kind() != '{' {
			return fail(errNoValue)
		}
		for i := 0; ; i++ {
			next := dec.PeekKind()
			if next == '}' || next == ']' {
				return fail(errNoValue)
			}
			found := i == want
			if open.Kind() == '{' {
				name, err := dec.ReadToken()
				if err != nil {
					return fail(errNotJSON)
				}
				found = name.String() == part
			}
			if found {
				break
			}
			if err := dec.SkipValue(); err != nil {
				return fail(errNotJSON)
			}
		}
	}
	value, err := dec.ReadValue()
	if err != nil {
		return fail(errNotJSON)
	}
	end = int(dec.InputOffset())
	return end - len(value), end, value.Kind(), nil
}

// replaceJSON returns text with the value at the pointer replaced. Not a byte
// around it changes.
func replaceJSON(text []byte, p Pointer, value []byte) ([]byte, error) {
	start, end, _, err := findJSON(text, p)
	if err != nil {
		return nil, err
	}
	return append(append(append(make([]byte, 0, len(text)+len(value)), text[:start]...), value...), text[end:]...), nil
}

// insertJSON returns text with a new member at the end of the object that the
// pointer's last part is to be in.
func insertJSON(text []byte, p Pointer, value []byte) ([]byte, error) {
	parts := splitPointer(p)
	around := p[:strings.LastIndexByte(string(p), '/')]
	if _, _, _, err := findJSON(text, p); err == nil {
		return nil, fmt.Errorf("the body already has %s", p)
	}
	start, end, kind, err := findJSON(text, around)
	switch {
	case err != nil:
		return nil, err
	case kind != '{':
		return nil, fmt.Errorf("%q is not an object", around)
	}
	comma := ","
	if len(bytes.TrimSpace(text[start+1:end-1])) == 0 {
		comma = ""
	}
	member := comma + string(quoteJSON(parts[len(parts)-1])) + ":" + string(value)
	return append(append(append(make([]byte, 0, len(text)+len(member)), text[:end-1]...), member...), text[end-1:]...), nil
}
