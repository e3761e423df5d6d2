// Package spelling tells header fields that servers take for the same: many read
// X_Forwarded_For or x.forwarded.for as they read X-Forwarded-For.
package spelling

import "slices"

// OneOf reports whether name is one of the names in some spelling.
func OneOf(name string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		if len(n) != len(name) {
			return false
		}
		for i := range len(n) {
			if plain(n[i]) != plain(name[i]) {
				return false
			}
		}
		return true
	})
}

func plain(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '_'
}

// Forwarded are the headers by which proxies say who and where a client is.
var Forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}
