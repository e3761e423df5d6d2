package semelhttp

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/semelhq/semel"
)

func TestDefaultOperation(t *testing.T) {
	long := "/" + strings.Repeat("a", 250) // one byte over with "POST "
	for _, tc := range []struct{ path, want string }{
		{"/orders", "POST /orders"},
		{"", "POST "},
		{"/" + strings.Repeat("a", 249), "POST /" + strings.Repeat("a", 249)},
		{"/é", "POST /é"},
		{"/a\nb", "POST /a%0Ab"},
		{"/\xff", "POST /%FF"},
	} {
		if got := defaultOperation(&http.Request{Method: "POST", URL: &url.URL{Path: tc.path}}); got != tc.want {
			t.Errorf("%q: got %q; want %q", tc.path, got, tc.want)
		}
	}
	seen := map[string]string{}
	for _, path := range []string{long, long + "b", strings.Repeat("/é", 200), strings.Repeat("/é", 200) + "b", "a" + strings.Repeat("é", 200), strings.Repeat("\n", 200)} {
		op := defaultOperation(&http.Request{Method: "POST", URL: &url.URL{Path: path}})
		if other, ok := seen[op]; ok {
			t.Errorf("%q and %q are both %q", path, other, op)
		}
		seen[op] = path
		id := semel.Identity{Scope: semel.Scope{Operation: op}, Key: "k"}
		if err := id.Validate(); err != nil {
			t.Errorf("%q: %v", path, err)
		}
		if len(op) < semel.MaxScopePartBytes-3 {
			t.Errorf("%q: shortened to %d bytes, more than needed", path, len(op))
		}
	}
}

func TestDefaultOrigin(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	for _, tc := range []struct{ name, requestID, traceparent, wantRequest, wantTrace string }{
		{name: "both", requestID: "req-1", traceparent: "00-" + id + "-b7ad6b7169203331-01", wantRequest: "req-1", wantTrace: id},
		{name: "long request id", requestID: strings.Repeat("r", 129), wantRequest: strings.Repeat("r", 128)},
		{name: "control character", requestID: "a\x1bb"},
		{name: "space", requestID: "a b"},
		{name: "not ASCII", requestID: "é"},
		{name: "upper case", traceparent: "00-" + strings.ToUpper(id) + "-b7ad6b7169203331-01"},
		{name: "no trace", traceparent: "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01"},
		{name: "no parent", traceparent: "00-" + id + "-0000000000000000-01"},
		{name: "version ff", traceparent: "ff-" + id + "-b7ad6b7169203331-01"},
		{name: "version 00 with more", traceparent: "00-" + id + "-b7ad6b7169203331-01-x"},
		{name: "later version with more", traceparent: "cc-" + id + "-b7ad6b7169203331-01-x", wantTrace: id},
		{name: "later version run on", traceparent: "cc-" + id + "-b7ad6b7169203331-01x"},
		{name: "short", traceparent: "00-" + id + "-b7ad6b7169203331-0"},
		{name: "dash missing", traceparent: "00-" + id + "xb7ad6b7169203331-01"},
	} {
		r := &http.Request{Header: http.Header{}}
		if tc.requestID != "" {
			r.Header.Set("X-Request-Id", tc.requestID)
		}
		if tc.traceparent != "" {
			r.Header.Set("Traceparent", tc.traceparent)
		}
		if got := DefaultOrigin(r); got.RequestID != tc.wantRequest || got.TraceID != tc.wantTrace {
			t.Errorf("%s: got %+v", tc.name, got)
		}
	}
	twice := &http.Request{Header: http.Header{"Traceparent": {"00-" + id + "-b7ad6b7169203331-01", "00-" + id + "-b7ad6b7169203331-01"}}}
	if got := DefaultOrigin(twice); got.TraceID != "" {
		t.Errorf("of two lines: got %+v", got)
	}
}

func FuzzTraceID(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more")
	f.Fuzz(func(t *testing.T, s string) {
		if id := traceID(s); id != "" && (len(id) != 32 || !isLowerHex(id) || !strings.Contains(s, id)) {
			t.Errorf("got %q", id)
		}
	})
}
