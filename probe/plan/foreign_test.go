package plan

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// foreignPlan has {{.resource_id}} in every place that it may have.
const foreignPlan = minimal + `    key: {header: K}
    readers:
      - {name: segment, http: {url: "http://127.0.0.1:1/orders/{{.resource_id}}/lines", count: ""}}
      - {name: query, http: {url: "http://127.0.0.1:1/orders?n=1&id={{.resource_id}}&key={{.key}}", count: ""}}
      - {name: escaped, http: {url: "http://127.0.0.1:1/orders/{{.resource_id | url}}", count: ""}}
      - {name: path, http: {url: "http://127.0.0.1:1{{.resource_id}}", count: ""}}
      - {name: whole, http: {url: "{{.resource_id}}", count: ""}}
      - {name: header, http: {url: "http://127.0.0.1:1/", headers: {X-Order: "{{.resource_id}}"}, count: "", where: {/id: "{{.resource_id}}"}}}
      - {name: argument, command: {argv: [count, "{{.resource_id}}"]}}
      - {name: part, command: {argv: [sh, -c, 'count "$1"', x, "--id={{.resource_id}}"]}}
      - {name: line, log: {file: f, pattern: "^created {{.resource_id}}$"}}
      - {name: row, sql: {driver: sqlite, dsn: '{{env "DSN"}}', query: SELECT 1, args: ["{{.resource_id}}"]}}
`

func foreignReading(t testing.TB, r *Renderer, v *Values, name, id string) (*Reading, error) {
	t.Helper()
	for i := range v.op.Readers {
		if v.op.Readers[i].Name == name {
			return r.Reading(v, &v.op.Readers[i], id)
		}
	}
	t.Fatalf("there is no reader %s", name)
	return nil, nil
}

func foreignRenderer(t testing.TB) (*Renderer, *Values) {
	t.Helper()
	p, err := Parse("p.yaml", []byte(foreignPlan))
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRenderer(p, Source{Env: func(string) (string, bool) { return "a-long-secret", true }})
	if err != nil {
		t.Fatal(err)
	}
	v, err := r.Draw("o")
	if err != nil {
		t.Fatal(err)
	}
	return r, v
}

// The id that the target gives a resource stays in its place in a request.
func TestForeignText(t *testing.T) {
	r, v := foreignRenderer(t)
	const base = "http://127.0.0.1:1"
	for _, c := range []struct{ reader, id, want string }{
		{"segment", "42", base + "/orders/42/lines"},
		{"segment", "a b/../x?y#z&%2f+é", base + "/orders/a%20b%2F..%2Fx%3Fy%23z%26%252f%2B%C3%A9/lines"},
		{"segment", "..", "error: . or .."},
		{"segment", ".", "error: . or .."},
		{"escaped", "a/b", base + "/orders/a%2Fb"},
		{"escaped", "..", "error: . or .."},
		{"query", "a&admin=1#x y+", base + "/orders?n=1&id=a%26admin%3D1%23x%20y%2B&key=" + v.Key()},
		{"query", "..", base + "/orders?n=1&id=..&key=" + v.Key()},
		{"path", "/orders/42?x=y%2F", base + "/orders/42?x=y%2F"},
		{"path", "/orders/../admin", "error: not a path"},
		{"path", "/orders/%2e%2E/admin", "error: not a path"},
		{"path", "//evil.example/", "error: not a path"},
		{"path", "@evil.example/", "error: not a path"},
		{"path", ".evil.example/", "error: not a path"},
		{"path", "/a b", "error: not a path"},
		{"whole", "http://127.0.0.1:1/orders/42", base + "/orders/42"},
		{"whole", "https://u:p@127.0.0.1:1/", "error: not an http or https URL"},
		{"whole", "file:///etc/passwd", "error: not an http or https URL"},
		{"whole", "/orders/42", "error: not an http or https URL"},
		{"whole", "http://127.0.0.1:1/a/../b", "error: not an http or https URL"},
		{"argument", "42", "42"},
		{"argument", "$(touch x); `id`", "$(touch x); `id`"},
		{"argument", "--delete", "error: begins with -"},
		{"part", "--delete", "--id=--delete"},
		{"argument", "a\nb", "error: control character"},
		{"argument", "a\x00b", "error: control character"},
		{"header", "a\r\nX: y", "error: control character"},
		{"header", "a\u0085b", "error: control character"},
		{"header", "a\xffb", "error: not UTF-8"},
		{"header", strings.Repeat("x", MaxResourceID), strings.Repeat("x", MaxResourceID)},
		{"segment", strings.Repeat("x", MaxResourceID+1), "error: 1025 bytes long; at most 1024 are used"},
	} {
		out, err := foreignReading(t, r, v, c.reader, c.id)
		if why, ok := strings.CutPrefix(c.want, "error: "); ok {
			if err == nil || !strings.Contains(err.Error(), why) || len(err.Error()) > 300 {
				t.Errorf("%s of %.40q: got %+v, %v, want %q", c.reader, c.id, out, err, why)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of %.40q: %v", c.reader, c.id, err)
			continue
		}
		got := out.Request.URL
		switch c.reader {
		case "header":
			got = out.Request.Header[0].Value
		case "argument", "part":
			got = out.Argv[len(out.Argv)-1]
		}
		if got != c.want {
			t.Errorf("%s of %.40q: got %q, want %q", c.reader, c.id, got, c.want)
		}
	}
}

// Whatever the id is, the URL has the host, the path and the query of the plan,
// and a program the arguments of the plan.
func FuzzForeignText(f *testing.F) {
	for _, s := range []string{"42", "../x", "%2e%2e", "a?b#c&d", "-x", "\x00", "/a/b", "http://h/", `"\`, "é\u2028"} {
		f.Add(s)
	}
	r, v := foreignRenderer(f)
	f.Fuzz(func(t *testing.T, id string) {
		if id == "" {
			return
		}
		for reader, path := range map[string]string{"segment": "/orders/" + id + "/lines", "escaped": "/orders/" + id, "query": "/orders", "path": ""} {
			out, err := foreignReading(t, r, v, reader, id)
			if err != nil {
				continue
			}
			u, err := url.Parse(out.Request.URL)
			if err != nil || u.Host != "127.0.0.1:1" || u.Scheme != "http" || u.User != nil || u.Fragment != "" || path != "" && u.Path != path {
				t.Errorf("%s of %q: %s, %v", reader, id, out.Request.URL, err)
				continue
			}
			want := map[string]string{"segment": "", "escaped": "", "query": "n=1&id=" + url.QueryEscape(id) + "&key=" + v.Key()}
			if q, ok := want[reader]; ok && strings.ReplaceAll(u.RawQuery, "%20", "+") != q {
				t.Errorf("%s of %q: the query is %s", reader, id, u.RawQuery)
			}
			for _, part := range strings.Split(u.Path, "/") {
				if reader != "query" && (part == ".." || part == ".") && !strings.Contains(id, "/") {
					t.Errorf("%s of %q: %s", reader, id, out.Request.URL)
				}
			}
		}
		if out, err := foreignReading(t, r, v, "argument", id); err == nil && (len(out.Argv) != 2 || out.Argv[1] != id || id[0] == '-') {
			t.Errorf("%q: %q", id, out.Argv)
		}
		if !utf8.ValidString(id) {
			return
		}
		quoted, _ := inText(` {"id": `)("", id, nil)
		var back string
		if err := json.Unmarshal([]byte(`"`+quoted+`"`), &back); err != nil || back != id {
			t.Errorf("%q in JSON: %q, %v", id, quoted, err)
		}
	})
}

// What the target gives is refused where a program or a shell would run it, and
// as the name of a database.
func TestForeignTextIsNotRun(t *testing.T) {
	for argv, want := range map[string]string{
		`["{{.resource_id}}"]`:                                     "name the program",
		`[sh, -c, "count {{.resource_id}}"]`:                       "part of a script",
		`[/bin/bash, -ec, "{{.resource_id}}"]`:                     "part of a script",
		`[env, X=y, sh, -c, "{{.resource_id}}"]`:                   "part of a script",
		`[psql, -c, "SELECT '{{.resource_id}}'"]`:                  "part of a script",
		`[python3.12, -c, "print({{.resource_id}})"]`:              "part of a script",
		`['C:\Windows\System32\cmd.exe', /d, "x{{.resource_id}}"]`: "shell command line",
		`[ssh, host, count, "{{.resource_id}}"]`:                   "shell command line",
		`[count.BAT, "{{.resource_id}}"]`:                          "shell command line",
		`[sh, -c, 'grep -c "$1" log', x, "{{.resource_id}}"]`:      "",
		`[grep, -c, "{{.resource_id}}", log]`:                      "",
		`[docker, exec, shop, ./count, "--id={{.resource_id}}"]`:   "",
		`[sh, -c, "count {{.key}}"]`:                               "",
	} {
		for _, at := range []string{"readers: [{name: r, command: {argv: " + argv + "}}]", "audit: [{name: a, command: " + argv + ", find: {key: x}}]"} {
			p, err := Parse("p.yaml", []byte(minimal+"    key: {header: K}\n    "+at+"\n"))
			if err == nil {
				err = p.Validate()
			}
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: got %v, want %q", at, err, want)
			}
		}
	}
	_, err := Parse("p.yaml", []byte(minimal+`    readers: [{name: r, sql: {driver: sqlite, dsn: '{{env "DSN"}}{{.resource_id}}', query: SELECT 1}}]`+"\n"))
	if err == nil {
		t.Error("the target says which database is asked")
	}
}

// What a step takes comes from the target as well: it is put where the plan has
// it, and means nothing else there.
func TestTakenIsForeign(t *testing.T) {
	const steps = "steps: [{name: s, each: request, request: {method: GET, url: 'http://127.0.0.1:1/'}, take: [{name: cart, pointer: /id}, {name: at, header: Location}]}]\n"
	p, err := Parse("p.yaml", []byte(strings.Replace(minimal, `"http://127.0.0.1:1/"`, `"http://127.0.0.1:1{{.at}}/x/{{.cart}}?c={{.cart}}", body: {text: '{"cart":"{{.cart}}"}'}`, 1)+steps))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ cart, at, url, body string }{
		{"1", "/carts/1", "http://127.0.0.1:1/carts/1/x/1?c=1", `{"cart":"1"}`},
		{`a/../b?c&d="e`, "/carts/1", "http://127.0.0.1:1/carts/1/x/a%2F..%2Fb%3Fc%26d%3D%22e?c=a%2F..%2Fb%3Fc%26d%3D%22e", `{"cart":"a/../b?c&d=\"e"}`},
		{"..", "/carts/1", "", ""},
		{"1", "@elsewhere.example/", "", ""},
		{"1", "//elsewhere.example/", "", ""},
	} {
		r, err := NewRenderer(p, source1(1))
		if err != nil {
			t.Fatal(err)
		}
		v, err := r.Draw("o")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Took(v, &r.plan.Steps[0], ActorA, []string{test.cart, test.at}); err != nil {
			t.Fatal(err)
		}
		req, err := r.Request(v, Change{})
		if (err != nil) != (test.url == "") || req.URL != test.url || string(req.Body) != test.body {
			t.Errorf("%q at %q become %s %s, %v", test.cart, test.at, req.URL, req.Body, err)
		}
	}
	bad := minimal + "    readers: [{name: r, command: {argv: [sh, -c, 'count {{.cart}}']}}]\n" + steps
	if _, err := Parse("p.yaml", []byte(bad)); err == nil || !strings.Contains(err.Error(), "must not make {{.cart}}, which the target gives, part of a script") {
		t.Errorf("a script with what a step took: %v", err)
	}
	r, _ := NewRenderer(p, source1(1))
	v, _ := r.Draw("o")
	for _, s := range []string{"a\nb", strings.Repeat("x", MaxTakenBytes+1), "\xff"} {
		if err := r.Took(v, &r.plan.Steps[0], ActorA, []string{s, "/"}); err == nil {
			t.Errorf("%.10q was taken", s)
		}
	}
	r.Pretend(true)
	if req, err := r.Request(v, Change{}); err != nil || req.URL != "http://127.0.0.1:1/taken-at/x/taken-cart?c=taken-cart" {
		t.Errorf("a dry run has %s, %v", req.URL, err)
	}
}
