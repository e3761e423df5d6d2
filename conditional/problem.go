package conditional

import (
	"errors"
	"net/http"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// problemBase is where the cases are documented.
const problemBase = "https://github.com/semelhq/semel/blob/main/docs/conditional.md#"

// The refusals of this package. Their types end in these names.
var (
	malformed = semelhttp.Problem{
		Type: problemBase + "precondition-malformed", Status: http.StatusBadRequest, Retry: semel.RetryNewKey,
		Title: "The precondition is malformed",
	}
	required = semelhttp.Problem{
		Type: problemBase + "precondition-required", Status: http.StatusPreconditionRequired, Retry: semel.RetryNewKey,
		Title:  "The request must be conditional",
		Detail: "Send If-Match with the entity tag of what is to be changed, or If-None-Match: * to create it. Nothing was changed.",
	}
	failed = semelhttp.Problem{
		Type: problemBase + "precondition-failed", Status: http.StatusPreconditionFailed, Retry: semel.RetryNewKey,
		Title: "The precondition does not hold",
	}
	notAllowed = semelhttp.Problem{
		Type: problemBase + "transition-not-allowed", Status: http.StatusConflict, Retry: semel.RetryNo,
		Title: "The transition is not allowed",
	}
	contended = semelhttp.Problem{
		Type: problemBase + "contended", Status: http.StatusServiceUnavailable, Retry: semel.RetrySameKey, RetryAfter: time.Second,
		Title:  "Others are changing the resource",
		Detail: "Others changed the resource each time before this request could. Nothing was changed by it.",
	}
	notFound = semelhttp.Problem{
		Status: http.StatusNotFound, Retry: semel.RetryNo, Title: http.StatusText(http.StatusNotFound),
		Detail: "There is no such resource. Nothing was changed.",
	}
	unapplied = semelhttp.Problem{
		Type: problemBase + "precondition-not-applied", Status: http.StatusInternalServerError, Retry: semel.RetryNo,
		Title:  "The precondition was not applied",
		Detail: "The request has a precondition, and the server did not see to it. Whether the request took effect is not known.",
	}
)

// Refuse writes the response to r for an error of Apply or Table.Apply, and
// reports whether it did. For other errors, which are those of the handler and its
// database, it writes nothing.
//
// The status is 412 for a *FailedError, 409 for a *TransitionError, 404 for
// ErrNotFound and 503 for ErrContended. The handler must not have had any effect
// before, because 412 and 503 leave no record, so that the idempotency key, if
// any, is free again.
func Refuse(w http.ResponseWriter, r *http.Request, err error) bool {
	var p semelhttp.Problem
	if e, ok := errors.AsType[*FailedError](err); ok {
		p = failed
		p.Detail = e.Field + " does not hold for the current state. Nothing was changed. Get the current state, and decide again."
		if e.Weak {
			p.Detail = "If-Match names what is there now by a weak entity tag, which does not count. Nothing was changed."
		}
	} else if e, ok := errors.AsType[*TransitionError](err); ok {
		p = notAllowed
		p.Detail = "The event " + e.Event + " is not allowed in the state " + e.State + ". Nothing was changed."
	} else if errors.Is(err, ErrContended) {
		p = contended
	} else if errors.Is(err, ErrNotFound) {
		p = notFound
	} else {
		return false
	}
	if p.Status == http.StatusPreconditionFailed || p.Status == http.StatusServiceUnavailable {
		semelhttp.DeclareNoEffect(r.Context(), err)
	}
	of(r.Context()).write(w, p)
	return true
}

// write answers with a problem as the contract tells it.
func (p *precondition) write(w http.ResponseWriter, problem semelhttp.Problem) {
	var contract semelhttp.Contract
	if p.contract != nil {
		contract = *p.contract
	}
	contract.WriteProblem(w, problem)
}
