package semel

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// NewKey returns a fresh client key: a UUID of version 7 (RFC 9562) with 74 random
// bits. Keys made at about the same time are close together in an index. A key
// reveals when it was made; use a UUID of version 4 if that matters.
func NewKey() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails: crypto/rand aborts the process instead
	ms := uint64(time.Now().UnixMilli())
	u[0], u[1], u[2], u[3], u[4], u[5] = byte(ms>>40), byte(ms>>32), byte(ms>>24), byte(ms>>16), byte(ms>>8), byte(ms)
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return formatUUID(u)
}

func formatUUID(u [16]byte) string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	hex.Encode(b[9:13], u[4:6])
	hex.Encode(b[14:18], u[6:8])
	hex.Encode(b[19:23], u[8:10])
	hex.Encode(b[24:36], u[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// CompositeKey declares a natural key: fields of the business that together
// identify one intent, such as an order and an action. Version is that of the
// declaration. Increase it when the fields change, so that old and new keys never
// collide.
type CompositeKey struct {
	Name    string
	Version int
	Fields  []string
}

// Key returns the key for the given values, one for each declared field. Equal
// values give the same key, and different values different keys. A field that is
// missing, empty or not declared is an error, because two intents could then share
// a key.
func (c CompositeKey) Key(values map[string]string) (string, error) {
	var errs []error
	if c.Name == "" || len(c.Fields) == 0 {
		errs = append(errs, errors.New("the declaration needs a name and at least one field"))
	}
	parts := make([]string, 0, len(c.Fields)*2+2)
	parts = append(parts, c.Name, fmt.Sprint(c.Version))
	seen := make(map[string]bool, len(c.Fields))
	for _, f := range c.Fields {
		if seen[f] {
			errs = append(errs, fmt.Errorf("field %q is declared twice", f))
		}
		seen[f] = true
		if values[f] == "" {
			errs = append(errs, fmt.Errorf("field %q is missing or empty", f))
		}
		parts = append(parts, f, values[f])
	}
	for f := range values {
		if !seen[f] {
			errs = append(errs, fmt.Errorf("field %q is not declared", f))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return "", fmt.Errorf("semel: composite key %q: %w", c.Name, err)
	}
	return "nk_" + digestKey(parts...), nil
}

// EventKey returns the key for an event: from its source and id, as in CloudEvents,
// or from the name of a provider and its transaction id.
func EventKey(source, id string) (string, error) {
	if source == "" || id == "" {
		return "", errors.New("semel: event key: source and id must not be empty")
	}
	return "ev_" + digestKey(source, id), nil
}

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func digestKey(parts ...string) string {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return base32Lower.EncodeToString(h.Sum(nil))
}

// KeyRules says which client keys an operation accepts, within the limits of
// Identity. The zero value accepts all. The rules find keys that can be guessed or
// are likely to be reused by mistake. They cannot prove that a key is random.
type KeyRules struct {
	// MinLength and MaxLength are in bytes. Defaults 1 and MaxKeyBytes.
	MinLength, MaxLength int
	// MinEntropyBits is compared with an upper estimate: the length of the key
	// times the Shannon entropy of its characters, or the random bits of a UUID. 64
	// refuses "order-2026-11-21" and accepts UUIDs of version 4 and 7.
	MinEntropyBits float64
	// RefuseTimestamps refuses keys that look like a date or a Unix time from 2000
	// to 2100, because two requests at the same time would share a key.
	RefuseTimestamps bool
	// RefuseSerials refuses keys that are a short number, alone or after a word,
	// such as 000123 or order-42, because numbering can restart and such keys can
	// be guessed.
	RefuseSerials bool
	// RequireUUID accepts only UUIDs of version 4 or 7.
	RequireUUID bool
	// MaxUUIDAge refuses UUIDs of version 7 whose time is longer ago than
	// MaxUUIDAge, or more than MaxUUIDAhead in the future, by the clock of this
	// process, with ErrKeyAge. Zero means no limit.
	//
	// It is for keys that are sent again after their record has expired. If it is
	// shorter than the retention minus MaxUUIDAhead and the difference between
	// the clocks of this process and the store, such a key never executes again.
	// Keys without a time, such as UUIDs of version 4, are accepted.
	MaxUUIDAge time.Duration
}

// MaxUUIDAhead is how far in the future the time of a key may be with
// KeyRules.MaxUUIDAge.
const MaxUUIDAhead = 5 * time.Minute

// ErrKeyAge is the error of KeyRules.Check for keys that MaxUUIDAge refuses. It is
// not known whether such a key was used before.
var ErrKeyAge = errors.New("the key says of itself that it was made too long ago, or in the future")

// Validate returns an error if the rules contradict each other or the limits of
// Identity.
func (r KeyRules) Validate() error {
	if r.MinLength < 0 || r.MaxLength < 0 || r.MaxLength > MaxKeyBytes ||
		(r.MaxLength > 0 && r.MinLength > r.MaxLength) || !(r.MinEntropyBits >= 0) || r.MaxUUIDAge < 0 {
		return fmt.Errorf("semel: key rules: need 0 <= MinLength <= MaxLength <= %d, MinEntropyBits >= 0 and MaxUUIDAge >= 0", MaxKeyBytes)
	}
	return nil
}

// Check returns an error that names every rule that key breaks. It never contains
// the key.
func (r KeyRules) Check(key string) error {
	var errs []error
	if len(key) < max(r.MinLength, 1) {
		errs = append(errs, fmt.Errorf("the key is %d bytes long; at least %d are required", len(key), max(r.MinLength, 1)))
	}
	limit := r.MaxLength
	if limit == 0 {
		limit = MaxKeyBytes
	}
	if len(key) > limit {
		return errors.Join(append(errs, fmt.Errorf("the key is %d bytes long; at most %d are allowed", len(key), limit))...)
	}
	version := 0
	if r.RequireUUID || r.MinEntropyBits > 0 || r.MaxUUIDAge > 0 {
		version = uuidVersion(key)
	}
	if r.MaxUUIDAge > 0 && version == 7 {
		if age := time.Since(uuidTime(key)); age > r.MaxUUIDAge || age < -MaxUUIDAhead {
			errs = append(errs, ErrKeyAge)
		}
	}
	if r.RequireUUID && version != 4 && version != 7 {
		errs = append(errs, errors.New("the key must be a UUID of version 4 or 7"))
	}
	if r.MinEntropyBits > 0 {
		if bits := entropyBits(key, version); bits < r.MinEntropyBits {
			errs = append(errs, fmt.Errorf("the key holds at most %.0f bits of entropy; %.0f are required: use a random UUID", bits, r.MinEntropyBits))
		}
	}
	if r.RefuseTimestamps && looksLikeTime(key) {
		errs = append(errs, errors.New("the key reads as a point in time: two requests could share it; use a random UUID"))
	}
	if r.RefuseSerials && looksLikeSerial(key) {
		errs = append(errs, errors.New("the key reads as a serial number: it can be guessed and can repeat; use a random UUID"))
	}
	return errors.Join(errs...)
}

// uuidVersion returns 0 for what is not an RFC 9562 UUID in its usual form.
func uuidVersion(s string) int {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return 0
	}
	b, err := hex.DecodeString(s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36])
	if err != nil || b[8]&0xc0 != 0x80 {
		return 0
	}
	return int(b[6] >> 4)
}

// uuidTime is when a UUID of version 7 says that it was made.
func uuidTime(s string) time.Time {
	ms, _ := strconv.ParseInt(s[0:8]+s[9:13], 16, 64) // they are hexadecimal digits
	return time.UnixMilli(ms)
}

func entropyBits(s string, uuidVersion int) float64 {
	var count [256]int
	for i := range len(s) {
		count[s[i]]++
	}
	var bits float64
	for _, n := range count {
		if n > 0 {
			bits -= float64(n) * math.Log2(float64(n)/float64(len(s)))
		}
	}
	switch uuidVersion {
	case 4:
		bits = min(bits, 122)
	case 7:
		bits = min(bits, 74)
	case 1, 6:
		bits = min(bits, 14) // the rest is a clock and a host
	}
	return bits
}

func looksLikeTime(s string) bool {
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999",
		"2006-01-02", "20060102150405", "20060102T150405Z", "20060102T150405", "20060102",
		time.RFC1123, time.RFC1123Z, time.ANSIC,
	} {
		if t, err := time.Parse(layout, s); err == nil && t.Year() >= 2000 && t.Year() < 2100 {
			return true
		}
	}
	whole, frac, _ := strings.Cut(s, ".")
	if !allDigits(whole) || (frac != "" && !allDigits(frac)) || len(whole) > 19 {
		return false
	}
	var n float64
	for i := range len(whole) {
		n = n*10 + float64(whole[i]-'0')
	}
	const from, to = 946684800, 4102444800 // 2000 and 2100 in Unix seconds
	for unit := 1.0; unit <= 1e9; unit *= 1000 {
		if n >= from*unit && n < to*unit {
			return true
		}
	}
	return false
}

func looksLikeSerial(s string) bool {
	digits := s
	if i := strings.LastIndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		word := s[:i+1]
		if len(word) > 16 {
			return false
		}
		digits = s[i+1:]
		for _, r := range word {
			if r >= '0' && r <= '9' {
				return false
			}
		}
	}
	return len(digits) > 0 && len(digits) <= 12
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
