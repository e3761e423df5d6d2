package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// DefaultIdleTimeout is how long an unused connection to the upstream is kept.
const DefaultIdleTimeout = 4 * time.Second

// DefaultDialTimeout bounds each attempt to connect to the upstream.
const DefaultDialTimeout = 5 * time.Second

// Config configures a Gateway.
type Config struct {
	// Upstream is where requests are sent: http or https, a host, and
	// optionally a path that is prefixed to each request's. Required.
	Upstream *url.URL
	// Guard executes and records. Its policy bounds each execution, including
	// the upstream's response. Required.
	Guard *semel.Guard

	// Via replaces Upstream, DialTimeout, IdleTimeout, MaxConns and TLS, which
	// must then be unset. Its connections can be shared with other gateways.
	Via *Upstream

	// Operation names the operation of all requests, and OperationOf that of
	// each, as in semelhttp.Config. Default: method and path as they were sent.
	Operation   string
	OperationOf func(r *http.Request, body []byte) (operation string, err error)
	// KeyOf takes the key from what a request says, as in semelhttp.Config.
	// Default: from the contract's key header.
	KeyOf func(r *http.Request, body []byte) (key string, f semel.Fingerprint, err error)
	// Webhook treats requests as deliveries of a sender's events: each is
	// verified by its signature, and each event is processed once, by its id.
	// Nil for none.
	Webhook *Webhook
	// Pass protects nothing: requests are forwarded unchanged.
	Pass bool
	// Specification describes the operation in the specification of the resources.
	// Its name is Operation.
	Specification semelhttp.OperationSpec

	// Protects says which requests are protected, as in semelhttp.Config.
	// Default: POST and PATCH.
	Protects func(*http.Request) bool
	// RequireKey refuses requests that would be protected but carry no key. By
	// default they pass unprotected.
	RequireKey bool
	// StrictKey refuses keys that are not a Structured Field String.
	StrictKey bool
	// KeyRules are further rules for keys. Default: none.
	KeyRules semel.KeyRules
	// Fingerprint says what makes two requests the same request.
	Fingerprint semelhttp.FingerprintConfig

	// Contract is the form of responses. Default: semelhttp.IETF.
	Contract semelhttp.Contract
	// InFlight, Wait and MaxWait say how duplicates of a request that is
	// being executed are handled, as in semelhttp.Config.
	InFlight semelhttp.InFlight
	Wait     time.Duration
	MaxWait  time.Duration
	// Prefix is the path of the gateway's own resources: the status of
	// operations, issued keys, and the specification. The upstream never sees
	// requests below it. Default: semelhttp.DefaultPrefix.
	Prefix string
	// NoResources leaves the gateway without resources of its own.
	NoResources bool
	// Keys issues keys; nil for none. IssuedOnly accepts only issued keys.
	Keys       *semelhttp.KeyIssuer
	IssuedOnly bool

	// Resources are shared with other gateways and are not served by this one;
	// Prefix, NoResources and Keys must then be unset. Default: the gateway's own.
	Resources *semelhttp.Resources

	// Scope says whose key a request's key is, for embedding programs that
	// authenticate before the gateway does anything. An empty Operation means
	// method and path. Default: the actor is a digest of the Credentials, and
	// the tenant is empty, or the request's host with PreserveHost.
	Scope func(*http.Request) (semel.Scope, error)
	// Credentials names the headers whose values together are the credential
	// that distinguishes actors. A request with none of them is anonymous;
	// all anonymous callers share one scope. Cannot be set along with Scope.
	// Default: Authorization.
	Credentials []string

	// PreserveHost forwards the client's Host, which is then also the tenant
	// in the scope. By default the upstream gets its own host, as in Upstream,
	// and the client's in X-Forwarded-Host, and a client may retry under
	// another name of the gateway. An upstream that distinguishes tenants by
	// Host or X-Forwarded-Host needs PreserveHost.
	PreserveHost bool
	// TrustForwarded keeps the X-Forwarded-* and Forwarded headers of
	// requests. Set it only if nothing but trusted proxies can reach the
	// gateway.
	TrustForwarded bool

	// MaxRequestBody, MaxInline and MaxResult are limits in bytes, and Pace is
	// how slow clients may be, as in semelhttp.Config.
	MaxRequestBody int64
	MaxInline      int64
	MaxResult      int64
	Pace           semelhttp.Pace
	// SpoolDir is where bodies that are too large for memory are stored,
	// and MaxSpool the limit for all of them, as in semelhttp.SpoolsConfig.
	SpoolDir string
	MaxSpool int64
	// Spools are shared with other gateways, instead of SpoolDir and MaxSpool.
	Spools *semelhttp.Spools

	// NoEffectStatus and IndeterminateStatus say what the upstream's responses
	// mean, as in semelhttp.Config. Defaults: semelhttp.DefaultNoEffectStatus and
	// semelhttp.ForwardedIndeterminate.
	NoEffectStatus, IndeterminateStatus func(status int, h http.Header) bool

	// Reconcile looks up, with the upstream, what became of operations whose outcome
	// is unknown. The policy of Guard must then be semel.CrashHold. Nil for none,
	// and not used with DryRun.
	Reconcile *Reconcile

	// DryRun decides and reports, but protects nothing, as in semelhttp.Config.
	DryRun bool
	// FailOpen lets requests through unprotected while the store is
	// unavailable. By default they get 503.
	FailOpen bool

	// DialTimeout bounds each attempt to connect to the upstream. Default 5 s.
	DialTimeout time.Duration
	// IdleTimeout is how long an unused connection to the upstream is kept. It
	// must be shorter than the upstream's own limit; see the package comment.
	// Default DefaultIdleTimeout.
	IdleTimeout time.Duration
	// MaxConns bounds the connections to the upstream; requests beyond it
	// wait. Zero means no limit.
	MaxConns int
	// TLS is for connections to an https upstream. Default: the system's roots.
	TLS *tls.Config

	// Observer is notified of what happens between gateway and upstream.
	// May be nil.
	Observer *Observer
}

func (c Config) withDefaults() Config {
	if c.IndeterminateStatus == nil {
		c.IndeterminateStatus = semelhttp.ForwardedIndeterminate
	}
	if c.Observer == nil {
		c.Observer = &Observer{}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Guard == nil {
		errs = append(errs, errors.New("field Guard is nil"))
	}
	if c.Via != nil && (c.Upstream != nil || c.DialTimeout != 0 || c.IdleTimeout != 0 || c.MaxConns != 0 || c.TLS != nil) {
		errs = append(errs, errors.New("field Via is set, but so is Upstream, DialTimeout, IdleTimeout, MaxConns or TLS"))
	}
	if c.NoResources && (c.Keys != nil || c.Prefix != "") {
		errs = append(errs, errors.New("field NoResources is set, but so is Keys or Prefix"))
	}
	if c.Resources != nil && (c.NoResources || c.Keys != nil || c.Prefix != "") {
		errs = append(errs, errors.New("field Resources is set, but so is NoResources, Keys or Prefix"))
	}
	if c.Spools != nil && (c.SpoolDir != "" || c.MaxSpool != 0) {
		errs = append(errs, errors.New("field Spools is set, but so is SpoolDir or MaxSpool"))
	}
	if c.Operation != "" && c.OperationOf != nil {
		errs = append(errs, errors.New("field Operation is set, but so is OperationOf"))
	}
	if err := (semel.Identity{Scope: semel.Scope{Operation: c.Operation}, Key: "k"}).Validate(); err != nil && c.Operation != "" {
		errs = append(errs, fmt.Errorf("field Operation: %w", err))
	}
	if c.Webhook != nil && (c.Operation == "" || c.Pass || c.KeyOf != nil || c.Protects != nil || c.IssuedOnly || c.FailOpen) {
		errs = append(errs, errors.New("field Webhook is set; it needs Operation, and has no use for Pass, KeyOf, Protects, IssuedOnly and FailOpen"))
	}
	if c.Reconcile != nil && (c.Webhook != nil || c.Pass) {
		errs = append(errs, errors.New("field Reconcile is set, but so is Webhook or Pass, which have no use for it"))
	}
	if c.Webhook != nil && c.DryRun {
		errs = append(errs, errors.New("field Webhook is set, but so is DryRun: deliveries cannot be rehearsed"))
	}
	if c.Scope != nil && len(c.Credentials) > 0 {
		errs = append(errs, errors.New("field Credentials is set, but so is Scope"))
	}
	if _, err := semelhttp.CredentialActor(c.Credentials...); err != nil {
		errs = append(errs, fmt.Errorf("field Credentials names %w", err))
	}
	return errors.Join(errs...)
}

func checkUpstream(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("has the scheme %q; use http or https, as in http://127.0.0.1:9000", u.Scheme)
	case u.Hostname() == "":
		return errors.New("has no host; use a URL such as http://127.0.0.1:9000")
	case u.User != nil:
		return errors.New("holds a user name; credentials are the client's to send")
	case u.RawQuery != "" || u.ForceQuery:
		return errors.New("has a query; it can have a path at most")
	case u.Fragment != "":
		return errors.New("has a fragment; it can have a path at most")
	}
	return nil
}
