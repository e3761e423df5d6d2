package semelhttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// Others have failed here: the order of JSON members made the same request another one.
func TestJSONMemberOrderAndWhiteSpace(t *testing.T) {
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
