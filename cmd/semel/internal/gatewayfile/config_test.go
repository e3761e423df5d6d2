package gatewayfile

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

var update = flag.Bool("update", false, "write the schema and the reference anew")

func noEnv(string) (string, bool) { return "", false }

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func docs(t *testing.T) map[string]string {
	t.Helper()
	d, err := strict.Comments("config.go")
	noError(t, err)
	return d
}

// TestSchemaIsOfTheTypes fails when the published schema is not what the types
// say. Run it with -update to write it anew.
func TestSchemaIsOfTheTypes(t *testing.T) {
	want, err := language(nil).Schema(reflect.TypeFor[Config](), docs(t), "https://github.com/semelhq/semel/docs/gateway.schema.json", "semel gateway configuration")
	noError(t, err)
	for _, file := range []string{"schema.json", filepath.Join("..", "..", "..", "..", "docs", "gateway.schema.json")} {
		got, err := os.ReadFile(file)
		if *update {
			noError(t, os.WriteFile(file, want, 0o644))
			continue
		}
		noError(t, err)
		if !bytes.Equal(bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")), want) {
			t.Errorf("%s is not of these types: go test -run TestSchemaIsOfTheTypes -update", file)
		}
	}
}

// TestReference fails when the guide's list of keys is not what the types say.
func TestReference(t *testing.T) {
	file := filepath.Join("..", "..", "..", "..", "docs", "gateway.md")
	text, err := os.ReadFile(file)
	noError(t, err)
	body := "What is not marked as required is optional. The descriptions are those of [gateway.schema.json](gateway.schema.json), which `semel gateway schema` prints.\n\n" +
		language(nil).Reference(reflect.TypeFor[Config](), docs(t))
	want, ok := strict.Section(string(text), "Every key of the file", body)
	switch {
	case !ok:
		t.Fatal("docs/gateway.md has no section for the keys")
	case *update:
		noError(t, os.WriteFile(file, []byte(want), 0o644))
	case strings.ReplaceAll(string(text), "\r\n", "\n") != want:
		t.Error("the keys in docs/gateway.md are not those of the types: go test -run TestReference -update")
	}
	for _, key := range slices.Sorted(maps.Keys(docs(t))) {
		if docs(t)[key] == "" && !strings.HasSuffix(key, "._") && key != "Config.source" && key != "Config.digest" {
			t.Errorf("%s has no description", key)
		}
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	noError(t, err)
	c := jsonschema.NewCompiler()
	noError(t, c.AddResource("gateway.json", doc))
	s, err := c.Compile("gateway.json")
	noError(t, err)
	return s
}

func tree(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	noError(t, yaml.Unmarshal(data, &v))
	text, err := json.Marshal(v)
	noError(t, err)
	v, err = jsonschema.UnmarshalJSON(bytes.NewReader(text))
	noError(t, err)
	return v
}

func full(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/full.yaml")
	noError(t, err)
	return data
}

// TestExamples: what is shipped is valid, to us and to an independent validator.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "docs", "examples", "gateway", "*.yaml"))
	noError(t, err)
	if len(files) < 2 {
		t.Fatalf("there are only %d examples", len(files))
	}
	s := compiled(t)
	for _, file := range append(files, "testdata/full.yaml") {
		data, err := os.ReadFile(file)
		noError(t, err)
		if _, err := Parse(file, data, noEnv); err != nil {
			t.Errorf("%s:\n%v", file, err)
		}
		if err := s.Validate(tree(t, data)); err != nil {
			t.Errorf("%s: the schema refuses it: %v", file, err)
		}
	}
}

// TestFullIsFull: the decoder and the schema have the same keys, and full.yaml uses
// each, but for those of the other kinds of principals.
func TestFullIsFull(t *testing.T) {
	found := &strict.Findings{Source: strict.NewSource("")}
	c := &Config{}
	language(nil).Decode(found, full(t), c)
	noError(t, found.Err())
	var top map[string]any
	noError(t, json.Unmarshal(Schema(), &top))
	defs := top["$defs"].(map[string]any)
	defs["Config"] = top
	keys := 0
	var walk func(of reflect.Type, v reflect.Value, path string)
	walk = func(of reflect.Type, v reflect.Value, path string) {
		properties := defs[of.Name()].(map[string]any)["properties"].(map[string]any)
		fields, _, _ := strict.FieldsOf(of)
		if len(fields) != len(properties) {
			t.Errorf("%s has %d keys, the schema %d", of.Name(), len(fields), len(properties))
		}
		for _, f := range fields {
			keys++
			if properties[f.Key] == nil {
				t.Errorf("the schema does not have %s.%s", of.Name(), f.Key)
			}
			at := strict.Join(path, f.Key)
			if _, ok := found.Source.Written(at); !ok && of != reflect.TypeFor[Principal]() && !strings.HasPrefix(at, "routes") && !strings.HasPrefix(at, "upstreams[1]") {
				t.Errorf("full.yaml does not use %s", at)
			}
			ft, fv := f.Type, v.FieldByIndex(f.Index)
			switch {
			case ft.Kind() == reflect.Pointer && ft.Elem().Kind() == reflect.Struct:
				if !fv.IsNil() {
					walk(ft.Elem(), fv.Elem(), at)
				}
			case ft.Kind() == reflect.Struct:
				walk(ft, fv, at)
			case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
				for i := range fv.Len() {
					walk(ft.Elem(), fv.Index(i), strict.Index(at, i))
				}
			}
		}
	}
	walk(reflect.TypeFor[Config](), reflect.ValueOf(c).Elem(), "")
	for _, path := range []string{"routes[0].operation", "routes[1].operation_from", "routes[0].upstream", "routes[2].webhook.retry_span"} {
		if _, ok := found.Source.Written(path); !ok {
			t.Errorf("full.yaml does not use %s", path)
		}
	}
	t.Logf("%d keys", keys)
}

// TestSchemaAgrees changes every value of the full configuration and asks the
// decoder and an independent validator of the schema: they are of one opinion.
func TestSchemaAgrees(t *testing.T) {
	quick.LeaveOut(t)
	s := compiled(t)
	root := tree(t, full(t))
	valid, refused := 0, 0
	compare := func(what string) {
		text, err := json.Marshal(root)
		noError(t, err)
		found := &strict.Findings{Source: strict.NewSource("")}
		language(nil).Decode(found, text, &Config{})
		bySchema := s.Validate(root)
		if (bySchema == nil) != (len(found.List) == 0) {
			t.Errorf("%s:\n the decoder: %v\n the schema: %v", what, found.Err(), bySchema)
		}
		if bySchema == nil {
			valid++
		} else {
			refused++
		}
	}
	compare("nothing changed")
	values := []any{
		nil, true, json.Number("0"), json.Number("1"), json.Number("7"), json.Number("-1"), json.Number("1.5"), json.Number("99999999999"),
		"", "x", "POST", "ietf", "hold", "wait", "raw", "5s", "5 s", "-5s", "64KiB", "64kb", "0KiB", "/a", "/a~", "a b", "header X", "body /x", "body x", "uri", strings.Repeat("x", 300),
		[]any{},
		[]any{"x"},
		[]any{""},
		[]any{json.Number("401")},
		[]any{nil},
		[]any{map[string]any{}},
		map[string]any{},
		map[string]any{"name": "x"},
	}
	var visit func(v any, path string, set func(any))
	visit = func(v any, path string, set func(any)) {
		for i, other := range values {
			set(other)
			compare(fmt.Sprintf("%s = values[%d]", path, i))
		}
		set(v)
		switch v := v.(type) {
		case map[string]any:
			v["zzz"] = "x"
			compare(path + " with zzz")
			delete(v, "zzz")
			for _, key := range slices.Sorted(maps.Keys(v)) {
				old := v[key]
				delete(v, key)
				compare(path + " without " + key)
				v[key] = old
				visit(old, path+"."+key, func(n any) { v[key] = n })
			}
			for _, key := range []string{"shared", "digest", "cookie"} {
				if _, ok := v[key]; !ok {
					v[key] = map[string]any{}
					compare(path + " with " + key)
					delete(v, key)
				}
			}
		case []any:
			for i := range v {
				old := v[i]
				visit(old, fmt.Sprintf("%s[%d]", path, i), func(n any) { v[i] = n })
			}
		}
	}
	visit(root, "", func(n any) { root = n })
	compare("everything put back")
	if valid < 300 || refused < 1500 {
		t.Errorf("only %d valid and %d refused: the comparison says little", valid, refused)
	}
	t.Logf("%d valid and %d refused", valid, refused)
}

const small = `version: 1
store: {url: "memory:"}
principal: {shared: {}}
upstreams: [{name: a, url: "http://127.0.0.1:1"}]
`

// TestProblems: each mistake is found where it is, all of them at once.
func TestProblems(t *testing.T) {
	tmp := t.TempDir()
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"SIX": "6", "HOST": "x", "EMPTY": "", "EVIL": "x\"\nlisten: 1", "TRUE": "true", "TMP": tmp}[name]
		return v, ok
	}
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"in order", small + "routes: [{match: /}]\n", nil},
		{"unknown key", small + "routes: [{match: /, keys: {required: true}}]\n", []string{"f:5:21: routes[0].keys: is not known here; did you mean key?"}},
		{"two at once", small + "rotues: []\nroutes:\n  - match: /\n    lease: soon\n", []string{
			"f:5:1: rotues: is not known here; did you mean routes?", "f:8:12: routes[0].lease: must be a duration such as 500ms, 30s or 1h30m",
		}},
		{"twice", small + "routes: [{match: /}]\nlisten: a\nlisten: b\n", []string{"f:7:1: listen: is given twice"}},
		{"second document", small + "routes: [{match: /}]\n---\nversion: 1\n", []string{"there is a second document; a configuration is one"}},
		{"alias", small + "routes: [{match: /, methods: &m [POST]}, {match: /a, methods: *m}]\n", []string{"anchors are not supported", "aliases are not supported"}},
		{"environment", small + "routes: [{match: /, max_waiters: \"${SIX}\"}]\n", []string{"must be a whole number"}},
		{"environment as a number", small + "routes: [{match: /}]\ndefaults:\n  max_waiters: ${SIX}\n  protect: ${TRUE}\n  lease: ${NONE:-20s}\n", nil},
		{"environment cannot add keys", small + "routes: [{match: /}, {match: /a}]\ndefaults:\n  key:\n    from: [\"header ${HOST}\"]\nspool:\n  dir: ${TMP}\n", nil},
		{"environment is a value", small + "listen: ${EVIL}\nroutes: [{match: /}]\n", nil},
		{"address", small + "listen: localhost\nroutes: [{match: /}]\n", []string{"listen: is not an address"}},
		{"environment that is not set", small + "listen: ${NONE}:80\nroutes: [{match: /}]\n", []string{"f:5:9: listen: names the environment variable NONE, which is not set"}},
		{"environment, malformed", small + "listen: $HOST\nroutes: [{match: /}]\n", []string{"begins no ${NAME}"}},
		{"environment, nested", small + "listen: ${A:-${HOST}}\nroutes: [{match: /}]\n", []string{"without a name"}},
		{"environment in a key", small + "${HOST}: 1\nroutes: [{match: /}]\n", []string{"is not known here"}},
		{"no principal", strings.Replace(small, "principal: {shared: {}}\n", "", 1) + "routes: [{match: /}]\n", []string{"principal: is missing"}},
		{"unknown principal", strings.Replace(small, "shared: {}", "magic: {}", 1) + "routes: [{match: /}]\n", []string{"principal.magic: is not known here", "needs one of jwt, mtls, endpoint, header, digest, shared"}},
		{"two principals", strings.Replace(small, "shared: {}", "shared: {}, digest: {cookie: c}", 1) + "routes: [{match: /}]\n", []string{"only one of them is allowed"}},
		{"principal's own", strings.Replace(small, "shared: {}", "header: {subject: X-User, proxies: {from: [0.0.0.0/0]}}", 1) + "routes: [{match: /}]\n", []string{"f:3:21: principal.header: ", "trusts everybody"}},
		{"network", strings.Replace(small, "shared: {}", "header: {subject: X-User, proxies: {from: [10.0.0.1]}}", 1) + "routes: [{match: /}]\n", []string{"principal.header.proxies.from[0]: is not a network"}},
		{"trusted of forwarding", small + "routes: [{match: /}]\ntrust_forwarded: {from: [10.1.2.0/24]}\n", nil},
		{"as it was", small + "routes: [{match: /}]\ntrust_forwarded: true\n", []string{"f:6:18: trust_forwarded: must be"}},
		{"nobody", small + "routes: [{match: /}]\ntrust_forwarded: {}\n", []string{"f:6:18: trust_forwarded: ", "names no proxy"}},
		{"everybody", small + "routes: [{match: /}]\ntrust_forwarded: {from: [10.0.0.0/8, 0.0.0.0/0]}\n", []string{"f:6:18: trust_forwarded: ", "trusts everybody"}},
		{"address of a proxy", small + "routes: [{match: /}]\ntrust_forwarded: {from: [10.0.0.1]}\n", []string{"trust_forwarded.from[0]: is not a network"}},
		{"endpoint's proxies", strings.Replace(small, "shared: {}", "endpoint: {url: \"http://127.0.0.1:1\", credentials: [Authorization], subject: X-User, proxies: {from: [10.1.2.0/24]}}", 1) + "routes: [{match: /}]\ntrust_forwarded: {from: [10.1.0.0/16]}\n", nil},
		{"endpoint's other proxies", strings.Replace(small, "shared: {}", "endpoint: {url: \"http://127.0.0.1:1\", credentials: [Authorization], subject: X-User, proxies: {from: [10.0.0.0/8]}}", 1) + "routes: [{match: /}]\ntrust_forwarded: {from: [10.1.0.0/16]}\n", []string{"principal.endpoint.proxies: has proxies that trust_forwarded does not have"}},
		{"endpoint's socket", strings.Replace(small, "shared: {}", "endpoint: {url: \"http://127.0.0.1:1\", credentials: [Authorization], subject: X-User, proxies: {unix: true}}", 1) + "routes: [{match: /}]\ntrust_forwarded: {from: [10.1.0.0/16]}\n", []string{"principal.endpoint.proxies: has proxies"}},
		{"upstream", small + "routes: [{match: /, upstream: b}]\n", []string{"f:5:31: routes[0].upstream: is not an upstream"}},
		{"patterns", small + "routes: [{match: POST /a}, {match: POST /A}]\n", []string{"f:5:36: routes[1].match: ", `"POST /a" of route 0 differ in a way that many servers overlook`}},
		{"pattern", small + "routes: [{match: [POST /a, nonsense]}]\n", []string{"routes[0].match: the pattern \"nonsense\" has no path"}},
		{"from the defaults", small + "defaults: {heartbeat: 14s}\nroutes: [{match: /}, {match: /a}, {match: /b, lease: 1m}]\n", []string{"f:5:23: defaults.heartbeat: is 14s, more than half the lease of 15s"}},
		{"fits its route", small + "defaults: {heartbeat: 14s, lease: 1m}\nroutes: [{match: /}, {match: /a, lease: 10s}]\n", []string{"defaults.heartbeat: is 14s, more than half the lease of 10s"}},
		{"issued", small + "routes: [{match: /, key: {issued_only: true}}]\n", []string{"routes[0].key.issued_only: needs resources.key_secrets"}},
		{"key from the body", small + "routes: [{match: /, key: {required: false, from: [body /id]}}]\n", []string{"routes[0].key.required: is false"}},
		{"webhook", small + "routes: [{match: /, fail_open: true, webhook: {scheme: stripe, sender: s, secrets: [x]}}]\n", []string{"needs an operation", "routes[0].fail_open: has no meaning"}},
		{"webhook's secret", small + "routes: [{match: /, operation: e, webhook: {scheme: standard, sender: s, secrets: [hunter2]}}]\n", []string{"routes[0]: "}},
		{"uuid age", small + "routes: [{match: /, key: {max_uuid_age: 24h}}]\n", []string{"must be more than 10m shorter than the retention, which is 24h0m0s"}},
		{"statuses", small + "routes: [{match: /, unknown_status: [429]}]\n", []string{"names 429, and so does no_effect_status"}},
		{"fingerprint", small + "routes: [{match: /, fingerprint: {headers: [Authorization]}}]\n", []string{"routes[0]: ", "holds a credential"}},
		{"reconcile", small + "routes: [{match: 'POST /o/{id}', on_crash: reconcile, reconcile: {url: '/o/{id}/by-key?key={key}', absent: [404], settle_after: 1m}}, {match: /, operation: e, webhook: {scheme: standard, sender: s, secrets: [whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0]}}]\ndefaults: {reconcile: {timeout: 2s}}\n", nil},
		{"reconcile, for all but some", small + "defaults: {on_crash: reconcile, reconcile: {url: '/by-key/{key}'}}\nroutes: [{match: /}, {match: /a, protect: false}, {match: /b, on_crash: hold}, {match: /c, operation: e, webhook: {scheme: standard, sender: s, secrets: [whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0]}}]\n", nil},
		{"reconcile without a URL", small + "routes: [{match: /, on_crash: reconcile}]\n", []string{"f:5:31: routes[0].on_crash: is reconcile, which needs reconcile.url"}},
		{"reconcile for nothing", small + "routes: [{match: /, reconcile: {url: '/{key}'}}]\n", []string{"routes[0].reconcile.url: is for on_crash: reconcile"}},
		{"reconcile by a digest", small + "routes: [{match: /, on_crash: reconcile, key: {from: [header A, header B]}, reconcile: {url: '/{key}'}}]\n", []string{"routes[0].reconcile.url: contains {key}, which is a digest"}},
		{"reconcile with certificates", strings.Replace(small, "shared: {}", "mtls: {name: dn, proxies: {unix: true}}", 1) + "routes: [{match: /, on_crash: reconcile, reconcile: {url: '/{key}'}}, {match: /a, on_crash: reconcile, reconcile: {url: '/{key}/{fence}'}}]\n", []string{"routes[0].reconcile.url: needs {fence}"}},
		{"reconcile too early", small + "routes: [{match: /, on_crash: reconcile, reconcile: {url: '/{key}', absent: [404]}}]\n", []string{"routes[0].reconcile.absent: needs reconcile.settle_after"}},
		{"reconcile too late", small + "routes: [{match: /, on_crash: reconcile, reconcile: {url: '/{key}', timeout: 1m}}]\n", []string{"routes[0].reconcile.timeout: is 1m0s, longer than the lease"}},
		{"reconcile elsewhere", small + "routes: [{match: /, on_crash: reconcile, reconcile: {url: 'https://x/{key}', present: [403]}}]\n", []string{"routes[0]: ", "field Reconcile.URL is", "403, which says nothing"}},
		{"reconcile with OASIS", small + "routes: [{match: /, contract: oasis, on_crash: reconcile, reconcile: {url: '/{key}'}}]\n", []string{"it is made of two headers"}},
		{"empty", "", []string{"the configuration is empty"}},
		{"not YAML", "a: [", []string{"this is not YAML"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("f", []byte(tt.text), env)
			if (err == nil) != (tt.want == nil) || (err == nil) != (c != nil) {
				t.Fatalf("got %v", err)
			}
			if evil, _ := env("EVIL"); tt.name == "environment is a value" && c.Listen != evil {
				t.Errorf("listen is %q", c.Listen)
			}
			if err != nil {
				got := strict.Problems(err)
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("got\n%v\nwithout %q", err, want)
					}
				}
				if len(got) == 0 || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// TestExplain: each setting of each route has a value and a place.
func TestExplain(t *testing.T) {
	text := small + `resources:
  off: ${OFF:-true}
defaults:
  lease: 20s
  key: {required: true}
routes:
  - match: POST /orders
    lease: ${LEASE}
  - match: [POST /events]
    operation: events
    webhook: {scheme: standard, sender: s, secrets: [whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0]}
  - match: /
    key: {required: false}
    on_crash: reconcile
    reconcile: {url: "/by-key/{key}"}
`
	c, err := Parse("f", []byte(text), func(name string) (string, bool) { return "30s", name == "LEASE" })
	noError(t, err)
	e := c.Explain(func(s string) string { return "shown " + s })
	find := func(list []Setting, name string) Setting {
		for _, s := range list {
			if s.Name == name {
				return s
			}
		}
		t.Errorf("there is no %s", name)
		return Setting{}
	}
	for _, tt := range []struct {
		list []Setting
		want Setting
	}{
		{e.Server, Setting{"store.url", "shown memory:", "f:2"}},
		{e.Server, Setting{"listen", "127.0.0.1:8080", "default"}},
		{e.Server, Setting{"resources.off", "true", "f:6, environment OFF (not set)"}},
		{e.Server, Setting{"upstreams[0].idle_timeout", "4s", "default"}},
		{e.Server, Setting{"bounds.tenant_executions", "1024", "default"}},
		{e.Server, Setting{"principal.shared", "{}", "f:3"}},
		{e.Routes[0].Settings, Setting{"operation", "POST /orders", "default"}},
		{e.Routes[0].Settings, Setting{"lease", "30s", "route f:12, environment LEASE"}},
		{e.Routes[0].Settings, Setting{"heartbeat", "10s", "default"}},
		{e.Routes[0].Settings, Setting{"key.required", "true", "defaults f:9"}},
		{e.Routes[0].Settings, Setting{"upstream", "a", "default"}},
		{e.Routes[0].Settings, Setting{"retention", "24h", "default"}},
		{e.Routes[0].Settings, Setting{"methods", "POST, PATCH", "default"}},
		{e.Routes[1].Settings, Setting{"webhook.secrets", "(1 secrets)", "route f:15"}},
		{e.Routes[2].Settings, Setting{"operation", "method and path of each request", "default"}},
		{e.Routes[2].Settings, Setting{"key.required", "false", "route f:17"}},
		{e.Routes[2].Settings, Setting{"lease", "20s", "defaults f:8"}},
		{e.Routes[2].Settings, Setting{"on_crash", "reconcile", "route f:18"}},
		{e.Routes[2].Settings, Setting{"reconcile.url", "/by-key/{key}", "route f:19"}},
		{e.Routes[2].Settings, Setting{"reconcile.present", "200", "default"}},
		{e.Routes[2].Settings, Setting{"reconcile.timeout", "5s", "default"}},
	} {
		if got := find(tt.list, tt.want.Name); got != tt.want {
			t.Errorf("got %+v, want %+v", got, tt.want)
		}
	}
	for _, r := range e.Routes {
		if len(r.Settings) < len(settingLeaves)+1 {
			t.Errorf("the route %v tells %d settings; there are %d", r.Match, len(r.Settings), len(settingLeaves))
		}
	}
	all, _ := json.Marshal(e)
	if bytes.Contains(all, []byte("whsec_")) {
		t.Error("a secret is told")
	}
}

// FuzzParse: whatever the text, there is a configuration or an error with a place,
// and no panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small + "routes: [{match: /}]\n"))
	f.Add([]byte(small + "routes:\n  - match: ${A:-POST /x}\n    key: {from: [body /a]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("_file")) || bytes.Contains(data, []byte("secrets")) || bytes.Contains(data, []byte("spool")) {
			return // no files but ours
		}
		c, err := Parse("f", data, noEnv)
		if (c == nil) == (err == nil) {
			t.Fatalf("%v and %v", c, err)
		}
		if err != nil && len(strict.Problems(err)) == 0 {
			t.Errorf("an error without a place: %v", err)
		}
		if c != nil {
			c.Explain(func(s string) string { return s })
			if cut := CutOff(c, c); len(cut) > 0 {
				t.Errorf("it cuts itself off: %v", cut)
			}
		}
	})
}

// TestEndpointHearsItsProxies: an endpoint is told of a client what its own proxies
// say, whether the upstream sees it or not.
func TestEndpointHearsItsProxies(t *testing.T) {
	type request struct{ endpoint, upstream string }
	var last request
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last.endpoint = r.Header.Get("X-Forwarded-For")
		w.Header().Set("X-User", "ann")
	}))
	defer endpoint.Close()
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		last.upstream = r.Header.Get("X-Forwarded-For")
	}))
	defer upstream.Close()
	text := `version: 1
store: {url: "memory:"}
principal: {endpoint: {url: "` + endpoint.URL + `", credentials: [Authorization], subject: X-User, cache_for: 0, proxies: {from: [192.0.2.0/24]}}}
upstreams: [{name: a, url: "` + upstream.URL + `"}]
routes: [{match: /}]
`
	for _, tt := range []struct {
		name, lines, from string
		want              request
	}{
		{"its proxy", "", "192.0.2.1:1", request{"198.51.100.7", "192.0.2.1"}},
		{"a stranger", "", "203.0.113.1:1", request{"203.0.113.1", "203.0.113.1"}},
		{"its proxy, which the upstream trusts", "trust_forwarded: {from: [192.0.2.0/24]}\n", "192.0.2.1:1", request{"198.51.100.7", "198.51.100.7, 192.0.2.1"}},
		{"one that the upstream alone trusts", "trust_forwarded: {from: [192.0.2.0/24, 203.0.113.0/24]}\n", "203.0.113.1:1", request{"203.0.113.1", "198.51.100.7, 203.0.113.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("f", []byte(text+tt.lines), noEnv)
			noError(t, err)
			store, err := memory.New(memory.Config{})
			noError(t, err)
			guard, err := semel.New(semel.Config{Store: store})
			noError(t, err)
			spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{})
			noError(t, err)
			rt := &Runtime{Guard: guard, Spools: spools}
			defer rt.Close()
			built, err := c.Build(rt)
			noError(t, err)
			defer func() { noError(t, built.Close()) }()
			last = request{}
			r := httptest.NewRequest(http.MethodPost, "/p", strings.NewReader("{}"))
			r.RemoteAddr = tt.from
			r.Header = http.Header{"Authorization": {"Bearer x"}, "Idempotency-Key": {"k"}, "X-Forwarded-For": {"198.51.100.7"}}
			rec := httptest.NewRecorder()
			built.ServeHTTP(rec, r)
			if rec.Code != http.StatusOK || last != tt.want {
				t.Errorf("answered %d, seen %+v, want %+v", rec.Code, last, tt.want)
			}
		})
	}
}
