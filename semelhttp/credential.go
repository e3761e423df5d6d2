package semelhttp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/semelhq/semel/internal/httpfield"
)

// credentialDomain keeps these digests apart from all others of the same bytes.
// Identities on record depend on it.
const credentialDomain = "semel gateway actor/1"

// CredentialActor returns a function that returns an actor for a request header: a
// digest of the values of the named fields, in 32 hexadecimal digits, or "" if the
// header has none of them. Neither the order nor the case of the names matters.
// Without names, the field is Authorization. The error names the fields that cannot
// tell actors apart.
//
// It is for servers that do not authenticate callers before their keys are looked up.
// A refreshed credential is another actor, and a revoked one remains the same actor.
func CredentialActor(names ...string) (func(http.Header) string, error) {
	if len(names) == 0 {
		names = []string{"Authorization"}
	}
	var canonical []string
	var errs []error
	for _, name := range names {
		if why := whyNoCredential(name); why != "" {
			errs = append(errs, fmt.Errorf("%q, which %s", name, why))
		}
		canonical = append(canonical, textproto.CanonicalMIMEHeaderKey(name))
	}
	slices.Sort(canonical)
	canonical = slices.Compact(canonical)
	return func(h http.Header) string { return credentialActor(h, canonical) }, errors.Join(errs...)
}

func credentialActor(h http.Header, names []string) string {
	digest := sha256.New()
	var frame [8]byte
	add := func(s string) {
		binary.BigEndian.PutUint64(frame[:], uint64(len(s)))
		digest.Write(frame[:])
		digest.Write([]byte(s))
	}
	add(credentialDomain)
	known := false
	for _, name := range names {
		for _, v := range h[name] {
			if v = strings.Trim(v, " \t"); v != "" {
				known = true
				add(name)
				add(v)
			}
		}
	}
	if !known {
		return ""
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(digest.Sum(sum[:0])[:16])
}

// whyNoCredential says why the named header cannot tell actors apart.
func whyNoCredential(name string) string {
	if !httpfield.IsToken(name) {
		return "is not a header name"
	}
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case HeaderKey:
		return "is the key itself"
	case "Host":
		return "is not part of the header that Go programs see"
	case "Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return "belongs to the connection"
	}
	return ""
}
