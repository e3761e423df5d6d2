package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// start returns a lab with its address. Its switches are those of the preset.
func start(t *testing.T, preset string) (*Lab, string) {
	t.Helper()
	return serve(t, Config{Path: filepath.Join(t.TempDir(), "lab.db"), Preset: preset})
}

// request is one that is sent; the zero value of a field stands for what is usual.
type request struct {
	operation, who, key, reference, body string
}

type response struct {
	status   int // 0: none came
	replayed bool
	text     string
}

// once sends each request on a connection of its own: net/http would send one again
// by itself where an old connection ends.
var once = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (q request) send(t *testing.T, url string) response {
	t.Helper()
	name := q.operation
	if name == "" {
		name = "charges"
	}
	if q.reference == "" {
		q.reference = "r"
	}
	for _, o := range Operations {
		if o.Name == name && q.body == "" {
			q.body = strings.ReplaceAll(o.Example, "REF", q.reference)
		}
	}
	return q.post(t, url+"/v1/"+name)
}

// post sends it to url, with its body as it is.
func (q request) post(t *testing.T, url string) response {
	t.Helper()
	if q.who == "" {
		q.who = "alice@acme"
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(q.body))
	if err != nil {
		t.Error(err)
		return response{}
	}
	r.GetBody = nil
	r.Header.Set("Authorization", "Bearer "+q.who)
	r.Header.Set("Content-Type", "application/json")
	if q.key != "" {
		r.Header.Set("Idempotency-Key", `"`+q.key+`"`)
	}
	resp, err := once.Do(r)
	if err != nil {
		return response{}
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		return response{}
	}
	return response{resp.StatusCode, resp.Header.Get("Idempotency-Replayed") != "", text.String()}
}

func done(t *testing.T, l *Lab, operation, tenant, reference string) int {
	t.Helper()
	for _, o := range Operations {
		if o.Name == operation {
			list, err := l.Effects(t.Context(), o, tenant, reference, 100)
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
	}
	t.Fatalf("no operation %q", operation)
	return 0
}

// mails waits until nothing is on its way to the mail server, and counts what is
// there.
func mails(t *testing.T, l *Lab, reference string) int {
	t.Helper()
	for {
		_, changed := l.trail.list("", 0)
		waiting, err := l.app.outbox.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pending := 0
		for _, s := range waiting {
			pending += s.Pending
		}
		if pending == 0 {
			return len(l.world.list("", reference, 100))
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatal("mails are still waiting")
		}
	}
}

// TestSequentialDuplicate sends each operation twice under one key. Every defence
// that is left away has its own number of effects and answers.
func TestSequentialDuplicate(t *testing.T) {
	for _, c := range []struct {
		preset  string
		effects int
		second  int
	}{
		{"unprotected", 2, 201}, {"unique", 1, 409}, {"tutorial", 1, 201}, {"homemade", 1, 201}, {"semel", 1, 201},
	} {
		t.Run(c.preset, func(t *testing.T) {
			t.Parallel()
			l, url := start(t, c.preset)
			for _, o := range Operations {
				q := request{operation: o.Name, key: "key-of-" + o.Name, reference: "ref-" + o.Name}
				first, second := q.send(t, url), q.send(t, url)
				if first.status != 201 || second.status != c.second {
					t.Errorf("%s: answered %d, then %d, want 201 and %d: %s", o.Name, first.status, second.status, c.second, second.text)
				}
				if same := first.text == second.text; same != (c.effects == 1 && c.second == 201) {
					t.Errorf("%s: the same response: %v", o.Name, same)
				}
				if n := done(t, l, o.Name, "acme", q.reference); n != c.effects {
					t.Errorf("%s: done %d times, want %d", o.Name, n, c.effects)
				}
			}
		})
	}
}

// gate holds requests between the look for the key and the effect, until so many
// are there: what a delay does with luck.
func (l *Lab) gate(operation string, n int) {
	var mu sync.Mutex
	open := make(chan struct{})
	p, o, s := l.app, operationNamed(operation), l.Switches(operation)
	work := p.work(o, s)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlers = map[wiring]http.Handler{{operation: operation, switches: s}: p.homemade(s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if n--; n == 0 {
			close(open)
		}
		mu.Unlock()
		<-open
		work.ServeHTTP(w, r)
	}))}
}

// TestCheckThenActDoubles has two requests cross between look and effect. Without
// the lock both are carried out.
func TestCheckThenActDoubles(t *testing.T) {
	l, url := start(t, "tutorial")
	l.gate("charges", 2)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if a := (request{key: "k"}).send(t, url); a.status != 201 {
				t.Errorf("answered %d", a.status)
			}
		})
	}
	both.Wait()
	if n := done(t, l, "charges", "acme", "r"); n != 2 {
		t.Errorf("done %d times, want 2: this is the defect", n)
	}
}

// TestLockHolds sends twenty at the same time, to the two that take the key first.
func TestLockHolds(t *testing.T) {
	for _, preset := range []string{"homemade", "semel"} {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			l, url := start(t, preset)
			s := l.Switches("charges")
			s.Unique, s.Before = false, 50
			if err := l.Set("charges", s); err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					if a := (request{key: "k"}).send(t, url); a.status != 201 && a.status != 409 {
						t.Errorf("answered %d: %s", a.status, a.text)
					}
				})
			}
			all.Wait()
			if n := done(t, l, "charges", "acme", "r"); n != 1 {
				t.Errorf("done %d times", n)
			}
			if a := (request{key: "k"}).send(t, url); a.status != 201 || !a.replayed {
				t.Errorf("afterwards: %+v", a)
			}
		})
	}
}

// TestEachSwitch turns one switch of the preset semel off, and sees what follows
// from it and from nothing else.
func TestEachSwitch(t *testing.T) {
	type result struct {
		effects, mails int
		last           response
	}
	lost := func(t *testing.T, url string) response { // the first response gets lost
		if a := (request{key: "k"}).send(t, url); a.status != 0 {
			t.Errorf("the response that was to be lost: %+v", a)
		}
		return request{key: "k"}.send(t, url)
	}
	again := func(second request) func(*testing.T, string) response {
		return func(t *testing.T, url string) response {
			if a := (request{key: "k"}).send(t, url); a.status != 201 && a.status != 500 {
				t.Errorf("the first: %+v", a)
			}
			return second.send(t, url)
		}
	}
	for _, c := range []struct {
		name     string
		off      func(*Switches)
		fault    func(*Switches)
		do       func(t *testing.T, url string) response
		on, with result // with the defence, and without
	}{
		{
			"scope", func(s *Switches) { s.Scope = false }, nil, again(request{key: "k", who: "mallory@acme", reference: "other"}),
			result{2, 2, response{status: 201}},
			result{1, 1, response{status: 422}},
		},
		{
			"replay", func(s *Switches) { s.Replay = false }, func(s *Switches) { s.LoseResponse = true }, lost,
			result{1, 1, response{status: 201, replayed: true}},
			result{1, 1, response{status: 409}},
		},
		{
			"fingerprint", func(s *Switches) { s.Fingerprint = false }, nil, again(request{key: "k", body: `{"reference": "r", "amount": 900}`}),
			result{1, 1, response{status: 422}},
			result{1, 1, response{status: 201, replayed: true}},
		},
		{
			"failures", func(s *Switches) { s.Failures, s.Unique = false, false }, func(s *Switches) { s.FailAfter, s.Unique = true, false }, again(request{key: "k"}),
			result{1, 1, response{status: 500, replayed: true}},
			result{2, 2, response{status: 201}},
		},
		{
			"unique", func(s *Switches) { s.Unique = false }, nil, again(request{key: "made-anew"}),
			result{1, 1, response{status: 409}},
			result{2, 2, response{status: 201}},
		},
		{
			"outbox", func(s *Switches) { s.Outbox = false }, nil, again(request{key: "made-anew"}),
			result{1, 1, response{status: 409}},
			result{1, 2, response{status: 409}},
		},
		{
			"key", func(s *Switches) { s.Key = KeyOptional }, nil, func(t *testing.T, url string) response { return request{}.send(t, url) },
			result{0, 0, response{status: 400}},
			result{1, 1, response{status: 201}},
		},
	} {
		for _, off := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s off %v", c.name, off), func(t *testing.T) {
				t.Parallel()
				l, url := start(t, "semel")
				s := l.Switches("charges")
				if c.fault != nil {
					c.fault(&s)
				}
				want := c.on
				if off {
					c.off(&s)
					want = c.with
				}
				if err := l.Set("charges", s); err != nil {
					t.Fatal(err)
				}
				got := result{last: c.do(t, url)}
				got.effects, got.mails = done(t, l, "charges", "acme", ""), mails(t, l, "")
				if n := len(l.world.hooks("", "", 100)); n != got.mails {
					t.Errorf("%d webhooks beside %d mails", n, got.mails)
				}
				text := got.last.text
				if got.last.text = ""; got != want {
					t.Errorf("got %+v, want %+v: %s", got, want, text)
				}
			})
		}
	}
}

// TestRateLimit sends more than is allowed in a second.
func TestRateLimit(t *testing.T) {
	l, url := start(t, "semel")
	s := l.Switches("charges")
	s.RateLimit = true
	if err := l.Set("charges", s); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range 50 {
		if a := (request{key: fmt.Sprint("k", i), reference: fmt.Sprint("r", i)}).send(t, url); a.status == 429 {
			refused++
		}
	}
	if n := done(t, l, "charges", "acme", ""); n+refused != 50 || refused == 0 {
		t.Errorf("%d done and %d refused, of 50", n, refused)
	}
}

// TestWebhookRedelivered has the provider deliver one event three times.
func TestWebhookRedelivered(t *testing.T) {
	for preset, want := range map[string]int{"unprotected": 3, "tutorial": 1, "homemade": 1, "semel": 1} {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			l, url := start(t, preset)
			resp, err := once.Post(url+"/lab/deliver/confirmations?times=3", "application/json", strings.NewReader(`{"reference": "r"}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var said struct {
				Event    string
				Statuses []int
			}
			if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(said.Statuses) != "[201 201 201]" {
				t.Errorf("answered %v", said.Statuses)
			}
			if n := done(t, l, "confirmations", "acme", "r"); n != want {
				t.Errorf("done %d times, want %d", n, want)
			}
			list, _ := l.trail.list("r", 10)
			if len(list) != 3 || list[0].Event != said.Event || list[2].Event != said.Event || list[0].Path != "webhook" {
				t.Errorf("the trail: %+v", list)
			}
			if a := (request{}).post(t, url+"/hooks/confirmations"); a.status != 401 {
				t.Errorf("without a signature: %d", a.status)
			}
		})
	}
}

// TestGraphQL sends one mutation twice, and one that is refused.
func TestGraphQL(t *testing.T) {
	for preset, want := range map[string]int{"unprotected": 2, "semel": 1} {
		t.Run(preset, func(t *testing.T) {
			t.Parallel()
			l, url := start(t, preset)
			q := request{key: "k", body: `{"query": "mutation ($reference: String!) { x }", "operationName": "approvals", "variables": {"reference": "r"}}`}
			first, second := q.post(t, url+"/graphql"), q.post(t, url+"/graphql")
			if first.status != 200 || second.status != 200 || !strings.Contains(first.text, `"data"`) || second.replayed != (want == 1) {
				t.Errorf("answered %+v, then %+v", first, second)
			}
			if n := done(t, l, "approvals", "acme", "r"); n != want {
				t.Errorf("done %d times, want %d", n, want)
			}
			q.body = strings.Replace(q.body, `"r"`, `""`, 1)
			if a := q.post(t, url+"/graphql"); a.status != 200 || !strings.Contains(a.text, `"errors"`) {
				t.Errorf("a wrong one: %+v", a)
			}
		})
	}
}

// TestTrail has both attempts, with all their names.
func TestTrail(t *testing.T) {
	l, url := start(t, "semel")
	request{key: "k"}.send(t, url)
	request{key: "k"}.send(t, url)
	list, _ := l.trail.list("r", 10)
	if len(list) != 2 {
		t.Fatalf("%d attempts", len(list))
	}
	second, first := list[0], list[1]
	if first.Effect == "" || first.Replayed || second.Effect != "" || !second.Replayed {
		t.Errorf("first %+v, second %+v", first, second)
	}
	for _, a := range list {
		if a.Request == "" || a.Trace == "" || a.Key != "k" || a.Actor != "alice" || a.Tenant != "acme" || a.Status != 201 {
			t.Errorf("%+v", a)
		}
	}
}

// TestBadInput is refused, and nothing is done.
func TestBadInput(t *testing.T) {
	l, url := start(t, "unprotected")
	for _, body := range []string{"", "{", "[]", `{"reference": ""}`, `{"reference": "r", "amount": -1}`, `{"reference": "r", "amount": 1, "more": 2}`, strings.Repeat("x", maxBody+1)} {
		if a := (request{body: body + " "}).send(t, url); a.status < 400 || a.status > 499 {
			t.Errorf("%.30q: answered %d", body, a.status)
		}
	}
	if a := (request{who: "nobody"}).send(t, url); a.status != 401 {
		t.Errorf("without a tenant: %d", a.status)
	}
	if n := done(t, l, "charges", "", ""); n != 0 {
		t.Errorf("done %d times", n)
	}
	for _, patch := range []string{"{", `{"sope": true}`, `{"key": "maybe"}`, `{"before_ms": 99999}`, `{"after_ms": -1}`} {
		r, _ := http.NewRequestWithContext(t.Context(), "PATCH", url+"/lab/switches/all", strings.NewReader(patch))
		resp, err := once.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("%s: answered %d", patch, resp.StatusCode)
		}
	}
	if s := l.Switches("charges"); s != Presets[0].Switches {
		t.Errorf("the switches are %+v", s)
	}
}

// TestExplain says which switch would have prevented what happened.
func TestExplain(t *testing.T) {
	l, url := start(t, "tutorial")
	l.gate("charges", 2)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { request{key: "k"}.send(t, url) })
	}
	both.Wait()
	attempts, _ := l.trail.list("r", 10)
	found := explain(Operations[0], l.Switches("charges"), attempts, 2, 2)
	if len(found) == 0 || found[0].Times != 2 {
		t.Fatalf("%+v", found)
	}
	var names []string
	for _, c := range found[0].Causes {
		names = append(names, c.Name)
		if len(c.Places) == 0 || !strings.Contains(c.Places[0].Code, "DEFECT("+c.Name+")") {
			t.Errorf("%s: no code is shown: %+v", c.Name, c.Places)
		}
	}
	if strings.Join(names, " ") != "in_progress unique" {
		t.Errorf("causes %q", names)
	}
	if all := explain(Operations[0], Presets[4].Switches, attempts[:1], 1, 1); len(all) != 0 {
		t.Errorf("of what went well: %+v", all)
	}
}

// TestJapanese holds that everything the page says has its Japanese, and that
// nothing else has.
func TestJapanese(t *testing.T) {
	said := map[string]bool{}
	for _, m := range regexp.MustCompile(`\{\{t "([^"]+)"\}\}`).FindAllStringSubmatch(pageHTML, -1) {
		said[m[1]] = true
	}
	for _, o := range Operations {
		said[o.Title] = true
	}
	for _, p := range Presets {
		said[p.Title], said[p.Lesson] = true, true
	}
	for _, s := range Toggles {
		said[s.Defence], said[s.Without] = true, true
	}
	for _, k := range []Requirement{KeyRequired, KeyOptional, KeyIgnored} {
		said[string(k)] = true
	}
	for _, file := range []string{"homemade.go", "operations.go", "guarded.go", "jobs.go", "app.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\.(?:note|midway)\("([^"]+)"\)`).FindAllStringSubmatch(string(text), -1) {
			said[m[1]] = true
		}
	}
	for _, text := range []string{leftDraft, lostJob, stuckKey} {
		said[text] = true
	}
	for text := range said {
		if japanese[text] == "" {
			t.Errorf("no Japanese for %q", text)
		}
	}
	page := japanese.In("ja")
	for text, ja := range japanese {
		if page(text) != ja || japanese.In("en")(text) != text {
			t.Errorf("%q is %q", text, page(text))
		}
	}
}

// TestSwitchesJSON: what GET tells can be sent back.
func TestSwitchesJSON(t *testing.T) {
	for _, p := range Presets {
		text, err := json.Marshal(p.Switches)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := (Switches{}).change(text); err != nil || s != p.Switches {
			t.Errorf("%s: %+v, %v", p.Name, s, err)
		}
	}
}
