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

// Limits of a Config that leaves them zero, in bytes.
const (
	DefaultMaxRequestBody = 32 << 20
	DefaultMaxInline      = 256 << 10
	DefaultMaxResult      = 32 << 20
)

// Times that a Config leaves zero.
const (
	// DefaultWait is how long InFlightWait holds a duplicate whose Prefer
	// header does not say.
	DefaultWait = 10 * time.Second
	// DefaultMaxWait is the longest wait that a client can ask for.
	DefaultMaxWait = 30 * time.Second
)

// InFlight says what becomes of a request whose identity is being executed for
// an earlier one.
type InFlight uint8

const (
	// InFlightReject answers 409 at once. Default.
	InFlightReject InFlight = iota
	// InFlightWait waits for the result, and answers 409 when that takes too long.
	InFlightWait
	// InFlightAccept answers 202 and leads to the status resource; 409 where
	// the store cannot show the record yet, as in transactional stores.
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

// Config says how a middleware protects handlers. Functions must be safe for
// concurrent use.
type Config struct {
	// Guard executes and records. Required.
	Guard *semel.Guard

	// Scope says whose key the request's key is. Required. It is called in the
	// server's goroutine, for requests with a well-formed key, before the body
	// is read. An empty Operation means the method and the path as they were
	// sent, whatever a router has made of them since. If it returns
	// an error nothing is executed, and the answer is that of the *ScopeError
	// in it, or 401.
	Scope func(*http.Request) (semel.Scope, error)

	// Protects says which requests are protected; the others pass, with or
	// without a key. Default: ProtectMethods of POST and PATCH. It is not asked
	// about GET, HEAD, OPTIONS and TRACE without X-HTTP-Method-Override and its
	// like, which are safe (RFC 9110 9.2.1) and always pass.
	Protects func(*http.Request) bool

	// KeyOf, if not nil, takes the key from what a request says, and no header is
	// read for one: an event's id, or a natural key. It may return a fingerprint
	// beside it, which then replaces that of Fingerprint. It is called with the
	// whole body, after Scope; body must not be changed or kept. Of bodies larger
	// than 256 KiB it is given one at a time. An error is answered like one of
	// Scope. It cannot be combined with IssuedOnly, or with a contract that has a
	// FirstSentHeader or a ClientIDHeader; KeyRules and StrictKey do not apply.
	KeyOf func(r *http.Request, body []byte) (key string, f semel.Fingerprint, err error)

	// OperationOf, if not nil, names the operation by what a request says, where
	// Scope leaves it empty: one endpoint for many operations, as of GraphQL. It is
	// called like KeyOf, and before it. An error is answered like one of Scope.
	OperationOf func(r *http.Request, body []byte) (operation string, err error)

	// RequireKey refuses requests without a key with 400. By default they pass
	// unprotected.
	RequireKey bool
	// StrictKey refuses keys that are not a Structured Field String. See ParseKey.
	StrictKey bool
	// KeyRules are further rules for keys. Default: none.
	KeyRules semel.KeyRules

	// Contract is how answers look on the wire. Default: IETF.
	Contract Contract

	// InFlight says what becomes of duplicates of a request that is being
	// executed. Default: InFlightReject.
	InFlight InFlight
	// Wait is how long InFlightWait holds a duplicate. Default DefaultWait, at
	// most MaxWait.
	Wait time.Duration
	// MaxWait bounds how long a request with Prefer: wait=N (RFC 7240) is held
	// for an execution that is not its own, whatever InFlight says. Negative:
	// the preference is ignored. Default DefaultMaxWait. How many can wait at
	// the same time is bounded by Guard and Policy.
	MaxWait time.Duration

	// Resources, if not nil, are where answers lead to: their status_url, and
	// the Location of a 202. With them Prefer: respond-async is honoured, the
	// first request being answered with 202 while it executes; and keys that
	// they issue are verified.
	Resources *Resources
	// IssuedOnly accepts no keys but those issued by Resources. It implies
	// RequireKey.
	IssuedOnly bool
	// Operation describes the operation in the specification of Resources.
	Operation OperationSpec

	// Fingerprint says what makes two requests the same request.
	Fingerprint FingerprintConfig

	// MaxRequestBody is the largest request body in bytes. It is held while the
	// request executes: 256 KiB in memory, more in Spools. A larger
	// one is answered with 413 before any look in the store. Default
	// DefaultMaxRequestBody.
	MaxRequestBody int64
	// MaxInline is the largest response body that is held in memory and
	// recorded in one piece, in bytes. A larger one goes to Spools until it is
	// recorded, in pieces of semel.PieceBytes. Default
	// DefaultMaxInline, or MaxResult if that is smaller.
	MaxInline int64
	// MaxResult is the largest response body that is recorded, in bytes. A
	// larger one leaves a tombstone: it passes as it comes, or where the claim
	// lives in a transaction once that has committed. So does every answer over
	// MaxInline on a store that keeps no pieces. Default DefaultMaxResult, or
	// MaxInline if that is larger.
	MaxResult int64
	// Withhold has no answer pass while its handler runs, as large ones and streams
	// otherwise do: not even its status leaves before the record is durable. It is
	// always so where the claim lives in a transaction. It is for clients that take
	// the status for the end.
	Withhold bool
	// Spools hold large request and response bodies. A request body that cannot
	// be spooled is answered with 503 and not executed. An answer that cannot
	// be spooled is treated like one over MaxResult; where the claim lives in a
	// transaction it is dropped, and told as completed but not retained.
	// Default: Spools of its own, with their defaults.
	Spools *Spools
	// Pace is how slow clients may be. Who sends more slowly is answered with
	// 408 and nothing is executed; who reads more slowly is cut off, which is
	// nothing to the execution.
	Pace Pace

	// NoEffectStatus says of an answer that it means by definition that nothing
	// was processed: it is passed on and the key is free again. h must not be
	// changed. Default: DefaultNoEffectStatus.
	NoEffectStatus func(status int, h http.Header) bool
	// IndeterminateStatus says of an answer that the effect may or may not have
	// happened. It wins over NoEffectStatus. h must not be changed. Default:
	// none. For a proxy: ForwardedIndeterminate.
	IndeterminateStatus func(status int, h http.Header) bool

	// CommitStatus says of a recorded answer whether what the handler changed in
	// the claim's transaction is kept; otherwise it is rolled back, and only the
	// answer is recorded. It matters to transactional stores alone. Default:
	// status below 400.
	CommitStatus func(status int) bool
	// ReleaseStatus says of an answer whose changes are rolled back that it is
	// not recorded either: there was no effect, and the key is free again. It
	// matters to transactional stores alone. Default: status 500 and above.
	ReleaseStatus func(status int) bool

	// Forwards says that the handler forwards requests to another server, as a
	// gateway does. A request whose own execution was cut off is answered with
	// 502, or with 504 at the policy's Deadline, instead of 500.
	Forwards bool

	// Origin names the request for the audit trail. Default: DefaultOrigin.
	Origin func(*http.Request) semel.Origin

	// Refused is told of each request that is answered with a problem before the
	// guard is asked: its key is missing, its body too large, and so on. What comes
	// of the others Guard's Observer is told. Nil for nobody.
	Refused func(context.Context, Problem)

	// DryRun protects nothing. Every request goes to the handler as it came, and is
	// answered by it; what would have been decided is told by HeaderDryRun and to
	// the observers. Duplicates are told apart by records of their own, which a
	// middleware without DryRun on the same store does not find, and which hold no
	// answer: a request that was repeated before and after DryRun is lifted executes
	// once more. The handler is called once the body has been read and the store has
	// answered, or failed to. It is meant for stores whose claims live in no
	// transaction, and the handler's context carries no execution.
	DryRun bool

	// FailOpen lets requests through, unprotected, while the store is
	// unavailable. Each is noted by Guard.NoteFailedOpen. By default they are
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

// DefaultNoEffectStatus is the default of Config.NoEffectStatus: 401, 407, 425,
// 429, and 503 with Retry-After.
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
// requests: 502, 504, and 503 without Retry-After come from something between,
// which does not know what became of the request.
func ForwardedIndeterminate(status int, h http.Header) bool {
	switch status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	case http.StatusServiceUnavailable:
		return h.Get("Retry-After") == ""
	}
	return false
}
