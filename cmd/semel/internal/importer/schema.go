package importer

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/pb33f/libopenapi/orderedmap"
	"go.yaml.in/yaml/v4"
)

func firstExample(m *orderedmap.Map[string, *base.Example]) *yaml.Node {
	for _, e := range m.FromOldest() {
		if e != nil && e.Value != nil {
			return e.Value
		}
	}
	return nil
}

// given returns the value that a schema itself gives.
func given(s *base.Schema) *yaml.Node {
	switch {
	case s.Const != nil:
		return s.Const
	case s.Example != nil:
		return s.Example
	case len(s.Examples) > 0:
		return s.Examples[0]
	case s.Default != nil:
		return s.Default
	case len(s.Enum) > 0:
		return s.Enum[0]
	}
	return nil
}

// required returns an example with those members only that the schema requires,
// or all of them if it requires none.
func (a *api) required(n *yaml.Node, s *base.Schema, depth int) *yaml.Node {
	if s == nil || depth > maxExampleDepth {
		return n
	}
	if n.Kind == yaml.SequenceNode && s.Items != nil && s.Items.N == 0 && s.Items.A != nil {
		out := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, e := range n.Content {
			out.Content = append(out.Content, a.required(e, s.Items.A.Schema(), depth+1))
		}
		return out
	}
	need, properties := requiredOf(s, 0)
	if n.Kind != yaml.MappingNode || len(need) == 0 {
		return n
	}
	out := mapping()
	for name, v := range members(n) {
		if !slices.Contains(need, name) {
			a.skipped++
			continue
		}
		if p := properties[name]; p != nil {
			v = a.required(v, p.Schema(), depth+1)
		}
		set(out, name, v)
	}
	return out
}

func requiredOf(s *base.Schema, depth int) (names []string, properties map[string]*base.SchemaProxy) {
	names, properties = slices.Clone(s.Required), map[string]*base.SchemaProxy{}
	for name, p := range s.Properties.FromOldest() {
		properties[name] = p
	}
	for _, part := range s.AllOf {
		if sub := part.Schema(); sub != nil && depth < maxExampleDepth {
			more, others := requiredOf(sub, depth+1)
			names = append(names, more...)
			maps.Copy(properties, others)
		}
	}
	return names, properties
}

// formOf makes a form of a JSON object. What is nested is written as the
// document's encoding says; as a[b]=c where it says nothing.
func formOf(text []byte, encoding *orderedmap.Map[string, *v3.Encoding]) string {
	var top orderedJSON
	if top.read(text, 0) != nil || top.kind != '{' {
		return ""
	}
	var parts []string
	add := func(name, value string) { parts = append(parts, pathEscape(name)+"="+pathEscape(value)) }
	var brackets func(name string, v orderedJSON)
	brackets = func(name string, v orderedJSON) {
		switch v.kind {
		case '{', '[':
			for i, e := range v.values {
				key := strconv.Itoa(i)
				if v.kind == '{' {
					key = v.names[i]
				}
				brackets(name+"["+key+"]", e)
			}
		default:
			add(name, v.text)
		}
	}
	for i, v := range top.values {
		name := top.names[i]
		e := lookup(encoding, name)
		if e == nil {
			e = &v3.Encoding{}
		}
		explode := e.Explode == nil || *e.Explode
		switch {
		case v.kind != '{' && v.kind != '[':
			add(name, v.text)
		case strings.Contains(e.ContentType, "json"):
			add(name, v.text)
		case v.kind == '[' && e.Style == "form" && !explode:
			var list []string
			for _, e := range v.values {
				list = append(list, e.text)
			}
			add(name, strings.Join(list, ","))
		case v.kind == '[' && (e.Style == "form" || e.Style == "") && !slices.ContainsFunc(v.values, func(e orderedJSON) bool { return e.kind == '{' || e.kind == '[' }):
			for _, e := range v.values {
				add(name, e.text)
			}
		default:
			brackets(name, v)
		}
	}
	return strings.Join(parts, "&")
}

// orderedJSON is a JSON value whose members keep their order. Its text is that of
// a string without quotes.
type orderedJSON struct {
	kind   jsontext.Kind
	text   string
	names  []string
	values []orderedJSON
}

func (o *orderedJSON) read(v jsontext.Value, depth int) error {
	o.kind, o.text = v.Kind(), strings.TrimSpace(string(v))
	if depth > 2*maxExampleDepth {
		return errors.New("nested too deep")
	}
	switch o.kind {
	case '"':
		b, err := jsontext.AppendUnquote(nil, v)
		o.text = string(b)
		return err
	case '{', '[':
		dec := jsontext.NewDecoder(strings.NewReader(o.text))
		if _, err := dec.ReadToken(); err != nil {
			return err
		}
		for dec.PeekKind() != '}' && dec.PeekKind() != ']' {
			if o.kind == '{' {
				name, err := dec.ReadToken()
				if err != nil {
					return err
				}
				o.names = append(o.names, name.String())
			}
			v, err := dec.ReadValue()
			if err != nil {
				return err
			}
			var e orderedJSON
			if err := e.read(v.Clone(), depth+1); err != nil {
				return err
			}
			o.values = append(o.values, e)
		}
	}
	return nil
}

func quote(s string) string {
	b, _ := jsontext.AppendQuote(nil, s) // invalid UTF-8 is replaced
	return string(b)
}

// node writes an example as JSON.
func (a *api) node(b *strings.Builder, n *yaml.Node, depth int) {
	a.nodes++
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	if depth > maxExampleDepth || a.nodes > maxExampleNodes {
		b.WriteString("null")
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quote(drop(n.Content[i].Value)) + ":")
			a.node(b, n.Content[i+1], depth+1)
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, e := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			a.node(b, e, depth+1)
		}
		b.WriteByte(']')
	default:
		value := jsontext.Value(n.Value)
		switch n.ShortTag() {
		case "!!null":
			b.WriteString("null")
			return
		case "!!bool":
			b.WriteString(strings.ToLower(n.Value))
			return
		case "!!int", "!!float":
			if value.IsValid() {
				b.WriteString(n.Value)
				return
			}
		}
		b.WriteString(quote(drop(n.Value)))
	}
}

// schema writes a value that the schema allows, as far as that can be told from
// types, formats and bounds.
func (a *api) schema(b *strings.Builder, proxy *base.SchemaProxy, name string, depth int) {
	a.nodes++
	s := proxy.Schema()
	if s == nil || depth > maxExampleDepth || a.nodes > maxExampleNodes {
		if s == nil {
			a.note("A part of the schema could not be followed; there is null in its place.")
		}
		b.WriteString("null")
		return
	}
	if v := given(s); v != nil {
		a.node(b, v, depth)
		return
	}
	kind := ""
	for _, t := range s.Type {
		if kind == "" || kind == "null" {
			kind = t
		}
	}
	switch {
	case len(s.AllOf) > 0 || kind == "object" || s.Properties.First() != nil:
		a.object(b, s, depth)
	case len(s.OneOf) > 0:
		a.schema(b, s.OneOf[0], name, depth+1)
	case len(s.AnyOf) > 0:
		a.schema(b, s.AnyOf[0], name, depth+1)
	case kind == "array":
		n := int64(1)
		if s.MinItems != nil {
			n = min(max(*s.MinItems, 1), 20)
		}
		b.WriteByte('[')
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			if s.Items != nil && s.Items.N == 0 && s.Items.A != nil {
				a.schema(b, s.Items.A, name, depth+1)
			} else {
				b.WriteString("null")
			}
		}
		b.WriteByte(']')
	case kind == "integer" || kind == "number":
		b.WriteString(numberOf(s))
	case kind == "boolean":
		b.WriteString("false")
	case kind == "null":
		b.WriteString("null")
	default:
		b.WriteString(quote(a.text(s, name)))
	}
}

func (a *api) object(b *strings.Builder, s *base.Schema, depth int) {
	b.WriteByte('{')
	written := map[string]bool{}
	a.members(b, s, depth, written, s.Required)
	b.WriteByte('}')
}

// members writes the members of an object and of what it is all of: those that
// are required, and with optional those that have a value of their own.
func (a *api) members(b *strings.Builder, s *base.Schema, depth int, written map[string]bool, required []string) {
	for _, part := range s.AllOf {
		a.nodes++
		if sub := part.Schema(); sub != nil && depth < maxExampleDepth && a.nodes < maxExampleNodes {
			a.members(b, sub, depth+1, written, append(slices.Clone(required), sub.Required...))
		}
	}
	for name, p := range s.Properties.FromOldest() {
		name = drop(name)
		if written[name] || p == nil {
			continue
		}
		sub := p.Schema()
		if sub == nil || sub.ReadOnly != nil && *sub.ReadOnly {
			continue
		}
		// An object within another, of which nothing is required, would be empty.
		all := len(required) == 0 && (depth > 0 || a.optional)
		if has := given(sub) != nil; !slices.Contains(required, name) && !all && (!has || !a.optional) {
			if has {
				a.skipped++
			}
			continue
		}
		if len(written) > 0 {
			b.WriteByte(',')
		}
		written[name] = true
		b.WriteString(quote(name) + ":")
		a.schema(b, p, name, depth+1)
	}
}

func numberOf(s *base.Schema) string {
	n := 1.0
	if s.Minimum != nil {
		n = *s.Minimum
	}
	if e := s.ExclusiveMinimum; e != nil {
		if e.N == 1 {
			n = math.Floor(e.B) + 1
		} else if e.A {
			n = math.Floor(n) + 1
		}
	}
	if s.MultipleOf != nil && *s.MultipleOf > 0 {
		n = math.Ceil(n / *s.MultipleOf) * *s.MultipleOf
	}
	if s.Maximum != nil && n > *s.Maximum {
		n = *s.Maximum
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}

func (a *api) text(s *base.Schema, name string) string {
	switch s.Format {
	case "uuid":
		return a.hole("{{uuid}}")
	case "date-time":
		return a.hole("{{now}}")
	case "date":
		return a.hole(`{{now "date"}}`)
	case "email":
		return "probe@example.com"
	case "uri", "url":
		return "https://example.com/"
	case "hostname":
		return "example.com"
	case "ipv4":
		return "192.0.2.1"
	case "ipv6":
		return "2001:db8::1"
	case "byte":
		return "cHJvYmU="
	}
	if s.Pattern != "" {
		return a.fill("a string for " + name + " that matches " + s.Pattern)
	}
	text := "probe"
	if s.MinLength != nil {
		for int64(len(text)) < min(*s.MinLength, 1000) {
			text += "x"
		}
	}
	if s.MaxLength != nil && *s.MaxLength >= 0 && int64(len(text)) > *s.MaxLength {
		text = text[:*s.MaxLength]
	}
	return text
}
