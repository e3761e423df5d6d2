package webhook_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/webhook"
)

// TestUnsignedIDCannotTakeAnothersPlace: who has seen a delivery of GitHub's can
// send its body under the id of an event to come.
func TestUnsignedIDCannotTakeAnothersPlace(t *testing.T) {
	s := github(t, "a")
	rec := newReceiver(t, s)
	seen := sign(t, s, "id-1", "{}")
	wantAnswer(t, deliver(rec, seen, "{}"), 200, "effect 1")

	stolen := seen.Clone()
	stolen.Set(webhook.HeaderGitHubDelivery, "id-2")
	wantAnswer(t, deliver(rec, stolen, "{}"), 200, "effect 2") // the limit of the scheme
	wantAnswer(t, deliver(rec, sign(t, s, "id-2", `{"real":1}`), `{"real":1}`), 200, "effect 3")
	wantAnswer(t, deliver(rec, seen, "{}"), 200, "effect 1")
	rec.want(t, 3)

	// Where the body is the event, the first theft is none either.
	ignoring, err := webhook.NewGitHub(webhook.GitHubConfig{Secrets: []string{"a"}, IgnoreDelivery: true})
	if err != nil {
		t.Fatal(err)
	}
	rec = newReceiver(t, ignoring)
	wantAnswer(t, deliver(rec, seen, "{}"), 200, "effect 1")
	wantAnswer(t, deliver(rec, stolen, "{}"), 200, "effect 1")
	delete(stolen, webhook.HeaderGitHubDelivery)
	wantAnswer(t, deliver(rec, stolen, "{}"), 200, "effect 1")
	wantAnswer(t, deliver(rec, sign(t, s, "id-2", `{"real":1}`), `{"real":1}`), 200, "effect 2")
}

func TestEndpointsDoNotShareEvents(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s)
	h := sign(t, s, "msg_1", "{}")
	deliver(rec, h, "{}")
	for i, edit := range []func(*webhook.Config){
		func(c *webhook.Config) { c.Name = "shop.other" },
		func(c *webhook.Config) { c.Sender = "another bank" },
		func(c *webhook.Config) { c.Tenant = "shop-2" },
	} {
		wantAnswer(t, deliver(rec.endpoint(t, s, edit), h, "{}"), 200, fmt.Sprintf("effect %d", i+2))
	}
	// But under another path it is the same endpoint, and the same event.
	r := httptest.NewRequest(http.MethodPost, "/moved?to=here", strings.NewReader("{}"))
	r.Header = h
	w := httptest.NewRecorder()
	rec.ServeHTTP(w, r)
	wantAnswer(t, w, 200, "effect 1")
}

func TestDeliveriesThatAreRefused(t *testing.T) {
	s := standard(t, noon, sharedA)
	good := sign(t, s, "msg_1", "{}")
	without := good.Clone()
	without.Del("Webhook-Id")
	for _, tc := range []struct {
		name   string
		header http.Header
		status int
		detail string
	}{
		{"nothing", http.Header{}, 400, "no Webhook-Id header"},
		{"no id", without, 400, "no Webhook-Id header"},
		{"another secret", sign(t, standard(t, noon, sharedB), "msg_1", "{}"), 403, "no signature in the Webhook-Signature header matches"},
		{"an hour ago", sign(t, standard(t, noon.Add(-time.Hour), sharedA), "msg_1", "{}"), 403, "1h0m0s behind the receiver's clock"},
		{"in an hour", sign(t, standard(t, noon.Add(time.Hour), sharedA), "msg_1", "{}"), 403, "1h0m0s ahead of the receiver's clock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := newReceiver(t, s)
			wantAnswer(t, deliver(rec, tc.header, "{}"), tc.status, tc.detail)
			if len(rec.refused) != 1 || !strings.Contains(rec.refused[0].Error(), tc.detail) {
				t.Errorf("told %v", rec.refused)
			}
			rec.want(t, 0)
			// And it leaves nothing: the event itself is still to come.
			wantAnswer(t, deliver(rec, good, "{}"), 200, "effect 1")
		})
	}
}

// schemeFunc is a scheme of a user's.
type schemeFunc func(http.Header, []byte) (webhook.Event, error)

func (f schemeFunc) Verify(h http.Header, b []byte) (webhook.Event, error) { return f(h, b) }

func (f schemeFunc) RetrySpan() time.Duration { return time.Hour }

func TestSchemeOfAUsers(t *testing.T) {
	var ev webhook.Event
	var err error
	rec := newReceiver(t, schemeFunc(func(http.Header, []byte) (webhook.Event, error) { return ev, err }))
	err = errors.New("the token secret-1 has expired")
	w := deliver(rec, nil, "{}")
	wantAnswer(t, w, 403, "not accepted")
	if strings.Contains(w.Body.String(), "secret-1") {
		t.Errorf("the sender is told %s", w.Body)
	}
	// An id that could not be kept is refused whatever the scheme says.
	err = nil
	for _, id := range []string{"", "a b", "é", "\x00", strings.Repeat("x", webhook.MaxIDBytes+1)} {
		ev.ID = id
		wantAnswer(t, deliver(rec, nil, "{}"), 400, "event id")
	}
	rec.want(t, 0)
	ev.ID, ev.Unsigned = strings.Repeat("x", webhook.MaxIDBytes), true // and a digest behind it
	wantAnswer(t, deliver(rec, nil, "{}"), 200, "effect 1")
	wantAnswer(t, deliver(rec, nil, "[]"), 200, "effect 2")
}

// TestNothingPassesUnverified: not as a safe method, which other protected
// handlers may see, and not in disguise.
func TestNothingPassesUnverified(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s)
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "post", "Post", "PURGE"} {
		r := httptest.NewRequest(method, "/hook", strings.NewReader("{}"))
		r.Header = sign(t, s, "msg_1", "{}")
		w := httptest.NewRecorder()
		rec.ServeHTTP(w, r)
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "POST" {
			t.Errorf("%s: got %d %v", method, w.Code, w.Header())
		}
	}
	for _, header := range []http.Header{{"X-Http-Method-Override": {"GET"}}, {"Idempotency-Key": {"k"}}, {"Prefer": {"respond-async"}}} {
		wantAnswer(t, deliver(rec, header, "{}"), 400, "no Webhook-Id header")
	}
	rec.want(t, 0)
}

func TestBodies(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s, func(c *webhook.Config) { c.MaxBody = 1 << 20 })
	rec.handle = func(_ int32, w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(w, "%d %v", n, err)
	}
	for i, size := range []int{0, 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20} {
		body := strings.Repeat("x", size)
		h := sign(t, s, fmt.Sprintf("msg_%d", i), body)
		for range 2 {
			wantAnswer(t, deliver(rec, h, body), 200, fmt.Sprintf("%d <nil>", size))
		}
		if size > 0 {
			wantAnswer(t, deliver(rec, h, body[1:]+"y"), 403, "no signature")
		}
	}
	rec.want(t, 6)
	body := strings.Repeat("x", 1<<20+1)
	wantAnswer(t, deliver(rec, sign(t, s, "msg_9", body), body), 413, "")
	rec.want(t, 6)
}

// TestBodyThatWasReadBefore: by a middleware around this one. It is not told as a
// signature that does not match.
func TestBodyThatWasReadBefore(t *testing.T) {
	s := standard(t, noon, sharedA)
	rec := newReceiver(t, s)
	reads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rec.ServeHTTP(w, r)
	})
	wantAnswer(t, deliver(reads, sign(t, s, "msg_1", "{}"), "{}"), 500, "read the request body before")
	rec.want(t, 0)
}

func TestEndpointsThatCannotBe(t *testing.T) {
	rec := newReceiver(t, standard(t, noon, sharedA))
	s := standard(t, noon, sharedA)
	_, err := webhook.New(webhook.Config{})
	for _, field := range []string{"Guard", "Scheme", "Name", "Sender"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	for name, c := range map[string]webhook.Config{
		"MaxBody":   {Guard: rec.guard, Scheme: s, Name: "n", Sender: "s", MaxBody: -1},
		"Tenant":    {Guard: rec.guard, Scheme: s, Name: "n", Sender: "s", Tenant: strings.Repeat("t", 256)},
		"RetrySpan": {Guard: rec.guard, Scheme: s, Name: "n", Sender: "s", RetrySpan: -1},
		"Retention": {Guard: rec.guard, Scheme: s, Name: "n", Sender: "s", Retention: -1},
	} {
		if _, err := webhook.New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
