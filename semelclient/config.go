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

// Defaults of a Config that leaves them zero.
const (
	DefaultMaxTries      = 5
	DefaultMaxElapsed    = time.Minute
	DefaultMinBackoff    = 200 * time.Millisecond
	DefaultMaxBackoff    = 10 * time.Second
	DefaultMaxReplayBody = 1 << 20
)

// Config says how a Transport sends. Functions must be safe for
// concurrent use. Durations are by the monotonic clock of this process.
type Config struct {
	// Base sends. Default: http.DefaultTransport. It must send a request at most
	// once for each call, as http.Transport does when it is asked the way a
	// Transport asks, and must not retry on its own.
	Base http.RoundTripper

	// NeedsKey says which requests get a key if they have none. Default: POST
	// and PATCH. A stream of a protocol of its own, gRPC's for one, should get none.
	NeedsKey func(*http.Request) bool
	// Header is the field that carries the key. Default semelhttp.HeaderKey.
	Header string
	// BareKeys sends keys as they are, as Stripe and most others expect it,
	// instead of as a Structured Field String.
	BareKeys bool
	// Repeatability sends the header fields of OASIS Repeatable Requests 1.0,
	// Repeatability-Request-ID and Repeatability-First-Sent, instead of Header.
	// The second is the same in each try of an operation.
	Repeatability bool

	// MaxTries bounds how often a request is sent in one call. Default
	// DefaultMaxTries; 1 never retries.
	MaxTries int
	// MaxElapsed bounds a call: all its tries, and the waits between them, to
	// the header of the answer that is returned. A try that it ends may have
	// taken effect. If a Retry-After goes beyond it, the answer is returned at
	// once. Default DefaultMaxElapsed, so where one answer takes longer than
	// that, it has to be set.
	MaxElapsed time.Duration
	// TryTimeout bounds the time from the begin of a try to the header of its
	// answer. The first try begins with the reading of the request's body. A try
	// that it ends may have taken effect. Zero: no bound but MaxElapsed and the
	// request's context. (http.Client.Timeout is for all tries together, and
	// may put an error of its own, without key and effect, in place of the
	// Error. Prefer this and a context with a deadline.)
	TryTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait between tries. It is chosen at
	// random between zero and a bound that begins with MinBackoff and doubles up
	// to MaxBackoff. After a Retry-After, the wait is that and up to MinBackoff
	// more. Default DefaultMinBackoff and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
	// RetryStatus says of an answer with a status of 400 or more whether it asks
	// for another try of a request that may be tried again. It is not asked
	// where the answer itself says so (see Transport). h must not be changed.
	// Default: DefaultRetryStatus.
	RetryStatus func(status int, h http.Header) bool
	// MaxReplayBody is the largest request body in bytes that is kept in memory
	// to be sent again, where the request has no GetBody. Default
	// DefaultMaxReplayBody.
	MaxReplayBody int64

	// Observer is told what the transport does.
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
		errs = append(errs, fmt.Errorf("field Header is %q, which is no name of a header field", c.Header))
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
