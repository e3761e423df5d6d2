package importer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/semelhq/semel/probe/plan"
)

type postmanItem struct {
	Name    string           `json:"name"`
	Items   []postmanItem    `json:"item"`
	Request *json.RawMessage `json:"request"`
	Auth    *postmanAuth     `json:"auth"`
}

type postmanCollection struct {
	Info *struct {
		Schema string `json:"schema"`
	} `json:"info"`
	Items    []postmanItem `json:"item"`
	Auth     *postmanAuth  `json:"auth"`
	Variable []postmanPair `json:"variable"`
}

type postmanPair struct {
	Key      string `json:"key"`
	ID       string `json:"id"`
	Value    any    `json:"value"`
	Type     string `json:"type"`
	Disabled bool   `json:"disabled"`
}

func (p postmanPair) text() string {
	switch v := p.Value.(type) {
	case string:
		return v
	case nil:
		return ""
	case float64, bool:
		return fmt.Sprint(v)
	}
	return ""
}

type postmanAuth struct {
	Type   string        `json:"type"`
	Bearer []postmanPair `json:"bearer"`
	Basic  []postmanPair `json:"basic"`
	APIKey []postmanPair `json:"apikey"`
}

type postmanRequest struct {
	Method string          `json:"method"`
	URL    json.RawMessage `json:"url"`
	Header json.RawMessage `json:"header"`
	Auth   *postmanAuth    `json:"auth"`
	Body   *struct {
		Mode       string        `json:"mode"`
		Raw        string        `json:"raw"`
		URLEncoded []postmanPair `json:"urlencoded"`
		Disabled   bool          `json:"disabled"`
		Options    struct {
			Raw struct {
				Language string `json:"language"`
			} `json:"raw"`
		} `json:"options"`
	} `json:"body"`
}

type postmanURL struct {
	Raw      string        `json:"raw"`
	Variable []postmanPair `json:"variable"`
}

// Postman makes a draft of one request of a collection, format 2.1 or 2.0. It is
// named by its path, as Folder/Name; the last part is enough if only one
// request has it. The collection's variables are put in, credentials among them
// aside; those that it does not have are for the author to fill in.
func Postman(data []byte, item string) (*Draft, error) {
	if len(data) > MaxInput {
		return nil, fmt.Errorf("importer: the file is larger than %d MiB", MaxInput>>20)
	}
	var c postmanCollection
	if err := json.Unmarshal(data, &c); err != nil || c.Info == nil {
		return nil, errors.New("importer: this is not a Postman collection")
	}
	if c.Info.Schema != "" && !strings.Contains(c.Info.Schema, "/v2.") {
		return nil, errors.New("importer: the collection is not of format 2.0 or 2.1; export it again")
	}
	found, err := findItem(&c, item)
	if err != nil {
		return nil, err
	}
	p := &postman{request: &request{from: "a request of a Postman collection"}, variables: map[string]postmanPair{}}
	for _, v := range c.Variable {
		if key := v.Key + v.ID; v.Key == "" || v.ID == "" {
			p.variables[key] = v
		} else {
			p.variables[v.Key] = v
		}
	}
	if err := p.read(found); err != nil {
		return nil, fmt.Errorf("importer: postman: %w", err)
	}
	return p.draft()
}

// postmanFound is a request with the authorization of what it is in.
type postmanFound struct {
	path string
	item postmanItem
	auth *postmanAuth
}

func findItem(c *postmanCollection, want string) (postmanFound, error) {
	var all []postmanFound
	var walk func(items []postmanItem, path string, auth *postmanAuth, depth int)
	walk = func(items []postmanItem, path string, auth *postmanAuth, depth int) {
		for _, it := range items {
			at, own := strings.TrimPrefix(path+"/"+it.Name, "/"), auth
			if it.Auth != nil {
				own = it.Auth
			}
			if it.Request != nil {
				all = append(all, postmanFound{at, it, own})
			}
			if depth < 64 {
				walk(it.Items, at, own, depth+1)
			}
		}
	}
	walk(c.Items, "", c.Auth, 0)
	var matches []postmanFound
	for _, f := range all {
		if f.path == want {
			return f, nil
		}
		if strings.HasSuffix(f.path, "/"+want) || want == "" {
			matches = append(matches, f)
		}
	}
	switch len(matches) {
	case 0:
		return postmanFound{}, fmt.Errorf("importer: none of the %d requests has this path", len(all))
	case 1:
		return matches[0], nil
	}
	return postmanFound{}, fmt.Errorf("importer: %d requests match; give the whole path, Folder/Name", len(matches))
}

type postman struct {
	*request
	variables map[string]postmanPair
	size      int
}

func (p *postman) read(f postmanFound) error {
	p.operation = p.literal(f.item.Name)
	var q postmanRequest
	var address string
	if json.Unmarshal(*f.item.Request, &address) == nil {
		q.Method, q.URL = "GET", *f.item.Request // a request may be its URL alone
	} else if err := json.Unmarshal(*f.item.Request, &q); err != nil {
		return errors.New("the request is not as Postman writes it")
	}
	p.method = strings.ToUpper(q.Method)
	if p.method == "" {
		p.method = "GET"
	}
	if err := p.readURL(q.URL); err != nil {
		return err
	}
	if err := p.readHeader(q.Header); err != nil {
		return err
	}
	if err := p.readBody(&q); err != nil {
		return err
	}
	auth := f.auth
	if q.Auth != nil {
		auth = q.Auth
	}
	if err := p.readAuth(auth); err != nil {
		return err
	}
	if p.size > MaxBody {
		return errors.New("with its variables put in, the request is too large")
	}
	return nil
}

func (p *postman) readURL(raw json.RawMessage) error {
	var u postmanURL
	if json.Unmarshal(raw, &u.Raw) != nil && json.Unmarshal(raw, &u) != nil {
		return errors.New("the URL is not as Postman writes it")
	}
	if u.Raw == "" {
		return errors.New("there is no URL")
	}
	base, query, hasQuery := strings.Cut(u.Raw, "?")
	// :id in the path is a variable of the request.
	segments := strings.Split(base, "/")
	for i, s := range segments {
		name, ok := strings.CutPrefix(s, ":")
		if i == 0 || !ok || name == "" || name[0] <= '9' { // a digit begins a port
			continue
		}
		segments[i] = ""
		for _, v := range u.Variable {
			if v.Key == name {
				segments[i] = p.put(v.text(), 0)
			}
		}
		if segments[i] == "" {
			segments[i] = p.fill("the path variable " + name)
		}
	}
	base = strings.Join(segments, "/")
	if hasQuery {
		base += "?" + query
	}
	p.url = p.put(base, 0)
	if !strings.Contains(p.url, "://") && !strings.HasPrefix(p.url, holeOpen) {
		p.url = "http://" + p.url
	}
	return nil
}

func (p *postman) readHeader(raw json.RawMessage) error {
	var list []postmanPair
	if len(raw) > 0 && json.Unmarshal(raw, &list) != nil {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return errors.New("the header is not as Postman writes it")
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(line, ":"); ok {
				list = append(list, postmanPair{Key: name, Value: strings.TrimSpace(value)})
			}
		}
	}
	for _, h := range list {
		if !h.Disabled && h.Key != "" {
			p.header = append(p.header, field{Name: strings.TrimSpace(h.Key), Value: p.put(h.text(), 0)})
		}
	}
	return nil
}

func (p *postman) readBody(q *postmanRequest) error {
	if q.Body == nil || q.Body.Disabled {
		return nil
	}
	typed := func(media string) {
		for _, f := range p.header {
			if strings.EqualFold(f.Name, "Content-Type") {
				return
			}
		}
		p.header = append(p.header, field{Name: "Content-Type", Value: media})
	}
	switch q.Body.Mode {
	case "", "none":
	case "raw":
		p.body = []byte(p.put(q.Body.Raw, 0))
		switch q.Body.Options.Raw.Language {
		case "json":
			typed("application/json")
		case "xml":
			typed("application/xml")
		case "text", "":
			typed("text/plain")
		}
	case "urlencoded":
		var parts []string
		for _, f := range q.Body.URLEncoded {
			if !f.Disabled {
				parts = append(parts, p.encoded(f.Key)+"="+p.encoded(f.text()))
			}
		}
		p.body = []byte(strings.Join(parts, "&"))
		typed("application/x-www-form-urlencoded")
	default:
		return fmt.Errorf("a body of the kind %s is not supported; give it as raw", label(q.Body.Mode))
	}
	return nil
}

// encoded is a part of a form. What is put in later is taken to be encoded.
func (p *postman) encoded(s string) string {
	s = p.put(s, 0)
	var b strings.Builder
	for {
		loc := holePattern.FindStringIndex(s)
		if loc == nil {
			return b.String() + url.QueryEscape(s)
		}
		b.WriteString(url.QueryEscape(s[:loc[0]]))
		b.WriteString(s[loc[0]:loc[1]])
		s = s[loc[1]:]
	}
}

func (p *postman) readAuth(a *postmanAuth) error {
	if a == nil {
		return nil
	}
	value := func(list []postmanPair, key string) string {
		for _, m := range list {
			if m.Key == key {
				return p.put(m.text(), 0)
			}
		}
		return ""
	}
	switch a.Type {
	case "", "noauth", "inherit":
	case "bearer":
		p.header = append(p.header, field{Name: "Authorization", Value: "Bearer " + value(a.Bearer, "token")})
	case "basic":
		user, password := value(a.Basic, "username"), value(a.Basic, "password")
		if holePattern.MatchString(user + password) {
			p.header = append(p.header, field{Name: "Authorization", Value: "Basic " + p.env("PROBE_BASIC_CREDENTIALS", "the base64 of user:password")})
			return nil
		}
		p.header = append(p.header, field{Name: "Authorization", Value: "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))})
	case "apikey":
		name, key := value(a.APIKey, "key"), value(a.APIKey, "value")
		if name == "" {
			return errors.New("the API key has no name")
		}
		// It is a credential whatever its name.
		if key != "" && holePattern.ReplaceAllString(key, "") != "" {
			p.hidden = append(p.hidden, key)
		}
		if value(a.APIKey, "in") == "query" {
			mark := "?"
			if strings.Contains(p.url, "?") {
				mark = "&"
			}
			p.url += mark + p.encoded(name) + "=" + p.encoded(key)
		} else {
			p.header = append(p.header, field{Name: name, Value: key})
		}
	default:
		p.note("The authorization of the kind %s was left out; give it under principals.", label(a.Type))
	}
	return nil
}

func (p *postman) literal(s string) string { return holePattern.ReplaceAllString(drop(s), "") }

func (p *postman) fill(what string) string {
	return p.hole("{{fill " + quoteArg(what) + "}}")
}

var postmanVariable = regexp.MustCompile(`\{\{\s*([^{}]{1,100}?)\s*\}\}`)

// postmanDynamic are Postman's own variables.
var postmanDynamic = map[string]string{
	"$guid": "{{uuid}}", "$randomUUID": "{{uuid}}", "$timestamp": `{{now "unix"}}`, "$isoTimestamp": "{{now}}", "$randomInt": "{{digits 3}}",
}

// put puts the values of variables in, and holes for those that have none.
func (p *postman) put(s string, depth int) string {
	if depth == 0 {
		s = drop(s)
	}
	out := postmanVariable.ReplaceAllStringFunc(s, func(m string) string {
		name := postmanVariable.FindStringSubmatch(m)[1]
		if t, ok := postmanDynamic[name]; ok {
			return p.hole(t)
		}
		v, ok := p.variables[name]
		switch {
		case v.Type == "secret" || plan.Sensitive(name):
			return p.env(envName(name), "the Postman variable "+label(name))
		case !ok || v.text() == "" || depth > 8 || p.size > MaxBody:
			return p.fill("the value of the Postman variable " + label(name))
		}
		return p.put(drop(v.text()), depth+1)
	})
	p.size += len(out)
	return out
}
