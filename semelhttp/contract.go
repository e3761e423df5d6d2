package semelhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/httpfield"
)

// Contract is how protected operations look on the wire: which headers carry
// what, and how a refusal is told. IETF, Stripe and OASIS return one each; all
// fields may be changed, for each operation by itself.
//
// A contract changes what is said, not what is done: whatever its names, an
// identity executes once.
type Contract struct {
	// Name is for the specification resource. A Contract without a name counts
	// as IETF.
	Name string

	// KeyHeader is the request header that carries the key.
	KeyHeader string
	// FirstSentHeader, unless empty, is a request header that must go with the
	// key and say, as an HTTP date, when the request was first sent. It takes
	// part in the fingerprint. Requests first sent longer ago than the policy's
	// retention, less MaxAhead and Skew, are refused, because their record may be
	// gone; so are those that claim to come from the future, by more than
	// MaxAhead. The clock is this process's.
	FirstSentHeader string
	// Skew is the largest difference between this process's clock and that of
	// the store. It counts where there is a FirstSentHeader, or KeyRules with a
	// MaxUUIDAge. Default 5 min.
	Skew time.Duration
	// ClientIDHeader, unless empty, is a request header whose value, where
	// there is one, takes part in the identity.
	ClientIDHeader string
	// RefuseUnprotected refuses requests that carry a key and are of a method
	// that is neither safe nor protected. By default they pass.
	RefuseUnprotected bool

	// ReplayedHeader is "true" on answers from a record. Empty: not told.
	ReplayedHeader string
	// ExpiresHeader says, as an HTTP date by the store's clock, until when the
	// answer is replayed. Empty: not told.
	ExpiresHeader string
	// ResultHeader is "accepted" on answers to requests that were, or may have
	// been, executed, now or before, and "rejected" on those that certainly
	// were not. Empty: not told.
	ResultHeader string

	// Status replaces the status of the problem cases it names, but not that of
	// a request whose own execution was cut off: see Config.Forwards. All are
	// errors; ProblemResultNotRetained, whose operation has completed, may be told
	// as a success to clients that ask for nothing else.
	Status map[ProblemCase]int
	// Render encodes a refusal: a media type and a body. It may add to h. Nil
	// means problem details (RFC 9457).
	Render func(h http.Header, p Problem) (mediaType string, body []byte)
}

// MaxAhead is how far in the future a FirstSentHeader may lie.
const MaxAhead = 5 * time.Minute

// IETF is the default contract: draft-ietf-httpapi-idempotency-key-header-07,
// with what it leaves open filled in.
func IETF() Contract {
	return Contract{Name: "ietf", KeyHeader: HeaderKey, ReplayedHeader: HeaderReplayed, ExpiresHeader: HeaderExpires}
}

// Headers of the Stripe and OASIS contracts.
const (
	HeaderStripeReplayed         = "Idempotent-Replayed"
	HeaderStripeShouldRetry      = "Stripe-Should-Retry"
	HeaderRepeatabilityRequestID = "Repeatability-Request-ID"
	HeaderRepeatabilityFirstSent = "Repeatability-First-Sent"
	HeaderRepeatabilityClientID  = "Repeatability-Client-ID"
	HeaderRepeatabilityResult    = "Repeatability-Result"
)

// Stripe is a contract that clients written for Stripe's API v1 understand:
// Idempotent-Replayed, Stripe-Should-Retry, and errors in Stripe's form with
// idempotency_error, and idempotency_key_in_use for a key that is still being
// executed. A mismatch is answered with 400. Keys are sent without quotes.
func Stripe() Contract {
	return Contract{
		Name: "stripe", KeyHeader: HeaderKey, ReplayedHeader: HeaderStripeReplayed,
		Status: map[ProblemCase]int{ProblemKeyMismatch: http.StatusBadRequest},
		Render: renderStripe,
	}
}

// OASIS is the contract of OASIS Repeatable Requests 1.0, with
// Repeatability-Request-ID and Repeatability-First-Sent, both or neither. A
// request first sent too long ago is answered with 412, one of a method that
// is not protected with 501, a mismatch with 400.
//
// Of the two things that the standard allows for a repeated request whose first
// answer was an error, it is the recorded answer that is sent. Answers that
// leave open whether an effect happened are "accepted": to a client that
// repeats the request under another id, "rejected" would be an invitation to
// have the effect twice.
func OASIS() Contract {
	return Contract{
		Name: "oasis", KeyHeader: http.CanonicalHeaderKey(HeaderRepeatabilityRequestID),
		FirstSentHeader: HeaderRepeatabilityFirstSent, ClientIDHeader: http.CanonicalHeaderKey(HeaderRepeatabilityClientID),
		RefuseUnprotected: true, ResultHeader: HeaderRepeatabilityResult,
		Status: map[ProblemCase]int{ProblemKeyMismatch: http.StatusBadRequest},
	}
}

// ContractNamed returns the contract of a name: ietf, stripe or oasis.
func ContractNamed(name string) (Contract, error) {
	switch name {
	case "ietf":
		return IETF(), nil
	case "stripe":
		return Stripe(), nil
	case "oasis":
		return OASIS(), nil
	}
	return Contract{}, fmt.Errorf("semelhttp: no contract is named %q; use ietf, stripe or oasis", name)
}

func (c Contract) withDefaults() Contract {
	if c.Name == "" {
		c = IETF()
	}
	for _, name := range []*string{&c.KeyHeader, &c.FirstSentHeader, &c.ClientIDHeader, &c.ReplayedHeader, &c.ExpiresHeader, &c.ResultHeader} {
		*name = textproto.CanonicalMIMEHeaderKey(*name)
	}
	if c.Skew == 0 {
		c.Skew = 5 * time.Minute
	}
	c.Status = maps.Clone(c.Status)
	return c
}

func (c Contract) validate() error {
	var errs []error
	if c.KeyHeader == "" {
		errs = append(errs, errors.New("field Contract.KeyHeader is empty"))
	}
	if c.Skew < 0 {
		errs = append(errs, fmt.Errorf("field Contract.Skew is %v; it must not be negative", c.Skew))
	}
	seen := map[string]string{}
	for _, f := range []struct{ field, name string }{
		{"KeyHeader", c.KeyHeader},
		{"FirstSentHeader", c.FirstSentHeader},
		{"ClientIDHeader", c.ClientIDHeader},
		{"ReplayedHeader", c.ReplayedHeader},
		{"ExpiresHeader", c.ExpiresHeader},
		{"ResultHeader", c.ResultHeader},
	} {
		switch {
		case f.name == "":
			continue
		case !httpfield.IsToken(f.name):
			errs = append(errs, fmt.Errorf("field Contract.%s is %q, which is no header name", f.field, f.name))
		case seen[f.name] != "":
			errs = append(errs, fmt.Errorf("field Contract.%s is %s, and so is %s", f.field, f.name, seen[f.name]))
		}
		seen[f.name] = f.field
	}
	for problem, status := range c.Status {
		if _, ok := problemCases[problem]; !ok {
			errs = append(errs, fmt.Errorf("field Contract.Status names %q, which is no problem case", problem))
		}
		success := problem == ProblemResultNotRetained && status/100 == 2
		if status < 400 && !success || status > 599 {
			errs = append(errs, fmt.Errorf("field Contract.Status has %d for %s; it must be an error", status, problem))
		}
	}
	return errors.Join(errs...)
}

// ResponseHeaders names the headers that the contract adds to answers. Browsers
// show them to scripts of other origins only if Access-Control-Expose-Headers
// lists them.
func (c Contract) ResponseHeaders() []string {
	c = c.withDefaults()
	names := []string{"Location", "Preference-Applied", "Retry-After"}
	for _, name := range []string{c.ReplayedHeader, c.ExpiresHeader, c.ResultHeader} {
		if name != "" {
			names = append(names, name)
		}
	}
	if c.Name == "stripe" {
		names = append(names, HeaderStripeShouldRetry)
	}
	slices.Sort(names)
	return names
}

// RequestHeaders names the request headers that the contract reads, for
// Access-Control-Allow-Headers.
func (c Contract) RequestHeaders() []string {
	c = c.withDefaults()
	names := []string{"Prefer"}
	for _, name := range []string{c.KeyHeader, c.FirstSentHeader, c.ClientIDHeader} {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// own reports whether a response header is the contract's to set.
func (c *Contract) own(name string) bool {
	return name != "" && (name == c.ReplayedHeader || name == c.ExpiresHeader || name == c.ResultHeader)
}

// WriteProblem sends p as the contract tells it, in the way of Problem.Write.
func (c Contract) WriteProblem(w http.ResponseWriter, p Problem) {
	if c.Name == "" {
		c = IETF()
	}
	if kind, ok := p.Case(); ok {
		if status, ok := c.Status[kind]; ok && p.Status == problemCases[kind].status {
			p.Status = status
		}
		if c.ResultHeader != "" {
			w.Header()[c.ResultHeader] = []string{resultOf(kind)}
		}
	}
	if c.Render == nil {
		p.Write(w)
		return
	}
	h := w.Header()
	mediaType, body := c.Render(h, p)
	p.write(w, mediaType, body)
}

// resultOf is what the ResultHeader says of a problem: "rejected" where the
// request certainly took no effect, neither now nor before.
func resultOf(c ProblemCase) string {
	switch c {
	case ProblemInProgress, ProblemOutcomeUnknown, ProblemResultNotRetained, ProblemStoreUnavailable, ProblemSpoolUnavailable, ProblemBodyUnreadable:
		return "accepted"
	}
	return "rejected"
}

// renderStripe encodes a problem as an error of Stripe's API.
func renderStripe(h http.Header, p Problem) (string, []byte) {
	type stripeError struct {
		Type    string `json:"type"`
		Code    string `json:"code,omitempty"`
		Message string `json:"message"`
		DocURL  string `json:"doc_url,omitempty"`
	}
	e := stripeError{Type: "invalid_request_error", Message: p.Detail}
	kind, known := p.Case()
	if known {
		e.DocURL = p.Type
	}
	switch kind {
	case ProblemKeyMismatch:
		e.Type = "idempotency_error"
	case ProblemInProgress:
		e.Code = "idempotency_key_in_use"
	case ProblemOutcomeUnknown, ProblemStoreUnavailable, ProblemSpoolUnavailable, ProblemRolledBack:
		e.Type = "api_error"
	}
	if p.Status >= 500 {
		e.Type = "api_error"
	}
	switch p.Retry {
	case semel.RetrySameKey:
		h[HeaderStripeShouldRetry] = []string{"true"}
	case "":
	default:
		h[HeaderStripeShouldRetry] = []string{"false"}
	}
	body, err := json.Marshal(struct {
		Error stripeError `json:"error"`
	}{e})
	if err != nil {
		panic(err) // strings always marshal
	}
	return "application/json", body
}

// write sends body as the whole response that p stands for.
func (p Problem) write(w http.ResponseWriter, mediaType string, body []byte) {
	h := w.Header()
	for _, name := range []string{"Content-Language", "Content-Range", "Etag", "Last-Modified", "Trailer"} {
		h.Del(name)
	}
	h.Set("Content-Type", mediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if h.Get("Content-Encoding") != "" { // somebody around compresses it
		h.Del("Content-Length")
	}
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(p.RetryAfter.Seconds())), 10))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}
