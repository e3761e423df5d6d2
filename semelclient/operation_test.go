package semelclient_test

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
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
)

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
	tr := transport(t, base, func(c *semelclient.Config) { c.MaxTries = 1 })
	ctx := semelclient.NewOperation(t.Context())
	op, ok := semelclient.CurrentOperation(ctx)
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
	if got, _ := semelclient.CurrentOperation(resp.Request.Context()); got != op || resp.Request.Header.Get("Idempotency-Key") != `"`+op.Key+`"` {
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
	if got, _ := semelclient.CurrentOperation(resp.Request.Context()); `"`+got.Key+`"` != base.sent[0].key {
		t.Errorf("the response tells %q, the wire had %q", got.Key, base.sent[0].key)
	}
	_, err = tr.RoundTrip(request(t, t.Context(), "POST", "{}"))
	if got := failure(t, err).Operation(); `"`+got.Key+`"` != base.sent[1].key {
		t.Errorf("the error tells %q, the wire had %q", got.Key, base.sent[1].key)
	}
	// Other requests of the context need no key and get none.
	base.sent = nil
	roundTrip(t, transport(t, &script{answers: []play{reply(200, "")}}), request(t, ctx, "GET", ""))
	if op, ok := semelclient.CurrentOperation(t.Context()); ok {
		t.Errorf("an empty context has the operation %+v", op)
	}
}

// TestTransportHeaders: what is on the wire.
func TestTransportHeaders(t *testing.T) {
	ours := semelclient.WithKey(t.Context(), "ours")
	named := func(name string) func(*semelclient.Config) {
		return func(c *semelclient.Config) { c.Header = name }
	}
	bare := func(c *semelclient.Config) { c.BareKeys = true }
	tests := []struct {
		name    string
		ctx     context.Context
		config  func(*semelclient.Config)
		headers []string
		want    []string // of each try, sorted
	}{
		{"quoted", ours, nil, nil, []string{`Idempotency-Key: "ours"`}},
		{"escaped", semelclient.WithKey(t.Context(), `a"\b`), nil, nil, []string{`Idempotency-Key: "a\"\\b"`}},
		{"bare", ours, bare, nil, []string{"Idempotency-Key: ours"}},
		{"other header", ours, named("paypal-request-id"), nil, []string{`Paypal-Request-Id: "ours"`}},
		{"caller's", ours, nil, []string{"Idempotency-Key: theirs"}, []string{"Idempotency-Key: theirs"}},
		{"caller's without context", t.Context(), bare, []string{`Idempotency-Key: "theirs"`}, []string{`Idempotency-Key: "theirs"`}},
		{"caller's other header", ours, named("X-Request"), []string{"X-Request: theirs"}, []string{"X-Request: theirs"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := &script{answers: []play{cut, reply(201, "")}}
			edit := []func(*semelclient.Config){}
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
			if e := failure(t, err); len(base.sent) != 1 || e.Reason != semelclient.ReasonUnsafe || base.sent[0].key != strings.Join(values, " AND ") {
				t.Errorf("%q: %d tries, %v", values, len(base.sent), err)
			}
		}
	})
	t.Run("no key", func(t *testing.T) {
		for name, tr := range map[string]func(*semelclient.Config){"quoted": func(*semelclient.Config) {}, "bare": bare} {
			bad := []string{"", "a\nb", "\xff", strings.Repeat("k", 256)}
			if name == "bare" {
				bad = append(bad, "a b", `"a"`, "a,b", "a;b")
			}
			for _, key := range bad {
				base := &script{answers: []play{reply(201, "")}}
				body := &trackedBody{Reader: strings.NewReader("{}")}
				r := request(t, semelclient.WithKey(t.Context(), key), "POST", "")
				r.Body = body
				_, err := transport(t, base, tr).RoundTrip(r)
				e := failure(t, err)
				if _, ok := errors.AsType[*semelhttp.KeyError](err); !ok || len(base.sent) != 0 || e.Reason != semelclient.ReasonRefused || !errors.Is(err, semel.ErrNoEffect) || body.closed != 1 {
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
		tr := transport(t, base, func(c *semelclient.Config) { c.Repeatability, c.MaxTries = true, 3 })
		ctx := semelclient.NewOperation(t.Context())
		begin := time.Now()
		_, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
		op := failure(t, err).Operation()
		roundTrip(t, tr, request(t, ctx, "POST", "{}"))
		// A later process, with what the first one stored.
		roundTrip(t, tr, request(t, semelclient.WithOperation(t.Context(), op), "POST", "{}"))
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

// TestTransportDoubtIsKept: a try that certainly had no effect does not speak
// for those before it, in this call or in one before.
func TestTransportDoubtIsKept(t *testing.T) {
	none := reply(429, "", "Retry-After: 3600")
	for name, answers := range map[string][]play{"cut": {cut}, "in progress": {reply(409, "")}, "502": {reply(502, "")}, "bare 503": {reply(503, "")}} {
		ctx := semelclient.NewOperation(t.Context())
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
	_, err := client.Do(request(t, semelclient.WithKey(t.Context(), key), "POST", "{}"))
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
	g := newGuard(t, semel.Policy{OnCrash: semel.CrashRetry})
	base := &script{answers: []play{reply(201, "")}}
	tr := transport(t, base)
	submit := semel.Submit{
		Identity:    semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: "k"},
		Fingerprint: semel.FingerprintOf([]byte("x")),
	}
	execution := func(ctx context.Context) (semel.Result, error) {
		// The key of the whole is not that of its parts.
		_, err := tr.RoundTrip(request(t, ctx, "POST", "{}"))
		if !errors.Is(err, semelclient.ErrNoStep) || !errors.Is(err, semel.ErrNoEffect) {
			t.Errorf("a call without a step: %v", err)
		}
		if _, ok := semelclient.CurrentOperation(ctx); ok {
			t.Error("the operation from outside counts inside")
		}
		roundTrip(t, tr, request(t, ctx, "GET", ""))
		charge, err := semelclient.WithStep(ctx, "charge")
		if err != nil {
			t.Error(err)
			return semel.Result{}, err
		}
		if ctx, err := semelclient.WithStep(ctx, "charge"); !errors.Is(err, semel.ErrStepRepeated) || ctx != nil {
			t.Errorf("a step named twice: %v", err)
		}
		mail, err := semelclient.WithStep(ctx, "mail")
		if err != nil {
			t.Error(err)
			return semel.Result{}, err
		}
		roundTrip(t, tr, request(t, charge, "POST", "{}"))
		roundTrip(t, tr, request(t, charge, "POST", "{}"))
		roundTrip(t, tr, request(t, mail, "POST", "{}"))
		roundTrip(t, tr, request(t, ctx, "POST", "{}", "Idempotency-Key: sdk"))
		roundTrip(t, tr, request(t, semelclient.WithKey(ctx, "mine"), "POST", "{}"))
		return semel.Result{}, errors.New("cannot tell")
	}
	outer := semelclient.WithKey(t.Context(), "outer")
	for range 2 {
		if _, err := g.Do(outer, submit, execution); !errors.Is(err, semel.ErrUnknown) {
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
	if ctx, err := semelclient.WithStep(t.Context(), "charge"); !errors.Is(err, semelclient.ErrNoExecution) || ctx != nil {
		t.Errorf("a step outside of an execution: %v", err)
	}
}

// TestTransportInStep: requests with a step's context have its key, and the time at
// which it was begun; what was put around the step does not count inside.
func TestTransportInStep(t *testing.T) {
	g := newGuard(t, semel.Policy{})
	base := &script{answers: []play{reply(201, "")}}
	tr := transport(t, base)
	at := time.Unix(1700000000, 0)
	do := func(ctx context.Context, key string, fn func(ctx context.Context)) {
		t.Helper()
		submit := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: key}}
		if _, err := g.Do(ctx, submit, func(ctx context.Context) (semel.Result, error) { fn(ctx); return semel.Result{}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	do(t.Context(), "a", func(ctx context.Context) {
		step := semel.WithStep(semelclient.WithKey(ctx, "around"), semel.Step{Key: "step", At: at})
		roundTrip(t, tr, request(t, step, "POST", "{}"))
		roundTrip(t, tr, request(t, step, "POST", "{}"))
		roundTrip(t, tr, request(t, semelclient.WithKey(step, "inside"), "POST", "{}"))
		roundTrip(t, tr, request(t, semelclient.WithKey(ctx, "around"), "POST", "{}"))
		if op, ok := semelclient.CurrentOperation(step); !ok || op.Key != "step" || !op.FirstSent.Equal(at) {
			t.Errorf("the operation is %+v, %v", op, ok)
		}
		// Another execution within the step has steps of its own.
		do(step, "b", func(ctx context.Context) {
			if _, err := tr.RoundTrip(request(t, ctx, "POST", "{}")); !errors.Is(err, semelclient.ErrNoStep) || semel.CurrentStep(ctx) != nil {
				t.Errorf("a call without a step of its own: %v", err)
			}
		})
		refused, err := semelclient.New(semelclient.Config{MaxTries: 1, Base: &http.Transport{
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
