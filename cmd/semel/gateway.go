package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/gateway/principal"
	"github.com/semelhq/semel/semelhttp"
)

// gatewaySettings are the flags of semel gateway.
type gatewaySettings struct {
	encryption             encryptionFlag
	config                 string
	upstream, store        string
	at                     listening
	requireStore           bool
	requireKey, strictKeys bool
	methods                []string
	credentials            []string
	preserveHost           bool
	trustForwarded         []string
	proxies                principal.Proxies // of trustForwarded; see checked

	lease, heartbeat, deadline, retention time.Duration
	onCrash                               choice
	failOpen                              bool
	maxRequestBody, maxInline, maxResult  byteSize
	maxSpool, minRate                     byteSize
	clientIdle                            time.Duration
	maxExecutions, maxTenantExecutions    int
	maxWaiters                            int
	spoolDir                              string
	idleTimeout                           time.Duration
	maxConns                              int
	drain                                 time.Duration
	logFormat                             choice

	contract, inFlight      choice
	wait, maxWait           time.Duration
	prefix                  string
	noResources, issuedOnly bool
	keySecrets              string
	keyLife                 time.Duration

	admin adminSettings
}

func (p *program) gatewayCommand() *cobra.Command {
	s := gatewaySettings{
		onCrash:        choice{value: "hold", of: []string{"hold", "retry"}},
		logFormat:      choice{value: "text", of: []string{"text", "json"}},
		contract:       choice{value: "ietf", of: []string{"ietf", "stripe", "oasis"}},
		inFlight:       choice{value: "reject", of: []string{"reject", "wait", "accept"}},
		maxRequestBody: semelhttp.DefaultMaxRequestBody,
		maxInline:      semelhttp.DefaultMaxInline,
		minRate:        1 << 10,
		maxResult:      semelhttp.DefaultMaxResult,
	}
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Protect an HTTP service from double execution",
		Long: `Runs a reverse proxy that makes requests take effect once. Of all POST and PATCH
requests with one Idempotency-Key, by one caller, to one path, one reaches the
service; the others get its recorded response, or a problem that says why not.
Everything else is passed on unchanged.

Callers are distinguished by a digest of their credential, which the gateway does not
verify. So a refreshed token is another caller: a retry that carries it executes
again. A revoked token still gets its own recorded responses until they expire.
Callers without a credential share one scope.

If the store cannot be reached at start, the gateway starts anyway: protected
requests get 503, all others pass, and it keeps trying. GET
/.well-known/idempotency/ready returns 200 once the store is open, and until then 503
with the cause. If retrying cannot help, as with a store of a newer version, the
gateway exits at once; with --require-store it exits on any failure.

If the gateway or the connection to the service fails while a request executes,
nobody knows whether it took effect. The record then says so, nothing executes with
its key, and semel keys resolve settles it.

On SIGTERM or Ctrl-C the gateway accepts no new connections, waits for running
requests for up to --drain, and reports how many were left. A second signal ends it
at once.

All this can be configured in a file instead, with several services and routes: see
semel gateway check --help. On SIGHUP (not on Windows) the file is reread and replaces
the old configuration without dropping a request; if anything is wrong with it, the
old one stays in use.`,
		Example: `  semel gateway --upstream http://127.0.0.1:9000 --store sqlite:semel.db
  semel gateway --upstream https://orders.internal --listen :8080 --store sqlite:///var/lib/semel/semel.db \
      --require-key --credential-header Authorization --credential-header X-Api-Key
  SEMEL_UPSTREAM=http://127.0.0.1:9000 SEMEL_STORE=sqlite:semel.db semel gateway
  semel gateway --config gateway.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.config != "" {
				return p.serveFile(cmd.Context(), cmd, s.config)
			}
			return p.serveFlags(cmd.Context(), cmd, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&s.config, "config", "", "file with the configuration, instead of all other flags and their variables")
	f.StringVar(&s.upstream, "upstream", "", "URL of the service (required)")
	f.StringVar(&s.at.Address, "listen", "127.0.0.1:8080", "address to listen on; unix:/run/semel.sock for a socket")
	f.StringVar(&s.at.Cert, "tls-cert", "", "PEM file with the certificate to serve TLS with, HTTP/2 included; read again when it changes")
	f.StringVar(&s.at.Key, "tls-key", "", "PEM file with its key")
	f.StringVar(&s.at.ClientCA, "tls-client-ca", "", "PEM file with authorities, of one of which each client needs a certificate (default clients need none)")
	f.BoolVar(&s.at.H2C, "h2c", false, "speak HTTP/2 without TLS also, with clients that begin with it")
	f.StringVar(&s.store, "store", "", "where records are kept: sqlite:semel.db, sqlite:///var/lib/semel/semel.db, postgres://user@host/database, or memory: (required)")
	f.BoolVar(&s.requireStore, "require-store", false, "end when the store cannot be opened at start, instead of answering 503 until it can")
	f.BoolVar(&s.requireKey, "require-key", false, "refuse protected methods without an Idempotency-Key; without this they pass unprotected")
	f.BoolVar(&s.strictKeys, "strict-keys", false, `accept keys in double quotes only, as in Idempotency-Key: "k"`)
	f.StringSliceVar(&s.methods, "methods", []string{"POST", "PATCH"}, "methods that are protected")
	f.StringSliceVar(&s.credentials, "credential-header", []string{"Authorization"}, "header that tells callers apart; several count together")
	f.BoolVar(&s.preserveHost, "preserve-host", false, "send the client's Host to the service, and keep the keys of each host apart")
	f.StringSliceVar(&s.trustForwarded, "trust-forwarded", nil, "networks of the proxies, as 10.1.2.0/24, whose Forwarded and X-Forwarded-For, -Host and -Proto headers the service sees, and unix for those that connect over a unix socket; from all others they are removed (default none)")
	choiceFlag(cmd, &s.contract, "contract", "form of the responses: the IETF draft's, Stripe's, or OASIS Repeatable Requests'")
	choiceFlag(cmd, &s.inFlight, "in-flight", "what a duplicate of a running request gets: 409 at once, the response after a wait, or 202 with a status URL")
	f.DurationVar(&s.wait, "wait", semelhttp.DefaultWait, "how long --in-flight wait holds a duplicate")
	f.DurationVar(&s.maxWait, "max-wait", semelhttp.DefaultMaxWait, "longest wait that a client can ask for by Prefer: wait=N; 0 ignores the preference")
	f.StringVar(&s.prefix, "prefix", semelhttp.DefaultPrefix, "path of the gateway's own resources: /operations/{id}, /keys, /specification, /ready")
	f.BoolVar(&s.noResources, "no-resources", false, "leave the whole URL space to the service; responses then name no status URL")
	f.StringVar(&s.keySecrets, "key-secrets", "", "file with secrets to issue keys with, one of at least 32 bytes in each line; the first signs, all verify")
	f.DurationVar(&s.keyLife, "key-life", semelhttp.DefaultKeyLife, "how long an issued key may be used for the first time")
	f.BoolVar(&s.issuedOnly, "issued-only", false, "accept no keys but issued ones")
	f.DurationVar(&s.lease, "lease", 15*time.Second, "how long a claim holds without renewal")
	f.DurationVar(&s.heartbeat, "heartbeat", 0, "how often a claim is renewed (default a third of the lease)")
	f.DurationVar(&s.deadline, "deadline", 10*time.Minute, "longest time that one execution may take")
	f.DurationVar(&s.retention, "retention", 24*time.Hour, "how long a recorded response is replayed")
	f.Var(&s.maxRequestBody, "max-request-body", "largest body of a protected request; larger ones are refused")
	f.Var(&s.maxResult, "max-result", "largest response that is recorded; larger ones pass but cannot be replayed")
	f.Var(&s.maxInline, "max-inline", "largest response that is held in memory and recorded in one piece")
	f.StringVar(&s.spoolDir, "spool-dir", "", "directory on disk for temporary files of larger bodies (default the system's)")
	f.Var(&s.maxSpool, "max-spool", "most that the temporary files hold together; one holds a quarter of it (default 0: 4 GiB, or a quarter of the free disk)")
	f.IntVar(&s.maxExecutions, "max-executions", 4096, "most protected requests at the same time; more are answered with 503")
	f.IntVar(&s.maxTenantExecutions, "max-tenant-executions", 0, "the same for one tenant, which is a host with --preserve-host (default a quarter)")
	f.IntVar(&s.maxWaiters, "max-waiters", 1000, "most requests that wait for the response of another; more are answered at once")
	f.Var(&s.minRate, "min-rate", "slowest average rate, in bytes per second, at which a client sends a protected request's body or reads a response, after 10s of waiting for it")
	f.DurationVar(&s.clientIdle, "client-idle", 30*time.Second, "how long a client may send or read nothing of a body")
	f.DurationVar(&s.drain, "drain", 30*time.Second, "how long to wait for running requests before ending")
	s.encryption.add(cmd, "file with keys to encrypt recorded responses with, one in each line as NAME: SECRET, with a secret of 32 bytes in base64; the first encrypts, all decrypt (default: responses are not encrypted)")
	choiceFlag(cmd, &s.onCrash, "on-crash", "what to do when an owner died: hold the key until it is resolved, or retry, only where the service itself deduplicates by key")
	f.BoolVar(&s.failOpen, "fail-open", false, "let requests pass UNPROTECTED while the store is down, instead of answering 503")
	f.DurationVar(&s.idleTimeout, "idle-timeout", gateway.DefaultIdleTimeout, "how long an unused connection to the service is kept; must be shorter than the service's own limit")
	f.IntVar(&s.maxConns, "max-upstream-conns", 0, "most connections to the service (default no limit)")
	choiceFlag(cmd, &s.logFormat, "log-format", "form of the log on standard error")
	s.admin.flags(cmd)
	fromEnv(cmd)
	cmd.AddCommand(p.gatewayCheckCommand(), p.gatewayInitCommand(), p.gatewaySchemaCommand())
	return cmd
}

// checked checks the settings and makes what the parts need of them. Guard is
// left to the caller.
func (s *gatewaySettings) checked(cmd *cobra.Command) (semel.Policy, gateway.Config, error) {
	var errs []error
	wrong := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s %s", named(cmd, flag), fmt.Sprintf(format, args...)))
	}
	upstream, err := url.Parse(s.upstream)
	switch {
	case s.upstream == "":
		wrong("upstream", "is not set; name the service, as in --upstream http://127.0.0.1:9000")
	case err != nil || upstream.Host == "" || upstream.Scheme != "http" && upstream.Scheme != "https":
		wrong("upstream", "is %q, which is not the URL of an HTTP service; write it as http://127.0.0.1:9000", s.upstream)
	case upstream.User != nil || upstream.RawQuery != "" || upstream.ForceQuery || upstream.Fragment != "":
		wrong("upstream", "may hold a scheme, a host and a path, and no more")
	}
	if _, err := parseStoreURL(s.store); err != nil {
		wrong("store", "cannot be used: %v; use %s, or memory: for records that end with the process", err, storeForms)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"lease", s.lease}, {"deadline", s.deadline}, {"retention", s.retention}, {"drain", s.drain}, {"idle-timeout", s.idleTimeout}, {"client-idle", s.clientIdle}} {
		if d.value <= 0 {
			wrong(d.flag, "is %v; it must be positive", d.value)
		}
	}
	if s.retention > 0 && s.deadline > s.retention {
		if cmd.Flags().Changed("deadline") {
			wrong("deadline", "is %v, longer than %s, which is %v", s.deadline, named(cmd, "retention"), s.retention)
		}
		s.deadline = s.retention
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"max-executions", s.maxExecutions}, {"max-waiters", s.maxWaiters}} {
		if n.value <= 0 {
			wrong(n.flag, "is %d; it must be positive", n.value)
		}
	}
	if s.maxTenantExecutions < 0 {
		wrong("max-tenant-executions", "is %d; it must not be negative", s.maxTenantExecutions)
	}
	switch {
	case s.heartbeat < 0:
		wrong("heartbeat", "is %v; it must be positive", s.heartbeat)
	case s.lease > 0 && s.heartbeat > s.lease/2:
		wrong("heartbeat", "is %v, more than half the lease of %v: one lost renewal would lose the claim", s.heartbeat, s.lease)
	}
	if s.maxResult > 256<<20 {
		wrong("max-result", "is %s; at most 256MiB are possible", &s.maxResult)
	}
	if s.maxInline > s.maxResult {
		if cmd.Flags().Changed("max-inline") {
			wrong("max-inline", "is %s, more than %s, which is %s", &s.maxInline, named(cmd, "max-result"), &s.maxResult)
		}
		s.maxInline = s.maxResult
	}
	if err := checkSpool(s.spoolDir); err != nil {
		wrong("spool-dir", "cannot be used: %v", err)
	}
	if s.wait < 0 || s.maxWait > 0 && s.wait > s.maxWait && s.inFlight.value == "wait" {
		wrong("wait", "is %v; it must not be negative or longer than %s, which is %v", s.wait, named(cmd, "max-wait"), s.maxWait)
	}
	if s.maxWait < 0 {
		wrong("max-wait", "is %v; it must not be negative", s.maxWait)
	}
	if s.noResources && (s.inFlight.value == "accept" || s.keySecrets != "" || cmd.Flags().Changed("prefix")) {
		wrong("no-resources", "leaves nowhere to put what --in-flight accept, --key-secrets and --prefix are about")
	}
	if s.issuedOnly && s.keySecrets == "" {
		wrong("issued-only", "needs %s: without it no client can get a key", named(cmd, "key-secrets"))
	}
	var issuer *semelhttp.KeyIssuer
	if s.keySecrets != "" {
		if issuer, err = s.issuer(); err != nil {
			wrong("key-secrets", "cannot be used: %v", err)
		}
	}
	if err := s.at.check(); err != nil {
		wrong("listen", "does not fit its certificate: %v", err)
	}
	for _, network := range s.trustForwarded {
		if network == "unix" {
			s.proxies.Unix = true
			continue
		}
		n, err := netip.ParsePrefix(network)
		if err != nil {
			wrong("trust-forwarded", "names %q, which is no network; name those of your proxies, as in --trust-forwarded 10.1.2.0/24, or unix for a socket. Nobody else is believed", network)
			continue
		}
		s.proxies.From = append(s.proxies.From, n)
	}
	if err := s.proxies.Check(); err != nil && len(s.proxies.From) > 0 {
		wrong("trust-forwarded", "cannot be used: %v", err)
	}
	if s.maxConns < 0 {
		wrong("max-upstream-conns", "is %d; it must not be negative", s.maxConns)
	}
	var protected []string
	for _, m := range s.methods {
		m = strings.ToUpper(strings.TrimSpace(m))
		switch m {
		case "POST", "PATCH", "PUT", "DELETE":
			protected = append(protected, m)
		default:
			wrong("methods", "names %q; POST, PATCH, PUT and DELETE can be protected", m)
		}
	}
	if len(s.methods) == 0 {
		wrong("methods", "is empty; nothing would be protected")
	}
	if err := errors.Join(errs...); err != nil {
		return semel.Policy{}, gateway.Config{}, usagef("%w", err)
	}
	policy := semel.Policy{Lease: s.lease, Heartbeat: s.heartbeat, Deadline: s.deadline, Retention: s.retention}
	if s.onCrash.value == "retry" {
		policy.OnCrash = semel.CrashRetry
	}
	contract, err := semelhttp.ContractNamed(s.contract.value)
	if err != nil {
		return semel.Policy{}, gateway.Config{}, usagef("%w", err)
	}
	inFlight := map[string]semelhttp.InFlight{
		"reject": semelhttp.InFlightReject, "wait": semelhttp.InFlightWait, "accept": semelhttp.InFlightAccept,
	}[s.inFlight.value]
	maxWait, wait := s.maxWait, s.wait
	if maxWait == 0 {
		maxWait = -1 // the preference is ignored
	} else {
		wait = min(wait, maxWait)
	}
	prefix := s.prefix
	if s.noResources {
		prefix = ""
	}
	return policy, gateway.Config{
		Contract: contract, InFlight: inFlight, Wait: wait, MaxWait: maxWait,
		Prefix: prefix, NoResources: s.noResources, Keys: issuer, IssuedOnly: s.issuedOnly,
		Upstream: upstream, Protects: semelhttp.ProtectMethods(protected...),
		RequireKey: s.requireKey, StrictKey: s.strictKeys,
		Credentials: s.credentials, PreserveHost: s.preserveHost, TrustForwarded: len(s.trustForwarded) > 0,
		MaxRequestBody: int64(s.maxRequestBody), MaxInline: int64(s.maxInline), MaxResult: int64(s.maxResult),
		Pace:        semelhttp.Pace{MinRate: int64(s.minRate), Idle: s.clientIdle},
		FailOpen:    s.failOpen,
		IdleTimeout: s.idleTimeout, MaxConns: s.maxConns,
	}, nil
}

// checkSpool makes sure that files can be made in dir.
func checkSpool(dir string) error {
	f, err := os.CreateTemp(dir, "semel-*.spool")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// issuer makes an issuer of keys from the file of secrets.
func (s *gatewaySettings) issuer() (*semelhttp.KeyIssuer, error) {
	secrets, err := gatewayfile.ReadSecrets(s.keySecrets)
	if err != nil {
		return nil, err
	}
	return semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{Secrets: secrets, Life: s.keyLife, Retention: s.retention})
}

// serveFlags runs a gateway that the flags describe.
func (p *program) serveFlags(ctx context.Context, cmd *cobra.Command, s gatewaySettings) error {
	policy, config, err := s.checked(cmd)
	if err != nil {
		return err
	}
	cipher, err := s.encryption.cipher(cmd)
	if err != nil {
		return err
	}
	log := newLog(p.stderr, s.logFormat.value)
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{Dir: s.spoolDir, MaxBytes: int64(s.maxSpool), Failed: log.gateway().SpoolFailed})
	if err != nil {
		return usagef("the settings do not fit together: %w", err)
	}
	if config.DryRun = s.admin.dryRun; config.DryRun {
		policy.StoreTimeout = min(gatewayfile.DryRunStoreTimeout, policy.Lease)
	}
	return p.serve(ctx, cmd, service{
		log: log, at: s.at, listenSetting: named(cmd, "listen"), store: s.store, requireStore: s.requireStore,
		admin: s.admin, spools: spools,
		maxResult: int64(s.maxResult), drain: func() time.Duration { return s.drain },
		guard: semel.Config{
			Cipher: cipher, Policy: policy, MaxExecutions: s.maxExecutions, MaxTenantExecutions: s.maxTenantExecutions, MaxWaiters: s.maxWaiters,
		},
		handler: func(guard *semel.Guard, store *lateStore, observer *gateway.Observer) (http.Handler, error) {
			config.Guard, config.Observer, config.Spools = guard, observer, spools
			gw, err := gateway.New(config)
			if err != nil {
				return nil, usagef("the settings do not fit together: %w", err)
			}
			var handler http.Handler = gw
			if config.TrustForwarded {
				handler = s.proxies.Clean(gw)
			}
			if s.noResources {
				return handler, nil
			}
			return store.withReady(s.prefix+readyPath, handler), nil
		},
		announce: func(addr string, notOpen error) { s.announce(p.stderr, log, addr, config.Upstream, notOpen) },
		explain:  func() gatewayfile.Explanation { return explainFlags(cmd) },
	})
}

// explainFlags says what the flags of a gateway are. Those that stand for secrets
// name files.
func explainFlags(cmd *cobra.Command) (e gatewayfile.Explanation) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		s := gatewayfile.Setting{Name: f.Name, Value: f.Value.String(), From: "default"}
		switch {
		case f.Name == "help" || f.Name == "config":
			return
		case f.Name == "store":
			s.Value = withoutSecrets(s.Value)
		}
		if f.Changed {
			s.From = strings.Join(append([]string{"--" + f.Name}, f.Annotations[envAnnotation]...), " or $")
		}
		e.Server = append(e.Server, s)
	})
	return e
}

// announce says what was started and what it costs.
func (s *gatewaySettings) announce(w io.Writer, log *logger, addr string, upstream *url.URL, notOpen error) {
	protects := strings.ToUpper(strings.Join(s.methods, ", ")) + " with an Idempotency-Key; without one they pass unprotected"
	if s.requireKey {
		protects = strings.ToUpper(strings.Join(s.methods, ", ")) + "; without an Idempotency-Key they are refused"
	}
	if s.failOpen {
		protects += "; while the store is down they pass UNPROTECTED"
	}
	if s.admin.dryRun {
		protects = "NOTHING (dry run); it would protect " + protects
	}
	actor := []string{
		"a digest of " + strings.Join(s.credentials, ", ") + ", which is not checked here",
		"a refreshed token is another actor: a retry that carries it executes again",
		"a revoked token still gets its own recorded responses, for " + s.retention.String(),
		"callers without a credential share one scope",
	}
	crash := "an operation whose owner died is held until it is resolved: semel keys resolve"
	if s.onCrash.value == "retry" {
		crash = "an operation whose owner died is sent AGAIN: the service must deduplicate by Idempotency-Key"
	}
	storeNote := withoutSecrets(s.store)
	if strings.HasPrefix(s.store, "memory:") {
		storeNote += " (records end with this process: a retry after a restart executes again)"
	}
	if notOpen != nil {
		storeNote += " (not open yet: " + troubleOf(notOpen).class + "; protected requests are answered with 503)"
	}
	if s.logFormat.value == "json" {
		log.Info("listening", "addr", addr, "upstream", upstream.String(), "store", storeNote,
			"protects", protects, "actor", actor, "on_crash", crash)
		return
	}
	_, _ = fmt.Fprintf(w, "semel gateway is listening on %s\n  upstream  %s\n  store     %s\n  protects  %s\n  actor     %s\n  crash     %s\n",
		s.at.url(addr), upstream, storeNote, protects, strings.Join(actor, ";\n            "), crash)
}
