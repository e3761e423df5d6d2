package importer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Choice picks one request of several.
type Choice struct {
	// Index counts from 0. Negative: not by index.
	Index int
	// URL is a part of the URL; it has to be in one request's only, or in all
	// of them that are the same but for their values.
	URL string
	// Method, unless empty, has to be that of the request.
	Method string
}

func (c Choice) pick(n int, method, url func(int) string) (int, error) {
	if c.Index >= 0 && c.URL == "" && c.Method == "" {
		if c.Index >= n {
			return 0, fmt.Errorf("importer: there are %d requests, counted from 0", n)
		}
		return c.Index, nil
	}
	found, writes := -1, -1
	for i := range n {
		if c.Index >= 0 && i != c.Index || !strings.Contains(url(i), c.URL) || c.Method != "" && !strings.EqualFold(c.Method, method(i)) {
			continue
		}
		// What reads is there for the readers.
		reads := slices.Contains([]string{"GET", "HEAD", "OPTIONS"}, strings.ToUpper(method(i)))
		switch {
		case found < 0, !reads && writes < 0:
			found = i
		case !reads || writes < 0:
			return 0, fmt.Errorf("importer: the requests %d and %d both match; choose by index, counted from 0", found, i)
		}
		if !reads {
			writes = i
		}
	}
	if found < 0 {
		return 0, errors.New("importer: no request matches")
	}
	return found, nil
}

// HAR makes a draft of one entry of a HAR file.
func HAR(data []byte, choice Choice) (*Draft, error) {
	entries, err := harEntries(data, MaxInput)
	if err != nil {
		return nil, fmt.Errorf("importer: %w", err)
	}
	i, err := choice.pick(len(entries),
		func(i int) string { return entries[i].Request.Method }, func(i int) string { return entries[i].Request.URL })
	if err != nil {
		return nil, err
	}
	if entries[i].Err != nil {
		return nil, fmt.Errorf("importer: entry %d: %w", i, entries[i].Err)
	}
	r := recorded(fmt.Sprintf("entry %d of a HAR file", i), entries[i].Request)
	r.browser = true
	r.findList(entries, i)
	return r.draft()
}

// freeText are names of members that may have any text in them, and are kept
// with what is created.
var freeText = regexp.MustCompile(`(?i)^(reference|ref|note|notes|description|comment|comments|memo|remark|remarks|(client|external|customer|merchant|order|payment)[_-]?(ref|reference|note|comment))$`)

// findList looks in the recording for a GET of the same path that was answered
// with a list, the last one, and for where the response to the request names
// what it made.
func (r *request) findList(entries []harEntry, at int) {
	path := func(u string) string { u, _, _ = strings.Cut(u, "?"); return strings.TrimSuffix(u, "/") }
	own := entries[at].Request
	made, _ := decodeObject(entries[at].Response.Body)
	id := ""
	if v, ok := made["id"]; ok && entries[at].Response.Status/100 == 2 {
		id, r.resource = fmt.Sprint(v), "{pointer: /id}"
	} else if entries[at].Response.Location != "" {
		r.resource = "{header: Location}"
	}
	for _, e := range entries {
		if e.Err != nil || e.Request.Method != "GET" || path(e.Request.URL) != path(own.URL) || e.Response.Status != 200 {
			continue
		}
		list, pointer, ok := listIn(e.Response.Body)
		if !ok {
			continue
		}
		// Its query stays: it may say what is listed. Credentials come from
		// where those of the request do.
		found := &listReader{url: drop(e.Request.URL), count: pointer, from: "a GET of the same path in the recording"}
		for _, f := range e.Request.Header {
			if strings.EqualFold(f.Name, "Accept") && !slices.ContainsFunc(own.Header, func(o field) bool { return strings.EqualFold(o.Name, f.Name) && o.Value != f.Value }) {
				found.header = append(found.header, field{Name: f.Name, Value: drop(f.Value)})
			}
		}
		sent, _ := decodeObject(own.Body)
		for _, element := range list {
			m, ok := element.(map[string]any)
			if !ok {
				continue
			}
			if _, ok := m["id"]; ok {
				found.id = "/id"
			}
			if id == "" || fmt.Sprint(m["id"]) != id {
				continue // it tells nothing of what was sent
			}
			for name, v := range sent {
				if text, ok := v.(string); ok && m[name] == v && len(text) >= 1 && freeText.MatchString(name) && (found.where == "" || "/"+name < found.where) {
					found.where = "/" + name
				}
			}
		}
		r.reader = found
	}
	if r.reader != nil && r.reader.where != "" {
		r.body = withReference(r.body, strings.TrimPrefix(r.reader.where, "/"), r.hole("{{.reference}}"))
	}
}

// withReference puts a text in the place of a member of a JSON object.
func withReference(body []byte, name, text string) []byte {
	var top orderedJSON
	if top.read(body, 0) != nil {
		return body
	}
	var b strings.Builder
	for i, v := range top.values {
		value := v.text
		if v.kind == '"' {
			value = quote(v.text)
		}
		if top.names[i] == name {
			value = quote(text)
		}
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + quote(top.names[i]) + ":" + value)
	}
	return []byte(b.String() + "}")
}

func decodeObject(b []byte) (map[string]any, bool) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var m map[string]any
	return m, dec.Decode(&m) == nil && m != nil
}

// listIn returns the list that a response is, or has as its only one.
func listIn(b []byte) (list []any, pointer string, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil, "", false
	}
	if list, ok := v.([]any); ok {
		return list, "", true
	}
	m, _ := v.(map[string]any)
	for name, v := range m {
		if l, is := v.([]any); is {
			if ok {
				return nil, "", false // which of them?
			}
			list, pointer, ok = l, "/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(drop(name)), true
		}
	}
	return list, pointer, ok
}

// recorded takes over a request that was really sent.
func recorded(from string, q sentRequest) *request {
	r := &request{from: from, method: q.Method, url: drop(q.URL), body: q.Body}
	for _, f := range q.Header {
		r.header = append(r.header, field{Name: f.Name, Value: drop(f.Value)})
	}
	return r
}

// Burp makes a draft of one item that Burp Suite saved as XML.
func Burp(data []byte, choice Choice) (*Draft, error) {
	if len(data) > MaxInput {
		return nil, fmt.Errorf("importer: the file is larger than %d MiB", MaxInput>>20)
	}
	type item struct {
		URL     string `xml:"url"`
		Method  string `xml:"method"`
		Request struct {
			Base64 bool   `xml:"base64,attr"`
			Text   string `xml:",chardata"`
		} `xml:"request"`
	}
	var items []item
	dec := xml.NewDecoder(bytes.NewReader(data))
	depth := 0
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errors.New("importer: this is not the XML of Burp") // the error could quote it
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			if depth == 1 && tok.Name.Local == "item" {
				var it item
				if err := dec.DecodeElement(&it, &tok); err != nil {
					return nil, errors.New("importer: an item is not as Burp writes it")
				}
				items = append(items, it)
				continue
			}
			if depth == 0 && tok.Name.Local != "items" {
				return nil, errors.New("importer: this is not the XML of Burp: it has no items")
			}
			if depth++; depth > 8 {
				return nil, errors.New("importer: this is not the XML of Burp: it is nested too deep")
			}
		case xml.EndElement:
			depth--
		}
	}
	i, err := choice.pick(len(items), func(i int) string { return strings.TrimSpace(items[i].Method) }, func(i int) string { return items[i].URL })
	if err != nil {
		return nil, err
	}
	raw := []byte(items[i].Request.Text)
	if items[i].Request.Base64 {
		if raw, err = base64.StdEncoding.DecodeString(strings.TrimSpace(items[i].Request.Text)); err != nil {
			return nil, fmt.Errorf("importer: item %d: the request is not base64", i)
		}
	}
	q, err := rawRequest(raw, strings.TrimSpace(items[i].URL))
	if err != nil {
		return nil, fmt.Errorf("importer: item %d: %w", i, err)
	}
	r := recorded(fmt.Sprintf("item %d that Burp saved", i), q)
	r.browser = true
	return r.draft()
}

// rawRequest reads the bytes of a request. Where it went is said by the URL: its
// own line has the path only.
func rawRequest(raw []byte, at string) (sentRequest, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" {
		return sentRequest{}, errors.New("it has no URL")
	}
	head, body, found := bytes.Cut(raw, []byte("\r\n\r\n"))
	if !found {
		head, body, _ = bytes.Cut(raw, []byte("\n\n"))
	}
	lines := strings.Split(strings.ReplaceAll(string(head), "\r\n", "\n"), "\n")
	words := strings.Fields(lines[0])
	if len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/") {
		return sentRequest{}, errors.New("it does not begin with a request line")
	}
	q := sentRequest{Method: words[0], Body: body}
	switch target := words[1]; {
	case strings.HasPrefix(target, "/"):
		q.URL = u.Scheme + "://" + u.Host + target
	case strings.HasPrefix(target, "http://"), strings.HasPrefix(target, "https://"):
		q.URL = target
	default:
		return sentRequest{}, errors.New("its target is not a path")
	}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !token.MatchString(name) {
			return sentRequest{}, errors.New("a header line is not valid")
		}
		q.Header = append(q.Header, field{Name: name, Value: strings.Trim(value, " \t")})
		if strings.EqualFold(name, "Transfer-Encoding") {
			return sentRequest{}, errors.New("its body is chunked, which is not read")
		}
	}
	return q, nil
}
