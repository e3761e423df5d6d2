package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Node is a value as it was written.
type Node = yaml.Node

// Decoder turns what is written into Go values by the types of the latter.
type Decoder struct {
	*Findings
	*Language
}

// Decode reads data into the struct that into points to. It reports whether there
// is anything in it; what is wrong is in f, whose Source it fills.
func (l *Language) Decode(f *Findings, data []byte, into any) bool {
	d := &Decoder{f, l}
	root := d.parse(data)
	if root == nil {
		return false
	}
	d.Value(root, reflect.ValueOf(into).Elem(), Rule{}, "")
	return true
}

// parse returns the top of the only document, or nil.
func (d *Decoder) parse(data []byte) *Node {
	switch {
	case len(data) > d.MaxBytes:
		d.Add("", "the %s is larger than %d KiB", d.Noun, d.MaxBytes>>10)
		return nil
	case !utf8.Valid(data):
		d.Add("", "the %s is not UTF-8", d.Noun)
		return nil
	case tooDeep(data):
		d.Add("", "the %s is nested too deep", d.Noun)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			d.Add("", "the %s is empty", d.Noun)
		} else {
			d.syntax(err)
		}
		return nil
	}
	if err := dec.Decode(&more); err == nil {
		d.Source.at[""] = Place{Line: more.Line, Col: more.Column}
		d.Add("", "there is a second document; a %s is one", d.Noun)
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
		return nil
	}
	return doc.Content[0]
}

// tooDeep finds text that is nothing but openings, which the YAML parser would
// follow thousands of levels down. It may be mistaken about text in quotes; the
// limit is far from anything a file has.
func tooDeep(data []byte) bool {
	const maxFlow = 1000
	depth := 0
	for _, c := range data {
		switch c {
		case '[', '{':
			if depth++; depth > maxFlow {
				return true
			}
		case ']', '}':
			depth = max(depth-1, 0)
		}
	}
	return false
}

func (d *Decoder) syntax(err error) {
	text := err.Error()
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		text = e.Message
		if e.ContextMsg != "" {
			text += " " + e.ContextMsg
		}
		if e.Mark.Line > 0 {
			d.Source.at[""] = Place{Line: e.Mark.Line, Col: e.Mark.Column}
		}
	}
	d.Add("", "this is not YAML: %s", text)
}

// Note notes where a value is and refuses what no value may have. It reports
// whether the value can be read.
func (d *Decoder) Note(n *Node, path string) bool {
	d.Source.at[path] = Place{Line: n.Line, Col: n.Column}
	switch {
	case n.Kind == yaml.AliasNode:
		d.Add(path, "aliases are not supported: write it out")
	case n.Anchor != "":
		d.Add(path, "anchors are not supported")
	case n.Style&yaml.TaggedStyle != 0:
		d.Add(path, "tags are not supported")
	default:
		return true
	}
	return false
}

// Value reads a value.
func (d *Decoder) Value(n *Node, v reflect.Value, r Rule, path string) {
	if !d.Note(n, path) || !d.fromEnv(n, path) {
		return
	}
	before := len(d.List)
	kind := d.Kinds[v.Type()]
	switch {
	case kind.Decode != nil:
		kind.Decode(d, n, v, r, path)
	case v.Type() == durationType:
		d.duration(n, v, r, path)
	case v.Kind() == reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.Value(n, p.Elem(), r, path)
		v.Set(p)
		return
	case v.Kind() == reflect.Struct:
		d.object(n, v, path)
		return
	case v.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.Add(path, "must be a list")
			return
		}
		if r.Items > 0 && len(n.Content) > r.Items {
			d.Add(path, "has %d elements; at most %d are allowed", len(n.Content), r.Items)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, e := range n.Content {
			d.Value(e, v.Index(i), r.element(), Index(path, i))
		}
	default:
		d.scalar(n, v, path)
	}
	if len(d.List) > before {
		return
	}
	if why := d.checkWritten(v, r); why != "" {
		d.Add(path, "%s", why)
	}
}

// Members calls f for each member of a mapping.
func (d *Decoder) Members(n *Node, path string, f func(name string, value *Node, at string)) {
	if n.Kind != yaml.MappingNode {
		d.Add(path, "must be a mapping, name: value")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := Join(path, key.Value)
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!str" && !seen[key.Value] {
			seen[key.Value] = true
			if d.Note(key, at) {
				f(key.Value, value, at)
			}
			continue
		}
		d.Source.at[at] = Place{Line: key.Line, Col: key.Column}
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			d.Add(at, "a name must be a string; put it in quotes")
		default:
			d.Add(at, "is given twice")
		}
	}
}

func (d *Decoder) object(n *Node, v reflect.Value, path string) {
	list, oneOf, exactly := FieldsOf(v.Type())
	var keys, given []string
	for _, f := range list {
		keys = append(keys, f.Key)
	}
	seen := map[string]bool{}
	if n.Kind != yaml.MappingNode {
		d.Add(path, "must be a mapping with %s", strings.Join(keys, ", "))
		return
	}
	d.Members(n, path, func(name string, value *Node, at string) {
		i := slices.Index(keys, name)
		if i < 0 {
			d.Add(at, "is not known here%s", DidYouMean(name, keys))
			return
		}
		seen[name] = true
		if slices.Contains(oneOf, name) {
			given = append(given, name)
		}
		d.Value(value, v.FieldByIndex(list[i].Index), list[i].Rule, at)
	})
	for _, f := range list {
		if f.Rule.Required && !seen[f.Key] {
			d.Add(Join(path, f.Key), "is missing")
		}
	}
	if why := checkOneOf(oneOf, exactly, given); why != "" {
		d.Add(path, "%s", why)
	}
}

// IsString reports whether a scalar is one to people.
func IsString(n *Node) bool {
	tag := n.ShortTag()
	return n.Kind == yaml.ScalarNode && (tag == "!!str" || tag == "!!timestamp")
}

// IsList reports whether n is a list.
func IsList(n *Node) bool { return n.Kind == yaml.SequenceNode }

func (d *Decoder) duration(n *Node, v reflect.Value, r Rule, path string) {
	if r.Empty && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" && n.Value == "0" {
		v.SetInt(0)
		return
	}
	if IsString(n) && durationForm.MatchString(n.Value) {
		if t, err := time.ParseDuration(n.Value); err == nil {
			v.SetInt(int64(t))
			return
		}
	}
	or := ""
	if r.Empty {
		or = ", or 0"
	}
	d.Add(path, "must be a duration such as 500ms, 30s or 1h30m%s", or)
}

func (d *Decoder) scalar(n *Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.Add(path, "must be a single value")
		return
	}
	tag := n.ShortTag()
	switch {
	case v.Type() == reflect.TypeFor[json.Number]():
		if (tag == "!!int" || tag == "!!float") && jsonNumber.MatchString(n.Value) {
			v.SetString(n.Value)
			return
		}
		d.Add(path, "must be a number")
	case v.Kind() == reflect.String:
		if IsString(n) {
			v.SetString(n.Value)
			return
		}
		d.Add(path, "must be a string; put it in quotes")
	case v.Kind() == reflect.Bool:
		if tag == "!!bool" {
			v.SetBool(strings.EqualFold(n.Value, "true"))
			return
		}
		d.Add(path, "must be true or false")
	case v.Kind() == reflect.Int:
		if i, err := strconv.ParseInt(n.Value, 10, 32); err == nil && tag == "!!int" {
			v.SetInt(i)
			return
		}
		d.Add(path, "must be a whole number")
	default:
		panic("strict: no way to decode " + v.Type().String())
	}
}

// IsNumber reports whether s is a number of JSON.
func IsNumber(s string) bool { return jsonNumber.MatchString(s) }

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// JSON writes a node as JSON without white space: members in order, numbers as
// written. quote writes a string.
func (d *Decoder) JSON(b *bytes.Buffer, n *Node, path string, quote func(string) []byte) {
	d.json(b, n, path, quote, 0)
}

func (d *Decoder) json(b *bytes.Buffer, n *Node, path string, quote func(string) []byte, depth int) {
	if !d.Note(n, path) {
		return
	}
	if depth > d.MaxDepth {
		d.Add(path, "is nested more than %d levels deep", d.MaxDepth)
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		first := true
		d.Members(n, path, func(name string, value *Node, at string) {
			if !first {
				b.WriteByte(',')
			}
			first = false
			b.Write(quote(name))
			b.WriteByte(':')
			d.json(b, value, at, quote, depth+1)
		})
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, e := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			d.json(b, e, Index(path, i), quote, depth+1)
		}
		b.WriteByte(']')
	default:
		switch tag := n.ShortTag(); {
		case IsString(n):
			b.Write(quote(n.Value))
		case tag == "!!null":
			b.WriteString("null")
		case tag == "!!bool":
			b.WriteString(strings.ToLower(n.Value))
		case jsonNumber.MatchString(n.Value):
			b.WriteString(n.Value)
		default:
			d.Add(path, "is not a JSON number; write it as one, or put it in quotes")
		}
	}
}
