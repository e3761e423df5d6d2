package semelclient

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// DefaultRetryStatus is the default of Config.RetryStatus. It reports true for 408,
// 409, 425, 429, 502, 503 and 504.
func DefaultRetryStatus(status int, _ http.Header) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// wantsRetry reports whether an answer asks for another try. Signs that were
// made for the question come first: a server that says no is believed before
// one that says yes, and a status is only a guess at what they would say.
// Its body is read for no longer than limit.
func wantsRetry(a *attempt, keyed bool, byStatus func(int, http.Header) bool, limit time.Duration) bool {
	resp := a.resp
	status := resp.StatusCode
	switch {
	case status < 400:
		return false
	case status == http.StatusUnauthorized, status == http.StatusProxyAuthRequired:
		return false // the key is still good, the credentials are not
	}
	problem := problemOf(a, limit)
	stripe := strings.ToLower(resp.Header.Get("Stripe-Should-Retry"))
	switch {
	case problem.Retry != "" && problem.Retry != semel.RetrySameKey, stripe == "false":
		return false
	case problem.Retry == semel.RetrySameKey && keyed, stripe == "true":
		return true
	case isRecorded(resp.Header):
		return false // it will not change
	case status == http.StatusConflict && !keyed:
		return false // there is no key that another request could hold
	}
	return byStatus(status, resp.Header)
}

// isRecorded reports whether an answer says that it is on record.
func isRecorded(h http.Header) bool {
	return h.Get(semelhttp.HeaderExpires) != "" || strings.EqualFold(h.Get(semelhttp.HeaderReplayed), "true") ||
		strings.EqualFold(h.Get("Idempotent-Replayed"), "true")
}

// isIdempotent reports whether the method is idempotent by definition (RFC
// 9110 9.2.2).
func isIdempotent(method string) bool {
	return isSafe(method) || method == http.MethodPut || method == http.MethodDelete
}

// isSafe reports whether the method is safe by definition (RFC 9110 9.2.1).
func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// backoff is how long to wait after the try with the given number, from 1:
// anything up to a bound that doubles, so that clients that failed together do
// not come back together.
func (t *Transport) backoff(try int) time.Duration {
	bound := t.config.MinBackoff
	for ; try > 1; try-- {
		if bound > t.config.MaxBackoff/2 { // doubling could overflow
			bound = t.config.MaxBackoff
			break
		}
		bound *= 2
	}
	return jitter(min(bound, t.config.MaxBackoff))
}

// jitter returns a random duration that is less than bound, or zero.
func jitter(bound time.Duration) time.Duration {
	return time.Duration(rand.Int64N(max(int64(bound), 1)))
}

// longestRetryAfter is what a longer Retry-After counts as.
const longestRetryAfter = 365 * 24 * time.Hour

// retryAfter returns how long an answer asks to wait: Retry-After's seconds, or
// the time from the answer's Date to Retry-After's date, which is by the
// server's clock alone; without a Date, from now. It is never negative. ok is
// false if there is no valid Retry-After.
func retryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	v := strings.Trim(h.Get("Retry-After"), " \t")
	if isDigits(v) {
		seconds, err := strconv.ParseInt(v, 10, 64)
		if err != nil || seconds > int64(longestRetryAfter/time.Second) { // it does not fit
			return longestRetryAfter, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	// Sub saturates, and the difference of any two dates fits int64 seconds.
	return min(max(at.Sub(now), 0), longestRetryAfter), true
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
