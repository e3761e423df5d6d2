package semel

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Limits on the parts of an identity, in bytes. They are limits of the
// vocabulary, not of one store, so that a record can move between stores.
const (
	MaxKeyBytes       = 255
	MaxScopePartBytes = 255
)

// Scope says whose key a key is. The same key under another scope is another
// identity: it never collides with, and never reveals, this one.
type Scope struct {
	// Tenant is the customer, account or organisation; empty where there is
	// only one.
	Tenant string
	// Actor is the authenticated principal within the tenant. Empty means
	// that callers are not told apart: all anonymous callers share one scope.
	Actor string
	// Operation is the named side-effecting action, such as
	// "payments.create". It is required.
	Operation string
}

// Identity is what takes effect once: a key within its scope.
// It is comparable and may be used as a map key.
type Identity struct {
	Scope
	Key string
}

// Validate reports every part of the identity that is missing, too long, not
// UTF-8 or holds control characters. The error never contains the key.
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
