package semelclient

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/semelhq/semel/internal/httpfield"
	"github.com/semelhq/semel/semelhttp"
)

// Header fields of OASIS Repeatable Requests 1.0.
const (
	headerRepeatabilityID        = "Repeatability-Request-Id" // on the wire, case does not matter
	headerRepeatabilityFirstSent = "Repeatability-First-Sent"
)

// Defaults of the fields of Config.
const (
	DefaultMaxTries      = 5
	DefaultMaxElapsed    = time.Minute
	DefaultMinBackoff    = 200 * time.Millisecond
	DefaultMaxBackoff    = 10 * time.Second
	DefaultMaxReplayBody = 1 << 20
)

// Config is the configuration of a Transport. Its functions must be safe for
// concurrent use. Durations are measured by the monotonic clock.
type Config struct {
	// Base sends the requests. It must send a request at most once in each call of
	// RoundTrip, as http.Transport does with the requests of a Transport, and must
	// not retry by itself. Default http.DefaultTransport.
	Base http.RoundTripper

	// NeedsKey reports whether a request without a key gets one. Requests of other
	// protocols, such as gRPC, should not. By default, POST and PATCH requests do.
	NeedsKey func(*http.Request) bool
	// Header is the name of the header field for the key. Default
	// semelhttp.HeaderKey.
	Header string
	// BareKeys sends keys as they are, as Stripe and most others expect, instead of
	// as Structured Field Strings.
	BareKeys bool
	// Repeatability sends the header fields of OASIS Repeatable Requests 1.0,
	// Repeatability-Request-ID and Repeatability-First-Sent, instead of Header. All
	// attempts of an operation have the same values.
	Repeatability bool

	// MaxTries is the largest number of attempts in one call. If it is 1, there are
	// no retries. Default DefaultMaxTries.
	MaxTries int
	// MaxElapsed limits the time of a call, with all its attempts and the waits
	// between them, until the header of the response that is returned. An attempt
	// that it ends may have taken effect. If a Retry-After would exceed it, the
	// response is returned at once. Set it if a single response may take longer.
	// Default DefaultMaxElapsed.
	MaxElapsed time.Duration
	// TryTimeout limits the time from the start of an attempt until the header of
	// its response. The first attempt includes reading the request body. An attempt
	// that it ends may have taken effect. Zero means no limit other than MaxElapsed
	// and the context of the request.
	//
	// Prefer it, and a context with a deadline, to http.Client.Timeout, which limits
	// all attempts together and can replace the Error, with its key and effect, by
	// an error of its own.
	TryTimeout time.Duration
	// MinBackoff and MaxBackoff limit the wait between attempts. The wait is random,
	// below a limit that starts at MinBackoff and doubles up to MaxBackoff. After a
	// Retry-After it is that time plus up to MinBackoff. Defaults DefaultMinBackoff
	// and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
	// RetryStatus reports whether a response with a status of 400 or above asks for
	// a retry. It is called unless the response itself says so; see Transport. It
	// must not change h. Default DefaultRetryStatus.
	RetryStatus func(status int, h http.Header) bool
	// MaxReplayBody is the size in bytes of the largest request body that is kept in
	// memory for retries if the request has no GetBody. Default
	// DefaultMaxReplayBody.
	MaxReplayBody int64

	// Observer has functions to call when something happens.
	Observer Observer
}

func (c Config) withDefaults() Config {
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	if c.NeedsKey == nil {
		c.NeedsKey = func(r *http.Request) bool {
			return r.Method == http.MethodPost || r.Method == http.MethodPatch
		}
	}
	switch {
	case c.Repeatability && c.Header == "":
		c.Header = headerRepeatabilityID
	case c.Header == "":
		c.Header = semelhttp.HeaderKey
	}
	if c.MaxTries == 0 {
		c.MaxTries = DefaultMaxTries
	}
	if c.MaxElapsed == 0 {
		c.MaxElapsed = DefaultMaxElapsed
	}
	if c.MinBackoff == 0 {
		c.MinBackoff = DefaultMinBackoff
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(DefaultMaxBackoff, c.MinBackoff)
	}
	if c.RetryStatus == nil {
		c.RetryStatus = DefaultRetryStatus
	}
	if c.MaxReplayBody == 0 {
		c.MaxReplayBody = DefaultMaxReplayBody
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if !httpfield.IsToken(c.Header) {
		errs = append(errs, fmt.Errorf("field Header is %q, which is not a valid header name", c.Header))
	}
	if c.Repeatability && c.Header != headerRepeatabilityID {
		errs = append(errs, errors.New("field Header is set, and so is Repeatability, which names the fields itself"))
	}
	if c.MaxTries < 0 {
		errs = append(errs, fmt.Errorf("field MaxTries is %d; it must be positive", c.MaxTries))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"MaxElapsed", c.MaxElapsed}, {"MinBackoff", c.MinBackoff}, {"MaxBackoff", c.MaxBackoff}} {
		if f.d <= 0 {
			errs = append(errs, fmt.Errorf("field %s is %v; it must be positive", f.name, f.d))
		}
	}
	if c.MaxBackoff < c.MinBackoff {
		errs = append(errs, fmt.Errorf("field MaxBackoff %v is less than MinBackoff %v", c.MaxBackoff, c.MinBackoff))
	}
	if c.TryTimeout < 0 {
		errs = append(errs, fmt.Errorf("field TryTimeout is %v; it must not be negative", c.TryTimeout))
	}
	if c.MaxReplayBody < 0 {
		errs = append(errs, fmt.Errorf("field MaxReplayBody is %d; it must not be negative", c.MaxReplayBody))
	}
	return errors.Join(errs...)
}
