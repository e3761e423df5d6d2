package har

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/semelhq/semel/probe/internal/wire"
)

// what HAR 1.2 says of an object: each field's kind, with a "?" for one that
// may be missing. Kinds are the names of other objects, or string, int (whole),
// count (whole, at least -1), ms (at least 0), part (at least -1), date.
var spec = map[string]map[string]string{
	"file":     {"log": "log"},
	"log":      {"version": "string", "creator": "creator", "browser?": "creator", "pages?": "[]page", "entries": "[]entry", "comment?": "string"},
	"creator":  {"name": "string", "version": "string", "comment?": "string"},
	"entry":    {"pageref?": "string", "startedDateTime": "date", "time": "ms", "request": "request", "response": "response", "cache": "cache", "timings": "timings", "serverIPAddress?": "string", "connection?": "string", "comment?": "string"},
	"request":  {"method": "string", "url": "string", "httpVersion": "string", "cookies": "[]pair", "headers": "[]pair", "queryString": "[]pair", "postData?": "postData", "headersSize": "count", "bodySize": "count", "comment?": "string"},
	"response": {"status": "int", "statusText": "string", "httpVersion": "string", "cookies": "[]pair", "headers": "[]pair", "content": "content", "redirectURL": "string", "headersSize": "count", "bodySize": "count", "comment?": "string"},
	"pair":     {"name": "string", "value": "string", "comment?": "string"},
	"postData": {"mimeType": "string", "params": "[]pair", "text": "string", "comment?": "string"},
	"content":  {"size": "int", "compression?": "int", "mimeType": "string", "text?": "string", "encoding?": "string", "comment?": "string"},
	"cache":    {"comment?": "string"},
	"timings":  {"blocked?": "part", "dns?": "part", "connect?": "part", "send": "ms", "wait": "ms", "receive": "ms", "ssl?": "part", "comment?": "string"},
}

// check returns where a value is not what HAR 1.2 says.
func check(at, kind string, v any) (wrong []string) {
	bad := func(what string) []string { return []string{at + ": " + what} }
	if item, ok := strings.CutPrefix(kind, "[]"); ok {
		list, ok := v.([]any)
		if !ok {
			return bad("is no list")
		}
		for i, v := range list {
			wrong = append(wrong, check(fmt.Sprintf("%s[%d]", at, i), item, v)...)
		}
		return wrong
	}
	n, isNumber := v.(float64)
	whole := isNumber && n == float64(int64(n))
	switch kind {
	case "string":
		if _, ok := v.(string); !ok {
			return bad("is no string")
		}
		return nil
	case "date":
		s, _ := v.(string)
		if _, err := time.Parse(time.RFC3339, s); err != nil {
			return bad("is no date")
		}
		return nil
	case "int", "count":
		if !whole || n < 0 && (kind == "int" || n != -1) {
			return bad("is no " + kind)
		}
		return nil
	case "ms", "part":
		if !isNumber || n < 0 && (kind == "ms" || n != -1) {
			return bad("is no time")
		}
		return nil
	}
	object, ok := v.(map[string]any)
	if !ok {
		return bad("is no object")
	}
	known := map[string]bool{}
	for name, kind := range spec[kind] {
		name, optional := strings.CutSuffix(name, "?")
		known[name] = true
		if v, ok := object[name]; ok {
			wrong = append(wrong, check(at+"."+name, kind, v)...)
		} else if !optional {
			wrong = append(wrong, at+"."+name+": is missing")
		}
	}
	for name := range object {
		if !known[name] && !strings.HasPrefix(name, "_") {
			wrong = append(wrong, at+"."+name+": is not of HAR")
		}
	}
	return wrong
}

func valid(t *testing.T, d Document) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	for _, w := range check("file", "file", v) {
		t.Error(w)
	}
	return b.String()
}

// The checker must find planted defects, or it proves nothing.
func TestCheckFinds(t *testing.T) {
	good := func() map[string]any {
		var v map[string]any
		b, _ := json.Marshal(New(Creator{"x", "1"}, nil, exchanges(t, "secret-secret")...))
		_ = json.Unmarshal(b, &v)
		return v
	}
	entry := func(v map[string]any) map[string]any {
		return v["log"].(map[string]any)["entries"].([]any)[0].(map[string]any)
	}
	if wrong := check("file", "file", good()); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	for name, change := range map[string]func(e map[string]any){
		"missing":       func(e map[string]any) { delete(e, "timings") },
		"foreign":       func(e map[string]any) { e["delivery"] = "x" },
		"no date":       func(e map[string]any) { e["startedDateTime"] = "today" },
		"negative":      func(e map[string]any) { e["time"] = -1.0 },
		"null list":     func(e map[string]any) { e["request"].(map[string]any)["cookies"] = nil },
		"number":        func(e map[string]any) { e["response"].(map[string]any)["status"] = "200" },
		"below -1":      func(e map[string]any) { e["response"].(map[string]any)["bodySize"] = -2.0 },
		"not whole":     func(e map[string]any) { e["response"].(map[string]any)["bodySize"] = 1.5 },
		"negative wait": func(e map[string]any) { e["timings"].(map[string]any)["wait"] = -1.0 },
	} {
		v := good()
		change(entry(v))
		if wrong := check("file", "file", v); len(wrong) != 1 {
			t.Errorf("%s: found %q", name, wrong)
		}
	}
}

// exchanges are real ones, with a secret in every place a secret may be, over
// both protocols, whole, cut and not sent.
func exchanges(t *testing.T, secret string) []wire.Exchange {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Api-Key")
		w.Header().Add("Set-Cookie", "sid="+secret+"; Path=/; HttpOnly")
		w.Header().Add("Set-Cookie", "theme=dark")
		w.Header().Set("X-Echo", "you are "+secret)
		w.Header().Set("Content-Type", "text/plain")
		if r.URL.Path == "/gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(body)
			_ = z.Close()
			return
		}
		// The secret lies across two chunks, or two frames.
		half := len(body) / 2
		_, _ = w.Write(body[:half])
		w.(http.Flusher).Flush()
		_, _ = w.Write(body[half:])
		w.Header().Set("X-Api-Key", secret)
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	_, addr, _ := strings.Cut(srv.URL, "://")
	s, err := wire.New(wire.Config{Allow: []string{addr, "127.0.0.1:1"}, MaxSends: 100})
	if err != nil {
		t.Fatal(err)
	}
	var xs []wire.Exchange
	keep := func(x wire.Exchange, err error) {
		if err != nil {
			t.Fatal(err)
		}
		xs = append(xs, x)
	}
	for _, p := range []wire.Protocol{wire.HTTP1, wire.HTTP2} {
		for _, path := range []string{"/plain", "/gzip"} {
			r := wire.Request{
				Method: "POST", URL: srv.URL + path + "?token=" + secret + "&a=b%20c&x", Protocol: p,
				Body: []byte(strings.Repeat("x", 30) + secret + strings.Repeat("y", 30)),
				Header: []wire.Field{
					{Name: "authorization", Value: "Bearer " + secret},
					{Name: "Cookie", Value: "sid=" + secret + "; theme=dark"},
					{Name: "X-API-Key", Value: "k"},
					{Name: "Content-Type", Value: "text/plain"},
				},
			}
			keep(s.Send(t.Context(), r))
		}
		r := wire.Request{Method: "PUT", URL: srv.URL + "/", Protocol: p, Body: []byte{0xff, 0xfe}}
		keep(s.SendCut(t.Context(), r, wire.Cut{At: wire.BeforeLastByte}))
		keep(s.SendCut(t.Context(), r, wire.Cut{At: wire.AfterFirstByte}))
		keep(s.Send(t.Context(), wire.Request{Method: "GET", URL: "http://127.0.0.1:1/", Protocol: p}))
	}
	// One with a secret in the header alone, which Huffman coding hides.
	keep(s.Send(t.Context(), wire.Request{
		Method: "GET", URL: srv.URL + "/", Protocol: wire.HTTP2,
		Header: []wire.Field{{Name: "Authorization", Value: "Bearer " + secret}},
	}))
	return xs
}

func TestDocumentIsValidAndExact(t *testing.T) {
	xs := exchanges(t, "tok-8d1c5f")
	d := New(Creator{"semel probe", "test"}, nil, xs...)
	valid(t, d)
	for i, e := range d.Log.Entries {
		x := xs[i]
		if !e.Semel.Exact || !bytes.Equal(e.Semel.Sent, x.Sent) || !bytes.Equal(e.Semel.Received, x.Received) || e.Semel.Delivery != x.Delivery.String() {
			t.Errorf("entry %d is not what was sent", i)
		}
		total := max(0, e.Timings.Blocked) + max(0, e.Timings.DNS) + max(0, e.Timings.Connect) + e.Timings.Send + e.Timings.Wait + e.Timings.Receive
		if total != e.Time {
			t.Errorf("entry %d: time is %v, the parts are %v", i, e.Time, total)
		}
	}
	first := d.Log.Entries[0]
	if want := []Pair{{"token", "tok-8d1c5f"}, {"a", "b c"}, {"x", ""}}; !slices.Equal(first.Request.Query, want) {
		t.Errorf("query is %v", first.Request.Query)
	}
	if want := []Pair{{"sid", "tok-8d1c5f"}, {"theme", "dark"}}; !slices.Equal(first.Request.Cookies, want) || !slices.Equal(first.Response.Cookies, want) {
		t.Errorf("cookies are %v, %v", first.Request.Cookies, first.Response.Cookies)
	}
	if p := d.Log.Entries[2].Request.PostData; p.Encoding != "base64" || p.Text != base64.StdEncoding.EncodeToString([]byte{0xff, 0xfe}) {
		t.Errorf("a body that is no text is %+v", p)
	}
	if !strings.HasPrefix(string(first.Semel.Sent), "POST /plain?token=tok-8d1c5f&a=b%20c&x HTTP/1.1\r\n") || first.Request.HeadersSize <= 0 {
		t.Errorf("sent %q", first.Semel.Sent)
	}
}

// leaks returns where a secret is, looking through every coding.
func leaks(doc, secret string) (found []string) {
	if strings.Contains(doc, secret) {
		found = append(found, "in the text")
	}
	var d Document
	if err := json.Unmarshal([]byte(doc), &d); err != nil {
		return []string{err.Error()}
	}
	for i, e := range d.Log.Entries {
		for name, raw := range map[string][]byte{"sent": e.Semel.Sent, "received": e.Semel.Received} {
			at := fmt.Sprintf("entry %d, %s", i, name)
			if bytes.Contains(raw, []byte(secret)) {
				found = append(found, at)
			}
			var body []byte
			dec := hpack.NewDecoder(4096, nil)
			for fr := http2.NewFramer(io.Discard, bytes.NewReader(raw)); e.Request.HTTPVersion == "HTTP/2.0"; {
				f, err := fr.ReadFrame()
				if err != nil {
					break
				}
				switch f := f.(type) {
				case *http2.HeadersFrame:
					fields, err := dec.DecodeFull(f.HeaderBlockFragment())
					if err != nil {
						found = append(found, at+": header: "+err.Error())
					}
					if strings.Contains(fmt.Sprint(fields), secret) {
						found = append(found, at+" header")
					}
				case *http2.DataFrame:
					body = append(body, f.Data()...)
				}
			}
			if bytes.Contains(body, []byte(secret)) {
				found = append(found, at+" body")
			}
			for _, b := range [][]byte{raw, body} {
				if at0 := bytes.Index(b, []byte{0x1f, 0x8b}); at0 >= 0 {
					if z, err := gzip.NewReader(bytes.NewReader(b[at0:])); err == nil {
						z.Multistream(false)
						if plain, _ := io.ReadAll(z); bytes.Contains(plain, []byte(secret)) {
							found = append(found, at+" packed")
						}
					}
				}
			}
		}
	}
	return found
}

func TestSecretsAreNowhere(t *testing.T) {
	const secret = "tok-8d1c5f"
	xs := exchanges(t, secret)
	if found := leaks(mustWrite(t, New(Creator{}, nil, xs...)), secret); len(found) < 10 {
		t.Fatalf("the search for secrets only finds %q where nothing is hidden", found)
	}
	for name, r := range map[string]*Redactor{"learnt": NewRedactor(), "given": NewRedactor(secret)} {
		t.Run(name, func(t *testing.T) {
			d := New(Creator{"semel probe", "test"}, r, xs...)
			text := valid(t, d)
			for _, at := range leaks(text, secret) {
				t.Errorf("a secret is left: %s", at)
			}
			first := d.Log.Entries[0]
			place := r.String(secret)
			if !strings.HasPrefix(place, "redacted-") || !strings.Contains(first.Request.URL, "token="+place+"&") || !strings.Contains(first.Response.Content.Text, "x"+place+"y") {
				t.Errorf("the placeholder is %q in %q and %q", place, first.Request.URL, first.Response.Content.Text)
			}
			var auth, cookie, short string
			for _, h := range first.Request.Headers {
				switch h.Name {
				case "authorization":
					auth = h.Value
				case "Cookie":
					cookie = h.Value
				case "X-API-Key":
					short = h.Value
				}
			}
			if auth != "Bearer "+place || !strings.HasPrefix(cookie, "sid="+place+"; theme=redacted-") || !strings.HasPrefix(short, "redacted-") {
				t.Errorf("fields are %q, %q, %q", auth, cookie, short)
			}
			raw := string(first.Semel.Sent)
			if first.Semel.Exact || !strings.Contains(raw, "authorization: Bearer "+place+"\r\n") || !strings.Contains(raw, "X-API-Key: "+short+"\r\n") {
				t.Errorf("raw is %q", raw)
			}
			for _, i := range []int{2, 3, 4} { // cut ones and the one not sent have no secrets
				if e := d.Log.Entries[i]; !bytes.Equal(e.Semel.Sent, xs[i].Sent) {
					t.Errorf("entry %d is changed for nothing", i)
				}
			}
		})
	}
}

func mustWrite(t *testing.T, d Document) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRedactor(t *testing.T) {
	r := NewRedactor("pin4", "", "pin4567", `quo"te/ä`)
	for in, want := range map[string]string{
		"a pin4 b pin4567 c":    "a redacted-1 b redacted-2 c",
		`{"a":"quo\"te/ä"}`:     `{"a":"redacted-3"}`,
		"a=quo%22te%2F%C3%A4&b": "a=redacted-3&b",
		"x " + base64.StdEncoding.EncodeToString([]byte("pin4567")) + " y": "x redacted-2 y",
		"nothing": "nothing",
	} {
		if got := r.String(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:correct horse"))
	if got := r.Field("Proxy-Authorization", basic); !strings.HasPrefix(got, "Basic redacted-") {
		t.Errorf("got %q", got)
	}
	if got := r.String("the correct horse"); !strings.HasPrefix(got, "the redacted-") {
		t.Errorf("the password is in %q", got)
	}
	if a, b := r.Field("X-Api-Key", "abc"), r.Field("x-api-key", "abc"); a != b || !strings.HasPrefix(a, "redacted-") {
		t.Errorf("got %q and %q", a, b)
	}
	if got := r.String("abc"); got != "abc" {
		t.Errorf("a short learnt value is replaced elsewhere: %q", got)
	}
	if got := r.Field("Set-Cookie", "a=abcdefghi; Path=/x; Secure"); !strings.HasPrefix(got, "a=redacted-") || !strings.HasSuffix(got, "; Path=/x; Secure") {
		t.Errorf("got %q", got)
	}
}

func TestBodyThatCannotBeSearchedIsWithheld(t *testing.T) {
	r := NewRedactor("secret-1")
	for _, coding := range []string{"br", "zstd", "gzip"} {
		if got := string(r.body([]byte("??????"), coding)); !strings.HasPrefix(got, "withheld") {
			t.Errorf("%s: %q", coding, got)
		}
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, "harmless")
	_ = z.Close()
	if got := r.body(b.Bytes(), "GZIP"); !bytes.Equal(got, b.Bytes()) {
		t.Errorf("got %q", got)
	}
}

// The HAR can be read back, and holds the request that was sent.
func TestWrittenCanBeRead(t *testing.T) {
	xs := exchanges(t, "tok-8d1c5f")
	var doc Document
	if err := json.Unmarshal([]byte(mustWrite(t, New(Creator{}, nil, xs...))), &doc); err != nil || len(doc.Log.Entries) != len(xs) {
		t.Fatal(len(doc.Log.Entries), err)
	}
	for i, e := range doc.Log.Entries {
		want, got, body := xs[i].Request, e.Request, ""
		if got.PostData != nil {
			body = got.PostData.Text
			if got.PostData.Encoding == "base64" {
				b, err := base64.StdEncoding.DecodeString(body)
				if err != nil {
					t.Fatal(err)
				}
				body = string(b)
			}
		}
		if got.Method != want.Method || got.URL != want.URL || body != string(want.Body) {
			t.Errorf("entry %d: got %s %s %q, want %s %s %q", i, got.Method, got.URL, body, want.Method, want.URL, want.Body)
		}
		for _, f := range want.Header {
			if !slices.ContainsFunc(got.Headers, func(p Pair) bool { return strings.EqualFold(p.Name, f.Name) && p.Value == f.Value }) {
				t.Errorf("entry %d: no %s: %s in %v", i, f.Name, f.Value, got.Headers)
			}
		}
	}
}

// FuzzRedactor: no bytes, well-formed or not, make writing panic or leak.
func FuzzRedactor(f *testing.F) {
	f.Add([]byte("POST / HTTP/1.1\r\nCookie: a\r\n\r\nsecret-1"), []byte("HTTP/1.1 200 OK\r\n\r\n8\r\nsecret-1\r\n0\r\n\r\n"), "", true)
	f.Add([]byte("\x00\x00\x01\x01\x04\x00\x00\x00\x01\x82\x00\x00\x08\x00\x01\x00\x00\x00\x01secret-1"), []byte("\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"), "gzip", false)
	f.Fuzz(func(t *testing.T, sent, received []byte, coding string, one bool) {
		x := wire.Exchange{
			Protocol: wire.HTTP2, Sent: sent, Received: received,
			Response: &wire.Response{Status: 200, Body: []byte("a secret-1"), Header: http.Header{"Content-Encoding": {coding}}},
		}
		if one {
			x.Protocol = wire.HTTP1
		}
		d := New(Creator{}, NewRedactor("secret-1"), x)
		e := d.Log.Entries[0]
		if bytes.Contains(e.Semel.Sent, []byte("secret-1")) && one || bytes.Contains([]byte(e.Response.Content.Text), []byte("secret-1")) {
			t.Errorf("leaked: %q", e.Semel.Sent)
		}
	})
}
