package semelhttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// sent is a request as a base transport got it.
type sent struct {
	header  http.Header
	key     string // the Idempotency-Key header, in whatever case
	body    string
	length  int64
	getBody bool
	at      time.Time
	trailer string
}

// script is a base transport that plays answers, the last of them for ever.
// It keeps RoundTripper's contract: it closes the body, and ends with the
// request's context.
type script struct {
	answers []play
	played  int
	sent    []sent
	bodies  []*trackedBody // of the responses
}

type play func(r *http.Request) (*http.Response, error)

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	got := sent{header: r.Header.Clone(), length: r.ContentLength, getBody: r.GetBody != nil, at: time.Now()}
	for name, values := range r.Header {
		if strings.EqualFold(name, semelhttp.HeaderKey) && len(values) > 0 {
			got.key += strings.Join(values, " AND ")
		}
	}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		got.body = string(body)
	}
	got.trailer = r.Trailer.Get("Sum")
	s.sent = append(s.sent, got)
	if err := r.Context().Err(); err != nil {
		return nil, context.Cause(r.Context())
	}
	s.played++
	resp, err := s.answers[min(s.played, len(s.answers))-1](r)
	if resp != nil {
		resp.Request = r
		if body, ok := resp.Body.(*trackedBody); ok {
			s.bodies = append(s.bodies, body)
		}
	}
	return resp, err
}

func (s *script) keys() []string {
	var keys []string
	for _, r := range s.sent {
		keys = append(keys, r.key)
	}
	return keys
}

// trackedBody is a body that tells how it was treated.
type trackedBody struct {
	io.Reader
	read   int
	closed int
}

func (b *trackedBody) Read(p []byte) (int, error) {
	if b.closed > 0 {
		return 0, errors.New("read after close")
	}
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *trackedBody) Close() error { b.closed++; return nil }

// reply plays an answer; headers are "Name: value".
func reply(status int, body string, headers ...string) play {
	return func(*http.Request) (*http.Response, error) {
		h := make(http.Header)
		for _, line := range headers {
			name, value, _ := strings.Cut(line, ": ")
			h.Add(name, value)
		}
		if strings.HasPrefix(body, "{") && h.Get("Content-Type") == "" {
			h.Set("Content-Type", semelhttp.ContentTypeProblem)
		}
		return &http.Response{StatusCode: status, Header: h, Body: &trackedBody{Reader: strings.NewReader(body)}, ContentLength: int64(len(body))}, nil
	}
}

var errCut = errors.New("connection reset by peer")

func cut(*http.Request) (*http.Response, error) { return nil, errCut }

// hang plays a server that does not answer.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// transport returns one with no waits worth mentioning.
func transport(t testing.TB, base http.RoundTripper, edit ...func(*semelhttp.TransportConfig)) *semelhttp.Transport {
	t.Helper()
	c := semelhttp.TransportConfig{Base: base, MinBackoff: 1, MaxBackoff: 1}
	for _, f := range edit {
		f(&c)
	}
	tr, err := semelhttp.NewTransport(c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// request returns a request whose body is a type that net/http knows, if it is
// not empty.
func request(t testing.TB, ctx context.Context, method, body string, headers ...string) *http.Request {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://shop.example/orders", in)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// roundTrip returns the answer's status and body.
func roundTrip(t testing.TB, tr http.RoundTripper, r *http.Request) (int, string) {
	t.Helper()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode, string(body)
}

func failure(t testing.TB, err error) *semelhttp.TransportError {
	t.Helper()
	e, ok := errors.AsType[*semelhttp.TransportError](err)
	if !ok {
		t.Fatalf("error %v is not a TransportError", err)
	}
	return e
}

// TestTransportVerdicts: which answers are tried again, for a request with a
// key, an idempotent one without, and one with neither.
func TestTransportVerdicts(t *testing.T) {
	const (
		sameKey    = `{"retry":"same-key"}`
		newKey     = `{"retry":"new-key"}`
		resolution = `{"retry":"after-resolution"}`
		no         = `{"retry":"no"}`
		silent     = `{"title":"no member"}`
		unheard    = `{"retry":"perhaps"}`
	)
	yes, stop := "Stripe-Should-Retry: true", "Stripe-Should-Retry: false"
	tests := []struct {
		status          int
		body            string
		headers         []string
		keyed, safeToDo bool
	}{
		{200, "", nil, false, false},
		{200, "", []string{yes}, false, false},
		{201, sameKey, nil, false, false},
		{302, "", []string{yes}, false, false},
		{400, "", nil, false, false},
		{400, newKey, nil, false, false},
		{400, sameKey, nil, true, false}, // the body was cut off on its way
		{400, "", []string{yes}, true, true},
		{401, "", nil, false, false},
		{401, sameKey, []string{yes}, false, false},
		{403, "", nil, false, false},
		{404, "", nil, false, false},
		{407, sameKey, nil, false, false},
		{408, "", nil, true, true},
		{409, "", nil, true, false},
		{409, "", []string{yes}, true, true},
		{409, "", []string{stop}, false, false},
		{409, "", []string{"Retry-After: 1"}, true, false},
		{409, sameKey, []string{"Retry-After: 1"}, true, false},
		{409, resolution, nil, false, false},
		{409, resolution, []string{yes, "Retry-After: 1"}, false, false},
		{409, no, nil, false, false},
		{409, silent, nil, true, false},
		{409, unheard, nil, true, false},
		{409, "", []string{"Idempotency-Expires: Sat, 21 Nov 2026 12:00:00 GMT"}, false, false},
		{409, "", []string{"Idempotency-Replayed: true"}, false, false},
		{409, "", []string{"Idempotent-Replayed: true"}, false, false},
		{409, sameKey, []string{"Content-Type: application/json"}, true, false},
		{409, no, []string{"Content-Type: application/json"}, true, false},
		{409, no, []string{"Content-Encoding: br"}, true, false},
		{409, no, []string{"Content-Type: application/problem+json; charset=utf-8"}, false, false},
		{409, `{"retry"`, nil, true, false},
		{422, "", nil, false, false},
		{422, no, nil, false, false},
		{425, "", nil, true, true},
		{429, "", nil, true, true},
		{429, "", []string{stop}, false, false},
		{429, no, nil, false, false},
		{429, no, []string{yes}, false, false},
		{429, sameKey, []string{stop}, false, false},
		{500, "", nil, false, false},
		{500, "", []string{yes}, true, true},
		{500, "", []string{yes, "Idempotent-Replayed: true"}, true, true},
		{500, sameKey, nil, true, false},
		{501, "", nil, false, false},
		{502, "", nil, true, true},
		{502, "", []string{"Idempotency-Replayed: true"}, false, false},
		{503, "", nil, true, true},
		{503, sameKey, []string{"Retry-After: 3"}, true, true},
		{503, no, []string{"Retry-After: 3"}, false, false},
		{504, "", nil, true, true},
		{504, "", []string{stop}, false, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, tt.body, tt.headers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, of := range []struct {
					name, method string
					headers      []string
					again        bool
				}{
					{"keyed POST", "POST", nil, tt.keyed},
					{"keyed GET", "GET", []string{`Idempotency-Key: "k"`}, tt.keyed},
					{"GET", "GET", nil, tt.safeToDo},
					{"PUT", "PUT", nil, tt.safeToDo},
					{"DELETE", "DELETE", nil, tt.safeToDo},
					{"POST without key", "POST", []string{"No-Key: 1"}, false},
				} {
					base := &script{answers: []play{reply(tt.status, tt.body, tt.headers...), reply(299, "last")}}
					tr := transport(t, base, func(c *semelhttp.TransportConfig) {
						c.NeedsKey = func(r *http.Request) bool { return r.Method == "POST" && r.Header.Get("No-Key") == "" }
					})
					status, body := roundTrip(t, tr, request(t, t.Context(), of.method, "", of.headers...))
					want, wantStatus, wantBody := 1, tt.status, tt.body
					if of.again {
						want, wantStatus, wantBody = 2, 299, "last"
					}
					if len(base.sent) != want || status != wantStatus || body != wantBody {
						t.Errorf("%s: %d tries, answer %d %q; want %d tries, %d %q", of.name, len(base.sent), status, body, want, wantStatus, wantBody)
					}
				}
			})
		})
	}
}

// TestTransportProblemCases: what this package's own servers refuse with.
func TestTransportProblemCases(t *testing.T) {
	again := map[semelhttp.ProblemCase]bool{
		semelhttp.ProblemKeyMissing: false, semelhttp.ProblemKeyMalformed: false, semelhttp.ProblemKeyMismatch: false,
		semelhttp.ProblemInProgress: true, semelhttp.ProblemOutcomeUnknown: false, semelhttp.ProblemResultNotRetained: false,
		semelhttp.ProblemStoreUnavailable: true, semelhttp.ProblemRolledBack: true,
		semelhttp.ProblemBodyTooLarge: false, semelhttp.ProblemBodyUnreadable: true,
	}
	for c, want := range again {
		body, err := c.Problem().MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		base := &script{answers: []play{reply(c.Problem().Status, string(body)), reply(201, "")}}
		roundTrip(t, transport(t, base), request(t, t.Context(), "POST", "{}"))
		if got := len(base.sent) == 2; got != want {
			t.Errorf("%s: tried again: %v; want %v", c, got, want)
		}
	}
}

// TestTransportOneKey: each try has the key of the first, whatever happened to
// it, and each call without an operation one of its own.
func TestTransportOneKey(t *testing.T) {
	base := &script{answers: []play{
		cut, reply(409, `{"retry":"same-key"}`), reply(502, ""), reply(429, ""), reply(201, ""),
	}}
	tr := transport(t, base)
	if status, _ := roundTrip(t, tr, request(t, t.Context(), "POST", "{}")); status != 201 {
		t.Fatalf("status %d", status)
	}
	first := base.keys()
	if len(first) != 5 || len(slices.Compact(slices.Clone(first))) != 1 {
		t.Fatalf("%d tries with the keys %q", len(first), first)
	}
	key, err := semelhttp.ParseKey(first[:1], true)
	if err != nil || (semel.KeyRules{RequireUUID: true}).Check(key) != nil {
		t.Errorf("the key on the wire is %q: %v", first[0], err)
	}
	roundTrip(t, tr, request(t, t.Context(), "POST", "{}"))
	roundTrip(t, tr, request(t, t.Context(), "PATCH", "{}"))
	if more := base.keys()[5:]; len(more) != 2 || more[0] == first[0] || more[1] == first[0] || more[0] == more[1] {
		t.Errorf("other calls have the keys %q after %q", more, first[0])
	}
	for _, r := range base.sent {
		if r.body != "{}" || r.length != 2 || r.getBody {
			t.Errorf("a try was given the body %q of %d bytes; GetBody: %v", r.body, r.length, r.getBody)
		}
	}
	for _, method := range []string{"GET", "PUT", "DELETE", ""} {
		base.sent = nil
		roundTrip(t, tr, &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: "shop.example"}})
		if got := base.keys(); len(got) != 1 || got[0] != "" {
			t.Errorf("method %q got the keys %q", method, got)
		}
	}
}

// TestTransportOperation: the key is the operation's in every call of it.
func TestTransportOperation(t *testing.T) {
	base := &script{answers: []play{cut, cut, reply(201, "")}}
	tr := transport(t, base, func(c *semelhttp.TransportConfig) { c.MaxTries = 1 })
	ctx := semelhttp.NewOperation(t.Context())
	op, ok := semelhttp.CurrentOperation(ctx)
	if !ok || op.Key == "" {
		t.Fatalf("operation %+v, %v", op, ok)
	}
	for range 2 {
		_, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
		if got := failure(t, err).Operation(); got != op {
			t.Errorf("the error is of another operation than its context's")
		}
	}
	resp, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := semelhttp.CurrentOperation(resp.Request.Context()); got != op || resp.Request.Header.Get("Idempotency-Key") != `"`+op.Key+`"` {
		t.Errorf("the response's request does not tell the key: %v", resp.Request.Header)
	}
	want := `"` + op.Key + `"`
	if got := base.keys(); !slices.Equal(got, []string{want, want, want}) {
		t.Errorf("keys %q; want %q each time", got, want)
	}
	// Without a context the response and the error tell it as well.
	base.sent, base.played, base.answers = nil, 0, []play{reply(201, ""), cut}
	resp, err = tr.RoundTrip(request(t, t.Context(), "POST", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := semelhttp.CurrentOperation(resp.Request.Context()); `"`+got.Key+`"` != base.sent[0].key {
		t.Errorf("the response tells %q, the wire had %q", got.Key, base.sent[0].key)
	}
	_, err = tr.RoundTrip(request(t, t.Context(), "POST", "{}"))
	if got := failure(t, err).Operation(); `"`+got.Key+`"` != base.sent[1].key {
		t.Errorf("the error tells %q, the wire had %q", got.Key, base.sent[1].key)
	}
	// Other requests of the context need no key and get none.
	base.sent = nil
	roundTrip(t, transport(t, &script{answers: []play{reply(200, "")}}), request(t, ctx, "GET", ""))
	if op, ok := semelhttp.CurrentOperation(t.Context()); ok {
		t.Errorf("an empty context has the operation %+v", op)
	}
}

// TestTransportHeaders: what is on the wire.
func TestTransportHeaders(t *testing.T) {
	ours := semelhttp.WithKey(t.Context(), "ours")
	named := func(name string) func(*semelhttp.TransportConfig) {
		return func(c *semelhttp.TransportConfig) { c.Header = name }
	}
	bare := func(c *semelhttp.TransportConfig) { c.BareKeys = true }
	tests := []struct {
		name    string
		ctx     context.Context
		config  func(*semelhttp.TransportConfig)
		headers []string
		want    []string // of each try, sorted
	}{
		{"quoted", ours, nil, nil, []string{`Idempotency-Key: "ours"`}},
		{"escaped", semelhttp.WithKey(t.Context(), `a"\b`), nil, nil, []string{`Idempotency-Key: "a\"\\b"`}},
		{"bare", ours, bare, nil, []string{"Idempotency-Key: ours"}},
		{"other header", ours, named("paypal-request-id"), nil, []string{`Paypal-Request-Id: "ours"`}},
		{"caller's", ours, nil, []string{"Idempotency-Key: theirs"}, []string{"Idempotency-Key: theirs"}},
		{"caller's without context", t.Context(), bare, []string{`Idempotency-Key: "theirs"`}, []string{`Idempotency-Key: "theirs"`}},
		{"caller's other header", ours, named("X-Request"), []string{"X-Request: theirs"}, []string{"X-Request: theirs"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := &script{answers: []play{cut, reply(201, "")}}
			edit := []func(*semelhttp.TransportConfig){}
			if tt.config != nil {
				edit = append(edit, tt.config)
			}
			r := request(t, tt.ctx, "POST", "{}", tt.headers...)
			before := r.Header.Clone()
			roundTrip(t, transport(t, base, edit...), r)
			for i, s := range base.sent {
				var got []string
				for name, values := range s.header {
					got = append(got, name+": "+strings.Join(values, " AND "))
				}
				slices.Sort(got)
				if !slices.Equal(got, tt.want) {
					t.Errorf("try %d had the header %q; want %q", i+1, got, tt.want)
				}
			}
			if len(base.sent) != 2 || !maps.EqualFunc(r.Header, before, slices.Equal) {
				t.Errorf("%d tries; the caller's header is %v, it was %v", len(base.sent), r.Header, before)
			}
		})
	}
	t.Run("caller's in raw case", func(t *testing.T) {
		base := &script{answers: []play{cut, reply(201, "")}}
		r := request(t, ours, "POST", "{}")
		r.Header["IDEMPOTENCY-key"] = []string{"theirs"}
		roundTrip(t, transport(t, base), r)
		if got := base.keys(); !slices.Equal(got, []string{"theirs", "theirs"}) {
			t.Errorf("keys %q", got)
		}
	})
	t.Run("field without values", func(t *testing.T) {
		// net/http documents it: idempotent, but no key on the wire.
		base := &script{answers: []play{cut, reply(201, "")}}
		r := request(t, ours, "POST", "{}")
		r.Header["Idempotency-Key"] = nil
		roundTrip(t, transport(t, base), r)
		if got := base.keys(); !slices.Equal(got, []string{"", ""}) {
			t.Errorf("keys %q", got)
		}
	})
	t.Run("malformed is the server's to refuse", func(t *testing.T) {
		for _, values := range [][]string{{""}, {"a", "b"}, {`"open`}} {
			base := &script{answers: []play{cut}}
			r := request(t, ours, "POST", "{}")
			r.Header["Idempotency-Key"] = values
			_, err := transport(t, base).RoundTrip(r)
			if e := failure(t, err); len(base.sent) != 1 || e.Reason != semelhttp.ReasonUnsafe || base.sent[0].key != strings.Join(values, " AND ") {
				t.Errorf("%q: %d tries, %v", values, len(base.sent), err)
			}
		}
	})
	t.Run("no key", func(t *testing.T) {
		for name, tr := range map[string]func(*semelhttp.TransportConfig){"quoted": func(*semelhttp.TransportConfig) {}, "bare": bare} {
			bad := []string{"", "a\nb", "\xff", strings.Repeat("k", 256)}
			if name == "bare" {
				bad = append(bad, "a b", `"a"`, "a,b", "a;b")
			}
			for _, key := range bad {
				base := &script{answers: []play{reply(201, "")}}
				body := &trackedBody{Reader: strings.NewReader("{}")}
				r := request(t, semelhttp.WithKey(t.Context(), key), "POST", "")
				r.Body = body
				_, err := transport(t, base, tr).RoundTrip(r)
				e := failure(t, err)
				if _, ok := errors.AsType[*semelhttp.KeyError](err); !ok || len(base.sent) != 0 || e.Reason != semelhttp.ReasonRefused || !errors.Is(err, semel.ErrNoEffect) || body.closed != 1 {
					t.Errorf("%s key %q: sent %d, closed %d, %v", name, key, len(base.sent), body.closed, err)
				}
			}
		}
	})
}

// TestTransportRepeatability: OASIS Repeatable Requests. First-Sent does not
// move between the tries of an operation.
func TestTransportRepeatability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &script{answers: []play{cut, reply(503, "", "Retry-After: 20"), cut, cut, reply(201, "")}}
		tr := transport(t, base, func(c *semelhttp.TransportConfig) { c.Repeatability, c.MaxTries = true, 3 })
		ctx := semelhttp.NewOperation(t.Context())
		begin := time.Now()
		_, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
		op := failure(t, err).Operation()
		roundTrip(t, tr, request(t, ctx, "POST", "{}"))
		// A later process, with what the first one stored.
		roundTrip(t, tr, request(t, semelhttp.WithOperation(t.Context(), op), "POST", "{}"))
		if len(base.sent) != 6 || !op.FirstSent.Equal(begin) || time.Since(begin) < 20*time.Second {
			t.Fatalf("%d tries, first sent %v, begun %v", len(base.sent), op.FirstSent, begin)
		}
		for i, s := range base.sent {
			want := http.Header{"Repeatability-Request-Id": {op.Key}, "Repeatability-First-Sent": {begin.UTC().Format(http.TimeFormat)}}
			if !maps.EqualFunc(s.header, want, slices.Equal) {
				t.Errorf("try %d had the header %v; want %v", i+1, s.header, want)
			}
		}
		// The caller's own fields stay.
		base.sent = nil
		theirs := []string{"Repeatability-Request-ID: 1", "Repeatability-First-Sent: Sat, 21 Nov 2026 12:00:00 GMT"}
		roundTrip(t, tr, request(t, ctx, "POST", "{}", theirs...))
		if h := base.sent[0].header; h.Get("Repeatability-Request-ID") != "1" || h.Get("Repeatability-First-Sent") != "Sat, 21 Nov 2026 12:00:00 GMT" || len(h) != 2 {
			t.Errorf("header %v", h)
		}
	})
}

// TestTransportObeysRetryAfter: no try begins before the server wants it.
func TestTransportObeysRetryAfter(t *testing.T) {
	for _, asDate := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			after := func(d time.Duration) play {
				return func(r *http.Request) (*http.Response, error) {
					value := fmt.Sprint(int(d.Seconds()))
					if asDate {
						value = time.Now().Add(d).UTC().Format(http.TimeFormat)
					}
					return reply(429, "", "Retry-After: "+value)(r)
				}
			}
			base := &script{answers: []play{after(7 * time.Second), after(11 * time.Second), reply(201, "")}}
			tr := transport(t, base, func(c *semelhttp.TransportConfig) { c.MinBackoff, c.MaxBackoff = 100*time.Millisecond, time.Second })
			roundTrip(t, tr, request(t, t.Context(), "POST", "{}"))
			for i, want := range []time.Duration{7 * time.Second, 11 * time.Second} {
				got := base.sent[i+1].at.Sub(base.sent[i].at)
				if got < want-time.Second*btoi(asDate) || got > want+100*time.Millisecond {
					t.Errorf("date %v: try %d came %v after the one before; want %v and up to 100ms", asDate, i+2, got, want)
				}
			}
		})
	}
}

// btoi: a date has seconds only.
func btoi(b bool) time.Duration {
	if b {
		return 1
	}
	return 0
}

// TestTransportBounds: when a call gives up, how long it took, and why.
func TestTransportBounds(t *testing.T) {
	patient := func(c *semelhttp.TransportConfig) {
		c.MinBackoff, c.MaxBackoff = time.Second, time.Second
		c.MaxTries, c.MaxElapsed = 1000, 20*time.Second
	}
	tests := []struct {
		name    string
		answers []play
		config  func(*semelhttp.TransportConfig)
		timeout time.Duration // of the context
		reason  semelhttp.Reason
		tries   int // 0: several
		atMost  time.Duration
	}{
		{"tries", []play{cut}, func(c *semelhttp.TransportConfig) { patient(c); c.MaxTries = 3 }, 0, semelhttp.ReasonTries, 3, 2 * time.Second},
		{"one try", []play{reply(503, "")}, func(c *semelhttp.TransportConfig) { c.MaxTries = 1 }, 0, semelhttp.ReasonTries, 1, 0},
		{"elapsed", []play{cut}, patient, 0, semelhttp.ReasonElapsed, 0, 20 * time.Second},
		{"Retry-After beyond the elapsed", []play{reply(429, "", "Retry-After: 21")}, patient, 0, semelhttp.ReasonElapsed, 1, 0},
		{"endless Retry-After", []play{reply(429, "", "Retry-After: 9999999999999999999999")}, patient, 0, semelhttp.ReasonElapsed, 1, 0},
		{"Retry-After beyond the deadline", []play{reply(429, "", "Retry-After: 10")}, patient, 9 * time.Second, semelhttp.ReasonElapsed, 1, 0},
		{"deadline in a try", []play{hang}, patient, 9 * time.Second, semelhttp.ReasonContext, 1, 9 * time.Second},
		{"hangs beyond the elapsed", []play{hang}, patient, 0, semelhttp.ReasonElapsed, 1, 20 * time.Second},
		{"a later try hangs beyond the elapsed", []play{cut, hang}, patient, 0, semelhttp.ReasonElapsed, 2, 20 * time.Second},
		{"hangs, no bound but tries", []play{hang}, func(c *semelhttp.TransportConfig) {
			c.TryTimeout, c.MaxTries = 3*time.Second, 2
		}, 0, semelhttp.ReasonTries, 2, 6*time.Second + 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					defer cancel()
				}
				var gaveUp []semelhttp.GaveUp
				var tried []semelhttp.Tried
				base := &script{answers: tt.answers}
				tr := transport(t, base, tt.config, func(c *semelhttp.TransportConfig) {
					c.Observer.GaveUp = func(_ context.Context, g semelhttp.GaveUp) { gaveUp = append(gaveUp, g) }
					c.Observer.Tried = func(_ context.Context, g semelhttp.Tried) { tried = append(tried, g) }
				})
				begin := time.Now()
				resp, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
				took := time.Since(begin)
				if len(gaveUp) != 1 || gaveUp[0].Reason != tt.reason || gaveUp[0].Tries != len(base.sent) || gaveUp[0].Method != "POST" {
					t.Errorf("gave up: %+v after %d tries; want the reason %q", gaveUp, len(base.sent), tt.reason)
				}
				if err == nil {
					_ = resp.Body.Close()
					if gaveUp[0].Status != resp.StatusCode || gaveUp[0].Err != nil {
						t.Errorf("gave up: %+v; the answer was %d", gaveUp, resp.StatusCode)
					}
				} else if e := failure(t, err); e.Reason != tt.reason || e.Tries != len(base.sent) || gaveUp[0].Err != e.Err || e.Effect() != semel.EffectMaybe {
					t.Errorf("error %+v", e)
				}
				if took > tt.atMost || tt.tries != 0 && len(base.sent) != tt.tries || tt.tries == 0 && len(base.sent) < 10 {
					t.Errorf("%d tries in %v; want %d in at most %v", len(base.sent), took, tt.tries, tt.atMost)
				}
				if len(tried) != len(base.sent) {
					t.Fatalf("the observer saw %d tries of %d", len(tried), len(base.sent))
				}
				for i, g := range tried {
					last := i == len(tried)-1
					if g.Try != i+1 || g.Retry == last || !g.Keyed || g.Method != "POST" || (g.Err == nil) == (g.Status == 0) {
						t.Errorf("try %d was observed as %+v", i+1, g)
					}
					if !last && base.sent[i+1].at.Sub(base.sent[i].at) != g.Wait+g.Took {
						t.Errorf("try %d: waited %v; observed %v after %v", i+1, base.sent[i+1].at.Sub(base.sent[i].at), g.Wait, g.Took)
					}
				}
			})
		})
	}
}

// TestTransportCancel: the end of the context ends a wait and a try at once.
func TestTransportCancel(t *testing.T) {
	cause := errors.New("the user left")
	for name, first := range map[string]play{"in a wait": reply(429, "", "Retry-After: 30"), "in a try": hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := &script{answers: []play{first, reply(201, "")}}
				tr := transport(t, base)
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(3*time.Second, func() { cancel(cause) })
				begin := time.Now()
				_, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
				e := failure(t, err)
				if took := time.Since(begin); took != 3*time.Second || !errors.Is(err, cause) || e.Reason != semelhttp.ReasonContext || e.Tries != 1 || len(base.sent) != 1 {
					t.Errorf("after %v: %d tries, %+v", took, len(base.sent), e)
				}
				// A 429 has no effect by definition; what hung may have one.
				if want := name == "in a wait"; errors.Is(err, semel.ErrNoEffect) != want || errors.Is(err, semel.ErrMaybeEffect) == want {
					t.Errorf("effect %v", e.Effect())
				}
			})
		})
	}
}

// TestTransportTryTimeout: a hung try is ended and made again under its key; the
// timeout does not cut the answer's body.
func TestTransportTryTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(r *http.Request) (*http.Response, error) {
			in, out := io.Pipe()
			go func() {
				time.Sleep(time.Minute)
				_, _ = io.WriteString(out, "slow")
				_ = out.CloseWithError(context.Cause(r.Context()))
			}()
			resp, _ := reply(201, "")(r)
			resp.Body = in
			return resp, nil
		}
		base := &script{answers: []play{hang, slow}}
		tr := transport(t, base, func(c *semelhttp.TransportConfig) { c.TryTimeout = time.Second })
		status, body := roundTrip(t, tr, request(t, t.Context(), "POST", "{}"))
		if status != 201 || body != "slow" || len(base.sent) != 2 || base.sent[0].key != base.sent[1].key {
			t.Errorf("answer %d %q with the keys %q", status, body, base.keys())
		}

		base = &script{answers: []play{func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err() // without the cause
		}}}
		tr = transport(t, base, func(c *semelhttp.TransportConfig) { c.TryTimeout = time.Second })
		_, err := tr.RoundTrip(request(t, t.Context(), "POST", "{}"))
		if e := failure(t, err); !errors.Is(err, semelhttp.ErrTryTimeout) || !e.Timeout() || e.Effect() != semel.EffectMaybe || e.Tries != semelhttp.DefaultMaxTries {
			t.Errorf("error %+v", e)
		}
	})
}

// dripping answers at once, with a body of which a byte comes each second.
func dripping(status int, body string) play {
	return func(r *http.Request) (*http.Response, error) {
		resp, err := reply(status, body)(r)
		resp.Body = &trackedBody{Reader: &drip{r.Context(), resp.Body}}
		return resp, err
	}
}

type drip struct {
	ctx context.Context
	io.Reader
}

func (d *drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		return d.Reader.Read(p[:1])
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

// TestTransportPromptRefusalWithSlowBody: the status line settles what may be
// tried again; TryTimeout does not run on while a problem's body is read. Its
// advice is waited for within bounds, and the answer is whole all the same.
func TestTransportPromptRefusalWithSlowBody(t *testing.T) {
	slow, endless := `{"retry":"no"}`, "{"+strings.Repeat(" ", 1000)
	for _, tt := range []struct {
		name    string
		answers []play
		config  func(*semelhttp.TransportConfig)
		status  int
		body    string
		tries   int
		took    time.Duration // until RoundTrip has returned
	}{
		{"422", []play{dripping(422, slow)}, func(c *semelhttp.TransportConfig) { c.TryTimeout = time.Second }, 422, slow, 1, 5 * time.Second},
		{"422, without a try's timeout", []play{dripping(422, slow)}, nil, 422, slow, 1, 5 * time.Second},
		{"422, little time left", []play{dripping(422, slow)}, func(c *semelhttp.TransportConfig) { c.MaxElapsed = 2 * time.Second }, 422, slow, 1, 2 * time.Second},
		{"422, in time", []play{dripping(422, `{}`)}, func(c *semelhttp.TransportConfig) { c.TryTimeout = time.Second }, 422, `{}`, 1, 3 * time.Second},
		// The status asks for another try, and the advice against it comes late. What
		// is left of the body is waited for a second.
		{"409", []play{dripping(409, slow), reply(201, "")}, nil, 201, "", 2, 6 * time.Second},
		{"409, in time", []play{dripping(409, `{}`), reply(201, "")}, func(c *semelhttp.TransportConfig) { c.TryTimeout = time.Second }, 201, "", 2, 3 * time.Second},
		// Without end: neither a try nor its remains hold the call.
		{"409 for ever", []play{dripping(409, endless)}, func(c *semelhttp.TransportConfig) {
			c.MaxTries, c.MaxElapsed = 1000, 20*time.Second
		}, 409, endless, 4, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := &script{answers: tt.answers}
				edit := tt.config
				if edit == nil {
					edit = func(*semelhttp.TransportConfig) {}
				}
				begin := time.Now()
				resp, err := transport(t, base, edit).RoundTrip(request(t, t.Context(), "POST", "{}"))
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(begin)
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != tt.status || string(body) != tt.body || err != nil || len(base.sent) != tt.tries || took != tt.took {
					t.Errorf("%d tries in %v; answer %d %q, %v", len(base.sent), took, resp.StatusCode, body, err)
				}
				for i, b := range base.bodies {
					if b.closed != 1 {
						t.Errorf("body %d was closed %d times", i+1, b.closed)
					}
				}
			})
		})
	}
	t.Run("its caller leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			begin := time.Now()
			resp, err := transport(t, &script{answers: []play{dripping(422, slow)}}).RoundTrip(request(t, ctx, "POST", "{}"))
			if took := time.Since(begin); err != nil || resp.StatusCode != 422 || took != 2*time.Second {
				t.Fatalf("after %v: %v, %v", took, resp, err)
			}
			if body, err := io.ReadAll(resp.Body); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%q, %v", body, err)
			}
			_ = resp.Body.Close()
		})
	})
	t.Run("its caller leaves a body that does not notice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			body := newStalled(true)
			begin := time.Now()
			resp, err := transport(t, &script{answers: []play{func(r *http.Request) (*http.Response, error) {
				resp, err := reply(422, slow)(r)
				resp.Body = body
				return resp, err
			}}}).RoundTrip(request(t, ctx, "POST", "{}"))
			if took := time.Since(begin); err != nil || resp.StatusCode != 422 || took != 2*time.Second {
				t.Fatalf("after %v: %v, %v", took, resp, err)
			}
			_ = resp.Body.Close()
			close(body.letGo)
			<-body.closed
		})
	})
	t.Run("its body is closed unread", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // which wants the goroutine that reads ended
			resp, err := transport(t, &script{answers: []play{dripping(422, slow)}}).RoundTrip(request(t, t.Context(), "POST", "{}"))
			if err != nil || resp.Body.Close() != nil {
				t.Fatal(err)
			}
		})
	})
}

// stalled is a body whose Read does not return before Close. If it is deaf,
// neither does before it is let go.
type stalled struct {
	first  io.Reader
	deaf   bool
	closed chan struct{}
	letGo  chan struct{}
}

func newStalled(deaf bool) *stalled {
	return &stalled{strings.NewReader("it beg"), deaf, make(chan struct{}), make(chan struct{})}
}

func (b *stalled) Read(p []byte) (int, error) {
	if n, err := b.first.Read(p); err == nil {
		return n, nil
	}
	closed := b.closed
	if b.deaf {
		closed = nil
	}
	select {
	case <-closed:
		return 0, errors.New("closed")
	case <-b.letGo:
		return copy(p, "too late"), io.EOF
	}
}

func (b *stalled) Close() error {
	close(b.closed) // which panics the second time
	if b.deaf {
		<-b.letGo
	}
	return nil
}

// TestTransportStalledRequestBody: a body that its reader waits for holds
// RoundTrip neither past the context nor past its times, whether it is read
// before the first try or sent as it comes, whoever sends, and whether it heeds
// its Close or not. It is closed once.
func TestTransportStalledRequestBody(t *testing.T) {
	left := errors.New("the user left")
	tests := map[string]func(r *http.Request, body io.ReadCloser){
		"held":             func(*http.Request, io.ReadCloser) {},
		"held, of length":  func(r *http.Request, _ io.ReadCloser) { r.ContentLength = 100 },
		"stream":           func(r *http.Request, _ io.ReadCloser) { r.ContentLength = -1 },
		"too long to hold": func(r *http.Request, _ io.ReadCloser) { r.ContentLength = 1 << 30 },
		"GetBody": func(r *http.Request, body io.ReadCloser) {
			r.ContentLength, r.GetBody = 100, func() (io.ReadCloser, error) { return nil, errors.New("once") }
		},
		"second body": func(r *http.Request, body io.ReadCloser) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("first")), 100
			r.GetBody = func() (io.ReadCloser, error) { return body, nil }
		},
	}
	bounds := map[string]struct {
		err    error
		reason semelhttp.Reason
		took   time.Duration
	}{
		"context":    {left, semelhttp.ReasonContext, 3 * time.Second},
		"TryTimeout": {semelhttp.ErrTryTimeout, "", 2 * time.Second},
		"MaxElapsed": {semelhttp.ErrElapsed, semelhttp.ReasonElapsed, 4 * time.Second},
	}
	for _, deaf := range []bool{false, true} {
		for name, edit := range tests {
			for bound, want := range bounds {
				for _, wire := range []string{"HTTP/1.1", "HTTP/2.0", "a base that reads first"} {
					t.Run(fmt.Sprint(name, "/", bound, "/deaf ", deaf, "/", wire), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							dial, stop := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
								_, _ = io.Copy(io.Discard, r.Body)
							}))
							defer stop()
							protocols := new(http.Protocols)
							protocols.SetHTTP1(wire == "HTTP/1.1")
							protocols.SetUnencryptedHTTP2(wire == "HTTP/2.0")
							served := &http.Transport{DialContext: dial, Protocols: protocols}
							defer served.CloseIdleConnections()
							var base http.RoundTripper = served
							if wire == "a base that reads first" {
								base = &script{answers: []play{reply(503, "")}}
							}
							if name == "second body" {
								base = &firstCut{RoundTripper: base}
							}
							tr := transport(t, base, func(c *semelhttp.TransportConfig) {
								c.MaxElapsed, c.MaxTries = 4*time.Second, 2
								if bound == "TryTimeout" {
									c.TryTimeout = 2 * time.Second
								}
							})
							ctx, cancel := context.WithCancelCause(t.Context())
							defer cancel(nil)
							if bound == "context" {
								time.AfterFunc(3*time.Second, func() { cancel(left) })
							}
							body := newStalled(deaf)
							defer close(body.letGo) // and the bubble sees that nothing goes on
							r := request(t, ctx, "POST", "")
							r.Body = body
							edit(r, body)
							begin := time.Now()
							_, err := tr.RoundTrip(r)
							e := failure(t, err)
							if took := time.Since(begin); took != want.took || !errors.Is(err, want.err) || want.reason != "" && e.Reason != want.reason {
								t.Errorf("after %v: reason %q, %v", took, e.Reason, err)
							}
							// What is read before the first try has certainly not been sent.
							if before := strings.HasPrefix(name, "held"); errors.Is(err, semel.ErrNoEffect) != before {
								t.Errorf("effect %v, %v", e.Effect(), err)
							}
							<-body.closed
						})
					})
				}
			}
		}
	}
}

// TestTransportStalledBodyOfTheBase: net/http gets a request that nobody may try
// again with its GetBody, for a connection that was closed before it was used.
func TestTransportStalledBodyOfTheBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := newStalled(true)
		defer close(body.letGo)
		base := &script{answers: []play{func(r *http.Request) (*http.Response, error) {
			again, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			_, err = io.ReadAll(again)
			_ = again.Close()
			return nil, err
		}}}
		r := request(t, t.Context(), "LOCK", "{}")
		r.GetBody = func() (io.ReadCloser, error) { return body, nil }
		begin := time.Now()
		_, err := transport(t, base, func(c *semelhttp.TransportConfig) { c.TryTimeout = time.Second }).RoundTrip(r)
		if took := time.Since(begin); took != time.Second || !errors.Is(err, semelhttp.ErrTryTimeout) {
			t.Errorf("after %v: %v", took, err)
		}
		<-body.closed
	})
}

// TestTransportAnswerBeforeTheBody: an answer need not wait for a stalled body,
// which is closed when nobody will read it any more.
func TestTransportAnswerBeforeTheBody(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, http2 := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				dial, stop := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Connection", "close") // else an HTTP/1.1 server reads on
					w.WriteHeader(http.StatusRequestEntityTooLarge)
				}))
				defer stop()
				protocols := new(http.Protocols)
				protocols.SetHTTP1(!http2)
				protocols.SetUnencryptedHTTP2(http2)
				base := &http.Transport{DialContext: dial, Protocols: protocols}
				defer base.CloseIdleConnections()
				body := newStalled(deaf)
				defer close(body.letGo)
				r := request(t, t.Context(), "POST", "")
				r.Body, r.ContentLength = body, -1
				begin := time.Now()
				resp, err := transport(t, base).RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				<-body.closed
				if took := time.Since(begin); resp.StatusCode != 413 || took != 0 {
					t.Errorf("HTTP/2 %v, deaf %v: %d after %v", http2, deaf, resp.StatusCode, took)
				}
			})
		}
	}
}

// firstCut reads and cuts off the first request.
type firstCut struct {
	http.RoundTripper
	cut bool
}

func (b *firstCut) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.cut {
		return b.RoundTripper.RoundTrip(r)
	}
	b.cut = true
	_, _ = io.ReadAll(r.Body)
	_ = r.Body.Close()
	return nil, errCut
}

// TestTransportBodies: what is sent again, and what cannot be.
func TestTransportBodies(t *testing.T) {
	whole := strings.Repeat("0123456789", 10)
	tests := []struct {
		name   string
		edit   func(r *http.Request) // the body is whole, of unknown type and length
		tries  int
		length int64
	}{
		{"unknown length", func(*http.Request) {}, 3, 100},
		{"known length", func(r *http.Request) { r.ContentLength = 100 }, 3, 100},
		{"stream", func(r *http.Request) { r.ContentLength = -1 }, 1, -1},
		{"GetBody", func(r *http.Request) {
			r.ContentLength = 100
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(whole)), nil }
		}, 3, 100},
		{"stream with GetBody", func(r *http.Request) {
			r.ContentLength = -1
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(whole)), nil }
		}, 3, -1},
		{"GetBody that fails", func(r *http.Request) {
			r.ContentLength = 100
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		}, 1, 100},
		{"too long", func(r *http.Request) { r.Body.(*trackedBody).Reader = strings.NewReader(whole + "!") }, 1, 0},
		{"too long and known to be", func(r *http.Request) {
			r.Body.(*trackedBody).Reader = strings.NewReader(whole + "!")
			r.ContentLength = 101
		}, 1, 101},
		{"trailer", func(r *http.Request) {
			r.Trailer = http.Header{"Sum": nil}
			r.Body.(*trackedBody).Reader = io.MultiReader(strings.NewReader(whole), atEOF(func() { r.Trailer.Set("Sum", "x") }))
		}, 3, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := &script{answers: []play{cut}}
			tr := transport(t, base, func(c *semelhttp.TransportConfig) { c.MaxReplayBody, c.MaxTries = 100, 3 })
			body := &trackedBody{Reader: strings.NewReader(whole)}
			r := request(t, t.Context(), "POST", "")
			r.Body = body
			tt.edit(r)
			_, err := tr.RoundTrip(r)
			e := failure(t, err)
			wantReason := semelhttp.ReasonTries
			if tt.tries == 1 {
				wantReason = semelhttp.ReasonBody
			}
			if e.Tries != tt.tries || e.Reason != wantReason || len(base.sent) != tt.tries || body.closed != 1 || r.Body != io.ReadCloser(body) {
				t.Errorf("%d tries, reason %q, closed %d times", len(base.sent), e.Reason, body.closed)
			}
			for i, s := range base.sent {
				wantBody := whole
				if strings.HasPrefix(tt.name, "too long") {
					wantBody += "!"
				}
				if s.body != wantBody || s.length != tt.length || s.getBody || (tt.name == "trailer") != (s.trailer == "x") {
					t.Errorf("try %d: body %q, length %d, trailer %q", i+1, s.body, s.length, s.trailer)
				}
			}
		})
	}
	t.Run("short", func(t *testing.T) {
		base := &script{answers: []play{reply(201, "")}}
		r := request(t, t.Context(), "POST", "")
		body := &trackedBody{Reader: strings.NewReader(whole)}
		r.Body, r.ContentLength = body, 101
		_, err := transport(t, base).RoundTrip(r)
		if e := failure(t, err); len(base.sent) != 0 || e.Reason != semelhttp.ReasonRefused || !errors.Is(err, semel.ErrNoEffect) || body.closed != 1 {
			t.Errorf("sent %d, closed %d, %v", len(base.sent), body.closed, err)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		base := &script{answers: []play{reply(201, "")}}
		r := request(t, t.Context(), "POST", "")
		body := &trackedBody{Reader: io.MultiReader(strings.NewReader("x"), errReader{})}
		r.Body = body
		_, err := transport(t, base).RoundTrip(r)
		if e := failure(t, err); len(base.sent) != 0 || e.Reason != semelhttp.ReasonRefused || !errors.Is(err, errCut) || body.closed != 1 {
			t.Errorf("sent %d, closed %d, %v", len(base.sent), body.closed, err)
		}
	})
	t.Run("not held for a request that is sent once", func(t *testing.T) {
		base := &script{answers: []play{cut}}
		tr := transport(t, base, func(c *semelhttp.TransportConfig) { c.NeedsKey = func(*http.Request) bool { return false } })
		r := request(t, t.Context(), "POST", "")
		body := &trackedBody{Reader: strings.NewReader(whole)}
		r.Body = body
		_, err := tr.RoundTrip(r)
		if e := failure(t, err); base.sent[0].length != 0 || base.sent[0].body != whole || e.Reason != semelhttp.ReasonUnsafe || body.closed != 1 || e.Operation().Key != "" {
			t.Errorf("sent %+v, closed %d, %v", base.sent, body.closed, err)
		}
	})
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errCut }

type atEOF func()

func (f atEOF) Read([]byte) (int, error) { f(); return 0, io.EOF }

// TestTransportDiscards: the answers that nobody gets are read within bounds and
// closed; the one that is returned is whole.
func TestTransportDiscards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 1<<20)
		problem := `{"retry":"same-key","detail":"` + long[:200<<10] + `"}`
		stuck := func(r *http.Request) (*http.Response, error) {
			resp, _ := reply(503, "")(r)
			resp.Body = &trackedBody{Reader: blocked{r.Context()}}
			return resp, nil
		}
		base := &script{answers: []play{reply(503, "short"), reply(503, long), reply(409, problem), stuck, reply(409, `{"retry":"no","detail":"`+long+`"}`)}}
		begin := time.Now()
		resp, err := transport(t, base).RoundTrip(request(t, t.Context(), "POST", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 1100*time.Millisecond {
			t.Errorf("took %v", took)
		}
		for i, want := range []int{5, 64 << 10, semelhttp.MaxProblemBytes + 1, 0} {
			b := base.bodies[i]
			if b.closed != 1 || b.read > want+64<<10 || b.read < want {
				t.Errorf("body %d: %d bytes read, closed %d times", i+1, b.read, b.closed)
			}
		}
		body, err := io.ReadAll(resp.Body)
		if want := `{"retry":"no","detail":"` + long + `"}`; err != nil || string(body) != want {
			t.Errorf("%d bytes of the last answer; want %d; error %v", len(body), len(want), err)
		}
		if err := resp.Body.Close(); err != nil || base.bodies[4].closed != 1 {
			t.Errorf("closed %d times, %v", base.bodies[4].closed, err)
		}
	})
}

// blocked reads nothing until its context ends.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, b.ctx.Err() }

// TestTransportDoubtIsKept: a try that certainly had no effect does not speak
// for those before it, in this call or in one before.
func TestTransportDoubtIsKept(t *testing.T) {
	none := reply(429, "", "Retry-After: 3600")
	for name, answers := range map[string][]play{"cut": {cut}, "in progress": {reply(409, "")}, "502": {reply(502, "")}, "bare 503": {reply(503, "")}} {
		ctx := semelhttp.NewOperation(t.Context())
		base := &script{answers: slices.Concat(answers, []play{none})}
		resp, err := transport(t, base).RoundTrip(request(t, ctx, "POST", "{}"))
		if err != nil || resp.StatusCode != 429 {
			t.Fatal(err)
		}
		// Nothing is sent now, but the operation has been in doubt.
		r := request(t, ctx, "POST", "")
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("{}")), 99
		_, err = transport(t, base).RoundTrip(r)
		if failure(t, err).Tries != 0 || !errors.Is(err, semel.ErrMaybeEffect) || errors.Is(err, semel.ErrNoEffect) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTransportErrorKeepsTheKey: for whoever asks, and not in what gets logged.
func TestTransportErrorKeepsTheKey(t *testing.T) {
	const key = "secret-key-of-the-user"
	tr := transport(t, &script{answers: []play{cut}})
	client := &http.Client{Transport: tr}
	_, err := client.Do(request(t, semelhttp.WithKey(t.Context(), key), "POST", "{}"))
	e := failure(t, err)
	if e.Operation().Key != key || !errors.Is(err, errCut) || !errors.Is(err, semel.ErrMaybeEffect) || errors.Is(err, semel.ErrNoEffect) {
		t.Errorf("error %+v", e)
	}
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Error("failed", "err", err, "e", e, "op", e.Operation())
	slog.New(slog.NewJSONHandler(&logged, nil)).Error("failed", "err", err)
	_, _ = fmt.Fprintf(&logged, "%v %+v %s %v %+v", err, err, e, e.Operation(), e.Operation())
	if strings.Contains(logged.String(), key) {
		t.Errorf("the key is in %s", logged.String())
	}
	if !strings.Contains(err.Error(), "may have taken effect") || !strings.Contains(err.Error(), "same key") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

// TestTransportInExecution: calls that a protected operation makes have keys
// that the next execution of it has as well.
func TestTransportInExecution(t *testing.T) {
	f := newFixture(t, func(c *semel.Config) { c.Policy.OnCrash = semel.CrashRetry })
	base := &script{answers: []play{reply(201, "")}}
	tr := transport(t, base)
	submit := semel.Submit{
		Identity:    semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: "k"},
		Fingerprint: semel.FingerprintOf([]byte("x")),
	}
	execution := func(ctx context.Context) (semel.Result, error) {
		// The key of the whole is not that of its parts.
		_, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
		if !errors.Is(err, semelhttp.ErrNoStep) || !errors.Is(err, semel.ErrNoEffect) {
			t.Errorf("a call without a step: %v", err)
		}
		if _, ok := semelhttp.CurrentOperation(ctx); ok {
			t.Error("the operation from outside counts inside")
		}
		roundTrip(t, tr, request(t, ctx, "GET", ""))
		charge, err := semelhttp.WithStep(ctx, "charge")
		if err != nil {
			t.Error(err)
			return semel.Result{}, err
		}
		if ctx, err := semelhttp.WithStep(ctx, "charge"); !errors.Is(err, semel.ErrStepRepeated) || ctx != nil {
			t.Errorf("a step named twice: %v", err)
		}
		mail, err := semelhttp.WithStep(ctx, "mail")
		if err != nil {
			t.Error(err)
			return semel.Result{}, err
		}
		roundTrip(t, tr, request(t, charge, "POST", "{}"))
		roundTrip(t, tr, request(t, charge, "POST", "{}"))
		roundTrip(t, tr, request(t, mail, "POST", "{}"))
		roundTrip(t, tr, request(t, ctx, "POST", "{}", "Idempotency-Key: sdk"))
		roundTrip(t, tr, request(t, semelhttp.WithKey(ctx, "mine"), "POST", "{}"))
		return semel.Result{}, errors.New("cannot tell")
	}
	outer := semelhttp.WithKey(t.Context(), "outer")
	for range 2 {
		if _, err := f.guard.Do(outer, submit, execution); !errors.Is(err, semel.ErrUnknown) {
			t.Fatal(err)
		}
	}
	charge, err := submit.Identity.ChildKey("charge")
	if err != nil {
		t.Fatal(err)
	}
	mail, err := submit.Identity.ChildKey("mail")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"", `"` + charge + `"`, `"` + charge + `"`, `"` + mail + `"`, "sdk", `"mine"`}
	if got := base.keys(); !slices.Equal(got, slices.Concat(want, want)) {
		t.Errorf("keys %q; want %q twice", got, want)
	}
	if ctx, err := semelhttp.WithStep(t.Context(), "charge"); !errors.Is(err, semelhttp.ErrNoExecution) || ctx != nil {
		t.Errorf("a step outside of an execution: %v", err)
	}
}

// TestTransportInStep: requests with a step's context have its key, and the time at
// which it was begun; what was put around the step does not count inside.
func TestTransportInStep(t *testing.T) {
	f := newFixture(t)
	base := &script{answers: []play{reply(201, "")}}
	tr := transport(t, base)
	at := time.Unix(1700000000, 0)
	do := func(ctx context.Context, key string, fn func(ctx context.Context)) {
		t.Helper()
		submit := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: key}}
		if _, err := f.guard.Do(ctx, submit, func(ctx context.Context) (semel.Result, error) { fn(ctx); return semel.Result{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	do(t.Context(), "a", func(ctx context.Context) {
		step := semel.WithStep(semelhttp.WithKey(ctx, "around"), semel.Step{Key: "step", At: at})
		roundTrip(t, tr, request(t, step, "POST", "{}"))
		roundTrip(t, tr, request(t, step, "POST", "{}"))
		roundTrip(t, tr, request(t, semelhttp.WithKey(step, "inside"), "POST", "{}"))
		roundTrip(t, tr, request(t, semelhttp.WithKey(ctx, "around"), "POST", "{}"))
		if op, ok := semelhttp.CurrentOperation(step); !ok || op.Key != "step" || !op.FirstSent.Equal(at) {
			t.Errorf("the operation is %+v, %v", op, ok)
		}
		// Another execution within the step has steps of its own.
		do(step, "b", func(ctx context.Context) {
			if _, err := tr.RoundTrip(request(t, ctx, "POST", "{}")); !errors.Is(err, semelhttp.ErrNoStep) || semel.CurrentStep(ctx) != nil {
				t.Errorf("a call without a step of its own: %v", err)
			}
		})
		refused, err := semelhttp.NewTransport(semelhttp.TransportConfig{MaxTries: 1, Base: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") },
		}})
		if err != nil {
			t.Error(err)
			return
		}
		for _, c := range []struct {
			step context.Context
			none bool
		}{
			{semel.WithStep(ctx, semel.Step{Key: "fresh", At: at}), true},
			{semel.WithStep(ctx, semel.Step{Key: "again", At: at, InDoubt: true}), false},
			{step, false}, // it was called above
		} {
			if _, err := refused.RoundTrip(request(t, c.step, "POST", "{}")); err == nil || errors.Is(err, semel.ErrNoEffect) != c.none {
				t.Errorf("refused: %v; no effect: %v", err, c.none)
			}
		}
	})
	if got, want := base.keys(), []string{`"step"`, `"step"`, `"inside"`, `"around"`}; !slices.Equal(got, want) {
		t.Errorf("keys %q; want %q", got, want)
	}
}

func TestTransportConfig(t *testing.T) {
	_, err := semelhttp.NewTransport(semelhttp.TransportConfig{
		Header: "no token", Repeatability: true, MaxTries: -1, MaxElapsed: -1, MinBackoff: -1, MaxBackoff: -2, TryTimeout: -1, MaxReplayBody: -1,
	})
	for _, field := range []string{"Header", "Repeatability", "MaxTries", "MaxElapsed", "MinBackoff", "MaxBackoff", "TryTimeout", "MaxReplayBody"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
	if _, err := semelhttp.NewTransport(semelhttp.TransportConfig{MinBackoff: time.Hour}); err != nil {
		t.Errorf("a backoff above the default maximum: %v", err)
	}
	if _, err := semelhttp.NewTransport(semelhttp.TransportConfig{Repeatability: true}); err != nil {
		t.Error(err)
	}
}

// TestTransportTunnel: a switch of protocols leaves a body that can be written.
func TestTransportTunnel(t *testing.T) {
	var wrote bytes.Buffer
	base := &script{answers: []play{func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 101, Header: http.Header{}, Body: struct {
			io.ReadCloser
			io.Writer
		}{io.NopCloser(strings.NewReader("in")), &wrote}}, nil
	}}}
	resp, err := transport(t, base).RoundTrip(request(t, t.Context(), "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	w, ok := resp.Body.(io.Writer)
	if !ok {
		t.Fatal("the body cannot be written")
	}
	_, _ = io.WriteString(w, "out")
	in, err := io.ReadAll(resp.Body)
	if string(in) != "in" || wrote.String() != "out" || err != nil || resp.Body.Close() != nil {
		t.Errorf("in %q, out %q, %v", in, wrote.String(), err)
	}
}
