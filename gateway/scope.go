package gateway

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// actorDomain keeps these digests apart from all others of the same bytes.
const actorDomain = "semel gateway actor/1"

// scopes names the scope of a request whose caller is known by its credential
// alone.
type scopes struct {
	credentials []string
	host        bool // the host is the tenant
}

func (s *scopes) scope(r *http.Request) (semel.Scope, error) {
	scope := semel.Scope{Actor: actor(r.Header, s.credentials)}
	if s.host {
		scope.Tenant = tenant(r)
		if len(scope.Tenant) > semel.MaxScopePartBytes {
			return semel.Scope{}, &semelhttp.ScopeError{Status: http.StatusBadRequest, Err: errors.New("the host is too long")}
		}
	}
	return scope, nil
}

// actor is the digest of the values of the named headers, in 32 hexadecimal
// digits; empty if there are none.
func actor(h http.Header, names []string) string {
	digest := sha256.New()
	var frame [8]byte
	add := func(s string) {
		binary.BigEndian.PutUint64(frame[:], uint64(len(s)))
		digest.Write(frame[:])
		digest.Write([]byte(s))
	}
	add(actorDomain)
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

// tenant is the request's host without what does not matter: case, the default
// port, the dot of the root.
func tenant(r *http.Request) string {
	host := strings.ToLower(r.Host)
	port := ":80"
	if r.TLS != nil {
		port = ":443"
	}
	host = strings.TrimSuffix(host, port)
	return strings.TrimSuffix(host, ".")
}
