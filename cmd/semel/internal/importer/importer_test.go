package importer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semelhq/semel/probe/plan"
)

// sent renders the request of a draft as it would be sent, without its key. The
// environment has what was left out: env says what each name stands for.
func sent(t testing.TB, d *Draft, env map[string]string) string {
	t.Helper()
	p, err := plan.Parse("draft.yaml", d.YAML)
	if err == nil || !plan.OnlyToFill(err) {
		t.Fatalf("a draft must lack what only its author can say, and nothing else: %v\n%s", err, d.YAML)
	}
	if len(p.Target.Allow) > 0 || !*p.Target.Production {
		t.Fatal("a draft must allow no address, and count as production")
	}
	p.Operations[0].Readers = nil
	r, err := plan.NewRenderer(p, plan.Source{Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok }})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.YAML)
	}
	v, err := r.Draw(p.Operations[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	req, err := r.Request(v, plan.Change{NoKey: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.YAML)
	}
	return render(req.Method, req.URL, req.Header, req.Body)
}

func render[F ~struct{ Name, Value string }](method, url string, header []F, body []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", method, url)
	for _, line := range header {
		f := field(line)
		fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Value)
	}
	fmt.Fprintf(&b, "\n%s", body)
	return b.String()
}

func withoutSecrets(t testing.TB, d *Draft, secrets ...string) {
	t.Helper()
	said := fmt.Sprint(d.Secrets, d.Notes)
	for _, s := range secrets {
		if strings.Contains(string(d.YAML), s) {
			t.Errorf("the credential %q is in the plan:\n%s", s, d.YAML)
		}
		if strings.Contains(said, s) {
			t.Errorf("the credential %q is in the report: %s", s, said)
		}
	}
}

func TestCurl(t *testing.T) {
	files := func(name string, limit int64) ([]byte, error) {
		if name != "body.json" {
			return nil, os.ErrNotExist
		}
		return []byte("{\"a\":\r\n 1}\n"), nil
	}
	const form = "Content-Type: application/x-www-form-urlencoded\n"
	tests := []struct {
		name, line string
		env        map[string]string
		want       string
	}{
		{"the orders example", `curl -i localhost:9000/orders -d '{"item":"book","quantity":1}'`, nil, "POST http://localhost:9000/orders\n" + form + "\n" + `{"item":"book","quantity":1}`},
		{"GET", `curl https://h/a`, nil, "GET https://h/a\n\n"},
		{"prompt and continuation", "$ curl \\\n  -X PUT \\\r\n  'https://h/a?b=c&d=e' \\\n", nil, "PUT https://h/a?b=c&d=e\n\n"},
		{"attached and combined", `curl -sSXPATCH -Hx-a:b https://h/`, nil, "PATCH https://h/\nx-a: b\n\n"},
		{"ANSI-C quotes", `curl https://h/ --data-raw $'{"t":"it\'s \u00e9\ud83d\ude00\x41\101\n"}'`, nil, "POST https://h/\n" + form + "\n{\"t\":\"it's é😀AA\n\"}"},
		{"double quotes", `curl https://h/ -H "Content-Type: application/json" -d "{\"a\": \"\\\\ \$x\"}"`, nil, "POST https://h/\nContent-Type: application/json\n\n" + `{"a":"\\ $x"}`},
		{"numbers as written", `curl https://h/ -H 'content-type: application/json' -d '{"n":9007199254740993,"f":1.10}'`, nil, "POST https://h/\ncontent-type: application/json\n\n" + `{"n":9007199254740993,"f":1.10}`},
		{"several data", `curl https://h/ -d a=1 -d b=2 --data-urlencode 'c=x y&z'`, nil, "POST https://h/\n" + form + "\na=1&b=2&c=x+y%26z"},
		{"-G", `curl -G https://h/?x=1 -d a=1 -d b=2`, nil, "GET https://h/?x=1&a=1&b=2\n\n"},
		{"--json", `curl --json '{"a":1}' https://h/`, nil, "POST https://h/\nContent-Type: application/json\nAccept: application/json\n\n{\"a\":1}"},
		{"-d @file loses its line breaks", `curl https://h/ -d @body.json -H Content-Type:application/json`, nil, "POST https://h/\nContent-Type: application/json\n\n{\"a\":1}"},
		{"empty and removed headers", `curl https://h/ -H 'X-Empty;' -H 'Accept:' -H 'Host: h' -H 'Content-Length: 7'`, nil, "GET https://h/\nX-Empty: \n\n"},
		{"templates are text", `curl https://h/ -d 'a={{uuid}}' -H 'X: {{'`, nil, "POST https://h/\nX: {{\n" + form + "\na={{uuid}}"},
		{"YAML is text", `curl https://h/ -H 'X-A: - &a !b # c: "d" \e' -d $'no: yes\n- x\t'`, nil, "POST https://h/\nX-A: - &a !b # c: \"d\" \\e\n" + form + "\nno: yes\n- x\t"},
		{"a pipe ends it", `curl https://h/ -o out | jq .`, nil, "GET https://h/\n\n"},
		{"variables", `curl "$BASE/orders" -H "X-Shop: ${SHOP}!"`, map[string]string{"BASE": "https://shop.example", "SHOP": "shop-17"}, "GET https://shop.example/orders\nX-Shop: shop-17!\n\n"},

		{
			"bearer", `curl https://h/ -H 'Authorization: Bearer tok-123456'`,
			map[string]string{"PROBE_AUTHORIZATION": "tok-123456"},
			"GET https://h/\nAuthorization: Bearer tok-123456\n\n",
		},
		{
			"basic", `curl -u alice:wonder-1 https://h/`,
			map[string]string{"PROBE_AUTHORIZATION": base64.StdEncoding.EncodeToString([]byte("alice:wonder-1"))},
			"GET https://h/\nAuthorization: Basic YWxpY2U6d29uZGVyLTE=\n\n",
		},
		{
			"user in the URL", `curl https://alice:wonder-1@h/x`,
			map[string]string{"PROBE_AUTHORIZATION": "YWxpY2U6d29uZGVyLTE="},
			"GET https://h/x\nAuthorization: Basic YWxpY2U6d29uZGVyLTE=\n\n",
		},
		{
			"cookies", `curl https://h/ -b 'sid=abcdef99; lang=de-de-de'`,
			map[string]string{"PROBE_COOKIE_SID": "abcdef99"},
			"GET https://h/\nCookie: sid=abcdef99; lang=de-de-de\n\n",
		},
		{
			"query and body", `curl 'https://h/?api_key=key-1234&x=1' -H Content-Type:application/json -d '{"user":"u","password":"hunter2!","login":{"x":"key-1234"},"credentials":{"pin":"998877"},"n":"hunter2!"}'`,
			map[string]string{"PROBE_QUERY_API_KEY": "key-1234", "PROBE_BODY_PASSWORD": "hunter2!", "PROBE_BODY_PIN": "998877"},
			"POST https://h/?api_key=key-1234&x=1\nContent-Type: application/json\n\n" + `{"user":"u","password":"hunter2!","login":{"x":"key-1234"},"credentials":{"pin":"998877"},"n":"hunter2!"}`,
		},
		{
			"form", `curl https://h/ -d 'user=u&client_secret=s3cr3t%2Bx&note=s3cr3t%2Bx'`,
			map[string]string{"PROBE_FIELD_CLIENT_SECRET": "s3cr3t%2Bx"},
			"POST https://h/\n" + form + "\nuser=u&client_secret=s3cr3t%2Bx&note=s3cr3t%2Bx",
		},
		{
			"a credential elsewhere", `curl https://h/tok-123456/x -H 'X-Api-Key: tok-123456' -H 'X-Copy: <tok-123456>'`,
			map[string]string{"PROBE_X_API_KEY": "tok-123456"},
			"GET https://h/tok-123456/x\nX-Copy: <tok-123456>\nX-Api-Key: tok-123456\n\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Curl(tt.line, files)
			if err != nil {
				t.Fatal(err)
			}
			if got := sent(t, d, tt.env); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s\nof\n%s", got, tt.want, d.YAML)
			}
			var secrets []string
			for name, v := range tt.env {
				if name != "BASE" && name != "SHOP" {
					secrets = append(secrets, v)
				}
				if !slices.ContainsFunc(d.Secrets, func(s Secret) bool { return s.Env == name && s.From != "" }) {
					t.Errorf("%s is not reported: %v", name, d.Secrets)
				}
			}
			withoutSecrets(t, d, append(secrets, "wonder-1")...)
		})
	}
}

func TestCurlKey(t *testing.T) {
	for line, want := range map[string]string{
		`curl https://h/ -H 'Idempotency-Key: "k-1234567"'`: "key: {header: Idempotency-Key, syntax: sf-string}",
		`curl https://h/ -H 'idempotency-key: k-1234567'`:   "key: {header: idempotency-key, syntax: bare}",
		`curl https://h/`: "key: {header: Idempotency-Key}",
		`curl https://h/ -H 'Repeatability-Request-ID: k-1234567' -H 'Repeatability-First-Sent: Sat, 21 Nov 2026 00:00:00 GMT'`: "contract: {profile: oasis}",
	} {
		d, err := Curl(line, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(d.YAML), want) || strings.Contains(string(d.YAML), "k-1234567") {
			t.Errorf("%s: no %q, or the recorded key, in\n%s", line, want, d.YAML)
		}
		sent(t, d, nil)
	}
}

func TestCurlRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"wget https://h/":                                 "not curl",
		"curl":                                            "there is no URL",
		"curl https://h/ https://i/":                      "two URLs",
		"curl -F a=b https://h/":                          "multipart",
		"curl -x p:1 https://h/":                          "--proxy",
		"curl --frobnicate https://h/":                    "--frobnicate is not known",
		"curl -d @nothing https://h/":                     "file does not exist",
		"curl -d @- https://h/":                           "the standard input",
		"curl https://h/ -H nonsense":                     "no colon",
		"curl https://h/?a=1&b=2":                         "outside of quotes",
		"curl https://h/ $(cat x)":                        "a command within",
		"curl \"https://h/`id`\"":                         "a command within",
		"curl 'https://h/":                                "a ' is not closed",
		"curl https://h/ \\":                              "nothing after",
		"curl ftp://h/":                                   "http or https",
		"curl https://h/{a,b}":                            "several requests",
		"curl https://h/ -H ^\"A: b^\"":                   "cmd.exe",
		"curl https://h/ -X 'GET x'":                      "the method",
		"curl https://h/ -H $'A: b\\nc'":                  "one line",
		"curl https://h/ -b cookies.txt":                  "cookies in a file",
		"curl https://h/ -u alice":                        "-u without a password",
		"curl https://h/ -d":                              "--data has no argument",
		"curl https://h/ " + strings.Repeat("x", MaxBody): "too long",
	} {
		_, err := Curl(line, func(string, int64) ([]byte, error) { return nil, os.ErrNotExist })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %v, want %q", line, err, want)
		}
	}
}

// TestCurlFile: what is sent as it is stays in its file.
func TestCurlFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte("x\ny"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Curl("curl https://h/ --data-binary @b", nil)
	if err != nil || !strings.Contains(string(d.YAML), "file: b\n") {
		t.Fatalf("%v\n%s", err, d.YAML)
	}
	d, err = Curl("curl https://h/ -d @b", FilesIn(dir))
	if err != nil || !strings.Contains(string(d.YAML), "text: xy\n") {
		t.Fatalf("%v\n%s", err, d.YAML)
	}
}

const harFile = `{"log":{"version":"1.2","entries":[
 {"request":{"method":"GET","url":"https://shop.example/","headers":[]}},
 {"request":{"method":"POST","url":"https://shop.example/orders?access_token=tok-998877","httpVersion":"HTTP/2",
  "headers":[{"name":":authority","value":"shop.example"},{"name":"Connection","value":"keep-alive"},{"name":"Accept-Encoding","value":"gzip"},
   {"name":"content-type","value":"application/json"},{"name":"Cookie","value":"sid=session-4711"},{"name":"X-Request-Id","value":"r-1"},{"name":"X-Csrf-Token","value":"csrf-4711"}],
  "postData":{"mimeType":"application/json","text":"{ \"item\": \"a\\u2028b\", \"quantity\": 1 }"}}}]}}`

func TestHAR(t *testing.T) {
	for _, c := range []Choice{{Index: 1}, {Index: -1, URL: "/orders"}, {Index: -1, Method: "post"}, {Index: -1, URL: "shop"}, {Index: -1}} {
		d, err := HAR([]byte(harFile), c)
		if err != nil {
			t.Fatal(err)
		}
		got := sent(t, d, map[string]string{"PROBE_COOKIE_SID": "session-4711", "PROBE_X_CSRF_TOKEN": "csrf-4711", "PROBE_QUERY_ACCESS_TOKEN": "tok-998877"})
		head, rest, _ := strings.Cut(got, "X-Request-Id: ")
		_, rest, _ = strings.Cut(rest, "\n")
		want := "POST https://shop.example/orders?access_token=tok-998877\ncontent-type: application/json\n" +
			"X-Csrf-Token: csrf-4711\nCookie: sid=session-4711\n\n{\"item\":\"a\u2028b\",\"quantity\":1}"
		if head+rest != want {
			t.Errorf("got\n%s\nwant\n%s", head+rest, want)
		}
		withoutSecrets(t, d, "session-4711", "csrf-4711", "tok-998877")
		if !strings.Contains(string(d.YAML), "pointer: /quantity, value: 2") {
			t.Errorf("no alteration is proposed:\n%s", d.YAML)
		}
	}
	twice := strings.Replace(harFile, `"entries":[`, `"entries":[{"request":{"method":"PUT","url":"https://shop.example/orders/1","headers":[]}},`, 1)
	reads := strings.ReplaceAll(twice, `"POST"`, `"GET"`)
	if _, err := HAR([]byte(twice), Choice{Index: -1}); err == nil || !strings.Contains(err.Error(), "0 and 2 both match") {
		t.Errorf("of two that write it says %v", err)
	}
	if _, err := HAR([]byte(strings.ReplaceAll(reads, `"PUT"`, `"GET"`)), Choice{Index: -1}); err == nil {
		t.Error("of several that read it picks one")
	}
	for _, c := range []Choice{{Index: 2}, {Index: -1, URL: "nowhere"}} {
		if _, err := HAR([]byte(harFile), c); err == nil {
			t.Errorf("%+v picks something", c)
		}
	}
	if _, err := HAR([]byte("{}"), Choice{}); err == nil {
		t.Error("a HAR file that is none")
	}
}

const postmanFile = `{"info":{"name":"Shop","schema":"https://schema.getpostman.com/json/collection/v2.1.0/collection.json"},
"variable":[{"key":"base","value":"https://shop.example"},{"key":"path","value":"{{base}}/v1"},{"key":"apiToken","value":"tok-998877"},{"key":"loop","value":"{{loop}}"}],
"auth":{"type":"bearer","bearer":[{"key":"token","value":"{{apiToken}}"}]},
"item":[{"name":"Orders","item":[
 {"name":"Create","request":{"method":"POST","header":[{"key":"X-Off","value":"1","disabled":true},{"key":"X-Shop","value":"{{shop}}"}],
  "url":{"raw":"{{path}}/orders/:kind?x={{$guid}}","variable":[{"key":"kind","value":"new"}]},
  "body":{"mode":"raw","raw":"{\"item\":\"{{$randomUUID}}\",\"price\":1.10,\"l\":\"{{loop}}\"}","options":{"raw":{"language":"json"}}}}},
 {"name":"Form","request":{"method":"POST","auth":{"type":"apikey","apikey":[{"key":"key","value":"X-Shop-Pass"},{"key":"value","value":"pass-112233"}]},
  "url":"https://shop.example/f","body":{"mode":"urlencoded","urlencoded":[{"key":"a b","value":"c&d"},{"key":"off","value":"1","disabled":true},{"key":"password","value":"hunter2!"}]}}},
 {"name":"Upload","request":{"method":"POST","url":"https://shop.example/u","body":{"mode":"formdata"}}},
 {"name":"Basic","request":{"auth":{"type":"basic","basic":[{"key":"username","value":"alice"},{"key":"password","value":"wonder-1"}]},"method":"POST","url":"https://shop.example/b"}}]},
 {"name":"Other","item":[{"name":"Create","request":"https://shop.example/other"}]}]}`

func TestPostman(t *testing.T) {
	d, err := Postman([]byte(postmanFile), "Orders/Create")
	if err != nil {
		t.Fatal(err)
	}
	text := string(d.YAML)
	for _, want := range []string{
		`url: "https://shop.example/v1/orders/new?x={{uuid}}"`, `X-Shop: '{{fill "the value of the Postman variable shop"}}'`,
		`Authorization: 'Bearer {{env "PROBE_APITOKEN"}}'`, `"item": "{{uuid}}"`, `"price": 1.10`, "Content-Type: application/json", "name: Create",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "X-Off") {
		t.Error("what is disabled was taken over")
	}
	withoutSecrets(t, d, "tok-998877")

	d, err = Postman([]byte(postmanFile), "Form")
	if err != nil {
		t.Fatal(err)
	}
	got := sent(t, d, map[string]string{"PROBE_API_KEY": "pass-112233", "PROBE_FIELD_PASSWORD": "hunter2%21"})
	if want := "POST https://shop.example/f\nContent-Type: application/x-www-form-urlencoded\nX-Shop-Pass: pass-112233\n\na+b=c%26d&password=hunter2%21"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	withoutSecrets(t, d, "pass-112233", "hunter2")

	d, err = Postman([]byte(postmanFile), "Basic")
	if err != nil {
		t.Fatal(err)
	}
	withoutSecrets(t, d, "wonder-1", "YWxpY2U6d29uZGVyLTE=")

	for item, want := range map[string]string{"Create": "2 requests match", "Nothing": "none of the 5", "Upload": "formdata is not supported"} {
		if _, err := Postman([]byte(postmanFile), item); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", item, err, want)
		}
	}
	if _, err := Postman([]byte(strings.Replace(postmanFile, "v2.1.0", "v1.0.0", 1)), "Form"); err == nil {
		t.Error("a collection of format 1")
	}
}

func burpFile(request string) string {
	return `<?xml version="1.0"?>
<!DOCTYPE items [ <!ELEMENT items (item*)> ]>
<items burpVersion="2026.1"><item><time>x</time><url><![CDATA[https://shop.example:8443/orders]]></url><host ip="192.0.2.1">shop.example</host>
<method><![CDATA[POST]]></method><request base64="true"><![CDATA[` + base64.StdEncoding.EncodeToString([]byte(request)) + `]]></request><response base64="true"></response></item></items>`
}

func TestBurp(t *testing.T) {
	d, err := Burp([]byte(burpFile("POST /orders?a=b HTTP/2\r\nHost: shop.example:8443\r\nX-Auth-Token: tok-998877\r\nContent-Length: 4\r\n\r\n\x00\x01\r\n\r\n")), Choice{Index: 0})
	if err != nil {
		t.Fatal(err)
	}
	got := sent(t, d, map[string]string{"PROBE_X_AUTH_TOKEN": "tok-998877"})
	if want := "POST https://shop.example:8443/orders?a=b\nX-Auth-Token: tok-998877\n\n\x00\x01\r\n\r\n"; got != want {
		t.Errorf("got\n%q\nwant\n%q\n%s", got, want, d.YAML)
	}
	withoutSecrets(t, d, "tok-998877")
	for text, want := range map[string]string{
		"<x/>":                           "it has no items",
		"<items>":                        "not the XML of Burp",
		burpFile("nonsense"):             "request line",
		burpFile("A * HTTP/1.1\r\n\r\n"): "not a path",
		burpFile("A / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"): "chunked",
	} {
		if _, err := Burp([]byte(text), Choice{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s: got %v, want %q", text, err, want)
		}
	}
}

// What a browser adds is left out; what only says how to show things may stand in
// the plan; a number under the name of a credential may not.
func TestBrowserNoise(t *testing.T) {
	d, err := Curl(`curl https://h/ -H 'sec-ch-ua: "x"' -H 'Sec-Fetch-Mode: cors' -H 'User-Agent: Mozilla' -H 'Accept-Language: de' -H 'Referer: https://u:pw-123456@h/' -H 'X-Shop: 7' -b 'lang=de-DE; _ga=GA1.2.3; sid=abcdef99' -H 'content-type: application/json' -d '{"pin_token":12345678,"n":1}'`, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := sent(t, d, map[string]string{"PROBE_COOKIE_SID": "abcdef99", "PROBE_BODY_PIN_TOKEN": "12345678"})
	if want := "POST https://h/\nX-Shop: 7\ncontent-type: application/json\nCookie: lang=de-DE; sid=abcdef99\n\n" + `{"pin_token":12345678,"n":1}`; got != want {
		t.Errorf("got\n%s\nwant\n%s\nof\n%s", got, want, d.YAML)
	}
	withoutSecrets(t, d, "12345678", "abcdef99", "pw-123456")
	d, err = Curl(`curl https://h/ -A mine -H 'Referer: https://h/'`, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := sent(t, d, nil); !strings.Contains(got, "mine") || !strings.Contains(got, "Referer") {
		t.Errorf("what was written by hand was left out: %s", got)
	}
}

// TestCollision: a credential that cannot be replaced everywhere is no draft.
func TestCollision(t *testing.T) {
	_, err := Curl(`curl https://h/ -H 'X-Api-Key: X-Copied-Name' -H 'X-Copied-Name: 1'`, nil)
	if err == nil || strings.Contains(err.Error(), "Copied") {
		t.Errorf("got %v", err)
	}
}

func checkDraft(t *testing.T, d *Draft, err error) {
	if err != nil {
		return
	}
	if _, err := plan.Parse("", d.YAML); err != nil && !plan.OnlyToFill(err) {
		t.Errorf("the draft is no plan: %v\n%s", err, d.YAML)
	}
}

func FuzzCurl(f *testing.F) {
	f.Add(`curl -sS 'https://h/a?token=abcdefgh' -H "Authorization: Bearer $T" -d $'\u00e9\x41' -b 'a=b; c=d' | jq`)
	f.Add(`curl -u a:b --json '{"password":"hunter2!","n":[1,2]}' http://x -XPUT`)
	f.Fuzz(func(t *testing.T, line string) {
		d, err := Curl(line, nil)
		checkDraft(t, d, err)
	})
}

// FuzzSecret: whatever a token is made of, it does not get into the plan.
func FuzzSecret(f *testing.F) {
	f.Add("tok-12345678", "x")
	f.Add("a\"b'c{{d}}", "tok")
	f.Fuzz(func(t *testing.T, token, other string) {
		if len(token) < 12 || strings.ContainsAny(token, "\r\n\x00,; ") || drop(token) != token {
			return
		}
		body, err := json.Marshal(map[string]any{"token": token, "other": other + token, "n": map[string]string{"x": token}})
		if err != nil || !json.Valid(body) || !strings.Contains(string(body), token) {
			return
		}
		quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
		d, err := Curl("curl https://h/ -H "+quote("X-Api-Key: "+token)+" -H "+quote("X-Other: x"+token)+" -H content-type:application/json -d "+quote(string(body)), nil)
		checkDraft(t, d, err)
		if err == nil && strings.Contains(string(d.YAML), token) {
			t.Errorf("%q is in\n%s", token, d.YAML)
		}
	})
}

func FuzzPostman(f *testing.F) {
	f.Add([]byte(postmanFile), "Orders/Create")
	f.Fuzz(func(t *testing.T, data []byte, item string) {
		d, err := Postman(data, item)
		checkDraft(t, d, err)
	})
}

func FuzzBurp(f *testing.F) {
	f.Add([]byte(burpFile("POST /orders?a=b HTTP/1.1\r\nHost: h\r\n\r\n{}")))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Burp(data, Choice{Index: 0})
		checkDraft(t, d, err)
	})
}

// A recording of a create, a list and a get, as browsers export it, is a plan that
// lacks nothing but the allow-list.
func TestHARFiles(t *testing.T) {
	for name, want := range map[string][]string{
		"chromium.har": {`authorization: 'Bearer {{env "PROBE_AUTHORIZATION"}}'`, "key: {header: idempotency-key, syntax: bare}", `url: "https://shop.example/api/orders?limit=50"`, "count: /orders\n", "theme: dark"},
		"firefox.har":  {`url: "https://shop.example/api/orders"`, `count: ""`, "key: {header: Idempotency-Key}"},
	} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		d, err := HAR(data, Choice{Index: -1, URL: "/api/orders", Method: "POST"})
		if err != nil {
			t.Fatal(err)
		}
		text := string(d.YAML)
		for _, part := range append(want, `"reference": "{{.reference}}"`, `where: {/reference: "{{.reference}}"}`, "id: /id\n", "resource: {pointer: /id}", `sid: '{{env "PROBE_COOKIE_SID"}}'`) {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %s in\n%s", name, part, text)
			}
		}
		for _, noise := range []string{"sec-", "Sec-", "ser-", "eferer", ":authority", "_ga", "riority", "onnection", "ength"} {
			if strings.Contains(text[strings.Index(text, "\nprincipals:"):], noise) {
				t.Errorf("%s: %s is in\n%s", name, noise, text)
			}
		}
		withoutSecrets(t, d, "eyJhbGci", "9f2c1d7a77b04ce0", "7d0d8a3e-6d1f")
		p, err := plan.Parse(name, d.YAML)
		if err != nil {
			t.Fatalf("%s: it does not run as it is: %v", name, err)
		}
		if _, err := plan.NewRenderer(p, plan.Source{Env: func(string) (string, bool) { return "a-long-secret", true }}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzHAR(f *testing.F) {
	for _, name := range []string{"chromium.har", "firefox.har"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, 1)
	}
	f.Add([]byte(`{"log":{"entries":[{"request":{"method":"POST","url":"http://h/{{x}}?token=abcdefgh","headers":[{"name":"A","value":"{{env \"X\"}}"}],"postData":{"mimeType":"a/b","text":"{\"reference\":\"r\"}"}},"response":{"status":201,"content":{"text":"{\"id\":1}"}}},{"request":{"method":"GET","url":"http://h/{{x}}"},"response":{"status":200,"content":{"text":"[{\"id\":1,\"reference\":\"r\"}]"}}}]}}`), 0)
	f.Fuzz(func(t *testing.T, data []byte, index int) {
		d, err := HAR(data, Choice{Index: index})
		checkDraft(t, d, err)
	})
}
