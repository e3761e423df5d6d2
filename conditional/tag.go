package conditional

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Tag is an entity tag (RFC 9110 8.8.3). It identifies a state of a resource
// and, if there are several representations, one of them.
type Tag struct {
	// Opaque is the text between the quotes.
	Opaque string
	// Weak says that representations with this tag are equivalent. Those with
	// the same strong tag are equal byte by byte.
	Weak bool
}

// VersionTag returns the strong tag of a version, such as "7". It suffices for
// resources with one representation; see Variant.
func VersionTag(version int64) Tag { return Tag{Opaque: strconv.FormatInt(version, 10)} }

// Variant returns the tag of one of several representations of the same state,
// such as "7-xml" for "7". Strong tags must differ if the bytes do. So a server
// that responds in several media types, languages or content codings needs a
// name for each, of visible ASCII without quotes.
func (t Tag) Variant(name string) Tag {
	t.Opaque += "-" + name
	return t
}

// Version returns the version of t, whatever its variant. A suffix such as
// -gzip, which servers and proxies append when they compress, counts as a
// variant. ok is false if t cannot be a tag made by VersionTag.
func (t Tag) Version() (version int64, ok bool) {
	digits, _, _ := strings.Cut(t.Opaque, "-")
	version, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || version <= 0 || digits[0] == '0' || digits[0] == '+' {
		return 0, false
	}
	return version, true
}

// String returns the tag as it is sent. If Opaque contains bytes that cannot be
// sent, it returns "".
func (t Tag) String() string {
	for i := range len(t.Opaque) {
		if !isTagByte(t.Opaque[i]) {
			return ""
		}
	}
	if t.Weak {
		return `W/"` + t.Opaque + `"`
	}
	return `"` + t.Opaque + `"`
}

// Same reports whether t and u are equal by strong comparison (RFC 9110
// 8.8.3.2), which requires that neither is weak.
func (t Tag) Same(u Tag) bool { return t == u && !t.Weak }

// Equivalent reports whether t and u are equal by weak comparison.
func (t Tag) Equivalent(u Tag) bool { return t.Opaque == u.Opaque }

// ParseTag parses an entity tag without surrounding white space.
func ParseTag(s string) (Tag, error) {
	t, rest, err := cutTag(s)
	if err == nil && rest != "" {
		err = errors.New("something follows the entity tag")
	}
	if err != nil {
		return Tag{}, fmt.Errorf("conditional: %w", err)
	}
	return t, nil
}

// cutTag reads the entity tag that s begins with.
func cutTag(s string) (t Tag, rest string, err error) {
	s, t.Weak = strings.CutPrefix(s, "W/")
	if s == "" || s[0] != '"' {
		return Tag{}, "", errors.New("an entity tag is not in double quotes")
	}
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			t.Opaque = s[1:i]
			return t, s[i+1:], nil
		case !isTagByte(s[i]):
			return Tag{}, "", errors.New("an entity tag holds a space or a control character")
		}
	}
	return Tag{}, "", errors.New("an entity tag has no closing quote")
}

// isTagByte reports whether c is an etagc of RFC 9110.
func isTagByte(c byte) bool { return c == 0x21 || c >= 0x23 && c != 0x7f }

// MaxTags is the maximum number of entity tags in a field. A field with more is
// malformed.
const MaxTags = 100

// tags is the value of an If-Match or If-None-Match field: a list, or "*".
type tags struct {
	sent bool
	any  bool
	list []Tag
}

// parseTags reads the lines of one field, which together are one list (RFC 9110
// 5.3), unless they are "*". An empty list is one that nothing is in.
func parseTags(lines []string) (tags, error) {
	t := tags{sent: len(lines) > 0}
	if len(lines) == 1 && strings.Trim(lines[0], " \t") == "*" {
		t.any = true
		return t, nil
	}
	for _, line := range lines {
		for {
			rest := strings.TrimLeft(line, " \t,") // elements may be empty
			if rest == "" {
				break
			}
			tag, rest, err := cutTag(rest)
			if err != nil {
				return tags{}, err
			}
			if len(t.list) == MaxTags {
				return tags{}, fmt.Errorf("there are more than %d entity tags", MaxTags)
			}
			t.list = append(t.list, tag)
			if line = strings.TrimLeft(rest, " \t"); line != "" && line[0] != ',' {
				return tags{}, errors.New("there is no comma between entity tags")
			}
		}
	}
	return t, nil
}

// has reports whether a tag of the list satisfies match.
func (t *tags) has(match func(Tag) bool) bool {
	for _, tag := range t.list {
		if match(tag) {
			return true
		}
	}
	return false
}
