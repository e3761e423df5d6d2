// Package credential tells actors apart by what they send, without knowing what
// it means.
package credential

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/semelhq/semel/internal/httpfield"
	"github.com/semelhq/semel/semelhttp"
)

// domain keeps these digests apart from all others of the same bytes. It is that
// of semelhttp.CredentialActor, whose digests have other parts.
const domain = "semel gateway actor/1"

// Digest is a digest of the parts, in 32 hexadecimal digits. Other parts have
// another digest, even where they are the same in one piece.
func Digest(parts ...string) string {
	digest := sha256.New()
	var frame [8]byte
	add := func(s string) {
		binary.BigEndian.PutUint64(frame[:], uint64(len(s)))
		digest.Write(frame[:])
		digest.Write([]byte(s))
	}
	add(domain)
	for _, p := range parts {
		add(p)
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(digest.Sum(sum[:0])[:16])
}

// Host is the request's host without what does not matter: case, the default
// port, the dot of the root.
func Host(r *http.Request) string {
	host := strings.ToLower(r.Host)
	port := ":80"
	if r.TLS != nil {
		port = ":443"
	}
	host = strings.TrimSuffix(host, port)
	return strings.TrimSuffix(host, ".")
}

// WhyNot says why the named header cannot tell actors apart; empty if it can.
func WhyNot(name string) string {
	if !httpfield.IsToken(name) {
		return "is not a header name"
	}
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case semelhttp.HeaderKey:
		return "is the key itself"
	case "Host":
		return "is not part of the header that Go programs see; use PreserveHost"
	case "Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return "belongs to the connection"
	}
	return ""
}

// Names returns the canonical names in a fixed order, each once.
func Names(names []string) []string {
	var canonical []string
	for _, n := range names {
		canonical = append(canonical, textproto.CanonicalMIMEHeaderKey(n))
	}
	slices.Sort(canonical)
	return slices.Compact(canonical)
}
