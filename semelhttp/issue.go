package semelhttp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// MinSecretBytes is the length of the shortest secret that a KeyIssuer accepts.
const MinSecretBytes = 32

// DefaultKeyLife is the default of KeyIssuerConfig.Life.
const DefaultKeyLife = time.Hour

// issuedPrefix marks issued keys; its digit is the version of their form.
const issuedPrefix = "isk1_"

// KeyIssuerConfig is the configuration of a KeyIssuer.
type KeyIssuerConfig struct {
	// Secrets sign and verify keys. The first signs, and all verify. Each has at least
	// MinSecretBytes. Required.
	//
	// To change the secret, first add the new one behind the old one on every host, so
	// that all of them accept its keys, and then put it first. Keep the old one until
	// Life, Skew and the longest retention have passed since, and no outcome from before
	// is unknown. Without it, its keys are refused as if they had not been issued, and
	// clients are told to use other keys, even for operations that have executed.
	Secrets [][]byte
	// Life is the time after its issue in which a key can be used for the first time.
	// Default DefaultKeyLife.
	Life time.Duration
	// Skew is the largest difference between the clocks of the store and of the hosts
	// that issue and verify keys. Default 5 min.
	Skew time.Duration
	// Retention is the shortest retention of the operations that keys are issued for.
	// It must be longer than Life plus twice Skew, so that a key expires before a
	// record of its use can be gone. Required.
	Retention time.Duration
}

// KeyIssuer issues keys: a client asks for a key and uses it in a second request. An
// issued key is a signature over its scope and the time. It is not stored, so a lost
// response to the first request does no harm.
//
// A key can only be used in the scope that it was issued to. When its life is over, it
// still gets the result of an earlier use but executes nothing. A KeyIssuer is safe
// for concurrent use.
type KeyIssuer struct {
	config KeyIssuerConfig
	now    func() time.Time
}

// NewKeyIssuer returns a KeyIssuer for c. The error names everything that is wrong
// with c.
func NewKeyIssuer(c KeyIssuerConfig) (*KeyIssuer, error) {
	if c.Life == 0 {
		c.Life = DefaultKeyLife
	}
	if c.Skew == 0 {
		c.Skew = 5 * time.Minute
	}
	var errs []error
	if len(c.Secrets) == 0 {
		errs = append(errs, errors.New("field Secrets is empty"))
	}
	secrets := make([][]byte, len(c.Secrets))
	for i, s := range c.Secrets {
		if len(s) < MinSecretBytes {
			errs = append(errs, fmt.Errorf("field Secrets[%d] has %d bytes; at least %d are needed", i, len(s), MinSecretBytes))
		}
		secrets[i] = append([]byte(nil), s...)
	}
	c.Secrets = secrets
	if c.Life < 0 || c.Skew < 0 {
		errs = append(errs, errors.New("field Life and Skew must not be negative"))
	}
	if c.Life+2*c.Skew >= c.Retention {
		errs = append(errs, fmt.Errorf("field Retention is %v; it must be longer than Life %v and twice Skew %v together", c.Retention, c.Life, c.Skew))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("semelhttp: key issuer: %w", err)
	}
	return &KeyIssuer{config: c, now: time.Now}, nil
}

// An issued key is the prefix and, in base64url: flags (1 byte), the end of its
// life in Unix seconds (8), a nonce (16), and the first half of the HMAC-SHA-256
// over all that and the scope.
const (
	issuedBody = 1 + 8 + 16
	issuedMAC  = 16

	flagOperation = 1 << 0 // bound to one operation, not to all of the caller's
)

// Issue returns a fresh key for the scope, and the end of its life. If the Operation
// is empty, the key can be used for any operation of the tenant and actor.
func (k *KeyIssuer) Issue(s semel.Scope) (key string, expires time.Time) {
	expires = k.now().Add(k.config.Life).Truncate(time.Second)
	raw := make([]byte, issuedBody, issuedBody+issuedMAC)
	if s.Operation != "" {
		raw[0] = flagOperation
	}
	binary.BigEndian.PutUint64(raw[1:], uint64(expires.Unix()))
	_, _ = rand.Read(raw[9:issuedBody]) // never fails: crypto/rand aborts the process instead
	raw = append(raw, k.mac(k.config.Secrets[0], raw, s)...)
	return issuedPrefix + base64.RawURLEncoding.EncodeToString(raw), expires
}

// ErrKeyExpired is the error of KeyIssuer.Verify for a key that was issued to the
// scope and has expired. It must not execute anything.
var ErrKeyExpired = errors.New("semelhttp: the issued key has expired")

// ErrKeyNotIssued is the error of KeyIssuer.Verify for anything that is not a key
// issued to the scope.
var ErrKeyNotIssued = errors.New("semelhttp: the key was not issued to this scope")

// Verify returns nil if key was issued to the scope and can be used, and otherwise
// ErrKeyExpired or ErrKeyNotIssued.
func (k *KeyIssuer) Verify(key string, s semel.Scope) error {
	text, ok := strings.CutPrefix(key, issuedPrefix)
	if !ok || len(text) != base64.RawURLEncoding.EncodedLen(issuedBody+issuedMAC) {
		return ErrKeyNotIssued
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || raw[0]&^flagOperation != 0 {
		return ErrKeyNotIssued
	}
	if raw[0]&flagOperation == 0 {
		s.Operation = ""
	}
	body, mac := raw[:issuedBody], raw[issuedBody:]
	genuine := false
	for _, secret := range k.config.Secrets {
		genuine = hmac.Equal(mac, k.mac(secret, body, s)) || genuine
	}
	if !genuine {
		return ErrKeyNotIssued
	}
	// Late by the skew at most: that is what Retention has room for.
	if end := time.Unix(int64(binary.BigEndian.Uint64(body[1:])), 0); !k.now().Before(end.Add(k.config.Skew)) {
		return ErrKeyExpired
	}
	return nil
}

// mac binds the body of a key to its scope.
func (k *KeyIssuer) mac(secret, body []byte, s semel.Scope) []byte {
	h := hmac.New(sha256.New, secret)
	var frame [8]byte
	for _, part := range []string{"semelhttp issued key/1", string(body), s.Tenant, s.Actor, s.Operation} {
		binary.BigEndian.PutUint64(frame[:], uint64(len(part)))
		h.Write(frame[:])
		h.Write([]byte(part))
	}
	return h.Sum(nil)[:issuedMAC]
}
