package semel

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
)

// Fingerprint is a digest of a request. It shows whether two submits of one
// identity are the same request. It is not part of the identity. The zero
// Fingerprint is not compared.
type Fingerprint struct {
	// Scheme says how the digest was made, with a version, for example
	// "request/2". Fingerprints of different schemes cannot be compared.
	Scheme string
	// Sum is a SHA-256 digest.
	Sum [sha256.Size]byte
}

// SchemeParts is the scheme of FingerprintOf.
const SchemeParts = "parts/1"

// FingerprintOf returns the fingerprint of parts in their order. Parts are framed
// by their lengths, so that ("ab", "c") and ("a", "bc") differ.
func FingerprintOf(parts ...[]byte) Fingerprint {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	f := Fingerprint{Scheme: SchemeParts}
	h.Sum(f.Sum[:0])
	return f
}

// IsZero reports whether f is the zero Fingerprint.
func (f Fingerprint) IsZero() bool { return f.Scheme == "" }

// Differs reports whether f and g certainly come from different requests. It
// reports false if this is not known, because one of them is zero or their schemes
// differ.
func (f Fingerprint) Differs(g Fingerprint) bool {
	if f.IsZero() || g.IsZero() || f.Scheme != g.Scheme {
		return false
	}
	return subtle.ConstantTimeCompare(f.Sum[:], g.Sum[:]) == 0
}
