package conformance

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/internal/wire"
)

var (
	keyMissing      = refusal{kind: "key-missing", status: 400, retry: "new-key", stripe: "invalid_request_error"}
	keyMalformed    = refusal{kind: "key-malformed", status: 400, retry: "new-key", stripe: "invalid_request_error"}
	keyMismatch     = refusal{kind: "key-mismatch", status: 422, retry: "no", stripe: "idempotency_error"}
	inProgress      = refusal{kind: "in-progress", status: 409, retry: "same-key", stripe: "invalid_request_error", accepted: true}
	unknown         = refusal{kind: "outcome-unknown", status: 409, retry: "after-resolution", stripe: "api_error", accepted: true}
	notRetained     = refusal{kind: "result-not-retained", status: 409, retry: "no", stripe: "invalid_request_error", accepted: true}
	unavailable     = refusal{kind: "store-unavailable", status: 503, retry: "same-key", stripe: "api_error", accepted: true}
	bodyTooLarge    = refusal{kind: "body-too-large", status: 413, retry: "no", stripe: "invalid_request_error"}
	firstInvalid    = refusal{kind: "first-sent-invalid", status: 400, retry: "new-key"}
	firstTooOld     = refusal{kind: "first-sent-out-of-range", status: 412, retry: "no"}
	notProtected    = refusal{kind: "not-protected", status: 501, retry: "no"}
	replayResponses = map[string]string{
		"ietf":   "the first response, Idempotency-Replayed: true",
		"stripe": "the first response, Idempotent-Replayed: true",
		"oasis":  "the first response, Repeatability-Result: accepted",
	}
)

// checkedCase is a row of the table.
type checkedCase struct {
	name     string
	expected func(*run) string
	check    func(*trial)
}

func says(s string) func(*run) string { return func(*run) string { return s } }

func refuses(f refusal) func(*run) string {
	return func(r *run) string { return r.describe(f) }
}

func replays(r *run) string { return replayResponses[r.Contract] }

// malformed is a case of a key that cannot be used.
func malformed(name, key string) checkedCase {
	return checkedCase{name, refuses(keyMalformed), func(t *trial) {
		t.refused("the response", t.post(key, t.do()), keyMalformed)
		t.wantEffects(0)
	}}
}

// cases are the table, in its order.
var cases = []checkedCase{
	{"first", says("executed once, and answered by the operation"), func(t *trial) {
		t.executed("the response", t.post(t.key(), t.do()), 201)
		t.wantEffects(1)
	}},
	{"replay", replays, func(t *trial) {
		first := t.post(t.key(), t.do())
		t.executed("the first response", first, 201)
		if got := first.header.Values("X-Conformance"); len(got) != 2 || got[0] != "a" || got[1] != "b" {
			t.failf("the first response has X-Conformance %q; the endpoint sent a, b", got)
		}
		for range 3 {
			t.replayed("a repeated request", first, t.post(t.key(), t.do()))
		}
		t.wantEffects(1)
	}},
	{"replay-empty", replays, func(t *trial) {
		do := t.do()
		do.Status = http.StatusNoContent
		first := t.post(t.key(), do)
		t.executed("the first response", first, 204)
		t.replayed("a repeated request", first, t.post(t.key(), do))
		t.wantEffects(1)
	}},
	{"replay-failure", replays, func(t *trial) {
		do := t.do()
		do.Status = http.StatusInternalServerError
		first := t.post(t.key(), do)
		t.executed("the first response", first, 500)
		t.replayed("a repeated request", first, t.post(t.key(), do))
		t.wantEffects(1)
	}},
	{"no-effect", says("passed on and not recorded; the same key executes again"), func(t *trial) {
		do := t.do()
		do.Busy = 1
		if a := t.post(t.key(), do); a.err != nil || a.status != 429 || t.marked(a) {
			t.failf("the first response: %v; want 429", a)
		}
		t.executed("the second response", t.post(t.key(), do), 201)
		t.wantEffects(1)
	}},
	{"key-missing", refuses(keyMissing), func(t *trial) {
		if t.KeyOptional {
			t.notApplicable("keys are optional here")
		}
		t.refused("the response", t.post("-", t.do()), keyMissing)
		t.wantEffects(0)
	}},
	malformed("key-empty", ""),
	malformed("key-empty-string", `""`),
	malformed("key-unterminated", `"abc`),
	malformed("key-with-parameters", `"abc";a=1`),
	malformed("key-with-control-escape", `"a\nc"`),
	malformed("key-too-long", strings.Repeat("k", 256)),
	malformed("key-list", `abc, def`),
	{"key-twice", refuses(keyMalformed), func(t *trial) {
		t.refused("the response", t.post(t.key(), t.do(), wire.Field{Name: t.keyHeader(), Value: t.key()}), keyMalformed)
		t.wantEffects(0)
	}},
	{"key-quoted", says("a key in double quotes is the same key as one without"), func(t *trial) {
		first := t.post(`"`+t.key()+`"`, t.do())
		t.executed("with quotes", first, 201)
		bare := t.post(t.key(), t.do())
		if t.Strict {
			t.refused("without quotes", bare, keyMalformed)
			return
		}
		t.replayed("without quotes", first, bare)
		t.wantEffects(1)
	}},
	{"mismatch", refuses(keyMismatch), func(t *trial) {
		first := t.post(t.key(), t.do())
		t.executed("the first response", first, 201)
		other := t.do()
		other.Note = "other"
		t.refused("another request", t.post(t.key(), other), keyMismatch)
		t.replayed("the first request after it", first, t.post(t.key(), t.do()))
		t.wantEffects(1)
	}},
	{"mismatch-in-flight", refuses(keyMismatch), func(t *trial) {
		first, release := t.held()
		defer release()
		other := t.do()
		other.Note = "other"
		t.refused("another request", t.post(t.key(), other), keyMismatch)
		release()
		t.executed("the first response", <-first, 201)
		t.wantEffects(1)
	}},
	{"in-flight", func(r *run) string {
		switch r.InFlight {
		case "wait":
			return "held, then " + replays(r)
		case "accept":
			return "202 and the Location of the status resource"
		}
		return r.describe(inProgress) + ", Retry-After"
	}, func(t *trial) {
		first, release := t.held()
		defer release()
		switch t.InFlight {
		case "wait":
			req, again := t.heldRequest(), make(chan response, 1)
			go func() { again <- t.send(req) }()
			select {
			case a := <-again:
				t.failf("a duplicate was not held but answered: %v", a)
			case <-time.After(100 * time.Millisecond):
			}
			release()
			original := <-first
			t.executed("the first response", original, 201)
			t.replayed("the duplicate", original, <-again)
		case "accept":
			t.accepted(t.send(t.heldRequest()), release, first)
		default:
			where := t.refused("a duplicate", t.send(t.heldRequest()), inProgress)
			if t.Prefix != "" && t.Contract != "stripe" && !strings.HasPrefix(where, t.Prefix+"/operations/") {
				t.failf("status_url is %q; want one below %s/operations/", where, t.Prefix)
			}
			release()
			t.executed("the first response", <-first, 201)
		}
		t.wantEffects(1)
	}},
	{"prefer-wait", func(r *run) string { return "Prefer: wait=20 holds a duplicate in flight, then " + replays(r) }, func(t *trial) {
		first, release := t.held()
		defer release()
		req, again := t.heldRequest(wire.Field{Name: "Prefer", Value: "wait=20"}), make(chan response, 1)
		go func() { again <- t.send(req) }()
		select {
		case a := <-again:
			t.failf("a duplicate was not held but answered: %v", a)
		case <-time.After(100 * time.Millisecond):
		}
		release()
		original, second := <-first, <-again
		t.executed("the first response", original, 201)
		t.replayed("the duplicate", original, second)
		if got := second.header.Get("Preference-Applied"); got != "wait=20" {
			t.failf("Preference-Applied is %q; want wait=20", got)
		}
		t.wantEffects(1)
	}},
	{"prefer-async", says("Prefer: respond-async is answered with 202 and the Location of the status resource"), func(t *trial) {
		if t.Prefix == "" {
			t.notApplicable("there are no status resources")
		}
		a := t.send(t.heldRequest(wire.Field{Name: "Prefer", Value: "respond-async"}))
		t.accepted(a, func() { _ = t.get("?release=1&case=" + t.name) }, nil)
		t.wantEffects(1)
	}},
	{"raced", says("ten at once: one executes; the others get its response or learn that it is in progress"), func(t *trial) {
		var requests []wire.Request
		for range 10 {
			requests = append(requests, t.request(t.key(), t.do()))
		}
		race, err := t.sender.SendRace(t.ctx, requests, nil)
		if err != nil || !race.Released {
			t.failf("the requests could not be released together: %v", race.Err)
		}
		var body string
		for i, x := range race.Exchanges {
			switch a := toResponse(x, nil); {
			case a.status == 201 && a.err == nil && (body == "" || body == a.body):
				body = a.body
			case a.status == 409 && t.InFlight == "reject":
				t.refused("a loser of the race", a, inProgress)
			case a.status == 202 && t.InFlight == "accept":
			default:
				t.failf("request %d: %v", i, a)
			}
		}
		t.wantEffects(1)
	}},
	{"client-gone", func(r *run) string { return "goes on without its client; a retry gets " + replays(r) }, func(t *trial) {
		req := t.heldRequest()
		ctx, hangUp := context.WithCancel(t.ctx)
		defer hangUp()
		gone := make(chan error, 1)
		go func() {
			_, err := t.sender.Send(ctx, req)
			gone <- err
		}()
		t.await("enters", func(c counts) bool { return c.Entered == 1 })
		hangUp()
		if err := <-gone; err != nil {
			t.failf("the request could not be sent: %v", err)
		}
		_ = t.get("?release=1&case=" + t.name)
		t.await("has its effect", func(c counts) bool { return c.Effects == 1 })
		a := t.settled(req)
		if a.status != 201 {
			t.failf("the retry: %v; want 201", a)
		}
		if t.Contract != "oasis" && !t.marked(a) {
			t.failf("the retry was not answered from a record")
		}
		t.wantEffects(1)
	}},
	{"cut-off", refuses(unknown), func(t *trial) {
		do := t.do()
		do.Abort = true
		_ = t.post(t.key(), do) // whatever it gets
		t.refused("the retry", t.settled(t.request(t.key(), do)), unknown)
		other := do
		other.Note = "other"
		t.refused("another request", t.post(t.key(), other), keyMismatch)
		t.wantEffects(1)
	}},
	{"not-retained", refuses(notRetained), func(t *trial) {
		do := t.do()
		do.Stream = true
		a := t.post(t.key(), do)
		if a.err != nil || a.status != 200 || a.body != "data: done\n\n" {
			t.failf("the first response: %v, %q", a, a.body)
		}
		t.refused("the retry", t.post(t.key(), do), notRetained)
		t.wantEffects(1)
	}},
	{"store-unavailable", refuses(unavailable), func(t *trial) {
		if t.Outage == nil {
			t.notApplicable("the store cannot be taken away from here")
		}
		first := t.post(t.key(), t.do())
		t.executed("the first response", first, 201)
		t.Outage(true)
		down := t.post(t.key(), t.do())
		t.Outage(false)
		t.refused("during the outage", down, unavailable)
		t.replayed("after the outage", first, t.post(t.key(), t.do()))
		t.wantEffects(1)
	}},
	{"body-too-large", refuses(bodyTooLarge), func(t *trial) {
		if t.MaxRequestBody == 0 {
			t.notApplicable("the limit is not known")
		}
		do := t.do()
		do.Note = strings.Repeat("x", t.MaxRequestBody)
		t.refused("the response", t.post(t.key(), do), bodyTooLarge)
		t.wantEffects(0)
	}},
	{"other-caller", says("the same key of another caller is another key: the request is executed and nothing is revealed"), func(t *trial) {
		if t.Other == nil {
			t.notApplicable("there are no credentials of another caller")
		}
		first := t.post(t.key(), t.do())
		t.executed("the first response", first, 201)
		other := t.do()
		other.Note = "of another caller" // a mismatch, were it the same key
		theirs := t.post(t.key(), other, wire.Field{Name: asOther})
		t.executed("the other caller's response", theirs, 201)
		if theirs.body == first.body {
			t.failf("the other caller got this one's response")
		}
		t.replayed("the first caller's retry", first, t.post(t.key(), t.do()))
		t.wantEffects(2)
	}},
	{"safe-method", says("passes, with or without a key"), func(t *trial) {
		a := t.get("?case="+t.name, wire.Field{Name: t.keyHeader(), Value: t.key()})
		if a.err != nil || a.status != 200 || t.marked(a) {
			t.failf("GET with a key: %v; want 200", a)
		}
		t.executed("a POST with the same key", t.post(t.key(), t.do()), 201)
	}},
	{"specification", says("published, and names the retention of each operation"), func(t *trial) {
		if t.Prefix == "" {
			t.notApplicable("there are no resources")
		}
		a := t.get(t.Prefix + "/specification")
		var spec struct {
			Operations []struct {
				KeyHeader string `json:"key_header"`
				Retention int64  `json:"retention_seconds"`
			} `json:"operations"`
		}
		if err := json.Unmarshal([]byte(a.body), &spec); err != nil || a.status != 200 || len(spec.Operations) == 0 {
			t.failf("GET %s/specification: %v", t.Prefix, a)
		}
		for _, o := range spec.Operations {
			if o.Retention <= 0 || o.KeyHeader == "" {
				t.failf("the specification does not name the retention and the header")
			}
		}
	}},
	{"first-sent-missing", refuses(firstInvalid), func(t *trial) {
		t.onlyOASIS()
		req := t.request("-", t.do(), wire.Field{Name: t.keyHeader(), Value: t.key()})
		t.refused("the response", t.send(req), firstInvalid)
		t.wantEffects(0)
	}},
	{"first-sent-malformed", refuses(firstInvalid), func(t *trial) {
		t.onlyOASIS()
		req := t.request("-", t.do(), wire.Field{Name: t.keyHeader(), Value: t.key()}, wire.Field{Name: "Repeatability-First-Sent", Value: "yesterday"})
		t.refused("the response", t.send(req), firstInvalid)
		t.wantEffects(0)
	}},
	{"first-sent-too-old", refuses(firstTooOld), func(t *trial) {
		t.onlyOASIS()
		req := t.request("-", t.do(), wire.Field{Name: t.keyHeader(), Value: t.key()}, wire.Field{Name: "Repeatability-First-Sent", Value: "Sat, 01 Jan 2000 00:00:00 GMT"})
		t.refused("the response", t.send(req), firstTooOld)
		t.wantEffects(0)
	}},
	{"not-protected", refuses(notProtected), func(t *trial) {
		t.onlyOASIS()
		req := t.request(t.key(), t.do())
		req.Method = "DELETE"
		t.refused("DELETE with a key", t.send(req), notProtected)
		t.wantEffects(0)
	}},
}
