package brokenstore

import (
	"strings"

	"github.com/semelhq/semel"
)

// What tells one identity from another.
var naming = []Broken{
	{
		Name:   "keys-without-scope",
		What:   "finds records by the key alone, whoever's it is and whatever for",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity { return semel.Identity{Key: id.Key} }),
	},
	{
		Name:   "keys-without-tenant",
		What:   "answers one tenant with another's result",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Tenant = ""; return id }),
	},
	{
		Name:   "keys-without-operation",
		What:   "answers one operation with another's result",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Operation = ""; return id }),
	},
	{
		Name:   "parts-joined-by-a-colon",
		What:   "makes one string of the parts, with a separator that they may contain",
		Breaks: []string{"scope-separates"},
		change: keyed(func(id semel.Identity) semel.Identity {
			return semel.Identity{Key: strings.Join([]string{id.Tenant, id.Actor, id.Operation, id.Key}, ":")}
		}),
	},
	{
		Name:   "keys-case-folded",
		What:   "has a collation that takes k and K for the same key",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Key = strings.ToLower(id.Key); return id }),
	},
	{
		Name:   "tenants-case-folded",
		What:   "has a collation that takes t and T for the same tenant",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Tenant = strings.ToLower(id.Tenant); return id }),
	},
	{
		Name:   "keys-padded",
		What:   "compares keys without the spaces at their end",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Key = strings.TrimRight(id.Key, " "); return id }),
	},
	{
		Name:   "keys-normalised",
		What:   "takes two spellings of a letter for the same key",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity {
			id.Key = strings.ReplaceAll(id.Key, "e\u0301", "é")
			return id
		}),
	},
	{
		Name:   "keys-truncated",
		What:   "indexes the first 191 bytes of a key",
		Breaks: []string{"keys-are-bytes"},
		change: keyed(func(id semel.Identity) semel.Identity { id.Key = id.Key[:min(len(id.Key), 191)]; return id }),
	},
}
