package semelhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

func (e *exchange) answer(ctx context.Context, out semel.Outcome, err error) {
	if e.DryRun {
		rehearsalOf(ctx).answered(out, e.expired)
		return
	}
	failure, _ := errors.AsType[*semel.Error](err) // there is one wherever it is used
	if e.rec.passing() {
		if out.Answer != semel.AnswerExecuted && out.Answer != semel.AnswerReleased {
			// Nobody knows whether that was all, and the client must not take it
			// for the end.
			panic(http.ErrAbortHandler)
		}
		e.rec.end()
		return
	}
	switch out.Answer {
	case semel.AnswerExecuted:
		e.own(out.Record.ExpiresAt)
	case semel.AnswerReplayed:
		r := replay{
			contract: &e.Contract, resources: e.Resources, shared: e.submit.Identity.Actor == "",
			timeout: e.Guard.Policy().StoreTimeout, pace: e.Pace,
		}
		r.write(ctx, e.w, out, err)
	case semel.AnswerReleased:
		switch {
		case errors.Is(err, semel.ErrRolledBack):
			// Whatever the handler answered, it did not come true.
			p := ProblemRolledBack.Problem()
			p.RetryAfter = max(failure.RetryAfter, time.Second)
			e.refuse(e.w, p)
		case e.expired:
			e.refuse(e.w, ProblemKeyExpired.Problem())
		default:
			e.own(time.Time{})
		}
	case semel.AnswerInProgress:
		e.inProgress(ctx, out.Record, failure)
	case semel.AnswerMismatch:
		e.refuse(e.w, ProblemKeyMismatch.Problem())
	case semel.AnswerUnknown:
		p := ProblemOutcomeUnknown.Problem()
		p.StatusURL = e.Resources.StatusURL(out.Record.ID)
		p.Retry, p.RetryAfter = failure.Retry(), failure.RetryAfter
		if out.Claimed {
			p.Status = e.ownFailure()
			p.Detail = "It is not known whether this request took effect. It is not executed again until that is settled. Keep the key: another key could cause the effect twice."
		}
		e.refuse(e.w, p)
	case semel.AnswerUnavailable:
		e.unavailable(ctx, out, failure)
	default:
		// The key is well-formed, so it is the scope that makes no identity.
		e.refuse(e.w, Problem{
			Status: http.StatusInternalServerError, Title: http.StatusText(http.StatusInternalServerError), Retry: semel.RetryNo,
			Detail: "The server could not name the operation. Nothing was executed.",
		})
	}
}

// ownFailure is the status for the request whose own execution was cut off: a
// failure of the server, where those who find the record meet a conflict.
func (e *exchange) ownFailure() int {
	switch {
	case !e.Forwards:
		return http.StatusInternalServerError
	case errors.Is(e.cause, semel.ErrDeadline):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// inProgress answers while the identity is being executed, be it for this
// request or for another.
func (e *exchange) inProgress(ctx context.Context, rec semel.Record, failure *semel.Error) {
	ctx = context.WithoutCancel(ctx)
	if e.async || e.InFlight == InFlightAccept {
		switch found, err := e.Resources.visible(ctx, rec); {
		case err == nil:
			h := e.w.Header()
			if e.async {
				h.Set(headerPreferenceApplied, strings.TrimPrefix(h.Get(headerPreferenceApplied)+", respond-async", ", "))
			}
			if e.Contract.ResultHeader != "" {
				h.Set(e.Contract.ResultHeader, "accepted")
			}
			h.Set("Location", e.Resources.StatusURL(rec.ID))
			e.Resources.writeStatus(e.w, http.StatusAccepted, found)
			return
		case failure.Claimed && !errors.Is(err, semel.ErrNotFound):
			// For others it is a conflict whatever the store says now.
			p := ProblemStoreUnavailable.Problem()
			p.Detail = "This request is being executed, but its record could not be looked up now. Keep the key: another key could cause the effect twice."
			p.RetryAfter, p.StatusURL = max(failure.RetryAfter, time.Second), e.Resources.StatusURL(rec.ID)
			e.refuse(e.w, p)
			return
		}
	}
	p := ProblemInProgress.Problem()
	p.RetryAfter = max(failure.RetryAfter, time.Second)
	p.StatusURL = e.Resources.StatusURL(rec.ID)
	e.refuse(e.w, p)
}

func (e *exchange) unavailable(ctx context.Context, out semel.Outcome, failure *semel.Error) {
	busy, isBusy := errors.AsType[*semel.BusyError](failure)
	p := ProblemStoreUnavailable.Problem()
	switch {
	case errors.Is(failure, semel.ErrUnreadable):
		p = ProblemResultUnreadable.Problem()
		p.StatusURL = e.Resources.StatusURL(out.Record.ID)
	case errors.Is(failure, semel.ErrDraining):
		p = stopping()
	case isBusy:
		p = ProblemBusy.Problem()
		p.Detail = fmt.Sprintf("The server executes as many operations at the same time as it may: %d, by its %s. Nothing was executed.", busy.Limit, busy.Bound)
	case out.Claimed:
		p.Detail = "This request was executed, but what came of it could not be recorded, so whether it took effect is not known yet. Keep the key: another key could cause the effect twice."
		p.StatusURL = e.Resources.StatusURL(out.Record.ID)
	case e.FailOpen && ctx.Err() == nil && out.Record.ID == "":
		if e.expired {
			// It may have been used, and there is no record to say so.
			e.refuse(e.w, ProblemKeyExpired.Problem())
			return
		}
		e.Guard.NoteFailedOpen(ctx, e.submit, failure)
		e.handle(ctx, e.w)
		return
	}
	p.RetryAfter = max(failure.RetryAfter, time.Second)
	e.refuse(e.w, p)
}

// refuse answers with a problem, as the contract tells it.
func (e *exchange) refuse(w http.ResponseWriter, problem Problem) {
	e.Contract.WriteProblem(w, problem)
}

// own answers with what the handler wrote.
func (e *exchange) own(expires time.Time) {
	rec := &e.rec
	switch {
	case (rec.status == http.StatusSwitchingProtocols || rec.lost) && !expires.IsZero():
		replay{contract: &e.Contract}.notRetained(e.w, "", rec.tombstone().Reference, expires)
		return
	case rec.status == http.StatusSwitchingProtocols:
		e.refuse(e.w, Problem{
			Status: http.StatusInternalServerError, Title: http.StatusText(http.StatusInternalServerError), Retry: semel.RetrySameKey,
			Detail: "The operation had no effect. It asked for another protocol, which it cannot have.",
		})
		return
	case rec.lost:
		e.refuse(e.w, Problem{
			Status: rec.status, Title: http.StatusText(rec.status), Retry: semel.RetrySameKey,
			Detail: "The operation had no effect. Its response was too large to be passed on.",
		})
		return
	}
	body := rec.kept.content()
	body.coded = rec.outer.Get("Content-Encoding") != ""
	rec.prepare(e.w.Header())
	send(e.w, &e.Contract, e.Pace, rec.status, rec.trailer, body, expires, nil)
}
