package semel

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Limits of the parts of an identity, in bytes. They are the same for all stores,
// so that records can be moved between stores.
const (
	MaxKeyBytes       = 255
	MaxScopePartBytes = 255
)

// Scope says to whom a key belongs, and for what. The same key in another scope is
// another identity. Identities in different scopes never collide, and never reveal
// each other.
type Scope struct {
	// Tenant is the customer, account or organisation. It is empty if there is
	// only one.
	Tenant string
	// Actor is the authenticated principal within the tenant. If it is empty, all
	// callers share one scope.
	Actor string
	// Operation is the name of the action, such as "payments.create". Required.
	Operation string
}

// Identity identifies what takes effect once: a key within a scope. It is
// comparable and can be used as a map key.
type Identity struct {
	Scope
	Key string
}

// Validate returns an error that names every part of the identity that is missing,
// too long, not UTF-8, or has control characters. It never contains the key.
func (id Identity) Validate() error {
	return errors.Join(
		checkPart("tenant", id.Tenant, MaxScopePartBytes, true),
		checkPart("actor", id.Actor, MaxScopePartBytes, true),
		checkPart("operation", id.Operation, MaxScopePartBytes, false),
		checkPart("key", id.Key, MaxKeyBytes, false),
	)
}

func checkPart(name, s string, limit int, mayBeEmpty bool) error {
	switch {
	case s == "" && !mayBeEmpty:
		return fmt.Errorf("%s is empty", name)
	case len(s) > limit:
		return fmt.Errorf("%s is %d bytes long; at most %d are allowed", name, len(s), limit)
	}
	ascii := true
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20, c == 0x7f:
			return fmt.Errorf("%s holds a control character at byte %d", name, i)
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	if !ascii && !utf8.ValidString(s) {
		return fmt.Errorf("%s is not valid UTF-8", name)
	}
	return nil
}
