package importer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/semelhq/semel/probe/plan"
)

// MaxInput bounds what is imported, in bytes; MaxBody a body that is written
// into a plan.
const (
	MaxInput = 64 << 20
	MaxBody  = 512 << 10
)

// Draft is the text of a plan.
type Draft struct {
	YAML []byte
	// Secrets are what was left out.
	Secrets []Secret
	// Notes say what was not carried over, or should be looked at.
	Notes []string
}

// Secret is a credential that was left out of a plan.
type Secret struct {
	// Env is the environment variable that the plan takes it from.
	Env string
	// From is where it was, such as header Authorization.
	From string
}

// request is what an importer finds. Its strings are literal, except for holes.
type request struct {
	from       string // what it was, for the first line
	operation  string // a name for it; made from the URL if empty
	method     string
	url        string
	header     []field
	body       []byte
	bodyFile   string
	protocol   string
	caFile     string
	cert, key  string   // client certificate
	spec       string   // where the operation is described
	holes      []string // what stands in for hole(i)
	heldBySelf []Secret // holes that are secrets by themselves
	hidden     []string // credentials under names that do not tell
	notes      []string
	reader     *listReader // nil: for the author to say
	preview    *preview    // nil: none is known
	resource   string      // what stands under resource, if it is known
	browser    bool        // it was recorded in one
}

// field is a line of a header.
type field struct{ Name, Value string }

// sentRequest is a request that was recorded.
type sentRequest struct {
	Method, URL string
	Header      []field
	Body        []byte
}

// listReader is a GET that lists what the operation makes.
type listReader struct {
	url       string // with holes, as that of the request
	count     string // where in the response the list is
	where, id string // member of an element that has the reference, and its id
	from      string // where that is known from
	header    []field
}

// preview is how an operation is asked for a dry run.
type preview struct {
	in          string // query, header, body, or path, which is below that of the operation
	name, value string // of the parameter or member; the end of the path
}

// hole returns text that stands for a template in strings that otherwise are
// literal. It is made of private-use characters, which drop takes out of what is
// imported.
func (r *request) hole(template string) string {
	i := slices.Index(r.holes, template)
	if i < 0 {
		i = len(r.holes)
		r.holes = append(r.holes, template)
	}
	return holeOpen + strconv.Itoa(i) + holeClose
}

const holeOpen, holeClose = "\uf0a1", "\uf0a2"

func drop(s string) string {
	if !strings.Contains(s, holeOpen) && !strings.Contains(s, holeClose) {
		return s
	}
	return strings.NewReplacer(holeOpen, "", holeClose, "").Replace(s)
}

func (r *request) env(name, from string) string {
	s := Secret{name, from}
	if !slices.ContainsFunc(r.heldBySelf, func(o Secret) bool { return o.Env == name }) {
		r.heldBySelf = append(r.heldBySelf, s)
	}
	return r.hole(`{{env "` + name + `"}}`)
}

func (r *request) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(r.notes, n) {
		r.notes = append(r.notes, n)
	}
}

var holePattern = regexp.MustCompile(holeOpen + `([0-9]{1,6})` + holeClose)

// template makes a template of literal text with holes.
func (r *request) template(s string) string {
	s = strings.ReplaceAll(s, "{{", `{{"{{"}}`)
	s = strings.ReplaceAll(s, "{"+holeOpen, `{{"{"}}`+holeOpen) // it would be taken for a part of the {{
	return holePattern.ReplaceAllStringFunc(s, func(h string) string {
		i, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(h, holeOpen), holeClose))
		if err != nil || i >= len(r.holes) {
			return ""
		}
		return r.holes[i]
	})
}

// left are fields that belong to a connection, to framing, or to how a response
// is packed.
var left = map[string]string{
	"connection": "", "content-length": "", "http2-settings": "", "keep-alive": "", "proxy-connection": "", "te": "", "trailer": "",
	"transfer-encoding": "", "upgrade": "",
	"accept-encoding": "Accept-Encoding was left out, so that responses can be read.",
	"expect":          "Expect was left out: the body is sent without waiting.",
}

// noise are fields that a browser adds by itself, or a tracing library, and that
// mean nothing to an operation.
var noise = regexp.MustCompile(`(?i)^(sec-.*|user-agent|accept-language|accept-charset|referer|priority|dnt|cache-control|pragma|upgrade-insecure-requests|save-data|x-client-data|x-requested-with|if-none-match|if-modified-since|traceparent|tracestate|baggage|sentry-trace|x-b3-.*|x-datadog-.*|newrelic)$`)

// trackers are cookies of analytics.
var trackers = regexp.MustCompile(`(?i)^(_ga.*|_gid|_gat.*|_gcl_.*|_fbp|_fbc|_hj.*|_uet.*|_pk_.*|ajs_.*|mp_.*|amplitude.*|optanon.*|__utm.*|_clck|_clsk|cookie_?consent|hubspotutk|__hs.*)$`)

// keyHeaders are known to carry idempotency keys.
var keyHeaders = []string{"Idempotency-Key", "X-Idempotency-Key", "Repeatability-Request-ID", "PayPal-Request-Id", "Cko-Idempotency-Key", "X-Request-Idempotency-Key"}

// draft finds the credentials and writes the plan.
func (r *request) draft() (*Draft, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	d := &drafting{request: r, secrets: slices.Clone(r.heldBySelf)}
	if err := d.sort(); err != nil {
		return nil, err
	}
	text := d.write()
	for _, s := range d.values {
		if len(s) >= plan.MinSecretBytes && strings.Contains(text, s) {
			return nil, errors.New("importer: a credential could not be kept out of the plan: it also stands where it cannot be replaced")
		}
	}
	if _, err := plan.Parse("", []byte(text)); err != nil && !plan.OnlyToFill(err) {
		return nil, fmt.Errorf("importer: this makes no valid plan: %w", err)
	}
	return &Draft{YAML: []byte(text), Secrets: d.secrets, Notes: r.notes}, nil
}

func (r *request) check() error {
	var errs []error
	if !regexp.MustCompile(`^[A-Z]{1,20}$`).MatchString(r.method) {
		errs = append(errs, errors.New("the method is not one in capitals"))
	}
	if len(r.url) > 8<<10 {
		errs = append(errs, errors.New("the URL is too long"))
	}
	if len(r.header) > 100 {
		errs = append(errs, errors.New("there are more than 100 header fields"))
	}
	if len(r.body) > MaxBody {
		errs = append(errs, fmt.Errorf("the body is larger than %d KiB; keep it in a file", MaxBody>>10))
	}
	for _, f := range r.header {
		switch {
		case !token.MatchString(f.Name) || len(f.Name) > 200:
			errs = append(errs, errors.New("the name of a header field is not valid"))
		case !utf8.ValidString(f.Value) || strings.ContainsAny(f.Value, "\r\n\x00"):
			errs = append(errs, fmt.Errorf("the header field %s is not one line of UTF-8", f.Name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("importer: %w", err)
	}
	return nil
}

var token = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// drafting is a request whose parts go where a plan has them.
type drafting struct {
	*request
	secrets []Secret
	values  []string       // of the secrets
	byValue map[string]int // place in values and in names
	names   []string

	headers   []field // of the request
	own       []field // of the principal
	cookies   []field
	keyName   string
	keySyntax string // empty: not known
	oasis     bool
	traced    bool // there is a request id
	address   string
	numbers   []string // holes in the body that stand for numbers
}

// secret returns what stands in for a credential.
func (d *drafting) secret(value, name, from string) string {
	if value == "" || holePattern.ReplaceAllString(value, "") == "" {
		return value // nothing, or nothing but what comes from elsewhere
	}
	if i, ok := d.byValue[value]; ok {
		return d.hole(`{{env "` + d.names[i] + `"}}`)
	}
	env := envName(name)
	for n := 2; slices.ContainsFunc(d.secrets, func(s Secret) bool { return s.Env == env }); n++ {
		env = envName(name) + "_" + strconv.Itoa(n)
	}
	if d.byValue == nil {
		d.byValue = map[string]int{}
	}
	d.byValue[value] = len(d.values)
	d.values, d.names = append(d.values, value), append(d.names, env)
	d.secrets = append(d.secrets, Secret{env, from})
	if len(value) < plan.MinSecretBytes {
		d.note("The credential in %s is shorter than %d bytes: the probe refuses it, because it could not keep it out of evidence.", from, plan.MinSecretBytes)
	}
	return d.hole(`{{env "` + env + `"}}`)
}

var notEnv = regexp.MustCompile(`[^A-Z0-9]+`)

func envName(s string) string {
	s = notEnv.ReplaceAllString(strings.ToUpper(s), "_")
	if len(s) > 60 {
		s = s[:60]
	}
	return "PROBE_" + strings.Trim(s, "_")
}

// sort puts each part where it belongs.
func (d *drafting) sort() error {
	for _, s := range d.hidden {
		d.secret(s, "API key", "the API key")
	}
	if err := d.sortURL(); err != nil {
		return err
	}
	d.browser = d.browser || slices.ContainsFunc(d.header, func(f field) bool { return strings.HasPrefix(strings.ToLower(f.Name), "sec-") })
	for _, f := range d.header {
		lower := strings.ToLower(f.Name)
		if note, ok := left[lower]; ok {
			if note != "" {
				d.note("%s", note)
			}
			continue
		}
		if d.browser && noise.MatchString(f.Name) {
			d.note("Fields that a browser adds by itself were left out.")
			continue
		}
		isKey := slices.IndexFunc(keyHeaders, func(k string) bool { return strings.EqualFold(k, f.Name) })
		switch {
		case isKey >= 0 && d.keyName == "":
			d.keyName = f.Name
			switch {
			case strings.HasPrefix(f.Value, `"`):
				d.keySyntax = "sf-string"
			case f.Value != "":
				d.keySyntax = "bare"
			}
			d.oasis = lower == "repeatability-request-id"
		case lower == "repeatability-first-sent":
		case lower == "host" && strings.EqualFold(f.Value, hostOf(d.url)):
		case lower == "cookie":
			d.sortCookies(f.Value)
		case lower == "x-request-id" || lower == "x-correlation-id":
			d.traced = true
			d.headers = append(d.headers, field{Name: f.Name, Value: d.hole("{{.request_id}}")})
		case plan.Sensitive(f.Name) || slices.Contains(d.hidden, f.Value):
			d.own = append(d.own, field{Name: f.Name, Value: d.credential(f)})
		default:
			d.headers = append(d.headers, f)
		}
	}
	if d.oasis {
		d.headers = append(d.headers, field{Name: "Repeatability-First-Sent", Value: d.hole(`{{now "http"}}`)})
	}
	d.sortBody()
	// What was found in one place may stand in another.
	d.url = d.redact(d.url)
	if d.reader != nil {
		// The reader's URL has the same credentials in it, or others.
		own := d.url
		d.url = d.reader.url
		if err := d.sortURL(); err != nil {
			d.reader = nil
		} else {
			d.reader.url = d.redact(d.url)
		}
		d.url = own
	}
	for i := range d.headers {
		d.headers[i].Value = d.redact(d.headers[i].Value)
	}
	return nil
}

// redact replaces known credentials in text. Short ones would be found in
// innocent words.
func (d *drafting) redact(s string) string {
	order := make([]int, len(d.values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return len(d.values[b]) - len(d.values[a]) })
	for _, i := range order {
		if len(d.values[i]) < plan.MinSecretBytes {
			continue
		}
		h := d.hole(`{{env "` + d.names[i] + `"}}`)
		s = strings.ReplaceAll(s, d.values[i], h)
	}
	return s
}

// credential keeps the scheme of an Authorization.
func (d *drafting) credential(f field) string {
	scheme, rest, found := strings.Cut(f.Value, " ")
	switch strings.ToLower(scheme) {
	case "bearer", "basic", "token", "apikey", "dpop", "negotiate":
		if found {
			return scheme + " " + d.secret(rest, f.Name, "header "+f.Name)
		}
	}
	return d.secret(f.Value, f.Name, "header "+f.Name)
}

func (d *drafting) sortCookies(line string) {
	for part := range strings.SplitSeq(line, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if name == "" {
			continue
		}
		if !token.MatchString(name) || slices.ContainsFunc(d.cookies, func(c field) bool { return c.Name == name }) {
			d.note("A cookie was left out: its name is not valid, or occurs twice.")
			continue
		}
		if d.browser && trackers.MatchString(name) {
			continue
		}
		if !plan.PlainCookie(name, value) {
			value = d.secret(value, "cookie "+name, "cookie "+name)
		}
		d.cookies = append(d.cookies, field{Name: name, Value: value})
	}
	d.cookies = slices.DeleteFunc(d.cookies, func(c field) bool { return c.Value == "" })
}

func hostOf(raw string) string {
	_, rest, _ := strings.Cut(raw, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	return rest
}

func (d *drafting) sortURL() error {
	raw, _, _ := strings.Cut(d.url, "#")
	if u, err := url.Parse(holePattern.ReplaceAllString(raw, "x")); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		if u.User != nil {
			scheme, rest, _ := strings.Cut(raw, "://")
			userinfo, host, _ := strings.Cut(rest, "@")
			raw = scheme + "://" + host
			if plain, err := url.PathUnescape(userinfo); err == nil {
				userinfo = plain
			}
			d.header = append(d.header, field{Name: "Authorization", Value: "Basic " + base64.StdEncoding.EncodeToString([]byte(userinfo))})
		}
		port := u.Port()
		if port == "" {
			if port = "80"; u.Scheme == "https" {
				port = "443"
			}
		}
		if u.Hostname() != "" && !holePattern.MatchString(hostOf(raw)) {
			d.address = net.JoinHostPort(u.Hostname(), port)
		}
	} else if !strings.HasPrefix(raw, holeOpen) {
		return errors.New("importer: the URL is not an absolute one of http or https")
	}
	base, query, found := strings.Cut(raw, "?")
	if found {
		parts := strings.Split(query, "&")
		for i, p := range parts {
			name, value, _ := strings.Cut(p, "=")
			plain, err := url.QueryUnescape(name)
			if err != nil || !plan.Sensitive(plain) {
				continue
			}
			// As it was written: the probe sends it as it is.
			parts[i] = name + "=" + d.secret(value, "query "+plain, "parameter "+label(plain))
			// It may stand elsewhere without being encoded.
			if at, ok := d.byValue[value]; ok {
				if dec, err := url.QueryUnescape(value); err == nil && dec != value {
					d.values, d.names = append(d.values, dec), append(d.names, d.names[at])
				}
			}
		}
		base += "?" + strings.Join(parts, "&")
	}
	d.url = escapeURL(base)
	return nil
}

// escapeURL encodes what may not stand in a URL, which browsers and curl let
// pass; holes stay.
func escapeURL(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		if loc := holePattern.FindStringIndex(s); loc != nil && loc[0] == 0 {
			b.WriteString(s[:loc[1]])
			s = s[loc[1]:]
			continue
		}
		if c := s[0]; c <= ' ' || c >= 0x7f || c == '"' || c == '<' || c == '>' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
		s = s[1:]
	}
	return b.String()
}

// quoteArg writes a string as it stands in a template.
func quoteArg(s string) string { return strconv.Quote(label(s)) }

// label is a name as it may stand in a message or a comment.
func label(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f {
			return '_'
		}
		return r
	}, s[:min(len(s), 60)])
}
