package plan

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/probe/internal/wire"
)

// errNotTaken reports that a template needs a value that a step takes and has
// not taken yet.
var errNotTaken = errors.New("has not been taken by a step yet")

// Pretend sets whether a template that needs a value which its step has not
// taken yet is rendered with a stand-in. It is for dry runs and for looking at
// requests before anything is sent.
func (r *Renderer) Pretend(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pretend = on
}

// StepRequest renders the request of a step, or its refresh. v is nil for a step
// of each principal.
func (r *Renderer) StepRequest(v *Values, st *Step, who PrincipalName, refresh bool) (wire.Request, error) {
	req, err := r.stepRequest(v, st, who, refresh)
	if err != nil {
		return wire.Request{}, fmt.Errorf("plan: step %s: %w", st.Name, err)
	}
	return req, nil
}

func (r *Renderer) stepRequest(v *Values, st *Step, who PrincipalName, refresh bool) (wire.Request, error) {
	pr, err := r.principal(who)
	if err != nil {
		return wire.Request{}, err
	}
	sc := r.scope(v, pr, "")
	sc.step = true
	q, path := &st.Request, r.stepPath(st)+".request"
	if refresh && st.Refresh != nil {
		q, path = st.Refresh, r.stepPath(st)+".refresh"
	}
	req, err := r.base(sc, q, pr, path)
	if err != nil {
		return wire.Request{}, err
	}
	return req, req.Validate()
}

// stepPath is where a step is in the plan: fresh values go by it.
func (r *Renderer) stepPath(st *Step) string {
	for i := range r.plan.Steps {
		if &r.plan.Steps[i] == st {
			return strict.Index("steps", i)
		}
	}
	for i := range r.plan.Operations {
		for j := range r.plan.Operations[i].Steps {
			if &r.plan.Operations[i].Steps[j] == st {
				return strict.Index(strict.Index("operations", i)+".steps", j)
			}
		}
	}
	return ""
}

// Steps returns the steps before the requests of an operation that are sent for
// each principal, or for each request, in their order.
func (r *Renderer) Steps(op *Operation, each string) (list []*Step) {
	for _, steps := range [][]Step{r.plan.Steps, op.Steps} {
		for i := range steps {
			if steps[i].Each == each {
				list = append(list, &steps[i])
			}
		}
	}
	return list
}

// renewal is a value that took the place of another.
type renewal struct {
	of       *Principal
	name     string
	old, new string
}

// Took keeps what a step took from a response: with v for that request alone,
// without it for all requests of the principal. Secrets are kept out of evidence
// from now on. The values must be complete and in the order of the step's Take;
// an empty one means that the response to a refresh lacked it.
func (r *Renderer) Took(v *Values, st *Step, who PrincipalName, values []string) error {
	pr, err := r.principal(who)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, t := range st.Take {
		value, err := r.taken("step "+st.Name, t, values[i])
		if err != nil {
			return err
		}
		switch {
		case value.s == "":
			continue
		case v != nil:
			v.taken[t.Name] = value
		default:
			if r.sessions[pr] == nil {
				r.sessions[pr] = map[string]text{}
			}
			if old, ok := r.sessions[pr][t.Name]; ok && old.s != value.s {
				r.renew(pr, t.Name, old.s, value.s)
			}
			r.sessions[pr][t.Name] = value
		}
	}
	return nil
}

// taken is what was taken from a response, as templates see it. It needs mu.
func (r *Renderer) taken(from string, t Taking, s string) (text, error) {
	value := text{s: s, foreign: true}
	if err := checkForeign(t.Name, s, MaxTakenBytes); err != nil {
		return value, fmt.Errorf("plan: %s: %w", from, err)
	}
	if *t.Secret && s != "" {
		value.secret = from
		if len(s) < MinSecretBytes {
			return value, fmt.Errorf("plan: %s: %s is shorter than %d bytes, too short to be kept out of evidence; say secret: false if it is none", from, t.Name, MinSecretBytes)
		}
		r.derived[Secret{value.secret, s}] = true
	}
	return value, nil
}

// StatusURL renders the URL to ask what became of a request that was accepted.
// The values are those of the poll's Take, in its order, and resourceID is the
// id that the response gives the resource.
func (r *Renderer) StatusURL(v *Values, values []string, resourceID string) (string, error) {
	p := v.op.Poll
	c := *v
	c.taken = maps.Clone(v.taken)
	r.mu.Lock()
	for i, t := range p.Take {
		value, err := r.taken("poll", t, values[i])
		if err != nil {
			r.mu.Unlock()
			return "", err
		}
		c.taken[t.Name] = value
	}
	r.mu.Unlock()
	pr, err := r.principal(ActorA)
	if err != nil {
		return "", err
	}
	u, err := r.render(r.scope(&c, pr, resourceID).in(inURL), v.path+".poll.url", p.URL, MaxValueBytes)
	if err != nil {
		return "", fmt.Errorf("plan: poll: %w", err)
	}
	return u.s, nil
}

// renew notes that a value has taken the place of another, and of those that the
// other had taken the place of. It needs mu.
func (r *Renderer) renew(pr *Principal, name, old, value string) {
	for i := range r.renewed {
		if w := &r.renewed[i]; w.of == pr && w.name == name {
			w.new = value
		}
	}
	r.renewed = append(r.renewed, renewal{pr, name, old, value})
}

// Renew returns a request as a principal sends it now: values in its header or
// URL that a step has since taken anew are replaced by the newer ones. The body
// stays the same, to the byte.
func (r *Renderer) Renew(req wire.Request, who PrincipalName) wire.Request {
	pr, err := r.principal(who)
	if err != nil {
		return req
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var pairs []string
	for _, w := range r.renewed {
		if w.of != pr || w.old == w.new {
			continue
		}
		b64 := base64.StdEncoding.EncodeToString
		pairs = append(pairs, w.old, w.new, url.QueryEscape(w.old), url.QueryEscape(w.new), b64([]byte(w.old)), b64([]byte(w.new)))
	}
	if pairs == nil {
		return req
	}
	newer := strings.NewReplacer(pairs...)
	req.URL = newer.Replace(req.URL)
	req.Header = slices.Clone(req.Header)
	for i := range req.Header {
		req.Header[i].Value = newer.Replace(req.Header[i].Value)
	}
	return req
}

// Page returns the request for another page of a reader: the one that next names,
// or the one with a number. The error says why there is no page to read.
func (q *Reading) Page(from wire.Request, next string, number int) (wire.Request, error) {
	g, req := q.Reader.HTTP.Pages, q.Request
	base, err := url.Parse(from.URL)
	if err != nil {
		return req, errors.New("the URL of the page cannot be read")
	}
	query := func(name, value string) {
		values := base.Query()
		values.Set(name, value)
		base.RawQuery = values.Encode()
		req.URL = base.String()
	}
	switch {
	case g.Number != "":
		query(g.Number, strconv.Itoa(number))
	case g.Parameter != "":
		query(g.Parameter, next)
	case g.Member != "":
		text := quoteJSON(next)
		body, err := replaceJSON(req.Body, g.Member, text)
		if errors.Is(err, errNoValue) {
			body, err = insertJSON(req.Body, g.Member, text)
		}
		if err != nil {
			return req, fmt.Errorf("member %s of the next page: %w", g.Member, err)
		}
		req.Body = body
	default:
		ref, err := url.Parse(next)
		if err != nil {
			return req, errors.New("the next page's URL cannot be read")
		}
		at := base.ResolveReference(ref)
		at.Fragment, at.RawFragment = "", ""
		if at.Scheme != base.Scheme || at.Host != base.Host || at.User != nil {
			return req, errors.New("the next page is on another host, and is not read")
		}
		req.URL = at.String()
	}
	return req, req.Validate()
}
