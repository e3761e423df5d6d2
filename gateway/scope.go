package gateway

import (
	"errors"
	"net/http"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway/internal/credential"
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
		scope.Tenant = credential.Host(r)
		if len(scope.Tenant) > semel.MaxScopePartBytes {
			return semel.Scope{}, &semelhttp.ScopeError{Status: http.StatusBadRequest, Err: errors.New("the host is too long")}
		}
	}
	return scope, nil
}
