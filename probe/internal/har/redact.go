package har

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

const (
	// minLearned is how long a learnt secret has to be, in bytes, to be looked
	// for outside of its own place: "theme=dark" must not blacken every "dark".
	minLearned = 8
	// maxLearned bounds the learnt secrets that are looked for, in bytes in
	// all, and maxNamed those that have a placeholder of their own: a target
	// could go on inventing them.
	maxLearned = 256 << 10
	maxNamed   = 10_000
)

// Redactor replaces secrets by placeholders, redacted-1 and so on: the same
// secret by the same placeholder for as long as the Redactor lives, so that
// evidence can still be compared.
//
// Secrets are the values that were given, and what Learn finds: the values of
// header fields, cookies, parameters of URLs and forms, members of JSON, and
// elements and attributes of XML whose names are those of credentials
// ([plan.Sensitive]), and what stands before the @ of a URL. In those places
// every value is replaced; scheme, cookie names and cookie attributes stay.
// Everywhere else a given secret is replaced, and a learnt one of at least 8
// bytes, in whatever way it is spelled there: with escapes of URLs, of JSON and
// other languages, of HTML and XML, up to three of them in each other, and all
// of that in base64 or hexadecimal digits, or in two of these in each other.
//
// Of what targets send, 256 KiB of secrets are learnt and 10,000 told apart;
// after that they are replaced in their own places only, all by "redacted". A
// Redactor is not safe for concurrent use.
type Redactor struct {
	names  map[string]string // secret to placeholder
	finder finder
	lower  finder          // for the secrets in lower case
	known  map[string]bool // those that are looked for
	learnt int             // bytes
}

// NewRedactor returns a Redactor that knows some secrets. Empty ones are ignored.
func NewRedactor(secrets ...string) *Redactor {
	r := &Redactor{names: map[string]string{}, known: map[string]bool{}}
	r.Give(secrets...)
	return r
}

// Give makes more secrets known. What is only another spelling of a secret has
// its placeholder.
func (r *Redactor) Give(secrets ...string) {
	// A spelling is at least as long as what it spells.
	for _, s := range slices.SortedStableFunc(slices.Values(secrets), func(a, b string) int { return len(a) - len(b) }) {
		if s == "" || r.known[s] {
			continue
		}
		name := r.finder.whole(s)
		if name == "" {
			name = r.name(s)
		}
		r.known[s] = true
		r.finder.add(s, name)
		r.lower.add(strings.ToLower(s), name)
	}
}

var placeholder = regexp.MustCompile(`^redacted-[0-9]+$`)

func (r *Redactor) name(secret string) string {
	name, ok := r.names[secret]
	if !ok {
		if len(r.names) >= maxNamed {
			return "redacted"
		}
		name = fmt.Sprintf("redacted-%d", len(r.names)+1)
		r.names[secret] = name
	}
	return name
}

// hide returns the placeholder of what stands in a secret's place, and looks for
// it elsewhere from now on.
func (r *Redactor) hide(secret string) string {
	if secret == "" || placeholder.MatchString(secret) {
		return secret
	}
	if name := r.finder.whole(secret); name != "" {
		return name
	}
	if len(secret) >= minLearned && !r.known[secret] && r.learnt+len(secret) <= maxLearned {
		r.learnt += len(secret)
		r.Give(secret)
	}
	return r.name(secret)
}

// Learn takes the secrets out of an exchange. Have it see all exchanges of a run
// before any is written.
func (r *Redactor) Learn(xs ...wire.Exchange) {
	for _, x := range xs {
		r.URL(x.Request.URL)
		r.list(x.Request.Header)
		r.body(x.Request.Body, get(x.Request.Header, "Content-Encoding"))
		if x.Response == nil {
			continue
		}
		for _, h := range []http.Header{x.Response.Header, x.Response.Trailer} {
			r.list(fieldsOf(h))
		}
		r.body(x.Response.Body, x.Response.Header.Get("Content-Encoding"))
	}
}

// schemes of authentication; what stands in their place may be the credential.
var schemes = regexp.MustCompile(`(?i)^(basic|bearer|digest|token|apikey|dpop|negotiate|ntlm|hawk|hoba|mutual|gnap|privatetoken|signature|scram-sha-(1|256)|aws4-hmac-sha256|oauth|key)$`)

// Field returns the value of a header field without secrets, and learns those
// that are in it.
func (r *Redactor) Field(name, value string) string {
	name = strings.ToLower(name)
	hide := func(v string) string {
		return v[:len(v)-len(strings.TrimLeft(v, " \t"))] + r.hide(strings.TrimSpace(v))
	}
	switch {
	case name == "cookie", name == "set-cookie":
		parts := strings.Split(value, ";")
		for i, p := range parts {
			k, v, ok := strings.Cut(p, "=")
			switch {
			case name == "set-cookie" && i > 0:
				parts[i] = r.String(p)
			case ok:
				parts[i] = r.String(k) + "=" + hide(v)
			default:
				parts[i] = hide(p)
			}
		}
		return strings.Join(parts, ";")
	case name == "authorization", name == "proxy-authorization":
		scheme, rest, ok := strings.Cut(strings.TrimSpace(value), " ")
		if !ok || !schemes.MatchString(scheme) {
			return hide(value)
		}
		if pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest)); err == nil && strings.EqualFold(scheme, "Basic") {
			if _, password, ok := strings.Cut(string(pair), ":"); ok {
				r.hide(password)
			}
		}
		return scheme + " " + hide(rest)
	case plan.Sensitive(name):
		return hide(value)
	}
	return r.URL(value)
}

// FieldName returns the name of a header field without secrets, which are found
// in lower case too: HTTP/2 has no other.
func (r *Redactor) FieldName(name string) string {
	if plain := r.String(name); plain != name {
		return plain
	}
	if lower := strings.ToLower(name); len(r.lower.find(lower, 0)) > 0 {
		return r.lower.replace(lower)
	}
	return name
}

var (
	userinfo  = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)([^/?#\s"'<>@\\]+)@`)
	parameter = regexp.MustCompile(`([?&;#])([^=&;?#\s"'<>]{1,200})=([^&;#\s"'<>\\]*)`)
)

// URL returns text without the secrets known so far and without the credentials
// of the URLs in it, which it learns.
func (r *Redactor) URL(s string) string {
	if strings.Contains(s, "://") {
		s = replaceGroup(userinfo, s, r.userinfo)
	}
	if strings.Contains(s, "=") {
		s = replaceGroup(parameter, s, r.parameter)
	}
	return r.String(s)
}

func (r *Redactor) userinfo(g []string) string {
	if _, password, ok := strings.Cut(g[2], ":"); ok {
		r.hide(unescape(password))
	}
	return g[1] + r.hide(unescape(g[2])) + "@"
}

func (r *Redactor) parameter(g []string) string {
	if !plan.Sensitive(unescape(g[2])) || g[3] == "" {
		return g[0]
	}
	return g[1] + g[2] + "=" + r.hide(unescape(g[3]))
}

func replaceGroup(re *regexp.Regexp, s string, f func(groups []string) string) string {
	var b strings.Builder
	at := 0
	for _, m := range re.FindAllStringSubmatchIndex(s, -1) {
		groups := make([]string, len(m)/2)
		for i := range groups {
			if m[2*i] >= 0 {
				groups[i] = s[m[2*i]:m[2*i+1]]
			}
		}
		b.WriteString(s[at:m[0]])
		b.WriteString(f(groups))
		at = m[1]
	}
	if at == 0 {
		return s
	}
	b.WriteString(s[at:])
	return b.String()
}

// String returns a text without the secrets known so far.
func (r *Redactor) String(s string) string { return r.finder.replace(s) }

// Bytes is String for bytes.
func (r *Redactor) Bytes(b []byte) []byte {
	s := string(b)
	if out := r.String(s); out != s {
		return []byte(out)
	}
	return b
}

// Text returns the text of a body without secrets, those under the names of
// credentials included, which it learns.
func (r *Redactor) Text(s string) string {
	out, ok := r.json(s)
	if !ok {
		out = r.plain(s)
	}
	return r.URL(out)
}

// json replaces the strings and numbers of a JSON text that are below names of
// credentials.
func (r *Redactor) json(s string) (string, bool) {
	if t := strings.TrimLeft(s, " \t\r\n"); t == "" || t[0] != '{' && t[0] != '[' {
		return "", false
	}
	dec := jsontext.NewDecoder(strings.NewReader(s), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var b strings.Builder
	at, below := 0, 0 // below: the depth under which all is secret
	named := false    // the name that was read last is a credential's
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			// What is not JSON from here on is text.
			rest := s[at:]
			if strings.TrimSpace(s[dec.InputOffset():]) != "" {
				rest = r.plain(rest)
			}
			b.WriteString(rest)
			return b.String(), true
		}
		depth := dec.StackDepth()
		parent, n := dec.StackIndex(depth)
		secret := below > 0 || parent == '{' && named
		switch kind := tok.Kind(); {
		case kind == '"' && parent == '{' && n%2 == 1:
			named = plan.Sensitive(tok.String())
		case kind == '{' || kind == '[':
			if outer, _ := dec.StackIndex(depth - 1); below == 0 && outer == '{' && named {
				below = depth
			}
			named = false
		case kind == '}' || kind == ']':
			if depth < below {
				below = 0
			}
			named = false
		case secret && (kind == '"' || kind == '0'):
			end := int(dec.InputOffset())
			text := tok.String()
			start := end - len(text)
			if kind == '"' {
				start = end - quotedLength(s[:end])
			}
			if text == "" {
				break
			}
			b.WriteString(s[at:start])
			b.WriteString(`"` + r.hide(text) + `"`)
			at = end
		}
	}
}

// quotedLength is how long the JSON string is that a text ends with.
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

var (
	// element is one of XML.
	element = regexp.MustCompile(`(<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)(?:\s[^<>]*)?>\s*)(<!\[CDATA\[[^<>]*\]\]>|[^<>]*[^<>\s])(\s*</)`)
	// part is one of a multipart form.
	part = regexp.MustCompile(`(name="([^"\r\n]{1,200})"[^\r\n]*\r?\n(?:[^\r\n]+\r?\n){0,10}\r?\n)([^\r\n]+)`)
)

// plain replaces the values that stand beside names of credentials in a form, in
// XML or in any text.
func (r *Redactor) plain(s string) string {
	s = replaceGroup(element, s, func(g []string) string {
		if !plan.Sensitive(g[2]) {
			return g[0]
		}
		value := strings.TrimSuffix(strings.TrimPrefix(g[3], "<![CDATA["), "]]>")
		return g[1] + r.hide(unescaped(value, '&')) + g[4]
	})
	s = replaceGroup(part, s, func(g []string) string {
		if !plan.Sensitive(g[2]) {
			return g[0]
		}
		return g[1] + r.hide(g[3])
	})
	return r.pairs(s)
}

// pairs replaces the values of names of credentials in forms, log lines,
// attributes, and JSON within something else: name=value, name: "value".
func (r *Redactor) pairs(s string) string {
	var b strings.Builder
	at := 0 // up to where s is written
	for i := 0; i < len(s); i++ {
		if s[i] != ':' && s[i] != '=' {
			continue
		}
		end := max(at, i-8)
		before := strings.TrimRight(s[end:i], " \t")
		named := strings.TrimRight(before, `"'\`)
		end += len(named)
		quotedName := len(named) < len(before)
		start := end
		for start > at && end-start < 100 && nameByte(s[start-1]) {
			start--
		}
		if start == end || !plan.Sensitive(unescape(s[start:end])) {
			continue
		}
		from := i + 1
		for from < len(s) && (s[from] == ' ' || s[from] == '\t') {
			from++
		}
		slashes := from
		for from < len(s) && s[from] == '\\' {
			from++
		}
		var to int
		var value string
		if from < len(s) && (s[from] == '"' || s[from] == '\'') {
			quote := s[from]
			from++
			for to = from; to < len(s) && s[to] != quote; to++ {
				if s[to] == '\\' && slashes == from-1 {
					to++ // a quote within the quotes
				}
			}
			to = min(to, len(s))
			to = from + len(strings.TrimRight(s[from:to], `\`))
			value = unescaped(s[from:to], '\\')
		} else {
			from = slashes
			n := strings.IndexAny(s[from:], " \t\r\n\"'<>&;,{}()\\")
			if n < 0 {
				n = len(s) - from
			}
			to = from + n
			value = unescape(s[from:to])
			// In a sentence, a colon is no assignment.
			if s[i] == ':' && !quotedName && len(value) < 20 && !strings.ContainsAny(value, "0123456789") || value == "null" || value == "true" || value == "false" {
				continue
			}
		}
		if from == to {
			continue
		}
		b.WriteString(s[at:from])
		b.WriteString(r.hide(value))
		at, i = to, to-1
	}
	if at == 0 {
		return s
	}
	b.WriteString(s[at:])
	return b.String()
}

func nameByte(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c == '-' || c == '.' || c == '[' || c == ']' || c == '%'
}

// unescaped reads the escapes of one kind.
func unescaped(s string, lead byte) string {
	if strings.IndexByte(s, lead) < 0 {
		return s
	}
	var b strings.Builder
	r := &reader{s: s}
	for i := 0; i < len(s); {
		os := r.readings(i, 1)
		o := os.o[0]
		if s[i] == lead {
			o = os.o[os.n-1]
		}
		b.WriteString(o.text)
		i = o.next
	}
	return b.String()
}

// knows reports whether there is anything to look for.
func (r *Redactor) knows() bool { return len(r.known) > 0 }

// head1 redacts HTTP/1.1 line by line.
func (r *Redactor) head1(head []byte) []byte {
	lines := bytes.Split(head, []byte("\r\n"))
	for i, l := range lines {
		name, value, ok := strings.Cut(string(l), ":")
		if !ok || i == 0 {
			if out := r.URL(string(l)); out != string(l) {
				lines[i] = []byte(out)
			}
			continue
		}
		lines[i] = []byte(r.FieldName(name) + ":" + lead(value) + r.Field(name, strings.TrimSpace(value)))
	}
	return bytes.Join(lines, []byte("\r\n"))
}

func lead(s string) string { return s[:len(s)-len(strings.TrimLeft(s, " \t"))] }

func unescape(s string) string {
	if u, err := url.QueryUnescape(s); err == nil {
		return u
	}
	return s
}
