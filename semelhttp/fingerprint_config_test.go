package semelhttp

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"

	"github.com/semelhq/semel"
)

func TestFingerprintFramingOfSelections(t *testing.T) {
	for _, tc := range []struct {
		config       FingerprintConfig
		header       http.Header
		scheme, want string
	}{
		{
			FingerprintConfig{Exclude: []string{"/b", "/c/0", "/d/x"}},
			nil,
			"request/2-9dde92c602ed1909", "j\x10application/json" + `{"a":1,"c":[2,{"y":1,"z":2}],"d":{"y":2},"e":3}`,
		},
		{
			FingerprintConfig{Include: []string{"/e", "/c/2", "/f"}, Headers: []string{"x-b", "X-A"}},
			http.Header{"X-B": {"1", "2"}},
			"request/2-430ae4fd55ca3551", "\x00\x02\x011\x012" + "j\x10application/json\x01{\"y\":1,\"z\":2}\x013\x00",
		},
	} {
		f := fingerprinter(t, tc.config)
		r := jsonRequest(`{"e":3,"d":{"y":2,"x":1},"b":[],"c":[1,2,{"z":2,"y":1}],"a":1}`)
		r.header = tc.header
		want := "\x04POST\x07/orders\x00" + tc.want
		if got := r.fingerprint(t, f); got != (semel.Fingerprint{Scheme: tc.scheme, Sum: sha256.Sum256([]byte(want))}) {
			t.Errorf("%+v: scheme %s, or the digest is not that of %q", tc.config, got.Scheme, want)
		}
	}
}

// Others have failed here: the fingerprint held an id made anew for each try, so no retry ever
// matched.
func TestGeneratedIDCanBeExcluded(t *testing.T) {
	a, b := jsonRequest(`{"item":"x","request":{"id":"1","at":1}}`), jsonRequest(`{"request":{"at":2,"id":"2"},"item":"x"}`)
	wantDifferent(t, fingerprinter(t, FingerprintConfig{}), a, b)
	f := fingerprinter(t, FingerprintConfig{Exclude: []string{"/request/id", "/request/at"}})
	wantSame(t, f, a, b)
	wantDifferent(t, f, a, jsonRequest(`{"request":{"at":2,"id":"2"},"item":"y"}`))
	wantDifferent(t, f, a, jsonRequest(`{"request":{"at":2,"id":"2","x":1},"item":"x"}`))
}

func TestFingerprintInclude(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Include: []string{"/amount", "/to/account", "/items/1"}})
	base := jsonRequest(`{"amount":1,"to":{"account":"x","name":"n"},"items":[1,{"a":1,"b":2},3]}`)
	for _, same := range []string{
		`{"to":{"account":"x"},"amount":1,"items":[0,{"b":2,"a":1}]}`,
		`{"items":[{},{"a":1,"b":2}],"note":{"z":1,"a":[]},"amount":1,"to":{"z":{"account":1},"account":"x"}}`,
	} {
		wantSame(t, f, base, jsonRequest(same))
	}
	for _, other := range []string{
		`{"amount":2,"to":{"account":"x"},"items":[0,{"b":2,"a":1}]}`,
		`{"amount":1,"to":{"account":"y"},"items":[0,{"b":2,"a":1}]}`,
		`{"amount":1,"to":{"account":"x"},"items":[0,{"b":2}]}`,
		`{"amount":1,"to":{"account":"x"},"items":[0,{"b":2,"a":1,"c":null}]}`,
		`{"amount":1,"to":{"account":"x"},"items":{"1":{"b":2}}}`,
	} {
		wantDifferent(t, f, base, jsonRequest(other))
	}
	// Objects before the one that is pointed at, in the same array.
	wantSame(
		t, f,
		jsonRequest(`{"items":[{"b":{"d":1,"c":2},"a":1},{"b":{"d":1,"c":2},"a":1},{"b":1,"a":2}]}`),
		jsonRequest(`{"items":[{"z":{}},{"a":1,"b":{"c":2,"d":1}}]}`),
	)
	whole := fingerprinter(t, FingerprintConfig{Include: []string{""}})
	wantSame(t, whole, jsonRequest(`{"b":1,"a":2}`), jsonRequest(`{"a":2,"b":1}`))
	wantDifferent(t, whole, jsonRequest(`{"b":1,"a":2}`), jsonRequest(`{"a":2,"b":2}`))
}

func TestFingerprintIncludedValueMissing(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Include: []string{"/a", "/b/0"}})
	missing := []string{`{"c":1}`, `{}`, `[]`, `1`, `{"b":[]}`, `{"b":1}`, `{"b":{}}`, `null`}
	for _, m := range missing {
		wantSame(t, f, jsonRequest(missing[0]), jsonRequest(m))
	}
	for _, there := range []string{`{"a":null}`, `{"a":0}`, `{"a":{}}`, `{"b":[null]}`, `{"a":null,"b":[null]}`, `{"b":{"0":null},"a":0}`} {
		wantDifferent(t, f, jsonRequest(missing[0]), jsonRequest(there))
	}
	wantDifferent(t, f, jsonRequest(`{"a":1}`), jsonRequest(`{"b":[1]}`)) // which one is missing counts
	wantDifferent(t, f, jsonRequest(`{"a":12}`), jsonRequest(`{"a":1,"b":[2]}`))
	wantDifferent(t, f, jsonRequest(`{"a":12,"b":[3]}`), jsonRequest(`{"a":1,"b":[23]}`))
}

func TestFingerprintExclude(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Exclude: []string{"/at", "/meta/id", "/items/1/x", "/items/2", "/e~1~0\"é"}})
	base := jsonRequest(`{"a":1,"at":5,"meta":{"id":1,"k":2},"items":[{"x":1},{"x":1,"y":2},3,4]}`)
	for _, same := range []string{
		`{"items":[{"x":1},{"y":2},"other",4],"meta":{"k":2},"a":1}`,
		`{"a":1,"meta":{"k":2,"id":[{}]},"items":[{"x":1},{"y":2,"x":{}},{},4],"at":{"b":1,"a":2}}`,
		`{"e\/~\"\u00e9":1,"a":1,"meta":{"id":1,"k":2},"items":[{"x":1},{"x":1,"y":2},3,4]}`,
	} {
		wantSame(t, f, base, jsonRequest(same))
	}
	for _, other := range []string{
		`{"a":1,"meta":{"id":1,"k":3},"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":{"id":1,"k":2,"at":1},"items":[{"x":1},{"y":2},3,4]}`, // /meta/at is not /at
		`{"a":1,"meta":{"id":1,"k":2},"items":[{"x":2},{"y":2},3,4]}`,
		`{"a":1,"meta":{"id":1,"k":2},"items":[{"x":1},{"y":2},4]}`, // elements keep their places
		`{"a":1,"meta":{"id":1,"k":2},"items":[{"x":1},{"y":3},3,4]}`,
		`{"a":1,"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":{},"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":[],"items":[{"x":1},{"y":2},3,4]}`,
		`{"a":1,"meta":2,"items":[{"x":1},{"y":2},3,4]}`,
	} {
		wantDifferent(t, f, base, jsonRequest(other))
	}
	// A pointer inside an excluded value adds nothing, whichever comes first.
	g := fingerprinter(t, FingerprintConfig{Exclude: []string{"/a/b", "/a"}})
	wantSame(t, g, jsonRequest(`{"a":{"b":1,"c":1},"d":1}`), jsonRequest(`{"d":1,"a":2}`))
	// A name that merely looks like an index, and an index with a leading zero.
	h := fingerprinter(t, FingerprintConfig{Exclude: []string{"/0", "/01"}})
	wantSame(t, h, jsonRequest(`{"0":1,"01":1,"1":1}`), jsonRequest(`{"1":1}`))
	wantDifferent(t, h, jsonRequest(`[1,2]`), jsonRequest(`[1,3]`))
	wantSame(t, h, jsonRequest(`[1,2]`), jsonRequest(`[{},2]`))
	wantSame(t, h, jsonRequest(`[1]`), jsonRequest(`[]`))
	wantDifferent(t, h, jsonRequest(`[1,12,3]`), jsonRequest(`[1,1,23]`))
	wantDifferent(t, h, jsonRequest(`[1,{}]`), jsonRequest(`[{}]`))
	i := fingerprinter(t, FingerprintConfig{Exclude: []string{"/1", "/2"}})
	wantSame(t, i, jsonRequest(`[1]`), jsonRequest(`[1,2,3]`))
	wantSame(t, i, jsonRequest(`[1,[],{},4]`), jsonRequest(`[1,2,3,4]`))
	wantDifferent(t, i, jsonRequest(`[1,2,3]`), jsonRequest(`[1,2,3,4]`))
	wantDifferent(t, i, jsonRequest(`[1]`), jsonRequest(`[]`))
	// Documents that are not canonical take part whole.
	wantDifferent(t, f, jsonRequest(`{"at":1,"a":1,"a":1}`), jsonRequest(`{"at":2,"a":1,"a":1}`))
	wantDifferent(t, f, request{body: `{"at":1}`}, request{body: `{"at":2}`})
}

func TestFingerprintIncludeThenExclude(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Include: []string{"/order"}, Exclude: []string{"/order/at", "/order/lines/0/id"}})
	base := jsonRequest(`{"order":{"at":1,"lines":[{"id":1,"n":2}],"x":1},"y":1}`)
	wantSame(t, f, base, jsonRequest(`{"y":2,"order":{"x":1,"lines":[{"n":2,"id":9}],"at":2}}`))
	wantDifferent(t, f, base, jsonRequest(`{"y":2,"order":{"x":1,"lines":[{"n":3,"id":9}],"at":2}}`))
	wantDifferent(t, f, base, jsonRequest(`{"y":2,"order":{"x":1,"lines":[{"n":2},{"id":9}],"at":2}}`))
}

func TestFingerprintHeaders(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Headers: []string{"x-api-version", "X-Mode", "x-api-VERSION"}})
	with := func(h http.Header) request { return request{header: h, body: "b"} }
	base := with(http.Header{"X-Api-Version": {"1", "2"}})
	wantSame(t, f, base, with(http.Header{"X-Api-Version": {"1", "2"}, "X-Other": {"1"}}))
	for _, h := range []http.Header{
		{"X-Api-Version": {"2", "1"}},
		{"X-Api-Version": {"1"}},
		{"X-Api-Version": {"1, 2"}},
		{"X-Api-Version": {"12", ""}},
		{"X-Mode": {"1", "2"}},
		{"X-Api-Version": {"1", "2"}, "X-Mode": {""}},
		{},
	} {
		wantDifferent(t, f, base, with(h))
	}
}

func TestFingerprintJSONModeIgnoresTheType(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Mode: FingerprintJSON})
	for _, ct := range []string{"", "text/plain", "text/plain; charset=latin1", "multipart/form-data"} {
		wantSame(t, f, request{contentType: ct, body: `{"a":1,"b":2}`}, request{contentType: ct, body: `{"b":2, "a":1}`})
	}
	wantDifferent(t, f, request{body: "{"}, request{body: "{ "})
}

func TestFingerprintRawMode(t *testing.T) {
	f := fingerprinter(t, FingerprintConfig{Mode: FingerprintRaw})
	wantDifferent(t, f, jsonRequest(`{"a":1,"b":2}`), jsonRequest(`{"b":2,"a":1}`))
	wantSame(t, f, jsonRequest(`{"a":1,"b":2}`), jsonRequest(`{"a":1,"b":2}`))
}

// A changed configuration must not turn the retries under way into mismatches.
func TestFingerprintsOfOtherConfigurationsAreNotCompared(t *testing.T) {
	configs := []FingerprintConfig{
		{},
		{Mode: FingerprintRaw},
		{Mode: FingerprintJSON},
		{Include: []string{"/a"}},
		{Exclude: []string{"/a"}},
		{Include: []string{"/a", "/b"}},
		{Exclude: []string{"/a", "/b"}},
		{Headers: []string{"A"}},
		{Headers: []string{"A", "B"}},
	}
	r := jsonRequest(`{"a":1,"b":2}`)
	seen := map[string]bool{}
	for i, c := range configs {
		f := fingerprinter(t, c)
		if seen[f.Scheme()] || !strings.HasPrefix(f.Scheme(), SchemeHTTP) || (f.Scheme() == SchemeHTTP) != (i == 0) {
			t.Errorf("%+v has scheme %q", c, f.Scheme())
		}
		seen[f.Scheme()] = true
		for _, other := range configs[:i] {
			if r.fingerprint(t, f).Differs(r.fingerprint(t, fingerprinter(t, other))) {
				t.Errorf("%+v and %+v were compared", c, other)
			}
		}
	}
	// The order of a list and repetitions in it say nothing.
	a := fingerprinter(t, FingerprintConfig{Include: []string{"/a", "/b"}, Exclude: []string{"/a/d", "/a/c"}, Headers: []string{"a", "B"}})
	b := fingerprinter(t, FingerprintConfig{Include: []string{"/b", "/a", "/b"}, Exclude: []string{"/a/c", "/a/d"}, Headers: []string{"b", "A", "b"}})
	if a.Scheme() != b.Scheme() || r.fingerprint(t, a) != r.fingerprint(t, b) {
		t.Error("the order of settings counted")
	}
}

func TestFingerprintConfigValidate(t *testing.T) {
	c := FingerprintConfig{
		Mode:    9,
		Include: []string{"a", "/a/~", "/a/~2", "/ok"},
		Exclude: []string{"", "/ok", "/elsewhere", "/\xff"},
		Headers: []string{
			"", "a b", "Traceparent", "tracestate", "X-B3-TraceId", "Idempotency-Key", "authorization", "Cookie", "Connection", "date", "Host", "X-Fine",
		},
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"mode 9", `"a" is not a JSON pointer`, `"/a/~" is not`, `"/a/~2" is not`, `exclude "" would`, `include "/ok" lies within exclude "/ok"`,
		`"/elsewhere" lies outside`, "UTF-8", `"" is not a header name`, `"a b" is not a header name`, "Traceparent", "tracestate", "X-B3-TraceId",
		"Idempotency-Key", "authorization", "Cookie", "Connection", "date", "Host",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "X-Fine") {
		t.Errorf("a good header was refused:\n%v", err)
	}
	if err := (FingerprintConfig{Mode: FingerprintRaw, Exclude: []string{"/a"}}).Validate(); err == nil {
		t.Error("pointers were accepted for raw bodies")
	}
	if err := (FingerprintConfig{Include: []string{"/a"}, Exclude: []string{"/ab"}}).Validate(); err == nil {
		t.Error("/ab was taken to lie within /a")
	}
	for _, ok := range []FingerprintConfig{{}, {Include: []string{"", "/", "/a~0~1"}}, {Exclude: []string{"/", "/-", "/a//b"}}, {Include: []string{"/a"}, Exclude: []string{"/a/b"}}} {
		if err := ok.Validate(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
}
