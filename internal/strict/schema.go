package strict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
)

// Comments returns the text of the comments of the types in Go files, by Type and
// Type.Field.
func Comments(files ...string) (map[string]string, error) {
	docs := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		addComments(docs, parsed)
	}
	return docs, nil
}

func addComments(docs map[string]string, parsed *ast.File) {
	text := func(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
	for _, d := range parsed.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			continue
		}
		spec := decl.Specs[0].(*ast.TypeSpec)
		docs[spec.Name.Name] = text(decl.Doc)
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					docs[spec.Name.Name+"."+name.Name] = text(f.Doc)
				}
			}
		}
	}
}

// Schema says in JSON Schema (draft 2020-12) what a struct type says in Go. docs
// are the Comments of its file.
func (l *Language) Schema(of reflect.Type, docs map[string]string, id, title string) ([]byte, error) {
	g := generator{l, docs, map[string]any{}}
	g.structure(of)
	top := g.defs[of.Name()].(map[string]any)
	delete(g.defs, of.Name())
	top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	top["$id"] = id
	top["title"] = title
	top["$defs"] = g.defs
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(top)
	return b.Bytes(), err
}

type generator struct {
	*Language
	docs map[string]string
	defs map[string]any
}

func (g generator) structure(t reflect.Type) {
	if _, done := g.defs[t.Name()]; done {
		return
	}
	def := map[string]any{"type": "object", "additionalProperties": false}
	g.defs[t.Name()] = def
	if doc := g.docs[t.Name()]; doc != "" {
		def["description"] = doc
	}
	properties := map[string]any{}
	var required []string
	list, oneOf, exactly := FieldsOf(t)
	for _, f := range list {
		s := g.value(f.Type, f.Rule)
		if doc := g.docs[f.Of.Name()+"."+f.Name]; doc != "" {
			s["description"] = doc
		}
		properties[f.Key] = s
		if f.Rule.Required {
			required = append(required, f.Key)
		}
	}
	def["properties"] = properties
	if required != nil {
		def["required"] = required
	}
	var ways []any
	for _, key := range oneOf {
		ways = append(ways, map[string]any{"required": []string{key}})
	}
	switch {
	case ways == nil:
	case exactly:
		def["oneOf"] = ways
	default:
		def["anyOf"] = ways
	}
}

func (g generator) value(t reflect.Type, r Rule) map[string]any {
	s := map[string]any{}
	set := func(name string, n int) {
		if n != 0 {
			s[name] = n
		}
	}
	kind := g.Kinds[t]
	switch {
	case kind.Schema != nil:
		return kind.Schema(r)
	case t == durationType:
		s["type"], s["pattern"] = "string", DurationPattern
		if r.Empty {
			return map[string]any{"anyOf": []any{s, map[string]any{"const": 0}}}
		}
	case t == reflect.TypeFor[json.Number]():
		s["type"] = "number"
	case t.Kind() == reflect.Pointer:
		return g.value(t.Elem(), r)
	case t.Kind() == reflect.Struct:
		g.structure(t)
		s["$ref"] = "#/$defs/" + t.Name()
	case t.Kind() == reflect.Slice:
		s["type"], s["items"] = "array", g.value(t.Elem(), r.element())
		set("maxItems", r.Items)
		if r.Required {
			s["minItems"] = 1
		}
	case t.Kind() == reflect.Int:
		s["type"] = "integer"
		set("minimum", r.Min)
		set("maximum", r.Max)
	case t.Kind() == reflect.Bool:
		s["type"] = "boolean"
	default:
		form, formed := g.Forms[r.Names]
		s["type"] = "string"
		if !r.Empty && !(formed && form.Match("")) {
			s["minLength"] = 1
		}
		set("maxLength", r.Max)
		enum := append(r.Enum[:len(r.Enum):len(r.Enum)], kind.Enum...)
		if enum != nil {
			s["enum"] = enum
		}
		if formed {
			s["pattern"] = form.Pattern
		}
	}
	return s
}

// Reference tells of every key of a struct type and of those in it, in Markdown,
// in the words of docs.
func (l *Language) Reference(of reflect.Type, docs map[string]string) string {
	var b strings.Builder
	seen := map[reflect.Type]bool{}
	var tell func(reflect.Type)
	tell = func(of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		list, oneOf, exactly := FieldsOf(of)
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
		told := of
		for _, f := range list {
			if f.Of != told { // of an embedded struct
				told = f.Of
				if seen[told] {
					fmt.Fprintf(&b, "- all of [%s](#%s), too.\n", told.Name(), strings.ToLower(told.Name()))
				}
			}
			if f.Of != of && seen[f.Of] {
				continue
			}
			within := f.Type
			for within.Kind() == reflect.Pointer || within.Kind() == reflect.Slice && within.Elem().Kind() == reflect.Struct && l.Kinds[within].Decode == nil {
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
			if f.Rule.Required {
				notes = append(notes, "required")
			}
			if f.Rule.Enum != nil {
				notes = append(notes, "`"+strings.Join(f.Rule.Enum, "`, `")+"`")
			}
			note := ""
			if len(notes) > 0 {
				note = " (" + strings.Join(notes, "; ") + ")"
			}
			fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("- `%s`%s. %s", f.Key, note, escape(docs[f.Of.Name()+"."+f.Name])), " "))
		}
		b.WriteString("\n")
		for _, i := range inner {
			tell(i)
		}
	}
	tell(of)
	return b.String()
}

// escape keeps templates from being read as anything else.
func escape(s string) string { return strings.NewReplacer("<", "\\<", "*", "\\*").Replace(s) }

// Section returns the document text with the body of the section under heading
// replaced; the section ends at the next heading of the second level. It reports
// whether there is such a section.
func Section(text, heading, body string) (with string, ok bool) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	head := "## " + heading + "\n\n"
	before, rest, ok := strings.Cut(text, head)
	if !ok {
		return text, false
	}
	after := ""
	if i := strings.Index(rest, "\n## "); i >= 0 {
		after = rest[i+1:]
	} else {
		body = strings.TrimSuffix(body, "\n")
	}
	return before + head + body + after, true
}
