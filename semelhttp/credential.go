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

// CredentialActor returns a function that names the actor where nothing
// authenticates callers before their keys are looked up: by a digest of the values
// of the named headers, in 32 hexadecimal digits. It is empty for a request with
// none of them. Neither the order of names nor their case matters; without any it is
// Authorization. The error says which of them cannot tell actors apart.
//
// A digest has a price. A refreshed credential is another actor, and a revoked
// one is still the actor that it was.
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
		return "is no header to Go programs"
	case "Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return "belongs to the connection"
	}
	return ""
}
