package importer

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi/datamodel"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/pb33f/libopenapi/orderedmap"
	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/probe/plan"
)

// MaxOpenAPI bounds an OpenAPI document, in bytes.
const MaxOpenAPI = 16 << 20

// APIChoice picks an operation of an OpenAPI document.
type APIChoice struct {
	// Operation is an operationId, or a method and a path as the document has
	// it: POST /orders/{id}/pay.
	Operation string
	// Server, unless empty, is the base URL to use instead of the document's
	// first server.
	Server string
	// Document is where the document is, for target.specification.
	Document string
	// Optional takes over optional parameters and members too, where the
	// document has a value for them.
	Optional bool
}

// OpenAPI makes a draft of one operation of an OpenAPI 3.0, 3.1 or 3.2 document.
// What is required is in it, with the document's example, default or first
// choice where it has one; other values are made from the schema. What the
// document refers to outside of itself is not fetched. Where a GET of the same
// path lists what is made, it is the reader.
func OpenAPI(data []byte, choice APIChoice) (d *Draft, err error) {
	if len(data) > MaxOpenAPI {
		return nil, fmt.Errorf("importer: the document is larger than %d MiB", MaxOpenAPI>>20)
	}
	// The parser follows whatever a document says; what it stumbles over is the
	// document's fault.
	defer func() {
		if recover() != nil {
			d, err = nil, errors.New("importer: openapi: the document cannot be read")
		}
	}()
	data, part, err := pruneOpenAPI(data, choice.Operation)
	if err != nil {
		return nil, fmt.Errorf("importer: openapi: %w", err)
	}
	doc, err := libopenapi.NewDocumentWithConfiguration(data, &datamodel.DocumentConfiguration{
		IgnorePolymorphicCircularReferences: true,
		IgnoreArrayCircularReferences:       true,
		SkipExternalRefResolution:           true,
		Logger:                              slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, errors.New("importer: openapi: the document cannot be read") // the library's error quotes it
	}
	model, err := doc.BuildV3Model()
	if model == nil {
		return nil, errors.New("importer: openapi: the document cannot be read")
	}
	a := &api{below: part.preview, request: &request{from: "an operation of an OpenAPI document", spec: choice.Document}, doc: &model.Model, optional: choice.Optional}
	if part.outside > 0 {
		a.note("References that lead out of the document or to nothing: %d. What they refer to was left out.", part.outside)
	}
	if err != nil {
		a.note("The document has circular references; what is required in a circle was left out.")
	}
	if err := a.read(choice); err != nil {
		return nil, fmt.Errorf("importer: openapi: %w", err)
	}
	return a.draft()
}

type api struct {
	*request
	doc   *v3.Document
	nodes int // written so far

	bodySchema *base.Schema // nil: there is none

	below    string // the end of a path that is a dry run
	optional bool   // is wanted too
	skipped  int    // optional members that have a value
}

const (
	maxExampleDepth = 12
	maxExampleNodes = 5000
)

func (a *api) fill(what string) string { return a.hole("{{fill " + quoteArg(what) + "}}") }

func (a *api) read(choice APIChoice) error {
	path, method, item, op, err := a.find(choice.Operation)
	if err != nil {
		return err
	}
	a.method = strings.ToUpper(method)
	if a.operation = op.OperationId; a.operation == "" {
		a.operation = strings.Trim(path, "/") + "." + method
	}
	server, err := a.server(choice.Server, item, op)
	if err != nil {
		return err
	}
	path, query := a.parameters(path, item, op)
	a.url = server + path
	if query != "" {
		a.url += "?" + query
	}
	if err := a.requestBody(op.RequestBody); err != nil {
		return err
	}
	if a.skipped > 0 {
		a.note("%d optional parameters and fields for which the document has a value were left out; --optional takes them over.", a.skipped)
	}
	a.security(op)
	a.findList(item, op)
	a.findPreview(item, op)
	return nil
}

// findPreview looks for what the document calls a dry run of the operation: a
// parameter or a member of the body, or a path below its own.
func (a *api) findPreview(item *v3.PathItem, op *v3.Operation) {
	for _, p := range append(slices.Clone(op.Parameters), item.Parameters...) {
		if p == nil || p.In != "query" && p.In != "header" || !plan.NamesPreview(p.Name) || p.Schema == nil {
			continue
		}
		if value, ok := yes(p.Schema.Schema()); ok {
			a.preview = &preview{p.In, p.Name, value}
			return
		}
	}
	if a.bodySchema != nil {
		_, properties := requiredOf(a.bodySchema, 0)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if s := properties[name].Schema(); s != nil && slices.Contains(s.Type, "boolean") && plan.NamesPreview(name) {
				a.preview = &preview{"body", name, "true"}
				return
			}
		}
	}
	if a.below != "" {
		a.preview = &preview{in: "path", name: drop(a.below)}
	}
}

// yes is the value that asks for what a parameter is called.
func yes(s *base.Schema) (string, bool) {
	switch {
	case s == nil || slices.Contains(s.Type, "boolean"):
		return "true", s != nil
	case len(s.Enum) == 0:
		return map[bool]string{true: "1", false: "true"}[slices.Contains(s.Type, "integer")], slices.Contains(s.Type, "string") || slices.Contains(s.Type, "integer")
	}
	for _, e := range s.Enum {
		if e != nil && e.Kind == yaml.ScalarNode && !slices.Contains([]string{"", "0", "false", "no", "none", "off", "null"}, strings.ToLower(e.Value)) {
			return drop(e.Value), true
		}
	}
	return "", false
}

// findList looks for a GET of the same path that answers with a list.
func (a *api) findList(item *v3.PathItem, op *v3.Operation) {
	get := item.Get
	if get == nil || get == op || get.Responses == nil {
		return
	}
	for _, p := range append(slices.Clone(get.Parameters), item.Parameters...) {
		if p != nil && p.In != "path" && p.Required != nil && *p.Required {
			return // it cannot be asked like this
		}
	}
	ok := lookup(get.Responses.Codes, "200")
	if ok == nil {
		return
	}
	media := lookup(ok.Content, "application/json")
	if media == nil || media.Schema == nil {
		return
	}
	list, pointer := a.list(media.Schema.Schema(), 0)
	if list == nil {
		return
	}
	a.reader = &listReader{url: strings.SplitN(a.url, "?", 2)[0], count: pointer, from: "the document's GET of the same path"}
	if list.Items != nil && list.Items.N == 0 && list.Items.A != nil {
		if e := list.Items.A.Schema(); e != nil && lookup(e.Properties, "id") != nil {
			a.reader.id = "/id"
		}
	}
}

// lookup is a member of a map of the library, which may be nil.
func lookup[V any](m *orderedmap.Map[string, V], name string) (v V) {
	if m != nil {
		v = m.GetOrZero(name)
	}
	return v
}

// list returns the array that a schema is or has as its only one.
func (a *api) list(s *base.Schema, depth int) (list *base.Schema, pointer string) {
	if s == nil || depth > 5 {
		return nil, ""
	}
	if slices.Contains(s.Type, "array") {
		return s, ""
	}
	for _, part := range s.AllOf {
		if l, p := a.list(part.Schema(), depth+1); l != nil && p != "" {
			return l, p
		}
	}
	for name, p := range s.Properties.FromOldest() {
		sub := p.Schema()
		if sub == nil || !slices.Contains(sub.Type, "array") || strings.Contains(name, "link") || strings.Contains(name, "error") {
			continue
		}
		if list != nil {
			return nil, "" // which of them?
		}
		list, pointer = sub, "/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(drop(name))
	}
	return list, pointer
}

func (a *api) find(want string) (path, method string, item *v3.PathItem, op *v3.Operation, err error) {
	wantMethod, wantPath, byPath := strings.Cut(strings.TrimSpace(want), " ")
	var known []string
	if a.doc.Paths != nil {
		for p, it := range a.doc.Paths.PathItems.FromOldest() {
			if it == nil {
				continue
			}
			for m, o := range it.GetOperations().FromOldest() {
				if o == nil {
					continue
				}
				if byPath && strings.EqualFold(m, wantMethod) && p == strings.TrimSpace(wantPath) || !byPath && o.OperationId == want && want != "" {
					return p, m, it, o, nil
				}
				if len(known) < 10 {
					known = append(known, strings.ToUpper(m)+" "+p)
				}
			}
		}
	}
	return "", "", nil, nil, fmt.Errorf("the document has no operation %s; it begins with %s", label(want), strings.Join(known, ", "))
}

func (a *api) server(own string, item *v3.PathItem, op *v3.Operation) (string, error) {
	base := drop(own)
	if base == "" {
		for _, list := range [][]*v3.Server{op.Servers, item.Servers, a.doc.Servers} {
			if len(list) == 0 || list[0] == nil {
				continue
			}
			base = drop(list[0].URL)
			for name, v := range list[0].Variables.FromOldest() {
				base = strings.ReplaceAll(base, "{"+name+"}", drop(v.Default))
			}
			if len(list) > 1 {
				a.note("The document has %d servers; the first was taken.", len(list))
			}
			break
		}
	}
	base = strings.TrimSuffix(base, "/")
	if u, err := url.Parse(base); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.ContainsAny(base, "{}") {
		return "", errors.New("the document does not say at which server it is; name one")
	}
	return base, nil
}

// parameters puts what is required where it goes.
func (a *api) parameters(path string, item *v3.PathItem, op *v3.Operation) (outPath, query string) {
	var list []*v3.Parameter
	for _, p := range append(slices.Clone(op.Parameters), item.Parameters...) {
		// Those of the operation replace those of the path.
		if p != nil && !slices.ContainsFunc(list, func(o *v3.Parameter) bool { return o.Name == p.Name && o.In == p.In }) {
			list = append(list, p)
		}
	}
	path = drop(path)
	var queries, cookies []string
	for _, p := range list {
		isKey := p.In == "header" && slices.ContainsFunc(keyHeaders, func(k string) bool { return strings.EqualFold(k, p.Name) })
		value, has := a.parameterValue(p)
		if required := p.Required != nil && *p.Required || p.In == "path"; !required && !isKey && (!has || !a.optional) {
			if has {
				a.skipped++
			}
			continue
		}
		if !has {
			value = a.fill("the parameter " + p.Name)
		}
		switch p.In {
		case "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", pathEscape(value))
		case "query":
			queries = append(queries, url.QueryEscape(drop(p.Name))+"="+pathEscape(value))
		case "header":
			if isKey {
				value = "" // it is the probe's to say, and so is how it is quoted
			}
			a.header = append(a.header, field{Name: p.Name, Value: value})
		case "cookie":
			cookies = append(cookies, p.Name+"="+value)
		}
	}
	if len(cookies) > 0 {
		a.header = append(a.header, field{Name: "Cookie", Value: strings.Join(cookies, "; ")})
	}
	for {
		start := strings.IndexByte(path, '{')
		end := strings.IndexByte(path, '}')
		if start < 0 || end < start {
			break
		}
		path = path[:start] + a.fill("the path parameter "+path[start+1:end]) + path[end+1:]
	}
	return path, strings.Join(queries, "&")
}

// pathEscape encodes literal text and leaves holes.
func pathEscape(s string) string {
	var b strings.Builder
	for {
		loc := holePattern.FindStringIndex(s)
		if loc == nil {
			return b.String() + strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
		}
		b.WriteString(strings.ReplaceAll(url.QueryEscape(s[:loc[0]]), "+", "%20"))
		b.WriteString(s[loc[0]:loc[1]])
		s = s[loc[1]:]
	}
}

func (a *api) parameterValue(p *v3.Parameter) (value string, has bool) {
	node := p.Example
	if node == nil {
		node = firstExample(p.Examples)
	}
	if node == nil && p.Schema != nil {
		if s := p.Schema.Schema(); s != nil {
			node = given(s)
		}
	}
	if node != nil && node.Kind == yaml.ScalarNode {
		return drop(node.Value), true
	}
	return "", false
}

func (a *api) requestBody(b *v3.RequestBody) error {
	if b == nil || b.Content == nil {
		return nil
	}
	var media string
	var content *v3.MediaType
	rank := 0
	for name, m := range b.Content.FromOldest() {
		plain, _, _ := strings.Cut(strings.ToLower(name), ";")
		r := 1
		switch {
		case plain == "application/json":
			r = 4
		case strings.HasSuffix(plain, "+json"):
			r = 3
		case plain == "application/x-www-form-urlencoded":
			r = 2
		}
		if m != nil && r > rank {
			media, content, rank = name, m, r
		}
	}
	if content == nil {
		return nil
	}
	a.header = append(a.header, field{Name: "Content-Type", Value: drop(media)})
	if content.Schema != nil && rank > 1 {
		a.bodySchema = content.Schema.Schema()
	}
	node := content.Example
	if node == nil {
		node = firstExample(content.Examples)
	}
	var text strings.Builder
	switch {
	case rank == 1:
		if node != nil && node.Kind == yaml.ScalarNode {
			text.WriteString(drop(node.Value))
		} else {
			text.WriteString(a.fill("a body of the type " + media))
		}
	case node != nil:
		if !a.optional && content.Schema != nil {
			node = a.required(node, content.Schema.Schema(), 0)
		}
		a.node(&text, node, 0)
	case content.Schema != nil:
		a.schema(&text, content.Schema, "", 0)
	}
	a.body = []byte(text.String())
	if a.nodes > maxExampleNodes || len(a.body) > MaxBody {
		return errors.New("the example of the body is too large")
	}
	if rank == 2 {
		a.body = []byte(formOf(a.body, content.Encoding))
	}
	return nil
}

// security puts credentials where the first of the ways to authenticate has
// them.
func (a *api) security(op *v3.Operation) {
	list := op.Security
	if list == nil {
		list = a.doc.Security
	}
	if len(list) == 0 || list[0] == nil || a.doc.Components == nil {
		return
	}
	if len(list) > 1 {
		a.note("There are %d ways to authenticate; the first was taken.", len(list))
	}
	for name := range list[0].Requirements.FromOldest() {
		s := lookup(a.doc.Components.SecuritySchemes, name)
		if s == nil {
			continue
		}
		secret := a.env(envName(name), "the security scheme "+label(name))
		switch {
		case s.Type == "http" && strings.EqualFold(s.Scheme, "basic"):
			a.header = append(a.header, field{Name: "Authorization", Value: "Basic " + secret})
			a.note("%s is the base64 of user:password.", envName(name))
		case s.Type == "http" && strings.EqualFold(s.Scheme, "bearer"), s.Type == "oauth2", s.Type == "openIdConnect":
			a.header = append(a.header, field{Name: "Authorization", Value: "Bearer " + secret})
		case s.Type == "apiKey" && s.In == "header":
			a.header = append(a.header, field{Name: s.Name, Value: secret})
			a.hidden = append(a.hidden, secret)
		case s.Type == "apiKey" && s.In == "cookie":
			a.header = append(a.header, field{Name: "Cookie", Value: s.Name + "=" + secret})
		case s.Type == "apiKey" && s.In == "query":
			mark := "?"
			if strings.Contains(a.url, "?") {
				mark = "&"
			}
			a.url += mark + url.QueryEscape(s.Name) + "=" + secret
		default:
			a.note("The security scheme %s is not supported; give it under principals.", label(name))
		}
	}
}
