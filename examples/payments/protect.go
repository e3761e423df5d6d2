package main

import (
	"errors"
	"net/http"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// protect has each request of h with a key take effect once.
func protect(h http.Handler, store semel.Store) (http.Handler, *semel.Guard, error) {
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		return nil, nil, err
	}
	middleware, err := semelhttp.New(semelhttp.Config{
		Guard: guard, Scope: scope, RequireKey: true, NoEffectStatus: rolledBack,
	})
	if err != nil {
		return nil, nil, err
	}
	return middleware(h), guard, nil
}

// scope says whose key a key is.
func scope(r *http.Request) (semel.Scope, error) {
	user := r.Header.Get("X-User")
	if user == "" {
		return semel.Scope{}, &semelhttp.ScopeError{
			Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {"X-User"}}, Err: errors.New("no X-User"),
		}
	}
	return semel.Scope{Actor: user}, nil
}

// rolledBack: where the transaction failed nothing happened, so nothing needs to
// be recorded, and the key is free for the next try.
func rolledBack(status int, h http.Header) bool {
	return status >= 500 || semelhttp.DefaultNoEffectStatus(status, h)
}
