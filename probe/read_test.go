package probe

import (
	"strings"
	"testing"

	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

func TestXML(t *testing.T) {
	const doc = `<?xml version="1.0"?><!-- of one page --><r xmlns:a="urn:a" n="2"><a:o id="1"><s>x &amp; y</s></a:o><p/><o id="2"><s>z</s><s>w</s></o></r>`
	n, err := decodeXML([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[plan.Pointer]int{"": 1, "/r": 1, "/r/o": 2, "/r/o/s": 3, "/r/q": 0, "/q": -1, "/r/p": 1} {
		list, ok := n.all(path)
		if want < 0 && ok || want >= 0 && (!ok || len(list) != want) {
			t.Errorf("%q leads to %d elements (%v), want %d", path, len(list), ok, want)
		}
	}
	for path, want := range map[plan.Pointer]string{"/r/@n": "2", "/r/o/@id": "1", "/r/o/s": "x & y", "/r/p": ""} {
		if got, ok := n.text(path); !ok || got != want {
			t.Errorf("%q holds %q (%v), want %q", path, got, ok, want)
		}
	}
	for _, path := range []plan.Pointer{"/r/@m", "/r/q", "/q/@n"} {
		if got, ok := n.text(path); ok {
			t.Errorf("%q holds %q", path, got)
		}
	}
	for name, text := range map[string]string{
		"empty": "", "text": "ok", "open": "<a><b></b>", "crossed": "<a><b></a></b>", "two roots": "<a/><b/>", "JSON": `{"a":1}`,
		"entity":   `<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>`,
		"external": `<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>`,
		"encoding": `<?xml version="1.0" encoding="utf-16"?><a/>`,
		"deep":     strings.Repeat("<a>", maxXMLDepth+1) + strings.Repeat("</a>", maxXMLDepth+1),
	} {
		if _, err := decodeXML([]byte(text)); err == nil {
			t.Errorf("%s: read as XML", name)
		}
	}
}

func FuzzXML(f *testing.F) {
	f.Add([]byte(`<r><o id="1"/></r>`), "/r/o/@id")
	f.Fuzz(func(t *testing.T, text []byte, path string) {
		n, err := decodeXML(text)
		if err != nil || path != "" && path[0] != '/' {
			return
		}
		_, _ = n.text(plan.Pointer(path))
		if list, ok := n.all(plan.Pointer(path)); !ok && len(list) > 0 {
			t.Errorf("%q is not there and has %d elements", path, len(list))
		}
	})
}

func TestNextLink(t *testing.T) {
	for header, want := range map[string]string{
		`<a>; rel="next"`:                           "a",
		`<a>; rel=next`:                             "a",
		`<a>; rel="prev", <b>; rel="next"`:          "b",
		`<a>; title="x, y; rel=next"; rel="last"`:   "",
		`<a>; rel="first next"; title="é"`:          "a",
		`<a?x=1,2>; REL="Next", <b>; rel="last"`:    "a?x=1,2",
		`<a>; rel="nextish"`:                        "",
		`<a>; rel=nextish, <b>; rel=prev`:           "",
		`<a>; anchor="#x"; rel=next; title="later"`: "a",
		`rel="next"`:                                "",
		``:                                          "",
	} {
		if got := nextLink([]string{header}); got != want {
			t.Errorf("%s names %q, want %q", header, got, want)
		}
	}
}

// GraphQL responses are judged by data and errors, never by a 200 alone.
func TestGraphQLStatus(t *testing.T) {
	for body, want := range map[string]int{
		`{"data":{"a":{"id":1}}}`:                                                              200,
		`{"data":{"a":{"id":1}},"errors":[]}`:                                                  200,
		`{"data":{"a":1,"b":null},"errors":[{}]}`:                                              200,
		`{"data":{"a":null}}`:                                                                  400,
		`{"data":null,"errors":[{"message":"x"}]}`:                                             400,
		`{"errors":[{"message":"x"}]}`:                                                         400,
		`{"errors":[{"extensions":{"code":"INTERNAL_SERVER_ERROR"}}]}`:                         500,
		`{"errors":[{"extensions":{"code":"X","http":{"status":422}}}]}`:                       422,
		`{"errors":[{"extensions":{"code":"CONFLICT","status":200}}],"data":{"a":null}}`:       409,
		`{"errors":[{"extensions":{"code":"RATE_LIMITED"}}],"data":null}`:                      429,
		`{"errors":[{"extensions":{"code":"an order of eve@example.com"}}],"data":{"a":null}}`: 400,
		`{}`: 400, `[]`: 400, `ok`: 400, `{"data":[1]}`: 400, `{"errors":[1],"data":null}`: 400,
	} {
		got, said := graphQLStatus([]byte(body))
		if got != want || strings.Contains(said, "eve") {
			t.Errorf("%s stands for %d (%s), want %d", body, got, said, want)
		}
	}
	o := &operation{op: &plan.Operation{Request: plan.Request{Body: &plan.Body{GraphQL: &plan.GraphQL{}}}}}
	x := wire.Exchange{Response: &wire.Response{Status: 200, Body: []byte(`{"errors":[{}]}`)}}
	if m := o.meant(x); success(&m) || x.Response.Status != 200 || status(m.Response) != "200 with errors" {
		t.Errorf("it counts as %v, and reads %s", m.Response.Status, status(m.Response))
	}
	x.Response.Body = []byte(`{"data":{"a":1,"b":null},"errors":[{}]}`)
	if m := o.meant(x); !success(&m) || status(m.Response) != "200 with data and errors" {
		t.Errorf("data beside errors count as %v, and read %s", m.Response.Status, status(m.Response))
	}
	o.op.Request.Body = nil
	x.Response.Body = []byte(`{"data":null}`)
	if m := o.meant(x); !success(&m) {
		t.Error("an operation that is not GraphQL is judged as if it were")
	}
}
