package semelhttp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// ScopeError is an error of Config.Scope, Config.KeyOf and Config.OperationOf that says
// how to refuse the request.
type ScopeError struct {
	// Status is the status of the response, such as 401, 403 or 503. It is 401 if it is
	// not from 400 to 599.
	Status int
	// Header is added to the response, such as the WWW-Authenticate that a 401 must
	// have (RFC 9110, section 15.5.2), or a Retry-After.
	Header http.Header
	// Detail is sent to the client. By default it says that the request was refused.
	Detail string
	// Err is the reason. It is not sent to the client.
	Err error
}

func (e *ScopeError) Error() string {
	s := fmt.Sprintf("semelhttp: no scope: status %d", e.Status)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *ScopeError) Unwrap() error { return e.Err }

// refusedBeforeLookUp is the Detail of a ScopeError that has none.
const refusedBeforeLookUp = "The request was refused before its Idempotency-Key was looked up. Nothing was executed."

// scopeProblem is the answer to err from Config.Scope or Config.KeyOf. It sets
// the header that goes with it.
func scopeProblem(w http.ResponseWriter, err error, detail string) Problem {
	status := http.StatusUnauthorized
	if se, ok := errors.AsType[*ScopeError](err); ok {
		for name, values := range se.Header {
			w.Header()[name] = values
		}
		if se.Detail != "" {
			detail = se.Detail
		}
		if se.Status >= 400 && se.Status <= 599 {
			status = se.Status
		}
	}
	p := Problem{
		Status: status, Title: http.StatusText(status), Retry: semel.RetryNo, Detail: detail,
	}
	if status == http.StatusUnauthorized || status == http.StatusTooManyRequests || status >= 500 {
		p.Retry = semel.RetrySameKey
	}
	return p
}

// defaultOperation names an operation by method and path. The name fits an
// Identity: a path with bytes that do not is taken escaped, and of one that is
// too long the end is replaced by a digest of the whole.
func defaultOperation(r *http.Request) string {
	u := asSent(r)
	path := u.Path
	if !isText(path) {
		path = u.EscapedPath()
	}
	return fittingOperation(strings.ToUpper(r.Method) + " " + path)
}

// fittingOperation is op, if it is not too long to be one.
func fittingOperation(op string) string {
	if len(op) <= semel.MaxScopePartBytes {
		return op
	}
	sum := sha256.Sum256([]byte(op))
	digest := "~" + hex.EncodeToString(sum[:16])
	cut := semel.MaxScopePartBytes - len(digest)
	for !utf8.RuneStart(op[cut]) {
		cut--
	}
	return op[:cut] + digest
}

func isText(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

// maxRequestID is how much of an X-Request-Id is kept.
const maxRequestID = 128

// DefaultOrigin is the default of Config.Origin. It takes the request ID from
// X-Request-Id, if that is visible ASCII, up to 128 bytes, and the trace ID from a
// valid traceparent (W3C Trace Context). Both come from the client and prove nothing.
func DefaultOrigin(r *http.Request) semel.Origin {
	var o semel.Origin
	if lines := r.Header["X-Request-Id"]; len(lines) > 0 && isVisible(lines[0]) {
		// Cloned so that a record does not keep the request's buffers alive.
		o.RequestID = strings.Clone(lines[0][:min(len(lines[0]), maxRequestID)])
	}
	if lines := r.Header["Traceparent"]; len(lines) == 1 {
		o.TraceID = strings.Clone(traceID(lines[0]))
	}
	return o
}

func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// traceID returns the trace id of a traceparent, or "" if it is not valid. Later
// versions may have more behind the flags.
func traceID(s string) string {
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" ||
		(len(s) > 55 && (s[:2] == "00" || s[55] != '-')) {
		return ""
	}
	id, parent := s[3:35], s[36:52]
	if !isLowerHex(s[:2]) || !isLowerHex(id) || !isLowerHex(parent) || !isLowerHex(s[53:55]) ||
		strings.Trim(id, "0") == "" || strings.Trim(parent, "0") == "" {
		return ""
	}
	return id
}

func isLowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
