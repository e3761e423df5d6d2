package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// DefaultMaxBody is the default of Config.MaxBody. It is the limit of GitHub's
// deliveries.
const DefaultMaxBody = 25 << 20

// sendTimeout is how long senders wait for an answer, by and large.
const sendTimeout = 30 * time.Second

// Config configures an endpoint.
type Config struct {
	// Guard executes handlers and records results. Required.
	Guard *semel.Guard
	// Scheme is the sender's scheme. Required.
	Scheme Scheme

	// Name is the name of the endpoint and the operation of its records, such as
	// "stripe.events". Required. Endpoints with the same name share their events,
	// so an event that one has processed is processed for all.
	Name string
	// Sender identifies the sender that assigns the ids. It is the actor of the
	// records. Required.
	Sender string
	// Tenant is the receiver's account that the endpoint is for, if there are
	// several. Each needs its own secret and therefore its own endpoint.
	Tenant string

	// RetrySpan is the longest time from the first delivery of an event to the
	// last. Default: that of Scheme, by the sender's published schedule. If
	// deliveries repeated by hand must be safe too, set it to the time for which
	// the sender allows them.
	RetrySpan time.Duration
	// Retention is how long processed events are kept. It must be longer than
	// RetrySpan. Default: about twice RetrySpan, as computed by semel.RetryPlan,
	// or the retention of Guard's policy if that is longer.
	Retention time.Duration

	// MaxBody is the maximum size of a body in bytes. Larger bodies get the
	// status 413. Bodies of up to 256 KiB are held in memory; larger ones only
	// while they are verified, one at a time. Default DefaultMaxBody.
	MaxBody int64
	// Spools hold larger bodies. Default: as in semelhttp.Config.
	Spools *semelhttp.Spools
	// Pace limits how slow the sender may be. Default: as in semelhttp.Config.
	Pace semelhttp.Pace

	// Forwards says that the handler forwards deliveries to another server. A
	// failure in between, which is a 502, a 504 or a 503 without Retry-After,
	// then leaves the outcome unknown. Any other status that is not 2xx means
	// that the server has not processed the event.
	Forwards bool

	// Refused, if not nil, is called with deliveries that are not accepted, and
	// the reason. It should count them, because a secret that was changed on one
	// side only shows nowhere else. An id that is on record with another body is
	// reported to the Observer of Guard, as a mismatch. The body of r has been
	// read.
	Refused func(r *http.Request, err error)
}

// RetentionError reports that events would be forgotten while their sender may
// still deliver them.
type RetentionError struct {
	Retention time.Duration // as configured
	Needed    time.Duration // the shortest that will do
	RetrySpan time.Duration // which it is computed from
}

func (e *RetentionError) Error() string {
	return fmt.Sprintf("field Retention is %v; the sender may deliver an event again for %v, so it must be at least %v, or a late delivery would be processed again", e.Retention, e.RetrySpan, e.Needed)
}

// New returns a middleware that processes each event of a sender once, or an
// error that lists everything wrong with c. Its responses are described in the
// package documentation. The middleware panics when it is given a nil handler.
func New(c Config) (func(http.Handler) http.Handler, error) {
	guard, err := c.guard()
	if err == nil {
		e := &endpoint{c}
		var indeterminate func(int, http.Header) bool
		if c.Forwards {
			indeterminate = semelhttp.ForwardedIndeterminate
		}
		var protect func(http.Handler) http.Handler
		protect, err = semelhttp.New(semelhttp.Config{
			Guard:          guard,
			Scope:          func(*http.Request) (semel.Scope, error) { return e.scope(), nil },
			Protects:       func(*http.Request) bool { return true },
			KeyOf:          e.key,
			Contract:       contract,
			MaxWait:        -1, // senders do not wait; they come again
			Withhold:       true,
			Fingerprint:    semelhttp.FingerprintConfig{Mode: semelhttp.FingerprintRaw},
			MaxRequestBody: c.MaxBody,
			Spools:         c.Spools,
			Pace:           c.Pace,
			// Whatever is not 2xx asks the sender to come again. So it must find the
			// way free, and nothing done: a transaction is rolled back.
			NoEffectStatus:      func(status int, _ http.Header) bool { return status/100 != 2 },
			IndeterminateStatus: indeterminate,
			Forwards:            c.Forwards,
		})
		if err == nil {
			return func(next http.Handler) http.Handler { return e.receive(protect(next)) }, nil
		}
	}
	return nil, fmt.Errorf("webhook: endpoint: %w", err)
}

// guard checks c, fills in its defaults, and returns a guard that keeps records
// for as long as deliveries may come.
func (c *Config) guard() (*semel.Guard, error) {
	var errs []error
	for _, f := range []struct {
		name string
		lack bool
	}{{"Guard", c.Guard == nil}, {"Scheme", c.Scheme == nil}, {"Name", c.Name == ""}, {"Sender", c.Sender == ""}} {
		if f.lack {
			errs = append(errs, fmt.Errorf("field %s is required", f.name))
		}
	}
	id := semel.Identity{Scope: semel.Scope{Tenant: c.Tenant, Actor: c.Sender, Operation: c.Name}, Key: "k"}
	if err := id.Validate(); err != nil && c.Name != "" {
		errs = append(errs, fmt.Errorf("fields Tenant, Sender and Name: %w", err))
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.MaxBody < 0 {
		errs = append(errs, fmt.Errorf("field MaxBody is %d; it must not be negative", c.MaxBody))
	}
	if c.RetrySpan == 0 && c.Scheme != nil {
		c.RetrySpan = c.Scheme.RetrySpan()
	}
	plan := semel.RetryPlan{Window: c.RetrySpan, Timeout: sendTimeout}
	usual, err := plan.Retention()
	if err != nil {
		if c.Scheme != nil {
			errs = append(errs, fmt.Errorf("field RetrySpan, or the Scheme's, is %v; it must be positive, and not decades", c.RetrySpan))
		}
		return nil, errors.Join(errs...)
	}
	plan.Factor = 1
	least, _ := plan.Retention() // less than usual
	if c.Retention != 0 && c.Retention < least {
		errs = append(errs, &RetentionError{Retention: c.Retention, Needed: least, RetrySpan: c.RetrySpan})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	policy := c.Guard.Policy()
	if c.Retention == 0 {
		c.Retention = max(policy.Retention, usual)
	}
	policy.Retention = c.Retention
	return c.Guard.With(policy)
}

// endpoint is where one sender delivers.
type endpoint struct{ Config }

func (e *endpoint) scope() semel.Scope {
	return semel.Scope{Tenant: e.Tenant, Actor: e.Sender, Operation: e.Name}
}

type eventKey struct{}

// EventOf returns the event of the delivery that a handler was called for. It
// returns false if ctx is not from a request that passed through New.
func EventOf(ctx context.Context) (Event, bool) {
	ev, ok := ctx.Value(eventKey{}).(*Event)
	if !ok {
		return Event{}, false
	}
	return *ev, true
}

// receive lets deliveries in to be verified, and nothing else.
func (e *endpoint) receive(verified http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			contract.WriteProblem(w, semelhttp.Problem{
				Status: http.StatusMethodNotAllowed, Title: http.StatusText(http.StatusMethodNotAllowed), Retry: semel.RetryNo,
				Detail: "Deliveries are sent with POST.",
			})
			return
		}
		verified.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), eventKey{}, &Event{})))
	})
}

// key verifies a delivery and names its event.
func (e *endpoint) key(r *http.Request, body []byte) (string, semel.Fingerprint, error) {
	ev, err := e.Scheme.Verify(r.Header, body)
	if err == nil {
		err = checkID(ev.ID, "event id")
	}
	if err != nil {
		if e.Refused != nil {
			e.Refused(r, err)
		}
		return "", semel.Fingerprint{}, refusal(err)
	}
	sum := sha256.Sum256(body)
	if ev.Fingerprint.IsZero() {
		ev.Fingerprint = semel.FingerprintOf(sum[:])
	}
	key := ev.ID
	if ev.Unsigned {
		key += "~" + hex.EncodeToString(sum[:])
	}
	*r.Context().Value(eventKey{}).(*Event) = ev
	return key, ev.Fingerprint, nil
}

// refusal is the answer to a delivery that is not accepted: 403 where it could
// be read but is not the sender's, or not of now, and 400 otherwise.
func refusal(err error) error {
	refused := &semelhttp.ScopeError{Status: http.StatusForbidden, Detail: "The delivery was not accepted. Nothing was processed.", Err: err}
	if e, ok := errors.AsType[*Error](err); ok {
		refused.Detail = e.Error() + ". Nothing was processed."
		switch e.Reason {
		case ReasonNoMatch, ReasonTooOld, ReasonTooNew:
		default:
			refused.Status = http.StatusBadRequest
		}
	}
	return refused
}

// contract is what senders are told. They come again after anything that is not
// 2xx, but some of them not after a 4xx, so what time will mend is a 503.
var contract = semelhttp.Contract{
	Name: "webhook", KeyHeader: semelhttp.HeaderKey, ReplayedHeader: semelhttp.HeaderReplayed,
	Status: map[semelhttp.ProblemCase]int{
		semelhttp.ProblemInProgress:        http.StatusServiceUnavailable,
		semelhttp.ProblemOutcomeUnknown:    http.StatusServiceUnavailable,
		semelhttp.ProblemResultNotRetained: http.StatusOK,
	},
	Render: render,
}

// texts replace those that speak of keys, which senders of events have none of.
var texts = map[semelhttp.ProblemCase]struct{ title, detail string }{
	semelhttp.ProblemInProgress: {
		"The event is being processed",
		"An earlier delivery of this event is still being processed. Deliver it again to learn what came of it.",
	},
	semelhttp.ProblemOutcomeUnknown: {
		"It is not known whether the event was processed",
		"A delivery of this event was cut off while it was being processed. It is not processed again until it is settled what came of that.",
	},
	semelhttp.ProblemResultNotRetained: {
		"The event has been processed",
		"An earlier delivery of this event was processed. It is not processed again.",
	},
	semelhttp.ProblemResultUnreadable: {
		"The event has been processed, but the answer cannot be read now",
		"An earlier delivery of this event was processed. It is not processed again. Deliver it again to learn what was answered.",
	},
	semelhttp.ProblemKeyMismatch: {
		"The event id is taken by another event",
		"An event with this id but another body was delivered before. This one was not processed. An id stands for one event.",
	},
	semelhttp.ProblemRolledBack: {
		"The event was not processed",
		"The event was processed in a transaction that was rolled back, so nothing came of it. Deliver it again.",
	},
	semelhttp.ProblemStoreUnavailable: {
		"The event cannot be recorded now",
		"What came of this event cannot be read or recorded now. Deliver it again.",
	},
}

func render(_ http.Header, p semelhttp.Problem) (mediaType string, body []byte) {
	kind, _ := p.Case()
	if t, ok := texts[kind]; ok {
		p.Title, p.Detail = t.title, t.detail
	}
	body, err := p.MarshalJSON()
	if err != nil {
		panic(err) // strings and an int always marshal
	}
	return semelhttp.ContentTypeProblem, body
}
