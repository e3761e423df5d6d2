package webhook

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// Standard is the scheme of Standard Webhooks 1.0: the header fields
// webhook-id, webhook-timestamp and webhook-signature, the last with one or
// more signatures of id, time and body, by HMAC-SHA256 (v1) or ed25519 (v1a).
//
// It is safe for concurrent use.
type Standard struct {
	clock
	id, timestamp, signature string // names of the fields

	keys    [][]byte
	private []ed25519.PrivateKey
	public  []ed25519.PublicKey // also those of the private keys
}

// StandardConfig configures a Standard.
type StandardConfig struct {
	// Secrets are shared secrets ("whsec_..."), public keys ("whpk_...") and
	// private keys ("whsk_...") in the format of the specification. One without a
	// prefix is a shared secret. A delivery is accepted if any signature matches
	// any of them. Sign uses all that can sign. At least one is required, and at
	// most MaxSignatures.
	Secrets []string
	// Tolerance is how far the time of signing may be from Now, in the past or
	// the future. Default DefaultTolerance.
	Tolerance time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Prefix is the prefix of the header fields. Default "webhook-". Some
	// senders use the same scheme with "svix-".
	Prefix string
}

// Prefixes of secrets.
const (
	prefixShared  = "whsec_"
	prefixPrivate = "whsk_"
	prefixPublic  = "whpk_"
)

// NewSecret returns a new shared secret of 32 random bytes in the format of
// Standard.
func NewSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
	return prefixShared + base64.StdEncoding.EncodeToString(b[:])
}

// NewKeyPair returns a new private key and its public key in the format of
// Standard. Only the sender must have the private key.
func NewKeyPair() (private, public string) {
	pub, priv, _ := ed25519.GenerateKey(nil) // never fails, likewise
	return prefixPrivate + base64.StdEncoding.EncodeToString(priv.Seed()),
		prefixPublic + base64.StdEncoding.EncodeToString(pub)
}

// NewStandard returns the scheme, or an error that lists everything wrong with
// c and contains no secret.
func NewStandard(c StandardConfig) (*Standard, error) {
	clock, err := newClock(c.Tolerance, c.Now)
	errs := []error{err}
	if c.Prefix == "" {
		c.Prefix = "webhook-"
	}
	name := func(s string) string { return textproto.CanonicalMIMEHeaderKey(c.Prefix + s) }
	s := &Standard{clock: clock, id: name("id"), timestamp: name("timestamp"), signature: name("signature")}
	if strings.ContainsFunc(c.Prefix, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		errs = append(errs, fmt.Errorf("field Prefix is %q, which no field's name begins with", c.Prefix))
	}
	if len(c.Secrets) == 0 || len(c.Secrets) > MaxSignatures {
		errs = append(errs, fmt.Errorf("field Secrets has %d secrets; it must have 1 to %d", len(c.Secrets), MaxSignatures))
	}
	for i, secret := range c.Secrets {
		errs = append(errs, s.add(i, secret))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("webhook: standard: %w", err)
	}
	return s, nil
}

func (s *Standard) add(i int, secret string) error {
	if err := checkSecret(i, secret); err != nil {
		return err
	}
	kind, text := prefixShared, secret
	for _, p := range []string{prefixShared, prefixPrivate, prefixPublic} {
		if rest, ok := strings.CutPrefix(secret, p); ok {
			kind, text = p, rest
		}
	}
	key, err := base64.StdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return fmt.Errorf("field Secrets[%d] is not in base64", i) // err could quote it
	case len(key) == 0:
		return fmt.Errorf("field Secrets[%d] is empty: anybody could sign with it", i)
	case kind == prefixShared:
		s.keys = append(s.keys, key)
	case kind == prefixPublic && len(key) == ed25519.PublicKeySize:
		s.public = append(s.public, key)
	case kind == prefixPrivate && (len(key) == ed25519.SeedSize || len(key) == ed25519.PrivateKeySize):
		// In both forms that are in use it begins with the seed.
		private := ed25519.NewKeyFromSeed(key[:ed25519.SeedSize])
		s.private = append(s.private, private)
		s.public = append(s.public, private.Public().(ed25519.PublicKey))
	default:
		return fmt.Errorf("field Secrets[%d] is a %s key of %d bytes, which ed25519 does not have", i, strings.TrimSuffix(kind, "_"), len(key))
	}
	return nil
}

// Verify implements Scheme.
func (s *Standard) Verify(header http.Header, body []byte) (Event, error) {
	id, err := s.idOf(header)
	if err != nil {
		return Event{}, err
	}
	timestamp, err := line(header, s.timestamp, MaxIDBytes)
	if err != nil {
		return Event{}, err
	}
	signed, err := unixTime(timestamp, s.timestamp+" header")
	if err != nil {
		return Event{}, err
	}
	list, err := line(header, s.signature, MaxSignatureBytes)
	if err != nil {
		return Event{}, err
	}
	v1, v1a, err := standardSignatures(list, s.signature+" header")
	if err != nil {
		return Event{}, err
	}

	parts := [][]byte{[]byte(id), dot, []byte(timestamp), dot, body}
	ok := matches(s.keys, v1, parts...)
	if !ok && len(v1a) > 0 && len(s.public) > 0 {
		message := bytes.Join(parts, nil)
		for _, key := range s.public {
			for _, sig := range v1a {
				ok = ok || ed25519.Verify(key, message, sig)
			}
		}
	}
	if !ok {
		return Event{}, &Error{Reason: ReasonNoMatch, Part: s.signature + " header"}
	}
	if err := s.check(signed); err != nil {
		return Event{}, err
	}
	return Event{ID: id, SignedAt: signed}, nil
}

func (s *Standard) idOf(header http.Header) (string, error) {
	id, err := line(header, s.id, MaxIDBytes)
	if err == nil {
		err = checkStandardID(id, s.id+" header")
	}
	return id, err
}

// checkStandardID also refuses dots. What is signed is id, time and body with
// dots between, so of a body that begins with a number and a dot a part could be
// moved into the time, and the time into an id.
func checkStandardID(id, part string) error {
	if err := checkID(id, part); err != nil {
		return err
	}
	if strings.Contains(id, ".") {
		return &Error{Reason: ReasonMalformed, Part: part, Want: "an id without dots, which would leave open where it ends"}
	}
	return nil
}

// standardSignatures reads a list such as "v1,a2V5= v1a,a2V5=". Other versions,
// and what is no signature, are left out: the next version of the specification
// may have them.
func standardSignatures(list, part string) (v1, v1a [][]byte, err error) {
	if n := strings.Count(list, " ") + 1; n > MaxSignatures {
		return nil, nil, &Error{Reason: ReasonTooLong, Part: "list of signatures in the " + part, Limit: MaxSignatures}
	}
	for entry := range strings.SplitSeq(list, " ") {
		version, text, _ := strings.Cut(entry, ",")
		if version != "v1" && version != "v1a" {
			continue
		}
		sig, err := base64.StdEncoding.DecodeString(text)
		switch {
		case err != nil:
		case version == "v1":
			v1 = append(v1, sig)
		default:
			v1a = append(v1a, sig)
		}
	}
	if len(v1)+len(v1a) == 0 {
		return nil, nil, &Error{Reason: ReasonMalformed, Part: part, Want: "a list with a signature v1 or v1a in it"}
	}
	return v1, v1a, nil
}

// RetrySpan implements Scheme. It returns 75 h 35 min 5 s, as in the
// specification's example. Senders may differ; see Config.RetrySpan.
func (s *Standard) RetrySpan() time.Duration {
	return 75*time.Hour + 35*time.Minute + 5*time.Second
}

// Sign implements Signer. The id must not contain dots.
func (s *Standard) Sign(id string, body []byte) (http.Header, error) {
	if err := checkStandardID(id, "id"); err != nil {
		return nil, err
	}
	if len(s.keys)+len(s.private) == 0 {
		return nil, errors.New("webhook: standard: public keys cannot sign")
	}
	timestamp := strconv.FormatInt(s.now().Unix(), 10)
	parts := [][]byte{[]byte(id), dot, []byte(timestamp), dot, body}
	var list []string
	for _, key := range s.keys {
		list = append(list, "v1,"+base64.StdEncoding.EncodeToString(mac(key, parts...)))
	}
	for _, key := range s.private {
		list = append(list, "v1a,"+base64.StdEncoding.EncodeToString(ed25519.Sign(key, bytes.Join(parts, nil))))
	}
	return http.Header{
		s.id: {id}, s.timestamp: {timestamp}, s.signature: {strings.Join(list, " ")},
	}, nil
}
