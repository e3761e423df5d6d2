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

// Contract says how protected operations look on the wire: the names of the header
// fields, and the form of refusals. IETF, Stripe and OASIS each return one. Its
// fields may be changed before it is used, for each operation separately.
//
// A contract does not affect what is executed: under any contract, an identity
// executes once.
type Contract struct {
	// Name is shown in the specification. A Contract without a Name is IETF.
	Name string
	// KeyHeader is the request header field for the key.
	KeyHeader string
	// FirstSentHeader, if not empty, is a request header field that must be sent with
	// the key. It is the HTTP date at which the request was first sent, and part of
	// the fingerprint. A request is refused if the date is longer ago than the
	// policy's Retention minus MaxAhead and Skew, since its record may be gone, and if
	// it is more than MaxAhead in the future, by the clock of this process.
	FirstSentHeader string
	// Skew is the largest difference between the clocks of this process and the store.
	// It is used with FirstSentHeader, and with KeyRules that have a MaxUUIDAge.
	// Default 5 min.
	Skew time.Duration
	// ClientIDHeader, if not empty, is a request header field whose value, if any, is
	// part of the identity.
	ClientIDHeader string
	// RefuseUnprotected refuses requests that have a key and whose method is neither
	// safe nor protected. By default they are passed to the handler.
	RefuseUnprotected bool

	// ReplayedHeader, if not empty, is a response header field that is "true" in
	// responses from a record.
	ReplayedHeader string
	// ExpiresHeader, if not empty, is a response header field for the end of the
	// retention: an HTTP date by the clock of the store.
	ExpiresHeader string
	// ResultHeader, if not empty, is a response header field that is "accepted" if the
	// request was, or may have been, executed now or before, and "rejected" if it
	// certainly was not.
	ResultHeader string

	// Status replaces the status of problem cases, except for a request whose own
	// execution was cut off: see Config.Forwards. The status is from 400 to 599.
	// ProblemResultNotRetained, whose operation has completed, may also have a status
	// of 2xx, for clients that need nothing but the success.
	Status map[ProblemCase]int
	// Render encodes a refusal. It returns its media type and its body, and may add to
	// h. Default problem details (RFC 9457).
	Render func(h http.Header, p Problem) (mediaType string, body []byte)
}

// MaxAhead is how far in the future the date in a FirstSentHeader may be.
const MaxAhead = 5 * time.Minute

// IETF returns the default contract, which follows
// draft-ietf-httpapi-idempotency-key-header-07 and fills in what it leaves open.
func IETF() Contract {
	return Contract{Name: "ietf", KeyHeader: HeaderKey, ReplayedHeader: HeaderReplayed, ExpiresHeader: HeaderExpires}
}

// Header fields of the Stripe and OASIS contracts.
const (
	HeaderStripeReplayed         = "Idempotent-Replayed"
	HeaderStripeShouldRetry      = "Stripe-Should-Retry"
	HeaderRepeatabilityRequestID = "Repeatability-Request-ID"
	HeaderRepeatabilityFirstSent = "Repeatability-First-Sent"
	HeaderRepeatabilityClientID  = "Repeatability-Client-ID"
	HeaderRepeatabilityResult    = "Repeatability-Result"
)

// Stripe returns a contract for clients of Stripe's API v1. Responses have
// Idempotent-Replayed and Stripe-Should-Retry. Errors have Stripe's form, with
// idempotency_error, or idempotency_key_in_use while the key is being executed. A
// mismatch is answered with 400. Keys are sent without quotes.
func Stripe() Contract {
	return Contract{
		Name: "stripe", KeyHeader: HeaderKey, ReplayedHeader: HeaderStripeReplayed,
		Status: map[ProblemCase]int{ProblemKeyMismatch: http.StatusBadRequest},
		Render: renderStripe,
	}
}

// OASIS returns the contract of OASIS Repeatable Requests 1.0. A request has both
// Repeatability-Request-ID and Repeatability-First-Sent, or neither. One that was
// first sent too long ago is answered with 412, one whose method is not protected
// with 501, and a mismatch with 400.
//
// The standard allows two responses to a repeated request that failed at first. This
// contract sends the recorded one. Responses that leave open whether there was an
// effect are "accepted", because a client may repeat a "rejected" request under
// another id, and have the effect twice.
func OASIS() Contract {
	return Contract{
		Name: "oasis", KeyHeader: http.CanonicalHeaderKey(HeaderRepeatabilityRequestID),
		FirstSentHeader: HeaderRepeatabilityFirstSent, ClientIDHeader: http.CanonicalHeaderKey(HeaderRepeatabilityClientID),
		RefuseUnprotected: true, ResultHeader: HeaderRepeatabilityResult,
		Status: map[ProblemCase]int{ProblemKeyMismatch: http.StatusBadRequest},
	}
}

// ContractNamed returns the contract with the given name: ietf, stripe or oasis.
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
			errs = append(errs, fmt.Errorf("field Contract.%s is %q, which is not a header name", f.field, f.name))
		case seen[f.name] != "":
			errs = append(errs, fmt.Errorf("field Contract.%s is %s, and so is %s", f.field, f.name, seen[f.name]))
		}
		seen[f.name] = f.field
	}
	for problem, status := range c.Status {
		if _, ok := problemCases[problem]; !ok {
			errs = append(errs, fmt.Errorf("field Contract.Status names %q, which is not a problem case", problem))
		}
		success := problem == ProblemResultNotRetained && status/100 == 2
		if status < 400 && !success || status > 599 {
			errs = append(errs, fmt.Errorf("field Contract.Status has %d for %s; it must be an error", status, problem))
		}
	}
	return errors.Join(errs...)
}

// ResponseHeaders returns the names of the header fields that the contract adds to
// responses. Browsers show them to scripts of other origins only if
// Access-Control-Expose-Headers lists them.
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

// RequestHeaders returns the names of the request header fields that the contract
// reads, for Access-Control-Allow-Headers.
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

// WriteProblem writes p as the whole response, in the form of the contract. See
// Problem.Write.
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
	case ProblemInProgress, ProblemOutcomeUnknown, ProblemResultNotRetained, ProblemResultUnreadable, ProblemStoreUnavailable, ProblemSpoolUnavailable,
		ProblemBodyUnreadable:
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
