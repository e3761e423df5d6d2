// Package httpfield has what the syntax of HTTP header fields asks of a string.
package httpfield

import "strings"

// IsToken reports whether s is a token (RFC 9110 5.6.2), as names of header
// fields and methods are.
func IsToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
