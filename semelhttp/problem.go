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

// ProblemCase is one reason why a protected request was not answered with a
// result. Its names are stable.
type ProblemCase string

// The cases of the HTTP contract.
const (
	ProblemKeyMissing        ProblemCase = "key-missing"
	ProblemKeyMalformed      ProblemCase = "key-malformed"
	ProblemKeyMismatch       ProblemCase = "key-mismatch"
	ProblemInProgress        ProblemCase = "in-progress"
	ProblemOutcomeUnknown    ProblemCase = "outcome-unknown"
	ProblemResultNotRetained ProblemCase = "result-not-retained"
	ProblemStoreUnavailable  ProblemCase = "store-unavailable"
	ProblemRolledBack        ProblemCase = "rolled-back"
	ProblemBodyTooLarge      ProblemCase = "body-too-large"
	ProblemBodyUnreadable    ProblemCase = "body-unreadable"
	ProblemBodyTooSlow       ProblemCase = "body-too-slow"
	ProblemSpoolUnavailable  ProblemCase = "spool-unavailable"
	ProblemBusy              ProblemCase = "busy"

	// Of keys that the service issues itself.
	ProblemKeyNotIssued ProblemCase = "key-not-issued"
	ProblemKeyExpired   ProblemCase = "key-expired"
	// Of contracts with a FirstSentHeader.
	ProblemFirstSentInvalid    ProblemCase = "first-sent-invalid"
	ProblemFirstSentOutOfRange ProblemCase = "first-sent-out-of-range"
	// Of contracts that refuse keys where nothing is protected.
	ProblemNotProtected ProblemCase = "not-protected"
	// Of the status resource.
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
		"The operation with this Idempotency-Key completed and is not executed again. Its answer could not be kept for replay.",
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
		"There is no record with this id that is yours to see: it was released, it has expired, or it never was.",
	},
}

// Type returns the case's problem type, a URI that leads to its documentation.
func (c ProblemCase) Type() string { return problemBase + string(c) }

// Problem returns the case as a problem with its type, title, status, retry
// and a general detail. It panics for a case that does not exist.
func (c ProblemCase) Problem() Problem {
	p, ok := problemCases[c]
	if !ok {
		panic("semelhttp: no problem case " + strconv.Quote(string(c)))
	}
	return Problem{Type: c.Type(), Title: p.title, Status: p.status, Detail: p.detail, Retry: p.retry}
}

// Problem is a problem details object (RFC 9457). It goes to clients: it must
// hold no key, no fingerprint and nothing out of a stored result but the
// reference.
type Problem struct {
	// Type is a URI that identifies the kind of problem. Empty means
	// "about:blank": no more than the status says.
	Type string
	// Title is the same for every problem of a type.
	Title string
	// Status is the response's status. It must be set to Write a problem; in
	// a parsed one it is zero if the sender left it out.
	Status int
	// Detail is for people, about this occurrence.
	Detail string
	// Instance is a URI that identifies this occurrence.
	Instance string

	// Retry tells what to send next. Empty means that it was not said.
	Retry semel.RetryAdvice
	// StatusURL is where the operation can be watched.
	StatusURL string
	// Reference names the resource that the operation created.
	Reference string

	// RetryAfter is sent as the Retry-After header, in seconds, rounded up;
	// zero or less sends none. It is not a member of the object.
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

// Case returns the case that p is of, and false for problems of other origin.
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

// Write sends p as the whole response. It removes headers that would describe
// another body, and forbids caches to keep it. An error of the connection is
// not reported: there is nobody left to tell.
func (p Problem) Write(w http.ResponseWriter) {
	body, err := p.MarshalJSON()
	if err != nil {
		panic(err) // strings and an int always marshal
	}
	p.write(w, ContentTypeProblem, body)
}

// MaxProblemBytes is the largest problem details object that ParseProblem
// reads.
const MaxProblemBytes = 64 << 10

// ErrNotProblem is ParseProblem's answer to a response of another type.
var ErrNotProblem = errors.New("semelhttp: the response is not a problem details object")

// ParseProblem reads a problem details object from a response body with the
// given Content-Type. As RFC 9457 has it, unknown members and members of the
// wrong type are ignored, and a missing type is "about:blank". So is a retry
// of a value that is not defined here: it is left empty. All text is the
// sender's and must not be trusted.
//
// The error is ErrNotProblem for another Content-Type, the reader's error, or
// says that the body is larger than MaxProblemBytes or not a JSON object.
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
