package importer

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// API is what an OpenAPI document says of a service as a whole.
type API struct {
	Title string
	// Server is the first server's URL, without variables; it may be a path only.
	Server string
	// Operations are in the order of the document.
	Operations []APIOperation
	// Credentials are the headers in which callers authenticate, and Cookie is a
	// cookie, where the document names some.
	Credentials []string
	Cookie      string
}

// APIOperation is an operation of an OpenAPI document.
type APIOperation struct {
	Method string // in capitals
	Path   string // as the document has it
	ID     string // its operationId, if it has one
	// Key is the header with an idempotency key, if one is declared.
	Key         string
	KeyRequired bool
}

// maxOperations bounds what is listed of a document.
const maxOperations = 10_000

// ListOpenAPI lists the operations of an OpenAPI 3 document. Nothing that it
// refers to outside of itself is looked at.
func ListOpenAPI(data []byte) (*API, error) {
	if len(data) > MaxOpenAPI {
		return nil, fmt.Errorf("importer: the document is larger than %d MiB", MaxOpenAPI>>20)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("importer: openapi: this is not a YAML or JSON document")
	}
	p := &pruned{root: doc.Content[0]}
	if version := member(p.root, "openapi"); version == nil || !strings.HasPrefix(version.Value, "3.") {
		return nil, errors.New("importer: openapi: this is not an OpenAPI document of version 3")
	}
	a := &API{Title: drop(scalarOf(member(member(p.root, "info"), "title")))}
	if servers := member(p.root, "servers"); servers != nil && servers.Kind == yaml.SequenceNode && len(servers.Content) > 0 {
		a.Server = drop(scalarOf(member(servers.Content[0], "url")))
		for name, v := range members(member(servers.Content[0], "variables")) {
			a.Server = strings.ReplaceAll(a.Server, "{"+name+"}", drop(scalarOf(member(v, "default"))))
		}
	}
	for path, item := range members(member(p.root, "paths")) {
		item = p.follow(item)
		for method, op := range members(item) {
			if !slices.Contains(methods, method) || op.Kind != yaml.MappingNode {
				continue
			}
			if len(a.Operations) == maxOperations {
				return nil, fmt.Errorf("importer: openapi: the document has more than %d operations", maxOperations)
			}
			o := APIOperation{Method: strings.ToUpper(method), Path: drop(path), ID: drop(scalarOf(member(op, "operationId")))}
			for _, list := range []*yaml.Node{member(item, "parameters"), member(op, "parameters")} {
				p.key(&o, list)
			}
			a.Operations = append(a.Operations, o)
		}
	}
	p.credentials(a)
	return a, nil
}

// key looks for the header with the key in a list of parameters.
func (p *pruned) key(o *APIOperation, list *yaml.Node) {
	if list == nil || list.Kind != yaml.SequenceNode {
		return
	}
	for _, param := range list.Content {
		param = p.follow(param)
		name := scalarOf(member(param, "name"))
		if scalarOf(member(param, "in")) == "header" && slices.ContainsFunc(keyHeaders, func(k string) bool { return strings.EqualFold(k, name) }) {
			o.Key, o.KeyRequired = name, scalarOf(member(param, "required")) == "true"
		}
	}
}

// credentials looks where callers authenticate.
func (p *pruned) credentials(a *API) {
	for _, s := range members(member(p.at("/components"), "securitySchemes")) {
		s = p.follow(s)
		name := drop(scalarOf(member(s, "name")))
		switch kind, in := scalarOf(member(s, "type")), scalarOf(member(s, "in")); {
		case kind == "http", kind == "oauth2", kind == "openIdConnect":
			name = "Authorization"
		case kind == "apiKey" && in == "header":
		case kind == "apiKey" && in == "cookie":
			a.Cookie, name = name, ""
		default:
			name = ""
		}
		if name != "" && !slices.ContainsFunc(a.Credentials, func(c string) bool { return strings.EqualFold(c, name) }) {
			a.Credentials = append(a.Credentials, name)
		}
	}
}

// follow returns what a reference within the document leads to, nil where it leads
// out of it.
func (p *pruned) follow(n *yaml.Node) *yaml.Node {
	for range 10 {
		ref := member(n, "$ref")
		if ref == nil {
			return n
		}
		target, ok := strings.CutPrefix(ref.Value, "#")
		if !ok {
			return nil
		}
		n = p.at(target)
	}
	return nil
}

func scalarOf(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// BasePath is the path of the server, without a slash at its end.
func (a *API) BasePath() string {
	u, err := url.Parse(a.Server)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(u.Path, "/")
}
