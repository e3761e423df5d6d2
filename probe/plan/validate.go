package plan

import (
	"math/big"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel/internal/strict"
)

// Validate reports everything that is wrong with a plan, in one error that
// holds *Problem values. Parse calls it; a plan that was made in Go needs the
// call.
func (p *Plan) Validate() error {
	var ps problems
	ps.Source = p.source
	language.Check(&ps, reflectOf(p), strict.Rule{}, "")
	p.check(&ps)
	return ps.Err()
}

// check reports what the rules in the tags cannot say.
func (p *Plan) check(ps *problems) {
	p.checkTarget(ps)
	p.checkPrincipals(ps)
	p.checkTemplates(ps)
	p.checkTiming(ps)
	p.checkSteps(ps, p.Steps, nil, p.Variables, "steps")
	names := map[string]bool{}
	for i := range p.Operations {
		op, at := &p.Operations[i], strict.Index("operations", i)
		if op.Name != "" && names[op.Name] {
			ps.Add(at+".name", "another operation has this name")
		}
		names[op.Name] = true
		p.checkOperation(ps, op, at)
	}
	if p.Reset != nil && p.Reset.HTTP != nil {
		p.checkRequest(ps, &p.Reset.HTTP.Request, "reset.http.request")
		p.checkAs(ps, p.Reset.HTTP.As, "reset.http.as")
	}
	if p.Reset != nil {
		checkArgv(ps, p.Reset.Command, taken(p.Steps, "principal"), "reset.command")
	}
	p.checkExperiments(ps, nil, p.Experiments, "experiments")
}

func (p *Plan) checkTarget(ps *problems) {
	for i, a := range p.Target.Allow {
		if why := checkAddress(a); why != "" {
			ps.Add(strict.Index("target.allow", i), "%s", why)
		}
	}
	if why := checkAddress(p.Target.Instance); p.Target.Instance != "" && why != "" {
		ps.Add("target.instance", "%s", why)
	}
	if p.inProduction() && p.Reset != nil {
		ps.Add("reset", "is refused in production")
	}
}

func (p *Plan) inProduction() bool { return p.Target.Production != nil && *p.Target.Production }

// checkAddress returns what is wrong with host:port.
func checkAddress(a string) string {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		return "must be host:port, an IPv6 address in brackets"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' {
		return "must have a port from 1 to 65535"
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	if !hostName.MatchString(host) {
		return "must be one host's name or IP address"
	}
	return ""
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*$`)

func (p *Plan) checkPrincipals(ps *problems) {
	var first []string
	var firstName PrincipalName
	for _, name := range []PrincipalName{ActorA, ActorB, TenantB} {
		pr := p.Principals.Get(name)
		if pr == nil {
			continue
		}
		var own []string
		for _, a := range pr.Attributes {
			own = append(own, a.Name)
		}
		slices.Sort(own)
		if firstName == "" {
			first, firstName = own, name
		} else if !slices.Equal(first, own) {
			ps.Add(strict.Join("principals", string(name)), "must have the same attributes as %s", firstName)
		}
	}
	if p.Principals.ActorA == nil && (p.Principals.ActorB != nil || p.Principals.TenantB != nil) {
		ps.Add("principals", "needs actor_a: the others are compared with it")
	}
}

func (p *Plan) checkAs(ps *problems, as PrincipalName, path string) {
	if as != "" && as != ActorA && p.Principals.Get(as) == nil {
		ps.Add(path, "the plan has no such principal")
	}
}

// attributes returns what all principals have.
func (p *Plan) attributes() Pairs {
	if p.Principals.ActorA == nil {
		return nil
	}
	return p.Principals.ActorA.Attributes
}

// checkTemplates parses every template and checks that what it refers to is
// known where it stands.
func (p *Plan) checkTemplates(ps *problems) {
	p.checkVariables(ps, p.Variables, nil, "variables")
	for i := range p.Operations {
		p.checkVariables(ps, p.Operations[i].Variables, p.Variables, strict.Index("operations", i)+".variables")
	}
	p.eachSite(func(s site) {
		t, err := parseTemplate(s.text)
		if err != nil {
			ps.Add(s.path, "%v", err)
			return
		}
		toFill := false
		for _, part := range t {
			c := part.call
			if c == nil {
				continue
			}
			switch {
			case c.fn == "fill":
				toFill = true
				ps.Add(s.path, "to fill in: %s", c.arg).ToFill = true
			case c.fresh() && !s.fresh:
				ps.Add(s.path, "{{%s}} would be another value each time; give it a name under variables and write {{.name}}", c.fn)
			case c.ref != "":
				if why := s.refers(c.ref, p); why != "" {
					ps.Add(s.path, "%s", why)
				}
			}
		}
		if s.pattern && !toFill {
			if _, err := regexp.Compile(t.sample()); err != nil {
				ps.Add(s.path, "is not a regular expression (RE2)")
			}
		}
	})
	p.checkSecrets(ps)
}

// sample is what a template could look like when rendered.
func (t template) sample() string {
	var b strings.Builder
	for _, part := range t {
		if b.WriteString(part.literal); part.call != nil {
			b.WriteString("x")
		}
	}
	return b.String()
}

func (p *Plan) checkVariables(ps *problems, own, outer Pairs, path string) {
	for i, v := range own {
		_, taken := outer.Get(v.Name)
		_, twice := own[:i].Get(v.Name)
		switch {
		case slices.Contains(reserved, v.Name):
			ps.Add(strict.Join(path, v.Name), "is a name that the probe itself uses")
		case taken || twice:
			ps.Add(strict.Join(path, v.Name), "another variable has this name")
		}
	}
}

// refers returns why a site may not refer to a name.
func (s site) refers(ref string, p *Plan) string {
	attribute, isAttribute := strings.CutPrefix(ref, "principal.")
	_, isVariable := s.variables.Get(ref)
	switch {
	case isVariable || ref == "run" || slices.Contains(s.taken, ref):
		return ""
	case ref == "key" && s.key, ref == "resource_id" && s.resource:
		return ""
	case ref == "key":
		return "{{.key}} is not known here; the key goes where key says"
	case ref == "resource_id":
		return "{{.resource_id}} is not known before the response"
	case isAttribute && !s.principal:
		return "{{." + ref + "}} is not known here"
	case isAttribute:
		if _, ok := p.attributes().Get(attribute); ok {
			return ""
		}
		return "the principals have no attribute " + attribute
	}
	var names []string
	for _, v := range s.variables {
		names = append(names, v.Name)
	}
	names = append(names, s.taken...)
	return "{{." + ref + "}} is not a variable that is known here" + strict.DidYouMean(ref, names)
}

// sensitive is about names whose values are credentials.
var sensitive = regexp.MustCompile(`(?i)(^|[^a-z])(authorization|cookie|token|secret|password|passwd|pwd|api-?key|access-?key|auth-?key|private-?key|session(-?id)?|credentials?|jwt)s?($|[^a-z])`)

// stems are what every name that sensitive matches has one of, if it is ASCII.
var stems = []string{"auth", "cookie", "token", "secret", "pass", "pwd", "key", "session", "credential", "jwt"}

// Sensitive reports whether a header, parameter or member of that name usually
// holds a credential, so that its value must not be written into a plan.
func Sensitive(name string) bool {
	// Most names have none of the stems, which takes a tenth of the time to see.
	lower := strings.ToLower(name)
	other := func(r rune) bool { return r >= utf8.RuneSelf } // which may fold to an ASCII letter
	if !slices.ContainsFunc(stems, func(stem string) bool { return strings.Contains(lower, stem) }) && !strings.ContainsFunc(name, other) {
		return false
	}
	return sensitive.MatchString(strings.ReplaceAll(camel.ReplaceAllString(name, "$1-$2"), "_", "-"))
}

var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// PlainCookie reports whether a cookie only says how to show something and does
// not identify anybody, so that its value may be written into a plan.
func PlainCookie(name, value string) bool {
	return plainCookie.MatchString(name) && plainValue.MatchString(value)
}

var (
	plainCookie = regexp.MustCompile(`(?i)^(lang|language|locale|i18n(ext)?|i18next|theme|color-?(mode|scheme)|dark-?mode|currency|country|region|tz|time-?zone|units|layout|density|page-?size)$`)
	plainValue  = regexp.MustCompile(`^[A-Za-z0-9_./+:-]{1,40}$`)
)

const writeSecret = `would put a credential into the plan; write {{env "NAME"}} or {{file "NAME"}}`

// checkSecrets refuses credentials that are written in the plan.
func (p *Plan) checkSecrets(ps *problems) {
	const write = writeSecret
	secrets := map[string]bool{}
	note := func(vars Pairs) {
		for _, v := range vars {
			if p.secretText(v.Value, secrets) {
				secrets[v.Name] = true
			}
		}
	}
	note(p.Variables)
	fromSteps := func(steps []Step) {
		for _, st := range steps {
			for _, t := range st.Take {
				secrets[t.Name] = true // what comes from a response is not in the plan
			}
		}
	}
	fromSteps(p.Steps)
	for _, name := range []PrincipalName{ActorA, ActorB, TenantB} {
		if pr := p.Principals.Get(name); pr != nil {
			for _, a := range pr.Attributes {
				if p.secretText(a.Value, secrets) {
					secrets["principal."+a.Name] = true
				}
			}
		}
	}
	header := func(h Header, path string) {
		for i, m := range h {
			if Sensitive(m.Name) && !p.secretText(m.Value, secrets) {
				ps.Add(headerSite(path, i, m.Name), write)
			}
		}
	}
	query := func(text, path string) {
		_, q, _ := strings.Cut(text, "?")
		for part := range strings.SplitSeq(q, "&") {
			name, value, _ := strings.Cut(part, "=")
			if Sensitive(name) && !p.secretText(value, secrets) {
				ps.Add(path, "the parameter %s "+write, name)
			}
		}
	}
	request := func(r *Request, path string) {
		header(r.Headers, path+".headers")
		query(r.URL, path+".url")
	}
	steps := func(list []Step, path string) {
		for i := range list {
			request(&list[i].Request, strict.Index(path, i)+".request")
			if list[i].Refresh != nil {
				request(list[i].Refresh, strict.Index(path, i)+".refresh")
			}
		}
	}
	steps(p.Steps, "steps")
	for _, name := range []PrincipalName{ActorA, ActorB, TenantB} {
		if pr := p.Principals.Get(name); pr != nil {
			at := strict.Join("principals", string(name))
			header(pr.Headers, at+".headers")
			for i, m := range pr.Cookies {
				if !PlainCookie(m.Name, m.Value) && !p.secretText(m.Value, secrets) {
					ps.Add(headerSite(at+".cookies", i, m.Name), write)
				}
			}
		}
	}
	for i := range p.Operations {
		op, at := &p.Operations[i], strict.Index("operations", i)
		before := len(secrets)
		note(op.Variables)
		fromSteps(op.Steps)
		steps(op.Steps, at+".steps")
		request(&op.Request, at+".request")
		if op.Preview != nil {
			request(op.Preview, at+".preview")
		}
		if op.Signature != nil && !p.secretText(op.Signature.Secret, secrets) {
			ps.Add(at+".signature.secret", write)
		}
		for i, r := range op.Readers {
			at := strict.Index(at+".readers", i)
			if r.HTTP != nil {
				header(r.HTTP.Headers, at+".http.headers")
				query(r.HTTP.URL, at+".http.url")
			}
			if r.SQL != nil && r.SQL.Driver != "sqlite" && !p.secretText(r.SQL.DSN, secrets) {
				ps.Add(at+".sql.dsn", write)
			}
		}
		if op.Poll != nil {
			for _, t := range op.Poll.Take {
				secrets[t.Name] = true
			}
			query(op.Poll.URL, at+".poll.url")
		}
		for i, a := range op.Audit {
			if a.HTTP != nil {
				header(a.HTTP.Headers, strict.Index(at+".audit", i)+".http.headers")
				query(a.HTTP.URL, strict.Index(at+".audit", i)+".http.url")
			}
		}
		if len(secrets) > before {
			for _, v := range op.Variables {
				delete(secrets, v.Name)
			}
			for _, name := range append(taken(op.Steps, "principal"), taken(op.Steps, "request")...) {
				delete(secrets, name)
			}
			if op.Poll != nil {
				for _, t := range op.Poll.Take {
					delete(secrets, t.Name)
				}
			}
		}
	}
	if p.Reset != nil && p.Reset.HTTP != nil {
		request(&p.Reset.HTTP.Request, "reset.http.request")
	}
}

// secretText reports whether a template takes a secret from outside, or is
// still to be filled in. One that does not parse is reported elsewhere.
func (p *Plan) secretText(s string, secrets map[string]bool) bool {
	t, err := parseTemplate(s)
	return err != nil || slices.ContainsFunc(t, func(part piece) bool {
		return part.call != nil && (part.call.secret() || part.call.fn == "fill" || secrets[part.call.ref])
	})
}

func (p *Plan) checkTiming(ps *problems) {
	d := p.WithDefaults()
	t := d.Timing
	limit := func(path string, d, most time.Duration) {
		if d > most {
			ps.Add(path, "is longer than %v", most)
		}
	}
	limit("timing.timeout", t.Timeout, 10*time.Minute)
	limit("timing.settle_limit", t.SettleLimit, time.Hour)
	limit("timing.late_after", t.LateAfter, 24*time.Hour)
	limit("budget.max_time", d.Budget.MaxTime, 7*24*time.Hour)
	if t.Settle > t.SettleLimit {
		ps.Add("timing.settle", "is longer than settle_limit, %v", t.SettleLimit)
	}
	if t.Poll > t.Settle {
		ps.Add("timing.poll", "is longer than settle, %v", t.Settle)
	}
}

func (p *Plan) checkReader(ps *problems, op *Operation, r *Reader, at string) {
	if n, ok := new(big.Rat).SetString(string(r.Effect)); r.Effect != "" && (!strict.IsNumber(string(r.Effect)) || len(r.Effect) > 30 || !ok || n.Sign() == 0) {
		ps.Add(at+".effect", "must be a number other than 0")
	}
	if h := r.HTTP; h != nil {
		checkURL(ps, h.URL, at+".http.url")
		p.checkAs(ps, h.As, at+".http.as")
		if h.Count == nil && (len(h.Where) > 0 || h.ID != nil) {
			ps.Add(at+".http", "where and id are about what count counts; there is nothing")
		}
		if h.Format != "" && h.Count == nil && h.Value == nil {
			ps.Add(at+".http.format", "is for count and value; lines and number take any text")
		}
		checkBody(ps, h.Post, at+".http.post")
		if t, err := parseTemplate(h.Number); err == nil && h.Number != "" {
			if re, err := regexp.Compile(t.sample()); err == nil && re.NumSubexp() < 1 {
				ps.Add(at+".http.number", "must have a group")
			}
		}
		checkPages(ps, h, at+".http.pages")
	}
	if r.Outside != nil && !*r.Outside && (r.Webhook != nil || r.SMTP != nil) {
		ps.Add(at+".outside", "what the target sends is outside of it")
	}
	if r.Command != nil {
		checkArgv(ps, r.Command.Argv, p.takenFor(op), at+".command.argv")
	}
	if r.Command != nil && r.Command.Timeout > 10*time.Minute {
		ps.Add(at+".command.timeout", "is longer than 10m")
	}
}

func checkPages(ps *problems, h *HTTPReader, at string) {
	g := h.Pages
	switch {
	case g == nil:
		return
	case h.Count == nil && h.Lines == "":
		ps.Add(at, "are for count and lines")
	case g.Next != nil && h.Count == nil:
		ps.Add(at+".next", "is for responses in JSON or XML")
	}
	if g.Next == nil && (g.Parameter != "" || g.Member != "") {
		ps.Add(at, "has parameter or member, which say where next goes")
	}
	if g.Parameter != "" && g.Member != "" {
		ps.Add(at, "has parameter and member; only one of them is allowed")
	}
	if g.Member != "" && (h.Post == nil || h.Post.Base64 != nil) {
		ps.Add(at+".member", "needs a post of JSON to go into")
	}
}

// checkSinks checks where the probe is to listen.
func checkSinks(ps *problems, op *Operation, at string) {
	taken := map[string]bool{}
	for i, r := range op.Readers {
		for _, s := range []struct {
			kind string
			sink *Sink
		}{{"webhook", r.Webhook}, {"smtp", r.SMTP}} {
			if s.sink == nil {
				continue
			}
			path := strict.Index(at+".readers", i) + "." + s.kind + ".listen"
			if why := checkAddress(s.sink.Listen); why != "" {
				ps.Add(path, "%s", why)
			} else if taken[s.sink.Listen] {
				ps.Add(path, "another reader listens here")
			}
			taken[s.sink.Listen] = true
		}
	}
}
