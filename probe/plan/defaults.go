package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// WithDefaults returns a copy of the plan with every default filled in, but for
// the experiments, which [Plan.ExperimentsFor] tells. The plan itself is not
// changed.
func (p *Plan) WithDefaults() Plan {
	c := *p
	if c.Contract == nil {
		c.Contract, c.assumed = &Contract{Profile: "ietf"}, true
	}
	c.Steps = stepDefaults(c.Steps)
	c.Operations = slices.Clone(c.Operations)
	for i := range c.Operations {
		op := &c.Operations[i]
		op.Request = op.Request.withDefaults()
		op.Steps = stepDefaults(op.Steps)
		for _, a := range op.alterations("") {
			if a.Body.json() != nil {
				op.Request = op.Request.typed()
			}
		}
		if op.Preview != nil {
			op.Preview = new(op.Preview.withDefaults())
		}
		if op.Key != nil {
			k := *op.Key
			k.Value = cmp.Or(k.Value, "{{uuid}}")
			if k.Header != "" && k.Syntax == "" {
				k.Syntax = "bare"
				if strings.EqualFold(k.Header, "Idempotency-Key") && p.ContractFor(op).Profile != "stripe" {
					k.Syntax = "sf-string"
				}
			}
			op.Key = &k
		}
		if op.Signature != nil {
			s := *op.Signature
			s.StaleBy = cmp.Or(s.StaleBy, time.Hour)
			op.Signature = &s
		}
		op.Readers = slices.Clone(op.Readers)
		for i := range op.Readers {
			r := &op.Readers[i]
			r.Effect = cmp.Or(r.Effect, "1")
			if r.Outside == nil {
				r.Outside = new(r.Webhook != nil || r.SMTP != nil)
			}
			if r.HTTP != nil {
				h := *r.HTTP
				h.As = cmp.Or(h.As, ActorA)
				if h.Count != nil || h.Value != nil {
					h.Format = cmp.Or(h.Format, "json")
				}
				if h.Post.json() != nil {
					h.Headers = typed(h.Headers)
				}
				if h.Pages != nil {
					g := *h.Pages
					g.Max = cmp.Or(g.Max, 20)
					h.Pages = &g
				}
				r.HTTP = &h
			}
			if r.Command != nil {
				k := *r.Command
				k.Timeout = cmp.Or(k.Timeout, 30*time.Second)
				r.Command = &k
			}
		}
		op.Audit = slices.Clone(op.Audit)
		for i := range op.Audit {
			if a := &op.Audit[i]; a.HTTP != nil {
				h := *a.HTTP
				h.As = cmp.Or(h.As, ActorA)
				a.HTTP = &h
			}
		}
	}
	if c.Reset != nil && c.Reset.HTTP != nil {
		h := *c.Reset.HTTP
		h.As = cmp.Or(h.As, ActorA)
		h.Request = h.Request.withDefaults()
		c.Reset = &Hook{HTTP: &h}
	}

	t := &c.Timing
	t.Timeout = cmp.Or(t.Timeout, 30*time.Second)
	t.Settle = cmp.Or(t.Settle, 500*time.Millisecond)
	t.StableFor = cmp.Or(t.StableFor, 5)
	t.SettleLimit = cmp.Or(t.SettleLimit, 30*time.Second)
	t.Poll = cmp.Or(t.Poll, 100*time.Millisecond)
	t.LateAfter = cmp.Or(t.LateAfter, 5*time.Second)
	c.Race.Width = cmp.Or(c.Race.Width, 10)
	c.Race.Trials = cmp.Or(c.Race.Trials, 1)
	c.Budget.MaxSends = cmp.Or(c.Budget.MaxSends, 50)
	c.Budget.MaxReads = cmp.Or(c.Budget.MaxReads, p.ReadsFor(c.Budget.MaxSends))
	c.Budget.MaxTime = cmp.Or(c.Budget.MaxTime, 5*time.Minute)
	for i := range c.Operations {
		c.Operations[i].Poll = c.Operations[i].Poll.withDefaults(c.Timing)
	}
	return c
}

// How services call what became of a request.
var (
	pendingWords = []string{"accepted", "pending", "queued", "scheduled", "started", "processing", "in_progress", "running", "submitted", "working"}
	doneWords    = []string{"done", "completed", "complete", "succeeded", "success", "successful", "finished", "executed", "confirmed", "paid", "ok"}
	failedWords  = []string{"failed", "failure", "error", "errored", "canceled", "cancelled", "rejected", "aborted", "expired", "timed_out"}
)

func (p *Poll) withDefaults(t Timing) *Poll {
	q := Poll{}
	if p != nil {
		q = *p
	}
	// A word that the plan gives means what it says there.
	given := map[string]bool{}
	for _, w := range slices.Concat(q.Pending, q.Done, q.Failed) {
		given[Word(w)] = true
	}
	usual := func(words *[]string, usual []string) {
		if len(*words) == 0 {
			*words = slices.DeleteFunc(slices.Clone(usual), func(w string) bool { return given[w] })
		}
	}
	usual(&q.Pending, pendingWords)
	usual(&q.Done, doneWords)
	usual(&q.Failed, failedWords)
	q.Take = takingDefaults(q.Take, false)
	q.Limit = cmp.Or(q.Limit, t.SettleLimit)
	return &q
}

// takingDefaults says what is a secret of what is taken.
func takingDefaults(list []Taking, secret bool) []Taking {
	list = slices.Clone(list)
	for i := range list {
		if t := &list[i]; t.Secret == nil {
			t.Secret = new(secret)
		}
	}
	return list
}

func stepDefaults(steps []Step) []Step {
	steps = slices.Clone(steps)
	for i := range steps {
		st := &steps[i]
		st.Request = st.Request.withDefaults()
		if st.Refresh != nil {
			st.Refresh = new(st.Refresh.withDefaults())
		}
		st.Take = takingDefaults(st.Take, st.Each == "principal")
	}
	return steps
}

func (r Request) withDefaults() Request {
	r.Protocol = cmp.Or(r.Protocol, "auto")
	if r.Body.json() != nil {
		r = r.typed()
	}
	return r
}

// typed says what a JSON body is, if the plan does not.
func (r Request) typed() Request {
	r.Headers = typed(r.Headers)
	return r
}

func typed(h Header) Header {
	if h.has("Content-Type") {
		return h
	}
	return append(slices.Clone(h), Pair{"Content-Type", "application/json"})
}

// json is the text of a body that the plan has as JSON, before its templates are
// rendered; nil for others.
func (b *Body) json() JSON {
	switch {
	case b == nil:
		return nil
	case b.GraphQL != nil:
		return b.GraphQL.with(b.GraphQL.Variables)
	}
	return b.JSON
}

// with is the request as JSON, with the variables given.
func (g *GraphQL) with(variables []byte) []byte {
	text := append([]byte(`{"operationName":`), quoteJSON(g.Operation)...)
	text = append(append(text, `,"query":`...), quoteJSON(g.Query)...)
	if len(variables) > 0 {
		text = append(append(text, `,"variables":`...), variables...)
	}
	return append(text, '}')
}

func (h Header) has(name string) bool {
	return slices.ContainsFunc(h, func(p Pair) bool { return strings.EqualFold(p.Name, name) })
}
