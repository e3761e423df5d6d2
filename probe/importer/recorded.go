package importer

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/semelhq/semel/probe/har"
	"github.com/semelhq/semel/probe/wire"
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
	found := -1
	for i := range n {
		if c.Index >= 0 && i != c.Index || !strings.Contains(url(i), c.URL) || c.Method != "" && !strings.EqualFold(c.Method, method(i)) {
			continue
		}
		if found >= 0 {
			return 0, fmt.Errorf("importer: the requests %d and %d both match; choose by index", found, i)
		}
		found = i
	}
	if found < 0 {
		return 0, errors.New("importer: no request matches")
	}
	return found, nil
}

// HAR makes a draft of one entry of a HAR file.
func HAR(data []byte, choice Choice) (*Draft, error) {
	entries, err := har.Requests(bytes.NewReader(data), MaxInput)
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
	q := entries[i].Request
	return recorded(fmt.Sprintf("entry %d of a HAR file", i), q).draft()
}

// recorded takes over a request that was really sent.
func recorded(from string, q wire.Request) *request {
	r := &request{from: from, method: q.Method, url: drop(q.URL), body: q.Body}
	for _, f := range q.Header {
		r.header = append(r.header, wire.Field{Name: f.Name, Value: drop(f.Value)})
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
	return recorded(fmt.Sprintf("item %d that Burp saved", i), q).draft()
}

// rawRequest reads the bytes of a request. Where it went is said by the URL: its
// own line has the path only.
func rawRequest(raw []byte, at string) (wire.Request, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" {
		return wire.Request{}, errors.New("it has no URL")
	}
	head, body, found := bytes.Cut(raw, []byte("\r\n\r\n"))
	if !found {
		head, body, _ = bytes.Cut(raw, []byte("\n\n"))
	}
	lines := strings.Split(strings.ReplaceAll(string(head), "\r\n", "\n"), "\n")
	words := strings.Fields(lines[0])
	if len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/") {
		return wire.Request{}, errors.New("it does not begin with a request line")
	}
	q := wire.Request{Method: words[0], Body: body}
	switch target := words[1]; {
	case strings.HasPrefix(target, "/"):
		q.URL = u.Scheme + "://" + u.Host + target
	case strings.HasPrefix(target, "http://"), strings.HasPrefix(target, "https://"):
		q.URL = target
	default:
		return wire.Request{}, errors.New("its target is no path")
	}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !token.MatchString(name) {
			return wire.Request{}, errors.New("it has a header line that is none")
		}
		q.Header = append(q.Header, wire.Field{Name: name, Value: strings.Trim(value, " \t")})
		if strings.EqualFold(name, "Transfer-Encoding") {
			return wire.Request{}, errors.New("its body is chunked, which is not read")
		}
	}
	return q, nil
}
