package canonjson

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Pointer is a JSON pointer (RFC 6901), step by step.
type Pointer []token

// token is one step of a JSON pointer.
type token struct {
	name  []byte // the member's name in minimal quotes
	index int    // the element's index, or -1
}

var unescaper = strings.NewReplacer("~1", "/", "~0", "~")

// ParsePointer returns the pointer that s is. The error says why s is none that
// can lead to a value; it does not quote s.
func ParsePointer(s string) (Pointer, error) {
	if s != "" && s[0] != '/' {
		return nil, errors.New("is not a JSON pointer (RFC 6901): it does not start with a slash")
	}
	if !utf8.ValidString(s) {
		return nil, errors.New("is not valid UTF-8")
	}
	for i := range len(s) {
		if s[i] == '~' && (i+1 == len(s) || s[i+1] != '0' && s[i+1] != '1') {
			return nil, errors.New("is not a JSON pointer (RFC 6901): a tilde must be written ~0")
		}
	}
	if s == "" {
		return nil, nil
	}
	var p Pointer
	for step := range strings.SplitSeq(s[1:], "/") {
		step = unescaper.Replace(step)
		quoted, _ := jsontext.AppendQuote(nil, step) // it is valid UTF-8
		t := token{name: quoted, index: -1}
		if n, err := strconv.ParseUint(step, 10, 31); err == nil && strconv.FormatUint(n, 10) == step {
			t.index = int(n)
		}
		p = append(p, t)
	}
	return p, nil
}

// Text returns the string, or the number as it is written, that p leads to in
// body; ok is false where it leads to nothing, or to a value of another kind. The
// error is for a body that is not one well-formed document, in all of which no
// name repeats.
func (p Pointer) Text(body []byte) (text string, ok bool, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	var found jsontext.Value
	if err := p.find(d, &found); err != nil {
		return "", false, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return "", false, errors.New("there is more than one value")
	}
	switch found.Kind() {
	case '"':
		text, err := jsontext.AppendUnquote(nil, found)
		return string(text), err == nil, nil
	case '0':
		return string(found), true, nil
	}
	return "", false, nil
}

// find reads the next value, and sets found to what p leads to in it. The decoder
// sees to it that all of it is well-formed and no name repeats.
func (p Pointer) find(d *jsontext.Decoder, found *jsontext.Value) error {
	if len(p) == 0 {
		v, err := d.ReadValue()
		*found = v.Clone()
		return err
	}
	kind := d.PeekKind()
	if kind != '{' && kind != '[' {
		return d.SkipValue()
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for i := 0; d.PeekKind() != '}' && d.PeekKind() != ']'; i++ {
		hit := kind == '[' && i == p[0].index
		if kind == '{' {
			name, err := d.ReadToken()
			if err != nil {
				return err
			}
			hit = name.Kind() == '"' && p[0].is(name.String())
		}
		var err error
		if hit {
			err = p[1:].find(d, found)
		} else {
			err = d.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// is reports whether the token is this member name.
func (t token) is(name string) bool {
	quoted, err := jsontext.AppendQuote(nil, name)
	return err == nil && bytes.Equal(quoted, t.name)
}

// Selection says what to write of a document. The zero value is the whole.
type Selection struct {
	include []included
	exclude *tree // nil if nothing is
	depth   int   // of the deepest pointer
}

// included is a value that is written.
type included struct {
	at      Pointer
	exclude *tree // what is left out of it
}

// Select returns the selection of the values that include leads to, or of the
// whole document if it is empty, without those that exclude leads to.
func Select(include, exclude []Pointer) *Selection {
	s := &Selection{}
	for _, p := range exclude {
		if s.exclude == nil {
			s.exclude = &tree{}
		}
		s.exclude.add(p)
		s.depth = max(s.depth, len(p))
	}
	for _, p := range include {
		s.include = append(s.include, included{p, s.exclude.at(p)})
		s.depth = max(s.depth, len(p))
	}
	return s
}

// tree is a set of pointers.
type tree struct {
	end      bool // a pointer ends here, whatever is below
	members  map[string]*tree
	elements map[int]*tree
}

func (n *tree) isEnd() bool { return n != nil && n.end }

func (n *tree) add(p Pointer) {
	for _, t := range p {
		next := n.members[string(t.name)]
		if next == nil {
			if n.members == nil {
				n.members, n.elements = map[string]*tree{}, map[int]*tree{}
			}
			next = &tree{}
			n.members[string(t.name)] = next
			if t.index >= 0 {
				n.elements[t.index] = next
			}
		}
		n = next
	}
	n.end = true
}

// at returns the tree below p, or nil.
func (n *tree) at(p Pointer) *tree {
	for _, t := range p {
		if n == nil {
			return nil
		}
		n = n.members[string(t.name)]
	}
	return n
}
