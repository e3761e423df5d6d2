package semelhttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// request is one request to take a fingerprint of.
type request struct {
	method, url, contentType string
	header                   http.Header
	body                     string
}

func jsonRequest(body string) request {
	return request{contentType: "application/json", body: body}
}

func (r request) fingerprint(t testing.TB, f *Fingerprinter) semel.Fingerprint {
	t.Helper()
	if r.method == "" {
		r.method = http.MethodPost
	}
	if r.url == "" {
		r.url = "/orders"
	}
	u, err := url.ParseRequestURI(r.url)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	if r.header != nil {
		h = r.header.Clone()
	}
	if r.contentType != "" {
		h.Set("Content-Type", r.contentType)
	}
	before := r.body
	b := []byte(r.body)
	fp := f.Fingerprint(r.method, u, h, b)
	if string(b) != before {
		t.Fatal("the body was changed")
	}
	if fp.Scheme != f.Scheme() {
		t.Fatalf("scheme %q is not %q", fp.Scheme, f.Scheme())
	}
	return fp
}

func fingerprinter(t testing.TB, c FingerprintConfig) *Fingerprinter {
	t.Helper()
	f, err := NewFingerprinter(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func wantSame(t *testing.T, f *Fingerprinter, a, b request) {
	t.Helper()
	if a.fingerprint(t, f) != b.fingerprint(t, f) {
		t.Errorf("taken for different requests:\n%.300q\n%.300q", a, b)
	}
}

func wantDifferent(t *testing.T, f *Fingerprinter, a, b request) {
	t.Helper()
	if !a.fingerprint(t, f).Differs(b.fingerprint(t, f)) {
		t.Errorf("taken for the same request:\n%.300q\n%.300q", a, b)
	}
}

// The framing is the contract with records already stored: when this test has
// to change, SchemeHTTP has to.
func TestFingerprintFraming(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	for _, tc := range []struct {
		r    request
		want string
	}{
		{request{method: "POST", url: "/a%2Fb?x=1", contentType: "text/plain; a=b", body: "hi"}, "\x04POST\x06/a%2Fb\x03x=1" + "r\x0ftext/plain; a=b\x00hi"},
		{request{method: "PUT", url: "/", contentType: "text/plain"}, "\x03PUT\x01/\x00" + "r\x00\x00"},
		{
			request{method: "POST", url: "/", contentType: "Application/JSON", body: ` {"b":[1.0,{"d":"\u0041","c":null}],"a":1e400} `},
			"\x04POST\x01/\x00" + "j\x10application/json" + `{"a":1e400,"b":[1.0,{"c":null,"d":"A"}]}`,
		},
		{
			request{method: "POST", url: "/", contentType: "application/x-www-form-urlencoded", body: "b=%31&a=x+y&b=0"},
			"\x04POST\x01/\x00" + "f\x21application/x-www-form-urlencoded" + "\x03\x01a\x03x y\x01b\x011\x01b\x010",
		},
		{
			request{method: "POST", url: "/", header: http.Header{"Content-Encoding": {"GZIP"}}, contentType: "application/json", body: "{}"},
			"\x04POST\x01/\x00" + "r\x10application/json\x04gzip{}",
		},
		{
			request{method: "POST", url: "/", contentType: "multipart/form-data; boundary=x; a=b", body: "--x\r\nB: 1\r\na: 2\r\n\r\nhi\r\n--x--\r\n"},
			"\x04POST\x01/\x00" + "m\x13multipart/form-data\x01\x01a\x01b" + "\x20" + sum("\x01\x02\x01A\x01\x012\x01B\x01\x011"+sum("hi")),
		},
	} {
		got := tc.r.fingerprint(t, f)
		if want := (semel.Fingerprint{Scheme: "http/2", Sum: sha256.Sum256([]byte(tc.want))}); got != want {
			t.Errorf("%q: the digest is not that of %q", tc.r, tc.want)
		}
	}
}

func TestFingerprintFramingOfSelections(t *testing.T) {
	for _, tc := range []struct {
		config       FingerprintConfig
		header       http.Header
		scheme, want string
	}{
		{
			FingerprintConfig{Exclude: []string{"/b", "/c/0", "/d/x"}},
			nil,
			"http/2-9dde92c602ed1909", "j\x10application/json" + `{"a":1,"c":[2,{"y":1,"z":2}],"d":{"y":2},"e":3}`,
		},
		{
			FingerprintConfig{Include: []string{"/e", "/c/2", "/f"}, Headers: []string{"x-b", "X-A"}},
			http.Header{"X-B": {"1", "2"}},
			"http/2-430ae4fd55ca3551", "\x00\x02\x011\x012" + "j\x10application/json\x01{\"y\":1,\"z\":2}\x013\x00",
		},
	} {
		f := fingerprinter(t, tc.config)
		r := jsonRequest(`{"e":3,"d":{"y":2,"x":1},"b":[],"c":[1,2,{"z":2,"y":1}],"a":1}`)
		r.header = tc.header
		want := "\x04POST\x07/orders\x00" + tc.want
		if got := r.fingerprint(t, f); got != (semel.Fingerprint{Scheme: tc.scheme, Sum: sha256.Sum256([]byte(want))}) {
			t.Errorf("%+v: scheme %s, or the digest is not that of %q", tc.config, got.Scheme, want)
		}
	}
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return string(h[:])
}

func TestFingerprintRequestLine(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	base := request{method: "POST", url: "/a/b?x=1&y=2", body: "hi"}
	wantSame(t, f, base, base)
	for _, other := range []request{
		{method: "PUT", url: "/a/b?x=1&y=2", body: "hi"},
		{method: "POST", url: "/a/c?x=1&y=2", body: "hi"},
		{method: "POST", url: "/a%2Fb?x=1&y=2", body: "hi"},
		{method: "POST", url: "/a/%62?x=1&y=2", body: "hi"},
		{method: "POST", url: "/a/b/?x=1&y=2", body: "hi"},
		{method: "POST", url: "/a/b?y=2&x=1", body: "hi"},
		{method: "POST", url: "/a/b?x=1&y=%32", body: "hi"},
		{method: "POST", url: "/a/b?x=1", body: "hi"},
		{method: "POST", url: "/a/b", body: "hi"},
		{method: "POST", url: "/a/b%3Fx=1&y=2", body: "hi"},
		{method: "POST", url: "/a/b?x=1&y=2hi"},
	} {
		wantDifferent(t, f, base, other)
	}
	wantDifferent(t, f, request{url: "/a%2fb"}, request{url: "/a%2Fb"})
	// RFC 9110 4.2.3: an absolute form without a path asks for "/".
	wantSame(t, f, request{url: "http://example.com"}, request{url: "http://example.com/"})
	wantSame(t, f, request{url: "/a?"}, request{url: "/a"})
	// Servers differ in whether they mind the case.
	wantSame(t, f, request{method: "post", url: "/a"}, request{method: "POST", url: "/a"})
}

// Bug 33: the fingerprint was that of an empty body, whatever the body.
func TestBug33FingerprintSeesTheBody(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	for _, ct := range []string{
		"", "text/plain", "application/json", "application/merge-patch+json", "application/x-www-form-urlencoded",
		"multipart/form-data; boundary=b", "application/octet-stream", "not a type",
	} {
		for _, pair := range [][2]string{{"a=1", "a=2"}, {`{"a":1}`, `{"a":2}`}, {"", "x"}, {"", "{}"}, {"\x00", "\x00\x00"}} {
			wantDifferent(t, f, request{contentType: ct, body: pair[0]}, request{contentType: ct, body: pair[1]})
		}
	}
}

// Bug 34: the fingerprint held an id made anew for each try, so no retry ever
// matched.
func TestBug34GeneratedIDCanBeExcluded(t *testing.T) {
	a, b := jsonRequest(`{"item":"x","request":{"id":"1","at":1}}`), jsonRequest(`{"request":{"at":2,"id":"2"},"item":"x"}`)
	wantDifferent(t, fingerprinter(t, FingerprintConfig{}), a, b)
	f := fingerprinter(t, FingerprintConfig{Exclude: []string{"/request/id", "/request/at"}})
	wantSame(t, f, a, b)
	wantDifferent(t, f, a, jsonRequest(`{"request":{"at":2,"id":"2"},"item":"y"}`))
	wantDifferent(t, f, a, jsonRequest(`{"request":{"at":2,"id":"2","x":1},"item":"x"}`))
}

func TestFingerprintIgnoresTraceHeaders(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	a, b := jsonRequest(`{}`), jsonRequest(`{}`)
	b.header = http.Header{
		"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "Tracestate": {"a=b"}, "X-Request-Id": {"1"},
		"Idempotency-Key": {"k"}, "Authorization": {"Bearer x"}, "User-Agent": {"a"}, "Date": {"now"},
	}
	wantSame(t, f, a, b)
}

// Bug 36: the order of JSON members made the same request another one.
func TestBug36JSONMemberOrderAndWhiteSpace(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	base := jsonRequest(`{"a":1,"b":{"c":[1,{"x":true,"y":null}],"d":"e"}}`)
	for _, same := range []string{
		`{"b":{"d":"e","c":[1,{"y":null,"x":true}]},"a":1}`,
		" {\t\"a\" :\r\n1 , \"b\": {\"c\" : [ 1 , { \"x\":true,\"y\":null } ] , \"d\":\"e\" } }\n",
		`{"\u0061":1,"b":{"c":[1,{"x":true,"y":null}],"d":"\u0065"}}`,
	} {
		wantSame(t, f, base, jsonRequest(same))
	}
	for _, other := range []string{
		`{"a":1,"b":{"c":[{"x":true,"y":null},1],"d":"e"}}`, // order of elements counts
		`{"a":1,"b":{"c":[1,{"x":true,"y":null}],"d":"f"}}`,
		`{"a":1,"b":{"c":[1,{"x":true}],"d":"e"}}`, // null is not absent
		`{"a":"1","b":{"c":[1,{"x":true,"y":null}],"d":"e"}}`,
		`{"a":1,"b":{"c":[1,{"x":true,"y":null}]},"d":"e"}`,
		`[{"a":1,"b":{"c":[1,{"x":true,"y":null}],"d":"e"}}]`,
	} {
		wantDifferent(t, f, base, jsonRequest(other))
	}
	wantSame(t, f, jsonRequest(`"\u00e9\/\n\ud83d\ude00"`), jsonRequest(`"é/\u000a😀"`))
	wantDifferent(t, f, jsonRequest(`"é"`), jsonRequest("\"e\u0301\"")) // not normalised
	wantDifferent(t, f, jsonRequest(`{"a":{},"b":[]}`), jsonRequest(`{"a":[],"b":{}}`))
}

func TestFingerprintNumbersAsWritten(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	for _, pair := range [][2]string{
		{"9007199254740992", "9007199254740993"}, // 2^53 and 2^53+1
		{"1e-400", "0"},
		{"1e-400", "2e-400"},
		{"1e400", "2e400"},
		{"1.0", "1"},
		{"1", "1e0"},
		{"1e1", "1E1"},
		{"-0", "0"},
		{"0.1", "0.10000000000000000001"},
	} {
		wantDifferent(t, f, jsonRequest(pair[0]), jsonRequest(pair[1]))
		wantDifferent(t, f, jsonRequest(`{"b":0,"a":`+pair[0]+`}`), jsonRequest(`{"b":0,"a":`+pair[1]+`}`))
		wantSame(t, f, jsonRequest(`{"b":0,"a":`+pair[0]+`}`), jsonRequest(`{"a": `+pair[0]+` , "b":0}`))
	}
}

// What is not one clear JSON document takes part as its bytes: the same bytes
// are the same request, everything else is another.
func TestFingerprintUnclearJSONIsRaw(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	deepObject := strings.Repeat(`{"b":0,"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	for name, body := range map[string]string{
		"duplicate members":                 `{"a":1,"a":2}`,
		"equal duplicate members":           `{"a":1,"a":1}`,
		"duplicate members out of order":    `{"b":1,"a":1,"b":2}`,
		"duplicate members by escape":       `{"a":1,"\u0061":2}`,
		"duplicate members deep inside":     `{"x":[{"y":{"a":1,"b":2,"a":2}}]}`,
		"lone high surrogate":               `{"b":1,"a":"\ud800"}`,
		"lone low surrogate":                `{"b":1,"a":"\udc00x"}`,
		"lone surrogate in a name":          `{"b":1,"\ud800":1}`,
		"surrogates in the wrong order":     `["\udc00\ud800"]`,
		"invalid UTF-8":                     "{\"b\":1,\"a\":\"\xff\"}",
		"surrogate in UTF-8":                "[\"\xed\xa0\x80\"]",
		"byte order mark":                   "\ufeff{}",
		"trailing comma":                    `{"a":1,}`,
		"second document":                   `{} {}`,
		"truncated":                         `{"a":1`,
		"comment":                           `{} // x`,
		"leading zero":                      `01`,
		"NaN":                               `NaN`,
		"control character":                 "\"\x01\"",
		"white space only":                  " ",
		"100,000 arrays":                    deep,
		"100,000 objects":                   deepObject,
		"100,000 arrays without their ends": deep[:100_000],
	} {
		t.Run(name, func(t *testing.T) {
			r := jsonRequest(body)
			wantSame(t, f, r, r)
			// One more white space would vanish from a canonical document.
			wantDifferent(t, f, r, jsonRequest(body+" "))
			raw := semel.Fingerprint{
				Scheme: SchemeHTTP,
				Sum:    sha256.Sum256([]byte("\x04POST\x07/orders\x00r\x10application/json\x00" + body)),
			}
			if r.fingerprint(t, f) != raw {
				t.Error("did not take part as its bytes")
			}
		})
	}
}

func TestFingerprintDeepestJSON(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	const depth = 10_000
	open, closing := strings.Repeat(`{"a":0,"b":`, depth), strings.Repeat("}", depth)
	reversed := strings.Repeat(`{"b":`, depth) + "1" + strings.Repeat(`,"a":0}`, depth)
	wantSame(t, f, jsonRequest(open+"1"+closing), jsonRequest(reversed))
	wantDifferent(t, f, jsonRequest(open+"1"+closing), jsonRequest(open+"2"+closing))
	wantSame(t, f, jsonRequest(strings.Repeat("[", depth)+strings.Repeat("]", depth)), jsonRequest(strings.Repeat("[ ", depth)+strings.Repeat("]", depth)))
}

// The way a body was read is in the digest.
func TestFingerprintModeIsInTheDigest(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	wantDifferent(t, f, request{contentType: "application/json", body: "{}"}, request{contentType: "text/plain", body: "{}"})
	wantDifferent(t, f, request{contentType: "application/merge-patch+json", body: "{}"}, request{contentType: "application/json-patch+json", body: "{}"})
	a, b := jsonRequest("{}"), jsonRequest("{}")
	b.header = http.Header{"Content-Encoding": {"gzip"}}
	wantDifferent(t, f, a, b)
	c := jsonRequest("{}")
	c.header = http.Header{"Content-Encoding": {"br"}}
	wantDifferent(t, f, b, c)
	c.header = http.Header{"Content-Encoding": {" GZip "}}
	wantSame(t, f, b, c)
	c.header = http.Header{"Content-Encoding": {"identity"}}
	wantSame(t, f, a, c)
	// Not decoded, so not canonical.
	c.header, c.body = b.header, "{ }"
	wantDifferent(t, f, b, c)
	// A canonical document and raw bytes that look like one.
	wantDifferent(t, f, jsonRequest(`{"a":1,"b":2}`), request{contentType: "application/json; charset=utf-16", body: `{"a":1,"b":2}`})
}

func TestFingerprintContentTypeVariations(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	base := request{contentType: "application/json", body: `{"a":1,"b":2}`}
	for _, ct := range []string{
		"application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON", " application/json ; charset=\"utf-8\"",
		"application/json; charset=us-ascii", "application/json;", "application/json; version=1",
	} {
		wantSame(t, f, base, request{contentType: ct, body: `{"b":2,"a":1}`})
	}
	for _, ct := range []string{"application/json; charset=utf-16", "application/json; charset=iso-8859-1", "application/json; =", "text/json", "application/jsonx", "application/json, text/plain", ""} {
		wantDifferent(t, f, request{contentType: ct, body: base.body}, request{contentType: ct, body: `{"b":2,"a":1}`})
		wantSame(t, f, request{contentType: ct, body: base.body}, request{contentType: ct, body: base.body})
	}
	for _, ct := range []string{"application/vnd.api+json", "application/problem+json; charset=utf-8", "image/svg+JSON"} {
		wantSame(t, f, request{contentType: ct, body: base.body}, request{contentType: ct, body: `{"b":2,"a":1}`})
	}
	// Two lines: nobody knows which one the handler reads.
	two := request{header: http.Header{"Content-Type": {"application/json", "application/json"}}, body: base.body}
	other := two
	other.body = `{"b":2,"a":1}`
	wantDifferent(t, f, two, other)
}

func TestFingerprintEmptyAndAbsentBodyAreOne(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	u := &url.URL{Path: "/a"}
	absent := f.Fingerprint("POST", u, nil, nil)
	if got := f.Fingerprint("POST", u, http.Header{}, []byte{}); got != absent {
		t.Error("an empty body is not an absent one")
	}
	for _, ct := range []string{"application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"} {
		if got := f.Fingerprint("POST", u, http.Header{"Content-Type": {ct}}, nil); got != absent {
			t.Errorf("an absent body of type %s is another", ct)
		}
	}
}

// Bug 38: only the first bytes of a body were digested.
func TestBug38FingerprintCoversTheWholeBody(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	const n = 1<<20 + 7
	for _, ct := range []string{"text/plain", "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"} {
		for _, at := range []int{0, 4096, 65_536, n - 1} {
			body := bytes.Repeat([]byte("a"), n)
			wrap := func() string {
				switch ct {
				case "application/json":
					return `{"z":"` + string(body) + `","y":1}`
				case "multipart/form-data; boundary=b":
					return "--b\r\n\r\n" + string(body) + "\r\n--b--\r\n"
				}
				return string(body)
			}
			a := request{contentType: ct, body: wrap()}
			body[at] = 'b'
			b := request{contentType: ct, body: wrap()}
			wantDifferent(t, f, a, b)
		}
	}
}

func TestFingerprintForm(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	form := func(body string) request {
		return request{contentType: "application/x-www-form-urlencoded", body: body}
	}
	base := form("a=1&b=x+y&b=%C3%A9&c")
	for _, same := range []string{"b=x+y&b=é&a=1&c", "a=%31&b=x%20y&b=%c3%a9&c=", "c&b=x+y&a=1&b=%C3%A9", "&a=1&&b=x+y&b=%C3%A9&c&"} {
		wantSame(t, f, base, form(same))
	}
	for _, other := range []string{
		"a=1&b=%C3%A9&b=x+y&c", "a=1&b=x+y&c", "a=1&b=x+y&b=%C3%A9&c=1", "a=1&b=x%2By&b=%C3%A9&c", "A=1&b=x+y&b=%C3%A9&c", "a=1&b=x+y&b=%C3%A9&c&c", "a=1&b=x+y&b=%C3%A9",
	} {
		wantDifferent(t, f, base, form(other))
	}
	var mixed, a, b string // many, so that sorting has to be stable on purpose
	for i := range 50 {
		mixed += fmt.Sprintf("b=%d&a=%d&", i, i)
		a += fmt.Sprintf("a=%d&", i)
		b += fmt.Sprintf("b=%d&", i)
	}
	wantSame(t, f, form(mixed), form(a+b))
	wantDifferent(t, f, form("a=b&c"), form("a=b%26c")) // framing
	wantDifferent(t, f, form("a=1=2"), form("a%3D1=2"))
	// Not a clear form: bytes.
	wantDifferent(t, f, form("a=%zz&b=1"), form("b=1&a=%zz"))
	wantDifferent(t, f, form("a=1;b=2&c=3"), form("c=3&a=1;b=2"))
	many := strings.Repeat("a&", maxFields)
	wantDifferent(t, f, form(many+"b&c"), form(many+"c&b"))
	wantSame(t, f, form(many), form(many))
}

// Servers that group items[][name] and items[][price] go by the order of all
// fields: these two forms hold other items.
func TestFingerprintFormWithGroupsKeepsOrder(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	a := request{contentType: "application/x-www-form-urlencoded", body: "i[][a]=1&i[][b]=2&i[][a]=3"}
	b := request{contentType: "application/x-www-form-urlencoded", body: "i[][a]=1&i[][a]=3&i[][b]=2"}
	wantDifferent(t, f, a, b)
	wantDifferent(t, f, request{contentType: a.contentType, body: strings.ReplaceAll(a.body, "[]", "%5B%5D")}, b)
	wantSame(t, f, a, request{contentType: a.contentType, body: strings.ReplaceAll(a.body, "[]", "%5B%5D")})
}

// multipartRequest writes the parts with the given boundary.
func multipartRequest(t *testing.T, boundary string, parts ...[2]string) request {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		pw, err := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="` + p[0] + `"`}, "Content-Type": {"text/plain"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(pw, p[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return request{contentType: w.FormDataContentType(), body: b.String()}
}

// Bug 35: the random boundary of a multipart body made every retry another
// request.
func TestBug35MultipartWithAnotherBoundary(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	base := multipartRequest(t, "first", [2]string{"a", "1"}, [2]string{"f", "file\r\ncontent\r\n"})
	wantSame(t, f, base, multipartRequest(t, "another-boundary", [2]string{"a", "1"}, [2]string{"f", "file\r\ncontent\r\n"}))
	quoted := base
	quoted.contentType = `Multipart/Form-Data; BOUNDARY="first"`
	wantSame(t, f, base, quoted)
	for name, other := range map[string]request{
		"content":         multipartRequest(t, "first", [2]string{"a", "2"}, [2]string{"f", "file\r\ncontent\r\n"}),
		"last byte":       multipartRequest(t, "first", [2]string{"a", "1"}, [2]string{"f", "file\r\ncontent\r"}),
		"name":            multipartRequest(t, "first", [2]string{"b", "1"}, [2]string{"f", "file\r\ncontent\r\n"}),
		"order":           multipartRequest(t, "first", [2]string{"f", "file\r\ncontent\r\n"}, [2]string{"a", "1"}),
		"part missing":    multipartRequest(t, "first", [2]string{"a", "1"}),
		"part more":       multipartRequest(t, "first", [2]string{"a", "1"}, [2]string{"f", "file\r\ncontent\r\n"}, [2]string{"", ""}),
		"no part":         multipartRequest(t, "first"),
		"other parameter": {contentType: base.contentType + "; charset=x", body: base.body},
		"other type":      {contentType: "multipart/mixed; boundary=first", body: base.body},
	} {
		t.Run(name, func(t *testing.T) { wantDifferent(t, f, base, other) })
	}
	wantDifferent(t, f, multipartRequest(t, "b", [2]string{"a", ""}, [2]string{"a", "x"}), multipartRequest(t, "b", [2]string{"a", "x"}, [2]string{"a", ""}))
}

func TestFingerprintMalformedMultipartIsRaw(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	whole := multipartRequest(t, "b", [2]string{"a", "1"})
	most := strings.Repeat("--b\r\n\r\n\r\n", maxFields)
	wantSame(t, f, request{contentType: whole.contentType, body: most + "--b--"}, request{contentType: whole.contentType, body: "\r\n" + most + "--b--"})
	for name, r := range map[string]request{
		"truncated":     {contentType: whole.contentType, body: strings.TrimSuffix(whole.body, "--b--\r\n")},
		"no boundary":   {contentType: "multipart/form-data", body: whole.body},
		"bad header":    {contentType: whole.contentType, body: "--b\r\nx\r\n\r\n1\r\n--b--\r\n"},
		"other content": {contentType: whole.contentType, body: "{}"},
		"many parts":    {contentType: whole.contentType, body: most + "--b\r\n\r\n\r\n--b--"},
	} {
		t.Run(name, func(t *testing.T) {
			wantSame(t, f, r, r)
			want := "\x04POST\x07/orders\x00r" + string(appendString(nil, r.contentType)) + "\x00" + r.body
			if r.fingerprint(t, f) != (semel.Fingerprint{Scheme: SchemeHTTP, Sum: sha256.Sum256([]byte(want))}) {
				t.Error("did not take part as its bytes")
			}
			// What the bytes mean depends on the boundary, so it takes part.
			wantDifferent(t, f, r, request{contentType: "multipart/form-data; boundary=other", body: r.body})
		})
	}
}

func TestFingerprintInclude(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Include: []string{"/amount", "/to/account", "/items/1"}})
	base := jsonRequest(`{"amount":1,"to":{"account":"x","name":"n"},"items":[1,{"a":1,"b":2},3]}`)
	for _, same := range []string{
		`{"to":{"account":"x"},"amount":1,"items":[0,{"b":2,"a":1}]}`,
		`{"items":[{},{"a":1,"b":2}],"note":{"z":1,"a":[]},"amount":1,"to":{"z":{"account":1},"account":"x"}}`,
	} {
		wantSame(t, f, base, jsonRequest(same))
	}
	for _, other := range []string{
		`{"amount":2,"to":{"account":"x"},"items":[0,{"b":2,"a":1}]}`,
		`{"amount":1,"to":{"account":"y"},"items":[0,{"b":2,"a":1}]}`,
		`{"amount":1,"to":{"account":"x"},"items":[0,{"b":2}]}`,
		`{"amount":1,"to":{"account":"x"},"items":[0,{"b":2,"a":1,"c":null}]}`,
		`{"amount":1,"to":{"account":"x"},"items":{"1":{"b":2}}}`,
	} {
		wantDifferent(t, f, base, jsonRequest(other))
	}
	// Objects before the one that is pointed at, in the same array.
	wantSame(
		t, f,
		jsonRequest(`{"items":[{"b":{"d":1,"c":2},"a":1},{"b":{"d":1,"c":2},"a":1},{"b":1,"a":2}]}`),
		jsonRequest(`{"items":[{"z":{}},{"a":1,"b":{"c":2,"d":1}}]}`),
	)
	whole := fingerprinter(t, FingerprintConfig{Include: []string{""}})
	wantSame(t, whole, jsonRequest(`{"b":1,"a":2}`), jsonRequest(`{"a":2,"b":1}`))
	wantDifferent(t, whole, jsonRequest(`{"b":1,"a":2}`), jsonRequest(`{"a":2,"b":2}`))
}

func TestFingerprintIncludedValueMissing(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Include: []string{"/a", "/b/0"}})
	missing := []string{`{"c":1}`, `{}`, `[]`, `1`, `{"b":[]}`, `{"b":1}`, `{"b":{}}`, `null`}
	for _, m := range missing {
		wantSame(t, f, jsonRequest(missing[0]), jsonRequest(m))
	}
	for _, there := range []string{`{"a":null}`, `{"a":0}`, `{"a":{}}`, `{"b":[null]}`, `{"a":null,"b":[null]}`, `{"b":{"0":null},"a":0}`} {
		wantDifferent(t, f, jsonRequest(missing[0]), jsonRequest(there))
	}
	wantDifferent(t, f, jsonRequest(`{"a":1}`), jsonRequest(`{"b":[1]}`)) // which one is missing counts
	wantDifferent(t, f, jsonRequest(`{"a":12}`), jsonRequest(`{"a":1,"b":[2]}`))
	wantDifferent(t, f, jsonRequest(`{"a":12,"b":[3]}`), jsonRequest(`{"a":1,"b":[23]}`))
}

func TestFingerprintExclude(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Exclude: []string{"/at", "/meta/id", "/items/1/x", "/items/2", "/e~1~0\"é"}})
	base := jsonRequest(`{"a":1,"at":5,"meta":{"id":1,"k":2},"items":[{"x":1},{"x":1,"y":2},3,4]}`)
	for _, same := range []string{
		`{"items":[{"x":1},{"y":2},"other",4],"meta":{"k":2},"a":1}`,
		`{"a":1,"meta":{"k":2,"id":[{}]},"items":[{"x":1},{"y":2,"x":{}},{},4],"at":{"b":1,"a":2}}`,
		`{"e\/~\"\u00e9":1,"a":1,"meta":{"id":1,"k":2},"items":[{"x":1},{"x":1,"y":2},3,4]}`,
	} {
		wantSame(t, f, base, jsonRequest(same))
	}
	for _, other := range []string{
		`{"a":1,"meta":{"id":1,"k":3},"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":{"id":1,"k":2,"at":1},"items":[{"x":1},{"y":2},3,4]}`, // /meta/at is not /at
		`{"a":1,"meta":{"id":1,"k":2},"items":[{"x":2},{"y":2},3,4]}`,
		`{"a":1,"meta":{"id":1,"k":2},"items":[{"x":1},{"y":2},4]}`, // elements keep their places
		`{"a":1,"meta":{"id":1,"k":2},"items":[{"x":1},{"y":3},3,4]}`,
		`{"a":1,"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":{},"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":[],"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":2,"items":[{"x":1},{"y":2},3,4]}`,
	} {
		wantDifferent(t, f, base, jsonRequest(other))
	}
	// A pointer inside an excluded value adds nothing, whichever comes first.
	g := fingerprinter(t, FingerprintConfig{Exclude: []string{"/a/b", "/a"}})
	wantSame(t, g, jsonRequest(`{"a":{"b":1,"c":1},"d":1}`), jsonRequest(`{"d":1,"a":2}`))
	// A name that merely looks like an index, and an index with a leading zero.
	h := fingerprinter(t, FingerprintConfig{Exclude: []string{"/0", "/01"}})
	wantSame(t, h, jsonRequest(`{"0":1,"01":1,"1":1}`), jsonRequest(`{"1":1}`))
	wantDifferent(t, h, jsonRequest(`[1,2]`), jsonRequest(`[1,3]`))
	wantSame(t, h, jsonRequest(`[1,2]`), jsonRequest(`[{},2]`))
	wantSame(t, h, jsonRequest(`[1]`), jsonRequest(`[]`))
	wantDifferent(t, h, jsonRequest(`[1,12,3]`), jsonRequest(`[1,1,23]`))
	wantDifferent(t, h, jsonRequest(`[1,{}]`), jsonRequest(`[{}]`))
	i := fingerprinter(t, FingerprintConfig{Exclude: []string{"/1", "/2"}})
	wantSame(t, i, jsonRequest(`[1]`), jsonRequest(`[1,2,3]`))
	wantSame(t, i, jsonRequest(`[1,[],{},4]`), jsonRequest(`[1,2,3,4]`))
	wantDifferent(t, i, jsonRequest(`[1,2,3]`), jsonRequest(`[1,2,3,4]`))
	wantDifferent(t, i, jsonRequest(`[1]`), jsonRequest(`[]`))
	// Documents that are not canonical take part whole.
	wantDifferent(t, f, jsonRequest(`{"at":1,"a":1,"a":1}`), jsonRequest(`{"at":2,"a":1,"a":1}`))
	wantDifferent(t, f, request{body: `{"at":1}`}, request{body: `{"at":2}`})
}

func TestFingerprintIncludeThenExclude(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Include: []string{"/order"}, Exclude: []string{"/order/at", "/order/lines/0/id"}})
	base := jsonRequest(`{"order":{"at":1,"lines":[{"id":1,"n":2}],"x":1},"y":1}`)
	wantSame(t, f, base, jsonRequest(`{"y":2,"order":{"x":1,"lines":[{"n":2,"id":9}],"at":2}}`))
	wantDifferent(t, f, base, jsonRequest(`{"y":2,"order":{"x":1,"lines":[{"n":3,"id":9}],"at":2}}`))
	wantDifferent(t, f, base, jsonRequest(`{"y":2,"order":{"x":1,"lines":[{"n":2},{"id":9}],"at":2}}`))
}

func TestFingerprintHeaders(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Headers: []string{"x-api-version", "X-Mode", "x-api-VERSION"}})
	with := func(h http.Header) request { return request{header: h, body: "b"} }
	base := with(http.Header{"X-Api-Version": {"1", "2"}})
	wantSame(t, f, base, with(http.Header{"X-Api-Version": {"1", "2"}, "X-Other": {"1"}}))
	for _, h := range []http.Header{
		{"X-Api-Version": {"2", "1"}},
		{"X-Api-Version": {"1"}},
		{"X-Api-Version": {"1, 2"}},
		{"X-Api-Version": {"12", ""}},
		{"X-Mode": {"1", "2"}},
		{"X-Api-Version": {"1", "2"}, "X-Mode": {""}},
		{},
	} {
		wantDifferent(t, f, base, with(h))
	}
}

func TestFingerprintJSONModeIgnoresTheType(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Mode: FingerprintJSON})
	for _, ct := range []string{"", "text/plain", "text/plain; charset=latin1", "multipart/form-data"} {
		wantSame(t, f, request{contentType: ct, body: `{"a":1,"b":2}`}, request{contentType: ct, body: `{"b":2, "a":1}`})
	}
	wantDifferent(t, f, request{body: "{"}, request{body: "{ "})
}

func TestFingerprintRawMode(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Mode: FingerprintRaw})
	wantDifferent(t, f, jsonRequest(`{"a":1,"b":2}`), jsonRequest(`{"b":2,"a":1}`))
	wantSame(t, f, jsonRequest(`{"a":1,"b":2}`), jsonRequest(`{"a":1,"b":2}`))
}

// A changed configuration must not turn the retries under way into mismatches.
func TestFingerprintsOfOtherConfigurationsAreNotCompared(t *testing.T) {
	configs := []FingerprintConfig{
		{},
		{Mode: FingerprintRaw},
		{Mode: FingerprintJSON},
		{Include: []string{"/a"}},
		{Exclude: []string{"/a"}},
		{Include: []string{"/a", "/b"}},
		{Exclude: []string{"/a", "/b"}},
		{Headers: []string{"A"}},
		{Headers: []string{"A", "B"}},
	}
	r := jsonRequest(`{"a":1,"b":2}`)
	seen := map[string]bool{}
	for i, c := range configs {
		f := fingerprinter(t, c)
		if seen[f.Scheme()] || !strings.HasPrefix(f.Scheme(), SchemeHTTP) || (f.Scheme() == SchemeHTTP) != (i == 0) {
			t.Errorf("%+v has scheme %q", c, f.Scheme())
		}
		seen[f.Scheme()] = true
		for _, other := range configs[:i] {
			if r.fingerprint(t, f).Differs(r.fingerprint(t, fingerprinter(t, other))) {
				t.Errorf("%+v and %+v were compared", c, other)
			}
		}
	}
	// The order of a list and repetitions in it say nothing.
	a := fingerprinter(t, FingerprintConfig{Include: []string{"/a", "/b"}, Exclude: []string{"/a/d", "/a/c"}, Headers: []string{"a", "B"}})
	b := fingerprinter(t, FingerprintConfig{Include: []string{"/b", "/a", "/b"}, Exclude: []string{"/a/c", "/a/d"}, Headers: []string{"b", "A", "b"}})
	if a.Scheme() != b.Scheme() || r.fingerprint(t, a) != r.fingerprint(t, b) {
		t.Error("the order of settings counted")
	}
}

func TestFingerprintConfigValidate(t *testing.T) {
	c := FingerprintConfig{
		Mode:    9,
		Include: []string{"a", "/a/~", "/a/~2", "/ok"},
		Exclude: []string{"", "/ok", "/elsewhere", "/\xff"},
		Headers: []string{
			"", "a b", "Traceparent", "tracestate", "X-B3-TraceId", "Idempotency-Key", "authorization", "Cookie", "Connection", "date", "Host", "X-Fine",
		},
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"mode 9", `"a" is not a JSON pointer`, `"/a/~" is not`, `"/a/~2" is not`, `exclude "" would`, `include "/ok" lies within exclude "/ok"`,
		`"/elsewhere" lies outside`, "UTF-8", `"" is not a header name`, `"a b" is not a header name`, "Traceparent", "tracestate", "X-B3-TraceId",
		"Idempotency-Key", "authorization", "Cookie", "Connection", "date", "Host",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "X-Fine") {
		t.Errorf("a good header was refused:\n%v", err)
	}
	if err := (FingerprintConfig{Mode: FingerprintRaw, Exclude: []string{"/a"}}).Validate(); err == nil {
		t.Error("pointers were accepted for raw bodies")
	}
	if err := (FingerprintConfig{Include: []string{"/a"}, Exclude: []string{"/ab"}}).Validate(); err == nil {
		t.Error("/ab was taken to lie within /a")
	}
	for _, ok := range []FingerprintConfig{{}, {Include: []string{"", "/", "/a~0~1"}}, {Exclude: []string{"/", "/-", "/a//b"}}, {Include: []string{"/a"}, Exclude: []string{"/a/b"}}} {
		if err := ok.Validate(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
}

// One Fingerprinter serves all requests at once, and what one of them left in
// a buffer must not show in the next.
func TestFingerprinterConcurrently(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Exclude: []string{"/at"}})
	requests := []request{
		jsonRequest(`{"b":[{"z":1,"a":2}],"a":1,"at":3}`), jsonRequest(`{"a":`), jsonRequest(`[]`), jsonRequest(`{"x":"` + strings.Repeat("y", keepBytes) + `","a":1}`),
		{contentType: "application/x-www-form-urlencoded", body: "b=1&a=2"},
		multipartRequest(t, "b", [2]string{"a", "1"}),
		{body: "raw"},
		{},
	}
	var want []semel.Fingerprint
	for _, r := range requests {
		want = append(want, r.fingerprint(t, fingerprinter(t, FingerprintConfig{Exclude: []string{"/at"}})))
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 40 {
				k := (i*7 + g) % len(requests)
				if got := requests[k].fingerprint(t, f); got != want[k] {
					t.Errorf("request %d has another fingerprint", k)
				}
			}
		})
	}
	wg.Wait()
}

// FuzzCanonicalJSON compares fingerprints with an independent, slow reading of
// the documents: they are equal if and only if the documents have the same
// members, elements, strings and number texts; for what is no clear document,
// if and only if the bytes are equal.
func FuzzCanonicalJSON(f *testing.F) {
	seeds := []string{
		`{"a":1,"b":[1.0,{"d":"\u0041","c":null}]}`, `{"b":[1.0,{"c":null,"d":"A"}],"a":1}`, `{"a":1,"a":1}`, `["\ud800"]`, `["\ud83d\ude00","😀"]`,
		`9007199254740993`, `1e-400`, `-0`, `{"":{"":[]}}`, "{\"\\n\":\"\xff\"}", `[[[{"a":{"b":1,"0":2},"c":[1,2,3]}]]]`, `{"c":[[{"b":0,"a":1}],{"y":1,"x":2}],"a":{"c":1,"b":2}}`,
		`{"a\"":1,"a":2,"a\\":3}`, `{"é":1,"\u00e8":2}`, ` [ ] `, `{"a":{},"b":{}}`, `"`, `{`, `[1,{"x":1}`, `{"a":[{"b":1},2,{"b":3,"a":1}]}`, `[{"b":1,"a":2},{"b":3,"a":4}]`,
	}
	for i, s := range seeds {
		f.Add([]byte(s), []byte(seeds[(i+1)%len(seeds)]), uint64(i))
	}
	configs := []FingerprintConfig{
		{},
		{Exclude: []string{"/a/b", "/0", "/c/1/x", "/b", "/é"}},
		{Include: []string{"/a", "/c/0", "/0/b", "/"}},
		{Include: []string{"/a", "/c"}, Exclude: []string{"/a/b", "/c/1", "/a/0/a"}},
	}
	var fs []*Fingerprinter
	for _, c := range configs {
		fs = append(fs, fingerprinter(f, c))
	}
	f.Fuzz(func(t *testing.T, a, b []byte, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		// Unrelated documents seldom agree, so compare some close ones too.
		others := [][]byte{b, mutate(a, rnd)}
		if v, ok := oracleParse(a); ok {
			for range 2 {
				variant := v.write(rnd, nil)
				others = append(others, variant, mutate(variant, rnd))
			}
			if w, ok := oracleParse(others[2]); !ok || w.canonical() != v.canonical() {
				t.Fatalf("the oracle does not agree with itself on %q and %q", a, others[2])
			}
		}
		for i, fp := range fs {
			for _, other := range others {
				got := jsonRequest(string(a)).fingerprint(t, fp) == jsonRequest(string(other)).fingerprint(t, fp)
				if want := oracleEqual(configs[i], a, other); got != want {
					t.Fatalf("%+v: same is %v, want %v, for\n%q\n%q", configs[i], got, want, a, other)
				}
			}
		}
	})
}

func mutate(b []byte, rnd *rand.Rand) []byte {
	if len(b) == 0 {
		return []byte{' '}
	}
	b = bytes.Clone(b)
	const letters = "0123456789{}[]\",:\\u abe.-+"
	b[rnd.IntN(len(b))] = letters[rnd.IntN(len(letters))]
	return b
}

func oracleEqual(c FingerprintConfig, a, b []byte) bool {
	va, okA := oracleParse(a)
	vb, okB := oracleParse(b)
	switch {
	case okA && okB:
		return oracleSelect(c, va) == oracleSelect(c, vb)
	case !okA && !okB:
		return bytes.Equal(a, b)
	}
	return false
}

// oracleValue is a JSON value: nil, bool, json.Number, string, []*oracleValue
// or map[string]*oracleValue. A nil *oracleValue has been left out.
type oracleValue struct{ v any }

func oracleParse(b []byte) (*oracleValue, bool) {
	if !json.Valid(b) || !utf8.Valid(b) || hasLoneSurrogate(b) {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return oracleRead(d)
}

func oracleRead(d *json.Decoder) (*oracleValue, bool) {
	t, err := d.Token()
	if err != nil {
		return nil, false
	}
	switch t {
	case json.Delim('['):
		list := []*oracleValue{}
		for d.More() {
			v, ok := oracleRead(d)
			if !ok {
				return nil, false
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return &oracleValue{list}, err == nil
	case json.Delim('{'):
		m := map[string]*oracleValue{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, false
			}
			if _, again := m[name.(string)]; again {
				return nil, false
			}
			v, ok := oracleRead(d)
			if !ok {
				return nil, false
			}
			m[name.(string)] = v
		}
		_, err = d.Token()
		return &oracleValue{m}, err == nil
	}
	return &oracleValue{t}, true
}

// hasLoneSurrogate looks for \uD800 to \uDFFF that are not a pair, in valid
// JSON.
func hasLoneSurrogate(b []byte) bool {
	unit := func(i int) uint64 {
		if i+6 > len(b) || b[i] != '\\' || b[i+1] != 'u' {
			return 0
		}
		n, _ := strconv.ParseUint(string(b[i+2:i+6]), 16, 16)
		return n
	}
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		switch n := unit(i); {
		case n >= 0xdc00 && n <= 0xdfff:
			return true
		case n >= 0xd800 && n <= 0xdbff:
			if low := unit(i + 6); low < 0xdc00 || low > 0xdfff {
				return true
			}
			i += 11
		default:
			i++ // the escaped character
		}
	}
	return false
}

func (v *oracleValue) canonical() string {
	if v == nil {
		return ""
	}
	switch x := v.v.(type) {
	case map[string]*oracleValue:
		var members []string
		for name, member := range x {
			members = append(members, fmt.Sprintf("%q:%s", name, member.canonical()))
		}
		slices.Sort(members)
		return "{" + strings.Join(members, ";") + "}"
	case []*oracleValue:
		for len(x) > 0 && x[len(x)-1] == nil {
			x = x[:len(x)-1]
		}
		var elements []string
		for _, e := range x {
			elements = append(elements, e.canonical())
		}
		return "[" + strings.Join(elements, ";") + "]"
	case json.Number:
		return "number " + x.String()
	}
	return fmt.Sprintf("%T %q", v.v, fmt.Sprint(v.v))
}

// write writes v as JSON in some other order, with other escapes and other
// white space.
func (v *oracleValue) write(rnd *rand.Rand, b []byte) []byte {
	space := func() {
		for rnd.IntN(4) == 0 {
			b = append(b, " \t\r\n"[rnd.IntN(4)])
		}
	}
	text := func(s string) {
		b = append(b, '"')
		for _, r := range s {
			switch {
			case r < ' ' || r == '"' || r == '\\' || r < 0x10000 && rnd.IntN(3) == 0:
				b = fmt.Appendf(b, `\u%04x`, r)
			case rnd.IntN(3) == 0 && r >= 0x10000:
				b = fmt.Appendf(b, `\u%04X\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			default:
				b = utf8.AppendRune(b, r)
			}
		}
		b = append(b, '"')
	}
	space()
	switch x := v.v.(type) {
	case map[string]*oracleValue:
		names := sortedNames(x)
		rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			space()
			text(name)
			space()
			b = append(b, ':')
			b = x[name].write(rnd, b)
		}
		space()
		b = append(b, '}')
	case []*oracleValue:
		b = append(b, '[')
		for i, e := range x {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.write(rnd, b)
		}
		space()
		b = append(b, ']')
	case string:
		text(x)
	case json.Number:
		b = append(b, x...)
	case nil:
		b = append(b, "null"...)
	default:
		b = fmt.Append(b, x)
	}
	space()
	return b
}

// oracleSelect applies c to a copy of v.
func oracleSelect(c FingerprintConfig, v *oracleValue) string {
	v, _ = oracleParse(v.write(rand.New(rand.NewPCG(0, 0)), nil))
	for _, p := range c.Exclude {
		tokens := strings.Split(p, "/")[1:]
		parent := v.at(tokens[:len(tokens)-1])
		if parent == nil {
			continue
		}
		last := tokens[len(tokens)-1]
		switch x := parent.v.(type) {
		case map[string]*oracleValue:
			delete(x, last)
		case []*oracleValue:
			if n, err := strconv.Atoi(last); err == nil && n < len(x) {
				x[n] = nil
			}
		}
	}
	if c.Include == nil {
		return v.canonical()
	}
	s := ""
	for _, p := range c.Include {
		if x := v.at(strings.Split(p, "/")[1:]); x != nil {
			s += fmt.Sprintf("there %q", x.canonical())
		} else {
			s += "missing"
		}
	}
	return s
}

func (v *oracleValue) at(tokens []string) *oracleValue {
	for _, token := range tokens {
		if v == nil {
			return nil
		}
		switch x := v.v.(type) {
		case map[string]*oracleValue:
			v = x[token]
		case []*oracleValue:
			n, err := strconv.Atoi(token)
			if err != nil || n >= len(x) {
				return nil
			}
			v = x[n]
		default:
			return nil
		}
	}
	return v
}

// benchmarkJSON is an order of about 1 KiB with its members out of order.
func benchmarkJSON(n int) string {
	var b strings.Builder
	b.WriteString(`{"currency":"EUR","amount":129.90,"customer":{"name":"Ada Lovelace","email":"ada@example.com","address":{"street":"1 Main St","city":"London"}},"items":[`)
	for i := 0; b.Len() < n-60; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku":"sku-%04d","quantity":%d,"price":12.50,"note":"gift"}`, i, i%5)
	}
	b.WriteString(`]}`)
	return b.String()
}

func BenchmarkFingerprint(b *testing.B) {
	doc := benchmarkJSON(1024)
	for _, bm := range []struct {
		name, contentType, body string
		config                  FingerprintConfig
	}{
		{name: "raw-1KiB", contentType: "application/octet-stream", body: strings.Repeat("x", 1024)},
		{name: "json-1KiB", contentType: "application/json", body: doc},
		{name: "json-1KiB-exclude", contentType: "application/json", body: doc, config: FingerprintConfig{Exclude: []string{"/customer/email"}}},
		{name: "json-64KiB", contentType: "application/json", body: benchmarkJSON(64 << 10)},
		{name: "form-1KiB", contentType: "application/x-www-form-urlencoded", body: strings.Repeat("name=some+value&", 64)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			f := fingerprinter(b, bm.config)
			u := &url.URL{Path: "/orders"}
			h := http.Header{"Content-Type": {bm.contentType}}
			body := []byte(bm.body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				f.Fingerprint("POST", u, h, body)
			}
		})
	}
}
