package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/internal/wire"
)

// trial is one case being checked. Its methods end it by a panic with itself.
type trial struct {
	*run
	name   string // of the case at the endpoint
	result *Result
}

func (r *run) check(c checkedCase) (result Result) {
	start := time.Now()
	result = Result{Case: c.name, Expected: c.expected(r), Outcome: Passed}
	t := &trial{run: r, name: c.name + "-" + r.id, result: &result}
	defer func() {
		if v := recover(); v != nil && v != any(t) {
			panic(v)
		}
		result.Took = time.Since(start)
	}()
	c.check(t)
	return result
}

func (t *trial) failf(format string, args ...any) {
	t.result.Outcome, t.result.Detail = Failed, fmt.Sprintf(format, args...)
	panic(t)
}

func (t *trial) notApplicable(why string) {
	t.result.Outcome, t.result.Detail = NotApplicable, why
	panic(t)
}

func (t *trial) key() string { return t.name + "-key" }

// do is the plain instruction of the case.
func (t *trial) do() instruction { return instruction{Case: t.name} }

func (t *trial) wantEffects(n int) {
	c, err := t.counts(t.name)
	if err != nil {
		t.failf("the endpoint does not tell its counts: %v", err)
	}
	if c.Effects != n {
		t.failf("%d effects; want %d", c.Effects, n)
	}
}

// executed checks the first response to a key.
func (t *trial) executed(what string, a response, status int) {
	if a.err != nil || a.status != status {
		t.failf("%s: %v; want %d", what, a, status)
	}
	if t.marked(a) {
		t.failf("%s is marked as a replay", what)
	}
	t.announced(what, a)
}

// announced checks what the contract says about a response that is on record.
func (t *trial) announced(what string, a response) {
	switch t.Contract {
	case "ietf":
		if at, err := http.ParseTime(a.header.Get("Idempotency-Expires")); err != nil || !at.After(time.Now()) {
			t.failf("%s: Idempotency-Expires is %q; want a date in the future", what, a.header.Get("Idempotency-Expires"))
		}
	case "oasis":
		if got := a.header.Get("Repeatability-Result"); !strings.EqualFold(got, "accepted") {
			t.failf("%s: Repeatability-Result is %q; want accepted", what, got)
		}
	}
}

// marked reports whether a response says that it is a replay.
func (t *trial) marked(a response) bool {
	switch t.Contract {
	case "ietf":
		return a.header.Get("Idempotency-Replayed") == "true"
	case "stripe":
		return a.header.Get("Idempotent-Replayed") == "true"
	}
	return false
}

// replayed checks that again repeats first to the byte.
func (t *trial) replayed(what string, first, again response) {
	if again.err != nil || again.status != first.status || again.body != first.body {
		t.failf("%s: %v with %d bytes; want the first response, %v with %d bytes", what, again, len(again.body), first, len(first.body))
	}
	if t.Contract != "oasis" && !t.marked(again) {
		t.failf("%s is not marked as a replay", what)
	}
	t.announced(what, again)
	for _, name := range []string{"Content-Type", "Location", "X-Conformance"} {
		if got, want := fmt.Sprint(again.header.Values(name)), fmt.Sprint(first.header.Values(name)); got != want {
			t.failf("%s: %s is %s; the first had %s", what, name, got, want)
		}
	}
}

// refusal is how a refusal has to look.
type refusal struct {
	kind   string // the end of the problem's type
	status int
	retry  string
	// stripe is the type of the error in Stripe's form.
	stripe string
	// accepted: there may have been an effect.
	accepted bool
}

// want is the refusal's status under the contract.
func (r *run) want(f refusal) int {
	if f.kind == "key-mismatch" && r.Contract != "ietf" {
		return http.StatusBadRequest
	}
	return f.status
}

func (r *run) describe(f refusal) string {
	switch r.Contract {
	case "stripe":
		return fmt.Sprintf("%d %s, Stripe-Should-Retry: %v", r.want(f), f.stripe, f.retry == "same-key")
	case "oasis":
		result := "rejected"
		if f.accepted {
			result = "accepted"
		}
		return fmt.Sprintf("%d %s, retry %s, Repeatability-Result: %s", r.want(f), f.kind, f.retry, result)
	}
	return fmt.Sprintf("%d %s, retry %s", r.want(f), f.kind, f.retry)
}

// refused checks a refusal, and that it gives nothing away.
func (t *trial) refused(what string, a response, f refusal) (statusURL string) {
	if a.err != nil || a.status != t.want(f) {
		t.failf("%s: %v; want %d", what, a, t.want(f))
	}
	if t.marked(a) {
		t.failf("%s: a refusal is marked as a replay", what)
	}
	if strings.Contains(a.body, t.key()) || strings.Contains(a.body, "nonce") || strings.Contains(fmt.Sprint(a.header), t.key()) {
		t.failf("%s: the refusal contains the key or a stored response", what)
	}
	if f.retry == "same-key" {
		if s, err := strconv.Atoi(a.header.Get("Retry-After")); (err != nil || s < 0) && f.kind != "body-unreadable" {
			t.failf("%s: Retry-After is %q; want seconds", what, a.header.Get("Retry-After"))
		}
	}
	if t.Contract == "stripe" {
		var body struct {
			Error struct{ Type, Message string } `json:"error"`
		}
		if err := json.Unmarshal([]byte(a.body), &body); err != nil || body.Error.Message == "" {
			t.failf("%s: the body is not an error in Stripe's form", what)
		}
		if body.Error.Type != f.stripe {
			t.failf("%s: the error's type is %q; want %q", what, body.Error.Type, f.stripe)
		}
		if got, want := a.header.Get("Stripe-Should-Retry"), fmt.Sprint(f.retry == "same-key"); got != want {
			t.failf("%s: Stripe-Should-Retry is %q; want %q", what, got, want)
		}
		return ""
	}
	var p struct {
		Type, Title, Retry string
		Status             int
		StatusURL          string `json:"status_url"`
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.failf("%s: Content-Type is %q; want application/problem+json", what, got)
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.failf("%s: the body is not a problem details object", what)
	}
	if !strings.HasSuffix(p.Type, "#"+f.kind) || p.Title == "" || p.Status != a.status || p.Retry != f.retry {
		t.failf("%s: type %q, status %d, retry %q; want a type that ends in #%s, status %d, retry %q", what, p.Type, p.Status, p.Retry, f.kind, a.status, f.retry)
	}
	if t.Contract == "oasis" {
		want := "rejected"
		if f.accepted {
			want = "accepted"
		}
		if got := a.header.Get("Repeatability-Result"); !strings.EqualFold(got, want) {
			t.failf("%s: Repeatability-Result is %q; want %s", what, got, want)
		}
	}
	return p.StatusURL
}

// held starts a request that does not come to its end before release.
func (t *trial) held() (first <-chan response, release func()) {
	do := t.do()
	do.Hold = true
	answered := make(chan response, 1)
	req := t.request(t.key(), do)
	go func() { answered <- t.send(req) }()
	for {
		c, err := t.counts(t.name)
		if err != nil {
			t.failf("the endpoint does not tell its counts: %v", err)
		}
		if c.Entered > 0 {
			break
		}
		select {
		case a := <-answered:
			t.failf("a request that is held was answered: %v", a)
		case <-time.After(5 * time.Millisecond):
		case <-t.ctx.Done():
			t.failf("%v", t.ctx.Err())
		}
	}
	return answered, func() { _ = t.get("?release=1&case=" + t.name) }
}

func (t *trial) heldRequest(edit ...wire.Field) wire.Request {
	do := t.do()
	do.Hold = true
	return t.request(t.key(), do, edit...)
}

func (t *trial) onlyOASIS() {
	if t.Contract != "oasis" {
		t.notApplicable("only for the contract oasis")
	}
}

// accepted follows a 202 to its end.
func (t *trial) accepted(a response, release func(), first <-chan response) {
	where := a.header.Get("Location")
	if a.err != nil || a.status != 202 || !strings.HasPrefix(where, t.Prefix+"/operations/") {
		t.failf("a duplicate: %v with Location %q; want 202 and one below %s/operations/", a, where, t.Prefix)
	}
	type status struct {
		State  string
		Result struct{ URL string }
	}
	look := func() (s status) {
		got := t.get(where, wire.Field{Name: "Prefer", Value: "wait=5"})
		if err := json.Unmarshal([]byte(got.body), &s); err != nil || got.status != 200 {
			t.failf("GET %s: %v", where, got)
		}
		return s
	}
	release()
	for end := time.Now().Add(t.Timeout); look().State == "in_progress"; {
		if time.Now().After(end) {
			t.failf("the operation was released %v ago and is still in progress", t.Timeout)
		}
	}
	s := look()
	if s.State != "completed" || s.Result.URL == "" {
		t.failf("the operation ends as %q", s.State)
	}
	result := t.get(s.Result.URL)
	if first != nil {
		original := <-first
		t.executed("the first response", original, 201)
		t.replayed("the result", original, result)
	} else if result.status != 201 {
		t.failf("the result: %v; want 201", result)
	}
}

// await polls the endpoint's counts.
func (t *trial) await(what string, ok func(counts) bool) {
	end := time.Now().Add(t.Timeout)
	for {
		c, err := t.counts(t.name)
		if err != nil {
			t.failf("the endpoint does not tell its counts: %v", err)
		}
		if ok(c) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.ctx.Done():
			t.failf("%v", t.ctx.Err())
		}
		if time.Now().After(end) {
			t.failf("waited %v in vain until the request %s", t.Timeout, what)
		}
	}
}

// settled repeats a request for as long as it is in progress.
func (t *trial) settled(req wire.Request) response {
	end := time.Now().Add(t.Timeout)
	for {
		a := t.send(req)
		if a.status != 202 && (a.status != 409 || !strings.Contains(a.body, "in-progress") && !strings.Contains(a.body, "idempotency_key_in_use")) || time.Now().After(end) {
			return a
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.ctx.Done():
			return response{err: t.ctx.Err()}
		}
	}
}
