package importer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/semelhq/semel/probe/plan"
)

// write returns the text of the plan.
func (d *drafting) write() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	name := d.operationName()

	line("# A draft of a plan for semel probe, made from %s.", d.from)
	line("# What is marked with fill is for you to say. See the schema for all there is.")
	for _, n := range d.notes {
		line("# Note: %s", n)
	}
	for i, s := range d.secrets {
		if i == 0 {
			line("#\n# Credentials come from the environment. Set before sending:")
		}
		line("#   %s  (%s)", s.Env, s.From)
	}
	line("version: 1\nname: %s\n", scalar(name))

	line("target:")
	line("  # Nothing is sent to an address that is not in this list.")
	if d.address != "" {
		line("  # allow: [%s]", scalar(d.address))
	}
	line("  allow: []")
	line("  # true refuses races, cut connections and provoked failures. Say false if")
	line("  # no real business depends on the target.")
	line("  production: true")
	if d.caFile != "" {
		line("  ca_file: %s", scalar(d.caFile))
	}
	if d.spec != "" {
		line("  specification: %s", scalar(d.spec))
	}

	line("\nvariables:")
	line("  # Drawn once for each logical request. Give what identifies the business")
	line("  # (an order number, a reference) a name here, and use {{.reference}} in the")
	line("  # request and in the reader.")
	line("  reference: \"probe-{{.run}}-{{hex 8}}\"")
	if d.traced {
		line("  request_id: \"{{uuid7}}\"")
	}

	if len(d.own)+len(d.cookies) > 0 || d.cert != "" {
		line("\nprincipals:")
		line("  actor_a:")
		d.writeHeader(line, "    ", "headers", d.own)
		d.writeHeader(line, "    ", "cookies", d.cookies)
		if d.cert != "" {
			line("    client_cert: {cert_file: %s, key_file: %s}", scalar(d.cert), scalar(d.key))
		}
		line("  # actor_b and tenant_b make the experiments other_actor and other_tenant possible.")
	}

	line("\noperations:")
	line("  - name: %s", scalar(name))
	d.writeRequest(line, "request")
	d.writeKey(line)
	first := ""
	if d.preview != nil {
		if p, ok := d.asPreview(); ok {
			line("    # What the document calls a dry run. It is sent before anything that has")
			line("    # effects; see that this is the right way to ask for one.")
			p.writeRequest(line, "preview")
			first = "preview, "
		} else {
			line("    # The document has a dry run, %s, which could not be put into the request.", comment(scalar(d.preview.name)))
		}
	}
	if p, n := firstNumber(d.body); p != "" && d.bodyFile == "" {
		line("    # For the experiment altered: an edit that changes what the request means.")
		other := "2"
		if n == other {
			other = "3"
		}
		line("    # altered: {edits: [{pointer: %s, value: %s}]}", comment(scalar(p)), other)
	}
	line("    # How the effect shows: a number that changes by one (or by effect) when")
	line("    # the operation takes effect once. Without it the probe cannot judge. Instead of")
	line("    # http: sql, log, command, webhook or smtp.")
	line("    readers:")
	d.writeReader(line)
	line("    # Where the response names what was created.")
	if d.resource != "" {
		line("    resource: %s", d.resource)
	} else {
		line("    # resource: {pointer: /id}")
	}
	if d.oasis {
		line("    contract: {profile: oasis}")
	}
	line("\n# All of them:")
	text := "#"
	for _, e := range plan.Experiments() {
		if len(text)+len(e) > 75 {
			line("%s", text)
			text = "#"
		}
		text += " " + string(e)
	}
	line("%s", text)
	line("experiments: [%sduplicate]", first)
	return b.String()
}

func (d *drafting) writeRequest(line func(string, ...any), name string) {
	line("    %s:", name)
	line("      method: %s", d.method)
	line("      url: %s", scalar(d.template(d.url)))
	d.writeHeader(line, "      ", "headers", d.headers)
	d.writeBody(line)
	if d.protocol != "" {
		line("      protocol: %s", d.protocol)
	}
}

// asPreview is the request as it asks for a dry run.
func (d *drafting) asPreview() (*drafting, bool) {
	q, p := *d, d.preview
	base, query, found := strings.Cut(d.url, "?")
	switch p.in {
	case "path":
		q.url = strings.TrimSuffix(base, "/") + escapeURL(p.name)
		if found {
			q.url += "?" + query
		}
	case "query":
		own := url.QueryEscape(p.name) + "="
		parts := slices.DeleteFunc(strings.Split(query, "&"), func(s string) bool { return s == "" || strings.HasPrefix(s, own) })
		q.url = base + "?" + strings.Join(append(parts, own+url.QueryEscape(p.value)), "&")
	case "header":
		same := func(f field) bool { return strings.EqualFold(f.Name, p.name) }
		if slices.ContainsFunc(d.own, same) {
			return nil, false
		}
		q.headers = append(slices.DeleteFunc(slices.Clone(d.headers), same), field{Name: p.name, Value: p.value})
	case "body":
		body, ok := withYes(d.body, d.contentType(), p.name)
		if q.body = body; !ok || d.bodyFile != "" {
			return nil, false
		}
	}
	return &q, true
}

// withYes sets a member of a body, which may have templates in it, to true.
func withYes(body []byte, media, name string) ([]byte, bool) {
	if media == "application/x-www-form-urlencoded" {
		own := url.QueryEscape(name) + "="
		parts := slices.DeleteFunc(strings.Split(string(body), "&"), func(s string) bool { return s == "" || strings.HasPrefix(s, own) })
		return []byte(strings.Join(append(parts, own+"true"), "&")), true
	}
	rest, ok := strings.CutPrefix(strings.TrimSpace(string(body)), "{")
	set := regexp.MustCompile(regexp.QuoteMeta(quote(name)) + `\s*:\s*(true|false)`)
	switch {
	case !ok:
		return nil, false
	case strings.Count(rest, quote(name)) == 1 && set.MatchString(rest):
		return []byte("{" + set.ReplaceAllLiteralString(rest, quote(name)+":true")), true
	case strings.Contains(rest, quote(name)):
		return nil, false
	case strings.HasPrefix(strings.TrimSpace(rest), "}"):
		return []byte("{" + quote(name) + ":true" + rest), true
	}
	return []byte("{" + quote(name) + ":true," + rest), true
}

func (d *drafting) writeReader(line func(string, ...any)) {
	r := d.reader
	if r == nil {
		line("      - name: effect")
		line("        http:")
		line("          url: '{{fill \"what to GET: a list of what the operation creates, or a count\"}}'")
		line("          # A JSON pointer to the list that is counted; or value: to a number.")
		line("          count: \"\"")
		line("          # where: {/reference: \"{{.reference}}\"}")
		return
	}
	line("      # From %s. See that the list is whole: it must not end after a page.", r.from)
	line("      - name: effect")
	line("        http:")
	line("          url: %s", scalar(d.template(r.url)))
	d.writeHeader(line, "          ", "headers", r.header)
	line("          count: %s", scalar(r.count))
	if r.where != "" {
		line("          where: {%s: \"{{.reference}}\"}", scalar(r.where))
	} else {
		line("          # All are counted, so nobody else may create any meanwhile. Better: put")
		line("          # {{.reference}} into the request, and count what has it.")
		line("          # where: {/reference: \"{{.reference}}\"}")
	}
	if r.id != "" {
		line("          id: %s", scalar(r.id))
	}
}

func (d *drafting) writeHeader(line func(string, ...any), indent, what string, fields []field) {
	if len(fields) == 0 {
		return
	}
	line("%s%s:", indent, what)
	done := map[string]bool{}
	for _, f := range fields {
		if done[f.Name] {
			continue
		}
		done[f.Name] = true
		var values []string
		for _, g := range fields {
			if g.Name == f.Name {
				values = append(values, scalar(d.template(g.Value)))
			}
		}
		if len(values) == 1 {
			line("%s  %s: %s", indent, scalar(f.Name), values[0])
		} else {
			line("%s  %s: [%s]", indent, scalar(f.Name), strings.Join(values, ", "))
		}
	}
}

func (d *drafting) writeBody(line func(string, ...any)) {
	switch {
	case d.bodyFile != "":
		line("      body:\n        file: %s", scalar(d.bodyFile))
	case len(d.body) == 0:
	case len(d.numbers) == 0 && jsonLike(d.body):
		line("      body:\n        json: %s", d.flow(d.body))
	case utf8.Valid(d.body):
		line("      body:\n        text: %s", scalar(d.template(string(d.body))))
	default:
		line("      body:\n        base64: %s", base64.StdEncoding.EncodeToString(d.body))
	}
}

// jsonLike reports whether a body is an object or a list that a plan can hold.
// A lone value is sent as text.
func jsonLike(body []byte) bool {
	if body[0] != '{' && body[0] != '[' {
		return false
	}
	_, err := (&drafting{request: &request{}}).sortJSON(body)
	return err == nil
}

// flow writes a JSON text as YAML, which it almost is: characters that are not
// printable have to be escaped.
func (d *drafting) flow(text []byte) string {
	v := jsontext.Value(text).Clone()
	_ = v.Indent(jsontext.WithIndentPrefix("        "), jsontext.WithIndent("  ")) // it is valid
	dec := jsontext.NewDecoder(strings.NewReader(string(v)))
	var b strings.Builder
	at := 0
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			break
		}
		if tok.Kind() != '"' {
			continue
		}
		s := tok.String()
		end := int(dec.InputOffset())
		start := end - quotedLength(string(v[:end]))
		b.Write(v[at:start])
		if kind, n := dec.StackIndex(dec.StackDepth()); kind != '{' || n%2 == 0 {
			s = d.template(s)
		}
		b.WriteString(doubleQuoted(s))
		at = end
	}
	b.Write(v[at:])
	return b.String()
}

// quotedLength is how long the string is that text ends with.
func quotedLength(text string) int {
	for i := len(text) - 2; i >= 0; i-- {
		if text[i] != '"' {
			continue
		}
		slashes := 0
		for j := i - 1; j >= 0 && text[j] == '\\'; j-- {
			slashes++
		}
		if slashes%2 == 0 {
			return len(text) - i
		}
	}
	return len(text)
}

func (d *drafting) writeKey(line func(string, ...any)) {
	if d.keyName == "" {
		line("    # Nothing in the request looked like a key. If the target calls it otherwise,")
		line("    # say so; if it has none, take this away.")
		line("    key: {header: Idempotency-Key}")
		return
	}
	if d.keySyntax == "" {
		line("    key: {header: %s}", scalar(d.keyName))
		return
	}
	line("    # The recorded key was left out: each run draws its own.")
	line("    key: {header: %s, syntax: %s}", scalar(d.keyName), d.keySyntax)
}

var nameParts = regexp.MustCompile(`^[A-Za-z][A-Za-z_-]{0,30}$`)

// operationName makes a name of the method and those parts of the path that are
// words.
func (d *drafting) operationName() string {
	parts := []string{}
	if d.operation != "" {
		parts = append(parts, notName.ReplaceAllString(d.operation, "-"))
	} else if u, err := url.Parse(holePattern.ReplaceAllString(d.url, "")); err == nil {
		for p := range strings.SplitSeq(u.Path, "/") {
			if nameParts.MatchString(p) && len(parts) < 4 {
				parts = append(parts, strings.ToLower(p))
			}
		}
		parts = append(parts, strings.ToLower(d.method))
	}
	name := strings.Trim(strings.Join(parts, "."), ".-_")
	if len(name) > 80 {
		name = strings.TrimRight(name[:80], ".-_")
	}
	if name == "" || d.redact(name) != name {
		return "operation"
	}
	return name
}

var notName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// scalar writes a YAML string. It is bare where nothing could mistake it.
func scalar(s string) string {
	switch {
	case plainForm.MatchString(s) && !plainWords[strings.ToLower(s)]:
		return s
	case strings.ContainsAny(s, `"\`) && printable(s):
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return doubleQuoted(s)
}

var (
	plainForm  = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9/._-]*$`)
	plainWords = map[string]bool{"true": true, "false": true, "null": true, "yes": true, "no": true, "on": true, "off": true, "y": true, "n": true}
)

func printable(s string) bool {
	for _, r := range s {
		if !yamlPrintable(r) {
			return false
		}
	}
	return true
}

// yamlPrintable reports what may stand in YAML unescaped, on one line.
func yamlPrintable(r rune) bool {
	return r >= ' ' && r < 0x7f || r >= 0xa0 && r < 0xd800 && r != 0x2028 && r != 0x2029 || r >= 0xe000 && r < 0xfffd && r != 0xfeff
}

// doubleQuoted writes a YAML string in double quotes.
func doubleQuoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case yamlPrintable(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08X`, r)
		default:
			fmt.Fprintf(&b, `\u%04X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// comment is text as it may stand in a comment.
func comment(s string) string {
	if !printable(s) {
		q, _ := json.Marshal(s)
		return string(q)
	}
	return s
}
