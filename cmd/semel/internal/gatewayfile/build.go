package gatewayfile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/gateway/principal"
	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
	"github.com/semelhq/semel/webhook"
)

// DryRunStoreTimeout bounds calls of the store for what is only told: no request
// waits longer for that.
const DryRunStoreTimeout = time.Second

// Runtime is what outlives a configuration.
type Runtime struct {
	// Guard is that of the store and the bounds; each route has its own policy.
	Guard *semel.Guard
	// Spools hold large bodies.
	Spools *semelhttp.Spools
	// Observer is told what happens between the gateway and the upstreams.
	Observer *gateway.Observer
	// Failed is told when it could not be learned who callers are.
	Failed func(context.Context, error)
	// Refused is told of deliveries of webhooks that are not accepted.
	Refused func(r *http.Request, err error)

	mu        sync.Mutex
	upstreams map[Upstream]*gateway.Upstream // in use
}

// upstream returns the upstream of a configuration: the one in use, if it is the
// same, with its connections and its bound on them.
func (rt *Runtime) upstream(u Upstream) (*gateway.Upstream, error) {
	u.Name = ""
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if known := rt.upstreams[u]; known != nil {
		return known, nil
	}
	at, err := upstreamURL(u.URL)
	if err != nil {
		return nil, err
	}
	encryption, err := u.tls()
	if err != nil {
		return nil, err
	}
	made, err := gateway.NewUpstream(gateway.UpstreamConfig{
		URL: at, DialTimeout: u.DialTimeout, IdleTimeout: u.IdleTimeout, MaxConns: u.MaxConns, TLS: encryption, HTTP2: u.HTTP2, Socket: u.Socket,
	})
	if err == nil {
		if rt.upstreams == nil {
			rt.upstreams = map[Upstream]*gateway.Upstream{}
		}
		rt.upstreams[u] = made
	}
	return made, err
}

// tls is how connections to the upstream are encrypted; nil for as usual.
func (u Upstream) tls() (*tls.Config, error) {
	if u.CAFile == "" && u.CertFile == "" && u.KeyFile == "" && u.ServerName == "" {
		return nil, nil
	}
	if !strings.HasPrefix(u.URL, "https:") {
		return nil, errors.New("ca_file, cert_file, key_file and server_name are for https")
	}
	c := &tls.Config{ServerName: u.ServerName, MinVersion: tls.VersionTLS12}
	if u.CAFile != "" {
		pem, err := os.ReadFile(u.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: there is no certificate in %s", u.CAFile)
		}
	}
	if (u.CertFile == "") != (u.KeyFile == "") {
		return nil, errors.New("cert_file and key_file are needed both")
	}
	if u.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(u.CertFile, u.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("cert_file and key_file: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return c, nil
}

// Keep forgets the upstreams that c does not have.
func (rt *Runtime) Keep(c *Config) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for u, made := range rt.upstreams {
		if !slices.ContainsFunc(c.Upstreams, func(k Upstream) bool { k.Name = ""; return k == u }) {
			delete(rt.upstreams, u)
			made.CloseIdle()
		}
	}
}

// Close closes connections that are not in use.
func (rt *Runtime) Close() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, u := range rt.upstreams {
		u.CloseIdle()
	}
}

// Built is a configuration at work. Close it when nothing uses it any more.
type Built struct {
	http.Handler
	io.Closer
}

type closer func() error

func (c closer) Close() error { return c() }

// Build makes what the configuration describes. It reads the files that are named,
// and asks nobody.
func (c *Config) Build(rt *Runtime) (*Built, error) {
	f := &strict.Findings{Source: c.source}
	built := c.build(f, rt)
	return built, f.Err()
}

// tryBuild reports what is found out by building only.
func (c *Config) tryBuild(f *strict.Findings) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		panic(err) // it needs nothing
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		panic(err)
	}
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: c.Spool.Dir, MaxBytes: int64(c.Spool.Max)})
	if err != nil {
		f.Add("spool", "cannot be used: %v", err)
	}
	rt := &Runtime{Guard: guard, Spools: spools}
	if built := c.build(f, rt); built != nil {
		_ = built.Close()
	}
}

// build makes it all, or reports why not.
func (c *Config) build(f *strict.Findings, rt *Runtime) *Built {
	before := len(f.List)
	source, closeSource := c.Principal.source(f, rt.Failed)
	if source == nil {
		return nil
	}
	if c.PreserveHost {
		source = principal.PerHost(source)
	}
	scope := principal.Scope(source)
	usual, _ := c.resolve(-1)
	contract, err := semelhttp.ContractNamed(usual.Contract)
	if err != nil {
		f.Add("defaults.contract", "%v", err)
		return nil
	}
	var resources *semelhttp.Resources
	if !c.Resources.Off {
		resources, err = semelhttp.NewResources(semelhttp.ResourcesConfig{
			Guard: rt.Guard, Scope: scope, Prefix: c.Resources.Prefix, Keys: c.issuer(f), Contract: contract,
			MaxWait: max(usual.MaxWait, 0), Pace: usual.pace(),
		})
		if err != nil {
			f.Add("resources", "%v", err)
		}
	}
	router := gateway.RouterConfig{Resources: resources, Contract: contract}
	for i := range c.Routes {
		g, err := c.gateway(i, rt, scope, resources)
		if err != nil {
			f.Add(strict.Index("routes", i), "%v", err)
			g = &gateway.Gateway{} // for the patterns
		}
		router.Routes = append(router.Routes, gateway.Route{Patterns: c.Routes[i].Match, Gateway: g})
	}
	handler, err := gateway.NewRouter(router)
	if err != nil {
		for _, e := range routeErrors(err) {
			f.Add(strict.Index("routes", e.Route)+".match", "%v", e.Err)
		}
	}
	if len(f.List) > before {
		_ = closeSource()
		return nil
	}
	cleaned := principal.Clean(source, handler)
	if c.trustsForwarded() {
		cleaned = c.TrustForwarded.parsed().Clean(cleaned)
	}
	return &Built{cleaned, closer(closeSource)}
}

func (c *Config) trustsForwarded() bool {
	return len(c.TrustForwarded.From) > 0 || c.TrustForwarded.Unix
}

// routeErrors returns those that are about routes.
func routeErrors(err error) (list []*gateway.RouteError) {
	switch e := err.(type) {
	case *gateway.RouteError:
		return []*gateway.RouteError{e}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			list = append(list, routeErrors(inner)...)
		}
	case interface{ Unwrap() error }:
		return routeErrors(e.Unwrap())
	}
	return list
}

func (s *Settings) pace() semelhttp.Pace {
	return semelhttp.Pace{MinRate: int64(s.MinRate), Idle: s.ClientIdle}
}

func (s *Settings) policy() semel.Policy {
	p := semel.Policy{
		Lease: s.Lease, Heartbeat: s.Heartbeat, Deadline: s.Deadline, Retention: s.Retention, StoreTimeout: s.StoreTimeout, MaxWaiters: s.MaxWaiters,
	}
	if s.OnCrash == "retry" {
		p.OnCrash = semel.CrashRetry
	}
	return p
}

// gateway makes the gateway of a route.
func (c *Config) gateway(i int, rt *Runtime, scope func(*http.Request) (semel.Scope, error), resources *semelhttp.Resources) (*gateway.Gateway, error) {
	r := &c.Routes[i]
	s, _ := c.resolve(i)
	var errs []error
	no := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	policy := s.policy()
	if c.DryRun {
		policy.StoreTimeout = min(policy.StoreTimeout, DryRunStoreTimeout)
	}
	guard, err := rt.Guard.With(policy)
	no(err)
	contract, err := semelhttp.ContractNamed(s.Contract)
	no(err)
	if len(s.Key.From) == 1 && strings.HasPrefix(s.Key.From[0], "header ") {
		contract.KeyHeader = strings.TrimPrefix(s.Key.From[0], "header ")
	}
	k := &s.Key
	rules := semel.KeyRules{
		MinLength: k.MinLength, MaxLength: k.MaxLength, MinEntropyBits: float64(k.MinEntropyBits),
		RefuseTimestamps: k.RefuseTimestamps, RefuseSerials: k.RefuseSerials, RequireUUID: k.RequireUUID, MaxUUIDAge: k.MaxUUIDAge,
	}
	at := slices.IndexFunc(c.Upstreams, func(u Upstream) bool { return u.Name == s.Upstream })
	if at < 0 {
		return nil, fmt.Errorf("the upstream %q is not there", s.Upstream)
	}
	via, err := rt.upstream(c.Upstreams[at])
	no(err)
	maxWait := s.MaxWait
	if maxWait == 0 {
		maxWait = -1 // the preference is ignored
	}
	config := gateway.Config{
		Via: via, Guard: guard, Scope: scope, Resources: resources, NoResources: resources == nil, Spools: rt.Spools, Observer: rt.Observer, DryRun: c.DryRun,
		Operation: r.operation(), Pass: !s.Protect, Protects: semelhttp.ProtectMethods(s.protected(r.Match)...),
		RequireKey: k.Required, StrictKey: k.Strict, IssuedOnly: k.IssuedOnly, KeyRules: rules,
		Fingerprint: semelhttp.FingerprintConfig{
			Mode:    map[string]semelhttp.FingerprintMode{"raw": semelhttp.FingerprintRaw, "json": semelhttp.FingerprintJSON}[s.Fingerprint.Mode],
			Include: s.Fingerprint.Include, Exclude: s.Fingerprint.Exclude, Headers: s.Fingerprint.Headers,
			MaxCanonical: int64(s.Fingerprint.MaxCanonical),
		},
		Contract: contract,
		InFlight: map[string]semelhttp.InFlight{"wait": semelhttp.InFlightWait, "accept": semelhttp.InFlightAccept}[s.InFlight],
		Wait:     s.Wait, MaxWait: maxWait,
		PreserveHost: c.PreserveHost, TrustForwarded: c.trustsForwarded(),
		MaxRequestBody: int64(s.MaxRequestBody), MaxInline: int64(s.MaxInline), MaxResult: int64(s.MaxResult), Pace: s.pace(),
		NoEffectStatus: statuses(s.NoEffectStatus, true), IndeterminateStatus: statuses(s.UnknownStatus, false),
		FailOpen: s.FailOpen,
	}
	if s.OnCrash == "reconcile" && s.Protect && r.Webhook == nil {
		l := s.Reconcile
		config.Reconcile = &gateway.Reconcile{
			URL: l.URL, Patterns: r.Match, Present: l.Present, Absent: l.Absent, Value: l.Value, PresentValues: l.PresentValues, AbsentValues: l.AbsentValues,
			KeepResponse: l.KeepResponse, SettleAfter: l.SettleAfter, Timeout: l.Timeout,
		}
	}
	if r.OperationFrom != "" {
		p, err := semelhttp.ParseJSONPointer(r.OperationFrom)
		no(err)
		config.OperationOf = p.Text
	}
	config.KeyOf, err = keyOf(k.From, rules)
	no(err)
	method, path, ok := strings.Cut(r.Match[0], " ")
	if !ok {
		method, path = "", r.Match[0]
	}
	config.Specification = semelhttp.OperationSpec{Path: path, KeyFrom: strings.Join(k.From, ", ")}
	if config.Specification.Methods = s.Methods; method != "" {
		config.Specification.Methods = []string{method}
	}
	if config.KeyOf != nil {
		config.KeyRules = semel.KeyRules{}
	}
	if r.Webhook != nil {
		scheme, err := r.Webhook.scheme()
		no(err)
		config.Webhook = &gateway.Webhook{Scheme: scheme, Sender: r.Webhook.Sender, RetrySpan: r.Webhook.RetrySpan, Refused: rt.Refused}
		config.Protects, config.KeyOf, config.Pass, config.IssuedOnly, config.FailOpen = nil, nil, false, false, false
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return gateway.New(config)
}

// protected are the methods that are protected, with those that patterns name.
func (s *Settings) protected(patterns []string) []string {
	methods := slices.Clone(s.Methods)
	for _, p := range patterns {
		if method, _, ok := strings.Cut(p, " "); ok && !slices.Contains(methods, method) {
			methods = append(methods, method)
		}
	}
	return methods
}

// statuses reports whether a status is in a list; of 503 only with, or without, a
// Retry-After.
func statuses(list []int, retryAfter bool) func(int, http.Header) bool {
	return func(status int, h http.Header) bool {
		return slices.Contains(list, status) && (status != http.StatusServiceUnavailable || (h.Get("Retry-After") != "") == retryAfter)
	}
}

// keyOf returns how a key is taken from parts of a request; nil for the header.
func keyOf(from []string, rules semel.KeyRules) (func(*http.Request, []byte) (string, semel.Fingerprint, error), error) {
	if len(from) == 0 || len(from) == 1 && strings.HasPrefix(from[0], "header ") {
		return nil, nil
	}
	type part struct {
		header  string
		pointer semelhttp.JSONPointer
	}
	parts := make([]part, len(from))
	for i, text := range from {
		kind, value, _ := strings.Cut(text, " ")
		if kind == "header" {
			parts[i].header = http.CanonicalHeaderKey(value)
			continue
		}
		var err error
		if parts[i].pointer, err = semelhttp.ParseJSONPointer(value); err != nil {
			return nil, err
		}
	}
	composite := semel.CompositeKey{Name: "key", Version: 1, Fields: from}
	return func(r *http.Request, body []byte) (string, semel.Fingerprint, error) {
		refuse := func(why string) (string, semel.Fingerprint, error) {
			return "", semel.Fingerprint{}, &semelhttp.ScopeError{Status: http.StatusBadRequest, Detail: why + ". Nothing was executed."}
		}
		values := map[string]string{}
		text := ""
		for i, p := range parts {
			if p.header != "" {
				lines := r.Header[p.header]
				if len(lines) != 1 || strings.Trim(lines[0], " \t") == "" {
					return refuse("This operation takes its key from the header " + p.header + ", among others, which must be there once")
				}
				text = strings.Trim(lines[0], " \t")
			} else {
				var err error
				if text, err = p.pointer.Text(r, body); err != nil {
					return "", semel.Fingerprint{}, err
				}
			}
			values[from[i]] = text
		}
		if len(parts) > 1 {
			key, err := composite.Key(values)
			return key, semel.Fingerprint{}, err
		}
		err := semel.Identity{Scope: semel.Scope{Operation: "x"}, Key: text}.Validate()
		if err == nil {
			err = rules.Check(text)
		}
		switch {
		case errors.Is(err, semel.ErrKeyAge):
			return refuse("By the time in it, the key in the body was made too long ago, or in the future, so there may have been a record of its use that is gone. If it may have been used before, find out what came of that before you make another key")
		case err != nil:
			return refuse("The key in the body cannot be used: " + strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		return text, semel.Fingerprint{}, nil
	}, nil
}

func (w *Webhook) scheme() (webhook.Scheme, error) {
	switch w.Scheme {
	case "stripe":
		return webhook.NewStripe(webhook.StripeConfig{Secrets: w.Secrets, Tolerance: w.Tolerance})
	case "github":
		if w.Tolerance != 0 {
			return nil, errors.New("webhook.tolerance has no meaning for GitHub, which signs no time")
		}
		return webhook.NewGitHub(webhook.GitHubConfig{Secrets: w.Secrets})
	}
	return webhook.NewStandard(webhook.StandardConfig{Secrets: w.Secrets, Tolerance: w.Tolerance})
}

// issuer makes an issuer of keys; nil for none.
func (c *Config) issuer(f *strict.Findings) *semelhttp.KeyIssuer {
	if c.Resources.KeySecrets == "" {
		return nil
	}
	secrets, err := ReadSecrets(c.Resources.KeySecrets)
	var issuer *semelhttp.KeyIssuer
	if err == nil {
		retention := time.Duration(0) // the shortest: the key may be for any
		for i := range c.Routes {
			if s, _ := c.resolve(i); s.Protect && c.Routes[i].Webhook == nil && (retention == 0 || s.Retention < retention) {
				retention = s.Retention
			}
		}
		issuer, err = semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{Secrets: secrets, Life: c.Resources.KeyLife, Retention: retention})
	}
	if err != nil {
		f.Add("resources.key_secrets", "cannot be used: %v", err)
	}
	return issuer
}

// ReadSecrets reads a file of secrets for issued keys, one in each line. Errors
// hold none.
func ReadSecrets(file string) (secrets [][]byte, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if len(line) < semelhttp.MinSecretBytes {
			return nil, fmt.Errorf("%s:%d: the secret has %d bytes; at least %d are needed, as from openssl rand -hex 32", file, n, len(line), semelhttp.MinSecretBytes)
		}
		secrets = append(secrets, []byte(line))
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%s: there is no secret in it; put one in, as from openssl rand -hex 32", file)
	}
	return secrets, nil
}

// source makes the source of principals; nil if it cannot be.
func (p *Principal) source(f *strict.Findings, failed func(context.Context, error)) (principal.Source, func() error) {
	none := func() error { return nil }
	var s principal.Source
	var at string
	var err error
	end := none
	switch {
	case p.Shared != nil:
		return principal.Shared{}, none
	case p.Digest != nil:
		at = "digest"
		s, err = principal.NewDigest(principal.DigestConfig{Headers: p.Digest.Headers, Cookie: p.Digest.Cookie, Challenge: p.Digest.Challenge})
	case p.Header != nil:
		at = "header"
		s, err = principal.NewHeader(principal.HeaderConfig{Subject: p.Header.Subject, Tenant: p.Header.Tenant, Proxies: p.Header.Proxies.parsed()})
	case p.MTLS != nil:
		at = "mtls"
		s, err = principal.NewMTLS(principal.MTLSConfig{Name: principal.CertificateName(p.MTLS.Name), Proxies: p.MTLS.Proxies.parsed()})
	case p.JWT != nil:
		at = "jwt"
		j := p.JWT
		s, err = principal.NewJWT(principal.JWTConfig{
			Issuer: j.Issuer, Audiences: j.Audiences, Algorithms: j.Algorithms, Tenant: j.Tenant, Header: j.Header,
			Leeway: noneIfZero(f, "principal.jwt.leeway", j.Leeway), KeysURL: j.KeysURL, KeysFile: j.KeysFile, KeysMaxAge: j.KeysMaxAge,
			KeysKeep: noneIfZero(f, "principal.jwt.keys_keep", j.KeysKeep), KeysTimeout: j.KeysTimeout, Failed: failed,
		})
	case p.Endpoint != nil:
		at = "endpoint"
		e := p.Endpoint
		s, err = principal.NewEndpoint(principal.EndpointConfig{
			URL: e.URL, AllowHTTP: e.AllowHTTP, Credentials: e.Credentials, Subject: e.Subject, Tenant: e.Tenant,
			Proxies: e.Proxies.parsed(), Timeout: e.Timeout, CacheFor: noneIfZero(f, "principal.endpoint.cache_for", e.CacheFor), MaxCalls: e.MaxCalls, Failed: failed,
		})
	default:
		return nil, none // has been told
	}
	if err != nil {
		f.Add("principal."+at, "%v", err)
		return nil, none
	}
	if c, ok := s.(io.Closer); ok {
		end = c.Close
	}
	return s, end
}

// noneIfZero makes a written 0 what sources take for none.
func noneIfZero(f *strict.Findings, path string, d time.Duration) time.Duration {
	if _, ok := f.Source.Written(path); ok && d == 0 {
		return -1
	}
	return d
}

// parsed leaves out what is none, which has been told.
func (p Proxies) parsed() principal.Proxies {
	out := principal.Proxies{Unix: p.Unix}
	for _, s := range p.From {
		if n, err := netip.ParsePrefix(s); err == nil {
			out.From = append(out.From, n)
		}
	}
	return out
}
