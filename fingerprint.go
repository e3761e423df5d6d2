package semel

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
)

// Fingerprint is a digest of what was asked. It decides whether two submits
// that share an identity ask for the same thing; it is never part of the
// identity. The zero Fingerprint means "not compared".
type Fingerprint struct {
	// Scheme names how the digest was made, with its version, for example
	// "request/2". Fingerprints of different schemes cannot be compared.
	Scheme string
	// Sum is a SHA-256 digest.
	Sum [sha256.Size]byte
}

// SchemeParts is the scheme of FingerprintOf.
const SchemeParts = "parts/1"

// FingerprintOf digests parts in order. Parts are framed by their lengths, so
// ("ab","c") and ("a","bc") differ.
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

// Differs reports whether f and g certainly come from different requests.
// Where that cannot be known (one is zero, or another version of the software
// made it by another scheme) it reports false: a doubt is never a mismatch.
func (f Fingerprint) Differs(g Fingerprint) bool {
	if f.IsZero() || g.IsZero() || f.Scheme != g.Scheme {
		return false
	}
	return subtle.ConstantTimeCompare(f.Sum[:], g.Sum[:]) == 0
}
