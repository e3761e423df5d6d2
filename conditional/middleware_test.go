package conditional_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/conditional"
	"github.com/semelhq/semel/semelhttp"
)

// changed is when everything in these tests was changed last.
var changed = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

// row is a resource in memory, whose statements are atomic as those of a database
// are.
type row struct {
	mu     sync.Mutex
	state  conditional.State
	text   string
	writes int
}

func (d *row) change(text string) conditional.Change {
	return conditional.Change{
		Current: func(context.Context) (conditional.State, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.state, nil
		},
		Write: func(_ context.Context, found, next int64) (int64, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.state.Version != found {
				return 0, nil
			}
			d.state = conditional.State{Version: next, Modified: d.state.Modified}
			d.text = text
			d.writes++
			return 1, nil
		},
	}
}

// ServeHTTP is a handler as the documentation has them: PUT creates, PATCH
// changes, DELETE leaves a tombstone.
func (d *row) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		w.Header().Set("Etag", conditional.VersionTag(d.state.Version).String())
		_, _ = io.WriteString(w, d.text)
		return
	}
	c := d.change("changed")
	c.Creates = r.Method == http.MethodPut
	if r.Method == http.MethodDelete {
		write := c.Write
		c.Write = func(ctx context.Context, found, next int64) (int64, error) {
			n, err := write(ctx, found, next)
			d.state.Gone = n == 1
			return n, err
		}
	}
	res, err := conditional.Apply(r.Context(), c)
	if err != nil {
		if !conditional.Refuse(w, r, err) {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
		return
	}
	w.Header().Set("Etag", conditional.VersionTag(res.Version).String())
	if res.Created {
		w.WriteHeader(http.StatusCreated)
	}
}

// send sends a request with the given header lines, "Name: value".
func send(h http.Handler, method string, lines ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/things/1", nil)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func problem(t *testing.T, w *httptest.ResponseRecorder) semelhttp.Problem {
	t.Helper()
	p, err := semelhttp.ParseProblem(w.Body, w.Header().Get("Content-Type"))
	if err != nil {
		t.Fatalf("status %d: %v", w.Code, err)
	}
	return p
}

const (
	there = "there, version 7"
	gone  = "gone, version 7"
	never = "never there"
)

func newRow(kind string) *row {
	d := &row{state: conditional.State{Version: 7, Modified: changed}}
	switch kind {
	case gone:
		d.state.Gone = true
	case never:
		d.state = conditional.State{}
	}
	return d
}

// What RFC 9110 13 and RFC 6585 3 want of a change, case by case.
func TestChanges(t *testing.T) {
	date := func(d time.Duration) string {
		return "If-Unmodified-Since: " + changed.Add(d).Format(http.TimeFormat)
	}
	for _, tt := range []struct {
		lines []string
		// The status of PUT, PATCH and DELETE on what is there; of PUT on what is gone,
		// and on what never was. PATCH and DELETE on those are 404, but for 428 and 400.
		put, patch, del, gone, never int
	}{
		{nil, 428, 428, 428, 428, 428},
		{[]string{`If-Match: "7"`}, 200, 200, 200, 412, 412},
		{[]string{`If-Match: "6"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: "8"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: "1", "7"`}, 200, 200, 200, 412, 412},
		{[]string{`If-Match: "1"`, `If-Match: "7"`}, 200, 200, 200, 412, 412},
		{[]string{`If-Match: "1", "6"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: *`}, 200, 200, 200, 412, 412},
		{[]string{`If-Match: "*"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: `}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: W/"7"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: W/"7", "7"`}, 200, 200, 200, 412, 412},
		{[]string{`If-Match: "7-gzip"`}, 200, 200, 200, 412, 412},
		{[]string{`If-Match: "70"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: "07"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: "0"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: "abc"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: 7`}, 400, 400, 400, 400, 400},
		{[]string{`If-Match: *, "7"`}, 400, 400, 400, 400, 400},
		{[]string{`If-Match: "7"`, `If-Match: *`}, 400, 400, 400, 400, 400},
		{[]string{`If-None-Match: *`}, 412, 412, 412, 201, 201},
		{[]string{`If-None-Match: "7"`}, 428, 428, 428, 428, 428}, // protects nobody
		{[]string{`If-None-Match: 7`}, 400, 400, 400, 400, 400},
		{[]string{`If-Match: "7"`, `If-None-Match: "7"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: "7"`, `If-None-Match: W/"7"`}, 412, 412, 412, 412, 412},
		{[]string{`If-Match: "7"`, `If-None-Match: "6"`}, 200, 200, 200, 412, 412},
		{[]string{`If-Match: "7"`, `If-None-Match: *`}, 412, 412, 412, 412, 412},
		// Without Dates, If-Unmodified-Since is as if it was not there.
		{[]string{date(0)}, 428, 428, 428, 428, 428},
		{[]string{`If-Match: "7"`, date(-time.Hour)}, 200, 200, 200, 412, 412},
		// With them.
		{[]string{"dates", date(0)}, 200, 200, 200, 201, 201},
		{[]string{"dates", date(time.Hour)}, 200, 200, 200, 201, 201},
		{[]string{"dates", date(-time.Second)}, 412, 412, 412, 412, 201},
		{[]string{"dates", `If-Match: "7"`, date(-time.Hour)}, 200, 200, 200, 412, 412},
		{[]string{"dates", `If-Match: "6"`, date(0)}, 412, 412, 412, 412, 412},
		{[]string{"dates", date(0), `If-None-Match: *`}, 412, 412, 412, 201, 201},
		{[]string{"dates", date(0), date(0)}, 428, 428, 428, 428, 428},
		{[]string{"dates", "If-Unmodified-Since: yesterday"}, 428, 428, 428, 428, 428},
		{[]string{"dates"}, 428, 428, 428, 428, 428},
		// A service that says that a proxy weakens its tags.
		{[]string{"weak", `If-Match: W/"7"`}, 200, 200, 200, 412, 412},
		{[]string{"weak", `If-Match: W/"6"`}, 412, 412, 412, 412, 412},
	} {
		lines := tt.lines
		c := conditional.Config{}
		if len(lines) > 0 && !strings.Contains(lines[0], ":") {
			c.Dates, c.AcceptWeak = lines[0] == "dates", lines[0] == "weak"
			lines = lines[1:]
		}
		protect := conditional.New(c)
		absent := func(put int) int {
			if put == 428 || put == 400 {
				return put
			}
			return 404
		}
		for _, at := range []struct {
			method, kind string
			want         int
		}{
			{"PUT", there, tt.put},
			{"PATCH", there, tt.patch},
			{"DELETE", there, tt.del},
			{"PUT", gone, tt.gone},
			{"PATCH", gone, absent(tt.gone)},
			{"DELETE", gone, absent(tt.gone)},
			{"PUT", never, tt.never},
			{"PATCH", never, absent(tt.never)},
			{"DELETE", never, absent(tt.never)},
		} {
			d := newRow(at.kind)
			before := d.state.Version
			w := send(protect(d), at.method, lines...)
			if w.Code != at.want {
				t.Errorf("%s %q on what is %s: %d, want %d: %s", at.method, tt.lines, at.kind, w.Code, at.want, w.Body)
			}
			effects := 0
			if at.want < 400 {
				effects = 1
				if tag := w.Header().Get("Etag"); tag != conditional.VersionTag(before+1).String() {
					t.Errorf("%s %q: the tag is %s", at.method, tt.lines, tag)
				}
			} else if p := problem(t, w); p.Status != at.want || p.Retry == "" {
				t.Errorf("%s %q: the problem is %+v", at.method, tt.lines, p)
			}
			if d.writes != effects || d.state.Version != before+int64(effects) {
				t.Errorf("%s %q on what is %s: %d effects, version %d", at.method, tt.lines, at.kind, d.writes, d.state.Version)
			}
		}
	}
}

// Reads, in every combination, are answered as http.ServeContent answers, which
// has the evaluation of RFC 9110 13.2.2 too.
func TestReadsAreAnsweredLikeServeContent(t *testing.T) {
	matches := []string{"", "*", `"7"`, `W/"7"`, `"6"`, `"6", "7"`}
	dates := []string{"", changed.Format(http.TimeFormat), changed.Add(-time.Hour).Format(http.TimeFormat), changed.Add(time.Hour).Format(http.TimeFormat), "yesterday"}
	n := 0
	for _, tag := range []string{"", `"7"`, `W/"7"`} {
		for _, modified := range []time.Time{{}, changed} {
			content := func(w http.ResponseWriter) {
				w.Header().Set("Content-Type", "text/plain")
				w.Header().Set("Cache-Control", "max-age=60")
				if tag != "" {
					w.Header().Set("Etag", tag)
				}
			}
			oracle := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				content(w)
				http.ServeContent(w, r, "", modified, strings.NewReader("text"))
			})
			ours := conditional.New(conditional.Config{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				content(w)
				if !modified.IsZero() {
					w.Header().Set("Last-Modified", modified.Format(http.TimeFormat))
				}
				_, _ = io.WriteString(w, "text")
			}))
			for _, method := range []string{"GET", "HEAD"} {
				for _, match := range matches {
					for _, none := range matches {
						for _, unmodified := range dates {
							for _, since := range dates {
								var lines []string
								for name, value := range map[string]string{"If-Match": match, "If-None-Match": none, "If-Unmodified-Since": unmodified, "If-Modified-Since": since} {
									if value != "" {
										lines = append(lines, name+": "+value)
									}
								}
								n++
								want, got := send(oracle, method, lines...), send(ours, method, lines...)
								if got.Code != want.Code {
									t.Fatalf("%s %q of tag %s, modified %v: %d, want %d", method, lines, tag, modified, got.Code, want.Code)
								}
								if got.Code == http.StatusNotModified {
									if g, w := fmt.Sprint(got.Header()), fmt.Sprint(want.Header()); g != w || got.Body.Len() > 0 {
										t.Fatalf("%s %q of tag %s, modified %v:\n%s %s\nwant %s", method, lines, tag, modified, g, got.Body, w)
									}
								}
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d requests", n)
}

func TestReadsThatPass(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lines  []string
		status int
		want   int
	}{
		{"malformed If-None-Match", []string{`If-None-Match: 7`}, 200, 200},
		{"malformed If-Match", []string{`If-Match: 7`}, 200, 200},
		{"malformed If-None-Match beside a date", []string{`If-None-Match: 7`, "If-Modified-Since: " + changed.Format(http.TimeFormat)}, 200, 200},
		{"malformed If-Match beside a date", []string{`If-Match: 7`, "If-Unmodified-Since: " + changed.Add(-time.Hour).Format(http.TimeFormat)}, 200, 200},
		{"not found", []string{`If-Match: "6"`}, 404, 404},
		{"not found, none", []string{`If-None-Match: "7"`}, 404, 404},
		{"redirected", []string{`If-Match: "6"`}, 302, 302},
		{"part", []string{`If-None-Match: "7"`}, 206, 304},
	} {
		h := conditional.New(conditional.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", `"7"`)
			w.Header().Set("Last-Modified", changed.Format(http.TimeFormat))
			w.WriteHeader(tt.status)
		}))
		if w := send(h, "GET", tt.lines...); w.Code != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, w.Code, tt.want)
		}
	}
}

// The success of a handler that forgot the precondition is not passed on.
func TestPreconditionThatNobodyAppliedIsNotASuccess(t *testing.T) {
	answers := map[string]func(http.ResponseWriter){
		"nothing":   func(http.ResponseWriter) {},
		"204":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"303":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusSeeOther) },
		"body":      func(w http.ResponseWriter) { _, _ = io.WriteString(w, "done") },
		"after 103": func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints); w.WriteHeader(http.StatusOK) },
		"flush":     func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"flusher":   func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"io.Copy":   func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader("done")) },
		"101":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusSwitchingProtocols) },
		"hijack": func(w http.ResponseWriter) {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				_ = conn.Close()
			}
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			told := make(chan string, 1)
			protect := conditional.New(conditional.Config{Unapplied: func(r *http.Request) { told <- r.Method }})
			server := httptest.NewServer(protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "x-secret")
				w.Header().Set("Etag", `"8"`)
				answer(w)
				_, _ = io.WriteString(w, "more")
			})))
			defer server.Close()
			r, _ := http.NewRequest(http.MethodPost, server.URL, nil)
			r.Header.Set("If-Match", `"7"`)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			p, err := semelhttp.ParseProblem(resp.Body, resp.Header.Get("Content-Type"))
			if err != nil || resp.StatusCode != http.StatusInternalServerError || !strings.HasSuffix(p.Type, "#precondition-not-applied") {
				t.Errorf("%d %+v: %v", resp.StatusCode, p, err)
			}
			if e := resp.Header.Get("Content-Encoding") + resp.Header.Get("Etag"); e != "" {
				t.Errorf("the handler's header is left: %s", e)
			}
			select {
			case method := <-told:
				if method != http.MethodPost {
					t.Errorf("told of %s", method)
				}
			default:
				t.Error("nobody is told")
			}
		})
	}
}

func TestAnswersThatPass(t *testing.T) {
	for _, tt := range []struct {
		name    string
		method  string
		lines   []string
		handler func(w http.ResponseWriter, r *http.Request)
		want    int
	}{
		{"an error needs no precondition", "PATCH", []string{`If-Match: "7"`}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(422) }, 422},
		{"Applied", "PATCH", []string{`If-Match: "7"`}, func(_ http.ResponseWriter, r *http.Request) { conditional.Applied(r.Context()) }, 200},
		{"nothing required of POST", "POST", nil, func(http.ResponseWriter, *http.Request) {}, 200},
		{"a method override does not get around it", "POST", []string{"X-HTTP-Method-Override: PATCH"}, func(http.ResponseWriter, *http.Request) {}, 428},
		{"nor does one of GET", "GET", []string{"X-HTTP-Method-Override: DELETE"}, func(http.ResponseWriter, *http.Request) {}, 428},
		{"nor of OPTIONS", "OPTIONS", []string{"X-HTTP-Method: PUT"}, func(http.ResponseWriter, *http.Request) {}, 428},
		{"nor does the case", "patch", nil, func(http.ResponseWriter, *http.Request) {}, 428},
		{"an overridden GET is a change", "GET", []string{"X-HTTP-Method-Override: POST", `If-Match: "7"`}, func(http.ResponseWriter, *http.Request) {}, 500},
		{"OPTIONS selects nothing", "OPTIONS", []string{`If-Match: x`}, func(http.ResponseWriter, *http.Request) {}, 200},
		{"TRACE selects nothing", "TRACE", []string{`If-Match: "7"`}, func(http.ResponseWriter, *http.Request) {}, 200},
		{"an empty list that nothing is in", "POST", []string{`If-None-Match: `}, func(_ http.ResponseWriter, r *http.Request) {
			conditional.Applied(r.Context())
		}, 200},
	} {
		h := conditional.New(conditional.Config{})(http.HandlerFunc(tt.handler))
		if w := send(h, tt.method, tt.lines...); w.Code != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, w.Code, tt.want)
		}
	}
}

func TestProblems(t *testing.T) {
	protect := conditional.New(conditional.Config{Contract: semelhttp.Stripe()})
	w := send(protect(newRow(there)), "PATCH")
	if body := w.Body.String(); w.Code != 428 || !strings.Contains(body, `"type":"invalid_request_error"`) || w.Header().Get("Stripe-Should-Retry") != "false" {
		t.Errorf("as Stripe: %d %v %s", w.Code, w.Header(), body)
	}
	w = send(protect(newRow(there)), "PATCH", `If-Match: "6"`)
	if body := w.Body.String(); w.Code != 412 || !strings.Contains(body, `"type":"invalid_request_error"`) {
		t.Errorf("as Stripe: %d %s", w.Code, body)
	}

	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for _, tt := range []struct {
		err    error
		status int
		name   string
		retry  semel.RetryAdvice
	}{
		{&conditional.FailedError{Field: "If-Match"}, 412, "precondition-failed", semel.RetryNewKey},
		{fmt.Errorf("handler: %w", &conditional.FailedError{Field: "If-Match"}), 412, "precondition-failed", semel.RetryNewKey},
		{&conditional.TransitionError{Event: "ship", State: "draft"}, 409, "transition-not-allowed", semel.RetryNo},
		{conditional.ErrContended, 503, "contended", semel.RetrySameKey},
		{conditional.ErrNotFound, 404, "", semel.RetryNo},
	} {
		w := httptest.NewRecorder()
		ok := conditional.Refuse(w, r, tt.err)
		if p := problem(t, w); !ok || w.Code != tt.status || p.Retry != tt.retry || tt.name != "" && !strings.HasSuffix(p.Type, "/docs/conditional.md#"+tt.name) {
			t.Errorf("%v: %d %+v", tt.err, w.Code, p)
		}
	}
	for _, err := range []error{errors.New("disk"), conditional.ErrNotWritten, nil} {
		w := httptest.NewRecorder()
		if conditional.Refuse(w, r, err) || w.Body.Len() > 0 || len(w.Header()) > 0 {
			t.Errorf("%v is answered for", err)
		}
	}
}

func TestProblemsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/conditional.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`problemBase \+ "([a-z-]+)"`).FindAllSubmatch(code, -1)
	if len(names) != 6 {
		t.Errorf("%d problems", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(doc), "\n### "+string(name[1])+"\n") {
			t.Errorf("docs/conditional.md has no heading %s", name[1])
		}
	}
}
