package plan

import (
	"encoding/base64"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/probe/internal/wire"
)

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

// checkTaking checks what is taken from a response; values are the names that
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

// Word returns a word for the state of a request in the form in which it is
// compared with others.
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
			ps.Add(headerSite(at+".headers", i, m.Name), "contains a line break")
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
