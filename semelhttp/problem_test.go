package semelhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/semelhq/semel"
)

// What clients rely on: type, status and retry of every case.
func TestProblemCases(t *testing.T) {
	want := map[ProblemCase]struct {
		status int
		retry  semel.RetryAdvice
	}{
		"key-missing":         {400, "new-key"},
		"key-malformed":       {400, "new-key"},
		"key-mismatch":        {422, "no"},
		"in-progress":         {409, "same-key"},
		"outcome-unknown":     {409, "after-resolution"},
		"result-not-retained": {409, "no"},
		"result-unreadable":   {503, "same-key"},
		"store-unavailable":   {503, "same-key"},
		"rolled-back":         {503, "same-key"},
		"body-too-large":      {413, "no"},
		"body-unreadable":     {400, "same-key"},
		"body-too-slow":       {408, "same-key"},
		"spool-unavailable":   {503, "same-key"},
		"busy":                {503, "same-key"},

		"key-not-issued":          {400, "new-key"},
		"key-expired":             {400, "no"},
		"first-sent-invalid":      {400, "new-key"},
		"first-sent-out-of-range": {412, "no"},
		"not-protected":           {501, "no"},
		"operation-not-found":     {404, "no"},
	}
	if got, want := slices.Sorted(maps.Keys(problemCases)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
		t.Fatalf("cases are %v, want %v", got, want)
	}
	titles := map[string]bool{}
	for c, w := range want {
		p := c.Problem()
		if p.Status != w.status || p.Retry != w.retry || p.Type != "https://github.com/semelhq/semel/blob/main/docs/http.md#"+string(c) {
			t.Errorf("%s: %+v", c, p)
		}
		if p.Title == "" || p.Detail == "" || titles[p.Title] {
			t.Errorf("%s: title %q, detail %q", c, p.Title, p.Detail)
		}
		titles[p.Title] = true
		if got, ok := p.Case(); got != c || !ok {
			t.Errorf("%s: case is %q, %v", c, got, ok)
		}
	}
	for _, typ := range []string{"", "about:blank", "key-missing", ProblemCase("no-such-case").Type(), "https://example.com#key-missing"} {
		if c, ok := (Problem{Type: typ}).Case(); ok || c != "" {
			t.Errorf("type %q is case %q", typ, c)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a case that does not exist made a problem")
		}
	}()
	ProblemCase("no-such-case").Problem()
}

func TestProblemWrite(t *testing.T) {
	p := ProblemInProgress.Problem()
	p.Detail = "Wait <a while> & ask again."
	p.Instance = "/requests/1"
	p.StatusURL = "/operations/abc"
	p.Reference = "/orders/7"
	p.RetryAfter = 1500 * time.Millisecond
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		// What a handler has set before it failed describes another body.
		for _, name := range []string{"Content-Length", "Content-Type", "Cache-Control", "Etag", "Last-Modified", "Content-Range", "Content-Language", "Trailer"} {
			w.Header().Set(name, "1")
		}
		w.Header().Set("X-Outer", "kept")
		p.Write(w)
	}))
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 409 || resp.ContentLength != int64(len(body)) || len(body) == 0 || resp.Trailer != nil {
		t.Errorf("status %d, Content-Length %d of %d, trailer %v", resp.StatusCode, resp.ContentLength, len(body), resp.Trailer)
	}
	resp.Header.Del("Date")
	resp.Header.Del("Content-Length")
	want := http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "Retry-After": {"2"}, "X-Outer": {"kept"}}
	if !maps.EqualFunc(resp.Header, want, slices.Equal) {
		t.Errorf("header is %v, want %v", resp.Header, want)
	}
	var members map[string]any
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatal(err)
	}
	if want := map[string]any{
		"type": p.Type, "title": p.Title, "status": 409.0, "detail": p.Detail, "instance": "/requests/1",
		"retry": "same-key", "status_url": "/operations/abc", "reference": "/orders/7",
	}; !maps.Equal(members, want) {
		t.Errorf("body is %s", body)
	}
	parsed, err := ParseProblem(bytes.NewReader(body), resp.Header.Get("Content-Type"))
	p.RetryAfter = 0
	if err != nil || parsed != p {
		t.Errorf("parsed %+v, %v; want %+v", parsed, err, p)
	}
}

func TestProblemLeavesOutWhatIsEmpty(t *testing.T) {
	rec := httptest.NewRecorder()
	Problem{Status: 401, Title: "Unauthorized"}.Write(rec)
	if got, want := rec.Body.String(), `{"title":"Unauthorized","status":401}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, ok := rec.Header()["Retry-After"]; ok {
		t.Error("Retry-After was sent")
	}
	for d, want := range map[time.Duration]string{1: "1", time.Second: "1", time.Second + 1: "2", time.Hour: "3600"} {
		rec := httptest.NewRecorder()
		Problem{Status: 503, RetryAfter: d}.Write(rec)
		if got := rec.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: Retry-After is %q, want %q", d, got, want)
		}
	}
}

func TestParseProblemIsTolerant(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want Problem
	}{
		"unknown members":      {`{"type":"t","status":409,"x":{"type":"u"},"retry":"no"}`, Problem{Type: "t", Status: 409, Retry: semel.RetryNo}},
		"wrong types":          {`{"type":1,"title":{},"status":"409","detail":[],"instance":null,"retry":true,"status_url":3,"reference":{}}`, Problem{Type: "about:blank"}},
		"one wrong type":       {`{"title":5,"detail":"d"}`, Problem{Type: "about:blank", Detail: "d"}},
		"empty":                {`{}`, Problem{Type: "about:blank"}},
		"unknown retry":        {`{"retry":"always"}`, Problem{Type: "about:blank"}},
		"status out of range":  {`{"status":999999}`, Problem{Type: "about:blank"}},
		"status with fraction": {`{"status":409.5}`, Problem{Type: "about:blank"}},
		"other letter case":    {`{"Type":"t","STATUS":409}`, Problem{Type: "about:blank"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ct := range []string{"application/problem+json", "Application/Problem+JSON; charset=utf-8", "application/problem+json; bad"} {
				if got, err := ParseProblem(strings.NewReader(tc.body), ct); err != nil || got != tc.want {
					t.Errorf("%s: got %+v, %v; want %+v", ct, got, err, tc.want)
				}
			}
		})
	}
}

func TestParseProblemRefuses(t *testing.T) {
	for _, ct := range []string{"", "application/json", "text/html", "application/problem+xml", "application/problem+jsonx", "application/problem+json,text/html"} {
		if _, err := ParseProblem(strings.NewReader(`{}`), ct); !errors.Is(err, ErrNotProblem) {
			t.Errorf("%q: %v", ct, err)
		}
	}
	for _, body := range []string{"", "null", "[]", `"x"`, "{", `{"title":"secret"`, "{} {}", "<html>"} {
		_, err := ParseProblem(strings.NewReader(body), ContentTypeProblem)
		if err == nil || errors.Is(err, ErrNotProblem) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", body, err)
		}
	}
	broken := errors.New("broken")
	if _, err := ParseProblem(iotest.ErrReader(broken), ContentTypeProblem); !errors.Is(err, broken) {
		t.Errorf("the reader's error became %v", err)
	}
}

func TestParseProblemReadsNoMoreThanItsLimit(t *testing.T) {
	fill := func(n int) string {
		const frame = len(`{"detail":""}`)
		return `{"detail":"` + strings.Repeat("x", n-frame) + `"}`
	}
	if _, err := ParseProblem(strings.NewReader(fill(MaxProblemBytes)), ContentTypeProblem); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := ParseProblem(strings.NewReader(fill(MaxProblemBytes+1)), ContentTypeProblem); err == nil {
		t.Error("over the limit: accepted")
	}
	endless := strings.NewReader(strings.Repeat(" ", 1<<20))
	if _, err := ParseProblem(endless, ContentTypeProblem); err == nil || endless.Len() < 1<<19 {
		t.Errorf("read on to %d bytes before the end: %v", endless.Len(), err)
	}
}

// FuzzParseProblem checks that whatever is parsed is well-formed and survives
// being sent and parsed again.
func FuzzParseProblem(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"type":"t","title":"T","status":409,"detail":"d","instance":"i","retry":"same-key","status_url":"s","reference":"r"}`,
		`{"type":1}`, `null`, `[`, `{"status":1e2}`, `{"retry":"x"}`, "{\"title\":\"\xff\"}", `{"title":"\ud800"}`,
	} {
		f.Add([]byte(s), ContentTypeProblem)
	}
	f.Add([]byte(`{}`), "application/problem+json; charset=utf-8")
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		p, err := ParseProblem(bytes.NewReader(body), contentType)
		if err != nil {
			if p != (Problem{}) {
				t.Fatalf("%+v came with %v", p, err)
			}
			return
		}
		if p.Type == "" || p.Status != 0 && (p.Status < 100 || p.Status > 599) || p.RetryAfter != 0 {
			t.Fatalf("%+v", p)
		}
		sent, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if len(sent) > MaxProblemBytes {
			return // escaped, it has grown
		}
		if again, err := ParseProblem(bytes.NewReader(sent), ContentTypeProblem); err != nil || again != p {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
	})
}

// A problem's type leads to its documentation.
func TestProblemTypesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range problemCases {
		if !strings.Contains(string(doc), "\n### "+string(name)+"\n") {
			t.Errorf("docs/http.md has no heading %q", name)
		}
	}
}
