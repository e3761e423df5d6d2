package importer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/probe/plan"
)

// pruned is what of an OpenAPI document an operation needs: the operation, a GET
// of the same path, and what these refer to. The rest is not looked at, and
// references out of the document are gone: the library that reads the rest
// follows references in goroutines of its own, where a panic ends the program.
type pruned struct {
	root     *yaml.Node
	known    []string // the operations there are, for a message
	outside  int      // references that were replaced
	preview  string   // the end of a path below the operation's that is its dry run
	keep     map[string]*yaml.Node
	nodes    int
	tooLarge bool
}

const (
	maxDocumentDepth = 200
	maxDocumentNodes = 2_000_000
)

// pruneOpenAPI returns the document as it is to be read.
func pruneOpenAPI(data []byte, want string) (text []byte, p *pruned, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, nil, errors.New("this is not a YAML or JSON document")
	}
	p = &pruned{root: doc.Content[0], keep: map[string]*yaml.Node{}}
	version := member(p.root, "openapi")
	if version == nil || !strings.HasPrefix(version.Value, "3.") {
		return nil, nil, errors.New("this is not an OpenAPI document of version 3")
	}
	path, method, item := p.find(want)
	if item == nil {
		return nil, nil, fmt.Errorf("the document has no operation %s; it begins with %s", label(want), strings.Join(p.known, ", "))
	}
	for name, it := range members(member(p.root, "paths")) {
		if of, ok := plan.PreviewOf(name); ok && of == path && member(it, method) != nil {
			p.preview = strings.TrimPrefix(name, path)
			break
		}
	}
	out := mapping()
	set(out, "openapi", version)
	set(out, "info", mapping("title", scalarNode("x"), "version", scalarNode("1")))
	for _, name := range []string{"servers", "security"} {
		if v := member(p.root, name); v != nil {
			set(out, name, p.copy(v, 0))
		}
	}
	set(out, "paths", mapping(path, p.item(item)))
	components := mapping()
	if schemes := member(p.at("/components"), "securitySchemes"); schemes != nil {
		set(components, "securitySchemes", p.copy(schemes, 0))
	}
	// What is copied may refer to more.
	done := map[string]bool{}
	for again := true; again; {
		again = false
		for ref, target := range p.keep {
			if done[ref] {
				continue
			}
			done[ref], again = true, true
			parts := strings.SplitN(ref, "/", 4)
			kind := member(components, parts[2])
			if kind == nil {
				kind = mapping()
				set(components, parts[2], kind)
			}
			set(kind, unpointer(parts[3]), p.copy(target, 0))
		}
	}
	set(out, "components", components)
	if p.tooLarge {
		return nil, nil, errors.New("the document is nested too deep, or too large")
	}
	text, err = yaml.Marshal(out)
	if err != nil {
		return nil, nil, errors.New("the document cannot be read")
	}
	return text, p, nil
}

var methods = []string{"get", "put", "post", "delete", "options", "head", "patch", "trace", "query"}

func (p *pruned) find(want string) (path, method string, item *yaml.Node) {
	wantMethod, wantPath, byPath := strings.Cut(strings.TrimSpace(want), " ")
	for name, it := range members(member(p.root, "paths")) {
		if ref := member(it, "$ref"); ref != nil {
			it = p.at(strings.TrimPrefix(ref.Value, "#"))
		}
		for method, op := range members(it) {
			if !slices.Contains(methods, method) || op.Kind != yaml.MappingNode {
				continue
			}
			id := member(op, "operationId")
			if byPath && strings.EqualFold(method, wantMethod) && name == strings.TrimSpace(wantPath) || !byPath && want != "" && id != nil && id.Value == want {
				return name, method, it
			}
			if len(p.known) < 10 {
				p.known = append(p.known, strings.ToUpper(method)+" "+label(name))
			}
		}
	}
	return "", "", nil
}

// item keeps of a path what is looked at.
func (p *pruned) item(it *yaml.Node) *yaml.Node {
	out := mapping()
	for name, v := range members(it) {
		switch {
		case name == "parameters" || name == "servers":
			set(out, name, p.copy(v, 0))
		case slices.Contains(methods, name) && v.Kind == yaml.MappingNode:
			op := mapping()
			for _, part := range []string{"operationId", "parameters", "requestBody", "servers", "security"} {
				if v := member(v, part); v != nil {
					set(op, part, p.copy(v, 0))
				}
			}
			set(op, "responses", p.responses(member(v, "responses")))
			set(out, name, op)
		}
	}
	return out
}

// responses keeps the schema of a success, to see what a list looks like.
func (p *pruned) responses(rs *yaml.Node) *yaml.Node {
	out := mapping("default", mapping("description", scalarNode("x")))
	for status, r := range members(rs) {
		if ref := member(r, "$ref"); ref != nil {
			r = p.at(strings.TrimPrefix(ref.Value, "#"))
		}
		for media, m := range members(member(r, "content")) {
			if schema := member(m, "schema"); schema != nil && strings.HasPrefix(status, "2") && strings.Contains(media, "json") {
				set(out, "200", mapping("description", scalarNode("x"), "content", mapping("application/json", mapping("schema", p.copy(schema, 0)))))
				return out
			}
		}
	}
	return out
}

// copy copies a node without references that lead out of the document, to
// nothing, or to a place that is not a component.
func (p *pruned) copy(n *yaml.Node, depth int) *yaml.Node {
	if p.nodes++; depth > maxDocumentDepth || p.nodes > maxDocumentNodes {
		p.tooLarge = true
		return mapping()
	}
	switch n.Kind {
	case yaml.AliasNode:
		return p.copy(n.Alias, depth+1)
	case yaml.MappingNode:
		if ref := member(n, "$ref"); ref != nil {
			target := strings.TrimPrefix(ref.Value, "#")
			to := p.at(target)
			switch {
			case ref.Kind != yaml.ScalarNode || target == ref.Value || to == nil:
				p.outside++
				return mapping()
			case strings.HasPrefix(target, "/components/") && strings.Count(target, "/") == 3:
				p.keep[target] = to
				return mapping("$ref", scalarNode(ref.Value))
			}
			return p.copy(to, depth+10)
		}
		out := mapping()
		for name, v := range members(n) {
			switch name {
			case "externalValue", "externalDocs", "operationRef", "$dynamicRef", "$id", "$anchor", "$dynamicAnchor", "$schema":
				if v.Kind == yaml.ScalarNode {
					continue
				}
			case "discriminator":
				if member(v, "propertyName") != nil {
					continue
				}
			}
			set(out, name, p.copy(v, depth+1))
		}
		return out
	case yaml.SequenceNode:
		out := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, e := range n.Content {
			out.Content = append(out.Content, p.copy(e, depth+1))
		}
		return out
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: n.Tag, Value: n.Value, Style: n.Style &^ yaml.TaggedStyle}
}

// at returns what a JSON pointer leads to, nil for nothing.
func (p *pruned) at(pointer string) *yaml.Node {
	if !strings.HasPrefix(pointer, "/") || len(pointer) > 1000 {
		return nil
	}
	n := p.root
	for part := range strings.SplitSeq(pointer[1:], "/") {
		for range 10 {
			if n != nil && n.Kind == yaml.AliasNode {
				n = n.Alias
			}
		}
		switch {
		case n == nil:
			return nil
		case n.Kind == yaml.SequenceNode:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(n.Content) {
				return nil
			}
			n = n.Content[i]
		default:
			n = member(n, unpointer(part))
		}
	}
	return n
}

func unpointer(s string) string {
	return strings.NewReplacer("~1", "/", "~0", "~", "%7B", "{", "%7D", "}", "%7b", "{", "%7d", "}").Replace(s)
}

// members are those of a mapping; of anything else there are none.
func members(n *yaml.Node) func(func(string, *yaml.Node) bool) {
	return func(yield func(string, *yaml.Node) bool) {
		for i := 0; n != nil && i < 10 && n.Kind == yaml.AliasNode; i++ {
			n = n.Alias
		}
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Kind == yaml.ScalarNode && !yield(n.Content[i].Value, n.Content[i+1]) {
				return
			}
		}
	}
}

func member(n *yaml.Node, name string) *yaml.Node {
	for k, v := range members(n) {
		if k == name {
			return v
		}
	}
	return nil
}

func mapping(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for i := 0; i+1 < len(pairs); i += 2 {
		set(n, pairs[i].(string), pairs[i+1].(*yaml.Node))
	}
	return n
}

func scalarNode(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: yaml.DoubleQuotedStyle}
}

// set sets a member; one that is there already stays.
func set(n *yaml.Node, name string, v *yaml.Node) {
	if member(n, name) == nil {
		n.Content = append(n.Content, scalarNode(name), v)
	}
}
