package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/cmd/semel/internal/lab/trials"
)

// lessonRun is what came of the steps of a block.
type lessonRun struct {
	Operation string
	Reference string
	Got       map[int]map[string]string // by the number of the step, what is to be seen
	Err       string
}

// right reports whether everything was seen that the block says.
func (r *lessonRun) right(b *block) bool {
	for i, s := range b.Steps {
		for _, f := range s.See {
			if got, ok := r.Got[i][f.Name]; !ok || !f.seen(got) {
				return false
			}
		}
	}
	return r.Err == ""
}

// mostOfLesson bounds how long the steps of a block take together.
const mostOfLesson = 5 * time.Minute

// runBlock does the steps. Requests go to the lab at base, as anyone's would. The
// switches stay as the steps have set them, so that the page shows the same.
func (l *Lab) runBlock(ctx context.Context, base string, b *block) *lessonRun {
	ctx, stop := context.WithTimeout(ctx, mostOfLesson)
	defer stop()
	p := &pupil{
		lab: l, base: base, reference: "lesson-" + random(4), keys: map[string]string{}, operation: Operations[0], told: map[string]string{},
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	run := &lessonRun{Got: map[int]map[string]string{}}
	for i, s := range b.Steps {
		var err error
		if s.Verb == "see" {
			run.Got[i], err = p.look(ctx, s.See)
		} else {
			err = p.do(ctx, s)
		}
		if err != nil {
			run.Err = err.Error()
			break
		}
	}
	if p.sent {
		run.Operation, run.Reference = p.operation.Name, p.reference
	}
	return run
}

// pupil does what a lesson says.
type pupil struct {
	lab       *Lab
	client    *http.Client
	base      string
	operation *Operation
	reference string
	keys      map[string]string // by their letter
	responses []string
	replayed  int
	sent      bool
	told      map[string]string // by trials and the probe
}

func (p *pupil) do(ctx context.Context, s lessonStep) error {
	switch s.Verb {
	case "set":
		p.operation = operationOf(s.Words[0])
		switches, err := switchesOf(s.Words)
		if err != nil {
			return err
		}
		return p.lab.Set(p.operation.Name, switches)
	case "press":
		p.sent = true
		return p.press(ctx, s.Words[0])
	case "send":
		p.sent = true
		key := ""
		if letter := s.Words[1]; letter != "-" {
			if p.keys[letter] == "" {
				p.keys[letter] = random(16)
			}
			key = p.keys[letter]
		}
		return p.ask(p.send(ctx, s.Words[0], key, fields(s.Words[2:], p.example(p.reference))))
	case "probe":
		return p.probe(ctx)
	case "try":
		t := trials.All[s.Words[0]]
		hand, err := t.Hand(ctx)
		if err != nil {
			return err
		}
		semel, err := t.Semel(ctx)
		p.told["hand"], p.told["semel"] = hand.Count, semel.Count
		p.told["hand_receipts"], p.told["semel_receipts"] = hand.Receipts, semel.Receipts
		return err
	}
	return fmt.Errorf("%s is no step", s.Verb)
}

func (p *pupil) example(reference string) string {
	return strings.ReplaceAll(p.operation.Example, "REF", reference)
}

// press does what the page's script does for the button.
func (p *pupil) press(ctx context.Context, button string) error {
	key := random(16)
	send := func(key string) func() (string, bool, error) {
		return p.send(ctx, "alice@acme", key, []byte(p.example(p.reference)))
	}
	one := send(key)
	switch button {
	case "once":
		return p.ask(one)
	case "double":
		return p.ask(one, one)
	case "race":
		return p.ask(one, one, one, one, one)
	case "lose":
		if err := p.change(`{"lose_answer": true}`); err != nil {
			return err
		}
		if err := errors.Join(p.ask(one), p.change(`{"lose_answer": false}`)); err != nil {
			return err
		}
		return p.ask(one)
	case "newkey":
		return p.inTurn(one, send(random(16)))
	case "stranger":
		return p.inTurn(one, p.send(ctx, "mallory@acme", key, []byte(p.example(p.reference))))
	case "altered":
		return p.inTurn(one, p.send(ctx, "alice@acme", key, []byte(p.example(p.reference+"-altered"))))
	case "webhook":
		return p.deliver(ctx)
	}
	return fmt.Errorf("there is no button %s", button)
}

func (p *pupil) change(text string) error {
	s, err := p.lab.Switches(p.operation.Name).change([]byte(text))
	if err != nil {
		return err
	}
	return p.lab.Set(p.operation.Name, s)
}

// send returns what sends a request and tells the status, or that no response came.
func (p *pupil) send(ctx context.Context, who, key string, body []byte) func() (status string, replayed bool, err error) {
	return func() (string, bool, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+"/v1/"+p.operation.Name, strings.NewReader(string(body)))
		if err != nil {
			return "", false, err
		}
		r.GetBody = nil // sent once
		r.Header.Set("Authorization", "Bearer "+who)
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set("Idempotency-Key", `"`+key+`"`)
		}
		resp, err := p.client.Do(r)
		if err != nil {
			return "lost", false, ctx.Err()
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return strconv.Itoa(resp.StatusCode), resp.Header.Get("Idempotency-Replayed") != "", nil
	}
}

// ask sends requests at the same time, and keeps their responses, the lowest first.
func (p *pupil) ask(sends ...func() (string, bool, error)) error {
	type response struct {
		status   string
		replayed bool
		err      error
	}
	came := make(chan response)
	for _, send := range sends {
		go func() {
			status, replayed, err := send()
			came <- response{status, replayed, err}
		}()
	}
	var statuses []string
	var failed error
	for range sends {
		a := <-came
		statuses = append(statuses, a.status)
		if a.replayed {
			p.replayed++
		}
		if a.err != nil {
			failed = a.err
		}
	}
	slices.Sort(statuses)
	p.responses = append(p.responses, statuses...)
	return failed
}

func (p *pupil) inTurn(sends ...func() (string, bool, error)) error {
	for _, send := range sends {
		if err := p.ask(send); err != nil {
			return err
		}
	}
	return nil
}

// deliver has the provider deliver a webhook twice.
func (p *pupil) deliver(ctx context.Context) error {
	var said struct {
		Statuses []int `json:"statuses"`
	}
	if err := p.post(ctx, "/lab/deliver/"+p.operation.Name+"?times=2", p.example(p.reference), http.StatusOK, &said); err != nil {
		return err
	}
	for _, s := range said.Statuses {
		p.responses = append(p.responses, strconv.Itoa(s))
	}
	return nil
}

// post sends to the lab's own API.
func (p *pupil) post(ctx context.Context, path, body string, want int, said any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.GetBody = nil
	resp, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	if resp.StatusCode != want {
		var p struct {
			Detail string `json:"detail"`
		}
		_ = json.Unmarshal(text, &p) // else the status has to do
		return fmt.Errorf("%d: %s", resp.StatusCode, cmp.Or(p.Detail, string(text)))
	}
	if said == nil {
		return nil
	}
	return json.Unmarshal(text, said)
}

// probe has the probe judge the operation, and waits for the verdict.
func (p *pupil) probe(ctx context.Context) error {
	if err := p.post(ctx, "/lab/probe/"+p.operation.Name, "", http.StatusAccepted, nil); err != nil {
		return err
	}
	for {
		_, changed := p.lab.trail.list("", 0)
		p.lab.probingMu.Lock()
		q := p.lab.probing
		p.lab.probingMu.Unlock()
		if q.Running == "" {
			if q.Err != "" {
				return errors.New(q.Err)
			}
			for _, f := range q.Verdict {
				p.told[f.Name] = f.Value
			}
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mostLooks bounds how long is looked at what comes by itself, such as a mail.
const mostLooks = 5 * time.Second

// look looks until there is to be seen what the block says, but not for ever, and
// returns what there is.
func (p *pupil) look(ctx context.Context, figures []figure) (map[string]string, error) {
	patience, stop := context.WithTimeout(ctx, mostLooks)
	defer stop()
	for {
		_, changed := p.lab.trail.list("", 0)
		seen, err := p.glance(ctx)
		if err != nil {
			return nil, err
		}
		got, right := map[string]string{}, true
		for _, f := range figures {
			s, ok := seen[f.Name]
			if ok {
				got[f.Name] = s
			}
			right = right && ok && f.seen(s)
		}
		if right {
			return got, nil
		}
		select {
		case <-changed:
		case <-patience.Done():
			return got, ctx.Err()
		}
	}
}

// glance returns all there is to be seen now.
func (p *pupil) glance(ctx context.Context) (map[string]string, error) {
	effects, mails := 0, 0
	var attempts []Attempt
	for _, reference := range []string{p.reference, p.reference + "-altered"} {
		done, err := p.lab.Effects(ctx, p.operation, "", reference, mostAttempts)
		if err != nil {
			return nil, err
		}
		came, _ := p.lab.trail.list(reference, mostAttempts)
		attempts = append(attempts, came...)
		effects += len(done)
		mails += len(p.lab.world.list(p.operation.Name, reference, mostMails))
	}
	var because []string
	for _, incident := range explain(p.operation, p.lab.Switches(p.operation.Name), attempts, effects, mails) {
		for _, c := range incident.Causes {
			if !slices.Contains(because, c.Name) {
				because = append(because, c.Name)
			}
		}
	}
	seen := map[string]string{
		"requests": strconv.Itoa(len(attempts)), "done": strconv.Itoa(effects), "mails": strconv.Itoa(mails),
		"responses": strings.Join(p.responses, " "), "replayed": strconv.Itoa(p.replayed), "because": strings.Join(because, " "),
	}
	maps.Copy(seen, p.told)
	return seen, nil
}
