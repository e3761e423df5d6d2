package gatewayfile

import (
	"crypto/sha256"
	"crypto/tls"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/gateway/principal"
	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/semelhttp"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a configuration. It says what
// the form of one is; what goes beyond that only Parse says.
func Schema() []byte { return slices.Clone(schema) }

const maxBytes = 4 << 20

var forms = map[string]strict.Form{
	"name":    strict.NewForm(`^[A-Za-z0-9][A-Za-z0-9._-]*$`, "letters, digits and . _ -"),
	"header":  strict.NewForm("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", "a header name"),
	"method":  strict.NewForm(`^[A-Z]+$`, "a method in capitals"),
	"pointer": strict.NewForm(`^(/([^~/]|~[01])*)*$`, "a JSON pointer: empty, or beginning with /"),
	"member":  strict.NewForm(`^(/([^~/]|~[01])*)+$`, "a JSON pointer to a member, beginning with /"),
	"part":    strict.NewForm("^(header [!#$%&'*+.^_`|~0-9A-Za-z-]+|body (/([^~/]|~[01])*)+)$", `"header NAME" or "body /pointer"`),
	"prefix":  strict.NewForm(`^(/[^/{}?#% ]+)+$`, "a path such as /.well-known/idempotency"),
}

// language returns what a configuration is written in. env looks variables up.
func language(env func(string) (string, bool)) *strict.Language {
	return &strict.Language{
		Noun: "configuration", MaxBytes: maxBytes, MaxDepth: 64, Forms: forms, Env: env,
		Kinds: map[reflect.Type]strict.Kind{
			reflect.TypeFor[Size]():     {Decode: decodeSize, Schema: sizeSchema},
			reflect.TypeFor[Patterns](): {Decode: decodePatterns, Schema: patternsSchema},
		},
	}
}

// Size is an amount of bytes.
type Size int64

var sizeUnits = []struct {
	name string
	size int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

const sizePattern = `^[1-9][0-9]{0,17}(B|KiB|MiB|GiB)?$`

var sizeForm = strict.NewForm(sizePattern, "")

// Set parses a size, such as 256KiB.
func (b *Size) Set(s string) error {
	number, unit := s, int64(1)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			number, unit = n, u.size
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("it must be a positive whole number of bytes, or of KiB, MiB or GiB, such as 256KiB")
	}
	*b = Size(n * unit)
	return nil
}

// String is the size in the largest unit that it is a whole number of.
func (b Size) String() string {
	for _, u := range sizeUnits {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return "0"
}

// Type names it for the command line.
func (*Size) Type() string { return "size" }

func decodeSize(d *strict.Decoder, n *strict.Node, v reflect.Value, _ strict.Rule, path string) {
	var size Size
	if (strict.IsString(n) || n.ShortTag() == "!!int") && sizeForm.Match(n.Value) && size.Set(n.Value) == nil {
		v.SetInt(int64(size))
		return
	}
	d.Add(path, "must be a size such as 256KiB, 32MiB or 1GiB")
}

func sizeSchema(strict.Rule) map[string]any {
	return map[string]any{"anyOf": []any{
		map[string]any{"type": "string", "pattern": sizePattern},
		map[string]any{"type": "integer", "minimum": 1},
	}}
}

// Patterns are one pattern, or a list.
type Patterns []string

func decodePatterns(d *strict.Decoder, n *strict.Node, v reflect.Value, r strict.Rule, path string) {
	if strict.IsList(n) {
		list := reflect.New(reflect.TypeFor[[]string]()).Elem()
		r.Names = ""
		d.Value(n, list, r, path)
		v.Set(list.Convert(v.Type()))
		return
	}
	if !strict.IsString(n) || n.Value == "" {
		d.Add(path, "must be a pattern such as POST /orders/{id}, or a list of them")
		return
	}
	v.Set(reflect.ValueOf(Patterns{n.Value}))
}

func patternsSchema(r strict.Rule) map[string]any {
	one := map[string]any{"type": "string", "minLength": 1}
	return map[string]any{"anyOf": []any{one, map[string]any{"type": "array", "items": one, "minItems": 1, "maxItems": r.Items}}}
}

// builtin are the settings that a route has where the file says nothing. Those that
// are zero depend on others.
func builtin() Settings {
	return Settings{
		Protect: true, Methods: []string{"POST", "PATCH"},
		Key:         Key{MinLength: 1, MaxLength: 255},
		Fingerprint: Fingerprint{Mode: "auto", MaxCanonical: semelhttp.DefaultMaxCanonical},
		Contract:    "ietf", InFlight: "reject", MaxWait: semelhttp.DefaultMaxWait, MaxWaiters: 16, OnCrash: "hold",
		Reconcile:      Reconcile{Present: []int{200}},
		NoEffectStatus: []int{401, 407, 425, 429, 503}, UnknownStatus: []int{502, 503, 504},
		Lease: 15 * time.Second, Retention: 24 * time.Hour,
		MaxRequestBody: semelhttp.DefaultMaxRequestBody, MaxResult: semelhttp.DefaultMaxResult,
		MinRate: 1 << 10, ClientIdle: 30 * time.Second,
	}
}

// serverDefaults fills in what the file leaves out of what is there once.
func (c *Config) serverDefaults() {
	or(&c.Listen, "127.0.0.1:8080")
	or(&c.Drain, 30*time.Second)
	or(&c.AccessLog, "off")
	or(&c.LogFormat, "text")
	or(&c.Resources.Prefix, semelhttp.DefaultPrefix)
	or(&c.Resources.KeyLife, semelhttp.DefaultKeyLife)
	or(&c.Bounds.Executions, 4096)
	or(&c.Bounds.TenantExecutions, max(c.Bounds.Executions/4, 1))
	or(&c.Bounds.Waiters, 1000)
	for i := range c.Upstreams {
		or(&c.Upstreams[i].IdleTimeout, gateway.DefaultIdleTimeout)
		or(&c.Upstreams[i].DialTimeout, gateway.DefaultDialTimeout)
	}
	absent := func(path string, d *time.Duration, byDefault time.Duration) {
		if _, ok := c.source.Written(path); !ok { // a 0 that is written means none
			*d = byDefault
		}
	}
	if j := c.Principal.JWT; j != nil {
		absent("principal.jwt.leeway", &j.Leeway, principal.DefaultLeeway)
		absent("principal.jwt.keys_max_age", &j.KeysMaxAge, principal.DefaultKeysMaxAge)
		absent("principal.jwt.keys_keep", &j.KeysKeep, principal.DefaultKeysKeep)
		absent("principal.jwt.keys_timeout", &j.KeysTimeout, principal.DefaultKeysTimeout)
		or(&j.Header, "Authorization")
	}
	if e := c.Principal.Endpoint; e != nil {
		absent("principal.endpoint.timeout", &e.Timeout, principal.DefaultEndpointTimeout)
		absent("principal.endpoint.cache_for", &e.CacheFor, principal.DefaultCacheFor)
		or(&e.MaxCalls, principal.DefaultMaxCalls)
	}
}

func or[T comparable](p *T, byDefault T) {
	var zero T
	if *p == zero {
		*p = byDefault
	}
}

// ParseFile reads the configuration in a file. Files that it names are relative to
// the working directory.
func ParseFile(name string, env func(string) (string, bool)) (*Config, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, err
	}
	return Parse(name, data, env)
}

// Parse reads a configuration and checks all of it, as far as that is possible
// without asking anybody. What env looks up goes into the places of ${NAME}. All
// problems come in one error, each a *strict.Problem.
func Parse(file string, data []byte, env func(string) (string, bool)) (*Config, error) {
	found := &strict.Findings{Source: strict.NewSource(file)}
	sum := sha256.Sum256(data)
	c := &Config{source: found.Source, digest: hex.EncodeToString(sum[:6])}
	if !language(env).Decode(found, data, c) {
		return nil, found.Err()
	}
	unread := len(found.List)
	c.serverDefaults()
	c.check(found)
	if unread == 0 && len(found.List) == 0 {
		c.tryBuild(found)
	}
	found.Forget(unread)
	if err := found.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Digest names the text of the configuration in logs.
func (c *Config) Digest() string { return c.digest }

// check reports what is wrong beyond the form.
func (c *Config) check(f *strict.Findings) {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		f.Add("listen", "is not an address to listen on; write it as 127.0.0.1:8080, or :8080 for all of this machine's")
	}
	names := map[string]bool{}
	for i, u := range c.Upstreams {
		at := strict.Index("upstreams", i)
		if names[u.Name] {
			f.Add(at+".name", "another upstream has this name")
		}
		names[u.Name] = true
		if _, err := upstreamURL(u.URL); err != nil && u.URL != "" {
			f.Add(at+".url", "%v", err)
		}
	}
	switch t := c.TLS; {
	case (t.CertFile == "") != (t.KeyFile == ""):
		f.Add("tls", "needs cert_file and key_file both")
	case t.ClientCAFile != "" && t.CertFile == "":
		f.Add("tls.client_ca_file", "needs cert_file and key_file")
	case t.CertFile != "" && c.H2C:
		f.Add("h2c", "is true along with tls, which has HTTP/2 anyway")
	}
	if t := c.TLS; t.CertFile != "" && t.KeyFile != "" {
		if _, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err != nil {
			f.Add("tls", "cannot be used: %v", err)
		}
	}
	if m := c.Principal.MTLS; m != nil && c.TLS.ClientCAFile == "" && len(m.Proxies.From) == 0 && !m.Proxies.Unix {
		f.Add("principal.mtls", "needs somebody to verify certificates: set tls.client_ca_file, or proxies")
	}
	c.checkNetworks(f)
	if c.Resources.Off {
		for _, key := range []string{"prefix", "key_secrets", "key_life"} {
			if _, ok := f.Source.Written("resources." + key); ok {
				f.Add("resources."+key, "has no meaning while resources.off is true")
			}
		}
	}
	for i := range c.Routes {
		c.checkRoute(f, i)
	}
}

func upstreamURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("is not the URL of an HTTP service; write it as http://127.0.0.1:9000")
	}
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, fmt.Errorf("may hold a scheme, a host and a path, and no more")
	}
	return u, nil
}

// checkNetworks reads the networks of proxies, wherever they are.
func (c *Config) checkNetworks(f *strict.Findings) {
	p := c.Principal
	check := func(at string, proxies Proxies) {
		for i, s := range proxies.From {
			if _, err := netip.ParsePrefix(s); err != nil {
				f.Add(strict.Index(at+".from", i), "is not a network; write it as 10.1.2.0/24, or one address as 10.1.2.3/32")
			}
		}
	}
	if p.MTLS != nil {
		check("principal.mtls.proxies", p.MTLS.Proxies)
	}
	if p.Endpoint != nil {
		check("principal.endpoint.proxies", p.Endpoint.Proxies)
	}
	if p.Header != nil {
		check("principal.header.proxies", p.Header.Proxies)
	}
	if _, ok := f.Source.Written("trust_forwarded"); !ok {
		return
	}
	before := len(f.List)
	check("trust_forwarded", c.TrustForwarded)
	if len(f.List) > before {
		return
	}
	trusted := c.TrustForwarded.parsed()
	if err := trusted.Check(); err != nil {
		f.Add("trust_forwarded", "%v", err)
	}
	if p.Endpoint != nil && !trusted.Holds(p.Endpoint.Proxies.parsed()) {
		f.Add("principal.endpoint.proxies", "has proxies that trust_forwarded does not have: what they say of clients would be taken away before the endpoint is asked")
	}
}

// checkRoute reports what does not go together in a route, where it is written.
func (c *Config) checkRoute(f *strict.Findings, i int) {
	at := strict.Index("routes", i)
	r := &c.Routes[i]
	s, from := c.resolve(i)
	// wrong is about a setting, at the place that it comes from.
	wrong := func(name, format string, args ...any) {
		where := at
		switch from[name].kind {
		case fromRoute:
			where = at + "." + name
		case fromDefaults:
			where = "defaults." + name
		}
		for _, p := range f.List {
			if p.Path == where && p.Message == fmt.Sprintf(format, args...) {
				return // said for another route
			}
		}
		f.Add(where, format, args...)
	}
	set := func(name string) bool { return from[name].kind != fromBuiltin }

	if len(c.Upstreams) > 0 {
		switch {
		case s.Upstream == "":
			f.Add(at, "names no upstream, and there are %d", len(c.Upstreams))
		case !slices.ContainsFunc(c.Upstreams, func(u Upstream) bool { return u.Name == s.Upstream }):
			var names []string
			for _, u := range c.Upstreams {
				names = append(names, u.Name)
			}
			wrong("upstream", "is not an upstream%s", strict.DidYouMean(s.Upstream, names))
		}
	}
	for _, m := range s.Methods {
		switch m {
		case "GET", "HEAD", "OPTIONS", "TRACE", "CONNECT":
			wrong("methods", "names %s, which is never protected", m)
		}
	}
	if r.Operation != "" && r.OperationFrom != "" {
		f.Add(at+".operation_from", "is set, and so is operation")
	}
	if r.Webhook != nil && c.DryRun {
		f.Add(at+".webhook", "cannot be rehearsed: dry_run is true")
	}
	if r.Webhook != nil {
		if r.Operation == "" {
			f.Add(at+".webhook", "needs an operation: the name under which the sender's events are known")
		}
		for _, name := range []string{"protect", "methods", "key.required", "key.issued_only", "key.strict", "key.from", "key.max_uuid_age", "contract", "in_flight", "fail_open"} {
			if from[name].kind == fromRoute {
				f.Add(at+"."+name, "has no meaning for deliveries of a webhook")
			}
		}
		if r.OperationFrom != "" {
			f.Add(at+".operation_from", "has no meaning for deliveries of a webhook")
		}
	}
	if s.OnCrash == "reconcile" && s.Protect && r.Webhook == nil {
		c.checkReconcile(&s, wrong)
	} else {
		for _, l := range settingLeaves {
			if strings.HasPrefix(l.name, "reconcile.") && from[l.name].kind == fromRoute {
				wrong(l.name, "is for on_crash: reconcile, which this route does not have")
			}
		}
	}
	if s.Heartbeat > s.Lease/2 {
		wrong("heartbeat", "is %v, more than half the lease of %v: one lost renewal would lose the claim", s.Heartbeat, s.Lease)
	}
	if s.Deadline > s.Retention {
		wrong("deadline", "is %v, longer than the retention, which is %v", s.Deadline, s.Retention)
	}
	if s.StoreTimeout > s.Lease {
		wrong("store_timeout", "is %v, longer than the lease, which is %v", s.StoreTimeout, s.Lease)
	}
	if s.MaxResult > 256<<20 {
		wrong("max_result", "is %v; at most 256MiB are possible", s.MaxResult)
	}
	if s.MaxInline > s.MaxResult {
		wrong("max_inline", "is %v, more than max_result, which is %v", s.MaxInline, s.MaxResult)
	}
	if s.MaxWait > 0 && s.Wait > s.MaxWait {
		wrong("wait", "is %v, longer than max_wait, which is %v", s.Wait, s.MaxWait)
	}
	for _, status := range s.UnknownStatus {
		if status != 503 && slices.Contains(s.NoEffectStatus, status) {
			wrong("unknown_status", "names %d, and so does no_effect_status", status)
		}
	}
	if s.Key.MinLength > s.Key.MaxLength {
		wrong("key.min_length", "is %d, more than max_length, which is %d", s.Key.MinLength, s.Key.MaxLength)
	}
	if age := s.Key.MaxUUIDAge; age > 0 && age+10*time.Minute >= s.Retention {
		wrong("key.max_uuid_age", "is %v; it must be more than 10m shorter than the retention, which is %v: so much may clocks be apart", age, s.Retention)
	}
	if c.Resources.Off && s.InFlight == "accept" {
		wrong("in_flight", "is accept, but resources.off leaves nowhere to point to")
	}
	if s.Key.IssuedOnly && (c.Resources.KeySecrets == "" || c.Resources.Off) {
		wrong("key.issued_only", "needs resources.key_secrets: without them no client can get a key")
	}
	if len(s.Key.From) > 1 || len(s.Key.From) == 1 && strings.HasPrefix(s.Key.From[0], "body ") {
		if set("key.required") && !s.Key.Required {
			wrong("key.required", "is false, but a key that is taken from what the request says is always required")
		}
		if s.Key.IssuedOnly {
			wrong("key.issued_only", "needs the key in its header")
		}
		if s.Contract == "oasis" {
			wrong("contract", "is oasis, which has its key in headers")
		}
	}
	for i, part := range s.Key.From {
		if slices.Contains(s.Key.From[:i], part) {
			wrong("key.from", "names %s twice", part)
		}
	}
}

// checkReconcile reports what a look-up of the service must not rest on.
func (c *Config) checkReconcile(s *Settings, wrong func(name, format string, args ...any)) {
	l := &s.Reconcile
	byKey, byFence := strings.Contains(l.URL, "{key}"), strings.Contains(l.URL, "{fence}")
	switch {
	case l.URL == "":
		wrong("on_crash", "is reconcile, which needs reconcile.url, such as /orders/by-key/{key}")
	case byKey && len(s.Key.From) > 1:
		wrong("reconcile.url", "contains {key}, which is a digest that the service does not know, because key.from names several places; use {fence}")
	case byKey && !byFence && c.Principal.MTLS != nil:
		wrong("reconcile.url", "needs {fence}: the service does not see certificates, so it cannot tell whose {key} it is")
	}
	if absence := len(l.Absent)+len(l.AbsentValues) > 0; absence && l.SettleAfter == 0 {
		wrong("reconcile.absent", "needs reconcile.settle_after: how long after the lease an effect can still appear")
	}
	if l.Timeout > s.Lease {
		wrong("reconcile.timeout", "is %v, longer than the lease, which is %v", l.Timeout, s.Lease)
	}
}
