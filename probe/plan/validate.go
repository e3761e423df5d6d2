package plan

import (
	"encoding/base64"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/probe/internal/wire"
)

// Validate reports everything that is wrong with a plan, in one error of
// *Problem. Parse does it too; it is for plans made in Go.
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
		ps.Add("principals", "without actor_a there is nobody for the others to differ from")
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
		return "{{.resource_id}} is not known before the answer"
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
	return "{{." + ref + "}} is no variable that is known here" + strict.DidYouMean(ref, names)
}

// sensitive is about names whose values are credentials.
var sensitive = regexp.MustCompile(`(?i)(^|[^a-z])(authorization|cookie|token|secret|password|passwd|pwd|api-?key|access-?key|auth-?key|private-?key|session(-?id)?|credentials?|jwt)s?($|[^a-z])`)

// Sensitive reports whether a header, parameter or member of that name holds a
// credential as a rule, so that its value must not be written into a plan.
func Sensitive(name string) bool {
	return sensitive.MatchString(strings.ReplaceAll(camel.ReplaceAllString(name, "$1-$2"), "_", "-"))
}

var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// PlainCookie reports whether a cookie says how to show something, and to whom
// it is shown is not in it: its value may be written into a plan.
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
				secrets[t.Name] = true // what comes from an answer is not in the plan
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

func (p *Plan) checkOperation(ps *problems, op *Operation, at string) {
	p.checkRequest(ps, &op.Request, at+".request")
	p.checkSteps(ps, op.Steps, p.Steps, append(p.Variables[:len(p.Variables):len(p.Variables)], op.Variables...), at+".steps")
	if op.Key != nil {
		p.checkKey(ps, op, at)
	}
	if op.Signature != nil {
		p.checkSignature(ps, op, at)
	}
	for _, a := range op.alterations(at) {
		checkBody(ps, a.Body, a.path+".body")
		p.checkEdits(ps, op, a)
	}
	if op.Preview != nil {
		p.checkRequest(ps, op.Preview, at+".preview")
	}
	if op.OtherOperation != "" {
		switch _, err := p.Operation(op.OtherOperation); {
		case err != nil:
			ps.Add(at+".other_operation", "the plan has no such operation")
		case op.OtherOperation == op.Name:
			ps.Add(at+".other_operation", "is this operation itself")
		}
	}
	for i, m := range op.Atomicity {
		at := strict.Index(at+".atomicity", i)
		if m.SQL != nil && m.SQL.Driver != "sqlite" && !p.secretText(m.SQL.DSN, nil) {
			ps.Add(at+".sql.dsn", writeSecret)
		}
	}
	names := map[string]bool{}
	for i := range op.Readers {
		r, at := &op.Readers[i], strict.Index(at+".readers", i)
		if r.Name != "" && names[r.Name] {
			ps.Add(at+".name", "another reader has this name")
		}
		names[r.Name] = true
		p.checkReader(ps, op, r, at)
	}
	checkSinks(ps, op, at)
	if r := op.Resource; r != nil {
		if r.Header != "" && r.Pointer != nil {
			ps.Add(at+".resource", "has header and pointer; only one of them is allowed")
		}
		if r.Pointer != nil && r.Pattern != "" {
			ps.Add(at+".resource", "has pointer and pattern; only one of them is allowed")
		}
		checkGroup(ps, r.Pattern, at+".resource.pattern")
	}
	if op.Poll != nil {
		p.checkPoll(ps, op, at+".poll")
	}
	clear(names)
	for i, a := range op.Audit {
		at := strict.Index(at+".audit", i)
		if a.Name != "" && names[a.Name] {
			ps.Add(at+".name", "another audit has this name")
		}
		names[a.Name] = true
		if a.HTTP != nil {
			checkURL(ps, a.HTTP.URL, at+".http.url")
			p.checkAs(ps, a.HTTP.As, at+".http.as")
		}
		checkArgv(ps, a.Command, p.takenFor(op), at+".command")
		links := false
		for _, name := range []string{"key", "request_id", "event_id", "trace_id"} {
			_, ok := a.Find.Get(name)
			links = links || ok
		}
		if len(a.Find) > 0 && !links {
			ps.Add(at+".find", "needs key, request_id, event_id or trace_id: without one, nothing says which request a line is about")
		}
	}
	p.checkExperiments(ps, op, op.Experiments, at+".experiments")
}

// checkSteps checks steps and what they take; outer are those before.
func (p *Plan) checkSteps(ps *problems, steps, outer []Step, variables Pairs, path string) {
	names, values := map[string]bool{}, map[string]bool{}
	for _, st := range outer {
		names[st.Name] = true
		for _, t := range st.Take {
			values[t.Name] = true
		}
	}
	for i := range steps {
		st, at := &steps[i], strict.Index(path, i)
		if st.Name != "" && names[st.Name] {
			ps.Add(at+".name", "another step has this name")
		}
		names[st.Name] = true
		p.checkRequest(ps, &st.Request, at+".request")
		if st.Refresh != nil {
			p.checkRequest(ps, st.Refresh, at+".refresh")
		}
		lasts := st.Valid == 0 && st.ExpiresIn == nil && len(st.Expired) == 0
		switch {
		case st.Each == "request" && (!lasts || st.Refresh != nil):
			ps.Add(at, "has valid, expires_in, expired or refresh, which are for each: principal")
		case st.Refresh != nil && lasts:
			ps.Add(at+".refresh", "is never sent without valid, expires_in or expired")
		case !lasts && len(st.Take) == 0:
			ps.Add(at, "takes nothing that could expire")
		}
		if st.Valid > 7*24*time.Hour {
			ps.Add(at+".valid", "is longer than %v", 7*24*time.Hour)
		}
		checkTaking(ps, st.Take, variables, values, at+".take")
	}
}

// checkTaking checks what is taken from an answer; values are the names that
// others take, to which it adds.
func checkTaking(ps *problems, take []Taking, variables Pairs, values map[string]bool, path string) {
	for i, t := range take {
		at := strict.Index(path, i)
		_, variable := variables.Get(t.Name)
		switch {
		case slices.Contains(reserved, t.Name):
			ps.Add(at+".name", "is a name that the probe itself uses")
		case variable || t.Name != "" && values[t.Name]:
			ps.Add(at+".name", "another variable, or what another step takes, has this name")
		}
		values[t.Name] = true
		places := 0
		for _, given := range []bool{t.Header != "", t.Pointer != nil, t.Cookie != ""} {
			if given {
				places++
			}
		}
		if places > 1 {
			ps.Add(at, "has more than one of header, pointer and cookie; only one of them is allowed")
		}
		checkGroup(ps, t.Pattern, at+".pattern")
	}
}

// checkPoll checks how it is asked what became of a request.
func (p *Plan) checkPoll(ps *problems, op *Operation, at string) {
	values := map[string]bool{}
	for _, name := range p.takenFor(op) {
		values[name] = true
	}
	checkTaking(ps, op.Poll.Take, append(p.Variables[:len(p.Variables):len(p.Variables)], op.Variables...), values, at+".take")
	checkURL(ps, op.Poll.URL, at+".url")
	d := op.Poll.withDefaults(p.WithDefaults().Timing)
	if d.Limit > 24*time.Hour {
		ps.Add(at+".limit", "is longer than %v", 24*time.Hour)
	}
	if d.Interval > d.Limit {
		ps.Add(at+".interval", "is longer than limit, %v", d.Limit)
	}
	if len(op.Poll.Take) > 0 && op.Poll.URL == "" {
		ps.Add(at+".take", "is for url, which is not there")
	}
	meant := map[string]string{}
	for _, kind := range []struct {
		name  string
		words []string
	}{{"pending", d.Pending}, {"done", d.Done}, {"failed", d.Failed}} {
		for i, w := range kind.words {
			if other := meant[Word(w)]; other != "" {
				ps.Add(strict.Index(at+"."+kind.name, i), "%q is among %s too", w, other)
			}
			meant[Word(w)] = kind.name
		}
	}
}

// Word is a word for the state of a request, as it is compared with others.
func Word(s string) string {
	return strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(strings.TrimSpace(s)))
}

// checkGroup checks a regular expression that is to find a part of a text.
func checkGroup(ps *problems, pattern, at string) {
	if re, err := regexp.Compile(pattern); pattern != "" && (err != nil || re.NumSubexp() < 1) {
		ps.Add(at, "must be a regular expression (RE2) with a group")
	}
}

func (p *Plan) checkRequest(ps *problems, r *Request, at string) {
	checkURL(ps, r.URL, at+".url")
	if r.Method == "CONNECT" {
		ps.Add(at+".method", "CONNECT asks for a tunnel")
	}
	for i, m := range r.Headers {
		switch strings.ToLower(m.Name) {
		case "content-length", "transfer-encoding":
			ps.Add(headerSite(at+".headers", i, m.Name), "is written by the probe")
		}
		if strings.ContainsAny(m.Value, "\r\n\x00") {
			ps.Add(headerSite(at+".headers", i, m.Name), "has a line break in it")
		}
	}
	checkBody(ps, r.Body, at+".body")
}

// checkURL checks what can be checked before the template is rendered.
func checkURL(ps *problems, text, at string) {
	t, err := parseTemplate(text)
	if err != nil || text == "" {
		return // reported elsewhere
	}
	if t[0].call != nil {
		return
	}
	sample := t.sample()
	if !strings.HasPrefix(sample, "http://") && !strings.HasPrefix(sample, "https://") {
		ps.Add(at, "must begin with http:// or https://")
		return
	}
	if strings.Contains(sample, "#") {
		ps.Add(at, "has a fragment, which is never sent")
	}
	if len(t) > 1 {
		return
	}
	if err := (wire.Request{Method: "GET", URL: sample}).Validate(); err != nil {
		_, why, _ := strings.Cut(err.Error(), "URL: ")
		ps.Add(at, "%s", why)
	}
}

func checkBody(ps *problems, b *Body, at string) {
	if b != nil && b.Base64 != nil {
		if _, err := decodeBase64(*b.Base64); err != nil {
			ps.Add(at+".base64", "is not standard base64")
		}
	}
	if b != nil && b.GraphQL != nil && len(b.GraphQL.Variables) > 0 {
		if _, _, kind, err := findJSON(b.GraphQL.Variables, ""); err == nil && kind != '{' {
			ps.Add(at+".graphql.variables", "must be a mapping, name: value")
		}
	}
}

func decodeBase64(s string) ([]byte, error) {
	return base64.StdEncoding.DecodeString(s) // which skips line breaks
}

func (p *Plan) checkKey(ps *problems, op *Operation, at string) {
	k := op.Key
	if k.Syntax != "" && k.Header == "" {
		ps.Add(at+".key.syntax", "is for a key in a header")
	}
	for _, h := range p.headersOf(op, at) {
		if k.Header != "" && h.has(k.Header) {
			ps.Add(h.path, "has the key's header; the probe writes it")
		}
	}
	if _, query, _ := strings.Cut(op.Request.URL, "?"); k.Query != "" {
		for part := range strings.SplitSeq(query, "&") {
			name, _, _ := strings.Cut(part, "=")
			if name, err := url.QueryUnescape(name); err == nil && name == k.Query {
				ps.Add(at+".request.url", "has the key's parameter; the probe writes it")
			}
		}
	}
	if p.ContractFor(op).Profile == "oasis" {
		if !strings.EqualFold(k.Header, "Repeatability-Request-ID") {
			ps.Add(at+".key", "the contract oasis has its key in the header Repeatability-Request-ID")
		}
		if !op.Request.Headers.has("Repeatability-First-Sent") {
			ps.Add(at+".request.headers", `the contract oasis needs Repeatability-First-Sent, such as '{{now "http"}}'`)
		}
	}
	if k.Body == "" {
		return
	}
	type bodyAt struct {
		body *Body
		path string
	}
	bodies := []bodyAt{{op.Request.Body, at + ".request.body"}}
	for _, a := range op.alterations(at) {
		bodies = append(bodies, bodyAt{a.Body, a.path + ".body"})
	}
	if op.Preview != nil {
		bodies = append(bodies, bodyAt{op.Preview.Body, at + ".preview.body"})
	}
	for _, b := range bodies {
		switch {
		case b.body == nil && (b.path == at+".request.body" || b.path == at+".preview.body"):
			ps.Add(at+".key.body", "the %s has no body", strings.TrimSuffix(strings.TrimPrefix(b.path, at+"."), ".body"))
		case b.body != nil && b.body.Base64 != nil:
			ps.Add(b.path, "must be json, text or file, for the key to go into it")
		case b.body != nil && b.body.json() != nil:
			if _, err := insertJSON(b.body.json(), k.Body, []byte(`""`)); err != nil {
				ps.Add(at+".key.body", "%v in %s", err, b.path)
			}
		}
	}
}

// alterationAt is an alteration and where it is in the plan.
type alterationAt struct {
	*Alteration
	path string
}

// alterations are those that an operation has; path is the operation's.
func (op *Operation) alterations(path string) (list []alterationAt) {
	if op.Altered != nil {
		list = append(list, alterationAt{op.Altered, path + ".altered"})
	}
	if op.Invalid != nil {
		list = append(list, alterationAt{op.Invalid, path + ".invalid"})
	}
	return list
}

type headerAt struct {
	Header
	path string
}

// headersOf are the headers that an operation can be sent with.
func (p *Plan) headersOf(op *Operation, at string) []headerAt {
	list := []headerAt{{op.Request.Headers, at + ".request.headers"}}
	if op.Preview != nil {
		list = append(list, headerAt{op.Preview.Headers, at + ".preview.headers"})
	}
	for _, name := range []PrincipalName{ActorA, ActorB, TenantB} {
		if pr := p.Principals.Get(name); pr != nil {
			list = append(list, headerAt{pr.Headers, strict.Join("principals", string(name)) + ".headers"})
		}
	}
	return list
}

func (p *Plan) checkSignature(ps *problems, op *Operation, at string) {
	scheme := op.Signature.Scheme
	id := map[string]string{"standard-webhooks": "webhook-id", "github": "X-GitHub-Delivery"}[scheme]
	switch {
	case op.Key == nil:
		ps.Add(at+".key", "is missing: a delivery has an event id, and key says where")
	case id != "" && !strings.EqualFold(op.Key.Header, id):
		ps.Add(at+".key", "%s has the event id in the header %s", scheme, id)
	case id != "" && op.Key.Syntax == "sf-string":
		ps.Add(at+".key.syntax", "%s has the event id bare", scheme)
	}
	for _, h := range p.headersOf(op, at) {
		for _, name := range signatureHeaders[scheme] {
			if h.has(name) {
				ps.Add(h.path, "has %s, which the signature writes", name)
			}
		}
	}
}

func (p *Plan) checkEdits(ps *problems, op *Operation, a alterationAt) {
	b := op.Request.Body
	for i, e := range a.Edits {
		at := strict.Index(a.path+".edits", i)
		switch {
		case e.Pointer == nil:
		case b == nil:
			ps.Add(at, "the request has no body to edit")
		case b.Base64 != nil:
			ps.Add(at, "the body is base64; replace it as a whole")
		case b.json() != nil:
			text := b.json()
			start, end, _, err := findJSON(text, *e.Pointer)
			if err != nil {
				ps.Add(at+".pointer", "%v in the body", err)
			} else if string(text[start:end]) == string(e.Value) {
				ps.Add(at+".value", "is what the body has already")
			}
		}
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
		ps.Add(at+".next", "is for answers in JSON or XML")
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

func (p *Plan) checkExperiments(ps *problems, op *Operation, list []Experiment, at string) {
	seen := map[Experiment]bool{}
	for i, e := range list {
		at := strict.Index(at, i)
		switch {
		case seen[e]:
			ps.Add(at, "is given twice")
		case e.NeverInProduction() && p.inProduction():
			ps.Add(at, "is refused in production: it races, cuts off or provokes failures")
		case op != nil:
			if err := p.Applies(op, e); err != nil {
				ps.Add(at, "%v", err)
			}
		}
		seen[e] = true
	}
}

// Applies returns an error that says what an operation lacks for an experiment
// to mean anything, nil if it can be run. In the operation's own list that is a
// problem of the plan; in the plan's list the experiment is left out for it.
func (p *Plan) Applies(op *Operation, e Experiment) error {
	d := p.WithDefaults()
	lacks := ""
	switch e {
	case Specification:
		if p.Target.Specification == "" {
			lacks = "target.specification"
		}
	case Altered:
		if op.Altered == nil {
			lacks = "altered"
		}
	case RaceAltered:
		switch {
		case op.Key == nil:
			lacks = "key"
		case op.Altered == nil:
			lacks = "altered"
		case d.Race.Width > d.Budget.MaxSends:
			return errors.New("race.width is more than budget.max_sends")
		}
	case Corrected:
		switch {
		case op.Key == nil:
			lacks = "key"
		case op.Invalid == nil:
			lacks = "invalid"
		}
	case SameMeaning:
		if op.Request.Body.json() == nil {
			return errors.New("the request has no body of json or graphql that could be written in another way")
		}
	case PreviewFirst:
		if op.Preview == nil {
			lacks = "preview"
		}
	case OtherInstance:
		if p.Target.Instance == "" {
			lacks = "target.instance"
		}
	case OtherOperation:
		other, err := p.Operation(op.OtherOperation)
		switch {
		case op.OtherOperation == "" || err != nil:
			lacks = "other_operation"
		case op.Key == nil || other.Key == nil:
			return errors.New("both operations need a key")
		case op.Signature != nil || other.Signature != nil:
			return errors.New("events are not sent under the key of another operation")
		}
	case RetentionSearch:
		if p.Target.RetentionSearch == 0 {
			lacks = "target.retention_search"
		} else if p.Target.RetentionSearch >= d.Budget.MaxTime {
			return errors.New("target.retention_search is not shorter than budget.max_time")
		}
	case MissingKey, MalformedKey, FreshKey:
		if op.Key == nil {
			lacks = "key"
		}
	case OtherActor:
		if p.Principals.ActorB == nil {
			lacks = "principals.actor_b"
		}
	case OtherTenant:
		if p.Principals.TenantB == nil {
			lacks = "principals.tenant_b"
		}
	case Redelivery:
		if op.Signature == nil {
			lacks = "signature"
		}
	case RetentionEdge:
		if p.Target.Retention == 0 {
			lacks = "target.retention"
		} else if p.Target.Retention >= d.Budget.MaxTime {
			return errors.New("target.retention is not shorter than budget.max_time")
		}
	case RaceSame:
		if d.Race.Width > d.Budget.MaxSends {
			return errors.New("race.width is more than budget.max_sends")
		}
	}
	if lacks != "" {
		return errors.New("the plan says nothing under " + lacks)
	}
	return nil
}
