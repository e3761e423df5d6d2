package report

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How many characters of a text from a run are shown.
const (
	maxName = 120  // names, ids, methods
	maxText = 2000 // sentences, URLs
)

// visible makes a text safe to show in one line: what does not print, and what
// changes how other text is shown, becomes an escape. After limit characters
// the rest is counted.
func visible(s string, limit int) string {
	var b strings.Builder
	n := 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if n == limit {
			fmt.Fprintf(&b, "… (%d more)", utf8.RuneCountInString(s[i:]))
			break
		}
		n++
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += size
	}
	return b.String()
}

// short is visible where there is no room to say how much is missing.
func short(s string, limit int) string {
	s = visible(s, limit+1)
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}

func name(s string) string { return visible(s, maxName) }
func text(s string) string { return visible(s, maxText) }

// brief is for where there is little room.
func brief(s string) string { return visible(s, maxText/4) }

// span is a duration given in microseconds, for people.
func span(us float64) string {
	switch {
	case math.Abs(us) < 1000:
		return fmt.Sprintf("%.0f µs", us)
	case math.Abs(us) < 1e6:
		return trimmed(us/1e3) + " ms"
	}
	return trimmed(us/1e6) + " s"
}

func trimmed(v float64) string {
	switch {
	case math.Abs(v) < 10:
		return fmt.Sprintf("%.2f", v)
	case math.Abs(v) < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// ranges writes numbers as 1-3, 7.
func ranges(ns []int) string {
	var parts []string
	for i := 0; i < len(ns); {
		j := i
		for j+1 < len(ns) && ns[j+1] == ns[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", ns[i], ns[j]))
		} else {
			parts = append(parts, fmt.Sprint(ns[i]))
		}
		i = j + 1
	}
	if len(parts) > 20 {
		parts = append(parts[:20], "…")
	}
	return strings.Join(parts, ", ")
}
