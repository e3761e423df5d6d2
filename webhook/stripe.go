package webhook

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// Stripe is the scheme of Stripe's webhooks: a header field Stripe-Signature
// with the time and one or more signatures of time and body, by HMAC-SHA256. The
// id is that of the event in the body. The field pending_webhooks of the event
// may change from one delivery to the next, so it is not part of the
// fingerprint.
//
// It is safe for concurrent use.
type Stripe struct {
	clock
	keys [][]byte
}

// StripeConfig configures a Stripe.
type StripeConfig struct {
	// Secrets are the secrets of the endpoint, as shown by Stripe ("whsec_...").
	// A delivery is accepted if any signature matches any of them. Sign uses all
	// of them. At least one is required, and at most MaxSignatures.
	Secrets []string
	// Tolerance is how far the time of signing may be from Now, in the past or
	// the future. Default DefaultTolerance.
	Tolerance time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// HeaderStripeSignature is the header field with Stripe's signatures.
const HeaderStripeSignature = "Stripe-Signature"

// NewStripe returns the scheme, or an error that lists everything wrong with c
// and contains no secret.
func NewStripe(c StripeConfig) (*Stripe, error) {
	keys, err := textSecrets(c.Secrets)
	clock, err2 := newClock(c.Tolerance, c.Now)
	if len(keys) > MaxSignatures {
		err = errors.Join(err, fmt.Errorf("field Secrets has %d secrets; at most %d are possible", len(keys), MaxSignatures))
	}
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("webhook: stripe: %w", err)
	}
	return &Stripe{clock: clock, keys: keys}, nil
}

// Verify implements Scheme.
func (s *Stripe) Verify(header http.Header, body []byte) (Event, error) {
	v, err := line(header, HeaderStripeSignature, MaxSignatureBytes)
	if err != nil {
		return Event{}, err
	}
	timestamp, signatures, err := stripeSignatures(v)
	if err != nil {
		return Event{}, err
	}
	signed, err := unixTime(timestamp, "t in the Stripe-Signature header")
	if err != nil {
		return Event{}, err
	}
	if !matches(s.keys, signatures, []byte(timestamp), dot, body) {
		return Event{}, &Error{Reason: ReasonNoMatch, Part: "Stripe-Signature header"}
	}
	if err := s.check(signed); err != nil {
		return Event{}, err
	}
	ev, err := stripeEvent(body)
	if err != nil {
		return Event{}, err
	}
	ev.SignedAt = signed
	return ev, nil
}

// stripeSignatures reads a field such as "t=1,v1=00,v1=11,v0=22". Signatures of
// other versions, and what is no signature, are left out.
func stripeSignatures(v string) (timestamp string, v1 [][]byte, err error) {
	const part = "Stripe-Signature header"
	if strings.Count(v, ",") > MaxSignatures { // with t, one more than signatures
		return "", nil, &Error{Reason: ReasonTooLong, Part: "list of signatures in the " + part, Limit: MaxSignatures}
	}
	for entry := range strings.SplitSeq(v, ",") {
		name, value, ok := strings.Cut(entry, "=")
		switch {
		case !ok:
			return "", nil, &Error{Reason: ReasonMalformed, Part: part, Want: "a list of names and values"}
		case name == "t" && timestamp != "":
			return "", nil, &Error{Reason: ReasonRepeated, Part: "t in the " + part}
		case name == "t":
			timestamp = value
		case name == "v1":
			if sig, err := hex.DecodeString(value); err == nil {
				v1 = append(v1, sig)
			}
		}
	}
	switch {
	case timestamp == "":
		return "", nil, &Error{Reason: ReasonMissing, Part: "t in the " + part}
	case len(v1) == 0:
		return "", nil, &Error{Reason: ReasonMissing, Part: "signature v1 in the " + part}
	}
	return timestamp, v1, nil
}

// stripeEvent reads the event in a body whose signature has been checked.
func stripeEvent(body []byte) (Event, error) {
	const part = "id of the event in the body"
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil || members == nil {
		return Event{}, &Error{Reason: ReasonMalformed, Part: "body", Want: "a JSON object"}
	}
	if members["id"] == nil {
		return Event{}, &Error{Reason: ReasonMissing, Part: part}
	}
	var ev Event
	if json.Unmarshal(members["id"], &ev.ID) != nil {
		return Event{}, &Error{Reason: ReasonMalformed, Part: part, Want: "a string"}
	}
	if err := checkID(ev.ID, part); err != nil {
		return Event{}, err
	}
	delete(members, "pending_webhooks")
	rest, err := json.Marshal(members) // sorted
	if err != nil {
		return Event{}, &Error{Reason: ReasonMalformed, Part: "body", Want: "a JSON object"}
	}
	ev.Fingerprint = semel.FingerprintOf([]byte("stripe event"), rest)
	return ev, nil
}

// RetrySpan implements Scheme. It returns 3 days, Stripe's schedule in live mode.
// Events can be resent by hand for longer; see Config.RetrySpan.
func (s *Stripe) RetrySpan() time.Duration { return 3 * 24 * time.Hour }

// Sign implements Signer. The body already contains the id. id must be equal to
// it or empty.
func (s *Stripe) Sign(id string, body []byte) (http.Header, error) {
	ev, err := stripeEvent(body)
	if err != nil {
		return nil, err
	}
	if id != "" && id != ev.ID {
		return nil, errors.New("webhook: stripe: the id of the event in the body is another")
	}
	timestamp := strconv.FormatInt(s.now().Unix(), 10)
	v := "t=" + timestamp
	for _, key := range s.keys {
		v += ",v1=" + hex.EncodeToString(mac(key, []byte(timestamp), dot, body))
	}
	return http.Header{HeaderStripeSignature: {v}}, nil
}
