package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// Scheme verifies the deliveries of a sender. Standard, Stripe and GitHub are
// schemes; others can be added. Its methods must be safe for concurrent use.
type Scheme interface {
	// Verify returns the event of a delivery, or an error if the delivery is not
	// accepted. The text of an *Error is sent to the sender; other errors are
	// not. header has canonical names. body is the body as it was sent, before
	// any decoding; it must not be modified or retained.
	Verify(header http.Header, body []byte) (Event, error)
	// RetrySpan returns the longest time from the first delivery of an event to
	// the last, by the sender's published schedule.
	RetrySpan() time.Duration
}

// Signer is the sending side of a scheme.
type Signer interface {
	// Sign returns the header fields for a delivery of body. All deliveries of
	// an event have the same id. The signature contains the current time, so
	// each delivery has to be signed anew.
	Sign(id string, body []byte) (http.Header, error)
}

// Event is the event of a verified delivery.
type Event struct {
	// ID is the id that all deliveries of the event share, 1 to MaxIDBytes
	// bytes of visible ASCII.
	ID string
	// Unsigned says that the signature does not cover the ID. Anyone who has
	// seen a delivery could then send its body with the id of another event, so
	// the event is identified by the ID together with a digest of the body.
	Unsigned bool
	// SignedAt is when the delivery was signed, by the sender's clock. It is zero
	// if the scheme has no time. Anyone who has seen a delivery can then send it
	// again later, and only the record prevents it from being processed again.
	SignedAt time.Time
	// Fingerprint is the fingerprint of what all deliveries of the event have
	// in common. Zero means the whole body.
	Fingerprint semel.Fingerprint
}

// MaxIDBytes is the maximum length of an event's id.
const MaxIDBytes = semel.MaxKeyBytes - 1 - 2*sha256.Size // with a digest behind it, it is a key

// Limits of a delivery's header. A sender that rotates its secret sends two
// signatures.
const (
	// MaxSignatures is the maximum number of signatures of a delivery, including
	// those of unknown versions.
	MaxSignatures = 8
	// MaxSignatureBytes is the maximum length of the header field with the
	// signatures.
	MaxSignatureBytes = 4 << 10
)

// DefaultTolerance is the default of how far the time of signing may be from
// the receiver's clock.
const DefaultTolerance = 5 * time.Minute

// Reason is the reason why a delivery is not accepted.
type Reason uint8

const (
	// ReasonMissing means that the part is missing.
	ReasonMissing Reason = iota + 1
	// ReasonRepeated means that the part occurs more than once.
	ReasonRepeated
	// ReasonTooLong means that the part is larger than Error.Limit, or has more
	// elements.
	ReasonTooLong
	// ReasonMalformed means that the part is not what Error.Want says.
	ReasonMalformed
	// ReasonNoMatch means that no signature matches the body and one of the
	// secrets.
	ReasonNoMatch
	// ReasonTooOld means that the delivery was signed longer ago than is tolerated.
	// Either a clock is wrong, or somebody has repeated an old delivery.
	ReasonTooOld
	// ReasonTooNew means that the time of signing is in the future.
	ReasonTooNew
)

// Error reports why a delivery is not accepted. It contains no secret, no
// signature and nothing of the delivery except the time of signing, so it may be
// logged and sent to the sender.
type Error struct {
	Reason Reason
	// Part is the part that is wrong, such as "Webhook-Id header".
	Part string
	// Want says what a part must be, for ReasonMalformed.
	Want string
	// Limit is the limit that a part exceeds, for ReasonTooLong.
	Limit int

	// SignedAt, Now and Tolerance are, for ReasonTooOld and ReasonTooNew, the
	// sender's time, the receiver's time, and how far they may be apart.
	SignedAt, Now time.Time
	Tolerance     time.Duration
}

func (e *Error) Error() string {
	switch e.Reason {
	case ReasonMissing:
		return "webhook: the delivery has no " + e.Part
	case ReasonRepeated:
		return "webhook: the delivery has more than one " + e.Part
	case ReasonTooLong:
		return fmt.Sprintf("webhook: the %s is too large: the limit is %d", e.Part, e.Limit)
	case ReasonMalformed:
		return "webhook: the " + e.Part + " is not " + e.Want
	case ReasonNoMatch:
		return "webhook: no signature in the " + e.Part + " matches: it was made with another secret, or what was signed is not what arrived"
	case ReasonTooOld, ReasonTooNew:
		apart, where := e.Now.Sub(e.SignedAt), "behind"
		if e.Reason == ReasonTooNew {
			apart, where = -apart, "ahead of"
		}
		return fmt.Sprintf("webhook: the delivery was signed at %s, %v %s the receiver's clock (%s); %v are tolerated",
			e.SignedAt.UTC().Format(time.RFC3339), apart.Truncate(time.Second), where, e.Now.UTC().Format(time.RFC3339), e.Tolerance)
	}
	return "webhook: the delivery is not accepted"
}

// line returns the value of a header field that must be there once.
func line(h http.Header, name string, limit int) (string, error) {
	part := name + " header"
	switch values := h[name]; {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", &Error{Reason: ReasonMissing, Part: part}
	case len(values) > 1:
		return "", &Error{Reason: ReasonRepeated, Part: part}
	case len(values[0]) > limit:
		return "", &Error{Reason: ReasonTooLong, Part: part, Limit: limit}
	default:
		return values[0], nil
	}
}

// checkID reports what is wrong with an event's id that was found in part.
func checkID(id, part string) error {
	switch {
	case id == "":
		return &Error{Reason: ReasonMissing, Part: part}
	case len(id) > MaxIDBytes:
		return &Error{Reason: ReasonTooLong, Part: part, Limit: MaxIDBytes}
	case strings.IndexFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }) >= 0:
		return &Error{Reason: ReasonMalformed, Part: part, Want: "an id of visible ASCII characters"}
	}
	return nil
}

// unixTime reads a time as it is signed: digits alone, as far as they reach
// beyond all our clocks.
func unixTime(s, part string) (time.Time, error) {
	n, err := strconv.ParseUint(s, 10, 64) // no sign, no underscore
	if err != nil || len(s) > 11 {
		return time.Time{}, &Error{Reason: ReasonMalformed, Part: part, Want: "a Unix time in seconds"}
	}
	return time.Unix(int64(n), 0), nil
}

// clock says what a time of signing must be.
type clock struct {
	tolerance time.Duration
	now       func() time.Time
}

func newClock(tolerance time.Duration, now func() time.Time) (clock, error) {
	c := clock{tolerance: tolerance, now: now}
	if c.tolerance == 0 {
		c.tolerance = DefaultTolerance
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.tolerance < 0 {
		return c, fmt.Errorf("field Tolerance is %v; it must not be negative", c.tolerance)
	}
	return c, nil
}

func (c clock) check(signed time.Time) error {
	now := c.now()
	e := &Error{SignedAt: signed, Now: now, Tolerance: c.tolerance}
	switch {
	case now.Sub(signed) > c.tolerance:
		e.Reason = ReasonTooOld
	case signed.Sub(now) > c.tolerance:
		e.Reason = ReasonTooNew
	default:
		return nil
	}
	return e
}

// checkSecret reports what makes a secret certainly a mistake. No error says
// what it is.
func checkSecret(i int, secret string) error {
	switch {
	case secret == "":
		return fmt.Errorf("field Secrets[%d] is empty: anybody could sign with it", i)
	case strings.TrimSpace(secret) != secret:
		return fmt.Errorf("field Secrets[%d] begins or ends with white space, as from the end of a file", i)
	}
	return nil
}

func textSecrets(secrets []string) (keys [][]byte, err error) {
	var errs []error
	if len(secrets) == 0 {
		errs = append(errs, errors.New("field Secrets is empty"))
	}
	for i, s := range secrets {
		if err := checkSecret(i, s); err != nil {
			errs = append(errs, err)
		}
		keys = append(keys, []byte(s))
	}
	return keys, errors.Join(errs...)
}

// mac digests parts, one after the other.
func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// matches reports whether one of the signatures is that of parts by one of the
// keys. It compares all with all, in the same time whatever they are.
func matches(keys, signatures [][]byte, parts ...[]byte) bool {
	found := false
	for _, key := range keys {
		want := mac(key, parts...)
		for _, s := range signatures {
			found = hmac.Equal(want, s) || found
		}
	}
	return found
}

var dot = []byte(".")
