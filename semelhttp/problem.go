package semelhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// ContentTypeProblem is the media type of problem details (RFC 9457).
const ContentTypeProblem = "application/problem+json"

// problemBase is where the cases are documented. Each case is a heading there,
// so a problem's type can be followed to read what to do.
const problemBase = "https://github.com/semelhq/semel/blob/main/docs/http.md#"

// ProblemCase is a reason why a protected request was not answered with a result. The
// values are stable.
type ProblemCase string

// The cases of the HTTP contract.
const (
	ProblemKeyMissing        ProblemCase = "key-missing"
	ProblemKeyMalformed      ProblemCase = "key-malformed"
	ProblemKeyMismatch       ProblemCase = "key-mismatch"
	ProblemInProgress        ProblemCase = "in-progress"
	ProblemOutcomeUnknown    ProblemCase = "outcome-unknown"
	ProblemResultNotRetained ProblemCase = "result-not-retained"
	ProblemResultUnreadable  ProblemCase = "result-unreadable"
	ProblemStoreUnavailable  ProblemCase = "store-unavailable"
	ProblemRolledBack        ProblemCase = "rolled-back"
	ProblemBodyTooLarge      ProblemCase = "body-too-large"
	ProblemBodyUnreadable    ProblemCase = "body-unreadable"
	ProblemBodyTooSlow       ProblemCase = "body-too-slow"
	ProblemSpoolUnavailable  ProblemCase = "spool-unavailable"
	ProblemBusy              ProblemCase = "busy"

	// For keys that the server issues.
	ProblemKeyNotIssued ProblemCase = "key-not-issued"
	ProblemKeyExpired   ProblemCase = "key-expired"
	// For contracts with a FirstSentHeader.
	ProblemFirstSentInvalid    ProblemCase = "first-sent-invalid"
	ProblemFirstSentOutOfRange ProblemCase = "first-sent-out-of-range"
	// For contracts with RefuseUnprotected.
	ProblemNotProtected ProblemCase = "not-protected"
	// For the status resource.
	ProblemNotFound ProblemCase = "operation-not-found"
)

var problemCases = map[ProblemCase]struct {
	status int
	retry  semel.RetryAdvice
	title  string
	detail string
}{
	ProblemKeyMissing: {
		http.StatusBadRequest, semel.RetryNewKey, "Idempotency-Key is missing",
		"This operation requires an Idempotency-Key header. Nothing was executed.",
	},
	ProblemKeyMalformed: {
		http.StatusBadRequest, semel.RetryNewKey, "Idempotency-Key is malformed",
		"The Idempotency-Key header cannot be used. Nothing was executed.",
	},
	ProblemKeyMismatch: {
		http.StatusUnprocessableEntity, semel.RetryNo, "Idempotency-Key is already used",
		"This Idempotency-Key was used for a different request. This request was not executed. A key stands for one request: if this one is meant as a new operation, it needs a key of its own.",
	},
	ProblemInProgress: {
		http.StatusConflict, semel.RetrySameKey, "A request is outstanding for this Idempotency-Key",
		"An earlier request with this Idempotency-Key is still running. Ask again with the same key for its result.",
	},
	ProblemOutcomeUnknown: {
		http.StatusConflict, semel.RetryAfterResolution, "The outcome of this operation is unknown",
		"An earlier request with this Idempotency-Key was cut off, and it is not known whether it took effect. It is not executed again until that is settled. Keep the key: another key could cause the effect twice.",
	},
	ProblemResultNotRetained: {
		http.StatusConflict, semel.RetryNo, "The operation completed, but its result was not retained",
		"The operation with this Idempotency-Key completed and is not executed again. Its response could not be kept for replay.",
	},
	ProblemResultUnreadable: {
		http.StatusServiceUnavailable, semel.RetrySameKey, "The operation completed, but its result cannot be read now",
		"The operation with this Idempotency-Key completed and is not executed again. The server cannot decrypt its recorded response now. Keep the key: another key would cause the effect twice.",
	},
	ProblemStoreUnavailable: {
		http.StatusServiceUnavailable, semel.RetrySameKey, "The idempotency store is unavailable",
		"This request cannot be protected from double execution now, so it was not executed.",
	},
	ProblemRolledBack: {
		http.StatusServiceUnavailable, semel.RetrySameKey, "The operation was rolled back",
		"The operation ran in a transaction that was rolled back, so it certainly had no effect. Send the same request with the same key again.",
	},
	ProblemBodyTooLarge: {
		http.StatusRequestEntityTooLarge, semel.RetryNo, "The request body is too large to be protected",
		"The request body is larger than this operation accepts. Nothing was executed.",
	},
	ProblemBodyUnreadable: {
		http.StatusBadRequest, semel.RetrySameKey, "The request body could not be read",
		"The request body ended early or was not well-formed in transfer. Nothing was executed.",
	},
	ProblemSpoolUnavailable: {
		http.StatusServiceUnavailable, semel.RetrySameKey, "The request body could not be held",
		"The server has no room to hold the request body now, so it was not executed.",
	},
	ProblemBodyTooSlow: {
		http.StatusRequestTimeout, semel.RetrySameKey, "The request body came too slowly",
		"The request body did not arrive within the time that the server allows. Nothing was executed.",
	},
	ProblemBusy: {
		http.StatusServiceUnavailable, semel.RetrySameKey, "The server is busy",
		"The server executes as many operations at the same time as it may. Nothing was executed.",
	},
	ProblemKeyNotIssued: {
		http.StatusBadRequest, semel.RetryNewKey, "The key was not issued for this operation",
		"This operation accepts only keys that were issued to this caller for it. Nothing was executed.",
	},
	ProblemKeyExpired: {
		http.StatusBadRequest, semel.RetryNo, "The key has expired",
		"This key was issued too long ago and there is no record of its use, or none any more. Nothing was executed now. If it may have been used before, find out what came of that before you ask for another key.",
	},
	ProblemFirstSentInvalid: {
		http.StatusBadRequest, semel.RetryNewKey, "The time of the first sending is missing or malformed",
		"The request must say when it was first sent, as an HTTP date, together with its key. Nothing was executed.",
	},
	ProblemFirstSentOutOfRange: {
		http.StatusPreconditionFailed, semel.RetryNo, "The request was first sent too long ago",
		"The request was first sent at a time for which records are no longer kept, or in the future, so whether it was executed before cannot be said. It was not executed now.",
	},
	ProblemNotProtected: {
		http.StatusNotImplemented, semel.RetryNo, "The operation cannot be repeated",
		"The request carries a key, but this operation does not support repeated requests. Nothing was executed.",
	},
	ProblemNotFound: {
		http.StatusNotFound, semel.RetryNo, "There is no such operation",
		"There is no record with this id that you may see: it was released, has expired, or never existed.",
	},
}

// Type returns the problem type, which is the URI of its documentation.
func (c ProblemCase) Type() string { return problemBase + string(c) }

// Problem returns a problem with the type, title, status, retry and general detail of
// the case. It panics if the case does not exist.
func (c ProblemCase) Problem() Problem {
	p, ok := problemCases[c]
	if !ok {
		panic("semelhttp: no problem case " + strconv.Quote(string(c)))
	}
	return Problem{Type: c.Type(), Title: p.title, Status: p.status, Detail: p.detail, Retry: p.retry}
}

// Problem is a problem details object (RFC 9457). It is sent to clients, so it must not
// contain a key, a fingerprint, or anything of a stored result except its reference.
type Problem struct {
	// Type is a URI that identifies the kind of problem. If it is empty, it is
	// "about:blank", which says no more than the status.
	Type string
	// Title is the same for all problems of a type.
	Title string
	// Status is the status of the response. Write requires it. In a parsed problem it
	// is zero if the sender left it out.
	Status int
	// Detail describes this occurrence for people.
	Detail string
	// Instance is a URI that identifies this occurrence.
	Instance string

	// Retry says whether and how to retry. If it is empty, this is not known.
	Retry semel.RetryAdvice
	// StatusURL is the URL of the status of the operation.
	StatusURL string
	// Reference names the resource that the operation created.
	Reference string

	// RetryAfter is sent as the Retry-After header, in seconds, rounded up, if it is
	// more than zero. It is not a member of the object.
	RetryAfter time.Duration
}

// problemMembers are a problem's members in the order in which they are sent.
type problemMembers struct {
	Type      string            `json:"type,omitempty"`
	Title     string            `json:"title,omitempty"`
	Status    int               `json:"status,omitempty"`
	Detail    string            `json:"detail,omitempty"`
	Instance  string            `json:"instance,omitempty"`
	Retry     semel.RetryAdvice `json:"retry,omitempty"`
	StatusURL string            `json:"status_url,omitempty"`
	Reference string            `json:"reference,omitempty"`
}

// Case returns the case of p. It reports false if p is not of any.
func (p Problem) Case() (ProblemCase, bool) {
	name, ok := strings.CutPrefix(p.Type, problemBase)
	if !ok {
		return "", false
	}
	_, ok = problemCases[ProblemCase(name)]
	if !ok {
		return "", false
	}
	return ProblemCase(name), true
}

// MarshalJSON returns the problem details object.
func (p Problem) MarshalJSON() ([]byte, error) {
	return json.Marshal(problemMembers{p.Type, p.Title, p.Status, p.Detail, p.Instance, p.Retry, p.StatusURL, p.Reference})
}

// Write writes p as the whole response. It removes header fields that describe another
// body, and forbids caches to store it. Errors of the connection are ignored.
func (p Problem) Write(w http.ResponseWriter) {
	body, err := p.MarshalJSON()
	if err != nil {
		panic(err) // strings and an int always marshal
	}
	p.write(w, ContentTypeProblem, body)
}

// MaxProblemBytes is the size of the largest object that ParseProblem reads.
const MaxProblemBytes = 64 << 10

// ErrNotProblem is the error of ParseProblem for another Content-Type.
var ErrNotProblem = errors.New("semelhttp: the response is not a problem details object")

// ParseProblem reads a problem details object from a response body with the given
// Content-Type. As required by RFC 9457, unknown members and members of the wrong type
// are ignored, and a missing type is "about:blank". A retry with a value that is not
// defined here is ignored, too. The texts come from the sender and must not be trusted.
//
// The error is ErrNotProblem for another Content-Type, the error of r, or says that the
// body is larger than MaxProblemBytes or not a JSON object.
func ParseProblem(r io.Reader, contentType string) (Problem, error) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if mediaType != ContentTypeProblem || err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return Problem{}, ErrNotProblem
	}
	body, err := io.ReadAll(io.LimitReader(r, MaxProblemBytes+1))
	if err != nil {
		return Problem{}, fmt.Errorf("semelhttp: read problem: %w", err)
	}
	if len(body) > MaxProblemBytes {
		return Problem{}, fmt.Errorf("semelhttp: problem is larger than %d bytes", MaxProblemBytes)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return Problem{}, errors.New("semelhttp: problem is not a JSON object") // err could quote the body
	}
	text := func(name string) string {
		var s string
		if json.Unmarshal(members[name], &s) != nil {
			return ""
		}
		return s
	}
	p := Problem{
		Type: text("type"), Title: text("title"), Detail: text("detail"), Instance: text("instance"),
		Retry: semel.RetryAdvice(text("retry")), StatusURL: text("status_url"), Reference: text("reference"),
	}
	if p.Type == "" {
		p.Type = "about:blank"
	}
	switch p.Retry {
	case semel.RetrySameKey, semel.RetryNewKey, semel.RetryAfterResolution, semel.RetryNo:
	default:
		p.Retry = ""
	}
	var status int
	if json.Unmarshal(members["status"], &status) == nil && status >= 100 && status <= 599 {
		p.Status = status
	}
	return p, nil
}
