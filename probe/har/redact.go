package har

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/semelhq/semel/probe/wire"
)

// sensitive are the fields whose values are secrets, in lower case.
var sensitive = []string{"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"}

// minLearned is how long a learnt secret has to be, in bytes, to be looked for
// outside of its own field: "theme=dark" must not blacken every "dark".
const minLearned = 8

// Redactor replaces secrets by placeholders, redacted-1 and so on: the same
// secret by the same placeholder for as long as the Redactor lives, so that
// evidence can still be compared.
//
// Secrets are the values given to NewRedactor, and what Learn finds in the
// fields Authorization, Proxy-Authorization, Cookie, Set-Cookie and X-Api-Key.
// Within those fields every value is replaced; scheme, cookie names and cookie
// attributes stay. Everywhere else a given secret is replaced, and a learnt one
// of at least 8 bytes, also where it is written as in a URL, as in JSON, or in
// base64. A Redactor is not safe for concurrent use.
type Redactor struct {
	names map[string]string // secret to placeholder
	forms []form
	pairs *strings.Replacer // nil if forms changed
}

type form struct{ text, name string }

// NewRedactor returns a Redactor that knows some secrets. Empty ones are ignored.
func NewRedactor(secrets ...string) *Redactor {
	r := &Redactor{names: map[string]string{}}
	for _, s := range secrets {
		r.add(s, 1)
	}
	return r
}

// add returns the placeholder of a secret.
func (r *Redactor) add(secret string, minLen int) string {
	if secret == "" {
		return ""
	}
	name, ok := r.names[secret]
	if !ok {
		name = fmt.Sprintf("redacted-%d", len(r.names)+1)
		r.names[secret] = name
	}
	if len(secret) < minLen || slices.Contains(r.forms, form{secret, name}) {
		return name
	}
	quoted, _ := json.Marshal(secret) // a string always can be
	for _, text := range []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), string(quoted[1 : len(quoted)-1]),
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)),
	} {
		if f := (form{text, name}); !slices.Contains(r.forms, f) {
			r.forms = append(r.forms, f)
		}
	}
	r.pairs = nil
	return name
}

// Learn takes the secrets out of an exchange's header fields. Have it see all
// exchanges of a run before any is written.
func (r *Redactor) Learn(xs ...wire.Exchange) {
	for _, x := range xs {
		for _, f := range x.Request.Header {
			r.Field(f.Name, f.Value)
		}
		if x.Response == nil {
			continue
		}
		for _, h := range []http.Header{x.Response.Header, x.Response.Trailer} {
			for name, values := range h {
				for _, v := range values {
					r.Field(name, v)
				}
			}
		}
	}
}

// Field returns the value of a header field without secrets, and learns those
// that are in it.
func (r *Redactor) Field(name, value string) string {
	name = strings.ToLower(name)
	if !slices.Contains(sensitive, name) {
		return r.String(value)
	}
	hide := func(v string) string {
		lead := v[:len(v)-len(strings.TrimLeft(v, " \t"))]
		return lead + r.add(strings.TrimSpace(v), minLearned)
	}
	switch name {
	case "cookie", "set-cookie":
		parts := strings.Split(value, ";")
		for i, p := range parts {
			if name == "set-cookie" && i > 0 {
				parts[i] = r.String(p)
				continue
			}
			if k, v, ok := strings.Cut(p, "="); ok {
				parts[i] = k + "=" + hide(v)
			} else {
				parts[i] = hide(p)
			}
		}
		return strings.Join(parts, ";")
	case "authorization", "proxy-authorization":
		scheme, rest, ok := strings.Cut(strings.TrimSpace(value), " ")
		if !ok {
			return hide(value)
		}
		if pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest)); err == nil && strings.EqualFold(scheme, "Basic") {
			if _, password, ok := strings.Cut(string(pair), ":"); ok {
				r.add(password, minLearned)
			}
		}
		return scheme + " " + hide(rest)
	}
	return hide(value)
}

// String returns a text without the secrets known so far.
func (r *Redactor) String(s string) string {
	if len(r.forms) == 0 {
		return s
	}
	if r.pairs == nil {
		// Of those that begin at one place, the longest counts.
		slices.SortStableFunc(r.forms, func(a, b form) int { return len(b.text) - len(a.text) })
		var pairs []string
		for _, f := range r.forms {
			pairs = append(pairs, f.text, f.name)
		}
		r.pairs = strings.NewReplacer(pairs...)
	}
	return r.pairs.Replace(s)
}

// Bytes is String for bytes.
func (r *Redactor) Bytes(b []byte) []byte { return []byte(r.String(string(b))) }

// knows reports whether there is anything to look for.
func (r *Redactor) knows() bool { return len(r.forms) > 0 }

// head1 redacts HTTP/1.1 line by line.
func (r *Redactor) head1(head []byte) []byte {
	lines := bytes.Split(head, []byte("\r\n"))
	for i, l := range lines {
		name, value, ok := strings.Cut(string(l), ":")
		if !ok || i == 0 {
			lines[i] = r.Bytes(l)
			continue
		}
		lines[i] = []byte(name + ":" + lead(value) + r.Field(name, strings.TrimSpace(value)))
	}
	return bytes.Join(lines, []byte("\r\n"))
}

func lead(s string) string { return s[:len(s)-len(strings.TrimLeft(s, " \t"))] }
