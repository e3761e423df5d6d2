package semelhttp

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// preferences are what a Prefer header (RFC 7240) asks for, as far as it is
// about waiting.
type preferences struct {
	async   bool // respond-async
	hasWait bool
	wait    time.Duration
}

const (
	headerPrefer            = "Prefer"
	headerPreferenceApplied = "Preference-Applied"
)

// longestWait is as much as is read out of a wait preference.
const longestWait = 24 * time.Hour

// parsePrefer reads the lines of a Prefer header. What it does not know or
// cannot read it ignores, as the standard wants; of two preferences of a name
// the first counts.
func parsePrefer(lines []string) (p preferences) {
	if len(lines) == 0 {
		return p
	}
	var async, wait bool
	for _, line := range lines {
		for preference := range splitQuoted(line, ',') {
			first, _, _ := cutQuoted(preference, ';') // parameters are not for us
			name, value, _ := strings.Cut(first, "=")
			switch strings.ToLower(strings.Trim(name, " \t")) {
			case "respond-async":
				if !async {
					async = true
					p.async = strings.Trim(value, " \t") == ""
				}
			case "wait":
				if !wait {
					wait = true
					p.wait, p.hasWait = parseSeconds(strings.Trim(value, " \t"))
				}
			}
		}
	}
	return p
}

// parseSeconds reads delta-seconds (RFC 9111 1.2.2), also in quotes: RFC 7240
// makes no difference between a token and a quoted string of the same text.
func parseSeconds(s string) (time.Duration, bool) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > int64(longestWait/time.Second) { // err: out of range
		return longestWait, true
	}
	return time.Duration(n) * time.Second, true
}

// cutQuoted cuts s at the first sep outside of a quoted string.
func cutQuoted(s string, sep byte) (before, after string, found bool) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case quoted && s[i] == '\\':
			i++
		case !quoted && s[i] == sep:
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

func splitQuoted(s string, sep byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for more := true; more; {
			var part string
			part, s, more = cutQuoted(s, sep)
			if !yield(part) {
				return
			}
		}
	}
}

// withoutWaiting removes from a Prefer header what parsePrefer has read, so
// that a preference is honoured by one of two servers in a row, not by both.
func withoutWaiting(h http.Header) {
	var kept []string
	for _, line := range h[headerPrefer] {
		var parts []string
		for preference := range splitQuoted(line, ',') {
			first, _, _ := cutQuoted(preference, ';')
			name, _, _ := strings.Cut(first, "=")
			switch strings.ToLower(strings.Trim(name, " \t")) {
			case "respond-async", "wait", "":
			default:
				parts = append(parts, strings.Trim(preference, " \t"))
			}
		}
		if len(parts) > 0 {
			kept = append(kept, strings.Join(parts, ", "))
		}
	}
	if len(kept) == 0 {
		delete(h, headerPrefer)
		return
	}
	h[headerPrefer] = slices.Clip(kept)
}
