package principal

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway/internal/credential"
	"github.com/semelhq/semel/semelhttp"
)

// Principal is who sent a request.
type Principal struct {
	// Actor is the caller, empty only for Shared.
	Actor string
	// Tenant is the caller's customer, account or organisation; empty where
	// the source knows of none.
	Tenant string

	shared bool
}

// A Source identifies who sent a request. It does not read the body. An error
// should be a *semelhttp.ScopeError; for any other error the client gets 401.
// Safe for concurrent use.
type Source interface {
	Identify(r *http.Request) (Principal, error)
}

// Scope returns a gateway.Config.Scope that asks s. A principal without an actor
// is refused with 403, unless it is that of Shared.
func Scope(s Source) func(*http.Request) (semel.Scope, error) {
	return func(r *http.Request) (semel.Scope, error) {
		p, err := s.Identify(r)
		if err != nil {
			return semel.Scope{}, err
		}
		if p.Actor == "" && !p.shared {
			return semel.Scope{}, nameless("The caller has no name.", nil)
		}
		return semel.Scope{Tenant: p.Tenant, Actor: p.Actor}, nil
	}
}

// Shared declares that callers share one scope: two callers that choose the same
// key get the same record. Unguessable keys are then their only protection.
type Shared struct{}

// Identify implements Source.
func (Shared) Identify(*http.Request) (Principal, error) { return Principal{shared: true}, nil }

// PerHost returns a source that adds the request's host to the tenant that s
// finds. It is needed if the upstream distinguishes tenants by host, as with
// gateway.Config.PreserveHost.
func PerHost(s Source) Source { return perHost{s} }

type perHost struct{ source Source }

func (h perHost) Identify(r *http.Request) (Principal, error) {
	p, err := h.source.Identify(r)
	if err != nil {
		return Principal{}, err
	}
	tenant := credential.Host(r)
	if p.Tenant != "" {
		tenant += " " + p.Tenant // in a host there is no space
	}
	if why := whyNoName(tenant); why != "" || strings.Contains(credential.Host(r), " ") {
		return Principal{}, refuse(http.StatusBadRequest, "The request's host cannot be a part of the caller's name.", errors.New("the host "+why))
	}
	p.Tenant = tenant
	return p, nil
}

func (h perHost) identityHeaders() ([]string, Proxies) { return identityHeaders(h.source) }

// refuse is an error that is answered with the status.
func refuse(status int, detail string, err error) *semelhttp.ScopeError {
	return &semelhttp.ScopeError{Status: status, Detail: detail + " Nothing was executed.", Err: err}
}

// unauthenticated is the error for a caller that is not known, with the
// challenges that tell it what to send.
func unauthenticated(detail string, err error, challenges ...string) *semelhttp.ScopeError {
	e := refuse(http.StatusUnauthorized, detail, err)
	if len(challenges) > 0 {
		e.Header = http.Header{"Www-Authenticate": challenges}
	}
	return e
}

// nameless is the error for a caller that is known but cannot be named.
func nameless(detail string, err error) *semelhttp.ScopeError {
	return refuse(http.StatusForbidden, detail+" Its operator has to give it one.", err)
}

// unavailable is the error where it cannot be said now who the caller is.
func unavailable(detail string, retryAfter time.Duration, err error) *semelhttp.ScopeError {
	e := refuse(http.StatusServiceUnavailable, detail+" Send the request again later with the same key.", err)
	seconds := max(1, int((retryAfter+time.Second-1)/time.Second))
	e.Header = http.Header{"Retry-After": {strconv.Itoa(seconds)}}
	return e
}

// errBusy is why a request was not left to wait.
var errBusy = errors.New("principal: too many requests wait already")

// actor names who value is among those of the kind. No two values have one name.
func actor(kind, value string) (string, error) {
	name := kind + ":" + value
	if len(name) > semel.MaxScopePartBytes {
		if whyNoText(value) == "" {
			return kind + "-digest:" + credential.Digest(kind, value), nil
		}
	}
	if value == "" {
		return "", nameless("The caller has no name.", nil)
	}
	if why := whyNoName(name); why != "" {
		return "", nameless("The caller has no usable name.", errors.New("the caller's name "+why))
	}
	return name, nil
}

// tenant checks the name of a tenant that is required.
func tenant(name string) (string, error) {
	if name == "" {
		return "", nameless("The caller belongs to no tenant.", nil)
	}
	if why := whyNoName(name); why != "" {
		return "", nameless("The caller's tenant has no usable name.", errors.New("the tenant's name "+why))
	}
	return name, nil
}

// whyNoName says why s cannot be a part of a scope; empty if it can.
func whyNoName(s string) string {
	if len(s) > semel.MaxScopePartBytes {
		return fmt.Sprintf("is %d bytes long; at most %d are allowed", len(s), semel.MaxScopePartBytes)
	}
	return whyNoText(s)
}

func whyNoText(s string) string {
	switch {
	case !utf8.ValidString(s):
		return "is not UTF-8"
	case strings.ContainsFunc(s, func(c rune) bool { return c < 0x20 || c == 0x7f }):
		return "holds a control character"
	case strings.ContainsRune(s, utf8.RuneError):
		// It stands for what could not be decoded, and so for many names.
		return "holds a replacement character"
	}
	return ""
}

// room bounds how many requests are in a place at once.
type room chan struct{}

// enter reports whether there is room, which leave gives back.
func (r room) enter() bool {
	select {
	case r <- struct{}{}:
		return true
	default:
		return false
	}
}

func (r room) leave() { <-r }

// maxWaiting is how many requests wait for one issuer or endpoint at most.
const maxWaiting = 1024

// within returns d, or its default if it is zero, and an error if it is not
// within the limits. Where none is allowed, a negative one is 0.
func within(errs *[]error, field string, d, byDefault, least, most time.Duration, none bool) time.Duration {
	switch {
	case d == 0:
		return byDefault
	case d < 0 && none:
		return 0
	case d < least || d > most:
		*errs = append(*errs, fmt.Errorf("field %s is %v; it must be from %v to %v", field, d, least, most))
	}
	return d
}

// made returns s, or no source but the errors as one, for a config of the kind.
func made[S any](kind string, s *S, errs []error) (*S, error) {
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("principal: %s: config: %w", kind, err)
	}
	return s, nil
}
