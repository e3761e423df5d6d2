package plan

import (
	"fmt"

	"github.com/semelhq/semel/internal/strict"
)

// site is a place in a plan where a template may stand, and what may be in it.
type site struct {
	path, text string
	// variables that it may refer to, in order.
	variables Pairs
	taken     []string // what steps have taken by then
	fresh     bool     // values that are drawn
	key       bool     // {{.key}}
	resource  bool     // {{.resource_id}}
	principal bool     // {{.principal.x}}
	pattern   bool     // it is a regular expression
}

// eachSite calls f for every template of the plan, in the order in which fresh
// values are drawn. The sites of an operation come between enter and leave of
// it; both may be nil.
func (p *Plan) eachSite(f func(site)) {
	for i, v := range p.Variables {
		f(site{path: strict.Join("variables", v.Name), text: v.Value, variables: p.Variables[:i], fresh: true})
	}
	for _, name := range []PrincipalName{ActorA, ActorB, TenantB} {
		if pr := p.Principals.Get(name); pr != nil {
			at := strict.Join("principals", string(name))
			session := taken(p.Steps, "principal")
			headerSites(pr.Headers, site{path: at + ".headers", taken: session}, f)
			headerSites(Header(pr.Cookies), site{path: at + ".cookies", taken: session}, f)
			headerSites(Header(pr.Attributes), site{path: at + ".attributes"}, f)
		}
	}
	stepSites(p.Steps, "steps", p.Variables, nil, f)
	for i := range p.Operations {
		p.eachSiteOf(&p.Operations[i], strict.Index("operations", i), f)
	}
	if p.Reset != nil {
		at := site{principal: true, taken: taken(p.Steps, "principal")}
		if p.Reset.HTTP != nil {
			requestSites(&p.Reset.HTTP.Request, at.in("reset.http.request"), f)
		}
		listSites(p.Reset.Command, at.in("reset.command"), f)
	}
}

func (p *Plan) eachSiteOf(op *Operation, path string, f func(site)) {
	all := append(p.Variables[:len(p.Variables):len(p.Variables)], op.Variables...)
	for i, v := range op.Variables {
		f(site{path: strict.Join(path+".variables", v.Name), text: v.Value, variables: all[:len(p.Variables)+i], fresh: true})
	}
	if op.Key != nil {
		f(site{path: path + ".key.value", text: op.Key.Value, variables: all, fresh: true})
	}
	stepSites(op.Steps, path+".steps", all, p.Steps, f)
	had := p.takenFor(op)
	sent := site{variables: all, fresh: true, principal: true, taken: had}
	requestSites(&op.Request, sent.in(path+".request"), f)
	for _, a := range op.alterations(path) {
		bodySites(a.Body, sent.in(a.path+".body"), f)
		for i, e := range a.Edits {
			jsonSites(e.Value, sent.in(strict.Index(a.path+".edits", i)+".value"), f)
		}
	}
	if op.Preview != nil {
		requestSites(op.Preview, sent.in(path+".preview"), f)
	}
	if op.Signature != nil {
		f(site{path: path + ".signature.secret", text: op.Signature.Secret})
	}
	seen := site{variables: all, key: true, resource: true, principal: true, taken: had}
	for i := range op.Readers {
		r, at := &op.Readers[i], strict.Index(path+".readers", i)
		switch {
		case r.HTTP != nil:
			f(seen.at(at+".http.url", r.HTTP.URL))
			headerSites(r.HTTP.Headers, seen.in(at+".http.headers"), f)
			bodySites(r.HTTP.Post, seen.in(at+".http.post"), f)
			headerSites(Header(r.HTTP.Where), seen.in(at+".http.where"), f)
			f(seen.regexp(at+".http.lines", r.HTTP.Lines))
			f(seen.regexp(at+".http.number", r.HTTP.Number))
		case r.SQL != nil:
			dsn := seen
			dsn.resource = false // which database is asked is not for the target to say
			f(dsn.at(at+".sql.dsn", r.SQL.DSN))
			listSites(r.SQL.Args, seen.in(at+".sql.args"), f)
		case r.Log != nil:
			f(seen.regexp(at+".log.pattern", r.Log.Pattern))
		case r.Command != nil:
			listSites(r.Command.Argv, seen.in(at+".command.argv"), f)
			f(seen.regexp(at+".command.pattern", r.Command.Pattern))
		case r.Webhook != nil:
			f(seen.regexp(at+".webhook.match", r.Webhook.Match))
		case r.SMTP != nil:
			f(seen.regexp(at+".smtp.match", r.SMTP.Match))
		}
	}
	for i := range op.Atomicity {
		m, at := &op.Atomicity[i], strict.Index(path+".atomicity", i)
		f(seen.regexp(at+".answer", m.Answer))
		if m.Log != nil {
			f(seen.regexp(at+".log.pattern", m.Log.Pattern))
		}
		if m.SQL != nil {
			f(seen.at(at+".sql.dsn", m.SQL.DSN))
			listSites(m.SQL.Args, seen.in(at+".sql.args"), f)
		}
	}
	if op.Poll != nil {
		asks := seen
		for _, t := range op.Poll.Take {
			asks.taken = append(asks.taken[:len(asks.taken):len(asks.taken)], t.Name)
		}
		f(asks.at(path+".poll.url", op.Poll.URL))
	}
	for i := range op.Audit {
		a, at := &op.Audit[i], strict.Index(path+".audit", i)
		if a.HTTP != nil {
			f(seen.at(at+".http.url", a.HTTP.URL))
			headerSites(a.HTTP.Headers, seen.in(at+".http.headers"), f)
		}
		listSites(a.Command, seen.in(at+".command"), f)
		for _, m := range a.Find {
			f(seen.regexp(strict.Join(at+".find", m.Name), m.Value))
		}
	}
}

// taken are the names under which steps of a kind take values.
func taken(steps []Step, each string) (names []string) {
	for _, s := range steps {
		if s.Each != each {
			continue
		}
		for _, t := range s.Take {
			names = append(names, t.Name)
		}
	}
	return names
}

// takenFor are the names of all that steps take before an operation.
func (p *Plan) takenFor(op *Operation) (names []string) {
	for _, steps := range [][]Step{p.Steps, op.Steps} {
		names = append(append(names, taken(steps, "principal")...), taken(steps, "request")...)
	}
	return names
}

// stepSites visits the templates of steps. Those of a principal know nothing of
// any request. outer are the steps before.
func stepSites(steps []Step, path string, variables Pairs, outer []Step, f func(site)) {
	all := append(outer[:len(outer):len(outer)], steps...)
	for i := range steps {
		st, at := &steps[i], strict.Index(path, i)
		before := all[:len(outer)+i]
		s := site{principal: true, taken: taken(before, "principal")}
		if st.Each == "request" {
			s.variables, s.fresh = variables, true
			s.taken = append(taken(all, "principal"), taken(before, "request")...)
		}
		requestSites(&st.Request, s.in(at+".request"), f)
		if st.Refresh != nil {
			s.taken = append(s.taken, taken(steps[i:i+1], "principal")...)
			requestSites(st.Refresh, s.in(at+".refresh"), f)
		}
	}
}

func (s site) in(path string) site { s.path = path; return s }

func (s site) at(path, text string) site { s.path, s.text = path, text; return s }

func (s site) regexp(path, text string) site {
	s.pattern = true
	return s.at(path, text)
}

func requestSites(r *Request, s site, f func(site)) {
	f(s.at(s.path+".url", r.URL))
	headerSites(r.Headers, s.in(s.path+".headers"), f)
	bodySites(r.Body, s.in(s.path+".body"), f)
}

func bodySites(b *Body, s site, f func(site)) {
	switch {
	case b == nil:
	case b.Text != nil:
		f(s.at(s.path+".text", *b.Text))
	case b.JSON != nil:
		jsonSites(b.JSON, s.in(s.path+".json"), f)
	case b.GraphQL != nil:
		jsonSites(b.GraphQL.Variables, s.in(s.path+".graphql.variables"), f)
	}
}

func headerSites(h Header, s site, f func(site)) {
	for i, m := range h {
		f(s.at(headerSite(s.path, i, m.Name), m.Value))
	}
}

// headerSite is the path of a member that may be there several times.
func headerSite(path string, i int, name string) string {
	return fmt.Sprintf("%s#%d", strict.Join(path, name), i)
}

func listSites(list []string, s site, f func(site)) {
	for i, e := range list {
		f(s.at(strict.Index(s.path, i), e))
	}
}

// jsonSites visits the strings in a JSON text.
func jsonSites(text JSON, s site, f func(site)) {
	n := 0
	_, _ = mapStrings(text, func(v string) (string, error) {
		f(s.at(jsonSite(s.path, n), v))
		n++
		return v, nil
	})
}

func jsonSite(path string, n int) string { return fmt.Sprintf("%s#%d", path, n) }
