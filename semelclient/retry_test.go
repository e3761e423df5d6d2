package semelclient_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/semelhttp"
)

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
					tr := transport(t, base, func(c *semelclient.Config) {
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
			tr := transport(t, base, func(c *semelclient.Config) { c.MinBackoff, c.MaxBackoff = 100*time.Millisecond, time.Second })
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
