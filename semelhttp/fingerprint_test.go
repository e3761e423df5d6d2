package semelhttp

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"testing"

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
		if want := (semel.Fingerprint{Scheme: "request/2", Sum: sha256.Sum256([]byte(tc.want))}); got != want {
			t.Errorf("%q: the digest is not that of %q", tc.r, tc.want)
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

// Others have failed here: the fingerprint was that of an empty body, whatever the body.
func TestFingerprintSeesTheBody(t *testing.T) {
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

func TestFingerprintIgnoresTraceHeaders(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{})
	a, b := jsonRequest(`{}`), jsonRequest(`{}`)
	b.header = http.Header{
		"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "Tracestate": {"a=b"}, "X-Request-Id": {"1"},
		"Idempotency-Key": {"k"}, "Authorization": {"Bearer x"}, "User-Agent": {"a"}, "Date": {"now"},
	}
	wantSame(t, f, a, b)
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

// Others have failed here: only the first bytes of a body were digested.
func TestFingerprintCoversTheWholeBody(t *testing.T) {
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

// Others have failed here: the random boundary of a multipart body made every retry another
// request.
func TestMultipartWithAnotherBoundary(t *testing.T) {
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
