package plan

import (
	"bytes"
	"reflect"

	"github.com/semelhq/semel/internal/strict"
)

// The rules in the tags of the plan's types are those that JSON Schema can say
// as well. They are checked where a value is written; a zero value in a plan
// made in Go counts as not written.

var forms = map[string]strict.Form{
	"label":     strict.NewForm(`^[A-Za-z0-9][A-Za-z0-9 ._/-]*$`, "letters, digits, spaces and . _ / -"),
	"operation": strict.NewForm(`^[A-Za-z0-9][A-Za-z0-9._-]*$`, "letters, digits and . _ -"),
	"variable":  strict.NewForm(`^[a-z][a-z0-9_]*$`, "a name in lower case: letters, digits and _"),
	"header":    strict.NewForm("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", "a header name"),
	"cookie":    strict.NewForm("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", "a cookie name"),
	"graphql":   strict.NewForm(`^[_A-Za-z][_0-9A-Za-z]*$`, "a GraphQL name: letters, digits and _"),
	"method":    strict.NewForm(`^[A-Z]+$`, "a method in capitals"),
	"address":   strict.NewForm(`^[^/?#@ ]+:[0-9]{1,5}$`, "host:port"),
	"base64":    strict.NewForm(`^[A-Za-z0-9+/\n]*={0,2}\n?$`, "standard base64"),
	"pointer":   strict.NewForm(`^(/([^~/]|~[01])*)*$`, "a JSON pointer: empty, or beginning with /"),
	"member":    strict.NewForm(`^(/([^~/]|~[01])*)+$`, "a JSON pointer to a member, beginning with /"),
}

var (
	pairsType  = reflect.TypeFor[Pairs]()
	headerType = reflect.TypeFor[Header]()
	jsonType   = reflect.TypeFor[JSON]()
)

// language is what a plan is written in.
var language = &strict.Language{
	Noun: "plan", MaxBytes: MaxBytes, MaxDepth: MaxDepth, Forms: forms,
	Kinds: map[reflect.Type]strict.Kind{
		pairsType:  {Decode: decodePairs, Check: checkPairs, Schema: pairsSchema},
		headerType: {Decode: decodeHeader, Check: checkPairs, Schema: headerSchema},
		jsonType: {
			Decode: func(d *strict.Decoder, n *strict.Node, v reflect.Value, _ strict.Rule, path string) {
				var b bytes.Buffer
				d.JSON(&b, n, path, quoteJSON)
				v.SetBytes(b.Bytes())
			},
			Check: func(_ *strict.Language, f *strict.Findings, v reflect.Value, _ strict.Rule, path string) {
				if _, err := compactJSON(v.Bytes()); err != nil {
					f.Add(path, "%v", err)
				}
			},
			Schema: func(strict.Rule) map[string]any { return map[string]any{} },
		},
		reflect.TypeFor[Experiment](): {Enum: experimentNames()},
	},
}

func experimentNames() (names []string) {
	for _, e := range Experiments() {
		names = append(names, string(e))
	}
	return names
}

func decodePairs(d *strict.Decoder, n *strict.Node, v reflect.Value, r strict.Rule, path string) {
	decodeMembers(d, n, v, r, path, false)
}

func decodeHeader(d *strict.Decoder, n *strict.Node, v reflect.Value, r strict.Rule, path string) {
	decodeMembers(d, n, v, r, path, true)
}

// decodeMembers reads strings by name; with lists, several of one name.
func decodeMembers(d *strict.Decoder, n *strict.Node, v reflect.Value, r strict.Rule, path string, lists bool) {
	var pairs []Pair
	d.Members(n, path, func(name string, value *strict.Node, at string) {
		if why := d.CheckString(name, strict.Rule{Names: r.Names}); why != "" {
			d.Add(at, "the name %s", why)
			return
		}
		values := []*strict.Node{value}
		if lists && strict.IsList(value) && d.Note(value, at) {
			if values = value.Content; len(values) == 0 {
				d.Add(at, "is empty")
			}
		}
		for _, e := range values {
			if !d.Note(e, at) {
				continue
			}
			if !strict.IsString(e) {
				d.Add(at, "must be a string; put it in quotes")
				continue
			}
			pairs = append(pairs, Pair{name, e.Value})
		}
	})
	v.Set(reflect.ValueOf(pairs).Convert(v.Type()))
}

func checkPairs(l *strict.Language, f *strict.Findings, v reflect.Value, r strict.Rule, path string) {
	for i := range v.Len() {
		name := v.Index(i).Field(0).String()
		if why := l.CheckString(name, strict.Rule{Names: r.Names}); why != "" {
			f.Add(strict.Join(path, name), "the name %s", why)
		}
	}
}

func pairsSchema(r strict.Rule) map[string]any {
	s := map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
	if f, ok := forms[r.Names]; ok {
		s["propertyNames"] = map[string]any{"pattern": f.Pattern}
	}
	if r.Items > 0 {
		s["maxProperties"] = r.Items
	}
	if r.Required {
		s["minProperties"] = 1
	}
	return s
}

func headerSchema(r strict.Rule) map[string]any {
	text := map[string]any{"type": "string"}
	s := pairsSchema(r)
	s["additionalProperties"] = map[string]any{"anyOf": []any{text, map[string]any{"type": "array", "items": text, "minItems": 1}}}
	return s
}
