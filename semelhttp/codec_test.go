package semelhttp

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func TestHeadEncoding(t *testing.T) {
	got := EncodeHead(201, http.Header{"B": {"1", ""}, "A": nil}, http.Header{"T": {"x"}})
	// The encoding of records already stored: a change needs another version.
	want := "\x02\xc9\x01" + "\x02" + "\x01A\x00" + "\x01B\x02\x011\x00" + "\x00" + "\x01" + "\x01T\x01\x01x"
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHeadRoundTrip(t *testing.T) {
	for name, tc := range map[string]struct {
		status          int
		header, trailer http.Header
	}{
		"nothing":         {200, http.Header{}, nil},
		"values in order": {200, http.Header{"A": {"3", "1", "2", "1"}}, nil},
		"empty value":     {299, http.Header{"A": {""}}, nil},
		"suppressed":      {999, http.Header{"Content-Type": nil}, nil},
		"not canonical":   {404, http.Header{"x-a": {"1"}, "X-A": {"2"}, "": {"3"}}, nil},
		"any bytes":       {500, http.Header{"A": {"\x00\xff\r\n", "é"}}, nil},
		"trailer":         {200, http.Header{"A": {"1"}}, http.Header{"T": {"1", "2"}, "A": {"3"}}},
		"long":            {200, http.Header{"A": {strings.Repeat("x", 100_000)}, "B": slices.Repeat([]string{"v"}, 1000)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			status, header, trailer, err := DecodeHead(EncodeHead(tc.status, tc.header, tc.trailer))
			if err != nil || status != tc.status || !reflect.DeepEqual(header, tc.header) || !reflect.DeepEqual(trailer, tc.trailer) {
				t.Errorf("got %d %q %q, %v", status, header, trailer, err)
			}
		})
	}
}

func TestDecodeHeadRefuses(t *testing.T) {
	good := EncodeHead(200, http.Header{"A": {"1", "2"}, "B": {"3"}}, http.Header{"T": {"x"}})
	for n := range len(good) {
		wantBadHead(t, good[:n])
	}
	wantBadHead(t, append(bytes.Clone(good), 0))
	for name, b := range map[string]string{
		"no version":            "\x00\xc8\x01\x00\x00\x00",
		"earlier version":       "\x01\xc8\x01\x00\x00\x00",
		"later version":         "\x03\xc8\x01\x00\x00\x00",
		"status 0":              "\x02\x00\x00\x00\x00",
		"status 101":            "\x02\x65\x00\x00\x00",
		"status 1000":           "\x02\xe8\x07\x00\x00\x00",
		"names out of order":    "\x02\xc8\x01\x02\x01B\x00\x01A\x00\x00\x00",
		"name twice":            "\x02\xc8\x01\x02\x01A\x00\x01A\x00\x00\x00",
		"empty name twice":      "\x02\xc8\x01\x02\x00\x00\x00\x00\x00\x00",
		"endless number":        "\x02\xc8\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
		"names beyond the end":  "\x02\xc8\x01\xff\xff\xff\xff\x0f",
		"values beyond the end": "\x02\xc8\x01\x01\x01A\xff\xff\xff\xff\x07",
		"string beyond the end": "\x02\xc8\x01\x01\x01A\x01\xff\xff\xff\xff\x07x\x00\x00",
		"string by one too far": "\x02\xc8\x01\x01\x01A\x01\x02x",
	} {
		t.Run(name, func(t *testing.T) { wantBadHead(t, []byte(b)) })
	}
}

func wantBadHead(t *testing.T, b []byte) {
	t.Helper()
	status, header, trailer, err := DecodeHead(b)
	if !errors.Is(err, ErrBadHead) || status != 0 || header != nil || trailer != nil {
		t.Errorf("%q: got %d %q %q, %v", b, status, header, trailer, err)
	}
}

// A head that claims to hold more than it does must not make the decoder take
// memory for it.
func TestDecodeHeadAllocatesInProportion(t *testing.T) {
	rest := strings.Repeat("\x00", 1<<20)
	for name, b := range map[string][]byte{
		"names":            []byte("\x02\xc8\x01\xff\xff\x1f" + rest),
		"values":           []byte("\x02\xc8\x01\x01\x01A\xf0\xff\x3f\xef\xff\x3f" + rest),
		"more than 4 GiB":  []byte("\x02\xc8\x01\x01\x01A\xff\xff\xff\xff\x0f" + rest),
		"values, again":    []byte("\x02\xc8\x01\x02\x01A\xf0\xff\x3f\xef\xff\x3f" + rest),
		"values by the MB": []byte("\x02\xc8\x01\x01\x01A\x80\x80\x40" + rest),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, _, err := DecodeHead(b)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrBadHead) {
				t.Error("accepted")
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 20*uint64(len(b)) {
				t.Errorf("%d bytes for a head of %d", got, len(b))
			}
		})
	}
}

func TestStoredHeader(t *testing.T) {
	h := http.Header{
		// Not recorded.
		"Connection":                {"close, X-Named", "x-also-named"},
		"X-Named":                   {"1"},
		"X-Also-Named":              {"1"},
		"Keep-Alive":                {"timeout=5"},
		"Proxy-Authenticate":        {"Basic"},
		"Proxy-Authorization":       {"x"},
		"Proxy-Authentication-Info": {"x"},
		"Proxy-Connection":          {"close"},
		"Te":                        {"trailers"},
		"Trailer":                   {"X-Sum"},
		"transfer-encoding":         {"chunked"},
		"Upgrade":                   {"h2c"},
		"Date":                      {"Tue, 15 Nov 1994 08:12:31 GMT"},
		"Idempotency-Replayed":      {"true"},
		"idempotency-expires":       {"x"},
		"Trailer:X-Late":            {"1"},
		// Recorded.
		"Content-Type":     {"text/plain"},
		"Content-Length":   {"3"},
		"Content-Encoding": {"gzip"},
		"Set-Cookie":       {"a=1", "b=2"},
		"Idempotency-Key":  {`"k"`}, // an upstream's echo is its own matter
		"Proxy-Status":     {"p; error=timeout"},
		"x-lower":          {"1"},
		"X-None":           nil,
	}
	before := h.Clone()
	got := StoredHeader(h)
	want := http.Header{
		"Content-Type": {"text/plain"}, "Content-Length": {"3"}, "Content-Encoding": {"gzip"}, "Set-Cookie": {"a=1", "b=2"},
		"Idempotency-Key": {`"k"`}, "Proxy-Status": {"p; error=timeout"}, "x-lower": {"1"}, "X-None": nil,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got["Set-Cookie"][0] = "changed"
	got["X-New"] = nil
	if !reflect.DeepEqual(h, before) {
		t.Error("the response's header changed with the stored one")
	}
}

func TestStoredTrailer(t *testing.T) {
	sent := http.Header{"Trailer": {"X-Sum, x-late", "X-Unset,X-Sum", "Content-Length, Trailer"}}
	final := http.Header{
		"Trailer": sent["Trailer"], "X-Sum": {"1", "2"}, "X-Late": {"3"}, "X-Header": {"4"}, "Content-Length": {"5"},
		http.TrailerPrefix + "X-Found-Late": {"6"}, http.TrailerPrefix + "Connection": {"7"},
	}
	want := http.Header{"X-Sum": {"1", "2"}, "X-Late": {"3"}, "X-Found-Late": {"6"}}
	if got := StoredTrailer(sent, final); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := StoredTrailer(http.Header{}, http.Header{"X-Sum": {"1"}}); got != nil {
		t.Errorf("got %q from a response without trailers", got)
	}
}

func TestEncodeResult(t *testing.T) {
	for name, tc := range map[string]struct {
		method string
		status int
		header http.Header
		body   string

		length    []string // Content-Length in the record
		wantBody  string
		reference string
		err       bool
	}{
		"no length":                     {status: 200, body: "hi", wantBody: "hi"},
		"right length is dropped":       {status: 200, header: http.Header{"Content-Length": {"2"}}, body: "hi", wantBody: "hi"},
		"zero length is dropped":        {status: 200, header: http.Header{"Content-Length": {"0"}}},
		"raw name":                      {status: 200, header: http.Header{"content-length": {"3"}}, body: "hi", err: true},
		"too short":                     {status: 200, header: http.Header{"Content-Length": {"3"}}, body: "hi", err: true},
		"too long":                      {status: 500, header: http.Header{"Content-Length": {"1"}}, body: "hi", err: true},
		"nothing came":                  {status: 200, header: http.Header{"Content-Length": {"3"}}, err: true},
		"not a number":                  {status: 200, header: http.Header{"Content-Length": {"x"}}, body: "hi", err: true},
		"two lengths":                   {status: 200, header: http.Header{"Content-Length": {"2", "3"}}, body: "hi", err: true},
		"HEAD keeps its length":         {method: "HEAD", status: 200, header: http.Header{"Content-Length": {"1234"}}, length: []string{"1234"}},
		"HEAD has no body":              {method: "HEAD", status: 200, header: http.Header{"Content-Length": {"4"}}, body: "hi", length: []string{"4"}},
		"304 keeps its length":          {status: 304, header: http.Header{"Content-Length": {"1234"}}, length: []string{"1234"}},
		"304 has no body":               {status: 304, body: "hi"},
		"204 has neither":               {status: 204, header: http.Header{"Content-Length": {"2"}}, body: "hi"},
		"created":                       {status: 201, header: http.Header{"Location": {"/orders/7"}}, reference: "/orders/7"},
		"see other":                     {status: 303, header: http.Header{"Location": {"/orders/7"}}, reference: "/orders/7"},
		"a redirect names no resource":  {status: 307, header: http.Header{"Location": {"/login"}}},
		"informational":                 {status: 103, err: true},
		"switching protocols":           {status: 101, err: true},
		"status that nobody could send": {status: 1000, err: true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.method == "" {
				tc.method = "POST"
			}
			r, err := EncodeResult(tc.method, tc.status, tc.header, nil, []byte(tc.body))
			if tc.err {
				if err == nil || !reflect.DeepEqual(r, semel.Result{}) {
					t.Fatalf("got %+v, %v", r, err)
				}
				if incomplete := tc.header != nil; incomplete != errors.Is(err, ErrIncompleteBody) {
					t.Fatal(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Codec != "http/1" || r.Label != strconv.Itoa(tc.status) || r.Tombstone || r.Reference != tc.reference || string(r.Body) != tc.wantBody {
				t.Errorf("got %+v", r)
			}
			status, header, _, err := DecodeHead(r.Head)
			if err != nil || status != tc.status || !slices.Equal(header["Content-Length"], tc.length) {
				t.Errorf("head is %d %q, %v", status, header, err)
			}
		})
	}
}

// replay records what handler answers, sends the record and returns both
// answers as a client sees them.
func replayed(t *testing.T, handler http.HandlerFunc) (first, second *http.Response, firstBody, secondBody string) {
	t.Helper()
	var result semel.Result
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			rec := httptest.NewRecorder()
			handler(rec, r)
			sent := rec.Result().Header // as of WriteHeader
			var err error
			if result, err = EncodeResult(r.Method, rec.Code, sent, StoredTrailer(sent, rec.Header()), rec.Body.Bytes()); err != nil {
				t.Error(err)
			}
			handler(w, r)
			return
		}
		status, header, trailer, err := DecodeHead(result.Head)
		if err != nil {
			t.Error(err)
		}
		maps.Copy(w.Header(), header)
		for name := range trailer {
			w.Header().Add("Trailer", name)
		}
		w.WriteHeader(status)
		if len(result.Body) > 0 {
			_, _ = w.Write(result.Body)
		}
		maps.Copy(w.Header(), trailer)
	}))
	defer srv.Close()
	transport := srv.Client().Transport.(*http.Transport)
	transport.DisableCompression = true // or it would decode the body and hide the coding
	get := func(path string) (*http.Response, string) {
		resp, err := transport.RoundTrip(httptest.NewRequest("POST", srv.URL+path, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
	first, firstBody = get("/first")
	second, secondBody = get("/second")
	first.Header.Del("Date")
	second.Header.Del("Date")
	if first.StatusCode != second.StatusCode || !reflect.DeepEqual(first.Header, second.Header) || !reflect.DeepEqual(first.Trailer, second.Trailer) || firstBody != secondBody {
		t.Errorf("replay differs:\n%d %q %q %q\n%d %q %q %q", first.StatusCode, first.Header, first.Trailer, firstBody, second.StatusCode, second.Header, second.Trailer, secondBody)
	}
	return first, second, firstBody, secondBody
}

// Others have failed here: two cookies became one, split or joined at the comma.
func TestSetCookieIsNotSplitAtCommas(t *testing.T) {
	cookies := []string{"a=1; Expires=Wed, 21 Oct 2065 07:28:00 GMT", "b=2; Path=/, c"}
	_, second, _, _ := replayed(t, func(w http.ResponseWriter, _ *http.Request) { w.Header()["Set-Cookie"] = cookies })
	if got := second.Header["Set-Cookie"]; !slices.Equal(got, cookies) {
		t.Errorf("got %q", got)
	}
}

// Others have failed here: of several values of a header only one was replayed.
func TestEveryValueOfAHeaderIsReplayed(t *testing.T) {
	links := []string{"</3>; rel=c", "</1>; rel=a", "</2>; rel=b", "</1>; rel=a"}
	_, second, _, _ := replayed(t, func(w http.ResponseWriter, _ *http.Request) { w.Header()["Link"] = links })
	if got := second.Header["Link"]; !slices.Equal(got, links) {
		t.Errorf("got %q", got)
	}
}

// Others have failed here: compressed bytes were replayed without their Content-Encoding.
func TestCompressedBodyKeepsItsContentEncoding(t *testing.T) {
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	_, _ = zw.Write([]byte("hello"))
	_ = zw.Close()
	_, second, _, body := replayed(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(b.Bytes())
	})
	if second.Header.Get("Content-Encoding") != "gzip" || body != b.String() {
		t.Errorf("got %q and %q", second.Header, body)
	}
}

// Others have failed here: Location and ETag were lost, and 201 replayed as 200.
func TestStatusLocationAndETagAreReplayed(t *testing.T) {
	_, second, _, body := replayed(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/orders/7")
		w.Header().Set("Etag", `"v1"`)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":7}`)
	})
	if second.StatusCode != 201 || second.Header.Get("Location") != "/orders/7" || second.Header.Get("Etag") != `"v1"` || body != `{"id":7}` {
		t.Errorf("got %d %q %q", second.StatusCode, second.Header, body)
	}
}

// Others have failed here: a truncated body was stored and sent as if whole.
func TestTruncatedBodyIsNotAResult(t *testing.T) {
	if r, err := EncodeResult("POST", 200, http.Header{"Content-Length": {"100"}}, nil, []byte("half")); !errors.Is(err, ErrIncompleteBody) || r.Head != nil || r.Body != nil {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Others have failed here: a result without a body looked like no result.
func TestAnEmptyResultIsAResult(t *testing.T) {
	for _, status := range []int{200, 201, 204, 304, 404} {
		_, second, _, body := replayed(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.WriteHeader(status)
		})
		if second.StatusCode != status || body != "" {
			t.Errorf("%d: got %d %q", status, second.StatusCode, body)
		}
		r, err := EncodeResult("POST", status, http.Header{}, nil, nil)
		if err != nil || len(r.Head) == 0 || r.Codec == "" {
			t.Errorf("%d: nothing is left of the result: %+v, %v", status, r, err)
		}
	}
}

// Others have failed here: trailers were lost.
func TestTrailersAreReplayed(t *testing.T) {
	_, second, _, body := replayed(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "body")
		w.Header()["X-Sum"] = []string{"1", "2"}
		w.Header()[http.TrailerPrefix+"X-Late"] = []string{"3"}
	})
	if want := (http.Header{"X-Sum": {"1", "2"}, "X-Late": {"3"}}); !reflect.DeepEqual(second.Trailer, want) || body != "body" {
		t.Errorf("got %q, %q", second.Trailer, body)
	}
}

// A handler that keeps net/http from adding a Content-Type must not get one in
// the replay.
func TestSuppressedContentTypeStaysAway(t *testing.T) {
	_, second, _, _ := replayed(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>")
	})
	if ct, ok := second.Header["Content-Type"]; ok {
		t.Errorf("Content-Type is %q", ct)
	}
}

// FuzzDecodeHead checks that what is accepted survives being encoded and
// decoded again, and that nothing makes the decoder panic.
func FuzzDecodeHead(f *testing.F) {
	f.Add(EncodeHead(200, http.Header{"A": {"1", "2"}, "B": nil, "": {""}}, http.Header{"T": {"x"}}))
	f.Add(EncodeHead(201, http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/7"}}, nil))
	f.Add(EncodeHead(204, nil, nil))
	f.Add([]byte("\x01\xc8\x01\xff\xff\xff\xff\x0f"))
	f.Add([]byte("\x01\xc8\x01\x01\x01A\x01\xff\xff\xff\xff\x07x\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		status, header, trailer, err := DecodeHead(b)
		if err != nil {
			if !errors.Is(err, ErrBadHead) || header != nil || trailer != nil || status != 0 {
				t.Fatalf("got %d %q %q, %v", status, header, trailer, err)
			}
			return
		}
		if header == nil || trailer != nil && len(trailer) == 0 || !isFinal(status) {
			t.Fatalf("got %d %q %q", status, header, trailer)
		}
		status2, header2, trailer2, err := DecodeHead(EncodeHead(status, header, trailer))
		if err != nil || status2 != status || !reflect.DeepEqual(header2, header) || !reflect.DeepEqual(trailer2, trailer) {
			t.Fatalf("%d %q %q became %d %q %q, %v", status, header, trailer, status2, header2, trailer2, err)
		}
	})
}

func BenchmarkHead(b *testing.B) {
	h := http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/7"}, "Etag": {`"v1"`}, "X-Request-Id": {"0af7651916cd43dd8448eb211c80319c"}}
	head := EncodeHead(201, h, nil)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			EncodeHead(201, h, nil)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _, _, _ = DecodeHead(head)
		}
	})
}

func TestHTTPDate(t *testing.T) {
	zone := time.FixedZone("", -5*3600)
	for range 1000 {
		at := time.Unix(rand.Int64N(300_000_000_000), 0).In(zone) // up to the year 11476
		if got, want := string(appendHTTPDate(nil, at)), at.UTC().Format(http.TimeFormat); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
