package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// ParseFile reads the plan in a file. Files that the plan names are relative to
// the file's folder.
func ParseFile(name string) (*Plan, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return Parse(name, data)
}

// Parse reads a plan, validates it and fills in the defaults. The name of the
// file is for messages and says where the plan's folder is.
//
// All problems come in one error, each a *Problem. Where the text can be read
// as a plan at all, the plan is returned beside the error; it must not be used,
// except to go on with an import (see [OnlyToFill]).
func Parse(file string, data []byte) (*Plan, error) {
	d := &decoder{problems: problems{source: &source{file: file, at: map[string]place{"": {1, 1}}}}}
	root := d.parse(data)
	if root == nil {
		return nil, d.err()
	}
	p := &Plan{source: d.source}
	d.value(root, reflect.ValueOf(p).Elem(), rule{}, "")

	// What could not be read needs no second complaint for being missing.
	unread := d.list
	p.check(&d.problems)
	d.list = slices.DeleteFunc(d.list, func(found *Problem) bool {
		return !slices.Contains(unread, found) && slices.ContainsFunc(unread, func(u *Problem) bool {
			return within(found.Path, u.Path) || within(u.Path, found.Path)
		})
	})
	if err := d.err(); err != nil {
		return p, err
	}
	withDefaults := p.WithDefaults()
	return &withDefaults, nil
}

// within reports whether path is inner or around it.
func within(inner, path string) bool {
	rest, ok := strings.CutPrefix(inner, path)
	return ok && (rest == "" || path == "" || rest[0] == '.' || rest[0] == '[')
}

// Dir is the plan's folder, empty for the working directory.
func (p *Plan) Dir() string {
	if p.source == nil || p.source.file == "" {
		return ""
	}
	return filepath.Dir(p.source.file)
}

// decoder turns YAML nodes into Go values by the types of the latter. Aliases,
// anchors and tags are refused, so that a text means what is written, once, and
// is never larger than it looks.
type decoder struct{ problems }

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// parse returns the top of the only document, or nil.
func (d *decoder) parse(data []byte) *yaml.Node {
	switch {
	case len(data) > MaxBytes:
		d.add("", "the plan is larger than %d KiB", MaxBytes>>10)
		return nil
	case !utf8.Valid(data):
		d.add("", "the plan is not UTF-8")
		return nil
	case tooDeep(data):
		d.add("", "the plan is nested too deep")
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			d.add("", "the plan is empty")
		} else {
			d.syntax(err)
		}
		return nil
	}
	if err := dec.Decode(&more); err == nil {
		d.source.at[""] = place{more.Line, more.Column}
		d.add("", "there is a second document; a plan is one")
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
		return nil
	}
	return doc.Content[0]
}

// tooDeep finds text that is nothing but openings, which the YAML parser would
// follow thousands of levels down. It may be mistaken about text in quotes;
// MaxFlow is far from anything a plan has.
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

func (d *decoder) syntax(err error) {
	text := err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1])
		d.source.at[""] = place{line, 1}
		text = text[len(m[0]):]
	}
	d.add("", "this is not YAML: %s", strings.TrimPrefix(text, "yaml: "))
}

// ok notes where a value is and refuses what no value may have.
func (d *decoder) ok(n *yaml.Node, path string) bool {
	d.source.at[path] = place{n.Line, n.Column}
	switch {
	case n.Kind == yaml.AliasNode:
		d.add(path, "aliases are not supported: write it out")
	case n.Anchor != "":
		d.add(path, "anchors are not supported")
	case n.Style&yaml.TaggedStyle != 0:
		d.add(path, "tags are not supported")
	default:
		return true
	}
	return false
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, r rule, path string) {
	if !d.ok(n, path) {
		return
	}
	before := len(d.list)
	switch {
	case v.Type() == pairsType:
		d.pairs(n, v, r, path, false)
	case v.Type() == headerType:
		d.pairs(n, v, r, path, true)
	case v.Type() == jsonType:
		var b bytes.Buffer
		d.json(&b, n, path, 0)
		v.SetBytes(b.Bytes())
	case v.Type() == durationType:
		d.duration(n, v, path)
	case v.Kind() == reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.value(n, p.Elem(), r, path)
		v.Set(p)
		return
	case v.Kind() == reflect.Struct:
		d.object(n, v, path)
		return
	case v.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.add(path, "must be a list")
			return
		}
		if r.items > 0 && len(n.Content) > r.items {
			d.add(path, "has %d elements; at most %d are allowed", len(n.Content), r.items)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, e := range n.Content {
			d.value(e, v.Index(i), r.element(), index(path, i))
		}
	default:
		d.scalar(n, v, path)
	}
	if len(d.list) > before {
		return
	}
	if why := r.checkWritten(v); why != "" {
		d.add(path, "%s", why)
	}
}

// members calls f for each member of a mapping.
func (d *decoder) members(n *yaml.Node, path string, f func(name string, value *yaml.Node, at string)) {
	if n.Kind != yaml.MappingNode {
		d.add(path, "must be a mapping, name: value")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!str" && !seen[key.Value] {
			seen[key.Value] = true
			if d.ok(key, at) {
				f(key.Value, value, at)
			}
			continue
		}
		d.source.at[at] = place{key.Line, key.Column}
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			d.add(at, "a name must be a string; put it in quotes")
		default:
			d.add(at, "is given twice")
		}
	}
}

func (d *decoder) object(n *yaml.Node, v reflect.Value, path string) {
	list, oneOf, exactly := fieldsOf(v.Type())
	var keys, given []string
	for _, f := range list {
		keys = append(keys, f.key)
	}
	seen := map[string]bool{}
	if n.Kind != yaml.MappingNode {
		d.add(path, "must be a mapping with %s", strings.Join(keys, ", "))
		return
	}
	d.members(n, path, func(name string, value *yaml.Node, at string) {
		i := slices.Index(keys, name)
		if i < 0 {
			d.add(at, "is not known here%s", didYouMean(name, keys))
			return
		}
		seen[name] = true
		if slices.Contains(oneOf, name) {
			given = append(given, name)
		}
		d.value(value, v.FieldByIndex(list[i].Index), list[i].rule, at)
	})
	for _, f := range list {
		if f.rule.required && !seen[f.key] {
			d.add(join(path, f.key), "is missing")
		}
	}
	if why := checkOneOf(oneOf, exactly, given); why != "" {
		d.add(path, "%s", why)
	}
}

func (d *decoder) pairs(n *yaml.Node, v reflect.Value, r rule, path string, lists bool) {
	var pairs []Pair
	d.members(n, path, func(name string, value *yaml.Node, at string) {
		if why := (rule{names: r.names}).checkString(name, false); why != "" {
			d.add(at, "the name %s", why)
			return
		}
		values := []*yaml.Node{value}
		if lists && value.Kind == yaml.SequenceNode && d.ok(value, at) {
			if values = value.Content; len(values) == 0 {
				d.add(at, "is empty")
			}
		}
		for _, e := range values {
			if !d.ok(e, at) {
				continue
			}
			if e.Kind != yaml.ScalarNode || !isString(e) {
				d.add(at, "must be a string; put it in quotes")
				continue
			}
			pairs = append(pairs, Pair{name, e.Value})
		}
	})
	v.Set(reflect.ValueOf(pairs).Convert(v.Type()))
}

func isString(n *yaml.Node) bool {
	tag := n.ShortTag()
	return tag == "!!str" || tag == "!!timestamp"
}

func (d *decoder) duration(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.ScalarNode && isString(n) && durationForm.MatchString(n.Value) {
		if t, err := time.ParseDuration(n.Value); err == nil {
			v.SetInt(int64(t))
			return
		}
	}
	d.add(path, "must be a duration such as 500ms, 30s or 1h30m")
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.add(path, "must be a single value")
		return
	}
	tag := n.ShortTag()
	switch {
	case v.Type() == reflect.TypeFor[json.Number]():
		if (tag == "!!int" || tag == "!!float") && jsonNumber.MatchString(n.Value) {
			v.SetString(n.Value)
			return
		}
		d.add(path, "must be a number")
	case v.Kind() == reflect.String:
		if isString(n) {
			v.SetString(n.Value)
			return
		}
		d.add(path, "must be a string; put it in quotes")
	case v.Kind() == reflect.Bool:
		if tag == "!!bool" {
			v.SetBool(strings.EqualFold(n.Value, "true"))
			return
		}
		d.add(path, "must be true or false")
	case v.Kind() == reflect.Int:
		if i, err := strconv.ParseInt(n.Value, 10, 32); err == nil && tag == "!!int" {
			v.SetInt(i)
			return
		}
		d.add(path, "must be a whole number")
	default:
		panic("plan: no way to decode " + v.Type().String())
	}
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// json writes a node as JSON without white space: members in order, numbers as
// written.
func (d *decoder) json(b *bytes.Buffer, n *yaml.Node, path string, depth int) {
	if !d.ok(n, path) {
		return
	}
	if depth > MaxDepth {
		d.add(path, "is nested more than %d levels deep", MaxDepth)
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		first := true
		d.members(n, path, func(name string, value *yaml.Node, at string) {
			if !first {
				b.WriteByte(',')
			}
			first = false
			b.Write(quoteJSON(name))
			b.WriteByte(':')
			d.json(b, value, at, depth+1)
		})
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, e := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			d.json(b, e, index(path, i), depth+1)
		}
		b.WriteByte(']')
	default:
		switch tag := n.ShortTag(); {
		case isString(n):
			b.Write(quoteJSON(n.Value))
		case tag == "!!null":
			b.WriteString("null")
		case tag == "!!bool":
			b.WriteString(strings.ToLower(n.Value))
		case jsonNumber.MatchString(n.Value):
			b.WriteString(n.Value)
		default:
			d.add(path, "is no number of JSON; write it as one, or put it in quotes")
		}
	}
}
