package semelcaddy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// placeholders returns the names of the placeholders in s.
func placeholders(s string) (names []string) {
	_, _ = caddy.NewEmptyReplacer().ReplaceFunc(s, func(name string, _ any) (any, error) {
		names = append(names, name)
		return "", nil
	})
	return names
}

// clientSays returns the placeholder in s that is whatever the client sent, or "".
func clientSays(s string) string {
	for _, name := range placeholders(s) {
		for _, prefix := range []string{"http.request.header.", "http.request.uri.query.", "http.request.body"} {
			if strings.HasPrefix(name, prefix) {
				return name
			}
		}
	}
	return ""
}

func (h *Handler) checkScope() error {
	var errs []error
	check := func(name, text string, least int) {
		names := placeholders(text)
		switch {
		case len(names) < least:
			errs = append(errs, fmt.Errorf("%s is %q, the same for all callers; name who they are by a placeholder, such as {http.auth.user.id}, or declare them shared", name, text))
		case len(names) > 1:
			errs = append(errs, fmt.Errorf("%s is %q, with more than one placeholder, whose values could run into each other; give each an argument of its own", name, text))
		}
		for _, p := range names {
			lower := strings.ToLower(p)
			switch {
			case strings.HasPrefix(lower, "http.auth.candidate."):
				errs = append(errs, fmt.Errorf("%s has the placeholder {%s}, which names who was refused; use {http.auth.user.id}", name, p))
			case strings.HasPrefix(lower, "http.request.cookie."), lower == "http.request.header.cookie",
				lower == "http.request.header.authorization", lower == "http.request.header.proxy-authorization":
				errs = append(errs, fmt.Errorf("%s has the placeholder {%s}, a secret that would be kept in clear; use credentials, which keeps a digest", name, p))
			}
		}
	}
	if h.Tenant != "" {
		check("tenant", h.Tenant, 0)
	}
	for _, part := range h.Actor {
		check("actor", part, 1)
	}
	credential, err := semelhttp.CredentialActor(h.Credentials...)
	if err != nil {
		errs = append(errs, fmt.Errorf("credentials names %w", err))
	}
	h.credential = credential
	switch {
	case len(h.Actor) > 0 && len(h.Credentials) > 0:
		errs = append(errs, errors.New("actor is set, and so is credentials; choose one"))
	case len(h.Actor) == 0 && len(h.Credentials) == 0 && !h.Shared:
		errs = append(errs, errors.New("actor is not set: say who callers are, by what authenticates them, as in actor {http.auth.user.id}; or credentials Authorization, which tells them apart by a digest and checks nothing; or shared, if they may see each other's answers"))
	}
	if strings.ContainsAny(h.Operation, "{}") || len(h.Operation) > semel.MaxScopePartBytes {
		errs = append(errs, fmt.Errorf("operation is %q; it is a name without placeholders, of at most %d bytes", h.Operation, semel.MaxScopePartBytes))
	}
	return errors.Join(errs...)
}

// scope says whose key a request's key is.
func (h *Handler) scope(r *http.Request) (semel.Scope, error) {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	s := semel.Scope{Operation: h.Operation}
	var err error
	if h.Tenant != "" {
		if s.Tenant, err = expand(repl, h.Tenant); err != nil {
			return s, refused("the tenant", err)
		}
	}
	switch {
	case len(h.Credentials) > 0:
		if s.Actor = h.credential(r.Header); s.Actor == "" {
			err = errors.New("none of the credentials is there")
		}
	case len(h.Actor) == 1:
		s.Actor, err = expand(repl, h.Actor[0])
	case len(h.Actor) > 1:
		parts := make([]string, len(h.Actor))
		for i, part := range h.Actor {
			value, partErr := expand(repl, part)
			err = errors.Join(err, partErr)
			parts[i] = url.PathEscape(value) // has no slash
		}
		s.Actor = strings.Join(parts, "/")
	}
	if err != nil {
		if !h.Shared {
			return s, refused("the caller", err)
		}
		s.Actor = ""
	}
	// An identity's own check would be taken for a failure of the server.
	if err := (semel.Identity{Scope: semel.Scope{Tenant: s.Tenant, Actor: s.Actor, Operation: "-"}, Key: "-"}).Validate(); err != nil {
		return s, &semelhttp.ScopeError{Status: http.StatusForbidden, Err: err, Detail: "The name of the caller or of the tenant cannot be used. Nothing was executed."}
	}
	return s, nil
}

// expand returns the value of a text with a placeholder, which must have one.
func expand(repl *caddy.Replacer, text string) (string, error) {
	value, err := repl.ReplaceOrErr(text, true, true)
	if strings.Contains(text, "{http.request.host") { // in whatever case it was sent
		value = strings.TrimSuffix(strings.ToLower(value), ".")
	}
	return value, err
}

func refused(who string, err error) error {
	return &semelhttp.ScopeError{
		Status: http.StatusUnauthorized, Err: err,
		Detail: "It is not known who " + who + " is, which is what tells one Idempotency-Key from another. Nothing was executed.",
	}
}
