package plan

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzTemplate: what parses can be drawn and rendered, twice the same.
func FuzzTemplate(f *testing.F) {
	f.Add(`a {{uuid}} {{.run | url}} {{"{{"}} {{hex 3}} {{digits 12 | base64}} {{now "unix"}} {{seq}}`)
	f.Fuzz(func(t *testing.T, s string) {
		p := &Plan{
			Version: 1, Name: "p", Target: Target{Production: new(false)},
			Operations: []Operation{{Name: "o", Request: Request{Method: "POST", URL: "http://x/", Body: &Body{Text: &s}}}},
		}
		r, err := NewRenderer(p, source1(1))
		if err != nil {
			return
		}
		v, err := r.Draw("o")
		if err != nil {
			t.Fatalf("a valid template cannot be drawn: %v", err)
		}
		first, err := r.Request(v, Change{})
		if err != nil {
			t.Fatalf("a valid template cannot be rendered: %v", err)
		}
		if again, _ := r.Request(v, Change{}); string(again.Body) != string(first.Body) {
			t.Errorf("rendered twice: %q, %q", first.Body, again.Body)
		}
	})
}

// FuzzJSONEdit: what is edited is valid JSON, with the value where it should be.
func FuzzJSONEdit(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b~/":2}]}`), "/a/1/b~0~1")
	f.Fuzz(func(t *testing.T, doc []byte, pointer string) {
		if !forms["pointer"].Match(pointer) {
			return
		}
		if _, err := compactJSON(doc); err != nil {
			return
		}
		for _, edit := range []func([]byte, Pointer, []byte) ([]byte, error){replaceJSON, insertJSON} {
			if pointer == "" {
				continue
			}
			out, err := edit(doc, Pointer(pointer), []byte(`"new"`))
			if err != nil {
				continue
			}
			start, end, _, err := findJSON(out, Pointer(pointer))
			if err != nil || string(out[start:end]) != `"new"` || !jsontext.Value(out).IsValid() {
				t.Errorf("%s in %s: %s, %v", pointer, doc, out, err)
			}
		}
	})
}
