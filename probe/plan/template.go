package plan

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/strict"
)

// template is a parsed template: literal text and calls in turn.
type template []piece

type piece struct {
	literal string
	call    *call // nil for a literal
}

// call is one {{...}}.
type call struct {
	fn      string // "" for a reference
	ref     string // order_ref, or principal.tenant
	arg     string
	filters []string
}

// functions says which take an argument, and whether they draw a fresh value.
var functions = map[string]struct {
	fresh    bool
	arg      byte // 0 none, 's' string, 'n' number, '?' string or none
	min, max int  // of a number
}{
	"uuid":   {fresh: true},
	"uuid7":  {fresh: true},
	"hex":    {fresh: true, arg: 'n', min: 1, max: 1000},
	"digits": {fresh: true, arg: 'n', min: 1, max: 1000},
	"seq":    {fresh: true},
	"now":    {fresh: true, arg: '?'},
	"env":    {arg: 's'},
	"file":   {arg: 's'},
	"fill":   {arg: 's'},
}

var (
	nowLayouts = []string{"rfc3339", "date", "http", "unix", "unix_ms"}
	filters    = []string{"url", "json", "base64"}
)

// reserved names are not variables' own.
var reserved = []string{"key", "run", "resource_id", "principal"}

func (c *call) fresh() bool  { return c != nil && functions[c.fn].fresh }
func (c *call) secret() bool { return c != nil && (c.fn == "env" || c.fn == "file") }

// parseTemplate parses s. Errors do not quote literal text.
func parseTemplate(s string) (template, error) {
	var t template
	for {
		literal, rest, found := strings.Cut(s, "{{")
		if literal != "" {
			t = append(t, piece{literal: literal})
		}
		if !found {
			return t, nil
		}
		inside, rest, err := cutAction(rest)
		if err != nil {
			return nil, err
		}
		p, err := parseAction(inside)
		if err != nil {
			return nil, err
		}
		t = append(t, p)
		s = rest
	}
}

// cutAction returns what is before the }} that is not within quotes.
func cutAction(s string) (inside, rest string, err error) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case !quoted && strings.HasPrefix(s[i:], "}}"):
			return s[:i], s[i+2:], nil
		}
	}
	return "", "", errors.New("a {{ has no }}")
}

func parseAction(s string) (piece, error) {
	words, err := actionWords(s)
	if err != nil {
		return piece{}, err
	}
	var c call
	if len(words) == 0 {
		return piece{}, errors.New("{{}} is empty")
	}
	head := words[0]
	words = words[1:]
	switch {
	case head[0] == '"':
		if len(words) > 0 {
			return piece{}, errors.New("a string in {{}} stands alone")
		}
		text, err := strconv.Unquote(head)
		if err != nil {
			return piece{}, errors.New("a string in {{}} is malformed")
		}
		return piece{literal: text}, nil
	case head[0] == '.':
		c.ref = head[1:]
		name, attribute, dotted := strings.Cut(c.ref, ".")
		if !forms["variable"].Match(name) || dotted && (name != "principal" || !forms["variable"].Match(attribute)) {
			return piece{}, fmt.Errorf("{{.%s}} is not a variable's name", c.ref)
		}
	default:
		f, ok := functions[head]
		if !ok {
			var known []string
			for name := range functions {
				known = append(known, name)
			}
			slices.Sort(known)
			return piece{}, fmt.Errorf("{{%s}} is not known%s", head, strict.DidYouMean(head, known))
		}
		c.fn = head
		if len(words) > 0 && words[0] != "|" && f.arg != 0 {
			c.arg, words = words[0], words[1:]
		}
		if err := c.checkArg(); err != nil {
			return piece{}, err
		}
	}
	for len(words) > 0 {
		if words[0] != "|" || len(words) < 2 {
			return piece{}, errors.New("{{}} contains more than a call and its filters; write {{.name | filter}}")
		}
		if !slices.Contains(filters, words[1]) {
			return piece{}, fmt.Errorf("the filter %s is not known; there are %s", words[1], strings.Join(filters, ", "))
		}
		c.filters = append(c.filters, words[1])
		words = words[2:]
	}
	return piece{call: &c}, nil
}

// checkArg checks the argument as it was written, and unquotes it.
func (c *call) checkArg() error {
	f := functions[c.fn]
	switch {
	case f.arg == 0 || f.arg == '?' && c.arg == "":
		return nil
	case f.arg == 'n':
		if n, err := strconv.Atoi(c.arg); err != nil || n < f.min || n > f.max {
			return fmt.Errorf("{{%s}} needs a number from %d to %d", c.fn, f.min, f.max)
		}
		return nil
	}
	text, err := strconv.Unquote(c.arg)
	if err != nil || text == "" || c.arg[0] != '"' {
		return fmt.Errorf("{{%s}} needs a string in quotes", c.fn)
	}
	c.arg = text
	if c.fn == "now" && !slices.Contains(nowLayouts, text) {
		return fmt.Errorf("{{now}} has the layouts %s", strings.Join(nowLayouts, ", "))
	}
	if c.fn == "env" && strings.ContainsAny(text, "=\x00") {
		return errors.New("{{env}} needs the name of a variable")
	}
	return nil
}

// actionWords splits what is in {{}}: strings, | and everything else between spaces.
func actionWords(s string) (words []string, err error) {
	for s = strings.TrimLeft(s, " "); s != ""; s = strings.TrimLeft(s, " ") {
		switch {
		case s[0] == '|':
			words, s = append(words, "|"), s[1:]
		case s[0] == '"':
			prefix, err := strconv.QuotedPrefix(s)
			if err != nil {
				return nil, errors.New("a string in {{}} is malformed")
			}
			words, s = append(words, prefix), s[len(prefix):]
		default:
			end := strings.IndexAny(s, ` |"`)
			if end < 0 {
				end = len(s)
			}
			words, s = append(words, s[:end]), s[end:]
		}
	}
	return words, nil
}

// text is what an expression has come to.
type text struct {
	s string
	// secret names where it comes from, if it is or contains a secret.
	secret string
	// foreign: the target has given it.
	foreign bool
}

// scope is where a template finds its values.
type scope struct {
	lookup func(ref string) (text, error)
	fresh  func(site string) (string, bool)
	secret func(c *call) (text, error)
	// derived notes a secret that a filter gave another form.
	derived func(text)
	// step: what is rendered is the request of a step.
	step bool
	// put takes what is foreign; nil where it can do no harm.
	put putter
}

// render puts the template together. Expressions go through escape, if there is
// one. site names the template among those of the plan.
func (t template) render(sc scope, site string, escape func(string) string) (text, error) {
	var b strings.Builder
	var out text
	for i, p := range t {
		if p.call == nil {
			b.WriteString(p.literal)
			continue
		}
		v, err := p.call.eval(sc, strict.Index(site, i))
		if err != nil {
			return text{}, err
		}
		if v.secret != "" {
			out.secret = v.secret
		}
		if v.foreign && sc.put != nil {
			if v.s, err = sc.put(b.String(), v.s, p.call.filters); err != nil {
				return text{}, err
			}
		}
		if escape != nil {
			v.s = escape(v.s)
		}
		b.WriteString(v.s)
		if b.Len() > MaxBodyBytes {
			return text{}, errors.New("the text is too long")
		}
	}
	out.s = b.String()
	return out, nil
}

func (c *call) eval(sc scope, site string) (v text, err error) {
	switch {
	case c.ref != "":
		v, err = sc.lookup(c.ref)
	case c.fresh():
		s, ok := sc.fresh(site)
		if !ok {
			return text{}, fmt.Errorf("{{%s}} was not drawn", c.fn)
		}
		v.s = s
	case c.fn == "fill":
		err = fmt.Errorf("to fill in: %s", c.arg)
	default:
		v, err = sc.secret(c)
	}
	if err != nil {
		return text{}, err
	}
	for _, f := range c.filters {
		v.s = filter(f, v.s)
	}
	if v.secret != "" && len(c.filters) > 0 {
		sc.derived(v)
	}
	return v, nil
}

func filter(name, s string) string {
	switch name {
	case "url":
		return strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
	case "json":
		q := quoteJSON(s)
		return string(q[1 : len(q)-1])
	default: // base64; there are no others
		return base64.StdEncoding.EncodeToString([]byte(s))
	}
}

// draw makes a fresh value.
func (c *call) draw(random io.Reader, now time.Time, seq uint64) (string, error) {
	n, _ := strconv.Atoi(c.arg)
	switch c.fn {
	case "uuid", "uuid7":
		var u [16]byte
		if _, err := io.ReadFull(random, u[:]); err != nil {
			return "", err
		}
		version := byte(0x40)
		if c.fn == "uuid7" {
			version = 0x70
			ms := uint64(now.UnixMilli())
			for i := range 6 {
				u[i] = byte(ms >> (40 - 8*i))
			}
		}
		u[6], u[8] = u[6]&0x0f|version, u[8]&0x3f|0x80
		return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]), nil
	case "hex":
		b := make([]byte, (n+1)/2)
		if _, err := io.ReadFull(random, b); err != nil {
			return "", err
		}
		return hex.EncodeToString(b)[:n], nil
	case "digits":
		out := make([]byte, 0, n)
		for len(out) < n {
			var b [1]byte
			if _, err := io.ReadFull(random, b[:]); err != nil {
				return "", err
			}
			if b[0] < 250 { // so that each digit is as likely
				out = append(out, '0'+b[0]%10)
			}
		}
		return string(out), nil
	case "seq":
		return strconv.FormatUint(seq, 10), nil
	}
	now = now.UTC()
	switch c.arg {
	case "date":
		return now.Format(time.DateOnly), nil
	case "http":
		return now.Format(http.TimeFormat), nil
	case "unix":
		return strconv.FormatInt(now.Unix(), 10), nil
	case "unix_ms":
		return strconv.FormatInt(now.UnixMilli(), 10), nil
	}
	return now.Format(time.RFC3339), nil
}
