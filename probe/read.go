package probe

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// maxIDs is how many ids of what was counted a reading keeps.
const maxIDs = 20

// readHTTP sends a reader's request, and those of further pages, and takes the
// number out of the responses.
func (r *runner) readHTTP(ctx context.Context, q *plan.Reading) (reading, error) {
	h := q.Reader.HTTP
	out := reading{as: h.As}
	req, seen := q.Request, map[string]bool{}
	total := int64(0)
	for n := 1; ; n++ {
		seen[req.URL+"\x00"+string(req.Body)] = true
		x, err := r.read.Send(as(ctx, h.As), req)
		if err != nil {
			return reading{}, err
		}
		out.x = &x
		switch {
		case x.Response == nil:
			return out, fmt.Errorf("no response: %w", x.Err)
		case x.Response.Truncated:
			return out, errors.New("the response is cut off")
		case x.Response.Status == 404 && n == 1 && (h.Count != nil || h.Lines != ""):
			out.number = new(big.Rat)
			return out, nil
		case x.Response.Status != 200:
			return out, fmt.Errorf("the response is %d", x.Response.Status)
		}
		page, err := readPage(x.Response, q)
		if err != nil {
			return out, err
		}
		if page.number != nil {
			out.number = page.number
			return out, nil
		}
		total += page.count
		for _, id := range page.ids {
			if len(out.ids) < maxIDs {
				out.ids = append(out.ids, id)
			}
		}
		if g := h.Pages; g == nil || page.next == "" && g.Number == "" || g.Number != "" && page.all == 0 {
			break
		}
		if n == h.Pages.Max {
			return out, fmt.Errorf("there are more than %d pages (pages.max)", n)
		}
		if req, err = q.Page(req, page.next, n+1); err != nil {
			return out, err
		}
		if seen[req.URL+"\x00"+string(req.Body)] {
			return out, errors.New("the next page is one that was read already")
		}
	}
	slices.Sort(out.ids)
	out.number = big.NewRat(total, 1)
	return out, nil
}

// page is the content of one response to a reader.
type page struct {
	number *big.Rat // of value or number; nil for those that count
	count  int64    // that the reader counts
	all    int64    // that are there, whatever where says
	ids    []string
	next   string // as pages names it; empty for the last
}

func readPage(r *wire.Response, q *plan.Reading) (p page, err error) {
	h := q.Reader.HTTP
	switch {
	case q.Number != nil:
		m := q.Number.FindSubmatch(r.Body)
		if m == nil {
			return p, errors.New("the response has no such number")
		}
		p.number, err = number(string(m[1]))
		return p, err
	case h.Lines != "":
		err = eachLine(bytes.NewReader(r.Body), func(line []byte) {
			if p.all++; q.Pattern.Match(line) {
				p.count++
			}
		})
	case h.Format == "xml":
		p, err = pageOfXML(r.Body, q)
	default:
		p, err = pageOfJSON(r.Body, q)
	}
	if h.Pages != nil && h.Pages.Header != "" {
		p.next = nextLink(r.Header.Values(h.Pages.Header))
	}
	return p, err
}

func pageOfJSON(body []byte, q *plan.Reading) (p page, err error) {
	h := q.Reader.HTTP
	doc, err := decodeJSON(body)
	if err != nil {
		return p, errors.New("the response is not JSON")
	}
	if h.Value != nil {
		v, ok := lookup(doc, *h.Value)
		if !ok {
			return p, fmt.Errorf("the response has no %s", *h.Value)
		}
		p.number, err = number(scalar(v))
		return p, err
	}
	v, ok := lookup(doc, *h.Count)
	if !ok {
		return p, fmt.Errorf("the response has no %s", *h.Count)
	}
	if v == nil {
		v = []any{} // how some write an empty list
	}
	list, ok := v.([]any)
	if !ok {
		return p, errors.New("what is to be counted is no array")
	}
	for _, e := range list {
		p.add(q, func(at plan.Pointer) (string, bool) {
			v, ok := lookup(e, at)
			return scalar(v), ok
		})
	}
	if g := h.Pages; g != nil && g.Next != nil {
		switch v, _ := lookup(doc, *g.Next); v {
		case nil, false:
		default:
			p.next = scalar(v)
		}
	}
	return p, nil
}

// add counts an element if it has the values that it is to have.
func (p *page) add(q *plan.Reading, value func(plan.Pointer) (string, bool)) {
	p.all++
	for _, m := range q.Where {
		if got, ok := value(plan.Pointer(m.Name)); !ok || got != m.Value {
			return
		}
	}
	p.count++
	if id := q.Reader.HTTP.ID; id != nil && len(p.ids) < maxIDs {
		if v, ok := value(*id); ok {
			p.ids = append(p.ids, v)
		}
	}
}

func pageOfXML(body []byte, q *plan.Reading) (p page, err error) {
	h := q.Reader.HTTP
	doc, err := decodeXML(body)
	if err != nil {
		return p, err
	}
	if h.Value != nil {
		v, ok := doc.text(*h.Value)
		if !ok {
			return p, fmt.Errorf("the response has no %s", *h.Value)
		}
		p.number, err = number(strings.TrimSpace(v))
		return p, err
	}
	list, ok := doc.all(*h.Count)
	if !ok {
		return p, fmt.Errorf("the response has no root element as in %s", *h.Count)
	}
	for _, e := range list {
		p.add(q, e.text)
	}
	if g := h.Pages; g != nil && g.Next != nil {
		p.next, _ = doc.text(*g.Next)
		p.next = strings.TrimSpace(p.next)
	}
	return p, nil
}

// node is an element of an XML document; the document itself has the root
// element as its only child.
type node struct {
	name     string
	attrs    []xml.Attr
	children []*node
	chars    strings.Builder
}

// maxXMLDepth bounds how deep elements may be in each other.
const maxXMLDepth = 100

var errNotXML = errors.New("the response is not XML, or is in another encoding than UTF-8")

// decodeXML reads a document. Entities of its own are not resolved: a document
// that uses one is refused.
func decodeXML(b []byte) (*node, error) {
	d := xml.NewDecoder(bytes.NewReader(b))
	doc := &node{}
	open := []*node{doc}
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) && len(open) == 1 && len(doc.children) == 1 {
			return doc, nil
		}
		if err != nil {
			return nil, errNotXML
		}
		in := open[len(open)-1]
		switch t := t.(type) {
		case xml.StartElement:
			if len(open) > maxXMLDepth {
				return nil, fmt.Errorf("the response's elements are more than %d deep", maxXMLDepth)
			}
			if in == doc && len(doc.children) == 1 {
				return nil, errNotXML
			}
			e := &node{name: t.Name.Local, attrs: t.Attr}
			in.children = append(in.children, e)
			open = append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if in != doc {
				in.chars.Write(t)
			}
		}
	}
}

// all returns the elements that a path leads to, within n. ok is false if not
// even the first part of the path is there.
func (n *node) all(path plan.Pointer) (list []*node, ok bool) {
	list = []*node{n}
	for i, part := range parts(path) {
		var next []*node
		for _, e := range list {
			for _, c := range e.children {
				if c.name == part {
					next = append(next, c)
				}
			}
		}
		if list = next; i == 0 {
			ok = len(list) > 0
		}
	}
	return list, ok || path == ""
}

// text returns what the first element of a path holds, or the attribute that is
// its last part.
func (n *node) text(path plan.Pointer) (string, bool) {
	attribute := ""
	if i := strings.LastIndex(string(path), "/@"); i >= 0 {
		path, attribute = path[:i], string(path[i+2:])
	}
	list, _ := n.all(path)
	for _, e := range list {
		if attribute == "" {
			return e.chars.String(), true
		}
		for _, a := range e.attrs {
			if a.Name.Local == attribute {
				return a.Value, true
			}
		}
	}
	return "", false
}

// parts are the parts of a JSON pointer.
func parts(p plan.Pointer) []string {
	if p == "" {
		return nil
	}
	list := strings.Split(string(p)[1:], "/")
	for i, s := range list {
		list[i] = strings.ReplaceAll(strings.ReplaceAll(s, "~1", "/"), "~0", "~")
	}
	return list
}

var (
	linkTarget = regexp.MustCompile(`<([^<>]*)>((?:[^,"]|"[^"]*")*)`)
	linkNext   = regexp.MustCompile(`(?i);\s*rel\s*=\s*(?:"(?:[^"]*\s)?next(?:\s[^"]*)?"|next\s*(?:;|$))`)
)

// nextLink returns the target of the link with rel="next" (RFC 8288); empty if
// there is none.
func nextLink(values []string) string {
	for _, v := range values {
		for _, m := range linkTarget.FindAllStringSubmatch(v, -1) {
			if linkNext.MatchString(m[2]) {
				return m[1]
			}
		}
	}
	return ""
}
