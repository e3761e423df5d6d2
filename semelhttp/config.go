package semelhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/semelhq/semel"
)

// Default limits of Config, in bytes.
const (
	DefaultMaxRequestBody = 32 << 20
	DefaultMaxInline      = 256 << 10
	DefaultMaxResult      = 32 << 20
)

// Default times of Config.
const (
	// DefaultWait is the default of Config.Wait.
	DefaultWait = 10 * time.Second
	// DefaultMaxWait is the default of Config.MaxWait.
	DefaultMaxWait = 30 * time.Second
)

// InFlight says how to answer a duplicate while the first request is executing.
type InFlight uint8

const (
	// InFlightReject answers 409 at once. It is the default.
	InFlightReject InFlight = iota
	// InFlightWait waits for the result, and answers 409 after Config.Wait.
	InFlightWait
	// InFlightAccept answers 202 with the status resource as its Location, or 409
	// if the record cannot be read yet, as in transactional stores.
	InFlightAccept
)

var inFlightNames = [...]string{InFlightReject: "reject", InFlightWait: "wait", InFlightAccept: "accept"}

func (f InFlight) String() string {
	if int(f) < len(inFlightNames) {
		return inFlightNames[f]
	}
	return fmt.Sprintf("InFlight(%d)", uint8(f))
}

// maxHead is the largest encoded head that is recorded. Larger ones leave a
// tombstone, like bodies over Config.MaxResult.
const maxHead = 64 << 10

// Config is the configuration of a middleware. Its functions must be safe for
// concurrent use.
type Config struct {
	// Guard executes and records. Required.
	Guard *semel.Guard
	// Scope returns the scope of a request's key. Required. It is called in the
	// goroutine of the server, for requests with a well-formed key, before the body
	// is read. If Operation is empty, the operation is the method and the path as
	// they were sent, even if a router has changed them. If the error is not nil,
	// nothing is executed, and the response is that of the *ScopeError in it, or
	// 401.
	Scope func(*http.Request) (semel.Scope, error)
	// Protects reports whether a request is protected. Other requests are passed to
	// the handler, even if they have a key. It is not called for GET, HEAD, OPTIONS
	// and TRACE, which are safe (RFC 9110, section 9.2.1), unless they have
	// X-HTTP-Method-Override or a similar field. Default ProtectMethods of POST and
	// PATCH.
	Protects func(*http.Request) bool

	// KeyOf, if not nil, returns the key from what a request says, such as the id of
	// an event or a natural key. No header is read for the key. KeyOf may also return
	// a fingerprint, which replaces that of Fingerprint. It is called with the whole
	// body, after Scope, and must neither change nor keep body. Bodies larger than
	// 256 KiB are passed to it one at a time. An error is handled as that of Scope.
	// KeyOf cannot be combined with IssuedOnly, or with a contract that has a
	// FirstSentHeader or a ClientIDHeader. KeyRules and StrictKey do not apply.
	KeyOf func(r *http.Request, body []byte) (key string, f semel.Fingerprint, err error)

	// OperationOf, if not nil, returns the operation from what a request says, if
	// Scope leaves it empty. It is for endpoints with many operations, such as those
	// of GraphQL. It is called like KeyOf, and before it. An error is handled as that
	// of Scope.
	OperationOf func(r *http.Request, body []byte) (operation string, err error)

	// RequireKey refuses requests without a key with 400. By default they are passed
	// to the handler.
	RequireKey bool
	// StrictKey refuses keys that are not Structured Field Strings. See ParseKey.
	StrictKey bool
	// KeyRules are further rules for keys. Default none.
	KeyRules semel.KeyRules
	// Contract says how responses look. Default IETF.
	Contract Contract

	// InFlight says how to answer duplicates of a request that is executing. Default
	// InFlightReject.
	InFlight InFlight
	// Wait is how long a duplicate waits with InFlightWait, at most MaxWait. Default
	// DefaultWait.
	Wait time.Duration
	// MaxWait limits how long a request with Prefer: wait=N (RFC 7240) waits for the
	// execution of another, whatever InFlight says. If it is negative, the preference
	// is ignored. Default DefaultMaxWait. The configuration and the policy of Guard
	// limit how many requests wait at the same time.
	MaxWait time.Duration
	// Resources, if not nil, are what responses refer to with status_url, and with
	// the Location of a 202. If they are set, Prefer: respond-async is honoured, by
	// answering the first request with 202 while it executes, and keys that they
	// issue are verified.
	Resources *Resources
	// IssuedOnly accepts only keys that Resources have issued. It implies RequireKey.
	IssuedOnly bool
	// Operation describes the operation in the specification of Resources.
	Operation OperationSpec

	// Fingerprint says what makes two requests the same request.
	Fingerprint FingerprintConfig
	// MaxRequestBody is the size in bytes of the largest request body. The body is
	// held while the request executes, up to 256 KiB in memory and more in Spools. A
	// larger one is answered with 413, and the store is not asked. Default
	// DefaultMaxRequestBody.
	MaxRequestBody int64
	// MaxInline is the size in bytes of the largest response body that is held in
	// memory and recorded in one piece. A larger one is held in Spools and recorded
	// in pieces of semel.PieceBytes. Default DefaultMaxInline, or MaxResult if that
	// is smaller.
	MaxInline int64
	// MaxResult is the size in bytes of the largest response body that is recorded. A
	// larger one is recorded as a tombstone. It is sent while the handler writes it
	// or, if the claim lives in a transaction, after the commit. The same holds for
	// responses over MaxInline if the store keeps no pieces. Default
	// DefaultMaxResult, or MaxInline if that is larger.
	MaxResult int64
	// Withhold holds back large responses and streams, which are otherwise sent while
	// the handler writes them, until the record is durable. It is for clients that
	// take the status for the end of the operation. If the claim lives in a
	// transaction, responses are always held back.
	Withhold bool
	// Spools hold large request and response bodies. A request whose body cannot be
	// spooled is answered with 503 and not executed. A response that cannot be
	// spooled is treated like one over MaxResult; if the claim lives in a
	// transaction, it is dropped, and the client is told that the operation completed
	// and its result was not retained. By default, New makes Spools for the
	// middleware.
	Spools *Spools
	// Pace limits how slow clients may be. A client that sends more slowly is
	// answered with 408, and nothing is executed. A client that reads more slowly is
	// cut off, which does not affect the execution.
	Pace Pace

	// NoEffectStatus reports whether a response means, by its definition, that nothing
	// was processed. Such a response is sent, and the key is free again. It must not
	// change h. Default DefaultNoEffectStatus.
	NoEffectStatus func(status int, h http.Header) bool
	// IndeterminateStatus reports whether a response leaves open whether there was an
	// effect. It takes precedence over NoEffectStatus. It must not change h. By
	// default no response does. For a proxy, use ForwardedIndeterminate.
	IndeterminateStatus func(status int, h http.Header) bool
	// CommitStatus reports whether to keep what the handler changed in the transaction
	// of the claim. If not, the changes are rolled back and only the response is
	// recorded. It applies to transactional stores only. By default it reports true
	// for a status below 400.
	CommitStatus func(status int) bool
	// ReleaseStatus reports whether a response whose changes are rolled back is not
	// recorded either. There was then no effect, and the key is free again. It applies
	// to transactional stores only. By default it reports true for a status of 500 and
	// above.
	ReleaseStatus func(status int) bool
	// Forwards means that the handler forwards requests to another server, as a
	// gateway does. A request whose own execution was cut off is then answered with
	// 502, or 504 at the policy's Deadline, instead of 500.
	Forwards bool

	// Origin returns what identifies the request in the audit trail. Default
	// DefaultOrigin.
	Origin func(*http.Request) semel.Origin
	// Refused, if not nil, is called for each request that is refused before it
	// reaches the guard, such as one without a key or with a body that is too large.
	// The Observer of Guard is called for the others.
	Refused func(context.Context, Problem)
	// DryRun reports what the middleware would do without doing it. Every request is
	// passed to the handler, which answers it. HeaderDryRun and the observers have
	// what would have been decided. The handler is called after the body has been read
	// and the store has been asked, even if the store has failed. Its context has no
	// execution.
	//
	// Duplicates are detected by records of their own, which hold no response and
	// which a middleware without DryRun does not find. So a request that is repeated
	// after DryRun was switched off executes once more. DryRun is meant for stores
	// without transactional claims.
	DryRun bool
	// FailOpen passes requests to the handler without protection while the store is
	// unavailable, and calls Guard.NoteFailedOpen for each. By default they are
	// answered with 503.
	FailOpen bool
}

// withDefaults returns c with its defaults filled in.
func (c Config) withDefaults() Config {
	if c.Protects == nil {
		c.Protects = ProtectMethods(http.MethodPost, http.MethodPatch)
	}
	if c.MaxRequestBody == 0 {
		c.MaxRequestBody = DefaultMaxRequestBody
	}
	if c.MaxResult == 0 {
		c.MaxResult = max(DefaultMaxResult, c.MaxInline)
	}
	if c.MaxInline == 0 {
		c.MaxInline = min(DefaultMaxInline, c.MaxResult)
	}
	c.Pace = c.Pace.withDefaults()
	if c.NoEffectStatus == nil {
		c.NoEffectStatus = DefaultNoEffectStatus
	}
	if c.IndeterminateStatus == nil {
		c.IndeterminateStatus = func(int, http.Header) bool { return false }
	}
	if c.CommitStatus == nil {
		c.CommitStatus = func(status int) bool { return status < 400 }
	}
	if c.ReleaseStatus == nil {
		c.ReleaseStatus = func(status int) bool { return status >= 500 }
	}
	if c.Origin == nil {
		c.Origin = DefaultOrigin
	}
	if c.MaxWait == 0 {
		c.MaxWait = DefaultMaxWait
	}
	if c.Wait == 0 {
		c.Wait = DefaultWait
		if c.MaxWait > 0 {
			c.Wait = min(c.Wait, c.MaxWait)
		}
	}
	c.RequireKey = c.RequireKey || c.IssuedOnly
	c.Contract = c.Contract.withDefaults()
	if first := c.Contract.FirstSentHeader; first != "" && !slices.Contains(c.Fingerprint.Headers, first) {
		// Repeating a request under another time is another request; otherwise
		// a client could get around the refusal of those that are too old.
		c.Fingerprint.Headers = append(slices.Clone(c.Fingerprint.Headers), first)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Guard == nil {
		errs = append(errs, errors.New("field Guard is nil"))
	}
	if c.Scope == nil {
		errs = append(errs, errors.New("field Scope is nil"))
	}
	if c.MaxRequestBody < 0 {
		errs = append(errs, fmt.Errorf("field MaxRequestBody is %d; it must not be negative", c.MaxRequestBody))
	}
	if c.MaxResult < 0 {
		errs = append(errs, fmt.Errorf("field MaxResult is %d; it must not be negative", c.MaxResult))
	}
	if c.MaxInline < 0 || c.MaxInline > c.MaxResult && c.MaxResult >= 0 {
		errs = append(errs, fmt.Errorf("field MaxInline is %d; it must not be negative or larger than MaxResult, which is %d", c.MaxInline, c.MaxResult))
	}
	if c.Pace.Grace < 0 || c.Pace.Idle < 0 {
		errs = append(errs, errors.New("field Pace has a negative time"))
	}
	if c.Guard != nil && c.Contract.FirstSentHeader != "" {
		if keep, need := c.Guard.Policy().Retention, MaxAhead+c.Contract.Skew; keep <= need {
			errs = append(errs, fmt.Errorf("field Guard keeps records for %v; with a FirstSentHeader it must be longer than the %v by which clocks may be apart", keep, need))
		}
	}
	if c.InFlight > InFlightAccept {
		errs = append(errs, fmt.Errorf("field InFlight is %v; use InFlightReject, InFlightWait or InFlightAccept", c.InFlight))
	}
	if c.Wait < 0 {
		errs = append(errs, fmt.Errorf("field Wait is %v; it must not be negative", c.Wait))
	}
	if c.MaxWait > 0 && c.Wait > c.MaxWait {
		errs = append(errs, fmt.Errorf("field Wait is %v, longer than MaxWait %v", c.Wait, c.MaxWait))
	}
	if c.InFlight == InFlightAccept && c.Resources == nil {
		errs = append(errs, errors.New("field InFlight is accept, but Resources is nil: there would be nothing to point to"))
	}
	if c.IssuedOnly && (c.Resources == nil || c.Resources.config.Keys == nil) {
		errs = append(errs, errors.New("field IssuedOnly is set, but Resources issue no keys"))
	}
	if c.KeyOf != nil && (c.IssuedOnly || c.Contract.FirstSentHeader != "" || c.Contract.ClientIDHeader != "") {
		errs = append(errs, errors.New("field KeyOf is set, and so is IssuedOnly, or a header of the Contract that goes with a key header"))
	}
	if c.Guard != nil && c.KeyRules.MaxUUIDAge > 0 {
		if keep, need := c.Guard.Policy().Retention, c.KeyRules.MaxUUIDAge+semel.MaxUUIDAhead+c.Contract.Skew; keep <= need {
			errs = append(errs, fmt.Errorf("field Guard keeps records for %v; with KeyRules.MaxUUIDAge it must be longer than the %v of that and of clocks that are apart", keep, need))
		}
	}
	if c.Guard != nil && c.Resources != nil && c.Resources.config.Keys != nil && c.Resources.config.Keys.config.Retention > c.Guard.Policy().Retention {
		errs = append(errs, fmt.Errorf("field Guard keeps records for %v, shorter than the %v that Resources issue keys for", c.Guard.Policy().Retention, c.Resources.config.Keys.config.Retention))
	}
	return errors.Join(append(errs, c.Contract.validate(), c.KeyRules.Validate())...)
}

// DefaultNoEffectStatus is the default of Config.NoEffectStatus. It reports true for
// 401, 407, 425 and 429, and for 503 with Retry-After.
func DefaultNoEffectStatus(status int, h http.Header) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusServiceUnavailable:
		return h.Get("Retry-After") != ""
	}
	return false
}

// ForwardedIndeterminate is a Config.IndeterminateStatus for handlers that forward
// requests. It reports true for 502 and 504, and for 503 without Retry-After, which
// come from an intermediary that does not know what became of the request.
func ForwardedIndeterminate(status int, h http.Header) bool {
	switch status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	case http.StatusServiceUnavailable:
		return h.Get("Retry-After") == ""
	}
	return false
}
