package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/internal/strict"
)

var update = flag.Bool("update", false, "write schema.json anew")

// schemaOf says in JSON Schema what the types, tags and comments of plan.go say
// in Go.
func schemaOf(t *testing.T) []byte {
	t.Helper()
	text, err := language.Schema(reflect.TypeFor[Plan](), comments(t), "https://github.com/semelhq/semel/probe/plan/schema.json", "semel probe plan")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func comments(t *testing.T) map[string]string {
	t.Helper()
	docs, err := strict.Comments("plan.go", "reader.go", "experiment.go")
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// TestSchemaIsOfTheTypes fails when schema.json is not what the types say. Run
// it with -update to write the file anew.
func TestSchemaIsOfTheTypes(t *testing.T) {
	want := schemaOf(t)
	if *update {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(Schema(), want) {
		t.Error("schema.json is not of these types: go test -run TestSchemaIsOfTheTypes -update")
	}
	got := Schema()
	got[0] = 'x'
	if bytes.Equal(got, Schema()) {
		t.Error("a caller can change the schema of others")
	}
}

// TestEveryFieldIsDescribed: an editor shows the descriptions.
func TestEveryFieldIsDescribed(t *testing.T) {
	docs := comments(t)
	for name, d := range schemaDefs(t) {
		for key, p := range d["properties"].(map[string]any) {
			if _, ok := p.(map[string]any)["description"]; !ok && docs[name] == "" {
				t.Errorf("%s.%s has no description, and nor has %s", name, key, name)
			}
		}
	}
}

func schemaDefs(t *testing.T) map[string]map[string]any {
	t.Helper()
	var top map[string]any
	if err := json.Unmarshal(Schema(), &top); err != nil {
		t.Fatal(err)
	}
	defs := map[string]map[string]any{"Plan": top}
	for name, d := range top["$defs"].(map[string]any) {
		defs[name] = d.(map[string]any)
	}
	return defs
}

// compiled returns the published schema, as an independent validator reads it.
func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("plan.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("plan.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// form returns what the decoder says of a plan's form.
func decoded(data []byte) []*Problem {
	found := &problems{Source: strict.NewSource("")}
	language.Decode(found, data, new(Plan))
	return found.List
}

func example(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tree returns a plan as a JSON Schema validator wants it.
func tree(t testing.TB, data []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	v, err = jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestExamplesAreValid(t *testing.T) {
	s := compiled(t)
	for _, name := range []string{"orders.yaml", "full.yaml"} {
		data := example(t, name)
		if _, err := Parse(name, data); err != nil {
			t.Errorf("the decoder refuses it:\n%v", err)
		}
		if err := s.Validate(tree(t, data)); err != nil {
			t.Errorf("%s: the schema refuses it: %v", name, err)
		}
	}
}

// TestFullIsFull: what full.yaml does not use, TestSchemaAgrees does not test.
func TestFullIsFull(t *testing.T) {
	used := map[string]bool{}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch {
		case v.Kind() == reflect.Pointer && !v.IsNil():
			walk(v.Elem())
		case v.Kind() == reflect.Slice && v.Type() != jsonType:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case v.Kind() == reflect.Struct:
			list, _, _ := strict.FieldsOf(v.Type())
			for _, f := range list {
				if fv := v.FieldByIndex(f.Index); !fv.IsZero() {
					used[v.Type().Name()+"."+f.Key] = true
					walk(fv)
				}
			}
		}
	}
	p := new(Plan)
	language.Decode(&problems{Source: strict.NewSource("")}, example(t, "full.yaml"), p)
	walk(reflect.ValueOf(p).Elem())
	for name, def := range schemaDefs(t) {
		for key := range def["properties"].(map[string]any) {
			at := name + "." + key
			if at == "Hook.command" { // one hook is either
				continue
			}
			if !used[at] {
				t.Errorf("full.yaml does not use %s", at)
			}
		}
	}
}

// TestSchemaAgrees changes every single value of a full plan in every way that
// could matter to its form, and asks the decoder and an independent validator
// of the published schema: they have to be of one opinion.
func TestSchemaAgrees(t *testing.T) {
	quick.LeaveOut(t)
	s := compiled(t)
	root := tree(t, example(t, "full.yaml"))
	valid, refused := 0, 0
	compare := func(what string) {
		text, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		bySchema := s.Validate(root)
		byDecoder := decoded(text)
		if (bySchema == nil) != (len(byDecoder) == 0) {
			t.Errorf("%s:\n the decoder: %v\n the schema: %v", what, byDecoder, bySchema)
		}
		if bySchema == nil {
			valid++
		} else {
			refused++
		}
	}
	compare("nothing changed")

	long := strings.Repeat("x", 20000)
	many := make([]any, 101)
	for i := range many {
		many[i] = json.Number("200")
	}
	lots := map[string]any{}
	for i := range 101 {
		lots["a"+strconv.Itoa(i)] = "x"
	}
	values := []any{
		nil, true, json.Number("0"), json.Number("1"), json.Number("7"), json.Number("-1"), json.Number("1.5"), json.Number("99999999"),
		"", "x", "zz zz", "POST", "duplicate", "actor_b", "bare", "a:1", "AA==", "=", "5s", "5 s", "1h30m", "-5s", "/a", "/a~", "a/b", long,
		[]any{},
		[]any{"x"},
		[]any{json.Number("200")},
		[]any{nil},
		[]any{""},
		[]any{map[string]any{}},
		many,
		map[string]any{},
		map[string]any{"a": "x"},
		map[string]any{"a": json.Number("1")},
		map[string]any{"A b": "x"},
		map[string]any{"": "x"},
		map[string]any{"a": []any{}},
		map[string]any{"a": []any{"x"}},
		map[string]any{"a": []any{json.Number("1")}},
		map[string]any{"/a": "x"},
		lots,
	}
	indices := regexp.MustCompile(`\[\d+\]`)
	seen := map[string]bool{}
	var visit func(v any, path string, set func(any))
	visit = func(v any, path string, set func(any)) {
		// One element of a list stands for all; within a free value all is free.
		kind := indices.ReplaceAllString(path, "[]")
		if _, isMap := v.(map[string]any); seen[kind] && !isMap || strings.Contains(path, ".json.") {
			return
		}
		first := !seen[kind]
		seen[kind] = true
		for i, other := range values {
			if !first {
				break
			}
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
			// What is given in one of several ways, given in two.
			for _, key := range []string{"text", "base64", "file", "query", "header", "body", "count", "value", "pattern", "log", "command", "edits", "graphql", "lines", "number", "next", "cookie"} {
				if _, ok := v[key]; !ok {
					v[key] = "x"
					compare(path + " with " + key)
					delete(v, key)
				}
			}
		case []any:
			for i := range v {
				old := v[i]
				visit(old, path+"["+strconv.Itoa(i)+"]", func(n any) { v[i] = n })
			}
		}
	}
	// In small plans, each with a part of the full one.
	full := root.(map[string]any)
	operations := full["operations"].([]any)
	small := map[string]any{"name": "x", "request": map[string]any{"method": "POST", "url": "http://x"}}
	rest := maps.Clone(full)
	rest["operations"] = []any{small}
	parts := []any{rest}
	for _, op := range operations {
		parts = append(parts, map[string]any{
			"version": full["version"], "name": "x", "target": map[string]any{"production": true}, "operations": []any{op},
		})
	}
	for _, part := range parts {
		root = part
		compare("a part")
		visit(root, "", func(n any) { root = n })
		compare("everything put back")
	}
	if valid < 500 || refused < 2500 {
		t.Errorf("only %d valid and %d refused plans: the comparison says little", valid, refused)
	}
	t.Logf("%d valid and %d refused plans", valid, refused)
}
