package plan

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/rand"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/probe/internal/wire"
)

// clock ticks on every look, so that whatever looks twice is found out.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time {
	c.now = c.now.Add(time.Second)
	return c.now
}

var secrets = map[string]string{
	"PROBE_PASSWORD": `pa"ss word`, "PROBE_TOKEN_A": "token-of-a", "PROBE_SESSION_A": "session-of-a", "PROBE_TOKEN_C": "token-of-c",
	"PROBE_DSN": "postgres://u:p@h/d", "PROBE_WEBHOOK_SECRET": "whsec_" + base64.StdEncoding.EncodeToString([]byte("a secret of 24 bytes ...")),
}

func source1(seed int64) Source {
	return Source{
		Env:      func(name string) (string, bool) { v, ok := secrets[name]; return v, ok },
		ReadFile: func(name string, limit int64) ([]byte, error) { return []byte("contents of " + name + "\n"), nil },
		Now:      (&clock{time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)}).Now,
		Random:   rand.New(rand.NewSource(seed)),
	}
}

func full(t testing.TB) *Renderer {
	t.Helper()
	return renderer(t, "testdata/full.yaml", example(t, "full.yaml"))
}

func renderer(t testing.TB, name string, data []byte) *Renderer {
	t.Helper()
	p, err := Parse(name, data)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRenderer(p, source1(1))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func draw(t testing.TB, r *Renderer, op string) *Values {
	t.Helper()
	v, err := r.Draw(op)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func request(t testing.TB, r *Renderer, v *Values, c Change) wire.Request {
	t.Helper()
	req, err := r.Request(v, c)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func bytesOf(t testing.TB, req wire.Request) string {
	t.Helper()
	b, err := req.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRequestIsTheSameEachTime: a logical request is drawn once. The clock and
// the random numbers go on between two renderings, and must not be seen.
func TestRequestIsTheSameEachTime(t *testing.T) {
	r := full(t)
	for _, op := range r.Plan().Operations {
		v := draw(t, r, op.Name)
		first := bytesOf(t, request(t, r, v, Change{}))
		draw(t, r, op.Name) // another request in between
		if again := bytesOf(t, request(t, r, v, Change{})); again != first {
			t.Errorf("%s: rendered twice:\n%s\n---\n%s", op.Name, first, again)
		}
		if other := bytesOf(t, request(t, r, draw(t, r, op.Name), Change{})); other == first {
			t.Errorf("%s: two logical requests are the same", op.Name)
		}
		// Given the same values, also in another run.
		if elsewhere := full(t); bytesOf(t, request(t, elsewhere, v, Change{})) != first {
			t.Errorf("%s: another renderer makes other bytes of the same values", op.Name)
		}
	}
}

func TestRequestBytes(t *testing.T) {
	r := full(t)
	v := draw(t, r, "orders.create")
	ref, _ := v.Variable("order_ref")
	id, _ := v.Variable("request_id")
	got := bytesOf(t, request(t, r, v, Change{}))
	uuid := got[strings.Index(got, `"B `)+3:]
	uuid = uuid[:36]
	body := `{"reference":"` + ref + `","lines":[{"sku":"A-1","quantity":1},{"sku":"B ` + uuid + `","quantity":2.50}],"note":null,"gift":true}`
	want := strings.Join([]string{
		"POST /acme/orders HTTP/1.1", "Host: api.test.example",
		"Accept: application/json", "Accept: application/problem+json",
		"X-Request-Id: " + id,
		"X-Login: " + base64.StdEncoding.EncodeToString([]byte(`alice:pa"ss word`)),
		"Content-Type: application/json", "Authorization: Bearer token-of-a", "Cookie: session=session-of-a",
		`Idempotency-Key: "` + v.Key() + `"`,
		"Content-Length: 165", "", body,
	}, "\r\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if r.Plan().Operations[0].Request.Protocol != "http2" || request(t, r, v, Change{}).Protocol != wire.HTTP2 {
		t.Error("the protocol is lost")
	}
}

func TestChanges(t *testing.T) {
	r := full(t)
	v := draw(t, r, "orders.create")
	planned := request(t, r, v, Change{})
	header := func(req wire.Request, name string) string {
		for _, f := range req.Header {
			if strings.EqualFold(f.Name, name) {
				return f.Value
			}
		}
		return "none"
	}

	altered := request(t, r, v, Change{Altered: true})
	ref, _ := v.Variable("order_ref")
	want := strings.Replace(string(planned.Body), `"quantity":1}`, `"quantity":3}`, 1)
	want = strings.Replace(want, `"note":null`, `"note":"changed `+ref+`"`, 1)
	if string(altered.Body) != want || header(altered, "Idempotency-Key") != header(planned, "Idempotency-Key") {
		t.Errorf("altered: %s", altered.Body)
	}
	if got := request(t, r, v, Change{NoKey: true}); header(got, "Idempotency-Key") != "none" || !bytes.Equal(got.Body, planned.Body) {
		t.Errorf("without a key: %v", got.Header)
	}
	if got := request(t, r, v, Change{RawKey: `"open`}); header(got, "Idempotency-Key") != `"open` {
		t.Errorf("with a malformed key: %v", got.Header)
	}
	b := request(t, r, v, Change{As: ActorB})
	if header(b, "Authorization") != "Bearer contents of testdata/token-b.txt" || header(b, "Cookie") != "none" || header(b, "Idempotency-Key") != header(planned, "Idempotency-Key") {
		t.Errorf("as actor B: %v", b.Header)
	}
	if got := request(t, r, v, Change{As: TenantB}); got.URL != "https://api.test.example/globex/orders" {
		t.Errorf("as tenant B: %v", got.URL)
	}

	fresh, err := r.FreshKey(v)
	if err != nil {
		t.Fatal(err)
	}
	got := request(t, r, fresh, Change{})
	if fresh.Key() == v.Key() || header(got, "X-Request-Id") != header(planned, "X-Request-Id") || !bytes.Equal(got.Body, planned.Body) {
		t.Error("a fresh key: nothing but the key may differ")
	}
	if header(request(t, r, v, Change{}), "Idempotency-Key") != header(planned, "Idempotency-Key") {
		t.Error("the values that a fresh key was made from have changed")
	}

	upload := draw(t, r, "upload")
	if got := request(t, r, upload, Change{}); got.URL != "https://api.test.example/upload?request_id="+upload.Key() || string(got.Body) != "\x00\x01\x02\xff" {
		t.Errorf("key in the query: %s %q", got.URL, got.Body)
	}
	if got := request(t, r, upload, Change{Altered: true}); string(got.Body) != "contents of testdata/other.bin\n" {
		t.Errorf("altered by a file: %q", got.Body)
	}
	legacy := draw(t, r, "legacy")
	if got := request(t, r, legacy, Change{}); string(got.Body) != `{"meta":{"request_token":"`+legacy.Key()+`"}}` {
		t.Errorf("key in the body: %s", got.Body)
	}
	if got := request(t, r, legacy, Change{NoKey: true}); string(got.Body) != `{"meta":{}}` {
		t.Errorf("no key in the body: %s", got.Body)
	}
	if _, err := r.Request(legacy, Change{Altered: true}); err == nil {
		t.Error("altered without an alteration")
	}
}

func TestDerivedKey(t *testing.T) {
	r := renderer(t, "p.yaml", []byte(strings.Replace(minimal, "url:", "body: {text: '{{.ref}}'}, url:", 1)+
		"    key: {header: Idempotency-Key, value: 'order-{{.ref}}'}\nvariables: {ref: '{{hex 8}}'}\n"))
	if _, err := r.FreshKey(draw(t, r, "o")); !errors.Is(err, ErrDerivedKey) {
		t.Errorf("got %v", err)
	}
}

// TestSignatures holds the schemes to vectors computed by their own rules,
// outside of this package.
func TestSignatures(t *testing.T) {
	at := time.Unix(1614265330, 0)
	tests := []struct{ scheme, secret, id, body, want string }{
		// The example of the Standard Webhooks libraries.
		{
			"standard-webhooks", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", `{"test": 2432232314}`,
			"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		},
		// The example of GitHub's documentation.
		{
			"github", "It's a Secret to Everybody", "", "Hello, World!",
			"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
		},
	}
	for _, tt := range tests {
		fields, err := sign(tt.scheme, tt.secret, tt.id, at, []byte(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := fields[len(fields)-1].Value; got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.scheme, got, tt.want)
		}
	}
	if _, err := sign("standard-webhooks", "whsec_?", "", at, nil); err == nil || strings.Contains(err.Error(), "?") {
		t.Errorf("a secret that is not base64: %v", err)
	}
}

// TestDelivery: the same, signed anew, stale, altered.
func TestDelivery(t *testing.T) {
	r := full(t)
	v := draw(t, r, "orders.event")
	fields := func(c Change) map[string]string {
		m := map[string]string{}
		for _, f := range request(t, r, v, c).Header {
			m[f.Name] = f.Value
		}
		return m
	}
	same := fields(Change{})
	anew := fields(Change{SignedAt: v.At().Add(time.Minute)})
	altered := fields(Change{Altered: true})
	switch {
	case same["webhook-id"] != v.Key() || same["webhook-id"] != anew["webhook-id"] || same["webhook-id"] != altered["webhook-id"]:
		t.Error("the event id has to stay")
	case same["webhook-timestamp"] == anew["webhook-timestamp"] || same["webhook-signature"] == anew["webhook-signature"]:
		t.Error("signed anew, time and signature are others")
	case same["webhook-timestamp"] != altered["webhook-timestamp"] || same["webhook-signature"] == altered["webhook-signature"]:
		t.Error("altered, the signature is another")
	}
}

func TestReadings(t *testing.T) {
	r := full(t)
	v := draw(t, r, "orders.create")
	ref, _ := v.Variable("order_ref")
	op := v.Operation()
	get := func(i int) *Reading {
		t.Helper()
		out, err := r.Reading(v, &op.Readers[i], "")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := get(0); got.Request.URL != "https://api.test.example/acme/orders?reference="+ref || got.Where[0].Value != ref ||
		!strings.Contains(bytesOf(t, got.Request), "Authorization: Bearer contents of") {
		t.Errorf("http: %+v", got)
	}
	if got := get(2); got.DSN != secrets["PROBE_DSN"] || got.Args[0] != ref {
		t.Errorf("sql: %+v", got)
	}
	if got := get(3); got.File != "testdata/app.log" || !got.Pattern.MatchString("created "+ref) || got.Pattern.MatchString("created other") {
		t.Errorf("log: %+v", got)
	}
	if got := get(4); got.Argv[1] != ref || got.Pattern == nil {
		t.Errorf("command: %+v", got)
	}
	if got := get(5); !got.Pattern.MatchString("x" + ref) {
		t.Errorf("webhook: %+v", got)
	}

	if _, err := r.Search(v, &op.Audit[1], ""); !errors.Is(err, ErrNoResource) {
		t.Errorf("without a resource id: %v", err)
	}
	s, err := r.Search(v, &op.Audit[1], "42")
	if err != nil || s.Request.URL != "https://api.test.example/audit?order=42" || !s.Find[0].Pattern.MatchString(v.Key()) {
		t.Errorf("audit: %+v, %v", s, err)
	}
	reset, err := r.Reset()
	if err != nil || reset.Request.URL != "https://api.test.example/acme/reset" {
		t.Errorf("reset: %+v, %v", reset, err)
	}
}

// TestPatternsQuoteValues: a value with the signs of a regular expression
// matches itself and nothing else.
func TestPatternsQuoteValues(t *testing.T) {
	r := renderer(t, "p.yaml", []byte(minimal+"    readers: [{name: r, log: {file: f, pattern: '^{{.ref}}$'}}]\nvariables: {ref: 'a.*b'}\n"))
	v := draw(t, r, "o")
	out, err := r.Reading(v, &v.Operation().Readers[0], "")
	if err != nil {
		t.Fatal(err)
	}
	if out.Pattern.MatchString("axxb") || !out.Pattern.MatchString("a.*b") {
		t.Errorf("the pattern is %s", out.Pattern)
	}
}

// TestSecretsAreListed: whatever of a secret is in a rendered request, in
// whatever form, is in the list.
func TestSecretsAreListed(t *testing.T) {
	text := `version: 1
name: p
target: {production: false}
variables:
  pair: 'user:{{env "S"}}'
operations:
  - name: o
    request:
      method: POST
      url: 'http://127.0.0.1:1/?token={{env "S" | url}}'
      headers:
        B: '{{.pair | base64}}'
        C: '{{.pair | base64 | url}}'
      body:
        json: {s: '{{env "S"}}'}
`
	p, err := Parse("p.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const secret = `s3cret "+/ü`
	src := source1(1)
	src.Env = func(name string) (string, bool) { return secret, name == "S" }
	r, err := NewRenderer(p, src)
	if err != nil {
		t.Fatal(err)
	}
	sent := bytesOf(t, request(t, r, draw(t, r, "o"), Change{}))
	list := r.Secrets()
	for i, s := range list {
		if s.From != "env S" {
			t.Errorf("a secret of %q", s.From)
		}
		if i > 0 && len(s.Value) > len(list[i-1].Value) {
			t.Error("the longest have to come first")
		}
		sent = strings.ReplaceAll(sent, s.Value, "")
	}
	for _, left := range []string{"s3cret", "s3c", base64.StdEncoding.EncodeToString([]byte("user:s3cr"))} {
		if strings.Contains(sent, left) {
			t.Errorf("after redaction %q is left in\n%s", left, sent)
		}
	}
}

// TestOutsideIsMissing: all that cannot be had is told at once, and no secret.
func TestOutsideIsMissing(t *testing.T) {
	p, err := Parse("full.yaml", example(t, "full.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	src := source1(1)
	src.Env = func(name string) (string, bool) { return "tiny5", name == "PROBE_TOKEN_A" }
	src.ReadFile = func(string, int64) ([]byte, error) { return nil, os.ErrNotExist }
	_, err = NewRenderer(p, src)
	got := strings.Join(messages(err), "\n")
	for _, want := range []string{
		"full.yaml:16:10: variables.login: the environment has no PROBE_PASSWORD", "env PROBE_TOKEN_A is shorter than 6 bytes",
		"the environment has no PROBE_DSN", "actor_b.headers.Authorization: file does not exist", "altered.body.file: file does not exist",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "tiny5") {
		t.Error("a secret is in the error")
	}
}

func TestDrawFails(t *testing.T) {
	r := full(t)
	if _, err := r.Draw("nothing"); err == nil {
		t.Error("values of an operation that is not there")
	}
	r.src.Random = io.LimitReader(rand.New(rand.NewSource(1)), 3)
	if _, err := r.Draw("orders.create"); err == nil {
		t.Error("values without random numbers")
	}
}

func TestSet(t *testing.T) {
	p, err := ParseFile("testdata/orders.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Set("base", "http://127.0.0.1:9/{{x"); err != nil {
		t.Fatal(err)
	}
	if err := p.Set("bose", ""); err == nil {
		t.Error("a variable that is not there was set")
	}
	r, err := NewRenderer(p, Source{})
	if err != nil {
		t.Fatal(err)
	}
	if got := request(t, r, draw(t, r, "orders.create"), Change{}).URL; got != "http://127.0.0.1:9/{{x/orders" {
		t.Errorf("got %s", got)
	}
}

func TestJSONEdits(t *testing.T) {
	const doc = ` { "a" : [1, 2.50 , {"b/c":"x"}], "~" : {}, "e":[] } `
	tests := []struct{ pointer, want string }{
		{"/a/1", ` { "a" : [1, NEW , {"b/c":"x"}], "~" : {}, "e":[] } `},
		{"/a/2/b~1c", ` { "a" : [1, 2.50 , {"b/c":NEW}], "~" : {}, "e":[] } `},
		{"/~0", ` { "a" : [1, 2.50 , {"b/c":"x"}], "~" : NEW, "e":[] } `},
		{"", ` NEW `},
		{"/a/01", ""},
		{"/a/3", ""},
		{"/a/-", ""},
		{"/a/1/x", ""},
		{"/b", ""},
	}
	for _, tt := range tests {
		got, err := replaceJSON([]byte(doc), Pointer(tt.pointer), []byte("NEW"))
		if (err != nil) != (tt.want == "") || string(got) != tt.want {
			t.Errorf("%q: got %q, %v", tt.pointer, got, err)
		}
	}
	inserts := []struct{ pointer, want string }{
		{"/k", ` { "a" : [1, 2.50 , {"b/c":"x"}], "~" : {}, "e":[] ,"k":NEW} `},
		{"/~0/k", ` { "a" : [1, 2.50 , {"b/c":"x"}], "~" : {"k":NEW}, "e":[] } `},
		{"/a", ""},
		{"/e/0", ""},
		{"/x/y", ""},
	}
	for _, tt := range inserts {
		got, err := insertJSON([]byte(doc), Pointer(tt.pointer), []byte("NEW"))
		if (err != nil) != (tt.want == "") || string(got) != tt.want {
			t.Errorf("insert %q: got %q, %v", tt.pointer, got, err)
		}
	}
}

// Rewritten JSON differs in bytes and has the same meaning.
func TestRewriteJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"b":[{"c":1.50,"d":null},"x y"],"e":{}}`: `{ "e" : {  } , "b" : [ { "d" : null , "c" : 1.50 } , "x y" ] , "a" : 1 }` + "\n",
		`{"a":"{\"b\":1}"}`: `{ "a" : "{\"b\":1}" }` + "\n",
		`[1,2]`:             "[ 1 , 2 ]\n",
	} {
		got, err := rewriteJSON([]byte(text))
		if err != nil || string(got) != want {
			t.Errorf("%s becomes %s, %v; want %s", text, got, err, want)
		}
		var a, b any
		if json.Unmarshal([]byte(text), &a) != nil || json.Unmarshal(got, &b) != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s does not mean %s", got, text)
		}
	}
	for _, text := range []string{"", "x", "{", `{"a":1}{`, `{"a":1,"a":2}`, strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		if _, err := rewriteJSON([]byte(text)); err == nil {
			t.Errorf("%s is taken for JSON", text)
		}
	}
}
