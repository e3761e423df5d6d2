package semelhttp

import (
	"errors"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/semelhq/semel"
)

// HeaderKey is the request header field for the key.
const HeaderKey = "Idempotency-Key"

// ErrKeyMissing is the error of ParseKey if there is no Idempotency-Key header. A
// header without a value is a *KeyError.
var ErrKeyMissing = errors.New("the request has no Idempotency-Key header")

// KeyReason says what is wrong with an Idempotency-Key header.
type KeyReason uint8

const (
	// KeyEmpty means that the header has no value, or an empty string.
	KeyEmpty KeyReason = iota + 1
	// KeyRepeated means that there is more than one header line, even if they are
	// equal.
	KeyRepeated
	// KeyTooLong means that the key, without quotes and escapes, is longer than
	// semel.MaxKeyBytes.
	KeyTooLong
	// KeyParameters means that there are Structured Field parameters after the string.
	KeyParameters
	// KeyMalformed means that the value starts with a double quote and is not a
	// Structured Field String.
	KeyMalformed
	// KeyBareCharacter means that the value has no double quotes and contains a
	// character that needs them, or is not allowed at all.
	KeyBareCharacter
	// KeyNotString means that the value has no double quotes and strict is set.
	KeyNotString
	// KeyNotExpressible means that the key passed to FormatKey cannot be written as a
	// Structured Field String.
	KeyNotExpressible
)

var keyReasons = [...]string{
	KeyEmpty:          "the Idempotency-Key header is empty; send a key of 1 to 255 characters",
	KeyRepeated:       "the request has more than one Idempotency-Key header line; send exactly one",
	KeyTooLong:        "the key in the Idempotency-Key header is longer than 255 characters; send a shorter one, such as a UUID",
	KeyParameters:     "the Idempotency-Key header has parameters behind the key; send the quoted key alone",
	KeyMalformed:      `the Idempotency-Key header is not a well-formed Structured Field String (RFC 9651); send one key in double quotes, of printable ASCII characters, with \" and \\ as the only escapes`,
	KeyBareCharacter:  `the Idempotency-Key header is not in double quotes and holds a character that is only allowed inside them, or not at all; send one key, in double quotes, of printable ASCII characters`,
	KeyNotString:      `the Idempotency-Key header is not a Structured Field String (RFC 9651); put the key in double quotes`,
	KeyNotExpressible: "the key holds characters other than printable ASCII and cannot be sent in an Idempotency-Key header",
}

// KeyError says why a key was refused and what to send instead. It does not contain
// the key, so its message can be logged and sent to the client.
type KeyError struct {
	Reason KeyReason
}

func (e *KeyError) Error() string {
	if int(e.Reason) < len(keyReasons) && e.Reason > 0 {
		return keyReasons[e.Reason]
	}
	return "the Idempotency-Key header is malformed"
}

// ParseKey returns the key in the lines of an Idempotency-Key header, which are the
// values of HeaderKey in an http.Header. The error is ErrKeyMissing or a *KeyError.
// The key is valid in a semel.Identity.
//
// The value is a Structured Field String (RFC 9651): a key of 1 to 255 printable ASCII
// characters in double quotes. Unless strict is set, it can also be a key of 1 to 255
// visible ASCII characters without quotes and without
//
//	" , ; \
//
// So "k" and k are the same key. A value that looks like another Structured Field type
// is a key, too: :aGk=: is a key of six characters and not a byte sequence. Two keys
// that a proxy has merged into one line are always refused.
func ParseKey(lines []string, strict bool) (string, error) {
	switch len(lines) {
	case 0:
		return "", ErrKeyMissing
	case 1:
	default:
		return "", &KeyError{KeyRepeated}
	}
	// Surrounding white space is not part of a field value (RFC 9110 5.5).
	// net/http has removed it already; other sources of headers have not.
	v := strings.Trim(lines[0], " \t")
	var key string
	switch {
	case v == "":
		return "", &KeyError{KeyEmpty}
	case v[0] == '"':
		if key = plainString(v); key == "" {
			item, err := httpsfv.UnmarshalItem([]string{v})
			if err != nil {
				return "", &KeyError{KeyMalformed}
			}
			if len(item.Params.Names()) > 0 {
				return "", &KeyError{KeyParameters}
			}
			key, _ = item.Value.(string)
		}
	case strict:
		return "", &KeyError{KeyNotString}
	default:
		for i := range len(v) {
			if c := v[i]; c <= ' ' || c >= 0x7f || c == '"' || c == ',' || c == ';' || c == '\\' {
				return "", &KeyError{KeyBareCharacter}
			}
		}
		key = v
	}
	switch {
	case key == "":
		return "", &KeyError{KeyEmpty}
	case len(key) > semel.MaxKeyBytes:
		return "", &KeyError{KeyTooLong}
	}
	return key, nil
}

// plainString returns what is between the quotes of a Structured Field String
// without escapes and parameters, and "" for anything else. It spares the
// usual key the allocations of the complete parser, which has the last word on
// all others.
func plainString(v string) string {
	if len(v) < 2 || v[len(v)-1] != '"' {
		return ""
	}
	s := v[1 : len(v)-1]
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return ""
		}
	}
	return s
}

// FormatKey returns the value of an Idempotency-Key header for key, a Structured Field
// String. The error is a *KeyError for keys that ParseKey would refuse, because they
// are empty, too long, or not printable ASCII.
func FormatKey(key string) (string, error) {
	switch {
	case key == "":
		return "", &KeyError{KeyEmpty}
	case len(key) > semel.MaxKeyBytes:
		return "", &KeyError{KeyTooLong}
	}
	b := make([]byte, 0, len(key)+2)
	b = append(b, '"')
	for i := range len(key) {
		c := key[i]
		switch {
		case c < ' ' || c >= 0x7f:
			return "", &KeyError{KeyNotExpressible}
		case c == '"' || c == '\\':
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return string(append(b, '"')), nil
}
