package gateway

import (
	"errors"
	"net/http"
	"strings"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// scopes names the scope of a request whose caller is known by its credential
// alone.
type scopes struct {
	actor func(http.Header) string
	host  bool // the host is the tenant
}

func (s *scopes) scope(r *http.Request) (semel.Scope, error) {
	scope := semel.Scope{Actor: s.actor(r.Header)}
	if s.host {
		scope.Tenant = tenant(r)
		if len(scope.Tenant) > semel.MaxScopePartBytes {
			return semel.Scope{}, &semelhttp.ScopeError{Status: http.StatusBadRequest, Err: errors.New("the host is too long")}
		}
	}
	return scope, nil
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
