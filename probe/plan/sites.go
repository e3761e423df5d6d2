package plan

import "fmt"

// site is a place in a plan where a template may stand, and what may be in it.
type site struct {
	path, text string
	// variables that it may refer to, in order.
	variables Pairs
	fresh     bool // values that are drawn
	key       bool // {{.key}}
	resource  bool // {{.resource_id}}
	principal bool // {{.principal.x}}
	pattern   bool // it is a regular expression
}

// eachSite calls f for every template of the plan, in the order in which fresh
// values are drawn. The sites of an operation come between enter and leave of
// it; both may be nil.
func (p *Plan) eachSite(f func(site)) {
	for i, v := range p.Variables {
		f(site{path: join("variables", v.Name), text: v.Value, variables: p.Variables[:i], fresh: true})
	}
	for _, name := range []PrincipalName{ActorA, ActorB, TenantB} {
		if pr := p.Principals.Get(name); pr != nil {
			at := join("principals", string(name))
			headerSites(pr.Headers, site{path: at + ".headers"}, f)
			headerSites(Header(pr.Cookies), site{path: at + ".cookies"}, f)
			headerSites(Header(pr.Attributes), site{path: at + ".attributes"}, f)
		}
	}
	for i := range p.Operations {
		p.eachSiteOf(&p.Operations[i], index("operations", i), f)
	}
	if p.Reset != nil {
		at := site{principal: true}
		if p.Reset.HTTP != nil {
			requestSites(&p.Reset.HTTP.Request, at.in("reset.http.request"), f)
		}
		listSites(p.Reset.Command, at.in("reset.command"), f)
	}
}

func (p *Plan) eachSiteOf(op *Operation, path string, f func(site)) {
	all := append(p.Variables[:len(p.Variables):len(p.Variables)], op.Variables...)
	for i, v := range op.Variables {
		f(site{path: join(path+".variables", v.Name), text: v.Value, variables: all[:len(p.Variables)+i], fresh: true})
	}
	if op.Key != nil {
		f(site{path: path + ".key.value", text: op.Key.Value, variables: all, fresh: true})
	}
	sent := site{variables: all, fresh: true, principal: true}
	requestSites(&op.Request, sent.in(path+".request"), f)
	if a := op.Altered; a != nil {
		bodySites(a.Body, sent.in(path+".altered.body"), f)
		for i, e := range a.Edits {
			jsonSites(e.Value, sent.in(index(path+".altered.edits", i)+".value"), f)
		}
	}
	if op.Signature != nil {
		f(site{path: path + ".signature.secret", text: op.Signature.Secret})
	}
	seen := site{variables: all, key: true, resource: true, principal: true}
	for i := range op.Readers {
		r, at := &op.Readers[i], index(path+".readers", i)
		switch {
		case r.HTTP != nil:
			f(seen.at(at+".http.url", r.HTTP.URL))
			headerSites(r.HTTP.Headers, seen.in(at+".http.headers"), f)
			headerSites(Header(r.HTTP.Where), seen.in(at+".http.where"), f)
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
	for i := range op.Audit {
		a, at := &op.Audit[i], index(path+".audit", i)
		if a.HTTP != nil {
			f(seen.at(at+".http.url", a.HTTP.URL))
			headerSites(a.HTTP.Headers, seen.in(at+".http.headers"), f)
		}
		listSites(a.Command, seen.in(at+".command"), f)
		for _, m := range a.Find {
			f(seen.regexp(join(at+".find", m.Name), m.Value))
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
	}
}

func headerSites(h Header, s site, f func(site)) {
	for i, m := range h {
		f(s.at(headerSite(s.path, i, m.Name), m.Value))
	}
}

// headerSite is the path of a member that may be there several times.
func headerSite(path string, i int, name string) string {
	return fmt.Sprintf("%s#%d", join(path, name), i)
}

func listSites(list []string, s site, f func(site)) {
	for i, e := range list {
		f(s.at(index(s.path, i), e))
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
